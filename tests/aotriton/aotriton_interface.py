"""AOTriton's functions by ctypes: structures as the headers lay them out, functions by their mangled names."""

from __future__ import annotations

import ctypes as c
from pathlib import Path

UNKNOWN, FP32, FP16, BF16, INT32, INT64, UINT8, UINT64 = 0, 1, 2, 3, 12, 13, 20, 23
NONE, WINDOWED = 0, 3  # CausalType
COMPACT, PADDED, STRIDED = 1, 2, 3  # VarlenType
TOP_LEFT, BOTTOM_RIGHT = -2147483647, -2147483646  # WindowValue

_LISTED = (Path(__file__).resolve().parents[2] / "csrc/aotriton/interfaces.txt").read_text().splitlines()
VERSIONS = tuple(line.rpartition(".")[0] for line in _LISTED if line and not line.startswith("#"))

# hipError_t
SUCCESS, INVALID_VALUE, OUT_OF_MEMORY, INVALID_SYMBOL, NO_DEVICE, INVALID_IMAGE = 0, 1, 2, 13, 100, 200
NO_BINARY, FILE_NOT_FOUND, INVALID_HANDLE, OUT_OF_RESOURCES, NOT_SUPPORTED, UNKNOWN_ERROR = 209, 301, 400, 701, 801, 999


def _view(rank: int) -> type[c.Structure]:
    numbers = [("sizes", c.c_uint64 * rank), ("strides", c.c_uint64 * rank)] if rank else []
    return type(f"T{rank}", (c.Structure,), {"_fields_": [("data", c.c_void_p), *numbers, ("dtype", c.c_int32)]})


T0, T1, T2, T4 = map(_view, (0, 1, 2, 4))
Given = tuple | list | None  # (data, dtype, sizes, strides); strides may be left out, or None: contiguous


class Lazy(c.Structure):
    """LazyTensor up to 0.11."""

    _fields_ = [("cookie", c.c_void_p), ("acquire", c.c_void_p), ("dispose", c.c_void_p)]


class Eager2(c.Structure):
    _fields_ = [*Lazy._fields_, ("eager", T2)]


class Eager4(c.Structure):
    _fields_ = [*Lazy._fields_, ("eager", T4)]


class Mode(c.Structure):
    """VarlenMode."""

    _fields_ = [
        ("stacked", c.c_uint8, 1),
        ("length", c.c_uint8, 2),
        ("position", c.c_uint8, 2),
        ("reserved", c.c_uint8, 3),
    ]


class Bits(c.Structure):
    """VarlenBits."""

    _fields_ = [("qmode", Mode), ("kmode", Mode), ("rest", c.c_uint16)]


_PHILOX = [
    ("dropout_p", c.c_float), ("philox_seed_ptr", T0), ("philox_offset1", T0), ("philox_offset2", c.c_uint64),
]  # fmt: skip
_MASK = [("causal_type", c.c_int8), ("varlen_type", c.c_int8), ("window_left", c.c_int32), ("window_right", c.c_int32)]


class Structures:
    """attn_fwd_params, attn_bwd_params and attn_options of a version."""

    def __init__(self, version: str) -> None:
        number = int(version.partition(".")[2])
        lengths, starts = ("seqinfo_{}0", "seqinfo_{}1") if number >= 14 else ("cu_seqlens_{}", "seq_strides_{}")
        self.names = {f"cu_{side}": lengths.format(side) for side in "qk"}
        sequences = [(self.names[f"cu_{side}"], T1) for side in "qk"]
        sequences += [("Max_seqlen_q", c.c_int32), ("Max_seqlen_k", c.c_int32)]
        if number >= 12:
            self.names |= {f"starts_{side}": starts.format(side) for side in "qk"}
            sequences += [(self.names[f"starts_{side}"], T1) for side in "qk"]
        bits = [("varlen_bits", c.c_int32)] if number >= 14 else []  # Bits, with the alignment of a number
        lazy2, lazy4 = (Eager2, Eager4) if number >= 12 else (Lazy, Lazy)
        self.lazy = {"D": lazy2, "DQ_ACC": lazy4}
        self.fwd = _structure("FwdParams", [
            ("Q", T4), ("K", T4), ("V", T4), ("B", T4), ("A", T2), ("Sm_scale", c.c_float), ("L", T2), ("Out", T4),
            *sequences, *_PHILOX, ("philox_seed_output", T0), ("philox_offset_output", T0), ("encoded_softmax", T4),
            ("persistent_atomic_counter", T0), *_MASK, *bits,
        ], 4 if number >= 14 else 3 if number >= 12 else 1)  # fmt: skip
        self.bwd = _structure("BwdParams", [
            ("Q", T4), ("K", T4), ("V", T4), ("B", T4), ("Sm_scale", c.c_float), ("Out", T4), ("DO", T4), ("DK", T4),
            ("DV", T4), ("DQ", T4), ("DB", T4), ("L", T2), ("D", lazy2), *sequences, *_PHILOX, *_MASK,
            ("DQ_ACC", lazy4), *bits,
        ], 7 if number >= 14 else 6 if number >= 12 else 3)  # fmt: skip
        options = [("force_backend_index", c.c_int)] + [("deterministic", c.c_bool)] * (number >= 12)
        self.options = _structure("Options", options, 0)


def _structure(name: str, fields: list, version: int) -> type[c.Structure]:
    return type(name, (c.Structure,), {"_fields_": fields, "kVersion": version})


def library_of(lib: Path, version: str) -> Path:
    """The library of an interface in lib/, or in its prefix there."""
    places = (lib, lib / "aotriton" / version / "lib")
    return next(path for place in places for path in place.glob(f"libaotriton_v2.so.{version}.*"))


def view(rank: int, given: Given) -> c.Structure:
    """A TensorView; None: one of nothing."""
    made = (T0, T1, T2, None, T4)[rank]()
    if given is None:
        return made
    data, dtype, *rest = given
    made.data, made.dtype = data or None, dtype
    if rank:
        sizes, strides = rest[0], rest[1] if len(rest) > 1 else None
        made.sizes[:] = [size % 2**64 for size in sizes]
        made.strides[:] = [stride % 2**64 for stride in strides or contiguous(sizes)]
    return made


def contiguous(sizes: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of a tensor without gaps."""
    strides, step = [], 1
    for size in reversed(sizes):
        strides.insert(0, step)
        step *= max(size, 1)
    return tuple(strides)


_STREAM = "NS_14StreamTemplateIP12ihipStream_tEE"
_V2, _V3 = "_ZN8aotriton2v25flash", "_ZN8aotriton2v35flash"
_SYMBOLS = {
    "v2.check_gpu": f"{_V2}9check_gpuE{_STREAM}",
    "v2.attn_fwd": f"{_V2}8attn_fwdENS_10TensorViewILi4EEES3_S3_S3_fNS2_ILi2EEES3_fNS2_ILi0EEES5_lS5_S5_S3_bS5_"
    f"{_STREAM}PNS1_17FwdExtraArgumentsE",
    "v2.attn_fwd_compact_varlen": f"{_V2}23attn_fwd_compact_varlenENS_10TensorViewILi4EEES3_S3_S3_NS2_ILi1EEES4_iifNS2_"
    f"ILi2EEES3_fNS2_ILi0EEES6_lS6_S6_S3_bS6_{_STREAM}PNS1_17FwdExtraArgumentsE",
    "v2.attn_fwd of 0.8": f"{_V2}8attn_fwdENS_10TensorViewILi4EEES3_S3_S3_fNS2_ILi2EEES3_fNS2_ILi0EEES5_lS5_S5_S3_b"
    f"{_STREAM}PNS1_17FwdExtraArgumentsE",
    "v2.attn_fwd_compact_varlen of 0.8": f"{_V2}23attn_fwd_compact_varlenENS_10TensorViewILi4EEES3_S3_S3_NS2_ILi1EEES4_"
    f"iifNS2_ILi2EEES3_fNS2_ILi0EEES6_lS6_S6_S3_b{_STREAM}PNS1_17FwdExtraArgumentsE",
    "v2.attn_bwd": f"{_V2}8attn_bwdENS_10TensorViewILi4EEES3_S3_S3_fS3_S3_S3_S3_S3_S3_NS2_ILi2EEES4_fNS2_ILi0EEES5_lb"
    f"{_STREAM}PNS1_17BwdExtraArgumentsE",
    "v2.attn_bwd_fused": f"{_V2}14attn_bwd_fusedENS_10TensorViewILi4EEES3_S3_S3_fS3_S3_S3_S3_S3_S3_NS2_ILi2EEEfNS2_"
    f"ILi0EEES5_lb{_STREAM}PNS1_22FusedBwdExtraArgumentsE",
    "v2.attn_bwd_compact_varlen": f"{_V2}23attn_bwd_compact_varlenENS_10TensorViewILi4EEES3_S3_NS2_ILi1EEES4_iiS3_fS3_"
    f"S3_S3_S3_S3_S3_NS2_ILi2EEES5_fNS2_ILi0EEES6_lb{_STREAM}PNS1_17BwdExtraArgumentsE",
    "v2.debug_simulate_encoded_softmax": f"{_V2}30debug_simulate_encoded_softmaxENS_10TensorViewILi4EEEfNS2_ILi0EEES4_m"
    f"{_STREAM}",
    "v3.attn_fwd": f"{_V3}8attn_fwdERKNS1_15attn_fwd_paramsEi{_STREAM}PKNS1_12attn_optionsE",
    "v3.attn_bwd": f"{_V3}8attn_bwdERKNS1_15attn_bwd_paramsEi{_STREAM}PKNS1_12attn_optionsE",
    "v3.aiter_bwd": f"{_V3}9aiter_bwdERKNS1_15attn_bwd_paramsEi{_STREAM}PKNS1_12attn_optionsE",
    "getGpuFromStream": "_ZN8aotriton16getGpuFromStreamEP12ihipStream_t",
    "getMultiProcessorCount": "_ZN8aotriton22getMultiProcessorCountEP12ihipStream_t",
    "isArchExperimentallySupported": "_ZN8aotriton29isArchExperimentallySupportedEP12ihipStream_t",
    "isArchTechPreview": "_ZN8aotriton17isArchTechPreviewEP12ihipStream_t",
}


def functions_of(version: str) -> list[str]:
    """The functions of an interface."""
    number = int(version.partition(".")[2])
    first = {"isArchTechPreview": 12}
    kept = {"v2.check_gpu", "v2.debug_simulate_encoded_softmax"}
    last = {"v3.aiter_bwd": 11} | {name: 12 for name in _SYMBOLS if name.startswith("v2") and name not in kept}
    return [name for name in _SYMBOLS if first.get(name, 0) <= number <= last.get(name, 99)]


def imports_of(version: str) -> set[str]:
    """What a program of each of an interface's functions imports."""
    return {_SYMBOLS[name] for name in functions_of(version)}


def symbols_of(version: str) -> set[str]:
    """What it imports where it was compiled with AOTriton's own headers: constructors are functions there."""
    constructors = {f"{_V3}{len(name)}{name}C1Ev" for name in ("attn_fwd_params", "attn_bwd_params")}
    return imports_of(version) | constructors


FORWARDS = ("v2.attn_fwd", "v2.attn_fwd_compact_varlen", "v3.attn_fwd")
BACKWARDS = ("v2.attn_bwd", "v2.attn_bwd_fused", "v2.attn_bwd_compact_varlen", "v3.attn_bwd", "v3.aiter_bwd")

_R = {"q": 4, "k": 4, "v": 4, "b": 4, "out": 4, "lse": 2, "encoded": 4, "cu_q": 1, "cu_k": 1, "starts_q": 1,
      "starts_k": 1, "dout": 4, "dq": 4,
      "dk": 4, "dv": 4, "db": 4, "delta": 2, "seed": 0, "offset1": 0, "seed_out": 0, "offset_out": 0, "counter": 0,
      "a": 2, "r": 4}  # fmt: skip
_N = {"scale": c.c_float, "p": c.c_float, "max_q": c.c_int32, "max_k": c.c_int32, "offset2": c.c_int64,
      "is_causal": c.c_bool}  # fmt: skip
_OUTPUTS = "lse out p seed offset1 offset2 seed_out offset_out encoded is_causal counter"
_RNG = "p seed offset1 offset2"
_GRADIENTS = "out dout dq dk dv db lse"
_FLAT = {  # of the v2 functions, in order
    "v2.attn_fwd": f"q k v b scale {_OUTPUTS}",
    "v2.attn_fwd_compact_varlen": f"q k v b cu_q cu_k max_q max_k scale {_OUTPUTS}",
    "v2.attn_fwd of 0.8": f"q k v b scale {_OUTPUTS}".removesuffix(" counter"),
    "v2.attn_fwd_compact_varlen of 0.8": f"q k v b cu_q cu_k max_q max_k scale {_OUTPUTS}".removesuffix(" counter"),
    "v2.attn_bwd": f"q k v b scale {_GRADIENTS} delta {_RNG} is_causal",
    "v2.attn_bwd_fused": f"q k v b scale {_GRADIENTS} {_RNG} is_causal",
    "v2.attn_bwd_compact_varlen": f"q k v cu_q cu_k max_q max_k b scale {_GRADIENTS} delta {_RNG} is_causal",
    "v2.debug_simulate_encoded_softmax": f"r {_RNG}",
}
_FIELDS = {  # of the v3 structures
    "q": "Q", "k": "K", "v": "V", "b": "B", "a": "A", "scale": "Sm_scale", "lse": "L", "out": "Out", "dout": "DO",
    "dq": "DQ", "dk": "DK", "dv": "DV", "db": "DB",
    "max_q": "Max_seqlen_q", "max_k": "Max_seqlen_k", "p": "dropout_p", "seed": "philox_seed_ptr",
    "offset1": "philox_offset1", "offset2": "philox_offset2", "seed_out": "philox_seed_output",
    "offset_out": "philox_offset_output", "encoded": "encoded_softmax", "counter": "persistent_atomic_counter",
    "causal_type": "causal_type", "varlen_type": "varlen_type", "left": "window_left", "right": "window_right",
}  # fmt: skip


class Interface:
    """libaotriton_v2.so of a version."""

    def __init__(self, path: Path | str, version: str = "0.11") -> None:
        self.c = c.CDLL(str(path))
        self.version, self.structures = version, Structures(version)
        self.c.kiln_aotriton_error.restype = c.c_char_p
        self.functions = {}
        for name in functions_of(version):
            function = getattr(self.c, _SYMBOLS[name])
            if name in _FLAT:
                names = _FLAT[name].split()
                extra = [] if name.endswith("softmax") else [c.c_void_p]
                kinds = [(T0, T1, T2, None, T4)[_R[n]] if n in _R else _N[n] for n in names]
                function.argtypes = [*kinds, c.c_void_p, *extra]
            elif name.startswith("v3"):
                function.argtypes = [c.c_void_p, c.c_int32, c.c_void_p, c.c_void_p]  # structures of any version
            else:
                function.argtypes = [c.c_void_p]
            self.functions[name] = function
        self.functions["getGpuFromStream"].restype = c.c_uint64
        self.functions["isArchExperimentallySupported"].restype = c.c_bool
        if "isArchTechPreview" in self.functions:
            self.functions["isArchTechPreview"].restype = c.c_bool

    def error(self) -> str:
        """The sentence of the last call that failed."""
        return self.c.kiln_aotriton_error().decode()

    def ask(self, name: str, stream: int | None = None) -> int:
        """What a function of a stream alone says."""
        return int(self.functions[name](stream))

    def call(self, name: str, stream: int | None = None, **fields: object) -> int:
        """The hipError_t of a call.

        Args:
            fields: views as (data, dtype, sizes, strides), numbers, for v3 also version, backend, deterministic, and D
                and DQ_ACC as (cookie, acquire, dispose); what is left out is absent, or 0. `modes`, for 0.14: each
                side's (stacked, length, position), and how the log-sum-exp lies. `older`: in the structure of 0.13.
        """
        if name in _FLAT:
            return self._flat(name, stream, fields)
        return self._structured(name, stream, fields) if name.startswith("v3") else self.ask(name, stream)

    def _flat(self, name: str, stream: int | None, fields: dict) -> int:
        names = _FLAT[name].split()
        assert set(fields) <= set(names), (name, set(fields) - set(names))
        values = [view(_R[n], fields.get(n)) if n in _R else fields.get(n, 0) for n in names]
        extra = [] if name.endswith("softmax") else [None]
        return self.functions[name](*values, stream, *extra)

    def _structured(self, name: str, stream: int | None, fields: dict) -> int:
        structures = Structures("0.13") if fields.pop("older", False) else self.structures
        kind = structures.fwd if name.endswith("fwd") else structures.bwd
        version, backend = fields.pop("version", kind.kVersion), fields.pop("backend", None)
        deterministic, modes = fields.pop("deterministic", None), fields.pop("modes", None)
        params = kind()
        for lazy, structure in structures.lazy.items():
            if lazy in fields:
                setattr(params, lazy, structure(*fields.pop(lazy)))
        for n, value in fields.items():
            field = structures.names.get(n) or _FIELDS[n]
            setattr(params, field, view(_R[n], value) if n in _R else value)
        if modes:
            q, k, heads_inside = modes
            params.varlen_bits = int.from_bytes(bytes(Bits(Mode(*q), Mode(*k), heads_inside)), "little")
        options = None
        if backend is not None or deterministic is not None:
            options = structures.options(-1 if backend is None else backend)
            if deterministic is not None:
                options.deterministic = deterministic
        return self.functions[name](c.byref(params), version, stream, options and c.byref(options))
