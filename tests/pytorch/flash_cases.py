"""Calls of the flash-attention functions, drawn at random, and whether what they give is right."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from flash_oracle import Options, attend, compare, gradients
from torch import Tensor

from kiln.torch import flash_attn

Sequences = list[tuple[Tensor, ...]]

FUNCTIONS = [
    "flash_attn_func", "flash_attn_qkvpacked_func", "flash_attn_kvpacked_func", "flash_attn_varlen_func",
    "flash_attn_varlen_qkvpacked_func", "flash_attn_varlen_kvpacked_func",
]  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A call of any of FUNCTIONS.

    Attributes:
        rows, keys: of each sequence; all alike unless the function is one of several lengths.
        page: with it the keys lie in pages of so many.
        probabilities: asks for log-sum-exps and weights.
    """

    function: str
    dtype: torch.dtype
    rows: tuple[int, ...]
    keys: tuple[int, ...]
    heads: int
    heads_kv: int
    width: int
    options: Options
    probabilities: bool
    page: int | None = None
    seed: int = 0

    @property
    def is_varlen(self) -> bool:
        return "varlen" in self.function


def draw(function: str, dtype: torch.dtype, seed: int, widths: list[int], longest: int) -> Case:
    """The case of a seed."""
    rng = random.Random(f"{function} {dtype} {seed}")
    varlen, is_self = "varlen" in function, "qkvpacked" in function
    batch = rng.randint(1, 3)

    def lengths() -> tuple[int, ...]:
        least = 0 if varlen else 1
        several = [rng.choice((least, 1, rng.randint(1, longest), rng.randint(1, longest))) for _ in range(batch)]
        several[0] = max(several[0], 1)  # a call with neither rows nor keys is another matter
        return tuple(several) if varlen else (several[-1],) * batch

    rows = lengths()
    keys = rows if is_self else lengths()
    heads_kv = rng.randint(1, 2)
    heads = heads_kv if is_self else heads_kv * rng.choice((1, 2, 3))
    page = rng.choice((None, 16, 7)) if function == "flash_attn_varlen_func" else None
    options = Options(
        causal=rng.random() < 0.5,
        window_size=rng.choice(((-1, -1), (-1, -1), (rng.randint(0, 9), -1), (rng.randint(0, 9), rng.randint(0, 9)))),
        softcap=rng.choice((0.0, 0.0, -1.0, 2.5)),
        softmax_scale=rng.choice((None, 0.3)),
        dropout_p=rng.choice((0.0, 0.0, 0.25)) if page is None else 0.0,
        slopes=rng.choice((None, None, "heads", "batch")),
    )
    return Case(
        function, dtype, rows, keys, heads, heads_kv, rng.choice(widths), options, rng.random() < 0.4, page, seed
    )


def check(case: Case, device: str) -> None:
    """Makes the call, forward and backward, and compares."""
    generator = torch.Generator().manual_seed(case.seed)
    batch, options = len(case.rows), case.options

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator).to(case.dtype)

    sequences = [
        (normal(rows, case.heads, case.width), *(normal(keys, case.heads_kv, case.width) for _ in "kv"))
        for rows, keys in zip(case.rows, case.keys)
    ]
    slopes = None
    if options.slopes:
        shape = (case.heads,) if options.slopes == "heads" else (batch, case.heads)
        slopes = torch.rand(shape, generator=generator).to(device)
    inputs, arguments, keywords = _call(case, sequences, device)
    keywords.update(alibi_slopes=slopes, return_attn_probs=case.probabilities or options.dropout_p > 0)
    paged, function = case.page is not None, getattr(flash_attn, case.function)
    with torch.set_grad_enabled(not paged):
        results = function(*inputs, *arguments, **keywords)
    out, lse, weights = results if isinstance(results, tuple) else (results, None, None)
    cotangent = torch.randn(out.shape, generator=generator).to(device, case.dtype)
    if not paged:
        out.backward(cotangent)

    kept = None if not options.dropout_p else [
        weights[b, :, :rows, :keys] >= 0 for b, (rows, keys) in enumerate(zip(case.rows, case.keys))
    ]  # fmt: skip
    given = (case, sequences, slopes, kept, cotangent, device)
    (exact, exact_lse, exact_weights, exact_gradients), own = _solve(*given, torch.float64), _own(*given)
    own_out, own_lse, own_weights, own_gradients, sizes = own
    compare("out", out, exact, own_out, case.dtype)
    if lse is not None:
        compare("softmax_lse", lse, exact_lse, own_lse, torch.float32)
    if options.dropout_p:
        padded = [_padded(parts, weights.shape) for parts in (exact_weights, own_weights)]
        compare("S_dmask", weights.abs(), *padded, case.dtype)
    elif weights is not None:
        assert weights.numel() == 0
    if not paged:
        found = _gradients(case, [x.grad for x in inputs])
        for name, *values, size in zip(("dq", "dk", "dv"), found, exact_gradients, own_gradients, sizes):
            compare(name, *values, case.dtype, size)


def _call(case: Case, sequences: Sequences, device: str) -> tuple[list[Tensor], list[Any], dict[str, Any]]:
    """What the function is called with: tensors that have gradients, then other arguments by position, by name."""
    q, k, v = (_joined(case, parts) for parts in zip(*sequences))
    arguments, keywords = [], {name: getattr(case.options, name) for name in _SHARED}
    if case.is_varlen:
        bounds = [torch.tensor([0, *x]).cumsum(0).to(device, torch.int32) for x in (case.rows, case.keys)]
        arguments = [*bounds, max(case.rows), max(case.keys)]
        if "qkvpacked" in case.function:
            arguments = [bounds[0], max(case.rows)]
    if case.page is not None:
        k, v, table = _paged(case, sequences)
        keywords["block_table"] = table.to(device)
    inputs = [q, k, v]
    if "qkvpacked" in case.function:
        inputs = [torch.stack([q, k, v], -3)]
    elif "kvpacked" in case.function:
        inputs = [q, torch.stack([k, v], -3)]
    return [x.to(device).requires_grad_(case.page is None) for x in inputs], arguments, keywords


_SHARED = ("dropout_p", "softmax_scale", "causal", "window_size", "softcap")


def _joined(case: Case, parts: tuple[Tensor, ...]) -> Tensor:
    return torch.cat(parts) if case.is_varlen else torch.stack(parts)


def _paged(case: Case, sequences: Sequences) -> tuple[Tensor, Tensor, Tensor]:
    """Keys and values in pages that lie in no order, and the table of pages."""
    pages = [-(-keys // case.page) for keys in case.keys]
    places = torch.randperm(sum(pages) + 2, generator=torch.Generator().manual_seed(case.seed)).to(torch.int32)
    table = torch.zeros(len(pages), max(*pages, 1), dtype=torch.int32)
    caches = [torch.full((len(places), case.page, case.heads_kv, case.width), 9.0, dtype=case.dtype) for _ in "kv"]
    for b, count in enumerate(pages):
        begin = sum(pages[:b])
        table[b, :count] = places[begin : begin + count]
        for j in range(case.keys[b]):
            for cache, rows in zip(caches, sequences[b][1:]):
                cache[table[b, j // case.page], j % case.page] = rows[j]
    return *caches, table


def _parts(
    case: Case, sequences: Sequences, slopes: Tensor | None, kept: list[Tensor] | None, dtype: torch.dtype, device: str
) -> Iterator[tuple[list[Tensor], Tensor | None, Tensor | None]]:
    """Of each sequence its tensors, its slopes and what dropout kept."""
    for b, sequence in enumerate(sequences):
        mine = None if slopes is None else (slopes if slopes.dim() == 1 else slopes[b])
        yield [x.detach().to(device, dtype) for x in sequence], mine, None if kept is None else kept[b]


def _solve(
    case: Case, sequences: Sequences, slopes: Tensor | None, kept: list[Tensor] | None, cotangent: Tensor, device: str,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, list[Tensor], list[Tensor]]:  # fmt: skip
    """(out, lse, weights by sequence, [dq, dk, dv]), computed in `dtype`."""
    leaves, results = [], []
    for parts, mine, keep in _parts(case, sequences, slopes, kept, dtype, device):
        leaves.append([x.requires_grad_() for x in parts])
        results.append(attend(*parts, case.options, mine, keep))
    out = _joined(case, [out for out, _, _ in results])
    out.backward(cotangent.to(dtype))
    lses = [lse for _, lse, _ in results]
    lse = torch.cat(lses, 1) if case.is_varlen else torch.stack(lses)
    found = [
        _joined(case, [torch.zeros_like(x) if x.grad is None else x.grad for x in parts]) for parts in zip(*leaves)
    ]
    return out, lse, [weights for _, _, weights in results], found


def _own(
    case: Case, sequences: Sequences, slopes: Tensor | None, kept: list[Tensor] | None, cotangent: Tensor, device: str
) -> tuple[Tensor, Tensor, list[Tensor], list[Tensor], list[float]]:
    """The same in the case's own dtype, with gradients as FlashAttentions have them, and log-sum-exps in float32, which
    they do not leave; and the gradients' sizes."""
    given = (case, sequences, slopes, kept, cotangent, device)
    out, _, weights, _ = _solve(*given, case.dtype)
    _, lse, _, _ = _solve(*given, torch.float32)
    douts = cotangent.split(list(case.rows)) if case.is_varlen else list(cotangent)
    results = [
        gradients(*parts, dout, case.options, mine, keep)
        for (parts, mine, keep), dout in zip(_parts(case, sequences, slopes, kept, case.dtype, device), douts)
    ]
    found = [_joined(case, parts) for parts in zip(*(found for found, _ in results))]
    sizes = [
        max(float(x.max()) if x.numel() else 0.0 for x in parts) for parts in zip(*(terms for _, terms in results))
    ]
    return out, lse, weights, found, sizes


def _gradients(case: Case, given: list[Tensor]) -> list[Tensor]:
    """dq, dk and dv of what the inputs' gradients are."""
    if len(given) == 1:
        return list(given[0].unbind(-3))
    return [given[0], *given[1].unbind(-3)] if len(given) == 2 else given


def _padded(parts: list[Tensor], shape: torch.Size) -> Tensor:
    result = parts[0].new_zeros(shape)
    for b, part in enumerate(parts):
        result[b, :, : part.shape[1], : part.shape[2]] = part
    return result
