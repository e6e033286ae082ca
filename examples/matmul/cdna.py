"""c = a b^T for CDNA 3: buffer loads, which check bounds by themselves, and the matrix cores' 32 x 32 x 8 products."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.amd import AMDMFMALayout
from triton.experimental.gluon.language.amd.cdna3 import buffer_load, buffer_store, mfma


@gluon.jit
def load_tile(pointer, stride, first_row, first_column, rows, columns, layout: gl.constexpr,
              ROWS: gl.constexpr, COLUMNS: gl.constexpr):  # fmt: skip
    """A tile of a matrix whose rows are contiguous; what is outside of it is 0."""
    row = first_row + gl.arange(0, ROWS, gl.SliceLayout(1, layout))
    column = first_column + gl.arange(0, COLUMNS, gl.SliceLayout(0, layout))
    inside = (row < rows)[:, None] & (column < columns)[None, :]
    return buffer_load(pointer, row[:, None] * stride + column[None, :], mask=inside, other=0.0)


@gluon.jit
def matmul_cdna(a_ptr, b_ptr, c_ptr, stride_a, stride_b, stride_c, rows, columns, depth, BLOCK_M: gl.constexpr,
                BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr):  # fmt: skip
    """One tile [BLOCK_M, BLOCK_N] of c = a b^T. The next step's tiles are on their way while this one's are multiplied.

    Args:
        a_ptr, b_ptr, c_ptr: [rows, depth], [columns, depth], [rows, columns], each below 2 GiB: offsets have 32 bits.
        stride_a, stride_b, stride_c: from row to row, in elements.
    """
    tiles_n = gl.cdiv(columns, BLOCK_N)
    row, column = gl.program_id(0) // tiles_n * BLOCK_M, gl.program_id(0) % tiles_n * BLOCK_N
    # 16 bytes for each lane.
    loads: gl.constexpr = gl.BlockedLayout([1, 8], [512 // BLOCK_K, BLOCK_K // 8], [gl.num_warps(), 1], [1, 0])
    products: gl.constexpr = AMDMFMALayout(3, [32, 32, 8], True, [gl.num_warps() // 2, 2])
    left: gl.constexpr = gl.DotOperandLayout(0, products, 4)
    right: gl.constexpr = gl.DotOperandLayout(1, products, 4)
    dtype: gl.constexpr = a_ptr.dtype.element_ty
    shared: gl.constexpr = gl.SwizzledSharedLayout(4, 1, 16, [1, 0])
    a_tile = gl.allocate_shared_memory(dtype, [BLOCK_M, BLOCK_K], shared)
    b_tile = gl.allocate_shared_memory(dtype, [BLOCK_N, BLOCK_K], shared)

    a = load_tile(a_ptr, stride_a, row, 0, rows, depth, loads, BLOCK_M, BLOCK_K)
    b = load_tile(b_ptr, stride_b, column, 0, columns, depth, loads, BLOCK_N, BLOCK_K)
    sums = gl.zeros([BLOCK_M, BLOCK_N], gl.float32, products)
    for step in range(gl.cdiv(depth, BLOCK_K)):
        a_tile.store(a)
        b_tile.store(b)
        first = (step + 1) * BLOCK_K
        a = load_tile(a_ptr, stride_a, row, first, rows, depth, loads, BLOCK_M, BLOCK_K)
        b = load_tile(b_ptr, stride_b, column, first, columns, depth, loads, BLOCK_N, BLOCK_K)
        sums = mfma(a_tile.load(left), b_tile.permute((1, 0)).load(right), sums)
    out_row = row + gl.arange(0, BLOCK_M, gl.SliceLayout(1, products))
    out_column = column + gl.arange(0, BLOCK_N, gl.SliceLayout(0, products))
    inside = (out_row < rows)[:, None] & (out_column < columns)[None, :]
    buffer_store(sums.to(dtype), c_ptr, out_row[:, None] * stride_c + out_column[None, :], mask=inside)
