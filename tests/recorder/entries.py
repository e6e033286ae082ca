"""The typed entries of include/kiln/flash.h: how fields of their structures become arguments of the recipe's
operations, as the header says it."""

from __future__ import annotations

import ctypes
import math
import struct
from collections.abc import Callable, Mapping, Sequence

import ffi

from kiln_recipe.call.evaluate import Given, Tensor
from kiln_recipe.model import Operation

STRUCTURES = {
    "attn_fwd": ffi.AttnFwd, "attn_fwd_fp8": ffi.AttnFwdFp8, "attn_bwd": ffi.AttnBwd, "attn_decode": ffi.AttnDecode,
    "dropout_mask": ffi.DropoutMask,
}  # fmt: skip
HOPPER_ALONE = ("attn_fwd_fp8",)  # what no other target has kernels of
# By entry what else there is besides itself: what takes the same parameters.
SUFFIXES = {name: () if name == "dropout_mask" else ("_workspace", "_prepare", "_explain") for name in STRUCTURES}

Fields = Mapping[str, object]


def fp32(value: float) -> float:
    """Rounded as a float field is."""
    return struct.unpack("<f", struct.pack("<f", value))[0]


def _scale(fields: Fields) -> float:
    if scale := fp32(fields.get("sm_scale", 0.0)):
        return scale
    q = fields.get("q")
    known = q is not None and len(q.sizes) == 4 and q.sizes[3] > 0
    return 1.0 / math.sqrt(q.sizes[3]) if known else 1.0  # if not, the call is refused for q's sake


# Arguments that are not the field of their own name, or not as it is.
MEANINGS: Mapping[str, Callable[[Fields], int | float]] = {
    "window_right": lambda f: 0 if f.get("causal") else f.get("window_right", -1),
    "window_left": lambda f: f.get("window_left", -1),
    "bottom_right": lambda f: int(bool(f.get("bottom_right"))),
    "is_padded": lambda f: int(bool(f.get("padded"))),
    "rotary_interleaved": lambda f: int(bool(f.get("rotary_interleaved"))),
    "batch_invariant": lambda f: int(bool(f.get("batch_invariant"))),
    "sm_scale": _scale,
    "is_negative": lambda f: int(f.get("sm_scale", 0.0) < 0),
    "is_capped": lambda f: int(f.get("softcap", 0.0) > 0),
    "softcap": lambda f: fp32(f.get("softcap", 0.0)) or 1.0,
    "threshold": lambda f: int(fp32(f.get("dropout", 0.0)) * 2.0**32),
    "keep_scale": lambda f: 1.0 / (1.0 - fp32(f.get("dropout", 0.0))),
    "wanted_splits": lambda f: f.get("splits", 0),
}


def arguments(operation: Operation, fields: Fields) -> list[Given]:
    """The arguments of the operation that an entry of its name calls."""
    known = {name for name, _ in STRUCTURES[operation.name]._fields_}
    result: list[Given] = []
    for argument in operation.arguments:
        if argument.name in MEANINGS:
            result.append(MEANINGS[argument.name](fields))
        else:
            assert argument.name in known, f"no field of {operation.name} is its argument {argument.name}"
            result.append(fields.get(argument.name, None if argument.kind == "tensor" else 0))
    return result


def view(tensor: Tensor) -> ffi.Tensor:
    return ffi.tensor(tensor.data, tensor.dtype, tensor.sizes, tensor.strides)


def parameters(name: str, fields: Fields) -> ctypes.Structure:
    """The structure of an entry."""
    made = {
        field: ctypes.pointer(view(value)) if isinstance(value, Tensor) else value for field, value in fields.items()
    }
    structure = STRUCTURES[name]
    return structure(**({"size": ctypes.sizeof(structure)} | made))


def call_of(kiln: ffi.Kiln, name: str, operation: Operation, given: Sequence[Given], **options: object) -> ffi.Call:
    """A call of kiln_launch; `name`: the operation's with its family's."""
    values = [view(v) if isinstance(v, Tensor) else v for v in given]
    values = [float(v) if a.kind == "float" else v for a, v in zip(operation.arguments, values)]
    return kiln.call(values, operation=name, **options)
