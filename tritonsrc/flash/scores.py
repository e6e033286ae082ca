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
    """tanh(x): near 0 by its series, where the difference that it is otherwise would have lost its last bits."""
    square = x * x
    near = x * (
        1.0 + square * (-1.0 / 3.0 + square * (2.0 / 15.0 + square * (-17.0 / 315.0 + square * (62.0 / 2835.0))))
    )
    far = 1.0 - 2.0 / (tl.math.exp2(x * (2.0 * LOG2E)) + 1.0)
    return tl.where(square < 0.0625, near, far)


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
    """The scores of a block, before its mask, and what the soft cap's derivative needs.

    Args:
        products: [rows, keys] fp32, q k^T.
        softcap: scores become softcap * tanh(score / softcap).
        bias_ptr: the bias of row 0 and key 0 of this head.
        slope: ALiBi's, times |row + distance - key|.
        rows, keys: their numbers.
        inside: [rows, keys], where there is a bias.

    Returns:
        The scores, and tanh(score / softcap), of which only derivative() of attn_bwd.py takes notice; anything where
        there is no soft cap.
    """
    scores = products * scale
    squeezed = scores
    if EXTRAS == "softcap":
        squeezed = squashed(scores / softcap)
        scores = squeezed * softcap
    if EXTRAS == "any":
        squeezed = tl.zeros_like(scores)
        if flags & SOFTCAP:
            squeezed = squashed(scores / softcap)
            scores = squeezed * softcap
    if EXTRAS == "bias" or EXTRAS == "any":
        addresses = bias_ptr + rows[:, None].to(tl.int64) * stride_bias + keys[None, :]
        there = inside & ((flags & BIAS) != 0)
        scores += tl.load(addresses, mask=there, other=0.0).to(tl.float32)
        scores -= slope * tl.abs(rows[:, None] + distance - keys[None, :]).to(tl.float32)
    return scores, squeezed
