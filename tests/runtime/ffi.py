"""The C interface for tests, by ctypes."""

from __future__ import annotations

import ctypes as c
import os
from pathlib import Path

import recorded

OK, ARGUMENT, UNSUPPORTED, NO_DEVICE, DRIVER, PACK_NOT_FOUND, PACK_MISMATCH, PACK_CORRUPT = range(8)
WORKSPACE, NEWER_CALLER, FORKED, OUT_OF_MEMORY, NOT_FOUND, QUEUE, RANGE, RESOURCES, FAMILY = range(8, 17)
NVIDIA, AMD = 1, 2
FP32, FP16, BF16, FP64, FP8E4M3 = 1, 2, 3, 4, 5
INT32, INT64, UINT8 = 12, 13, 20
ABSENT, TENSOR, INT, FLOAT = range(4)


class Options(c.Structure):
    _fields_ = [
        ("size", c.c_uint64), ("pack_path", c.c_char_p), ("trusted_packs", c.c_char_p), ("log", c.c_void_p),
        ("log_user", c.c_void_p), ("log_level", c.c_int32), ("reserved0", c.c_int32), ("resolve", c.c_void_p),
        ("resolve_user", c.c_void_p), ("trusted_keys", c.c_char_p),
    ]  # fmt: skip


class Queue(c.Structure):
    _fields_ = [("size", c.c_uint64), ("vendor", c.c_int32), ("device", c.c_int32), ("stream", c.c_void_p)]


class Tensor(c.Structure):
    _fields_ = [
        ("data", c.c_void_p), ("dtype", c.c_int32), ("rank", c.c_int32), ("sizes", c.c_int64 * 8),
        ("strides", c.c_int64 * 8), ("reserved", c.c_uint64 * 2),
    ]  # fmt: skip


class Value(c.Union):
    _fields_ = [("tensor", c.POINTER(Tensor)), ("integer", c.c_int64), ("real", c.c_double)]


class Argument(c.Structure):
    _fields_ = [("kind", c.c_int32), ("reserved", c.c_int32), ("value", Value)]


class Call(c.Structure):
    _fields_ = [
        ("size", c.c_uint64), ("operation", c.c_void_p), ("queue", c.POINTER(Queue)),
        ("arguments", c.POINTER(Argument)),
        ("argument_count", c.c_int32), ("force_count", c.c_int32), ("force_keys", c.POINTER(c.c_char_p)),
        ("force_target", c.c_char_p), ("workspace", c.c_void_p), ("workspace_bytes", c.c_uint64),
    ]  # fmt: skip


class Device(c.Structure):
    _fields_ = [
        ("size", c.c_uint64), ("vendor", c.c_int32), ("ordinal", c.c_int32), ("multiprocessors", c.c_int32),
        ("warp_size", c.c_int32), ("name", c.c_char_p), ("id", c.c_char_p), ("target", c.c_char_p),
        ("refusal", c.c_char_p),
    ]  # fmt: skip


class Variant(c.Structure):
    _fields_ = [
        ("size", c.c_uint64), ("key", c.c_char_p), ("target", c.c_char_p), ("operation", c.c_char_p),
        ("kernel", c.c_char_p), ("functional", c.c_char_p), ("configuration", c.c_char_p),
        ("specialization", c.c_char_p), ("unavailable", c.c_char_p), ("has_ptx", c.c_int32), ("registers", c.c_int32),
        ("shared_bytes", c.c_int32), ("spill_bytes", c.c_int32), ("threads", c.c_int32), ("reserved0", c.c_int32),
        ("passed_over", c.c_char_p),
    ]  # fmt: skip


class ArgumentInfo(c.Structure):
    _fields_ = [
        ("size", c.c_uint64), ("name", c.c_char_p), ("kind", c.c_int32), ("rank", c.c_int32), ("dtype", c.c_int32),
        ("optional", c.c_int32),
    ]  # fmt: skip


def _tensors(*names: str) -> list[tuple]:
    return [(name, c.POINTER(Tensor)) for name in names]


def _integers(*names: str) -> list[tuple]:
    return [(name, c.c_int64) for name in names]


_WORKSPACE = [("workspace", c.c_void_p), ("workspace_bytes", c.c_uint64)]
_FORCE = [
    ("force_keys", c.POINTER(c.c_char_p)), ("force_target", c.c_char_p), ("force_count", c.c_int32),
    ("reserved1", c.c_int32),
]  # fmt: skip
_PADDED = [("padded", c.c_int32), ("reserved2", c.c_int32)]
_INVARIANT = ("batch_invariant", c.c_int32)
_SEQUENCES = ("cu_seqlens_q", "cu_seqlens_k", "seqused_q", "seqused_k")
_LIMITS = ("max_seqlen_q", "max_seqlen_k", "window_left", "window_right")


class _Attn(c.Structure):
    """What the parameter structures of flash.h have in common: made with the defaults of their _INIT macros."""

    def __init__(self, size: int | None = None, **fields: object) -> None:
        size = c.sizeof(self) if size is None else size
        super().__init__(**({"size": size, "window_left": -1, "window_right": -1} | fields))


class AttnFwd(_Attn):
    _fields_ = [
        ("size", c.c_uint64),
        *_tensors("q", "k", "v", "out", "lse", "sinks", "bias", "alibi_slopes", "seed", "offset", "seed_out"),
        *_tensors("offset_out", *_SEQUENCES), *_integers(*_LIMITS, "seed_value", "offset_value"),
        ("sm_scale", c.c_float), ("softcap", c.c_float), ("dropout", c.c_float), ("causal", c.c_int32),
        ("bottom_right", c.c_int32), ("reserved0", c.c_int32), *_WORKSPACE, *_FORCE, *_PADDED, _INVARIANT,
        ("reserved3", c.c_int32),
    ]  # fmt: skip


class AttnBwd(_Attn):
    _fields_ = [
        ("size", c.c_uint64),
        *_tensors("q", "k", "v", "out", "dout", "lse", "dq", "dk", "dv", "dbias", "dsinks", "sinks", "bias"),
        *_tensors("alibi_slopes", "seed", "offset", *_SEQUENCES), *_integers(*_LIMITS, "seed_value", "offset_value"),
        ("sm_scale", c.c_float), ("softcap", c.c_float), ("dropout", c.c_float), ("causal", c.c_int32),
        ("bottom_right", c.c_int32), ("deterministic", c.c_int32), *_WORKSPACE, *_FORCE, *_PADDED,
    ]  # fmt: skip


class AttnDecode(_Attn):
    _fields_ = [
        ("size", c.c_uint64),
        *_tensors("q", "k_cache", "v_cache", "out", "lse", "k_new", "v_new", "seqused_k", "cu_seqlens_q"),
        *_tensors("block_table", "cache_batch", "leftpad", "rotary_cos", "rotary_sin", "k_scale", "v_scale", "sinks"),
        *_tensors("alibi_slopes"),
        *_integers(*_LIMITS, "splits"), ("sm_scale", c.c_float), ("softcap", c.c_float), ("causal", c.c_int32),
        ("rotary_interleaved", c.c_int32), *_WORKSPACE, *_FORCE, _INVARIANT, ("reserved2", c.c_int32),
    ]  # fmt: skip


class AttnFwdFp8(_Attn):
    _fields_ = [
        ("size", c.c_uint64), *_tensors("q", "k", "v", "out", "lse", "q_descale", "k_descale", "v_descale", "sinks"),
        *_tensors("cu_seqlens_q", "cu_seqlens_k", "seqused_q", "seqused_k"), *_integers(*_LIMITS),
        ("sm_scale", c.c_float), ("causal", c.c_int32), ("bottom_right", c.c_int32), ("padded", c.c_int32),
        *_WORKSPACE, *_FORCE,
    ]  # fmt: skip


class DropoutMask(c.Structure):
    _fields_ = [
        ("size", c.c_uint64), *_tensors("mask", "seed", "offset"), *_integers("seed_value", "offset_value"),
        ("dropout", c.c_float), ("reserved0", c.c_int32), ("force_target", c.c_char_p),
    ]  # fmt: skip


LogFn = c.CFUNCTYPE(None, c.c_int32, c.c_char_p, c.c_void_p)
DeviceFn = c.CFUNCTYPE(c.c_int32, c.POINTER(Device), c.c_void_p)
VariantFn = c.CFUNCTYPE(c.c_int32, c.POINTER(Variant), c.c_void_p)
ArgumentFn = c.CFUNCTYPE(c.c_int32, c.POINTER(ArgumentInfo), c.c_void_p)
OperationFn = c.CFUNCTYPE(c.c_int32, c.c_char_p, c.c_void_p, c.c_void_p)


def _fields(structure: c.Structure) -> dict:
    return {name: getattr(structure, name) for name, _ in structure._fields_}


class Failure(Exception):
    """A status other than KILN_OK, with its sentence."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(f"{status}: {sentence}")
        self.status, self.sentence = status, sentence


def mapped(name: str) -> set[str]:
    """Files of that name that this process has mapped; one that was removed since ends in " (deleted)"."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    paths = {fields[5] for fields in (line.split(maxsplit=5) for line in lines) if len(fields) == 6}
    return {path for path in paths if Path(path.removesuffix(" (deleted)")).name == name}


class Library:
    """libkiln.so.0 of a folder, or by another name."""

    def __init__(self, folder: Path, core: str = "libkiln.so.0") -> None:
        self.folder = folder
        self.c = c.CDLL(str(folder / core))
        others = mapped(core) - {os.path.realpath(folder / core)}
        assert not others, (
            f"this process has another libkiln.so.0 than that of {folder}: {', '.join(sorted(others))}. A family's "
            "library is given whichever core came first; what loads another one must do so in a process of its own"
        )
        for name in ("kiln_error", "kiln_version", "kiln_status_name"):
            getattr(self.c, name).restype = c.c_char_p
        self.c.kiln_close.argtypes = [c.c_void_p]

    def error(self) -> str:
        return self.c.kiln_error().decode()

    def check(self, status: int) -> None:
        if status != OK:
            raise Failure(status, self.error())


class Fake:
    """The fake driver."""

    def __init__(self, path: Path) -> None:
        self.c = c.CDLL(str(path))
        for name in ("fake_context", "fake_green_stream", "fake_stream", "fake_get_current"):
            getattr(self.c, name).restype = c.c_void_p
        self.c.fake_set_current.argtypes = [c.c_int32, c.c_void_p]
        self.c.fake_record.restype = c.c_void_p
        self.resolve = c.cast(self.c.fake_resolve, c.c_void_p).value
        self.reset()

    def reset(self) -> None:
        self.c.fake_reset()
        self._record, self._read = recorded.Record(), 0

    def stream(self, vendor: int = NVIDIA, device: int = 0, number: int = 0) -> int:
        return self.c.fake_stream(vendor, device, number)

    def context(self, device: int = 0, number: int = 0) -> int:
        return self.c.fake_context(device, number)

    def set_current(self, what: int | None, vendor: int = NVIDIA) -> None:
        self.c.fake_set_current(vendor, what)

    def current(self, vendor: int = NVIDIA) -> int | None:
        return self.c.fake_get_current(vendor)

    def fail(self, symbol: str, code: int, nth: int = 1, sticky: bool = False) -> None:
        self.c.fake_fail(symbol.encode(), nth, code, int(sticky))

    def delay(self, symbol: str, milliseconds: int) -> None:
        self.c.fake_delay(symbol.encode(), milliseconds)

    def hide(self, symbol: str) -> None:
        self.c.fake_hide(symbol.encode())

    def count(self, symbol: str) -> int:
        return self.c.fake_count(symbol.encode())

    @property
    def last_error(self) -> int:
        return self.c.fake_last_error()

    @property
    def loaded(self) -> int:
        return self.c.fake_loaded()

    def record(self) -> recorded.Record:
        """What was recorded since the last reset; the same object grows."""
        size = c.c_uint64()
        address = self.c.fake_record(c.byref(size))
        if size.value > self._read:
            new = c.string_at(address + self._read, size.value - self._read)
            self._record.add(new.splitlines())
            self._read = size.value
        return self._record

    def launches(self) -> list[recorded.Launch]:
        return list(self.record().launches)

    def zeros(self) -> list[recorded.Zero]:
        return list(self.record().zeros)


def tensor(data: int, dtype: int, sizes: tuple[int, ...], strides: tuple[int, ...] | None = None) -> Tensor:
    """A view; strides default to contiguous ones."""
    if strides is None:
        strides, step = (), 1
        for size in reversed(sizes):
            strides = (step, *strides)
            step *= max(size, 1)
    view = Tensor(data=data, dtype=dtype, rank=len(sizes))
    view.sizes[: len(sizes)] = sizes
    view.strides[: len(strides)] = strides
    return view


def argument(value: object) -> Argument:
    """None: absent; bool and int: an integer; float: a real; Tensor: itself."""
    if value is None:
        return Argument(kind=ABSENT)
    if isinstance(value, Tensor):
        return Argument(kind=TENSOR, value=Value(tensor=c.pointer(value)))
    if isinstance(value, int):
        return Argument(kind=INT, value=Value(integer=int(value)))
    return Argument(kind=FLOAT, value=Value(real=value))


class Kiln:
    """A kiln_t on the fake driver; raises Failure."""

    def __init__(self, library: Library, fake: Fake | None, **options: object) -> None:
        self.library, self.fake, self.messages = library, fake, []
        self._log = LogFn(lambda level, message, _: self.messages.append((level, message.decode())))
        fields = {"size": c.sizeof(Options), "log_level": 3, "log": c.cast(self._log, c.c_void_p).value}
        if fake:
            fields["resolve"] = fake.resolve
        self.handle = c.c_void_p()
        encoded = {k: v.encode() if isinstance(v, str) else v for k, v in options.items()}
        library.check(library.c.kiln_open(c.byref(Options(**(fields | encoded))), c.byref(self.handle)))

    def close(self) -> int:
        status = self.library.c.kiln_close(self.handle)
        self.handle = None
        return status

    def __enter__(self):
        return self

    def __exit__(self, *_: object) -> None:
        if self.handle:
            self.close()

    def register(self, family: c.CDLL, name: str = "toy") -> None:
        entry = getattr(family, f"kiln_{name}_family")
        entry.restype = c.c_void_p
        self.library.check(self.library.c.kiln_register_family(self.handle, c.c_void_p(entry())))

    def operation(self, name: str = "toy.mix") -> c.c_void_p:
        out = c.c_void_p()
        self.library.check(self.library.c.kiln_find_operation(self.handle, name.encode(), c.byref(out)))
        return out

    def devices(self, seen: list[dict] | None = None) -> list[dict]:
        """All devices; `seen` has those that were visited even if it fails."""
        seen = [] if seen is None else seen
        visit = DeviceFn(lambda device, _: seen.append(_fields(device.contents)) or 0)
        self.library.check(self.library.c.kiln_devices(self.handle, visit, None))
        return seen

    def variants(self, operation: str | None = None, target: str | None = None) -> list[dict]:
        seen: list[dict] = []
        visit = VariantFn(lambda variant, _: seen.append(_fields(variant.contents)) or 0)
        names = [name and name.encode() for name in (operation, target)]
        self.library.check(self.library.c.kiln_variants(self.handle, *names, visit, None))
        return seen

    def call(self, arguments: list, vendor: int = NVIDIA, device: int = -1, stream: int | None = None,
             keys: tuple[str, ...] = (), target: str | None = None, workspace: int | None = None,
             workspace_bytes: int = 0, operation: str = "toy.mix") -> Call:  # fmt: skip
        """A kiln_call; what it points to lives as long as it."""
        packed = (Argument * max(len(arguments), 1))(*[argument(a) for a in arguments])
        queue = Queue(c.sizeof(Queue), vendor, device, stream)
        names = (c.c_char_p * max(len(keys), 1))(*[key.encode() for key in keys])
        call = Call(
            c.sizeof(Call), self.operation(operation), c.pointer(queue), packed, len(arguments), len(keys), names,
            target and target.encode(), workspace, workspace_bytes,
        )  # fmt: skip
        call.keep = (packed, queue, names, arguments)
        return call

    def launch(self, call: Call) -> None:
        self.library.check(self.library.c.kiln_launch(c.byref(call)))

    def prepare(self, call: Call) -> None:
        self.library.check(self.library.c.kiln_prepare(c.byref(call)))

    def synchronize(self, vendor: int = NVIDIA, device: int = -1, stream: int | None = None) -> None:
        queue = Queue(c.sizeof(Queue), vendor, device, stream)
        self.library.check(self.library.c.kiln_synchronize(self.handle, c.byref(queue)))

    def workspace_size(self, call: Call) -> int:
        size = c.c_uint64()
        self.library.check(self.library.c.kiln_workspace_size(c.byref(call), c.byref(size)))
        return size.value

    def explain(self, call: Call) -> list[dict]:
        seen: list[dict] = []
        visit = VariantFn(lambda variant, _: seen.append(_fields(variant.contents)) or 0)
        self.library.check(self.library.c.kiln_explain(c.byref(call), visit, None))
        return seen
