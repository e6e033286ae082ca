"""Calls of attention for the tests of its kernels: made, drawn, and checked against float64."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from attention import EVERYTHING, Call, attention
from hypothesis import strategies as st
from interpreter import Image, run

# Largest error that rounding explains, relative to 1 + the value: of P and the gradients' factors in fp16, or of fp32.
TOLERANCE = {np.float16: 3e-3, np.float32: 3e-5}
MASKS = {
    "none": {},
    "causal": {"right": 0},
    "causal, bottom right": {"right": 0, "bottom_right": True},
    "window": {"left": 7, "right": 3},
    "window, bottom right": {"left": 20, "right": 0, "bottom_right": True},
    "one key": {"left": 0, "right": 0},
}


def make(
    rows=33, keys=40, *, heads=1, heads_kv=1, batch=1, width=16, width_v=None, dtype=np.float32, seed=0, **rest
) -> Call:
    """A call of normal random numbers, with gradients."""
    draw = np.random.default_rng(seed)

    def normal(*shape: int) -> np.ndarray:
        return draw.standard_normal(shape).astype(dtype)

    width_v = width_v or width
    rest.setdefault("sm_scale", 1 / math.sqrt(width))
    return Call(
        q=normal(batch, heads, rows, width), k=normal(batch, heads_kv, keys, width),
        v=normal(batch, heads_kv, keys, width_v), dout=normal(batch, heads, rows, width_v), **rest,
    )  # fmt: skip


def check(child, call: Call, image: Image = Image(), layout: str = "contiguous") -> None:
    """Each result is right, and nothing else is written."""
    got = child.submit(run, call, image, layout).result(timeout=300)
    expected = attention(call)
    tolerance = TOLERANCE[call.q.dtype.type] / (1 - call.dropout)
    for name in ("out", "dq", "dk", "dv", "dbias", "dsinks"):
        one, other = getattr(got, name), getattr(expected, name)
        if other is not None:
            scale = 4 if name[0] == "d" else 1  # a gradient is the product of one more rounded factor
            np.testing.assert_allclose(
                one.astype(np.float64), other, rtol=scale * tolerance, atol=scale * tolerance, err_msg=name
            )
    if image.want_lse:
        np.testing.assert_allclose(got.lse, expected.lse, rtol=1e-6, atol=1e-5 if call.q.dtype == np.float32 else 1e-4)
    else:
        assert np.isnan(got.lse).all(), "lse was written although it was not wanted"


def check_reach_of_nan(child, length: int, image: Image) -> None:
    """A key that is no number in its middle reaches the rows that see it, and no others."""
    call, middle = make(length, length, right=0), length // 2
    call.k[0, 0, middle, 3] = np.nan
    got = child.submit(run, replace(call, dout=None), image).result(timeout=300)
    seen = np.isnan(got.out).any(axis=3)[0, 0]
    assert not seen[:middle].any() and seen[middle:].all()
    assert not np.isnan(got.lse[0, 0, :middle]).any() and np.isnan(got.lse[0, 0, middle:]).all()


@st.composite
def drawn_calls(draw: Callable, most_keys: int, extras: bool, **choices: st.SearchStrategy) -> tuple[Call, Image, str]:
    """Calls, images and layouts.

    Args:
        extras: whether calls may have a soft cap, dropout, a bias and ALiBi.
        choices: of Image's fields, besides those that are always drawn.
    """
    heads_kv, group, batch = draw(st.sampled_from([1, 2])), draw(st.sampled_from([1, 3])), draw(st.sampled_from([1, 2]))
    rows, keys = draw(st.integers(1, 50)), draw(st.integers(0, most_keys))
    heads, width = heads_kv * group, draw(st.integers(1, 80))
    some = st.booleans()
    generator = np.random.default_rng(draw(st.integers(0, 99)))
    more = {}
    if extras:
        shape = (draw(st.sampled_from([batch, 1])), draw(st.sampled_from([heads, 1])), rows, keys)
        more = {
            "softcap": draw(st.sampled_from([0.0, 0.0, 2.0])), "dropout": draw(st.sampled_from([0.0, 0.0, 0.5])),
            "offset": draw(st.integers(0, 2**40)),
            "bias": generator.standard_normal(shape).astype(np.float32) if keys and draw(some) else None,
            "slopes": generator.random((batch, heads)) if draw(some) else None,
        }  # fmt: skip
    call = make(
        rows, keys, heads=heads, heads_kv=heads_kv, batch=batch, width=width,
        width_v=draw(st.sampled_from([width, 11])),
        dtype=draw(st.sampled_from([np.float16, np.float32])), seed=draw(st.integers(0, 99)),
        left=draw(st.sampled_from([EVERYTHING, 0, 5, 30, 60])), right=draw(st.sampled_from([EVERYTHING, 0, 5])),
        bottom_right=draw(some), sinks=generator.standard_normal(heads) if draw(some) else None, **more,
    )  # fmt: skip
    if draw(some):
        call = replace(call, used_k=generator.integers(0, keys + 1, batch))
    image = Image(
        block_m=draw(st.sampled_from([16, 32])), block_n=draw(st.sampled_from([16, 32])), unmasked_loop=draw(some),
        **{name: draw(choice) for name, choice in choices.items()},
    )  # fmt: skip
    return call, image, draw(st.sampled_from(["contiguous", "rows", "padded", "reversed"]))
