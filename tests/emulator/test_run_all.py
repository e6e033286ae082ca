"""run_all.sh ends with 0 only if each of its parts was run, and was right."""

from __future__ import annotations

import os
import subprocess
import tarfile
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("run_all.sh")


def run(tmp_path: Path, failing: str, cut: int | None = None, **variables: str) -> subprocess.CompletedProcess:
    """With a python3 whose program of that name fails, and the first `cut` bytes of a release."""
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "python3").write_text(f'#!/bin/sh\ncase $1 in */{failing}.py) exit 1;; esac\necho "$@"\n')
    (tools / "python3").chmod(0o755)
    (tmp_path / "kiln").mkdir()
    with tarfile.open(tmp_path / "kiln.tar.gz", "w:gz") as tar:
        tar.add(tmp_path / "kiln", "kiln")
    (tmp_path / "cut.tar.gz").write_bytes((tmp_path / "kiln.tar.gz").read_bytes()[:cut])
    environment = os.environ | {"PATH": f"{tools}:{os.environ['PATH']}", "KILN_KEEP": "0"} | variables
    words = ["bash", str(SCRIPT), str(tmp_path / "kiln.tar.gz"), str(tmp_path / "out"), "gfx942"]
    return subprocess.run(words, capture_output=True, text=True, env=environment)


def test_all_parts_right(tmp_path):
    done = run(tmp_path, "none", KILN_SEED="7")
    assert done.returncode == 0, done.stderr
    assert "--whole" in done.stdout and "--seed 7" in done.stdout
    outcomes = [line.partition(",")[0] for line in done.stdout.splitlines()[-3:]]
    assert outcomes == ["images: right", "made wrong: right", "page: right"]


@pytest.mark.parametrize(("program", "part"), [("run", "images"), ("mutations", "made wrong"), ("page", "page")])
def test_a_part_that_fails_is_named_and_the_others_are_run(tmp_path, program, part):
    done = run(tmp_path, program)
    assert done.returncode == 1
    outcomes = done.stdout.splitlines()[-3:]
    assert [line.partition(":")[0] for line in outcomes if "FAILED" in line] == [part]
    assert sum("right" in line for line in outcomes) == 2


def test_a_part_that_is_left_out_is_no_success(tmp_path):
    done = run(tmp_path, "none", KILN_MUTATIONS="0")
    assert done.returncode == 1
    assert "made wrong: NOT RUN" in done.stdout


def test_a_sample_is_executed_as_a_whole_and_on_the_page(tmp_path):
    done = run(tmp_path, "none", KILN_SAMPLE=str(tmp_path / "kiln.tar.gz"))
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    assert [line.partition(",")[0] for line in said[-4:-2]] == ["images: right", "sample: right"]
    (whole,) = [line for line in said if "/run.py" in line and "results-of-sample" in line]
    assert "--whole" in whole
    assert any("/page.py" in line and "results-of-sample" in line for line in said)


def test_what_is_kept_has_a_sample(tmp_path):
    done = run(tmp_path, "none", KILN_KEEP="1")
    assert done.returncode == 1
    assert "sample: NOT RUN" in done.stdout


@pytest.mark.parametrize("cut", [60, 100])
def test_a_damaged_tarball_ends_it_before_anything_is_run(tmp_path, cut):
    done = run(tmp_path, "none", cut, KILN_SAMPLE=str(tmp_path / "cut.tar.gz"))
    assert done.returncode not in (0, 1) and done.stdout == ""
    assert len([*(tmp_path / "out").glob("*/kiln")]) == 1, "of the release alone"


def test_a_sample_that_is_not_there_is_named(tmp_path):
    done = run(tmp_path, "none", KILN_SAMPLE=str(tmp_path / "none.tar.gz"))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"run_all.sh: {tmp_path}/none.tar.gz is not a file; give the tarball of a release\n"
