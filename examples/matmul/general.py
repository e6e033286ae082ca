"""c = a b^T for matrices of any strides: with the strides of b exchanged it is c = a b."""

import triton
import triton.language as tl


@triton.jit
def _tile(columns, rows, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, GROUP: tl.constexpr):
    """The tile of this program. Programs with neighbouring numbers work on GROUP tiles of rows together, so that the
    rows of `a` and of `b` that they share stay in the L2 cache."""
    program = tl.program_id(0)
    tiles_n = tl.cdiv(columns, BLOCK_N)
    group = program // (GROUP * tiles_n)
    height = tl.minimum(tl.cdiv(rows, BLOCK_M) - group * GROUP, GROUP)
    within = program % (GROUP * tiles_n)
    return group * GROUP + within % height, within // height


@triton.jit
def matmul(a_ptr, b_ptr, c_ptr, stride_a, stride_a_depth, stride_b, stride_b_depth, stride_c, stride_c_column,
           rows, columns, depth, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
           GROUP: tl.constexpr):  # fmt: skip
    """One tile [BLOCK_M, BLOCK_N] of c = a b^T, of a [rows, depth] and b [columns, depth]; sums are in fp32."""
    tile_m, tile_n = _tile(columns, rows, BLOCK_M, BLOCK_N, GROUP)
    row = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    column = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    # Rows and columns beyond the end repeat earlier ones: they are loaded without a mask and never stored.
    a_row = a_ptr + (row % rows).to(tl.int64)[:, None] * stride_a
    b_column = b_ptr + (column % columns).to(tl.int64)[None, :] * stride_b
    sums = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for first in range(0, depth, BLOCK_K):
        k = first + tl.arange(0, BLOCK_K)
        a = tl.load(a_row + k.to(tl.int64)[None, :] * stride_a_depth, mask=(k < depth)[None, :], other=0.0)
        b = tl.load(b_column + k.to(tl.int64)[:, None] * stride_b_depth, mask=(k < depth)[:, None], other=0.0)
        sums = tl.dot(a, b, sums)
    c = c_ptr + row.to(tl.int64)[:, None] * stride_c + column.to(tl.int64)[None, :] * stride_c_column
    inside = (row < rows)[:, None] & (column < columns)[None, :]
    tl.store(c, sums.to(c_ptr.dtype.element_ty), mask=inside)
