"""The toolchain in one file, to be carried where there is no network: an uncompressed tar of the lock and its files.

    bundle = an archive of tar.py in GNU tar's dialect, mode 644, owner root, time 0:
             toolchain.lock.yaml, then cache/<name> for each file, in the order of the lock

It holds all files of the lock that builds on one or more versions of Python read, and all that Triton is built from
source with, or nothing of that.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from kiln_build.base import tar, tarball
from kiln_recipe.compile.lock import (
    LARGEST,
    LOCK_NAME,
    Lock,
    LockedAddress,
    LockedFile,
    check_file,
    difference,
    parse_lock,
    running_python,
)
from kiln_recipe.console.appear import appear
from kiln_recipe.console.spelling import spell_size
from kiln_recipe.errors import ArtifactError, EnvironmentProblem, ToolchainError

if TYPE_CHECKING:
    from kiln_recipe.console.progress import Progress

BEGIN = LOCK_NAME.encode() + b"\0"  # of every bundle: the name of its first member
_PREFIX = "cache/"
_DIALECT = tar.Dialect(time=0, owner="root", mode=lambda _: 0o644, gnu=True)
# Uses of the lock that only some builds have.
_OPTIONAL = {"triton-source": "Triton from source", "scheduler": "KILN_SCHEDULER"}


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
            raise ToolchainError(f"{file.name} is not in {folder / 'cache'}; `kiln fetch` downloads it")
    progress.start(sum(file.size for file in ordered), title="bundle", unit="B")
    try:
        with appear(bundle) as fresh, fresh.open("wb") as stream:
            for piece in _archive((folder / LOCK_NAME).read_bytes(), folder / "cache", ordered, progress):
                stream.write(piece)
    except OSError as error:
        size = spell_size(sum(file.size for file in ordered))
        raise EnvironmentProblem(
            f"{bundle} cannot be written ({error.strerror}); give a writable folder with {size} of room"
        )
    finally:
        progress.close()


def _archive(
    text: bytes, cache: Path, files: Sequence[LockedFile | LockedAddress], progress: Progress
) -> Iterator[bytes]:
    size = 0
    for file in (None, *files):
        name, count = (LOCK_NAME, len(text)) if file is None else (_PREFIX + file.name, file.size)
        head = tar.header(tar.Member(name, "file", count), _DIALECT)
        yield head
        if file is None:
            yield text
        else:
            problem = check_file(cache / file.name, file)
            if problem:
                raise ToolchainError(f"{problem}; `kiln fetch --verify` names all such files")
            with (cache / file.name).open("rb") as source:
                yield from iter(lambda: source.read(1 << 20), b"")
            progress.advance(count)
        yield tar.padding(count)
        size += len(head) + count + len(tar.padding(count))
    yield tar.end(size)


def read_bundle(bundle: Path, folder: Path, progress: Progress) -> list[str]:
    """Unpacks a bundle into the cache of the input folder `folder`; returns the names of the files.

    Nothing is believed: the bundle's lock must be the folder's (a folder without one gets the bundle's), members must
    be plain files that it names, all that belong together must be there, and each byte is checked. The files take their
    names once all are right; until then nothing in the cache changes.

    Raises:
        ArtifactError: the bundle is truncated, corrupt, holds what it should not or not all that it should, or is for
            another lock.
        EnvironmentProblem: it is not there, or the folder cannot be written.
    """
    try:
        stream = tarball.open_file(bundle)
    except OSError as error:
        raise EnvironmentProblem(
            f"{bundle} cannot be read ({error.strerror}); give a file that `kiln fetch --bundle` made"
        )
    with stream:
        try:
            return _unpack(tar.Reader(stream.read, _DIALECT, str(bundle)), bundle, folder, progress)
        except OSError as error:
            raise EnvironmentProblem(f"{folder} cannot be written ({error.strerror}); it must hold the downloads")
        finally:
            progress.close()


def _unpack(reader: tar.Reader, bundle: Path, folder: Path, progress: Progress) -> list[str]:
    members = iter(reader)
    first = next(members, None)
    if first is None or (first.name, first.kind) != (LOCK_NAME, "file") or first.size > LARGEST:
        raise ArtifactError(f"{bundle} does not begin with {LOCK_NAME}; give a file that `kiln fetch --bundle` made")
    text = b"".join(reader.blocks())
    try:
        lock = parse_lock(text, f"{bundle}/{LOCK_NAME}")
    except ToolchainError as error:
        raise ArtifactError(str(error))
    own = folder / LOCK_NAME
    cache = folder / "cache"
    if own.exists() and own.read_bytes() != text:
        mine, theirs = (hashlib.sha256(data).hexdigest()[:16] for data in (own.read_bytes(), text))
        raise ArtifactError(
            f"{bundle} was made for another lock ({theirs}) than {own} ({mine}); make a new one for that lock"
        )
    cache.mkdir(parents=True, exist_ok=True)
    places = {_PREFIX + file.name: (place, file) for place, file in enumerate(lock.every_file())}
    progress.start(os.stat(bundle).st_size, title="unbundle", unit="B")
    unpacked: list[str] = []
    last = -1
    fresh = Path(tempfile.mkdtemp(dir=cache, prefix=".unbundle-"))
    try:
        for member in members:
            place, file = places.get(member.name, (-1, None))
            if file is None or member.kind != "file":
                raise ArtifactError(
                    f"{bundle} holds {member.name!r}, which is not a file of its lock; do not use this bundle"
                )
            if place <= last:
                raise ArtifactError(f"{bundle} is corrupt: {file.name} is there twice, or not in the lock's order")
            last = place
            _write(reader, member, file, fresh / file.name, bundle, progress)
            unpacked.append(file.name)
        if problem := _incomplete(lock, set(unpacked)):
            raise ArtifactError(f"{bundle} {problem}; make a new one with `kiln fetch --bundle`")
        for name in unpacked:
            os.replace(fresh / name, cache / name)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    if not own.exists():
        with appear(own) as new:
            new.write_bytes(text)
    return unpacked


def _write(
    reader: tar.Reader, member: tar.Member, file: LockedFile | LockedAddress, path: Path, bundle: Path,
    progress: Progress,
) -> None:  # fmt: skip
    """Writes a member's content, if it is the locked file's."""
    if member.size != file.size:  # said before a byte of it is written
        raise ArtifactError(f"{bundle} is corrupt: {file.name} has {member.size} bytes, the lock says {file.size}")
    digest = hashlib.sha256()
    with path.open("wb") as target:
        for block in reader.blocks():
            digest.update(block)
            target.write(block)
            progress.advance(len(block))
    path.chmod(0o644)
    if problem := difference(file, member.size, digest.hexdigest()):
        raise ArtifactError(f"{bundle} is corrupt: {problem}")


def _incomplete(lock: Lock, names: set[str]) -> str:
    """What a bundle of files with these names lacks, or ""."""
    lacking = {python: [f.name for f in lock.wanted([python]) if f.name not in names] for python in lock.pythons}
    served = [python for python, missing in lacking.items() if not missing]
    more = names - {file.name for file in lock.wanted(served)}
    asked = {package.use for name in more if (package := lock.package_of(name)) and package.use in _OPTIONAL}
    whole = lock.wanted(served, ("front", "build", "override", *asked))
    if served and names == {file.name for file in whole}:
        return ""
    # Not what `kiln fetch --bundle` makes: more than some Pythons need, and less than another or such a use does.
    if served and more <= {file.name for file in whole}:
        called, files = " and ".join(_OPTIONAL[use] for use in sorted(asked)), whole
    else:
        others = (python for python in lock.pythons if python not in served)
        nearest = min(others, key=lambda python: (len(lacking[python]), python != running_python()))
        called, files = f"Python {nearest}", lock.wanted([nearest])
    missing = [file.name for file in files if file.name not in names]
    if not missing:
        return ""
    return f"lacks {len(missing)} of the {len(files)} files that its lock names for {called}, first {missing[0]}"
