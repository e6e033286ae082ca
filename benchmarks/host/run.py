"""Host time of a call of attention, from C to F.scaled_dot_product_attention, in one run on one GPU.

    bash benchmarks/host/run.sh <folder of wheels> <unpacked release> [--json FILE] [--check]
    PYTHONPATH=<wheels, installed> python3 benchmarks/host/run.py [--json FILE] [--launch PROGRAM] [--check]

Each way computes the same small attention (bf16, 8 heads, 128 rows, head dim 64), and only the host's time of a call is
measured: batches of calls, the ways in turn, the device waited for between them; the median of the batches. With
`--launch` (benchmarks/launch/launch.c, compiled) bare cuLaunchKernel and kiln_attn_fwd from C are measured besides.
Prints a table in Markdown, in which everything is told as a ratio too, and the images that were run. `--check`: fails
where the operator takes more than 0.6 of F.scaled_dot_product_attention's time, or decode more than 10 microseconds.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

import kiln
import kiln.torch as kt
from kiln.torch import native, routing

BATCH, BATCHES = 200, 40
MOST_OF_PYTORCHS, MOST_OF_DECODE = 0.6, 10.0  # the operator's share, and microseconds
OPERATOR, DECODE = "torch.ops.kiln.attn_fwd", "kiln.torch.decode"
BARE, ENTRY = "cuLaunchKernel, bare, from C", "kiln_attn_fwd, from C"
PYTORCH = "F.scaled_dot_product_attention"


def ways(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> dict[str, Callable[[], object]]:
    """What is measured without gradients, by name."""
    plain, rows_first = native.forward_op, [x.transpose(1, 2).contiguous() for x in (q, k, v)]
    op, cache, query = torch.ops.kiln.attn_fwd, (k, v), q[:, :, :1]
    lengths = torch.full((1,), 127, dtype=torch.int32, device="cuda")
    pages = [x.view(1, 8, 8, 16, 64).transpose(1, 2).flatten(0, 1).contiguous() for x in cache]
    table = torch.arange(8, dtype=torch.int32, device="cuda")[None]
    return {
        "torch.ops.kiln_native.attn_fwd": lambda: plain(q, k, v, native.NO_EXTRAS),
        OPERATOR: lambda: op(q, k, v),
        f"{OPERATOR}, causal": lambda: op(q, k, v, causal=True),
        f"{OPERATOR}.default": lambda: op.default(q, k, v),
        "kiln.torch.attention": lambda: kt.attention(q, k, v),
        "kiln.torch.attention, rows first, causal": lambda: kt.attention(*rows_first, causal=True, rows_first=True),
        DECODE: lambda: kt.decode(query, *cache),
        f"{DECODE}, pages": lambda: kt.decode(query, *pages, seqused_k=lengths, block_table=table),
        f"{DECODE}, appending": lambda: kt.decode(query, *cache, k_new=query, v_new=query, seqused_k=lengths),
        "kiln.torch.scaled_dot_product_attention": lambda: kt.scaled_dot_product_attention(q, k, v),
        f"{PYTORCH}, routed": lambda: routing.scaled_dot_product_attention(q, k, v),
        PYTORCH: lambda: routing.theirs(q, k, v),
        "torch.empty_like": lambda: torch.empty_like(q),
    }


def ways_with_gradients(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> dict[str, Callable[[], object]]:
    op = torch.ops.kiln.attn_fwd
    return {
        f"{OPERATOR}, recorded": lambda: op(q, k, v),
        "kiln.torch.attention, recorded": lambda: kt.attention(q, k, v),
        "kiln.torch.scaled_dot_product_attention, recorded": lambda: kt.scaled_dot_product_attention(q, k, v),
        f"{PYTORCH}, routed, recorded": lambda: routing.scaled_dot_product_attention(q, k, v),
        f"{PYTORCH}, recorded": lambda: routing.theirs(q, k, v),
    }


def ways_and_back(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> dict[str, Callable[[], object]]:
    """Forward and backward; a thread of PyTorch's does half of it."""
    dout = torch.ones_like(q)
    return {
        f"{name}, and backward": lambda function=function: torch.autograd.grad(function(q, k, v), (q, k, v), dout)
        for name, function in (
            ("kiln.torch.scaled_dot_product_attention", kt.scaled_dot_product_attention),
            (PYTORCH, routing.theirs),
        )
    }


def measure(functions: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Microseconds of a call of each, by the host's clock."""
    times: dict[str, list[float]] = {name: [] for name in functions}
    for function in functions.values():
        for _ in range(20):
            function()
    for _ in range(BATCHES):
        for name, function in functions.items():
            torch.cuda.synchronize()
            begin = time.perf_counter()
            for _ in range(BATCH):
                function()
            times[name].append((time.perf_counter() - begin) / BATCH * 1e6)
    torch.cuda.synchronize()
    return {name: statistics.median(values) for name, values in times.items()}


def from_c(program: Path) -> dict[str, float]:
    """What benchmarks/launch/launch.c says, the best of three runs: the host's clock rises meanwhile."""
    found = []
    for _ in range(3):
        folder = Path(kiln.__file__).parent / "lib"
        said = subprocess.run([program, folder], check=True, capture_output=True, text=True).stdout
        found.append([float(re.search(rf"^{name}\s*([0-9.]+) us", said, re.M)[1])
                      for name in ("bare cuLaunchKernel", "repeated call")])  # fmt: skip
    return dict(zip((BARE, ENTRY), min(found)))


def images(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> list[str]:
    """What these calls run, as a page of measurements names it (docs/measured.py)."""
    calls = (kiln.explain(kiln.attn_fwd, q, k, v), kiln.explain(kiln.attn_fwd, q, k, v, causal=True))
    decoding = kiln.explain(kiln.attn_decode, q[:, :, :1], k, v)
    out, lse = kiln.attn_fwd(q, k, v, return_lse=True)
    backward = kiln.explain(kiln.attn_bwd, torch.ones_like(q), q, k, v, out, lse)
    every = dict.fromkeys(variant for found in (*calls, decoding, backward) for variant in found)
    return [f"`{v.key[:12]}` {v.target} {v.operation}/{v.kernel}[{v.functional}][{v.configuration}][{v.specialization}]"
            for v in every]  # fmt: skip


def table(times: dict[str, float]) -> str:
    bare = times.get(BARE)
    lines = [f"| call | host time | to {PYTORCH} | to cuLaunchKernel |", "|---|---|---|---|"]
    for name, value in times.items():
        to_bare = f"{value / bare:.2f}" if bare else "–"
        reference = times[
            f"{PYTORCH}{', recorded' if 'recorded' in name else ', and backward' if 'back' in name else ''}"
        ]
        lines.append(f"| {name} | {value:.2f} µs | {value / reference:.2f} | {to_bare} |")
    return "\n".join(lines)


def misses(times: dict[str, float]) -> list[str]:
    """What takes longer than it may."""
    share = times[OPERATOR] / times[PYTORCH]
    found = []
    if share > MOST_OF_PYTORCHS:
        found.append(f"{OPERATOR} takes {share:.2f} of {PYTORCH}'s time; at most {MOST_OF_PYTORCHS} is right")
    if times[DECODE] > MOST_OF_DECODE:
        found.append(f"{DECODE} takes {times[DECODE]:.2f} microseconds; at most {MOST_OF_DECODE:.0f} are right")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", type=Path, help="where the numbers go")
    parser.add_argument("--launch", type=Path, help="benchmarks/launch/launch.c, compiled")
    parser.add_argument("--check", action="store_true", help="fail where the operator or decode takes too long")
    arguments = parser.parse_args()
    shape = (1, 8, 128, 64)
    q, k, v = (torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in "qkv")
    times = from_c(arguments.launch) if arguments.launch else {}
    with torch.no_grad(), kt.use():
        times |= measure(ways(q, k, v))
        ran = images(q, k, v)
    leaves = [x.requires_grad_() for x in (q, k, v)]
    with kt.use():
        times |= measure(ways_with_gradients(*leaves))
        times |= measure(ways_and_back(*leaves))
    facts = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "python": sys.version.split()[0]}
    print(f"{facts['device']}, PyTorch {facts['torch']}, Python {facts['python']}\n\n{table(times)}\n")
    print("<!-- images: listed -->", *ran, "<!-- end -->", sep="\n")
    if arguments.json:
        arguments.json.write_text(json.dumps({**facts, "microseconds": times, "images": ran}, indent=1))
    missed = misses(times) if arguments.check else []
    for sentence in missed:
        print(sentence, file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
