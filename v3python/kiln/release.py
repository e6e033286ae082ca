"""The release: lays a build's results out as one folder, and makes that folder one tarball, the same bytes every time.

    kiln-<version>-<platform>-shared.tar.gz
      kiln/lib/libkiln.so.0, libkiln.so -> libkiln.so.0, libkiln_<family>.so, libaotriton_v2.so, libkiln_torch.so
      kiln/lib/kiln.images/<vendor>-<target>.pack
      kiln/lib/cmake/kiln/, kiln/lib/pkgconfig/kiln.pc, kiln_<family>.pc
      kiln/include/kiln/, kiln/include/aotriton/
      kiln/share/kiln/manifest.json, kiln-inspect.pyz, LICENSE, NOTICES.txt, licences/

A tarball counts with its .sha256 beside it only. Both appear by rename once they are complete, the .sha256 last; until
then what an earlier build left there stays as it was.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kiln import manifest, package, portable
from kiln.appear import appear
from kiln.errors import EnvironmentProblem

PLATFORM = "manylinux_2_28_x86_64"
TOP = "kiln"
IMAGES = "lib/kiln.images"

_TIME = 315532800  # 1980-01-01: the earliest that every archive format can hold
MEMBER_BYTES = 64 << 20  # of gzip; one is compressed in memory
_GZIP_LEVEL = 6  # packs do not shrink; higher levels buy less than 1 % for twice the time


@dataclass(frozen=True)
class Contents:
    """What goes into a release, the manifest left out.

    Attributes:
        version: "0.1.0b".
        libraries: "libkiln.so.0", each family's "libkiln_<family>.so", and what adapts them, by name.
        families: names of the families that have a library.
        packs: by file name, "nvidia-sm_90.pack".
        headers: by path below include/, "kiln/kiln.h": a file, or its text.
        templates: the source tree's folder cmake/.
        adapters: libraries that offer a family by another's interface, by name: "torch".
        links: in lib/ besides libkiln.so, by name: where it leads, if that is there.
        notices: texts by path below share/kiln/: LICENSE, NOTICES.txt, licences/...
    """

    version: str
    libraries: Mapping[str, Path]
    families: Sequence[str]
    packs: Mapping[str, Path]
    headers: Mapping[str, Path | str]
    templates: Path
    notices: Mapping[str, str] = field(default_factory=dict)
    adapters: Mapping[str, str] = field(default_factory=dict)
    links: Mapping[str, str] = field(default_factory=dict)


def tarball_name(version: str) -> str:
    """ "kiln-0.1.0b-manylinux_2_28_x86_64-shared.tar.gz" """
    return f"kiln-{version}-{PLATFORM}-shared.tar.gz"


def is_finished(output: Path, version: str) -> bool:
    """Whether `output` has a tarball of that version that counts."""
    tarball = output / tarball_name(version)
    return tarball.exists() and _checksum_path(tarball).exists()


def lay_out(contents: Contents, stage: Path) -> None:
    """Fills the folder `stage`, which is emptied first, with everything but the manifest.

    Raises:
        EnvironmentProblem: it cannot be written.
    """
    try:
        shutil.rmtree(stage, ignore_errors=True)
        for name, path in contents.libraries.items():
            _put(stage / "lib" / name, path)
        for name, path in contents.packs.items():
            _put(stage / IMAGES / name, path)
        for name, to in {"libkiln.so": "libkiln.so.0", **contents.links}.items():
            if (stage / "lib" / to).exists():
                (stage / "lib" / name).symlink_to(to)
        for name, header in contents.headers.items():
            _put(stage / "include" / name, header)
        for name, text in package.package_files(
            contents.templates, contents.version, contents.families, contents.adapters
        ).items():
            _put(stage / name, text)
        for name, text in contents.notices.items():
            _put(stage / "share/kiln" / name, text)
        _put(stage / "share/kiln" / portable.NAME, portable.inspector(contents.version))
    except OSError as error:
        raise EnvironmentProblem(f"cannot write {error.filename or stage}: {error.strerror}") from error


def make_release(stage: Path, output: Path, version: str) -> Path:
    """Makes the tarball of the folder `stage`, manifest included, and its .sha256; returns the tarball's path.

    Raises:
        EnvironmentProblem: `output` cannot be written, or `stage` has no manifest or something that is neither a file,
            a folder nor a link.
    """
    if not (stage / manifest.PATH).is_file():
        raise EnvironmentProblem(f"{stage} has no {manifest.PATH}; a release states what is in it")
    tarball = output / tarball_name(version)
    checksum = _checksum_path(tarball)
    try:
        with appear(checksum) as line, appear(tarball) as fresh:
            digest = hashlib.sha256()
            with fresh.open("wb") as file:
                for block in _gzip(_tar(stage)):
                    digest.update(block)
                    file.write(block)
                file.flush()
                os.fsync(file.fileno())
            line.write_text(f"{digest.hexdigest()}  {tarball.name}\n")
            checksum.unlink(missing_ok=True)  # never an old digest beside a new tarball
    except OSError as error:
        raise EnvironmentProblem(f"cannot write {tarball}: {error.strerror or error}") from error
    except ValueError as error:  # of tobuf: a path of more than 255 bytes, a file of more than 8 GiB
        raise EnvironmentProblem(f"a file of {stage} cannot be in a tarball: {error}") from error
    return tarball


def _checksum_path(tarball: Path) -> Path:
    return tarball.with_name(f"{tarball.name}.sha256")


def _put(path: Path, content: Path | str | bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, Path):
        shutil.copyfile(content, path)
    else:
        path.write_bytes(content.encode() if isinstance(content, str) else content)


def _tar(stage: Path) -> Iterator[bytes]:
    """The folder as an uncompressed tar, in pieces: names sorted, and nothing of who made it, when and where."""
    size = 0
    for path in [stage, *sorted(stage.rglob("*"), key=lambda p: p.relative_to(stage).as_posix())]:
        member = tarfile.TarInfo((Path(TOP) / path.relative_to(stage)).as_posix())
        member.mtime, member.uid, member.gid, member.uname, member.gname = _TIME, 0, 0, "", ""
        if path.is_symlink():
            member.type, member.linkname, member.mode = tarfile.SYMTYPE, os.readlink(path), 0o777
        elif path.is_dir():
            member.type, member.mode = tarfile.DIRTYPE, 0o755
        elif path.is_file():
            member.size, member.mode = path.stat().st_size, _mode(path)
        else:
            raise EnvironmentProblem(f"{path} is neither a file, a folder nor a link; a release holds no other")
        yield _header(member)
        size += tarfile.BLOCKSIZE
        if member.isreg():
            with path.open("rb") as file:
                while piece := file.read(1 << 20):
                    yield piece
            yield bytes(-member.size % tarfile.BLOCKSIZE)
            size += member.size + -member.size % tarfile.BLOCKSIZE
    end = 2 * tarfile.BLOCKSIZE
    yield bytes(end + -(size + end) % tarfile.RECORDSIZE)


def _header(member: tarfile.TarInfo) -> bytes:
    """A member's header, the same from every Python: before 3.10.3 they filled in numbers of devices."""
    block = bytearray(member.tobuf(tarfile.USTAR_FORMAT, "utf-8", "strict"))
    block[329:345] = bytes(16)  # devmajor, devminor
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def _mode(path: Path) -> int:
    """Libraries may be executed, as some packagers' tools expect of them; what the stage's umask was is no part."""
    is_library = ".so" in path.name and path.parent.name == "lib"
    return 0o755 if is_library or path.suffix == ".pyz" else 0o644


def _gzip(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Compresses by libdeflate, of the locked package: the bytes depend on it and on nothing of the host. Its header
    has neither name nor time. More than MEMBER_BYTES become several members, which every gunzip joins."""
    import deflate

    gathered, size = [], 0
    for piece in pieces:
        gathered.append(piece)
        size += len(piece)
        if size >= MEMBER_BYTES:
            yield bytes(deflate.gzip_compress(b"".join(gathered), _GZIP_LEVEL))
            gathered, size = [], 0
    if gathered:
        yield bytes(deflate.gzip_compress(b"".join(gathered), _GZIP_LEVEL))
