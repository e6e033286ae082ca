"""Kiln's typed entries for tensors of PyTorch, through the C ABI. Parameters are made once, a call only launches."""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Callable
from pathlib import Path

import ffi
import torch

CODES = {
    torch.bfloat16: ffi.BF16, torch.float16: ffi.FP16, torch.float32: ffi.FP32, torch.float8_e4m3fn: ffi.FP8E4M3,
    torch.int32: ffi.INT32,
}  # fmt: skip


def digest(prefix: Path) -> str:
    """Of an unpacked release: its manifest's, which stands for all files, since theirs are in it."""
    return hashlib.sha256((prefix / "share/kiln/manifest.json").read_bytes()).hexdigest()


def reason(error: Exception) -> str:
    """Why something was refused, in one line."""
    return " ".join((error.sentence if isinstance(error, ffi.Failure) else str(error)).split())


def _pointer(tensor: torch.Tensor):
    view = ffi.tensor(tensor.data_ptr(), CODES[tensor.dtype], tuple(tensor.shape), tuple(tensor.stride()))
    return ctypes.pointer(view)


class Entries:
    """libkiln_flash.so of an unpacked release, with a kiln_t. Entries raise ffi.Failure."""

    def __init__(self, prefix: Path) -> None:
        self._library = ffi.Library(prefix / "lib")
        self._flash = ctypes.CDLL(str(prefix / "lib/libkiln_flash.so"))
        self._kiln = ffi.Kiln(self._library, None)

    def __enter__(self):
        return self

    def __exit__(self, *_: object) -> None:
        self._kiln.close()

    @property
    def version(self) -> str:
        return self._library.c.kiln_version().decode()

    def prepare(self, name: str, params: ctypes.Structure, **values: object) -> Callable[[], None]:
        """A call of an entry with these values and tensors, with the workspace that it wants.

        What is returned launches on the stream that is current then.
        """
        try:
            entry, asks = getattr(self._flash, name), getattr(self._flash, f"{name}_workspace")
        except AttributeError:
            raise ffi.Failure(ffi.UNSUPPORTED, f"this release's libkiln_flash.so has no {name}") from None
        keep = []  # tensors must live as long as what points to them
        for field, value in values.items():
            if isinstance(value, torch.Tensor):
                keep.append(value)
                value = _pointer(value)
            if value is not None:
                setattr(params, field, value)
        queue = ffi.Queue(ctypes.sizeof(ffi.Queue), ffi.NVIDIA, -1, None)
        size = ctypes.c_uint64()
        handle, at_queue, at_params = self._kiln.handle, ctypes.byref(queue), ctypes.byref(params)
        self._library.check(asks(handle, at_queue, at_params, ctypes.byref(size)))
        if size.value:
            keep.append(torch.empty(size.value, dtype=torch.uint8, device=keep[0].device))
            params.workspace, params.workspace_bytes = keep[-1].data_ptr(), size.value
        check, stream = self._library.check, torch.cuda.current_stream

        def launch() -> None:
            queue.stream = stream().cuda_stream or None
            check(entry(handle, at_queue, at_params))

        launch.keep = (keep, params, queue)
        return launch

    def forward(self, **values: object) -> Callable[[], None]:
        return self.prepare("kiln_attn_fwd", ffi.AttnFwd(), **values)

    def backward(self, **values: object) -> Callable[[], None]:
        return self.prepare("kiln_attn_bwd", ffi.AttnBwd(), **values)

    def decode(self, **values: object) -> Callable[[], None]:
        return self.prepare("kiln_attn_decode", ffi.AttnDecode(), **values)
