"""`kiln verify-device` with the executor as its GPU: worker, memory and calls are the user's, PyTorch takes no part."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

np = pytest.importorskip("numpy", reason="needs NumPy")

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
SAMPLE = 15  # images of the small release; all with --slow
pytestmark = pytest.mark.slow(60)

# The command with another worker: what ends up in the process that calls the release is the executor.
PROGRAM = """
import sys
from kiln_bench.verify import command, session
session.WORKER = (sys.executable, sys.argv[1], "gfx942")
sys.exit(command.main(["verify-device", *sys.argv[2:]]))
"""


def verify(folder: Path, *words: object, **more: str) -> subprocess.CompletedProcess:
    import build

    environment = {
        **os.environ, "PYTHONPATH": str(ROOT / "v3python"), "LD_LIBRARY_PATH": str(build.library().parent), **more,
    }  # fmt: skip
    command = [sys.executable, "-c", PROGRAM, str(HERE / "verify_worker.py"), *map(str, words)]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


def test_images_are_right(release, tmp_path):
    sample = () if os.environ.get("KILN_TEST_SLOW") == "1" else ("--sample", SAMPLE)
    done = verify(tmp_path, release.prefix, *sample)
    assert done.returncode == 0, done.stdout + done.stderr
    document = json.loads((tmp_path / "kiln-verify-gfx942.json").read_text())
    assert document["about"]["device"] == "Executor of gfx942" and document["counts"]["wrong"] == 0
    rows = document["rows"]
    # The small release lacks images of other kernels by which some are called.
    unreached = [row for row in rows if "unreached" in row]
    assert {row["kernel"] for row in unreached} <= {"attn_bwd_dbias", "attn_bwd_dsinks"}
    assert all("has no image" in row["unreached"] for row in unreached)
    operations = {row["operation"] for row in rows if "unreached" not in row}
    names = ("attn_fwd", "attn_bwd", "attn_decode", "dropout_mask", "seq_lengths")
    assert operations == {f"flash.{name}" for name in names}
    judged = [row for row in rows if row.get("shares")]
    assert len(judged) > 5 and all(max(row["shares"].values()) <= 1 for row in judged)


def test_a_device_that_leaves_work_undone_is_seen(release, tmp_path):
    select = "operation=attn_fwd,dropout_mask;specialization=aligned,generic"
    done = verify(tmp_path, release.prefix, "--select", select, "--sample", 3, EXECUTOR_SHORTENED="1")
    assert done.returncode == 11, done.stdout + done.stderr
    document = json.loads((tmp_path / "kiln-verify-gfx942.json").read_text())
    assert document["counts"] == {"right": 0, "wrong": 3, "unreached": 0}
