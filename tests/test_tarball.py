"""A release's tarball has one spelling: what is written is read, GNU tar finds the same, and no other byte passes."""

from __future__ import annotations

import functools
import gzip
import io
import os
import shutil
import subprocess
import tarfile
from pathlib import Path

import deflate
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kiln_build.artifacts import manifest, verify
from kiln_build.artifacts import reader as inspect
from kiln_build.base import tar, tarball
from kiln_build.cli import main
from kiln_build.release import release
from kiln_recipe.errors import ArtifactError, EnvironmentProblem
from small_release import linked_release, small_release

MEMBERS = [
    tar.Member("kiln", "folder"),
    tar.Member("kiln/lib", "folder"),
    tar.Member("kiln/lib/libkiln.so", "link", link="libkiln.so.0"),
    tar.Member("kiln/lib/libkiln.so.0", "file", 5),
    tar.Member("kiln/share", "folder"),
    tar.Member("kiln/share/empty", "file"),
    tar.Member("kiln/share/whole-block", "file", 512),
    tar.Member("kiln/lib/a", "hard link", link="kiln/share/empty"),
]


def archive(members: list[tar.Member], dialect: tar.Dialect = tarball.DIALECT) -> bytes:
    """Of members whose content is one letter."""
    data = b"".join(tar.header(m, dialect) + b"x" * m.size + tar.padding(m.size) for m in members)
    return data + tar.end(len(data))


def read(data: bytes, dialect: tar.Dialect = tarball.DIALECT) -> list[tuple[tar.Member, bytes]]:
    reader = tar.Reader(io.BytesIO(data).read, dialect, "t")
    return [(member, b"".join(reader.blocks())) for member in reader]


def packed(tmp_path: Path, plain: bytes) -> Path:
    path = tmp_path / "evil.tar.gz"
    path.write_bytes(deflate.gzip_compress(plain, 6))
    return path


def listed(path: Path) -> list[str]:
    return [tarball.TOP + f"/{below}" * bool(below) for below, _, _ in tarball.members(path)]


# ---- both ways -------------------------------------------------------------------------------------------------------

NAMES = st.from_regex(r"\A[A-Za-z0-9_][A-Za-z0-9_.+-]{0,60}(/[A-Za-z0-9_][A-Za-z0-9_.+-]{0,60}){0,3}\Z")
EVERY = (
    st.builds(tar.Member, NAMES, st.just("file"), st.integers(0, 2000))
    | st.builds(tar.Member, NAMES, st.just("folder"))
    | st.builds(tar.Member, NAMES, st.just("hard link"), link=NAMES.filter(lambda name: len(name) <= 100))
)
TYPES = {"file": tarfile.REGTYPE, "folder": tarfile.DIRTYPE, "hard link": tarfile.LNKTYPE}
GNU = tar.Dialect(time=7, owner="root", mode=lambda _: 0o644, gnu=True)


@settings(deadline=None, max_examples=200)
@given(members=st.lists(EVERY, max_size=5), gnu=st.booleans())
def test_round_trip_and_what_tarfile_writes(members, gnu):
    """The bytes are those that Python's own writer makes of the same."""
    dialect = GNU if gnu else tarball.DIALECT
    data = archive(members, dialect)
    assert len(data) % tar.RECORD == 0
    assert read(data, dialect) == [(member, b"x" * member.size) for member in members]
    expected = io.BytesIO()
    form = tarfile.GNU_FORMAT if gnu else tarfile.USTAR_FORMAT
    with tarfile.open(fileobj=expected, mode="w", format=form) as file:
        for member in members:
            info = tarfile.TarInfo(member.name)
            info.size, info.mode, info.mtime = member.size, dialect.mode(member), dialect.time
            info.uname = info.gname = dialect.owner
            info.type, info.linkname = TYPES[member.kind], member.link
            file.addfile(info, io.BytesIO(b"x" * member.size))
    assert data == expected.getvalue()


def test_gnu_tar_lists_the_same():
    shown = subprocess.run(["tar", "-tzf", small_release().tarball], capture_output=True, text=True, check=True)
    assert [name.rstrip("/") for name in shown.stdout.splitlines()] == listed(small_release().tarball)
    shown = subprocess.run(["tar", "-tv"], input=archive(MEMBERS), capture_output=True, check=True)
    assert [line.split()[5].rstrip("/") for line in shown.stdout.decode().splitlines()] == [m.name for m in MEMBERS]


# ---- no other byte ---------------------------------------------------------------------------------------------------

GOOD = archive(MEMBERS)


def in_content(position: int) -> bool:
    starts = [GOOD.index(b"xxxxx"), GOOD.index(b"x" * 512)]
    return any(start <= position < start + size for start, size in zip(starts, (5, 512)))


@settings(deadline=None, max_examples=1500)
@given(position=st.integers(0, len(GOOD) - 1), value=st.integers(0, 255))
def test_any_byte_is_refused_or_content(position, value):
    bad = bytearray(GOOD)
    bad[position] = value
    if bytes(bad) == GOOD:
        return
    if not in_content(position):
        with pytest.raises(ArtifactError, match="^t (is|has) "):
            read(bytes(bad))
        return
    assert [member for member, _ in read(bytes(bad))] == MEMBERS


@pytest.mark.parametrize("hiding", [
    tar.Member("kiln/lib", "folder"), tar.Member("kiln/link", "link", link="lib"),
    tar.Member("kiln/link", "hard link", link="kiln/a"),
])  # fmt: skip
def test_only_files_have_content(hiding):
    """Others take what follows a folder or a link for the next member."""
    hidden = archive([tar.Member("kiln/evil", "file")])[: tar.BLOCK]
    block = bytearray(tar.header(hiding, tarball.DIALECT))
    block[124:135], block[148:156] = b"%011o" % len(hidden), b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    data = tar.header(MEMBERS[0], tarball.DIALECT) + bytes(block) + hidden
    data += tar.end(len(data))
    with tarfile.open(fileobj=io.BytesIO(data)) as file:
        assert "kiln/evil" in file.getnames()
    with pytest.raises(ArtifactError, match=f"the {hiding.kind} {hiding.name} has a size; only files have content"):
        read(data)


@settings(deadline=None, max_examples=300)
@given(size=st.integers(0, len(GOOD) - 1), more=st.binary(min_size=1, max_size=600))
def test_any_other_length_is_refused(size, more):
    for bad in (GOOD[:size], GOOD + more, GOOD + bytes(len(more)), GOOD[:size] + more + GOOD[size:]):
        try:
            found = read(bad)
        except ArtifactError:
            continue
        assert [member for member, _ in found] == MEMBERS and len(bad) == len(GOOD)


@functools.cache
def release_plain() -> bytes:
    return gzip.decompress(small_release().tarball.read_bytes())


def header_of(name: bytes) -> int:
    return release_plain().index(name + b"\0")


def test_what_gnu_tar_finds_and_tarfile_does_not(tmp_path, capsys):
    """A checksum that is not ASCII ends Python's tarfile without a word; GNU tar goes on to a link."""
    plain = release_plain()
    end = len(plain.rstrip(b"\0")) + -len(plain.rstrip(b"\0")) % 512
    link = bytearray(tar.header(tar.Member("kiln/lib/libkiln_toy.so", "link", link="libkiln.so.0"), tarball.DIALECT))
    link[148:156] = bytes(byte | 0x80 for byte in link[148:154]) + link[154:156]
    data = plain[:end] + bytes(link)
    for extra in (bytes(link), tar.header(tar.Member("kiln/lib/z", "link", link="libkiln.so.0"), tarball.DIALECT)):
        path = packed(tmp_path, plain[:end] + extra + tar.end(end + 512))
        assert main(["inspect", str(path), "--verify"]) == 6
        assert f"{path} is corrupt: " in capsys.readouterr().err
    assert len(data) == end + 512


FOLDER = tar.Member("kiln", "folder")
A, Z = tar.Member("kiln/a", "file"), tar.Member("kiln/z", "file")


def hard_link(name: str, to: str) -> tar.Member:
    return tar.Member(name, "hard link", link=to)


@pytest.mark.parametrize(
    ("members", "sentence"),
    [
        ([], "is not a release of Kiln's: it is empty"),
        ([tar.Member("other", "folder")], "it must start with the folder kiln, not with other"),
        ([FOLDER, FOLDER], "the top folder kiln appears twice"),
        ([FOLDER, tar.Member("elsewhere", "file")], "elsewhere lies outside of the top folder kiln/"),
        ([FOLDER, tar.Member("kiln/b", "file"), tar.Member("kiln/a", "file")], "a is not in order"),
        ([FOLDER, tar.Member("kiln/a", "file"), tar.Member("kiln/a", "file")], "a appears twice"),
        ([FOLDER, tar.Member("kiln/lib/a", "file")], "lib/a appears without its folder"),
        ([FOLDER, tar.Member("kiln/a", "file"), tar.Member("kiln/a/b", "file")], "a/b appears without its folder"),
        ([FOLDER, hard_link("kiln/b", "kiln/a")], "b is a hard link to a, which is not a file before it"),
        ([FOLDER, hard_link("kiln/b", "kiln/a"), A], "b is a hard link to a, which is not a file before it"),
        ([FOLDER, tar.Member("kiln/a", "folder"), hard_link("kiln/b", "kiln/a")], "which is not a file before it"),
        ([FOLDER, tar.Member("kiln/a", "link", link="c"), hard_link("kiln/b", "kiln/a")], "which is not a file before"),
        ([FOLDER, Z, hard_link("kiln/b", "kiln/z"), hard_link("kiln/c", "kiln/b")], "to b, which is not a file before"),
        ([FOLDER, hard_link("kiln/b", "kiln/b")], "b is a hard link to b, which is not a file before it"),
        ([FOLDER, hard_link("kiln/b", "kiln")], "b is a hard link to kiln, outside of kiln/"),
        ([FOLDER, A, hard_link("kiln/b", "a")], "b is a hard link to a, outside of kiln/"),
        ([FOLDER, A, hard_link("kiln/a", "kiln/a")], "a appears twice"),
        ([FOLDER, Z, *[hard_link("kiln/b", "kiln/z")] * 2], "b appears twice"),
        ([FOLDER, Z, hard_link("kiln/c", "kiln/z"), hard_link("kiln/b", "kiln/z")], "b is not in order"),
        ([FOLDER, Z, hard_link("kiln/b", "kiln/z"), tar.Member("kiln/zz", "file")], "zz is not in order"),
        ([FOLDER, A, hard_link("kiln/d/b", "kiln/a")], "d/b appears without its folder"),
        ([FOLDER, A, hard_link("kiln/b", "kiln/a")], "b has to be the file"),
    ],
)
def test_members_that_no_release_has(tmp_path, members, sentence):
    with pytest.raises(ArtifactError, match=sentence):
        listed(packed(tmp_path, archive(members)))


@pytest.mark.parametrize("name", ["../evil", "/etc/passwd", "kiln/../../evil", "kiln//a", "kiln/./a", "kiln/.hidden",
                                  "kiln/a b", "kiln/\x1b[31m", "kiln/-rf", "kiln/ä", ""])  # fmt: skip
@pytest.mark.parametrize("format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_names_that_no_release_has(tmp_path, name, format):
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w", format=format) as file:
        for each in ("kiln", name):
            info = tarfile.TarInfo(each)
            info.mtime, info.mode = tarball.TIME, 0o755 if each == "kiln" else 0o644
            info.type = tarfile.DIRTYPE if each == "kiln" else tarfile.REGTYPE
            file.addfile(info)
    with pytest.raises(ArtifactError):
        listed(packed(tmp_path, plain.getvalue()))


@pytest.mark.parametrize("change", [
    {"mode": 0o4755}, {"uid": 1000}, {"gid": 7}, {"uname": "root"}, {"gname": "wheel"}, {"mtime": 1.5}, {"mtime": 0},
    {"type": tarfile.LNKTYPE, "linkname": "kiln/b"}, {"type": tarfile.CHRTYPE}, {"type": tarfile.AREGTYPE},
    {"type": tarfile.SYMTYPE, "linkname": "../b"}, {"type": tarfile.SYMTYPE, "linkname": "/b"},
    {"type": tarfile.FIFOTYPE}, {"type": tarfile.CONTTYPE}, {"type": tarfile.GNUTYPE_SPARSE},
    {"name": "kiln/" + "a" * 101}, {"pax_headers": {"comment": "x"}}, {"pax_headers": {"size": str(1 << 40)}},
    {"pax_headers": {"GNU.sparse.major": "1"}},
])  # fmt: skip
def test_headers_that_kiln_does_not_write(tmp_path, change):
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w", format=tarfile.PAX_FORMAT) as file:
        info = tarfile.TarInfo("kiln")
        info.type, info.mode, info.mtime = tarfile.DIRTYPE, 0o755, tarball.TIME
        file.addfile(info)
        info = tarfile.TarInfo("kiln/a")
        info.mode, info.mtime = 0o644, tarball.TIME
        for name, value in change.items():
            setattr(info, name, value)
        file.addfile(info)
    with pytest.raises(ArtifactError, match="is corrupt"):
        listed(packed(tmp_path, plain.getvalue()))


@pytest.mark.parametrize("change", [
    lambda d: d[:3] + b"\x08" + d[4:10] + b"name\0" + d[10:],
    lambda d: d[:4] + b"\1" + d[5:], lambda d: d[:8] + b"\2" + d[9:], lambda d: d[:9] + b"\3" + d[10:],
    lambda d: d[:3] + b"\4" + d[4:10] + b"\2\0xx" + d[10:],
])  # fmt: skip
def test_gzip_headers_that_kiln_does_not_write(tmp_path, change):
    data = small_release().tarball.read_bytes()
    path = tmp_path / "x.tar.gz"
    path.write_bytes(change(data))
    with pytest.raises(ArtifactError, match="its gzip header is not one that Kiln writes"):
        listed(path)
    path.write_bytes(gzip.compress(gzip.decompress(data), mtime=0))
    with pytest.raises(ArtifactError, match="its gzip header is not one that Kiln writes"):
        listed(path)


def test_gzip_members(tmp_path):
    """Cut elsewhere than the writer cuts, empty, or a stream without its end."""
    plain = archive(MEMBERS)
    path = tmp_path / "x.tar.gz"
    for data in (
        deflate.gzip_compress(plain[:600], 6) + deflate.gzip_compress(plain[600:], 6),
        deflate.gzip_compress(b"", 6) + deflate.gzip_compress(plain, 6),
        deflate.gzip_compress(plain, 6) + deflate.gzip_compress(b"", 6),
        *(deflate.gzip_compress(plain, 6)[:-cut] for cut in (1, 4, 8, 12)),
    ):
        path.write_bytes(data)
        with pytest.raises(ArtifactError):
            listed(path)


@pytest.mark.parametrize("seed", range(3))
def test_a_whole_release_with_one_byte_changed(tmp_path, seed):
    """Every tenth header byte of the first members, and some of the contents: --verify says no."""
    import random

    source = random.Random(seed)
    plain = release_plain()
    at = header_of(b"kiln/lib/libkiln.so")
    places = [at + source.randrange(512) for _ in range(12)] + [source.randrange(len(plain)) for _ in range(12)]
    begin = header_of(b"kiln/share/kiln/manifest.json") + 512  # of the text that states all else: nothing states it
    end = plain.index(b"\0", begin)
    for place in (place for place in places if not begin <= place < end):
        bad = bytearray(plain)
        bad[place] ^= 1 << source.randrange(8)
        path = packed(tmp_path, bytes(bad))
        try:
            assert verify.verify(inspect.open_artifact(path)).problems, place
        except ArtifactError:
            pass


def test_a_folder_with_what_no_release_has(tmp_path):
    subprocess.run(["tar", "-xzf", small_release().tarball], cwd=tmp_path, check=True)
    (tmp_path / "kiln/include/empty").mkdir()
    (tmp_path / "kiln/lib/\x1b[2J").write_text("")
    (tmp_path / "kiln/lib/dangling.so").symlink_to("nothing")
    os.mkfifo(tmp_path / "kiln/lib/pipe")
    assert sorted(verify.verify(inspect.open_artifact(tmp_path)).problems) == [
        "'lib/\\x1b[2J' exists, but is not in the manifest",
        "lib/dangling.so exists, but is not in the manifest",
        "lib/pipe exists, but is not in the manifest",
        "the folder include/empty exists, but the manifest names nothing in it",
    ]


# ---- hard links ------------------------------------------------------------------------------------------------------

LINKED = {f"lib/other/{version}/{part}": original for version in ("1.0", "2.0") for part, original in {
    "include/kiln.h": "include/kiln/kiln.h",
    "lib/other.images/amd-gfx942.pack": "lib/kiln.images/amd-gfx942.pack",
    "lib/other.images/nvidia-sm_90.pack": "lib/kiln.images/nvidia-sm_90.pack",
}.items()}  # fmt: skip


def test_what_a_release_has_under_several_paths_is_in_it_once():
    found = {path: member for path, member, _ in tarball.members(linked_release().tarball)}
    links = {path: member.link for path, member in found.items() if member.kind == "hard link"}
    assert links == {path: f"kiln/{original}" for path, original in LINKED.items()}
    assert list(found)[-len(links) :] == sorted(links), "behind all else"
    others = list(found)[: -len(links)]
    assert others == sorted(others)
    assert {found[original].kind for original in LINKED.values()} == {"file"}


def extracted(how: str, place: Path, *parts: str) -> Path:
    place.mkdir()
    if how == "tarfile":
        with tarfile.open(linked_release().tarball) as file:
            wanted = [m for m in file if not parts or m.name.startswith(parts)]
            for member in wanted:
                file.extract(member, place)
    else:
        subprocess.run(["tar", "-xzf", linked_release().tarball, *parts], cwd=place, check=True)
    return place / "kiln"


@pytest.mark.parametrize("how", ["tar", "tarfile"])
def test_other_programs_unpack_it(tmp_path, how, capsys):
    root = extracted(how, tmp_path / "whole")
    assert {path: original for path, original in LINKED.items() if (root / path).samefile(root / original)} == LINKED
    assert all((root / path).stat().st_mode & 0o777 == 0o644 for path in LINKED)
    assert (root / "lib/other/1.0/lib/libother.so.2").stat().st_mode & 0o777 == 0o755
    assert main(["inspect", str(root), "--verify"]) == 0
    assert main(["inspect", str(linked_release().tarball), "--verify"]) == 0
    first, second = capsys.readouterr().out.split("contents ")[1:]
    assert first.split(" in ")[0] == second.split(" in ")[0], "a file counts once"
    part = extracted(how, tmp_path / "part", "kiln/lib/kiln.images")
    assert {path.name: path.read_bytes() for path in (part / "lib/kiln.images").iterdir()} == {
        path.name: path.read_bytes() for path in linked_release().packs.values()
    }


def test_the_same_bytes_from_what_was_unpacked(tmp_path):
    stage = extracted("tar", tmp_path / "again")
    assert release.make_release(stage, tmp_path, "0.1.0b").read_bytes() == linked_release().tarball.read_bytes()


def test_a_copy_without_hard_links_is_whole_too(tmp_path):
    """As `cp -r` makes it, or a file system without hard links."""
    root = Path(shutil.copytree(extracted("tar", tmp_path / "first"), tmp_path / "second", symlinks=True))
    assert not any((root / path).samefile(root / original) for path, original in LINKED.items())
    assert verify.verify(inspect.open_artifact(root)).problems == []
    bad = root / "lib/other/1.0/include/kiln.h"
    bad.write_bytes(b"x" + bad.read_bytes()[1:])
    problem = "lib/other/1.0/include/kiln.h does not have the digest and size that the manifest states"
    assert verify.verify(inspect.open_artifact(root)).problems == [problem]


def relinked(path: str, to: str) -> bytes:
    """The release with a hard link that leads elsewhere."""
    plain = gzip.decompress(linked_release().tarball.read_bytes())
    old, new = (tar.header(hard_link(f"kiln/{path}", f"kiln/{end}"), tarball.DIALECT) for end in (LINKED[path], to))
    assert plain.count(old) == 1
    return plain.replace(old, new)


@pytest.mark.parametrize("to", ["lib/kiln.images/amd-gfx942.pack", "include/kiln/kiln.h", "share/kiln/manifest.json"])
def test_a_hard_link_to_another_file_is_found(tmp_path, to):
    path = "lib/other/2.0/lib/other.images/nvidia-sm_90.pack"
    expected = [f"{path} is a hard link to {to}; the manifest does not state the same digest and size of both"]
    assert verify.verify(inspect.open_artifact(packed(tmp_path, relinked(path, to)))).problems == expected


def test_a_changed_byte_is_found_in_the_file_alone(tmp_path):
    plain = bytearray(gzip.decompress(linked_release().tarball.read_bytes()))
    plain[plain.index(b"KILN", plain.index(b"kiln/include/kiln/kiln.h\0") + 512)] ^= 1
    problem = "include/kiln/kiln.h does not have the digest and size that the manifest states"
    assert verify.verify(inspect.open_artifact(packed(tmp_path, bytes(plain)))).problems == [problem]


def test_a_digest_is_computed_once(monkeypatch):
    """A pack of hundreds of megabytes has half a dozen paths."""
    read: list[Path] = []
    real = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda self: read.append(self) or real(self))
    rows = {row.path: row for row in manifest.files_of(linked_release().stage)}
    assert len(read) == len({path.stat().st_ino for path in read})
    for path, original in LINKED.items():
        assert (rows[path].bytes, rows[path].sha256) == (rows[original].bytes, rows[original].sha256)


WORDS = st.lists(st.sampled_from(("a", "b", "c", "lib", "x.so")), min_size=1, max_size=4).map("/".join)


@settings(deadline=None, max_examples=80)
@given(files=st.lists(st.sets(WORDS, min_size=1, max_size=4), min_size=1, max_size=4))
def test_drawn_trees_with_hard_links(tmp_path_factory, files):
    """Each set of paths is one file; what two programs unpack has the same paths for the same files."""
    stage, place = tmp_path_factory.mktemp("stage"), tmp_path_factory.mktemp("place")
    laid: dict[str, int] = {}
    for number, paths in enumerate(files):
        mine = []
        for path in sorted(paths):
            folders = {"/".join(path.split("/")[:count]) for count in range(1, path.count("/") + 1)}
            if path in laid or folders & laid.keys() or (stage / path).is_dir():
                continue  # no room for it
            (stage / path).parent.mkdir(parents=True, exist_ok=True)
            if mine:
                os.link(stage / mine[0], stage / path)
            else:
                (stage / path).write_bytes(b"x" * number)
            mine.append(path)
            laid[path] = number
    path = place / "t.tar.gz"
    written = b"".join(tarball.pieces(stage))
    path.write_bytes(written)
    content, links = {}, {}
    for below, member, blocks in tarball.members(path):
        if member.kind == "file":
            content[below] = b"".join(blocks)
        elif member.kind == "hard link":
            links[below] = member.link.removeprefix("kiln/")
    assert sorted(content.values()) == sorted(b"x" * number for number in set(laid.values()))
    assert {**content, **{name: content[to] for name, to in links.items()}} == {
        name: b"x" * number for name, number in laid.items()
    }
    assert all((-to.count("/"), to) > (-name.count("/"), name) for name, to in links.items())
    subprocess.run(["tar", "-xzf", path], cwd=place, check=True)
    inodes = {name: (place / "kiln" / name).stat().st_ino for name in laid}
    assert len({(inodes[name], number) for name, number in laid.items()}) == len(set(laid.values()))
    assert b"".join(tarball.pieces(place / "kiln")) == written


def test_more_members_than_a_release_has(tmp_path, monkeypatch):
    monkeypatch.setattr(tarball, "MOST_MEMBERS", 9)
    path = packed(tmp_path, archive([FOLDER, *(tar.Member(f"kiln/{n}", "file") for n in range(9))]))
    with pytest.raises(ArtifactError, match="has more than 9 members; no release does"):
        listed(path)
    with pytest.raises(EnvironmentProblem, match="holds [0-9]+ files and folders; a release holds fewer than 9"):
        list(tarball.archive(small_release().stage))
