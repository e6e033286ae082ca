"""What the executor's HIP runtime refuses, and how it says so: by a kernel of the small release, in a process of its
own, since a process has one libkiln."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs PyTorch")

HERE = Path(__file__).resolve().parent
SCRIPT = """
import json, sys
from contextlib import contextmanager
from pathlib import Path
import executor as module
import ffi
from executor import Executor
from candidates import run_lengths_image
from release import Flash

executor = Executor("gfx942")
told = {}
with Flash(Path(sys.argv[1]), executor) as flash:
    (variant,) = flash.images("seq_lengths", "gfx942")[:1]

    def attempt(name):
        try:
            told[name] = run_lengths_image(flash, variant, None, 300)
        except ffi.Failure as failure:
            told[name] = failure.sentence

    attempt("right")
    right, whole = executor.lending, module.span
    executor.lending = lambda views, written: right(views, ())
    attempt("all read-only")
    executor.lending = right
    module.span = lambda view: (whole(view)[0], max(whole(view)[1] - 4, 0))
    attempt("four bytes less")
    module.span = whole
    executor.state.limit = 3
    attempt("three instructions")
    executor.state.limit = 0
    executor.state.shortened = 1
    attempt("a group less")
    executor.state.shortened = 0
    attempt("right again")
    told["launches"] = executor.state.launches
try:
    Executor("gfx803")
except ValueError as error:
    told["unknown"] = str(error)
print(json.dumps(told))
"""


@pytest.fixture(scope="module")
def told(release) -> dict:
    folders = [HERE, HERE.parent / "runtime", HERE.parent / "gpu", HERE.parents[1] / "v3python"]
    paths = f"import sys; sys.path[:0] = {[str(folder) for folder in folders]}\n"
    command = [sys.executable, "-c", paths + SCRIPT, str(release.prefix)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


def test_a_kernel_that_is_right(told):
    assert told["right"] == told["right again"] == ""
    assert told["launches"] == 6


@pytest.mark.parametrize("which", ["all read-only", "four bytes less"])
def test_memory_that_is_not_the_calls(told, which):
    assert "hipModuleLaunchKernel: the HIP runtime returned address: " in told[which]
    assert "argument " in told[which] and "seq_lengths at 0x" in told[which] and "lane " in told[which], told[which]


def test_a_wave_that_does_not_end(told):
    assert "returned endless: " in told["three instructions"]


def test_a_launch_that_lacks_a_group(told):
    assert told["a group less"].endswith("wrong")


def test_an_unknown_architecture(told):
    assert told["unknown"] == "the executor knows no gfx803"
