"""kiln.torch.attention_fp8, by the definition in place of the kernels."""

from __future__ import annotations

import pytest
import torch

import kiln.torch as kt
from kiln.errors import ArgumentError, UnsupportedError

FP8 = torch.float8_e4m3fn


def fp8(*shape: int) -> torch.Tensor:
    return torch.randn(shape).to(FP8)


def dense(x: torch.Tensor, descale: torch.Tensor | None, group: int = 1) -> torch.Tensor:
    """In fp32, [batch, heads, rows, columns], each head times its scale."""
    return x.float() if descale is None else x.float() * descale.repeat_interleave(group, 1)[:, :, None, None]


@pytest.mark.parametrize("rows_first", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_each_head_has_its_scales(definition, rows_first: bool, dtype: torch.dtype) -> None:
    q, k, v = fp8(2, 4, 7, 16), fp8(2, 2, 9, 16), fp8(2, 2, 9, 32)
    descales = [torch.rand(2, 2) + 0.5 for _ in "qkv"]
    given = [x.transpose(1, 2).contiguous() if rows_first else x for x in (q, k, v)]
    out, lse = kt.attention_fp8(
        *given, **{f"{name}_descale": x for name, x in zip("qkv", descales)}, causal=True, dtype=dtype,
        rows_first=rows_first,
    )  # fmt: skip
    expected, expected_lse = kt.attention(
        dense(q, descales[0], 2), dense(k, descales[1]), dense(v, descales[2]), causal=True, return_lse=True
    )
    assert out.dtype == dtype and out.shape == ((2, 7, 4, 32) if rows_first else (2, 4, 7, 32))
    found = out.transpose(1, 2) if rows_first else out
    torch.testing.assert_close(found.float(), expected, rtol=2**-7, atol=2**-8)
    torch.testing.assert_close(lse, expected_lse)


def test_scales_broadcast(definition) -> None:
    q, k = fp8(2, 4, 5, 16), fp8(2, 2, 5, 16)
    more = {"scale": 0.25, "window": (2, 1)}
    one, _ = kt.attention_fp8(q, k, k, k_descale=torch.tensor(0.5), **more)
    two, _ = kt.attention_fp8(q, k, k, k_descale=torch.full((1, 2), 0.5, dtype=torch.float64), **more)
    assert torch.equal(one, two)
    with pytest.raises(ArgumentError, match="q_descale"):
        kt.attention_fp8(q, k, k, q_descale=torch.ones(3, 2))


def test_sequences_one_after_another(definition) -> None:
    q, k = fp8(8, 4, 16), fp8(11, 2, 16)
    cu_q, cu_k = torch.tensor([0, 3, 8]), torch.tensor([0, 7, 11])
    descale = torch.tensor([[1.0, 2.0], [0.5, 1.5]])
    more = {"bottom_right": True, "causal": True, "rows_first": True}
    out, lse = kt.attention_fp8(q, k, k, q_descale=descale, cu_seqlens_q=cu_q, cu_seqlens_k=cu_k, **more)
    assert out.shape == q.shape and lse.shape == (4, 8)
    for b in range(2):
        rows, keys = slice(*cu_q[b : b + 2].tolist()), slice(*cu_k[b : b + 2].tolist())
        k_alone = k[None, keys]
        alone, _ = kt.attention_fp8(q[None, rows], k_alone, k_alone, q_descale=descale[b : b + 1], **more)
        torch.testing.assert_close(out[rows], alone[0])


def test_what_the_operator_promises(definition) -> None:
    q, k = fp8(1, 4, 5, 16), fp8(1, 2, 6, 16)
    out = torch.ops.kiln.attn_fwd_fp8.default(q, k, k, dtype=torch.float16)
    made = torch.ops.kiln.attn_fwd_fp8.default(*(x.to("meta") for x in (q, k, k)), dtype=torch.float16)
    assert [(x.shape, x.dtype) for x in made] == [(x.shape, x.dtype) for x in out]
    compiled = torch.compile(kt.attention_fp8, fullgraph=True, backend="eager")
    assert torch.equal(compiled(q, k, k, causal=True)[0], kt.attention_fp8(q, k, k, causal=True)[0])


def test_there_are_no_gradients(definition) -> None:
    q, scale = fp8(1, 2, 5, 16), torch.ones(1, 2, requires_grad=True)
    with pytest.raises(UnsupportedError, match="attn_fwd_fp8 has no gradients, and an argument requires one"):
        kt.attention_fp8(q, q, q, v_descale=scale)
