"""The boxed kernels of libkiln_torch.so on stand-ins for libtorch and Kiln (fake_torch.c, fake_kiln.c), by ctypes, in a
process that has no other libtorch: Process is such a one, Remote speaks to it from elsewhere."""

from __future__ import annotations

import contextlib
import ctypes as c
import operator
import os
import struct
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

import ffi

import shared

HERE = Path(__file__).resolve().parent
DENSE, CPU, CUDA = 70, 40, 41
DTYPES = {"bool": 100, "uint8": 101, "int8": 102, "int16": 103, "int32": 104, "int64": 105, "fp16": 106, "bf16": 107,
          "fp32": 108, "fp64": 109, "fp8e4m3": 110, "fp8e5m2": 111, "uint16": 112, "uint32": 113,
          "uint64": 114}  # fmt: skip
FORWARD = ("bias", "alibi_slopes", "sinks", "cu_seqlens_q", "cu_seqlens_k", "seqused_q", "seqused_k", "rng")
DECODE = ("k_new", "v_new", "seqused_k", "cu_seqlens_q", "block_table", "cache_batch", "leftpad", "rotary_cos",
          "rotary_sin", "k_scale", "v_scale", "sinks", "alibi_slopes")  # fmt: skip
PARAMS = {"kiln_attn_fwd": ffi.AttnFwd, "kiln_attn_bwd": ffi.AttnBwd, "kiln_attn_decode": ffi.AttnDecode,
          "kiln_attn_fwd_fp8": ffi.AttnFwdFp8, "kiln_dropout_mask": ffi.DropoutMask}  # fmt: skip


class Raw(c.Structure):
    """fake_torch.c's Tensor."""

    _fields_ = [("is_defined", c.c_int32), ("layout", c.c_int32), ("device_type", c.c_int32), ("device", c.c_int32),
                ("dtype", c.c_int32), ("zeroed", c.c_int32), ("dim", c.c_int64), ("sizes", c.c_int64 * 8),
                ("strides", c.c_int64 * 8), ("data", c.c_void_p), ("storage", c.c_int64)]  # fmt: skip


@dataclass(frozen=True)
class Tensor:
    """What a test gives, or a kernel has returned."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str = "bf16"
    data: int = 0
    device: int = 0
    device_type: int = CUDA
    layout: int = DENSE
    zeroed: bool = False


def dense(*sizes: int, dtype: str = "bf16", data: int = 0x10000, **more: object) -> Tensor:
    strides = [1]
    for size in reversed(sizes[1:]):
        strides.insert(0, strides[0] * max(size, 1))
    return Tensor(sizes, tuple(strides) if sizes else (), dtype, data, **more)


@dataclass
class Entered:
    """One call of a Kiln entry: what it was given, by name; tensors as (data, dtype, sizes, strides)."""

    entry: str
    kiln: int
    vendor: int
    device: int
    stream: int
    fields: dict[str, object]


def make(torch_library: Path) -> Path:
    """The folder of stand-ins, with libkiln_torch.so; made once for a run."""
    return shared.once("stand-ins", lambda folder: _compile(folder, torch_library))


def _compile(folder: Path, torch_library: Path) -> None:
    import nativebuild

    cc = ["cc", "-std=gnu11", "-O1", "-g", "-fPIC", "-shared", "-Wall", "-Wextra", "-Werror"]
    for name in ("libtorch_cpu.so", "libtorch_cuda.so", "libtorch_hip.so"):
        nativebuild.run([*cc, HERE / "fake_torch.c", f"-Wl,-soname,{name}", "-o", folder / name])
    exports = folder / "kiln.map"
    exports.write_text("KILN_0 { global: kiln_*; local: *; };")
    for name in ("libkiln.so.0", "libkiln_flash.so"):
        nativebuild.run([*cc, HERE / "fake_kiln.c", f"-Wl,-soname,{name}", f"-Wl,--version-script={exports}", "-o",
                         folder / name])  # fmt: skip
    (folder / "libkiln_torch.so").write_bytes(torch_library.read_bytes())


class Remote:
    """A Process of another process, with the same attributes: values and functions of its libraries, by name. What a
    test sets as `answer` is asked here."""

    def __init__(self, folder: Path) -> None:
        spawn = get_context("spawn")
        self._ours, theirs = spawn.Pipe()
        self._process = spawn.Process(target=_serve, args=(folder, theirs), daemon=True)
        self._process.start()
        theirs.close()
        self.entered: list[Entered] = []
        self.answer: Callable[[Entered], int] = lambda entered: 0
        self.torch, self.kiln = _Library(self, "torch"), _Library(self, "kiln")

    def close(self) -> None:
        self._ours.close()
        self._process.join()

    @property
    def error(self) -> str:
        return self.ask("error")

    @property
    def workspace_bytes(self) -> int:
        return self.ask("workspace_bytes")

    @workspace_bytes.setter
    def workspace_bytes(self, size: int) -> None:
        self.ask("__setattr__", "workspace_bytes", size)

    def fail(self, function: str, nth: int = 1) -> None:
        self.ask("fail", function, nth)

    def call(self, *words: object, **more: object) -> tuple:
        self.entered.clear()
        return self.ask("call", *words, **more)

    def ask(self, path: str, *words: object, **more: object) -> object:
        self._ours.send((path, words, more))
        while True:
            kind, value = self._ours.recv()
            if kind == "entered":
                self.entered.append(value)
                self._ours.send(("answer", self.answer(value), {}))
            elif kind == "failed":
                raise AssertionError(value)
            else:
                return value


class _Library:
    def __init__(self, remote: Remote, name: str) -> None:
        self._remote, self._name = remote, name

    def __getattr__(self, function: str) -> Callable:
        return lambda *words: self._remote.ask(f"{self._name}.{function}", *words)


def _serve(folder: Path, pipe: Connection) -> None:
    process = Process(folder)

    def serve() -> int:
        """Does what it is asked until it is given an answer: who answers may ask in turn."""
        while True:
            path, words, more = pipe.recv()
            if path == "answer":
                return words
            try:
                found = operator.attrgetter(path)(process)
                pipe.send(("done", found(*words, **more) if callable(found) else found))
            except Exception:  # noqa: BLE001 - whatever it is
                pipe.send(("failed", traceback.format_exc()))

    def answer(entered: Entered) -> int:
        pipe.send(("entered", entered))
        return serve()

    process.answer = answer
    with contextlib.suppress(EOFError):
        serve()


class Process:
    """This process with everything loaded; once."""

    def __init__(self, folder: Path) -> None:
        everywhere = c.RTLD_GLOBAL
        self.torch = self.backend = c.CDLL(str(folder / "libtorch_cpu.so"), mode=everywhere)
        if not os.environ.get("KILN_FAKE_NO_STREAM"):
            self.backend = c.CDLL(str(folder / os.environ.get("KILN_FAKE_BACKEND", "libtorch_cuda.so")))
        self.kiln = c.CDLL(str(folder / "libkiln.so.0"), mode=everywhere)
        c.CDLL(str(folder / "libkiln_flash.so"), mode=everywhere)
        if nth := os.environ.get("KILN_FAKE_REGISTRATION"):
            self.torch.fake_fail(nth.encode(), 1)
        self.library = c.CDLL(str(folder / "libkiln_torch.so"))
        self.torch.fake_kernel.restype = self.torch.fake_tensor.restype = self.torch.fake_list.restype = c.c_void_p
        self.torch.fake_schema.restype = self.kiln.kiln_error.restype = c.c_char_p
        self.torch.fake_version.restype = c.c_uint64
        self.kiln.kiln_fake_resolve.restype = c.c_void_p
        self.entered: list[Entered] = []
        self.answer: Callable[[Entered], int] = lambda entered: 0
        self.workspace_bytes = 0
        enter = c.CFUNCTYPE(c.c_int32, c.c_char_p, c.c_void_p, c.POINTER(ffi.Queue), c.c_void_p, c.POINTER(c.c_uint64))
        self._enter = enter(self._entered)
        self.kiln.kiln_fake_set(self._enter)

    @property
    def error(self) -> str:
        return self.kiln.kiln_error().decode()

    def fail(self, function: str, nth: int = 1) -> None:
        for library in (self.torch, self.backend):
            library.fake_fail(function.encode(), nth)

    def call(self, name: str, tensors: Sequence[Tensor], extras: Sequence[Tensor | None] | None, rest: Sequence[object],
             results: int, which: int | None = None) -> tuple:  # fmt: skip
        """Runs a boxed kernel as libtorch does; its results, tensors or None, and its status."""
        self.entered.clear()
        before = self.torch.fake_tensors()
        stack = [self._make(tensor) for tensor in tensors]
        if extras is not None:
            given = [self._make(tensor) for tensor in extras if tensor is not None]
            items = (c.c_uint64 * max(len(given), 1))(*given)
            stack.append(self.torch.fake_list(items, c.c_size_t(len(given))))
            there = sum(1 << n for n, tensor in enumerate(extras) if tensor is not None)
            stack.append(there if which is None else which)
        stack += [_word(value) for value in rest]
        array = (c.c_uint64 * max(len(stack), results + 1))(*stack)
        kernel = c.CFUNCTYPE(None, c.POINTER(c.c_uint64), c.c_uint64, c.c_uint64)(
            self.torch.fake_kernel(name.encode(), b"CompositeExplicitAutograd")
        )
        kernel(array, len(stack), results + 1)
        status = c.c_int64(array[results]).value
        found = tuple(self._take(array[i]) for i in range(results))
        assert self.torch.fake_tensors() == before, "tensors leak, or are freed twice"
        assert self.torch.fake_guards() == 0, "a device guard leaks"
        return *found, status

    def _make(self, tensor: Tensor) -> int:
        raw = Raw(1, tensor.layout, tensor.device_type, tensor.device, DTYPES.get(tensor.dtype, 999), 0,
                  len(tensor.sizes), data=tensor.data)  # fmt: skip
        raw.sizes[: len(tensor.sizes)], raw.strides[: len(tensor.strides)] = tensor.sizes, tensor.strides
        return self.torch.fake_tensor(c.byref(raw))

    def _take(self, handle: int) -> Tensor | None:
        raw = Raw.from_address(handle)
        dtype = {number: name for name, number in DTYPES.items()}.get(raw.dtype)
        found = None
        if raw.is_defined:
            found = Tensor(tuple(raw.sizes[: raw.dim]), tuple(raw.strides[: raw.dim]), dtype, raw.data or 0,
                           raw.device, raw.device_type, raw.layout, bool(raw.zeroed))  # fmt: skip
        self.torch.aoti_torch_delete_tensor_object(c.c_void_p(handle))
        return found

    def _entered(self, entry: bytes, kiln: int, queue, params: int, size) -> int:
        name = entry.decode()
        structure = PARAMS[name.removesuffix("_workspace")].from_address(params)
        fields = {field: _value(getattr(structure, field)) for field, _ in structure._fields_}
        assert fields["size"] == c.sizeof(structure)
        q = queue.contents
        seen = Entered(name, kiln, q.vendor, q.device, q.stream or 0, fields)
        self.entered.append(seen)
        if size:
            size[0] = self.workspace_bytes
        return self.answer(seen)


def _word(value: object) -> int:
    return struct.unpack("<Q", struct.pack("<d", value) if isinstance(value, float) else struct.pack("<q", value))[0]


def _value(field: object) -> object:
    """A pointer to a tensor becomes what it points to, NULL None."""
    if isinstance(field, c._Pointer):
        if not field:
            return None
        view = field.contents
        assert not any(view.reserved)
        return (view.data or 0, view.dtype, tuple(view.sizes[: view.rank]), tuple(view.strides[: view.rank]))
    return field
