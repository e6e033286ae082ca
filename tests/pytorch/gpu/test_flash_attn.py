"""The flash-attention functions on a GPU against float64: all arguments, values and gradients."""

from __future__ import annotations

import flash_cache_cases
import flash_cases
import pytest
import torch

from kiln.errors import UnsupportedError
from kiln.torch import flash_attn

DTYPES = [torch.bfloat16, torch.float16, torch.float32]
WIDTHS = [64, 128, 80]


def checked(check, case) -> None:
    """A release of the core profile has no float32; what it has must answer."""
    try:
        check(case, "cuda")
    except UnsupportedError as error:
        if case.dtype == torch.float32:
            pytest.skip(f"this release has none: {error}")
        raise AssertionError(f"{case}: {error}") from None
    except AssertionError as error:
        raise AssertionError(f"{case}: {error}") from None


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("function", flash_cases.FUNCTIONS)
def test_values_and_gradients(function, dtype):
    for seed in range(30):
        checked(flash_cases.check, flash_cases.draw(function, dtype, seed, WIDTHS, (20, 150, 400)[seed % 3]))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_caches(dtype):
    for seed in range(60):
        checked(flash_cache_cases.check, flash_cache_cases.draw(dtype, seed, WIDTHS, (24, 130)[seed % 2]))


@pytest.mark.parametrize(("rows", "dropout"), [(300, 0.1), (700, 0.0)])
def test_equal_calls_give_equal_bits(rows, dropout):
    torch.manual_seed(1)
    qkv = torch.randn(2, rows, 3, 4, 64, device="cuda", dtype=torch.bfloat16).requires_grad_()
    results = []
    for _ in range(3):
        torch.manual_seed(7)
        out = flash_attn.flash_attn_qkvpacked_func(qkv, dropout, causal=True, deterministic=True)
        (gradient,) = torch.autograd.grad(out.float().square().sum(), qkv)
        results.append((out, gradient))
    for out, gradient in results[1:]:
        assert torch.equal(out, results[0][0]) and torch.equal(gradient, results[0][1])


def test_compiled():
    def step(qkv, begins):
        out = flash_attn.flash_attn_varlen_qkvpacked_func(qkv, begins, 200, causal=True, softcap=3.0)
        return out.float().square().sum()

    qkv = torch.randn(300, 3, 4, 64, device="cuda", dtype=torch.bfloat16).requires_grad_()
    begins = torch.tensor([0, 100, 300], dtype=torch.int32, device="cuda")
    expected = step(qkv, begins)
    found = torch.compile(step, fullgraph=True)(qkv, begins)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)
    (gradient,) = torch.autograd.grad(expected, qkv)
    torch.testing.assert_close(torch.autograd.grad(found, qkv)[0], gradient, rtol=2e-2, atol=2e-2)
