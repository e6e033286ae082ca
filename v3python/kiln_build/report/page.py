"""The page of a release: what it serves, what ran, how large it is, how it was built, and what changed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from kiln_build.difference import page as difference_page
from kiln_build.pages import document, tables
from kiln_build.pages.document import Part
from kiln_build.pages.markup import Markup, drawing, element, joined
from kiln_build.pages.tables import Cell
from kiln_build.report import maps, timeline, verification
from kiln_build.report.coverage import NONE, OWN, WIDER, Answer, Kernel
from kiln_build.report.gather import Report
from kiln_recipe.console.tables import plural, quantity

COMMAND = "kiln report"
_KINDS = {OWN: "good", WIDER: "partly", NONE: "bad"}
_SAID = {OWN: "own image", WIDER: "wider", NONE: "no"}
_LONGEST = 50  # compiles that are listed one by one
_MOST_SPILLING = 300  # images
_MOST_MAPPED = 20_000  # variants of a release whose maps are drawn: more would be most of a page


def page(report: Report, command: str = COMMAND) -> Iterator[str]:
    """The page, as HTML, in pieces. `command`: that writes it."""
    side = report.side
    parts = [
        Part("Coverage", _coverage(report)),
        Part("Verification", _verification(report)),
        Part("Sizes", _sizes(report)),
        Part("Registers and spills", _registers(report)),
        Part("Maps of the images", _maps(report)),
        Part("The build", _build(report)),
    ]
    if report.difference is not None:
        before = report.difference.before
        parts.append(Part(f"Changes since kiln {before.version}", difference_page.lead(report.difference)))
        parts += difference_page.parts(report.difference)
    if side.notes:
        parts.append(Part("What could not be read", [document.notes(side.notes)]))
    return document.document(command, f"Kiln {side.version}", _lead(report), parts)


def _lead(report: Report) -> Iterator[Markup]:
    side = report.side
    whole = [name for name in side.stated if ": " not in name and not name.startswith(("tool ", "waiver ", "release"))]
    rows: list[tuple[str, object]] = [("File", f"{side.path.name}, {side.kind}")]
    if side.digest:
        rows.append(("SHA-256", element("code", side.digest)))
    rows += [(name[:1].upper() + name[1:], side.stated[name]) for name in whole]
    rows.append(("Targets", " ".join(side.targets) or "none"))
    yield tables.facts(rows)
    yield element("p", *_summary(report), class_="verdict")
    tools = [(name[5:], value) for name, value in side.stated.items() if name.startswith("tool ")]
    if tools:
        yield document.details("Tools that made it", tables.facts(tools))
    if waivers := [(name[7:], value) for name, value in side.stated.items() if name.startswith("waiver ")]:
        yield document.details("Waivers", tables.facts(waivers))


def _summary(report: Report) -> list[object]:
    count = Counter[str]()
    for kernel in report.coverage:
        for counts in kernel.counts.values():
            count.update(counts)
    said = (
        f"{count[OWN]} combinations of choices have an image of their own, {count[WIDER]} are served by a wider one, "
        f"{count[NONE]} by none."
    )
    not_run = sum(line.not_run for line in report.verification)
    variants = sum(line.variants for line in report.verification)
    if report.records is None:
        return [said]
    return [said, f" {variants - not_run} of {plural(variants, 'variant')} ran on a device, {not_run} did not."]


# ---- coverage ----


def _coverage(report: Report) -> Iterator[Markup]:
    targets = report.side.targets
    if not report.coverage:
        yield element("p", "This release has no images.")
        return
    yield element(
        "p",
        "An operation launches kernels; each is looked up by the choices of the call. A combination has an image of "
        "its own, or is served by a wider one, which computes the same and does more than it must. Where it has none, "
        "the operation takes another of its kernels if one serves the call, and else refuses it.",
    )
    groups = _alike(targets, lambda at: tuple(tuple(one.counts[targets[at]].values()) for one in report.coverage))
    header = ("Kernel", *(" ".join(targets[at] for at in group) for group in groups))
    rows = [[kernel.name, *(_counts(kernel, targets[group[0]]) for group in groups)] for kernel in report.coverage]
    yield from tables.table("combinations by kernel and target", header, rows, named=True)
    for kernel in report.coverage:
        if kernel.choices and kernel.lines:
            yield element("h3", kernel.name)
            yield from _kernel(kernel, targets)


def _alike(targets: Sequence[str], key: Callable[[int], object]) -> list[list[int]]:
    """The places of targets that say the same, together: a column each, of which a release for all GPUs has few."""
    groups: dict[object, list[int]] = {}
    for at in range(len(targets)):
        groups.setdefault(key(at), []).append(at)
    return list(groups.values())


def _counts(kernel: Kernel, target: str) -> Cell:
    counts = kernel.counts[target]
    served = counts[OWN] + counts[WIDER]
    kind = _KINDS[NONE if not served else OWN if not counts[WIDER] + counts[NONE] else WIDER]
    said = [f"{counts[sort]} {word}" for sort, word in ((OWN, "own"), (WIDER, "wider"), (NONE, "no")) if counts[sort]]
    return Cell(", ".join(said) or "-", served, kind)


def _kernel(kernel: Kernel, targets: Sequence[str]) -> Iterator[Markup]:
    reasons = any(answer.sort == NONE for line in kernel.lines for answer in line.answers)
    groups = _alike(targets, lambda at: tuple(line.answers[at] for line in kernel.lines))
    columns = [" ".join(targets[at] for at in group) for group in groups]
    header = (*kernel.choices, *columns, *(["Why not"] if reasons else []))
    rows = []
    for line in kernel.lines:
        row: list[object] = [" ".join(values) for values in line.values]
        own = (line.answers[group[0]] for group in groups)
        row += [Cell(_answer(answer), kind=_KINDS[answer.sort]) for answer in own]
        if reasons:
            row.append(_reasons(targets, line.answers))
        rows.append(row)
    return tables.table(f"what serves {kernel.name}", header, rows)


def _answer(answer: Answer) -> str:
    return _SAID[answer.sort] + (f": {answer.by}" if answer.by and answer.sort != NONE else "")


def _reasons(targets: Sequence[str], answers: Sequence[Answer]) -> str:
    by_reason: dict[str, list[str]] = {}
    for target, answer in zip(targets, answers):
        if answer.sort == NONE:
            by_reason.setdefault(answer.by, []).append(target)
    if len(by_reason) == 1 or len(targets) == 1:
        return "; ".join(by_reason)
    return "; ".join(f"{' '.join(names)}: {reason}" for reason, names in by_reason.items())


# ---- verification ----


def _verification(report: Report) -> Iterator[Markup]:
    stated = verification.stated(report.side)
    said = [[target, Cell(words, kind=_kind_of(words))] for target, words in stated.items()]
    yield element("p", "What the release states of each target, as of its build:")
    yield from tables.table("what the release states", ("Target", "Stated"), said, named=True)
    if report.records is None:
        yield element("p", "No records of runs were given, so that nothing is said of single kernels.", class_="muted")
        return
    yield element(
        "p",
        f"By {plural(len(report.records), 'record')} of runs, held against this release key by key and image by image: "
        "how many variants gave right results where.",
    )
    header = ("Target", "Kernel", "Variants", "Ran on a device", "Compiled, not run", "By the emulator", "Neither")
    rows = [
        [
            line.target,
            line.kernel,
            line.variants,
            _places(line.places) or Cell(verification.NOTHING_RAN, kind="bad"),
            Cell(line.not_run, kind="bad" if line.not_run == line.variants else "partly" if line.not_run else "good"),
            _places(line.emulated) or "-",
            line.neither,
        ]
        for line in report.verification
    ]
    numbers = ("Variants", "Compiled, not run", "Neither")
    yield from tables.table("what ran where", header, rows, numbers)


def _kind_of(stated: str) -> str:
    if stated.startswith(verification.NOTHING_RAN):
        return "partly" if "emulator" in stated else "bad"
    return "partly" if "untested" in stated or "not stated" in stated else "good"


def _places(places: dict[str, int]) -> str:
    return "; ".join(f"{place}: {count}" for place, count in places.items())


# ---- sizes, registers, spills ----


def _sizes(report: Report) -> Iterator[Markup]:
    largest = max((max(size.raw, size.pack) for size in report.sizes), default=0) or 1
    header = ("Target", "Variants", "Images", "Without an image", "Pack", "Images, unpacked", "Of the largest")
    rows = [
        [
            size.target,
            size.variants,
            size.images,
            size.unavailable,
            Cell(quantity(size.pack) if size.pack else "-", size.pack),
            Cell(quantity(size.raw), size.raw),
            Cell(_bar(size.pack, size.raw, largest), size.raw),
        ]
        for size in report.sizes
    ]
    yield from tables.table("sizes by target", header, rows, header[1:6], named=True)
    if report.side.kind == "tarball":
        yield element("p", f"The tarball has {_exact(report.side.path.stat().st_size)}.")
    files = sorted(report.side.files.items(), key=lambda one: (-one[1].bytes, one[0]))
    listed = (
        [path, Cell(quantity(file.bytes) if file.bytes else "-", file.bytes), element("code", file.sha256[:12])]
        for path, file in files
    )
    rows_of_files = tables.table("files", ("File", "Size", "SHA-256"), listed, ("Size",))
    yield document.details(f"{plural(len(files), 'file')}", joined(list(rows_of_files)))


def _bar(pack: int, raw: int, largest: int) -> Markup:
    """Bytes of images, in pale, and within them those of the pack."""
    width = 200
    bars = [(raw, "pale"), (pack, "bar")]
    boxes = (element("rect", width=f"{width * size / largest:.1f}", height=11, class_=kind) for size, kind in bars)
    return drawing(joined(boxes), width, 11, f"images {quantity(raw)}, pack {quantity(pack)}")


def _exact(size: int) -> str:
    return quantity(size) + (f" ({size} bytes)" if size >= 1024 else "")


def _registers(report: Report) -> Iterator[Markup]:
    header = ("Target", "Kernel", "Configuration", "Images", "Registers", "Spills", "Spilling", "Shared", "Threads",
              "Blocks", "Bytes")  # fmt: skip
    yield element(
        "p",
        "Registers and spilled bytes are of a thread, shared memory is of a block; blocks are those that a "
        "multiprocessor, or compute unit, holds at once by these. Where images differ, from the least to the most, "
        "by which the column sorts.",
    )
    rows = (
        [
            line.target,
            line.kernel,
            line.configuration,
            line.images,
            _ends(line.registers),
            _ends(line.spills, "worse" if line.spilling else ""),
            line.spilling,
            _ends(line.shared),
            _ends(line.threads),
            _ends(line.blocks) if line.blocks[1] else "-",
            Cell(quantity(line.bytes), line.bytes),
        ]
        for line in report.images
    )
    yield from tables.table("images by kernel and configuration", header, rows, header[3:])
    yield element("h3", "Images that spill")
    if not report.spilling:
        yield element("p", "None.")
        return
    listed = (
        [row["target"], row["kernel"], row["spills"], row["registers"], row["functional"], row["configuration"],
         row["specialization"]]
        for row in report.spilling[:_MOST_SPILLING]
    )  # fmt: skip
    names = ("Target", "Kernel", "Spills", "Registers", "Choices", "Configuration", "Specialization")
    yield element("p", f"{plural(len(report.spilling), 'image')}, those that spill most first.")
    yield from tables.table("images that spill", names, listed, ("Spills", "Registers"))
    if len(report.spilling) > _MOST_SPILLING:
        yield element("p", f"{len(report.spilling) - _MOST_SPILLING} more spill less; --json has all.", class_="muted")


def _ends(ends: tuple[int, int], kind: str = "") -> Cell:
    low, high = ends
    return Cell(str(high) if low == high else f"{low} - {high}", high, kind)


def _maps(report: Report) -> Iterator[Markup]:
    side = report.side
    if len(side.rows) > _MOST_MAPPED:
        yield element("p", f"A release of more than {_MOST_MAPPED} variants has none here; a page of a pack has.")
        return
    highest = maps.highest_of(side.rows)
    cells: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in side.rows:
        cells.setdefault((row["target"], row["kernel"]), []).append(row)
    lacking: Counter[tuple[str, str]] = Counter()
    for rule in side.rules:
        lacking[rule["target"], rule["kernel"]] += rule["variants"]
    yield element("p", "The stronger the colour, the nearer to the release's highest value.")
    for (target, kernel), ours in cells.items():
        drawn = maps.kernel(ours, highest, lacking[target, kernel])
        yield document.details(f"{target}: {kernel} ({plural(len(ours), 'variant')})", drawn)


# ---- the build ----


def _build(report: Report) -> Iterator[Markup]:
    found = report.timeline
    if found is None:
        yield element("p", "No timeline of the build is here: `kiln build` writes one beside the tarball.")
        return
    failed = sum(job.outcome in ("failed", "died") for job in found.jobs)
    compiled = sum(job.outcome == "compiled" for job in found.jobs)
    said = f"{found.seconds:.0f} seconds; {plural(compiled, 'image')} compiled by {plural(found.workers, 'worker')}"
    yield element("p", said + (f", {plural(failed, 'attempt')} failed" if failed else "") + ".")
    yield element("div", timeline.picture(found), class_="wide")
    steps = [[step.name, Cell(f"{step.seconds:.1f}", step.seconds)] for step in found.steps]
    yield from tables.table("steps of the build", ("Step", "Seconds"), steps, ("Seconds",), named=True)
    if not found.jobs:
        yield element("p", "All images were in the store: none was compiled.", class_="muted")
        return
    header = ("Target", "Kernel", "Compiles", "Seconds", "Longest")
    rows = (
        [target, kernel, count, Cell(f"{total:.1f}", total), Cell(f"{longest:.1f}", longest)]
        for target, kernel, count, total, longest in timeline.by_kernel(found.jobs)
    )
    yield element("h3", "Compiles by kernel")
    yield from tables.table("compiles by kernel", header, rows, header[2:])
    longest = sorted(found.jobs, key=lambda job: (-job.seconds, job.name))[:_LONGEST]
    listed = ([job.name, job.worker, Cell(f"{job.seconds:.1f}", job.seconds), job.outcome] for job in longest)
    yield element("h3", "The longest compiles")
    yield from tables.table(
        "the longest compiles", ("Variant", "Worker", "Seconds", "Outcome"), listed, ("Worker", "Seconds")
    )
