"""benchmarks/attention/means.py without a GPU: its words, and the page that it makes of kept results."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
IMAGE = "0123456789ab sm_90 flash.attn_bwd/attn_bwd_dq[dtype=bf16][BLOCK_M=64][aligned]"


def run(*words: object) -> subprocess.CompletedProcess:
    command = [sys.executable, ROOT / "benchmarks/attention/means.py", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def results(error: float) -> dict:
    errors = {"kiln": error, "math": 0.002, "flash": 0.37}
    row = {"dtype": "bf16", "head_dim": 64, "offset": 5.0, "errors": errors, "refusals": {"cudnn": "no"},
           "images": [IMAGE]}  # fmt: skip
    gpu = {"name": "NVIDIA H200", "driver_version": "580.1"}
    about = {"date": "2026-11-23", "gpu": gpu, "torch": "2.11", "cudnn": "9", "release": "0.1.0b",
             "pack": {"file": "nvidia-sm_90.pack", "sha256": "0" * 64}, "rows": 1024, "keys": 8192}  # fmt: skip
    return {"about": about, "errors": [row]}


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (0.004, "Nothing is missed."),
        (0.011, "bf16, head_dim 64, keys + 5: dq's error is 0.011, above 0.01"),
        (float("nan"), "bf16, head_dim 64, keys + 5: dq's error is nan, above 0.01"),
    ],
)
def test_a_page_of_kept_results(tmp_path, error, sentence):
    kept, page = tmp_path / "r.json", tmp_path / "page.md"
    kept.write_text(json.dumps(results(error)))
    done = run("--from", kept, "--markdown", page)
    assert done.returncode == (0 if sentence.startswith("Nothing") else 1), done.stderr
    assert sentence in done.stdout and sentence in page.read_text()
    assert f"| bf16 | 64 | + 5 | {error:.2g} | 0.002 | 0.37 | - | 0.01 |" in page.read_text()
    assert "NVIDIA H200, driver 580.1, " in page.read_text()
    assert "1. `0123456789ab` sm_90 flash.attn_bwd" in page.read_text()


@pytest.mark.parametrize("words", [[], ["--from", "x", "--release", "y"], ["--release", "x", "--rows", "0"],
                                   ["--release", "x", "--dtypes", "fp8"]])  # fmt: skip
def test_words_that_cannot_be(words):
    done = run(*words)
    assert done.returncode == 2 and "error: " in done.stderr and "Traceback" not in done.stderr
