"""libaotriton_v2.so of a release, called as PyTorch calls it: what check.py takes in libkiln_flash.so's place."""

from __future__ import annotations

import ctypes
import math
import sys
from dataclasses import replace
from pathlib import Path

import ffi
import torch
from calls import Call, Inputs
from check import Outputs
from storage import DTYPES, SENTINEL, Storage, describe

sys.path.append(str(Path(__file__).resolve().parents[1] / "aotriton"))

from aotriton_interface import (
    BOTTOM_RIGHT,
    COMPACT,
    FP32,
    NOT_SUPPORTED,
    PADDED,
    STRIDED,
    T2,
    TOP_LEFT,
    UINT64,
    WINDOWED,
    Interface,
    library_of,
    view,
)

STYLES = ("v2", "v2, fused", "v3", "v3, lazy", "v3 of 0.12", "v3, lazy of 0.13", "v3 of 0.14", "v3, lazy of 0.14")
NOWHERE = (0xDEAD000, UINT64)  # what must not be read

_ACQUIRE = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
_DISPOSE = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


def version_of(style: str) -> str:
    """Of the interface; 0.11 has all functions."""
    return style.partition(" of ")[2] or "0.11"


class Refused(Exception):
    """No kernel for a call."""


def expressible(call: Call, version: str = "0.11") -> Call:
    """The call, or the nearest that an interface of AOTriton's has words for. Since 0.12 there may be gaps between
    sequences that lie one after another."""
    call = replace(call, sinks=False, alibi="", softcap=0.0, deterministic=False, longest=True, in_memory=False)
    gaps = "compact" if version == "0.11" else "both"
    varlen = {"padded": "sums", "both": gaps}.get(call.varlen_q, call.varlen_q)
    call = replace(call, varlen_q=varlen, varlen_k=varlen)
    if not call.keys:  # PyTorch does not call with nothing to attend to
        call = replace(call, keys=65, lengths_k=())
    if call.varlen_q and call.bottom_right and call.window != (-1, -1):
        call = replace(call, left=-1, right=-1, causal=True)  # a window has no words for the ends of each sequence
    return call


def takes(style: str, call: Call) -> bool:
    """Whether the functions of a style have words for a call that is expressible."""
    if style.startswith("v3"):
        return call.varlen_q != "both" or version_of(style) != "0.11"
    if call.varlen_q == "both":
        return False
    is_plain = call.window == (-1, -1) or (call.window == (-1, 0) and not call.bottom_right)
    return is_plain and call.varlen_q != "sums" and not (style == "v2, fused" and call.varlen_q)


def given(tensor: Storage | torch.Tensor | ffi.Tensor | None) -> tuple | None:
    """As the fields of a TensorView."""
    if tensor is None:
        return None
    if not isinstance(tensor, ffi.Tensor):
        tensor = tensor.describe() if isinstance(tensor, Storage) else describe(tensor)
    return tensor.data, tensor.dtype, tuple(tensor.sizes[: tensor.rank]), tuple(tensor.strides[: tensor.rank])


def masked(call: Call) -> dict:
    """The fields of a v3 call that tell which keys a row sees: with WindowValues where there is one for it."""
    left, right = call.window
    if left < 0 and right < 0:
        return {}
    diagonal = call.keys - call.rows if call.bottom_right else 0
    aligned = BOTTOM_RIGHT if call.bottom_right else TOP_LEFT
    far = call.rows + call.keys  # further than any key is
    return {
        "causal_type": WINDOWED,
        "left": left - diagonal if left >= 0 else aligned if call.causal else far,
        "right": aligned if call.causal else right + diagonal if right >= 0 else far,
    }


def sums_of(lengths: torch.Tensor) -> torch.Tensor:
    """[sequences + 1] int32 of [sequences]."""
    return torch.nn.functional.pad(lengths.cumsum(0), (1, 0)).int()


class Scratch:
    """What callers give a backward to work in, [heads, rows] of fp32: Kiln does not use it.

    As a lazy tensor it tells how often it was asked for, and disposed of: by its cookie up to 0.11, then by itself.
    """

    def __init__(self, call: Call, device: str, version: str) -> None:
        self._by_cookie = version == "0.11"
        batch, heads, rows, _ = call.shape(False, call.heads, 1)
        self.memory = torch.full((batch * heads, rows), SENTINEL, device=device)
        self.given = (self.memory.data_ptr(), FP32, (batch * heads, rows))
        self.acquired = self.disposed = 0
        self._functions = _ACQUIRE(self._acquire), _DISPOSE(self._dispose)

    def _acquire(self, place: int, cookie: int) -> int:
        # A structure of 48 bytes is returned where the caller says, by a first argument that C++ does not show.
        self._check(cookie)
        self.acquired += 1
        made = view(2, self.given)  # must live until it is copied
        ctypes.memmove(place, ctypes.addressof(made), ctypes.sizeof(T2))
        return place

    def _dispose(self, cookie: int) -> None:
        self._check(cookie)
        self.disposed += 1

    def _check(self, given: int) -> None:
        """The cookie, or the lazy tensor, which begins with it."""
        assert (given if self._by_cookie else ctypes.c_void_p.from_address(given).value) == id(self)

    @property
    def lazy(self) -> tuple:
        return id(self), *(ctypes.cast(function, ctypes.c_void_p).value for function in self._functions)

    def check(self) -> None:
        assert bool((self.memory == SENTINEL).all()), "backward wrote to memory that it was given but does not use"


class Aotriton:
    """The functions of one style.

    Attributes:
        scratch: of the last backward, if it was given any.
        encoded: of the last forward with dropout: its encoded_softmax.
    """

    def __init__(self, prefix: Path, style: str) -> None:
        self.style, version = style, version_of(style)
        self.interface = Interface(library_of(prefix / "lib", version), version)
        self.scratch, self.encoded = None, None
        self._seeds: torch.Tensor | None = None

    def call(self, name: str, **fields: object) -> None:
        """Enqueues on PyTorch's current stream.

        Raises:
            Refused: there is no kernel for the call.
        """
        status = self.interface.call(name, torch.cuda.current_stream().cuda_stream or None, **fields)
        if status == NOT_SUPPORTED:
            raise Refused(self.interface.error())
        assert not status, f"{name} returned {status}: {self.interface.error()}"

    def _dropout(self, inputs: Inputs) -> dict:
        """Half of the offset lies in memory. Without dropout nothing lies where it would."""
        call, half = inputs.call, inputs.call.offset // 2
        if not call.dropout:
            return {"seed": NOWHERE, "offset1": NOWHERE, "offset2": 7}
        self._seeds = torch.tensor([call.seed, half], dtype=torch.int64, device=inputs.device)
        seed, offset = (given(number) for number in self._seeds)
        return {"p": call.dropout, "seed": seed, "offset1": offset, "offset2": call.offset - half}

    def _shared(self, inputs: Inputs, outputs: Outputs) -> dict:
        call, lse = inputs.call, outputs.get("lse")
        fields = {name: given(getattr(inputs, name)) for name in ("q", "k", "v")} | self._dropout(inputs)
        fields |= {"out": given(outputs["out"]), "lse": given(lse and lse.values.flatten(0, 1)), "scale": call.scale}
        if inputs.bias is not None:
            fields["b"] = given(describe(inputs.bias.values, (call.batch, call.heads, call.rows, call.keys)))
        if call.varlen_q:
            fields |= {"cu_q": given(inputs.cu_q), "cu_k": given(inputs.cu_k), "max_q": call.rows, "max_k": call.keys}
        if call.varlen_q == "both":  # where sequences begin, and sums of how much of each counts
            self._sums = [sums_of(used) for used in (inputs.used_q, inputs.used_k)]
            fields |= {"starts_q": fields["cu_q"], "starts_k": fields["cu_k"]}
            fields |= {"cu_q": given(self._sums[0]), "cu_k": given(self._sums[1])}
        if self.style.startswith("v2"):
            return fields | {"is_causal": call.window == (-1, 0)}
        if version_of(self.style) == "0.14":
            mode = {"": (0, 0, 0), "compact": (1, 1, 1), "sums": (0, 1, 0), "both": (1, 1, 2)}[call.varlen_q]
            return fields | {"modes": (mode, mode, 0)} | masked(call)
        types = {"compact": COMPACT, "sums": PADDED, "both": STRIDED}
        return fields | {"varlen_type": types.get(call.varlen_q, 0)} | masked(call)

    def forward(self, inputs: Inputs, outputs: Outputs, keys: tuple[str, ...] = (), target: str | None = None) -> None:
        assert not keys and not target, "nothing can be forced"
        call = inputs.call
        drawn = torch.full((2,), -1, dtype=torch.int64, device=inputs.device)
        fields = self._shared(inputs, outputs) | {"counter": NOWHERE}
        fields["seed_out"], fields["offset_out"] = (given(number) for number in drawn)
        if call.dropout:
            self.encoded = self._unmasked(inputs)
            fields["encoded"] = given(self.encoded)
        compact = "_compact_varlen" if call.varlen_q and self.style.startswith("v2") else ""
        self.call(f"{self.style[:2]}.attn_fwd{compact}", **fields)
        wanted = [call.seed, call.offset] if call.dropout else [0, 7]
        assert drawn.tolist() == wanted, f"seed and offset are told to be {drawn.tolist()}, not {wanted}"

    def backward(self, inputs: Inputs, outputs: Outputs, keys: tuple[str, ...] = (), target: str | None = None) -> None:
        assert not keys and not target, "nothing can be forced"
        call, name = inputs.call, f"{self.style[:2]}.attn_bwd"
        fields = self._shared(inputs, outputs) | {"dout": given(inputs.dout)}
        fields |= {name: given(outputs[name]) for name in ("dq", "dk", "dv")}
        if outputs.get("dbias"):
            fields["db"] = given(describe(outputs["dbias"].values, (call.batch, call.heads, call.rows, call.keys)))
        self.scratch = (
            Scratch(call, inputs.device, version_of(self.style)) if self.style == "v2" or "lazy" in self.style else None
        )
        if self.style == "v2":
            fields["delta"] = self.scratch.given
            name += "_compact_varlen" if call.varlen_q else ""
        elif self.style == "v2, fused":
            name += "_fused"
        elif "lazy" in self.style:
            fields |= {"D": self.scratch.lazy, "DQ_ACC": self.scratch.lazy}
        self.call(name, **fields)
        if "lazy" in self.style:
            counts = self.scratch.acquired, self.scratch.disposed
            assert counts == (0, 2), f"D was acquired, and D and DQ_ACC were disposed of: {counts}, not (0, 2)"
        if self.scratch:
            self.scratch.check()

    def _unmasked(self, inputs: Inputs) -> torch.Tensor:
        call = inputs.call
        shape = (call.batch, call.heads, call.rows, call.keys)
        return torch.full(shape, math.nan, dtype=DTYPES[call.dtype], device=inputs.device)

    def dropout_mask(self, inputs: Inputs, target: str | None = None) -> torch.Tensor:
        """[batch, heads, rows, keys], true where a weight is kept, of a call's seed and offset."""
        mask = self._unmasked(inputs)
        self.call("v2.debug_simulate_encoded_softmax", r=given(mask), **self._dropout(inputs))
        assert bool((mask.abs() == 1).all()), "debug_simulate_encoded_softmax: not every element was written"
        return mask > 0
