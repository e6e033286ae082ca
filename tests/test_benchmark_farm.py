"""The farm's benchmark runs and measures; whether it is fast enough is its own verdict, on a quiet machine."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[1] / "benchmarks" / "farm" / "run.py"


@pytest.mark.slow(20)
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
def test_it_compiles_both_ways(tmp_path):
    figures = tmp_path / "figures.json"
    words = ["--targets", "gfx942", "--limit", "2", "--rounds", "2", "--json", figures]
    process = subprocess.run([sys.executable, SCRIPT, *words], capture_output=True, text=True, timeout=240)
    assert process.returncode in (0, 1) and "Traceback" not in process.stderr, process.stderr
    document = json.loads(figures.read_text())
    assert document["variants"] > document["different"] > document["measured"] == 2 == len(document["rounds"])
    for measured in document["rounds"]:
        assert measured["farm"]["compiled"] == measured["processes"]["compiled"] == 2
        assert measured["farm"]["wall_seconds"] >= measured["farm"]["compile_seconds"] / 2 > 0
    assert document["passed"] == (process.returncode == 0)
    assert "throughput" in process.stdout and "overhead" in process.stdout
