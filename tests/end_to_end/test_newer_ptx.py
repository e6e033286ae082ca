"""An implementation of PTX that only the newer assembler takes: examples/silu, had it PTX 9.0."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import nativebuild
import pytest

from builds import ROOT, Builder, unpack
from kiln_build.cli import main

EXPLAIN = """
import ctypes, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import ffi
views = [ffi.tensor(0x10000, ffi.FP16, (64, 128)), None, ffi.tensor(0x20000, ffi.FP16, (64, 128))]
lib = Path(sys.argv[2])
with ffi.Kiln(ffi.Library(lib), None) as kiln:
    kiln.register(ctypes.CDLL(str(lib / "libkiln_silu.so")), "silu")
    for chosen in kiln.explain(kiln.call(views, operation="silu.silu", device=0)):
        print(chosen)
"""


@pytest.fixture(scope="module")
def silu(release, tmp_path_factory) -> Path:
    """The tarball, unpacked beside it."""
    base = tmp_path_factory.mktemp("silu")
    shutil.copytree(ROOT / "examples/silu", base / "silu")
    recipe = base / "silu/recipe.yaml"
    assert recipe.read_text().count('ptx: "8.6"') == 1
    recipe.write_text(recipe.read_text().replace('ptx: "8.6"', 'ptx: "9.0"'))
    builder = Builder(release, base, release.copy_workspace(base / "w"))
    done = builder.run(
        targets="sm_90", output=base / "o", more=["--recipe", str(recipe)], KILN_SELECT="", KILN_RECIPES=""
    )
    tarball = Path(done.stdout.strip())
    unpack(tarball, base)
    return tarball


def test_the_release_says_so_and_is_whole(silu, capsys):
    assert main(["inspect", str(silu), "--verify"]) == 0
    assert "8.0, 9.0" in capsys.readouterr().out
    document = json.loads((silu.parents[1] / "kiln/share/kiln/manifest.json").read_text())
    by_version = {image.get("ptx_version", "8.0"): image.get("abi", 7) for image in document["images"]}
    assert by_version == {"8.0": 7, "9.0": 8}


@pytest.mark.parametrize(("version", "implementation"), [("12090", "silu.general"), ("13000", "silu.described")])
def test_older_drivers_get_the_next_implementation(silu, version, implementation):
    folder = nativebuild.driver_folder(nativebuild.fake_alone(), "nvidia")
    environment = os.environ | {"LD_LIBRARY_PATH": str(folder), "FAKE_DRIVER_VERSION": version}
    words = [sys.executable, "-c", EXPLAIN, str(ROOT / "tests/runtime"), str(silu.parents[1] / "kiln/lib")]
    done = subprocess.run(words, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert f"'{implementation}'" in done.stdout
