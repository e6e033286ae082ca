"""Two sides held together: everything in which they differ."""

from __future__ import annotations

import difflib
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import Any, NamedTuple

from kiln_build.difference import combinations, images
from kiln_build.difference.combinations import Combination
from kiln_build.difference.images import Facts, Place, Worse
from kiln_build.difference.side import File, Side, kernels_of
from kiln_build.difference.tables import NO_CONFIGURATION, Bin, Table
from kiln_recipe import targets
from kiln_recipe.errors import UsageError

Shares = Callable[[str, str, str], "int | None"]  # of a family, a target and a key: see Facts.share
_LONGEST_DIFF = 400  # lines of a header's


class ImageChange(NamedTuple):
    """A variant whose image differs. `before`, `after`: facts and the image's bytes; None: it has no image there."""

    target: str
    name: str
    before: tuple[Facts, int] | None
    after: tuple[Facts, int] | None
    worse: tuple[Worse, ...]

    @property
    def sort(self) -> str:
        """ "worse", "better", "other" facts, or other "code" with the same facts."""
        if self.worse:
            return "worse"
        if self.before is None or self.after is None:
            return "better" if self.before is None else "worse"
        if images.measures(self.after[0], self.before[0]):
            return "better"
        return "code" if self.before == self.after else "other"


class Rechosen(NamedTuple):
    """A look-up that chooses another configuration. `bins`: "queries < 65, keys >= 513"; "": all."""

    target: str
    kernel: str
    functional: str
    bins: str
    before: str
    after: str


class Changed(NamedTuple):
    """Something that both state, or one of them; None: it does not."""

    name: str
    before: str | None
    after: str | None


class HeaderChange(NamedTuple):
    """A header. `kind`: "lost", "gained", "changed"; `lines`: a unified diff, cut off where it is long."""

    path: str
    kind: str
    lines: tuple[str, ...]


class SymbolChange(NamedTuple):
    """What a library no longer exports, and what it exports now."""

    library: str
    lost: tuple[str, ...]
    gained: tuple[str, ...]


class SizeChange(NamedTuple):
    """A file. None: that side does not have it; equal sizes: its content differs. `others`: more names
    of the same file."""

    path: str
    before: int | None
    after: int | None
    others: tuple[str, ...] = ()


@dataclass
class Difference:
    """In what two sides differ.

    Attributes:
        lost, gained: targets, with the reason where the release names them still.
        tables: look-ups; table_notes: of those that cannot be held together.
        stated: what they say of themselves: profile, source, tools.
        sizes: files that differ; of sides of one kind alone.
    """

    before: Side
    after: Side
    lost: list[Changed] = field(default_factory=list)
    gained: list[Changed] = field(default_factory=list)
    images: list[ImageChange] = field(default_factory=list)
    combinations: list[Combination] = field(default_factory=list)
    tables: list[Rechosen] = field(default_factory=list)
    table_notes: list[str] = field(default_factory=list)
    headers: list[HeaderChange] = field(default_factory=list)
    symbols: list[SymbolChange] = field(default_factory=list)
    stated: list[Changed] = field(default_factory=list)
    sizes: list[SizeChange] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        return not (
            self.lost or self.gained or self.images or self.combinations or self.tables or self.table_notes
            or self.headers or self.symbols or self.stated or self.sizes
        )  # fmt: skip

    @property
    def worse(self) -> list[ImageChange]:
        return [one for one in self.images if one.sort == "worse"]


def compare(before: Side, after: Side, shares: Shares = lambda *_: None) -> Difference:
    """Everything in which two sides differ.

    Args:
        shares: modelled, where they are known.
    """
    found = Difference(before, after)
    found.notes += [f"{side.path.name}: {note}" for side in (before, after) for note in side.notes]
    found.lost = _targets(before, after)
    found.gained = [Changed(one.name, one.after, one.before) for one in _targets(after, before)]
    found.images = list(_images(before, after, shares))
    found.combinations = combinations.compare(before, after)
    for name in before.families.keys() & after.families.keys():
        _tables(before.families[name].tables, after.families[name].tables, name, found)
    found.stated = _stated(before.stated, after.stated, before.kind == after.kind)
    if before.headers and after.headers:
        found.headers = list(_headers(before.headers, after.headers, before.kind == after.kind))
    if before.symbols and after.symbols:
        found.symbols = list(_symbols(before.symbols, after.symbols))
    if {before.kind, after.kind} <= {"tarball", "folder"} or before.kind == after.kind:
        found.sizes = _sizes(before, after)
    else:
        found.notes.append(f"files were not compared one by one: one side is {before.kind}, the other {after.kind}")
    return found


def _targets(one: Side, other: Side) -> list[Changed]:
    """Targets that one side has alone."""
    return [
        Changed(target, "has images", f"its pack {other.absent[target]}" if target in other.absent else None)
        for target in one.targets
        if target not in other.targets
    ]


# Equal code may be launched with other memory: what a launch needs is stated of an image, and not all of it is in it.
_OF_AN_IMAGE = ("image", "registers", "spills", "shared", "threads")


def _images(before: Side, after: Side, shares: Shares) -> Iterator[ImageChange]:
    earlier = {place: _places(rows) for place, rows in kernels_of(before.rows)}
    since = f"kiln {before.version}"
    for (target, family), rows in kernels_of(after.rows):
        old, new = earlier.get((target, family), {}), _places(rows)
        facts = [{place: facts_of(row, family, shares) for place, row in side.items()} for side in (old, new)]
        for pair in images.pairs(*facts):
            was, now = old[pair.old_place], new[pair.place]
            if all(was.get(name) == now.get(name) for name in _OF_AN_IMAGE):
                continue
            name = pair.place.name(family, target)
            before_end = (pair.before, was.get("bytes", 0)) if pair.before else None
            after_end = (pair.after, now.get("bytes", 0)) if pair.after else None
            yield ImageChange(target, name, before_end, after_end, tuple(pair.worse(name, since)))


def _places(rows: list[dict[str, Any]]) -> dict[Place, dict[str, Any]]:
    return {
        Place(row["kernel"].partition(".")[2], row["functional"], row["configuration"], row["specialization"]): row
        for row in rows
    }


def facts_of(row: Mapping[str, Any], family: str = "", shares: Shares = lambda *_: None) -> Facts | None:
    """What the image of a variant's row takes; None of a row without one."""
    if row["image"] is None:
        return None
    try:
        target = targets.by_name(row["target"])
    except UsageError:  # of another version of Kiln
        return Facts(row["registers"], row["spills"], row["shared"], 1, 0)
    share = shares(family, target.name, row["key"])
    warps = max(1, row["threads"] // target.warp_size)
    return images.counted(target, row["registers"], row["spills"], row["shared"], warps, share)


# ---- look-ups ----


def _tables(before: tuple[Table, ...], after: tuple[Table, ...], family: str, found: Difference) -> None:
    others = {(table.target, table.kernel): table for table in before}
    for table in after:
        old = others.get((table.target, table.kernel))
        if old is None or old == table:
            continue
        kernel = f"{family}.{table.kernel}"
        if old.serves != table.serves:
            found.table_notes.append(
                f"{kernel} on {table.target} serves {table.serves or 'all calls'}, before {old.serves or 'all calls'}"
            )
        names = [one.name for one in table.bins]
        if [one.name for one in old.bins] != names:
            were = ", ".join(one.name for one in old.bins) or "nothing"
            found.table_notes.append(
                f"{kernel} on {table.target} is chosen by {', '.join(names) or 'nothing'}, before by {were}"
            )
            continue
        found.tables += _rechosen(old, table, kernel)


def _rechosen(before: Table, after: Table, kernel: str) -> Iterator[Rechosen]:
    """Each entry that both choose for, and choose differently, over the parts that both have in common."""
    edges = [sorted({*one.edges, *other.edges}) for one, other in zip(before.bins, after.bins)]
    cells = list(product(*(range(len(one) + 1) for one in edges)))
    places = [[_place(table.bins, edges, cell) for cell in cells] for table in (before, after)]
    old_rows = dict(before.rows())
    for functional, row in after.rows():
        old = old_rows.get(functional)
        if old is None:
            continue
        changes: dict[tuple[str, str], list[tuple[int, ...]]] = {}
        for cell, at, now in zip(cells, *places):
            if old[at] == NO_CONFIGURATION or row[now] == NO_CONFIGURATION:
                continue
            names = before.configurations[old[at]], after.configurations[row[now]]
            if names[0] != names[1]:
                changes.setdefault(names, []).append(cell)
        for names, found in changes.items():
            yield Rechosen(after.target, kernel, functional, _spell_cells(found, after.bins, edges), *names)


def _place(bins: tuple[Bin, ...], edges: list[list[int]], cell: tuple[int, ...]) -> int:
    """The number of the bin that a common part lies in."""
    number = 0
    for one, merged, part in zip(bins, edges, cell):
        mine = bisect_right(one.edges, merged[part - 1]) if part else 0
        number = number * (len(one.edges) + 1) + mine
    return number


def _spell_cells(cells: list[tuple[int, ...]], bins: tuple[Bin, ...], edges: list[list[int]]) -> str:
    """ "queries >= 65, keys < 513" if the parts are such a block, else the block around them with "in parts of"."""
    said, count = [], 1
    for number, (one, merged) in enumerate(zip(bins, edges)):
        parts = sorted({cell[number] for cell in cells})
        count *= len(parts)
        low = f"{one.name} >= {merged[parts[0] - 1]}" if parts[0] else ""
        high = f"{one.name} < {merged[parts[-1]]}" if parts[-1] < len(merged) else ""
        said += [text for text in (low, high) if text]
        count = count if len(parts) == parts[-1] - parts[0] + 1 else 0
    text = ", ".join(said)
    if count == len(cells):
        return text
    return f"in parts of {text}" if text else "in parts"


# ---- what surrounds the images ----


def _stated(before: Mapping[str, str], after: Mapping[str, str], is_whole: bool) -> list[Changed]:
    """What is stated differently. `is_whole`: what one side does not state is a difference too."""
    names = [*before, *(name for name in after if name not in before)]
    return [
        Changed(name, before.get(name), after.get(name))
        for name in names
        if before.get(name) != after.get(name) and (is_whole or (name in before and name in after))
    ]


def _headers(before: Mapping[str, bytes], after: Mapping[str, bytes], is_whole: bool) -> Iterator[HeaderChange]:
    for path in sorted({*before, *after}):
        old, new = before.get(path), after.get(path)
        if old == new or (not is_whole and (old is None or new is None)):
            continue
        if old is None or new is None:
            yield HeaderChange(path, "gained" if old is None else "lost", ())
            continue
        a, b = (data.decode("utf-8", "replace").splitlines() for data in (old, new))
        lines = list(difflib.unified_diff(a, b, path, path, lineterm="", n=1))
        cut = [*lines[:_LONGEST_DIFF], *(["..."] if len(lines) > _LONGEST_DIFF else [])]
        yield HeaderChange(path, "changed", tuple(cut))


def _symbols(before: Mapping[str, list[str]], after: Mapping[str, list[str]]) -> Iterator[SymbolChange]:
    """Of libraries that both sides have; in wheels they lie in another folder."""
    ours, theirs = ({_library(path): names for path, names in side.items()} for side in (before, after))
    for library in ours.keys() & theirs.keys():
        old, new = {*ours[library]}, {*theirs[library]}
        if old != new:
            yield SymbolChange(library, tuple(sorted(old - new)), tuple(sorted(new - old)))


def _library(path: str) -> str:
    """ "libkiln.so.0", "aotriton/0.13/lib/libaotriton_v2.so"."""
    return path[path.find("lib/") + 4 :] if "lib/" in path else path


def _sizes(before: Side, after: Side) -> list[SizeChange]:
    names = [*before.files, *(name for name in after.files if name not in before.files)]
    alike: dict[tuple[File | None, File | None], list[str]] = {}
    for name in names:
        ends = before.files.get(name), after.files.get(name)
        if ends[0] != ends[1]:
            alike.setdefault(ends, []).append(name)
    found = []
    for (old, new), paths in alike.items():
        nearest = max(paths, key=lambda path: (-path.count("/"), path))  # as base.tarball names a file of many names
        others = tuple(sorted({*paths} - {nearest}))
        found.append(SizeChange(nearest, old.bytes if old else None, new.bytes if new else None, others))
    return found
