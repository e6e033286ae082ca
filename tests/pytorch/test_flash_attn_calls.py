"""The flash-attention functions: their interface, what they give by the engine that is the definition and by the
kernels in Triton's interpreter, and what they refuse."""

from __future__ import annotations

import inspect

import flash_cache_cases
import flash_cases
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import kiln.jit
import kiln.torch
from kiln.errors import ArgumentError, KilnError, UnsupportedError
from kiln.torch import flash_attn

# Arguments of the package's own functions, in order, with their defaults.
COMMON = (
    "dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0, alibi_slopes=None, "
    "deterministic=False, return_attn_probs=False"
)
LENGTHS = "cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k"
INTERFACE = {
    "flash_attn_func": f"q, k, v, {COMMON}",
    "flash_attn_qkvpacked_func": f"qkv, {COMMON}",
    "flash_attn_kvpacked_func": f"q, kv, {COMMON}",
    "flash_attn_varlen_func": f"q, k, v, {LENGTHS}, {COMMON}, block_table=None",
    "flash_attn_varlen_qkvpacked_func": f"qkv, cu_seqlens, max_seqlen, {COMMON}",
    "flash_attn_varlen_kvpacked_func": f"q, kv, {LENGTHS}, {COMMON}",
    "flash_attn_with_kvcache": (
        "q, k_cache, v_cache, k=None, v=None, rotary_cos=None, rotary_sin=None, cache_seqlens=None, "
        "cache_batch_idx=None, cache_leftpad=None, block_table=None, softmax_scale=None, causal=False, "
        "window_size=(-1, -1), softcap=0.0, rotary_interleaved=True, alibi_slopes=None, num_splits=0, "
        "return_softmax_lse=False"
    ),
}


@pytest.fixture
def interpreter():
    with kiln.jit.use(interpret=True):
        yield


@pytest.mark.parametrize("name", INTERFACE)
def test_interface(name):
    parameters = inspect.signature(getattr(flash_attn, name)).parameters.values()
    assert ", ".join(str(p.replace(annotation=p.empty)) for p in parameters) == INTERFACE[name]
    assert all(p.kind == p.POSITIONAL_OR_KEYWORD for p in parameters)
    assert name in flash_attn.__all__ and getattr(flash_attn, name).__doc__


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("function", flash_cases.FUNCTIONS)
def test_values_and_gradients(definition, function, dtype):
    for seed in range(12):
        flash_cases.check(flash_cases.draw(function, dtype, seed, [8, 16, 24], 20), "cpu")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_caches(definition, dtype):
    for seed in range(40):
        flash_cache_cases.check(flash_cache_cases.draw(dtype, seed, [16, 32], 24), "cpu")


@pytest.mark.parametrize("function", flash_cases.FUNCTIONS)
def test_kernels(interpreter, function):
    for seed, dtype in enumerate([torch.float16, torch.bfloat16, torch.float32][: 2 + ("varlen" in function)]):
        flash_cases.check(flash_cases.draw(function, dtype, seed, [16], 6), "cpu")


def test_kernels_of_caches(interpreter):
    for seed in range(8):
        dtype = (torch.float32, torch.float16)[seed % 2]
        flash_cache_cases.check(flash_cache_cases.draw(dtype, seed, [16], 12), "cpu")


def test_weights_of_a_window_by_hand(definition):
    """Two rows and five keys, causal: the last row and the last key belong together."""
    q, k, v = torch.zeros(1, 2, 1, 8), torch.zeros(1, 5, 1, 8), torch.arange(5.0).reshape(1, 5, 1, 1).expand(1, 5, 1, 8)
    out = flash_attn.flash_attn_func(q, k, v, causal=True)
    assert torch.allclose(out[0, :, 0, 0], torch.tensor([1.5, 2.0]))
    out = flash_attn.flash_attn_func(q, k, v, window_size=(1, 0))
    assert torch.allclose(out[0, :, 0, 0], torch.tensor([2.5, 3.5]))
    out, lse, weights = flash_attn.flash_attn_func(k, q, q, causal=True, return_attn_probs=True)
    assert not out[:, :3].any() and torch.equal(lse[0, 0, :3], torch.full((3,), -torch.inf)) and weights.numel() == 0


def test_dropped_weights_are_negative(definition):
    torch.manual_seed(1)
    q, k, v = (torch.randn(2, 64, 3, 8) for _ in "qkv")
    k[:, 10:20] += 40 * q[:, :10]  # weights that round to 0
    torch.manual_seed(2)
    out, _, weights = flash_attn.flash_attn_func(q, k, v, 0.5, return_attn_probs=True)
    dropped = weights < 0
    assert 0.45 < dropped.float().mean() < 0.55
    assert torch.allclose(weights.abs().sum(3), torch.ones(2, 3, 64), atol=1e-3)
    torch.manual_seed(2)
    assert torch.equal(out, flash_attn.flash_attn_func(q, k, v, 0.5))
    assert not torch.equal(out, flash_attn.flash_attn_func(q, k, v, 0.5))


def test_packed_inputs_have_one_gradient(definition):
    qkv = torch.randn(2, 5, 3, 2, 8, requires_grad=True)
    flash_attn.flash_attn_qkvpacked_func(qkv, causal=True).sum().backward()
    q, k, v = (x.detach().requires_grad_() for x in qkv.unbind(2))
    flash_attn.flash_attn_func(q, k, v, causal=True).sum().backward()
    assert torch.allclose(qkv.grad, torch.stack([q.grad, k.grad, v.grad], 2))


def test_lengths_may_be_tensors(definition):
    q = torch.randn(6, 2, 8)
    begins = torch.tensor([0, 2, 6], dtype=torch.int32)
    given = flash_attn.flash_attn_varlen_func(q, q, q, begins, begins, torch.tensor(4), torch.tensor(4), causal=True)
    assert torch.equal(given, flash_attn.flash_attn_varlen_func(q, q, q, begins, begins, 4, 4, causal=True))


def test_a_full_cache_of_pages_needs_no_lengths(definition):
    q, cache = torch.randn(1, 1, 2, 8), torch.randn(3, 4, 2, 8)
    table = torch.tensor([[2, 0]], dtype=torch.int32)
    out = flash_attn.flash_attn_with_kvcache(q, cache, cache, block_table=table)
    keys = torch.cat([cache[2], cache[0]])[None]
    assert torch.allclose(out, flash_attn.flash_attn_func(q, keys, keys), atol=1e-6)


def test_a_cache_has_no_gradient(definition):
    q = torch.randn(1, 1, 2, 8, requires_grad=True)
    assert not flash_attn.flash_attn_with_kvcache(q, torch.randn(1, 4, 2, 8), torch.randn(1, 4, 2, 8)).requires_grad


@pytest.mark.parametrize("causal", [False, True])
def test_compiled(definition, causal):
    def step(q, k, v, qkv, begins):
        a = flash_attn.flash_attn_func(q, k, v, causal=causal, window_size=(3, 0), softcap=2.0)
        b = flash_attn.flash_attn_varlen_qkvpacked_func(qkv, begins, 4, causal=causal)
        return a.square().sum() + b.square().sum()

    torch.manual_seed(0)
    given = (*(torch.randn(2, n, 2, 8) for n in (5, 7, 7)), torch.randn(6, 3, 2, 8))
    begins = torch.tensor([0, 2, 6], dtype=torch.int32)
    results = []
    for function in (step, torch.compile(step, fullgraph=True, backend="aot_eager")):
        leaves = [x.clone().requires_grad_() for x in given]
        value = function(*leaves, begins)
        results.append([value.detach(), *torch.autograd.grad(value, leaves)])
    for found, expected in zip(*results):
        assert torch.allclose(found, expected, atol=1e-5)


def rows(*sizes: int) -> torch.Tensor:
    return torch.zeros(sizes)


BEGINS = torch.tensor([0, 2], dtype=torch.int32)
REFUSED = [
    (lambda: flash_attn.flash_attn_func(rows(2, 1, 8), rows(2, 1, 8), rows(2, 1, 8)), ArgumentError,
     "q has 3 dimensions, [2, 1, 8]; expected 4"),
    (lambda: flash_attn.flash_attn_qkvpacked_func(rows(1, 2, 2, 1, 8)), ArgumentError,
     "qkv has the sizes [1, 2, 2, 1, 8]; expected 3 in dimension 2"),
    (lambda: flash_attn.flash_attn_varlen_kvpacked_func(rows(2, 1, 8), rows(2, 3, 1, 8), BEGINS, BEGINS, 2, 2),
     ArgumentError, "kv has the sizes [2, 3, 1, 8]; expected 2 in dimension 1"),
    (lambda: flash_attn.flash_attn_func(*[rows(1, 2, 1, 8)] * 3, window_size=(1,)), ArgumentError,
     "window_size must be two integers, (left, right), and is (1,)"),
    (lambda: flash_attn.flash_attn_varlen_func(
        rows(2, 1, 8), rows(1, 2, 1, 8), rows(1, 2, 1, 8), BEGINS, BEGINS, 2, 2, dropout_p=0.5,
        block_table=torch.zeros(1, 1, dtype=torch.int32)), UnsupportedError,
     "dropout_p is not 0 with a block_table: attention over pages has no dropout"),
    (lambda: flash_attn.flash_attn_func(*[rows(1, 2, 1, 8)] * 3), KilnError, None),  # the CPU has no kernels
    (lambda: flash_attn.flash_attn_with_kvcache(*[rows(1, 2, 1, 8)] * 3), KilnError, None),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(REFUSED)))
def test_refusals(number):
    call, error, sentence = REFUSED[number]
    with pytest.raises(error) as found:
        call()
    assert sentence is None or str(found.value) == sentence
    assert "\n" not in str(found.value)


def test_pages_have_no_gradient(definition):
    """But they run, as in flash-attention, while an argument requires one."""
    q, pages, table = rows(2, 1, 8), rows(1, 2, 1, 8), torch.zeros(1, 1, dtype=torch.int32)
    expected = flash_attn.flash_attn_varlen_func(q, pages, pages, BEGINS, BEGINS, 2, 2, block_table=table)
    for leaf in (q, pages):
        leaf.requires_grad_()
        out = flash_attn.flash_attn_varlen_func(q, pages, pages, BEGINS, BEGINS, 2, 2, block_table=table)
        assert torch.equal(out, expected) and not out.requires_grad
        leaf.requires_grad_(False)


@pytest.mark.parametrize("length", [-1, 5, torch.tensor([5], dtype=torch.int32), torch.tensor([-1], dtype=torch.int32)])
@pytest.mark.parametrize("paged", [False, True])
def test_lengths_that_the_cache_has_no_room_for(definition, length, paged):
    q, cache = rows(1, 1, 1, 8), rows(2, 2, 1, 8) if paged else rows(1, 4, 1, 8)
    table = torch.tensor([[0, 1]], dtype=torch.int32) if paged else None
    where = "pages of block_table hold" if paged else "cache has room for"
    with pytest.raises(ArgumentError) as found:
        flash_attn.flash_attn_with_kvcache(q, cache, cache, cache_seqlens=length, block_table=table)
    assert str(found.value) == f"cache_seqlens has {int(length)}, and the {where} 4 keys"
    flash_attn.flash_attn_with_kvcache(q, cache, cache, cache_seqlens=4, block_table=table)


tensors = st.builds(
    lambda sizes, dtype: torch.zeros(sizes, dtype=dtype),
    st.lists(st.sampled_from((0, 1, 2, 3, 16)), min_size=0, max_size=6),
    st.sampled_from((torch.float32, torch.float16, torch.float64, torch.int32, torch.int64)),
)
near = st.builds(lambda b, n, h: torch.zeros(b, n, h, 16), *[st.integers(0, 3)] * 3)


@settings(deadline=None, max_examples=60, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_a_call_answers_or_is_refused(interpreter, data):
    """Whatever is given: a result, or an error of Kiln's; and of shapes and values, none of another kind."""
    name = data.draw(st.sampled_from([*INTERFACE]))
    given_tensors = {
        p.name: data.draw(st.one_of(tensors, near), p.name)
        for p in inspect.signature(getattr(flash_attn, name)).parameters.values()
        if p.name in ("q", "k", "v", "kv", "qkv", "k_cache", "v_cache", "cu_seqlens", "cu_seqlens_q", "cu_seqlens_k")
    }
    options = {p: data.draw(st.integers(-2, 4), p) for p in inspect.signature(getattr(flash_attn, name)).parameters
               if p.startswith("max_seqlen")}  # fmt: skip
    options["causal"] = data.draw(st.booleans())
    options["window_size"] = data.draw(st.tuples(st.integers(-2, 4), st.integers(-2, 4)))
    options["softcap"] = data.draw(st.sampled_from((0.0, -1.0, 2.0, float("nan"), 1e38)))
    if data.draw(st.booleans()):
        options["alibi_slopes"] = data.draw(tensors)
    try:
        getattr(flash_attn, name)(**given_tensors, **options)
    except KilnError as error:
        assert str(error) and "\n" not in str(error)
