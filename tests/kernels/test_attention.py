"""The attention kernels, interpreted on the CPU, against float64: each feature by itself, then all of them at
random."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from attention import Call, kept
from attention_calls import MASKS, check, check_reach_of_nan, drawn_calls, make
from hypothesis import given, settings
from hypothesis import strategies as st
from interpreter import Image, mask, run

from kiln_bench.verify.numbers import philox

pytestmark = pytest.mark.sample(3)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("lengths", [(1, 1), (1, 37), (37, 1), (16, 16), (15, 17), (33, 16), (40, 75), (20, 0)])
def test_masks_and_lengths(child, lengths, mask):
    check(child, make(*lengths, **MASKS[mask]))


@pytest.mark.parametrize("mask", MASKS)
def test_one_loop_for_all_keys(child, mask):
    check(child, make(35, 50, **MASKS[mask]), Image(unmasked_loop=False), "padded")


@pytest.mark.parametrize("mask", MASKS)
def test_places_that_are_sums(child, mask):
    check(child, make(35, 50, **MASKS[mask]), Image(advance=True), "padded")


@pytest.mark.parametrize("blocks", [(16, 32), (32, 16), (64, 16), (16, 64)])
@pytest.mark.parametrize("mask", ["causal", "window", "window, bottom right"])
def test_blocks_of_other_shapes(child, blocks, mask):
    check(child, make(70, 70, **MASKS[mask]), Image(block_m=blocks[0], block_n=blocks[1]))


@pytest.mark.parametrize("mask", ["causal", "window"])
@pytest.mark.parametrize(("width", "width_v"), [(64, 64), (40, 24), (17, 33)])
def test_rows_in_chunks(child, width, width_v, mask):
    call = make(35, 50, heads=2, batch=2, width=width, width_v=width_v, **MASKS[mask])
    check(child, call, Image(chunk=16), "padded")


@pytest.mark.parametrize("width", [16, 32, 48, 64, 80, 96, 128, 160, 192, 224, 256])
def test_head_sizes(child, width):
    check(child, make(20, 18, width=width, dtype=np.float16, right=0))


@pytest.mark.parametrize(
    ("width", "width_v"), [(1, 1), (13, 13), (40, 40), (72, 72), (100, 100), (24, 16), (16, 48), (90, 7)]
)
def test_padded_head_sizes(child, width, width_v):
    check(child, make(20, 18, width=width, width_v=width_v, right=0), layout="padded")


@pytest.mark.parametrize("heads_kv", [1, 2, 4])
def test_grouped_heads_and_batch(child, heads_kv):
    check(child, make(18, 21, heads=4, heads_kv=heads_kv, batch=2, right=0))


@pytest.mark.parametrize("layout", ["rows", "padded", "reversed"])
def test_strides(child, layout):
    check(child, make(19, 35, heads=2, batch=2, right=0), layout=layout)


@pytest.mark.parametrize("sm_scale", [-0.25, -3.0, 0.0, 1e-30, 5.0])
def test_scales(child, sm_scale):
    check(child, make(20, 30, sm_scale=sm_scale, right=0))


def test_no_lse(child):
    check(child, replace(make(20, 20), dout=None), Image(want_lse=False))


def test_sinks(child):
    check(child, make(20, 30, heads=3, heads_kv=3, sinks=np.array([0.5, -2.0, 9.0]), right=0))
    check(child, make(20, 30, heads=1, sinks=np.array([0.5]), left=2, right=-1))


@pytest.mark.parametrize("shape", [(2, 2), (2, 1), (1, 2), (1, 1)])
@pytest.mark.parametrize("mask", ["none", "causal", "window, bottom right"])
def test_bias(child, mask, shape):
    bias = np.random.default_rng(5).standard_normal((*shape, 20, 37)).astype(np.float32)
    check(child, make(20, 37, heads=2, heads_kv=1, batch=2, bias=bias, **MASKS[mask]))


def test_a_bias_of_minus_infinity_is_a_mask(child):
    bias = np.zeros((1, 1, 20, 37), np.float32)
    bias[..., 5:9] = -np.inf
    bias[0, 0, 4] = -np.inf
    check(child, make(20, 37, bias=bias))


@pytest.mark.parametrize("mask", ["none", "causal", "causal, bottom right"])
def test_alibi(child, mask):
    check(child, make(20, 37, heads=2, heads_kv=2, batch=2, slopes=np.array([[0.5, 0.1], [2.0, 0.0]]), **MASKS[mask]))


@pytest.mark.parametrize("softcap", [0.5, 30.0])
def test_soft_cap(child, softcap):
    check(child, make(20, 37, softcap=softcap, right=0))


@pytest.mark.parametrize("blocks", [(16, 16), (32, 16), (16, 32)])
def test_dropout_does_not_depend_on_blocks(child, blocks):
    call = make(40, 50, heads=2, heads_kv=1, batch=2, dropout=0.3, seed=3, right=0)
    call = replace(call, seed=0x123456789ABCDEF, offset=0x3_0000_0007)
    check(child, call, Image(block_m=blocks[0], block_n=blocks[1]))


def test_the_mask_of_dropout_written_out(child):
    call = make(40, 50, heads=2, batch=2, dropout=0.3)
    call = replace(call, seed=0x123456789ABCDEF, offset=0x3_0000_0007)
    written = child.submit(mask, call).result(timeout=300)
    for plane in range(4):
        np.testing.assert_array_equal(written[plane // 2, plane % 2], kept(call, plane, 40, 50))
    for dtype in (np.float16, np.float32):
        signs = child.submit(mask, call, dtype).result(timeout=300)
        np.testing.assert_array_equal(signs, np.where(written, 1, -1))


def test_philox_is_philox():
    """The known answers of the authors' own implementation (Random123, kat_vectors)."""
    cases = [
        (0, (0, 0, 0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        (0xFFFFFFFFFFFFFFFF, (0xFFFFFFFF,) * 4, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            0x299F31D0A4093822,
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ]
    for key, counter, expected in cases:
        assert tuple(int(n) for n in philox(key, tuple(np.array(c) for c in counter))) == expected


def test_dropout_keeps_its_share_and_draws_independently(child):
    call = Call(*[np.zeros((1, 1, 512, 16), np.float32)] * 3, 1.0, dropout=0.25, seed=7)
    keep = child.submit(mask, call).result()[0, 0].astype(float)
    deviation = math.sqrt(0.25 * 0.75)
    assert abs(keep.mean() - 0.75) < 5 * deviation / 512
    centred = (keep - 0.75) / deviation
    for rows, keys in ((0, 1), (1, 0), (0, 4), (1, 1), (0, 2)):
        correlation = (centred[rows:, keys:] * centred[: 512 - rows, : 512 - keys]).mean()
        assert abs(correlation) < 5 / 512
    other = (child.submit(mask, replace(call, offset=4)).result()[0, 0] - 0.75) / deviation
    assert abs((centred * other).mean()) < 5 / 512


@pytest.mark.parametrize("mask", MASKS)
def test_sequences_one_after_another(child, mask):
    cu_q, cu_k = np.array([0, 17, 17, 20, 45]), np.array([0, 5, 30, 30, 60])
    call = make(45, 60, heads=2, heads_kv=1, cu_q=cu_q, cu_k=cu_k, **MASKS[mask])
    check(child, call)


@pytest.mark.parametrize("mask", ["none", "causal, bottom right"])
def test_log_sum_exps_sequence_by_sequence(child, mask):
    cu_q, cu_k = np.array([0, 17, 17, 20, 45]), np.array([0, 5, 30, 30, 60])
    draw = np.random.default_rng(1)
    call = make(45, 60, heads=2, heads_kv=1, cu_q=cu_q, cu_k=cu_k, lse_by_sequence=True, **MASKS[mask])
    bias = draw.standard_normal((4, 2, 25, 30)).astype(np.float32)
    check(child, replace(call, sinks=draw.standard_normal(2), bias=bias))


def test_padded_sequences(child):
    used_q, used_k = np.array([20, 0, 7]), np.array([3, 18, 30])
    check(child, make(20, 30, heads=2, heads_kv=2, batch=3, used_q=used_q, used_k=used_k, right=0, bottom_right=True))


@pytest.mark.parametrize("of", [("q", "k"), ("q",), ("k",)])
def test_padded_sequences_whose_lengths_are_sums(child, of):
    cu = {"cu_q": np.array([3, 23, 23, 30]), "cu_k": np.array([0, 3, 21, 51])}
    cu = {name: array for name, array in cu.items() if name[-1] in of}
    call = make(20, 30, heads=2, heads_kv=1, batch=3, padded=True, right=0, bottom_right=True, **cu)
    check(child, replace(call, sinks=np.random.default_rng(1).standard_normal(2)))
    check(child, replace(call, used_k=np.array([3, 10, 30])))


def test_a_neighbours_infinities_stay_away(child):
    """Blocks reach into the next sequence: what it holds there must not matter."""
    call = make(40, 40, cu_q=np.array([0, 20, 40]), cu_k=np.array([0, 20, 40]))
    spoilt = replace(call, k=call.k.copy(), v=call.v.copy(), q=call.q.copy(), dout=call.dout.copy())
    for array in (spoilt.q, spoilt.k, spoilt.v, spoilt.dout):
        array[0, 0, 20:] = np.inf
    clean, dirty = (child.submit(run, one).result(timeout=300) for one in (call, spoilt))
    for name in ("out", "dq", "dk", "dv"):
        np.testing.assert_array_equal(getattr(clean, name)[0, 0, :20], getattr(dirty, name)[0, 0, :20], err_msg=name)


def test_large_scores_do_not_overflow(child):
    call = make(17, 40, right=0, sm_scale=1.0)
    check(child, replace(call, q=call.q * 1e4, k=call.k * 1e4, dout=None))


@pytest.mark.parametrize("unmasked_loop", [True, False])
def test_a_nan_reaches_only_the_rows_that_see_it(child, unmasked_loop):
    check_reach_of_nan(child, 40, Image(unmasked_loop=unmasked_loop))


@settings(max_examples=40, deadline=None)
@given(drawn_calls(50, True, advance=st.booleans(), chunk=st.sampled_from([0, 0, 16])))
def test_everything_together(child, drawn):
    check(child, *drawn)
