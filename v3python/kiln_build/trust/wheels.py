"""Whether a wheel holds what its RECORD says, to the byte, and nothing besides: pip installs what RECORD does not name,
and other programs find what lies before, between or behind a zip archive's members. Standard library only.
"""

from __future__ import annotations

import base64
import csv
import io
import re
import struct
import zipfile
import zlib
from functools import partial
from pathlib import Path
from typing import BinaryIO

from kiln_recipe import digests
from kiln_recipe.errors import ArtifactError, EnvironmentProblem

_NAME = re.compile(r"([A-Za-z0-9_.]+)-([0-9][A-Za-z0-9_.!+]*)(-[0-9][A-Za-z0-9_.]*)?(-[A-Za-z0-9_.]+){3}[.]whl")
_LOCAL = struct.Struct("<4sHHHIIIIHH")  # magic, version, flags, method, time, CRC, two sizes, those of name and extra
_UTF8 = 0x800  # the one flag that changes nothing in what is read
_ENTRY, _END = 46, 22  # bytes of a member's entry in the directory, and of what stands behind that
_LARGEST_RECORD = 16 << 20  # bytes
_MALFORMED = (zipfile.BadZipFile, zlib.error, csv.Error, struct.error, EOFError, ValueError, RuntimeError)
_MOST_EXPANSION = 200  # a wheel's is 2 to 5, and deflate's at most 1,032


def version_of(name: str) -> str:
    """The version in a wheel's name.

    Raises:
        ArtifactError: no wheel is called so.
    """
    found = _NAME.fullmatch(name)
    if found is None:
        raise ArtifactError(f"{name} is not the name of a wheel: <package>-<version>-<python>-<abi>-<platform>.whl")
    return found[2]


def check(path: Path) -> None:
    """
    Raises:
        ArtifactError: it is not such a wheel; the sentence names the member.
        EnvironmentProblem: it cannot be read.
    """
    try:
        with path.open("rb") as file, zipfile.ZipFile(file) as archive:
            _check_places(archive, file, path)
            _check_contents(archive, path)
    except OSError as error:
        raise EnvironmentProblem(f"{path} cannot be read ({error.strerror}); give a folder of wheels") from error
    except _MALFORMED as error:
        raise ArtifactError(f"{path} is damaged, or no wheel ({error})") from error


def _check_places(archive: zipfile.ZipFile, file: BinaryIO, path: Path) -> None:
    """Each byte belongs to one member, and a member is called the same before its content and in the directory."""
    at, size, names = 0, 0, set()
    for info in sorted(archive.infolist(), key=lambda one: one.header_offset):
        name = info.orig_filename
        if name in names:
            raise ArtifactError(f"{path} has {name} twice")
        names.add(name)
        if not _is_plain(name):
            raise ArtifactError(f"{path} has a member that is not a file below its top, {name!r}")
        if info.header_offset != at:
            raise ArtifactError(f"{path} has bytes before {name} that belong to no member")
        file.seek(at)
        magic, _, flags, method, _, crc, stored, whole, length, extra = _LOCAL.unpack(file.read(_LOCAL.size))
        before = magic, flags & ~_UTF8, method, crc, stored, whole, file.read(length), extra
        within = info.compress_type, info.CRC, info.compress_size, info.file_size, name.encode()
        if before != (b"PK\x03\x04", 0, *within, 0) or info.flag_bits & ~_UTF8 or info.extra or info.comment:
            raise ArtifactError(f"{path} says something else before {name} than in its directory, or more")
        at += _LOCAL.size + length + stored
        size += _ENTRY + length
    if (archive.start_dir, archive.comment) != (at, b"") or path.stat().st_size != at + size + _END:
        raise ArtifactError(f"{path} has bytes around its directory that belong to no member")


def _is_plain(name: str) -> bool:
    return name.isascii() and name.isprintable() and "\\" not in name and not {"", ".", ".."} & {*name.split("/")}


def _check_contents(archive: zipfile.ZipFile, path: Path) -> None:
    stem = "-".join(path.name.split("-")[:2])
    record = f"{stem}.dist-info/RECORD"
    infos = {info.filename: info for info in archive.infolist()}
    if record not in infos:
        raise ArtifactError(f"{path} has no {record}, which says what is in it")
    if sum(info.file_size for info in infos.values()) > _MOST_EXPANSION * path.stat().st_size:
        raise ArtifactError(f"{path} expands to more than {_MOST_EXPANSION} times its size; no wheel does")
    if infos[record].file_size > _LARGEST_RECORD:
        raise ArtifactError(f"{path}: its RECORD has more than {_LARGEST_RECORD >> 20} MiB")
    rows = [*csv.reader(io.StringIO(archive.read(record).decode(), newline=""))]
    stated = {row[0]: tuple(row[1:]) for row in rows if len(row) == 3}
    if len(stated) != len(rows) or stated.get(record) != ("", ""):
        raise ArtifactError(f"{path}: its RECORD is not a list of names, digests and sizes, each name once")
    if hidden := sorted({*infos} - {*stated}):
        raise ArtifactError(f"{path} has {hidden[0]}, which its RECORD does not name")
    if missing := sorted({*stated} - {*infos}):
        raise ArtifactError(f"{path} lacks {missing[0]}, which its RECORD names")
    for name in infos.keys() - {record}:
        with archive.open(name) as member:
            digest, size = digests.measure(iter(partial(member.read, 1 << 20), b""))
        spelled = base64.urlsafe_b64encode(bytes.fromhex(digest)).rstrip(b"=").decode()
        if stated[name] != (f"sha256={spelled}", str(size)):
            raise ArtifactError(f"{path}: {name} does not have the digest and size that its RECORD states")
