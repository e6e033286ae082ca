"""The attention kernel, interpreted on the CPU, against float64."""

from __future__ import annotations

import importlib.util
import math

import pytest

np = pytest.importorskip("numpy")
from interpreter import Attention, interpreter, run_attention  # noqa: E402

# Looked for, not imported: see interpreter.py.
for package in ("torch", "triton"):
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"needs {package}: Triton's interpreter works on PyTorch's tensors", allow_module_level=True)

# Largest error that rounding explains: of the inputs' products and P in fp16, or of fp32 alone.
TOLERANCE = {np.float16: 2e-3, np.float32: 2e-5}


@pytest.fixture(scope="module")
def child():
    with interpreter() as executor:
        yield executor


def attention(call: Attention) -> tuple[np.ndarray, np.ndarray]:
    """The definition, in float64: out and log-sum-exp."""
    q, k, v = (array.astype(np.float64) for array in (call.q, call.k, call.v))
    group = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
    scores = call.sm_scale * (q @ k.swapaxes(2, 3))
    if call.causal:
        rows, cols = np.ogrid[: q.shape[2], : k.shape[2]]
        scores = np.where(cols <= rows, scores, -np.inf)
    if k.shape[2] == 0:
        return np.zeros(q.shape), np.full(q.shape[:3], -np.inf)
    top = scores.max(axis=3, keepdims=True)
    weights = np.exp(scores - top)
    total = weights.sum(axis=3, keepdims=True)
    return (weights / total) @ v, (top + np.log(total))[..., 0]


def make(
    seqlen_q, seqlen_k, *, heads=1, heads_kv=1, batch=1, head_dim=16, dtype=np.float32, sm_scale=None, seed=0, **rest
):
    random = np.random.default_rng(seed)
    q = random.standard_normal((batch, heads, seqlen_q, head_dim)).astype(dtype)
    k = random.standard_normal((batch, heads_kv, seqlen_k, head_dim)).astype(dtype)
    v = random.standard_normal((batch, heads_kv, seqlen_k, head_dim)).astype(dtype)
    rest.setdefault("causal", False)
    return Attention(q, k, v, 1 / math.sqrt(head_dim) if sm_scale is None else sm_scale, **rest)


def check(child, call: Attention, layout: str = "contiguous") -> None:
    out, lse = child.submit(run_attention, call, layout).result(timeout=120)
    expected_out, expected_lse = attention(call)
    tolerance = TOLERANCE[call.q.dtype.type]
    np.testing.assert_allclose(out.astype(np.float64), expected_out, rtol=0, atol=tolerance)
    if call.want_lse:
        np.testing.assert_allclose(lse, expected_lse, rtol=1e-6, atol=1e-5)
    else:
        assert np.isnan(lse).all(), "lse was written although it was not wanted"


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("lengths", [(1, 1), (1, 37), (37, 1), (16, 16), (15, 17), (33, 16), (40, 75)])
def test_lengths(child, lengths, dtype, causal):
    check(child, make(*lengths, dtype=dtype, causal=causal))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("lengths", [(1, 1), (37, 1), (16, 16), (15, 17), (33, 16), (40, 75), (20, 0)])
def test_lengths_with_one_loop_for_all_keys(child, lengths, causal):
    check(child, make(*lengths, causal=causal, unmasked_loop=False), "padded")


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("blocks", [(16, 32), (32, 16), (64, 16), (16, 64)])
def test_blocks_of_other_shapes(child, blocks, causal):
    check(child, make(70, 70, causal=causal, block_m=blocks[0], block_n=blocks[1]))


@pytest.mark.parametrize("head_dim", [64, 128])
def test_head_dimensions(child, head_dim):
    check(child, make(33, 50, head_dim=head_dim, dtype=np.float16, causal=True, block_m=32, block_n=32))


@pytest.mark.parametrize("heads_kv", [1, 2, 4])
def test_grouped_heads_and_batch(child, heads_kv):
    check(child, make(18, 21, heads=4, heads_kv=heads_kv, batch=3, causal=True))


@pytest.mark.parametrize("layout", ["rows", "padded", "reversed"])
def test_strides(child, layout):
    check(child, make(19, 35, heads=2, heads_kv=1, batch=2, causal=True), layout)


@pytest.mark.parametrize("sm_scale", [-0.25, -3.0, 0.0, 1e-30, 40.0])
@pytest.mark.parametrize("causal", [False, True])
def test_scales(child, sm_scale, causal):
    check(child, make(20, 50, sm_scale=sm_scale, causal=causal))


def test_no_lse(child):
    check(child, make(20, 20, want_lse=False))


@pytest.mark.parametrize("causal", [False, True])
def test_no_keys_gives_zeros_and_minus_infinity(child, causal):
    check(child, make(20, 0, heads=2, heads_kv=2, causal=causal))


def test_large_scores_do_not_overflow(child):
    call = make(17, 40, causal=True)
    check(child, Attention(call.q * 1e4, call.k * 1e4, call.v, 1.0, causal=True))


@pytest.mark.parametrize("unmasked_loop", [True, False])
def test_a_nan_reaches_only_the_rows_that_see_it(child, unmasked_loop):
    call = make(40, 40, causal=True, unmasked_loop=unmasked_loop)
    call.k[0, 0, 20, 3] = np.nan
    out, lse = child.submit(run_attention, call, "contiguous").result(timeout=120)
    seen = np.isnan(out).any(axis=3)[0, 0]
    assert not seen[:20].any() and seen[20:].all()
    assert not np.isnan(lse[0, 0, :20]).any() and np.isnan(lse[0, 0, 20:]).all()
