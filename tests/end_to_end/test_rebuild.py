"""Builds again: nothing to do, equal bytes elsewhere, only what changed, after kills and beside others."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import signal
import time
from pathlib import Path

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

import builds
from builds import ONE_OPERATION, ROOT, TARBALL, TARGETS, kill, unpack
from kiln_build.artifacts import reader
from kiln_build.origin import bill, timeline_file
from kiln_build.trust import provenance, statement
from kiln_recipe import digests

pytestmark = pytest.mark.slow(120)


def counts(log: str) -> tuple[int, int]:
    """(images compiled, variants from the store)"""
    found = re.search(r"(\d+) images? compiled, (\d+) from the store", log)
    assert found, log
    return int(found[1]), int(found[2])


def entries(store: Path) -> list[Path]:
    """The store's entries, without those that are just being written under a hidden name."""
    return list(store.glob("index/*/[!.]*"))


def test_what_a_build_says_first_and_last(release, builder, tmp_path):
    log = tmp_path / "log"
    done = builder.run(KILN_LOG_JSON=str(log))
    tarball = builder.base / "out" / TARBALL
    assert done.stdout == f"{tarball}\n", "nothing else, for scripts"
    events = [json.loads(line) for line in log.read_text().splitlines()]
    build, made = (next(event[what] for event in events if what in event) for what in ("build", "release"))
    assert build["tarball"] == made["tarball"] == str(tarball) and sorted(build["targets"]) == sorted(
        TARGETS.split(";")
    )
    assert made["bytes"] == tarball.stat().st_size and sorted(made["images"]) == sorted(build["targets"])
    said = [line for line in done.stderr.splitlines() if not line.startswith("kiln: ")]
    assert said[0].startswith(f"building {TARBALL}: ") and f"{build['variants']} variants" in said[0]
    _, check, python, c = said[-4:]
    assert said[-4].startswith(f"made {tarball}, ") and f"{made['images']['sm_90']} images for sm_90" in said[-4]
    verify = shlex.split(check.partition(": ")[2])
    assert verify[1:] == ["inspect", str(tarball), "--verify"] and (ROOT / verify[0]).is_file()
    assert str(tarball) in python and "include/kiln/flash.h" in c


def test_nothing_to_do(release, builder):
    done = builder.run()
    assert counts(done.stderr)[0] == 0
    assert builder.sha256() == release.sha256


def test_what_a_build_says_of_itself(release, builder):
    """Beside the tarball how it came about; in it what it is made of. Who builds changes nothing in it."""
    builder.run(KILN_BUILDER="https://ci.example.org/kiln")
    assert builder.sha256() == release.sha256
    check_what_is_said(builder.base / "out" / TARBALL)


def check_what_is_said(tarball: Path) -> None:
    path, digest = statement.provenance_of(tarball), digests.of_file(tarball)
    found = provenance.read(path.read_bytes(), path.name, tarball.name, digest)
    stated = reader.open_artifact(tarball).manifest
    times = timeline_file.read(statement.timeline_of(tarball))
    assert (times.release, times.sha256) == (stated["kiln"], digest)
    assert [step.name for step in times.steps] == ["plan", "compile", "pack", "link", "assemble", "tarball"]
    assert found.builder == "https://ci.example.org/kiln"
    assert (found.release, found.commit) == (stated["kiln"], stated["source"]["commit"])
    inside = reader.file_of(tarball, bill.PATH)
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(inside.decode()) is None
    root = json.loads(inside)["metadata"]["component"]
    facts = {one["name"]: one["value"] for one in root["properties"]}
    assert (root["version"], facts["kiln:commit"]) == (stated["kiln"], stated["source"]["commit"])
    rows = {row["path"]: row.get("sha256") for row in stated["files"]}
    said = json.loads(path.read_bytes())["predicate"]["runDetails"]["byproducts"]
    assert {one["name"]: one["digest"]["sha256"] for one in said}[bill.PATH] == rows[bill.PATH]


def test_a_comment_changes_nothing(release, builder, tree):
    kernel = tree / "tritonsrc/flash/attn_fwd.py"
    kernel.write_text("# a remark\n" + kernel.read_text() + "\n\n# another\n")
    done = builder.run(tree=tree)
    assert counts(done.stderr)[0] == 0


def test_only_the_changed_kernel_is_compiled(release, builder, tree):
    """examples/family has two kernels in one file; `total` alone changes."""
    kernel = tree / "examples/family/rms_norm.py"
    text = kernel.read_text()
    assert text.count("tl.sum(squares, 0)") == 1
    kernel.write_text(text.replace("tl.sum(squares, 0)", "2 * tl.sum(squares, 0)"))
    done = builder.run(tree=tree, KILN_RECIPES=str(tree / "examples/family/recipe.yaml"))
    compiled, _ = counts(done.stderr)
    assert compiled == 2, "one image of `total` for each of two targets"
    assert builder.sha256() != release.sha256


def without_store(release, workspace: Path) -> Path:
    """A workspace that has all images to compile, and the libraries' objects from before."""
    release.copy_workspace(workspace)
    shutil.rmtree(workspace / "store")
    shutil.rmtree(workspace / "build/packs")
    return workspace


# Of all kernels those of a release for one target are compiled twice by tests/container.
@pytest.mark.parametrize("selection", [ONE_OPERATION, pytest.param({}, marks=pytest.mark.heavy)], ids=["one", "all"])
def test_equal_bytes_in_another_folder_with_one_job_killed_half_way(release, builder, tmp_path, selection):
    """From nothing: no image, object or pack of the release is there."""
    wanted = builds.one_operation() if selection else release
    workspace, output = tmp_path / "another", tmp_path / "o"
    process = builder.start(workspace, output, KILN_JOBS="1", **selection)
    store = workspace / "store"
    deadline = time.monotonic() + 240
    while len(entries(store)) < 4:
        assert process.poll() is None and time.monotonic() < deadline, process.stdout.read()
        time.sleep(0.05)
    kill(process)
    assert not (output / wanted.tarball.name).exists()
    done = builder.run(workspace=workspace, output=output, KILN_JOBS="1", **selection)
    compiled, reused = counts(done.stderr)
    assert reused >= 4 and compiled > 0
    assert (output / wanted.tarball.name).read_bytes() == wanted.tarball.read_bytes()


@pytest.mark.heavy  # tests/test_farm.py and tests/test_store.py do so with workers that compile nothing
def test_two_builds_at_once_on_one_store(release, builder, tmp_path):
    first = builder.start(tmp_path / "w1", tmp_path / "o1", KILN_STORE=str(tmp_path / "store"), KILN_JOBS="1")
    second = builder.start(tmp_path / "w2", tmp_path / "o2", KILN_STORE=str(tmp_path / "store"), KILN_JOBS="1")
    for process in (first, second):
        text, _ = process.communicate(timeout=300)
        assert process.returncode == 0, text
    assert builder.sha256(tmp_path / "o1") == builder.sha256(tmp_path / "o2") == release.sha256


@pytest.mark.heavy  # test_damage.py damages some of them so
def test_truncated_images_in_the_store_are_made_again(release, builder, tmp_path):
    store = tmp_path / "store"
    shutil.copytree(release.workspace / "store", store)
    for victim in (p for p in store.glob("objects/**/*") if p.is_file()):  # images and PTX alike
        victim.chmod(0o644)
        victim.write_bytes(victim.read_bytes()[:-7])
    done = builder.run(workspace=tmp_path / "w", KILN_STORE=str(store))
    assert counts(done.stderr)[1] == 0, "nothing of it may be used"
    assert builder.sha256() == release.sha256


def test_interrupt_stops_compiles_and_keeps_what_was_done(release, builder, tmp_path):
    process = builder.start(without_store(release, tmp_path / "w"), tmp_path / "o")
    store = tmp_path / "w/store"
    deadline = time.monotonic() + 120
    while len(entries(store)) < 2:
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    text, _ = process.communicate(timeout=60)
    assert process.returncode == 130 and "interrupted" in text and "Traceback" not in text
    assert 2 <= len(entries(store)) < len(entries(release.workspace / "store"))
    assert not (tmp_path / "o" / TARBALL).exists()


def test_without_images(release, builder, tmp_path):
    workspace = without_store(release, tmp_path / "w")
    builder.run(workspace=workspace, KILN_NOIMAGE="1")
    name = TARBALL.replace(".with", ".noimage.with")
    prefix = unpack(tmp_path / "out" / name, tmp_path / "unpacked")
    assert (prefix / "lib/libkiln_flash.so").is_file() and not (prefix / "lib/kiln.images").exists()
    assert not entries(workspace / "store")
