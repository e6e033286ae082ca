"""Attention with a cache, interpreted on the CPU, against float64: each feature by itself, then all of them at random.

The interpreter is wrong for fp8, so a quantized cache is one of fp16 here: scales and saturation are the same.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from attention import EVERYTHING
from cache import CacheCall, CacheImage, appended, divisor, run_in_fp16, run_with_cache, with_cache
from hypothesis import given, settings
from hypothesis import strategies as st
from interpreter import KERNELS

from kiln_recipe.read import recipe

pytestmark = pytest.mark.sample(4)

# Largest error that rounding explains, relative to 1 + the value.
TOLERANCE = {np.float16: 3e-3, np.float32: 3e-5}
MASKS = {
    "none": {},
    "causal": {"right": 0},
    "window": {"left": 7, "right": 3},
    "causal window": {"left": 20, "right": 0},
    "one key": {"left": 0, "right": 0},
}


def make(
    rows=1, keys=40, *, heads=2, heads_kv=1, batch=2, width=16, width_v=None, dtype=np.float32, seed=0,
    used=None, new_rows=None, page_size=None, rotary=0, cu_q=None, quantized=False, spare=0, **rest,
) -> CacheCall:  # fmt: skip
    """A call of normal random numbers; what no sequence has in its cache is NaN.

    Args:
        keys: how many the cache has room for.
        used: [batch]; None: all.
        page_size: pages, in a random order; None: a contiguous cache.
        rotary: how many columns are rotated.
        spare: batches that a contiguous cache has besides.
    """
    draw = np.random.default_rng(seed)

    def normal(*shape: int, dtype=dtype) -> np.ndarray:
        return draw.standard_normal(shape).astype(dtype)

    width_v = width_v or width
    rest.setdefault("sm_scale", 1 / math.sqrt(width))
    pages, size = batch + spare, keys
    if page_size is not None:
        each = -(-keys // page_size)
        pages, size = batch * each + 2, page_size
        rest["table"] = draw.permutation(pages)[: batch * each].reshape(batch, each)
    q = normal(1 if cu_q is not None else batch, heads, cu_q[-1] if cu_q is not None else rows, width)
    if new_rows is not None:
        rest |= {"k_new": normal(batch, heads_kv, new_rows, width), "v_new": normal(batch, heads_kv, new_rows, width_v)}
    if rotary:
        angles = draw.random((keys + 70, rotary // 2)) * 2 * np.pi
        rest |= {"cos": np.cos(angles).astype(dtype), "sin": np.sin(angles).astype(dtype)}
    if quantized:
        rest |= {"k_scale": draw.random(heads_kv) + 0.1, "v_scale": draw.random(heads_kv) + 0.1}
    cache_dtype = np.float16 if quantized else dtype
    call = CacheCall(
        q, np.full((pages, heads_kv, size, width), np.nan, cache_dtype),
        np.full((pages, heads_kv, size, width_v), np.nan, cache_dtype), used=used, cu_q=cu_q, **rest,
    )  # fmt: skip
    for sequence in range(batch):
        begin = 0 if call.leftpad is None else int(call.leftpad[sequence])
        where = call.places(sequence, np.arange(begin, keys if used is None else int(used[sequence])))
        for cache in (call.k_cache, call.v_cache):
            cache[where[0], :, where[1]] = normal(len(where[0]), heads_kv, cache.shape[3], dtype=cache_dtype)
    return call


def check(child, call: CacheCall, image: CacheImage = CacheImage(), layout: str = "contiguous") -> None:
    """Each result is right, and nothing else is written."""
    got = child.submit(run_with_cache, call, image, layout).result(timeout=300)
    k_cache, v_cache = appended(call)
    tolerance = TOLERANCE[call.q.dtype.type]
    # What is rotated and then rounded to a number of the cache may fall to either side: k is right to a rounding, and
    # out is that of the k which was cached. Nothing but a quotient is between v and what is cached of it.
    slack = tolerance if call.k_scale is None else max(tolerance, 2e-3)
    np.testing.assert_allclose(got.k_cache.astype(np.float64), k_cache, rtol=slack, atol=slack, err_msg="k_cache")
    np.testing.assert_array_equal(got.v_cache, v_cache, err_msg="v_cache")
    out, lse = with_cache(call, got.k_cache, v_cache)
    np.testing.assert_allclose(got.out.astype(np.float64), out, rtol=tolerance, atol=tolerance, err_msg="out")
    if image.want_lse:
        np.testing.assert_allclose(got.lse, lse, rtol=1e-6, atol=1e-5 if call.q.dtype == np.float32 else 2e-3)
    else:
        assert np.isnan(got.lse).all(), "lse was written although it was not wanted"


@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("lengths", [(1, 1), (1, 50), (3, 33), (37, 20), (20, 70)])
def test_masks_and_lengths(child, lengths, mask, splits):
    check(child, make(*lengths, **MASKS[mask]), CacheImage(splits=splits))


@pytest.mark.parametrize("splits", [2, 5, 16])
def test_splits_of_long_and_short_sequences(child, splits):
    check(child, make(2, 200, batch=4, used=np.array([200, 0, 17, 130]), right=0), CacheImage(splits=splits))


@pytest.mark.parametrize("splits", [1, 4])
@pytest.mark.parametrize("mask", MASKS)
def test_one_loop_for_all_keys(child, mask, splits):
    check(child, make(5, 70, **MASKS[mask]), CacheImage(unmasked_loop=False, splits=splits), "padded")


@pytest.mark.parametrize("blocks", [(16, 32), (32, 16), (64, 16), (16, 64)])
@pytest.mark.parametrize("mask", ["causal", "window"])
def test_blocks_of_other_shapes(child, blocks, mask):
    check(child, make(30, 150, heads=3, **MASKS[mask]), CacheImage(block_m=blocks[0], block_n=blocks[1], splits=2))


@pytest.mark.parametrize("heads", [(1, 1), (4, 4), (8, 1), (6, 2), (20, 1), (17, 1)])
@pytest.mark.parametrize("rows", [1, 7])
def test_heads_that_share_keys(child, heads, rows):
    check(child, make(rows, 50, heads=heads[0], heads_kv=heads[1], right=0), CacheImage(splits=2))


@pytest.mark.parametrize("width", [16, 64, 96, 128, 224, 256])
def test_head_sizes(child, width):
    check(child, make(2, 20, width=width, dtype=np.float16, right=0), CacheImage(splits=2))


@pytest.mark.parametrize("splits", [1, 2])
@pytest.mark.parametrize(("width", "width_v"), [(13, 13), (72, 72), (24, 16), (16, 48)])
def test_padded_head_sizes(child, width, width_v, splits):
    check(child, make(3, 20, width=width, width_v=width_v, right=0), CacheImage(splits=splits), "padded")


@pytest.mark.parametrize("layout", ["rows", "padded", "reversed"])
@pytest.mark.parametrize("page_size", [None, 16])
def test_strides(child, layout, page_size):
    call = make(3, 40, heads=4, heads_kv=2, page_size=page_size, used=np.array([30, 25]), new_rows=3, rotary=8, right=0)
    check(child, call, layout=layout)


@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize("page_size", [1, 3, 16, 17, 32, 64, 100])
def test_pages(child, page_size, splits):
    call = make(2, 100, batch=3, page_size=page_size, used=np.array([100, 0, 61]), right=0)
    check(child, call, CacheImage(block_n=32, splits=splits))


@pytest.fixture(scope="module")
def operation():
    return next(o for o in recipe.load(KERNELS / "recipe.yaml").operations if o.name == "attn_decode")


@pytest.mark.parametrize("page_size", [1, 2, 3, 7, 16, 48, 784, 1000, 65535, 65536, 2**30])
def test_the_recipe_divides_by_pages(operation, page_size):
    known = {"block_table.data": int(page_size != 2**30), "page_size": page_size}
    defined = {d.name: d.value for d in operation.definitions}
    for name in ("page_power", "page_shift"):
        known[name] = defined[name].evaluate(known)
    factors = {p.value for kernel in operation.kernels for p in kernel.parameters if p.name == "page_factor"}
    assert [(factor.evaluate(known), known["page_shift"]) for factor in factors] == [divisor(page_size)]


@pytest.mark.parametrize("page_size", [1, 2, 3, 7, 16, 48, 784, 1000, 65535, 65536, 2**30 - 1, 2**30])
def test_division_by_multiplication(page_size):
    factor, shift = divisor(page_size)
    assert 0 < factor < 2**32
    multiples = np.arange(max(2**31 // page_size - 3, 0), 2**31 // page_size, dtype=np.uint64) * np.uint64(page_size)
    numbers = np.concatenate([np.random.default_rng(0).integers(0, 2**31, 10000, np.uint64), multiples, multiples + 1])
    numbers = np.concatenate([numbers, np.maximum(multiples, 1) - np.uint64(1)])
    quotients = (2 * numbers * np.uint64(factor) >> np.uint64(32)) >> np.uint64(shift)
    np.testing.assert_array_equal(quotients, numbers // np.uint64(page_size))


@pytest.mark.parametrize("page_size", [None, 16])
def test_what_does_not_fit_is_neither_written_nor_seen(child, page_size):
    used = np.array([60, 64, 3])
    call = make(
        2, 64, batch=3, page_size=page_size, used=used, new_rows=7, right=0, rotary=8, spare=0 if page_size else 1
    )
    check(child, call, CacheImage(splits=2))


def test_batches_of_the_cache(child):
    cache_batch, used = np.array([4, 0, 3]), np.array([20, 37, 5])
    call = make(2, 40, batch=3, cache_batch=cache_batch, spare=2, used=used, new_rows=3, right=0)
    check(child, call, CacheImage(splits=2))


@pytest.mark.parametrize("mask", MASKS)
def test_left_padding(child, mask):
    call = make(3, 60, batch=4, leftpad=np.array([0, 5, 33, 40]), used=np.array([50, 60, 40, 40]), **MASKS[mask])
    check(child, call, CacheImage(splits=2))
    check(child, replace(call, slopes=np.random.default_rng(1).random((4, 2))))


def test_left_padding_of_what_is_appended(child):
    leftpad, used = np.array([0, 5, 33]), np.array([50, 41, 33])
    check(child, make(3, 60, batch=3, leftpad=leftpad, used=used, new_rows=3, rotary=16, right=0))


@pytest.mark.parametrize("page_size", [None, 16, 20])
@pytest.mark.parametrize("new_rows", [1, 5, 40])
def test_appending(child, page_size, new_rows):
    call = make(new_rows, 90, batch=3, page_size=page_size, used=np.array([50, 0, 13]), new_rows=new_rows, right=0)
    check(child, call, CacheImage(splits=2))


def test_appending_other_rows_than_are_asked(child):
    check(child, make(2, 90, used=np.array([50, 7]), new_rows=9, heads=4, heads_kv=2, width=20, width_v=40, right=0))


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("rotary", [8, 32, 40])
@pytest.mark.parametrize("mask", ["none", "causal", "window"])
def test_rotary(child, mask, rotary, interleaved):
    call = make(
        4, 60, width=40, used=np.array([50, 3]), new_rows=4, rotary=rotary, interleaved=interleaved, **MASKS[mask]
    )  # fmt: skip
    check(child, call)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("page_size", [None, 16])
def test_quantized(child, page_size, dtype):
    call = make(
        3, 60, heads=4, heads_kv=2, used=np.array([50, 3]), new_rows=4, page_size=page_size, quantized=True,
        dtype=dtype, rotary=16, right=0,
    )  # fmt: skip
    check(child, call, CacheImage(splits=2))


def test_quantized_values_are_saturated(child):
    call = make(3, 60, used=np.array([50, 3]), new_rows=3, quantized=True)
    call.k_new[0, 0, 0, :2] = 1e5, -1e5
    call.v_new[1, 0, 2, :2] = 1e5, -1e5
    got = child.submit(run_with_cache, call).result(timeout=300)
    assert list(got.k_cache[0, 0, 50, :2]) == [448, -448]
    assert list(got.v_cache[1, 0, 5, :2]) == [448, -448]


@pytest.mark.parametrize("splits", [1, 3])
def test_sinks(child, splits):
    sinks = np.array([0.5, -2.0, 9.0])
    check(child, make(5, 50, heads=3, sinks=sinks, right=0), CacheImage(splits=splits))
    check(child, make(5, 3, heads=3, sinks=sinks, right=0), CacheImage(splits=splits))


@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize("mask", ["none", "causal", "window"])
def test_alibi(child, mask, splits):
    slopes = np.random.default_rng(4).random((2, 6))
    check(child, make(5, 50, heads=6, heads_kv=2, slopes=slopes, **MASKS[mask]), CacheImage(splits=splits))


@pytest.mark.parametrize("softcap", [0.5, 30.0])
def test_soft_cap(child, softcap):
    check(child, make(5, 50, softcap=softcap, right=0), CacheImage(splits=2))


@pytest.mark.parametrize("sm_scale", [-0.25, 0.0, 1e-30, 5.0])
def test_scales(child, sm_scale):
    check(child, make(5, 50, sm_scale=sm_scale, right=0), CacheImage(splits=2))


def test_no_lse(child):
    for splits in (1, 2):
        check(child, make(3, 50), CacheImage(want_lse=False, splits=splits))


@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize("page_size", [None, 16])
@pytest.mark.parametrize("mask", MASKS)
def test_sequences_one_after_another(child, mask, page_size, splits):
    call = make(
        keys=60, batch=5, heads=3, cu_q=np.array([2, 19, 19, 22, 30, 31]), used=np.array([60, 30, 0, 5, 41]),
        page_size=page_size, **MASKS[mask],
    )  # fmt: skip
    check(child, call, CacheImage(splits=splits))


@st.composite
def calls(draw) -> tuple[CacheCall, CacheImage, str]:
    heads_kv, group = draw(st.sampled_from([(1, 1), (2, 1), (1, 3), (2, 3), (1, 8)]))
    batch, rows, keys = draw(st.sampled_from([1, 2])), draw(st.sampled_from([1, 1, 2, 9])), draw(st.integers(1, 70))
    heads, width = heads_kv * group, draw(st.integers(1, 70))
    some = st.booleans()
    generator = np.random.default_rng(draw(st.integers(0, 99)))
    used = generator.integers(0, keys + 1, batch) if draw(some) else None
    page_size = draw(st.sampled_from([None, 1, 16, 24])) if used is not None else None
    new_rows = None
    rest: dict = {}
    if used is not None and draw(some):
        new_rows = draw(st.sampled_from([1, 3, 20]))
        rest["rotary"] = draw(st.sampled_from([0, width // 2 * 2, width // 4 * 2]))
        rest["interleaved"] = draw(some)
    elif draw(some):
        rest["cu_q"] = np.concatenate([[0], np.cumsum(generator.integers(0, rows + 1, batch))])
    if page_size is None and used is not None and draw(some):
        rest["leftpad"] = generator.integers(0, used + 1)
    if page_size is None and draw(some):
        rest |= {"cache_batch": generator.permutation(batch + 1)[:batch], "spare": 1}
    call = make(
        rows, keys + (new_rows or 0), heads=heads, heads_kv=heads_kv, batch=batch, width=width,
        width_v=draw(st.sampled_from([width, 11])), dtype=draw(st.sampled_from([np.float16, np.float32])),
        seed=draw(st.integers(0, 99)), used=used, new_rows=new_rows, page_size=page_size, quantized=draw(some),
        left=draw(st.sampled_from([EVERYTHING, 0, 5, 30])), right=draw(st.sampled_from([EVERYTHING, 0, 5])),
        softcap=draw(st.sampled_from([0.0, 0.0, 2.0])), slopes=generator.random((batch, heads)) if draw(some) else None,
        sinks=generator.standard_normal(heads) if draw(some) else None, **rest,
    )  # fmt: skip
    image = CacheImage(
        block_m=draw(st.sampled_from([16, 32])), block_n=draw(st.sampled_from([16, 32])), unmasked_loop=draw(some),
        splits=draw(st.sampled_from([1, 2, 5])),
    )  # fmt: skip
    return call, image, draw(st.sampled_from(["contiguous", "rows", "padded", "reversed"]))


@settings(max_examples=40, deadline=None)
@given(calls())
def test_everything_together(child, drawn):
    check(child, *drawn)


def test_rows_in_fp16_keep_what_they_are(child):
    """What queries of bf16 become beside a cache of fp8: exact, whatever their size."""
    rows = np.zeros((16, 64), np.float32)
    draw = np.random.default_rng(5)
    rows[1:13] = draw.standard_normal((12, 64)) * 2.0 ** draw.integers(-14, 1, (12, 64))
    rows = (rows.view(np.uint32) & 0xFFFF0000).view(np.float32)  # as bf16 has it
    rows[2:5] *= np.float32([2.0**-120, 2.0**120, 2.0**-133])[:, None]
    rows[13, 5], rows[14, 5], rows[15, 5] = np.inf, -1.5 * 2.0**127, np.nan
    halves, unit = child.submit(run_in_fp16, rows).result(timeout=300)
    assert np.isfinite(unit).all() and (unit > 0).all()
    with np.errstate(invalid="ignore"):
        found = halves.astype(np.float64) * unit[:, None]
    assert np.array_equal(found[:4], rows[:4]) and np.array_equal(found[5:], rows[5:], equal_nan=True)
    # Smaller than a normal number of fp32: what fp16 keeps of it.
    assert np.abs(found[4] - rows[4]).max() <= 2.0**-24 * unit[4]
    finite = np.isfinite(rows).all(axis=1) & (unit > 2.0**-126)
    assert (np.abs(halves[finite]).max(axis=1) < 2.0**15).all()
