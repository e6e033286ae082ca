"""A release that was installed in parts: the runtime finds the packs of those that are there, and names the others."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import shared
from kiln_build import cli

CALLS = 200


@pytest.fixture(scope="module")
def parts(wide_release) -> Path:
    """A folder with the parts."""
    return shared.once(
        "wide release in parts", lambda folder: cli.main(["split", str(wide_release.tarball), str(folder)])
    )


@pytest.mark.parametrize(
    ("names", "there", "pack"),
    [
        (("runtime", "sm_90"), "sm_90", "amd-gfx942.pack"),
        (("gfx942", "runtime"), "gfx942", "nvidia-sm_90.pack"),
    ],
)
def test_the_runtime_finds_what_is_installed_and_names_what_is_not(names, there, pack, parts, driver, tmp_path):
    for name in names:
        (tarball,) = parts.glob(f"*-{name}.tar.gz")
        subprocess.run(["tar", "--keep-old-files", "-xzf", tarball], cwd=tmp_path, check=True)
    script = Path(__file__).with_name("installed_calls.py")
    words = [sys.executable, script, tmp_path / "kiln", driver / "lib/libfake.so", str(CALLS)]
    path = os.pathsep.join([str(Path(__file__).resolve().parents[2] / "v3python"), *sys.path])
    done = subprocess.run(words, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path})
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    other = next(target for target in said["launched"] if target != there)
    assert said["targets"] == [there] and said["launched"][there] > 5 and not said["launched"][other]
    assert not [sentence for sentence in said["refused"][there] if "there is no pack" in sentence]
    (missing,) = (sentence for sentence in said["refused"][other] if "there is no pack" in sentence)
    assert missing.startswith(f"there is no pack {pack} in {tmp_path}/kiln/lib/kiln.images; name its folder in")
