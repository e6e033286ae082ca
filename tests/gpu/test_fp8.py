"""kiln_attn_fwd_fp8 against its formula in float64 (fp8_calls.py)."""

from __future__ import annotations

import random

import ffi
import pytest
from fp8_calls import KINDS, UNLIMITED, Call, run


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("width", [64, 128])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_errors_beside_those_of_pytorch_s_roundings(flash, record, kind, width, dtype):
    import torch

    torch.manual_seed(7)
    for right in (UNLIMITED, 0):
        call = Call(width=width, width_v=width, dtype=dtype, right=right, lengths=((1100, 4096),), bottom_right=True)
        error, rounding = run(flash, call, kind)
        record("fp8", inputs=kind, width=width, dtype=dtype, error=error, rounding=rounding)
        assert error <= 2 * rounding, f"{call} {kind}: {error}, and PyTorch's roundings {rounding}"


def unmasked(flash, call: Call) -> tuple[str, ...]:
    """The image of large tiles that calls without a mask run if they have tiles for all multiprocessors."""
    variants = flash.images("attn_fwd_fp8", flash.target)
    dtype = {"bfloat16": "bf16", "float16": "fp16"}[call.dtype]
    return tuple(
        v["key"] for v in variants if v["kernel"] == "attn_fwd_fp8.unmasked" and f"dtype={dtype} " in v["functional"]
    )


# On 114 or 132 multiprocessors these calls have more than 4 rounds of tiles of 128 rows for each 3 of 192.
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_large_tiles_without_a_mask(flash, record, kind, dtype):
    import torch

    torch.manual_seed(8)
    call = Call(heads=64, heads_kv=4, dtype=dtype, lengths=((1300, 4096),), bottom_right=True)
    error, rounding = run(flash, call, kind, unmasked(flash, call))
    record("fp8", inputs=kind, width=128, dtype=dtype, error=error, rounding=rounding, large=True)
    assert error <= 2 * rounding, f"{call} {kind}: {error}, and PyTorch's roundings {rounding}"


@pytest.mark.parametrize("seed", range(16))
def test_random_calls_of_large_tiles(flash, seed):
    import torch

    rng = random.Random(seed)
    torch.manual_seed(seed)
    how = rng.choice(("batch", "used"))
    rows = rng.choice((570, 576, 705, 768))
    lengths = [(rows, rng.randint(1, 900))]
    lengths += [(rng.randint(0, rows), rng.randint(0, 900)) for _ in range(3)] if how == "used" else lengths * 3
    heads_kv = rng.choice((1, 6, 16, 48))
    call = Call(
        heads=48, heads_kv=heads_kv, width=rng.choice((80, 128, 128)), width_v=rng.choice((112, 128)), how=how,
        bottom_right=rng.random() < 0.5, sinks=rng.random() < 0.4, lengths=tuple(lengths), scales=rng.random() < 0.7,
        rows_first=rng.random() < 0.5, dtype=rng.choice(("bfloat16", "float16")),
    )  # fmt: skip
    error, rounding = run(flash, call, rng.choice(KINDS), unmasked(flash, call))
    assert error <= 2 * rounding + 1e-6, f"{call}: {error}, and PyTorch's roundings {rounding}"


@pytest.mark.parametrize("seed", range(24))
def test_random_calls(flash, seed):
    import torch

    rng = random.Random(seed)
    torch.manual_seed(seed)
    how = rng.choice(("batch", "compact", "used"))
    lengths = [(rng.randint(1, 600), rng.randint(1, 900)) for _ in range(rng.choice((1, 2, 5)))]
    heads_kv = rng.choice((1, 2, 3))
    call = Call(
        heads=heads_kv * rng.choice((1, 2, 4)), heads_kv=heads_kv, width=rng.choice((16, 64, 80, 128)),
        width_v=rng.choice((16, 64, 112, 128)), left=rng.choice((UNLIMITED, UNLIMITED, 0, 100, 300)),
        right=rng.choice((UNLIMITED, 0, 0, 50)), bottom_right=rng.random() < 0.5, how=how, sinks=rng.random() < 0.3,
        lengths=tuple(lengths[:1] * len(lengths) if how == "batch" else lengths), scales=rng.random() < 0.7,
        rows_first=rng.random() < 0.5, dtype=rng.choice(("bfloat16", "float16")),
    )  # fmt: skip
    error, rounding = run(flash, call, rng.choice(KINDS))
    assert error <= 2 * rounding + 1e-6, f"{call}: {error}, and PyTorch's roundings {rounding}"


def test_what_descriptors_do_not_take_is_refused(flash):
    import torch

    q = torch.zeros(1, 2, 64, 72, device="cuda").to(torch.float8_e4m3fn)
    out = torch.zeros(1, 2, 64, 72, device="cuda", dtype=torch.bfloat16)
    with pytest.raises(ffi.Failure, match="attn_fwd_fp8"):
        flash.enqueue("kiln_attn_fwd_fp8", ffi.AttnFwdFp8(), {"q": q, "k": q, "v": q, "out": out})
    q, out = q[..., :64].contiguous(), out[..., :64].contiguous()
    with pytest.raises(ffi.Failure, match="sm_scale of fp8 must not be below 0"):
        flash.enqueue("kiln_attn_fwd_fp8", ffi.AttnFwdFp8(sm_scale=-1.0), {"q": q, "k": q, "v": q, "out": out})
