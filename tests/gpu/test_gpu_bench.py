"""`kiln bench` on an unpacked release: all that it measures, of the same release twice in one process."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SHAPES = {
    "training": [
        {"head_dim": 128, "heads": 8, "heads_kv": 2, "length": 1024, "batch": 2, "causal": [False, True]},
        {"head_dim": 128, "heads": 8, "length": 1024, "batch": 1, "causal": True, "window": 200, "rows_first": True},
        {"head_dim": 128, "heads": 8, "heads_kv": 2, "lengths": [700, 30, 128], "causal": True},
        {"head_dim": 64, "heads": 8, "length": 333, "batch": 1, "dtype": "fp16"},
    ],
    "decoding": [
        {"head_dim": 128, "heads": 32, "heads_kv": 8, "keys": [512, 4096], "page": [0, 16], "batch": [1, 16]},
        {"head_dim": 64, "heads": 8, "keys": 1024, "batch": 2, "rows_first": True},
    ],
}  # fmt: skip


def bench(folder: Path, *words: object) -> tuple[dict, str]:
    (folder / "shapes.json").write_text(json.dumps(SHAPES))
    command = [sys.executable, "-m", "kiln_bench", *words, "--shapes", folder / "shapes.json",
               "--json", folder / "results.json", "--plot", folder / "results.svg"]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "v3python")}
    done = subprocess.run([*map(str, command)], env=environment, capture_output=True, text=True, timeout=3600)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads((folder / "results.json").read_text()), done.stdout


def test_every_call_is_right_and_has_a_figure(prefix, tmp_path):
    found, text = bench(tmp_path, prefix, prefix, "--budget", "24h", "--rounds", "3")
    (first, second), rows = found["about"]["releases"], found["rows"]
    pack = prefix / "lib/kiln.images" / first["pack"]["file"]
    assert first["pack"]["sha256"] == second["pack"]["sha256"] == hashlib.sha256(pack.read_bytes()).hexdigest()
    assert found["about"]["driver"] and found["clocks"]
    hosts = [row for row in rows if row["part"] == "host"]
    assert len(hosts) == 2 and all("no Python package" in row["skipped"] for row in hosts)
    calls = [row for row in rows if row["part"] != "host"]
    assert len(calls) == 5 * 2 + 9
    for row in calls:
        assert row["wrong"] == {} and not row.get("skipped"), row
        assert {"kiln", "kiln-2"} <= row["milliseconds"].keys() and len(row["milliseconds"]["kiln"]) == 3, row
        assert row["images"]["kiln"] == row["images"]["kiln-2"] and row["images"]["kiln"]
        assert row["host_ahead"] or row["shape"]["batch"] == 1
    plain = next(row for row in calls if row["part"] == "forward" and row["shape"]["batch"] == 2)
    assert {"flash", "math"} <= plain["milliseconds"].keys()
    assert "Kiln 2" in text and (tmp_path / "results.svg").read_text().count("<rect") > 50
