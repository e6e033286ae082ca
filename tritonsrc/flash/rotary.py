"""Rotary position embedding (Su et al., 2021, arXiv:2104.09864, section 3.4.2), of queries and of rows that are
appended to a cache."""

import triton
import triton.language as tl
from flags import INTERLEAVED, ONE_ANGLE


@triton.jit
def rotated(ptr, offsets, columns, there, positions, cos_ptr, sin_ptr, stride_cos, stride_sin, half, angles, flags):
    """[rows, columns] fp32 of rows that begin at ptr + offsets, the first 2 * half columns of which are rotated.

    Column c is paired with c + half, or 2 c with 2 c + 1 with the flag INTERLEAVED. A column's partner is read from
    memory once more, where the first read has left it in the cache: registers are not exchanged between threads.

    Args:
        there: [rows, columns], which elements there are.
        positions: [rows], the rows of cos and sin, whose last dimension is contiguous.
        angles: how many rows these have. Positions behind them, where no key has its place either, take the last.
    """
    x = tl.load(ptr + offsets[:, None] + columns[None, :], mask=there, other=0.0).to(tl.float32)
    interleaved = (flags & INTERLEAVED) != 0
    is_first = tl.where(interleaved, columns % 2 == 0, columns < half)
    partner = tl.where(interleaved, columns ^ 1, tl.where(is_first, columns + half, columns - half))
    angle = tl.where(interleaved, columns // 2, tl.where(is_first, columns, columns - half))
    turns = there & (columns < 2 * half)[None, :]
    other = tl.load(ptr + offsets[:, None] + partner[None, :], mask=turns, other=0.0).to(tl.float32)
    positions = tl.maximum(tl.minimum(positions, angles - 1), 0).to(tl.int64)[:, None]
    cos = tl.load(cos_ptr + positions * stride_cos + angle[None, :], mask=turns, other=1.0).to(tl.float32)
    sin = tl.load(sin_ptr + positions * stride_sin + angle[None, :], mask=turns, other=0.0).to(tl.float32)
    return x * cos + tl.where(is_first[None, :], -other, other) * sin


@triton.jit
def rotate_q(
    q_ptr, to_ptr, cos_ptr, sin_ptr, used_k_ptr,
    stride_qb, stride_qh, stride_qm, stride_tb, stride_th, stride_tm, stride_cos, stride_sin,
    heads, seqlen_q, width, half, angles, flags, BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Writes q, rotated, to a tensor of the same shape (t); the grid is
    (cdiv(seqlen_q, BLOCK_M) * heads * batch, cdiv(width, BLOCK_D)).

    Row i has the position of the i-th key behind those that are cached, or with the flag ONE_ANGLE all have that of the
    first. The other arguments are attn_decode's and rotated()'s.
    """
    blocks = tl.cdiv(seqlen_q, BLOCK_M)
    first_row = tl.program_id(0) % blocks * BLOCK_M
    plane = tl.program_id(0) // blocks
    batch = (plane // heads).to(tl.int64)
    head = (plane % heads).to(tl.int64)
    rows = first_row + tl.arange(0, BLOCK_M)
    columns = tl.program_id(1) * BLOCK_D + tl.arange(0, BLOCK_D)
    there = (rows < seqlen_q)[:, None] & (columns < width)[None, :]
    positions = tl.load(used_k_ptr + batch) + tl.where((flags & ONE_ANGLE) != 0, 0, rows)
    row = rows.to(tl.int64)
    q_ptr += batch * stride_qb + head * stride_qh
    to_ptr += batch * stride_tb + head * stride_th
    q = rotated(
        q_ptr, row * stride_qm, columns, there, positions, cos_ptr, sin_ptr, stride_cos, stride_sin, half, angles, flags
    )  # fmt: skip
    tl.store(to_ptr + (row * stride_tm)[:, None] + columns[None, :], q.to(to_ptr.dtype.element_ty), mask=there)
