"""A call that use() passes on to PyTorch leaves no trace: it is as if Kiln were not there."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.attention.bias import causal_lower_right, causal_upper_left

import kiln.torch as kt
from kiln.errors import UnsupportedError
from kiln.torch import operators


@pytest.fixture
def refusing(definition, monkeypatch):
    """An engine that refuses each call only when it runs, by which time all that comes before has been done."""

    def refuse(*args, **more):
        raise UnsupportedError("no kernel serves this call")

    monkeypatch.setattr(definition, "attn_fwd", refuse)


def call(seed, leading, rows, keys, dtype, kind, dropout, gqa, autocast):
    """Results, gradients and all that PyTorch keeps besides, of one call."""
    g = torch.Generator().manual_seed(seed)
    heads = 4 if leading else 0
    shapes = [(*leading, *((heads,) if heads else ()), n, 16) for n in (rows, keys, keys)]
    if gqa and heads:
        shapes[1:] = [(*leading, 2, keys, 16)] * 2
    q, k, v = (torch.randn(s, generator=g).to(dtype).requires_grad_() for s in shapes)
    mask = {"none": None, "causal": None, "bool": torch.rand(rows, keys, generator=g) < 0.7,
            "float": torch.randn(rows, keys, generator=g).to(dtype), "upper": causal_upper_left(rows, keys),
            "lower": causal_lower_right(rows, keys)}[kind]  # fmt: skip
    torch.manual_seed(seed)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        out = F.scaled_dot_product_attention(
            q, k, v, mask, dropout_p=dropout, is_causal=kind == "causal", enable_gqa=bool(gqa and heads)
        )
        cast = torch.is_autocast_enabled("cpu")
    state = torch.get_rng_state()
    out.float().square().sum().backward()
    versions = [x._version for x in (q, k, v, out, mask) if x is not None]
    return [out, q.grad, k.grad, v.grad, state], (versions, cast, out.dtype, out.stride())


@settings(deadline=None, max_examples=90)
@given(
    seed=st.integers(0, 99), leading=st.sampled_from([(), (2,), (1, 3)]), rows=st.integers(1, 6),
    keys=st.integers(1, 6), dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float64]),
    kind=st.sampled_from(["none", "causal", "bool", "float", "upper", "lower"]),
    dropout=st.sampled_from([0.0, 0.3, 0.99999]), gqa=st.booleans(), autocast=st.booleans(), is_refusing=st.booleans(),
)  # fmt: skip
def check(is_refusing, **choices):
    if not is_refusing:  # by the device, before anything is done
        before = operators.set_engine(None)
    kt.reset_fallthroughs()
    try:
        expected, kept = call(**choices)
        with kt.use():
            found, kept_too = call(**choices)
    finally:
        if not is_refusing:
            operators.set_engine(before)
    assert sum(kt.fallthroughs().values()) == 1
    for one, other in zip(found, expected):
        assert torch.equal(one.isnan(), other.isnan()) and torch.equal(one.nan_to_num(), other.nan_to_num())
    assert kept_too == kept


def test_what_is_passed_on_leaves_no_trace(refusing):
    check()


def test_a_causal_bias_keeps_its_meaning_beside_a_route_of_another_thread(definition):
    q, k = torch.randn(2, 3, 5, 16), torch.randn(2, 3, 7, 16)
    mask = causal_upper_left(5, 7)
    expected = F.scaled_dot_product_attention(q, k, k, mask)
    with kt.use(), ThreadPoolExecutor(1) as others:
        found = others.submit(F.scaled_dot_product_attention, q, k, k, mask).result()
        with pytest.raises(ValueError, match="is_causal|causal=True"):
            others.submit(F.scaled_dot_product_attention, q, k, k, mask, is_causal=True).result()
    assert not definition.calls
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("training", [True, False])
def test_scripted_code_calls_pytorchs_operator(definition, training):
    def plain(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, k)

    q, k = torch.randn(2, 3, 5, 16), torch.randn(2, 3, 7, 16)
    module = torch.nn.MultiheadAttention(16, 2, batch_first=True).train(training)
    x = torch.randn(2, 5, 16)
    expected = [plain(q, k), module(x, x, x)[0]]
    with kt.use():
        scripted = [torch.jit.script(plain), torch.jit.script(module)]
    assert not definition.calls
    for found, one in zip((scripted[0](q, k), scripted[1](x, x, x)[0]), expected):
        torch.testing.assert_close(found, one)
    assert "aten::scaled_dot_product_attention" in str(scripted[0].graph)


def test_padded_rows_of_an_encoder_are_those_of_pytorchs_slower_way(definition):
    """Its fast path gives zeros there; see docs/linking.md."""
    layer = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, dropout=0.0)
    encoder = torch.nn.TransformerEncoder(layer, 2).eval()
    x, padding = torch.randn(2, 5, 16), torch.tensor([[False] * 3 + [True] * 2, [False] * 5])
    with torch.no_grad():
        fast = encoder(x, src_key_padding_mask=padding)
        with kt.use():
            routed = encoder(x, src_key_padding_mask=padding)
        torch.backends.mha.set_fastpath_enabled(False)
        try:
            slow = encoder(x, src_key_padding_mask=padding)
        finally:
            torch.backends.mha.set_fastpath_enabled(True)
    torch.testing.assert_close(routed, slow)
    torch.testing.assert_close(routed[~padding], fast[~padding])
    assert not fast[padding].any() and definition.calls


def test_transformers_fallback_draws_what_pytorch_would(refusing):
    pytest.importorskip("transformers", minversion="5.4", reason="needs transformers 5.4 or later")
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    from kiln.torch.transformers_attention import attend_or_sdpa

    q, module, words = torch.randn(1, 2, 8, 16), torch.nn.Module(), {"dropout": 0.5, "is_causal": False}
    torch.manual_seed(3)
    expected, _ = sdpa_attention_forward(module, q, q, q, None, **words)
    torch.manual_seed(3)
    out, _ = attend_or_sdpa(module, q, q, q, None, **words)
    assert torch.equal(out, expected) and kt.fallthroughs()
