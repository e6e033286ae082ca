"""Attention forward and backward of Kiln beside PyTorch's FlashAttention-2 and cuDNN's, on the same tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import ffi
import timing
import torch
from entries import Entries, reason
from shapes import Shape
from torch.nn.attention import SDPBackend, sdpa_kernel

BACKENDS = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}
# ||a - b|| / ||b|| of two right answers in bf16 is near 0.005; of a wrong one it is near 1. How exact an answer is has
# tests of its own: here nothing shall be timed that computes something else.
LARGEST_DIFFERENCE = 0.03
GRADIENTS = ("dq", "dk", "dv")


def tensor(batch: int, heads: int, rows: int, head_dim: int, dtype: torch.dtype, device: str, layout: str):
    """Random, [batch, heads, rows, head_dim]; in memory as said: "bhsd", or "bshd" for rows before heads."""
    if layout == "bshd":
        return torch.randn(batch, rows, heads, head_dim, dtype=dtype, device=device).transpose(1, 2)
    return torch.randn(batch, heads, rows, head_dim, dtype=dtype, device=device)


def difference(mine: torch.Tensor, theirs: torch.Tensor) -> float:
    """NaN if anything is."""
    distance = torch.linalg.vector_norm(mine.float() - theirs.float())
    return (distance / torch.linalg.vector_norm(theirs.float())).item()


class Problem:
    """The tensors of a shape, and what each side does with them. Sides that refuse are in `refusals`, with why.

    Args:
        entries: by side: "kiln", and "against" if another release is measured too.
    """

    def __init__(
        self, entries: Mapping[str, Entries], shape: Shape, dtype: torch.dtype, layout: str, device: str = "cuda"
    ) -> None:
        self.shape, self.refusals = shape, {}
        size = (shape.batch, shape.heads, shape.length, shape.head_dim, dtype, device, layout)
        self.q, self.k, self.v, self.dout = (tensor(*size) for _ in range(4))
        # Of each release its own. What is never written must not look right.
        self.results = {
            side: {name: torch.full_like(self.q, torch.nan) for name in ("out", "dq", "dk", "dv")}
            | {"lse": torch.full(size[:3], torch.nan, dtype=torch.float32, device=device)}
            for side in entries
        }
        self.entries = entries

    def _release(self, direction: str, side: str) -> Callable[[], object]:
        entries, results = self.entries[side], self.results[side]
        given = {"q": self.q, "k": self.k, "v": self.v, "out": results["out"], "lse": results["lse"]}
        given["causal"] = int(self.shape.causal)
        if direction == "forward":
            return entries.forward(**given)
        entries.forward(**given)()
        gradients = {name: results[name] for name in GRADIENTS}
        return entries.backward(**given, dout=self.dout, **gradients)

    def _torch(self, direction: str, backend: SDPBackend) -> Callable[[], object]:
        attention, causal = torch.nn.functional.scaled_dot_product_attention, self.shape.causal
        if direction == "forward":

            def forward() -> torch.Tensor:
                with sdpa_kernel(backend), torch.no_grad():
                    return attention(self.q, self.k, self.v, is_causal=causal)

            forward()
            return forward
        leaves = [t.detach().requires_grad_() for t in (self.q, self.k, self.v)]
        with sdpa_kernel(backend):
            out = attention(*leaves, is_causal=causal)

        def backward() -> tuple[torch.Tensor, ...]:
            return torch.autograd.grad(out, leaves, self.dout, retain_graph=True)

        backward()
        return backward

    def sides(self, direction: str) -> dict[str, Callable[[], object]]:
        self.refusals.clear()
        makers = {side: lambda side=side: self._release(direction, side) for side in self.entries}
        makers |= {name: lambda backend=backend: self._torch(direction, backend) for name, backend in BACKENDS.items()}
        made = {}
        for name, make in makers.items():
            try:
                made[name] = make()
            except (ffi.Failure, RuntimeError) as error:
                self.refusals[name] = reason(error)
        return made

    def differences(self, direction: str, sides: dict[str, Callable[[], object]]) -> dict[str, float]:
        """Of Kiln's results to the other sides': the largest of each."""
        if "kiln" not in sides:
            return {}
        written = ("out",) if direction == "forward" else GRADIENTS
        sides["kiln"]()
        mine = [self.results["kiln"][name] for name in written]
        found = {}
        for name in [name for name in sides if name != "kiln"]:
            theirs = sides[name]()
            if name in self.results:
                theirs = [self.results[name][one] for one in written]
            elif direction == "forward":
                theirs = (theirs,)
            values = [difference(a, b) for a, b in zip(mine, theirs)]
            found[name] = next((value for value in values if value != value), max(values))
        return found


def measure(problem: Problem, direction: str, rounds: int, budget_ms: float, while_busy=None) -> dict:
    """A row of the results: milliseconds of each side in each round; what refused, and why."""
    shape = problem.shape
    sides = problem.sides(direction)
    row = {
        "direction": direction, "head_dim": shape.head_dim, "causal": shape.causal, "length": shape.length,
        "batch": shape.batch, "heads": shape.heads, "refusals": dict(problem.refusals),
        "differences": problem.differences(direction, sides), "images": getattr(sides.get("kiln"), "images", []),
    }  # fmt: skip
    wrong = {name: value for name, value in row["differences"].items() if not value <= LARGEST_DIFFERENCE}
    if wrong:
        others = ", ".join(f"{name}'s by {value:.2g}" for name, value in sorted(wrong.items()))
        row["refusals"]["kiln"] = f"its results differ from {others}; what is wrong is not timed"
        del sides["kiln"]
    row["milliseconds"], row["host_ahead"] = {}, True
    if sides:
        times, ahead = timing.interleave(sides, rounds, budget_ms, while_busy=while_busy)
        row |= {"milliseconds": times, "host_ahead": ahead}
    return row
