"""Makes report.md, facts.json and rows.jsonl of what a run of the GPU suite left.

python3 report.py TARBALL RESULTS OUTPUT
"""

from __future__ import annotations

import hashlib
import json
import platform
import re
import statistics
import sys
from collections import Counter
from collections.abc import Iterable
from datetime import datetime, timezone
from pathlib import Path

import verified

ROOT = Path(__file__).resolve().parents[2]
# Of results, by what tests call them in `record`; each has its place in the report.
_IN_SECTIONS = {"image", "feature", "random", "deterministic", "fp8", "jit", "dropout", "sanitizer", "refused"}
KINDS = _IN_SECTIONS | {"step", "device", "unload"}


def facts(tarball: Path) -> dict:
    sys.path.append(str(ROOT / "v3python"))
    import torch

    from kiln_bench import state

    return {
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d"),
        "tarball": tarball.name,
        "sha256": hashlib.sha256(tarball.read_bytes()).hexdigest(),
        "gpu": state.nvidia_smi(),
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


def by(target: str | None) -> str:
    return f"{target}'s PTX" if target else "native"


def feature_rows(features: list[dict]) -> list[list[object]]:
    """A row of the table for each feature, in the order of the suite: natively, and by PTX."""
    names = list(dict.fromkeys(entry["row"] for entry in features))
    result = []
    for name in names:
        cells: list[object] = [name]
        for target in (None, "sm_80"):
            found = [e for e in features if e["row"] == name and e["target"] == target]
            if not found:
                cells += ["", "", ""]
                continue
            (entry,) = found[-1:]
            refused = f" ({entry['refused']} refused)" if entry["refused"] else ""
            worst = f"{entry['ratio']:.2f} ({entry['output']})" if entry["output"] else "0"
            cells += [f"{entry['cases']}{refused}", entry["wrong"], worst]
        result.append(cells)
    return result


def image_rows(images: list[dict]) -> list[list[object]]:
    """A row for each kernel and target: how many images there are, and the worst of them."""
    groups: dict[tuple, list[dict]] = {}
    for image in images:
        groups.setdefault((image["kernel"], image["by"], image["target"]), []).append(image)
    rows = []
    for (kernel, how, target), members in sorted(groups.items()):
        worst = max(members, key=lambda i: i["worst_share_of_limit"])
        rows.append([
            kernel, f"{target}'s PTX" if how == "PTX" else target, len(members), sum(i["cases"] for i in members),
            sum(not i["worst_share_of_limit"] <= 1 for i in members), f"{2 * worst['worst_share_of_limit']:.2f}",
            f"{worst['functional']} [{worst['configuration']}] {worst['specialization']}",
        ])  # fmt: skip
    return rows


def forced_again(images: list[dict]) -> list[list[object]]:
    """A row for each way in which images ran: how many were forced in equal calls, each in how many."""
    counts = Counter((image["by"], image["target"], image["runs"]) for image in images if image.get("runs"))
    return [
        [f"a call of each of {count} images", f"{target}'s PTX" if how == "PTX" else "native", runs]
        for (how, target, runs), count in sorted(counts.items())
    ]


def fp8_rows(entries: list[dict]) -> list[list[object]]:
    """A row for each kind of inputs, width, dtype and tiles: its worst call."""
    groups: dict[tuple, list[dict]] = {}
    for e in entries:
        tiles = "192 rows" if e.get("large") else "128 rows"
        groups.setdefault((e["inputs"], e["width"], e["dtype"], tiles), []).append(e)
    rows = []
    for about, calls in groups.items():
        worst = max(calls, key=lambda e: e["error"] / e["rounding"])
        ratio = f"{worst['error'] / worst['rounding']:.2f}"
        rows.append([*about, len(calls), f"{worst['error']:.2e}", f"{worst['rounding']:.2e}", ratio])
    return rows


def sections(answer: dict) -> list[str]:
    kinds = answer["kinds"]
    lines = [
        "## Features",
        "",
        "The worst of (error - allowance) / (error of PyTorch's math attention in the same precision, or of the same",
        "formula in plain operations of that precision), each against float64: the largest and the mean error,",
        "absolute and relative to the output's scale. Right if not above 2.",
        "",
        *table(
            ["feature", "native: cases", "wrong", "worst ratio", "sm_80's PTX: cases", "wrong", "worst ratio"],
            feature_rows(kinds.get("feature", [])),
        ),
        "## Random calls",
        "",
        *table(
            ["of", "seed", "calls", "wrong", "refused", "judged by 5 or 25 draws", "worst ratio"],
            [
                [e["of"], e["seed"], e["cases"], e["wrong"], e["refused"], e["pooled"], f"{e['worst_ratio']:.2f}"]
                for e in kinds.get("random", [])
            ],
        ),
        "## Equal bits",
        "",
        *table(
            ["call", "by", "runs with equal bits"],
            [
                *forced_again(kinds.get("image", [])),
                *([f"`{e['call']}`", by(e["target"]), e["runs"]] for e in kinds.get("deterministic", [])),
            ],
        ),
        "## fp8",
        "",
        "Root mean square of what forward of e4m3 differs by from float64's of the same e4m3 numbers, and of what the",
        "formula does with probabilities and output rounded by PyTorch. Right if at most twice that.",
        "",
        *table(["inputs", "head_dim", "out", "tiles", "calls", "error", "of PyTorch's roundings", "worst ratio"],
               fp8_rows(kinds.get("fp8", []))),
        "## kiln.jit",
        "",
        *table(["call", "kernels", "differences to the release", "equal bits", "farthest, of the scale"],
               [[e["name"], ", ".join(e["kernels"]), "; ".join(dict.fromkeys(e["differences"])) or "none",
                 "yes" if e["bits"] else "no", f"{e['far']:.1e}"] for e in kinds.get("jit", [])]),
        "## Dropout",
        "",
        *(f"- {json.dumps(e)}" for e in kinds.get("dropout", [])),
        "",
        "## compute-sanitizer",
        "",
        *table(["tool", "outcome", "verdict"],
               [[e["tool"], "FAILED" if e["status"] else "clean", e["verdict"]] for e in kinds.get("sanitizer", [])]),
        "## Images",
        "",
        "An image counts once for each functional that has it.",
        "",
        *table(["kernel", "by", "images", "cases", "wrong", "worst ratio", "of"], image_rows(kinds.get("image", []))),
    ]  # fmt: skip
    refused = sorted({e["sentence"] for e in kinds.get("refused", [])})
    if refused:
        lines += [
            "## Refused",
            "",
            "What the release has no image for, in its own words:",
            "",
            *map("- {}".format, refused),
            "",
        ]
    return lines


def markdown(answer: dict) -> str:
    about, gpu, kinds = answer["facts"], answer["facts"]["gpu"], answer["kinds"]
    steps = [[s["name"], "FAILED" if s["status"] else "passed", s["seconds"]] for s in kinds.get("step", [])]
    lines = [
        f"# The attention family on {gpu.get('name', 'a GPU')}, {about['date']}",
        "",
        f"`{about['tarball']}`, sha256 `{about['sha256']}`. Driver {gpu.get('driver_version')}; SM clock "
        f"{gpu.get('clocks.sm')} after the run (at most {gpu.get('clocks.max.sm')}), memory {gpu.get('clocks.mem')}; "
        f"Python {about['python']}, PyTorch {about['torch']}. Made by `tests/gpu/run_all.sh`.",
        "",
        *table(["step", "outcome", "seconds"], steps),
        *sections(answer),
    ]
    rounds = answer["launch"]
    if rounds:
        lines += ["## Cost of a call on the host", "", "Microseconds, of processes one after another.", ""]
        figures = [
            [name, f"{statistics.median(r[name] for r in rounds):.2f}", *(f"{r[name]:.2f}" for r in rounds)]
            for name in rounds[0]
        ]
        lines += table(["", "median", *(f"run {n + 1}" for n in range(len(rounds)))], figures)
    other = [e for kind in ("device", "unload") for e in kinds.get(kind, [])]
    if other:
        lines += ["## Other figures", "", "```", *map(json.dumps, other), "```"]
    if kinds.get("image"):
        found = verified.paths(kinds["image"], kinds["device"][-1]["name"])
        files = " ".join(f"verified/{path.name}" for path in found.values())
        where = "The keys of the images that ran, natively and by their PTX, are in the files in `verified/`."
        lines += ["", "## Keys", "", f"<!-- images: {files} -->", where]
    return "\n".join(lines).rstrip() + "\n"


def main() -> int:
    tarball, results, output = map(Path, sys.argv[1:4])
    answer: dict = {"facts": facts(tarball), "kinds": {}, "launch": launch_rounds(results)}
    lines = [line for path in sorted(results.glob("*.jsonl")) for line in path.read_text().splitlines()]
    for entry in map(json.loads, lines):
        answer["kinds"].setdefault(entry["kind"], []).append(entry)
    if unknown := answer["kinds"].keys() - KINDS:
        sys.exit(f"results of a kind that the report does not show: {', '.join(sorted(unknown))}")
    (output / "rows.jsonl").write_text("\n".join(lines) + "\n")
    figures = {name: answer[name] for name in ("facts", "launch")}
    (output / "facts.json").write_text(json.dumps(figures, indent=1) + "\n")
    (output / "report.md").write_text(markdown(answer))
    kinds, rounds = answer["kinds"], answer["launch"]
    images, features, random = (kinds.get(kind, []) for kind in ("image", "feature", "random"))
    print(f"{len(images)} images, {sum(i['cases'] for i in images)} cases; {sum(f['cases'] for f in features)} cases "
          f"of {len(features)} rows of features; {sum(r['cases'] for r in random)} random calls")  # fmt: skip
    for name in rounds[0] if rounds else ():
        print(f"{name:20s} {statistics.median(r[name] for r in rounds):10.2f} us")
    return 0 if images else 1


if __name__ == "__main__":
    sys.exit(main())
