"""Calls of flash_attn_with_kvcache, drawn at random, and whether what they give and write is right."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import torch
from flash_oracle import Options, attend, compare, turned
from torch import Tensor

from kiln.torch import flash_attn


@dataclass(frozen=True)
class Case:
    """A call.

    Attributes:
        used: how many keys each sequence's cache has; None: all of `room`, and the call does not say so.
        alike: `used` is one number, given as such.
        room: how many keys a sequence's cache has room for.
        new: rows that are appended; 0: none are given.
        page: keys in a page, if there are pages.
        others: batches of the cache beyond those that the call has, whose numbers are then given.
        leftpad: keys that are not seen, of each sequence; None: not given.
        turned: width of the rotary embedding; 0: none.
    """

    dtype: torch.dtype
    rows: int
    used: tuple[int, ...] | None
    alike: bool
    batch: int
    room: int
    new: int
    heads: int
    heads_kv: int
    width: int
    options: Options
    page: int | None
    others: int
    leftpad: tuple[int, ...] | None
    turned: int
    interleaved: bool
    splits: int
    with_lse: bool
    seed: int


def draw(dtype: torch.dtype, seed: int, widths: list[int], room: int) -> Case:
    """The case of a seed."""
    rng = random.Random(f"{dtype} {seed}")
    batch, heads_kv, width = rng.randint(1, 3), rng.randint(1, 2), rng.choice(widths)
    new = rng.choice((0, 1, rng.randint(1, 5)))
    page = rng.choice((None, None, 8, 5))
    alike = rng.random() < 0.3
    used = tuple(rng.randint(0, room - new) for _ in range(batch))
    used = used[:1] * batch if alike else used
    if not new and rng.random() < 0.2:
        used = None
    is_whole = page is not None or rng.random() < 0.5
    leftpad = None if is_whole else tuple(rng.randint(0, n) for n in used or [room] * batch)
    options = Options(
        causal=rng.random() < 0.5,
        window_size=rng.choice(((-1, -1), (-1, -1), (rng.randint(0, 9), -1), (rng.randint(0, 9), rng.randint(0, 9)))),
        softcap=rng.choice((0.0, 0.0, 2.5)),
        softmax_scale=rng.choice((None, 0.3)),
        slopes=rng.choice((None, None, "heads", "batch")),
    )
    return Case(
        dtype, new if new and rng.random() < 0.7 else rng.randint(1, 4), used, alike, batch, room, new,
        heads_kv * rng.choice((1, 2, 4)), heads_kv, width, options, page, rng.choice((0, 0, 2)) if page is None else 0,
        leftpad, rng.choice((0, width, width // 2)) if new else 0, rng.random() < 0.5, rng.choice((0, 0, 1, 3)),
        rng.random() < 0.5, seed,
    )  # fmt: skip


class Caches:
    """Keys and values of sequences as the call has them: in batches of a cache, or in pages."""

    def __init__(self, case: Case, generator: torch.Generator, device: str) -> None:
        self.case = case
        shape = (case.batch + case.others, case.room)
        order = torch.randperm(shape[0], generator=generator).to(torch.int32)
        self.numbers, self.table = order[: case.batch], None
        if case.page is not None:
            pages = -(-case.room // case.page)
            shape = (case.batch * pages + 2, case.page)
            order = torch.randperm(shape[0], generator=generator).to(torch.int32)
            self.table = order[: case.batch * pages].reshape(case.batch, pages)
        elif not case.others:
            self.numbers = torch.arange(case.batch, dtype=torch.int32)
        self.k, self.v = (
            torch.randn(*shape, case.heads_kv, case.width, generator=generator).to(device, case.dtype) for _ in "kv"
        )

    @property
    def room(self) -> int:
        return self.case.room if self.table is None else self.table.shape[1] * self.case.page

    def place(self, batch: int, key: int) -> tuple[int, int]:
        """Where a sequence's key lies."""
        if self.table is None:
            return int(self.numbers[batch]), key
        return int(self.table[batch, key // self.case.page]), key % self.case.page

    def arguments(self, device: str) -> dict[str, Any]:
        if self.table is not None:
            return {"block_table": self.table.to(device)}
        return {"cache_batch_idx": self.numbers.to(device)} if self.case.others else {}


def check(case: Case, device: str) -> None:
    """Makes the call, and compares its results and what is in the caches after it."""
    generator = torch.Generator().manual_seed(case.seed)
    options = case.options

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator).to(device, case.dtype)

    caches = Caches(case, generator, device)
    before = caches.k.clone(), caches.v.clone()
    q = normal(case.batch, case.rows, case.heads, case.width)
    new = [normal(case.batch, case.new, case.heads_kv, case.width) for _ in "kv"] if case.new else [None, None]
    angles = torch.rand(case.room + 8, case.turned // 2, generator=generator) * 6.28
    tables = (angles.cos().to(device, case.dtype), angles.sin().to(device, case.dtype)) if case.turned else (None, None)
    slopes = None
    if options.slopes:
        shape = (case.heads,) if options.slopes == "heads" else (case.batch, case.heads)
        slopes = torch.rand(shape, generator=generator).to(device)
    keywords = caches.arguments(device)
    if case.used is not None:
        many = torch.tensor(case.used, dtype=torch.int32, device=device)
        keywords["cache_seqlens"] = case.used[0] if case.alike else many
    if case.leftpad is not None:
        keywords["cache_leftpad"] = torch.tensor(case.leftpad, dtype=torch.int32, device=device)
    results = flash_attn.flash_attn_with_kvcache(
        q, caches.k, caches.v, *new, *tables, softmax_scale=options.softmax_scale, causal=options.causal,
        window_size=options.window_size, softcap=options.softcap, rotary_interleaved=case.interleaved,
        alibi_slopes=slopes, num_splits=case.splits, return_softmax_lse=case.with_lse, **keywords,
    )  # fmt: skip
    out, lse = results if case.with_lse else (results, None)

    answers = [_solve(case, caches, before, q, new, tables, slopes, dtype) for dtype in (torch.float64, case.dtype)]
    outs, lses, keys, values = zip(*answers)
    compare("out", out, *outs, case.dtype)
    if lse is not None:
        compare("softmax_lse", lse, *lses, torch.float32)
    compare("k_cache", caches.k, *keys, case.dtype)
    compare("v_cache", caches.v, *values, case.dtype)


def _solve(
    case: Case, caches: Caches, before: tuple[Tensor, Tensor], q: Tensor, new: list[Tensor | None],
    tables: tuple[Tensor | None, Tensor | None], slopes: Tensor | None, dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Out, lse and the caches after the call, computed in `dtype`; a cache holds what its own dtype can."""
    k_cache, v_cache = (x.clone() for x in before)
    is_masked = case.options.causal or max(case.options.window_size) >= 0
    outs, lses = [], []
    for b in range(case.batch):
        used = caches.room if case.used is None else case.used[b]
        here = q[b].to(dtype)
        if case.new:
            positions = list(range(used, used + case.new))
            k = new[0][b].to(dtype)
            if case.turned:
                k = turned(k, *tables, positions, case.interleaved)
                rows = [used + i * is_masked for i in range(case.rows)]
                here = turned(here, *tables, rows, case.interleaved)
            for i, position in enumerate(positions):
                k_cache[caches.place(b, position)] = k[i].to(case.dtype)
                v_cache[caches.place(b, position)] = new[1][b, i]
        places = [caches.place(b, j) for j in range(used + case.new)]
        shape = (0, case.heads_kv, case.width)
        k, v = (torch.stack([x[at] for at in places]) if places else x.new_zeros(shape) for x in (k_cache, v_cache))
        mine = None if slopes is None else (slopes if slopes.dim() == 1 else slopes[b])
        first = 0 if case.leftpad is None else case.leftpad[b]
        out, lse, _ = attend(here, k.to(dtype), v.to(dtype), case.options, mine, first_key=first)
        outs.append(out)
        lses.append(lse)
    return torch.stack(outs), torch.stack(lses), k_cache, v_cache
