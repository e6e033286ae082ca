"""From the GPU suite's results to the manifest's `verified`."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import math
from dataclasses import replace

import pytest

from kiln_build.artifacts import manifest
from kiln_build.release import release
from small_release import ROOT, small_release

_spec = importlib.util.spec_from_file_location("verified", ROOT / "tests/gpu/verified.py")
verified = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(verified)


def write(folder, *rows):
    folder.mkdir()
    (folder / "1.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def image(name: str, by: str = "sm_90", share: float = 0.5) -> dict:
    key = hashlib.sha256(f"sm_90 {name}".encode()).hexdigest()
    return {"kind": "image", "key": key, "by": by, "worst_share_of_limit": share}


DEVICE = {"kind": "device", "name": "NVIDIA H200"}


def test_what_ran_is_what_the_next_manifest_says(tmp_path):
    results = write(
        tmp_path / "r", DEVICE, image("fp16 256 aligned"), image("fp16 256 generic"), image("bf16 256 aligned", "PTX")
    )
    paths = verified.main(results, "580.95.05", tmp_path / "verified")
    assert [path.name for path in paths] == ["nvidia-h200-image.json", "nvidia-h200-ptx.json"]
    verifications = manifest.load_verifications(tmp_path / "verified")
    inputs = replace(small_release().inputs, verifications=verifications)
    rows = manifest.make_manifest(inputs, small_release().stage, release.PLATFORM).targets
    assert rows[0].verified == "compiled, not run"
    assert rows[1].verified == (
        "run on NVIDIA H200, driver 580.95.05: 2 of 7 variants tested, all correct, 5 untested; "
        "PTX run on NVIDIA H200, driver 580.95.05: 1 of 7 variants tested, all correct, 6 untested"
    )


def test_what_was_emulated_did_not_run(tmp_path):
    made = manifest.make_manifest(small_release().inputs, small_release().stage, release.PLATFORM)
    variant = next(v for v in made.variants if v.target == "gfx942")
    row = {"kind": "image", "key": variant.key, "by": "emulator", "worst_share_of_limit": 0.5,
           "executed": {variant.image: "3/7"}}  # fmt: skip
    results = write(tmp_path / "r", {"kind": "device", "name": "gfx942"}, row)
    (path,) = verified.main(results, "LLVM 22.1.2", tmp_path / "verified")
    assert path.name == "gfx942-emulator.json"
    inputs = replace(small_release().inputs, verifications=manifest.load_verifications(tmp_path / "verified"))
    rows = manifest.make_manifest(inputs, small_release().stage, release.PLATFORM).targets
    assert rows[0].verified == (
        "compiled, not run; executed on an emulator of gfx942, by LLVM 22.1.2: 1 of 7 variants tested, all correct, "
        "6 untested"
    )
    assert rows[1].verified == "compiled, not run"
    # The key is the same, the image another: that was not executed.
    path.write_text(path.read_text().replace(variant.image, "0" * 64))
    inputs = replace(inputs, verifications=manifest.load_verifications(tmp_path / "verified"))
    rows = manifest.make_manifest(inputs, small_release().stage, release.PLATFORM).targets
    assert rows[0].verified == "compiled, not run"


@pytest.mark.parametrize("share", [1.01, math.nan])
def test_one_wrong_image_and_nothing_counts(tmp_path, share):
    results = write(tmp_path / "r", DEVICE, image("fp16 256 aligned"), image("fp16 256 generic", share=share))
    with pytest.raises(SystemExit, match="1 of 2 images gave wrong results"):
        verified.main(results, "580", tmp_path / "verified")
    assert not (tmp_path / "verified").exists()


def test_half_a_run(tmp_path):
    with pytest.raises(SystemExit, match="0 devices and 1 images"):
        verified.main(write(tmp_path / "r", image("fp16 256 aligned")), "580", tmp_path / "verified")
