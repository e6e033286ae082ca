"""All figures of docs/measurements/attention-speed.md, in one run on a Hopper GPU.

    python3 benchmarks/attention/speed.py RELEASE RESULTS.json [--parts shapes,calls,fp8,decoding] [--budget 5m]
                                       [--layout rows-first|heads-first|both]
    python3 benchmarks/attention/page.py RESULTS.json                                  # the page and the plot; no GPU

RELEASE is a tarball, an unpacked release or a folder of wheels. RESULTS.json has the form of what `kiln bench --json`
writes, so that `kiln bench --from` shows it too; it is written anew after each row. Besides the sides of `kiln bench`,
in turns with them and on the same tensors: Kiln in another way (WAYS, fp8), the call that a row is set against, and a
product of square matrices. --layout is of the tensors of `shapes` and `fp8`: rows-first (the default), as PyTorch's
models have them after a projection, [batch, rows, heads, head_dim] transposed; heads-first, [batch, heads, rows,
head_dim] without gaps; or each row in both. `calls` are rows first.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "v3python"))

import session  # noqa: E402
import torch  # noqa: E402

from kiln_bench import measure, shapes, timing  # noqa: E402
from kiln_bench.attention import peers, reference  # noqa: E402
from kiln_bench.attention import problem as problems  # noqa: E402
from kiln_bench.attention.kiln import Kiln  # noqa: E402
from kiln_bench.attention.problem import CacheProblem, Prepared, Problem  # noqa: E402
from kiln_bench.attention.row import Rows  # noqa: E402
from kiln_bench.release.library import Libraries  # noqa: E402
from kiln_bench.shapes import Decoding, Training  # noqa: E402

PARTS = ("shapes", "calls", "fp8", "decoding", "long", "short")  # the last two: docs/measurements/decoding.md
PEERS = ("flash", "cudnn")
# Kiln in another way, by a row's part: the side's name, the entry and its parameters.
WAYS = {
    "forward": ("invariant", "attn_fwd", {"batch_invariant": 1}),
    "backward": ("deterministic", "attn_bwd", {"deterministic": 1}),
    "decoding": ("invariant", "attn_decode", {"batch_invariant": 1}),
}  # fmt: skip
PRODUCT = 8192  # rows and columns of the matrices
TOKENS, WIDTH = 16384, 2048
MIXED = (8192, 128, 2048, 512, 4096, 256, 1024, 128)
E4M3 = torch.float8_e4m3fn


class Entry(NamedTuple):
    """A row to be made. `group`: one of PARTS. `plain`: the call that it is set against."""

    group: str
    part: str
    shape: Training | Decoding
    plain: Training | None = None


def training(head_dim: int, length: int, **more: object) -> Training:
    heads = WIDTH // head_dim
    given = {"head_dim_v": head_dim, "heads": heads, "heads_kv": heads, "batch": TOKENS // length, **more}
    return Training(head_dim=head_dim, length=length, **given)  # type: ignore[arg-type]


def calls() -> Iterator[tuple[Training, Training]]:
    """Calls that ask for more, and beside each the same call without that. What sequences of several lengths are set
    against has one length and about as many products; 192 columns with values of 128, a head of 128."""
    for length in (2048, 8192):
        plain = training(128, length, heads=32, heads_kv=32, causal=True, rows_first=True)
        yield replace(plain, heads_kv=8), plain
    for causal in (False, True):
        plain = training(128, 5376, batch=3, causal=causal, rows_first=True)
        yield replace(plain, length=max(MIXED), lengths=MIXED, batch=1), plain
    plain = training(128, 16384, causal=True, rows_first=True)
    yield replace(plain, window=4096), plain
    for plain in (
        training(64, 8192, heads=64, heads_kv=8, causal=True, rows_first=True),
        training(128, 8192, heads=32, heads_kv=8, causal=True, rows_first=True),
    ):
        yield replace(plain, sinks=True), plain
    for causal in (False, True):
        plain = training(128, 8192, causal=causal, rows_first=True)
        yield replace(plain, head_dim=192), plain
    plain = training(256, 8192, heads=16, heads_kv=8, causal=True, rows_first=True)
    yield replace(plain, softcap=50), plain


def long_contexts() -> Iterator[Decoding]:
    """Over caches of about a gigabyte."""
    for keys in (32768, 2048):
        for cache_dtype in ("bf16", "fp8e4m3"):
            for head_dim in (64, 128):
                for heads, heads_kv in ((32, 32), (64, 8)):
                    for page in (0, 16, 256):
                        one = Decoding(head_dim, heads, heads_kv, 1, keys, page, cache_dtype=cache_dtype)
                        yield replace(one, batch=-(-(10**9) // one.bytes))


def entries(parts: list[str], layout: str) -> list[Entry]:
    """The rows of a run: layouts of a shape one after the other, so that the clocks are about the same."""
    found, layouts = list[Entry](), shapes.LAYOUTS[layout]
    for head_dim in (64, 128, 256):
        for causal in (False, True):
            for length in (512, 1024, 2048, 4096, 8192, 16384):
                for rows_first in layouts:
                    shape = training(head_dim, length, causal=causal, rows_first=rows_first)
                    found += [Entry("shapes", part, shape) for part in ("forward", "backward")]
    for shape, plain in calls():
        found += [Entry("calls", part, shape, plain) for part in ("forward", "backward")]
    for head_dim in (64, 128):
        for causal in (False, True):
            for length in (1024, 4096, 16384):
                for rows_first in layouts:
                    shape = training(head_dim, length, causal=causal, rows_first=rows_first)
                    found.append(Entry("fp8", "forward", shape))
    for batch in (1, 8, 64):
        for keys in (1024, 4096, 32768):
            found.append(Entry("decoding", "decoding", Decoding(128, 32, 8, batch, keys)))
    found += [Entry("long", "decoding", shape) for shape in long_contexts()]
    for head_dim, heads, heads_kv in ((128, 32, 8), (64, 64, 8), (128, 32, 32)):
        for batch in (1, 4, 8):
            for keys in (512, 1024, 2048, 4096):
                found.append(Entry("short", "decoding", Decoding(head_dim, heads, heads_kv, batch, keys)))
    return [entry for entry in found if entry.group in parts]


class Fp8:
    """A release's forward of fp8, with a scale for each batch and key head."""

    name, label = "fp8", "Kiln, fp8"

    def __init__(self, libraries: Libraries) -> None:
        self._libraries = libraries

    def training(self, problem: Problem, part: str) -> Prepared:
        shape = problem.shape
        out = torch.full_like(problem.dout, torch.nan)
        lse = torch.full((shape.batch, shape.heads, shape.rows), torch.nan, dtype=torch.float32, device=problem.device)
        given = {name: getattr(problem, name).to(E4M3) for name in "qkv"}
        given |= {f"{name}_descale": torch.ones(shape.batch, shape.heads_kv, device=problem.device) for name in "qkv"}
        launch = self._libraries.prepare("attn_fwd_fp8", **given, out=out, lse=lse, causal=int(shape.causal))
        return Prepared([launch], lambda: {"out": out}, launch.images, launch.variants, launch.call)

    def decoding(self, problem: CacheProblem) -> Prepared:
        raise peers.NotAsked("it has no cache")


class Run:
    """Makes rows.

    Args:
        look: is called while the device works.
    """

    def __init__(self, libraries: Libraries, look: Callable[[], None], rounds: int) -> None:
        kiln = Kiln("kiln", "Kiln", libraries)
        others = peers.there(list(PEERS))[0]
        self.sides = {side.name: side.label for side in (kiln, *others)}
        self._kiln, self._beside = kiln, dict[str, timing.Work]()
        one = torch.randn(PRODUCT, PRODUCT, dtype=torch.bfloat16, device="cuda")
        product = torch.empty_like(one)
        self._product = lambda: torch.mm(one, one, out=product)
        ways = {part: Kiln(name, name, libraries, {entry: more}) for part, (name, entry, more) in WAYS.items()}

        def rows(*sides: object) -> Rows:
            return Rows(sides, rounds, measured=self._measured, while_busy=look)  # type: ignore[arg-type]

        self._rows = {part: rows(kiln, way, *(() if part == "decoding" else others)) for part, way in ways.items()}
        self._fp8, self._alone = rows(kiln, Fp8(libraries), *others), rows(kiln)
        small = one[0, :1].clone()
        self._launch = lambda: small.add_(1)  # of a kernel of one block

    def problem(self, entry: Entry, before: Problem | CacheProblem | None) -> Problem | CacheProblem:
        """The tensors of a row: those of the row before it if they are the same. All sides of fp8's rows have what e4m3
        can say."""
        if isinstance(entry.shape, Decoding):
            return CacheProblem(entry.shape, torch.cuda.get_device_properties().L2_cache_size)
        if entry.group != "fp8" and before is not None and before.shape == entry.shape:
            return before
        problem = Problem(entry.shape)
        for name in "qkv" if entry.group == "fp8" else "":
            setattr(problem, name, getattr(problem, name).to(E4M3).to(torch.bfloat16))
        return problem

    def row(self, entry: Entry, problem: Problem | CacheProblem, turn_ms: Callable[[int], float]) -> dict:
        self._beside = {}
        if isinstance(problem, CacheProblem):
            if entry.group == "short":
                self._beside["launch"] = self._launch
            makes = self._rows["decoding"] if entry.group == "decoding" else self._alone
            return makes.decoding(problem, turn_ms).as_dict() | {"group": entry.group}
        self._beside["product"] = self._product
        if entry.plain:
            self._beside["plain"] = self._checked(entry.plain, entry.part)
        made = (self._fp8 if entry.group == "fp8" else self._rows[entry.part]).training(problem, entry.part, turn_ms)
        plain = {"plain": shapes.as_row(entry.plain)} if entry.plain else {}
        return made.as_dict() | {"group": entry.group, "product": 2 * PRODUCT**3} | plain

    def _checked(self, shape: Training, part: str) -> timing.Work:
        """A call of Kiln's with tensors of its own, if it is right."""
        problem = Problem(shape)
        prepared = self._kiln.training(problem, part)
        prepared.run()
        off = problems.wrongness(prepared.results(), problem.samples(part))
        if not off <= reference.LARGEST_ERROR:
            raise RuntimeError(f"{part}, {shape}: its result differs from fp32's by {off:.2g}")
        return prepared.run

    def _measured(self, works: Mapping[str, timing.Work], *others: object) -> timing.Times:
        return timing.measured({**works, **self._beside}, *others)  # type: ignore[arg-type]


def run(words: argparse.Namespace) -> bool:
    """Whether all rows were measured, and right."""

    def makes_of(libraries: Libraries, look: Callable[[], None]) -> Run:
        return Run(libraries, look, words.rounds)

    return session.run(words, measure.MADE_BY, PEERS, entries(words.parts, words.layout), 2, makes_of)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    session.add_arguments(parser, PARTS, "5m")
    parser.add_argument("--layout", choices=tuple(shapes.LAYOUTS), default=shapes.LAYOUT)
    words = parser.parse_args()
    session.check(parser, words, PARTS)
    return session.ended(parser, lambda: run(words))


if __name__ == "__main__":
    sys.exit(main())
