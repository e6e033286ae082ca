"""`kiln rebuild --verify`, whole: of a release that says it is of a commit, and has a kernel that the commit lacks."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

import builds
from builds import ONE_OPERATION, ROOT, SELECTION
from checkouts import checkout_of_this_tree, git
from kiln_build.front import source

pytestmark = pytest.mark.slow(120)

LINE = "acc = scaled(acc, 1.0 / divisor_of(row_sum), P1, P2)"
# The file that is changed for each target, and the kernel whose images it makes; the selection has others besides.
KERNELS = {"gfx942": ("attn_fwd_amd.py", "attn_fwd.amd"), "sm_90": ("attn_fwd.py", "attn_fwd.general")}


@pytest.fixture(scope="module")
def checkout(tmp_path_factory) -> Path:
    return checkout_of_this_tree(tmp_path_factory.mktemp("commit") / "check out")


def _tampered(checkout: Path, folder: Path) -> Path:
    """The tree of the checkout's commit, which says so, with results that are 1/1024 too large."""
    tree = source.export(checkout, git(checkout, "rev-parse", "HEAD"), folder, "the commit")
    for name, _ in KERNELS.values():
        kernel = tree / "tritonsrc/flash" / name
        text = kernel.read_text()
        assert text.count(LINE) == 1
        kernel.write_text(text.replace(LINE, LINE.replace("1.0", "1.0009765625")))
    return tree


def test_a_kernel_that_its_commit_lacks_is_named(release, builder, checkout, tmp_path):
    """With the images of the commit itself from a store: that they too are made anew, test_rebuild.py tries."""
    builder.run(tree=_tampered(checkout, tmp_path / "tampered"), **ONE_OPERATION)
    (tarball,) = (tmp_path / "out").glob("*.tar.gz")
    words = [str(release.python), "-m", "kiln_build", "rebuild", "--verify", str(tarball), "--source", str(checkout)]
    words += ["--input", str(ROOT / "input"), "--workspace", str(tmp_path / "again")]
    words += ["--store", str(release.workspace / "store"), "--json"]
    environment = builds.environment(PYTHONPATH=str(ROOT / "v3python"), KILN_RECIPES=SELECTION["KILN_RECIPES"])
    done = subprocess.run(words, env=environment, capture_output=True, text=True)
    assert done.returncode == 1, done.stdout + done.stderr
    said = json.loads(done.stdout)
    assert not said["identical"]
    found = {one["target"]: one for one in said["kernels"]}
    assert len(said["kernels"]) == len(found) == len(KERNELS)
    for target, (_, kernel) in KERNELS.items():
        one = found[target]
        assert one["kernel"] == f"flash.attn_fwd/{kernel}" and one["differ"] == one["images"] > 0
        assert one["variant"].startswith(f"flash.attn_fwd/{kernel}[dtype=bf16 head_dim=64") and None not in one["image"]
        assert one["code"]["section"].startswith(".text")
        if not one["code"]["before"]:
            pytest.skip(one["code"]["note"])
        before, after = one["code"]["before"][0], one["code"]["after"][0]
        assert before["offset"] == after["offset"]
        # The constant as fp32, or a power of two times it: 0x3f802000, 0x3e802000.
        assert re.search("0x3[0-9a-f]802000", before["text"].lower()), before
        assert before["text"] != after["text"]
