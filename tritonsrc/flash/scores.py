"""What may happen to a score between q k^T and the softmax: a soft cap, a bias, ALiBi.

EXTRAS says which of them an image knows, besides dropout: "none"; "bias", which means a bias, ALiBi or both; "softcap";
"dropout"; "any", all of them together, by branches. Branches in the loop over keys cost three quarters of the speed,
taken or not: that is why there are images for each alone, but for fp32 and for unaligned tensors.
"""

import triton
import triton.language as tl
from flags import ALIBI, BIAS, SOFTCAP

LOG2E = tl.constexpr(1.4426950408889634)


@triton.constexpr_function
def known(extras, dtype, unmasked_loop):
    """What an image knows: for fp32, and where there is one loop for all keys, nothing or all."""
    return "any" if extras != "none" and (dtype == tl.float32 or not unmasked_loop) else extras


@triton.jit
def squashed(x):
    """tanh(x) and its derivative, neither as a difference of what is almost equal: near 0 tanh is a series, far from it
    its derivative is no 1 - tanh²."""
    square = x * x
    series = 1.0 + square * (-1.0 / 3.0 + square * (2.0 / 15.0 + square * (-17.0 / 315.0 + square * (62.0 / 2835.0))))
    small = tl.math.exp2(tl.abs(x) * (-2.0 * LOG2E))
    inverse = 1.0 / (1.0 + small)
    far = (1.0 - small) * inverse
    tanh = tl.where(square < 0.0625, x * series, tl.where(x < 0.0, -far, far))
    return tanh, 4.0 * small * inverse * inverse


@triton.jit
def slope_of(slopes_ptr, batch, stride_sb, head, flags, EXTRAS: tl.constexpr):
    """ALiBi's slope, 0 where there is none."""
    if EXTRAS == "bias" or EXTRAS == "any":
        return tl.load(slopes_ptr + batch.to(tl.int64) * stride_sb + head, mask=(flags & ALIBI) != 0, other=0.0)
    else:
        return 0.0


@triton.jit
def shaped(
    products, scale, softcap, bias_ptr, stride_bias, slope, rows, keys, distance, inside, flags, EXTRAS: tl.constexpr
):  # fmt: skip
    """The scores of a block, before its mask, and the soft cap's derivative.

    Args:
        products: [rows, keys] fp32, q k^T.
        softcap: scores become softcap * tanh(score / softcap).
        bias_ptr: the bias of row 0 and key 0 of this head.
        slope: ALiBi's, times |row + distance - key|.
        rows, keys: their numbers.
        inside: [rows, keys], where there is a bias.

    Returns:
        The scores, and what a gradient of them is to be multiplied by for the soft cap; of use if EXTRAS is "softcap"
        or "any".
    """
    scores = products * scale
    steepness = scores
    if EXTRAS == "softcap":
        scores, steepness = squashed(scores / softcap)
        scores *= softcap
    if EXTRAS == "any":
        steepness = tl.full(scores.shape, 1.0, tl.float32)
        if flags & SOFTCAP:
            scores, steepness = squashed(scores / softcap)
            scores *= softcap
    if EXTRAS == "bias" or EXTRAS == "any":
        addresses = bias_ptr + rows[:, None].to(tl.int64) * stride_bias + keys[None, :]
        there = inside & ((flags & BIAS) != 0)
        scores += tl.load(addresses, mask=there, other=0.0).to(tl.float32)
        scores -= slope * tl.abs(rows[:, None] + distance - keys[None, :]).to(tl.float32)
    return scores, steepness
