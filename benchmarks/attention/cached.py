"""The figures of docs/measurements/prefill.md and latent.md: attention with a cache, in one run on a Hopper GPU.

    python3 benchmarks/attention/cached.py RELEASE RESULTS.json [--parts prefill,few,latent,splits] [--budget 5m]
    python3 benchmarks/attention/cached_page.py RESULTS.json                                     # the pages; no GPU

RELEASE is a tarball, an unpacked release or a folder of wheels. All sides of a row in turns, each result first compared
with fp32's. `prefill`: chunks of a prompt over a cache, beside `attn_fwd` on the same tensors. `few`: as few rows as
either of the algorithms of `attn_decode` is taken for. `latent`: decoding over keys of 576 columns whose first 512 are
the values. `splits`: decoding by the number of parts that keys are split into.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "v3python"))

import session  # noqa: E402
import torch  # noqa: E402
from cached_page import MADE_BY, PAGES_OF, PARTS, SPLITS, Cached  # noqa: E402

from kiln_bench import timing  # noqa: E402
from kiln_bench.attention.kiln import Kiln  # noqa: E402
from kiln_bench.attention.problem import SEED, WARM, CacheProblem, Prepared, dtype_of  # noqa: E402
from kiln_bench.attention.row import Rows  # noqa: E402
from kiln_bench.release.library import Libraries  # noqa: E402
from kiln_bench.shapes import Decoding  # noqa: E402

# Of a side in a round, however short the budget: the longest chunk takes 32 ms, and has to take part in each.
LEAST_TURN_MS = {"prefill": 40.0, "few": 20.0, "latent": 20.0, "splits": 20.0}
SAMPLED = 64  # rows at either end of a sequence, which are compared with fp32's
MOST_CACHES = 64


class Entry(NamedTuple):
    group: str
    part: str
    shape: Cached | Decoding


def entries(parts: list[str]) -> list[Entry]:
    return [Entry(part, "decoding" if part == "splits" else part, shape) for part in parts for shape in SHAPES[part]()]


def chunks() -> Iterator[Cached]:
    for rows, keys in ((512, 8192), (2048, 8192), (8192, 8192), (512, 65536), (2048, 65536), (8192, 65536)):
        yield Cached(128, 32, 8, 1, rows, keys)
    yield Cached(128, 32, 8, 1, 2048, 32768, causal=False)
    for head_dim in (64, 192, 256):
        for rows, keys in ((512, 32768), (2048, 8192), (2048, 32768)):
            yield Cached(head_dim, 32, 8, 1, rows, keys)
    yield Cached(128, 32, 8, 1, 2048, 8192, dtype="fp16")
    yield Cached(64, 32, 8, 1, 2048, 32768, dtype="fp16")


def few_rows() -> Iterator[Cached]:
    for batch, rows, keys in ((1, 160, 32768), (1, 224, 32768), (6, 64, 8192), (7, 64, 8192)):
        yield Cached(128, 32, 8, batch, rows, keys)


def latent() -> Iterator[Cached]:
    for heads in (16, 32, 64, 128):
        for batch, keys in ((64, 8192), (128, 4096), (4, 8192), (1, 4096)):
            yield Cached(576, heads, 1, batch, 1, keys, causal=False, head_dim_v=512)


def splits() -> Iterator[Decoding]:
    for batch in (1, 8, 64):
        for keys in (1024, 4096, 32768):
            if batch * keys <= 1 << 18:
                yield Decoding(128, 32, 8, batch, keys)


SHAPES: dict[str, Callable[[], Iterator[Any]]] = {
    "prefill": chunks, "few": few_rows, "latent": latent, "splits": splits
}  # fmt: skip


class Problem:
    """The tensors of a call; the caches lie once as they are and once on pages of each size, in random order.

    Attributes:
        q: [batch, heads, rows, head_dim], rows before heads in memory.
        caches: of each of several caches, which are used in turns, by the size of a page, 0 for none, keys and values;
            of latent keys, the values are their first columns.
        tables: int32, the pages of each sequence, by their size.
        used: int32, the keys of each sequence.
    """

    def __init__(self, shape: Cached, pages: tuple[int, ...], l2_bytes: int, device: str = "cuda") -> None:
        self.shape, self.device = shape, device
        self._draw = torch.Generator(device).manual_seed(SEED)
        self.q = self._drawn(shape.batch, shape.rows, shape.heads, shape.head_dim).transpose(1, 2)
        pieces = {page: shape.batch * shape.keys // page for page in pages}
        order = {page: torch.randperm(count, device=device, generator=self._draw) for page, count in pieces.items()}
        self.tables = {page: one.to(torch.int32).view(shape.batch, -1) for page, one in order.items()}
        # Chunks are multiplied for longer than their keys are read.
        count = math.ceil(WARM * l2_bytes / shape.bytes) if shape.rows == 1 else 1
        self.caches = [self._cache(order) for _ in range(min(MOST_CACHES, max(1, count)))]
        self.used = torch.full((shape.batch,), shape.keys, dtype=torch.int32, device=device)

    def _drawn(self, *sizes: int) -> torch.Tensor:
        return torch.randn(*sizes, dtype=dtype_of(self.shape.dtype), device=self.device, generator=self._draw)

    def _cache(self, order: dict[int, torch.Tensor]) -> dict[int, tuple[torch.Tensor, torch.Tensor]]:
        shape, found = self.shape, dict[int, tuple[torch.Tensor, torch.Tensor]]()
        plain = [self._drawn(shape.batch, shape.keys, shape.heads_kv, shape.head_dim) for _ in range(shape.caches)]
        for page in (0, *order):
            both = plain
            if page:
                both = [torch.empty_like(one).view(len(order[page]), page, *one.shape[2:]) for one in plain]
                for one, paged in zip(plain, both):
                    paged[order[page]] = one.view(paged.shape)
            keys, values = both[0].transpose(1, 2), both[-1].transpose(1, 2)
            found[page] = keys, values[..., : shape.width_v]
        return found

    def samples(self, number: int | str) -> list[tuple[dict[str, Any], dict[str, torch.Tensor]]]:
        """As those of kiln_bench.attention.problem: rows at both ends, of the first head of keys of the first sequence
        and the last of the last; of the cache of this number, for a word of the first."""
        shape, group, found = self.shape, self.shape.heads // self.shape.heads_kv, []
        keys, values = self.caches[number if isinstance(number, int) else 0][0]
        for batch, head in ((0, 0), (shape.batch - 1, shape.heads_kv - 1)):
            heads = slice(head * group, (head + 1) * group)
            for begin in dict.fromkeys((0, max(0, shape.rows - SAMPLED))):
                rows = slice(begin, min(begin + SAMPLED, shape.rows))
                right = exact(self.q[batch, heads, rows], keys[batch, head], values[batch, head], self._first(begin))
                found.append(({"out": (batch, heads, rows)}, {"out": right}))
        return found

    def _first(self, row: int) -> int | None:
        """The last key that a row sees, if it does not see all."""
        return self.shape.keys - self.shape.rows + row if self.shape.causal else None


def exact(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, last: int | None) -> torch.Tensor:
    """Attention in fp32, [heads, rows, columns]; `last`: the last key that the first row sees, the second one more."""
    scores = q.float() @ k.float().T / q.shape[-1] ** 0.5
    if last is not None:
        rows, keys = (torch.arange(n, device=q.device) for n in scores.shape[1:])
        scores.masked_fill_(keys[None] > rows[:, None] + last, -torch.inf)
    return torch.softmax(scores, -1) @ v.float()


class Way:
    """Kiln, called in a way.

    Args:
        page: 0 for a contiguous cache.
        algorithm: "forward" is `attn_fwd`. "decode": that algorithm of `attn_decode`, also where the other is taken,
            since that one takes no negative scale: the queries are negative as well, and the result is the same.
            "prefill": that one, of one part. "": what is taken.
    """

    def __init__(self, name: str, label: str, libraries: Libraries, page: int = 0, algorithm: str = "") -> None:
        self.name, self.label, self._libraries, self._page, self._algorithm = name, label, libraries, page, algorithm

    def training(self, problem: Problem, part: str) -> Prepared:
        return self.decoding(problem)

    def decoding(self, problem: Problem) -> Prepared:
        shape = problem.shape
        given: dict[str, Any] = {"q": problem.q, "causal": int(shape.causal)}
        given["out"] = out = torch.full_like(problem.q[..., : shape.width_v], torch.nan)
        if self._algorithm == "forward":
            entry, names = "attn_fwd", ("k", "v")
            given["bottom_right"] = int(shape.causal)
        else:
            entry, names = "attn_decode", ("k_cache", "v_cache")
            given |= {"seqused_k": problem.used, "max_seqlen_k": shape.keys}
            given["block_table"] = problem.tables.get(self._page)
        if self._algorithm == "decode":
            given |= {"q": -problem.q, "sm_scale": -(shape.head_dim**-0.5)}
        given["splits"] = 1 if self._algorithm == "prefill" else None
        launches = [
            self._libraries.prepare(entry, **given, **dict(zip(names, cache[self._page]))) for cache in problem.caches
        ]
        first = launches[0]
        return Prepared(launches, lambda: {"out": out}, first.images, first.variants, first.call)


class Run:
    """Makes rows.

    Args:
        look: is called while the device works.
    """

    def __init__(
        self, libraries: Libraries, look: Callable[[], None], rounds: int, device: str = "cuda",
        measured: Callable[..., timing.Times] = timing.measured,
    ) -> None:  # fmt: skip
        def way(name: str, label: str, *more: Any) -> Way:
            return Way(name, label, libraries, *more)

        taken = way("kiln", "Kiln")
        sides: dict[str, list[Any]] = {
            part: [taken, *(way(f"pages-{page}", f"Kiln, pages of {page}", page) for page in pages)]
            for part, pages in PAGES_OF.items()
        }
        decode = way("decode", "decode", 0, "decode")
        sides["prefill"] += [way("forward", "forward", 0, "forward"), decode]
        sides["few"] += [way("prefill", "prefill", 0, "prefill"), decode]
        ways = {f"splits-{count}": {"splits": count} for count in SPLITS} | {"invariant": {"batch_invariant": 1}}
        sides["splits"] = [Kiln("kiln", "Kiln", libraries)]
        sides["splits"] += [Kiln(name, name, libraries, {"attn_decode": more}) for name, more in ways.items()]
        self.sides = {side.name: side.label for each in sides.values() for side in each}
        self._rows = {part: Rows(each, rounds, device, measured, look) for part, each in sides.items()}
        self._device = device

    def problem(self, entry: Entry, before: Any) -> Problem | CacheProblem:
        l2_bytes = torch.cuda.get_device_properties().L2_cache_size
        if isinstance(entry.shape, Decoding):
            return CacheProblem(entry.shape, l2_bytes, self._device)
        return Problem(entry.shape, PAGES_OF[entry.group], l2_bytes, self._device)

    def row(self, entry: Entry, problem: Any, turn_ms: session.TurnMs) -> dict[str, Any]:
        makes = self._rows[entry.group]

        def turn(sides: int) -> float:
            return max(LEAST_TURN_MS[entry.group], turn_ms(sides))

        if entry.group in ("latent", "splits"):
            made = makes.decoding(problem, turn)
        else:
            made = makes.training(problem, entry.part, turn)
        return made.as_dict() | {"part": entry.part, "group": entry.group}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    session.add_arguments(parser, PARTS, "5m")
    words = parser.parse_args()
    session.check(parser, words, PARTS)

    def makes_of(libraries: Libraries, look: Callable[[], None]) -> Run:
        return Run(libraries, look, words.rounds)

    return session.ended(parser, lambda: session.run(words, MADE_BY, (), entries(words.parts), 0, makes_of))


if __name__ == "__main__":
    sys.exit(main())
