"""The GPU suite's calls of libaotriton_v2.so mean what its calls of libkiln_flash.so do. Needs PyTorch, and no GPU."""

from __future__ import annotations

import ctypes
import math
import sys
from dataclasses import replace
from pathlib import Path

import aotriton_model as model
import pytest

torch = pytest.importorskip("torch")

sys.path.append(str(Path(__file__).resolve().parents[1] / "gpu"))

from aotriton_release import STYLES, Aotriton, Refused, expressible, given, takes, version_of  # noqa: E402
from calls import Call, Inputs  # noqa: E402
from check import Outputs  # noqa: E402
from features import ROWS  # noqa: E402
from reference import hidden_from  # noqa: E402
from release import Flash  # noqa: E402
from sampling import random_call  # noqa: E402
from test_aotriton import FEATURES  # noqa: E402

WINDOW = ("window_left", "window_right", "bottom_right")


class Told(Aotriton):
    """Notes what libkiln_flash.so would be asked for."""

    def __init__(self, style: str) -> None:
        self.style, self.scratch, self.encoded = style, None, None
        self.fields: dict = {}

    def call(self, name: str, **fields: object) -> None:
        if name.endswith("fwd") or "fwd_" in name:
            try:
                self.fields = model.forward(**fields)[0][1]
            except model.NoWindow:
                raise Refused from None
            numbers = [self._seeds.tolist()[0], sum(self._seeds.tolist()[1:])] if fields.get("p") else [0, 0]
            numbers[1] += fields["offset2"]
            for place, number in zip(("seed_out", "offset_out"), numbers):
                ctypes.c_int64.from_address(fields[place][0]).value = number
        else:
            fields.pop("D", None), fields.pop("DQ_ACC", None), fields.pop("delta", None)
            self.fields = model.backward(**fields)
            if self.scratch:
                self.scratch.disposed = 2


class Asked(Flash):
    """Notes what libkiln_flash.so is asked for."""

    def __init__(self) -> None:
        self.fields: dict = {}

    def enqueue(self, entry: str, params: ctypes.Structure, tensors: dict[str, object], **_: object) -> None:
        names = ("sm_scale", "dropout", "padded", "max_seqlen_q", "max_seqlen_k", *WINDOW)
        self.fields = {name: getattr(params, name) for name in names}
        if params.causal:
            self.fields["window_right"] = 0
        self.fields |= {name: list(given(tensor)) for name, tensor in tensors.items() if tensor is not None}


def plain(fields: dict, call: Call) -> dict:
    """Without what is said in other words: seeds, which are told back, and the window, by the keys that are seen."""
    fields = {name: value for name, value in fields.items() if value != 0 or name == "sm_scale"}
    for name in ("seed", "offset", "offset_value", "seed_out", "offset_out", "deterministic"):
        fields.pop(name, None)
    fields["sm_scale"] = round(fields["sm_scale"] or 1 / math.sqrt(call.width), 6)
    fields["dropout"] = round(fields.get("dropout", 0.0), 6)
    left, right, bottom_right = (fields.pop(name, 0) for name in WINDOW)
    seen = []
    for segment in call.segments():
        rows, keys = segment.rows.stop - segment.rows.start, segment.keys.stop - segment.keys.start
        hidden = hidden_from(rows, keys, (left, right), bool(bottom_right), torch.device("cpu"))
        seen.append(b"\0" * (rows * keys) if hidden is None else hidden.numpy().tobytes())
    tensors = {name: _tensor(value) for name, value in fields.items() if isinstance(value, list)}
    return fields | tensors | {"hidden": seen}


def _tensor(value: list) -> tuple:
    """Without strides that say nothing."""
    data, dtype, sizes, strides = value
    return data, dtype, tuple(sizes), tuple(0 if size == 1 else stride for size, stride in zip(sizes, strides))


def calls() -> list[Call]:
    rows = [call for name, calls in ROWS.items() if name in FEATURES for call in calls[:: max(1, len(calls) // 12)]]
    some = [expressible(call) for call in rows + [random_call(11, number) for number in range(150)]]
    return [replace(call, dtype="fp32") for call in dict.fromkeys(some) if call.scores < 100_000]


def test_every_style_asks_for_what_the_flash_library_is_asked_for():
    styles = [style for style in STYLES if version_of(style) == "0.11"]
    made = dict.fromkeys(styles, 0)
    for call in calls():
        inputs = Inputs(call, "cpu")
        outputs, asked = Outputs(inputs), Asked()
        for style in filter(lambda style: takes(style, call), styles):
            told = Told(style)
            for step in ("forward", "backward") if call.backward else ("forward",):
                getattr(asked, step)(inputs, outputs)
                getattr(told, step)(inputs, outputs)
                one, other = plain(told.fields, call), plain(asked.fields, call)
                assert set(one) == set(other), (style, call)
                differ = [name for name, value in one.items() if value != other[name]]
                assert not differ, (style, str(call), differ)
            made[style] += 1
    assert min(made.values()) > 50, made
