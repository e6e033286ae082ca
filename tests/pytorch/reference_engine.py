"""An engine for kiln.torch that is the definition of attention and nothing else: PyTorch's own operations in float64,
on any device, one sequence after another. What stands above an engine (autograd, the flash-attention functions,
Transformers) is tested with it where there is no GPU; its dropout draws other numbers than the kernels'."""

from __future__ import annotations

import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch
from torch import Tensor

from kiln.layout import like

WIDE = torch.float64


@dataclass(frozen=True)
class Scores:
    """What makes scores of products, for all sequences of a call."""

    scale: float
    softcap: float = 0.0
    window: tuple[int, int] = (-1, -1)
    bottom_right: bool = False
    bias: Tensor | None = None
    alibi_slopes: Tensor | None = None  # [heads] or [batch, heads]
    sinks: Tensor | None = None
    keep: Tensor | None = None  # [batch, heads, rows, keys], true where a weight is kept
    dropout: float = 0.0

    def attend(self, q: Tensor, k: Tensor, v: Tensor, batch: int, first_key: int = 0) -> tuple[Tensor, Tensor]:
        """One sequence: q [heads, rows, d], k and v [heads_kv, keys, d], keys before first_key hidden; (out, lse)."""
        group = q.shape[0] // k.shape[0]
        k, v = k.repeat_interleave(group, 0), v.repeat_interleave(group, 0)
        rows, keys = q.shape[1], k.shape[1]
        scores = self.scale * (q @ k.mT)
        if self.softcap:
            scores = self.softcap * torch.tanh(scores / self.softcap)
        if self.bias is not None:
            scores = scores + self.bias[batch if self.bias.shape[0] > 1 else 0, :, :rows, :keys]
        i = torch.arange(rows, device=q.device)[:, None]
        j = torch.arange(keys, device=q.device)[None, :]
        if self.alibi_slopes is not None:
            slopes = self.alibi_slopes if self.alibi_slopes.dim() == 1 else self.alibi_slopes[batch]
            scores = scores - slopes[:, None, None] * (i + keys - rows - j).abs()
        i = i + (keys - rows if self.bottom_right else 0)
        hidden = (j < first_key) | torch.zeros_like(i, dtype=torch.bool)
        left, right = self.window
        if left >= 0:
            hidden = hidden | (j < i - left)
        if right >= 0:
            hidden = hidden | (j > i + right)
        scores = scores.masked_fill(hidden, -math.inf)
        if self.sinks is not None:
            scores = torch.cat([scores, self.sinks[:, None, None].expand(-1, rows, 1)], 2)
        blind = (scores == -math.inf).all(2, keepdim=True)
        lse = scores.masked_fill(blind, 0.0).logsumexp(2).masked_fill(blind.squeeze(2), -math.inf)
        weights = scores.masked_fill(blind, 0.0).softmax(2).masked_fill(blind, 0.0)[..., :keys]
        if self.keep is not None:
            weights = torch.where(self.keep[batch, :, :rows, :keys], weights / (1 - self.dropout), 0.0)
        return weights @ v, lse


class ReferenceEngine:
    """See kiln.torch.native for the four functions."""

    name = "reference"
    devices = frozenset({"cpu", "cuda"})

    def attn_fwd(self, q: Tensor, k: Tensor, v: Tensor, *options, **more):
        given = {**dict(zip((*_OPTIONS, "return_lse"), options)), **more}
        return_lse = given.pop("return_lse", False)
        given.pop("for_backward", None)
        call = _Call(q, k, v, **given)
        with torch.no_grad():
            found, lse = call.run(*(_wide(x) for x in (q, k, v, call.bias, call.sinks)))
        out = like(q, v.shape[-1], call.rows_first)
        return out.copy_(found), lse.float() if return_lse else None

    def attn_bwd(self, dout, q, k, v, out, lse, *options, **more):
        given = {**dict(zip((*_OPTIONS, "need_dbias", "need_dsinks", "deterministic"), options)), **more}
        given.pop("deterministic", None)
        wanted = (given.pop("need_dbias", False), given.pop("need_dsinks", False))
        # An operator's kernel runs beneath autograd, but in its own thread alone. Gradients of a GPU's tensors would be
        # worked out on the thread of that GPU, which is the one that waits here; so the CPU works them out.
        given = {name: x.cpu() if isinstance(x, Tensor) else x for name, x in given.items()}
        call = _Call(q.cpu(), k.cpu(), v.cpu(), **given)
        inputs = (q.cpu(), k.cpu(), v.cpu(), call.bias, call.sinks)
        with ThreadPoolExecutor(1) as thread:
            gradients = thread.submit(call.gradients, inputs, dout.cpu()).result()
        dense = (like(x, x.shape[-1], call.rows_first).copy_(gradient) for x, gradient in zip((q, k, v), gradients))
        extras = (gradient.to(q.device) if is_wanted else None for gradient, is_wanted in zip(gradients[3:], wanted))
        return *dense, *extras

    def attn_decode(
        self, q, k_cache, v_cache, out, k_new=None, v_new=None, seqused_k=None, cu_seqlens_q=None, block_table=None,
        cache_batch=None, leftpad=None, rotary_cos=None, rotary_sin=None, k_scale=None, v_scale=None, sinks=None,
        alibi_slopes=None, max_seqlen_q=0, max_seqlen_k=0, window_left=-1, window_right=-1, splits=0, scale=0.0,
        softcap=0.0, causal=False, rotary_interleaved=False, rows_first=False, return_lse=False,
        batch_invariant=False,
    ):  # fmt: skip
        rows_of = [x.transpose(1, 2) if x is not None and rows_first else x for x in (k_cache, v_cache, k_new, v_new)]
        k_all, v_all, k_more, v_more = rows_of
        queries, outs = _heads_first(q, rows_first), _heads_first(out, rows_first)
        batch = _length(cu_seqlens_q, q.shape[0] + 1) - 1
        scores = Scores(
            scale or 1 / math.sqrt(q.shape[-1]), softcap, (window_left, 0 if causal else window_right), True, None,
            _wide(alibi_slopes), _wide(sinks),
        )  # fmt: skip
        lse = torch.full(queries.shape[:3], -math.inf, device=q.device)
        for b, (place, begin, rows) in enumerate(_places(queries, cu_seqlens_q, None, batch)):
            views = [_cached(x, block_table, cache_batch, b) for x in (k_all, v_all)]
            used = views[0].shape[1] if seqused_k is None else int(seqused_k[b])
            turn = _Turn.of(rotary_cos, rotary_sin, rotary_interleaved)
            if k_more is not None:
                count = min(k_more.shape[2], views[0].shape[1] - used)
                new = (turn(k_more[b], used + torch.arange(k_more.shape[2], device=q.device)), v_more[b])
                for view, x, factor in zip(views, new, (k_scale, v_scale)):
                    _store(view, x[:, :count], used, factor)
            keys = used + (0 if k_more is None else count)
            k, v = (_wide(view.read(keys)) for view in views)
            k = k if k_scale is None else k * _wide(k_scale)[:, None, None]
            v = v if v_scale is None else v * _wide(v_scale)[:, None, None]
            here = _wide(queries[place, :, begin : begin + rows])
            masked = causal or window_left >= 0 or window_right >= 0
            here = turn(here, used + torch.arange(rows, device=q.device) * masked)
            first = 0 if leftpad is None else int(leftpad[b])
            found, log = scores.attend(here, k, v, b, first)
            outs[place, :, begin : begin + rows] = found.to(out.dtype)
            lse[place, :, begin : begin + rows] = log.float()
        return (lse[0] if q.dim() == 3 else lse) if return_lse else None

    def run(self, operation, *arguments):
        return getattr(self, f"_{operation}")(*arguments)

    def _attn_fwd_fp8(
        self, q, k, v, q_descale=None, k_descale=None, v_descale=None, sinks=None, cu_seqlens_q=None, cu_seqlens_k=None,
        seqused_q=None, seqused_k=None, max_seqlen_q=0, max_seqlen_k=0, scale=0.0, causal=False, window_left=-1,
        window_right=-1, bottom_right=False, dtype=torch.uint8,
    ):  # fmt: skip
        assert q.dtype == k.dtype == v.dtype == torch.float8_e4m3fn
        batch = _length(cu_seqlens_q, q.shape[0] + 1) - 1
        scores = Scores(
            scale or 1 / math.sqrt(q.shape[-1]), window=(window_left, 0 if causal else window_right),
            bottom_right=bottom_right, sinks=_wide(sinks),
        )  # fmt: skip
        out = torch.zeros(*q.shape[:3], v.shape[3], dtype=dtype, device=q.device)
        lse = torch.full(q.shape[:3], -math.inf, device=q.device)
        group = q.shape[1] // k.shape[1]
        places = zip(_places(q, cu_seqlens_q, seqused_q, batch), _places(k, cu_seqlens_k, seqused_k, batch))
        for b, ((place, begin, rows), (place_k, begin_k, keys)) in enumerate(places):
            factors = [1.0 if x is None else _wide(x[b])[:, None, None] for x in (q_descale, k_descale, v_descale)]
            here = _wide(q[place, :, begin : begin + rows]).unflatten(0, (-1, group))
            here = (here.transpose(0, 1) * factors[0]).transpose(0, 1).flatten(0, 1)
            inside = slice(begin_k, begin_k + keys)
            found, log = scores.attend(
                here, _wide(k[place_k, :, inside]) * factors[1], _wide(v[place_k, :, inside]) * factors[2], b
            )
            out[place, :, begin : begin + rows] = found.to(dtype)
            lse[place, :, begin : begin + rows] = log.float()
        return out, lse

    def _dropout_mask(self, rng, batch, heads, rows, keys, dropout, dtype=torch.uint8):
        kept = _kept(rng, batch, heads, rows, keys, dropout)
        return kept.to(dtype) if dtype == torch.uint8 else kept.to(dtype) * 2 - 1


_OPTIONS = (
    "bias", "alibi_slopes", "sinks", "cu_seqlens_q", "cu_seqlens_k", "seqused_q", "seqused_k", "rng", "max_seqlen_q",
    "max_seqlen_k", "scale", "softcap", "dropout", "causal", "window_left", "window_right", "bottom_right",
    "rows_first",
)  # fmt: skip


class _Call:
    """The options of a forward or backward call."""

    def __init__(
        self, q, k, v, bias=None, alibi_slopes=None, sinks=None, cu_seqlens_q=None, cu_seqlens_k=None, seqused_q=None,
        seqused_k=None, rng=None, max_seqlen_q=0, max_seqlen_k=0, scale=0.0, softcap=0.0, dropout=0.0, causal=False,
        window_left=-1, window_right=-1, bottom_right=False, rows_first=False,
    ):  # fmt: skip
        self.bias, self.sinks, self.rows_first = bias, sinks, rows_first
        self.q_sequences, self.k_sequences = (cu_seqlens_q, seqused_q), (cu_seqlens_k, seqused_k)
        cu = cu_seqlens_q if cu_seqlens_q is not None else cu_seqlens_k
        self.batch = _length(cu, q.shape[0] + 1) - 1
        keep = None
        if dropout:
            rows, keys = (x.shape[-3 if rows_first else -2] for x in (q, k))
            keep = _kept(rng, self.batch, q.shape[-2 if rows_first else -3], rows, keys, dropout)
        self.scores = lambda wide_bias, wide_sinks: Scores(
            scale or 1 / math.sqrt(q.shape[-1]), softcap, (window_left, 0 if causal else window_right), bottom_right,
            wide_bias, _wide(alibi_slopes), wide_sinks, keep, dropout,
        )  # fmt: skip

    def run(self, q, k, v, bias, sinks) -> tuple[Tensor, Tensor]:
        """Out and lse, in q's rank and layout; differentiable."""
        scores = self.scores(bias, sinks)
        rank = q.dim()
        q, k, v = (_heads_first(x, self.rows_first) for x in (q, k, v))
        out = q.new_zeros(*q.shape[:3], v.shape[3])
        lse = q.new_zeros(q.shape[:3])
        sequences = zip(_places(q, *self.q_sequences, self.batch), _places(k, *self.k_sequences, self.batch))
        for b, ((place, begin, rows), (place_k, begin_k, keys)) in enumerate(sequences):
            here = (x[place_k, :, begin_k : begin_k + keys] for x in (k, v))
            found, log = scores.attend(q[place, :, begin : begin + rows], *here, b)
            out[place, :, begin : begin + rows] = found
            lse[place, :, begin : begin + rows] = log.detach()
        out = out.transpose(1, 2) if self.rows_first else out
        return (out[0], lse[0]) if rank == 3 else (out, lse)

    def gradients(self, inputs: tuple[Tensor | None, ...], dout: Tensor) -> list[Tensor | None]:
        """Of q, k, v, bias and sinks, each in its own dtype."""
        leaves = [None if x is None else x.detach().to(WIDE).requires_grad_() for x in inputs]
        out, _ = self.run(*leaves)
        there = [x for x in leaves if x is not None]
        found = iter(torch.autograd.grad(out, there, dout.detach().to(WIDE), allow_unused=True))
        results = []
        for x in inputs:
            gradient = None if x is None else next(found)
            results.append(torch.zeros_like(x) if x is not None and gradient is None else gradient)
        return [None if x is None else gradient.to(x.dtype) for x, gradient in zip(inputs, results)]


class _View:
    """The keys or values of one sequence in a cache: [heads, room, d], also where they lie in pages."""

    def __init__(self, cache: Tensor, pages: Tensor | None, batch: int) -> None:
        self.cache, self.pages, self.batch = cache, pages, batch
        room = cache.shape[2] if pages is None else cache.shape[2] * pages.numel()
        self.shape = (cache.shape[1], room, cache.shape[3])

    def place(self, position: int) -> tuple[int, int]:
        if self.pages is None:
            return self.batch, position
        return int(self.pages[position // self.cache.shape[2]]), position % self.cache.shape[2]

    def read(self, keys: int) -> Tensor:
        rows = [self.cache[page, :, row] for page, row in map(self.place, range(keys))]
        return torch.stack(rows, 1) if rows else self.cache.new_zeros(self.shape[0], 0, self.shape[2])


def _cached(cache: Tensor, block_table: Tensor | None, cache_batch: Tensor | None, b: int) -> _View:
    pages = None if block_table is None else block_table[b]
    return _View(cache, pages, b if cache_batch is None else int(cache_batch[b]))


def _store(view: _View, rows: Tensor, begin: int, factor: Tensor | None) -> None:
    rows = rows if factor is None else rows / factor[:, None, None].to(rows.dtype)
    for i in range(rows.shape[1]):
        page, row = view.place(begin + i)
        view.cache[page, :, row] = rows[:, i].to(view.cache.dtype)


@dataclass(frozen=True)
class _Turn:
    """Rotary embedding; without tables, none."""

    cos: Tensor | None
    sin: Tensor | None
    interleaved: bool

    @classmethod
    def of(cls, cos: Tensor | None, sin: Tensor | None, interleaved: bool) -> _Turn:
        return cls(_wide(cos), _wide(sin), interleaved)

    def __call__(self, x: Tensor, positions: Tensor) -> Tensor:
        """x [heads, rows, d], each row turned by its position's angles, in x's dtype."""
        if self.cos is None:
            return x
        positions = positions.clamp(max=self.cos.shape[0] - 1)
        cos, sin = self.cos[positions], self.sin[positions]
        half = cos.shape[1]
        turned, rest = x[..., : 2 * half].to(WIDE), x[..., 2 * half :]
        if self.interleaved:
            a, b = turned[..., 0::2], turned[..., 1::2]
            pairs = torch.stack([a * cos - b * sin, b * cos + a * sin], -1).flatten(-2)
        else:
            a, b = turned[..., :half], turned[..., half:]
            pairs = torch.cat([a * cos - b * sin, b * cos + a * sin], -1)
        return torch.cat([pairs.to(x.dtype), rest], -1)


def _wide(x: Tensor | None) -> Tensor | None:
    return None if x is None else x.to(WIDE)


def _length(x: Tensor | None, otherwise: int) -> int:
    return otherwise if x is None else x.numel()


def _heads_first(x: Tensor, rows_first: bool) -> Tensor:
    """[batch, heads, rows, d] of any rank and layout; a view."""
    x = x.transpose(-3, -2) if rows_first else x
    return x if x.dim() == 4 else x[None]


def _places(x: Tensor, cu: Tensor | None, used: Tensor | None, batch: int) -> Iterator[tuple[int, int, int]]:
    """Of each sequence: its batch, its first row, its rows."""
    for b in range(batch):
        begin = 0 if cu is None else int(cu[b])
        rows = x.shape[2] if cu is None else int(cu[b + 1]) - begin
        yield (b if cu is None else 0), begin, rows if used is None else int(used[b])


def _kept(rng: Tensor, batch: int, heads: int, rows: int, keys: int, dropout: float) -> Tensor:
    """Booleans that are a function of the seed, the offset and the place alone."""
    places = [torch.arange(n, device=rng.device) for n in (batch, heads, rows, keys)]
    mixed = (rng[0] * 1_000_003 + rng[1]) % 2_147_483_647
    for axis, place in enumerate(places):
        shape = [-1 if a == axis else 1 for a in range(4)]
        mixed = ((mixed + place.reshape(shape) + 1) * 48_271 + 12_345) % 2_147_483_647
        mixed = (mixed ^ (mixed >> 13)) * 16_807 % 2_147_483_647
    return mixed.double() / 2_147_483_647 >= dropout
