"""Rows of a head in pieces.

Triton's tensors have sizes that are powers of two, heads have not: 96 columns are pieces of 64 and 32, 224 are 128, 64
and 32. A row is a tuple of its pieces; P0 to P2 are their sizes, and 0 is a piece that is not there.
"""

import triton
import triton.language as tl


@triton.jit
def load_piece(
    ptr, offsets, inside, width,
    BEGIN: tl.constexpr, SIZE: tl.constexpr, TRANSPOSED: tl.constexpr, MASKED: tl.constexpr, PADDED: tl.constexpr,
):  # fmt: skip
    """The columns [BEGIN, BEGIN + SIZE) of rows: [rows, SIZE], or [SIZE, rows] if TRANSPOSED.

    Args:
        ptr, offsets: row r begins at ptr + offsets[r]; its columns are contiguous.
        inside: if MASKED, which rows there are; others are zeros.
        width: if PADDED, how many columns there are; others are zeros.
    """
    columns = BEGIN + tl.arange(0, SIZE)
    AXIS: tl.constexpr = 0 if TRANSPOSED else 1
    addresses = ptr + tl.expand_dims(offsets, AXIS) + tl.expand_dims(columns, 1 - AXIS)
    if MASKED and PADDED:
        there = tl.expand_dims(inside, AXIS) & tl.expand_dims(columns < width, 1 - AXIS)
        return tl.load(addresses, mask=there, other=0.0)
    elif MASKED:
        return tl.load(addresses, mask=tl.expand_dims(inside, AXIS), other=0.0)
    elif PADDED:
        return tl.load(addresses, mask=tl.expand_dims(columns < width, 1 - AXIS), other=0.0)
    else:
        return tl.load(addresses)


@triton.jit
def load_rows_at(
    ptr, offsets, inside, width,
    P0: tl.constexpr, P1: tl.constexpr, P2: tl.constexpr,
    TRANSPOSED: tl.constexpr, MASKED: tl.constexpr, PADDED: tl.constexpr,
):  # fmt: skip
    """The rows that begin at `offsets` from ptr on, wherever that is, all pieces; the arguments are load_piece's."""
    if P2 > 0:
        return (
            load_piece(ptr, offsets, inside, width, 0, P0, TRANSPOSED, MASKED, PADDED),
            load_piece(ptr, offsets, inside, width, P0, P1, TRANSPOSED, MASKED, PADDED),
            load_piece(ptr, offsets, inside, width, P0 + P1, P2, TRANSPOSED, MASKED, PADDED),
        )
    elif P1 > 0:
        return (
            load_piece(ptr, offsets, inside, width, 0, P0, TRANSPOSED, MASKED, PADDED),
            load_piece(ptr, offsets, inside, width, P0, P1, TRANSPOSED, MASKED, PADDED),
        )
    else:
        return (load_piece(ptr, offsets, inside, width, 0, P0, TRANSPOSED, MASKED, PADDED),)


@triton.jit
def load_rows(
    ptr, start, stride, inside, width,
    ROWS: tl.constexpr, P0: tl.constexpr, P1: tl.constexpr, P2: tl.constexpr,
    TRANSPOSED: tl.constexpr, MASKED: tl.constexpr, PADDED: tl.constexpr,
):  # fmt: skip
    """The rows [start, start + ROWS) from ptr on, all pieces; the other arguments are load_piece's."""
    ptr += start * stride  # 64 bits wide, as strides are
    offsets = tl.arange(0, ROWS) * stride
    return load_rows_at(ptr, offsets, inside, width, P0, P1, P2, TRANSPOSED, MASKED, PADDED)


@triton.jit
def store_piece(
    ptr, offsets, inside, width, value, BEGIN: tl.constexpr, SIZE: tl.constexpr, PADDED: tl.constexpr
):  # fmt: skip
    columns = BEGIN + tl.arange(0, SIZE)
    there = inside[:, None]
    if PADDED:
        there = there & (columns < width)[None, :]
    tl.store(ptr + offsets[:, None] + columns[None, :], value.to(ptr.dtype.element_ty), mask=there)


@triton.jit
def store_rows(
    ptr, offsets, inside, width, rows,
    P0: tl.constexpr, P1: tl.constexpr, P2: tl.constexpr, PADDED: tl.constexpr,
):  # fmt: skip
    """Writes rows as load_rows gives them: those that are `inside`, and of those `width` columns."""
    store_piece(ptr, offsets, inside, width, rows[0], 0, P0, PADDED)
    if P1 > 0:
        store_piece(ptr, offsets, inside, width, rows[1], P0, P1, PADDED)
    if P2 > 0:
        store_piece(ptr, offsets, inside, width, rows[2], P0 + P1, P2, PADDED)


@triton.jit
def zeros(ROWS: tl.constexpr, P0: tl.constexpr, P1: tl.constexpr, P2: tl.constexpr):
    """[ROWS, ...] of fp32."""
    if P2 > 0:
        return (
            tl.zeros([ROWS, P0], tl.float32),
            tl.zeros([ROWS, P1], tl.float32),
            tl.zeros([ROWS, P2], tl.float32),
        )
    elif P1 > 0:
        return (tl.zeros([ROWS, P0], tl.float32), tl.zeros([ROWS, P1], tl.float32))
    else:
        return (tl.zeros([ROWS, P0], tl.float32),)


@triton.jit
def scaled(rows, factor, P1: tl.constexpr, P2: tl.constexpr):
    """Each row times its factor: a [rows] tensor."""
    if P2 > 0:
        return (rows[0] * factor[:, None], rows[1] * factor[:, None], rows[2] * factor[:, None])
    elif P1 > 0:
        return (rows[0] * factor[:, None], rows[1] * factor[:, None])
    else:
        return (rows[0] * factor[:, None],)


@triton.jit
def largest(rows, P1: tl.constexpr, P2: tl.constexpr):
    """The largest magnitude of each row, fp32."""
    most = tl.max(tl.abs(rows[0].to(tl.float32)), 1)
    if P1 > 0:
        most = tl.maximum(most, tl.max(tl.abs(rows[1].to(tl.float32)), 1))
    if P2 > 0:
        most = tl.maximum(most, tl.max(tl.abs(rows[2].to(tl.float32)), 1))
    return most


@triton.jit
def signed(rows, negative, P1: tl.constexpr, P2: tl.constexpr):
    """The rows, or their opposites if `negative`."""
    if P2 > 0:
        return (
            tl.where(negative, -rows[0], rows[0]),
            tl.where(negative, -rows[1], rows[1]),
            tl.where(negative, -rows[2], rows[2]),
        )
    elif P1 > 0:
        return (tl.where(negative, -rows[0], rows[0]), tl.where(negative, -rows[1], rows[1]))
    else:
        return (tl.where(negative, -rows[0], rows[0]),)


@triton.jit
def inner(a, b, P1: tl.constexpr, P2: tl.constexpr):
    """a b, summed over the columns of a's rows; b is transposed."""
    product = tl.dot(a[0], b[0], input_precision="ieee")
    if P1 > 0:
        product = tl.dot(a[1], b[1], product, input_precision="ieee")
    if P2 > 0:
        product = tl.dot(a[2], b[2], product, input_precision="ieee")
    return product


@triton.jit
def summed_piece(a, b):
    # fma(a, b, 0) is a product that is rounded. One that a compiler fuses with the first sum over threads is not, in
    # each thread another: the threads that hold a row's sum would hold sums that differ in the last bit.
    return tl.sum(tl.fma(a.to(tl.float32), b.to(tl.float32), 0.0), 1)


@triton.jit
def summed(a, b, P1: tl.constexpr, P2: tl.constexpr):
    """The sums of each row of a * b, fp32."""
    sums = summed_piece(a[0], b[0])
    if P1 > 0:
        sums += summed_piece(a[1], b[1])
    if P2 > 0:
        sums += summed_piece(a[2], b[2])
    return sums


@triton.jit
def compensated(product, total, rest):
    """total + product, and what rounding has taken from it: Kahan's sum (1965, Communications of the ACM 8)."""
    term = product - rest
    after = total + term
    return after, (after - total) - term


@triton.jit
def inner_in_chunks(
    a_ptr, a_offsets, a_inside, b_ptr, b_offsets, b_inside, width, CHUNK: tl.constexpr
):  # fmt: skip
    """a b^T, summed over `width` columns, of rows in memory: CHUNK columns at a time, so that no row is held as a
    whole.

    Slower than inner(), whose a is read once; for rows that registers do not hold.

    Args:
        a_ptr, a_offsets, a_inside: as load_piece's; b's likewise.
    """
    products = tl.zeros([a_offsets.shape[0], b_offsets.shape[0]], tl.float32)
    rest = products
    for begin in tl.range(0, width, CHUNK, num_stages=1, disable_licm=True):
        columns = begin + tl.arange(0, CHUNK)
        there = columns < width
        a = tl.load(a_ptr + a_offsets[:, None] + columns[None, :], mask=a_inside[:, None] & there[None, :], other=0.0)
        b = tl.load(b_ptr + b_offsets[None, :] + columns[:, None], mask=b_inside[None, :] & there[:, None], other=0.0)
        if a.dtype == tl.float32:
            products, rest = compensated(tl.dot(a, b, input_precision="ieee"), products, rest)
        else:
            products = tl.dot(a, b, products, input_precision="ieee")
    return products


@triton.jit
def turned(rows, P1: tl.constexpr, P2: tl.constexpr):
    """The transposed pieces."""
    if P2 > 0:
        return (rows[0].T, rows[1].T, rows[2].T)
    elif P1 > 0:
        return (rows[0].T, rows[1].T)
    else:
        return (rows[0].T,)


@triton.jit
def added(weights, rows, onto, P1: tl.constexpr, P2: tl.constexpr):
    """onto + weights rows."""
    if P2 > 0:
        return (
            tl.dot(weights, rows[0], onto[0], input_precision="ieee"),
            tl.dot(weights, rows[1], onto[1], input_precision="ieee"),
            tl.dot(weights, rows[2], onto[2], input_precision="ieee"),
        )
    elif P1 > 0:
        return (
            tl.dot(weights, rows[0], onto[0], input_precision="ieee"),
            tl.dot(weights, rows[1], onto[1], input_precision="ieee"),
        )
    else:
        return (tl.dot(weights, rows[0], onto[0], input_precision="ieee"),)


@triton.jit
def sums(ROWS: tl.constexpr, P0: tl.constexpr, P1: tl.constexpr, P2: tl.constexpr, COMPENSATED: tl.constexpr):
    """zeros(), for summed_up(); with COMPENSATED as many again behind them: what rounding has taken from each."""
    if COMPENSATED:
        return zeros(ROWS, P0, P1, P2) + zeros(ROWS, P0, P1, P2)
    else:
        return zeros(ROWS, P0, P1, P2)


@triton.jit
def summed_up(weights, rows, onto, P1: tl.constexpr, P2: tl.constexpr):
    """added(), onto what sums() began: of fp32 the sum of thousands of blocks is as exact as of one."""
    if rows[0].dtype == tl.float32:
        count: tl.constexpr = 1 + (P1 > 0) + (P2 > 0)
        first, rest = compensated(tl.dot(weights, rows[0], input_precision="ieee"), onto[0], onto[count])
        if P2 > 0:
            second, rest_1 = compensated(tl.dot(weights, rows[1], input_precision="ieee"), onto[1], onto[4])
            third, rest_2 = compensated(tl.dot(weights, rows[2], input_precision="ieee"), onto[2], onto[5])
            return (first, second, third, rest, rest_1, rest_2)
        elif P1 > 0:
            second, rest_1 = compensated(tl.dot(weights, rows[1], input_precision="ieee"), onto[1], onto[3])
            return (first, second, rest, rest_1)
        else:
            return (first, rest)
    else:
        return added(weights, rows, onto, P1, P2)
