"""Runs the project's kernels in Triton's interpreter, on the CPU, in a process of its own: the functions below, with
what image and call say, past the recipe. tests/jit runs them by way of it.

Of Triton's interpreter they have what kiln.jit makes of it: three times its speed, and bf16 that is not silently wrong.
"""

from __future__ import annotations

import importlib
import math
import sys
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
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
_KEPT = ExitStack()
(CU_Q, CU_K, USED_Q, USED_K, BOTTOM_RIGHT, SINKS, LSE, BIAS, ALIBI, SOFTCAP, DROPOUT, SEED, OFFSET, SEED_OUT) = (
    1 << n for n in range(14)
)
SUMS_Q, SUMS_K, LSE_BY_SEQUENCE = (1 << n for n in (20, 21, 22))


def _become_interpreter() -> None:
    sys.path.insert(0, str(KERNELS))
    from kiln.jit.interpreted import Interpreter

    # Nothing else is done in this process, so this is never left.
    _KEPT.enter_context(Interpreter().running())


@contextmanager
def interpreter():
    """A child process that interprets; yields its executor."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn"), initializer=_become_interpreter) as executor:
        yield executor


@dataclass(frozen=True)
class Image:
    """What is constant in an image.

    Attributes:
        chunk: columns at a time of rows that registers do not hold; 0: whole rows.
        advance: of the forward: places in the loop without masks are sums.
        ones: columns of ones by which backward sums ds; 0: it sums them directly.
        amd: if not empty, the forward is attn_fwd_amd, for calls without extras: "ahead", or as on RDNA 3, with
            "near" loads, fp16 rounded half up and, of heads of one piece, two factors.
    """

    block_m: int = 16
    block_n: int = 16
    unmasked_loop: bool = True
    advance: bool = False
    want_lse: bool = True
    chunk: int = 0
    ones: int = 0
    amd: str = ""


@dataclass
class _Tensor:
    """A tensor somewhere inside a storage that is NaN elsewhere, so that strides are what a caller may have."""

    storage: torch.Tensor
    view: np.ndarray
    strides: tuple[int, ...]


def lay_out(array: np.ndarray, layout: str) -> _Tensor:
    """Layouts: "contiguous", "rows" (rows before heads, as projections give them), "padded" (rows one element longer
    than the width, so that no row but the first is aligned), "reversed" (rows last to first)."""
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


def size_for(*widths: int) -> int:
    """The least head size that is compiled and holds rows of these widths."""
    return next(size for size in PIECES if size >= max(widths))


def integers(array: np.ndarray | None) -> torch.Tensor:
    """An argument of a kernel; None: one that it does not read."""
    return torch.from_numpy(np.zeros(1, np.int32) if array is None else array.astype(np.int32))


def reals(array: np.ndarray | None) -> torch.Tensor:
    return torch.from_numpy(np.zeros(1, np.float32) if array is None else array.astype(np.float32))


def extras_of(call: Call) -> str:
    """Which images serve a call."""
    given = {
        "bias": call.bias is not None or call.slopes is not None or call.sm_scale < 0,
        "softcap": call.softcap,
        "dropout": call.dropout,
    }
    wanted = [name for name, is_wanted in given.items() if is_wanted]
    return "none" if not wanted else wanted[0] if len(wanted) == 1 else "any"


def run(call: Call, image: Image = Image(), layout: str = "contiguous") -> Result:
    """Runs the kernels in this process. What they did not write is NaN."""
    import triton

    fwd, bwd, scores = (importlib.import_module(name) for name in ("attn_fwd", "attn_bwd", "attn_bwd_scores"))
    means = importlib.import_module("means")
    width_qk, width_v = call.q.shape[3], call.v.shape[3]
    size = size_for(width_qk, width_v)
    heads, heads_kv = call.q.shape[1], call.k.shape[1]
    longest_q, longest_k = (
        array.shape[2] if cu is None else int(np.diff(cu).max(initial=0))  # max_seqlen
        for array, cu in ((call.q, call.cu_q), (call.k, call.cu_k))
    )
    q, k, v = (lay_out(array, layout) for array in (call.q, call.k, call.v))
    out = lay_out(np.full((*call.q.shape[:3], width_v), np.nan, call.q.dtype), layout)
    lse = np.full(call.lse_shape, np.nan, np.float32)
    compact_q, compact_k = (None if call.padded else cu for cu in (call.cu_q, call.cu_k))
    options = {
        CU_Q: compact_q, CU_K: compact_k, SUMS_Q: call.cu_q if call.padded else None,
        SUMS_K: call.cu_k if call.padded else None, LSE_BY_SEQUENCE: call.lse_by_sequence or None,
        USED_Q: call.used_q, USED_K: call.used_k, SINKS: call.sinks, BIAS: call.bias,
        ALIBI: call.slopes, BOTTOM_RIGHT: call.bottom_right or None, LSE: image.want_lse or None,
        SOFTCAP: call.softcap or None, DROPOUT: call.dropout or None, SEED: call.dropout or None,
        OFFSET: call.dropout or None, SEED_OUT: call.dropout or None,
    }  # fmt: skip
    flags = sum(flag for flag, given in options.items() if given is not None)
    bias = np.zeros((1, 1, 1, 1), call.q.dtype) if call.bias is None else call.bias
    bias_strides = tuple(0 if size == 1 else step for size, step in zip(bias.shape, _strides(bias)))
    lse_strides = _strides(lse)[:2]
    threshold = int(np.uint32(call.threshold).astype(np.int32))

    # A part of seed and offset by value, the rest in memory.
    seed, offset = torch.tensor([call.seed - 5]), torch.tensor([call.offset - 7])
    drawn = torch.zeros(2, dtype=torch.int64)
    shared = (
        q.storage, k.storage, v.storage, torch.from_numpy(bias), reals(call.slopes), seed, offset,
        *map(integers, (call.cu_q, call.cu_k, call.used_q, call.used_k)),
        call.sm_scale, call.softcap or 1.0, 1 / (1 - call.dropout), 5, 7, *q.strides, *k.strides, *v.strides,
        *bias_strides,
        heads if call.slopes is not None else 0,
        call.sequences, heads, heads // heads_kv, longest_q, longest_k, width_qk, width_v,
        call.left, call.right, threshold, flags,
    )  # fmt: skip
    padded = {width_qk, width_v} != {size}
    common = (*PIECES[size], extras_of(call), padded, image.unmasked_loop, image.chunk)
    constants = (*common, image.block_m, image.block_n)
    blocks_q, blocks_k = triton.cdiv(longest_q, image.block_m), triton.cdiv(longest_k, image.block_n)
    tiles = blocks_q * heads * call.sequences
    if compact_q is not None:
        tiles = (triton.cdiv(call.q.shape[2], image.block_m) + call.sequences) * heads
    tiles_k = blocks_k * heads_kv * call.sequences
    if compact_k is not None:
        tiles_k = (triton.cdiv(call.k.shape[2], image.block_n) + call.sequences) * heads_kv

    if tiles and image.amd:
        module, near = importlib.import_module("attn_fwd_amd"), image.amd == "near"
        module.copied = lambda factor: factor  # an instruction, which is not interpreted
        module.attn_fwd_amd[(tiles,)](
            *shared[:3], *shared[7:12], *shared[16:25], *shared[29:38], flags, out.storage, torch.from_numpy(lse),
            reals(call.sinks), *out.strides, *lse_strides, tiles, *PIECES[size], padded, image.unmasked_loop,
            image.amd == "ahead", True, near, near, near and not PIECES[size][1], image.block_m, image.block_n,
        )  # fmt: skip
    elif tiles:
        fwd.attn_fwd[(tiles,)](
            *shared, out.storage, torch.from_numpy(lse), reals(call.sinks), drawn[:1], drawn[1:], *out.strides,
            *lse_strides, tiles, *common, image.advance, image.block_m, image.block_n,
        )  # fmt: skip
        if call.dropout:
            assert drawn.tolist() == [call.seed, call.offset], "seed and offset are not as they were used"
    if call.dout is None:
        return Result(out.view.copy(), lse)
    dout = lay_out(call.dout, layout)
    dq, dk, dv = (lay_out(np.full(array.shape, np.nan, array.dtype), layout) for array in (call.q, call.k, call.v))
    delta = np.full(call.q.shape[:3], np.nan, np.float32)
    logs, steps = (torch.from_numpy(lse), torch.from_numpy(delta)), (*lse_strides, *_strides(delta))
    parts, span, groups = 16, 128, heads_kv if call.bias is None else heads
    sums = torch.full((call.sequences * heads_kv, parts, 2, width_qk), math.nan)
    spans = triton.cdiv(longest_q, span) * call.sequences
    if compact_q is not None:
        spans = triton.cdiv(call.q.shape[2], span) + call.sequences
    mean_keys = torch.full((spans, groups, width_qk), math.nan)
    if tiles_k:
        means.attn_bwd_sums[(call.sequences * heads_kv, parts, triton.cdiv(width_qk, 16))](
            k.storage, shared[8], shared[10], *k.strides, heads_kv, longest_k, width_qk, flags, sums, parts, 32, 16
        )
    if tiles:
        means.attn_bwd_means[(spans * groups, triton.cdiv(width_qk, 16))](
            q.storage, k.storage, shared[3], *shared[7:11], call.sm_scale, *q.strides, *k.strides, *bias_strides,
            call.sequences, groups, heads, heads_kv, longest_q, longest_k, width_qk, call.left, call.right, flags,
            sums, mean_keys, spans * groups, parts, span, 16,
        )  # fmt: skip
        bwd.attn_bwd_dq[(tiles,)](
            *shared, out.storage, dout.storage, dq.storage, *logs, *out.strides, *dout.strides, *dq.strides, *steps,
            reals(call.sinks), mean_keys, tiles, *common, span, image.block_m, image.block_n, image.ones,
        )  # fmt: skip
    if tiles_k:
        bwd.attn_bwd_dk_dv[(tiles_k,)](
            *shared, dout.storage, dk.storage, dv.storage, *logs, *dout.strides, *dk.strides, *dv.strides, *steps,
            tiles_k, *constants,
        )  # fmt: skip
    dbias = dsinks = None
    if call.bias is not None and blocks_q and blocks_k:
        dbias = np.full_like(bias, np.nan)
        sums = [n // m for n, m in zip((call.sequences, heads), dbias.shape)]
        scores.attn_bwd_dbias[(blocks_q * blocks_k * dbias.shape[0] * dbias.shape[1],)](
            *shared, dout.storage, torch.from_numpy(dbias), *logs, *dout.strides, *_strides(dbias), *steps, *sums,
            image.chunk or 16, image.block_m, image.block_n,
        )  # fmt: skip
    if call.sinks is not None:
        dsinks = np.full(heads, np.nan, np.float32)
        scores.attn_bwd_dsinks[(heads,)](
            reals(call.sinks), torch.from_numpy(dsinks), *logs, shared[7], shared[9], *steps, call.sequences, longest_q,
            flags, 16,
        )  # fmt: skip
    return Result(out.view.copy(), lse, dq.view.copy(), dk.view.copy(), dv.view.copy(), dbias, dsinks)


def mask(call: Call, dtype: type = np.uint8) -> np.ndarray:
    """What dropout_mask writes: [batch, heads, rows, keys] of dtype."""
    import triton

    shape = (call.sequences, call.q.shape[1], call.q.shape[2], call.k.shape[2])
    written = np.full(shape, 7, dtype)
    threshold = int(np.uint32(call.threshold).astype(np.int32))
    programs = triton.cdiv(shape[2], 16) * triton.cdiv(shape[3], 32) * shape[0] * shape[1]
    importlib.import_module("dropout_mask").dropout_mask[(programs,)](
        torch.from_numpy(written), torch.tensor([call.seed]), torch.tensor([0]), 0, call.offset, *_strides(written),
        *shape[1:], threshold, SEED, 16, 32,
    )  # fmt: skip
    return written


def seq_lengths(
    cu: np.ndarray | None, begins: np.ndarray | None, batch: int, most: int, total: int, wants_lengths: bool
) -> tuple[np.ndarray, np.ndarray]:
    """What seq_lengths writes, each with an element more than it has; 77 stands where nothing was written."""
    import triton

    lengths, begins_out = np.full(batch + 1, 77, np.int32), np.full(batch + 2, 77, np.int32)
    nothing = np.zeros(1, np.int32)
    block = 16
    importlib.import_module("seq_lengths").seq_lengths[(triton.cdiv(batch + 1, block),)](
        *(torch.from_numpy(nothing if a is None else a) for a in (cu, begins, lengths, begins_out)),
        batch, most, total, cu is not None, wants_lengths, begins is not None, block,
    )  # fmt: skip
    return lengths, begins_out


def _strides(array: np.ndarray) -> tuple[int, ...]:
    """In elements, but for the last dimension's."""
    return tuple(step // array.itemsize for step in array.strides[:-1])
