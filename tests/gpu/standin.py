"""What stands in for a release where there is no GPU: FlashAttention-2's steps and roundings in plain torch. With it
the checks themselves are checked: that they let honest rounding pass, and nothing else."""

from __future__ import annotations

import importlib.util
import math
import sys
from pathlib import Path

import numpy as np
import torch
from calls import Inputs
from check import Outputs
from decode_calls import bits
from decode_check import DecodeRun
from reference import distances, hidden_from
from storage import DTYPES

_TESTS = Path(__file__).resolve().parents[1]
# What the definition imports: a process of pool.py has the tests' folders alone.
sys.path.append(str(_TESTS.parent / "v3python"))
_spec = importlib.util.spec_from_file_location("kernels_attention", _TESTS / "kernels/attention.py")
definition = importlib.util.module_from_spec(_spec)
sys.modules[_spec.name] = definition  # dataclasses look for it there
_spec.loader.exec_module(definition)


def kept(seed: int, offset: int, dropout: float, shape: tuple[int, int, int, int]) -> np.ndarray:
    """[batch, heads, rows, keys]: the definition of dropout's mask, by the kernels' own reference."""
    b, h, rows, keys = shape
    nothing = np.zeros((1, h, 1, 1), np.float32)
    rate = float(np.float32(dropout))  # as it travels in the parameters
    call = definition.Call(nothing, nothing, nothing, 1.0, dropout=rate, seed=seed, offset=offset)
    planes = [definition.kept(call, plane, rows, keys) for plane in range(b * h)]
    return np.stack(planes).reshape(shape)


class Standin:
    """Attributes:
    spoil(name, tensor): may make an output wrong before it is written.
    balances: what rounding adds to sums of ds is taken from dq, as the kernels do and FlashAttention-2 does not.
    """

    def __init__(self, spoil=lambda name, values: values, balances: bool = True) -> None:
        self.spoil, self.balances = spoil, balances

    def dropout_mask(self, inputs: Inputs, target: str | None) -> torch.Tensor:
        call = inputs.call
        shape = (call.batch, call.heads, call.rows, call.keys)
        return torch.from_numpy(kept(call.seed, call.offset, call.dropout, shape)).to(inputs.device)

    def _parts(self, inputs: Inputs, outputs: Outputs):
        """Of each sequence: its place, q, k, v, scores, what their soft cap squeezed, what dropout multiplies by."""
        call = inputs.call
        group = call.heads // call.heads_kv
        factors = self.dropout_mask(inputs, None).float() / (1 - call.dropout) if call.dropout else None
        for segment in call.segments():
            q, k, v = (t.values[place].float() for t, place in
                       ((inputs.q, segment.q), (inputs.k, segment.k), (inputs.v, segment.k)))  # fmt: skip
            k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
            rows, keys = q.shape[2], k.shape[2]
            scores = call.scale * (q @ k.mT)
            squeezed = torch.zeros_like(scores)
            if call.softcap:
                squeezed = torch.tanh(scores / call.softcap)
                scores = call.softcap * squeezed
            if inputs.bias is not None:
                bias = inputs.bias.values.float()
                bias = bias if bias.shape[0] == 1 else bias[segment.batches]
                scores = scores + bias.expand(*bias.shape[:2], call.rows, call.keys)[..., :rows, :keys]
            if inputs.slopes is not None:
                scores = scores - inputs.slopes[segment.batches, :, None, None] * distances(rows, keys, q.device)
            hidden = hidden_from(rows, keys, call.window, call.bottom_right, q.device)
            if hidden is not None:
                scores = scores.masked_fill(hidden, -math.inf)
            factor = 1.0 if factors is None else factors[segment.batches, :, :rows, :keys]
            yield segment, q, k, v, scores, squeezed, factor

    def forward(self, inputs: Inputs, outputs: Outputs, keys=(), target=None) -> None:
        call, dtype = inputs.call, DTYPES[inputs.call.dtype]
        out, lse = torch.zeros(outputs["out"].values.shape), torch.zeros(call.lse_shape)
        for segment, _, _, v, scores, _, factor in self._parts(inputs, outputs):
            sink = torch.full((1, call.heads, 1, 1), -math.inf)
            if inputs.sinks is not None:
                sink = inputs.sinks[None, :, None, None]
            best = torch.cat([scores, sink.expand(*scores.shape[:3], 1)], 3).amax(3, keepdim=True)
            shift = torch.where(best == -math.inf, 0.0, best)
            weights = (scores - shift).exp()
            total = weights.sum(3, keepdim=True) + (sink - shift).exp()
            weights = (weights * factor).to(dtype).float()
            out[segment.q] = (weights @ v) / torch.where(total == 0, 1.0, total)
            lse[call.lse_place(segment)] = (shift + total.log()).squeeze(3)
        outputs["out"].put(self.spoil("out", out).to(dtype), inputs.rows)
        if outputs.get("lse") is not None:
            outputs["lse"].put(self.spoil("lse", lse), call.lse_counting(inputs.device))

    def backward(self, inputs: Inputs, outputs: Outputs, keys=(), target=None) -> None:
        call, dtype = inputs.call, DTYPES[inputs.call.dtype]
        names = [name for name in ("dq", "dk", "dv", "dbias", "dsinks") if outputs.get(name) is not None]
        sums = {name: torch.zeros(outputs[name].values.shape) for name in names}
        for segment, q, k, v, scores, squeezed, factor in self._parts(inputs, outputs):
            dout, out = inputs.dout.values[segment.q].float(), outputs["out"].values[segment.q].float()
            lse = outputs["lse"].values[call.lse_place(segment)]
            lse = torch.where(lse == -math.inf, math.inf, lse)[..., None]
            delta = (out * dout).sum(3, keepdim=True)
            weights = (scores - lse).exp()
            ds = weights * (dout @ v.mT * factor - delta)
            shape = (q.shape[0], call.heads_kv, call.heads // call.heads_kv)
            if "dbias" in sums:
                total = sums["dbias"]
                part = ds if total.shape[1] > 1 else ds.sum(1, keepdim=True)
                part = part if total.shape[0] > 1 else part.sum(0, keepdim=True)
                where = total if total.shape[0] == 1 else total[segment.batches]
                where[..., : q.shape[2], : k.shape[2]] += part
            if "dsinks" in sums:
                share = (inputs.sinks[None, :, None, None] - lse).exp() * delta
                sums["dsinks"][0, 0] -= share.sum((0, 2, 3))
            ds = (ds * (1 - squeezed**2)).to(dtype).float()
            dq = ds @ k
            if self.balances and not call.sinks and not call.softcap and k.shape[2]:  # else they sum to something
                dq = dq - ds.sum(3, keepdim=True) * k.mean(2, keepdim=True)
            sums["dq"][segment.q] = call.scale * dq
            grads = {"dk": call.scale * (ds.mT @ q), "dv": (weights * factor).to(dtype).float().mT @ dout}
            for name, grad in grads.items():
                sums[name][segment.k] = grad.reshape(*shape, *grad.shape[2:]).sum(2)
        for name, values in sums.items():
            storage = outputs[name]
            rows = None if name in ("dbias", "dsinks") else inputs.rows if name == "dq" else inputs.keys
            storage.put(self.spoil(name, values).to(storage.memory.dtype), rows)

    def decode(self, run: DecodeRun, keys=(), target=None) -> None:
        inputs, call = run.inputs, run.inputs.call
        for which, cache in enumerate((inputs.k_cache, inputs.v_cache)):
            scale = (inputs.k_scale, inputs.v_scale)[which]
            for b in range(call.batch if call.new_rows else 0):
                new = run.appended(which, b, torch.float32)
                new = new if scale is None else new / scale[:, None, None]
                places = inputs.where(b, torch.arange(call.cached[b], call.cached[b] + call.new_rows))
                bits(cache)[places[0], :, places[1]] = bits(new.to(cache.dtype).transpose(0, 1).contiguous())
        out, lse = run.solve(torch.float32)
        run.out.put(self.spoil("out", out).to(DTYPES[call.dtype]))
        if run.lse is not None:
            run.lse.put(self.spoil("lse", lse))
