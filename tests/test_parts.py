"""`kiln split` and `kiln merge`: parts verify by themselves, install beside one another, and make the release again."""

from __future__ import annotations

import functools
import hashlib
import json
import shutil
import subprocess
from pathlib import Path

import pytest

import minisign_keys
import shared
from kiln_build.artifacts import manifest, manifest_model, parts, reader, verify
from kiln_build.cli import main
from kiln_build.release import release
from kiln_build.trust import statement
from small_release import VERSION, linked_release, small_release

NAMES = ("runtime", "gfx942", "sm_90")


@functools.cache
def split_release() -> Path:
    """A folder with the linked release, signed, the key, and in `parts/` its parts, signed."""
    return shared.once("split release", _make)


def _make(folder: Path) -> None:
    for path in (linked_release().tarball, statement.checksum_of(linked_release().tarball)):
        shutil.copy(path, folder)
    keys = minisign_keys.make(folder)
    tarball = folder / linked_release().tarball.name
    assert main(["sign", str(tarball), "--key", str(keys.secret)]) == 0
    assert main(["split", str(tarball), str(folder / "parts"), "--sign", str(keys.secret)]) == 0


def part(name: str, folder: Path | None = None) -> Path:
    return (folder or split_release() / "parts") / release.part_name(VERSION, name)


def install(prefix: Path, *names: str) -> Path:
    """The folder of the parts, unpacked one after the other; tar refuses what another has brought."""
    prefix.mkdir(exist_ok=True)
    for name in names:
        subprocess.run(["tar", "--keep-old-files", "-xzf", part(name)], cwd=prefix, check=True)
    return prefix / "kiln"


def run(*words: object) -> int:
    return main([str(word) for word in words])


@pytest.mark.parametrize("whole", [small_release, linked_release])
def test_all_parts_are_the_release_byte_for_byte(whole, tmp_path, capsys):
    tarball = whole().tarball
    assert run("split", tarball, tmp_path / "parts") == 0
    made = [str(part(name, tmp_path / "parts")) for name in NAMES]
    assert capsys.readouterr().out.splitlines() == made
    assert run("merge", *reversed(made), made[1], tmp_path / "whole") == 0  # one twice, in any order
    again = tmp_path / "whole" / tarball.name
    assert again.read_bytes() == tarball.read_bytes()
    assert statement.checksum_of(again).read_bytes() == statement.checksum_of(tarball).read_bytes()
    assert sorted(p.name for p in (tmp_path / "whole").iterdir()) == [again.name, f"{again.name}.sha256"]
    assert len([*(tmp_path / "parts").iterdir()]) == 2 * len(NAMES), "each with its .sha256, and nothing else"


def test_splitting_again_gives_the_same_bytes(tmp_path):
    assert run("split", split_release() / linked_release().tarball.name, tmp_path) == 0
    assert [part(name, tmp_path).read_bytes() for name in NAMES] == [part(name).read_bytes() for name in NAMES]


@pytest.mark.parametrize("name", NAMES)
def test_a_part_verifies_by_itself(name, tmp_path, capsys):
    for path in part(name).parent.glob(f"{part(name).name}*"):
        shutil.copy(path, tmp_path)
    copy = part(name, tmp_path)
    assert run("verify", copy, "--key", split_release() / "kiln.pub", "--json") == 0
    said = json.loads(capsys.readouterr().out)
    assert said["release"] == VERSION and said["verified"]["complete"]
    assert run("inspect", copy, "--verify") == 0
    assert f"part        {name}" in capsys.readouterr().out
    statement.signature_of(statement.checksum_of(copy)).unlink()
    assert run("verify", copy, "--key", split_release() / "kiln.pub") == 12


@pytest.mark.parametrize("name", NAMES)
def test_a_changed_part_is_refused_by_name(name, tmp_path, capsys):
    """Any byte of its archive: by the tarball's digest; a file of it that is changed with its digests, by its own."""
    data = bytearray(part(name).read_bytes())
    data[len(data) // 2] ^= 1
    copy = part(name, tmp_path)
    copy.write_bytes(data)
    for path in part(name).parent.glob(f"{copy.name}.*"):
        shutil.copy(path, tmp_path)
    assert run("inspect", copy, "--verify") == 6 and copy.name in capsys.readouterr().err
    others = [part(other) for other in NAMES if other != name]
    assert run("merge", copy, *others, tmp_path / "whole") == 6 and copy.name in capsys.readouterr().err
    assert not [*tmp_path.glob("whole/*")]


def test_parts_install_beside_one_another_in_any_order(tmp_path, capsys):
    for number, names in enumerate([NAMES, NAMES[::-1]]):
        folder = install(tmp_path / str(number), *names)
        opened = reader.open_artifact(folder)
        report = verify.verify(opened)
        assert not report.problems and not [note for note in report.notes if "installed" in note]
    subprocess.run(["tar", "-xzf", linked_release().tarball], cwd=tmp_path, check=True)
    shutil.rmtree(folder / parts.PARTS)
    ours, theirs = (manifest.files_of(one) for one in (folder, tmp_path / "kiln"))
    assert ours == theirs


def test_what_is_not_installed_is_named(tmp_path, capsys):
    folder = install(tmp_path, "runtime", "gfx942")
    assert run("inspect", folder, "--verify") == 0
    out = capsys.readouterr().out
    assert "sm_90: its pack lib/kiln.images/nvidia-sm_90.pack is not installed" in out
    assert "note: sm_90 is not installed" in out
    assert run("list", folder) == 0
    assert "sm_90: its pack lib/kiln.images/nvidia-sm_90.pack is not installed" in capsys.readouterr().out
    (folder / "lib/kiln.images/amd-gfx942.pack").unlink()
    assert run("inspect", folder, "--verify") == 6
    assert "lib/kiln.images/amd-gfx942.pack is missing" in capsys.readouterr().err


def test_the_runtime_alone_serves_nothing_and_a_target_alone_needs_it(tmp_path, capsys):
    runtime = install(tmp_path / "a", "runtime")
    assert run("inspect", runtime, "--verify") == 0 and "note: gfx942 is not installed" in capsys.readouterr().out
    target = install(tmp_path / "b", "sm_90")
    assert run("inspect", target, "--verify") == 0 and "which packs are accepted" in capsys.readouterr().out
    install(tmp_path / "b", "gfx942")
    assert run("inspect", target) == 6 and "without its part runtime" in capsys.readouterr().err
    key = minisign_keys.make(tmp_path).public
    assert run("verify", target, "--key", key) == 2
    assert "without its part runtime, which has the manifest that is signed" in capsys.readouterr().err


def test_the_signature_of_the_release_covers_what_is_installed(tmp_path, capsys):
    """The one beside the whole tarball, and the one beside the runtime, are the same."""
    folder = install(tmp_path, "runtime", "sm_90")
    beside = statement.manifest_signature_of(part("runtime"))
    whole = statement.manifest_signature_of(split_release() / linked_release().tarball.name)
    assert beside.read_bytes() == whole.read_bytes()
    words = ("verify", folder, "--key", split_release() / "kiln.pub", "--signature", whole)
    assert run(*words) == 0
    for path in sorted(path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()):
        data = path.read_bytes()
        path.write_bytes(data + b"\n")
        assert run(*words) in (6, 12), path
        path.write_bytes(data)
    (folder / parts.PARTS / "sm_90" / "more").write_text("something")
    capsys.readouterr()
    assert run(*words) == 6 and "installed/sm_90/more exists" in capsys.readouterr().err


def test_libraries_accept_the_packs_of_all_parts():
    packs = [row["index"] for row in reader.open_artifact(linked_release().tarball).manifest["targets"]]
    library = reader.file_of(part("runtime"), "lib/libkiln_toy.so")
    assert len(packs) == 2 and all(bytes.fromhex(digest) in library for digest in packs)


def test_json_says_what_was_made(tmp_path, capsys):
    keys = split_release() / "kiln.key"
    assert run("split", linked_release().tarball, tmp_path, "--sign", keys, "--json") == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["part"] for row in rows] == [*NAMES]
    for row in rows:
        path = Path(row["file"])
        assert row["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest() and row["bytes"] == path.stat().st_size
        assert all(Path(one).is_file() for one in row["signatures"]) and f"{path}.sha256.minisig" in row["signatures"]
    assert run("merge", *(row["file"] for row in rows), tmp_path / "whole", "--json") == 0
    made = json.loads(capsys.readouterr().out)
    assert made["sha256"] == hashlib.sha256(linked_release().tarball.read_bytes()).hexdigest()


def changed(folder: Path, name: str, **facts: object) -> Path:
    """A part whose manifest says something else, as one of another release would."""
    path = part(name, folder)
    opened = reader.open_artifact(part(name), takes_part=True)
    stage = folder / f"stage-{name}"
    release.unpack(opened, stage)
    document = {**opened.manifest, **facts}
    if name == "runtime":
        whole = manifest_model.read(reader.file_of(part(name), manifest_model.PATH), "") | facts
        data = manifest_model.encode_document(whole)
        document = parts.manifest_of(whole, data, name)
        (stage / manifest_model.PATH).write_bytes(data)
    (stage / manifest_model.path_of(document)).write_bytes(manifest_model.encode_document(document))
    return release.make_tarball(stage, path, ())


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"source": {"commit": "2" * 40, "dirty": False}}, "the source's commit is 2222"),
        ({"kiln": "0.1.1"}, "the version is 0.1.1 in the first and 0.1.0b in the second"),
        ({"profile": "full"}, "the profile is full in the first and core in the second"),
        ({"selection": "dtype=bf16"}, "the selection is dtype=bf16 in the first and none in the second"),
        ({"ptx": False}, "PTX is none in the first and packed in the second"),
        ({"of": "3" * 64}, "the digest of the release's manifest is 3333"),
    ],
)
def test_parts_of_different_releases_are_refused_by_what_differs(facts, said, tmp_path, capsys):
    other = changed(tmp_path, "gfx942", **facts)
    assert run("merge", other, part("runtime"), part("sm_90"), tmp_path / "whole") == 2
    err = capsys.readouterr().err
    assert said in err and other.name in err and not [*tmp_path.glob("whole/*")]


def test_parts_that_do_not_follow_from_the_release_are_refused(tmp_path, capsys):
    """A part may say what it likes of itself; it counts for what the release's manifest says."""
    row = reader.open_artifact(part("gfx942"), takes_part=True).manifest["targets"][0]
    other = changed(tmp_path, "gfx942", targets=[{**row, "verified": "run on everything"}])
    assert run("merge", part("runtime"), other, part("sm_90"), tmp_path / "whole") == 6
    assert "does not follow from that of the release" in capsys.readouterr().err
    runtime = changed(tmp_path, "runtime", profile="full")
    assert run("inspect", runtime, "--verify") == 0, "whole by itself, and of another release"
    assert run("merge", runtime, part("gfx942"), part("sm_90"), tmp_path / "whole") == 2


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (("gfx942", "sm_90"), "the part runtime is missing; give kiln-0.1.0b-manylinux_2_28_x86_64-runtime.tar.gz too"),
        (("runtime", "sm_90"), "missing; give kiln-0.1.0b-manylinux_2_28_x86_64-gfx942.tar.gz too"),
        (("runtime",), "gfx942.tar.gz, kiln-0.1.0b-manylinux_2_28_x86_64-sm_90.tar.gz too"),
    ],
)
def test_a_missing_part_is_named(names, said, tmp_path, capsys):
    assert run("merge", *map(part, names), tmp_path / "whole") == 2
    assert said in capsys.readouterr().err and not [*tmp_path.glob("whole/*")]


def test_two_parts_of_one_name_that_differ_are_refused(tmp_path, capsys):
    other = changed(tmp_path, "gfx942", of="3" * 64)
    assert run("merge", part("runtime"), part("gfx942"), other, part("sm_90"), tmp_path / "whole") == 2
    assert "are both the part gfx942, and differ" in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["select", "wheel", "diff", "rebuild"])
def test_what_needs_a_whole_release_refuses_a_part(verb, tmp_path, capsys):
    words = {
        "select": (part("sm_90"), tmp_path / "out", "--target", "sm_90"),
        "wheel": (part("sm_90"), tmp_path / "out"),
        "diff": (part("sm_90"), linked_release().tarball),
        "rebuild": ("--verify", part("sm_90")),
    }
    assert run(verb, *words[verb]) == 2
    assert "is the part sm_90 of a release that was split; `kiln merge` makes one" in capsys.readouterr().err


def test_mistakes_are_one_sentence(tmp_path, capsys):
    assert run("split", part("sm_90"), tmp_path / "out") == 2 and "is the part sm_90" in capsys.readouterr().err
    assert run("merge", linked_release().tarball, tmp_path / "out") == 2
    assert "is alone; give the releases of other targets too" in capsys.readouterr().err
    assert run("merge", part("sm_90")) == 2 and "the following arguments" not in capsys.readouterr().err
    assert run("split", tmp_path / "nothing", tmp_path / "out") == 7
    assert run("split", linked_release().tarball, tmp_path / "out", "--sign", tmp_path / "nothing") == 7
    assert run("split", linked_release().tarball, tmp_path) == 0
    part("sm_90", tmp_path).write_bytes(b"somebody's")
    assert run("split", linked_release().tarball, tmp_path) == 7
    assert part("sm_90", tmp_path).read_bytes() == b"somebody's"
