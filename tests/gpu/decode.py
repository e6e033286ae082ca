"""Calls of attention with a cache: their tensors, what must come of them, and whether it did."""

from __future__ import annotations

import math
from dataclasses import dataclass

import ffi
import torch
from calls import AnyCall
from check import settled
from judge import Verdict
from reference import attend, distances, hidden_from, honest_precision
from storage import DTYPES, SENTINEL, Storage


@dataclass(frozen=True)
class DecodeCall(AnyCall):
    """What is asked, and the shapes.

    Attributes:
        rows: of each sequence; with lengths_q the most.
        lengths_q: given by cu_seqlens_q.
        used: keys in the cache of each sequence, before this call; empty: all of `keys`.
        keys: how many the cache has room for.
        page_size: 0 for a contiguous cache.
        new_rows: appended by this call.
        rotary: "", "half" or "interleaved", of rotary_dim elements.
        fp8: what is cached is fp8 with scales.
        cache_batch: sequences have other batches of the cache than their own.
        leftpad: some keys at the begin do not count.
    """

    dtype: str = "bf16"
    batch: int = 2
    heads: int = 4
    heads_kv: int = 2
    rows: int = 1
    lengths_q: tuple[int, ...] = ()
    keys: int = 300
    used: tuple[int, ...] = ()
    width: int = 64
    width_v: int = 0
    page_size: int = 0
    new_rows: int = 0
    rotary: str = ""
    rotary_dim: int = 32
    fp8: bool = False
    cache_batch: bool = False
    leftpad: bool = False
    causal: bool = False
    left: int = -1
    right: int = -1
    softcap: float = 0.0
    sinks: bool = False
    alibi: bool = False
    splits: int = 0
    sm_scale: float = 0.0
    layout: str = "contiguous"
    want_lse: bool = True
    number: int = 0

    @property
    def cached(self) -> tuple[int, ...]:
        return self.used or (self.keys,) * self.batch

    def queries(self) -> list[tuple[int, slice]]:
        """The batch of q that each sequence lies in, and its rows."""
        if not self.lengths_q:
            return [(b, slice(0, self.rows)) for b in range(self.batch)]
        ends = torch.tensor(self.lengths_q).cumsum(0).tolist()
        return [(0, slice(end - length, end)) for end, length in zip(ends, self.lengths_q)]


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, interleaved: bool) -> torch.Tensor:
    """x [..., rows, width] by the angles [rows, half], in x's dtype."""
    half = cos.shape[1]
    turned, rest = x[..., : 2 * half], x[..., 2 * half :]
    pairs = (turned[..., 0::2], turned[..., 1::2]) if interleaved else (turned[..., :half], turned[..., half:])
    first, second = pairs[0] * cos - pairs[1] * sin, pairs[1] * cos + pairs[0] * sin
    turned = torch.stack([first, second], -1).flatten(-2) if interleaved else torch.cat([first, second], -1)
    return torch.cat([turned, rest], -1)


class DecodeInputs:
    """The tensors of a call; the cache is NaN wherever no key lies."""

    def __init__(self, call: DecodeCall, device: str) -> None:
        self.call, self.device = call, device
        generator = torch.Generator(device).manual_seed(call.number * 7919 + 23)
        dtype = DTYPES[call.dtype]

        def normal(*shape: int) -> torch.Tensor:
            return torch.randn(shape, generator=generator, device=device)

        self.q_shape = (1, call.heads, sum(call.lengths_q)) if call.lengths_q else (call.batch, call.heads, call.rows)
        of_q = "contiguous" if call.layout == "broadcast" else call.layout
        self.q = Storage((*self.q_shape, call.width), dtype, device, of_q).put(
            normal(*self.q_shape, call.width).to(dtype)
        )
        self.out_layout = of_q

        # Where each sequence's keys lie: batches of the cache, or pages in any order. The last is nobody's: NaN, and
        # what the table has where it is not to be read.
        self.table = self.cache_batch = None
        size = call.page_size or call.keys
        count = -(-call.keys // size) if call.page_size else 1
        pages = call.batch * count + 1
        order = torch.randperm(pages - 1, generator=generator, device=device)
        if not (call.page_size or call.cache_batch):
            order = torch.arange(pages - 1, device=device)
        self.places = order.view(call.batch, count)
        if call.page_size:
            totals = torch.tensor(call.cached, device=device) + call.new_rows
            needed = torch.arange(count, device=device)[None, :] * size < totals[:, None]
            self.table = torch.where(needed, self.places, pages - 1).int()
        elif call.cache_batch:
            self.cache_batch = order.int()
        self.size, pages = size, pages if call.page_size or call.cache_batch else pages - 1

        held = torch.float8_e4m3fn if call.fp8 else dtype
        self.k_scale = self.v_scale = None
        if call.fp8:
            self.k_scale, self.v_scale = (
                0.5 + torch.rand(call.heads_kv, generator=generator, device=device) for _ in "kv"
            )
        self.k_cache, self.v_cache = (
            torch.full((pages, call.heads_kv, size, width), math.nan, device=device).to(held)
            for width in (call.width, call.out_width)
        )
        if call.layout == "rows":  # keys before heads, as flash-attention has them
            self.k_cache, self.v_cache = (
                t.transpose(1, 2).contiguous().transpose(1, 2) for t in (self.k_cache, self.v_cache)
            )
        self.leftpads = tuple(min(5 + b, n) for b, n in enumerate(call.cached)) if call.leftpad else (0,) * call.batch
        for b, keys in enumerate(call.cached):
            seen = torch.arange(self.leftpads[b], keys, device=device)
            pages_of, slots = self.where(b, seen)
            for cache in (self.k_cache, self.v_cache):
                values = normal(len(seen), call.heads_kv, cache.shape[3]).to(held)
                self._raw(cache)[pages_of, :, slots] = self._raw(values)
        self.k_new = self.v_new = self.cos = self.sin = None
        if call.new_rows:
            self.k_new, self.v_new = (
                normal(call.batch, call.heads_kv, call.new_rows, width).to(dtype)
                for width in (call.width, call.out_width)
            )
        if call.rotary:
            angles = torch.rand(call.keys + call.rows, call.rotary_dim // 2, generator=generator, device=device) * 6.3
            self.cos, self.sin = angles.cos().to(dtype), angles.sin().to(dtype)
        self.sinks = normal(call.heads) * 2 if call.sinks else None
        self.slopes = (2.0 ** -torch.arange(1, 1 + call.heads, device=device).float()).expand(call.batch, call.heads)
        self.slopes = self.slopes if call.alibi else None

        def integers(values: tuple[int, ...] | list[int]) -> torch.Tensor | None:
            return torch.tensor(values, dtype=torch.int32, device=device) if values else None

        self.used = integers(call.used)
        self.leftpad = integers(self.leftpads) if call.leftpad else None
        self.cu_q = integers([0, *torch.tensor(call.lengths_q).cumsum(0).tolist()]) if call.lengths_q else None

    @staticmethod
    def _raw(tensor: torch.Tensor) -> torch.Tensor:
        """Bits: fp8 has few operations, and NaN is to be equal to itself."""
        return tensor.view({1: torch.uint8, 2: torch.int16, 4: torch.int32}[tensor.element_size()])

    def where(self, sequence: int, keys: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The page, or the batch, of each of a sequence's keys, and its row there."""
        return self.places[sequence, keys // self.size], keys % self.size

    def read(self, cache: torch.Tensor, sequence: int, keys: torch.Tensor) -> torch.Tensor:
        """[heads_kv, keys, width] of a sequence's cache, as it is held."""
        pages, slots = self.where(sequence, keys)
        return self._raw(cache)[pages, :, slots].view(cache.dtype).transpose(0, 1)

    def held(self, cache: torch.Tensor, sequence: int, keys: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """The same, as what it stands for, in `dtype`."""
        values = self.read(cache, sequence, keys).to(dtype)
        scale = self.k_scale if cache is self.k_cache else self.v_scale
        return values if scale is None else values * scale.to(dtype)[:, None, None]


class DecodeRun:
    """A call's inputs, and the caches as they were."""

    def __init__(self, call: DecodeCall, device: str) -> None:
        self.inputs = DecodeInputs(call, device)
        self.before = [cache.clone() for cache in (self.inputs.k_cache, self.inputs.v_cache)]
        dtype = DTYPES[call.dtype]
        shape = self.inputs.q_shape
        self.out = Storage((*shape, call.out_width), dtype, device, self.inputs.out_layout, SENTINEL).put(math.nan)
        self.lse = Storage(shape, torch.float32, device, fill=SENTINEL).put(math.nan) if call.want_lse else None

    def _new(self, which: int, sequence: int, dtype: torch.dtype) -> torch.Tensor:
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
            raw, before = inputs._raw(cache).clone(), inputs._raw(self.before[which])
            scale = (inputs.k_scale, inputs.v_scale)[which]
            for b in range(call.batch if call.new_rows else 0):
                keys = torch.arange(call.cached[b], call.cached[b] + call.new_rows, device=inputs.device)
                pages, slots = inputs.where(b, keys)
                got = inputs.read(cache, b, keys)
                exact, low = self._new(which, b, torch.float64), self._new(which, b, dtype)
                if scale is not None:
                    exact = exact / scale.double()[:, None, None]
                    low = (low.float() / scale[:, None, None]).to(cache.dtype)
                if scale is None and not (call.rotary and which == 0):
                    verdict.require(
                        torch.equal(inputs._raw(got), inputs._raw(low)), f"{name}: what was appended differs"
                    )
                else:
                    verdict.compare(name, got.double(), exact, low.double())
                raw[pages, :, slots] = before[pages, :, slots]
            verdict.require(torch.equal(raw, before), f"{name}: something was written beside what was appended")

    def _solve(self, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
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

    def run(self, kiln, keys: tuple[str, ...] = (), target: str | None = None) -> Verdict:
        kiln_decode(kiln, self, keys, target)
        verdict = Verdict()
        self._check_caches(verdict)
        with honest_precision(), torch.no_grad():
            exact, low = self._solve(torch.float64), self._solve(DTYPES[self.inputs.call.dtype])
        verdict.compare("out", self.out.values, exact[0], low[0])
        verdict.require(self.out.is_intact(), "out: something was written beside it")
        if self.lse is not None:
            verdict.compare("lse", self.lse.values, exact[1], low[1])
            verdict.require(self.lse.is_intact(), "lse: something was written beside it")
        return verdict


def kiln_decode(kiln, run: DecodeRun, keys: tuple[str, ...], target: str | None) -> None:
    inputs, call = run.inputs, run.inputs.call
    if not hasattr(kiln, "enqueue"):
        kiln.decode(run)
        return
    params = ffi.AttnDecode(
        causal=int(call.causal), rotary_interleaved=int(call.rotary == "interleaved"), softcap=call.softcap,
        sm_scale=call.sm_scale, splits=call.splits, window_left=call.left, window_right=call.right,
        max_seqlen_q=max(call.lengths_q, default=0),
    )  # fmt: skip
    tensors = {
        "q": inputs.q, "k_cache": inputs.k_cache, "v_cache": inputs.v_cache, "out": run.out, "lse": run.lse,
        "k_new": inputs.k_new, "v_new": inputs.v_new, "seqused_k": inputs.used, "cu_seqlens_q": inputs.cu_q,
        "block_table": inputs.table, "cache_batch": inputs.cache_batch, "leftpad": inputs.leftpad,
        "rotary_cos": inputs.cos, "rotary_sin": inputs.sin, "k_scale": inputs.k_scale, "v_scale": inputs.v_scale,
        "sinks": inputs.sinks, "alibi_slopes": inputs.slopes,
    }  # fmt: skip
    workspace = kiln.enqueue("kiln_attn_decode", params, tensors, keys=keys, target=target)
    kiln._check_workspace(workspace, "kiln_attn_decode")


def check_decode(call: DecodeCall, kiln, device: str, target: str | None = None, keys: tuple[str, ...] = ()) -> Verdict:
    def again(number: int) -> Verdict:
        return DecodeRun(call.redrawn(number), device).run(kiln, keys, target)

    return settled(DecodeRun(call, device).run(kiln, keys, target), again)
