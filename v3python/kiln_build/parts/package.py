"""What packages of a part have in common, whichever system installs them: names, versions, texts, and what binds a
target's part to its runtime."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from kiln_build.artifacts.manifest_model import PARTS, RUNTIME
from kiln_build.options import naming
from kiln_build.parts.cut import Part
from kiln_build.release.wheel_metadata import Material
from kiln_recipe import targets

_DIGITS = 16  # of a digest
PREFIX = "/opt/kiln"
MAINTAINER = "Whoever built this release of Kiln <root@localhost>"


@dataclass(frozen=True)
class Package:
    """A part as a package.

    Attributes:
        part: what it holds.
        name: "kiln-runtime", "kiln-images-sm-90".
        release: "0.1.0b+full".
        token: stands for the release's manifest: a target's package accepts the runtime of that alone.
        summary, description: a line, and some.
        licence: an SPDX expression.
        texts: LICENSE, NOTICES.txt and licences/..., of what is in the part, by path.
    """

    part: Part
    name: str
    release: str
    token: str
    summary: str
    description: tuple[str, ...]
    licence: str
    texts: Mapping[str, str]

    @property
    def is_runtime(self) -> bool:
        return self.part.name == RUNTIME

    @property
    def version(self) -> str:
        """As dpkg and rpm sort it: 0.1.0~b+full before 0.1.0, and 0.2.0~~dev20261125 before 0.2.0~a1."""
        public = naming.public(self.release)
        label = self.release[len(public) :]
        return (
            re.sub("([a-z].*)", lambda found: ("~~" if found[1].startswith("dev") else "~") + found[1], public) + label
        )

    @property
    def copyright(self) -> str:
        """All texts, one below the other."""
        return "\n\n".join(self.texts[name] for name in sorted(self.texts))


def package_of(part: Part) -> Package:
    """The package of a part.

    Raises:
        ArtifactError: the release's bill of materials is malformed.
    """
    release = part.manifest["kiln"]
    if part.name == RUNTIME:
        name, summary = "kiln-runtime", "Kiln's attention and other GPU kernels: runtime, libraries and headers"
        description: tuple[str, ...] = (
            "Kernels that were compiled ahead of time, dispatched without a compiler. Images for each kind of GPU are",
            "packages of their own, kiln-images-*, and are loaded where they are installed.",
        )
    else:
        gpus = targets.by_name(part.name).names
        name, summary = f"kiln-images-{part.name.replace('_', '-')}", f"Kiln's kernels for {part.name} GPUs"
        description = (f"Compiled images for {', '.join(gpus[:6])}{' and others' if len(gpus) > 6 else ''}.",)
    material = _material(part, name, release)
    token = part.manifest["of"][:_DIGITS]
    return Package(part, name, release, token, summary, description, material.licence, material.texts)


def _material(part: Part, name: str, release: str) -> Material:
    """Licences of what is in a part, as the release's bill has them."""
    folder = "share/kiln/" if part.name == RUNTIME else f"{PARTS}/{part.name}/"
    files = [row["path"] for row in part.manifest["files"]]
    along = {path.removeprefix(folder): part.stage / path for path in files if path.startswith(folder)}
    texts = {
        name: path.read_text()
        for name, path in along.items()
        if name in ("LICENSE", "NOTICES.txt") or name.startswith("licences/")
    }
    made = along.get("kiln.cdx.json")
    return Material.of(name, release, [f"kiln/{path}" for path in files], made.read_bytes() if made else b"", texts)
