"""`kiln merge` of what several hosts have built: what is refused, what a build finds in its store, what comes out."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path

import pytest

import small_release as small
from checkouts import checkout_of, git
from kiln_build.artifacts import manifest, manifest_model, pack, reader
from kiln_build.cli import main
from kiln_build.parts import hosts
from kiln_build.release import release
from kiln_build.store.local import LocalStore
from kiln_build.trust import statement
from kiln_recipe import targets
from kiln_recipe.images import elf

NAME = small.small_release().tarball.name


def run(*words: object) -> int:
    return main([str(word) for word in words])


@pytest.fixture
def checkout(tmp_path) -> Path:
    """A source whose build.sh gives the release that MADE names, and tells how it was called, and its store."""
    return checkout_of(
        tmp_path / "checkout",
        'set -e\nenv | grep "^KILN_" | sort >"$TOLD/variables"\nprintf "%s\\n" "$2" "$4" "$5" >"$TOLD/words"\n'
        'cp -r "$KILN_STORE" "$TOLD/store"\n'
        '[[ ${MADE:-} ]] || exit 4\ncp "$MADE" "$MADE.sha256" "$3/"\n',
    )


def host(folder: Path, *names: str, **facts: object) -> Path:
    """The release of a host that built for these targets alone; `facts` go into its manifest."""
    made = small.small_release()
    packs = {name: made.packs[name] for name in names}
    release.lay_out(small.contents(folder, packs), folder / "stage")
    inputs = dataclasses.replace(
        made.inputs, targets=tuple(targets.by_name(name) for name in names),
        packs={name: pack.read_pack(path) for name, path in packs.items()},
    )  # fmt: skip
    rows = manifest.make_manifest(dataclasses.replace(inputs, **facts), folder / "stage", release.PLATFORM)
    (folder / "stage" / manifest.PATH).write_bytes(manifest.encode(rows))
    return release.make_release(folder / "stage", folder, rows.kiln)


@pytest.fixture
def built(checkout, tmp_path, monkeypatch):
    """Two hosts' releases of the checkout's commit, and what a host makes that builds for both targets."""
    source = manifest.Source(commit=git(checkout, "rev-parse", "HEAD"), dirty=False)
    (tmp_path / "told").mkdir()
    monkeypatch.setenv("TOLD", str(tmp_path / "told"))
    one, other, both = (
        host(tmp_path / "-".join(names), *names, source=source)
        for names in (("gfx942",), ("sm_90",), ("gfx942", "sm_90"))
    )
    monkeypatch.setenv("MADE", str(both))
    return one, other, both


def test_one_build_makes_it_from_the_images_of_all(built, checkout, tmp_path, capfd):
    one, other, both = built
    assert (
        run("merge", other, one, tmp_path / "out", "--source", checkout, "--workspace", tmp_path / "work", "--json")
        == 0
    )
    said = json.loads(capfd.readouterr().out)
    made = tmp_path / "out" / NAME
    assert made.read_bytes() == both.read_bytes() and said["file"] == str(made)
    assert said["sha256"] == hashlib.sha256(both.read_bytes()).hexdigest()
    assert statement.checksum_of(made).read_text() == f"{said['sha256']}  {NAME}\n"
    variables = (tmp_path / "told/variables").read_text().split()
    assert [v for v in variables if "STORE" not in v] == ["KILN_PROFILE=core", "KILN_PTX=1", "KILN_SOURCE=tree"]
    assert (tmp_path / "told/words").read_text().split() == [str(tmp_path / "work"), "0.1.0b", "gfx942;sm_90"]
    store = LocalStore(tmp_path / "told/store")
    for row in (row for path in (one, other) for row in reader.variants_of(reader.open_artifact(path))):
        stored = store.get(row["key"])
        assert (stored is None) == (row["image"] is None)
        if stored:
            image = store.load(stored)
            assert image.info == small.info_of(image.code) and stored.digest == row["image"]
            assert (image.ptx is None) == (row["target"] != "sm_90")
            assert elf.strip(image.code) == image.code
    assert store.verify().removed_objects == ()


def test_what_a_build_makes_otherwise_is_refused(built, checkout, tmp_path, capfd, monkeypatch):
    """A host whose images are not those of the commit's build."""
    one, other, _ = built
    other_images = small.write_pack(tmp_path / "packs", "sm_90")  # without PTX
    made = dataclasses.replace(small.small_release(), packs={**small.small_release().packs, "sm_90": other_images})
    monkeypatch.setattr(small, "small_release", lambda: made)
    source = reader.open_artifact(one).manifest["source"]
    strange = host(tmp_path / "strange", "gfx942", "sm_90", source=manifest.Source(**source))
    monkeypatch.setenv("MADE", str(strange))
    assert run("merge", one, other, tmp_path / "out", "--source", checkout) == 4
    assert "has made other images for sm_90 than are in" in capfd.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_build_that_lacks_a_target_is_refused(built, checkout, tmp_path, capfd, monkeypatch):
    one, other, _ = built
    monkeypatch.setenv("MADE", str(one))
    assert run("merge", one, other, tmp_path / "out", "--source", checkout) == 4
    err = capfd.readouterr().err
    assert f"has made other images for sm_90 than are in {other}; `kiln rebuild --verify` that one" in err
    assert not (tmp_path / "out").exists()


def test_a_build_that_fails_gives_its_exit_code(built, checkout, tmp_path, capfd, monkeypatch):
    monkeypatch.delenv("MADE")
    assert run("merge", *built[:2], tmp_path / "out", "--source", checkout) == 4
    assert "build.sh of its source ended with exit code 4" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"source": manifest.Source(commit="2" * 40, dirty=False)}, "the source's commit is 1111"),
        ({"version": "0.1.1"}, "the version is 0.1.0b in the first and 0.1.1 in the second"),
        ({"profile": "full"}, "the profile is core in the first and full in the second"),
        ({"selection": "dtype=bf16"}, "the selection is none in the first and dtype=bf16 in the second"),
        ({"ptx": False}, "PTX is packed in the first and none in the second"),
        ({"tools": (manifest.Tool(name="zig", version="0.18.0"),)}, "different tools: zig is 0.17.0"),
    ],
)
def test_releases_of_different_builds_are_refused_by_what_differs(facts, said, tmp_path, capsys):
    one, other = host(tmp_path / "a", "gfx942"), host(tmp_path / "b", "sm_90", **facts)
    assert run("merge", one, other, tmp_path / "out") == 2
    err = capsys.readouterr().err
    assert said in err and str(one) in err and str(other) in err


def test_another_runtime_is_refused_by_its_digest(tmp_path, capsys):
    one, other = host(tmp_path / "a", "gfx942"), host(tmp_path / "b", "sm_90")
    stage = tmp_path / "b/stage"
    (stage / "lib/libkiln.so.0").write_bytes(b"\x7fELF another")
    document = reader.open_artifact(other).manifest
    rows = [{"path": r.path, "bytes": r.bytes, "sha256": r.sha256} if r.sha256 else {"path": r.path, "link": r.link}
            for r in manifest.files_of(stage)]  # fmt: skip
    (stage / manifest.PATH).write_bytes(manifest_model.encode_document({**document, "files": rows}))
    other = release.make_release(stage, tmp_path / "b", small.VERSION, replace=True)
    assert run("merge", one, other, tmp_path / "out") == 2
    assert "have different runtimes: the digest of lib/libkiln.so.0" in capsys.readouterr().err


def test_targets_that_two_have_must_be_the_same(tmp_path, capsys, monkeypatch):
    both, one = host(tmp_path / "a", "gfx942", "sm_90"), host(tmp_path / "b", "sm_90")
    found = hosts.check([reader.open_artifact(both), reader.open_artifact(one)])
    assert {name: release.path for name, release in found.items()} == {"gfx942": both, "sm_90": both}
    made = dataclasses.replace(small.small_release(), packs={"sm_90": small.write_pack(tmp_path / "packs", "sm_90")})
    monkeypatch.setattr(small, "small_release", lambda: made)
    other = host(tmp_path / "c", "sm_90")
    assert run("merge", both, other, tmp_path / "out") == 2
    assert "both have images for sm_90, and they differ" in capsys.readouterr().err


def test_mistakes_are_one_sentence(tmp_path, capsys):
    one = host(tmp_path / "a", "gfx942")
    assert run("merge", one, tmp_path / "out") == 2 and "is alone; give the releases" in capsys.readouterr().err
    assert run("split", small.small_release().tarball, tmp_path / "parts") == 0
    part = tmp_path / "parts" / release.part_name(small.VERSION, "sm_90")
    assert run("merge", one, part, tmp_path / "out") == 2
    assert "is a part of a release, and" in capsys.readouterr().err
    assert run("merge", one, one, tmp_path / "out") == 2
    assert "are for the same targets, gfx942; give the releases of other targets" in capsys.readouterr().err
    two = host(tmp_path / "b", "sm_90")
    assert run("merge", one, two, tmp_path / "out", "--input", tmp_path / "nothing") == 7
