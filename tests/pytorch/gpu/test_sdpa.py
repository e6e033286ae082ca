"""F.scaled_dot_product_attention routed to Kiln, against PyTorch: all arguments, values and gradients."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from itertools import product
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from compare import compare, served
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right, causal_upper_left

import kiln.torch as kt
from kiln.errors import KilnError
from kiln.torch import native, sdpa

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
WIDTHS = ((64, 64), (128, 128), (64, 128), (40, 40), (72, 24), (96, 96), (256, 256))
SIZES = ((130, 190), (64, 64), (1, 129), (200, 65))
MASKS = {
    "none": None,
    "rows and keys": lambda b, h, n, m: (n, m),
    "heads": lambda b, h, n, m: (1, h, n, m),
    "batches": lambda b, h, n, m: (b, 1, n, m),
    "all": lambda b, h, n, m: (b, h, n, m),
    "keys of batches": lambda b, h, n, m: (b, 1, 1, m),
    "rows": lambda b, h, n, m: (n, 1),
}
BATCH, HEADS = 2, 4


def random(*sizes: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(*sizes, device="cuda", dtype=torch.float32).to(dtype)


def layouts(q, k, v):
    """As modules have them: heads first, rows first beneath, packed, expanded, and with a strided last dimension."""
    yield "heads first", (q, k, v)
    yield "rows first", tuple(x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v))
    yield "strided", tuple(torch.stack([x, x], -1)[..., 0] for x in (q, k, v))
    yield "reversed", tuple(x.transpose(-1, -2).contiguous().transpose(-1, -2) for x in (q, k, v))


def check(q, k, v, mask=None, constant=None, **call) -> None:
    """One call, routed, value and gradients; `constant`: a mask whose gradient is not looked at."""

    def routed(*tensors):
        with kt.use():
            return direct(*tensors)

    def direct(q, k, v, mask):
        mask = mask if constant is None else constant.to(q.dtype)
        return F.scaled_dot_product_attention(q, k, v, mask, **call)

    first = True

    def make():
        nonlocal first
        if first:
            first = False
            inputs = (q, k, v, mask)
        else:
            again = [random(*x.shape, dtype=x.dtype) for x in (q, k, v)]
            inputs = (*again, mask)
        others = () if call.get("enable_gqa") else (k.shape[:-2], v.shape[:-2])
        shape = (*torch.broadcast_shapes(q.shape[:-2], *others), q.shape[-2], v.shape[-1])
        return inputs, random(*shape, dtype=q.dtype)

    verdict = compare(routed, direct, make)
    assert kt.fallthroughs() == {}
    assert not verdict.wrong(), (verdict.wrong(), [tuple(x.shape) for x in (q, k, v)], q.dtype, call)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("widths", WIDTHS, ids=str)
def test_sizes(dtype: torch.dtype, widths: tuple[int, int]) -> None:
    for (rows, keys), is_causal, scale in product(SIZES, (False, True), (None, 0.3)):
        q, k = random(BATCH, HEADS, rows, widths[0], dtype=dtype), random(BATCH, HEADS, keys, widths[0], dtype=dtype)
        v = random(BATCH, HEADS, keys, widths[1], dtype=dtype)
        if not served(q, k, v, causal=is_causal):
            return
        check(q, k, v, is_causal=is_causal, scale=scale)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", MASKS)
def test_masks(dtype: torch.dtype, kind: str) -> None:
    if MASKS[kind] is None:
        return
    for (rows, keys), width in product(SIZES, (64, 128)):
        q, k, v = (random(BATCH, HEADS, n, width, dtype=dtype) for n in (rows, keys, keys))
        shape = MASKS[kind](BATCH, HEADS, rows, keys)
        if not served(q, k, v, bias=random(*shape, dtype=dtype)):
            return
        if kind == "rows":  # what is added to all scores of a row changes no weight: its gradient is rounding's
            check(q, k, v, constant=random(*shape, dtype=dtype))
        else:
            check(q, k, v, random(*shape, dtype=dtype))
        mask = torch.rand(shape, device="cuda") > 0.3
        mask[..., 0] = True  # PyTorch's gradients of a row without keys are another matter
        check(q, k, v, mask)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_layouts_and_ranks(dtype: torch.dtype) -> None:
    q, k, v = (random(BATCH, HEADS, n, 64, dtype=dtype) for n in (70, 90, 90))
    if not served(q, k, v):
        return
    for name, tensors in layouts(q, k, v):
        check(*tensors)
        check(*tensors, is_causal=True)
        with kt.use(), torch.no_grad():
            out = F.scaled_dot_product_attention(*tensors)
        torch.testing.assert_close(out, F.scaled_dot_product_attention(*tensors), atol=2e-2, rtol=2e-2, msg=name)
    check(q[0], k[0], v[0])
    check(q[0, 0], k[0, 0], v[0, 0])
    check(q[None], k[None], v[None], random(BATCH, 1, 70, 90, dtype=dtype))
    check(q[:, None], k[:, None].expand(-1, 3, -1, -1, -1), v[:, None])
    check(q[:1], k, v)
    check(q, k[:, :1], v[:1])
    check(q[0], k, v)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_shared_heads(dtype: torch.dtype) -> None:
    for heads, shared in ((8, 2), (4, 1), (6, 3)):
        q, k, v = random(2, heads, 70, 64, dtype=dtype), *(random(2, shared, 90, 64, dtype=dtype) for _ in "kv")
        if not served(q, k, v):
            return
        check(q, k, v, enable_gqa=True)
        check(q, k, v, enable_gqa=True, is_causal=True)
        check(q, k, v, random(1, heads, 70, 90, dtype=dtype), enable_gqa=True)
        for tensors in ((q, k, v), (q[0], k[0], v[0])):  # without gradients, by the shortest way
            with torch.no_grad():
                out = kt.scaled_dot_product_attention(*tensors, enable_gqa=True)
                reference = F.scaled_dot_product_attention(*(x.double() for x in tensors), enable_gqa=True)
            torch.testing.assert_close(out.double(), reference, atol=2e-2, rtol=2e-2)


def test_causal_biases() -> None:
    q, k, v = (random(2, 4, n, 64, dtype=torch.bfloat16) for n in (70, 90, 90))
    for bias, diagonal in ((causal_upper_left(70, 90), 0), (causal_lower_right(70, 90), 20)):
        mask = torch.ones(70, 90, dtype=torch.bool, device="cuda").tril(diagonal)
        with kt.use():
            out = F.scaled_dot_product_attention(q, k, v, bias)
            torch.testing.assert_close(out, F.scaled_dot_product_attention(q, k, v, mask), atol=2e-2, rtol=2e-2)
    assert kt.fallthroughs() == {}


def test_nothing_to_do() -> None:
    for q, k in (((0, 4, 8), (0, 4, 8)), ((2, 0, 8), (2, 0, 8)), ((2, 4, 0), (2, 4, 8)), ((2, 4, 8), (2, 4, 0))):
        a, b = (
            random(*q, 64, dtype=torch.bfloat16).requires_grad_(),
            random(*k, 64, dtype=torch.bfloat16).requires_grad_(),
        )
        with kt.use():
            out = F.scaled_dot_product_attention(a, b, b)
        assert out.shape == a.shape and not out.any()
        out.sum().backward()
        assert a.grad.shape == a.shape and b.grad.shape == b.shape and not a.grad.any() and not b.grad.any()
    assert kt.fallthroughs() == {}


def test_rows_that_see_no_key_are_zero() -> None:
    q, k, v = (random(2, 4, 64, 64, dtype=torch.bfloat16).requires_grad_() for _ in "qkv")
    mask = torch.rand(2, 1, 64, 64, device="cuda") > 0.5
    mask[:, :, ::3] = False
    with kt.use():
        out = F.scaled_dot_product_attention(q, k, v, mask)
    reference = F.scaled_dot_product_attention(q.double(), k.double(), v.double(), mask)
    assert not out[:, :, ::3].any() and not reference[:, :, ::3].any()
    torch.testing.assert_close(out.double(), reference, atol=2e-2, rtol=2e-2)
    out.sum().backward()
    assert not q.grad[:, :, ::3].any() and all(x.grad.isfinite().all() for x in (q, k, v))


def test_scale_of_zero_is_none_of_the_default() -> None:
    q, k, v = (random(2, 4, 64, 64, dtype=torch.bfloat16) for _ in "qkv")
    out = kt.scaled_dot_product_attention(q, k, v, scale=0.0)
    torch.testing.assert_close(out, v.mean(2, keepdim=True).expand_as(out), atol=1e-2, rtol=1e-2)


def test_fall_through() -> None:
    q = torch.randn(2, 4, 8, 64, device="cuda", dtype=torch.float64)
    with kt.use():
        out = F.scaled_dot_product_attention(q, q, q)
        half = q.half()
        with sdpa_kernel(SDPBackend.MATH):  # cuDNN's cannot drop everything
            F.scaled_dot_product_attention(half, half, half, dropout_p=1.0)
    assert torch.equal(out, F.scaled_dot_product_attention(q, q, q))
    assert sum(kt.fallthroughs().values()) == 2 and "0.9999" in kt.last_fallthrough()
    with pytest.raises(KilnError, match="fp64"):
        kt.scaled_dot_product_attention(q, q, q)


@pytest.mark.parametrize("is_training", [False, True])
def test_modules(is_training: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    layer = torch.nn.TransformerEncoderLayer(256, 4, 512, dropout=0.0, batch_first=True, device="cuda",
                                             dtype=torch.bfloat16).train(is_training)  # fmt: skip
    decoder = torch.nn.TransformerDecoderLayer(256, 4, 512, dropout=0.0, batch_first=True, device="cuda",
                                               dtype=torch.bfloat16).train(is_training)  # fmt: skip
    x = random(2, 100, 256, dtype=torch.bfloat16)
    calls = []

    def counted(way: Callable) -> Callable:
        def call(*args: object, **kwargs: object) -> object:
            out = way(*args, **kwargs)
            if out is not None:
                calls.append(way)
            return out

        return call

    with torch.set_grad_enabled(is_training):
        expected = decoder(x, layer(x))
        # Past the dispatcher, or through it.
        monkeypatch.setattr(sdpa, "plain", counted(sdpa.plain))
        monkeypatch.setattr(native, "shortcut", SimpleNamespace(attend=counted(native.shortcut.attend)))
        monkeypatch.setattr(native, "forward_op", counted(native.forward_op))
        with kt.use():
            out = decoder(x, layer(x))
    torch.testing.assert_close(out, expected, atol=5e-2, rtol=5e-2)
    assert kt.fallthroughs() == {} and len(calls) == 3


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("kind", ["none", "causal", "bool", "float"])
@pytest.mark.parametrize("refused", ["fp64", "head_dim 520", "dropout 0.99999"])
def test_what_is_passed_on_leaves_no_trace(refused, kind, autocast):
    """The same seed gives the same weights as without use()."""
    dtype = torch.float64 if refused == "fp64" else torch.float16
    width, dropout = (520 if "520" in refused else 64), (0.99999 if "0.99999" in refused else 0.5)
    if autocast and refused == "fp64":
        pytest.skip("autocast makes fp16 of it, which is served")
    q, k, v = (torch.randn(2, 3, 40, width, device="cuda", dtype=dtype, requires_grad=True) for _ in range(3))
    mask = {"bool": torch.rand(40, 40, device="cuda") < 0.8, "float": torch.randn(40, 40, device="cuda", dtype=dtype)}
    found = []
    for routed in (False, True):
        torch.cuda.manual_seed(7)
        kt.reset_fallthroughs()
        with kt.use() if routed else contextlib.nullcontext(), torch.autocast("cuda", torch.float16, enabled=autocast):
            with sdpa_kernel(SDPBackend.MATH):
                out = F.scaled_dot_product_attention(
                    q, k, v, mask.get(kind), dropout_p=dropout, is_causal=kind == "causal"
                )
            assert torch.is_autocast_enabled("cuda") == autocast
        assert sum(kt.fallthroughs().values()) == routed
        versions = [x._version for x in (q, k, v, out)]
        found.append((torch.cuda.get_rng_state(), out, versions))
    assert torch.equal(found[0][0], found[1][0]) and torch.equal(found[0][1], found[1][1])
    assert found[0][2] == found[1][2]
