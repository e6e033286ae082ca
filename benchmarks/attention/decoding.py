"""Decoding over a long cache: bytes of the cache a second, against copies of memory in the same rounds."""

from __future__ import annotations

import math

import ffi
import timing
import torch
from entries import Entries, reason
from shapes import Cache
from training import LARGEST_DIFFERENCE, difference

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp8e4m3": torch.float8_e4m3fn}
COPIED_BYTES = 1 << 30


class Memory:
    """What cases have in common, so that it is made once: cached elements, and two halves of a copy."""

    def __init__(self, cases: list[Cache], device: str = "cuda", copied_bytes: int = COPIED_BYTES) -> None:
        self.device = device
        self._most = {case.dtype: max(c.elements for c in cases if c.dtype == case.dtype) for case in cases}
        self._dtype, self._elements = "", ()
        self.source = torch.randint(0, 256, (copied_bytes,), dtype=torch.uint8, device=device)
        self.target = torch.empty_like(self.source)

    def elements(self, dtype: str) -> tuple[torch.Tensor, torch.Tensor]:
        """Random keys and values, flat; those of one type at a time."""
        if dtype != self._dtype:
            self._elements = ()
            kind = DTYPES[dtype]
            drawn = torch.bfloat16 if kind is torch.float8_e4m3fn else kind
            self._elements = tuple(
                torch.randn(self._most[dtype], dtype=drawn, device=self.device).to(kind) for _ in range(2)
            )
            self._dtype = dtype
        return self._elements

    def copy(self) -> None:
        self.target.copy_(self.source)

    @property
    def copied(self) -> int:
        """Bytes that a copy moves: read and written."""
        return 2 * self.source.numel()


class Decoding:
    """The tensors of a case."""

    def __init__(self, case: Cache, memory: Memory, dtype: torch.dtype, layout: str) -> None:
        self.case = case
        device, length = memory.device, case.page or case.keys
        pieces = case.batch * case.keys // length
        self.k, self.v = (self._view(flat, pieces, length, layout) for flat in memory.elements(case.dtype))
        self.q = torch.randn(case.batch, case.heads, 1, case.head_dim, dtype=dtype, device=device)
        self.out = torch.full_like(self.q, torch.nan)
        self.used = torch.full((case.batch,), case.keys, dtype=torch.int32, device=device)
        self.table = self.k_scale = self.v_scale = None
        if case.page:
            order = torch.randperm(pieces, device=device)
            self.table = order.to(torch.int32).view(case.batch, case.keys // case.page)
        if case.dtype == "fp8e4m3":
            self.k_scale, self.v_scale = (torch.rand(case.heads_kv, device=device) + 0.5 for _ in range(2))

    def _view(self, flat: torch.Tensor, pieces: int, length: int, layout: str) -> torch.Tensor:
        case = self.case
        flat = flat[: case.elements]
        if layout == "bshd":
            return flat.view(pieces, length, case.heads_kv, case.head_dim).transpose(1, 2)
        return flat.view(pieces, case.heads_kv, length, case.head_dim)

    def launch(self, entries: Entries, splits: int = 0):
        return entries.decode(
            q=self.q, k_cache=self.k, v_cache=self.v, out=self.out, seqused_k=self.used, block_table=self.table,
            k_scale=self.k_scale, v_scale=self.v_scale, max_seqlen_k=self.case.keys, splits=splits,
        )  # fmt: skip

    def _cached(self, cache: torch.Tensor, scale: torch.Tensor | None, number: int) -> torch.Tensor:
        """A sequence's keys or values in fp32, [heads_kv, keys, head_dim]."""
        case = self.case
        pieces = cache[number : number + 1] if self.table is None else cache[self.table[number].long()]
        values = pieces.transpose(0, 1).reshape(case.heads_kv, case.keys, case.head_dim).float()
        return values if scale is None else values * scale[:, None, None]

    def expected(self, number: int) -> torch.Tensor:
        """What a sequence's answer is, [heads, 1, head_dim] in fp32."""
        case = self.case
        q = self.q[number].float().view(case.heads_kv, -1, case.head_dim)
        k, v = self._cached(self.k, self.k_scale, number), self._cached(self.v, self.v_scale, number)
        weights = torch.softmax(q @ k.mT / math.sqrt(case.head_dim), dim=-1)
        return (weights @ v).view(case.heads, 1, case.head_dim)

    def difference(self) -> float:
        """Of the first and the last sequence's answer; NaN if anything is."""
        found = [difference(self.out[number], self.expected(number)) for number in {0, self.case.batch - 1}]
        return next((value for value in found if value != value), max(found))


def measure(
    entries: Entries, case: Cache, memory: Memory, dtype: torch.dtype, layout: str, rounds: int, budget_ms: float,
    splits: int = 0,
) -> dict:  # fmt: skip
    """A row of the results: milliseconds of decoding and of a copy in each round, or why there are none."""
    row = {
        "direction": "decode", "head_dim": case.head_dim, "kind": case.kind, "keys": case.keys, "page": case.page,
        "dtype": case.dtype, "batch": case.batch, "bytes": case.bytes, "copied": memory.copied, "refusals": {},
        "milliseconds": {}, "host_ahead": True, "images": [],
    }  # fmt: skip
    work = Decoding(case, memory, dtype, layout)
    try:
        launch = work.launch(entries, splits)
        row["images"] = launch.images
        launch()
        row["differences"] = {"fp32": work.difference()}
        if row["differences"]["fp32"] <= LARGEST_DIFFERENCE:
            sides = {"kiln": launch, "copy": memory.copy}
            row["milliseconds"], row["host_ahead"] = timing.interleave(sides, rounds, budget_ms)
        else:
            off = row["differences"]["fp32"]
            row["refusals"]["kiln"] = f"its result is off by {off:.2g}; what is wrong is not timed"
    except (ffi.Failure, RuntimeError) as error:
        row["refusals"]["kiln"] = reason(error)
    return row
