"""Gradients where inputs have a mean: dq's error beside PyTorch's attention, and what it costs to be right.

    python3 benchmarks/attention/means.py --prefix <unpacked>/kiln [--against <other>/kiln] --json FILE
    python3 benchmarks/attention/means.py --from FILE --markdown FILE     # of results that were kept; no GPU

q, k, v and dout are uniform in [0, 1), and keys have an offset besides. An error is the root mean square of what dq
differs by from float64's, beside that of dq itself: of Kiln, FlashAttention-2, cuDNN, and PyTorch's math attention,
which computes in fp32. With --against backward is timed beside another release's, in turns; of normal inputs, since the
time depends on no values. Needs an NVIDIA GPU and PyTorch. Judged (exit code 1 if
one is missed):

    error       at most twice that of PyTorch's math attention, or 0.01, whichever is more
    time        backward at most 1.02 times as long as the other release's, by the geometric mean of the shapes
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from datetime import datetime, timezone
from pathlib import Path

import figures
import means_report
from shapes import shapes

ROOT = Path(__file__).resolve().parents[2]
OFFSETS = (0.0, 5.0, 50.0)
HEADS = 2  # of errors; each is a mean over them


def _leaves(given: list, dtype) -> list:
    return [tensor.detach().to(dtype).requires_grad_() for tensor in given]


def _exact(q, k, v, dout):
    """dq in float64, a head at a time: the weights of one take half a gigabyte."""
    import torch

    result = torch.empty_like(q, dtype=torch.float64)
    for batch in range(q.shape[0]):
        for head in range(q.shape[1]):
            one_q, one_k, one_v, one_dout = (t[batch, head].double() for t in (q, k, v, dout))
            p = torch.softmax(one_q @ one_k.T * q.shape[3] ** -0.5, 1)
            dp = one_dout @ one_v.T
            result[batch, head] = p.mul_(dp - (p * dp).sum(1, keepdim=True)) @ one_k * q.shape[3] ** -0.5
    return result


def _by_kiln(entries, q, k, v, dout):
    import torch

    out, dq, dk, dv = (torch.full_like(t, torch.nan) for t in (dout, q, k, v))
    lse = torch.full(q.shape[:3], torch.nan, dtype=torch.float32, device=q.device)
    given = {"q": q, "k": k, "v": v, "out": out, "lse": lse}
    entries.forward(**given)()
    launch = entries.backward(**given, dout=dout, dq=dq, dk=dk, dv=dv)
    launch()
    return dq, launch.images


def _by_torch(backend, q, k, v, dout):
    import torch
    from torch.nn.attention import sdpa_kernel

    leaves = _leaves([q, k, v], q.dtype)
    with sdpa_kernel(backend):
        out = torch.nn.functional.scaled_dot_product_attention(*leaves)
    return torch.autograd.grad(out, leaves[0], dout)[0]


def errors(entries, dtype: str, head_dim: int, offset: float, rows: int, keys: int, device: str = "cuda") -> dict:
    """A row of the results: each side's error, or why it refused."""
    import ffi
    import torch
    from entries import reason
    from torch.nn.attention import SDPBackend

    types = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
    generator = torch.Generator(device).manual_seed(0)

    def uniform(length: int, more: float = 0.0):
        drawn = torch.rand(1, HEADS, length, head_dim, generator=generator, device=device) + more
        return drawn.to(types[dtype])

    given = uniform(rows), uniform(keys, offset), uniform(keys), uniform(rows)
    exact = _exact(*given)
    sides = {"kiln": lambda: _by_kiln(entries, *given), "math": lambda: _by_torch(SDPBackend.MATH, *given)}
    if dtype != "fp32":
        sides["flash"] = lambda: _by_torch(SDPBackend.FLASH_ATTENTION, *given)
        sides["cudnn"] = lambda: _by_torch(SDPBackend.CUDNN_ATTENTION, *given)
    row = {"dtype": dtype, "head_dim": head_dim, "offset": offset, "errors": {}, "refusals": {}, "images": []}
    for name, make in sides.items():
        try:
            made = make()
            if name == "kiln":
                made, row["images"] = made
            difference = torch.linalg.vector_norm(made.double() - exact) / torch.linalg.vector_norm(exact)
            row["errors"][name] = difference.item()
        except (ffi.Failure, RuntimeError) as error:
            row["refusals"][name] = reason(error)
    return row


def costs(releases: dict, words: argparse.Namespace, look) -> list[dict]:
    """Rows of times: milliseconds of both releases' backward in each round, by shape. look() is called at work."""
    import timing
    import torch
    import training

    rows = []
    for shape in shapes([64, 128], words.lengths):
        problem = training.Problem(releases, shape, torch.bfloat16, "bhsd")
        made = problem.sides("backward")
        if absent := [name for name in releases if name not in made]:
            raise SystemExit(f"means.py: {absent[0]} refuses: {problem.refusals[absent[0]]}")
        sides = {name: made[name] for name in releases}
        times, _ = timing.interleave(sides, words.rounds, words.budget_ms, while_busy=look)
        rows.append({"head_dim": shape.head_dim, "causal": shape.causal, "length": shape.length,
                     "milliseconds": times, "images": sides["kiln"].images})  # fmt: skip
        del problem, made, sides
    return rows


def measure(words: argparse.Namespace, keep) -> dict:
    sys.path.append(str(ROOT / "tests/runtime"))  # ffi
    import timing
    import torch
    from entries import Entries, digest

    torch.backends.cuda.matmul.allow_tf32 = False
    results = {
        "about": {
            "date": datetime.now(timezone.utc).strftime("%Y-%m-%d"), "gpu": timing.nvidia_smi(),
            "torch": torch.__version__, "cudnn": str(torch.backends.cudnn.version()), "manifest": digest(words.prefix),
            "against": digest(words.against) if words.against else "", "rows": words.rows, "keys": words.keys,
        },
        "errors": [], "times": [], "busy": [],
    }  # fmt: skip
    with contextlib.ExitStack() as stack:
        entries = stack.enter_context(Entries(words.prefix))
        results["about"]["release"] = entries.version
        for dtype in words.dtypes:
            for head_dim in words.head_dims:
                for offset in OFFSETS:
                    results["errors"].append(errors(entries, dtype, head_dim, offset, words.rows, words.keys))
                    keep(results)
        if words.against:
            releases = {"kiln": entries, "against": stack.enter_context(Entries(words.against, is_second=True))}
            results["times"] = costs(releases, words, lambda: results["busy"].append(timing.nvidia_smi()))
            keep(results)
    return results


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    figures.add_words(parser)
    parser.add_argument("--against", type=Path, help="another release's folder `kiln`, for the time")
    parser.add_argument("--dtypes", nargs="+", choices=("bf16", "fp16", "fp32"), default=["bf16", "fp16", "fp32"])
    parser.add_argument("--head-dims", nargs="+", type=int, default=[32, 64, 96, 128, 192, 256])
    parser.add_argument("--rows", type=int, default=1024)
    parser.add_argument("--keys", type=int, default=8192)
    parser.add_argument(
        "--lengths", nargs="+", type=int, default=[2048, 8192, 16384], help="of sequences, for the time"
    )
    words = parser.parse_args(arguments)
    if min(words.rows, words.keys, words.rounds, *words.head_dims, *words.lengths) < 1 or words.budget_ms <= 0:
        parser.error("sizes, lengths, --rounds and --budget-ms must be above 0")
    if words.kept and words.against:
        parser.error("--against is measured, so it cannot be together with --from")
    return words


def main() -> int:
    words = parse()
    results = figures.taken(words, measure)
    print(means_report.text(results))
    if words.markdown:
        figures.write(words.markdown, means_report.markdown(results))
    return 1 if means_report.judge(results) else 0


if __name__ == "__main__":
    sys.exit(main())
