"""A call of kiln_attn_fwd_fp8, described; and its errors beside those of the formula with PyTorch's e4m3 roundings of
the weights, scaled up to 2^8 as the kernel's are."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace

import ffi

KINDS = ("normal", "mean", "uniform", "outliers", "rising", "sink")
UNLIMITED = -1


@dataclass(frozen=True)
class Call:
    heads: int = 2
    heads_kv: int = 1
    width: int = 128
    width_v: int = 128
    left: int = UNLIMITED
    right: int = UNLIMITED
    bottom_right: bool = False
    lengths: tuple[tuple[int, int], ...] = ((700, 900),)  # rows and keys of each sequence
    how: str = "batch"  # batch: all are the first; compact: by cu_seqlens; used: by seqused
    sinks: bool = False
    scales: bool = True
    rows_first: bool = False
    dtype: str = "bfloat16"


def made(call: Call, kind: str) -> tuple[dict, list]:
    """The tensors of a call, and of each sequence q, k and v in float64, scaled."""
    import torch

    rows, keys = [[pair[place] for pair in call.lengths] for place in (0, 1)]
    batch, shapes = len(rows), {}
    for name, lengths, heads, width in (
        ("q", rows, call.heads, call.width), ("k", keys, call.heads_kv, call.width),
        ("v", keys, call.heads_kv, call.width_v),
    ):  # fmt: skip
        shapes[name] = (1, heads, sum(lengths), width) if call.how == "compact" else (batch, heads, max(lengths), width)
    tensors = {}
    for name, shape in shapes.items():
        x = torch.randn(shape, device="cuda")
        if kind == "mean":
            x = x + 1 + torch.rand(shape[3], device="cuda")
        elif kind == "uniform":
            x = torch.rand_like(x)
        elif kind == "outliers":
            x[..., torch.randperm(shape[3])[:3]] *= 20
        elif kind == "rising" and name != "v":
            x = (x + 1) * (torch.linspace(-1, 1, shape[2], device="cuda")[:, None] if name == "k" else 1)
        elif kind == "sink" and name != "v":
            x = x * 0.1 + (1 if name == "q" else 0)
            x[:, :, 0] = 1
        tensors[name] = x.abs().amax(), x
    descales = {
        name: most / 200 * (torch.rand(batch, call.heads_kv, device="cuda") + 0.5)
        for name, (most, _) in tensors.items()
    }  # fmt: skip
    begins = {name: [0, *itertools.accumulate(rows if name == "q" else keys)] for name in "qkv"}
    wide = []
    for b in range(batch):
        parts = []
        for name, lengths in (("q", rows), ("k", keys), ("v", keys)):
            place, begin = (0, begins[name][b]) if call.how == "compact" else (b, 0)
            scale = descales[name][b].repeat_interleave(tensors[name][1].shape[1] // call.heads_kv)[:, None, None]
            part = tensors[name][1][place, :, begin : begin + lengths[b]]
            part.copy_(part / scale if call.scales else part / tensors[name][0] * 300)
            part.copy_(part.to(torch.float8_e4m3fn))
            parts.append(part.double() * (scale if call.scales else 1))
        wide.append(parts)
    fields = {}
    for name, (_, x) in tensors.items():
        x = x.transpose(1, 2).contiguous().transpose(1, 2) if call.rows_first else x
        x = x.to(torch.float8_e4m3fn)
        if call.how == "used":  # what does not count is no number
            for b, length in enumerate(rows if name == "q" else keys):
                x.view(torch.uint8)[b, :, length:] = 0x7F
        fields[name] = x
    if call.scales:
        fields |= {f"{name}_descale": x for name, x in descales.items()}
    if call.how == "compact":
        for name in "qk":
            fields[f"cu_seqlens_{name}"] = torch.tensor(begins[name], dtype=torch.int32, device="cuda")
    if call.how == "used":
        fields["seqused_q"] = torch.tensor(rows, dtype=torch.int32, device="cuda")
        fields["seqused_k"] = torch.tensor(keys, dtype=torch.int32, device="cuda")
    if call.sinks:
        fields["sinks"] = torch.randn(call.heads, device="cuda")
    return fields, wide


def formula(call: Call, q, k, v, scale: float, sinks, is_rounded: bool):
    """Of one sequence the output and the log-sum-exp."""
    import torch

    group = call.heads // call.heads_kv
    k, v = k.repeat_interleave(group, 0), v.repeat_interleave(group, 0)
    scores = scale * (q @ k.mT)
    i, j = torch.arange(q.shape[1], device="cuda")[:, None], torch.arange(k.shape[1], device="cuda")[None, :]
    i = i + (k.shape[1] - q.shape[1] if call.bottom_right else 0)
    hidden = (j < i - call.left if call.left >= 0 else j < 0) | (j > i + call.right if call.right >= 0 else j < 0)
    scores = scores.masked_fill(hidden, -math.inf)
    most = scores.amax(2, keepdim=True) if k.shape[1] else scores.new_full((*scores.shape[:2], 1), -math.inf)
    blind = most == -math.inf
    p = (scores - most.masked_fill(blind, 0.0)).exp()
    total = p.sum(2, keepdim=True)
    if is_rounded:
        p = (p * 256).float().to(torch.float8_e4m3fn).double() / 256
    if sinks is not None:
        total = total + (sinks.double()[:, None, None] - most.masked_fill(blind, 0.0)).exp()
    lse = (most.masked_fill(blind, 0.0) + total.log())[..., 0]
    return (p @ v) / total.masked_fill(total == 0, 1.0), lse


def run(flash, call: Call, kind: str, keys: tuple[str, ...] = (), **fields: object) -> tuple[float, float]:
    """Calls the entry, and checks it; the errors' root mean square, and that of PyTorch's roundings."""
    import torch

    tensors, wide = made(call, kind)
    q, v = tensors["q"], tensors["v"]
    # Of the usual magnitude, whatever the inputs': a few keys, not one, count.
    group = call.heads // call.heads_kv
    products = [part[0][:, :64] @ part[1][:, :64].repeat_interleave(group, 0).mT for part in wide]
    scale = 1.5 / max(1.0, *(x.std(unbiased=False).item() for x in products))
    out = torch.full((*q.shape[:3], v.shape[3]), math.nan, dtype=getattr(torch, call.dtype), device="cuda")
    if call.rows_first:
        out = out.transpose(1, 2).contiguous().transpose(1, 2)
    lse = torch.full(q.shape[:3], math.nan, device="cuda")
    params = ffi.AttnFwdFp8(
        window_left=call.left, window_right=call.right, bottom_right=int(call.bottom_right), sm_scale=scale, **fields
    )
    flash.enqueue("kiln_attn_fwd_fp8", params, tensors | {"out": out, "lse": lse}, keys=keys)
    first = out.clone()
    flash.enqueue("kiln_attn_fwd_fp8", params, tensors | {"out": out, "lse": lse}, keys=keys)
    torch.cuda.synchronize()
    assert torch.equal(first.view(torch.int16), out.view(torch.int16)), "equal calls gave different bits"
    errors, roundings, begin = [], [], 0
    for b, (rows, _) in enumerate(call.lengths):
        place, at = (0, begin) if call.how == "compact" else (b, 0)
        begin += rows
        found, log = out[place, :, at : at + rows].double(), lse[place, :, at : at + rows].double()
        expected, expected_log = formula(call, *wide[b], scale, tensors.get("sinks"), False)
        rounded, _ = formula(call, *wide[b], scale, tensors.get("sinks"), True)
        errors.append((found - expected).flatten())
        roundings.append((rounded.to(out.dtype).double() - expected).flatten())
        alike = (log == expected_log) | ((log - expected_log).abs() < 0.01 + 2**-8 * expected_log.abs())
        assert bool(alike.all()), f"{call} {kind}: lse is off by {(log - expected_log).abs().max().item()}"
        if call.how == "used":
            assert bool(out[b, :, rows:].isnan().all()), f"{call}: rows that do not count were written"
    error, rounding = (torch.cat(x) for x in (errors, roundings))
    assert not bool(error.isnan().any()), f"{call} {kind}: not every element was written"
    most = 4 * rounding.abs().max().item() + 1e-6
    assert error.abs().max().item() <= most, f"{call} {kind}: an error of {error.abs().max().item()}, above {most}"
    return error.square().mean().sqrt().item(), rounding.square().mean().sqrt().item()


# Of every head dimension and mask; the last has tiles of 192 rows for fewer rounds of blocks than of 128.
FORCED = (
    Call(lengths=((700, 900),), right=0, bottom_right=True),
    Call(lengths=((130, 300), (1, 70), (600, 900)), how="compact", left=100, right=50, sinks=True),
    Call(lengths=((300, 513),) * 2, how="used", scales=False, rows_first=True),
    Call(heads=64, heads_kv=4, lengths=((1300, 4096),), bottom_right=True),
)


def run_fp8_image(flash, variant: dict, words: dict[str, str]) -> dict:
    """A row as of candidates.run_images, of an image of attn_fwd_fp8: each of FORCED that takes it."""
    row = {"wrong": [], "cases": 0, "ratio": 0.0, "output": "out", "key": variant["key"]}
    dtype = {"bf16": "bfloat16", "fp16": "float16"}[words["dtype"]]
    width = int(words["head_dim"])
    for call in FORCED:
        call = replace(call, dtype=dtype, width=width, width_v=width)
        try:
            error, rounding = run(flash, call, "mean", (variant["key"],))
        except ffi.Failure as failure:
            if failure.status == ffi.UNSUPPORTED and "does not take this call" in failure.sentence:
                continue
            row["wrong"].append(f"{call}: {failure.sentence}")
            break
        except AssertionError as error:
            row["wrong"].append(str(error))
            continue
        row["cases"] += 1
        row["runs"] = 2  # `run` compares them
        row["ratio"] = max(row["ratio"], error / rounding)
        if not error <= 2 * rounding:
            row["wrong"].append(f"{call}: {error}, and PyTorch's roundings {rounding}")
    if not row["cases"] and not row["wrong"]:
        row["wrong"].append("no call of fp8_calls.py reaches this image")
    return row
