"""Attention as it is defined, in float64: what the kernels' results are compared with. Knows nothing of the kernels but
which random numbers dropout draws."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch

from kiln_bench.verify.numbers import philox

EVERYTHING = 2**30 - 1  # a window that hides nothing


@dataclass(frozen=True)
class Call:
    """A call of attention.

    Attributes:
        q, k, v: [batch, heads, rows, width]; with cu_q or cu_k the batch is 1 and sequences lie one after another.
        dout: the gradient of the output, where gradients are wanted.
        left, right: keys that a row sees before and after its own.
        bottom_right: a row's own key is counted from the end.
        sinks: [heads]; bias: [batch, heads, rows, keys], the first two may be 1 for all; slopes: [batch, heads].
        softcap, dropout: 0 for none.
        cu_q, cu_k: [sequences + 1]; used_q, used_k: [sequences].
        padded: cu_q and cu_k only tell how long sequences are; each lies at the begin of its batch.
        lse_by_sequence: the log-sum-exp is [sequences, heads, longest], although rows lie one after another.
    """

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    sm_scale: float
    dout: np.ndarray | None = None
    left: int = EVERYTHING
    right: int = EVERYTHING
    bottom_right: bool = False
    sinks: np.ndarray | None = None
    bias: np.ndarray | None = None
    slopes: np.ndarray | None = None
    softcap: float = 0.0
    dropout: float = 0.0
    seed: int = 0
    offset: int = 0
    cu_q: np.ndarray | None = None
    cu_k: np.ndarray | None = None
    used_q: np.ndarray | None = None
    used_k: np.ndarray | None = None
    padded: bool = False
    lse_by_sequence: bool = False

    @property
    def sequences(self) -> int:
        return len(self.cu_q) - 1 if self.cu_q is not None and not self.padded else self.q.shape[0]

    @property
    def lse_shape(self) -> tuple[int, int, int]:
        if self.lse_by_sequence:
            return self.sequences, self.q.shape[1], int(np.diff(self.cu_q).max(initial=0))
        return self.q.shape[:3]

    @property
    def threshold(self) -> int:
        return int(self.dropout * 2**32)

    def span(self, sequence: int, of_keys: bool) -> tuple[int, slice]:
        """The batch and the rows of a sequence."""
        cu, used, tensor = (self.cu_k, self.used_k, self.k) if of_keys else (self.cu_q, self.used_q, self.q)
        batch, begin, length = sequence, 0, tensor.shape[2]
        if cu is not None:
            length = int(cu[sequence + 1] - cu[sequence])
            if not self.padded:
                batch, begin = 0, int(cu[sequence])
        if used is not None:
            length = int(used[sequence])
        return batch, slice(begin, begin + length)


@dataclass(frozen=True)
class Result:
    """out, lse and, if dout was given, the gradients; float64, NaN where nothing is to be written."""

    out: np.ndarray
    lse: np.ndarray
    dq: np.ndarray | None = None
    dk: np.ndarray | None = None
    dv: np.ndarray | None = None
    dbias: np.ndarray | None = None
    dsinks: np.ndarray | None = None


def kept(call: Call, plane: int, rows: int, keys: int) -> np.ndarray:
    """[rows, keys]: which weights dropout keeps."""
    fours = np.arange(-(-keys // 4))[None, :]
    high, low = plane ^ call.offset >> 32, call.offset & 0xFFFFFFFF
    numbers = philox(call.seed, (fours, np.arange(rows)[:, None], np.full((1, 1), high), np.full((1, 1), low)))
    return np.stack(numbers, -1).reshape(rows, -1)[:, :keys] >= call.threshold


def attention(call: Call) -> Result:
    """The definition, sequence by sequence and head by head."""
    leaves = {
        name: torch.tensor(array, dtype=torch.float64, requires_grad=True)
        for name in ("q", "k", "v", "bias", "sinks")
        if (array := getattr(call, name)) is not None
    }
    q, k, v = (leaves[name] for name in "qkv")
    heads, group = q.shape[1], q.shape[1] // k.shape[1]
    out = torch.full((*q.shape[:3], v.shape[3]), math.nan, dtype=torch.float64)
    lse = torch.full(call.lse_shape, math.nan, dtype=torch.float64)
    outputs, cotangents = [], []
    for sequence in range(call.sequences):
        (batch_q, rows), (batch_k, keys) = call.span(sequence, False), call.span(sequence, True)
        for head in range(heads):
            one, log = _head(
                call, sequence, head, q[batch_q, head, rows], k[batch_k, head // group, keys],
                v[batch_k, head // group, keys],
                leaves,
            )  # fmt: skip
            out[batch_q, head, rows] = one.detach()
            place = (sequence, head, slice(len(log))) if call.lse_by_sequence else (batch_q, head, rows)
            lse[place] = log.detach()
            if call.dout is not None and one.requires_grad and one.numel():
                outputs.append(one)
                cotangents.append(torch.tensor(call.dout[batch_q, head, rows], dtype=torch.float64))
    if call.dout is None:
        return Result(out.numpy(), lse.numpy())
    found = torch.autograd.grad(outputs, list(leaves.values()), cotangents, allow_unused=True) if outputs else ()
    grads = {name: np.zeros(leaf.shape) for name, leaf in leaves.items()}
    grads |= {name: grad.numpy() for name, grad in zip(leaves, found) if grad is not None}
    written = [_written(call, grads[name], name != "q") for name in "qkv"]
    return Result(out.numpy(), lse.numpy(), *written, grads.get("bias"), grads.get("sinks"))


def _head(call: Call, sequence: int, head: int, q, k, v, leaves):
    rows, keys = q.shape[0], k.shape[0]
    scores = call.sm_scale * (q @ k.T)
    if call.softcap:
        scores = call.softcap * torch.tanh(scores / call.softcap)
    if call.bias is not None:
        scores = scores + leaves["bias"].expand(call.sequences, call.q.shape[1], -1, -1)[sequence, head, :rows, :keys]
    i, j = torch.arange(rows)[:, None], torch.arange(keys)[None, :]
    if call.slopes is not None:
        scores = scores - float(call.slopes[sequence, head]) * (i + (keys - rows) - j).abs()
    own = i + (keys - rows if call.bottom_right else 0)
    scores = scores.masked_fill((j < own - call.left) | (j > own + call.right), -math.inf)
    if call.sinks is not None:
        scores = torch.cat([scores, leaves["sinks"][head].expand(rows, 1)], 1)
    if scores.shape[1] == 0:
        return torch.zeros(rows, v.shape[1], dtype=torch.float64), torch.full((rows,), -math.inf, dtype=torch.float64)
    blind = (scores == -math.inf).all(1)  # rows that see nothing
    scores = scores.masked_fill(blind[:, None], 0.0)
    lse = torch.logsumexp(scores, 1)
    weights = torch.exp(scores - lse[:, None]).masked_fill(blind[:, None], 0.0)[:, :keys]
    lse = lse.masked_fill(blind, -math.inf)
    if call.dropout:
        keep = torch.from_numpy(kept(call, sequence * call.q.shape[1] + head, rows, keys))
        weights = torch.where(keep, weights / (1 - call.dropout), 0.0)
    return weights @ v, lse


def _written(call: Call, array: np.ndarray, of_keys: bool) -> np.ndarray:
    """The rows that belong to sequences; NaN for the others."""
    result = np.full(array.shape, np.nan)
    for sequence in range(call.sequences):
        batch, rows = call.span(sequence, of_keys)
        result[batch, :, rows] = array[batch, :, rows]
    return result
