"""Runs a call of attention forward and backward into poisoned memory, and judges what was written, and where."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property
from typing import Protocol

import torch
from calls import Call, Inputs
from judge import Verdict, score_share, weight_share
from reference import Answers, counted, solve
from storage import DTYPES, SENTINEL, Storage


class Outputs:
    """Memory for all that a call writes: NaN where it must write, SENTINEL where it must not."""

    def __init__(self, inputs: Inputs) -> None:
        call, device = inputs.call, inputs.device
        dtype = DTYPES[call.dtype]
        of_q = "contiguous" if call.layout == "broadcast" else call.layout

        def output(of_keys: bool, heads: int, width: int, layout: str) -> Storage:
            storage = Storage(call.shape(of_keys, heads, width), dtype, device, layout, SENTINEL)
            return storage.put(math.nan, inputs.keys if of_keys else inputs.rows)

        self.inputs, self.storages = inputs, {}
        self.storages["out"] = output(False, call.heads, call.out_width, call.layout_out)
        if call.want_lse or call.backward:
            lse = Storage(call.lse_shape, torch.float32, device, fill=SENTINEL)
            self.storages["lse"] = lse.put(math.nan, call.lse_counting(device))
        if call.backward:
            self.storages["dq"] = output(False, call.heads, call.width, of_q)
            self.storages["dk"] = output(True, call.heads_kv, call.width, of_q)
            self.storages["dv"] = output(True, call.heads_kv, call.out_width, of_q)
            if inputs.bias is not None:
                shape = (*inputs.bias.values.shape[:2], call.rows, call.keys)
                layout = "contiguous" if call.is_aligned else "odd rows"
                # 0 where no sequence reaches, whether it is written there or not.
                self.storages["dbias"] = Storage(shape, dtype, device, layout, SENTINEL).put(0.0)
                for segment in call.segments():
                    rows, keys = segment.rows.stop - segment.rows.start, segment.keys.stop - segment.keys.start
                    places = self["dbias"].values
                    (places if shape[0] == 1 else places[segment.batches])[..., :rows, :keys] = math.nan
            if inputs.sinks is not None:
                self.storages["dsinks"] = Storage((1, 1, call.heads), torch.float32, device, fill=SENTINEL).put(
                    math.nan
                )

    def __getitem__(self, name: str) -> Storage:
        return self.storages[name]

    def get(self, name: str) -> Storage | None:
        return self.storages.get(name)

    def answers(self) -> Answers:
        return {name: counted(self.inputs.call, name, storage.values, True) for name, storage in self.storages.items()}

    def untouched(self, verdict: Verdict) -> None:
        """Nothing was written but what was to be."""
        for name, storage in self.storages.items():
            counting = {"dbias": None, "dsinks": None, "dk": self.inputs.keys, "dv": self.inputs.keys}
            counting["lse"] = self.inputs.call.lse_counting(self.inputs.device)
            rows = counting.get(name, self.inputs.rows)
            verdict.require(
                storage.is_intact(rows), f"{name}: something was written beside it, or to rows that do not count"
            )

    def clone(self) -> Answers:
        return {name: storage.memory.clone() for name, storage in self.storages.items()}


class Kiln(Protocol):
    """What the checks need of a release; tests of the checks put something else in its place."""

    def forward(self, inputs: Inputs, outputs: Outputs, keys: tuple[str, ...], target: str | None) -> None: ...
    def backward(self, inputs: Inputs, outputs: Outputs, keys: tuple[str, ...], target: str | None) -> None: ...
    def dropout_mask(self, inputs: Inputs, target: str | None) -> torch.Tensor: ...


class Expected:
    """A call's tensors, and what may come of them."""

    def __init__(self, call: Call, device: str, kiln: Kiln, target: str | None = None) -> None:
        self.call, self.inputs = call, Inputs(call, device)
        self._kiln, self._target = kiln, target

    # Worked out once they are needed: a call may be refused.
    @cached_property
    def _keep(self) -> torch.Tensor | None:
        return self._kiln.dropout_mask(self.inputs, self._target).bool() if self.call.dropout else None

    @cached_property
    def exact(self) -> Answers:
        return solve(self.call, self.inputs, torch.float64, self._keep)

    @cached_property
    def low(self) -> Answers:
        return solve(self.call, self.inputs, DTYPES[self.call.dtype], self._keep)

    def noise(self, name: str) -> float:
        """See Verdict.compare: the size of what cancels in a gradient."""
        call, inputs = self.call, self.inputs
        if name not in ("dq", "dk", "dbias"):
            return 0.0
        dout, v = (storage.values.nan_to_num().double().norm(dim=3) for storage in (inputs.dout, inputs.v))
        if not dout.numel() or not v.numel():
            return 0.0
        products = dout.max() * v.max()
        if name != "dbias":
            other = (inputs.k if name == "dq" else inputs.q).values.nan_to_num().abs()
            sums = math.sqrt(call.rows * call.heads / call.heads_kv) if name == "dk" else 1.0
            products = products * other.max() * abs(call.scale) * sums
        return products.item()

    def _share(self, name: str) -> float:
        """See Verdict.compare."""
        call, dtype = self.call, DTYPES[self.call.dtype]
        if name == "lse":
            return score_share(call.width, dtype)
        # Weights of rows that are alike are nearly equal, and so rounded alike, by up to half a unit: a quarter to half
        # of eps, of which the quarter is allowed. The reference's scores, rounded before, scatter them.
        is_alike = name == "dv" and call.inputs == "uniform" and dtype != torch.float32
        alike = torch.finfo(dtype).eps / 4 if is_alike else 0.0
        return alike + weight_share(self.exact["lse"], dtype)

    def judge(self, outputs: Outputs) -> Verdict:
        verdict = Verdict()
        for name, got in outputs.answers().items():
            verdict.compare(name, got, self.exact[name], self.low[name], self.noise(name), self._share(name))
        if self.call.has_scale_of_dq:
            verdict.hold_to_scale("dq", outputs.answers()["dq"], self.exact["dq"])
        outputs.untouched(verdict)
        return verdict

    def run(
        self, kiln: Kiln, keys: tuple[str, ...] = (), target: str | None = None, forced_backward: bool = False
    ) -> Verdict:
        """Forward, and backward if the call wants it. `keys` are forced in the forward call, or in the other."""
        outputs = Outputs(self.inputs)
        kiln.forward(self.inputs, outputs, () if forced_backward else keys, target)
        if self.call.backward:
            kiln.backward(self.inputs, outputs, keys if forced_backward else (), target)
        return self.judge(outputs)


DRAWS = (5, 25)


def settled(verdict: Verdict, again: Callable[[int], Verdict]) -> Verdict:
    """A verdict by which only errors are too large, together with those of more draws: again(1), again(2)... All draws
    count, those that failed too, so more of them say more surely what a kernel's errors are beside the reference's."""
    for draws in DRAWS:
        if verdict.errors() and not verdict.faults:
            for number in range(verdict.draws, draws):
                verdict.merge(again(number))
    return verdict


def check(
    call: Call, kiln: Kiln, device: str, target: str | None = None, keys: tuple[str, ...] = (),
    forced_backward: bool = False, expected: Expected | None = None,
) -> Verdict:  # fmt: skip
    """Makes a call, and judges it.

    Args:
        keys, forced_backward: as of Expected.run.
        expected: of this call, if it is there already.
    """
    expected = expected or Expected(call, device, kiln, target)

    def again(number: int) -> Verdict:
        return Expected(call.redrawn(number), device, kiln, target).run(kiln, keys, target, forced_backward)

    return settled(expected.run(kiln, keys, target, forced_backward), again)


def differing(
    call: Call, kiln: Kiln, device: str, target: str | None, keys: tuple[str, ...], forced_backward: bool, runs: int
) -> list[str]:
    """The outputs of which so many equal calls do not give equal bits. `keys` and `forced_backward` are those of
    Expected.run."""
    inputs, first, found = Inputs(call, device), None, dict[str, None]()
    for _ in range(runs):
        outputs = Outputs(inputs)
        kiln.forward(inputs, outputs, () if forced_backward else keys, target)
        if call.backward:
            kiln.backward(inputs, outputs, keys if forced_backward else (), target)
        bits = {name: memory.view(torch.uint8) for name, memory in outputs.clone().items()}
        first = first or bits
        found |= dict.fromkeys(name for name in bits if not torch.equal(bits[name], first[name]))
    return list(found)
