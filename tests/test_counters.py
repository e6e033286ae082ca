"""benchmarks/attention/counters.py: ncu's words by call, and the table; what it says without ncu."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PROGRAM = Path(__file__).resolve().parents[1] / "benchmarks/attention/counters.py"
sys.path.append(str(PROGRAM.parent))

import counters  # noqa: E402
import pytest  # noqa: E402

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


def results(*rows: dict, pack: str = "ab") -> dict:
    return {"gpu": {"name": "NVIDIA H100"}, "torch": "2.11", "cudnn": 91900, "pack": {"sha256": pack}, "rows": [*rows]}


def test_what_was_counted_before_stays_until_it_is_counted_again():
    old = {"call": "a", "side": "kiln", "launches": [1]}
    had_no_time = {"call": "b", "side": "kiln", "skipped": True}
    fresh = [{"call": "a", "side": "kiln", "skipped": True}, {"call": "b", "side": "kiln", "launches": [2]}]
    assert counters.merged(None, results(old)) == results(old)
    assert counters.merged(results(old, had_no_time), results(*fresh)) == results(old, fresh[1])
    with pytest.raises(RuntimeError, match="of another pack; name another file"):
        counters.merged(results(old), results(*fresh, pack="cd"))


def test_a_launch_without_counters_is_told():
    text = f'"ID","Kernel Name","{TIME}"\n"","","ns"\n"0","a","n/a"\n'
    with pytest.raises(RuntimeError, match="ncu gave a no gpu__time_duration.sum"):
        counters.launches(text)


@pytest.mark.parametrize(
    ("ncu", "sentence"),
    [
        ("exit 9", "ncu failed: "),
        ("exit 0", "the calls said nothing: ncu ran no program"),
        ("""echo '{"pack": 1}'; echo '{"call": "a", "side": "kiln"}'""", "ncu counted 0 calls of 1"),
    ],
)
def test_an_ncu_that_counts_nothing_is_a_failure(tmp_path, monkeypatch, capsys, ncu, sentence):
    pytest.importorskip("torch")
    (tmp_path / "ncu").write_text(f"#!/bin/sh\n{ncu}\n")
    (tmp_path / "ncu").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert counters.main(["no release", str(tmp_path / "results.json")]) == 1
    assert sentence in capsys.readouterr().err
    assert not (tmp_path / "results.json").exists()
