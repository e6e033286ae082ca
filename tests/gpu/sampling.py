"""Random calls. The same seed gives the same calls, on every machine; call n does not depend on how many there are."""

from __future__ import annotations

import dataclasses
import random

from calls import SHARED, SINKS, Call
from decode_calls import DecodeCall
from storage import ALIGNED, UNALIGNED

LENGTHS = (1, 2, 63, 64, 65, 127, 1023, 2047, 4097)
WIDTHS = (16, 32, 48, 64, 80, 96, 128, 160, 192, 224, 256)
MOST_SCORES = 1 << 25
# Fewer numbers than these make the largest error a matter of luck.
FEWEST_ELEMENTS = 512
MOST_ROWS = 1 << 20  # of all heads together: each may be 256 wide, and the reference holds them in float64


class _Draw(random.Random):
    def some(self, share: float) -> bool:
        """True in about this share of calls."""
        return self.random() < share


def _width(draw: _Draw, dtype: str) -> int:
    kind = draw.random()
    if kind < 0.5:
        return draw.choice((64, 128))
    if kind < 0.75:
        return draw.choice(WIDTHS)
    return draw.choice((512, 264, 511)) if kind < 0.78 and dtype != "fp32" else draw.randint(1, 256)


def _lengths(draw: _Draw, longest: int, count: int, least: int = 1) -> tuple[int, ...]:
    """Far apart, some of them 0, none of them below `least` else; one is the longest."""
    lengths = [draw.choice([0, *(n for n in LENGTHS if least <= n <= longest)]) for _ in range(count)]
    lengths[draw.randrange(count)] = longest
    return tuple(lengths)


def random_call(seed: int, number: int) -> Call:
    draw = _Draw(f"kiln {seed} {number}")
    dtype = draw.choice(("bf16", "bf16", "fp16", "fp16", "fp32"))
    rows = draw.choice((*LENGTHS, draw.randint(1, 600)))
    keys = rows if draw.some(0.35) else draw.choice((*LENGTHS, draw.randint(1, 600), 0))
    batch = draw.choice((1, 1, 2, 3))
    heads_kv, group = draw.choice((1, 2, 3)), draw.choice((1, 1, 2, 4))
    width = _width(draw, dtype)
    sinks = draw.some(0.2)
    if sinks and heads_kv * group < SINKS:
        group = SINKS
    while heads_kv * group * batch * rows * max(keys, 1) > MOST_SCORES and (batch, heads_kv, group) != (1, 1, 1):
        if batch > 1:
            batch -= 1
        elif heads_kv > 1:
            heads_kv -= 1
        else:
            group //= 2
    sinks = sinks and heads_kv * group >= SINKS
    while heads_kv * group * batch * rows * width < FEWEST_ELEMENTS:
        heads_kv *= 2
    while heads_kv * batch * max(keys, 1) * width < FEWEST_ELEMENTS and heads_kv * group * batch * rows < MOST_ROWS:
        heads_kv *= 2
    varlen = draw.choice(("compact", "compact", "padded", "both")) if draw.some(0.35) else ""
    batch = draw.choice((2, 3, 5)) if varlen and rows * keys < 1 << 20 else batch
    mask = draw.choice(("none", "causal", "causal", "causal, bottom right", "window", "window, bottom right"))
    left = draw.choice((-1, 0, 1, 40, 64, 1000)) if mask.startswith("window") else -1
    right = draw.choice((-1, 0, 1, 40, 64, 1000)) if mask.startswith("window") else -1
    extra = draw.choice(("", "", "", "bias", "alibi", "softcap", "dropout", "several"))

    def has(name: str) -> bool:
        return extra == name or (extra == "several" and draw.some(0.5))

    inputs = draw.choice(("normal", "normal", "normal", "means", "outliers", "hot row"))
    inputs = draw.choice(("means", *SHARED)) if inputs == "means" else inputs
    # Where each row sees one key, gradients are 0 by cancellation: rounding of large numbers says nothing then.
    few = min(rows, keys) <= 2 or (0 <= left <= 1 and 0 <= right <= 1)
    inputs = "normal" if few or batch > 3 else inputs
    softcap = draw.choice((1.0, 15.0, 50.0)) if has("softcap") else 0.0
    alibi = draw.choice(("heads", "batch")) if has("alibi") else ""
    bias = draw.choice(("none", "batch", "heads", "both", "rows", "hides")) if has("bias") and keys else ""
    # Far from all keys that it sees, a row's log-sum-exp is in the hundreds: too coarse in fp32 for backward.
    is_near = rows <= keys and not varlen and (mask == "none" or "bottom" in mask)
    backward = draw.some(0.7) and (dtype != "fp32" or not alibi or is_near)
    backward = backward and not (dtype == "fp32" and few and max(rows, keys) > 127)  # sums of one rounding error
    dropout = draw.choice((0.1, 0.5, 0.8)) if has("dropout") and not few else 0.0
    # Nor do sums over many rows that see a key or two, beside other sequences whose gradients are none of rounding's.
    least = 3 if backward and (dropout or rows > 127) else 1
    lengths_q = _lengths(draw, rows, batch) if varlen else ()
    lengths_k = _lengths(draw, keys, batch, least) if varlen else ()
    if varlen and (mask == "causal" or (mask == "window" and 0 <= right <= 1)):
        few = few or max((r for r, k in zip(lengths_q, lengths_k) if k), default=0) <= 2
    # dbias is p (dp - D), and D the product of an output that was rounded to 16 bits.
    backward = backward and not (few and (varlen or (bias and dtype != "fp32")))
    return Call(
        dtype=dtype, batch=batch, heads=heads_kv * group, heads_kv=heads_kv, rows=rows, keys=keys, width=width,
        width_v=_width(draw, dtype) if draw.some(0.15) else 0,
        layout=draw.choice((*ALIGNED, *UNALIGNED)) if draw.some(0.6) else "contiguous",
        layout_out=draw.choice(("rows", "padded", "reversed", *UNALIGNED)) if draw.some(0.4) else "contiguous",
        causal=mask.startswith("causal"), bottom_right="bottom" in mask, left=left, right=right,
        bias=bias, sinks=sinks, alibi=alibi, softcap=softcap,
        dropout=dropout, seed=draw.getrandbits(63),
        offset=draw.getrandbits(62), in_memory=draw.some(0.5), varlen_q=varlen,
        varlen_k=draw.choice(("compact", "padded", "both")) if varlen and draw.some(0.2) else varlen,
        lengths_q=lengths_q, lengths_k=lengths_k, inputs=inputs,
        sm_scale=draw.choice((0.0, 0.0, 0.0, 0.05, 1.0 if inputs == "normal" and not few else 0.2, -0.3)),
        want_lse=draw.some(0.8), backward=backward, deterministic=draw.some(0.3),
        longest=bool(bias) or draw.some(0.8), number=draw.getrandbits(40),
    )  # fmt: skip


def random_decode(seed: int, number: int, has_fp8: bool, has_latent: bool = False) -> DecodeCall:
    draw = _Draw(f"kiln decode {seed} {number}")
    batch, heads_kv = draw.choice((1, 2, 5)), draw.choice((1, 2, 4))
    rows = draw.choice((1, 1, 2, 3, 7, 16, 33, 130))
    width = draw.choice((64, 64, 128, 128, draw.choice(WIDTHS), draw.randint(2, 256)))
    keys = draw.choice((17, 64, 500, 1500, 4097))
    lengths_q = (*(draw.choice((0, 1, 2, rows)) for _ in range(batch - 1)), rows) if draw.some(0.2) else ()
    new_rows = draw.choice((1, rows, 5)) if draw.some(0.5) and not lengths_q else 0
    new_rows = min(new_rows, keys)
    page_size = draw.choice((16, 17, 32, 64, 100, 128, 256)) if draw.some(0.5) else 0
    has_used = bool(new_rows or page_size) or draw.some(0.6)
    used = tuple(min(draw.choice((0, 1, keys // 2, keys)), keys - new_rows) for _ in range(batch)) if has_used else ()
    masked = draw.choice(("", "causal", "causal", "left", "both"))
    fp8 = has_fp8 and draw.some(0.25)
    rotary_dim = draw.choice((2, 16, 32, width)) // 2 * 2
    call = DecodeCall(
        dtype=draw.choice(("bf16", "fp16")) if fp8 else draw.choice(("bf16", "bf16", "fp16", "fp16", "fp32")),
        batch=batch, heads=heads_kv * draw.choice((1, 2, 4, 8)), heads_kv=heads_kv, rows=rows, lengths_q=lengths_q,
        keys=keys, used=used, width=width, width_v=draw.choice((32, 96)) if draw.some(0.1) else 0, page_size=page_size,
        new_rows=new_rows, rotary=draw.choice(("", "half", "interleaved")) if new_rows and rotary_dim <= width else "",
        rotary_dim=rotary_dim, fp8=fp8, cache_batch=not page_size and draw.some(0.3),
        leftpad=not page_size and draw.some(0.2), causal=masked == "causal",
        left=37 if masked in ("left", "both") else -1, right=3 if masked == "both" else -1,
        softcap=20.0 if draw.some(0.15) else 0.0, sinks=draw.some(0.2),
        alibi=draw.choice(("heads", "batch")) if draw.some(0.15) else "", splits=draw.choice((0, 0, 1, 2, 5, 16)),
        layout=draw.choice(("contiguous", "rows", "odd rows", "padded")), want_lse=draw.some(0.8),
        sm_scale=draw.choice((0.0, 0.0, 0.05, 0.5, -0.2)), longest=draw.some(0.8),
        longest_k=draw.choice((0, 0, max(used or (keys,)) + new_rows, keys, 2 * keys)), number=draw.getrandbits(40),
        inputs=draw.choice(("normal", "normal", "normal", *SHARED)),
    )  # fmt: skip
    if not (has_latent and call.dtype != "fp32" and draw.some(0.1)):
        return call
    return dataclasses.replace(
        call, latent=True, width=576, width_v=512, heads=draw.choice((4, 16, 40, 128)), heads_kv=1, fp8=False,
        rotary="", softcap=0.0, alibi="", page_size=page_size and draw.choice((1, 16, 64, page_size)),
    )  # fmt: skip
