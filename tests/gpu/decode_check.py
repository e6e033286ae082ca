"""Runs a call of attention with a cache, and judges what was written, and where."""

from __future__ import annotations

import math
from typing import Protocol

import torch
from check import settled
from decode_calls import DecodeCall, DecodeInputs, bits
from judge import Verdict, score_share, weight_share
from reference import attend, distances, hidden_from, honest_precision
from storage import DTYPES, SENTINEL, Storage


class Kiln(Protocol):
    """As check.py's: what the check needs of a release."""

    def decode(self, run: DecodeRun, keys: tuple[str, ...], target: str | None) -> None: ...


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, interleaved: bool) -> torch.Tensor:
    """x [..., rows, width] by the angles [rows, half], in x's dtype."""
    half = cos.shape[1]
    turned, rest = x[..., : 2 * half], x[..., 2 * half :]
    pairs = (turned[..., 0::2], turned[..., 1::2]) if interleaved else (turned[..., :half], turned[..., half:])
    first, second = pairs[0] * cos - pairs[1] * sin, pairs[1] * cos + pairs[0] * sin
    turned = torch.stack([first, second], -1).flatten(-2) if interleaved else torch.cat([first, second], -1)
    return torch.cat([turned, rest], -1)


class DecodeRun:
    """A call's inputs, and the caches as they were."""

    def __init__(self, call: DecodeCall, device: str) -> None:
        self.inputs = DecodeInputs(call, device)
        self.before = [cache.clone() for cache in (self.inputs.k_cache, self.inputs.v_cache)]
        dtype = DTYPES[call.dtype]
        shape = self.inputs.q_shape
        self.out = Storage((*shape, call.out_width), dtype, device, self.inputs.out_layout, SENTINEL).put(math.nan)
        self.lse = Storage(shape, torch.float32, device, fill=SENTINEL).put(math.nan) if call.want_lse else None

    def appended(self, which: int, sequence: int, dtype: torch.dtype) -> torch.Tensor:
        """What is appended for a sequence, before it is held: [heads_kv, new_rows, width]."""
        inputs, call = self.inputs, self.inputs.call
        new = (inputs.k_new, inputs.v_new)[which][sequence].to(dtype)
        if call.rotary and which == 0:
            first = call.cached[sequence]
            angles = (t[first : first + call.new_rows].to(dtype) for t in (inputs.cos, inputs.sin))
            new = rotate(new, *angles, call.rotary == "interleaved")
        return new

    def _check_caches(self, verdict: Verdict) -> None:
        inputs, call = self.inputs, self.inputs.call
        dtype = DTYPES[call.dtype]
        for which, (name, cache) in enumerate((("k_cache", inputs.k_cache), ("v_cache", inputs.v_cache))):
            raw, before = bits(cache).clone(), bits(self.before[which])
            scale = (inputs.k_scale, inputs.v_scale)[which]
            for b in range(call.batch if call.new_rows else 0):
                keys = torch.arange(call.cached[b], call.cached[b] + call.new_rows, device=inputs.device)
                pages, slots = inputs.where(b, keys)
                got = inputs.read(cache, b, keys)
                exact, low = self.appended(which, b, torch.float64), self.appended(which, b, dtype)
                if scale is not None:
                    exact = exact / scale.double()[:, None, None]
                    low = (low.float() / scale[:, None, None]).to(cache.dtype)
                if scale is None and not (call.rotary and which == 0):
                    verdict.require(torch.equal(bits(got), bits(low)), f"{name}: what was appended differs")
                else:
                    verdict.compare(name, got.double(), exact, low.double())
                raw[pages, :, slots] = before[pages, :, slots]
            verdict.require(torch.equal(raw, before), f"{name}: something was written beside what was appended")

    def solve(self, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """(out, lse) of the caches as they are, by the formula in `dtype`."""
        inputs, call = self.inputs, self.inputs.call
        out = torch.zeros(*inputs.q_shape, call.out_width, dtype=dtype, device=inputs.device)
        wide = torch.promote_types(dtype, torch.float32)
        lse = torch.zeros(inputs.q_shape, dtype=wide, device=inputs.device)
        for b, (batch, rows) in enumerate(call.queries()):
            q = inputs.q.values[batch, :, rows].to(dtype)
            count, cached = q.shape[1], call.cached[b]
            if call.rotary:
                masked = call.causal or call.left >= 0 or call.right >= 0
                positions = cached + (torch.arange(count) if masked else torch.zeros(count, dtype=torch.long))
                angles = (t[positions.to(t.device)].to(dtype) for t in (inputs.cos, inputs.sin))
                q = rotate(q, *angles, call.rotary == "interleaved")
            total = cached + call.new_rows
            keys = torch.arange(total, device=inputs.device)
            k, v = (inputs.held(cache, b, keys, dtype) for cache in (inputs.k_cache, inputs.v_cache))
            hidden = hidden_from(count, total, call.window, True, q.device, inputs.leftpads[b])
            if inputs.leftpads[b]:
                k, v = k.nan_to_num(), v.nan_to_num()
            addend = None
            if inputs.slopes is not None:
                alibi = -inputs.slopes[b].to(wide)[None, :, None, None] * distances(count, total, q.device)
                addend = alibi.to(dtype)
            more = {"hidden": hidden, "softcap": call.softcap, "sinks": inputs.sinks}
            one, log = attend(q[None], k[None], v[None], call.scale, addend=addend, **more)
            if wide != dtype:  # as of forward's: log-sum-exp is fp32
                addend = None if addend is None else alibi
                _, log = attend(*(t[None].to(wide) for t in (q, k, v)), call.scale, addend=addend, **more)
            out[batch, :, rows], lse[batch, :, rows] = one[0], log[0]
        return out, lse

    def run(self, kiln: Kiln, keys: tuple[str, ...] = (), target: str | None = None) -> Verdict:
        kiln.decode(self, keys, target)
        verdict = Verdict()
        self._check_caches(verdict)
        with honest_precision(), torch.no_grad():
            exact, low = self.solve(torch.float64), self.solve(DTYPES[self.inputs.call.dtype])
        call, dtype = self.inputs.call, DTYPES[self.inputs.call.dtype]
        share = weight_share(exact[1], dtype)
        verdict.compare("out", self.out.values, exact[0], low[0], share=share)
        verdict.require(self.out.is_intact(), "out: something was written beside it")
        if self.lse is not None:
            share = score_share(call.width, dtype)
            verdict.compare("lse", self.lse.values, exact[1], low[1], share=share)
            verdict.require(self.lse.is_intact(), "lse: something was written beside it")
        return verdict


def check_decode(
    call: DecodeCall, kiln: Kiln, device: str, target: str | None = None, keys: tuple[str, ...] = ()
) -> Verdict:
    """check of check.py, for a call with a cache."""

    def again(number: int) -> Verdict:
        return DecodeRun(call.redrawn(number), device).run(kiln, keys, target)

    return settled(DecodeRun(call, device).run(kiln, keys, target), again)


def decode_differing(
    call: DecodeCall, kiln: Kiln, device: str, target: str | None, keys: tuple[str, ...], runs: int
) -> list[str]:
    """differing of check.py, for a call with a cache: what it appends counts too."""
    first, found = None, dict[str, None]()
    for _ in range(runs):
        run = DecodeRun(call, device)
        kiln.decode(run, keys, target)
        written = {"out": run.out.memory, "k_cache": run.inputs.k_cache, "v_cache": run.inputs.v_cache}
        written |= {} if run.lse is None else {"lse": run.lse.memory}
        whole = {name: bits(tensor).clone() for name, tensor in written.items()}
        first = first or whole
        found |= dict.fromkeys(name for name in whole if not torch.equal(whole[name], first[name]))
    return list(found)
