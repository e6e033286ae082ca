"""A part as a Debian package, deb(5), the same bytes every time:

deb     = ar of "debian-binary" ("2.0\\n"), "control.tar.gz", "data.tar.gz"; times 1980-01-01, owners 0
control = control, md5sums; for a runtime below /usr: triggers, which call ldconfig
data    = the part below the prefix; /usr/share/doc/<package>/copyright
"""

from __future__ import annotations

import hashlib
import io
import tarfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from kiln_build.base import tar, tarball
from kiln_build.parts.package import Package
from kiln_build.release.release import put

ARCHITECTURE = "amd64"
_LARGEST = 10**10  # of a member of an ar, in bytes


def write(package: Package, output: Path, prefix: str, maintainer: str) -> Path:
    """Writes <name>_<release>_amd64.deb, and its .sha256.

    Args:
        prefix: the folder in which it installs, "/opt/kiln".
        maintainer: "Name <mail@example.org>".

    Raises:
        InTheWay: another one of that name is there, and stays.
        EnvironmentProblem: it cannot be written.
    """
    path = output / f"{package.name}_{package.release}_{ARCHITECTURE}.deb"
    data = _Data(package, prefix.strip("/"))
    control = {"control": data.control(maintainer), "md5sums": data.sums()}
    if package.is_runtime and prefix.rstrip("/") == "/usr":
        control["triggers"] = "activate-noawait ldconfig\n"
    rows = [_member(f"./{name}", "file", text.encode()) for name, text in sorted(control.items())]
    packed = b"".join(tarball.compressed(_archive(iter([_folder("./"), *rows]))))
    return put(path, _ar([("debian-binary", [b"2.0\n"]), ("control.tar.gz", [packed]), ("data.tar.gz", data.packed())]))


class _Data:
    """What is installed."""

    def __init__(self, package: Package, prefix: str) -> None:
        self._package, self._prefix = package, prefix
        self._copyright = f"usr/share/doc/{package.name}/copyright"

    def control(self, maintainer: str) -> str:
        package = self._package
        if package.is_runtime:
            relations = ["Depends: libc6 (>= 2.28)", f"Provides: kiln-release-{package.token}"]
        else:
            relations = [f"Depends: kiln-runtime (= {package.version}), kiln-release-{package.token}"]
        lines = [
            f"Package: {package.name}", f"Version: {package.version}", f"Architecture: {ARCHITECTURE}",
            f"Maintainer: {maintainer}", f"Installed-Size: {self._size()}", *relations, "Section: libs",
            "Priority: optional", f"Description: {package.summary}", *(f" {line}" for line in package.description),
        ]  # fmt: skip
        return "".join(f"{line}\n" for line in lines)

    def sums(self) -> str:
        rows = {f"{self._prefix}/{member.name}": path for member, path in self._staged() if member.kind != "link"}
        found = {name: _md5(path) for name, path in rows.items() if path.is_file()}
        found[self._copyright] = hashlib.md5(self._package.copyright.encode(), usedforsecurity=False).hexdigest()
        return "".join(f"{digest}  {name}\n" for name, digest in sorted(found.items()))

    def packed(self) -> list[bytes]:
        return list(tarball.compressed(_archive(self._members())))

    def _staged(self) -> Iterator[tuple[tar.Member, Path]]:
        return tarball.staged(self._package.part.stage)

    def _size(self) -> int:
        """Of what is installed in KiB, as dpkg-gencontrol counts it: each file rounded up, a link or folder as one."""
        sizes = [-(-member.size // 1024) if member.kind == "file" else 1 for member, _ in self._staged()]
        return sum(sizes) + 1 + -(-len(self._package.copyright.encode()) // 1024)

    def _members(self) -> Iterator[tuple[tarfile.TarInfo, Path | bytes]]:
        text = self._package.copyright.encode()
        folders = {str(one) for name in (f"{self._prefix}/x", self._copyright) for one in PurePosixPath(name).parents}
        there = sorted(folders - {"."})
        yield _folder("./")
        yield from (_folder(f"./{name}/") for name in there)
        for member, path in self._staged():
            name = f"./{self._prefix}/{member.name}"
            if member.kind == "folder":
                if f"{self._prefix}/{member.name}" not in there:
                    yield _folder(f"{name}/")
                continue
            link = f"./{self._prefix}/{member.link}" if member.kind == "hard link" else member.link
            yield _member(name, member.kind, path, link, tarball.mode_of(member))
        yield _member(f"./{self._copyright}", "file", text)


def _folder(name: str) -> tuple[tarfile.TarInfo, bytes]:
    return _member(name, "folder", b"", mode=0o755)[0], b""


def _member(
    name: str, kind: str, content: Path | bytes, link: str = "", mode: int = 0o644
) -> tuple[tarfile.TarInfo, Path | bytes]:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode, info.mtime = tar.KINDS[kind], link, mode, tarball.TIME
    info.uname = info.gname = "root"
    if kind == "file":
        info.size = content.stat().st_size if isinstance(content, Path) else len(content)
    return info, content


def _archive(members: Iterator[tuple[tarfile.TarInfo, Path | bytes]]) -> Iterator[bytes]:
    """A GNU tar, which dpkg reads, in pieces."""
    size = 0
    for info, content in members:
        head = info.tobuf(tarfile.GNU_FORMAT)
        yield head
        size += len(head)
        if info.size:
            with content.open("rb") if isinstance(content, Path) else io.BytesIO(content) as file:
                yield from iter(lambda: file.read(tarball.MEMBER_SLACK), b"")
            yield tar.padding(info.size)
            size += info.size + len(tar.padding(info.size))
    yield tar.end(size)


def _ar(members: list[tuple[str, list[bytes]]]) -> Iterator[bytes]:
    yield b"!<arch>\n"
    for name, pieces in members:
        size = sum(map(len, pieces))
        if size >= _LARGEST:
            raise ValueError(f"{name} has {size} bytes; a deb holds fewer than {_LARGEST}")
        yield f"{name:<16}{tarball.TIME:<12}{0:<6}{0:<6}{100644:<8}{size:<10}`\n".encode()
        yield from pieces
        yield b"\n" * (size % 2)


def _md5(path: Path) -> str:
    digest = hashlib.md5(usedforsecurity=False)
    with path.open("rb") as file:
        for block in iter(lambda: file.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()
