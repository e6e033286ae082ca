"""Kiln's typed entries for tensors of PyTorch, through the C ABI. Parameters are made once, a call only launches."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import tempfile
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


CORE = "libkiln.so.0"
_RENAMED = "libkiln.so.x"  # of the same length


def _beside(prefix: Path, folder: Path) -> None:
    """Writes a release's libraries into a folder so that this process can have them beside another release's.

    A family's library finds its core by the core's name, and would be given that of the other release; so the core, and
    what asks for it, get another name of the same length.
    """
    for name, renamed in ((CORE, _RENAMED), ("libkiln_flash.so", "libkiln_flash.so")):
        code = (prefix / "lib" / name).read_bytes()
        (folder / renamed).write_bytes(code.replace(f"{CORE}\0".encode(), f"{_RENAMED}\0".encode()))
    (folder / "kiln.images").symlink_to((prefix / "lib/kiln.images").resolve())


def reason(error: Exception) -> str:
    """Why something was refused, in one line."""
    return " ".join((error.sentence if isinstance(error, ffi.Failure) else str(error)).split())


def spelled(variant: ffi.Variant) -> str:
    """ "0123456789ab sm_90 flash.attn_fwd/attn_fwd[dtype=bf16 ...][BLOCK_M=128 ...][aligned]": the key shortened as in
    the ledger of images."""
    names = (variant.functional, variant.configuration, variant.specialization)
    of = f"{variant.operation.decode()}/{variant.kernel.decode()}"
    return f"{variant.key.decode()[:12]} {variant.target.decode()} {of}{''.join(f'[{n.decode()}]' for n in names)}"


def _pointer(tensor: torch.Tensor):
    view = ffi.tensor(tensor.data_ptr(), CODES[tensor.dtype], tuple(tensor.shape), tuple(tensor.stride()))
    return ctypes.pointer(view)


class Entries:
    """libkiln_flash.so of an unpacked release, with a kiln_t. Entries raise ffi.Failure.

    Args:
        is_second: this process has another release's already.
    """

    def __init__(self, prefix: Path, is_second: bool = False) -> None:
        # Kept until the end: packs are looked for beside the library when they are needed.
        self._copies = tempfile.TemporaryDirectory() if is_second else contextlib.nullcontext()
        libraries, core = prefix / "lib", CORE
        if is_second:
            libraries, core = Path(self._copies.name), _RENAMED
            _beside(prefix, libraries)
        self._library = ffi.Library(libraries, core)
        self._flash = ctypes.CDLL(str(libraries / "libkiln_flash.so"))
        self._kiln = ffi.Kiln(self._library, None)

    def __enter__(self):
        return self

    def __exit__(self, *_: object) -> None:
        self._kiln.close()
        self._copies.__exit__(None, None, None)

    @property
    def version(self) -> str:
        return self._library.c.kiln_version().decode()

    def prepare(self, name: str, params: ctypes.Structure, **values: object) -> Callable[[], None]:
        """A call of an entry with these values and tensors, with the workspace that it wants.

        What is returned launches on the stream that is current then; its `images` are those that it launches, a
        line of key and variant each.
        """
        try:
            entry, asks = getattr(self._flash, name), getattr(self._flash, f"{name}_workspace")
            explain = getattr(self._flash, f"{name}_explain")
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
        images: list[str] = []
        visit = ffi.VariantFn(lambda variant, _: images.append(spelled(variant.contents)) or 0)
        self._library.check(explain(handle, at_queue, at_params, visit, None))
        check, stream = self._library.check, torch.cuda.current_stream

        def launch() -> None:
            queue.stream = stream().cuda_stream or None
            check(entry(handle, at_queue, at_params))

        launch.keep, launch.images = (keep, params, queue), images
        return launch

    def forward(self, **values: object) -> Callable[[], None]:
        return self.prepare("kiln_attn_fwd", ffi.AttnFwd(), **values)

    def backward(self, **values: object) -> Callable[[], None]:
        return self.prepare("kiln_attn_bwd", ffi.AttnBwd(), **values)

    def decode(self, **values: object) -> Callable[[], None]:
        return self.prepare("kiln_attn_decode", ffi.AttnDecode(), **values)
