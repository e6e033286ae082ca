"""A sample of a release's images for gfx942, executed by its own runtime; and some made wrong, which must be seen."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs PyTorch")

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
EVERY = 4  # of each kernel's variants in the small release; all with --slow
pytestmark = pytest.mark.slow(120)


def program(name: str, *words: object) -> subprocess.CompletedProcess:
    environment = os.environ | {"PYTHONPATH": str(ROOT / "v3python")}
    command = [sys.executable, str(HERE / f"{name}.py"), *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, env=environment)


def rows_of(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture(scope="module")
def results(release, tmp_path_factory) -> Path:
    """What run.py leaves of the small release."""
    folder = tmp_path_factory.mktemp("results")
    every = 1 if os.environ.get("KILN_TEST_SLOW") == "1" else EVERY
    done = program("run", release.prefix, folder, "--target", "gfx942", "--every", every)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    return folder


def test_images_are_right_and_their_bits_do_not_depend_on_the_schedule(results):
    about, *rows = rows_of(results / "gfx942/images.jsonl")
    assert about["seeds"] == [[1, 1], [2, 2]]
    refused = [row for row in rows if row["kind"] == "refused"]
    # The small release lacks the forward images by which these are called.
    assert {row["call"].split()[0] for row in refused} <= {"attn_bwd_dbias", "attn_bwd_dsinks"}
    assert all("flash.attn_fwd has no image" in row["sentence"] for row in refused)
    rows = [row for row in rows if row["kind"] != "refused"]
    operations = {row["operation"] for row in rows}
    assert operations >= {
        f"flash.{name}" for name in ("attn_fwd", "attn_bwd", "attn_decode", "dropout_mask", "seq_lengths")
    }
    for row in rows:
        assert row["kind"] == "image" and row["cases"] and not row["wrong"], row
        assert row["launches"] and row["instructions"] and row["executed"], row


def test_a_run_goes_on_where_it_was_ended(release, results, tmp_path):
    """Whole lines stay, a cut one is run again; results of another run are refused."""
    folder = tmp_path / "results"
    (folder / "gfx942").mkdir(parents=True)
    lines = (results / "gfx942/images.jsonl").read_text().splitlines(keepends=True)
    (folder / "gfx942/images.jsonl").write_text("".join(lines)[:-20])
    every = json.loads(lines[0])["every"]
    done = program("run", release.prefix, folder, "--target", "gfx942", "--every", every)
    assert done.returncode == 0, done.stdout + done.stderr
    again = rows_of(folder / "gfx942/images.jsonl")
    assert {row["key"] for row in again[1:]} == {row["key"] for row in map(json.loads, lines[1:])}
    done = program("run", release.prefix, folder, "--target", "gfx942", "--every", every + 1)
    assert done.returncode == 1
    assert "is of another run" in done.stderr


def test_what_is_made_wrong_is_seen(release, results):
    done = program("mutations", release.prefix, results, "--bits", 8, "--waits", 4, "--controls", 2)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    rows = rows_of(results / "mutations.jsonl")
    assert {row["kind"] for row in rows} == {"bits", "waits", "matrix", "masks", "programs"}
    seen = [row for row in rows if row["kind"] == "bits" and row["outcome"] not in ("not seen", "not executed")]
    assert len(seen) >= 4, rows


def test_the_page_and_the_keys(release, results, tmp_path):
    done = program("page", release.prefix, results, tmp_path / "page.md", tmp_path / "verified")
    assert done.returncode == 0, done.stdout + done.stderr
    page = (tmp_path / "page.md").read_text()
    assert "| gfx942 |" in page and "Made wrong on purpose" in page
    document = json.loads((tmp_path / "verified/gfx942-emulator.json").read_text())
    assert document["by"] == "emulator" and document["driver"].startswith("LLVM ")
    right = [row["key"] for row in rows_of(results / "gfx942/images.jsonl") if row["kind"] == "image"]
    assert sorted(document["keys"]) == sorted(right), "what was refused was not executed"


def test_a_target_that_the_release_lacks(release, tmp_path):
    done = program("images", release.prefix, tmp_path)
    assert done.returncode == 0 and "gfx942: " in done.stdout
    assert list((tmp_path / "gfx942").glob("*.hsaco"))
    done = program("run", release.prefix, tmp_path / "results", "--target", "gfx1100")
    assert done.returncode == 1
    assert "has no images of gfx1100; it has those of gfx942" in done.stderr
