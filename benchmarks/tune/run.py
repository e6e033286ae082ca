"""Times every aligned image of attention forward on this GPU and writes the tuned rules of its target.

    python3 benchmarks/tune/run.py --prefix <unpacked>/kiln --output tuning/flash/sm_90.yaml

For each functional and each bin of the recipe's look-up, every configuration is forced in turn on a shape of that bin;
the fastest becomes the bin's rule, unless one that other bins take too is within --tolerance of it. Launches are
captured into a CUDA graph and timed by events, so the host's cost is no part. Then, on the shapes of the project's
anchors (16,384 tokens, heads * head_dim = 2,048), the rules' choice stands against PyTorch's flash and cuDNN attention
in the same run. --results FILE takes all figures as JSON.

Needs a GPU, PyTorch and PyYAML. Build the release with KILN_PROFILE=full to choose among all configurations.
"""

from __future__ import annotations

import argparse
import collections
import itertools
import json
import os
import statistics
import subprocess
import sys
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests/runtime"), str(ROOT / "tests/gpu")]  # ffi, attention

import rules  # noqa: E402
import torch  # noqa: E402
from attention import Flash, Functional  # noqa: E402
from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: E402

RECIPE = ROOT / "tritonsrc/flash/recipe.yaml"
OPERATION, KERNEL = "attn_fwd", "attn_fwd"
# A shape for each bin, by the bin's lower edge: lengths for `queries` and `keys`, blocks of 128 rows for each
# multiprocessor for `occupancy`.
LENGTHS = {0: {"queries": 64, "keys": 256}, 65: {"queries": 512}, 1025: {"queries": 4096}, 513: {"keys": 2048},
           4097: {"keys": 8192}}  # fmt: skip
OCCUPANCY = {0: 0.5, 1: 2.0, 4: 8.0}
ANCHORS = [(length, 16384 // length) for length in (2048, 8192, 16384)]


@dataclass(frozen=True)
class Shape:
    batch: int
    heads: int
    seqlen_q: int
    seqlen_k: int

    def tensors(self, functional: Functional) -> list[torch.Tensor]:
        dtype = {"fp16": torch.float16, "bf16": torch.bfloat16}[functional.dtype]
        rows = (self.seqlen_q, self.seqlen_k, self.seqlen_k, self.seqlen_q)
        return [torch.randn(self.batch, self.heads, n, functional.head_dim, dtype=dtype, device="cuda") for n in rows]

    def operations(self, functional: Functional) -> float:
        """Floating-point operations; with causal those of the visible scores."""
        pairs = self.seqlen_q * self.seqlen_k
        if functional.causal:
            seen = min(self.seqlen_q, self.seqlen_k)
            pairs = seen * (seen + 1) / 2 + max(0, self.seqlen_q - seen) * self.seqlen_k
        return 4.0 * self.batch * self.heads * pairs * functional.head_dim


def shape_of(lower: dict[str, int], multiprocessors: int) -> Shape:
    """A call in the middle of a bin; `lower`: each axis's lower edge, 0 for the first bin."""
    seqlen_q, seqlen_k = LENGTHS[lower["queries"]]["queries"], LENGTHS[lower["keys"]]["keys"]
    blocks = OCCUPANCY[lower["occupancy"]] * multiprocessors
    planes = max(1, round(blocks / -(-seqlen_q // 128)))
    return Shape(1, planes, seqlen_q, seqlen_k)


def microseconds(launch, budget_ms: float) -> float:
    """The median time of one launch, of replays of a graph of several."""
    launch()
    torch.cuda.synchronize()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    launch()
    end.record()
    torch.cuda.synchronize()
    once = max(begin.elapsed_time(end), 0.002)
    count = max(1, min(50, int(budget_ms / 5 / once)))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(count):
            launch()
    graph.replay()
    times = []
    for _ in range(5):
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) / count)
    return statistics.median(times) * 1000


def forced(flash: Flash, tensors: list[torch.Tensor], functional: Functional, key: str | None = None):
    q, k, v, out = tensors
    keys = (key,) if key else ()
    return lambda: flash.attention(q, k, v, out, causal=functional.causal, keys=keys)


def time_bins(flash: Flash, axes: dict[str, list[int]], target: str, dtype: str, budget_ms: float) -> list[dict]:
    """A row for each functional and bin, with the microseconds of each configuration."""
    multiprocessors = torch.cuda.get_device_properties(0).multi_processor_count
    images = collections.defaultdict(dict)
    for variant in flash.kiln.variants(f"flash.{OPERATION}", target):
        if variant["specialization"] == b"aligned" and variant["unavailable"] is None:
            images[variant["functional"].decode()][variant["configuration"].decode()] = variant["key"].decode()
    rows = []
    for name, configurations in images.items():
        functional = Functional.parse(name)
        if functional.dtype != dtype:
            continue
        for lower in itertools.product(*([0, *axis] for axis in axes.values())):
            place = dict(zip(axes, lower))
            shape = shape_of(place, multiprocessors)
            tensors = shape.tensors(functional)
            times = {
                configuration: microseconds(forced(flash, tensors, functional, key), budget_ms)
                for configuration, key in configurations.items()
            }
            rows.append({"functional": name, "bin": place, "shape": vars(shape), "microseconds": times})
    return rows


def compare(flash: Flash, target: str, dtype: str, budget_ms: float) -> list[dict]:
    """TFLOP/s on the anchors' shapes: what Kiln takes unasked, the best image, PyTorch's flash and cuDNN."""
    rows = []
    keys = collections.defaultdict(dict)
    for variant in flash.kiln.variants(f"flash.{OPERATION}", target):
        if variant["specialization"] == b"aligned" and variant["unavailable"] is None:
            keys[variant["functional"].decode()][variant["configuration"].decode()] = variant["key"].decode()
    for head_dim, causal, (length, batch) in itertools.product((64, 128), (False, True), ANCHORS):
        functional = Functional(dtype, head_dim, causal)
        name = f"dtype={dtype} head_dim={head_dim} causal={str(causal).lower()}"
        shape = Shape(batch, 2048 // head_dim, length, length)
        q, k, v, _ = tensors = shape.tensors(functional)
        times = {c: microseconds(forced(flash, tensors, functional, key), budget_ms) for c, key in keys[name].items()}
        row = {
            "functional": name,
            "length": length,
            "kiln": microseconds(forced(flash, tensors, functional), budget_ms),
        }
        best = min(times, key=times.get)
        row |= {"best": times[best], "best_configuration": best}
        for label, backend in (("flash", SDPBackend.FLASH_ATTENTION), ("cudnn", SDPBackend.CUDNN_ATTENTION)):

            def reference(backend: SDPBackend = backend, q=q, k=k, v=v, causal: bool = causal):
                with sdpa_kernel(backend):
                    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)

            try:
                row[label] = microseconds(reference, budget_ms)
            except RuntimeError as error:
                print(f"{label} does not run {name}: {error}", file=sys.stderr)
                row[label] = None
        for label in ("kiln", "best", "flash", "cudnn"):
            if row[label]:
                row[f"{label}_tflops"] = shape.operations(functional) / row[label] / 1e6
        row["all"] = times
        rows.append(row)
    return rows


def about(flash: Flash) -> dict:
    def ask(what: str) -> str:
        done = subprocess.run(
            ["nvidia-smi", f"--query-gpu={what}", "--format=csv,noheader"], capture_output=True, text=True
        )
        return done.stdout.splitlines()[0].strip()

    return {
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d"), "device": ask("name"), "driver": ask("driver_version"),
        "clock": ask("clocks.sm"), "release": flash.library.c.kiln_version().decode(), "torch": torch.__version__,
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--prefix", type=Path, required=True, help="an unpacked release: .../kiln")
    parser.add_argument("--output", type=Path, help="the tuning file; default: none is written")
    parser.add_argument("--results", type=Path, help="all figures, as JSON")
    parser.add_argument("--dtype", default="bf16", choices=("fp16", "bf16"), help="what to time; rules are for both")
    parser.add_argument("--tolerance", type=float, default=0.02, help="share of time that one rule fewer may cost")
    parser.add_argument("--budget-ms", type=float, default=25.0, help="device time for one figure")
    words = parser.parse_args()
    with Flash(words.prefix) as flash:
        target = flash.kiln.devices()[0]["target"].decode()
        axes = rules.edges(RECIPE, OPERATION, KERNEL)
        rows = time_bins(flash, axes, target, words.dtype, words.budget_ms)
        written = rules.make(axes, rows, rules.choose(rows, words.tolerance))
        anchors = compare(flash, target, words.dtype, words.budget_ms)
        text = rules.tuning_file(KERNEL, written, facts := about(flash))
    if words.output:
        words.output.parent.mkdir(parents=True, exist_ok=True)
        temporary = words.output.with_name(f".{words.output.name}.{os.getpid()}")
        temporary.write_text(text)
        os.replace(temporary, words.output)
    if words.results:
        words.results.write_text(json.dumps({"about": facts, "bins": rows, "anchors": anchors}, indent=1) + "\n")
    print(text)
    print(f"{'TFLOP/s':44s} {'length':>6s} {'kiln':>6s} {'best':>6s} {'flash':>6s} {'cudnn':>6s}  best configuration")
    for row in anchors:
        figures = (f"{row.get(f'{label}_tflops', 0):6.0f}" for label in ("kiln", "best", "flash", "cudnn"))
        print(f"{row['functional']:44s} {row['length']:6d} {' '.join(figures)}  {row['best_configuration']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
