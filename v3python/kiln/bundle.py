"""The toolchain in one file, to be carried where there is no network: an uncompressed tar of the lock and its files.

bundle = GNU tar: toolchain.lock.yaml, then cache/<name> for each file, in the order of the lock; owners, times and
         modes are fixed.
"""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from kiln.appear import appear
from kiln.errors import ArtifactError, EnvironmentProblem, ToolchainError
from kiln.lock import LOCK_NAME, Lock, LockedAddress, LockedFile, check_file, parse_lock

if TYPE_CHECKING:
    from kiln.progress import Progress

_PREFIX = "cache/"
_LONGEST_LOCK = 16 << 20


def write_bundle(
    bundle: Path, folder: Path, lock: Lock, files: Sequence[LockedFile | LockedAddress], progress: Progress
) -> None:
    """Packs the lock of the input folder `folder` and those of its cached `files` into one file.

    Equal files give an equal bundle, byte for byte.

    Raises:
        ToolchainError: a file is missing from the cache, or is not what is locked.
        EnvironmentProblem: the bundle cannot be written.
    """
    ordered = [file for file in lock.every_file() if file.name in {f.name for f in files}]
    for file in ordered:
        if not (folder / "cache" / file.name).is_file():
            raise ToolchainError(f"{file.name} is not in {folder / 'cache'}; `kiln fetch` brings it")
    progress.start(sum(file.size for file in ordered), title="bundle", unit="B")
    try:
        with (
            appear(bundle) as fresh,
            fresh.open("wb") as stream,
            tarfile.open(fileobj=stream, mode="w", format=tarfile.GNU_FORMAT) as tar,
        ):
            text = (folder / LOCK_NAME).read_bytes()
            tar.addfile(_member(LOCK_NAME, len(text)), io.BytesIO(text))
            for file in ordered:
                path = folder / "cache" / file.name
                problem = check_file(path, file)
                if problem:
                    raise ToolchainError(f"{problem}; `kiln fetch --verify` names all such files")
                with path.open("rb") as source:
                    tar.addfile(_member(_PREFIX + file.name, file.size), source)
                progress.advance(file.size)
    except OSError as error:
        raise EnvironmentProblem(
            f"{bundle} cannot be written ({error.strerror}); it needs a folder of yours, and {_mebibytes(ordered)} MiB"
        )
    finally:
        progress.close()


def read_bundle(bundle: Path, folder: Path, progress: Progress) -> list[str]:
    """Unpacks a bundle into the cache of the input folder `folder`; returns the names of the files.

    Nothing is believed: the bundle's lock must be the folder's (a folder without one gets the bundle's), members must
    be plain files that it names, and each byte is checked before a file takes its name.

    Raises:
        ArtifactError: the bundle is truncated, corrupt, holds what it should not, or is for another lock.
        EnvironmentProblem: it is not there, or the folder cannot be written.
    """
    try:
        stream = bundle.open("rb")
    except OSError as error:
        raise EnvironmentProblem(
            f"{bundle} cannot be read ({error.strerror}); give a file that `kiln fetch --bundle` made"
        )
    with stream:
        try:
            with tarfile.open(fileobj=stream, mode="r:") as tar:
                return _unpack(tar, bundle, folder, progress)
        except (tarfile.TarError, EOFError, UnicodeDecodeError) as error:
            raise ArtifactError(
                f"{bundle} is truncated or no bundle ({error}); make it anew with `kiln fetch --bundle`"
            )
        except OSError as error:
            raise EnvironmentProblem(f"{folder} cannot be written ({error.strerror}); it must hold the downloads")
        finally:
            progress.close()


def _unpack(tar: tarfile.TarFile, bundle: Path, folder: Path, progress: Progress) -> list[str]:
    first = tar.next()
    if first is None or first.name != LOCK_NAME or not _is_plain(first) or first.size > _LONGEST_LOCK:
        raise ArtifactError(f"{bundle} does not begin with {LOCK_NAME}; give a file that `kiln fetch --bundle` made")
    text = tar.extractfile(first).read()
    try:
        lock = parse_lock(text, f"{bundle}/{LOCK_NAME}")
    except ToolchainError as error:
        raise ArtifactError(str(error))
    own = folder / LOCK_NAME
    cache = folder / "cache"
    if own.exists() and own.read_bytes() != text:
        mine, theirs = (hashlib.sha256(data).hexdigest()[:16] for data in (own.read_bytes(), text))
        raise ArtifactError(f"{bundle} is of another lock ({theirs}) than {own} ({mine}); make it anew from that lock")
    cache.mkdir(parents=True, exist_ok=True)
    by_name = {_PREFIX + file.name: file for file in lock.every_file()}
    progress.start(os.stat(bundle).st_size, title="unbundle", unit="B")
    unpacked = []
    while member := tar.next():
        file = by_name.get(member.name)
        if file is None or not _is_plain(member):
            raise ArtifactError(f"{bundle} holds {member.name!r}, which is no file of its lock; do not use this bundle")
        if member.size != file.size:  # said before a byte of it is written
            raise ArtifactError(f"{bundle} is corrupt: {file.name} has {member.size} bytes, the lock says {file.size}")
        descriptor, temporary = tempfile.mkstemp(dir=cache, prefix=f".{file.name}.")
        try:
            with open(descriptor, "wb") as target:
                shutil.copyfileobj(tar.extractfile(member), target, 1 << 20)
            problem = check_file(Path(temporary), file, progress.advance)
            if problem:
                raise ArtifactError(f"{bundle} is corrupt: {problem}")
            os.chmod(temporary, 0o644)
            os.replace(temporary, cache / file.name)
        finally:
            if os.path.exists(temporary):
                os.unlink(temporary)
        unpacked.append(file.name)
    if not own.exists():
        with tempfile.NamedTemporaryFile(dir=folder, prefix=f".{LOCK_NAME}.", delete=False) as target:
            target.write(text)
        os.chmod(target.name, 0o644)
        os.replace(target.name, own)
    return unpacked


def _is_plain(member: tarfile.TarInfo) -> bool:
    """Whether it is a file whose bytes are all in the bundle: a sparse one unpacks to more than that."""
    return member.isreg() and not member.issparse()


def _member(name: str, size: int) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.size, member.mode, member.mtime = size, 0o644, 0
    member.uid = member.gid = 0
    member.uname = member.gname = "root"
    return member


def _mebibytes(files: Sequence[LockedFile | LockedAddress]) -> int:
    return sum(file.size for file in files) // 2**20 + 1
