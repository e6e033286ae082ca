"""Makes report.md, facts.json and rows.jsonl of what a run of the GPU suite left.

python3 report.py TARBALL RESULTS OUTPUT
"""

from __future__ import annotations

import hashlib
import json
import platform
import re
import statistics
import subprocess
import sys
from collections.abc import Iterable
from datetime import datetime, timezone
from pathlib import Path

QUERY = ("name", "driver_version", "clocks.sm", "clocks.max.sm", "clocks.mem", "power.limit", "compute_cap")


def nvidia_smi() -> dict[str, str]:
    try:
        done = subprocess.run(
            ["nvidia-smi", f"--query-gpu={','.join(QUERY)}", "--format=csv,noheader"], capture_output=True, text=True
        )
        return dict(zip(QUERY, map(str.strip, done.stdout.splitlines()[0].split(","))))
    except (OSError, IndexError):
        return {}


def facts(tarball: Path) -> dict:
    import torch

    return {
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d"),
        "tarball": tarball.name,
        "sha256": hashlib.sha256(tarball.read_bytes()).hexdigest(),
        "gpu": nvidia_smi(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def launch_rounds(results: Path) -> list[dict[str, float]]:
    """Microseconds of each round of benchmarks/launch, by name."""
    figure = re.compile(r"^([a-zA-Z ]+?)\s*([\d.]+) us", re.MULTILINE)
    texts = [path.read_text() for path in sorted(results.glob("launch.*.txt"))]
    return [{name: float(value) for name, value in figure.findall(text)} for text in texts]


def row(cells: Iterable[object]) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def table(head: list[str], rows: Iterable[Iterable[object]]) -> list[str]:
    return [row(head), "|---" * len(head) + "|", *map(row, rows), ""]


def image_rows(images: list[dict]) -> list[list[object]]:
    def order(i: dict) -> tuple:
        return i["by"], i["target"], i["functional"], i["configuration"], i["specialization"]

    return [
        [
            i["functional"], i["configuration"], i["specialization"],
            f"{i['target']}'s PTX" if i["by"] == "PTX" else i["by"], i["cases"], f"{i['error']:.2e}",
            f"{i['limit']:.2e}", f"{i['worst_share_of_limit']:.2f}", f"{i['lse_error']:.1e}", i["registers"],
            i["spill_bytes"],
        ]
        for i in sorted(images, key=order)
    ]  # fmt: skip


def markdown(answer: dict) -> str:
    about, gpu = answer["facts"], answer["facts"]["gpu"]
    steps = [[s["name"], "FAILED" if s["status"] else "passed", s["seconds"]] for s in answer["steps"]]
    lines = [
        f"# Attention forward on {gpu.get('name', 'a GPU')}, {about['date']}",
        "",
        f"`{about['tarball']}`, sha256 `{about['sha256']}`. Driver {gpu.get('driver_version')}; SM clock "
        f"{gpu.get('clocks.sm')} after the run (at most {gpu.get('clocks.max.sm')}), memory {gpu.get('clocks.mem')}; "
        f"Python {about['python']}, PyTorch {about['torch']}. Made by `tests/gpu/run_all.sh`.",
        "",
        *table(["step", "outcome", "seconds"], steps),
        "## Images",
        "",
        "Largest absolute error against float64 over all cases of an image, in the worst of them; the limit there is",
        "twice the error of PyTorch's math attention in the same precision, plus 1e-5.",
        "",
        *table(
            ["functional", "configuration", "specialization", "by", "cases", "error", "limit", "share", "lse error",
             "registers", "spills"],
            image_rows(answer["images"]),
        ),
    ]  # fmt: skip
    rounds = answer["launch"]
    if rounds:
        lines += ["## Cost of a call on the host", "", "Microseconds, of processes one after another.", ""]
        figures = [
            [name, f"{statistics.median(r[name] for r in rounds):.2f}", *(f"{r[name]:.2f}" for r in rounds)]
            for name in rounds[0]
        ]
        lines += table(["", "median", *(f"run {n + 1}" for n in range(len(rounds)))], figures)
    if answer["other"]:
        lines += ["## Other figures", "", "```", *map(json.dumps, answer["other"]), "```"]
    return "\n".join(lines).rstrip() + "\n"


def main() -> int:
    tarball, results, output = map(Path, sys.argv[1:4])
    answer: dict = {"facts": facts(tarball), "steps": [], "images": [], "other": [], "launch": launch_rounds(results)}
    lines = [line for path in sorted(results.glob("*.jsonl")) for line in path.read_text().splitlines()]
    for entry in map(json.loads, lines):
        answer[{"image": "images", "step": "steps"}.get(entry["kind"], "other")].append(entry)
    (output / "rows.jsonl").write_text("\n".join(lines) + "\n")
    figures = {name: answer[name] for name in ("facts", "launch")}
    (output / "facts.json").write_text(json.dumps(figures, indent=1) + "\n")
    (output / "report.md").write_text(markdown(answer))
    images, rounds = answer["images"], answer["launch"]
    worst = max((i["worst_share_of_limit"] for i in images), default=0)
    print(f"{len(images)} images, {sum(i['cases'] for i in images)} cases; the worst error is {worst:.2f} of its limit")
    for name in rounds[0] if rounds else ():
        print(f"{name:20s} {statistics.median(r[name] for r in rounds):10.2f} us")
    return 0 if images else 1


if __name__ == "__main__":
    sys.exit(main())
