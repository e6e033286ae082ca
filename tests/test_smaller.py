"""`kiln select`: a part of a release is whole, has what was asked for, and its libraries accept its packs."""

from __future__ import annotations

import hashlib
import json
import os
import re
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from kiln_build import cli
from kiln_build.artifacts import pack, reader, verify
from small_release import linked_release, small_release

SOURCE = Path(__file__).resolve().parents[1] / "v3python"


def select(tarball: Path, output: Path, *words: str) -> int:
    return cli.main(["select", str(tarball), str(output), *words])


def opened(output: Path) -> reader.Release:
    (tarball,) = output.glob("*.tar.gz")
    release = reader.open_artifact(tarball)
    report = verify.verify(release)
    assert report.complete and not report.problems
    return release


def images(release: reader.Release) -> set[tuple[str, str, str, str]]:
    return {
        (row["target"], row["functional"], row["configuration"], row["image"])
        for row in reader.variants_of(release)
        if row["image"]
    }


@pytest.mark.parametrize("whole", [small_release, linked_release])
def test_all_of_a_release_is_the_release_byte_for_byte(whole, tmp_path):
    tarball = whole().tarball
    assert select(tarball, tmp_path / "targets", "--target", "gfx942", "--target", "sm_90") == 0
    assert select(tarball, tmp_path / "choices", "--select", "family=toy") == 0
    assert (tmp_path / "targets" / tarball.name).read_bytes() == tarball.read_bytes()
    made, given = opened(tmp_path / "choices").manifest, reader.open_artifact(tarball).manifest
    assert made.pop("selection") == "family=toy" and given.pop("selection") == "" and made == given


@pytest.mark.parametrize("whole", [small_release, linked_release])
def test_a_target_is_kept_and_the_others_packs_go_under_all_their_names(whole, tmp_path):
    assert select(whole().tarball, tmp_path, "--target", "sm_90") == 0
    release = opened(tmp_path)
    assert [row["name"] for row in release.manifest["targets"]] == ["sm_90"]
    assert not [row["path"] for row in release.manifest["files"] if "gfx942" in row["path"]]
    every = images(reader.open_artifact(whole().tarball))
    assert images(release) == {one for one in every if one[0] == "sm_90"}


@pytest.mark.parametrize("whole", [small_release, linked_release])
def test_combinations_are_kept_and_libraries_accept_the_packs(whole, tmp_path):
    assert select(whole().tarball, tmp_path, "--select", "dtype=bf16") == 0
    release = opened(tmp_path)
    every = images(reader.open_artifact(whole().tarball))
    assert images(release) == {one for one in every if one[1] == "dtype=bf16"}
    assert release.manifest["selection"] == "dtype=bf16"
    digests = {row["name"]: row["index"] for row in release.manifest["targets"]}
    library = reader.file_of(release.path, "lib/libkiln_toy.so")
    assert all(bytes.fromhex(digest) in library for digest in digests.values())
    assert digests["sm_90"] != pack.read_pack(whole().packs["sm_90"]).index_digest
    reasons = {rule["reason"] for rule in reader.rules_of(release)}
    assert "dtype=fp16 is not in this part of the release" in reasons
    for row in release.manifest["targets"]:
        assert row["verified"].startswith("part of a release of which: ")
        assert row["variants"] == 4 and row["unavailable"] == 1 and row["images"] == 2
    if whole is linked_release:
        packs = {row["sha256"] for row in release.manifest["files"] if row["path"].endswith("amd-gfx942.pack")}
        assert len(packs) == 1, "each prefix has the new pack"


def test_a_part_of_a_part_is_the_part_of_the_whole(tmp_path):
    tarball = small_release().tarball
    words = ("--select", "dtype=bf16", "--target", "gfx942")
    assert select(tarball, tmp_path / "once", *words) == 0
    assert select(tarball, tmp_path / "first", "--target", "gfx942") == 0
    assert select(tmp_path / "first" / tarball.name, tmp_path / "twice", "--select", "dtype=bf16") == 0
    once, twice = ((tmp_path / name / tarball.name).read_bytes() for name in ("once", "twice"))
    assert once == twice


def test_what_is_written_is_finished_and_small(tmp_path, capsys):
    tarball = small_release().tarball
    assert select(tarball, tmp_path, "--target", "gfx942") == 0
    made = tmp_path / tarball.name
    assert capsys.readouterr().out == f"{made}\n"
    assert made.with_name(f"{made.name}.sha256").read_text().split()[0] == hashlib.sha256(made.read_bytes()).hexdigest()
    assert made.stat().st_size < tarball.stat().st_size
    assert sorted(path.name for path in tmp_path.iterdir()) == [made.name, f"{made.name}.sha256"]


@pytest.mark.parametrize("locale", ["C", "C.UTF-8"])
def test_a_script_opens_what_is_printed_also_if_its_name_is_not_text(locale, tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "LC_ALL": locale}
    folder = os.fsencode(tmp_path) + b"/o\xff\nx"
    command = [sys.executable, "-m", "kiln_build", "select", small_release().tarball, folder, "--target", "sm_90"]
    said = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True).stdout
    assert os.path.isfile(said.removesuffix(b"\n")) and said.startswith(folder)


def test_json_says_what_was_made(tmp_path, capsys):
    tarball = small_release().tarball
    assert select(tarball, tmp_path, "--target", "gfx942", "--json") == 0
    made = tmp_path / tarball.name
    assert json.loads(capsys.readouterr().out) == {
        "file": str(made), "bytes": made.stat().st_size, "images": {"gfx942": 4},
        "sha256": hashlib.sha256(made.read_bytes()).hexdigest(),
    }  # fmt: skip


def test_another_release_of_that_name_stays(tmp_path, capsys):
    tarball = small_release().tarball
    assert select(tarball, tmp_path, "--target", "gfx942") == 0
    before = (tmp_path / tarball.name).read_bytes()
    capsys.readouterr()
    assert select(tarball, tmp_path, "--target", "sm_90") == 7
    said = capsys.readouterr().err
    assert f"has a {tarball.name} with other bytes" in said and "KILN_REPLACE" not in said
    assert said.endswith("which was not changed; another output folder keeps both\n")
    assert (tmp_path / tarball.name).read_bytes() == before


@pytest.mark.parametrize(
    "words",
    [
        ["select", "{tarball}", "{tmp}/a/b", "--target", "gfx1100"],
        ["select", "{tarball}", "{tmp}/a/b", "--select", "dtype=fp8"],
        ["merge", "{tarball}", "{tarball}", "{tmp}/a/b"],
        ["split", "{damaged}", "{tmp}/a/b"],
        ["select", "{damaged}", "{tmp}/a/b", "--target", "sm_90"],
        ["apply", "{tarball}", "{damaged}", "{tmp}/a/b"],
        ["wheel", "{damaged}", "{tmp}/a/b"],
    ],
    ids=lambda words: " ".join(words[:2]),
)
def test_nothing_is_left_of_what_is_refused(words, tmp_path):
    tarball, damaged = small_release().tarball, tmp_path / small_release().tarball.name
    damaged.write_bytes(tarball.read_bytes()[:-2000])
    for there in ([], ["a"], ["a", "a/b"]):
        if there:
            (tmp_path / there[-1]).mkdir()
        assert cli.main([word.format(tarball=tarball, damaged=damaged, tmp=tmp_path) for word in words]) in (2, 6, 7)
        left = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")} - {damaged.name}
        assert left == {*there}


@pytest.mark.parametrize("words", [["split"], ["select", "--target", "sm_90"]], ids=lambda words: words[0])
def test_a_full_disk_is_named_by_the_folder(words, tmp_path):
    verb, *options = words
    done = subprocess.run(
        [sys.executable, "-B", "-m", "kiln_build", verb, str(small_release().tarball), str(tmp_path / "out"), *options],
        capture_output=True, text=True, check=False, timeout=60, cwd=SOURCE,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000)),  # to write, as good as full
    )  # fmt: skip
    assert done.returncode == 7 and not done.stdout and not list(tmp_path.iterdir()), done.stderr
    assert re.fullmatch(rf"kiln: cannot write {tmp_path}/out\S*: File too large; make room on its disk\n", done.stderr)


def test_an_output_that_leads_in_a_circle(tmp_path, capsys):
    circle = tmp_path / "circle"
    circle.symlink_to(circle)
    assert cli.main(["select", str(small_release().tarball), str(circle), "--target", "sm_90"]) == 7
    assert capsys.readouterr().err.startswith(f"kiln: the output {circle} is a dangling link; give a folder")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "give --target or --select"),
        (("--target", "sm_80"), "has nothing for sm_80; it has gfx942, sm_90"),
        (("--target", "H1000"), "H1000"),
        (("--select", "dtype=fp64"), "has dtype=fp64; it has bf16, fp16"),
        (("--select", "head_dim=64"), "has a head_dim; variants have"),
    ],
)
def test_mistakes_are_one_sentence(words, said, tmp_path, capsys):
    assert select(small_release().tarball, tmp_path, *words) == 2
    captured = capsys.readouterr()
    assert said in captured.err and not captured.out and not [*tmp_path.iterdir()]
