"""A release of Kiln as a side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from kiln_bench.attention.problem import CacheProblem, Prepared, Problem
from kiln_bench.attention.reference import GRADIENTS

if TYPE_CHECKING:
    import torch

    from kiln_bench.release.library import Libraries


class Kiln:
    """The typed entries of a release's libraries. What is never written must not look right: results begin as NaN.

    `force_keys`: of variants that run instead of those that the look-up gives.

    Args:
        more: parameters of all calls of an entry, "attn_bwd".
    """

    def __init__(
        self, name: str, label: str, libraries: Libraries, more: Mapping[str, Mapping[str, object]] = {}
    ) -> None:
        self.name, self.label, self._libraries, self._more = name, label, libraries, more

    def training(self, problem: Problem, part: str, force_keys: Sequence[str] = ()) -> Prepared:
        import torch

        shape = problem.shape
        out = _blank(problem.dout)
        sizes = (shape.batch, shape.heads, shape.rows)
        lse = torch.full(sizes, torch.nan, dtype=torch.float32, device=problem.device)
        given = {
            "q": problem.q, "k": problem.k, "v": problem.v, "out": out, "lse": lse, "causal": int(shape.causal),
            "window_left": shape.window - 1 if shape.window else None, "softcap": shape.softcap or None,
        }  # fmt: skip
        given["sinks"] = problem.sinks
        if problem.starts is not None:
            for which in "qk":
                given |= {f"cu_seqlens_{which}": problem.starts, f"max_seqlen_{which}": shape.length}
        keys = force_keys if part == "forward" else ()
        forward = self._libraries.prepare("attn_fwd", keys, **given, **self._more.get("attn_fwd", {}))
        if part == "forward":
            return Prepared([forward], lambda: {"out": out}, forward.images, forward.variants, forward.call)
        forward()
        gradients = dict(zip(GRADIENTS, map(_blank, (problem.q, problem.k, problem.v))))
        given["deterministic"] = int(shape.deterministic) or None
        given |= self._more.get("attn_bwd", {})
        backward = self._libraries.prepare("attn_bwd", force_keys, **given, dout=problem.dout, **gradients)
        return Prepared([backward], lambda: gradients, backward.images, backward.variants, backward.call)

    def decoding(self, problem: CacheProblem, force_keys: Sequence[str] = ()) -> Prepared:
        out = _blank(problem.q)
        given = {"q": problem.q, "out": out, "seqused_k": problem.used, "block_table": problem.table}
        given |= {f"{which}_scale": scale for which, scale in zip("kv", problem.scales or ())}
        given["max_seqlen_k"] = problem.shape.keys
        given |= self._more.get("attn_decode", {})
        launches = []
        for caches in problem.caches:
            both = {f"{which}_cache": cache for which, cache in zip("kv", caches)}
            launches.append(self._libraries.prepare("attn_decode", force_keys, **given, **both))
        first = launches[0]
        return Prepared(launches, lambda: {"out": out}, first.images, first.variants, first.call)


def _blank(like: torch.Tensor) -> torch.Tensor:
    import torch

    return torch.full_like(like, torch.nan)
