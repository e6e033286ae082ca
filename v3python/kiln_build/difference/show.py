"""A difference for people and for programs: sections, the most important first, as text; all of it as plain data."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from kiln_build.difference import combinations, images
from kiln_build.difference.combinations import Combination
from kiln_build.difference.compare import Difference, ImageChange, Rechosen
from kiln_build.difference.images import Facts
from kiln_recipe.console.tables import plural, quantity, table_lines

_SHOWN = 12  # rows of a section in the text; the page and --json have all
_NEITHER = "-"


@dataclass(frozen=True)
class Section:
    """A table. `right`: headings of the columns of numbers; `kind`: "worse", "better" or "", for the page."""

    title: str
    header: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    right: tuple[str, ...] = ()
    kind: str = ""


def verdict(found: Difference) -> str:
    """In one line what counts most."""
    if found.is_empty:
        return "the same"
    count = dict.fromkeys(images.MEASURES, 0)
    for change in found.worse:
        for one in change.worse:
            count[one.measure] += 1
    lost = sum(one.sort == "lost" for one in found.combinations)
    gained = sum(one.sort == "gained" for one in found.combinations)
    elsewhere = sum(one.sort == "elsewhere" for one in found.combinations)
    said = [
        (len(found.lost), "target lost", "targets lost"),
        (count["blocks"], "image holds fewer blocks", "images hold fewer blocks"),
        (count["spills"], "image spills more", "images spill more"),
        (count["share"], "image is slower by the model", "images are slower by the model"),
        (lost, "combination lost", "combinations lost"),
        (elsewhere, "combination served by another image", "combinations served by other images"),
        (len(found.tables), "look-up chooses differently", "look-ups choose differently"),
        (gained, "combination gained", "combinations gained"),
        (len(found.gained), "target gained", "targets gained"),
        (sum(len(one.lost) for one in found.symbols), "exported symbol lost", "exported symbols lost"),
        (sum(one.sort == "better" for one in found.images), "image better", "images better"),
        (sum(one.sort in ("other", "code") for one in found.images), "other image changed", "other images changed"),
    ]
    parts = [plural(number, one, many) for number, one, many in said if number]
    return "differ: " + (", ".join(parts) or "in what surrounds the images alone")


def sections(found: Difference) -> Iterator[Section]:
    """All that differs, the most important first; none is empty."""
    for section in _sections(found):
        if section.rows:
            yield section


def _sections(found: Difference) -> Iterator[Section]:
    lost, elsewhere, gained = (
        [one for one in found.combinations if one.sort == sort] for sort in ("lost", "elsewhere", "gained")
    )
    better, others, code = (
        _image_rows(one for one in found.images if one.sort == sort) for sort in ("better", "other", "code")
    )
    gone = [(one.name, one.after or "it has no such target") for one in found.lost]
    yield Section("targets lost", ("TARGET", "WHY"), gone, (), "worse")
    yield Section("images that became worse", _IMAGES, _image_rows(found.worse), _IMAGE_NUMBERS, "worse")
    yield Section("combinations of choices lost", (*_WHERE, "WHY"), _combinations(lost), _COUNTED, "worse")
    moved = "combinations served by another image"
    yield Section(moved, (*_WHERE, "BEFORE", "NOW"), _elsewhere(elsewhere), _COUNTED)
    yield Section("look-ups that choose another configuration", _LOOKUPS, _lookups(found.tables), ("LOOK-UPS",))
    yield Section("look-ups that cannot be held together", ("WHICH",), [(note,) for note in found.table_notes])
    yield Section("targets gained", ("TARGET",), [(one.name,) for one in found.gained], (), "better")
    more = [row[:-1] for row in _combinations(gained)]
    yield Section("combinations of choices gained", _WHERE, more, _COUNTED, "better")
    yield Section("images that became better", _IMAGES, better, _IMAGE_NUMBERS, "better")
    yield Section("images with other registers, shared memory or size", _IMAGES, others, _IMAGE_NUMBERS)
    yield Section("images with the same figures and other code", _IMAGES, code, _IMAGE_NUMBERS)
    headers = [(one.path, one.kind, _lines(one.lines)) for one in found.headers]
    yield Section("headers", ("HEADER", "WHAT", "LINES"), headers)
    symbols = [(one.library, " ".join(one.lost) or _NEITHER, " ".join(one.gained) or _NEITHER) for one in found.symbols]
    yield Section("exported symbols", ("LIBRARY", "LOST", "GAINED"), symbols)
    stated = [(one.name, one.before or _NEITHER, one.after or _NEITHER) for one in found.stated]
    yield Section("toolchain, and what they state of themselves", ("WHAT", "BEFORE", "NOW"), stated)
    yield Section("files", ("FILE", "BEFORE", "NOW"), _sizes(found), ("BEFORE", "NOW"))


def text(found: Difference, everything: bool = False) -> Iterator[str]:
    """The lines of the text.

    Args:
        everything: all rows, and not the first of each section.
    """
    before, after = found.before, found.after
    yield f"{before.path.name} ({before.name}) -> {after.path.name} ({after.name})"
    yield verdict(found)
    for section in sections(found):
        yield ""
        yield f"{section.title}: {len(section.rows)}" if len(section.rows) > 1 else section.title
        shown = section.rows if everything else section.rows[:_SHOWN]
        yield from (f"  {line}" for line in table_lines(section.header, shown, section.right))
        if hidden := len(section.rows) - len(shown):
            yield f"  ... and {plural(hidden, 'more row')}; --all shows them"
    yield from (f"note: {note}" for note in found.notes)


def document(found: Difference) -> dict[str, Any]:
    """Everything, as plain data."""

    def facts(end: tuple[Facts, int] | None) -> dict[str, Any] | None:
        return {**asdict(end[0]), "bytes": end[1]} if end else None

    def side(one: Any) -> dict[str, Any]:
        return {"file": one.path.name, "kind": one.kind, "release": one.version, "sha256": one.digest or None}

    return {
        "same": found.is_empty,
        "verdict": verdict(found),
        "before": side(found.before),
        "after": side(found.after),
        "targets": {
            "lost": [{"target": one.name, "why": one.after} for one in found.lost],
            "gained": [one.name for one in found.gained],
        },
        "images": [
            {
                "target": one.target, "name": one.name, "sort": one.sort, "before": facts(one.before),
                "after": facts(one.after), "worse": [worse.measure for worse in one.worse],
            }
            for one in found.images
        ],
        "combinations": [{**asdict(one), "sort": one.sort} for one in found.combinations],
        "look_ups": [one._asdict() for one in found.tables],
        "look_ups_not_compared": found.table_notes,
        "headers": [one._asdict() for one in found.headers],
        "symbols": [one._asdict() for one in found.symbols],
        "stated": [one._asdict() for one in found.stated],
        "files": [one._asdict() for one in found.sizes],
        "notes": found.notes,
    }  # fmt: skip


# ---- rows ----

_IMAGES = ("TARGET", "KERNEL", "BLOCKS", "SPILLS", "MODELLED", "REGISTERS", "SHARED", "BYTES", "IMAGES", "OF")
_IMAGE_NUMBERS = _IMAGES[2:9]
_WHERE = ("TARGET", "KERNEL", "COMBINATIONS", "WHICH")
_COUNTED = ("COMBINATIONS",)
_LOOKUPS = ("TARGET", "KERNEL", "BEFORE", "NOW", "LOOK-UPS", "WHICH")


def _image_rows(changes: Iterable[ImageChange]) -> list[tuple[str, ...]]:
    """A row for images of one kernel and configuration that changed in the same way; what changed most comes first."""
    groups: dict[tuple[str, ...], list[ImageChange]] = {}
    for one in changes:
        kernel, _, configuration, specialization = _parts(one)
        figures = tuple(_figure(one, name) for name in images.MEASURES)
        groups.setdefault((one.target, kernel, configuration, specialization, *figures), []).append(one)
    rows: list[tuple[tuple[float, ...], tuple[str, ...]]] = []
    for (target, kernel, configuration, specialization, *same), found in groups.items():
        of = f"{combinations.spell([_parts(one)[1] for one in found])} [{configuration}][{specialization}]"
        more = [_figures(found, name) for name in ("registers", "shared")]
        row: tuple[str, ...] = (target, kernel, *same, *more, _bytes(found), str(len(found)), of)
        rows.append((min(map(_weight, found)), row))
    return [row for _, row in sorted(rows)]


def _parts(one: ImageChange) -> list[str]:
    """Kernel, functional, configuration and specialization of "kernel[functional][configuration][...]@target"."""
    kernel, _, rest = one.name.rpartition("@")[0].partition("[")
    return [kernel, *rest.rstrip("]").split("][")]


def _weight(one: ImageChange) -> tuple[float, float, float]:
    """By which changes are sorted: blocks that were lost, as a part of those that there were; spills; share."""
    if one.before is None or one.after is None:
        return (-1.0 if one.after is None else 1.0, 0.0, 0.0)
    before, after = one.before[0], one.after[0]
    lost = (before.blocks - after.blocks) / before.blocks if before.blocks else 0.0
    return -lost, float(before.spills - after.spills), float((after.share or 0) - (before.share or 0))


def _figure(one: ImageChange, name: str) -> str:
    """ "2 -> 1", "2", or "-" where it is not known."""
    ends = [getattr(end[0], name) if end else None for end in (one.before, one.after)]
    if name == "blocks":
        ends = [end or None for end in ends]
    if name == "share":
        said = [_NEITHER if not end else f"{end / 1000:.3f}" for end in ends]
    else:
        said = [_NEITHER if end is None else str(end) for end in ends]
    return said[0] if said[0] == said[1] else " -> ".join(said)


def _figures(found: Sequence[ImageChange], name: str) -> str:
    """The figures of several images: of the first, "..." behind it where others differ."""
    said = list(dict.fromkeys(_figure(one, name) for one in found))
    return said[0] + (" ..." if len(said) > 1 else "")


def _bytes(found: Sequence[ImageChange]) -> str:
    """All images' together: "+120", "-1312", "0"."""
    change = sum((one.after[1] if one.after else 0) - (one.before[1] if one.before else 0) for one in found)
    return f"{change:+d}" if change else "0"


def _combinations(found: Sequence[Combination]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for ones in combinations.grouped(found):
        reasons = list(dict.fromkeys(one.reason for one in ones if one.reason)) or [_NEITHER]
        rows.append((*_which(ones), reasons[0] + (f"; and {len(reasons) - 1} more" if len(reasons) > 1 else "")))
    return rows


def _elsewhere(found: Sequence[Combination]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for ones in combinations.grouped(found):
        ends = ("an image of its own", ones[0].instead)
        rows.append((*_which(ones), *(ends if ones[0].is_lost else ends[::-1])))
    return rows


def _which(ones: Sequence[Combination]) -> tuple[str, ...]:
    spelled = combinations.spell([one.functional for one in ones])
    return ones[0].target, ones[0].kernel, str(len(ones)), spelled


def _lookups(found: Iterable[Rechosen]) -> list[tuple[str, ...]]:
    groups: dict[tuple[str, ...], list[Rechosen]] = {}
    for one in found:
        groups.setdefault((one.target, one.kernel, one.before, one.after, one.bins), []).append(one)
    return [
        (target, kernel, before, after, str(len(ones)),
         combinations.spell([one.functional for one in ones]) + (f": {bins}" if bins else ""))
        for (target, kernel, before, after, bins), ones in groups.items()
    ]  # fmt: skip


def _lines(lines: Sequence[str]) -> str:
    """ "+3 -1" of a unified diff."""
    counts = [sum(line.startswith(sign) and line[:3] != sign * 3 for line in lines) for sign in "+-"]
    return "+{} -{}".format(*counts) if lines else _NEITHER


def _sizes(found: Difference) -> list[tuple[str, ...]]:
    """The tarball as a whole, then files by how much they differ."""
    rows: list[tuple[str, ...]] = []
    sizes = [side.path.stat().st_size if side.path.is_file() else None for side in (found.before, found.after)]
    if found.sizes and None not in sizes and found.before.kind == "tarball":
        rows.append(("the tarball", *(_size(one) for one in sizes)))
    for one in sorted(found.sizes, key=lambda one: (-abs((one.after or 0) - (one.before or 0)), one.path)):
        names = f" (and {plural(len(one.others), 'other name')})" if one.others else ""
        rows.append((one.path + names, _size(one.before), _size(one.after)))
    return rows


def _size(size: int | None) -> str:
    return _NEITHER if size is None else quantity(size) if size < 1024 else f"{quantity(size)} ({size})"
