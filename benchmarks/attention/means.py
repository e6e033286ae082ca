"""Gradients where inputs have a mean: dq's error beside PyTorch's attention.

    python3 benchmarks/attention/means.py --release <tarball, unpacked release or folder of wheels> --json FILE
    python3 benchmarks/attention/means.py --from FILE --markdown FILE     # of results that were kept; no GPU

q, k, v and dout are uniform in [0, 1), and keys have an offset besides. An error is the root mean square of what dq
differs by from float64's, beside that of dq itself: of Kiln, FlashAttention-2, cuDNN, and PyTorch's math attention,
which computes in fp32. What it costs to be right beside another release: `kiln bench ONE OTHER --only backward`. Needs
an NVIDIA GPU and PyTorch. Judged (exit code 1 if it is missed): the error is at most twice that of PyTorch's math
attention, or 0.01, whichever is more.
"""

from __future__ import annotations

import argparse
import json
import sys
from datetime import datetime, timezone
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "v3python"))

import means_report  # noqa: E402

from kiln_bench import state  # noqa: E402
from kiln_bench.attention.row import reason  # noqa: E402
from kiln_bench.release import headers, places  # noqa: E402
from kiln_bench.release.library import Libraries, Refused  # noqa: E402
from kiln_recipe.console.appear import appear  # noqa: E402

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


def _by_kiln(libraries, q, k, v, dout):
    import torch

    out, dq, dk, dv = (torch.full_like(t, torch.nan) for t in (dout, q, k, v))
    lse = torch.full(q.shape[:3], torch.nan, dtype=torch.float32, device=q.device)
    given = {"q": q, "k": k, "v": v, "out": out, "lse": lse}
    libraries.prepare("attn_fwd", **given)()
    launch = libraries.prepare("attn_bwd", **given, dout=dout, dq=dq, dk=dk, dv=dv)
    launch()
    return dq, launch.images


def _by_torch(backend, q, k, v, dout):
    import torch
    from torch.nn.attention import sdpa_kernel

    leaves = _leaves([q, k, v], q.dtype)
    with sdpa_kernel(backend):
        out = torch.nn.functional.scaled_dot_product_attention(*leaves)
    return torch.autograd.grad(out, leaves[0], dout)[0]


def errors(libraries, dtype: str, head_dim: int, offset: float, rows: int, keys: int, device: str = "cuda") -> dict:
    """A row of the results: each side's error, or why it refused."""
    import torch
    from torch.nn.attention import SDPBackend

    types = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
    generator = torch.Generator(device).manual_seed(0)

    def uniform(length: int, more: float = 0.0):
        drawn = torch.rand(1, HEADS, length, head_dim, generator=generator, device=device) + more
        return drawn.to(types[dtype])

    given = uniform(rows), uniform(keys, offset), uniform(keys), uniform(rows)
    exact = _exact(*given)
    sides = {"kiln": lambda: _by_kiln(libraries, *given), "math": lambda: _by_torch(SDPBackend.MATH, *given)}
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
        except (Refused, RuntimeError) as error:
            row["refusals"][name] = reason(error, [])
    return row


def measure(words: argparse.Namespace, keep) -> dict:
    """All results. keep(results) is called after each row: what was measured outlives a device that fails."""
    import torch

    torch.backends.cuda.matmul.allow_tf32 = False
    with places.found(words.release) as place, Libraries(place.libraries, headers.read(place.headers)) as libraries:
        results = {
            "about": {
                "date": datetime.now(timezone.utc).strftime("%Y-%m-%d"), "gpu": state.nvidia_smi(),
                "torch": torch.__version__, "cudnn": str(torch.backends.cudnn.version()), "release": libraries.version,
                "pack": place.pack(libraries.devices()[0]["target"]), "rows": words.rows, "keys": words.keys,
            },
            "errors": [],
        }  # fmt: skip
        for dtype in words.dtypes:
            for head_dim in words.head_dims:
                for offset in OFFSETS:
                    results["errors"].append(errors(libraries, dtype, head_dim, offset, words.rows, words.keys))
                    keep(results)
    return results


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--release", help="a tarball, an unpacked release, or a folder of wheels")
    source.add_argument("--from", type=Path, dest="kept", metavar="FILE", help="what --json wrote; measures nothing")
    parser.add_argument("--json", type=Path, help="all figures; written anew after each row")
    parser.add_argument("--markdown", type=Path, help="the tables, as docs/measurements has them")
    parser.add_argument("--dtypes", nargs="+", choices=("bf16", "fp16", "fp32"), default=["bf16", "fp16", "fp32"])
    parser.add_argument("--head-dims", nargs="+", type=int, default=[32, 64, 96, 128, 192, 256])
    parser.add_argument("--rows", type=int, default=1024)
    parser.add_argument("--keys", type=int, default=8192)
    words = parser.parse_args(arguments)
    if min(words.rows, words.keys, *words.head_dims) < 1:
        parser.error("sizes must be above 0")
    return words


def main() -> int:
    words = parse()

    def keep(results: dict) -> None:
        if words.json:
            _write(words.json, json.dumps(results, indent=1) + "\n")

    results = json.loads(words.kept.read_text()) if words.kept else measure(words, keep)
    keep(results)
    print(means_report.text(results))
    if words.markdown:
        _write(words.markdown, means_report.markdown(results))
    return 1 if means_report.judge(results) else 0


def _write(path: Path, text: str) -> None:
    with appear(path) as fresh:
        fresh.write_text(text)


if __name__ == "__main__":
    sys.exit(main())
