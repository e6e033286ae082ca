"""What multiprocessors do in calls of attention, by NVIDIA's counters, for docs/measurements/attention-profile.md.

    python3 benchmarks/attention/counters.py RELEASE RESULTS.json [--only WORD]... [--budget 60s]
                                                                    # on a Hopper GPU, with Nsight Compute
    python3 benchmarks/attention/counters.py --page RESULTS.json    # the table; no GPU

RELEASE is a tarball, an unpacked release or a folder of wheels. Each call of Kiln's is followed by cuDNN's of the same
tensors. Of each launch in it `ncu` reads the counters, in as many passes as it takes, and puts back memory between
them; neither clocks nor caches are reset. --only: the calls whose names have all these words ("backward," "16k").
Rows of earlier runs that RESULTS.json has stay, if they are of the same pack, GPU and libraries; those that are counted
again, or that had no time, are replaced. Exit code 1: ncu failed, as where counters are for the administrator alone
(ERR_NVGPUCTRPERM), or gave a call no counters, or --budget was too short for all calls; what was counted is kept.
"""

from __future__ import annotations

import argparse
import csv
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "v3python"), str(ROOT / "docs")]

import measured  # noqa: E402

from kiln_bench.command import seconds  # noqa: E402
from kiln_recipe.console.appear import appear  # noqa: E402

if TYPE_CHECKING:
    from kiln_bench.attention.problem import CacheProblem, Problem
    from kiln_bench.shapes import Decoding, Training

# A column of the table by its counter.
COLUMNS = {
    "µs": "gpu__time_duration.sum",
    "tensor": "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed",
    "issue": "smsp__issue_active.avg.pct_of_peak_sustained_active",
    "exp": "sm__inst_executed_pipe_xu.avg.pct_of_peak_sustained_active",
    "alu": "sm__pipe_alu_cycles_active.avg.pct_of_peak_sustained_active",
    "fma": "sm__pipe_fma_cycles_active.avg.pct_of_peak_sustained_active",
    "shared": "l1tex__data_pipe_lsu_wavefronts.avg.pct_of_peak_sustained_elapsed",
    "L2": "lts__throughput.avg.pct_of_peak_sustained_elapsed",
    "memory": "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    "warps": "sm__warps_active.avg.per_cycle_active",
}  # fmt: skip
STALLS = (
    "barrier", "branch_resolving", "dispatch_stall", "drain", "gmma", "imc_miss", "lg_throttle", "long_scoreboard",
    "math_pipe_throttle", "membar", "mio_throttle", "misc", "no_instruction", "not_selected", "short_scoreboard",
    "sleeping", "tex_throttle", "wait",
)  # fmt: skip
_STALL = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"
SEPARATOR = "spin_kernel"
_SHOWN = 5  # stalls of a launch in the table
_LONGEST = 600  # seconds


def calls() -> Iterator[tuple[str, Training | Decoding]]:
    """(part, shape): those whose figures docs/attention.md explains."""
    import speed

    from kiln_bench.shapes import Decoding

    for length in (512, 16384):
        for causal in (True, False):
            for head_dim in (64, 128, 256):
                yield "forward", speed.training(head_dim, length, causal=causal, rows_first=True)
    yield "forward", replace(speed.training(128, 16384, causal=True, rows_first=True), window=4096)
    for length in (1024, 16384):
        yield "fp8", speed.training(128, length, rows_first=True)
    for batch, keys in ((1, 512), (1, 4096), (8, 4096)):
        yield "decoding", Decoding(128, 32, 8, batch, keys)
    for length in (512, 16384):
        for causal in (True, False):
            for head_dim in (64, 128, 256):
                yield "backward", speed.training(head_dim, length, causal=causal, rows_first=True)


def chosen(only: Sequence[str]) -> list[tuple[str, Training | Decoding]]:
    """The calls whose names have all words."""
    return [(part, shape) for part, shape in calls() if all(word in f"{part}, {shape}" for word in only)]


def work(release: str, budget: float, only: Sequence[str]) -> None:
    """Makes the calls, each in a range of its name; prints a line of JSON for each: what Kiln runs."""
    import speed
    import torch

    from kiln_bench.attention import peers
    from kiln_bench.attention.kiln import Kiln
    from kiln_bench.attention.problem import CacheProblem, Problem
    from kiln_bench.release import headers, places
    from kiln_bench.release.library import Libraries

    began = time.monotonic()
    with places.found(release) as place, Libraries(place.libraries, headers.read(place.headers)) as libraries:
        target = libraries.devices()[torch.cuda.current_device()]["target"]
        about = {"pack": place.pack(target), "torch": torch.__version__, "cudnn": torch.backends.cudnn.version()}
        print(json.dumps(about), flush=True)
        kiln, fp8 = Kiln("kiln", "Kiln", libraries), speed.Fp8(libraries)
        others, _ = peers.there(["cudnn"])
        l2_bytes = torch.cuda.get_device_properties(0).L2_cache_size
        for part, shape in chosen(only):
            is_decoding = part == "decoding"
            problem: Any = CacheProblem(shape, l2_bytes) if is_decoding else Problem(shape)  # type: ignore[arg-type]
            for side in (fp8,) if part == "fp8" else (kiln,) if is_decoding or shape.window else (kiln, *others):
                if time.monotonic() - began > budget:
                    print(json.dumps({"call": f"{part}, {shape}", "side": side.name, "skipped": True}), flush=True)
                    continue
                _profiled(part, shape, problem, side)


def _profiled(part: str, shape: Training | Decoding, problem: Problem | CacheProblem, side: Any) -> None:
    import torch

    if part == "decoding":
        prepared = side.decoding(problem)
    else:
        prepared = side.training(problem, "backward" if part == "backward" else "forward")
    for _ in range(2):
        prepared.run()
    torch.cuda.synchronize()
    torch.cuda.profiler.start()
    prepared.run()
    torch.cuda._sleep(1)  # SEPARATOR: a call's launches, of any thread, are those before it
    torch.cuda.synchronize()
    torch.cuda.profiler.stop()
    print(json.dumps({"call": f"{part}, {shape}", "side": side.name, "images": prepared.images}), flush=True)


def launches(text: str) -> list[list[dict[str, Any]]]:
    """What ncu's CSV of raw pages says, by call: of each launch "kernel" and the counters.

    Raises:
        RuntimeError: a launch lacks a counter of COLUMNS.
    """
    rows = csv.DictReader(line for line in text.splitlines() if not line.startswith("=="))
    found: list[list[dict[str, Any]]] = [[]]
    units = next(rows, {})
    for row in rows:
        if SEPARATOR in row["Kernel Name"]:
            found.append([])
            continue
        names = [*COLUMNS.values(), *map(_STALL.format, STALLS)]
        values = {name: number for name in names if (number := _number(row.get(name))) is not None}
        if lacking := [name for name in COLUMNS.values() if name in units and name not in values]:
            raise RuntimeError(f"ncu gave {row['Kernel Name']} no {', '.join(lacking)}")
        time_name = COLUMNS["µs"]
        if time_name not in values:
            raise RuntimeError(f"ncu gave {row['Kernel Name']} no counters")
        values[time_name] *= {"ns": 1e-3, "us": 1.0, "ms": 1e3}[units[time_name]]
        found[-1].append({"kernel": row["Kernel Name"], **values})
    return found[:-1]


def _number(word: str | None) -> float | None:
    """A cell of ncu's; None where it says nothing, or "n/a"."""
    try:
        return float((word or "").replace(",", ""))
    except ValueError:
        return None


def merged(before: dict[str, Any] | None, fresh: dict[str, Any]) -> dict[str, Any]:
    """The results of an earlier run, if there is one, with those of this one in place of its own.

    Raises:
        RuntimeError: they are not of the same pack, GPU and libraries.
    """
    if before is None:
        return fresh
    about = [{"gpu": one["gpu"].get("name"), **{name: one[name] for name in ("pack", "torch", "cudnn")}}
             for one in (before, fresh)]  # fmt: skip
    if differ := [name for name in about[0] if about[0][name] != about[1][name]]:
        raise RuntimeError(f"the results that are there are of another {' and '.join(differ)}; name another file")
    rows = {(row["call"], row["side"]): row for row in before["rows"]}
    for row in fresh["rows"]:
        name = row["call"], row["side"]
        if not row.get("skipped") or name not in rows:
            rows[name] = row
    return {**fresh, "rows": [*rows.values()]}


def collect(release: str, path: Path, budget: str, only: Sequence[str]) -> None:
    """Runs `work` under ncu, and writes what it counted beside what was counted before.

    Raises:
        RuntimeError: ncu is not there, or failed, in its words; or a call was not counted.
    """
    from kiln_bench import state

    if not shutil.which("ncu"):
        raise RuntimeError("ncu, of Nsight Compute, is not on the path; the CUDA Toolkit has it in its bin")
    names = [*COLUMNS.values(), *map(_STALL.format, STALLS)]
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "ncu.csv")
        options = ["--profile-from-start", "off", "--clock-control", "none", "--cache-control", "none"]
        options += ["--csv", "--page", "raw", "--log-file", str(log), "--metrics", ",".join(names)]
        program = [sys.executable, __file__, release, str(path), "--budget", budget, "--calls"]
        program += [word for one in only for word in ("--only", one)]
        try:
            done = subprocess.run(["ncu", *options, *program], capture_output=True, text=True, timeout=_LONGEST)
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"ncu took more than {_LONGEST} s; give fewer calls, by --only or --budget") from None
        counted = log.read_text() if log.is_file() else ""
    if done.returncode or "==ERROR==" in counted:
        wrong = [line for line in counted.splitlines() if "==ERROR==" in line] or [done.stderr[-400:].strip()]
        raise RuntimeError(f"ncu failed: {' '.join(wrong)[:600]}")
    said = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if not said:
        raise RuntimeError(f"the calls said nothing: {done.stderr[-400:].strip() or 'ncu ran no program'}")
    about, *rows = said
    asked = [row for row in rows if not row.get("skipped")]
    by_call = launches(counted)
    if len(by_call) != len(asked):
        raise RuntimeError(f"ncu counted {len(by_call)} calls of {len(asked)}")
    for row, of_call in zip(asked, by_call):
        if not of_call:
            raise RuntimeError(f"ncu counted no launch of {row['call']}, {row['side']}")
        row["launches"] = of_call
    before = json.loads(path.read_text()) if path.is_file() else None
    results = merged(before, {"gpu": state.nvidia_smi(), **about, "rows": rows})
    with appear(path) as fresh:
        fresh.write_text(json.dumps(results, indent=1) + "\n")
    if left := len(rows) - len(asked):
        raise RuntimeError(f"{left} of {len(rows)} calls were not counted: --budget {budget} is too short")


def table(results: dict[str, Any]) -> str:
    """Markdown of the results: the launch that takes longest of each call, and the images of Kiln's."""
    gpu, images = results["gpu"], dict[str, None]()
    device = f"{gpu.get('name', 'a GPU')}, driver {gpu.get('driver_version', 'unknown')}"
    beside = f"PyTorch {results['torch']} with cuDNN {results['cudnn']}"
    lines = [
        f"`benchmarks/attention/counters.py`: {device}; {beside}; pack sha256 `{results['pack']['sha256']}`.",
        "", f"| call | side | {' | '.join(COLUMNS)} | stalls |", "|---" * (len(COLUMNS) + 3) + "|",
    ]  # fmt: skip
    for row in results["rows"]:
        if row.get("skipped"):
            lines.append(
                f"| {row['call']} | {row['side']} | {' | '.join('-' for _ in COLUMNS)} | not counted: no time |"
            )
            continue
        images |= dict.fromkeys(row["images"])
        longest = max(row["launches"], key=lambda one: one[COLUMNS["µs"]])
        stalls = sorted(((longest.get(_STALL.format(name), 0.0), name) for name in STALLS), reverse=True)[:_SHOWN]
        cells = [f"{longest[name]:.0f}" if name in longest else "-" for name in COLUMNS.values()]
        lines.append(f"| {row['call']} | {row['side']} | {' | '.join(cells)} | "
                     f"{', '.join(f'{name} {share:.1f}' for share, name in stalls)} |")  # fmt: skip
    return "\n".join([*lines, "", measured.listed(images, "What Kiln ran: key, target, variant.")])


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("release", nargs="?", help=argparse.SUPPRESS)
    parser.add_argument("results", type=Path)
    parser.add_argument("--budget", default="60s", help="how long calls may take together, ncu's passes included")
    parser.add_argument("--only", action="append", default=[], metavar="WORD", help="of a call's name; several: all")
    parser.add_argument("--page", action="store_true", help="print the table of RESULTS.json")
    parser.add_argument("--calls", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args(words)
    if given.page:
        print(table(json.loads(given.results.read_text())))
    elif given.release is None:
        parser.error("which release?")
    elif given.calls:
        work(given.release, seconds(given.budget), given.only)
    elif given.only and not chosen(given.only):
        parser.error(f"--only {' --only '.join(given.only)}: no call has such a name")
    else:
        try:
            collect(given.release, given.results, given.budget, given.only)
        except RuntimeError as error:
            print(f"counters.py: {error}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
