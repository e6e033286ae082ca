"""Licences of what a release contains besides Kiln's own code: NOTICES.txt and the texts, from the locked packages.

notices/notices.yaml of the source tree lists what there is, and extension.yaml what wheels have besides: its name, the
file for its licence's text below share/kiln/licences/, the licence (SPDX where it has such a name), in which files of
the release it is, what it does there, and where the text is taken from; for the bill of materials also the locked
package that brings it, its own version if that is another than the package's, what scanners know it by (a package URL,
with `{version}` for the version), and the files of the toolchain that it is.
"""

from __future__ import annotations

import fnmatch
import importlib.util
import re
import tarfile
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import yaml

from kiln_recipe.errors import ToolchainError


class Notice(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"where": "in"}):
    """An entry of notices.yaml."""

    name: str
    file: str
    licence: str
    where: str
    what: str
    text: tuple[str, ...]
    package: str
    version: str = ""
    purl: str = ""
    files: tuple[str, ...] = ()


def read(source: Path, name: str) -> tuple[Notice, ...]:
    """The entries of a list in the source tree's notices/: "notices.yaml", "extension.yaml"."""
    return msgspec.convert(yaml.safe_load((source / "notices" / name).read_bytes()), tuple[Notice, ...])


def collect(source: Path, site: Path, sources: Mapping[str, Path]) -> dict[str, str]:
    """LICENSE, NOTICES.txt and licences/<file>, by their paths below share/kiln/.

    Args:
        source: root of the source tree.
        site: the site-packages that holds Triton, and zig unless that is elsewhere on Python's path.
        sources: by package the source distributions of which C is compiled into the runtime.

    Raises:
        ToolchainError: a licence's text is not where notices.yaml says.
    """
    head = "Kiln is under the licence in the file LICENSE. This release also contains parts of:\n"
    texts = {"LICENSE": (source / "LICENSE").read_text(), "NOTICES.txt": head}
    return _added(texts, source, "notices.yaml", site, sources)


def with_extension(texts: Mapping[str, str], source: Path, site: Path) -> dict[str, str]:
    """A release's texts, and those for what the Python package's extension contains (notices/extension.yaml).

    Args:
        texts: as `collect` gave them.
        site: the site-packages with nanobind, and zig unless that is elsewhere on Python's path.

    Raises:
        ToolchainError: a licence's text is not where extension.yaml says.
    """
    return _added(texts, source, "extension.yaml", site, {})


def of_files(text: str, paths: Sequence[str]) -> str:
    """Of a release's NOTICES.txt what is about these files, by path in the release."""
    head, *entries = text.split("\n\n")
    kept = [entry for entry in entries if is_in(re.findall("^In: (.+)$", entry, re.MULTILINE)[0], paths)]
    return "\n\n".join([head.replace("This release", "This package"), *kept]).rstrip("\n") + "\n"


def is_in(place: str, paths: Sequence[str]) -> bool:
    """Whether one of the files is where a notice says that its part is, "lib/*.so*"."""
    return any(fnmatch.fnmatchcase(path, place) for path in paths)


def _added(
    texts: Mapping[str, str], source: Path, name: str, site: Path, sources: Mapping[str, Path]
) -> dict[str, str]:
    added = dict(texts)
    for notice in read(source, name):
        added[f"licences/{notice.file}"] = _text(notice, source / "notices", site, sources)
        added["NOTICES.txt"] += (
            f"\n{notice.name}\n{textwrap.fill(' '.join(notice.what.split()), 78)}\n"
            f"In: {notice.where}\nLicence: {notice.licence}, licences/{notice.file}\n"
        )
    return added


def _text(notice: Notice, folder: Path, site: Path, sources: Mapping[str, Path]) -> str:
    for place in notice.text:
        package, colon, name = place.rpartition(":")
        text = _packaged(package, name, site, sources) if colon else (folder / name).read_text()
        if text is not None:
            return text
    raise ToolchainError(f"the licence of {notice.name} is not at {' or '.join(notice.text)} of the locked packages")


def _packaged(package: str, name: str, site: Path, sources: Mapping[str, Path]) -> str | None:
    if package in sources:
        with tarfile.open(sources[package]) as tar:
            member = next((m for m in tar if m.isfile() and m.name.partition("/")[2] == name), None)
            file = tar.extractfile(member) if member else None
            return file.read().decode() if file else None
    if package == "ziglang":
        spec = importlib.util.find_spec("ziglang")
        folders = [site / "ziglang", *map(Path, (spec.submodule_search_locations if spec else None) or ())]
    elif package == "pyelftools":  # of the Python that runs, whose modules portable.py takes
        spec = importlib.util.find_spec("elftools")
        folders = sorted(Path(spec.origin).parents[1].glob(f"{package}-*.dist-info")) if spec and spec.origin else []
    else:
        folders = sorted(site.glob(f"{package}-*.dist-info"))
    return next(((folder / name).read_text() for folder in folders if (folder / name).is_file()), None)
