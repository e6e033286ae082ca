"""out = x * sigmoid(x) + residual, where the residual may be left out: by pointers, and by tensor descriptors."""

import triton
import triton.language as tl


@triton.jit
def _silu(x):
    x = x.to(tl.float32)
    return x / (1 + tl.exp(-x))


@triton.jit
def silu(x_ptr, residual_ptr, out_ptr, stride_x, stride_x_column, stride_residual, stride_residual_column, stride_out,
         rows, columns, HAS_RESIDUAL: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):  # fmt: skip
    """One tile [ROWS, COLUMNS]. Without HAS_RESIDUAL the residual's address is 0, and nothing may read it."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.program_id(1).to(tl.int64) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    inside = (row < rows) & (column < columns)
    out = _silu(tl.load(x_ptr + row * stride_x + column * stride_x_column, mask=inside, other=0.0))
    if HAS_RESIDUAL:
        residual = residual_ptr + row * stride_residual + column * stride_residual_column
        out += tl.load(residual, mask=inside, other=0.0).to(tl.float32)
    tl.store(out_ptr + row * stride_out + column, out.to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit
def silu_described(x_desc, out_desc, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """The same without a residual. The copies leave out what lies outside of the tensors."""
    row, column = tl.program_id(0) * ROWS, tl.program_id(1) * COLUMNS
    out_desc.store([row, column], _silu(x_desc.load([row, column])).to(out_desc.dtype))
