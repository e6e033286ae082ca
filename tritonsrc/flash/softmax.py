"""Softmax, in base 2: exp(x) = exp2(x * log2(e)).

log2(e) is a factor of what a score is multiplied by in the subtraction of the maximum, so it costs nothing, and so the
score is not rounded once more: where scores are large, that would be more than all other errors.

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
def weighed(row_max, row_sum, scores, scale, MASKED: tl.constexpr, HEADROOM: tl.constexpr = 0.0):
    """A block of scores, [rows, keys], taken into the running softmax.

    Args:
        row_max: what weights are relative to, in base 2: the largest score so far, less HEADROOM.
        scale: of the scores, in base 2, not negative.
        MASKED: a score may be -inf; then the scale is above 0.
        HEADROOM: no weight is above 2^HEADROOM.

    Returns:
        The block's weights relative to the new row_max, what to multiply the output so far by, and the new row_max and
        row_sum.
    """
    # The largest score is the largest times the scale.
    new_max = tl.maximum(row_max, tl.max(scores, 1) * scale - HEADROOM)
    if MASKED:
        # A row that has seen no key yet: -inf - -inf would be NaN.
        shift = tl.where(new_max == float("-inf"), 0.0, new_max)
    else:
        shift = new_max
    p = tl.math.exp2(scores * scale - shift[:, None])
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
def shift_of(lse, EXACT: tl.constexpr):
    """What weights_of() subtracts: the log-sum-exp, in base 2 unless EXACT; inf for rows that see nothing, whose
    weights are all 0."""
    lse = tl.where(lse == float("-inf"), float("inf"), lse)
    if EXACT:
        return lse
    else:
        return lse * LOG2E


@triton.jit
def weights_of(
    products, lse, scale, softcap, bias_ptr, stride_bm, slope, rows, keys, distance, inside, seen, flags,
    EXACT: tl.constexpr, TRANSPOSED: tl.constexpr, MASKED: tl.constexpr, EXTRAS: tl.constexpr,
):  # fmt: skip
    """Softmax's weights, and what shaped() says of the soft cap.

    Args:
        products: [rows, keys], or [keys, rows] if TRANSPOSED, as what is returned.
        lse: [rows], as shift_of() gives it.
        inside: [rows, keys], where there is a bias.
        seen: as products; looked at if MASKED.
        EXACT: of fp32: the log-sum-exp is subtracted as it is, and the difference is multiplied by log2(e): an
            operation more, a rounding of a large number less.
    """
    AXIS: tl.constexpr = 0 if TRANSPOSED else 1
    steepness = products
    scores = products
    factor = scale
    if EXTRAS != "none" and EXTRAS != "dropout":
        factor = 1.0
        if TRANSPOSED:
            products = products.T
        scores, steepness = shaped(
            products, scale, softcap, bias_ptr, stride_bm, slope, rows, keys, distance, inside, flags, EXTRAS
        )  # fmt: skip
        if TRANSPOSED:
            scores = scores.T
            steepness = steepness.T
    if EXACT:
        p = tl.math.exp2((scores * factor - tl.expand_dims(lse, AXIS)) * LOG2E)
    else:
        p = tl.math.exp2(scores * (factor * LOG2E) - tl.expand_dims(lse, AXIS))
    if MASKED:
        p = tl.where(seen, p, 0.0)
    return p, steepness
