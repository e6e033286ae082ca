"""A delta applied: the tarball after it, byte for byte, from the one before it. form.py has its grammar."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from kiln_build.artifacts import manifest_model, pack, pack_writer, split
from kiln_build.artifacts.reader import Release
from kiln_build.base import machine, tar, tarball
from kiln_build.parts import patch, regroup
from kiln_build.parts.form import CONTENTS, FILE, INDEX, MANIFEST, RAW, SPLIT, STORED, Reader, end_of
from kiln_build.release.release import make_tarball, part_name, tarball_name, unpack
from kiln_recipe.console.appear import passing_folder
from kiln_recipe.console.progress import Progress
from kiln_recipe.errors import ArtifactError

_LARGEST_CONTENTS = 4 << 20  # bytes
_LARGEST_START = pack.HEADER.size + pack.LARGEST_INDEX
_LARGEST_GROUP = split.largest_frame(pack.LARGEST_GROUP)
_AT_ONCE = 4  # groups in hand for each processor


def apply(before: Release, path: Path, output: Path, progress: Progress) -> Path:
    """Makes the tarball that a delta leads to, and its .sha256, in `output`; returns its path.

    Args:
        before: the tarball that the delta is for.
        path: the delta.

    Raises:
        ArtifactError: the delta is damaged, or `before` is another tarball; or what comes out is not what it should be.
        InTheWay: another release of that name is in `output`.
        EnvironmentProblem: something cannot be read or written.
    """
    with Reader(path, tarball.MOST_EXPANSION) as delta:
        there = end_of(before.path)
        if there != delta.before:
            raise ArtifactError(
                f"{before.path} is not the tarball that {path} is for: it has the SHA-256 {there.sha256}, and the "
                f"delta leads from {delta.before.sha256}"
            )
        with passing_folder(".kiln-apply-", output) as folder:
            made = _Applied(before, delta, folder, progress)
            manifest = made.make()
            release, part = manifest["kiln"], manifest.get("part")
            name = part_name(release, part) if part else tarball_name(release)
            progress.message(f"packing {name}")
            return make_tarball(made.stage, output / name, (), expected=delta.after.sha256)


class _Applied:
    """What is laid out in `stage`."""

    def __init__(self, before: Release, delta: Reader, folder: Path, progress: Progress) -> None:
        self._before, self._delta, self._progress = before, delta, progress
        self._old_stage, self.stage = folder / "before", folder / "after"
        unpack(before, self._old_stage)
        rows = [row for row in before.manifest["files"] if "sha256" in row]
        self._old_files = {row["path"]: row["sha256"] for row in rows}
        self._known = {row["sha256"]: row["path"] for row in reversed(rows)}
        self._linked: set[str] = set()
        self._old = regroup.Old(regroup.packs_of(self._old_files, self._old_stage))

    def make(self) -> dict[str, Any]:
        """Lays all out; gives the manifest."""
        packs, links = self._contents()
        new: dict[str, regroup.New] = {}
        for path, size in packs.items():
            section = self._delta.take(f"the index of {path}", INDEX, limit=_LARGEST_START)
            start = patch.apply(section.data, self._old.start_of(path), section.plain, f"the index of {path}")
            new[path] = regroup.New(start, size, path, self._old)
        section = self._delta.take("the manifest", MANIFEST, limit=manifest_model.LARGEST)
        of = regroup.manifest_before(self._before, new.values())
        data = patch.apply(section.data, of, section.plain, "the manifest")
        manifest = manifest_model.read(data, f"the delta {self._delta.path}")
        rows = {row["path"]: row for row in manifest["files"]}
        self._check(rows, packs, links)
        for path, row in rows.items():
            if path not in links:
                (self.stage / path).parent.mkdir(parents=True, exist_ok=True)
                self._put(path, row, new)
        self._delta.finish()
        for path, file in links.items():
            (self.stage / path).parent.mkdir(parents=True, exist_ok=True)
            os.link(self.stage / file, self.stage / path)
        own = self.stage / manifest_model.path_of(manifest)
        own.parent.mkdir(parents=True, exist_ok=True)
        own.write_bytes(data)
        return manifest

    def _contents(self) -> tuple[dict[str, int], dict[str, str]]:
        """New packs with their sizes, and hard links with their files, by path."""
        section = self._delta.take("its contents", CONTENTS, limit=_LARGEST_CONTENTS)
        text = patch.apply(section.data, b"", section.plain, "the delta's contents").decode("ascii", "replace")
        packs: dict[str, int] = {}
        links: dict[str, str] = {}
        for line in text.splitlines():
            kind, path, rest = (*line.split(" "), "", "", "")[:3]
            if kind == "pack" and tar.is_plain(path) and rest.isdecimal() and len(rest) < 12 and path not in packs:
                packs[path] = int(rest)
            elif kind == "link" and tar.is_plain(path) and tar.is_plain(rest) and path not in links:
                links[path] = rest
            else:
                raise self._delta.wrong("has a line in its contents that is neither of a pack nor of a link")
        return packs, links

    def _check(self, rows: Mapping[str, Mapping[str, Any]], packs: Iterable[str], links: Mapping[str, str]) -> None:
        for path, file in links.items():
            ours, theirs = rows.get(path, {}), rows.get(file, {})
            if file in links or "sha256" not in ours or ours["sha256"] != theirs.get("sha256"):
                raise self._delta.wrong(f"links {path} to {file}, which is not the same file by its manifest")
        for path in packs:
            if path in links or rows.get(path, {}).get("sha256") in (None, *self._known):
                raise self._delta.wrong(f"has the pack {path}, which is not a new file of its manifest")

    def _put(self, path: str, row: Mapping[str, Any], new: Mapping[str, regroup.New]) -> None:
        to = self.stage / path
        if "link" in row:
            to.symlink_to(row["link"])
            return
        self._delta.spend(row.get("bytes", 0))
        if (known := self._known.get(row["sha256"])) is not None:
            if known in self._linked:  # another file, which only has the same content
                shutil.copyfile(self._old_stage / known, to)
            else:
                os.link(self._old_stage / known, to)
            self._linked.add(known)
            return
        with to.open("xb") as file:
            if path in new:
                digest = hashlib.sha256()
                for piece in self._pack(new[path]):
                    file.write(piece)
                    digest.update(piece)
            else:
                section = self._delta.take(path, FILE)
                of = patch.like(path, self._old_files)
                before = (self._old_stage / of).read_bytes() if of else b""
                data = patch.apply(section.data, before, section.plain, path)
                file.write(data)
                digest = hashlib.sha256(data)
        if digest.hexdigest() != row["sha256"]:
            raise self._delta.wrong(f"makes a {path} that does not have the digest of its manifest")

    def _pack(self, new: regroup.New) -> Iterator[bytes]:
        """A pack, piece by piece; groups are compressed by all processors, and only some are in hand at once."""
        yield new.start
        self._progress.start(len(new.index.groups), title=f"groups of {new.index.target}", unit="group")
        missing, workers = {*new.missing}, machine.usable_cpus()
        hand: deque[Future[bytes]] = deque()
        with ThreadPoolExecutor(workers) as pool:
            for number, group in enumerate(new.index.groups):
                if number in missing:
                    hand.append(self._begun(pool, new, number))
                else:
                    hand.append(_done(self._old.stored(group.digest)))
                is_last = number + 1 == len(new.index.groups)
                while len(hand) > (0 if is_last else workers * _AT_ONCE):
                    done, stored = new.index.groups[number + 1 - len(hand)], hand.popleft().result()
                    if hashlib.sha256(stored).hexdigest() != done.digest:
                        raise self._delta.wrong(
                            f"makes a group of {new.name} with another digest: it was made with another version of "
                            "zstd than this Python's zstandard has, or of Kiln"
                        )
                    self._progress.done(f"the group at byte {done.offset}")
                    yield stored
        self._progress.close()

    def _begun(self, pool: ThreadPoolExecutor, new: regroup.New, number: int) -> Future[bytes]:
        """A new group, sooner or later."""
        what = f"group {number} of {new.name}"
        section = self._delta.take(what, STORED, RAW, SPLIT, limit=_LARGEST_GROUP)
        if section.kind == STORED:
            return _done(section.data)
        before = new.before(number)
        if section.kind == RAW:
            data = patch.apply(section.data, b"".join(one for one, _ in before), section.plain, what)
        else:
            try:
                data = split.join(patch.apply(section.data, new.arranged(before), section.plain, what))
            except ValueError as error:
                raise self._delta.wrong(f"has a malformed section for {what} ({error})") from error
        return pool.submit(pack_writer.compress, new.frame(number, new.cut(number, data)))


def _done(data: bytes) -> Future[bytes]:
    future: Future[bytes] = Future()
    future.set_result(data)
    return future
