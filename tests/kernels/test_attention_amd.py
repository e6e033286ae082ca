"""The forward for AMD's GPUs (attn_fwd_amd.py), interpreted on the CPU, against float64: all that it serves, in both
orders of its loop, and with both ways to load. The gradients, which are everybody's, take its log-sum-exp."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from attention import attention
from attention_calls import MASKS, check, check_reach_of_nan, drawn_calls, make
from hypothesis import given, settings
from hypothesis import strategies as st
from interpreter import Image, run

pytestmark = pytest.mark.sample(3)

ORDERS = ["in turn", "ahead", "near"]  # near: in turn, with offsets of 32 bits


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("lengths", [(1, 37), (33, 16), (40, 75), (20, 0), (20, 64)])
def test_masks_and_lengths(child, lengths, mask, order):
    check(child, make(*lengths, **MASKS[mask]), Image(amd=order))


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("blocks", [(16, 32), (64, 16)])
@pytest.mark.parametrize("mask", ["none", "causal", "window, bottom right"])
def test_blocks_of_other_shapes(child, blocks, mask, order):
    check(child, make(70, 131, **MASKS[mask]), Image(block_m=blocks[0], block_n=blocks[1], amd=order))


@pytest.mark.parametrize("mask", MASKS)
def test_one_loop_for_all_keys(child, mask):
    check(child, make(35, 50, **MASKS[mask]), Image(unmasked_loop=False, amd="ahead"), "padded")


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(("width", "width_v"), [(64, 64), (128, 128), (50, 64), (72, 40), (1, 7), (96, 96)])
def test_head_sizes(child, width, width_v, order):
    call = make(20, 50, width=width, width_v=width_v, dtype=np.float16, right=0, bottom_right=True)
    check(child, call, Image(amd=order))


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("layout", ["rows", "padded", "reversed"])
def test_strides_groups_and_batches(child, layout, order):
    check(child, make(19, 67, heads=4, heads_kv=2, batch=2), Image(amd=order), layout)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("mask", MASKS)
def test_sequences_one_after_another(child, mask, order):
    cu_q, cu_k = np.array([0, 17, 17, 20, 45]), np.array([0, 5, 50, 50, 90])
    call = make(45, 90, heads=2, heads_kv=1, cu_q=cu_q, cu_k=cu_k, lse_by_sequence=order == "ahead", **MASKS[mask])
    check(child, replace(call, sinks=np.array([0.5, -2.0])), Image(amd=order))


@pytest.mark.parametrize("order", ORDERS)
def test_padded_sequences(child, order):
    used_q, used_k = np.array([20, 0, 7]), np.array([3, 18, 50])
    call = make(20, 50, heads=2, heads_kv=2, batch=3, right=0, bottom_right=True)
    check(child, replace(call, used_q=used_q, used_k=used_k), Image(amd=order))
    cu_q, cu_k = np.array([3, 23, 23, 30]), np.array([0, 3, 21, 71])
    check(child, replace(call, cu_q=cu_q, cu_k=cu_k, padded=True), Image(amd=order))


@pytest.mark.parametrize("order", ORDERS)
def test_no_lse_and_sinks(child, order):
    call = make(20, 50, heads=3, heads_kv=3, sinks=np.array([0.5, -2.0, 9.0]))
    check(child, call, Image(amd=order))
    check(child, replace(call, dout=None, sinks=None), Image(want_lse=False, amd=order))
    check(child, make(20, 30, sinks=np.array([0.5]), left=2, right=-1), Image(amd=order))


def test_many_small_weights_of_fp16(child):
    """Beside a key with nearly all of the weight and no value, each of 4,096 has about e^-14 of it, less than fp16's
    normal numbers. What rounding takes off them adds up: if it cut off, to 4 % of the output."""
    keys = 4097
    call = make(16, keys, width=64, dtype=np.float16, sm_scale=1.0)
    for array in (call.q, call.k, call.v):
        array[:] = 0
    call.q[..., 0], call.v[:, :, 1:] = 1, 1
    call.k[:, :, 0, 0], call.k[:, :, 1:, 0] = 14, np.linspace(0, 0.5, keys - 1)
    call = replace(call, dout=None)
    for order in ORDERS:
        got = child.submit(run, call, Image(block_n=64, amd=order)).result(timeout=300)
        np.testing.assert_allclose(got.out.astype(np.float64), attention(call).out, rtol=2.0**-7, err_msg=order)


@pytest.mark.parametrize("order", ORDERS)
def test_a_neighbours_infinities_stay_away(child, order):
    """Neither a block that reaches into the next sequence nor one that is asked for ahead brings in what it holds."""
    call = replace(make(40, 64, cu_q=np.array([0, 20, 40]), cu_k=np.array([0, 32, 64])), dout=None)
    spoilt = replace(call, k=call.k.copy(), v=call.v.copy())
    for array in (spoilt.k, spoilt.v):
        array[0, 0, 32:] = np.inf
    clean, dirty = (child.submit(run, one, Image(amd=order)).result(timeout=300) for one in (call, spoilt))
    np.testing.assert_array_equal(clean.out[0, 0, :20], dirty.out[0, 0, :20])


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("scale", [1e4, 0.0, -np.inf])
def test_scores_of_any_size(child, scale, order):
    """Of scores of minus infinity there are none to see: a row of these alone is NaN, as their difference is."""
    call = replace(make(17, 70, sm_scale=1.0), dout=None)
    if scale == -np.inf:
        call.q[...], call.k[..., :1] = 1.0, 1.0
        call.k[0, 0, 5:40, 0] = -np.inf
    else:
        call = replace(call, q=call.q * scale, k=call.k * scale)
    check(child, call, Image(amd=order))


@pytest.mark.parametrize("order", ORDERS)
def test_the_range_of_fp16(child, order):
    """Values 2^13 times as large, up to half of what fp16 holds, give results that are: nothing between overflows."""
    call = replace(make(17, 70, dtype=np.float16, width=64), dout=None)
    large = replace(call, v=call.v * np.float16(8192))
    small, big = (child.submit(run, one, Image(amd=order)).result(timeout=300) for one in (call, large))
    np.testing.assert_allclose(big.out.astype(np.float64), small.out.astype(np.float64) * 8192, rtol=1e-3, atol=1.0)


@pytest.mark.parametrize("order", ORDERS)
def test_a_nan_reaches_only_the_rows_that_see_it(child, order):
    check_reach_of_nan(child, 70, Image(amd=order))


@settings(max_examples=30, deadline=None)
@given(drawn_calls(90, False, amd=st.sampled_from(ORDERS)))
def test_everything_together(child, drawn):
    check(child, *drawn)
