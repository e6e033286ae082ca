"""Host time of a call of attention, by each way that Python has to it: measured in a process of its own, with the
packages of one release.

    PYTHONPATH=<wheels, installed> python3 host_time.py [BATCHES]

Each way computes the same small attention (SHAPE, bf16), and only the host's time of a call is measured: batches of
calls, the ways in turns, the device waited for between them. Prints one line of JSON. Run by path, it imports nothing
of its own package, so that a release is measured whatever its age.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import torch

SHAPE = (1, 8, 128, 64)
BATCH, BATCHES, WARM = 200, 40, 20
LARGEST_ERROR = 0.03
OPERATOR, DECODE = "torch.ops.kiln.attn_fwd", "kiln.torch.decode"
PYTORCH = "F.scaled_dot_product_attention"
ATTENTION, SDPA = "kiln.torch.attention", "kiln.torch.scaled_dot_product_attention"
RECORDED, BACK = "recorded", "and backward"  # behind names: gradients are wanted, and computed


class Way(NamedTuple):
    """A call, and what is right: one tensor, several, or None where it computes nothing."""

    call: Callable[[], Any]
    right: Any


def ways(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, theirs: Callable[..., Any]) -> dict[str, Way]:
    """What is measured without gradients, by name. `theirs`: PyTorch's own function, while Kiln's is in its place."""
    import torch

    import kiln.torch as kt

    attention = torch.nn.functional
    rows_first = [x.transpose(1, 2).contiguous() for x in (q, k, v)]
    op, query = torch.ops.kiln.attn_fwd, q[:, :, :1]
    lengths = torch.full((1,), 127, dtype=torch.int32, device=q.device)
    pages = [x.view(1, 8, 8, 16, 64).transpose(1, 2).flatten(0, 1).contiguous() for x in (k, v)]
    table = torch.arange(8, dtype=torch.int32, device=q.device)[None]
    plain, causal = _exact(q, k, v), _exact(q, k, v, True)
    one, shorter = plain[:, :, :1], _exact(query, k[:, :, :127], v[:, :, :127])
    grown = [torch.cat((x[:, :, :127], query), 2) for x in (k, v)]
    caches = [k.clone(), v.clone()]  # appending writes
    found = {
        OPERATOR: Way(lambda: op(q, k, v), plain),
        f"{OPERATOR}, causal": Way(lambda: op(q, k, v, causal=True), causal),
        f"{OPERATOR}.default": Way(lambda: op.default(q, k, v), plain),
        ATTENTION: Way(lambda: kt.attention(q, k, v), plain),
        f"{ATTENTION}, rows first, causal": Way(
            lambda: kt.attention(*rows_first, causal=True, rows_first=True), causal.transpose(1, 2)
        ),
        DECODE: Way(lambda: kt.decode(query, k, v), one),
        f"{DECODE}, pages": Way(lambda: kt.decode(query, *pages, seqused_k=lengths, block_table=table), shorter),
        f"{DECODE}, appending": Way(
            lambda: kt.decode(query, *caches, k_new=query, v_new=query, seqused_k=lengths), _exact(query, *grown)
        ),
        SDPA: Way(lambda: kt.scaled_dot_product_attention(q, k, v), plain),
        f"{PYTORCH}, routed": Way(lambda: attention.scaled_dot_product_attention(q, k, v), plain),
        PYTORCH: Way(lambda: theirs(q, k, v), plain),
        "torch.empty_like": Way(lambda: torch.empty_like(q), None),
    }
    with contextlib.suppress(
        ImportError, AttributeError
    ):  # inside the package, which other versions may have otherwise
        from kiln.torch import native

        straight, extras = native.forward_op, native.NO_EXTRAS
        found = {"torch.ops.kiln_native.attn_fwd": Way(lambda: straight(q, k, v, extras), plain), **found}
    with contextlib.suppress(ImportError):
        from flash_attn import flash_attn_func

        found["flash_attn_func"] = Way(lambda: flash_attn_func(*rows_first), plain.transpose(1, 2))
    return found


def ways_with_gradients(q: Any, k: Any, v: Any, theirs: Callable[..., Any]) -> dict[str, Way]:
    """Those whose calls are recorded, and forward and backward; a thread of PyTorch's does half of the latter."""
    import torch

    import kiln.torch as kt

    attention, op, plain, dout = torch.nn.functional, torch.ops.kiln.attn_fwd, _exact(q, k, v), torch.ones_like(q)
    recorded = {
        OPERATOR: lambda: op(q, k, v),
        ATTENTION: lambda: kt.attention(q, k, v),
        SDPA: lambda: kt.scaled_dot_product_attention(q, k, v),
        f"{PYTORCH}, routed": lambda: attention.scaled_dot_product_attention(q, k, v),
        PYTORCH: lambda: theirs(q, k, v),
    }
    leaves = [x.detach().float().requires_grad_() for x in (q, k, v)]
    gradients = torch.autograd.grad(_exact(*leaves), leaves, dout.float())
    back = {
        name: lambda function=function: torch.autograd.grad(function(q, k, v), (q, k, v), dout)
        for name, function in ((SDPA, kt.scaled_dot_product_attention), (PYTORCH, theirs))
    }
    found = {f"{name}, {RECORDED}": Way(call, plain) for name, call in recorded.items()}
    return found | {f"{name}, {BACK}": Way(call, gradients) for name, call in back.items()}


def _exact(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool = False) -> torch.Tensor:
    """Attention in fp32."""
    import torch

    scores = q.float() @ k.float().mT * q.shape[-1] ** -0.5
    if causal:
        scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), -torch.inf)
    return torch.softmax(scores, -1) @ v.float()


def check(found: Mapping[str, Way]) -> tuple[dict[str, Callable[[], Any]], dict[str, str], dict[str, str]]:
    """Calls each way; those that are right, why others refuse, and how others are wrong."""
    import torch

    right: dict[str, Callable[[], Any]] = {}
    refused, wrong = {}, {}
    for name, way in found.items():
        try:
            answer = way.call()
        except Exception as error:  # noqa: BLE001 - whatever a release of another age says
            refused[name] = " ".join(f"{type(error).__name__}: {error}".split())[:300]
            continue
        pairs = zip(*(x if isinstance(x, (tuple, list)) else (x,) for x in (answer, way.right)))
        errors = [
            (torch.linalg.vector_norm(a.float() - b.float()) / torch.linalg.vector_norm(b.float())).item()
            for a, b in pairs
            if b is not None
        ]
        if all(error <= LARGEST_ERROR for error in errors):
            right[name] = way.call
        else:
            wrong[name] = f"its result differs from fp32's by {max(errors, key=abs):.2g}, so it was not timed"
    return right, refused, wrong


def measure(
    calls: Mapping[str, Callable[[], Any]], wait: Callable[[], None], batches: int = BATCHES, batch: int = BATCH,
    now: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:  # fmt: skip
    """Microseconds of a call in each batch, by the host's clock."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        for _ in range(WARM):
            call()
    for _ in range(batches):
        for name, call in calls.items():
            wait()
            begin = now()
            for _ in range(batch):
                call()
            times[name].append((now() - begin) / batch * 1e6)
    wait()
    return times


def images(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> list[str]:
    """What these calls run, as pages of measurements name it."""
    import torch

    import kiln

    calls = [kiln.explain(kiln.attn_fwd, q, k, v), kiln.explain(kiln.attn_fwd, q, k, v, causal=True)]
    calls.append(kiln.explain(kiln.attn_decode, q[:, :, :1], k, v))
    out, lse = kiln.attn_fwd(q, k, v, return_lse=True)
    calls.append(kiln.explain(kiln.attn_bwd, torch.ones_like(q), q, k, v, out, lse))
    every = dict.fromkeys(variant for found in calls for variant in found)
    return [
        f"{v.key[:12]} {v.target} {v.operation}/{v.kernel}[{v.functional}][{v.configuration}][{v.specialization}]"
        for v in every
    ]


def run(batches: int) -> dict[str, Any]:
    """All of it."""
    import torch

    import kiln.torch as kt

    theirs = torch.nn.functional.scaled_dot_product_attention
    q, k, v = (torch.randn(SHAPE, device="cuda", dtype=torch.bfloat16) for _ in "qkv")
    with torch.no_grad(), kt.use():
        calls, refused, wrong = check(ways(q, k, v, theirs))
        times = measure(calls, torch.cuda.synchronize, batches)
        ran = images(q, k, v)
    for leaf in (q, k, v):
        leaf.requires_grad_()
    with kt.use():
        more = check(ways_with_gradients(q, k, v, theirs))
        times |= measure(more[0], torch.cuda.synchronize, batches)
    return {
        "microseconds": times, "refused": refused | more[1], "wrong": wrong | more[2], "images": ran,
        "python": sys.version.split()[0],
    }  # fmt: skip


if __name__ == "__main__":
    here = os.path.dirname(os.path.abspath(__file__))  # whose modules have common names
    sys.path[:] = [folder for folder in sys.path if os.path.abspath(folder) != here]
    print(json.dumps(run(int(sys.argv[1]) if sys.argv[1:] else BATCHES)))
