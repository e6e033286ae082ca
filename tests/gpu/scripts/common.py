"""A call of attention with no framework: memory and streams from the driver, headers from ctypes."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

import numpy as np

TESTS = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(TESTS / "runtime"), str(TESTS / "gpu")]

import cudadriver  # noqa: E402
import ffi  # noqa: E402

SHAPE = (1, 2, 100, 64)


def make_context() -> None:
    """The primary context of device 0, made current."""
    context = ctypes.c_void_p()
    cudadriver.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
    cudadriver.call("cuCtxSetCurrent", context)


def make_tensors() -> list[ffi.Tensor]:
    random = np.random.default_rng(0)
    arrays = [random.standard_normal(SHAPE).astype(np.float16) for _ in range(4)]
    return [ffi.tensor(cudadriver.Memory(array).address.value, ffi.FP16, SHAPE) for array in arrays]


def attention(library: ffi.Library, flash: ctypes.CDLL, handle: ctypes.c_void_p, tensors: list[ffi.Tensor]) -> int:
    """kiln_attn_fwd's status."""
    queue = ffi.Queue(ctypes.sizeof(ffi.Queue), ffi.NVIDIA, 0, None)
    params = ffi.AttnFwd()
    params.q, params.k, params.v, params.out = (ctypes.pointer(tensor) for tensor in tensors)
    return flash.kiln_attn_fwd(handle, ctypes.byref(queue), ctypes.byref(params))
