"""`kiln rebuild --verify`: what a manifest says of a build, the source and input of it, and the verdict."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import shared
import small_release as small
from checkouts import checkout_of, git
from kiln_build import cli
from kiln_build.artifacts import manifest, reader
from kiln_build.difference import code
from kiln_build.front import source
from kiln_build.options import naming, options
from kiln_build.rebuild import asked, tree, verdict
from kiln_build.rebuild.asked import Asked
from kiln_build.release import release
from kiln_recipe.compile.lock import LOCK_NAME
from kiln_recipe.errors import ArtifactError, BuildFailed, EnvironmentProblem, UsageError

ROOT = Path(__file__).resolve().parents[1]
NAME = small.small_release().tarball.name


# ---- what a manifest says ----


@pytest.mark.parametrize(
    ("given", "added"),
    [
        ({}, ()),
        ({"KILN_PROFILE": "full"}, ()),
        ({"KILN_PROFILE": "full", "KILN_CONFIGURATIONS": "all"}, ()),
        ({"KILN_SELECT": "dtype=bf16;head_dim=64"}, ()),
        ({"KILN_NOIMAGE": "1"}, ()),
        ({"KILN_PTX": "1"}, ()),
        ({"KILN_PROFILE": "full"}, ("bias_gelu", "norm")),
    ],
)
def test_how_a_release_was_built_is_read_out_of_its_manifest(given, added):
    build = options.read_build_variables(given)
    name = naming.name_of("0.1.0b", build, added)
    document = {
        "kiln": name, "profile": build.profile, "selection": given.get("KILN_SELECT", ""), "ptx": build.ptx,
        "source": {"commit": "1" * 40, "dirty": False}, "targets": [{"name": "sm_90"}, {"name": "gfx942"}],
    }  # fmt: skip
    found = asked.read(reader.Release(Path("x"), False, document, ""))
    assert (found.version, found.name, found.targets, found.added) == ("0.1.0b", name, "sm_90;gfx942", added)
    again = options.read_build_variables(found.variables)
    assert naming.name_of(found.version, again, found.added) == name


def test_a_release_of_some_families_names_them():
    document = {
        "kiln": "0.1.0b+only.bias_gelu.norm.h00000000", "profile": "core", "selection": "", "ptx": False,
        "source": {"commit": "1" * 40, "dirty": False}, "targets": [], "families": ["bias_gelu", "norm"],
    }  # fmt: skip
    found = asked.read(reader.Release(Path("x"), False, document, ""))
    assert found.variables["KILN_FAMILIES"] == "bias_gelu,norm"
    with pytest.raises(UsageError, match="no build gives such a name"):
        asked.read(reader.Release(Path("x"), False, document | {"kiln": "0.1.0b+A$(id)"}, ""))


def wanted(commit: str = "1" * 40, **fields) -> Asked:
    parts = {"is_dirty": False, "patches": "", "version": "0.1.0b", "name": "0.1.0b", "targets": "sm_90"}
    return Asked(commit, **{**parts, "variables": {"KILN_PROFILE": "core"}, **fields})


def test_of_the_callers_variables_those_count_that_change_no_byte():
    given = {"PATH": "/bin", "KILN_STORE": "/store", "KILN_PTX": "1", "KILN_JOBS": "2", "KILN_RECIPES": "a/recipe.yaml"}
    plain = {"PATH": "/bin", "KILN_JOBS": "2", "KILN_PROFILE": "core", "KILN_SOURCE": "tree"}
    assert asked.environment_of(wanted(), given, None) == plain
    assert asked.environment_of(wanted(), given, "/mine")["KILN_STORE"] == "/mine"
    assert asked.environment_of(wanted(added=("a",)), given, None)["KILN_RECIPES"] == "a/recipe.yaml"
    with pytest.raises(UsageError, match="name their recipes"):
        asked.environment_of(wanted(added=("a",)), {}, None)


# ---- the source ----


@pytest.fixture
def checkout(tmp_path) -> Path:
    """A source whose build.sh gives what MADE names."""
    return checkout_of(
        tmp_path / "checkout",
        'set -e\nmkdir -p "$2"\ncd "$2"\n'
        'env | grep "^KILN_" | sort >variables || true\nprintf "%s\\n" "$4" "$5" "$1" >words\n'
        '[[ ${MADE:-} ]] || exit 4\ncp "$MADE" "$3/"\n',
    )


def test_the_commit_is_taken_from_a_checkout_a_bundle_or_an_address(checkout, tmp_path):
    commit = git(checkout, "rev-parse", "HEAD")
    (checkout / "build.sh").write_text("exit 1\n")
    git(checkout, "commit", "-qam", "Two")
    git(checkout, "bundle", "create", "-q", str(tmp_path / "kiln.bundle"), "HEAD")
    for number, word in enumerate((str(checkout), str(tmp_path / "kiln.bundle"), f"file://{checkout}")):
        made = tree.lay_out_source(wanted(commit), word, tmp_path / f"tree{number}" / "source", print)
        assert "MADE" in (made / "build.sh").read_text() and source.describe(made).commit == commit
        with pytest.raises(UsageError, match="does not have the commit 2222"):
            tree.lay_out_source(wanted("2" * 40), word, tmp_path / f"none{number}" / "source", print)


def test_a_folder_without_git_counts_as_what_it_says_it_is(checkout, tmp_path):
    commit = git(checkout, "rev-parse", "HEAD")
    folder = source.export(checkout, commit, tmp_path / "exported", "the commit")
    assert (tree.lay_out_source(wanted(commit), str(folder), tmp_path / "a", print) / "build.sh").is_file()
    with pytest.raises(UsageError, match=f"it is of {commit}"):
        tree.lay_out_source(wanted("2" * 40), str(folder), tmp_path / "b", print)


def test_what_no_commit_has_is_built_from_a_folder_alone(checkout, tmp_path):
    changed = wanted(is_dirty=True)
    for word in (None, "https://example.invalid/kiln.git"):
        with pytest.raises(UsageError, match="a tree with changes to its commit 1111.*--source FOLDER"):
            tree.lay_out_source(changed, word, tmp_path / "a", print)
    assert (tree.lay_out_source(changed, str(checkout), tmp_path / "b", print) / "build.sh").is_file()
    with pytest.raises(UsageError, match="is not a source tree of Kiln"):
        tree.lay_out_source(changed, str(tmp_path), tmp_path / "c", print)


def test_what_cannot_be_fetched_is_said(tmp_path):
    with pytest.raises(EnvironmentProblem, match="--source /nowhere.bundle cannot be fetched"):
        tree.lay_out_source(wanted(), "/nowhere.bundle", tmp_path / "a", print)


def test_the_input_has_the_commits_lock_and_the_downloads_that_it_names(checkout, tmp_path):
    given = tmp_path / "given"
    (given / "cache").mkdir(parents=True)
    name = "idna-3.20-py3-none-any.whl"
    for one in (name, "other.whl"):
        (given / "cache" / one).write_text(one)
    made = tree.lay_out_input(wanted(), checkout, given, tmp_path / "input", None)
    assert [path.name for path in (made / "cache").iterdir()] == [name]
    assert (made / LOCK_NAME).read_bytes() == (checkout / "input" / LOCK_NAME).read_bytes()


def test_patches_are_those_that_the_release_names(checkout, tmp_path):
    given = tmp_path / "given"
    (given / "patch-0.1.0b").mkdir(parents=True)
    patch = given / "patch-0.1.0b" / "one.patch"
    patch.write_text("--- a\n")
    patched = wanted(patches=source.digest_of([patch]))
    made = tree.lay_out_input(patched, checkout, given, tmp_path / "input", None)
    assert (made / "patch-0.1.0b" / "one.patch").read_text() == "--- a\n"
    patch.write_text("--- b\n")
    with pytest.raises(UsageError, match="made with patches of the digest"):
        tree.lay_out_input(patched, checkout, given, tmp_path / "other", None)


# ---- the verdict ----


def sealed(folder: Path, commit: str, stage: Path | None = None, packs: dict[str, Path] | None = None) -> Path:
    """The small release, or what is staged, as one of a commit."""
    made = small.small_release()
    shutil.copytree(stage or made.stage, folder / "stage", symlinks=True)
    (folder / "stage" / manifest.PATH).unlink(missing_ok=True)
    inputs = dataclasses.replace(made.inputs, source=manifest.Source(commit=commit, dirty=False))
    if packs:
        read = {name: small.pack.read_pack(path) for name, path in packs.items()}
        inputs = dataclasses.replace(inputs, packs=read)
    rows = manifest.make_manifest(inputs, folder / "stage", release.PLATFORM)
    (folder / "stage" / manifest.PATH).write_bytes(manifest.encode(rows))
    return release.make_release(folder / "stage", folder, small.VERSION)


def _patched_images(folder: Path) -> None:
    """The images of the kernel with one more multiplication."""
    text = small.KERNEL
    small.KERNEL = text.replace("* factor,", "* factor * 1.5,")
    try:
        assert text != small.KERNEL
        small._compile_images(folder)
    finally:
        small.KERNEL = text


@pytest.fixture(scope="module")
def patched(tmp_path_factory) -> Path:
    """The small release after a patch to its kernel."""
    folder = tmp_path_factory.mktemp("patched")
    there = shared.once("patched images", _patched_images)
    before = small.images
    small.images = lambda: there
    try:
        packs = {name: small.write_pack(folder / "packs", name, name == "sm_90") for name in ("gfx942", "sm_90")}
    finally:
        small.images = before
    release.lay_out(small.contents(folder, packs), folder / "laid")
    return sealed(folder, "1" * 40, folder / "laid", packs)


def test_equal_bytes_are_identical(tmp_path):
    tarball = small.small_release().tarball
    shutil.copy(tarball, tmp_path)
    found = verdict.judge(tarball, tmp_path / tarball.name)
    assert found.is_identical and next(verdict.text(found)) == f"identical: sha256 {found.sha256[0]}"


def test_a_patched_kernel_is_named_with_the_first_instruction_that_differs(patched):
    """For each target by itself."""
    found = verdict.judge(small.small_release().tarball, patched)
    assert not found.is_identical
    assert [(one.target, one.kernel, one.differ, one.images) for one in found.kernels] == [
        ("gfx942", "toy.scale/scale", 4, 4), ("sm_90", "toy.scale/scale", 4, 4)
    ]  # fmt: skip
    lines = list(verdict.text(found))
    assert lines[0].startswith("differs: sha256 ")
    for one in found.kernels:
        assert one.variant == f"toy.scale/scale[dtype=fp16][BLOCK=256 num_warps=4][aligned]@{one.target}"
        assert one.code is not None and one.code.section.startswith(".text")
        first = lines[lines.index(f"first: {one.variant}") + 1 :]
        assert first[0] == "  image {}, made again {}".format(*(str(digest)[:12] for digest in one.image))
        if one.code.before:  # else there is no llvm-objdump that knows it, and the sentence says so
            assert one.code.before[0].text != one.code.after[0].text
            assert first[2] == f"  released    {one.code.before[0]}"
    json.dumps(verdict.document(found))


@pytest.mark.parametrize(("target", "kind"), [("gfx942", "hsaco"), ("sm_90", "cubin")])
def test_the_first_instruction_is_the_patch(target, kind, patched):
    before, after = (
        folder / f"{target}-256-fp16" for folder in (small.images(), shared.once("patched images", _patched_images))
    )
    found = code.first_difference(before.read_bytes(), after.read_bytes(), kind)
    assert found.section.startswith(".text")
    if not found.before:
        pytest.skip(found.note)
    assert 0 < len(found.before) <= code.SHOWN
    same = [a.text == b.text for a, b in zip(found.before, found.after)]
    assert not same[0] and found.before[0].offset == found.after[0].offset


@pytest.mark.parametrize(
    ("ours", "theirs", "first", "note"),
    [
        (["a", "s_cbranch_scc1 7", "b", "c"], ["a", "s_cbranch_scc1 8", "b", "x"], 3, "only how far branches lead"),
        (["a", "s_branch 7", "b", "c"], ["a", "s_branch 8", "b", "c"], 1, ""),
        (["s_cbranch_scc1 7", "b"], ["s_cbranch_scc0 7", "b"], 0, ""),
        (["a", "b"], ["a", "b", "c"], 2, ""),
        (["a", "b"], ["a", "b"], 1, "encoded differently"),
    ],
)
def test_how_far_branches_lead_is_no_difference_where_there_is_another(monkeypatch, ours, theirs, first, note):
    """One longer instruction changes the distance of every branch over it."""
    sides = [[code.Instruction(8 * n, text) for n, text in enumerate(side)] for side in (ours, theirs)]
    texts = {b"\x7fELF0": sides[0], b"\x7fELF1": sides[1]}
    monkeypatch.setattr(code, "_sections", lambda image: {".text": bytes(8) + image[4:]})
    monkeypatch.setattr(code, "_instructions", lambda image, *_: texts[image])
    found = code.first_difference(b"\x7fELF0", b"\x7fELF1", "hsaco")
    assert found.before == tuple(sides[0][first : first + code.SHOWN]) and note in found.note
    assert found.after == tuple(sides[1][first : first + code.SHOWN]) and bool(note) == bool(found.note)


def test_without_a_disassembler_section_and_offset_are_told(monkeypatch, tmp_path, patched):
    monkeypatch.setenv("PATH", str(tmp_path))
    before, after = (
        folder / "gfx942-256-fp16" for folder in (small.images(), shared.once("patched images", _patched_images))
    )
    found = code.first_difference(before.read_bytes(), after.read_bytes(), "hsaco")
    assert found.section == ".text" and not found.before and "llvm-objdump is not installed" in found.note
    with pytest.raises(ArtifactError, match="differ in nothing"):
        code.first_difference(before.read_bytes(), before.read_bytes(), "hsaco")


def test_a_library_that_differs_is_named_with_its_sections(tmp_path):
    stage = tmp_path / "laid"
    shutil.copytree(small.small_release().stage, stage, symlinks=True)
    library = stage / "lib/libkiln.so.0"
    data = library.read_bytes()
    library.write_bytes(data.replace(b"0.1.0b\0", b"0.1.0c\0"))
    found = verdict.judge(small.small_release().tarball, sealed(tmp_path / "other", "1" * 40, stage))
    assert found.files == ["lib/libkiln.so.0"] and not found.kernels and ".rodata" in found.place
    assert "first: lib/libkiln.so.0, from byte" in "\n".join(verdict.text(found))


def test_equal_images_of_other_sources_are_told_by_their_keys(tmp_path):
    """Of the packs that differ, links to others of them among these, the first that is one itself is named."""
    packs = {name: small.write_pack(tmp_path / "packs", name, name == "sm_90", "other") for name in ("gfx942", "sm_90")}
    release.lay_out(small.contents(tmp_path, packs), tmp_path / "laid")
    found = verdict.judge(small.small_release().tarball, sealed(tmp_path / "other", "1" * 40, tmp_path / "laid", packs))
    lines = list(verdict.text(found))
    assert (found.kernels, found.keys) == ([], 16)
    assert any(line.startswith("all images are the same, but 16 variants have another key") for line in lines)
    assert any(line.startswith("first: lib/kiln.images/amd-gfx942.pack, from byte 0x") for line in lines)


def test_another_commit_is_a_difference_of_the_manifest(tmp_path):
    found = verdict.judge(small.small_release().tarball, sealed(tmp_path, "2" * 40))
    assert found.stated == ["source"] and not found.files and not found.kernels


# ---- the command ----


def rebuild(*words: object) -> int:
    return cli.main(["rebuild", "--verify", *map(str, words)])


def test_a_release_is_built_again_and_is_identical(checkout, tmp_path, monkeypatch, capfd):
    commit = git(checkout, "rev-parse", "HEAD")
    tarball = sealed(tmp_path / "released", commit)
    monkeypatch.setenv("MADE", str(tarball))
    monkeypatch.setenv("KILN_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    place = tmp_path / "again"
    assert rebuild(tarball, "--source", checkout, "--workspace", place) == 0
    assert capfd.readouterr().out.startswith("identical: sha256 ")
    variables = (place / "build/variables").read_text().split()
    assert variables == ["KILN_PROFILE=core", "KILN_PTX=1", "KILN_SOURCE=tree"], "no image comes from a store"
    version, targets, folder = (place / "build/words").read_text().split("\n")[:3]
    assert (version, targets) == ("0.1.0b", "gfx942;sm_90") and Path(folder) == place / "input"
    assert rebuild(tarball, "--source", checkout, "--workspace", place) == UsageError.exit_code
    assert "is not empty" in capfd.readouterr().err


def test_what_differs_is_kept_and_all_else_removed(checkout, tmp_path, monkeypatch, capfd, patched):
    commit = git(checkout, "rev-parse", "HEAD")
    tarball = sealed(tmp_path / "released", commit)
    monkeypatch.setenv("MADE", str(patched))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert rebuild(tarball, "--source", checkout, "--json") == 1
    said = json.loads(capfd.readouterr().out)
    assert not said["identical"] and said["kernels"][0]["variant"].startswith("toy.scale/scale[dtype=fp16]")
    (place,) = tmp_path.glob("kiln-rebuild-*")
    assert [str(path.relative_to(place)) for path in place.rglob("*") if path.is_file()] == [f"output/{NAME}"]
    monkeypatch.setenv("MADE", str(tarball))
    assert rebuild(tarball, "--source", checkout) == 0
    assert [*tmp_path.glob("kiln-rebuild-*")] == [place], "what is identical needs no copy"


def test_a_build_that_fails_gives_its_exit_code(checkout, tmp_path, monkeypatch, capfd):
    tarball = sealed(tmp_path / "released", git(checkout, "rev-parse", "HEAD"))
    monkeypatch.delenv("MADE", raising=False)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert rebuild(tarball, "--source", checkout) == BuildFailed.exit_code
    said = capfd.readouterr()
    assert "build.sh of its source ended with exit code 4" in said.err and not said.out
    assert not [*tmp_path.glob("kiln-rebuild-*")]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_build_too(tmp_path, number):
    """Which runs in a session of its own, and would go on."""
    checkout = checkout_of(tmp_path / "checkout", 'echo $$ >"$3/pid"\nexec sleep 600\n')
    tarball = sealed(tmp_path / "released", git(checkout, "rev-parse", "HEAD"))
    place = tmp_path / "again"
    words = ["rebuild", "--verify", str(tarball), "--source", str(checkout), "--workspace", str(place)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "kiln_build", *words]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
    deadline = time.monotonic() + 120
    while not ((place / "output/pid").is_file() and (place / "output/pid").read_text()):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(number)
    assert process.communicate(timeout=60)[1].endswith(f"kiln: interrupted by {number.name}\n")
    assert process.returncode == 128 + number
    with pytest.raises(ProcessLookupError):
        os.kill(int((place / "output/pid").read_text()), 0)


def test_what_is_not_what_its_manifest_says_is_not_built(checkout, tmp_path, monkeypatch, capfd):
    """Else the manifests would be the same, and the bytes would not."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    stage = tmp_path / "laid"
    shutil.copytree(small.small_release().stage, stage, symlinks=True)
    library = stage / "lib/libkiln.so.0"
    library.write_bytes(library.read_bytes().replace(b"0.1.0b\0", b"0.1.0c\0"))
    (tmp_path / "changed").mkdir()
    tarball = release.make_release(stage, tmp_path / "changed", small.VERSION)
    assert rebuild(tarball, "--source", checkout) == ArtifactError.exit_code
    assert "lib/libkiln.so.0 does not have the digest and size that the manifest states" in capfd.readouterr().err
    assert not [*tmp_path.glob("kiln-rebuild-*")]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("{stage}",), 2, "is not a tarball; give a release's tarball"),
        (("/nowhere",), 7, "/nowhere"),
        (("{tarball}",), 2, "does not have the commit 1111"),
        (("{tarball}", "--input", "/nowhere"), 7, "--input /nowhere does not exist"),
    ],
)
def test_mistakes_are_one_sentence(words, code, said, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    release = small.small_release()
    assert rebuild(*(word.format(stage=release.stage, tarball=release.tarball) for word in words)) == code
    captured = capsys.readouterr()
    assert said in captured.err and not captured.out and not os.listdir(tmp_path)
