"""The pages of what cached.py measured: prefill.md, and latent.md for latent keys and numbers of splits.

    python3 benchmarks/attention/cached_page.py RESULTS.json [FOLDER]                                        # no GPU

FOLDER is docs/measurements. A page is written if the results have a row of it. The calls go to FOLDER/calls, so that
docs/measured.py can look them up again. Exit code 1: a row was not measured, or is wrong; the page is written all the
same, and says so.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "v3python"), str(ROOT / "docs")]

import measured  # noqa: E402
from page import WIDE, uncertain, wrapped  # noqa: E402

from kiln_bench import kept, report  # noqa: E402
from kiln_bench.report import Results, Row, number, piped  # noqa: E402
from kiln_bench.shapes import Decoding, spelled  # noqa: E402
from kiln_recipe.console.appear import appear  # noqa: E402
from kiln_recipe.dtypes import DTYPE_BYTES  # noqa: E402
from kiln_recipe.errors import KilnError  # noqa: E402

MADE_BY = "benchmarks/attention/cached.py"
FOLDER = ROOT / "docs/measurements"
# By part the sizes of pages besides a contiguous cache.
PAGES_OF: Mapping[str, tuple[int, ...]] = {"prefill": (64, 16), "few": (), "latent": (64, 1), "splits": ()}
PARTS = tuple(PAGES_OF)
SPLITS = (4, 8, 16, 32)
Column = tuple[str, Callable[[Row], str]]


@dataclass(frozen=True)
class Cached:
    """Rows of queries for each sequence, over `keys` cached ones, of which the last row sees all.

    Attributes:
        causal: whether each row before the last sees one key less.
        head_dim_v: of latent keys, how many of their first columns are the values; 0: values are cached besides.
    """

    head_dim: int
    heads: int
    heads_kv: int
    batch: int
    rows: int
    keys: int
    causal: bool = True
    dtype: str = "bf16"
    head_dim_v: int = 0

    @property
    def width_v(self) -> int:
        return self.head_dim_v or self.head_dim

    @property
    def caches(self) -> int:
        """Tensors that are cached."""
        return 1 if self.head_dim_v else 2

    @property
    def bytes(self) -> int:
        """Of the cache."""
        elements = self.caches * self.batch * self.heads_kv * self.keys * self.head_dim
        return elements * DTYPE_BYTES[self.dtype]

    @property
    def operations(self) -> float:
        """Of the products that rows see."""
        hidden = self.rows * (self.rows - 1) / 2 if self.causal else 0
        pairs = self.batch * self.heads * (float(self.rows) * self.keys - hidden)
        return 2.0 * pairs * (self.head_dim + self.width_v)

    def __str__(self) -> str:
        width = f"d{self.head_dim}" + (f"/{self.head_dim_v}" if self.head_dim_v else "")
        heads = f"{self.heads}:{self.heads_kv} heads"
        mask, dtype = "" if self.causal or self.rows == 1 else "no mask", self.dtype if self.dtype != "bf16" else ""
        rows = "" if self.rows == 1 else f"{spelled(self.rows)} rows"
        return ", ".join(
            filter(None, (width, heads, rows, f"{spelled(self.keys)} keys", f"batch {self.batch}", mask, dtype))
        )


def shape(row: Row) -> Cached | Decoding:
    return (Decoding if row["group"] == "splits" else Cached)(**row["shape"])


def group(results: Results, name: str) -> list[Row]:
    return [row for row in results["rows"] if row["group"] == name]


def cell(row: Row, side: str, figure: Callable[[float], str]) -> str:
    """Of milliseconds; why there is no figure, in a word."""
    why = next((kind for kind in ("wrong", "refused") if side in row[kind]), None)
    took = report.median(row, side)
    return why or (figure(took) + uncertain(row, side) if took else "-")


def ratio(row: Row, side: str, other: str) -> str:
    return report.HOST if report.is_unfair(row, side, other) else number(report.ratio(row, side, other), 2)


def is_prefill(row: Row, side: str) -> bool:
    """Whether the algorithm for many rows served a side's call."""
    return any("/attn_prefill" in image for image in row["images"].get(side, ()))


def rates(side: str) -> Callable[[Row], str]:
    """TFLOP/s; of Kiln's own choice, whether that is the algorithm for few rows."""

    def made(row: Row) -> str:
        text = cell(row, side, lambda took: f"{shape(row).operations / took / 1e9:.0f}")  # type: ignore[union-attr]
        is_choice = side.startswith(("kiln", "pages")) and row["milliseconds"].get(side)
        return f"{text} (decode)" if is_choice and not is_prefill(row, side) else text

    return made


def microseconds(side: str) -> Callable[[Row], str]:
    return lambda row: cell(row, side, lambda took: f"{took * 1000:.1f}")


def table(rows: Sequence[Row], columns: Iterable[Column]) -> str:
    columns = [*columns]
    head = ["call", *(title for title, _ in columns)]
    return piped(head, [[str(shape(row)), *(made(row) for _, made in columns)] for row in rows])


def shares(rows: Sequence[Row], side: str, other: str) -> str:
    """ "0.98 (0.92 to 1.02)": the geometric mean, and from the least to the largest."""
    known = [value for row in rows if (value := report.ratio(row, side, other))]
    if not known:
        return "no figure"
    return f"{report.mean(known):.2f} ({min(known):.2f} to {max(known):.2f})"


def numbered(rows: Sequence[Row]) -> tuple[list[str], Callable[[Row], str]]:
    """What Kiln ran, each image once; and what gives the places of a row's, those of its first side first."""
    every = list(dict.fromkeys(image for row in rows for side in row["images"].values() for image in side))

    def places(row: Row) -> str:
        return " ".join(dict.fromkeys(str(every.index(i) + 1) for side in row["images"].values() for i in side)) or "-"

    return every, places


def notes(rows: Sequence[Row]) -> list[str]:
    """Why there is no figure, and what was timed otherwise."""
    found = [f"not measured: {shape(row)}: {row['skipped']}" for row in rows if row.get("skipped")]
    for kind in ("wrong", "refused"):
        found += [f"{kind}: {shape(row)}, {side}: {why}" for row in rows for side, why in row[kind].items()]
    found += [f"no CUDA graphs: {shape(row)}: {why}" for row in rows for why in row.get("not_captured", {}).values()]
    if count := sum(bool(row.get("graphs")) for row in rows):
        found.append(f"{count} rows of short calls were timed in CUDA graphs, all sides alike")
    return found


def begin(results: Results, title: str) -> list[str]:
    about = f"Measured by `{MADE_BY}`. {'. '.join(report.about(results))}."
    return [f"# {title} on {results['about']['gpu']}", wrapped(about), wrapped(
        "Every result was first compared with fp32's. A side's turn in a round is short, so that one which works the "
        "GPU to its power limit may have clocks that the side before it left. ±: half of what the quartiles of a "
        f"side's rounds are apart, where that is more than {WIDE:.0%}."
    )]  # fmt: skip


def end(rows: Sequence[Row], every: Sequence[str]) -> list[str]:
    lines = notes(rows)
    said = ["## Notes", "\n".join(f"- {line}" for line in lines)] if lines else []
    return [*said, "## Images", measured.listed(every)]


def prefill(results: Results) -> str:
    chunks, few = group(results, "prefill"), group(results, "few")
    every, places = numbered([*chunks, *few])
    columns: list[Column] = [
        ("forward", rates("forward")), ("prefill", rates("kiln")),
        *((f"prefill, {page}", rates(f"pages-{page}")) for page in PAGES_OF["prefill"]), ("decode", rates("decode")),
        ("prefill to forward", lambda row: ratio(row, "kiln", "forward")),
        ("prefill to decode", lambda row: ratio(row, "kiln", "decode")), ("images", places),
    ]  # fmt: skip

    def taken(row: Row) -> str:
        return "-" if "kiln" not in row["images"] else "prefill" if is_prefill(row, "kiln") else "decode"

    of_pages = "; ".join(
        f"with pages of {page} {shares(chunks, f'pages-{page}', 'kiln')} of that" for page in PAGES_OF["prefill"]
    )
    of_few: list[Column] = [
        ("prefill", rates("prefill")), ("decode", rates("decode")), ("taken", taken), ("images", places)
    ]  # fmt: skip
    parts = [
        *begin(results, "Chunks of a prompt over a cache"),
        wrapped(
            "The cache holds all keys, under a causal mask with the last row at the last key unless a row says "
            "otherwise; tensors are laid out as flash-attention has them, [.., keys, heads, columns]. TFLOP/s of the "
            "products that rows see. *forward* is `attn_fwd` on the same tensors, *prefill* and *decode* are the "
            "algorithms of `attn_decode`: on a contiguous cache, and on pages of 64 and of 16 keys in random order. "
            "*decode* is asked for by negative queries and a negative scale, which the other does not take."
        ),
        table(chunks, columns),
        wrapped(
            f"Geometric means, and from the least to the largest: prefill has {shares(chunks, 'kiln', 'forward')} of "
            f"the forward's speed, contiguous; {of_pages}; and {shares(chunks, 'kiln', 'decode')} of decode's."
        ),
    ]
    if few:
        parts += ["Few rows, contiguous, around the place from which on prefill is taken:", table(few, of_few)]
    return "\n\n".join([*parts, *end([*chunks, *few], every)]) + "\n"


def latent(results: Results) -> str:
    rows, split = group(results, "latent"), group(results, "splits")
    every, places = numbered([*rows, *split])

    def terabytes(row: Row, side: str) -> float | None:
        took = report.median(row, side)
        amount = row.get("copied_bytes", 0) if side == report.COPY else shape(row).bytes
        return amount / took / 1e9 if took else None

    def of_copy(row: Row) -> str:
        if report.is_unfair(row, "kiln", report.COPY):
            return report.HOST
        mine, theirs = terabytes(row, "kiln"), terabytes(row, report.COPY)
        return number(mine / theirs if mine and theirs else None, 2)

    columns: list[Column] = [
        ("contiguous, µs", microseconds("kiln")),
        *((f"pages of {page}, µs", microseconds(f"pages-{page}")) for page in PAGES_OF["latent"]),
        ("TB/s", lambda row: number(terabytes(row, "kiln"), 2)),
        ("copy, TB/s", lambda row: number(terabytes(row, report.COPY), 2)), ("share", of_copy),
        ("TFLOP/s", rates_alone), ("images", places),
    ]  # fmt: skip
    of_splits: list[Column] = [
        ("`splits` 0, µs", microseconds("kiln")), *((str(count), microseconds(f"splits-{count}")) for count in SPLITS),
        ("`batch_invariant`", microseconds("invariant")),
        ("that to 0", lambda row: ratio(row, "invariant", "kiln")), ("images", places),
    ]  # fmt: skip
    parts = begin(results, "Decoding: latent keys and numbers of splits")
    if rows:
        parts += ["## Latent keys", wrapped(
            "576 columns of which 512 are values, one key head, a new row for each sequence; rates on a contiguous "
            "cache, beside a copy of a gigabyte in the same rounds. Short calls are over different caches by turns, so "
            "that each is read from memory; in CUDA graphs PyTorch's copies are slower."
        ), table(rows, columns)]  # fmt: skip
    if split:
        parts += ["## Numbers of splits", wrapped(
            "What a call costs whose bits do not depend on its batch: with `splits` given, or `batch_invariant`, "
            "beside `splits` 0, the library's choice. Contiguous caches."
        ), table(split, of_splits)]  # fmt: skip
    return "\n\n".join([*parts, *end([*rows, *split], every)]) + "\n"


def rates_alone(row: Row) -> str:
    return cell(row, "kiln", lambda took: f"{shape(row).operations / took / 1e9:.0f}")  # type: ignore[union-attr]


PAGES: Mapping[str, tuple[tuple[str, ...], Callable[[Results], str]]] = {
    "prefill": (("prefill", "few"), prefill), "latent": (("latent", "splits"), latent)
}  # fmt: skip


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with appear(path) as fresh:
        fresh.write_text(text)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("folder", type=Path, nargs="?", default=FOLDER)
    words = parser.parse_args()
    try:
        results = kept.read(words.results, MADE_BY, 1, f"what {MADE_BY} wrote", f"has no results of {MADE_BY}")
    except KilnError as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return error.exit_code
    missed: list[Any] = [] if results["rows"] else ["the results have no row"]
    for name, (parts, made) in PAGES.items():
        rows = [row for row in results["rows"] if row["group"] in parts]
        if not rows:
            continue
        write(words.folder / f"{name}.md", made(results))
        write(words.folder / "calls" / f"{name}.json", measured.kept_calls({**results, "rows": rows}))
        missed += [f"{shape(row)}: no figure" for row in rows if not row["milliseconds"].get("kiln")]
        missed += [f"{shape(row)}: wrong: {', '.join(row['wrong'])}" for row in rows if row["wrong"]]
    print("\n".join(f"missed: {line}" for line in missed) or "all was measured, and right")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
