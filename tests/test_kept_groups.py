"""Groups of packs that were compressed before: the same bytes, and no input of theirs that counts as another's."""

from __future__ import annotations

import os
import random
from dataclasses import replace

import pytest

from kiln_build.artifacts import pack_writer, split
from kiln_build.base.kept import Pieces
from kiln_recipe.images.image import ImageInfo
from test_pack import make_kernels

INFO = ImageInfo("cubin", "attn", 128, 65536, 200, 0, 0, 24, 0, 1, 0, 1, 7, "8.0")
SASS = split.INSTRUCTIONS["sass"]


@pytest.fixture(autouse=True)
def small_groups(monkeypatch):
    monkeypatch.setattr(pack_writer, "GROUP_BYTES", 2500)


@pytest.fixture
def compressions(monkeypatch):
    """How many groups were compressed."""
    made = []
    compress = pack_writer.compress
    monkeypatch.setattr(pack_writer, "compress", lambda frame: made.append(frame) or compress(frame))
    return made


def codes_of(seed: int, count: int = 12) -> list[bytes]:
    choose = random.Random(seed)
    return [choose.randbytes(16 * choose.randrange(20, 60)) for _ in range(count)]


def write(path, codes, groups, instructions=SASS, skip=0, workers=1):
    kernels, content = make_kernels(codes, 6, 1, [b".version 8.0 %d" % number for number in range(len(codes))])
    pack_writer.write_pack(
        path, "sm_90", instructions, "0.1.0b", kernels, lambda _: INFO, content.__getitem__,
        lambda code: [(skip, len(code) - skip)], workers, groups,
    )  # fmt: skip
    return path.read_bytes()


def test_a_kept_pack_is_the_fresh_one(tmp_path, compressions):
    groups, codes = Pieces(tmp_path / "groups", 1 << 20), codes_of(1)
    fresh = write(tmp_path / "a", codes, None)
    count = len(compressions)
    assert count > 4
    assert write(tmp_path / "b", codes, groups) == fresh and len(compressions) == 2 * count
    assert write(tmp_path / "c", codes, groups, workers=3) == fresh and len(compressions) == 2 * count


def test_after_an_edit_only_what_changed_is_compressed(tmp_path, compressions):
    groups, codes = Pieces(tmp_path / "groups", 1 << 20), codes_of(2)
    write(tmp_path / "a", codes, groups)
    all_groups = len(compressions)
    edited = [*codes[:3], codes[3][::-1], *codes[4:]]
    compressions.clear()
    kept = write(tmp_path / "b", edited, groups)
    assert len(compressions) == 1 < all_groups
    assert kept == write(tmp_path / "c", edited, None)


def test_damage_is_made_again(tmp_path, compressions):
    groups, codes = Pieces(tmp_path / "groups", 1 << 20), codes_of(3)
    fresh = write(tmp_path / "a", codes, groups)
    count = len(compressions)
    for number, path in enumerate(sorted(groups.folder.iterdir())):
        data = bytearray(path.read_bytes())
        data[random.Random(number).randrange(len(data))] ^= 1
        path.write_bytes((data, data[:-1], data[:10], b"")[number % 4])
    assert write(tmp_path / "b", codes, groups) == fresh and len(compressions) == 2 * count
    assert write(tmp_path / "c", codes, groups) == fresh and len(compressions) == 2 * count


@pytest.mark.parametrize(
    "what", ["bytes", "place of the code", "selector", "words", "zstd", "level", "backend", "module"]
)
def test_each_input_changes_the_key(tmp_path, compressions, monkeypatch, what):
    """Whatever decides a group's bytes, none of another's is taken for it."""
    import zstandard

    groups, codes = Pieces(tmp_path / "groups", 1 << 20), codes_of(4)
    write(tmp_path / "a", codes, groups)
    count, arguments = len(compressions), {}
    if what == "bytes":
        codes = [code[:-1] + bytes([code[-1] ^ 1]) for code in codes]
    elif what == "place of the code":
        arguments = {"skip": 16}
    elif what == "selector":
        arguments = {"instructions": replace(SASS, selector=1)}
    elif what == "words":
        arguments = {"instructions": replace(SASS, words=bytes([2] * 256))}
    elif what == "zstd":
        monkeypatch.setattr(zstandard, "ZSTD_VERSION", (1, 0, 0))
    elif what == "backend":
        monkeypatch.setattr(zstandard, "backend", "another")
    elif what == "level":
        monkeypatch.setattr(pack_writer, "ZSTD_LEVEL", 3)
    else:
        other = tmp_path / "pack_writer.py"
        other.write_bytes(b"# another\n")
        monkeypatch.setattr(pack_writer, "__file__", str(other))
    pack_writer._packer.cache_clear()
    compressions.clear()
    changed = write(tmp_path / "b", codes, groups, **arguments)
    # All of the PTX is in one group, which codes do not change.
    assert len(compressions) == (count - 1 if what in ("bytes", "place of the code") else count)
    assert changed == write(tmp_path / "c", codes, None, **arguments)
    pack_writer._packer.cache_clear()


def test_a_piece_in_the_place_of_another_is_none(tmp_path):
    groups = Pieces(tmp_path / "groups", 1 << 20)
    groups.put("a", b"one")
    os.rename(groups.folder / "a", groups.folder / "b")
    assert groups.get("a") is None and groups.get("b") is None


def test_the_oldest_go(tmp_path):
    groups = Pieces(tmp_path / "groups", 300)
    for number in range(5):
        groups.put(str(number), bytes(100))  # 132 bytes each
        os.utime(groups.folder / str(number), (number, number))
    assert groups.get("0") == bytes(100)  # used now
    groups.trim()
    assert sorted(path.name for path in groups.folder.iterdir()) == ["0", "4"]


def test_a_folder_that_cannot_be_written_costs_only_time(tmp_path, compressions):
    (tmp_path / "groups").write_text("a file")
    groups, codes = Pieces(tmp_path / "groups", 1 << 20), codes_of(5)
    assert write(tmp_path / "a", codes, groups) == write(tmp_path / "b", codes, None)
    groups.trim()
