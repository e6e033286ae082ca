"""Host time of a call of attention, from C to F.scaled_dot_product_attention, in one run on one GPU.

    bash benchmarks/host/run.sh <folder of wheels> <unpacked release> [--json FILE] [--check]
    PYTHONPATH=<wheels, installed> python3 benchmarks/host/run.py [--json FILE] [--launch PROGRAM] [--check]

The ways from Python, and how they are measured, are those of `kiln bench --only host` (kiln_bench/host_time.py); a user
has those alone. With `--launch` (benchmarks/launch/launch.c, compiled) bare cuLaunchKernel and kiln_attn_fwd from C are
measured besides. Prints a table in Markdown, in which everything is told as a ratio too, and the images that were run.
`--check`: fails where a result is wrong, the operator takes more than 0.6 of F.scaled_dot_product_attention's time, or
decode more than 10 microseconds.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
from pathlib import Path

import torch

import kiln
from kiln_bench import host_time
from kiln_bench.host_time import BACK, DECODE, OPERATOR, PYTORCH, RECORDED

MOST_OF_PYTORCHS, MOST_OF_DECODE = 0.6, 10.0  # the operator's share, and microseconds
BARE, ENTRY = "cuLaunchKernel, bare, from C", "kiln_attn_fwd, from C"


def from_c(program: Path) -> dict[str, float]:
    """What benchmarks/launch/launch.c says, the best of three runs: the host's clock rises meanwhile."""
    found = []
    for _ in range(3):
        folder = Path(kiln.__file__).parent / "lib"
        said = subprocess.run([program, folder], check=True, capture_output=True, text=True).stdout
        found.append([float(re.search(rf"^{name}\s*([0-9.]+) us", said, re.M)[1])
                      for name in ("bare cuLaunchKernel", "repeated call")])  # fmt: skip
    return dict(zip((BARE, ENTRY), min(found)))


def table(times: dict[str, float]) -> str:
    bare = times.get(BARE)
    lines = [f"| call | host time | to {PYTORCH} | to cuLaunchKernel |", "|---|---|---|---|"]
    for name, value in times.items():
        to_bare = f"{value / bare:.2f}" if bare else "–"
        kind = next((kind for kind in (RECORDED, BACK) if name.endswith(f", {kind}")), "")
        reference = times[f"{PYTORCH}, {kind}" if kind else PYTORCH]
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
    found = host_time.run(host_time.BATCHES)
    times = from_c(arguments.launch) if arguments.launch else {}
    times |= {name: statistics.median(each) for name, each in found["microseconds"].items()}
    ran = [f"`{image[:12]}`{image[12:]}" for image in found["images"]]
    facts = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "python": found["python"]}
    print(f"{facts['device']}, PyTorch {facts['torch']}, Python {facts['python']}\n\n{table(times)}\n")
    print("<!-- images: listed -->", *ran, "<!-- end -->", sep="\n")
    if arguments.json:
        arguments.json.write_text(json.dumps({**facts, "microseconds": times, "images": ran}, indent=1))
    for name, why in (found["refused"] | found["wrong"]).items():
        print(f"{name}: {why}", file=sys.stderr)
    missed = [*misses(times), *found["wrong"]] if arguments.check else []
    for sentence in missed:
        print(sentence, file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
