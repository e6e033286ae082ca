"""A delta made; form.py has its grammar. It appears once it has made the one tarball of the other."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from kiln_build.artifacts import manifest_model, pack_writer
from kiln_build.artifacts.reader import Release
from kiln_build.base import machine
from kiln_build.parts import form, patch, regroup
from kiln_build.parts.apply import apply
from kiln_build.parts.form import CONTENTS, FILE, INDEX, MANIFEST, RAW, SPLIT, STORED, Section, end_of
from kiln_build.release.release import unpack
from kiln_recipe import digests
from kiln_recipe.console.appear import appear, passing_folder
from kiln_recipe.console.progress import Progress
from kiln_recipe.errors import ArtifactError, UsageError, unwritable

_NAMES = {CONTENTS: "contents", INDEX: "indexes", MANIFEST: "manifest", FILE: "files", STORED: "groups", RAW: "groups",
          SPLIT: "groups"}  # fmt: skip
_AT_ONCE = 2  # groups in hand for each processor


@dataclass
class Made:
    """What came of it.

    Attributes:
        before, after: the tarballs.
        bytes: of the delta; sha256: its digest.
        sizes: bytes of the delta, by what they are of.
        groups: by what became of them: "kept", "patched" and "stored".
    """

    before: form.End
    after: form.End
    bytes: int = 0
    sha256: str = ""
    sizes: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_NAMES.values(), 0))
    groups: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("kept", "patched", "stored"), 0))


def make(before: Release, after: Release, path: Path, progress: Progress) -> Made:
    """Writes the delta from one tarball to another; it appears once the other was made by it.

    Raises:
        UsageError: the tarballs are the same.
        ArtifactError: one is damaged, or cannot be made by this Python's packages.
        EnvironmentProblem: something cannot be read or written.
    """
    ends = end_of(before.path), end_of(after.path)
    if ends[0] == ends[1]:
        raise UsageError(f"{before.path} and {after.path} are the same, so that no delta is needed")
    made = Made(*ends)
    try:
        with passing_folder(".kiln-delta-", path.parent) as place, appear(path) as fresh:
            maker = _Maker(before, after, place, made, progress)
            with fresh.open("wb") as file:
                form.write(file, *ends, maker.sections())
            progress.message("trying the delta")
            (place / "tried").mkdir()
            apply(before, fresh, place / "tried", progress)
            made.sha256, made.bytes = digests.measure_file(fresh)
    except OSError as error:
        raise unwritable(path, error) from error
    return made


class _Maker:
    def __init__(self, before: Release, after: Release, place: Path, made: Made, progress: Progress) -> None:
        self._before, self._after, self._made, self._progress = before, after, made, progress
        self._old_stage, self._stage = place / "before", place / "after"
        unpack(before, self._old_stage)
        self._names = unpack(after, self._stage)
        self._old_files = {row["path"]: row["sha256"] for row in before.manifest["files"] if "sha256" in row}
        self._old = regroup.Old(regroup.packs_of(self._old_files, self._old_stage))

    def sections(self) -> Iterator[Section]:
        """The delta's sections, in order."""
        for section in self._sections():
            self._made.sizes[_NAMES[section.kind]] += len(section.data)
            yield section

    def _sections(self) -> Iterator[Section]:
        known = {*self._old_files.values()}
        new = [
            row["path"]
            for row in self._after.manifest["files"]
            if "sha256" in row and row["sha256"] not in known and row["path"] in self._names
        ]
        packs = regroup.packs_of(new, self._stage)
        lines = [f"pack {path} {file.stat().st_size}" for path, file in packs.items()]
        lines += [f"link {other} {path}" for path, names in sorted(self._names.items()) for other in names[1:]]
        yield _section(CONTENTS, "".join(f"{line}\n" for line in lines).encode(), b"")
        indexes: dict[str, regroup.New] = {}
        for path, file in packs.items():
            start = regroup.Old({path: file}).start_of(path)
            indexes[path] = regroup.New(start, file.stat().st_size, path, self._old)
            yield _section(INDEX, start, self._old.start_of(path))
        data = manifest_model.encode_document(self._after.manifest)
        yield _section(MANIFEST, data, regroup.manifest_before(self._before, indexes.values()))
        for path in new:
            if path in packs:
                yield from self._groups(indexes[path], packs[path])
            else:
                of = patch.like(path, self._old_files)
                data = (self._stage / path).read_bytes()
                if len(data) > form.LARGEST_SECTION:
                    raise ArtifactError(
                        f"{self._after.path}: {path} has {len(data)} bytes; a delta has {form.LARGEST_SECTION} "
                        "of a file at most"
                    )
                yield _section(FILE, data, (self._old_stage / of).read_bytes() if of else b"")

    def _groups(self, new: regroup.New, file: Path) -> Iterator[Section]:
        self._made.groups["kept"] += len(new.index.groups) - len(new.missing)
        self._progress.start(len(new.missing), title=f"groups of {new.index.target}", unit="group")
        workers = machine.usable_cpus()
        there = regroup.Old({new.name: file})
        with ThreadPoolExecutor(workers) as pool:
            for first in range(0, len(new.missing), workers * _AT_ONCE):
                numbers = new.missing[first : first + workers * _AT_ONCE]
                work = [self._prepared(new, number, there) for number in numbers]
                for number, section in zip(numbers, pool.map(lambda one: _patched(new, *one), work)):
                    self._made.groups["stored" if section.kind == STORED else "patched"] += 1
                    self._progress.done(f"group {number}")
                    yield section
        self._progress.close()

    def _prepared(self, new: regroup.New, number: int, there: regroup.Old) -> tuple:
        """What `_patched` takes, whose thread reads no pack."""
        images = [(there.image(image.digest), image.info.kind != "ptx") for image in new.new_images(number)]
        group, before = new.index.groups[number], new.before(number)
        frame = new.frame(number, new.cut(number, b"".join(data for data, _ in images)))
        return there.stored(group.digest), frame, images, before


def _patched(
    new: regroup.New, stored: bytes, frame: bytes, images: list[tuple[bytes, bool]], before: list[tuple[bytes, bool]]
) -> Section:
    """The smallest section that makes a group."""
    if pack_writer.compress(frame) != stored:  # of another zstd, or another Kiln
        return Section(STORED, len(stored), stored)
    raw = _section(RAW, *(b"".join(data for data, _ in one) for one in (images, before)))
    arranged = _section(SPLIT, new.arranged(images), new.arranged(before)) if images else raw
    return min(raw, arranged, Section(STORED, len(stored), stored), key=lambda section: len(section.data))


def _section(kind: int, data: bytes, of: bytes) -> Section:
    return Section(kind, len(data), patch.make(data, of))
