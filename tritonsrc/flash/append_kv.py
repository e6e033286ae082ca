"""Writes new keys and values behind those that are cached: keys rotated, and both as the cache holds them."""

import triton
import triton.language as tl
from pages import cached_keys, page_of
from rotary import rotated


@triton.jit
def quantized(x, scale_ptr, head, QUANTIZED: tl.constexpr):
    """x as it is cached: divided by its head's scale, and kept within what fp8e4m3 can hold, if QUANTIZED."""
    if QUANTIZED:
        x = x / tl.load(scale_ptr + head)
        # NaN stays NaN.
        x = tl.clamp(x, -448.0, 448.0, propagate_nan=tl.PropagateNan.ALL)
    return x


@triton.jit
def append_kv(
    k_new_ptr, v_new_ptr, k_ptr, v_ptr, cos_ptr, sin_ptr, k_scale_ptr, v_scale_ptr,
    used_k_ptr, table_ptr, cache_batch_ptr,
    stride_knb, stride_knh, stride_knm, stride_vnb, stride_vnh, stride_vnm, stride_kb, stride_kh, stride_kn,
    stride_vb, stride_vh, stride_vn, stride_cos, stride_sin, stride_tb,
    heads_kv, new_rows, seqlen_k, page_size, page_factor, page_shift, width_qk, width_v, half, angles, flags,
    QUANTIZED: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Appends; the grid is (cdiv(new_rows, BLOCK_M) * heads_kv * batch, cdiv(max(width_qk, width_v), BLOCK_D)).

    Shapes: k_new [batch, heads_kv, new_rows, width_qk], strides knb, knh, knm; v_new the same with width_v; the cache
    as in attn_decode, whose arguments the others are. Row i of sequence b becomes key used_k[b] + i, where there is
    room for it.

    Args:
        half, angles: of the columns of k_new, 2 * half are rotated (rotary.py); 0: none.
        QUANTIZED: the cache is of fp8e4m3.
    """
    blocks = tl.cdiv(new_rows, BLOCK_M)
    first_row = tl.program_id(0) % blocks * BLOCK_M
    plane = tl.program_id(0) // blocks
    batch = plane // heads_kv
    head = (plane % heads_kv).to(tl.int64)
    lies_in, cached, _ = cached_keys(batch, batch * 0, used_k_ptr, cache_batch_ptr, used_k_ptr, flags)
    rows = first_row + tl.arange(0, BLOCK_M)
    keys = cached + rows
    inside = (rows < new_rows) & (keys >= 0) & (keys < seqlen_k)
    page, key = page_of(
        keys, inside, table_ptr + batch.to(tl.int64) * stride_tb, lies_in, page_size, page_factor, page_shift, flags
    )  # fmt: skip
    columns = tl.program_id(1) * BLOCK_D + tl.arange(0, BLOCK_D)
    rows = rows.to(tl.int64)

    there = inside[:, None] & (columns < width_qk)[None, :]
    k_new_ptr += batch.to(tl.int64) * stride_knb + head * stride_knh
    k = rotated(
        k_new_ptr, rows * stride_knm, columns, there, keys,
        cos_ptr, sin_ptr, stride_cos, stride_sin, half, angles, flags,
    )  # fmt: skip
    k = quantized(k, k_scale_ptr, head, QUANTIZED).to(k_ptr.dtype.element_ty)
    to = page * stride_kb + key * stride_kn
    tl.store(k_ptr + head * stride_kh + to[:, None] + columns[None, :], k, mask=there)

    there = inside[:, None] & (columns < width_v)[None, :]
    v_new_ptr += batch.to(tl.int64) * stride_vnb + head * stride_vnh
    v = tl.load(v_new_ptr + (rows * stride_vnm)[:, None] + columns[None, :], mask=there, other=0.0)
    if QUANTIZED:
        v = quantized(v.to(tl.float32), v_scale_ptr, head, QUANTIZED)
    to = page * stride_vb + key * stride_vn
    tl.store(v_ptr + head * stride_vh + to[:, None] + columns[None, :], v.to(v_ptr.dtype.element_ty), mask=there)
