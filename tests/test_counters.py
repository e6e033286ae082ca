"""benchmarks/attention/counters.py: ncu's words by call, and the table; what it says without ncu."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PROGRAM = Path(__file__).resolve().parents[1] / "benchmarks/attention/counters.py"
sys.path.append(str(PROGRAM.parent))

import counters  # noqa: E402

TIME, STALL = counters.COLUMNS["µs"], counters._STALL.format
KEY = "0123456789ab sm_90 flash.attn_fwd/attn_fwd.hopper[dtype=bf16][BLOCK_N=128][generic]"


def raw(*rows: tuple[str, str, str]) -> str:
    """ncu's CSV of launches: a kernel, its nanoseconds, and warps that wait at barriers for each that issues."""
    lines = [
        "==PROF== Connected to process 1",
        f'"ID","Kernel Name","{TIME}","{STALL("barrier")}"',
        '"","","ns","inst"',
    ]
    return "\n".join(lines + [f'"{n}","{kernel}","{took}","{waits}"' for n, (kernel, took, waits) in enumerate(rows)])


def test_launches_are_of_the_call_whose_end_follows():
    end = ("spin_kernel(long)", "900", "0")
    first, second = counters.launches(raw(("a", "1,234,000.0", "2.5"), ("b", "10", "0"), end, ("c", "5", "1"), end))
    assert [one["kernel"] for one in first] == ["a", "b"]
    assert (first[0][TIME], first[0][STALL("barrier")]) == (1234.0, 2.5)
    assert [one["kernel"] for one in second] == ["c"]


def test_a_call_has_a_row_of_its_longest_launch_and_its_images_are_listed():
    launches = [
        {"kernel": "small", TIME: 2.0},
        {"kernel": "large", TIME: 30.0, STALL("barrier"): 2.5, STALL("wait"): 1.0},
    ]
    results = {
        "gpu": {"name": "NVIDIA H100", "driver_version": "580.1"}, "torch": "2.11", "cudnn": 91900,
        "pack": {"sha256": "ab"},
        "rows": [
            {"call": "forward, d64", "side": "kiln", "images": [KEY], "launches": launches},
            {"call": "forward, d64", "side": "cudnn", "skipped": True},
        ],
    }  # fmt: skip
    text = counters.table(results)
    (row,) = (line for line in text.splitlines() if line.startswith("| forward, d64 | kiln"))
    assert row.split(" | ")[2] == "30"
    assert "barrier 2.5, wait 1.0" in row
    assert "| forward, d64 | cudnn | - |" in text
    assert f"1. `{KEY[:12]}`{KEY[12:]}" in text


def test_without_ncu_it_says_where_that_is(tmp_path):
    done = subprocess.run(
        [sys.executable, PROGRAM, "no release", tmp_path / "results.json"], capture_output=True, text=True, check=False,
        env={**os.environ, "PATH": str(tmp_path)},
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (1, "")
    assert (
        done.stderr == "counters.py: ncu, of Nsight Compute, is not on the path; the CUDA Toolkit has it in its bin\n"
    )
    assert not list(tmp_path.iterdir())
