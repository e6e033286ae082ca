"""A part as a conda package, the same bytes every time:

    conda    = zip, stored, of metadata.json, info-<file>.tar.zst, pkg-<file>.tar.zst; <file> = <name>-<release>-<build>
    info     = info/index.json, paths.json, files, about.json, licenses/
    pkg      = the part, which conda installs at the top of an environment

A target's package asks for its runtime by version and build, and a build is called after the digest of the release's
manifest.
"""

from __future__ import annotations

import io
import json
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kiln_build.base import tar, tarball
from kiln_build.parts.package import Package
from kiln_build.release.release import put
from kiln_recipe import digests

SUBDIR = "linux-64"
_LEVEL = 19
_TIME = (1980, 1, 1, 0, 0, 0)


def write(package: Package, output: Path) -> Path:
    """Writes <name>-<release>-<build>.conda, and its .sha256.

    Raises:
        InTheWay: another one of that name is there, and stays.
        EnvironmentProblem: it cannot be written.
    """
    file = f"{package.name}-{package.release}-{_build(package)}"
    texts = {f"info/{name}": _json(document) for name, document in _documents(package).items()}
    rows = [member for member, _ in _staged(package)]
    texts["info/files"] = "".join(f"{member.name}\n" for member in sorted(rows, key=lambda one: one.name)).encode()
    texts |= {f"info/licenses/{name}": text.encode() for name, text in package.texts.items()}
    info = [(_info(name, "file", len(text)), text) for name, text in sorted(texts.items())]
    contents = {
        "metadata.json": json.dumps({"conda_pkg_format_version": 2}).encode(),
        f"info-{file}.tar.zst": _compressed(_archive(iter(info))),
        f"pkg-{file}.tar.zst": _compressed(_archive(_members(package))),
    }
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, data in contents.items():
            member = zipfile.ZipInfo(name, _TIME)
            member.create_system, member.external_attr = 3, 0o644 << 16
            archive.writestr(member, data)
    return put(output / f"{file}.conda", iter([buffer.getvalue()]))


def _build(package: Package) -> str:
    return f"h{package.token}_0"


def _documents(package: Package) -> dict[str, Any]:
    depends = ["__glibc >=2.28"] if package.is_runtime else [f"kiln-runtime {package.release} {_build(package)}"]
    rows = {row["path"]: row for row in package.part.manifest["files"]}
    paths = []
    for member, path in sorted(_staged(package), key=lambda row: row[0].name):
        row = rows.get(member.name, {})
        digest = digests.of_file(path) if "link" not in row else digests.of_file(path.resolve())
        paths.append(
            {"_path": member.name, "path_type": "softlink" if "link" in row else "hardlink", "sha256": digest,
             "size_in_bytes": path.stat().st_size}
        )  # fmt: skip
    return {
        "index.json": {
            "arch": "x86_64", "build": _build(package), "build_number": 0, "depends": depends,
            "license": package.licence, "name": package.name, "platform": "linux", "subdir": SUBDIR,
            "version": package.release,
        },
        "paths.json": {"paths": paths, "paths_version": 1},
        "about.json": {
            "description": " ".join(package.description), "license": package.licence, "summary": package.summary,
        },
    }  # fmt: skip


def _json(document: Any) -> bytes:
    return (json.dumps(document, indent=1, sort_keys=True) + "\n").encode()


def _staged(package: Package) -> Iterator[tuple[tar.Member, Path]]:
    return (row for row in tarball.staged(package.part.stage) if row[0].kind != "folder")


def _members(package: Package) -> Iterator[tuple[tarfile.TarInfo, Path]]:
    for member, path in _staged(package):
        info = _info(member.name, member.kind, member.size, tarball.mode_of(member))
        info.linkname = member.link
        yield info, path


def _info(name: str, kind: str, size: int, mode: int = 0o644) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.size, info.mode, info.mtime = tar.KINDS[kind], size, mode, tarball.TIME
    return info


def _archive(members: Iterator[tuple[tarfile.TarInfo, Path | bytes]]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for info, content in members:
            data = content.read_bytes() if isinstance(content, Path) and info.size else content
            archive.addfile(info, io.BytesIO(data) if isinstance(data, bytes) and info.size else None)
    return buffer.getvalue()


def _compressed(data: bytes) -> bytes:
    import zstandard

    return zstandard.ZstdCompressor(level=_LEVEL, threads=0, write_content_size=True).compress(data)
