"""`kiln delta` and `kiln apply`: one release from another, byte for byte; what is damaged or wrong is refused by name.

Releases are made of the small one: its images with other instructions, in other places, dropped; other files."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import random
import resource
import shutil
import struct
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import limits
import shared
import small_release
from kiln_build.artifacts import manifest, manifest_model, pack, pack_writer, reader, split
from kiln_build.cli import main
from kiln_build.parts import form, patch
from kiln_build.release import release
from kiln_recipe import targets
from kiln_recipe.images import elf
from small_release import VERSION, linked_release

TARGETS = ("gfx942", "sm_90")


@dataclass(frozen=True)
class Change:
    """How a release differs from the linked one.

    Attributes:
        patched: bytes of code that differ, for each image by its number.
        order: of the images in the slots; None: a slot is without one.
        packs: targets that have one.
        files: new contents by path; None: it is gone.
        version: its name.
    """

    patched: tuple[int, ...] = ()
    order: tuple[int | None, ...] = ()
    packs: tuple[str, ...] = TARGETS
    files: tuple[tuple[str, bytes | None], ...] = ()
    version: str = "0.1.1"


def changed_image(code: bytes, count: int) -> bytes:
    """An image with so many other bytes of machine code."""
    data = bytearray(code)
    places = [offset + n for offset, size in elf.code_ranges(code) for n in range(size)]
    for place in random.Random(count).sample(places, min(count, len(places))):
        data[place] ^= 0x55
    return bytes(data)


def write_pack(folder: Path, target: str, change: Change) -> Path:
    """A pack as small_release's, changed."""
    names = [f"{target}-{block}-{dtype}" for dtype in ("fp16", "bf16") for block in (256, 1024)]
    originals = [elf.strip((small_release.images() / name).read_bytes()) for name in names]
    codes = [changed_image(code, count) for code, count in zip(originals, (*change.patched, 0, 0, 0, 0))]
    by_digest = {hashlib.sha256(code).hexdigest(): code for code in codes}
    infos = {hashlib.sha256(code).hexdigest(): small_release.info_of(old) for code, old in zip(codes, originals)}
    texts = {}
    if target == "sm_90":
        for name, code in zip(names, codes):
            text = (small_release.images() / f"{name}.ptx").read_bytes()
            texts[hashlib.sha256(code).hexdigest()] = hashlib.sha256(text).hexdigest()
            by_digest[hashlib.sha256(text).hexdigest()] = text
    digests = [hashlib.sha256(code).hexdigest() for code in codes]
    slots = []
    for number, place in enumerate((*change.order, 0, 1, 2, 3)[:4]):
        image = None if place is None else digests[place]
        for specialization in ("aligned", "generic"):
            key = hashlib.sha256(f"{target} {number} {specialization} {image}".encode()).hexdigest()
            slots.append(pack.Slot(key, image, texts.get(image), None if image else "not on this GPU"))
    kernel = pack.KernelSlots(
        "toy", "scale", "scale", ("dtype=fp16", "dtype=bf16"), ("BLOCK=256 num_warps=4", "BLOCK=1024 num_warps=4"),
        ("aligned", "generic"), hashlib.sha256(b"layout").hexdigest(), tuple(slots),
    )  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / targets.by_name(target).pack_file
    pack_writer.write_pack(
        path, target, split.INSTRUCTIONS[targets.by_name(target).instructions], change.version, [kernel],
        infos.__getitem__, by_digest.__getitem__, elf.code_ranges,
    )  # fmt: skip
    return path


def make(folder: Path, change: Change) -> Path:
    """The tarball of a changed release, in a new folder."""
    stage = folder / "stage"
    shutil.copytree(linked_release().stage, stage, symlinks=True)
    for path in [*stage.rglob("*.pack"), stage / manifest.PATH]:
        path.unlink()
    for target in change.packs:
        path = write_pack(stage / manifest_model.IMAGES, target, change)
        for version in ("1.0", "2.0"):
            os.link(path, stage / "lib/other" / version / "lib/other.images" / path.name)
    for name, data in change.files:
        path = stage / name
        path.unlink(missing_ok=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        if data is not None:
            path.write_bytes(data)
    for path in sorted(stage.rglob("*"), reverse=True):
        if path.is_dir() and not any(path.iterdir()):
            path.rmdir()  # no release has a folder with nothing in it
    inputs = replace(
        linked_release().inputs,
        version=change.version,
        targets=tuple(targets.by_name(name) for name in change.packs),
        packs={n: pack.read_pack(stage / manifest_model.IMAGES / targets.by_name(n).pack_file) for n in change.packs},
    )
    rows = manifest.make_manifest(inputs, stage, release.PLATFORM)
    (stage / manifest.PATH).write_bytes(manifest.encode(rows))
    return release.make_release(stage, folder, change.version)


ONE_IMAGE = Change(patched=(0, 3, 0, 0), files=(("share/kiln/LICENSE", b"Another licence.\n"),))


@functools.cache
def pair() -> Path:
    """A folder with `after`, a release in which one image of each target and a file differ, and the delta to it."""
    return shared.once("delta", _pair)


def _pair(folder: Path) -> None:
    made = make(folder / "after", ONE_IMAGE)
    assert run("delta", linked_release().tarball, made, folder / "one.kdelta") == 0


def after() -> Path:
    return pair() / "after" / release.tarball_name("0.1.1")


def delta() -> Path:
    return pair() / "one.kdelta"


def run(*words: object) -> int:
    return main([str(word) for word in words])


def same(tmp_path: Path, before: Path, wanted: Path) -> int:
    """Makes and applies a delta; gives its size."""
    path = tmp_path / "x.kdelta"
    assert run("delta", before, wanted, path) == 0
    assert run("apply", before, path, tmp_path / "output") == 0
    made = tmp_path / "output" / wanted.name
    assert made.read_bytes() == wanted.read_bytes()
    assert sorted(one.name for one in made.parent.iterdir()) == [made.name, f"{made.name}.sha256"]
    return path.stat().st_size


def test_what_comes_out_is_the_release_and_little_was_needed(tmp_path, capsys):
    delta()
    capsys.readouterr()
    assert run("apply", linked_release().tarball, delta(), tmp_path) == 0
    made = tmp_path / after().name
    assert capsys.readouterr().out == f"{made}\n"
    assert made.read_bytes() == after().read_bytes()
    assert made.with_name(f"{made.name}.sha256").read_bytes() == after().with_name(f"{made.name}.sha256").read_bytes()
    packs = [pack.read_pack(path) for path in (pair() / "after/stage/lib/kiln.images").iterdir()]
    changed = sum(end - begin for kind, begin, end in sections(delta().read_bytes()) if kind in (form.RAW, form.SPLIT))
    whole = sum(group.stored for one in packs for group in one.groups)
    assert changed < whole / 20, "an image that changed a little does not cost its group"


def test_a_delta_is_the_same_when_it_is_made_again(tmp_path):
    assert run("delta", linked_release().tarball, after(), tmp_path / "x") == 0
    assert (tmp_path / "x").read_bytes() == delta().read_bytes()


def test_it_goes_back_too(tmp_path):
    same(tmp_path, after(), linked_release().tarball)


@pytest.mark.parametrize(
    "change",
    [
        Change(packs=("gfx942",)),
        Change(packs=()),
        Change(order=(3, 2, 1, 0)),
        Change(order=(None, 0, None, 0), patched=(5000, 5000, 5000, 5000)),
        Change(files=(("include/empty.h", b""), ("include/kiln/kiln.h", None), ("lib/libnew.so.2", bytes(70_000)))),
        Change(version=VERSION, files=(("lib/libkiln.so.0", b"\x7fELF"),)),
        Change(files=(("include/kiln/twice.h", b"the same"), ("include/kiln/again.h", b"the same"))),
    ],
    ids=["a target less", "no target", "other places", "other code", "files", "same name", "equal files"],
)  # fmt: skip
def test_releases_that_differ_in_one_way_or_another(change, tmp_path):
    wanted = make(tmp_path / "wanted", change)
    (tmp_path / "there").mkdir()
    (tmp_path / "back").mkdir()
    same(tmp_path / "there", linked_release().tarball, wanted)
    same(tmp_path / "back", wanted, linked_release().tarball)


FILES = st.sampled_from(["lib/libkiln.so.0", "include/kiln/kiln.h", "share/kiln/NOTICES.txt", "share/new", "lib/a/b/c"])
CHANGES = st.builds(
    Change,
    patched=st.tuples(*[st.sampled_from([0, 0, 1, 40, 4000])] * 4),
    order=st.tuples(*[st.sampled_from([0, 1, 2, 3, None])] * 4),
    packs=st.sampled_from([TARGETS, TARGETS[:1], TARGETS[1:]]),
    files=st.lists(st.tuples(FILES, st.binary(max_size=300)), max_size=3, unique_by=lambda row: row[0]).map(tuple),
)


@pytest.mark.slow(60)
@given(changes=st.tuples(CHANGES, CHANGES))
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_two_releases(changes, tmp_path_factory):
    folder = tmp_path_factory.mktemp("two")
    one, other = (make(folder / str(number), change) for number, change in enumerate(changes))
    if one.read_bytes() == other.read_bytes():
        assert run("delta", one, other, folder / "x.kdelta") == 2
    else:
        same(folder, one, other)
    shutil.rmtree(folder)


@given(data=st.binary(max_size=3000), other=st.binary(max_size=3000), places=st.lists(st.integers(0, 2999), max_size=5))
@settings(max_examples=100, deadline=None)
def test_bytes_are_patched_from_any_others(data, other, places):
    near = bytearray(other)
    for place in places:
        near[place % max(1, len(near)) : place % max(1, len(near)) + 1] = b"\x55"
    for wanted in (data, bytes(near), other):
        assert patch.apply(patch.make(wanted, other), other, len(wanted), "it") == wanted


def sections(data: bytes) -> list[tuple[int, int, int]]:
    """Kind, begin and end of each section, by the grammar of form.py."""
    found, at = [], 8 + 4 + 4 + 8 + 32 + 2 * 40 + 32
    while at < len(data):
        kind, _, stored, _ = struct.unpack_from("<IIQQ", data, at)
        found.append((kind, at, at + 24 + stored))
        at += 24 + stored
    return found


def sealed(data: bytes) -> bytes:
    """A delta whose digests are made right again, as someone would who means ill."""
    head = bytearray(data[:136])
    body = data[168:]
    head[16:24] = struct.pack("<Q", len(body))
    head[24:56] = hashlib.sha256(body).digest()
    return bytes(head) + hashlib.sha256(head).digest() + body


def refused(tmp_path: Path, data: bytes, capsys) -> str:
    """What is said of a delta with these bytes, which must make nothing."""
    path = tmp_path / "damaged.kdelta"
    path.write_bytes(data)
    capsys.readouterr()
    output = tmp_path / "output"
    assert run("apply", linked_release().tarball, path, output) == 6
    out, err = capsys.readouterr()
    assert not out and err.count("\n") - err.count("groups of") < 4 and "Traceback" not in err
    assert not output.exists() or not [*output.iterdir()]
    return err


def test_a_delta_has_every_kind_of_section():
    kinds = {kind for kind, _, _ in sections(delta().read_bytes())}
    assert {form.CONTENTS, form.INDEX, form.MANIFEST, form.FILE} <= kinds and kinds & {form.RAW, form.SPLIT}


def test_a_flipped_byte_anywhere_is_found_before_anything_is_decoded(tmp_path, capsys):
    data = delta().read_bytes()
    places = [*range(0, 168, 5), *(place for _, begin, end in sections(data) for place in (begin, begin + 9, end - 1))]
    for place in places:
        changed = bytearray(data)
        changed[place] ^= 1
        said = refused(tmp_path, bytes(changed), capsys)
        words = ("is not a delta", "of format", "damaged", "truncated", "too long", "malformed")
        assert "damaged.kdelta" in said and any(word in said for word in words), place


@pytest.mark.parametrize("size", [0, 7, 100, 167, 168, 300, -1])
def test_a_truncated_delta_is_refused(size, tmp_path, capsys):
    said = refused(tmp_path, delta().read_bytes()[:size], capsys)
    assert "truncated" in said or "is not a delta" in said


def test_a_longer_delta_is_refused(tmp_path, capsys):
    assert "is too long" in refused(tmp_path, delta().read_bytes() + b"\0", capsys)
    assert "belong to nothing" in refused(tmp_path, sealed(delta().read_bytes() + b"\0"), capsys)


def test_sections_that_were_changed_with_their_digests_are_refused(tmp_path, capsys):
    """Whoever makes a delta may seal it. What it makes is held against digests of what it says, section by section."""
    data = delta().read_bytes()
    for kind, begin, end in sections(data):
        for place in (begin, begin + 4, begin + 8, begin + 16, begin + 24, (begin + 24 + end) // 2, end - 1):
            changed = bytearray(data)
            changed[place] ^= 1
            assert refused(tmp_path, sealed(bytes(changed)), capsys), (kind, place)
        refused(tmp_path, sealed(data[:begin] + data[end:]), capsys)
        refused(tmp_path, sealed(data[:end] + data[begin:end] + data[end:]), capsys)


def test_a_section_that_would_expand_is_refused_before_it_does(tmp_path, capsys):
    bomb = patch.make(bytes(50 << 20), b"")
    data = delta().read_bytes()
    for kind, begin, end in sections(data):
        for plain in (50 << 20, (1 << 63), 1):
            section = struct.pack("<IIQQ", kind, 0, len(bomb), plain) + bomb
            said = refused(tmp_path, sealed(data[:begin] + section + data[end:]), capsys)
            assert "is the limit" in said or "expand" in said or "says that it has" in said or "digest" in said


def test_a_hostile_delta_takes_little_memory(tmp_path):
    """Frames of a megabyte that hold gigabytes: whatever their sections say of them, they are refused, not decoded."""
    frame = zstandard.ZstdCompressor(level=1, write_content_size=False).compressobj()
    bomb = b"".join(frame.compress(bytes(1 << 20)) for _ in range(4096)) + frame.flush()
    data = delta().read_bytes()
    path = tmp_path / "hostile.kdelta"
    for kind, begin, end in sections(data):
        for plain in (4 << 30, 1 << 20):
            section = struct.pack("<IIQQ", kind, 0, len(bomb), plain) + bomb
            path.write_bytes(sealed(data[:begin] + section + data[end:]))
            done = limits.kiln("apply", linked_release().tarball, path, tmp_path / "output")
            assert done.code == 6 and done.memory < limits.MOST_MEMORY, (kind, done.err)
            assert done.seconds < 20


def test_a_full_disk_leaves_nothing(tmp_path):
    """A file may have 60,000 bytes, as if that was all that is left: no tarball of these fits, and no delta's trial."""
    before, whole = linked_release().tarball, tmp_path / "whole.kdelta"
    shutil.copy(delta(), whole)
    for words in (
        ("apply", before, whole, tmp_path / "out"),
        ("delta", before, after(), tmp_path / "out.kdelta"),
        ("split", before, tmp_path / "out"),
    ):
        done = subprocess.run(
            [sys.executable, "-m", "kiln_build", *map(str, words)], capture_output=True, text=True,
            env={**os.environ, "PYTHONPATH": str(small_release.ROOT / "v3python")},
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000)),
        )  # fmt: skip
        assert done.returncode == 7 and "Traceback" not in done.stderr and "File too large" in done.stderr, done.stderr
        assert not [*tmp_path.glob("out/*")] and [*tmp_path.glob("*.kdelta")] == [whole]


def test_contents_that_lead_elsewhere_are_refused(tmp_path, capsys):
    data = delta().read_bytes()
    (_, begin, end), *_ = sections(data)
    for text in (
        "link ../../x lib/libkiln.so.0\n", "link /x lib/libkiln.so.0\n", "link lib/x lib/y\n", "pack x\n", "x\n",
        "pack lib/kiln.images/x.pack 99999999999999\n", "link lib/libkiln.so.0 lib/libkiln_toy.so\n",
    ):  # fmt: skip
        frame = patch.make(text.encode(), b"")
        section = struct.pack("<IIQQ", form.CONTENTS, 0, len(frame), len(text)) + frame
        refused(tmp_path, sealed(data[:begin] + section + data[end:]), capsys)
    assert not (tmp_path.parent / "x").exists()


def test_another_tarball_is_refused_by_its_digest(tmp_path, capsys):
    damaged = bytearray(linked_release().tarball.read_bytes())
    damaged[-5] ^= 1
    other = tmp_path / linked_release().tarball.name
    for data in (after().read_bytes(), bytes(damaged)):
        other.write_bytes(data)
        assert run("apply", other, delta(), tmp_path / "output") == 6
        err = capsys.readouterr().err
        assert str(other) in err and ("is not the tarball that" in err or "corrupt" in err)
    digest = hashlib.sha256(linked_release().tarball.read_bytes()).hexdigest()
    other.write_bytes(after().read_bytes())
    assert run("apply", other, delta(), tmp_path / "output") == 6 and digest in capsys.readouterr().err


def test_what_would_come_out_otherwise_does_not_appear(tmp_path, capsys, monkeypatch):
    """Another zstd, or another deflate, than those that made the release."""
    monkeypatch.setattr(pack_writer, "ZSTD_LEVEL", 3)
    assert run("apply", linked_release().tarball, delta(), tmp_path) == 6
    assert "another version of zstd" in capsys.readouterr().err and not [*tmp_path.iterdir()]
    assert run("delta", linked_release().tarball, after(), tmp_path / "x.kdelta") == 0, "its groups are stored then"
    assert {form.STORED} == {k for k, _, _ in sections((tmp_path / "x.kdelta").read_bytes())} - {1, 2, 3, 4}
    monkeypatch.undo()
    monkeypatch.setattr("kiln_build.base.tarball._GZIP_LEVEL", 1)
    assert run("apply", linked_release().tarball, delta(), tmp_path) == 6
    assert "another version of deflate" in capsys.readouterr().err
    assert [one.name for one in tmp_path.iterdir()] == ["x.kdelta"]


def test_parts_have_deltas_too(tmp_path):
    for name, tarball in (("old", linked_release().tarball), ("new", after())):
        assert run("split", tarball, tmp_path / name) == 0
    for name in ("runtime", *TARGETS):
        old, new = (tmp_path / where / release.part_name(version, name)
                    for where, version in (("old", VERSION), ("new", "0.1.1")))  # fmt: skip
        (tmp_path / name).mkdir()
        size = same(tmp_path / name, old, new)
        assert size < new.stat().st_size


def test_json_says_what_was_made(tmp_path, capsys):
    assert run("delta", linked_release().tarball, after(), tmp_path / "x.kdelta", "--json") == 0
    said = json.loads(capsys.readouterr().out)
    data = (tmp_path / "x.kdelta").read_bytes()
    assert said["bytes"] == len(data) and said["sha256"] == hashlib.sha256(data).hexdigest()
    assert said["after"] == {
        "bytes": after().stat().st_size,
        "sha256": hashlib.sha256(after().read_bytes()).hexdigest(),
    }
    assert said["groups"]["patched"] == 2 and sum(said["sizes"].values()) < len(data)
    assert run("apply", linked_release().tarball, tmp_path / "x.kdelta", tmp_path / "out", "--json") == 0
    assert json.loads(capsys.readouterr().out)["sha256"] == said["after"]["sha256"]


def test_mistakes_are_one_sentence(tmp_path, capsys):
    before = linked_release().tarball
    assert run("delta", before, before, tmp_path / "x.kdelta") == 2 and "are the same" in capsys.readouterr().err
    (tmp_path / "mine").write_text("somebody's")
    assert run("delta", before, after(), tmp_path / "mine") == 2 and "so it stays" in capsys.readouterr().err
    assert (tmp_path / "mine").read_text() == "somebody's"
    assert run("delta", before, tmp_path / "mine", tmp_path / "x.kdelta") == 6
    assert run("delta", before, after(), tmp_path / "no/x.kdelta") == 7
    assert run("apply", before, tmp_path / "nothing", tmp_path / "out") == 7
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / after().name).write_text("another")
    assert run("apply", before, delta(), tmp_path / "out") == 7
    assert (tmp_path / "out" / after().name).read_text() == "another"
    opened = reader.open_artifact(before)
    assert opened.manifest["kiln"] == VERSION and sorted(one.name for one in tmp_path.iterdir()) == ["mine", "out"]
