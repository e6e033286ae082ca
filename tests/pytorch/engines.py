"""The engine for tests of what stands above one: the definition of attention, in the layouts that engines promise."""

from __future__ import annotations

import torch
from reference_engine import ReferenceEngine

from kiln.layout import like


class Definition(ReferenceEngine):
    name = "definition"

    def __init__(self) -> None:
        self.calls: list[str] = []

    def attn_fwd(self, *args, **more):
        self.calls.append("attn_fwd")
        q, v = args[0], args[2]
        if not q.numel():
            rows_first = more.get("rows_first", args[20] if len(args) > 20 else False)
            return like(q, v.shape[-1], rows_first), q.new_empty(q.shape[:-1], dtype=torch.float32)
        return super().attn_fwd(*args, **more)

    def attn_bwd(self, dout, q, k, v, *args, **more):
        self.calls.append("attn_bwd")
        rows_first = more.get("rows_first", args[19] if len(args) > 19 else False)
        if not dout.numel():  # nothing that PyTorch would call differentiable
            return *(like(x, x.shape[-1], rows_first).zero_() for x in (q, k, v)), None, None
        results = super().attn_bwd(dout, q, k, v, *args, **more)
        laid_out = (like(x, x.shape[-1], rows_first).copy_(d) for x, d in zip((q, k, v), results))
        return *laid_out, *results[3:]
