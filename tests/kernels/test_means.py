"""Inputs with a mean: rows that share an offset, as activations do. Rounding of what they share must not reach what
they differ by.

Limits are of the gradient's scale, its root mean square: 0.01 of it. PyTorch's attention by its definition, which
computes in fp32, is better than half of that in each of these, so twice its error is no wider limit.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from attention import Call, attention
from attention_calls import MASKS
from interpreter import Image, run

pytestmark = pytest.mark.sample(3)

LIMIT = 0.01
BLOCKS = Image(block_m=32, block_n=64)


def make(
    rows=32, keys=512, *, k_offset=0.0, others=0.0, heads=1, heads_kv=1, batch=1, width=16, dtype=np.float16, **rest
) -> Call:
    """A call with q, k, v and dout uniform in [0, 1), and offsets of keys and of the others."""
    draw = np.random.default_rng(0)

    def uniform(heads: int, rows: int, offset: float) -> np.ndarray:
        return (draw.random((batch, heads, rows, width)) + offset).astype(dtype)

    rest.setdefault("sm_scale", 1 / math.sqrt(width))
    return Call(
        q=uniform(heads, rows, others), k=uniform(heads_kv, keys, k_offset), v=uniform(heads_kv, keys, others),
        dout=uniform(heads, rows, others), **rest,
    )  # fmt: skip


def errors(child, call: Call, image: Image = BLOCKS) -> dict[str, float]:
    """Of each result: the error's root mean square beside the value's."""
    got, expected = child.submit(run, call, image).result(timeout=300), attention(call)
    found = {}
    for name in ("out", "dq", "dk", "dv", "dbias", "dsinks"):
        if (wanted := getattr(expected, name)) is not None:
            written = ~np.isnan(wanted)
            difference = getattr(got, name).astype(np.float64)[written] - wanted[written]
            found[name] = float(np.sqrt(np.square(difference).mean() / np.square(wanted[written]).mean()))
    return found


def check(child, call: Call, image: Image = BLOCKS) -> None:
    found = errors(child, call, image)
    assert all(error <= LIMIT for error in found.values()), found


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("k_offset", [0.0, 5.0, 50.0, -50.0])
def test_keys_that_share_an_offset(child, k_offset, dtype):
    check(child, make(k_offset=k_offset, dtype=dtype))


@pytest.mark.parametrize("ones", [8, 16])
@pytest.mark.parametrize("k_offset", [0.0, 5.0, 50.0])
def test_sums_by_a_product_with_ones(child, k_offset, ones):
    check(child, make(k_offset=k_offset), replace(BLOCKS, ones=ones))


@pytest.mark.parametrize("width", [33, 80, 96])
@pytest.mark.parametrize("chunk", [0, 16])
def test_rows_of_several_pieces(child, width, chunk):
    check(child, make(k_offset=5.0, width=width), replace(BLOCKS, chunk=chunk))


@pytest.mark.parametrize("mask", [mask for mask in MASKS if mask != "one key"])  # whose dq is 0
def test_masks(child, mask):
    check(child, make(40, 300, k_offset=5.0, heads=2, batch=2, **MASKS[mask]))


def test_mean_keys_lean_towards_the_rows(child):
    """Where rows weigh the keys that they point to: the mean of all keys alone leaves 0.0016."""
    assert errors(child, make(width=64, sm_scale=0.25, others=1.0))["dq"] < 0.001


def test_the_first_rows_have_one_key_in_common(child):
    """Their mean key may be anything that is as large as that key: cut at its columns it left 0.0013."""
    assert errors(child, make(128, 300, width=32, right=0))["dq"] < 0.001


@pytest.mark.parametrize("sinks", [-3.0, 4.0, 8.0])
@pytest.mark.parametrize("softcap", [0.0, 2.0])
def test_sinks_take_a_part_of_the_weights(child, sinks, softcap):
    check(child, make(k_offset=5.0, heads=2, heads_kv=2, sinks=np.array([sinks, 0.0]), softcap=softcap, sm_scale=0.05))


@pytest.mark.parametrize("softcap", [1.0, 30.0])
def test_soft_caps_change_sums_of_ds(child, softcap):
    check(child, make(k_offset=5.0, softcap=softcap, sm_scale=0.05))


def test_dropout_bias_and_distances(child):
    check(child, make(k_offset=5.0, heads=2, heads_kv=2, batch=2, dropout=0.3, seed=12345))
    bias = np.random.default_rng(5).random((1, 1, 32, 512)).astype(np.float16)
    check(child, make(k_offset=5.0, heads=2, heads_kv=2, bias=bias))
    check(child, make(k_offset=5.0, slopes=np.array([[0.01]])))
    check(child, make(k_offset=5.0, bias=bias, dropout=0.3, seed=12345, softcap=5.0, sinks=np.array([1.0])))


def test_heads_that_share_keys_and_other_scales(child):
    check(child, make(k_offset=5.0, heads=4, heads_kv=2, batch=2))
    check(child, make(k_offset=5.0, sm_scale=-0.2))


def test_sequences_of_several_lengths(child):
    """Each has a mean of its own, in a cache that has more keys too."""
    cu_q, cu_k = np.array([0, 20, 20, 50]), np.array([0, 300, 310, 600])
    call = make(50, 600, heads=2, heads_kv=1, cu_q=cu_q, cu_k=cu_k, right=0, bottom_right=True)
    for number, (begin, end) in enumerate(itertools.pairwise(cu_k)):
        call.k[:, :, begin:end] += 10 * number
    check(child, call)
    call = make(30, 500, k_offset=5.0, batch=2, used_k=np.array([400, 3]), used_q=np.array([30, 10]))
    call.k[0, :, 400:], call.k[1, :, 3:] = 1000, np.nan
    check(child, call)


def test_a_key_that_is_no_number_reaches_only_the_rows_that_see_it(child):
    call = make(64, 64, right=0)
    call.k[0, 0, 40, 3] = np.inf
    with np.errstate(invalid="ignore"):
        got = child.submit(run, call, Image()).result(timeout=300)
    assert np.isfinite(got.dq[0, 0, :32]).all(), "blocks of rows that see none of its block"


@pytest.mark.parametrize(("value", "hiding"), [(0.5, -math.inf), (100, -math.inf), (60000, -math.inf), (9, -60000.0)])
@pytest.mark.parametrize("hidden", [slice(1, None, 2), slice(300, None)], ids=["every other", "the last"])
def test_what_a_bias_hides_does_not_matter(child, hidden, value, hiding):
    """Padding may have any values; a row sees none of them."""
    bias = np.zeros((1, 1, 32, 512), np.float16)
    bias[..., hidden] = hiding
    call = make(k_offset=5.0, bias=bias)
    call.k[:, :, hidden] = value
    check(child, call)


@pytest.mark.parametrize("value", [100.0, 60000.0])
@pytest.mark.parametrize(("rows", "window"), [(32, {}), (200, {}), (200, {"left": 100}), (200, {"left": 5})])
def test_what_comes_later_does_not_matter(child, value, rows, window):
    """Keys that no row of a block sees under a causal mask."""
    call = make(rows, 512, k_offset=5.0, right=0, **window)
    call.k[:, :, (rows + 63) // 64 * 64 :] = value
    check(child, call)
    early = make(rows, 512, k_offset=5.0, right=0, **window)
    early.k[:, :, rows - 8 :] = value
    got = child.submit(run, early, BLOCKS).result(timeout=300).dq[:, :, : (rows - 8) // 32 * 32]
    expected = attention(early).dq[:, :, : (rows - 8) // 32 * 32]
    if expected.size:
        assert np.sqrt(np.square(got - expected).mean() / np.square(expected).mean()) <= LIMIT
