"""What dropout keeps, written out: for tests, and for whoever must apply the same mask elsewhere."""

import triton
import triton.language as tl
from dropout import kept, seed_of


@triton.jit
def dropout_mask(
    mask_ptr, seed_ptr, offset_ptr, seed, offset, stride_b, stride_h, stride_m,
    heads, seqlen_q, seqlen_k, threshold, flags, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """mask [batch, heads, seqlen_q, seqlen_k], 1 where a weight is kept; where it is not, 0 in uint8 and -1 in floating
    types. The grid is (cdiv(seqlen_q, BLOCK_M) * cdiv(seqlen_k, BLOCK_N) * heads * batch,)."""
    blocks_m = tl.cdiv(seqlen_q, BLOCK_M)
    blocks_n = tl.cdiv(seqlen_k, BLOCK_N)
    block = tl.program_id(0) % (blocks_m * blocks_n)
    plane = tl.program_id(0) // (blocks_m * blocks_n)
    first_key = block % blocks_n * BLOCK_N
    rows = block // blocks_n * BLOCK_M + tl.arange(0, BLOCK_M)
    keys = first_key + tl.arange(0, BLOCK_N)
    seed, offset = seed_of(seed_ptr, offset_ptr, seed, offset, flags)
    keep = kept(seed, offset, threshold, plane, rows, first_key, BLOCK_N)
    DROPPED: tl.constexpr = -1.0 if mask_ptr.dtype.element_ty.is_floating() else 0
    values = tl.where(keep, 1, DROPPED).to(mask_ptr.dtype.element_ty)
    mask_ptr += (plane // heads).to(tl.int64) * stride_b + (plane % heads).to(tl.int64) * stride_h
    tl.store(
        mask_ptr + rows[:, None].to(tl.int64) * stride_m + keys[None, :], values,
        mask=(rows < seqlen_q)[:, None] & (keys < seqlen_k)[None, :],
    )  # fmt: skip
