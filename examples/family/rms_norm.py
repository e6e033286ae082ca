"""Root mean square normalization (Zhang and Sennrich, 2019), and the sum of its squares over all rows."""

import triton
import triton.language as tl


@triton.jit
def _load_row(x_ptr, w_ptr, stride_x_column, columns, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    inside = offsets < columns
    x = tl.load(x_ptr + offsets * stride_x_column, mask=inside, other=0.0).to(tl.float32)
    w = tl.load(w_ptr + offsets, mask=inside, other=0.0).to(tl.float32)
    return offsets, inside, x, w


@triton.jit
def rms_norm(
    x_ptr, w_ptr, out_ptr, squares_ptr, rows, columns, stride_x, stride_x_column, stride_out, eps, BLOCK: tl.constexpr
):
    """out[i, :] = w * x[i, :] / sqrt(mean(x[i, :]^2) + eps), one program a row; squares[i] = sum(x[i, :]^2)."""
    row = tl.program_id(0).to(tl.int64)
    offsets, inside, x, w = _load_row(x_ptr + row * stride_x, w_ptr, stride_x_column, columns, BLOCK)
    squares = tl.sum(x * x, 0)
    scale = tl.math.rsqrt(squares / columns + eps)
    tl.store(out_ptr + row * stride_out + offsets, (x * scale * w).to(out_ptr.dtype.element_ty), mask=inside)
    tl.store(squares_ptr + row, squares)


@triton.jit
def total(squares_ptr, total_ptr, rows, BLOCK: tl.constexpr):
    """Adds the squares of all rows to total[0], which was zero."""
    first = tl.program_id(0) * BLOCK
    offsets = first + tl.arange(0, BLOCK)
    squares = tl.load(squares_ptr + offsets, mask=offsets < rows, other=0.0)
    tl.atomic_add(total_ptr, tl.sum(squares, 0))
