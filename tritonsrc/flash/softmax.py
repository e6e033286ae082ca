"""Softmax, in base 2: exp(x) = exp2(x * log2(e)), and log2(e) is folded into the scale of the scores.

Forward meets the keys in blocks and never has all scores of a row: it keeps the largest so far, row_max, and the sum of
exponentials relative to it, row_sum (attn_fwd.py names the source). Backward has the log-sum-exp, and computes weights
from scores directly.
"""

import triton
import triton.language as tl
from scores import LOG2E, shaped

LN2 = tl.constexpr(0.6931471805599453)


@triton.jit
def started(ROWS: tl.constexpr):
    """row_max and row_sum of rows that have seen no key."""
    return tl.full([ROWS], float("-inf"), tl.float32), tl.zeros([ROWS], tl.float32)


@triton.jit
def weighed(row_max, row_sum, scores, scale, UNSCALED: tl.constexpr):
    """A block of scores, [rows, keys], taken into the running softmax.

    Args:
        scale: of the scores if they are UNSCALED; then it is not negative, and no score is -inf.

    Returns:
        The block's weights relative to the new maximum, what to multiply the output so far by, and the new row_max and
        row_sum.
    """
    if UNSCALED:
        # The largest product is the largest score. Scale and subtract in one operation.
        new_max = tl.maximum(row_max, tl.max(scores, 1) * scale)
        p = tl.math.exp2(scores * scale - new_max[:, None])
        correction = tl.math.exp2(row_max - new_max)
    else:
        new_max = tl.maximum(row_max, tl.max(scores, 1))
        # A row that has seen no key yet: -inf - -inf would be NaN.
        shift = tl.where(new_max == float("-inf"), 0.0, new_max)
        p = tl.math.exp2(scores - shift[:, None])
        correction = tl.math.exp2(row_max - shift)
    return p, correction, new_max, row_sum * correction + tl.sum(p, 1)


@triton.jit
def with_sink(row_max, row_sum, sinks):
    """The running softmax with a key without a value, its score in base 2: what to multiply the output by, and the new
    row_max and row_sum."""
    new_max = tl.maximum(row_max, sinks)
    shift = tl.where(new_max == float("-inf"), 0.0, new_max)
    correction = tl.math.exp2(row_max - shift)
    return correction, new_max, row_sum * correction + tl.math.exp2(sinks - shift)


@triton.jit
def divisor_of(row_sum):
    """What to divide the output by: 1 for a row that saw no key."""
    return tl.where(row_sum == 0.0, 1.0, row_sum)


@triton.jit
def log_sum_exp(row_max, row_sum):
    """The natural logarithm, rounded once behind row_max; -inf for a row that saw no key."""
    return tl.fma(row_max, tl.full(row_max.shape, LN2, tl.float32), tl.math.log2(divisor_of(row_sum)) * LN2)


@triton.jit
def shift_of(lse):
    """What backward subtracts from scores in base 2: the log-sum-exp; inf for rows that see nothing, whose weights are
    all 0."""
    return tl.where(lse == float("-inf"), float("inf"), lse) * LOG2E


@triton.jit
def weights_of(
    products, lse, scale, softcap, bias_ptr, stride_bm, slope, rows, keys, distance, inside, seen, flags,
    TRANSPOSED: tl.constexpr, MASKED: tl.constexpr, EXTRAS: tl.constexpr,
):  # fmt: skip
    """Softmax's weights, and what shaped() says of the soft cap; anything where there is none.

    Args:
        products: [rows, keys], or [keys, rows] if TRANSPOSED, as what is returned.
        lse: [rows], as shift_of() gives it.
        inside: [rows, keys], where there is a bias.
        seen: as products; looked at if MASKED.
    """
    AXIS: tl.constexpr = 0 if TRANSPOSED else 1
    squeezed = products
    if EXTRAS == "none" or EXTRAS == "dropout":
        p = tl.math.exp2(products * scale - tl.expand_dims(lse, AXIS))
    else:
        if TRANSPOSED:
            products = products.T
        scores, squeezed = shaped(
            products, scale, softcap, bias_ptr, stride_bm, slope, rows, keys, distance, inside, flags, EXTRAS
        )  # fmt: skip
        if TRANSPOSED:
            scores = scores.T
            squeezed = squeezed.T
        p = tl.math.exp2(scores - tl.expand_dims(lse, AXIS))
    if MASKED:
        p = tl.where(seen, p, 0.0)
    return p, squeezed
