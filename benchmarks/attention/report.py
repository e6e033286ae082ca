"""What comes of the times: speeds, ratios, tables, the judgement, a plot. Needs neither a GPU nor PyTorch."""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Iterable
from pathlib import Path

from shapes import Shape

sys.path.append(str(Path(__file__).resolve().parents[2] / "docs"))
import measured
import small_svg

LEAST_MEAN = {"forward": 1.3, "backward": 1.2}  # geometric, against FlashAttention-2
LEAST_RATIO = 1.0
LEAST_SHARE = 0.8  # of the copy bandwidth, decoding over JUDGED_KEYS keys of the call's own type
JUDGED_KEYS = 32768
NAMES = {"kiln": "Kiln", "flash": "FlashAttention-2", "cudnn": "cuDNN"}
AGAINST = {"against": "the other release"}
LAYOUTS = {"bhsd": "[batch, heads, rows, head_dim]", "bshd": "[batch, rows, heads, head_dim]"}
COLORS = {"kiln": "#1f5fa8", "flash": "#9aa5b1", "cudnn": "#d9a441"}


def milliseconds(row: dict, side: str) -> float | None:
    """The median round."""
    times = row["milliseconds"].get(side)
    return statistics.median(times) if times else None


def spread(row: dict, side: str) -> float | None:
    """From the fastest round to the slowest, as a share of the median."""
    times = row["milliseconds"].get(side)
    return (max(times) - min(times)) / statistics.median(times) if times else None


def teraflops(row: dict, side: str) -> float | None:
    took = milliseconds(row, side)
    shape = Shape(row["head_dim"], row["causal"], row["length"])
    return took and shape.operations(row["direction"]) / took / 1e9


def ratio(row: dict, other: str) -> float | None:
    """How many times as fast Kiln is."""
    mine, theirs = milliseconds(row, "kiln"), milliseconds(row, other)
    return theirs / mine if mine and theirs else None


def bandwidths(row: dict) -> tuple[float | None, float | None, float | None]:
    """TB/s of a cache's bytes, TB/s of a copy (read and written), the first as a share of the second."""
    decoding, copying = milliseconds(row, "kiln"), milliseconds(row, "copy")
    if not (decoding and copying):
        return None, None, None
    cache, copy = row["bytes"] / decoding / 1e9, row["copied"] / copying / 1e9
    return cache, copy, cache / copy


def mean(values: Iterable[float | None]) -> float | None:
    """The geometric one, of those that there are."""
    known = [value for value in values if value]
    return math.exp(statistics.fmean(map(math.log, known))) if known else None


def of(results: dict, direction: str) -> list[dict]:
    return [row for row in results["rows"] if row["direction"] == direction]


def is_judged(row: dict, results: dict) -> bool:
    if row["direction"] != "decode":
        return True
    return row["keys"] == JUDGED_KEYS and row["dtype"] == results["about"]["dtype"]


def judge(results: dict) -> list[str]:
    """What is missed, a sentence each. What was not asked for is not missed."""
    missed = []
    for direction, least in LEAST_MEAN.items():
        rows = of(results, direction)
        if rows:
            average = mean(ratio(row, "flash") for row in rows)
            if not average or average < least:
                missed.append(f"{direction}: geometric mean {number(average, 2)} of FlashAttention-2, not {least}")
        for row in rows:
            against = ratio(row, "flash")
            if not against or against < LEAST_RATIO:
                missed.append(f"{direction}, {title(row)}: {number(against, 2)} of FlashAttention-2, not {LEAST_RATIO}")
    for row in of(results, "decode"):
        share = bandwidths(row)[2]
        if is_judged(row, results) and (not share or share < LEAST_SHARE):
            missed.append(f"decode, {title(row)}: {number(share, 2)} of the copy bandwidth, not {LEAST_SHARE}")
    return missed


def title(row: dict) -> str:
    if row["direction"] == "decode":
        pages = f"pages of {row['page']}" if row["page"] else "contiguous"
        return f"d{row['head_dim']} {row['kind']} {row['keys']} keys {pages} {row['dtype']}"
    return f"d{row['head_dim']}{' causal' if row['causal'] else ''} {row['length']}"


def number(value: float | None, digits: int = 0) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def images(results: dict) -> list[str]:
    """What Kiln ran, each once, in the order of the tables: "KEY TARGET VARIANT"."""
    rows = [row for direction in ("forward", "backward", "decode") for row in of(results, direction)]
    return list(dict.fromkeys(image for row in rows for image in row.get("images", ())))


def numbers(row: dict, every: list[str]) -> str:
    """Which of the images a row ran, by their places in the list."""
    return " ".join(str(every.index(image) + 1) for image in row.get("images", ())) or "-"


def training_table(rows: list[dict], every: list[str]) -> list[list[str]]:
    """The head first. `every`: what `images` gives."""
    names = NAMES | (AGAINST if any("against" in row["milliseconds"] for row in rows) else {})
    others = [side for side in names if side != "kiln"]
    head = ["head_dim", "causal", "length", *names.values(), *(f"to {names[side]}" for side in others), "images"]
    body = [
        [
            str(row["head_dim"]), str(row["causal"]).lower(), str(row["length"]),
            *(number(teraflops(row, side)) for side in names),
            *(number(ratio(row, other), 2) for other in others), numbers(row, every),
        ]
        for row in rows
    ]  # fmt: skip
    for name, over in (("geometric mean", mean), ("least", least)):
        ratios = [number(over([ratio(row, other) for row in rows]), 2) for other in others]
        body.append([name, *[""] * (2 + len(names)), *ratios, ""])
    return [head, *body]


def least(values: Iterable[float | None]) -> float | None:
    return min((value for value in values if value), default=None)


def decoding_table(rows: list[dict], every: list[str]) -> list[list[str]]:
    head = ["keys", "cache", "head_dim", "heads", "page", "batch", "GB", "µs", "TB/s", "copy TB/s", "share", "images"]
    body = []
    for row in rows:
        cache, copy, share = bandwidths(row)
        took = milliseconds(row, "kiln")
        body.append([
            str(row["keys"]), row["dtype"], str(row["head_dim"]), row["kind"], str(row["page"] or "-"),
            str(row["batch"]), f"{row['bytes'] / 1e9:.2f}", number(took and took * 1000), number(cache, 2),
            number(copy, 2), number(share, 2), numbers(row, every),
        ])  # fmt: skip
    return [head, *body]


def plain(table: list[list[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*table)]
    return "\n".join("  ".join(f"{cell:>{width}}" for cell, width in zip(row, widths)) for row in table)


def piped(table: list[list[str]]) -> str:
    lines = [f"| {' | '.join(row)} |" for row in table]
    return "\n".join([lines[0], "|---" * len(table[0]) + "|", *lines[1:]])


def refusals(results: dict) -> list[str]:
    """A sentence for each reason, with all that it is the reason for."""
    found: dict[tuple[str, str, str], list[str]] = {}
    for row in results["rows"]:
        for side, why in row["refusals"].items():
            found.setdefault((row["direction"], side, why), []).append(title(row))
    return [
        f"{direction} of {(NAMES | AGAINST)[side]}, {'; '.join(of)}: {why}"
        for (direction, side, why), of in found.items()
    ]


def widest(results: dict) -> float:
    """The largest spread of a side's rounds."""
    spreads = [spread(row, side) for row in results["rows"] for side in row["milliseconds"]]
    return max((value for value in spreads if value is not None), default=0.0)


def clocks(results: dict) -> str:
    seen = sorted({entry["clocks.sm"] for entry in results["busy"] if entry}, key=lambda text: (len(text), text))
    return " to ".join(dict.fromkeys((seen[0], seen[-1]))) if seen else "unknown"


def tables(results: dict) -> list[tuple[str, list[list[str]]]]:
    """(heading, table) of everything that was measured."""
    found, every = [], images(results)
    for direction in ("forward", "backward"):
        if rows := of(results, direction):
            found.append((f"{direction.capitalize()}, TFLOP/s", training_table(rows, every)))
    rows = of(results, "decode")
    for heading, judged in (("Decoding", True), ("Decoding, for information", False)):
        if chosen := [row for row in rows if is_judged(row, results) is judged]:
            found.append((heading, decoding_table(chosen, every)))
    return found


def device_text(results: dict) -> str:
    """Where and with what it was measured."""
    about, gpu = results["about"], results["about"]["gpu"]
    return (
        f"{about['date']}: {gpu.get('name', 'a GPU')}, driver {gpu.get('driver_version', 'unknown')}, SM clock "
        f"{clocks(results)} under load (at most {gpu.get('clocks.max.sm', 'unknown')}), PyTorch {about['torch']} with "
        f"cuDNN {about['cudnn']}; release {about['release']}, sha256 of its manifest `{about['manifest']}`"
        f"{', of the other release `' + about['against'] + '`' if about.get('against') else ''}"
    )


def about_text(results: dict) -> str:
    about = results["about"]
    return f"{device_text(results)}; {about['dtype']}, tensors in memory as {LAYOUTS[about['layout']]}."


def text(results: dict) -> str:
    """What is printed."""
    parts = [about_text(results)]
    parts += [f"{heading}\n{plain(table)}" for heading, table in tables(results)]
    parts.append(f"rounds of one side differ by at most {widest(results):.1%}")
    late = [f"{row['direction']}, {title(row)}" for row in results["rows"] if not row["host_ahead"]]
    if late:
        parts.append("the host did not keep ahead of the device, so its time may be in: " + "; ".join(late))
    if lines := refusals(results):
        parts.append("\n".join(f"no figure: {line}" for line in lines))
    missed = judge(results)
    parts.append("\n".join(f"missed: {line}" for line in missed) if missed else "passed")
    return "\n\n".join(parts)


def wrapped(paragraph: str, width: int = 120) -> str:
    lines = [""]
    for word in paragraph.split():
        if lines[-1] and len(lines[-1]) + 1 + len(word) > width:
            lines.append("")
        lines[-1] += f" {word}" if lines[-1] else word
    return "\n".join(lines)


def markdown(results: dict, plot_name: str = "") -> str:
    """docs/measurements/attention-speed.md."""
    gpu = results["about"]["gpu"]
    parts = [
        f"# Attention: speed on {gpu.get('name', 'a GPU')}",
        wrapped("Measured by `benchmarks/attention/run.py` on " + about_text(results)),
        wrapped(
            "16,384 tokens, heads * head_dim = 2,048. All sides worked on the same tensors in the same run, in turns; "
            f"medians of {results['about']['rounds']} rounds, which differ by at most {widest(results):.1%}. TFLOP/s "
            "count 4 * length² * head_dim operations for each head, half of them if causal; backward, which was timed "
            "alone, 2.5 times as many. Kiln's forward writes the log-sum-exp. Decoding: a new row for each sequence, "
            "over a cache of a gigabyte or more, whose bytes are counted once; `copy` is a copy of 1 GiB in the same "
            "rounds, bytes read and written."
        ),
    ]
    if plot_name:
        parts.append(f"![TFLOP/s by shape]({plot_name})")
    for heading, table in tables(results):
        parts += [f"## {heading}", piped(table)]
    if lines := refusals(results):
        parts += ["## No figure", "\n".join(f"- {line}" for line in lines)]
    return "\n\n".join([*parts, "## Images", measured.listed(images(results))]) + "\n"


def plot(results: dict, path: Path) -> None:
    """TFLOP/s by shape as SVG.

    Raises:
        ImportError: there is no matplotlib.
    """
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams |= {"svg.hashsalt": "kiln", "svg.fonttype": "none"}  # equal figures give equal, small files
    from matplotlib import pyplot

    chosen = [(d, of(results, d)) for d in ("forward", "backward") if of(results, d)]
    figure, axes = pyplot.subplots(len(chosen), 1, figsize=(11, 3.6 * len(chosen)), squeeze=False, sharey=True)
    for axis, (direction, rows) in zip(axes[:, 0], chosen):
        for place, (side, name) in enumerate(NAMES.items()):
            heights = [teraflops(row, side) or 0 for row in rows]
            positions = [index + (place - 1) * 0.27 for index in range(len(rows))]
            bars = axis.bar(positions, heights, 0.25, label=name, color=COLORS[side])
            axis.bar_label(bars, [f"{h:.0f}" if h else "" for h in heights], fontsize=7, padding=1)
        labels = [f"d{r['head_dim']}{' causal' if r['causal'] else ''}\n{r['length'] // 1024}k" for r in rows]
        axis.set_xticks(range(len(rows)), labels, fontsize=8)
        axis.set_ylabel("TFLOP/s")
        axis.set_title(f"{direction}, {results['about']['dtype']}", fontsize=10, loc="left")
        axis.spines[["top", "right"]].set_visible(False)
    above = {"loc": "lower right", "bbox_to_anchor": (1, 1)}
    axes[0, 0].legend(frameon=False, ncols=len(NAMES), fontsize=8, **above)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})
    small_svg.shrink(path)
    pyplot.close(figure)
