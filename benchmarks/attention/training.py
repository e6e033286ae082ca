"""Attention forward and backward of Kiln beside PyTorch's FlashAttention-2 and cuDNN's, on the same tensors."""

from __future__ import annotations

from collections.abc import Callable

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
    """The tensors of a shape, and what each side does with them. Sides that refuse are in `refusals`, with why."""

    def __init__(self, entries: Entries, shape: Shape, dtype: torch.dtype, layout: str, device: str = "cuda") -> None:
        self.shape, self.refusals = shape, {}
        size = (shape.batch, shape.heads, shape.length, shape.head_dim, dtype, device, layout)
        self.q, self.k, self.v, self.dout = (tensor(*size) for _ in range(4))
        # Results that are never written must not look right.
        self.out, self.dq, self.dk, self.dv = (torch.full_like(self.q, torch.nan) for _ in range(4))
        self.lse = torch.full(size[:3], torch.nan, dtype=torch.float32, device=device)
        self.entries = entries

    def _kiln(self, direction: str) -> Callable[[], object]:
        given = {"q": self.q, "k": self.k, "v": self.v, "out": self.out, "lse": self.lse}
        given["causal"] = int(self.shape.causal)
        if direction == "forward":
            return self.entries.forward(**given)
        self.entries.forward(**given)()
        return self.entries.backward(**given, dout=self.dout, dq=self.dq, dk=self.dk, dv=self.dv)

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
        makers = {"kiln": lambda: self._kiln(direction)}
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
        sides["kiln"]()
        mine = (self.out,) if direction == "forward" else (self.dq, self.dk, self.dv)
        found = {}
        for name in [name for name in BACKENDS if name in sides]:
            theirs = sides[name]()
            theirs = (theirs,) if direction == "forward" else theirs
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
        "differences": problem.differences(direction, sides),
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
