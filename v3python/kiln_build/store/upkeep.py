"""What is in a store, whether it is whole, and how it is made smaller."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from kiln_build.store.files import Earlier, Entry, StoreFiles
from kiln_build.store.store import Collected, StoreInfo, Verified
from kiln_recipe.errors import ArtifactError
from kiln_recipe.images import judge
from kiln_recipe.images.image import ImageInfo

Contradictions = Callable[[ImageInfo, bytes], Sequence[str]]
KINDS = ("index", "ir", "objects")
_ABANDONED_NS = 3600 * 10**9  # a temporary file of that age is abandoned


def info(files: StoreFiles) -> StoreInfo:
    """Counts and sizes; opens no file."""
    sizes = {kind: [size for _, size, _ in files.list(kind)] for kind in KINDS}
    return StoreInfo(
        root=str(files.root),
        variants=len(sizes["index"]),
        irs=len(sizes["ir"]),
        objects=len(sizes["objects"]),
        bytes=sum(map(sum, sizes.values())),
        running_builds=len(_running_builds(files)),
    )


def verify(files: StoreFiles, contradictions: Contradictions = judge.contradictions) -> Verified:
    """Reads everything, and removes what is broken and what refers to it.

    Args:
        contradictions: where an image contradicts what is stated of it.
    """
    objects = entries = earlier = 0
    removed_objects: list[str] = []
    removed_entries: list[str] = []
    contradicted: dict[str, str] = {}  # by an image and what is stated of it
    for kind in KINDS:
        for path in files.strange_folders(kind):
            files.strange_folder(path)
            (removed_objects if kind == "objects" else removed_entries).append(path.relative_to(files.root).as_posix())
    for path, _, _ in files.list("objects"):
        objects += 1
        if not files.check_object(path):
            removed_objects.append(path.stem)
    for kind in ("index", "ir"):
        for path, _, _ in files.list(kind):
            entries += 1
            entry = files.any_entry(path)
            if isinstance(entry, Earlier):
                earlier += 1
                continue
            if entry is not None:
                stated = repr((entry.image.digest, entry.image.info))
                if stated not in contradicted:
                    contradicted[stated] = _contradiction(files, entry, contradictions)
                if not contradicted[stated]:
                    continue
                files.remove_entry(path, f"does not match its image, which {contradicted[stated]}")
            removed_entries.append(f"{kind}/{path.name}")
    return Verified(objects, entries, earlier, tuple(removed_objects), tuple(removed_entries))


def _contradiction(files: StoreFiles, entry: Entry, contradictions: Contradictions) -> str:
    try:
        code = files.object(entry.image.digest)
    except ArtifactError:  # gone since it was looked at
        return ""
    return "; it ".join(contradictions(entry.image.info, code))


def collect(files: StoreFiles, max_bytes: int) -> Collected:
    """Removes the least recently used images until the store takes at most `max_bytes`.

    What running builds have looked up or put stays, even if the store is larger then. Also clears away what killed
    processes left behind.
    """
    files.begin()
    with files.folder.locked(files.root / "gc"):
        return _collect(files, max_bytes)


def _collect(files: StoreFiles, max_bytes: int) -> Collected:
    now = files.folder.now_ns()
    protected_from = min([now, *_running_builds(files)])
    _clear_abandoned(files, now)

    uses: dict[str, list[tuple[Path, int, int]]] = {}  # the entries of an image, by its digest
    members: dict[str, set[str]] = {}  # the objects of an image
    holders: dict[str, int] = {}  # how many images have an object
    for kind in ("index", "ir"):
        for path, size, mtime in files.list(kind):
            entry = files.any_entry(path)
            if isinstance(entry, Entry):
                uses.setdefault(entry.image.digest, []).append((path, size, mtime))
                members.setdefault(entry.image.digest, set()).update(entry.sizes)
            elif isinstance(entry, Earlier) and (
                mtime >= protected_from or not files.folder.remove_unless_used(path, mtime)
            ):  # an earlier Kiln may be at work
                for digest in entry.sizes:
                    holders[digest] = holders.get(digest, 0) + 1
    for objects in members.values():
        for digest in objects:
            holders[digest] = holders.get(digest, 0) + 1
    stored = {path.stem: (path, size, mtime) for path, size, mtime in files.list("objects")}

    total = before = sum(size for _, size, _ in stored.values()) + sum(
        size for entries in uses.values() for _, size, _ in entries
    )
    removed = protected = 0
    for image, entries in sorted(uses.items(), key=lambda item: max(mtime for _, _, mtime in item[1])):
        if max(mtime for _, _, mtime in entries) >= protected_from:
            protected += sum(size for _, size, _ in entries)
            protected += sum(stored[digest][1] for digest in members[image] if digest in stored)
        elif total > max_bytes:
            gone = [size for path, size, mtime in entries if files.folder.remove_unless_used(path, mtime)]
            total -= sum(gone)
            if len(gone) < len(entries):  # somebody has just come for it
                continue
            removed += 1
            for digest in members[image]:
                holders[digest] -= 1
                if not holders[digest]:
                    total -= _collect_object(files, stored.pop(digest, None), protected_from)
    for digest, found in stored.items():  # put by a process that died before it wrote the entry
        if digest not in holders and found[2] < now - _ABANDONED_NS:
            total -= _collect_object(files, found, protected_from)
    return Collected(removed, before - total, total, protected)


def _collect_object(files: StoreFiles, found: tuple[Path, int, int] | None, protected_from: int) -> int:
    if found is None or found[2] >= protected_from:
        return 0
    path, size, mtime = found
    return size if files.folder.remove_unless_used(path, mtime) else 0


def _clear_abandoned(files: StoreFiles, now: int) -> None:
    for kind in KINDS:
        for path in files.strange_folders(kind):
            files.strange_folder(path)
        for file in files.folder.files(kind, hidden=True):
            with contextlib.suppress(OSError):
                if file.stat(follow_symlinks=False).st_mtime_ns < now - _ABANDONED_NS:
                    shutil.rmtree(file.path) if file.is_dir(follow_symlinks=False) else os.unlink(file.path)
    with contextlib.suppress(FileNotFoundError):
        for name in os.listdir(files.root / "locks"):
            files.folder.is_locked(files.root / "locks" / name)  # removes those that no process holds


def _running_builds(files: StoreFiles) -> list[int]:
    """When each of them began, in nanoseconds."""
    began = []
    with contextlib.suppress(FileNotFoundError):
        for name in os.listdir(files.root / "builds"):
            path = files.root / "builds" / name
            with contextlib.suppress(FileNotFoundError):
                mtime = path.stat().st_mtime_ns
                if files.folder.is_locked(path):
                    began.append(mtime)
    return began
