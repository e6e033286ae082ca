# ruff: noqa: UP045 - Python 3.9 reads these annotations too
"""What a release's manifest holds, share/kiln/manifest.json: its fields, written and read in one spelling.

    manifest = "{" "\\n" field ("," "\\n" field)* "\\n" "}" "\\n"   ; fields in the order of their names
    field    = ' "' name '": ' value                             ; a table without rows: []
             | ' "' name '": [' "\\n" row ("," "\\n" row)* "\\n" " ]"
    row      = "  " value
    value    = JSON on one line: names sorted, ", " and ": " between, no character escaped that need not be

A manifest is read a line at a time, each held against the dataclasses below before the next, and whatever is spelled in
another way is refused: every reader finds the same in it. Needs only the standard library.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Annotated, Any, Optional

from kiln_build.base import tar
from kiln_recipe import shape
from kiln_recipe.errors import ArtifactError, escaped
from kiln_recipe.shape import Limits

FORMATS = (2, 3, 4, 5)  # the later ones where something is said that the first does not know: see `format_of`
PATH = "share/kiln/manifest.json"
IMAGES = "lib/kiln.images"
INSPECTOR = "share/kiln/kiln-inspect.pyz"
PARTS = "share/kiln/installed"  # a folder for each part of a release that was split; comes before PATH in a tarball
RUNTIME = "runtime"  # the part with everything but packs; each other part is called after its target
SIGNATURE = ".minisig"  # the end of a signature's name, behind that of the file beside it
LARGEST = 32 << 20  # bytes; 19 targets of the full profile have 22 MiB
_LONGEST_LINE = 256 << 10
_LONGEST_PATH, _DEEPEST_PATH = 250, 16
_MOST_VALUES = 1_500_000  # each takes memory beyond its bytes

Digest = Annotated[str, Limits("[0-9a-f]{64}", description="SHA-256")]
Count = Annotated[int, Limits(least=0)]
Bytes = Annotated[int, Limits(least=0, description="bytes")]
Word = Annotated[str, Limits("[A-Za-z0-9_][A-Za-z0-9_.+-]*", description="letters, digits, '_', '.', '+' and '-'")]


@dataclass(frozen=True)
class Source:
    """The source tree. `commit`: 40 digits or "unknown"; `dirty`: whether the tree differed from it; `patches`: digest
    of the applied input/patch-<version>/, or ""."""

    commit: str
    dirty: bool
    patches: str = ""


@dataclass(frozen=True)
class Tool:
    """Something that made bytes of the release. `sha256`: of the file that did, or of the package that it is from,
    where the same file serves every Python."""

    name: str
    version: str
    sha256: Optional[Digest] = None


@dataclass(frozen=True)
class Waiver:
    """A reason that a recipe gives for variants that may be missing: so many it covers, so many are missing.
    `missing` 0: it is not needed (any more)."""

    kernel: str
    reason: str
    covers: Count
    missing: Count


@dataclass(frozen=True)
class File:
    """A file of the release, or (with `link`) a symbolic link to one beside it. The manifest itself is not listed."""

    path: str
    bytes: Bytes = 0
    sha256: Optional[Digest] = None
    link: Optional[Word] = None


@dataclass(frozen=True)
class TargetRow:
    """One GPU architecture of the release.

    Attributes:
        pack: file name below lib/kiln.images/, or null: built without images.
        index: digest of the pack's index, which the family's library holds too.
        triton, toolchain: version of the Triton that compiled for it; digest that stands for all of its toolchain.
        assembler, assembler_sha256: NVIDIA: which assembler made the cubins; "" for AMD: Triton's own LLVM.
        abi: ELF ABI version of the cubins, or version of the AMD code objects.
        ptx_version: of the PTX that the cubins were assembled from; "" for AMD.
        lowest_driver: the lowest that loads the images.
        runs_on: architectures that execute the images natively.
        functionals, variants, images: counts of what the build makes; variants of equal code share an image.
        unavailable: variants that the build should make, without an image for the reason in their row.
        left_out: combinations of choices that the recipe knows, and that `left_out` says this build is not for.
        verified: "compiled, not run", or what ran how many of the variants; then what an emulator executed of them. Or
            "no images in this release".
    """

    name: Word
    vendor: Word
    triton: str
    toolchain: Digest
    kind: Word
    abi: Count
    lowest_driver: str
    runs_on: tuple[Word, ...]
    functionals: Count
    variants: Count
    images: Count
    unavailable: Count
    left_out: Count
    verified: str
    pack: Optional[Word] = None
    index: Optional[Digest] = None
    assembler: str = ""
    assembler_sha256: Optional[Digest] = None
    ptx_version: str = ""


@dataclass(frozen=True)
class DescriptorRow:
    """A tensor descriptor that an image takes: a CUtensorMapDataType, a CUtensorMapSwizzle, and the sides of what one
    copy moves, outermost first."""

    element_type: Count
    swizzle: Count
    box: tuple[Count, ...]


@dataclass(frozen=True)
class ImageRow:
    """One image of a target's pack. Registers, spills and stack are per thread, shared memory per block.

    Attributes:
        ptx_sha256, ptx_bytes: of the PTX in the pack, if there is one.
        ptx_version, abi: of the PTX that it was assembled from, and its ELF ABI, where they are not the target's.
        descriptors: of the parameters that are tensor descriptors, in their order; null: none.
    """

    target: Word
    sha256: Digest
    kind: Word
    symbol: str
    bytes: Bytes
    threads: Count
    registers: Count
    shared: Bytes
    spills: Bytes
    stack: Bytes
    parameters: Count
    ptx_sha256: Optional[Digest] = None
    ptx_bytes: Optional[Bytes] = None
    ptx_version: str = ""
    abi: Count = 0
    descriptors: Optional[tuple[DescriptorRow, ...]] = None


@dataclass(frozen=True)
class VariantRow:
    """One variant: its key and its image, or why there is none. `kernel` is "<family>.<operation>/<kernel>"."""

    target: Word
    kernel: str
    functional: str
    configuration: str
    specialization: str
    key: Digest
    image: Optional[Digest] = None
    unavailable: Optional[str] = None


@dataclass(frozen=True)
class LeftOut:
    """A rule: what the profile, the selection or the recipe leaves out of this release, and so has no variant.

    Attributes:
        where: by choice the values that the rule is about; a choice that is not named may have any.
        configurations, specializations: likewise; null: any.
        variants: how many it leaves out: of all that it names those without a row in `variants`.
    """

    target: Word
    kernel: str
    reason: str
    variants: Count
    where: Optional[Mapping[str, tuple[str, ...]]] = None
    configurations: Optional[tuple[str, ...]] = None
    specializations: Optional[tuple[str, ...]] = None


@dataclass(frozen=True)
class Manifest:
    """A release: `profile`, `selection` and `ptx` are what its build was asked for. `families`: all that it has, where
    some of Kiln's own are left out. Of a part of a release (parts.py) `part` is the part's name, and `of` the digest of
    the release's manifest."""

    format: int
    kiln: str
    platform: str
    profile: str
    selection: str
    ptx: bool
    source: Source
    tools: Annotated[tuple[Tool, ...], Limits(most=1000)]
    targets: Annotated[tuple[TargetRow, ...], Limits(most=64)]
    waivers: Annotated[tuple[Waiver, ...], Limits(most=1000)]
    files: Annotated[tuple[File, ...], Limits(most=10_000)]
    images: Annotated[tuple[ImageRow, ...], Limits(most=30_000)]
    variants: Annotated[tuple[VariantRow, ...], Limits(most=60_000)]
    left_out: Annotated[tuple[LeftOut, ...], Limits(most=20_000)]
    families: Optional[tuple[Word, ...]] = None
    part: Optional[Word] = None
    of: Optional[Digest] = None


_KNOWN = f"{', '.join(map(str, FORMATS[:-1]))} and {FORMATS[-1]}"
_SECOND = {"ptx_version", "abi", "descriptors"}  # fields of an image that make it the second format
_TABLES = [
    name for name, (kind, _) in shape.fields_of(Manifest).items() if str(kind).startswith("typing.Annotated[tuple")
]
# What stands once in each table.
_UNIQUE = {"targets": ("name",), "files": ("path",), "images": ("target", "sha256")}


def encode(manifest: Manifest) -> bytes:
    """The manifest as its file has it: a row of a table on a line of its own, so that a diff of two reads well."""
    return encode_document(shape.plain(manifest))


def encode_document(document: dict[str, Any]) -> bytes:
    """The same for plain data, as `read` gives it."""
    return "".join(f"{line}\n" for line in _lines(document)).encode()


def schema() -> dict[str, Any]:
    """The JSON schema of a manifest."""
    document = shape.schema(Manifest)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "Kiln release manifest", **document}


def read(data: bytes, name: str) -> dict[str, Any]:
    """Reads a manifest: plain data with the fields of `Manifest`; fields with their default are not there.

    Args:
        name: of what it is in, for the sentences.

    Raises:
        ArtifactError: it is too large, of another format, or not exactly what `encode` writes.
    """

    def wrong(sentence: str) -> ArtifactError:
        return ArtifactError(f"{name}: its manifest {sentence}")

    if len(data) > LARGEST:
        raise wrong(f"has more than {LARGEST} bytes, the limit")
    if data.count(b",") > _MOST_VALUES:
        raise wrong(f"has more than {_MOST_VALUES} values, the limit")
    stated = re.search(rb'"format": ?([0-9]{1,40})[,}\s]', data)
    if stated is None:
        whole = data.strip()
        if not whole:
            raise wrong("is damaged: it is empty")
        if not (whole.startswith(b"{") and whole.endswith(b"}")):
            raise wrong("is damaged: it is cut off, or is not a JSON object")
        raise wrong(f"states no format; this Kiln reads formats {_KNOWN}")
    number = int(stated[1])
    if number not in FORMATS:
        newer = "; a newer Kiln made it" if number > max(FORMATS) else ""
        raise wrong(f"has format {number}{newer}; this Kiln reads formats {_KNOWN}")
    document: dict[str, Any] = {}
    fields, table = shape.fields_of(Manifest), ""
    texts: dict[str, str] = {}  # most are there many times
    for number, line in enumerate(_split(data), 1):
        if len(line) > _LONGEST_LINE:
            raise wrong(f"has {len(line)} bytes in line {number}; the limit is {_LONGEST_LINE}")
        try:
            text = line.decode()
            begun = re.match(' "([a-z_]+)": (.*)', text)
            if begun is None and not (table and text.startswith("  ")):
                continue
            field = begun[1] if begun else table
            if field not in fields:
                raise wrong(f"has the unknown field {field!r} in line {number}")
            if begun and begun[2] == "[" and field in _TABLES:
                document[field], table = [], field
                continue
            value = json.loads((begun[2] if begun else text).rstrip(","))
        except (ValueError, RecursionError) as error:
            raise wrong(f"is not valid JSON in line {number} ({escaped(str(error))})") from error
        if begun:
            if problem := shape.check(fields[field][0])(value):
                raise wrong(f"is malformed in line {number}: {field}{problem}")
            document[field] = value
            continue
        rows, limits = document[table], fields[table][0].__metadata__[0]
        if len(rows) >= limits.most:
            raise wrong(f"has more than {limits.most} rows in its table {table!r}, the limit")
        if problem := shape.check(shape.entries_of(fields[table][0]))(value):
            raise wrong(f"is malformed in line {number}: {table}[{len(rows)}]{problem}")
        rows.append({n: texts.setdefault(v, v) if isinstance(v, str) and len(v) != 64 else v for n, v in value.items()})
    if not data.endswith(b"}\n"):
        raise wrong("is truncated")
    if problem := shape.check(Manifest)({**document, **{n: [] for n in document if isinstance(document[n], list)}}):
        raise wrong(f"is malformed: it{problem}")
    for number, (line, ours) in enumerate(zip_longest(_split(data), _lines(document)), 1):
        if line is None or ours is None or line != ours.encode():
            raise wrong(f"is not written as Kiln writes it, in line {number}")
    if document["format"] != (right := format_of(document["images"], document.get("families", ()), "part" in document)):
        raise wrong(f"has format {document['format']}; what it says has {right}")
    _check_tables(document, wrong)
    return document


def format_of(images: Iterable[Mapping[str, Any]], families: Sequence[str] = (), is_part: bool = False) -> int:
    """The format of a manifest with these rows of images and families: the lowest that knows what they say."""
    if is_part:
        return FORMATS[3]
    return FORMATS[2 if families else any(_SECOND & row.keys() for row in images)]


def path_of(document: Mapping[str, Any]) -> str:
    """Where a manifest lies in what it describes."""
    return f"{PARTS}/{document['part']}/{PATH.rpartition('/')[2]}" if "part" in document else PATH


def is_path(path: str) -> bool:
    """Whether a release, or a part of one, has a manifest of its own there."""
    return path == PATH or re.fullmatch(f"{PARTS}/[^/]+/{PATH.rpartition('/')[2]}", path) is not None


def _check_tables(document: dict[str, Any], wrong: Any) -> None:
    for table, names in _UNIQUE.items():
        seen = set()
        for row in document[table]:
            key = tuple(row[name] for name in names)
            if key in seen:
                raise wrong(f"has {' '.join(key)} twice in its table {table!r}")
            seen.add(key)
    packs = [row["pack"] for row in document["targets"] if "pack" in row]
    if len(packs) != len(set(packs)):
        raise wrong("names a pack twice in its table 'targets'")
    own = _check_part(document, wrong)
    for row in document["files"]:
        path = row["path"]
        if not tar.is_plain(path) or path == own or len(path) > _LONGEST_PATH or path.count("/") > _DEEPEST_PATH:
            raise wrong(f"names the file {shape.shown(row['path'])}; such a name is not allowed")
        if ("link" in row) == ("sha256" in row):
            raise wrong(f"must give {row['path']} either a digest or a link")


def _check_part(document: dict[str, Any], wrong: Any) -> str:
    """Where the manifest lies, which no row of its files may name."""
    part = document.get("part")
    if (part is None) != ("of" not in document):
        raise wrong("must name the part that it is of, and the release, or neither")
    if part is None:
        return PATH
    there = [row["name"] for row in document["targets"]]
    if there != ([] if part == RUNTIME else [part]):
        raise wrong(f"is of the part {part}, and has {', '.join(there) or 'no target'}")
    whole = next((row.get("sha256") for row in document["files"] if row["path"] == PATH), None)
    if whole != (document["of"] if part == RUNTIME else None):
        raise wrong(f"is of the part {part}, which {'lacks' if part == RUNTIME else 'has'} the release's {PATH}")
    return path_of(document)


def _split(data: bytes) -> Iterator[bytes]:
    """The lines, one by one."""
    start = 0
    while start < len(data):
        end = data.find(b"\n", start)
        end = len(data) if end < 0 else end
        yield data[start:end]
        start = end + 1


_compact = json.JSONEncoder(sort_keys=True, ensure_ascii=False, separators=(", ", ": ")).encode


def _lines(document: dict[str, Any]) -> Iterator[str]:
    yield "{"
    last = max(document, default="")
    for name, value in sorted(document.items()):
        comma = "" if name == last else ","
        if name in _TABLES and isinstance(value, list) and value:
            yield f' "{name}": ['
            for number, row in enumerate(value, 1):
                yield f"  {_compact(row)}{'' if number == len(value) else ','}"
            yield f" ]{comma}"
        else:
            yield f' "{name}": {_compact(value)}{comma}'
    yield "}"
