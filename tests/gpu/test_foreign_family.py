"""A family that is no attention, through the one entry for all of them: examples/family against float64."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

import ffi
import pytest

DTYPES = {"fp16": ("float16", ffi.FP16), "bf16": ("bfloat16", ffi.BF16), "fp32": ("float32", ffi.FP32)}
GUARD = 16


@pytest.fixture(scope="module")
def norm(request):
    """A runtime with the family norm. Skipped where the release was built without KILN_RECIPES."""
    prefix = Path(request.config.getoption("--kiln-prefix", None) or os.environ["KILN_PREFIX"])
    family = prefix / "lib/libkiln_norm.so"
    if not family.is_file():
        pytest.skip(f"{prefix} has no family norm: it was built without KILN_RECIPES=examples/family/recipe.yaml")
    with ffi.Kiln(ffi.Library(prefix / "lib"), None) as kiln:
        kiln.register(ctypes.CDLL(str(family)), "norm")
        yield kiln


def view(tensor, code: int) -> ffi.Tensor:
    return ffi.tensor(tensor.data_ptr(), code, tuple(tensor.shape), tuple(tensor.stride()))


def laid_out(layout: str, rows: int, columns: int, dtype):
    """Rows as the specializations tell them apart: divisible by 16, only contiguous, with a stride between columns."""
    import torch

    if layout == "strided":
        return torch.randn(rows, 2 * columns, device="cuda").to(dtype)[:, ::2]
    if layout == "unaligned":
        return torch.randn(rows * (columns + 1) + 1, device="cuda").to(dtype)[1:].view(rows, columns + 1)[:, :columns]
    return torch.randn(rows, columns, device="cuda").to(dtype)


@pytest.mark.parametrize("wants_total", [False, True])
@pytest.mark.parametrize("layout", ["aligned", "unaligned", "strided"])
@pytest.mark.parametrize(("rows", "columns"), [(1, 16), (7, 1000), (300, 1024), (33, 1025), (1000, 4096)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_against_float64(norm, dtype, rows, columns, layout, wants_total):
    import torch

    torch.manual_seed(rows * columns)
    kind, code = getattr(torch, DTYPES[dtype][0]), DTYPES[dtype][1]
    x, w = laid_out(layout, rows, columns, kind), torch.randn(columns, device="cuda").to(kind)
    memory = torch.full((rows * columns + GUARD,), -7.0, device="cuda", dtype=kind)
    out = memory[: rows * columns].view(rows, columns)
    total = torch.full((1,), 1e9, device="cuda")
    arguments = [view(x, code), view(w, code), view(out, code), view(total, ffi.FP32) if wants_total else None, 1e-6]
    stream = torch.cuda.current_stream().cuda_stream or None
    call = norm.call(arguments, operation="norm.rms_norm", stream=stream)
    size = norm.workspace_size(call)
    workspace = torch.empty(size, dtype=torch.uint8, device="cuda")
    norm.launch(
        norm.call(arguments, operation="norm.rms_norm", stream=stream, workspace=workspace.data_ptr(),
                  workspace_bytes=size)
    )  # fmt: skip
    torch.cuda.synchronize()

    def formula(x, w):
        return w * x / torch.sqrt((x * x).mean(1, keepdim=True) + 1e-6)

    want = formula(x.double(), w.double())
    limit = 2 * (formula(x.float(), w.float()).to(kind).double() - want).abs().max() + 1e-5
    assert (out.double() - want).abs().max() <= limit
    assert (memory[rows * columns :] == -7.0).all(), "wrote outside of out"
    if wants_total:
        squares = x.double().square().sum()
        assert abs(total.double() - squares) <= 1e-4 * squares
    else:
        assert total.item() == 1e9


def test_what_it_has_no_kernel_for_is_refused(norm):
    import torch

    x, w, out = (torch.zeros(shape, device="cuda") for shape in ((4, 5000), (5000,), (4, 5000)))
    with pytest.raises(ffi.Failure, match="5000"):
        norm.launch(norm.call([view(t, ffi.FP32) for t in (x, w, out)] + [None, 1e-6], operation="norm.rms_norm"))
