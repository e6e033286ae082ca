"""kiln.torch.scaled_dot_product_attention means what PyTorch's function means: shapes, masks, values, gradients."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.attention.bias import causal_lower_right, causal_upper_left

import kiln.torch as kt
from kiln.errors import ArgumentError, KilnError, UnsupportedError
from kiln.torch import native, operators, routing

pytestmark = pytest.mark.usefixtures("definition")
once = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def leaves(tensors: list[Tensor | None]) -> list[Tensor | None]:
    return [x.detach().requires_grad_(x.is_floating_point()) if x is not None else None for x in tensors]


def same(*tensors: Tensor | None, **call: object) -> None:
    """Value, strides and gradients of both functions."""
    results = []
    for function in (kt.scaled_dot_product_attention, routing.theirs):
        inputs = leaves(list(tensors))
        out = function(*inputs, **call)
        dout = torch.linspace(-1, 1, max(out.numel(), 1))[: out.numel()].reshape(out.shape)
        if out.requires_grad:
            out.backward(dout)
        results.append([out.detach(), *(x.grad for x in inputs if x is not None and x.requires_grad)])
    for ours, theirs in zip(*results, strict=True):
        assert ours is not None and ours.shape == theirs.shape and ours.dtype == theirs.dtype
        torch.testing.assert_close(ours, theirs, atol=2e-5, rtol=2e-5)
    assert results[0][0].stride() == results[1][0].stride() or 1 in results[0][0].shape or 0 in results[0][0].shape


@st.composite
def broadcasting(draw: st.DrawFn, full: tuple[int, ...]) -> tuple[int, ...]:
    """A shape that broadcasts to `full`."""
    sizes = [draw(st.sampled_from([1, size])) for size in full]
    return tuple(sizes[draw(st.integers(0, len(sizes) - 2)) :])


@st.composite
def problems(draw: st.DrawFn) -> tuple[list[Tensor | None], dict]:
    lead = tuple(draw(st.lists(st.integers(1, 3), max_size=3)))
    rows, keys, width, width_v = (draw(st.integers(1, n)) for n in (5, 5, 9, 9))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 99)))

    def random(*sizes: int) -> Tensor:
        return torch.randn(sizes, generator=generator)

    grouped = len(lead) > 0 and draw(st.booleans())
    heads = (draw(st.sampled_from([n for n in (1, 2, 3) if lead[-1] % n == 0])),) if grouped else lead[-1:]
    lead_k = (*lead[:-1], *heads)
    tensors = [random(*lead, rows, width), random(*lead_k, keys, width), random(*lead_k, keys, width_v)]
    call: dict[str, object] = {"enable_gqa": True} if grouped else {}
    kind = draw(st.sampled_from(["none", "causal", "bool", "float"]))
    mask = None
    if kind == "causal":
        call["is_causal"] = True
    elif kind != "none":
        mask = random(*draw(broadcasting((*lead, rows, keys))))
        assume(mask.dim() >= 2)
        if kind == "bool":
            mask = mask > -0.5
            mask[..., 0] = True
    if draw(st.booleans()):
        call["scale"] = draw(st.sampled_from([0.5, -0.3, 1, 0.0]))
    if draw(st.booleans()):
        tensors = [x.mT.contiguous().mT for x in tensors]
    return [*tensors, mask], call


@once
@given(problem=problems())
def test_as_pytorchs(problem: tuple[list[Tensor | None], dict]) -> None:
    tensors, call = problem
    assume(not (call.get("enable_gqa") and call.get("scale") == 0.0))
    assume(not (call.get("is_causal") and call.get("scale") == -0.3))  # PyTorch's kernel for the CPU gives NaN
    same(*tensors, **call)


def test_a_negative_scale_of_a_causal_call(definition) -> None:
    q, k, v = (torch.randn(2, 3, 4, 8) for _ in "qkv")
    mask = torch.ones(4, 4, dtype=torch.bool).tril()
    torch.testing.assert_close(
        kt.scaled_dot_product_attention(q, k, v, is_causal=True, scale=-0.3), routing.theirs(q, k, v, mask, scale=-0.3)
    )


def test_leading_dimensions_broadcast() -> None:
    def random(*sizes: int) -> Tensor:
        return torch.randn(sizes)

    same(random(1, 3, 4, 8), random(2, 1, 5, 8), random(2, 3, 5, 6))
    same(random(2, 1, 2, 3, 4, 8), random(1, 2, 2, 3, 5, 8), random(2, 2, 2, 3, 5, 6), random(2, 1, 1, 1, 4, 5))
    same(random(2, 2, 2, 3, 4, 8), random(2, 2, 2, 3, 5, 8), random(2, 2, 2, 3, 5, 6), random(3, 4, 5) > 0)


def test_no_rows_no_keys_no_batches() -> None:
    for q, k in (((2, 3, 0, 8), (2, 3, 4, 8)), ((0, 3, 2, 8), (0, 3, 4, 8)), ((2, 0, 2, 8), (2, 0, 4, 8))):
        same(torch.randn(q), torch.randn(k), torch.randn(k))
    q, k = torch.randn(2, 3, 4, 8).requires_grad_(), torch.randn(2, 3, 0, 8).requires_grad_()
    out = kt.scaled_dot_product_attention(q, k, k)
    assert out.shape == q.shape and not out.any()
    out.sum().backward()
    assert not q.grad.any() and k.grad.shape == k.shape


def test_a_row_that_sees_no_key_is_zero() -> None:
    q, k, v = (torch.randn(2, 3, 4, 8).requires_grad_() for _ in "qkv")
    mask = torch.ones(4, 4, dtype=torch.bool)
    mask[1] = False
    same(q, k, v, mask)
    same(q, k, v, torch.zeros(4, 4).masked_fill(~mask, -math.inf))


@pytest.mark.parametrize("mask", [(2, 1, 1, 1), (3, 2, 1, 4, 4), (3, 1, 5, 1, 4), (5, 4, 4), (1, 4)])
def test_masks_of_queries_that_have_more_batches(definition, mask: tuple[int, ...]) -> None:
    """The leading dimensions of query become one; a mask that differs along them follows."""
    q, k, v = (torch.randn(3, 2, 5, 4, 8) for _ in "qkv")
    same(q, k, v, torch.randn(mask))


def test_causal_biases_become_no_bias(definition) -> None:
    q, k, v = torch.randn(2, 3, 4, 8), torch.randn(2, 3, 6, 8), torch.randn(2, 3, 6, 8)
    for bias, diagonal in ((causal_upper_left(4, 6), 0), (causal_lower_right(4, 6), 2)):
        mask = torch.ones(4, 6, dtype=torch.bool).tril(diagonal)
        torch.testing.assert_close(kt.scaled_dot_product_attention(q, k, v, bias), routing.theirs(q, k, v, mask))
        with pytest.raises(ArgumentError, match="of 4 rows and 6 keys"):
            kt.scaled_dot_product_attention(q, k[:, :, :5], v[:, :, :5], bias)


def test_masks_that_repeat_cost_no_memory(definition) -> None:
    seen = []
    forward = definition.attn_fwd
    definition.attn_fwd = lambda *args, **more: seen.append(args[3]) or forward(*args, **more)
    q = torch.randn(2, 3, 4, 8)
    kt.scaled_dot_product_attention(q, q, q, (torch.rand(2, 1, 1, 4) > 0.3).expand(2, 3, 4, 4))
    kt.scaled_dot_product_attention(q, q, q, torch.rand(4))
    assert seen[0].shape == (2, 1, 4, 4) and seen[0].stride(2) == 0
    assert seen[1].shape == (1, 1, 4, 4) and seen[1].stride(2) == 0


def test_dropout_draws_from_the_generator() -> None:
    q = torch.randn(2, 3, 16, 8)
    torch.manual_seed(4)
    a, b = (kt.scaled_dot_product_attention(q, q, q, dropout_p=0.5) for _ in "ab")
    torch.manual_seed(4)
    assert torch.equal(a, kt.scaled_dot_product_attention(q, q, q, dropout_p=0.5)) and not torch.equal(a, b)
    torch.manual_seed(4)
    assert torch.equal(a, kt.attention(q, q, q, dropout=0.5, rng=kt.draw_rng("cpu")))


ANYTHING = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 3), st.floats(), st.text(max_size=3), st.just([]), st.just(object()),
    st.builds(lambda sizes, dtype: torch.zeros(sizes, dtype=dtype), st.lists(st.integers(0, 3), max_size=5),
              st.sampled_from([torch.float32, torch.float64, torch.int64, torch.bool, torch.complex64])),
    st.just(torch.zeros(2, 2).to_sparse()), st.just(torch.zeros(2, 2, device="meta")),
)  # fmt: skip
GOOD = torch.ones(2, 2, 3, 4)


@once
@given(data=st.data())
def test_arguments_of_any_kind_are_taken_or_refused(data: st.DataObject) -> None:
    """Whatever is given, the answer is an exception of Kiln's in one line, of the native engine at the latest."""
    operators.set_engine(None)
    names = ["query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa"]
    call = {"query": GOOD, "key": GOOD, "value": GOOD}
    for name in data.draw(st.lists(st.sampled_from(names), min_size=1, max_size=3)):
        call[name] = data.draw(ANYTHING)
    try:
        out = kt.scaled_dot_product_attention(**call)
    except KilnError as error:
        assert str(error) and "\n" not in str(error)
    else:
        assert out.is_meta


def test_tensors_without_memory_have_shapes() -> None:
    q, k = torch.empty(2, 3, 4, 8, device="meta"), torch.empty(2, 3, 5, 8, device="meta")
    assert kt.scaled_dot_product_attention(q, k, k).shape == q.shape
    out, lse = kt.attention(q.requires_grad_(), k, k, return_lse=True)
    assert out.is_meta and lse.shape == (2, 3, 4)
    out.sum().backward()
    assert q.grad.shape == q.shape


def test_what_is_refused_by_name() -> None:
    q = torch.randn(2, 3, 4, 8)
    mask = torch.ones(4, 4, dtype=torch.bool)
    for call, kind, words in (
        ({"attn_mask": mask, "is_causal": True}, ArgumentError, "attn_mask and is_causal exclude each other"),
        ({"attn_mask": mask[:3]}, ArgumentError, "does not broadcast"),
        ({"attn_mask": mask.long()}, ArgumentError, "bool or of a floating dtype"),
        ({"dropout_p": 1.5}, ArgumentError, "dropout_p must be a probability, and is 1.5"),
        ({"dropout_p": 1.0}, UnsupportedError, "at most 0.9999"),
        ({"key": q.double()}, ArgumentError, "one dtype"),
        ({"key": q[:, :2], "value": q[:, :2]}, ArgumentError, "do not broadcast"),
        ({"key": q[0, 0, 0]}, ArgumentError, "key must have at least 2 dimensions, and has 1"),
        ({"key": q[:, :1], "enable_gqa": True}, UnsupportedError, "different numbers of heads"),
        ({"query": [q]}, ArgumentError, "query must be a tensor, and is a list"),
        ({"scale": "large"}, ArgumentError, "scale must be a number or None"),
        ({"enable_gqa": 1}, ArgumentError, "enable_gqa must be True or False, and is 1"),
    ):
        with pytest.raises(kind, match=words):
            kt.scaled_dot_product_attention(**{"query": q, "key": q, "value": q, **call})


def test_autocast() -> None:
    q = torch.randn(2, 3, 4, 8).requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        out = kt.scaled_dot_product_attention(q, q.bfloat16(), q)
        other = kt.attention(q, q, q, bias=torch.zeros(4, 4))
    assert out.dtype == other.dtype == torch.bfloat16
    out.sum().backward()
    assert q.grad.dtype == torch.float32


def test_without_a_gpu_all_is_refused_in_one_sentence() -> None:
    operators.set_engine(None)
    q = torch.randn(2, 3, 4, 8)
    for function in (kt.attention, kt.scaled_dot_product_attention, lambda *x: kt.decode(*x)):
        with pytest.raises(ArgumentError, match="is on the CPU; all tensors must be on one CUDA or ROCm device$"):
            function(q, q, q)
    with pytest.raises(ArgumentError, match="rng is on the CPU"):
        kt.dropout_mask(torch.zeros(2, dtype=torch.int64), 1, 1, 2, 2, 0.5)
    assert operators.engine() is native
    assert "refused (ArgumentError): q is on the CPU" in str(kt.explain(q, q, q))


def test_the_signature_is_pytorchs() -> None:
    import inspect

    words = ["query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa"]
    for function in (kt.scaled_dot_product_attention, routing.scaled_dot_product_attention):
        parameters = inspect.signature(function).parameters
        assert list(parameters) == words
        assert [p.name for p in parameters.values() if p.kind is p.KEYWORD_ONLY] == ["scale", "enable_gqa"]
    schema = torch.ops.aten.scaled_dot_product_attention.default._schema
    assert [argument.name for argument in schema.arguments] == words
    assert [argument.name for argument in schema.arguments if argument.kwarg_only] == ["scale", "enable_gqa"]
    assert F.scaled_dot_product_attention is routing.theirs
