"""Runs the project's kernels in Triton's interpreter, on the CPU, in a process of its own.

Triton decides at import whether it interprets, so the process that runs the tests must not import it: the functions
below run in a child whose environment says TRITON_INTERPRET=1. The interpreter is right for fp16 and fp32; for bf16 it
is silently wrong, so bf16 is left to the tests on a GPU.
"""

from __future__ import annotations

import importlib.util
import os
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]


def _become_interpreter() -> None:
    os.environ["TRITON_INTERPRET"] = "1"
    os.environ["OMP_NUM_THREADS"] = "1"


@contextmanager
def interpreter():
    """A child process that interprets; yields its executor."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn"), initializer=_become_interpreter) as executor:
        yield executor


@dataclass(frozen=True)
class Attention:
    """A call of the attention kernel: arrays as views of larger ones, so that strides are what a caller may have."""

    q: np.ndarray  # [batch, heads, seqlen_q, head_dim], fp16 or fp32
    k: np.ndarray  # [batch, heads_kv, seqlen_k, head_dim]
    v: np.ndarray
    sm_scale: float
    causal: bool
    want_lse: bool = True
    block_m: int = 16
    block_n: int = 16
    unmasked_loop: bool = True


def run_attention(call: Attention, layout: str) -> tuple[np.ndarray, np.ndarray]:
    """Runs attn_fwd in this process; returns (out, lse) with what the kernel did not write left as NaN.

    Args:
        call: its arrays are contiguous, as they crossed a process's border.
        layout: how the tensors lie in memory: "contiguous", "rows" (seqlen before heads, as projections give them),
            "padded" (rows one element longer than head_dim, so that no row but the first is aligned) or "reversed"
            (rows last to first).
    """
    import torch
    import triton

    path = ROOT / "tritonsrc" / "flash" / "attn_fwd.py"
    spec = importlib.util.spec_from_file_location("attn_fwd", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    def lay_out(array: np.ndarray):
        """A tensor's storage, the index of its first element and its strides."""
        b, h, s, d = array.shape
        if layout == "contiguous":
            storage, start, strides = np.empty(b * h * s * d, array.dtype), 0, (h * s * d, s * d, d, 1)
        elif layout == "rows":
            storage, start, strides = np.empty(b * h * s * d, array.dtype), 0, (s * h * d, d, h * d, 1)
        elif layout == "padded":
            row = d + 1
            storage, start, strides = np.empty(b * h * s * row + 3, array.dtype), 3, (h * s * row, s * row, row, 1)
        elif layout == "reversed":
            storage, start, strides = np.empty(b * h * s * d, array.dtype), (s - 1) * d, (h * s * d, s * d, -d, 1)
        storage[:] = np.nan
        if array.size:
            item = array.dtype.itemsize
            view = np.lib.stride_tricks.as_strided(
                storage[max(start, 0) :], array.shape, tuple(stride * item for stride in strides)
            )
            view[...] = array
        else:
            view = array
        return torch.from_numpy(storage), start, strides, view

    b, heads, seqlen_q, head_dim = call.q.shape
    heads_kv, seqlen_k = call.k.shape[1:3]
    tensors, strides = [], []
    for array in (call.q, call.k, call.v, np.full_like(call.q, np.nan)):
        storage, start, steps, view = lay_out(array)
        # An empty tensor has no element to point at; the kernel must not read it, wherever it points.
        tensors.append(storage[start:] if array.size else torch.empty(1, dtype=storage.dtype))
        strides.extend(steps[:3])
    lse = np.full((b, heads, seqlen_q), np.nan, np.float32)
    grid = (triton.cdiv(seqlen_q, call.block_m) * heads * b,)
    module.attn_fwd[grid](
        *tensors, torch.from_numpy(lse), call.sm_scale, *strides,
        heads, heads // heads_kv, seqlen_q, seqlen_k, int(call.want_lse),
        HEAD_DIM=head_dim, CAUSAL=call.causal, UNMASKED_LOOP=call.unmasked_loop,
        BLOCK_M=call.block_m, BLOCK_N=call.block_n,
    )  # fmt: skip
    return np.ascontiguousarray(view), lse
