"""kiln.torch's functions on the kernels themselves, run by Triton's interpreter on the CPU, against PyTorch's."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import kiln.torch as kt
from kiln.torch import operators, routing

jit = pytest.importorskip("kiln.jit")
pytest.importorskip("triton", reason="needs triton")


@pytest.fixture(scope="module", autouse=True)
def interpreted():
    with jit.use(interpret=True) as engine:
        yield engine
    assert operators.engine().name == "native"


def random(*sizes: int) -> Tensor:
    return torch.randn(sizes, generator=torch.Generator().manual_seed(sum(sizes)))


def same(ours, theirs, *tensors: Tensor) -> None:
    """Value and gradients of two functions."""
    results = []
    for function in (ours, theirs):
        leaves = [x.detach().clone().requires_grad_(x.is_floating_point()) for x in tensors]
        out = function(*leaves)
        if out.numel():
            out.backward(torch.linspace(-1, 1, out.numel()).reshape(out.shape))
        results.append([out.detach(), *(x.grad for x in leaves if x.grad is not None)])
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, atol=5e-6, rtol=5e-6)


def sdpa(*tensors: Tensor, **call: object) -> None:
    same(lambda *x: kt.scaled_dot_product_attention(*x, **call), lambda *x: routing.theirs(*x, **call), *tensors)


def test_masks() -> None:
    q, k, v = random(2, 3, 8, 16), random(2, 3, 9, 16), random(2, 3, 9, 12)
    mask = random(2, 1, 8, 9) > -0.5
    mask[0, 0, 3] = False  # a row that sees no key
    for call in ({}, {"is_causal": True}, {"scale": -0.3}):
        sdpa(q, k, v, **call)
    for bias in (mask, random(1, 3, 8, 9), random(9).expand(8, 9), random(8, 1)):
        sdpa(q, k, v, bias)


def test_shapes() -> None:
    sdpa(random(3, 8, 16), random(3, 9, 16), random(3, 9, 16), is_causal=True)
    sdpa(random(2, 4, 8, 16), random(2, 2, 9, 16), random(2, 2, 9, 16), enable_gqa=True)
    sdpa(random(2, 3, 16, 8).mT, random(2, 3, 16, 9).mT, random(2, 3, 16, 9).mT)
    sdpa(random(1, 2, 2, 8, 16), random(2, 1, 2, 9, 16), random(2, 2, 2, 9, 16))
    q, k = random(2, 3, 8, 16).requires_grad_(), random(2, 3, 0, 16).requires_grad_()
    out = kt.scaled_dot_product_attention(q, k, k)
    out.sum().backward()
    assert not out.any() and not q.grad.any()


def test_routed_and_compiled() -> None:
    q, k, v = random(1, 2, 8, 16), random(1, 2, 8, 16), random(1, 2, 8, 16)

    def run(q, k, v):
        return F.scaled_dot_product_attention(q * 2, k, v, is_causal=True)

    def routed(*x):
        with kt.use():
            return torch.compile(run, fullgraph=True, backend="aot_eager")(*x)

    same(routed, run, q, k, v)
    assert kt.fallthroughs() == {}


def test_sequences_of_several_lengths() -> None:
    """Each by itself is what PyTorch makes of it; rows of none are zeros, in gradients too."""
    begins = torch.tensor([0, 3, 3, 10], dtype=torch.int32)
    q, k, v = (random(12, 2, 16) for _ in "qkv")

    def one_by_one(q, k, v):
        parts = []
        for begin, end in pairwise(begins):
            part = [x[begin:end].transpose(0, 1) for x in (q, k, v)]
            parts.append(routing.theirs(*part, is_causal=True).transpose(0, 1))
        return torch.cat([*parts, torch.zeros_like(q[10:])])

    def packed(q, k, v):
        return kt.attention(q, k, v, cu_seqlens_q=begins, cu_seqlens_k=begins, rows_first=True, causal=True)

    same(packed, one_by_one, q, k, v)


def test_dropout_keeps_what_dropout_mask_says() -> None:
    q, k, v = (random(1, 2, 8, 16) for _ in "qkv")
    torch.manual_seed(5)
    rng = kt.draw_rng("cpu")
    keep = kt.dropout_mask(rng, 1, 2, 8, 8, 0.5)

    def by_hand(q, k, v):
        return ((q @ k.mT / 4).softmax(-1) * keep / 0.5) @ v

    def drawn(q, k, v):
        torch.manual_seed(5)
        return kt.scaled_dot_product_attention(q, k, v, dropout_p=0.5)

    same(lambda *x: kt.attention(*x, dropout=0.5, rng=rng), by_hand, q, k, v)
    same(drawn, by_hand, q, k, v)
    assert 0 < keep.sum() < keep.numel()


def test_decoding() -> None:
    q, k_cache, v_cache = random(2, 4, 1, 16), random(2, 2, 12, 16), random(2, 2, 12, 16)
    used = torch.tensor([5, 12], dtype=torch.int32)
    out = kt.decode(q, k_cache, v_cache, seqused_k=used)
    for b, keys in enumerate(used.tolist()):
        expected = routing.theirs(q[b], k_cache[b, :, :keys], v_cache[b, :, :keys], enable_gqa=True)
        torch.testing.assert_close(out[b], expected, atol=5e-6, rtol=5e-6)
