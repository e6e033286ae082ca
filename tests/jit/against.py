"""Calls of the engine that kiln.jit gives, against the float64 references of tests/kernels. For the child process."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache

import numpy as np
import torch
from attention import Call, attention
from cache import CacheCall, appended, with_cache

from kiln.errors import KilnError

__all__ = ["KilnError", "attend", "decode", "engine", "mask_of_dropout"]

# Largest error that rounding explains, relative to 1 + the value; four times that of gradients.
TOLERANCE = {torch.float16: 3e-3, torch.float32: 3e-5, torch.bfloat16: 2.5e-2}


@cache
def engine(target: str = "sm_90"):
    import kiln.jit

    return kiln.jit.Engine(kiln.jit.Recipe(interpret=True, target=target))


def numbers(tensor: torch.Tensor | None) -> np.ndarray | None:
    return None if tensor is None else tensor.detach().double().numpy()


def integers(tensor: torch.Tensor | None) -> np.ndarray | None:
    return None if tensor is None else tensor.numpy()


def close(name: str, got: torch.Tensor, expected: np.ndarray, tolerance: float) -> None:
    """What the reference leaves open, NaN, is rows that belong to no sequence: these are 0."""
    expected = np.nan_to_num(expected, nan=0.0, posinf=np.inf, neginf=-np.inf)
    np.testing.assert_allclose(numbers(got), expected, rtol=tolerance, atol=tolerance, err_msg=name)


def attend(shapes: dict, dtype_name: str, seed: int, given: dict, options: dict, target: str = "sm_90") -> None:
    """Forward and backward of one call.

    Args:
        shapes: of q, k, v, as the engine gets them; `dout` has out's.
        given: shapes of bias, sinks and alibi_slopes, and values of cu_seqlens_* and seqused_*.
        options: what else the engine gets; `rng` as two numbers.
    """
    dtype, draw = getattr(torch, dtype_name), torch.Generator().manual_seed(seed)
    tensors = {name: torch.randn(shape, generator=draw).to(dtype) for name, shape in shapes.items()}
    extras = {}
    for name, value in given.items():
        if name in ("bias", "sinks", "alibi_slopes"):
            extras[name] = torch.randn(value, generator=draw).to(dtype if name == "bias" else torch.float32)
        else:
            extras[name] = torch.tensor(value, dtype=torch.int32)
    options = dict(options)
    rng = options.pop("rng", None)
    if rng:
        extras["rng"] = torch.tensor(rng)
    rows_first = options.get("rows_first", False)
    call = _call(tensors, extras, options, rows_first, rng)
    out, lse = engine(target).attn_fwd(**_qkv(tensors), **extras, **options, return_lse=True, for_backward=True)
    assert out.shape == (*tensors["q"].shape[:-1], tensors["v"].shape[-1]) and out.dtype == dtype
    dout = torch.randn(out.shape, generator=draw).to(dtype)
    grads = engine(target).attn_bwd(
        dout, **_qkv(tensors), out=out, lse=lse, **extras, **options, need_dbias="bias" in extras,
        need_dsinks="sinks" in extras,
    )  # fmt: skip
    expected = attention(replace(call, dout=_logical(dout, rows_first)))
    tolerance = TOLERANCE[dtype] / (1 - call.dropout)
    found = dict(zip(("dq", "dk", "dv", "dbias", "dsinks"), grads))
    assert [grad is None for grad in grads[3:]] == ["bias" not in extras, "sinks" not in extras]
    close("out", torch.from_numpy(_logical(out, rows_first)), expected.out, tolerance)
    for name, grad in found.items():
        if grad is not None:
            got = _logical(grad, rows_first) if name in ("dq", "dk", "dv") else numbers(grad)
            close(name, torch.from_numpy(got), getattr(expected, name), 4 * tolerance)
    written = ~np.isnan(expected.lse)
    got = numbers(lse).reshape(expected.lse.shape)
    np.testing.assert_allclose(got[written], expected.lse[written], rtol=1e-5, atol=1e-4, err_msg="lse")


def _qkv(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensors[name] for name in ("q", "k", "v")}


def _logical(tensor: torch.Tensor, rows_first: bool) -> np.ndarray:
    """[batch, heads, rows, d], as the reference has it."""
    tensor = tensor if tensor.dim() == 4 else tensor[None]
    return numbers(tensor.transpose(1, 2) if rows_first else tensor)


def _call(tensors, extras, options, rows_first: bool, rng) -> Call:
    q, k, v = (_logical(tensors[name], rows_first) for name in "qkv")
    cu, used = ([extras.get(f"{what}_{side}") for side in "qk"] for what in ("cu_seqlens", "seqused"))
    batch = q.shape[0] if cu[0] is None else len(cu[0]) - 1
    slopes = extras.get("alibi_slopes")
    if slopes is not None:
        slopes = slopes.expand(batch, -1)
    windows = {}
    for name, side in (("left", "window_left"), ("right", "window_right")):
        if options.get(side, -1) >= 0:
            windows[name] = options[side]
    if options.get("causal"):
        windows["right"] = 0
    return Call(
        q, k, v, options.get("scale") or 1 / math.sqrt(q.shape[-1]), **windows,
        bottom_right=options.get("bottom_right", False), sinks=numbers(extras.get("sinks")),
        bias=numbers(extras.get("bias")), slopes=numbers(slopes), softcap=options.get("softcap", 0.0),
        dropout=float(np.float32(options.get("dropout", 0.0))), seed=rng[0] if rng else 0, offset=rng[1] if rng else 0,
        cu_q=integers(cu[0]), cu_k=integers(cu[1]), used_q=integers(used[0]), used_k=integers(used[1]),
    )  # fmt: skip


def decode(dtype_name: str, cache_name: str, seed: int, features: frozenset[str], splits: int = 0) -> None:
    """Attention with a cache: what is appended, and what is seen.

    Args:
        features: some of "paged", "new", "rotary", "interleaved", "packed", "alibi", "softcap", "sinks", "causal",
            "leftpad", "rows_first".
    """
    draw = torch.Generator().manual_seed(seed)
    dtype, cached = getattr(torch, dtype_name), getattr(torch, cache_name)
    batch, heads, heads_kv, keys, rows, width = 3, 4, 2, 48, 2, 32
    normal = lambda *shape: torch.randn(shape, generator=draw).to(dtype)  # noqa: E731
    used = torch.tensor([5, 33, 20], dtype=torch.int32)
    arguments: dict[str, object] = {"seqused_k": used, "causal": "causal" in features, "splits": splits}
    q = normal(batch, heads, rows, width)
    if "packed" in features:
        q = normal(1, heads, 7, width)
        arguments |= {"cu_seqlens_q": torch.tensor([0, 1, 5, 7], dtype=torch.int32), "max_seqlen_q": 4}
    shape = (batch, heads_kv, keys, width)
    if "paged" in features:
        shape = (10, heads_kv, 16, width)
        table = torch.randperm(9, generator=draw).reshape(3, 3).int()
        arguments["block_table"] = table
    k_cache, v_cache = ((normal(*shape) * 0.5).to(cached) for _ in "kv")
    if cached != dtype:
        arguments |= {f"{name}_scale": torch.rand(heads_kv, generator=draw) + 0.5 for name in "kv"}
    if "new" in features:
        arguments |= {f"{name}_new": normal(batch, heads_kv, 2, width) for name in "kv"}
    if "rotary" in features:
        angle = torch.rand((keys, 8), generator=draw) * 6
        arguments |= {"rotary_cos": angle.cos().to(dtype), "rotary_sin": angle.sin().to(dtype)}
        arguments["rotary_interleaved"] = "interleaved" in features
    if "leftpad" in features:
        arguments["leftpad"] = torch.tensor([1, 0, 7], dtype=torch.int32)
    if "alibi" in features:
        arguments["alibi_slopes"] = torch.rand((batch, heads), generator=draw)
    if "sinks" in features:
        arguments["sinks"] = torch.randn(heads, generator=draw)
    if "softcap" in features:
        arguments["softcap"] = 3.0
    call = _cache_call(q, k_cache, v_cache, arguments)
    rows_first = "rows_first" in features
    turned = lambda tensor: tensor.transpose(1, 2).contiguous() if rows_first else tensor  # noqa: E731
    given = {name: turned(value) if name in ("k_new", "v_new") else value for name, value in arguments.items()}
    q, k_cache, v_cache = turned(q), turned(k_cache), turned(v_cache)
    out = torch.full_like(q, math.nan)
    lse = engine().attn_decode(q, k_cache, v_cache, out, **given, rows_first=rows_first, return_lse=True)
    caches = appended(call)
    expected_out, expected_lse = with_cache(call, *caches)
    # What a quantized cache holds is what was appended, as exactly as fp8 can: one part in 16.
    tolerance = TOLERANCE[dtype]
    close("out", torch.from_numpy(_logical(out, rows_first)), expected_out, 4e-2 if cached != dtype else tolerance)
    np.testing.assert_allclose(numbers(lse), expected_lse, rtol=2e-2 if cached != dtype else 1e-3, atol=1e-2)
    for name, cache_after, expected in zip(("k_cache", "v_cache"), (k_cache, v_cache), caches):
        got = torch.from_numpy(_logical(cache_after.float(), rows_first))
        close(name, got, expected, 0.07 if cached != dtype else tolerance)


def _cache_call(q, k_cache, v_cache, arguments) -> CacheCall:
    plain = {
        "used": "seqused_k", "cu_q": "cu_seqlens_q", "table": "block_table", "leftpad": "leftpad",
    }  # fmt: skip
    real = {
        "k_new": "k_new", "v_new": "v_new", "cos": "rotary_cos", "sin": "rotary_sin", "k_scale": "k_scale",
        "v_scale": "v_scale", "sinks": "sinks", "slopes": "alibi_slopes",
    }  # fmt: skip
    causal = {"right": 0} if arguments["causal"] else {}
    return CacheCall(
        numbers(q), numbers(k_cache.float()), numbers(v_cache.float()), 1 / math.sqrt(q.shape[-1]),
        **{name: integers(arguments.get(of)) for name, of in plain.items()},
        **{name: numbers(arguments.get(of)) for name, of in real.items()},
        interleaved=bool(arguments.get("rotary_interleaved")), softcap=arguments.get("softcap", 0.0), **causal,
    )  # fmt: skip


def mask_of_dropout(dtype_name: str) -> None:
    """Kept weights, as the reference draws them; what is dropped is 0, or -1 in floating dtypes."""
    from attention import kept

    dtype, seed, offset = getattr(torch, dtype_name), 0x123456789ABCDEF, 0x3_0000_0007
    got = engine().run("dropout_mask", torch.tensor([seed, offset]), 1, 2, 40, 50, 0.3, dtype)
    dropout = float(np.float32(0.3))
    call = Call(*[np.zeros((1, 2, 40, 16))] * 3, 1.0, dropout=dropout, seed=seed, offset=offset)
    for head in range(2):
        expected = np.where(kept(call, head, 40, 50), 1, 0 if dtype == torch.uint8 else -1)
        np.testing.assert_array_equal(got[0, head].float().numpy(), expected)
