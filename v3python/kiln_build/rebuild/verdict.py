"""A release beside the one that was made again: identical, or what differs first, down to the instruction."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from kiln_build.amd_model.images import codes
from kiln_build.artifacts import manifest_model, reader
from kiln_build.artifacts.reader import Release
from kiln_build.difference import code
from kiln_build.difference.code import CodeDifference
from kiln_recipe import digests
from kiln_recipe.console.tables import plural, table_lines
from kiln_recipe.errors import ArtifactError

_SHOWN = 20  # kernels, files


@dataclass(frozen=True)
class Kernel:
    """A kernel with images that differ.

    Attributes:
        differ, images: of its images, each counted once.
        variant: the first whose image differs, by its name; image: the digests of its images, None where there is none.
        code: where these two differ, if both are there; of the first kernels alone.
    """

    target: str
    kernel: str
    differ: int
    images: int
    variant: str
    image: tuple[str | None, str | None]
    code: CodeDifference | None


@dataclass
class Verdict:
    """What came of it.

    Attributes:
        sha256: of the release, and of what was made again.
        kernels: those with images that differ.
        keys: how many variants have another key, if no image differs.
        files: that differ, by their paths; place: which of them differs first, and where, in words.
        stated: lines of the manifest that differ, besides those of files, images and variants.
        notes: what was not made anew.
    """

    sha256: tuple[str, str]
    kernels: list[Kernel] = field(default_factory=list)
    keys: int = 0
    files: list[str] = field(default_factory=list)
    place: str = ""
    stated: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def is_identical(self) -> bool:
        return self.sha256[0] == self.sha256[1]


def judge(given: Path, made: Path, sites: Sequence[Path] = ()) -> Verdict:
    """Holds two tarballs together.

    Args:
        sites: see code.first_difference.

    Raises:
        ArtifactError: one is damaged.
    """
    verdict = Verdict((digests.of_file(given), digests.of_file(made)))
    if verdict.is_identical:
        return verdict
    before, after = (_release(path) for path in (given, made))
    verdict.kernels = _kernels(before, after, sites)
    ends = [
        {row["path"]: (row.get("sha256"), row.get("link")) for row in one.manifest["files"]} for one in (before, after)
    ]
    verdict.files = [path for path in dict.fromkeys((*ends[0], *ends[1])) if ends[0].get(path) != ends[1].get(path)]
    verdict.stated = [
        name
        for name in dict.fromkeys((*before.manifest, *after.manifest))
        if name not in ("files", "images", "variants") and before.manifest.get(name) != after.manifest.get(name)
    ]
    if not verdict.kernels:
        ours, theirs = (Counter(row["key"] for row in reader.variants_of(one)) for one in (before, after))
        verdict.keys = (ours - theirs).total()
        verdict.place = next(filter(None, (_place(given, made, path) for path in verdict.files)), "")
    return verdict


def _release(path: Path) -> Release:
    found = reader.open_artifact(path)
    if not isinstance(found, Release):
        raise ArtifactError(f"{path} is not a release; give its tarball")
    return found


def _kernels(before: Release, after: Release, sites: Sequence[Path]) -> list[Kernel]:
    ours, theirs = ({_place_of(row): row for row in reader.variants_of(one)} for one in (before, after))
    changed = [place for place in dict.fromkeys((*ours, *theirs)) if _image(ours, place) != _image(theirs, place)]
    differ = Counter(place[:2] for place in {(*place[:2], _image(ours, place)) for place in changed})
    every = Counter(place[:2] for place in {(*place[:2], row["image"]) for place, row in ours.items() if row["image"]})
    first: dict[tuple[str, ...], tuple[str, ...]] = {}
    for place in changed:
        first.setdefault(place[:2], place)
    shown = [*first.values()][:_SHOWN]
    contents = [_contents(one, {(place[0], _image(rows, place)) for place in shown})
                for one, rows in ((before, ours), (after, theirs))]  # fmt: skip
    kernels = []
    for (target, kernel), place in first.items():
        image = _image(ours, place), _image(theirs, place)
        ends = [found.get((target, digest)) for found, digest in zip(contents, image)]
        difference = None
        if ends[0] is not None and ends[1] is not None:
            difference = code.first_difference(ends[0], ends[1], ours[place]["kind"], sites)
        variant = f"{kernel}[{']['.join(place[2:])}]@{target}"
        kernels.append(Kernel(target, kernel, differ[place[:2]], every[place[:2]], variant, image, difference))
    return kernels


def _contents(release: Release, wanted: set[tuple[str, str | None]]) -> dict[tuple[str, str | None], bytes]:
    """Images of a release by target and digest."""
    return {(target, digest): data for target, digest, data in codes(release, wanted.__contains__)}


def _place_of(row: Mapping[str, Any]) -> tuple[str, ...]:
    return row["target"], row["kernel"], row["functional"], row["configuration"], row["specialization"]


def _image(rows: Mapping[tuple[str, ...], Mapping[str, Any]], place: tuple[str, ...]) -> str | None:
    return rows[place]["image"] if place in rows else None


def _place(given: Path, made: Path, path: str) -> str:
    """Where a file of both differs first; "" if it is one that lies in either as a link to another, or in one alone."""
    if path == manifest_model.PATH:
        return ""
    try:
        ours, theirs = (reader.file_of(one, path) for one in (given, made))
    except ArtifactError:
        return ""
    offset = next((n for n, (a, b) in enumerate(zip(ours, theirs)) if a != b), min(len(ours), len(theirs)))
    try:
        names = code.sections_that_differ(ours, theirs)
    except ArtifactError:  # not an ELF file
        names = []
    return f"{path}, from byte {offset:#x} on" + (f", in {', '.join(names)}" if names else "")


def text(verdict: Verdict) -> Iterator[str]:
    """The lines of the answer; the first begins with "identical" or "differs"."""
    if verdict.is_identical:
        yield f"identical: sha256 {verdict.sha256[0]}"
    else:
        yield "differs: sha256 {}, made again {}".format(*verdict.sha256)
    if verdict.kernels:
        yield f"images that differ, of {plural(len(verdict.kernels), 'kernel')}:"
        rows = [(one.target, one.kernel, one.differ, one.images) for one in verdict.kernels[:_SHOWN]]
        header = ("TARGET", "KERNEL", "DIFFER", "OF")
        yield from (f"  {line}" for line in table_lines(header, rows, header[2:]))
        for kernel in verdict.kernels[:_SHOWN]:
            yield f"first: {kernel.variant}"
            yield "  image {}, made again {}".format(*(digest[:12] if digest else "none" for digest in kernel.image))
            if kernel.code:
                yield from _code(kernel.code)
    if verdict.keys:
        yield (
            f"all images are the same, but {plural(verdict.keys, 'variant')} {'has' if verdict.keys == 1 else 'have'} "
            "another key: the source of the kernel differs, or what compiled it"
        )
    if verdict.files:
        more = f" and {len(verdict.files) - _SHOWN} more" if len(verdict.files) > _SHOWN else ""
        yield f"files that differ: {', '.join(verdict.files[:_SHOWN])}{more}"
        if verdict.place:
            yield f"first: {verdict.place}"
    if verdict.stated:
        yield f"the manifests differ in: {', '.join(verdict.stated)}"
    if not verdict.is_identical and not (verdict.files or verdict.stated or verdict.kernels):
        yield "what is in them is the same: only the compression of the tarballs differs"
    yield from (f"note: {note}" for note in verdict.notes)


def _code(found: CodeDifference) -> Iterator[str]:
    others = [name for name in found.sections if name != found.section]
    besides = f" (also {', '.join(others)})" if others else ""
    yield f"  section {found.section}, from byte {found.offset:#x} on{besides}"
    for side, instructions in (("released", found.before), ("made again", found.after)):
        for number, one in enumerate(instructions):
            yield f"  {side if number == 0 else '':10}  {one}"
    if found.note:
        yield f"  {found.note}"


def document(verdict: Verdict) -> dict[str, Any]:
    """Everything, as plain data."""
    return {"identical": verdict.is_identical, **asdict(verdict)}
