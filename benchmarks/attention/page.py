"""The page and the plot of attention's speed, of what speed.py or `kiln bench` measured; and what the figures miss.

    python3 benchmarks/attention/page.py RESULTS.json [PAGE.md] [--host LAUNCH.txt ...]                      # no GPU

PAGE.md is docs/measurements/attention-speed.md; the plot, which README.md shows, lies beside it. LAUNCH.txt is what
benchmarks/launch/launch.c prints, of head dimension 128. Decoding's long and short contexts go to PAGE-decoding.md, for
docs/measurements/decoding.md; the calls of both pages to the folder calls beside them. Judged (exit code 1 if one is
missed): LEAST, and the numbers below it.
"""

from __future__ import annotations

import argparse
import re
import statistics
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "v3python"), str(ROOT / "docs")]

import measured  # noqa: E402

from kiln_bench import plot, report, shapes  # noqa: E402
from kiln_bench.report import Results, Row, number, piped  # noqa: E402
from kiln_recipe.console.appear import appear  # noqa: E402

PAGE = ROOT / "docs/measurements/attention-speed.md"
DECODING = "decoding"  # the page that has long and short contexts
# By part and side: the geometric mean of how many times as fast Kiln is, and the least.
LEAST = {
    ("forward", "cudnn"): (1.10, 1.0), ("forward", "flash"): (2.0, 1.0),
    ("backward", "cudnn"): (1.05, 0.95), ("backward", "flash"): (1.2, 1.0),
}  # fmt: skip
# The least of a row: of the rate of the call without what it asks for more; a fixed order's of any; fp8's of bf16.
PLAIN_SHARE, ORDERED_SHARE, FP8_SHARE, HOST_RATIO = 0.95, 0.85, 1.4, 1.3
WIDE = 0.05  # how far apart quartiles of a side's rounds are marked
LEAST_SHARE, JUDGED_KEYS, JUDGED_BYTES = 0.9, 32768, 10**9  # of the bandwidth of a copy
NAMES = {"flash": "FlashAttention-2", "cudnn": "cuDNN"}
PARTS = ("forward", "backward", "decoding")
Column = tuple[str, Callable[[Row], str]]


def group(results: Results, name: str, part: str) -> list[Row]:
    """Rows of a group of speed.py's that were measured; of `kiln bench` all are of the first, and decoding."""
    usual = "decoding" if part == "decoding" else "shapes"
    return [row for row in report.of(results, part) if row.get("group", usual) == name and row.get("milliseconds")]


def in_one_layout(rows: Sequence[Row]) -> list[Row]:
    """Of calls that were measured in both layouts the rows of the one that PyTorch's models have."""
    first = [row for row in rows if row["shape"].get("rows_first")]
    return first or [*rows]


def rate(row: Row, side: str) -> float | None:
    """TFLOP/s; of the product of matrices and the call that a row is set against their own."""
    took = report.median(row, side)
    if not took or side not in ("product", "plain"):
        return report.figure(row, side)
    of_plain = {"part": row["part"], "shape": row.get("plain")}
    amount = row["product"] if side == "product" else shapes.of_row(of_plain).operations(row["part"])  # type: ignore[union-attr]
    return amount / took / 1e9


def share(row: Row, side: str, other: str) -> float | None:
    """How many times as fast as the other a side is; None, too, if the host's time may be in one of the figures."""
    if report.is_host_bound(row, side) or report.is_host_bound(row, other):
        return None
    mine, theirs = rate(row, side), rate(row, other)
    return mine / theirs if mine and theirs else None


def mean_and_least(rows: Iterable[Row], side: str, other: str) -> tuple[float | None, float | None]:
    found = [share(row, side, other) for row in rows]
    return report.mean(found), report.least(found)


def judge(results: Results) -> tuple[list[str], dict[str, int]]:
    """What is missed, a sentence each, and how many figures each limit has judged. A limit is missed, too, if none of
    the rows that it is for has a figure, since all were left out, say; what was not asked for has no rows."""
    missed, judged = list[str](), dict[str, int]()

    def count(rows: Sequence[Row], name: str, part: str, found: Sequence[float | None], of: str) -> list[float]:
        """The figures that are there of some of a group's rows; counted, and missed if there is none."""
        known = [value for value in found if value is not None]
        usual = "decoding" if part == "decoding" else "shapes"
        if rows or any(row.get("group", usual) == name for row in report.of(results, part)):
            label = f"{part}, {name}, of {of}"
            judged[label] = judged.get(label, 0) + len(known)
            if not known:
                missed.append(f"{label}: no row has a figure")
        return known

    def least(rows: Sequence[Row], name: str, part: str, sides: tuple[str, str], limit: float, of: str) -> None:
        shares = [share(row, *sides) for row in rows]
        count(rows, name, part, shares, of)
        for row, found in zip(rows, shares):
            if found is not None and found < limit:
                missed.append(f"{part}, {shapes.of_row(row)}: {found:.2f} of {of}, not {limit}")

    for (part, side), (average, worst) in LEAST.items():
        rows, label = in_one_layout(group(results, "shapes", part)), report.labels(results).get(side, side)
        found, _ = mean_and_least(rows, "kiln", side)
        if found is not None and found < average:
            missed.append(f"{part}: geometric mean {found:.2f} of {label}, not {average}")
        least(rows, "shapes", part, ("kiln", side), worst, label)
        if part == "forward":
            least(group(results, "calls", part), "calls", part, ("kiln", side), 1.0, label)
    uncapped = [row for row in group(results, "calls", "forward") if not row["shape"]["softcap"]]
    least(uncapped, "calls", "forward", ("kiln", "plain"), PLAIN_SHARE, "the call without")
    if any("group" in row for row in results["rows"]):  # `kiln bench` has no side of this name
        for name in ("shapes", "calls"):
            ordered = in_one_layout(group(results, name, "backward"))
            least(ordered, name, "backward", ("deterministic", "kiln"), ORDERED_SHARE, "the fast one")
    wide = [row for row in in_one_layout(group(results, "fp8", "forward")) if row["shape"]["head_dim"] == 128]
    fp8 = report.mean(count(wide, "fp8", "forward", [share(row, "fp8", "kiln") for row in wide], "bf16"))
    if fp8 is not None and fp8 < FP8_SHARE:
        missed.append(f"fp8, d128: geometric mean {fp8:.2f} of bf16, not {FP8_SHARE}")
    for row in report.of(results, "decoding"):
        shape, of_copy = shapes.of_row(row), report.beside(row, "kiln", report.COPY) if row["milliseconds"] else None
        is_judged = shape.keys == JUDGED_KEYS and shape.cache_dtype == shape.dtype and shape.bytes >= JUDGED_BYTES
        if is_judged:
            count([row], row.get("group", "decoding"), "decoding", [of_copy], "the copy bandwidth")
        if is_judged and of_copy is not None and of_copy < LEAST_SHARE:
            missed.append(f"decoding, {shape}: {of_copy:.2f} of the copy bandwidth, not {LEAST_SHARE}")
    return missed + report.wrong(results), judged


# ---- tables ----------------------------------------------------------------------------------------------------------


def table(rows: Sequence[Row], columns: Sequence[Column], ratios: Sequence[tuple[str, str, str]] = ()) -> str:
    """Columns, then ratios, each a title and two sides, with the geometric mean and the least below."""
    kept = [one for one in ratios if any(share(row, *one[1:]) for row in rows)]

    def ratio(row: Row, side: str, other: str) -> str:
        return report.HOST if report.is_unfair(row, side, other) else number(share(row, side, other), 2)

    body = [[*(cell(row) for _, cell in columns), *(ratio(row, *one[1:]) for one in kept)] for row in rows]
    if kept and len(rows) > 1:
        for place, name in enumerate(("geometric mean", "least")):
            means = [number(mean_and_least(rows, *one[1:])[place], 2) for one in kept]
            body.append([name, *[""] * (len(columns) - 1), *means])
    return piped([*(title for title, _ in columns), *(one[0] for one in kept)], body)


def of(side: str, digits: int = 0) -> Callable[[Row], str]:
    """Cells of a side's rate; one whose rounds differ much, or that may have the host's time in it, says so."""

    def cell(row: Row) -> str:
        why = next((kind for kind in ("wrong", "refused") if side in row[kind]), None)
        return why or number(rate(row, side), digits) + uncertain(row, side)

    return cell


def uncertain(row: Row, side: str) -> str:
    """ " ±4 %", half of what the quartiles of a side's rounds are apart, if they are apart more than WIDE."""
    wide, times = "", row["milliseconds"].get(side, ())
    if (apart := report.spread(times)) > WIDE:
        wide = f" ±{apart / 2 * 100:.0f} %"
    return f"{wide} ({report.HOST})" if times and report.is_host_bound(row, side) else wide


def shape(row: Row) -> str:
    return str(shapes.of_row(row))


def microseconds(side: str) -> Callable[[Row], str]:
    def cell(row: Row) -> str:
        took = report.median(row, side)
        return number(took and took * 1000, 1) + uncertain(row, side)

    return cell


def images(results: Results) -> list[str]:
    """What Kiln ran, each once, in the order of the tables: "KEY TARGET VARIANT"."""
    rows = [row for part in PARTS for row in report.of(results, part) if row.get("group") not in ("long", "short")]
    ran = (image for row in rows for side in sorted(row["images"], key="kiln".__ne__) for image in row["images"][side])
    return list(dict.fromkeys(ran))


def summary(results: Results) -> str:
    """Geometric means and least ratios of the shapes, by part, head dimension, mask and layout."""
    body = []
    for part in ("forward", "backward"):
        rows = group(results, "shapes", part)
        kinds: dict[str, list[Row]] = {}
        for row in rows:
            shape = row["shape"]
            layout = "" if shape.get("rows_first") else ", heads first"
            name = f"d{shape['head_dim']}{', causal' if shape['causal'] else ''}{layout}"
            for title in (name, f"all{layout}"):
                kinds.setdefault(title, []).append(row)
        for title, mine in sorted(kinds.items(), key=lambda kind: kind[0].startswith("all")):
            cells = [number(x, 2) for side in NAMES for x in mean_and_least(mine, "kiln", side)]
            cells += [number(mean_and_least(mine, "kiln", "product")[0], 2)] if part == "forward" else ["-"]
            cells += [number(mean_and_least(mine, "deterministic", "kiln")[0], 2)] if part == "backward" else ["-"]
            body.append([part, title, *cells])
    head = ["part", "shapes"]
    head += [f"to {name}{least}" for name in NAMES.values() for least in (", mean", ", least")]
    return piped([*head, "of a product", "deterministic to fast"], body)


def host(texts: Sequence[str]) -> str:
    """What launch.c printed in several runs, as a table."""
    lines = {
        "repeated call": "a call with descriptors, µs", "without descriptors": "the same without, µs", "ratio": "ratio",
        "out moves": "with an `out` that moves, µs", "bare cuLaunchKernel": "bare cuLaunchKernel, µs",
        "first call": "the first call of a process, µs",
    }  # fmt: skip
    found = [[re.search(rf"^{name} *([0-9.]+)", text, re.M) for text in texts] for name in lines]
    body = [[title, *(match[1] if match else "-" for match in row)] for title, row in zip(lines.values(), found)]
    return piped(["", *(f"run {n + 1}" for n in range(len(texts)))], body)


def host_ratio(texts: Sequence[str]) -> float | None:
    found = [float(match[1]) for text in texts if (match := re.search(r"^ratio *([0-9.]+)", text, re.M))]
    return statistics.median(found) if found else None


def wrapped(paragraph: str, width: int = 120) -> str:
    lines = [""]
    for word in paragraph.split():
        if lines[-1] and len(lines[-1]) + 1 + len(word) > width:
            lines.append("")
        lines[-1] += f" {word}" if lines[-1] else word
    return "\n".join(lines)


def markdown(results: Results, plot_name: str, launches: Sequence[str] = ()) -> str:
    every = images(results)

    def ran(row: Row) -> str:
        return " ".join(str(every.index(image) + 1) for image in row["images"].get("kiln", ())) or "-"

    beside: list[Column] = [("Kiln", of("kiln")), *((name, of(side)) for side, name in NAMES.items())]
    ratios = [(f"to {name}", "kiln", side) for side, name in NAMES.items()]
    of_product, ordered = ("of a product", "kiln", "product"), ("deterministic to fast", "deterministic", "kiln")
    plain: list[Column] = [("the call without", of("plain"))]
    of_plain, price = ("of the call without", "kiln", "plain"), ("batch-invariant to fastest", "invariant", "kiln")
    fixed: list[Column] = [("deterministic", of("deterministic"))]
    times: list[Column] = [("µs", microseconds("kiln")), ("batch-invariant, µs", microseconds("invariant"))]
    bandwidth: list[Column] = [("TB/s", of("kiln", 2)), ("copy, TB/s", of(report.COPY, 2))]
    tables = (
        ("Forward, TFLOP/s", "shapes", "forward", [*beside, ("a product", of("product"))], [*ratios, of_product]),
        ("Forward, other calls, TFLOP/s", "calls", "forward", [*beside, *plain], [*ratios, of_plain]),
        ("Backward, TFLOP/s", "shapes", "backward", [*beside, *fixed], [*ratios, ordered]),
        ("Backward, other calls, TFLOP/s", "calls", "backward", [*beside, *fixed, *plain],
         [*ratios, ordered, of_plain]),
        ("Forward of fp8, TFLOP/s", "fp8", "forward", [("fp8", of("fp8")), *beside], [("fp8 to bf16", "fp8", "kiln")]),
        ("Independent of the batch: forward, TFLOP/s", "shapes", "forward", [("Kiln", of("kiln")), ("batch-invariant",
         of("invariant"))], [price]),
        ("Decoding", "decoding", "decoding", [*times, *bandwidth], [price]),
    )  # fmt: skip
    parts = [
        f"# Attention: speed on {results['about']['gpu']}",
        wrapped(f"Measured by `benchmarks/attention/speed.py`. {'. '.join(report.about(results))}."),
        wrapped(
            "TFLOP/s count 4 * length² * head_dim operations for each head, half of them if causal, and of a window or "
            "of several lengths those of the keys that rows see; backward, timed alone with all that it does, 2.5 "
            "times as many. Kiln's forward writes the log-sum-exp. Every result was first compared with fp32's. A "
            "product is one of 8,192 x 8,192 matrices in bf16 by PyTorch, in the same rounds. Each side's figure is of "
            "clocks that it has set itself, at the power limit: the first five sevenths of its turns do not count."
        ),
        wrapped(
            f"±: half of what the quartiles of a side's rounds are apart, where that is more than {WIDE:.0%}. "
            f"{report.HOST}: the host did not keep ahead of the GPU, so its time may be in the figure, and no "
            "ratio of it counts."
        ),
        f"![Speed by shape]({plot_name})",
        "## Summary",
        summary(results),
    ]
    for title, name, part, columns, shares in tables:
        rows = group(results, name, part)
        if (part == "decoding" and rows) or any(share(row, *one[1:]) for row in rows for one in shares):
            parts += [f"## {title}", table(rows, [("call", shape), *columns, ("images", ran)], shares)]
    if launches:
        parts += ["## Host time of a call", host(launches)]
    if lines := report.notes(results):
        parts += ["## Notes", "\n".join(f"- {line}" for line in lines)]
    return "\n\n".join([*parts, "## Images", measured.listed(every)]) + "\n"


def decoding(results: Results) -> str:
    """Of long and short contexts, what docs/measurements/decoding.md has of them; "" if there is nothing."""
    rows = {name: group(results, name, "decoding") for name in ("long", "short")}
    ran = list(dict.fromkeys(image for each in rows.values() for row in each for image in row["images"]["kiln"]))
    if not ran:
        return ""

    def places(row: Row) -> str:
        return " ".join(str(ran.index(image) + 1) for image in row["images"]["kiln"])

    # In CUDA graphs, in which short calls are timed, PyTorch's copies are slower.
    copied = max(filter(None, (rate(row, report.COPY) for each in rows.values() for row in each)), default=None)

    def least_time(row: Row) -> float | None:
        """Microseconds of the bytes at a copy's rate, and of a launch."""
        launch = report.median(row, "launch")
        return shapes.of_row(row).bytes / copied / 1e6 + launch * 1000 if copied and launch else None

    def times(row: Row) -> str:
        took, bound = report.median(row, "kiln"), least_time(row)
        return number(took * 1000 / bound if took and bound else None, 1)

    columns: list[Column] = [("call", shape), ("µs", microseconds("kiln"))]
    bandwidth: list[Column] = [("TB/s", of("kiln", 2)), ("copy, TB/s", of(report.COPY, 2)), ("images", places)]
    bound: list[Column] = [("bytes and a launch, µs", lambda row: number(least_time(row), 1)), ("ratio", times)]
    parts = [
        "## Long contexts", table(rows["long"], [*columns, *bandwidth], [("share", "kiln", report.COPY)]),
        "## Short contexts", table(rows["short"], [*columns, *bound, ("images", places)]),
        "## Images", measured.listed(ran),
    ]  # fmt: skip
    return "\n\n".join([wrapped(". ".join(report.about(results))), *parts]) + "\n"


def keep_calls(results: Results, page: Path) -> None:
    """The calls of a page beside it, so that docs/measured.py can look them up again, and those of DECODING. Results of
    before have none, and then nothing stays of another run's."""
    for is_long_or_short, name in ((False, page.stem), (True, DECODING)):
        rows = [row for row in results["rows"] if (row.get("group") in ("long", "short")) == is_long_or_short]
        path = page.parent / "calls" / f"{name}.json"
        if any(row.get("calls") for row in rows):
            path.parent.mkdir(exist_ok=True)
            with appear(path) as fresh:
                fresh.write_text(measured.kept_calls({**results, "rows": rows}))
        elif rows:
            path.unlink(missing_ok=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("page", type=Path, nargs="?", default=PAGE)
    parser.add_argument("--host", type=Path, nargs="*", default=[], metavar="LAUNCH.txt")
    words = parser.parse_args()
    results, launches = report.read(words.results), [path.read_text() for path in words.host]
    picture = words.page.with_suffix(".svg")
    core = shapes.read("core", "both").forward  # what there is room for in a plot
    mine = [row for row in results["rows"] if row.get("group") == "shapes" and shapes.of_row(row) in core]
    shown = [row for row in results["rows"] if "group" not in row] + in_one_layout(mine)
    plot.write({**results, "rows": shown}, picture)
    with appear(words.page) as fresh:
        fresh.write_text(markdown(results, picture.name, launches))
    keep_calls(results, words.page)
    if text := decoding(results):
        with appear(words.page.with_name(f"{words.page.stem}-decoding.md")) as fresh:
            fresh.write_text(text)
    (missed, judged), ratio = judge(results), host_ratio(launches)
    if not results["rows"]:
        missed.append("everything: the results have no row")
    if ratio is not None and ratio > HOST_RATIO:
        missed.append(f"host: {ratio:.2f} of a call without descriptors, not {HOST_RATIO}")
    print("\n".join(f"judged: {number} of {label}" for label, number in judged.items()))
    print("\n".join(f"missed: {line}" for line in missed) or "passed")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
