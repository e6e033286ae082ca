"""A call of attention with a cache, described; and its tensors."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from calls import SHARED, AnyCall
from storage import DTYPES, Storage


@dataclass(frozen=True)
class DecodeCall(AnyCall):
    """What is asked, and the shapes.

    Attributes:
        rows: of each sequence; with lengths_q the most.
        lengths_q: given by cu_seqlens_q.
        used: keys in the cache of each sequence, before this call; empty: all of `keys`.
        keys: how many the cache has room for.
        page_size: 0 for a contiguous cache.
        new_rows: appended by this call.
        rotary: "", "half" or "interleaved", of rotary_dim elements.
        fp8: what is cached is fp8 with scales.
        latent: values are the first columns of the keys, in the same memory.
        cache_batch: sequences have other batches of the cache than their own.
        leftpad: some keys at the begin do not count.
        alibi: "", "heads" (the same in all batches) or "batch".
        longest: with lengths_q, the longest sequence is told.
        inputs: "normal", or of SHARED.
        longest_k: what is told of the keys; 0: nothing.
    """

    dtype: str = "bf16"
    batch: int = 2
    heads: int = 4
    heads_kv: int = 2
    rows: int = 1
    lengths_q: tuple[int, ...] = ()
    keys: int = 300
    used: tuple[int, ...] = ()
    width: int = 64
    width_v: int = 0
    page_size: int = 0
    new_rows: int = 0
    rotary: str = ""
    rotary_dim: int = 32
    fp8: bool = False
    latent: bool = False
    cache_batch: bool = False
    leftpad: bool = False
    causal: bool = False
    left: int = -1
    right: int = -1
    softcap: float = 0.0
    sinks: bool = False
    alibi: str = ""
    splits: int = 0
    sm_scale: float = 0.0
    layout: str = "contiguous"
    want_lse: bool = True
    longest: bool = True
    longest_k: int = 0
    inputs: str = "normal"
    number: int = 0

    @property
    def cached(self) -> tuple[int, ...]:
        return self.used or (self.keys,) * self.batch

    def queries(self) -> list[tuple[int, slice]]:
        """The batch of q that each sequence lies in, and its rows."""
        if not self.lengths_q:
            return [(b, slice(0, self.rows)) for b in range(self.batch)]
        ends = torch.tensor(self.lengths_q).cumsum(0).tolist()
        return [(0, slice(end - length, end)) for end, length in zip(ends, self.lengths_q)]


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """As integers: fp8 has few operations, and NaN is to be equal to itself."""
    return tensor.view({1: torch.uint8, 2: torch.int16, 4: torch.int32}[tensor.element_size()])


class DecodeInputs:
    """The tensors of a call; the cache is NaN wherever no key lies."""

    def __init__(self, call: DecodeCall, device: str) -> None:
        self.call, self.device = call, device
        generator = torch.Generator(device).manual_seed(call.number * 7919 + 23)
        dtype = DTYPES[call.dtype]

        def normal(*shape: int) -> torch.Tensor:
            return torch.randn(shape, generator=generator, device=device)

        def drawn(*shape: int) -> torch.Tensor:
            return torch.rand(shape, generator=generator, device=device) if call.inputs in SHARED else normal(*shape)

        offset = SHARED.get(call.inputs, 0.0)  # of keys
        if call.dtype == "fp32" and call.width > 128:
            # fp32 is multiplied one product after another: of a sum in the thousands weights get 2e-5.
            offset = min(offset, 5.0)
        self.q_shape = (1, call.heads, sum(call.lengths_q)) if call.lengths_q else (call.batch, call.heads, call.rows)
        of_q = "contiguous" if call.layout == "broadcast" else call.layout
        self.q = Storage((*self.q_shape, call.width), dtype, device, of_q).put(
            drawn(*self.q_shape, call.width).to(dtype)
        )
        self.out_layout = of_q

        # Where each sequence's keys lie: batches of the cache, or pages in any order. The last is nobody's: NaN, and
        # what the table has where it is not to be read.
        self.table = self.cache_batch = None
        size = call.page_size or call.keys
        count = -(-call.keys // size) if call.page_size else 1
        pages = call.batch * count + 1
        order = torch.randperm(pages - 1, generator=generator, device=device)
        if not (call.page_size or call.cache_batch):
            order = torch.arange(pages - 1, device=device)
        self.places = order.view(call.batch, count)
        if call.page_size:
            totals = torch.tensor(call.cached, device=device) + call.new_rows
            needed = torch.arange(count, device=device)[None, :] * size < totals[:, None]
            self.table = torch.where(needed, self.places, pages - 1).int()
        elif call.cache_batch:
            self.cache_batch = order.int()
        self.size, pages = size, pages if call.page_size or call.cache_batch else pages - 1

        held = torch.float8_e4m3fn if call.fp8 else dtype
        self.k_scale = self.v_scale = None
        if call.fp8:
            self.k_scale, self.v_scale = (
                0.5 + torch.rand(call.heads_kv, generator=generator, device=device) for _ in "kv"
            )
        self.k_cache, self.v_cache = (
            torch.full((pages, call.heads_kv, size, width), math.nan, device=device).to(held)
            for width in (call.width, call.out_width)
        )
        if call.layout == "rows":  # keys before heads, as flash-attention has them
            self.k_cache, self.v_cache = (
                t.transpose(1, 2).contiguous().transpose(1, 2) for t in (self.k_cache, self.v_cache)
            )
        if call.latent:
            self.v_cache = self.k_cache[..., : call.out_width]
        self.leftpads = tuple(min(5 + b, n) for b, n in enumerate(call.cached)) if call.leftpad else (0,) * call.batch
        for b, keys in enumerate(call.cached):
            seen = torch.arange(self.leftpads[b], keys, device=device)
            pages_of, slots = self.where(b, seen)
            for cache in (self.k_cache,) if call.latent else (self.k_cache, self.v_cache):
                values = drawn(len(seen), call.heads_kv, cache.shape[3])
                values = (values + offset if cache is self.k_cache else values).to(held)
                bits(cache)[pages_of, :, slots] = bits(values)
        self.k_new = self.v_new = self.cos = self.sin = None
        if call.new_rows:
            self.k_new, self.v_new = (
                (drawn(call.batch, call.heads_kv, call.new_rows, width) + more).to(dtype)
                for width, more in ((call.width, offset), (call.out_width, 0.0))
            )
            if call.latent:
                self.v_new = self.k_new[..., : call.out_width]
        if call.rotary:
            room = self.size * self.places.shape[1]
            angles = torch.rand(room + call.rows, call.rotary_dim // 2, generator=generator, device=device) * 6.3
            self.cos, self.sin = angles.cos().to(dtype), angles.sin().to(dtype)
        self.sinks = normal(call.heads) * 2 if call.sinks else None
        self.slopes = (2.0 ** -torch.arange(1, 1 + call.heads, device=device).float()).expand(call.batch, call.heads)
        if call.alibi == "batch":
            self.slopes = self.slopes / torch.arange(1, 1 + call.batch, device=device)[:, None]
        self.slopes = self.slopes if call.alibi else None

        def integers(values: tuple[int, ...] | list[int]) -> torch.Tensor | None:
            return torch.tensor(values, dtype=torch.int32, device=device) if values else None

        self.used = integers(call.used)
        self.leftpad = integers(self.leftpads) if call.leftpad else None
        self.cu_q = integers([0, *torch.tensor(call.lengths_q).cumsum(0).tolist()]) if call.lengths_q else None

    def where(self, sequence: int, keys: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The page, or the batch, of each of a sequence's keys, and its row there."""
        return self.places[sequence, keys // self.size], keys % self.size

    def read(self, cache: torch.Tensor, sequence: int, keys: torch.Tensor) -> torch.Tensor:
        """[heads_kv, keys, width] of a sequence's cache, as it is held."""
        pages, slots = self.where(sequence, keys)
        return bits(cache)[pages, :, slots].view(cache.dtype).transpose(0, 1)

    def held(self, cache: torch.Tensor, sequence: int, keys: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """The same, as what it stands for, in `dtype`."""
        values = self.read(cache, sequence, keys).to(dtype)
        scale = self.k_scale if cache is self.k_cache else self.v_scale
        return values if scale is None else values * scale.to(dtype)[:, None, None]
