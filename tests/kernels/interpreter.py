"""Runs the project's kernels in Triton's interpreter, on the CPU, in a process of its own.

Triton decides at import whether it interprets, so the process that runs the tests must not import it: the functions
below run in a child whose environment says TRITON_INTERPRET=1. The interpreter is right for fp16 and fp32; for bf16 it
is silently wrong, so bf16 is left to the tests on a GPU.
"""

from __future__ import annotations

import importlib
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch
from attention import Call, Result

KERNELS = Path(__file__).resolve().parents[2] / "tritonsrc" / "flash"
PIECES = {
    16: (16, 0, 0), 32: (32, 0, 0), 48: (32, 16, 0), 64: (64, 0, 0), 80: (64, 16, 0), 96: (64, 32, 0), 128: (128, 0, 0),
    160: (128, 32, 0), 192: (128, 64, 0), 224: (128, 64, 32), 256: (256, 0, 0), 512: (512, 0, 0),
}  # fmt: skip
CU_Q, CU_K, USED_Q, USED_K, BOTTOM_RIGHT, SINKS, LSE, BIAS, ALIBI, SOFTCAP, DROPOUT = (1 << n for n in range(11))


def _become_interpreter() -> None:
    os.environ["TRITON_INTERPRET"] = "1"
    os.environ["OMP_NUM_THREADS"] = "1"
    sys.path.insert(0, str(KERNELS))


@contextmanager
def interpreter():
    """A child process that interprets; yields its executor."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn"), initializer=_become_interpreter) as executor:
        yield executor


@dataclass(frozen=True)
class Image:
    """What is constant in an image.

    Attributes:
        size: the head size that it is compiled for; None: the next larger.
    """

    size: int | None = None
    block_m: int = 16
    block_n: int = 16
    unmasked_loop: bool = True
    want_lse: bool = True


@dataclass
class _Tensor:
    """A tensor somewhere inside a storage that is NaN elsewhere, so that strides are what a caller may have."""

    storage: torch.Tensor
    view: np.ndarray
    strides: tuple[int, ...]


def _lay_out(array: np.ndarray, layout: str) -> _Tensor:
    """Layouts: "contiguous", "rows" (rows before heads, as projections give them), "padded" (rows one element longer than
    the width, so that no row but the first is aligned), "reversed" (rows last to first)."""
    b, h, s, d = array.shape
    row = d + 1 if layout == "padded" else d
    strides = (s * h * d, d, h * d, 1) if layout == "rows" else (h * s * row, s * row, row, 1)
    start = 3 if layout == "padded" else 0
    if layout == "reversed":
        strides, start = (*strides[:2], -row, 1), max(s - 1, 0) * row
    storage = np.full(b * h * s * row + 4, np.nan, array.dtype)
    steps = tuple(stride * array.dtype.itemsize for stride in strides)
    view = np.lib.stride_tricks.as_strided(storage[start:], array.shape, steps)
    view[...] = array
    # An empty tensor has no element to point at; the kernel must not read it, wherever it points.
    return _Tensor(torch.from_numpy(storage)[start:], view, strides[:3])


def run(call: Call, image: Image = Image(), layout: str = "contiguous") -> Result:
    """Runs the kernels in this process. What they did not write is NaN."""
    import triton

    fwd, bwd = importlib.import_module("attn_fwd"), importlib.import_module("attn_bwd")
    width_qk, width_v = call.q.shape[3], call.v.shape[3]
    size = image.size or next(size for size in PIECES if size >= max(width_qk, width_v))
    heads, heads_kv = call.q.shape[1], call.k.shape[1]
    longest_q, longest_k = (
        max((rows.stop - rows.start for _, rows in (call.span(n, side) for n in range(call.sequences))), default=0)
        for side in (False, True)
    )
    q, k, v = (_lay_out(array, layout) for array in (call.q, call.k, call.v))
    out = _lay_out(np.full((*call.q.shape[:3], width_v), np.nan, call.q.dtype), layout)
    lse = np.full(call.q.shape[:3], np.nan, np.float32)
    options = {
        CU_Q: call.cu_q, CU_K: call.cu_k, USED_Q: call.used_q, USED_K: call.used_k, SINKS: call.sinks, BIAS: call.bias,
        ALIBI: call.slopes, BOTTOM_RIGHT: call.bottom_right or None, LSE: image.want_lse or None,
        SOFTCAP: call.softcap or None, DROPOUT: call.dropout or None,
    }  # fmt: skip
    flags = sum(flag for flag, given in options.items() if given is not None)
    bias = np.zeros((1, 1, 1, 1), call.q.dtype) if call.bias is None else call.bias
    bias_strides = (0, 0, 0) if call.bias is None else tuple(s // bias.itemsize for s in bias.strides[:3])
    threshold = int(np.uint32(call.threshold).astype(np.int32))
    lse_strides = tuple(s // 4 for s in lse.strides[:2])

    def integers(array: np.ndarray | None) -> torch.Tensor:
        return torch.from_numpy(np.zeros(1, np.int32) if array is None else array.astype(np.int32))

    def reals(array: np.ndarray | None) -> torch.Tensor:
        return torch.from_numpy(np.zeros(1, np.float32) if array is None else array.astype(np.float32))

    sequences = tuple(map(integers, (call.cu_q, call.cu_k, call.used_q, call.used_k)))
    extras = (torch.from_numpy(bias), reals(call.slopes), torch.tensor([call.seed]), torch.tensor([call.offset]))
    scalars = (call.sm_scale, call.softcap or 1.0, 1 / (1 - call.dropout))
    shared = (*lse_strides, *bias_strides, heads if call.slopes is not None else 0)
    lengths = (heads, heads // heads_kv, longest_q, longest_k, width_qk, width_v)
    padded = {width_qk, width_v} != {size}
    constants = (*PIECES[size], call.has_extras, padded, image.unmasked_loop, False, image.block_m, image.block_n)
    tail = (*lengths, call.left, call.right, threshold, flags, int(padded), *constants)
    programs_q = triton.cdiv(longest_q, image.block_m) * heads * call.sequences
    programs_k = triton.cdiv(longest_k, image.block_n) * heads_kv * call.sequences

    if programs_q:
        fwd.attn_fwd[(programs_q,)](
            q.storage, k.storage, v.storage, out.storage, torch.from_numpy(lse), reals(call.sinks), *extras, *sequences,
            *scalars, *q.strides, *k.strides, *v.strides, *out.strides, *shared, *tail,
        )  # fmt: skip
    if call.dout is None:
        return Result(out.view.copy(), lse)
    dout = _lay_out(call.dout, layout)
    dq, dk, dv = (_lay_out(np.full(array.shape, np.nan, array.dtype), layout) for array in (call.q, call.k, call.v))
    delta = np.full_like(lse, np.nan)
    logs = (torch.from_numpy(lse), torch.from_numpy(delta))
    if programs_q:
        bwd.attn_bwd_delta[(programs_q,)](
            out.storage, dout.storage, logs[1], sequences[0], sequences[2], *out.strides, *dout.strides, *lse_strides,
            heads, longest_q, width_v, flags, int(padded), *PIECES[size], padded, image.block_m,
        )  # fmt: skip
    inputs = (q.storage, k.storage, v.storage, dout.storage)
    steps = (*q.strides, *k.strides, *v.strides, *dout.strides)
    if programs_k:
        bwd.attn_bwd_dk_dv[(programs_k,)](
            *inputs, dk.storage, dv.storage, *logs, *extras, *sequences, *scalars,
            *steps, *dk.strides, *dv.strides, *shared, *tail,
        )  # fmt: skip
    if programs_q:
        bwd.attn_bwd_dq[(programs_q,)](
            *inputs, dq.storage, *logs, *extras, *sequences, *scalars, *steps, *dq.strides, *shared, *tail
        )
    return Result(out.view.copy(), lse, dq.view.copy(), dk.view.copy(), dv.view.copy())
