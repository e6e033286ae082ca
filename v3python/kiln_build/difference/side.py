"""What `kiln diff` looks at: a release as a tarball or a folder, wheels, or a pack, read into one form. What a release
states of its files is taken from its manifest, as `kiln list` does; `kiln inspect --verify` checks that."""

from __future__ import annotations

import hashlib
import io
import re
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kiln_build.artifacts import pack, presence, reader
from kiln_build.artifacts.reader import PackFile, Release
from kiln_build.artifacts.verify import LARGEST_LIBRARY
from kiln_build.difference import tables
from kiln_recipe import digests
from kiln_recipe.errors import ArtifactError, EnvironmentProblem, UsageError

WHAT = "give a release's tarball, the folder that it was unpacked to, a folder of wheels, a wheel, or a pack"
_LARGEST_HEADER = 1 << 20
_MOST_MEMBERS, _MOST_UNZIPPED = 10_000, 4 << 30  # of wheels together
_WHEEL = re.compile(r"([A-Za-z0-9_]+)-([A-Za-z0-9_.+!]+)-([a-z0-9_.]+-[a-z0-9_.]+-[a-z0-9_.]+)\.whl")
_INCLUDE = re.compile(r"(?:.*/)?include/(.+\.(?:h|hpp))")


@dataclass(frozen=True)
class File:
    """A file by its size and SHA-256; of a link the digest is where it leads."""

    bytes: int
    sha256: str


@dataclass
class Side:
    """One of the two.

    Attributes:
        kind: "tarball", "folder", "wheels", "pack".
        version: of the release.
        stated: what it states of itself by name, "profile", "source", "triton of sm_90": texts.
        targets: with images, in their order. absent: by target why it has none, though the manifest names a pack.
        rows: as reader.variants_of has them, without those of absent targets; rules: as reader.rules_of.
        files: by path; a wheel's below its name without version.
        headers: by path below an include/, the release's prefix before it: bytes.
        symbols: of each library by its path, what it exports.
        families: by name the tables of a family's library.
        digest: of a tarball its SHA-256, else "".
        notes: what could not be looked at.
    """

    path: Path
    kind: str
    version: str
    stated: dict[str, str] = field(default_factory=dict)
    targets: list[str] = field(default_factory=list)
    absent: dict[str, str] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)
    rules: list[dict[str, Any]] = field(default_factory=list)
    files: dict[str, File] = field(default_factory=dict)
    headers: dict[str, bytes] = field(default_factory=dict)
    symbols: dict[str, list[str]] = field(default_factory=dict)
    families: dict[str, tables.Family] = field(default_factory=dict)
    digest: str = ""
    notes: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        """ "kiln 0.1.0b+full, tarball"."""
        return f"kiln {self.version}, {self.kind}"

    def take(self, path: str, content: bytes) -> None:
        """Looks at a header or a library."""
        if found := _INCLUDE.fullmatch(path):
            self.headers[path if "/include/" in path else found[1]] = content
            return
        name = path.rpartition("/")[2]
        try:
            self.symbols[path] = tables.symbols(content)
        except ArtifactError as error:
            self.notes.append(f"{path} was not looked into: {error}")
            return
        family = re.fullmatch(r"libkiln_(\w+)\.so", name)
        if family and f"kiln_{family[1]}_family" in self.symbols[path]:
            try:
                self.families[family[1]] = tables.read(content, family[1])
            except ArtifactError as error:
                self.notes.append(f"the look-ups of {path} were not compared: {error}")


def open_side(path: Path) -> Side:
    """Reads whatever `path` is.

    Raises:
        EnvironmentProblem: it cannot be read.
        ArtifactError: it is damaged, or none of these.
        UsageError: it is a single image.
    """
    wheels = _wheels_in(path)
    if wheels:
        return _of_wheels(path, wheels)
    artifact = reader.open_artifact(path, WHAT)
    if isinstance(artifact, PackFile):
        return _of_pack(artifact)
    if isinstance(artifact, Release):
        return _of_release(artifact)
    raise UsageError(f"{path} is a single image; {WHAT}")


def _of_release(release: Release) -> Side:
    manifest = release.manifest
    side = Side(release.path, "folder" if release.is_folder else "tarball", manifest["kiln"], _stated(manifest))
    if not release.is_folder:
        side.digest = digests.of_file(release.path)
    side.absent = presence.absent_packs(release) if release.is_folder else {}
    presence.refuse_damaged(release, side.absent)
    side.targets = [row["name"] for row in manifest["targets"] if row.get("pack") and row["name"] not in side.absent]
    side.rows = [row for row in reader.variants_of(release) if row["target"] not in side.absent]
    side.rules = reader.rules_of(release)
    for row in manifest["files"]:
        side.files[row["path"]] = File(row.get("bytes", 0), row.get("sha256") or f"to {row.get('link')}")
    for entry in release.entries():
        if entry.kind == "file" and _is_wanted(entry.path, entry.size):
            side.take(entry.path, b"".join(entry.blocks()))
    return side


def _stated(manifest: Mapping[str, Any]) -> dict[str, str]:
    """What a manifest says of the whole release, and of its targets' toolchains, as texts."""
    source = manifest["source"]
    dirty = ", with changes" if source["dirty"] else ""
    patches = f", patches {source['patches'][:12]}" if source.get("patches") else ""
    stated = {
        "release": manifest["kiln"],
        "platform": manifest["platform"],
        "profile": manifest["profile"],
        "selection": manifest["selection"] or "none",
        "PTX": "yes" if manifest["ptx"] else "no",
        "commit": f"{source['commit']}{dirty}{patches}",
        "families": " ".join(manifest.get("families") or reader.families_of(manifest["variants"])),
    }
    for tool in manifest["tools"]:
        digest = f" ({tool['sha256'][:12]})" if tool.get("sha256") else ""
        stated[f"tool {tool['name']}"] = f"{tool['version']}{digest}"
    for row in manifest["targets"]:
        for name in ("toolchain", "assembler", "ptx_version", "abi", "lowest_driver", "runs_on", "verified"):
            if value := row.get(name):
                text = " ".join(value) if isinstance(value, list) else str(value)
                stated[f"{row['name']}: {name.replace('_', ' ')}"] = text[:12] if name == "toolchain" else text
        stated[f"{row['name']}: triton"] = row["triton"]
    for waiver in manifest["waivers"]:
        stated[f"waiver {waiver['kernel']}: {waiver['reason']}"] = f"{waiver['missing']} of {waiver['covers']} missing"
    return stated


def _of_pack(file: PackFile) -> Side:
    size = file.pack.file_bytes
    return Side(
        file.path, "pack", file.pack.release, {"release": file.pack.release}, [file.pack.target], {},
        reader.variants_of(file), reader.rules_of(file), {file.path.name: File(size, file.pack.index_digest)},
    )  # fmt: skip


def _is_wanted(path: str, size: int) -> bool:
    if _INCLUDE.fullmatch(path):
        return size <= _LARGEST_HEADER
    return re.search(r"/lib[\w.]+\.so(?:\.|$)", path) is not None and size <= LARGEST_LIBRARY


# ---- wheels ----


def _wheels_in(path: Path) -> list[Path]:
    try:
        if path.is_dir():
            return sorted(one for one in path.iterdir() if one.suffix == ".whl")
    except OSError as error:
        raise EnvironmentProblem(f"{path} cannot be read ({error.strerror}); {WHAT}") from error
    return [path] if path.suffix == ".whl" else []


def _of_wheels(path: Path, wheels: list[Path]) -> Side:
    side = Side(path, "wheels", "")
    versions, members, size = set(), 0, 0
    for wheel in wheels:
        named = _WHEEL.fullmatch(wheel.name)
        if named is None:
            raise ArtifactError(f"{wheel.name} is not the name of a wheel: <package>-<version>-<tags>.whl")
        versions.add(named[2])
        side.files[f"{named[1]} {named[3]}"] = File(wheel.stat().st_size, digests.of_file(wheel))
        try:
            with zipfile.ZipFile(wheel) as archive:
                infos = [info for info in archive.infolist() if not info.is_dir()]
                members += len(infos)
                size += sum(info.file_size for info in infos)
                if members > _MOST_MEMBERS or size > _MOST_UNZIPPED:
                    raise ArtifactError(f"{wheel}: the wheels hold more files or bytes than any release's")
                for info in infos:
                    _take_member(side, archive, info, f"{named[1]} {named[3]}")
        except (zipfile.BadZipFile, OSError, EOFError, NotImplementedError) as error:
            raise ArtifactError(f"{wheel} is damaged, or no wheel ({error})") from error
    if len(versions) > 1:
        raise ArtifactError(f"{path} has wheels of {' and '.join(sorted(versions))}; keep each build's in a folder")
    side.version = versions.pop()
    side.stated["release"] = side.version
    return side


def _take_member(side: Side, archive: zipfile.ZipFile, info: zipfile.ZipInfo, wheel: str) -> None:
    path = info.filename
    with archive.open(info) as file:
        head, digest = b"", hashlib.sha256()
        keep = _is_wanted(path, info.file_size) or path.endswith(".pack")
        for block in iter(lambda: file.read(1 << 20), b""):
            digest.update(block)
            head += block if keep else b""
    below = re.sub(r"^[^/]+\.(dist-info|data)/", r"\1/", path)
    side.files[f"{wheel}/{below}"] = File(info.file_size, digest.hexdigest())
    if path.endswith(".pack"):
        the_pack = pack.read_index(io.BytesIO(head).read, len(head), path)
        side.targets.append(the_pack.target)
        side.rows += reader.pack_rows(the_pack)
        side.rules += reader.rules_of(PackFile(Path(path), the_pack))
    elif keep and path not in side.symbols:
        side.take(path, head)


def kernels_of(rows: list[dict[str, Any]]) -> Iterator[tuple[tuple[str, str], list[dict[str, Any]]]]:
    """The rows of each (target, family)."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["target"], row["kernel"].partition(".")[0]), []).append(row)
    yield from groups.items()
