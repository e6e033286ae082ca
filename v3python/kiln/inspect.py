"""What is in a tarball, an unpacked release, a pack or an image. Needs only the standard library, for images pyelftools
and, to decode a pack's groups, zstandard: it runs on machines where nothing of Kiln is installed.

Nothing is ever unpacked, and nothing that a file states about itself is believed unless verify.py has looked.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import tarfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, BinaryIO

from kiln import pack
from kiln.errors import ArtifactError, EnvironmentProblem, UsageError

if TYPE_CHECKING:
    from kiln.elf import AmdFacts, NvidiaFacts

# As manifest.py and release.py have them, which need more packages than may be there.
MANIFEST = "share/kiln/manifest.json"
IMAGES = "lib/kiln.images"
FORMAT = 1
MEMBER_BYTES = 64 << 20
_LARGEST_MANIFEST = 1 << 30
_WHAT = "give a release's tarball, the folder that it was unpacked to, a pack, or an image (cubin, hsaco)"
_TABLES = ("files", "images", "targets", "tools", "variants", "waivers")


@dataclass(frozen=True)
class Entry:
    """A member of a release: `kind` is "file", "folder", "link" or "other"; `path` is below the top folder, "" itself;
    `source` is the file that it was found in; `problem` says what is wrong with its name, if anything is."""

    path: str
    kind: str
    source: Path
    link: str = ""
    size: int = 0
    file: BinaryIO | None = None
    problem: str = ""

    def blocks(self) -> Iterator[bytes]:
        """The contents of a file, in blocks; read it before asking for the next entry, and once.

        Raises:
            ArtifactError: what it lies in is truncated or corrupt, or cannot be read.
        """
        try:
            while block := self.file.read(1 << 20):
                yield block
        except _BROKEN as error:
            raise _broken(self.source, error) from error


@dataclass(frozen=True)
class Release:
    """A tarball, or (`is_folder`) an unpacked one."""

    path: Path
    is_folder: bool
    manifest: dict[str, Any]

    def entries(self) -> Iterator[Entry]:
        """Every member, in the order of the file.

        Raises:
            ArtifactError: the tarball is truncated or corrupt.
        """
        return _folder_entries(self.path) if self.is_folder else _tarball_entries(self.path)


@dataclass(frozen=True)
class PackFile:
    """A pack, and its bytes."""

    path: Path
    data: bytes
    pack: pack.Pack


@dataclass(frozen=True)
class ImageFile:
    """An image, and its facts."""

    path: Path
    data: bytes
    facts: AmdFacts | NvidiaFacts


def open_artifact(path: Path, right: str = _WHAT) -> Release | PackFile | ImageFile:
    """Opens whatever `path` is.

    Args:
        right: what the errors say that one should give.

    Raises:
        EnvironmentProblem: it cannot be read.
        ArtifactError: it is none of those, or malformed.
    """
    try:
        if path.is_dir():
            root = path if (path / MANIFEST).is_file() else path / "kiln"
            if not (root / MANIFEST).is_file():
                raise ArtifactError(f"{path} is no unpacked release: it has no {MANIFEST}")
            return Release(root, True, _parse_manifest((root / MANIFEST).read_bytes(), str(path)))
        with path.open("rb") as file:
            head = file.read(8)
        if head[:2] == b"\x1f\x8b":
            return Release(path, False, _manifest_of(path))
        data = path.read_bytes()
    except OSError as error:
        raise EnvironmentProblem(f"{path} cannot be read ({error.strerror}); {right}") from error
    if head == pack.MAGIC:
        return PackFile(path, data, pack.parse_pack(data, str(path)))
    if head[:4] == b"\x7fELF":
        elf = need("elf")
        try:
            kind = elf.kind_of(data)
            return ImageFile(path, data, elf.amd_facts(data) if kind == "hsaco" else elf.nvidia_facts(data))
        except ArtifactError as error:
            raise ArtifactError(f"{path}: {error}") from error
    raise ArtifactError(f"{path} is nothing of Kiln's; {right}")


def variants_of(artifact: Release | PackFile) -> list[dict[str, Any]]:
    """A row for each variant: target, kernel, functional, configuration, specialization, key; its image's digest and
    facts, or `unavailable`, the reason why it has none. In the order of the packs' slots."""
    if isinstance(artifact, PackFile):
        return pack_rows(artifact.pack)
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


def pack_rows(the_pack: pack.Pack) -> list[dict[str, Any]]:
    """`variants_of` for a pack's index."""
    images = {image.digest: image for image in the_pack.images}
    rows = []
    for kernel in the_pack.kernels:
        names = [
            {"functional": functional, "configuration": configuration, "specialization": specialization}
            for functional in kernel.functionals
            for configuration in kernel.configurations
            for specialization in kernel.specializations
        ]
        for slot, name in zip(kernel.slots, names):
            row: dict[str, Any] = {"target": the_pack.target}
            row |= {"kernel": f"{kernel.family}.{kernel.operation}/{kernel.kernel}", **name, "key": slot.key}
            row |= {"image": slot.image, "unavailable": slot.reason}
            if slot.image is not None:
                row |= image_row(images[slot.image])
                if slot.ptx is not None:
                    row |= {"ptx_sha256": slot.ptx, "ptx_bytes": images[slot.ptx].bytes}
            rows.append(row)
    return rows


def image_row(image: pack.PackedImage) -> dict[str, Any]:
    """What a pack's index says of an image, under the manifest's names."""
    names = ("kind", "symbol", "threads", "registers", "shared", "spills", "stack", "parameters")
    return {"bytes": image.bytes, **{name: getattr(image.info, name) for name in names}}


def select(rows: list[dict[str, Any]], choices: dict[str, tuple[str, ...]], targets: set[str]) -> list[dict[str, Any]]:
    """The rows of those targets (all, if empty) whose functional, configuration, specialization or kernel has, for each
    name in `choices`, one of its values.

    Raises:
        UsageError: no row has such a name or value, or is of one of the targets.
    """
    for target in sorted(targets):
        if all(row["target"] != target for row in rows):
            there = ", ".join(dict.fromkeys(row["target"] for row in rows)) or "none"
            raise UsageError(f"there are no variants for {target}; there are for {there}")
    settings = [settings_of(row) for row in rows]
    for name, wanted in choices.items():
        values = list(dict.fromkeys(setting[name] for setting in settings if name in setting))
        if not values:
            known = ", ".join(dict.fromkeys(name for setting in settings for name in setting))
            raise UsageError(f"no variant has a {name}; variants have {known}")
        for value in wanted:
            if value not in values:
                raise UsageError(f"no variant has {name}={value}; {name} is one of {', '.join(values)}")
    return [
        row
        for row, setting in zip(rows, settings)
        if (not targets or row["target"] in targets)
        and all(setting.get(name) in values for name, values in choices.items())
    ]


def settings_of(row: dict[str, Any]) -> dict[str, str]:
    """{"kernel": ..., "dtype": "bf16", "BLOCK_M": "128", ..., "specialization": "aligned"} of a variant's row."""
    settings = {"kernel": row["kernel"]}
    for word in f"{row['functional']} {row['configuration']}".split():
        name, _, value = word.partition("=")
        settings[name] = value
    return settings | {"specialization": row["specialization"]}


def tools_of(release: Release) -> str:
    """What made the release: "triton 3.8.0, zig 0.17.0"; Triton's own parts, which have its version, left out."""
    tools = [f"{tool['name']} {tool['version']}" for tool in release.manifest["tools"]]
    return ", ".join(dict.fromkeys(tool for tool in tools if not tool.startswith("triton's ")))


def facts_of(image: ImageFile) -> dict[str, Any]:
    """Facts of an image as plain data."""
    return {"kind": need("elf").kind_of(image.data), "bytes": len(image.data), **dataclasses.asdict(image.facts)}


def need(name: str) -> ModuleType:
    """The module "elf", or "zstandard", if what it needs is installed.

    Raises:
        EnvironmentProblem: it is not.
    """
    package = {"elf": "pyelftools", "zstandard": "zstandard"}[name]
    try:
        return importlib.import_module("kiln.elf" if name == "elf" else name)
    except ImportError as error:
        raise EnvironmentProblem(
            f"to look into images and packs Python needs {package}; python3 -m pip install {package}"
        ) from error


def _parse_manifest(data: bytes, name: str) -> dict[str, Any]:
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ArtifactError(f"{name}: its manifest is no JSON ({error})") from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        stated = document.get("format") if isinstance(document, dict) else None
        has = "no format" if stated is None else f"format {stated!r}"
        raise ArtifactError(f"{name}: its manifest has {has}; this Kiln reads format {FORMAT}")
    if not all(map(pack.is_line, _texts(document))):
        raise ArtifactError(f"{name}: its manifest has a text with control characters")
    texts = {"variants": ("target", "kernel", "functional", "configuration", "specialization", "key")}
    texts |= {"images": ("target", "sha256"), "targets": ("name", "vendor", "kind"), "files": ("path",)}
    for table in _TABLES:
        rows = document.get(table)
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise ArtifactError(f"{name}: its manifest has no table {table!r}")
        for row in rows:
            for key in texts.get(table, ()):
                if not isinstance(row.get(key), str):
                    raise ArtifactError(f"{name}: a row of its manifest's table {table!r} has no {key!r}")
    return document


def _texts(value: Any) -> Iterator[str]:
    """All strings in a JSON value, names of members included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, member in value.items():
            yield key
            yield from _texts(member)
    elif isinstance(value, list):
        for member in value:
            yield from _texts(member)


def _manifest_of(path: Path) -> dict[str, Any]:
    for entry in _tarball_entries(path):
        if entry.path == MANIFEST and entry.kind == "file":
            if entry.size > _LARGEST_MANIFEST:
                raise ArtifactError(f"{path}: its manifest claims {entry.size} bytes")
            return _parse_manifest(b"".join(entry.blocks()), str(path))
    raise ArtifactError(f"{path} is no release of Kiln's: it has no {MANIFEST}")


_BROKEN = (tarfile.TarError, zlib.error, EOFError, OSError, ValueError)


def _broken(path: Path, error: Exception) -> ArtifactError:
    return ArtifactError(f"{path} is truncated or corrupt ({error or type(error).__name__})")


class _Unzipped:
    """What a release's gzip members hold, for tarfile, which checks neither their CRCs nor what comes behind them. All
    but the last have at least MEMBER_BYTES.

    Attributes:
        total: bytes that were read.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file, self.total = file, 0
        self._member, self._size = zlib.decompressobj(31), 0

    def read(self, size: int) -> bytes:
        while True:
            if self._member.eof:
                data = self._member.unused_data or self._file.read(1 << 16)
                if not data:
                    return b""
                if self._size < MEMBER_BYTES:
                    raise ArtifactError(
                        f"{self._file.name} has bytes behind its end; its gzip stream must be all of it"
                    )
                self._member, self._size = zlib.decompressobj(31), 0
            else:
                data = self._member.unconsumed_tail or self._file.read(1 << 16)
                if not data:
                    raise EOFError("its gzip stream has no end")
            plain = self._member.decompress(data, size)
            self._size += len(plain)
            self.total += len(plain)
            if plain:
                return plain


def _tarball_entries(path: Path) -> Iterator[Entry]:
    try:
        with path.open("rb") as file, tarfile.open(fileobj=(unzipped := _Unzipped(file)), mode="r|") as tar:
            end = 0
            for member in tar:
                end = member.offset_data + -(-member.size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE
                top, _, name = member.name.partition("/")
                problem = ""
                if top != "kiln" or ".." in name.split("/") or member.name.startswith("/"):
                    problem = f"{member.name!r} lies outside of the top folder kiln/"
                if member.isreg():
                    yield Entry(name, "file", path, "", member.size, tar.extractfile(member), problem)
                else:
                    kind = "folder" if member.isdir() else "link" if member.issym() else "other"
                    yield Entry(name, kind, path, member.linkname, problem=problem)
            while block := tar.fileobj.read(1 << 20):
                if block.strip(b"\0"):
                    raise ArtifactError(f"{path} has bytes behind its end; its tar must be the last thing in it")
            # Two empty blocks, to a whole record: of more, nobody could tell whose they are.
            records = -(-(end + 2 * tarfile.BLOCKSIZE) // tarfile.RECORDSIZE)
            if unzipped.total > records * tarfile.RECORDSIZE:
                raise ArtifactError(f"{path} has bytes behind its end; its gzip stream must be all of it")
    except _BROKEN as error:
        raise _broken(path, error) from error


def _folder_entries(root: Path) -> Iterator[Entry]:
    for path in sorted(root.rglob("*"), key=lambda p: p.relative_to(root).as_posix()):
        name = path.relative_to(root).as_posix()
        try:
            if path.is_symlink():
                yield Entry(name, "link", path, os.readlink(path))
            elif path.is_dir():
                yield Entry(name, "folder", path)
            elif path.is_file():
                with path.open("rb") as file:
                    yield Entry(name, "file", path, "", path.stat().st_size, file)
            else:
                yield Entry(name, "other", path)
        except OSError as error:
            raise ArtifactError(f"{path} cannot be read ({error.strerror})") from error
