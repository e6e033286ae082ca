"""A build of one operation: what of the release that leaves, and what a call of the others is told."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import nativebuild
import pytest

import builds
from builds import ROOT
from kiln_build.cli import main


@pytest.fixture(scope="module")
def kiln() -> Path:
    """The release, unpacked."""
    return builds.one_operation().prefix


def test_it_has_images_of_this_operation_alone(kiln, capsys):
    assert main(["list", str(kiln), "--json", "--select", "family=flash;operation=attn_fwd"]) == 0
    selected = json.loads(capsys.readouterr().out)
    assert main(["list", str(kiln), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == selected
    kernels = {f"flash.attn_fwd/attn_fwd.{name}" for name in ("amd", "general", "hopper", "hopper_few")}
    assert {row["kernel"] for row in selected} == kernels
    assert main(["list", str(kiln), "--select", "operation=attn_bwd"]) == 2
    said = "no variant has operation=attn_bwd: this build was made for operation=attn_fwd alone; operation is one of "
    assert f"kiln: {said}attn_fwd\n" == capsys.readouterr().err


def test_a_call_of_another_operation_is_refused_by_the_selection(kiln):
    words = [ROOT / "tests/end_to_end/built_calls.py", kiln / "lib", nativebuild.fake_alone() / "lib"]
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True)
    assert done.returncode == 1
    assert "norm.rms_norm has no image for " in done.stderr
    assert ": this build was made for family=flash alone, nor for anything similar" in done.stderr
