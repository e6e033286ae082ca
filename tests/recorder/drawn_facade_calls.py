"""Random calls of AOTriton's functions, in the words of tests/aotriton/aotriton_interface.py: what its views can be,
masks, windows, sequences, seeds, and all that may be left out."""

from __future__ import annotations

import random
from collections.abc import Sequence

from aotriton_interface import (
    BF16,
    BOTTOM_RIGHT,
    COMPACT,
    FP16,
    FP32,
    INT32,
    INT64,
    NONE,
    PADDED,
    TOP_LEFT,
    UINT64,
    WINDOWED,
)

DROPOUT_MASK = "v2.debug_simulate_encoded_softmax"
LENGTHS = (1, 15, 16, 17, 64, 65, 100, 127, 129, 512, 1000, 2048)


class _Call:
    def __init__(self, rng: random.Random) -> None:
        self.rng, self.fields = rng, {}
        self.batch, self.kv = rng.choice((1, 2, 3, 16)), rng.choice((1, 2, 4))
        self.heads = self.kv * rng.choice((1, 1, 3, 8))
        self.rows, self.keys = (rng.choice(LENGTHS) for _ in range(2))
        self.width = rng.choice((64, 64, 64, 56, 49))
        self.width_v = rng.choice((64, 50)) if self.chance(8) else self.width
        self.dtype = FP16 if self.chance(30) else BF16

    def chance(self, one_in: int) -> bool:
        return self.rng.randrange(one_in) == 0

    def add(self, name: str, sizes: Sequence[int], dtype: int | None = None, broadcast: Sequence[int] = ()) -> tuple:
        """A view: as it lies there by itself, or [batch, rows, heads, width] in memory, or rows apart."""
        dtype = self.dtype if dtype is None else dtype
        order = (0, 2, 1, 3) if len(sizes) == 4 and self.chance(2) else range(len(sizes))
        strides, step = [1] * len(sizes), 1
        for axis in reversed(order):
            strides[axis] = step
            step *= max(sizes[axis], 1)
            if axis == len(sizes) - 1 and self.chance(8):
                step += 8
        for axis in broadcast:
            if self.chance(3):
                strides[axis] = 0
        data = ((len(self.fields) + 1) << 40) + (16 * self.rng.randint(0, 99) if not self.chance(15) else 4)
        self.fields[name] = (data, dtype, tuple(sizes), tuple(strides))
        return self.fields[name]

    def number(self, name: str) -> None:
        self.fields[name] = ((len(self.fields) + 1) << 40, self.rng.choice((INT64, UINT64)))

    def dropout(self, one_in: int) -> None:
        if self.chance(one_in):
            self.fields["p"] = self.rng.choice((0.1, 0.5, 0.25))
        if self.chance(2):
            self.number("seed")
            self.number("offset1")
            self.fields["offset2"] = self.rng.choice((0, 5, 2**40))

    def window(self) -> None:
        """Of v3, that may be none that a kernel takes."""
        if self.chance(2):
            sides = [self.rng.choice((TOP_LEFT, BOTTOM_RIGHT, self.rng.randint(-10, 2100))) for _ in range(2)]
            self.fields |= {"causal_type": WINDOWED, "left": sides[0], "right": sides[1]}
        else:
            self.fields |= {"causal_type": NONE, "left": self.rng.randint(-9, 9), "right": self.rng.randint(-9, 9)}

    def tensors(self, kind: str) -> None:
        """q, k, v, out, lse; `kind`: dense, packed or padded."""
        times = self.rng.choice((1, 2)) if kind == "packed" else 1
        batch = 1 if kind == "packed" else self.batch
        q = (batch, self.heads, self.rows * times, self.width)
        k = (batch, self.kv, self.keys * times, self.width)
        self.add("q", q)
        self.add("k", k)
        self.add("v", (*k[:3], self.width_v))
        self.add("out", (*q[:3], self.width_v))
        longest = q[2]
        if kind != "dense":
            self.add("cu_q", (self.batch + 1,), INT32)
            self.add("cu_k", (self.batch + 1,), INT32)
            if self.chance(2):
                self.fields |= {"max_q": self.rows, "max_k": self.keys}
                longest = self.rows
        gap = self.rng.choice((0, 0, 3))
        lines = self.batch * self.heads
        if kind == "packed" and self.chance(4):
            lines, longest, gap = self.heads, q[2], 0
        elif kind == "packed" and times == 2 and "max_q" in self.fields and self.chance(3):
            lines, longest, gap = self.heads, self.rows, 0  # as PyTorch gives it
        self.add("lse", (lines, longest + gap), FP32)
        if kind == "dense" and self.chance(4):
            self.add("b", (self.batch, self.heads, self.rows, self.keys), broadcast=(0, 1, 2))
        self.fields["scale"] = self.rng.choice((0.125, 0.0, self.rng.uniform(0.01, 2.0)))

    def forward(self) -> None:
        if self.chance(5):
            del self.fields["lse"]
        if self.chance(3):
            self.number("seed_out")
            self.number("offset_out")
        if self.chance(4):
            self.add("encoded", (self.batch, self.heads, self.rows, self.keys))
        if self.chance(3):
            self.fields["counter"] = (1 << 50, INT32)

    def backward(self, has_delta: bool) -> None:
        for name, like in (("dout", "out"), ("dq", "q"), ("dk", "k"), ("dv", "v")):
            self.add(name, self.fields[like][2])
        if "b" in self.fields and self.chance(2):
            self.add("db", self.fields["b"][2], broadcast=(0, 1))
        if has_delta:  # which is left alone
            self.fields["delta"] = (1 << 51, FP32, self.fields["lse"][2])


def drawn_call(entry: str, rng: random.Random) -> dict:
    """The fields of a call of a function, as Interface.call takes them."""
    call = _Call(rng)
    if entry == DROPOUT_MASK:
        call.add("r", (call.batch, call.heads, call.rows, call.keys), rng.choice((FP16, BF16, FP32)))
        call.dropout(2)
        return call.fields
    if entry.startswith("v3"):
        kind = rng.choice(("dense", "dense", "packed", "padded"))
        call.tensors(kind)
        call.fields["varlen_type"] = {"dense": NONE, "padded": PADDED, "packed": rng.choice((NONE, COMPACT))}[kind]
        call.window()
    else:
        call.tensors("packed" if entry.endswith("varlen") else "dense")
        call.fields["is_causal"] = call.chance(2)
    call.dropout(3)
    if entry.endswith("fwd") or "attn_fwd" in entry:
        call.forward()
    else:
        call.backward(entry in ("v2.attn_bwd", "v2.attn_bwd_compact_varlen"))
    return call.fields
