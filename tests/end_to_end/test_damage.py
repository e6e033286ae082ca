"""A store that is damaged in every way at once: the build names each damage, compiles again what it needs, and makes
the same release."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from damages import sow
from kiln_build.artifacts import manifest_model
from test_store_damage import copy_anything

pytestmark = pytest.mark.slow(30)


def test_a_damaged_store_makes_the_same_release(release, builder, tmp_path):
    workspace = release.copy_workspace(tmp_path / "w")
    shutil.rmtree(workspace / "build/packs")  # which the images make, and these the store
    store = workspace / "store"
    manifest = manifest_model.read((release.prefix / manifest_model.PATH).read_bytes(), "the release")
    keys = {row["key"] for row in manifest["variants"]}
    done_to = list(sow(store, keys))
    assert len(done_to) > 30
    shutil.copytree(store, tmp_path / "copy", symlinks=True, copy_function=copy_anything)
    words = [str(release.python), "-m", "kiln_build", "store", "verify", "--store"]
    shown = {"env": builder.environment(), "capture_output": True, "text": True, "timeout": 120}
    seen = subprocess.run([*words, str(tmp_path / "copy")], **shown)
    assert seen.returncode == 6 and "Traceback" not in seen.stderr, seen.stderr

    build = builder.run(workspace=workspace)
    assert builder.sha256() == release.sha256
    warnings = [line for line in build.stderr.splitlines() if "warning: " in line]
    for what, name in done_to:
        named = (f"{name} of the store", f"object {name} is missing from the store")
        assert any(text in seen.stderr for text in named), f"verify did not name it: {what}"
        if "digest made right" in what:  # of the entry the facts are wrong: the build names the variant
            assert any("says registers" in line and "where 200 is stated" in line for line in warnings)
        else:
            told = [line for line in warnings if any(text in line for text in named)]
            assert told, f"the build did not name it: {what}"
            print(f"{what}: {told[0].partition(name)[2].partition(str(store))[2].strip()}")
    for kept in ("packs/*.pack", "lib/libkiln.so.0-*"):
        path = next(p for p in (workspace / "build").glob(kept) if p.suffix != ".sha256")
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    builder.run(workspace=workspace, output=tmp_path / "out2")
    assert builder.sha256(tmp_path / "out2") == release.sha256
    again = subprocess.run([*words, str(store)], **shown)
    assert again.returncode == 0 and "all whole" in again.stdout, again.stderr
