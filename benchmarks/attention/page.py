"""The page and the plot of attention's speed, of what `kiln bench` measured; and what the figures miss.

    python3 benchmarks/attention/page.py RESULTS.json [PAGE.md]       # what `kiln bench --json` wrote; no GPU
    python3 benchmarks/attention/page.py RELEASE [PAGE.md]            # measures it first, by `kiln bench`

PAGE.md is docs/measurements/attention-speed.md; the plot, which README.md shows, lies beside it. Judged (exit code 1 if
one is missed): LEAST, and decoding over JUDGED_KEYS keys of the call's own dtype.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "v3python"), str(ROOT / "docs")]

import measured  # noqa: E402

from kiln_bench import plot, report, shapes  # noqa: E402
from kiln_recipe.console.appear import appear  # noqa: E402

PAGE = ROOT / "docs/measurements/attention-speed.md"
SIDES = ("flash", "cudnn")
# By part and side: the geometric mean of how many times as fast Kiln is, and the least.
LEAST = {
    ("forward", "cudnn"): (1.10, 1.0), ("forward", "flash"): (2.0, 1.0),
    ("backward", "cudnn"): (1.05, 0.95), ("backward", "flash"): (1.2, 1.0),
}  # fmt: skip
LEAST_SHARE, JUDGED_KEYS = 0.9, 32768  # of the bandwidth of a copy


def judge(results: report.Results) -> list[str]:
    """What is missed, a sentence each. What was not measured is not missed."""
    (first, *_), missed = report.ours(results), []
    for (part, side), (average, least) in LEAST.items():
        ratios = {str(shapes.of_row(row)): report.ratio(row, first, side) for row in report.of(results, part)}
        name = report.labels(results).get(side, side)
        known = {title: ratio for title, ratio in ratios.items() if ratio is not None}
        mean = report.mean(known.values())
        if mean is not None and mean < average:
            missed.append(f"{part}: geometric mean {mean:.2f} of {name}, not {average}")
        missed += [f"{part}, {t}: {ratio:.2f} of {name}, not {least}" for t, ratio in known.items() if ratio < least]
    for row in report.of(results, "decoding"):
        shape, share = shapes.of_row(row), report.beside(row, first, report.COPY)
        is_judged = shape.keys == JUDGED_KEYS and shape.cache_dtype == shape.dtype
        if is_judged and share is not None and share < LEAST_SHARE:
            missed.append(f"decoding, {shape}: {share:.2f} of the copy bandwidth, not {LEAST_SHARE}")
    return missed + report.wrong(results)


def images(results: report.Results) -> list[str]:
    """What Kiln ran, each once, in the order of the tables: "KEY TARGET VARIANT"."""
    (first, *_), parts = report.ours(results), ("forward", "backward", "decoding")
    rows = [row for part in parts for row in report.of(results, part)]
    return list(dict.fromkeys(image for row in rows for image in row["images"].get(first, ())))


def wrapped(paragraph: str, width: int = 120) -> str:
    lines = [""]
    for word in paragraph.split():
        if lines[-1] and len(lines[-1]) + 1 + len(word) > width:
            lines.append("")
        lines[-1] += f" {word}" if lines[-1] else word
    return "\n".join(lines)


def markdown(results: report.Results, plot_name: str) -> str:
    (first, *_), every = report.ours(results), images(results)

    def numbers(row: report.Row) -> str:
        return " ".join(str(every.index(image) + 1) for image in row["images"].get(first, ())) or "-"

    about = report.about(results)
    parts = [
        f"# Attention: speed on {results['about']['gpu']}",
        wrapped(f"Measured by `kiln bench`. {'. '.join(about)}."),
        wrapped(
            "TFLOP/s count 4 * length² * head_dim operations for each head, half of them if causal; backward, which "
            "was timed alone, 2.5 times as many. Kiln's forward writes the log-sum-exp. Every result was first "
            "compared with fp32's. Decoding: a new row for each sequence, over a cache whose bytes are counted once; "
            "`copy` is a copy of 1 GiB in the same rounds, bytes read and written."
        ),
        f"![Speed by shape]({plot_name})",
    ]
    for part in ("forward", "backward", "decoding"):
        head, body = report.device_table(results, part, {"images": numbers}, for_people=False)
        if body:
            parts += [f"## {part.capitalize()}, {report.UNITS[part]}", report.piped(head, body)]
    if lines := report.notes(results):
        parts += ["## Notes", "\n".join(f"- {line}" for line in lines)]
    return "\n\n".join([*parts, "## Images", measured.listed(every)]) + "\n"


def measure(release: str, kept: Path) -> None:
    """By the command that users have."""
    words = ["--only", "forward,backward,decoding", "--sides", ",".join(SIDES), "--json", str(kept)]
    subprocess.run([sys.executable, "-m", "kiln_bench", release, *words], cwd=ROOT / "v3python", check=True)


def main() -> int:
    if not sys.argv[1:] or len(sys.argv) > 3 or sys.argv[1].startswith("-"):
        print(__doc__, file=sys.stderr)
        return 2
    source, page = Path(sys.argv[1]).absolute(), Path(sys.argv[2] if sys.argv[2:] else PAGE)
    with tempfile.TemporaryDirectory() as folder:
        if source.suffix != ".json":
            measure(str(source), Path(folder) / "results.json")
            source = Path(folder) / "results.json"
        results = report.read(source)
    picture = page.with_suffix(".svg")
    plot.write(results, picture)
    with appear(page) as fresh:
        fresh.write_text(markdown(results, picture.name))
    missed = judge(results)
    print("\n".join(f"missed: {line}" for line in missed) or "passed")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
