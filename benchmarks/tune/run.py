"""Times the aligned images of attention forward and backward on this GPU and writes the tuned rules of its target.

    python3 benchmarks/tune/run.py --release RELEASE --output tuning/flash/sm_90.yaml

For each functional without extras and each bin of a kernel's look-up, every configuration is forced in turn on a shape
of that bin, with a causal mask and without; the one with the least geometric mean of both times becomes the bin's rule,
unless one that other bins take too is within --tolerance of it. A backward call is timed whole: what its other kernels
take is in each figure. Launches are captured into a CUDA graph and timed by events, so the host's cost is no part.
--results FILE takes all figures as JSON. How the result stands beside other libraries: `kiln bench`.

Needs a GPU, PyTorch and PyYAML. Build the release with KILN_PROFILE=full to choose among all configurations.
"""

from __future__ import annotations

import argparse
import collections
import ctypes
import itertools
import json
import math
import os
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "v3python"))

import rules  # noqa: E402
import torch  # noqa: E402

from kiln_bench import timing  # noqa: E402
from kiln_bench.release import headers, places  # noqa: E402
from kiln_bench.release.library import Launch, Libraries  # noqa: E402

RECIPE = ROOT / "tritonsrc/flash/recipe.yaml"
OPERATIONS = {"attn_fwd.general": "attn_fwd", "attn_bwd_dq": "attn_bwd", "attn_bwd_dk_dv": "attn_bwd"}  # by kernel
DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}
EXACT = (64, 128)  # head dimensions with an image that is not padded; all others have no other
LONGEST = 8192


@dataclass(frozen=True)
class Shape:
    heads: int
    seqlen_q: int
    seqlen_k: int
    head_dim: int
    width: int

    def tensor(self, rows: int, dtype: torch.dtype) -> torch.Tensor:
        """Rows as far apart as the image is wide: aligned, whatever the width."""
        return torch.randn(1, self.heads, rows, self.head_dim, dtype=dtype, device="cuda")[..., : self.width]


class Release(Libraries):
    """A release's entries, and its images by kernel."""

    def __init__(self, place: places.Place) -> None:
        super().__init__(place.libraries, headers.read(place.headers))
        self.target = self.devices()[0]["target"]

    def images(self, kernel: str) -> dict[str, dict[str, str]]:
        """By functional and configuration the keys of its aligned images."""
        found = collections.defaultdict(dict)
        for variant in self.variants(f"flash.{OPERATIONS[kernel]}", self.target):
            is_image = variant["unavailable"] is None and variant["specialization"] == "aligned"
            if is_image and variant["kernel"] == kernel:
                found[variant["functional"]][variant["configuration"]] = variant["key"]
        return found

    def calls(self, kernel: str, shape: Shape, dtype: torch.dtype) -> Callable[[str, bool], Launch]:
        """A function of a key and whether there is a causal mask, which makes a call with that image forced."""
        q, out = (shape.tensor(shape.seqlen_q, dtype) for _ in range(2))
        k, v = (shape.tensor(shape.seqlen_k, dtype) for _ in range(2))
        given = {"q": q, "k": k, "v": v, "out": out}
        if OPERATIONS[kernel] == "attn_bwd":
            given["lse"] = torch.empty(1, shape.heads, shape.seqlen_q, device="cuda")
            # No score is far above a log-sum-exp over all keys, so the gradients are finite with a mask too.
            self.prepare("attn_fwd", **given)()
            lengths = {"dout": shape.seqlen_q, "dq": shape.seqlen_q, "dk": shape.seqlen_k, "dv": shape.seqlen_k}
            gradients = {name: shape.tensor(rows, dtype) for name, rows in lengths.items()}

        def make(key: str, causal: bool) -> Launch:
            keys = (ctypes.c_char_p * 1)(key.encode())
            forced = given | {"causal": int(causal), "force_keys": keys, "force_count": 1}
            if "lse" in given:
                return self.prepare("attn_bwd", **forced, **gradients)
            return self.prepare("attn_fwd", **forced)

        return make


def shape_of(axes: dict[str, list[int]], lower: dict[str, int], multiprocessors: int, functional: dict) -> Shape:
    """A call of a functional in the middle of a bin; `lower`: each axis's lower edge, 0 for the first bin."""

    def end(axis: str) -> int | None:
        return next((edge for edge in axes[axis] if edge > lower[axis]), None)

    def length(axis: str) -> int:
        if end(axis) is None:
            return min(4 * (lower[axis] - 1), LONGEST)
        return end(axis) - 1 if end(axis) <= 128 else (end(axis) - 1) // 2

    seqlen_q = length("queries")
    blocks = 4.0  # of 128 rows for each multiprocessor, where the look-up does not ask
    if "occupancy" in axes:
        begin = lower["occupancy"]
        blocks = 2.0 * begin if end("occupancy") is None else math.sqrt((begin or 0.25) * end("occupancy"))
    heads = max(1, round(blocks * multiprocessors / -(-seqlen_q // 128)))
    head_dim = functional["head_dim"]
    is_narrow = functional["padded"] and head_dim in EXACT
    return Shape(heads, seqlen_q, length("keys"), head_dim, head_dim - 8 if is_narrow else head_dim)


def microseconds(launch: Callable[[], None], budget_ms: float) -> float:
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


def time_bins(release: Release, kernel: str, dtype: str, budget_ms: float) -> list[dict]:
    """A row for each functional and bin, with the microseconds of each configuration; none where there is but one."""
    axes = rules.edges(RECIPE, OPERATIONS[kernel], kernel)
    multiprocessors = torch.cuda.get_device_properties(0).multi_processor_count
    rows = []
    for name, images in release.images(kernel).items():
        functional = rules.values(name)
        is_reached = functional["padded"] or functional["head_dim"] in EXACT
        if len(images) < 2 or not is_reached or (functional["dtype"], functional["extras"]) != (dtype, "none"):
            continue
        for lower in itertools.product(*([0, *axis] for axis in axes.values())):
            place = dict(zip(axes, lower))
            shape = shape_of(axes, place, multiprocessors, functional)
            make = release.calls(kernel, shape, DTYPES[dtype])
            both = {
                c: [microseconds(make(key, mask), budget_ms) for mask in (False, True)] for c, key in images.items()
            }
            times = {configuration: math.sqrt(full * causal) for configuration, (full, causal) in both.items()}
            rows.append({
                "kernel": kernel, "functional": name, "bin": place, "shape": vars(shape), "microseconds": times,
                "full_and_causal": both,
            })  # fmt: skip
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--release", required=True, help="a tarball, an unpacked release, or a folder of wheels")
    parser.add_argument("--output", type=Path, help="the tuning file; default: none is written")
    parser.add_argument("--results", type=Path, help="all figures, as JSON")
    parser.add_argument("--kernels", nargs="+", default=list(OPERATIONS), choices=list(OPERATIONS))
    parser.add_argument("--dtype", default="bf16", choices=list(DTYPES), help="what to time; rules are for both")
    parser.add_argument("--tolerance", type=float, default=0.02, help="share of time that one rule fewer may cost")
    parser.add_argument("--budget-ms", type=float, default=25.0, help="device time for one figure")
    words = parser.parse_args()
    rows, written = [], {}
    with places.found(words.release) as place, Release(place) as release:
        for kernel in words.kernels:
            mine = time_bins(release, kernel, words.dtype, words.budget_ms)
            axes = rules.edges(RECIPE, OPERATIONS[kernel], kernel)
            written[kernel] = rules.make(axes, mine, rules.choose(mine, words.tolerance))
            rows += mine
        state = timing.nvidia_smi()
        facts = {
            "date": datetime.now(timezone.utc).strftime("%Y-%m-%d"), "device": state.get("name", release.target),
            "driver": state.get("driver_version", ""), "clock": state.get("clocks.sm", ""), "release": release.version,
        }  # fmt: skip
    text = rules.tuning_file(written, facts)
    if words.output:
        words.output.parent.mkdir(parents=True, exist_ok=True)
        temporary = words.output.with_name(f".{words.output.name}.{os.getpid()}")
        temporary.write_text(text)
        os.replace(temporary, words.output)
    if words.results:
        words.results.write_text(json.dumps({"about": facts, "bins": rows}, indent=1) + "\n")
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
