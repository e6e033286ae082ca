"""Attention with a cache: as it is defined, in float64, and a run of the kernels in this process (interpreter.py)."""

from __future__ import annotations

import importlib
import math
from dataclasses import dataclass

import numpy as np
import torch
from attention import EVERYTHING, Call, attention
from interpreter import ALIBI, CU_Q, LSE, PIECES, SINKS, SOFTCAP, USED_K, integers, lay_out, reals, size_for

PAGED, CACHE_BATCH, LEFTPAD, SCALES, INTERLEAVED, ONE_ANGLE = (1 << n for n in range(14, 20))
CONTIGUOUS = 2**30  # keys of the one page that a contiguous cache is
LARGEST_FP8 = 448.0


@dataclass(frozen=True)
class CacheCall:
    """A call of attention with a cache.

    Attributes:
        q: [batch, heads, rows, width]; with cu_q the batch is 1 and sequences lie one after another.
        k_cache, v_cache: [batches, heads_kv, keys, width], or with a table [pages, heads_kv, page_size, width]. What
            belongs to no sequence may be NaN.
        used: [sequences], how many keys of each are cached; None: all.
        k_new, v_new: [sequences, heads_kv, new rows, width].
        table: [sequences, pages]; cache_batch, leftpad: [sequences].
        cos, sin: [positions, half].
        k_scale, v_scale: [heads_kv]; given, the cache is a quantized one, of whatever dtype it is here.
        left, right, sinks, slopes, softcap, cu_q: as in attention.Call, bottom_right.
    """

    q: np.ndarray
    k_cache: np.ndarray
    v_cache: np.ndarray
    sm_scale: float
    used: np.ndarray | None = None
    k_new: np.ndarray | None = None
    v_new: np.ndarray | None = None
    cu_q: np.ndarray | None = None
    table: np.ndarray | None = None
    cache_batch: np.ndarray | None = None
    leftpad: np.ndarray | None = None
    cos: np.ndarray | None = None
    sin: np.ndarray | None = None
    interleaved: bool = False
    k_scale: np.ndarray | None = None
    v_scale: np.ndarray | None = None
    left: int = EVERYTHING
    right: int = EVERYTHING
    sinks: np.ndarray | None = None
    slopes: np.ndarray | None = None
    softcap: float = 0.0

    @property
    def sequences(self) -> int:
        return len(self.cu_q) - 1 if self.cu_q is not None else self.q.shape[0]

    @property
    def new_rows(self) -> int:
        return 0 if self.k_new is None else self.k_new.shape[2]

    @property
    def page_size(self) -> int:
        return CONTIGUOUS if self.table is None else self.k_cache.shape[2]

    @property
    def is_unmasked(self) -> bool:
        return self.left == EVERYTHING and self.right == EVERYTHING

    def cached(self, sequence: int) -> int:
        return self.k_cache.shape[2] if self.used is None else int(self.used[sequence])

    @property
    def room(self) -> int:
        """How many keys of a sequence the cache can hold."""
        return self.k_cache.shape[2] * (1 if self.table is None else self.table.shape[1])

    def rows(self, sequence: int) -> tuple[int, slice]:
        """The batch and the rows of a sequence in q."""
        if self.cu_q is None:
            return sequence, slice(0, self.q.shape[2])
        return 0, slice(int(self.cu_q[sequence]), int(self.cu_q[sequence + 1]))

    def places(self, sequence: int, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """In which pages, or batches, keys lie, and where there."""
        if self.table is not None:
            return self.table[sequence][keys // self.page_size], keys % self.page_size
        batch = sequence if self.cache_batch is None else self.cache_batch[sequence]
        return np.full(keys.shape, batch), keys


@dataclass(frozen=True)
class CacheResult:
    """out and lse, NaN where nothing is to be written; the cache afterwards."""

    out: np.ndarray
    lse: np.ndarray
    k_cache: np.ndarray
    v_cache: np.ndarray


def rotate(x: np.ndarray, positions: np.ndarray, call: CacheCall) -> np.ndarray:
    """x [..., rows, width], row i rotated by the angles of positions[i]."""
    x = x.astype(np.float64)
    if call.cos is None:
        return x
    half = call.cos.shape[1]
    cos, sin = (table[positions].astype(np.float64) for table in (call.cos, call.sin))
    first, second = (
        (slice(0, 2 * half, 2), slice(1, 2 * half, 2)) if call.interleaved else (slice(0, half), slice(half, 2 * half))
    )
    result = x.copy()
    result[..., first] = x[..., first] * cos - x[..., second] * sin
    result[..., second] = x[..., second] * cos + x[..., first] * sin
    return result


def appended(call: CacheCall) -> tuple[np.ndarray, np.ndarray]:
    """k_cache and v_cache as a call leaves them. What is quantized is rounded twice: as a quotient of fp32, and as it
    is cached."""
    k_cache, v_cache = call.k_cache.copy(), call.v_cache.copy()
    if call.k_new is None:
        return k_cache, v_cache
    for sequence in range(call.sequences):
        cached = call.cached(sequence)
        new = np.arange(cached, min(cached + call.new_rows, call.room))
        pages, places = call.places(sequence, new)
        rows = rotate(call.k_new[sequence, :, : len(new)], new, call), call.v_new[sequence, :, : len(new)]
        for cache, row, scale in zip((k_cache, v_cache), rows, (call.k_scale, call.v_scale)):
            if scale is not None:
                row = row.astype(np.float32) / scale.astype(np.float32)[:, None, None]
                row = np.clip(row, -LARGEST_FP8, LARGEST_FP8)
            cache[pages, :, places] = row.transpose(1, 0, 2).astype(cache.dtype)
    return k_cache, v_cache


def with_cache(call: CacheCall, k_cache: np.ndarray, v_cache: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The definition, sequence by sequence: out and lse of a call that left these caches."""
    out = np.full((*call.q.shape[:3], v_cache.shape[3]), np.nan)
    lse = np.full(call.q.shape[:3], np.nan)
    ones = np.ones(k_cache.shape[1])
    scales = [ones if s is None else s.astype(np.float32).astype(np.float64) for s in (call.k_scale, call.v_scale)]
    for sequence in range(call.sequences):
        cached = call.cached(sequence)
        total = min(cached + call.new_rows, call.room)
        begin = 0 if call.leftpad is None else int(call.leftpad[sequence])
        pages, places = call.places(sequence, np.arange(begin, max(total, begin)))
        k, v = (
            cache[pages, :, places].transpose(1, 0, 2).astype(np.float64) * scale[:, None, None]
            for cache, scale in zip((k_cache, v_cache), scales)
        )
        batch, rows = call.rows(sequence)
        positions = cached + np.arange(rows.stop - rows.start) * (not call.is_unmasked)
        q = call.q[batch, :, rows]
        if call.cos is not None:
            q = rotate(q, positions, call).astype(q.dtype)
        slopes = None if call.slopes is None else call.slopes[sequence][None]
        one = attention(
            Call(
                q[None], k[None], v[None], call.sm_scale, left=call.left, right=call.right, bottom_right=True,
                sinks=call.sinks, slopes=slopes, softcap=call.softcap,
            )
        )  # fmt: skip
        out[batch, :, rows], lse[batch, :, rows] = one.out[0], one.lse[0]
    return out, lse


def divisor(page_size: int) -> tuple[int, int]:
    """(factor, shift) of pages.py."""
    shift = (page_size - 1).bit_length()
    return -(-(2 ** (31 + shift)) // page_size), shift


@dataclass(frozen=True)
class CacheImage:
    """What is constant in an image, and what a call is free to choose.

    Attributes:
        splits: into how many parts the keys are split.
    """

    block_m: int = 16
    block_n: int = 16
    unmasked_loop: bool = True
    splits: int = 1
    want_lse: bool = True


def run_in_fp16(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return importlib.import_module("halves").run(rows)


def run_with_cache(call: CacheCall, image: CacheImage = CacheImage(), layout: str = "contiguous") -> CacheResult:
    """Runs the kernels in this process. What they did not write is NaN."""
    import triton

    decode, append, rotary = (importlib.import_module(name) for name in ("attn_decode", "append_kv", "rotary"))
    width_qk, width_v = call.q.shape[3], call.v_cache.shape[3]
    size = size_for(width_qk, width_v)
    heads, heads_kv = call.q.shape[1], call.k_cache.shape[1]
    spans = [call.rows(sequence)[1] for sequence in range(call.sequences)]
    longest = max((rows.stop - rows.start for rows in spans), default=0)
    q, k, v = (lay_out(array, layout) for array in (call.q, call.k_cache, call.v_cache))
    out = lay_out(np.full((*call.q.shape[:3], width_v), np.nan, call.q.dtype), layout)
    lse = np.full(call.q.shape[:3], np.nan, np.float32)
    options = {
        CU_Q: call.cu_q, USED_K: call.used, SINKS: call.sinks, LSE: image.want_lse or None, ALIBI: call.slopes,
        SOFTCAP: call.softcap or None, PAGED: call.table, CACHE_BATCH: call.cache_batch, LEFTPAD: call.leftpad,
        SCALES: call.k_scale, INTERLEAVED: call.interleaved or None, ONE_ANGLE: call.is_unmasked or None,
    }  # fmt: skip
    flags = sum(flag for flag, given in options.items() if given is not None)

    used, cu_q, table, cache_batch, leftpad = map(
        integers, (call.used, call.cu_q, call.table, call.cache_batch, call.leftpad)
    )
    scales = (reals(call.k_scale), reals(call.v_scale))
    strides_t = 0 if call.table is None else call.table.shape[1]
    paging = (call.page_size, *divisor(call.page_size))
    half, angles = 0, (q.storage, q.storage)
    if call.cos is not None:
        half, angles = call.cos.shape[1], (torch.from_numpy(call.cos), torch.from_numpy(call.sin))
    if call.k_new is not None:
        k_new, v_new = (lay_out(array, layout) for array in (call.k_new, call.v_new))
        grid = (triton.cdiv(call.new_rows, 16) * heads_kv * call.sequences, triton.cdiv(max(width_qk, width_v), 32))
        append.append_kv[grid](
            k_new.storage, v_new.storage, k.storage, v.storage, *angles, *scales, used, table, cache_batch,
            *k_new.strides, *v_new.strides, *k.strides, *v.strides, half, half, strides_t,
            heads_kv, call.new_rows, call.room, *paging, width_qk, width_v, half, len(angles[0]), flags,
            call.k_scale is not None, 16, 32,
        )  # fmt: skip
    if half and longest:
        rotated = lay_out(np.full(call.q.shape, np.nan, call.q.dtype), "contiguous")
        rotary.rotate_q[(triton.cdiv(longest, 16) * heads * call.sequences, triton.cdiv(width_qk, 32))](
            q.storage, rotated.storage, *angles, used, *q.strides, *rotated.strides, half, half,
            heads, longest, width_qk, half, len(angles[0]), flags, 16, 32,
        )  # fmt: skip
        q = rotated
    rows_head, rows_total = call.q.shape[2], math.prod(call.q.shape[:3])
    partial = torch.full((image.splits, rows_total, width_v + 3), math.nan)
    partial_softmax = torch.full((2, image.splits, rows_total), math.nan)
    lse_strides = tuple(stride // 4 for stride in lse.strides[:2])
    extras = "any" if call.softcap or call.slopes is not None else "none"
    padded = {width_qk, width_v} != {size}
    blocks = triton.cdiv(longest * (heads // heads_kv), image.block_m) * heads_kv * call.sequences
    if blocks:
        decode.attn_decode[(image.splits * blocks,)](
            q.storage, k.storage, v.storage, out.storage, torch.from_numpy(lse), partial, partial_softmax,
            reals(call.sinks), reals(call.slopes), *scales, cu_q, used, table, cache_batch, leftpad,
            call.sm_scale, call.softcap or 1.0, *q.strides, *k.strides, *v.strides, *out.strides, *lse_strides,
            width_v + 3, strides_t, heads, image.splits, rows_head, rows_total, heads, heads // heads_kv,
            longest, call.room, call.new_rows, *paging, width_qk, width_v, call.left, call.right, flags,
            *PIECES[size], extras, padded, image.unmasked_loop, image.block_m, image.block_n,
        )  # fmt: skip
    if blocks and image.splits > 1:
        assert np.isnan(out.view).all() and np.isnan(lse).all(), "a part was written as if it were the whole"
        decode.attn_decode_reduce[(longest * heads * call.sequences, triton.cdiv(width_v, 32))](
            partial, partial_softmax, out.storage, torch.from_numpy(lse), reals(call.sinks), cu_q,
            width_v + 3, *out.strides, *lse_strides,
            image.splits, rows_head, rows_total, heads, longest, width_v, flags, 4, 32, 16,
        )  # fmt: skip
    return CacheResult(out.view.copy(), lse, k.view.copy(), v.view.copy())
