"""What is in a tarball, an unpacked release, a pack or an image. Needs only the standard library, for images pyelftools
and, to decode a pack's groups, zstandard: it runs on machines where nothing of Kiln is installed.

Nothing is ever unpacked, and nothing that a file states about itself is believed unless verify.py has looked.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from kiln_build.artifacts import left_out, manifest_model, pack
from kiln_build.artifacts.entries import Entry, folder_entries, tarball_entries
from kiln_build.artifacts.manifest_model import IMAGES as IMAGES
from kiln_build.artifacts.manifest_model import PATH as MANIFEST
from kiln_build.base import tarball
from kiln_recipe.errors import ArtifactError, EnvironmentProblem, UsageError
from kiln_recipe.selection import unknown

if TYPE_CHECKING:
    from kiln_recipe.images.elf import AmdFacts, NvidiaFacts

LARGEST_IMAGE = 32 << 20  # bytes of one in a file
WHAT = "give a release's tarball, the folder that it was unpacked to, a pack, or an image (cubin, hsaco)"


@dataclass(frozen=True)
class Release:
    """A tarball, or (`is_folder`) an unpacked one; or a part of a release, of which `manifest` is.

    Attributes:
        spelled: the SHA-256 of the manifest's bytes.
        parts: of a folder in which a release was installed in parts (parts.py), the targets that are there; None if it
            was not.
    """

    path: Path
    is_folder: bool
    manifest: dict[str, Any]
    spelled: str
    parts: tuple[str, ...] | None = None

    def entries(self, hear: Callable[[bytes], object] = lambda data: None) -> Iterator[Entry]:
        """Every member, in the order of their paths; `hear` gets all of a tarball, as it is in the file.

        Raises:
            ArtifactError: the tarball is not what Kiln writes.
        """
        return folder_entries(self.path) if self.is_folder else tarball_entries(self.path, hear)


@dataclass(frozen=True)
class PackFile:
    """A pack, and its index."""

    path: Path
    pack: pack.Pack


@dataclass(frozen=True)
class ImageFile:
    """An image, and its facts."""

    path: Path
    data: bytes
    facts: AmdFacts | NvidiaFacts


def open_artifact(path: Path, right: str = WHAT, takes_part: bool = False) -> Release | PackFile | ImageFile:
    """Opens whatever `path` is.

    Args:
        right: what the errors say that one should give.
        takes_part: it may be a part of a release.

    Raises:
        EnvironmentProblem: it cannot be read, or is neither a file nor a folder.
        ArtifactError: it is not one of these, or is malformed.
        UsageError: it is a part of a release.
    """
    opened = _open(path, right)
    if isinstance(opened, Release) and "part" in opened.manifest and not takes_part:
        raise UsageError(
            f"{path} is the part {opened.manifest['part']} of a release that was split; `kiln merge` makes one of all "
            f"parts; {right}"
        )
    return opened


def open_tarball(path: Path, right: str = "a release's tarball", takes_part: bool = False) -> Release:
    """The release, or the part of one, of which `path` is the tarball; arguments and errors as `open_artifact`, and

    Raises:
        UsageError: it is something else.
    """
    opened = open_artifact(path, f"give {right}", takes_part)
    if not isinstance(opened, Release) or opened.is_folder:
        raise UsageError(f"{path} is not a tarball; give {right}")
    return opened


def _open(path: Path, right: str) -> Release | PackFile | ImageFile:
    try:
        if path.is_dir():
            root = next((root for root in (path, path / "kiln") if manifests_in(root)), path)
            return _folder(root, path, right)
        if path.exists() and not path.is_file():
            raise EnvironmentProblem(f"{path} is a pipe or a device, which Kiln does not read; {right}")
        with tarball.open_file(path) as file:
            head = file.read(8)
            file.seek(0)
            if head[:2] == b"\x1f\x8b":
                return Release(path, False, *_manifest_of(path))
            if head == pack.MAGIC:
                return PackFile(path, pack.read_index(file.read, path.stat().st_size, str(path)))
            if head[:4] == b"\x7fELF":
                return _image(path, file.read(LARGEST_IMAGE + 1))
    except OSError as error:
        raise EnvironmentProblem(f"{path} cannot be read ({error.strerror}); {right}") from error
    raise ArtifactError(f"{path} is not a release, a pack or an image; {right}")


def manifests_in(root: Path) -> list[str]:
    """The manifests of an unpacked release, the release's own first, and of the parts in which it was installed."""
    paths = [root / MANIFEST, *sorted(root.glob(f"{manifest_model.PARTS}/*/{Path(MANIFEST).name}"))]
    return [path.relative_to(root).as_posix() for path in paths if path.is_file()]


def unpacked(root: Path, data: bytes, name: str) -> Release:
    """The release that was unpacked, or installed in parts, to the folder `root`; `data` is its manifest.

    Raises:
        ArtifactError: the manifest is malformed.
    """
    parts = [Path(path).parent.name for path in manifests_in(root) if path != MANIFEST]
    targets = tuple(part for part in parts if part != manifest_model.RUNTIME)
    is_split = manifest_model.RUNTIME in parts
    return Release(root, True, manifest_model.read(data, name), _sha256(data), targets if is_split else None)


def _folder(root: Path, path: Path, right: str) -> Release:
    found = manifests_in(root)
    if not found:
        raise ArtifactError(f"{path} is not an unpacked release: it has no {MANIFEST}; {right}")
    if len(found) > 1 and found[0] != MANIFEST:
        names = ", ".join(Path(one).parent.name for one in found)
        raise ArtifactError(f"{path} has parts of a release ({names}) without its part runtime; install that too")
    with tarball.open_file(root / found[0]) as file:
        data = file.read(manifest_model.LARGEST + 1)
    if found[0] == MANIFEST:
        return unpacked(root, data, str(path))
    return Release(root, True, manifest_model.read(data, str(path)), _sha256(data))


def _image(path: Path, data: bytes) -> ImageFile:
    elf = need("elf")
    try:
        if len(data) > LARGEST_IMAGE:
            raise ArtifactError(f"it has more than {LARGEST_IMAGE >> 20} MiB, the limit of an image")
        kind = elf.kind_of(data)
        return ImageFile(path, data, elf.amd_facts(data) if kind == "hsaco" else elf.nvidia_facts(data))
    except ArtifactError as error:
        raise ArtifactError(f"{path}: {error}") from error


def families_of(variants: Iterable[Mapping[str, Any]]) -> list[str]:
    """The families of variants' rows."""
    return sorted({row["kernel"].partition(".")[0] for row in variants})


def variants_of(artifact: Release | PackFile) -> list[dict[str, Any]]:
    """A row for each variant: target, kernel, functional, configuration, specialization, key; its image's digest and
    facts, or `unavailable`, the reason why it has none. In the order of the packs' slots; what the build left out has
    no row, but a rule."""
    if isinstance(artifact, PackFile):
        return list(pack_rows(artifact.pack))
    images = {(row["target"], row["sha256"]): row for row in artifact.manifest["images"]}
    rows = []
    for variant in artifact.manifest["variants"]:
        row = {"image": None, "unavailable": None, **variant}
        if row["image"] is not None:
            facts = images.get((row["target"], row["image"]))
            if facts is None:
                raise ArtifactError(f"{artifact.path}: the manifest has no image {row['image']}, which a variant names")
            row |= {name: value for name, value in facts.items() if name not in ("target", "sha256")}
        rows.append(row)
    return rows


def rules_of(artifact: Release | PackFile) -> list[dict[str, Any]]:
    """What the build left out: rules, as `left_out.rules_of` makes them."""
    return left_out.rules_of(artifact.pack) if isinstance(artifact, PackFile) else artifact.manifest["left_out"]


def pack_rows(the_pack: pack.Pack) -> Iterator[dict[str, Any]]:
    """`variants_of` for a pack's index."""
    images = {image.digest: image for image in the_pack.images}
    for kernel in the_pack.kernels:
        names = [
            {"functional": functional, "configuration": configuration, "specialization": specialization}
            for functional in kernel.functionals
            for configuration in kernel.configurations
            for specialization in kernel.specializations
        ]
        for slot, name in zip(kernel.slots, names):
            if left_out.is_left_out(slot):
                continue
            row: dict[str, Any] = {"target": the_pack.target}
            row |= {"kernel": f"{kernel.family}.{kernel.operation}/{kernel.kernel}", **name, "key": slot.key}
            row |= {"image": slot.image, "unavailable": slot.reason}
            if slot.image is not None:
                row |= image_row(images[slot.image])
                if slot.ptx is not None:
                    row |= {"ptx_sha256": slot.ptx, "ptx_bytes": images[slot.ptx].bytes}
            yield row


def image_row(image: pack.PackedImage) -> dict[str, Any]:
    """What a pack's index says of an image, under the manifest's names."""
    names = ("kind", "symbol", "threads", "registers", "shared", "spills", "stack", "parameters")
    row = {"bytes": image.bytes, **{name: getattr(image.info, name) for name in names}}
    if image.info.descriptors:
        row["descriptors"] = [{**dataclasses.asdict(d), "box": list(d.box)} for d in image.info.descriptors]
    return row


def select(
    rows: list[dict[str, Any]],
    choices: dict[str, tuple[str, ...]],
    targets: set[str],
    rules: Sequence[dict[str, Any]] = (),
) -> list[dict[str, Any]]:
    """The rows of those targets (all, if empty) that have, for each name in `choices`, one of its values: of what
    `settings_of` tells of a row.

    Args:
        rules: what the build left out, of which an error gives the reason.

    Raises:
        UsageError: no row has such a name or value, or is of one of the targets.
    """
    for target in sorted(targets):
        if all(row["target"] != target for row in rows):
            others = ", ".join(dict.fromkeys(row["target"] for row in rows)) or "none"
            raise UsageError(f"there are no variants for {target}, only for {others}")
    if not choices:
        return [row for row in rows if not targets or row["target"] in targets]
    settings = [settings_of(row) for row in rows]
    if missed := unknown(settings, choices.items()):
        name, value, there = missed
        if value is None:
            raise UsageError(f"no variant has a {name}; variants have {', '.join(there)}")
        reasons = (rule["reason"] for rule in rules if value in _named(rule).get(name, ()))
        why = next((f": {reason}" for reason in reasons), "")
        raise UsageError(f"no variant has {name}={value}{why}; {name} is one of {', '.join(there)}")
    return [
        row
        for row, its in zip(rows, settings)
        if (not targets or row["target"] in targets)
        and all(its.get(name) in values for name, values in choices.items())
    ]


def select_rules(
    rules: Sequence[dict[str, Any]], choices: dict[str, tuple[str, ...]], targets: set[str]
) -> list[dict[str, Any]]:
    """The rules that leave out something of what `select` would show."""
    shown = []
    for rule in rules:
        named = _named(rule)
        if rule.get("specializations") is not None:
            named["specialization"] = rule["specializations"]
        if rule.get("configurations") is not None:
            words = [word.partition("=") for configuration in rule["configurations"] for word in configuration.split()]
            for name, _, value in words:
                named.setdefault(name, []).append(value)
        if (not targets or rule["target"] in targets) and all(
            name not in named or set(values) & set(named[name]) for name, values in choices.items()
        ):
            shown.append(rule)
    return shown


def settings_of(row: dict[str, Any]) -> dict[str, str]:
    """{"family": "flash", "operation": "attn_fwd", "kernel": "attn_fwd", "dtype": "bf16", "BLOCK_M": "128", ...,
    "specialization": "aligned"} of a variant's row."""
    settings = names_of(row["kernel"])
    for word in f"{row['functional']} {row['configuration']}".split():
        name, _, value = word.partition("=")
        settings.setdefault(name, value)  # a column of configurations may be called as one of these
    return settings | {"specialization": row["specialization"]}


def _named(rule: dict[str, Any]) -> dict[str, list[str]]:
    """The values that a rule is about, but for those of configurations and specializations."""
    return {name: [value] for name, value in names_of(rule["kernel"]).items()} | (rule.get("where") or {})


def names_of(kernel: str) -> dict[str, str]:
    """Family, operation and kernel by "small.matmul/matmul.general", as packs and manifests name a kernel."""
    place, _, name = kernel.partition("/")
    family, _, operation = place.partition(".")
    return {"family": family, "operation": operation, "kernel": name}


def tools_of(release: Release) -> str:
    """What made the release: "triton 3.8.0, zig 0.17.0"; Triton's own parts, which have its version, left out."""
    tools = [f"{tool['name']} {tool['version']}" for tool in release.manifest["tools"]]
    return ", ".join(dict.fromkeys(tool for tool in tools if not tool.startswith("triton's ")))


def facts_of(image: ImageFile) -> dict[str, Any]:
    """Facts of an image as plain data."""
    return {"kind": need("elf").kind_of(image.data), "bytes": len(image.data), **dataclasses.asdict(image.facts)}


_OPTIONAL = {"elf": ("kiln_recipe.images.elf", "pyelftools"), "zstd": ("kiln_build.base.zstd", "zstandard")}


def need(name: str) -> ModuleType:
    """The module "elf", or "zstd", if what it needs is installed.

    Raises:
        EnvironmentProblem: it is not.
    """
    try:
        return importlib.import_module(_OPTIONAL[name][0])
    except ImportError as error:
        package = _OPTIONAL[name][1]
        later = ", or version 3.14 or later" if name == "zstd" else ""
        raise EnvironmentProblem(
            f"to read images, Python needs {package}{later}; python3 -m pip install {package}"
        ) from error
    except SyntaxError as error:  # the locked pyelftools, which kiln-inspect.pyz has in it
        version = "{}.{}".format(*sys.version_info[:2])
        raise EnvironmentProblem(f"reading images needs Python 3.10 or later; this is {version}") from error


def file_of(tarball: Path, name: str) -> bytes:
    """What a tarball's file `name`, the manifest say, holds.

    Raises:
        ArtifactError: it has no such file, or one that is larger than any manifest.
    """
    for entry in tarball_entries(tarball):
        if entry.path == name and entry.kind == "file":
            return _content(entry, tarball)
    raise _not_ours(tarball, name)


def _manifest_of(path: Path) -> tuple[dict[str, Any], str]:
    """The manifest of a tarball, or of the part that it is: the first that it has; and the SHA-256 of its bytes."""
    for entry in tarball_entries(path):
        if entry.kind == "file" and manifest_model.is_path(entry.path):
            data = _content(entry, path)
            document = manifest_model.read(data, str(path))
            if manifest_model.path_of(document) != entry.path:
                raise ArtifactError(f"{path}: its manifest lies in {entry.path}, where it is not of what it says")
            return document, _sha256(data)
    raise _not_ours(path, MANIFEST)


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _content(entry: Entry, path: Path) -> bytes:
    if entry.size > manifest_model.LARGEST:
        what = "manifest" if manifest_model.is_path(entry.path) else entry.path
        raise ArtifactError(f"{path}: its {what} has {entry.size} bytes, more than any release's")
    return b"".join(entry.blocks())


def _not_ours(path: Path, lacking: str) -> ArtifactError:
    return ArtifactError(f"{path} is not a release of Kiln's: it has no {lacking}")
