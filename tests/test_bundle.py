"""The one file that is carried: deterministic, and nothing in it believed."""

from __future__ import annotations

import io
import os
import stat
import subprocess
import sys
import tarfile

import pytest

from kiln_build.base import tar
from kiln_build.cli import main
from kiln_build.fetch.bundle import _DIALECT as DIALECT
from kiln_build.fetch.bundle import _incomplete, read_bundle, write_bundle
from kiln_recipe.compile.lock import LOCK_NAME, Lock, LockedFile, Package, running_python, write_lock
from kiln_recipe.console.progress import Progress
from kiln_recipe.errors import ArtifactError, EnvironmentProblem, ToolchainError
from test_fetch import SOURCE, Meter, make_files, make_lock, wheel


@pytest.fixture
def packed(tmp_path):
    """(bundle, its lock's text, files)"""
    files = make_files("alpha", "beta", size=20_000)
    files[f"gamma-1.0-py3-none-{'manylinux_2_28_x86_64.' * 6}whl"] = ("gamma", b"name longer than old tars have")
    lock = make_lock(files)
    folder = tmp_path / "input"
    (folder / "cache").mkdir(parents=True)
    (folder / LOCK_NAME).write_text(write_lock(lock, "# a test's"))
    for name, (_, data) in files.items():
        (folder / "cache" / name).write_bytes(data)
    bundle = tmp_path / "carried.tar"
    write_bundle(bundle, folder, lock, lock.every_file(), Progress())
    return bundle, folder, files


def fresh(packed, tmp_path, with_lock=True):
    target = tmp_path / "elsewhere"
    target.mkdir()
    if with_lock:
        (target / LOCK_NAME).write_bytes((packed[1] / LOCK_NAME).read_bytes())
    return target


@pytest.mark.parametrize("with_lock", [True, False])
def test_there_and_back(packed, tmp_path, with_lock):
    target = fresh(packed, tmp_path, with_lock)
    assert sorted(read_bundle(packed[0], target, Progress())) == sorted(packed[2])
    assert {p.name: p.read_bytes() for p in (target / "cache").iterdir()} == {n: d for n, (_, d) in packed[2].items()}
    assert (target / LOCK_NAME).read_bytes() == (packed[1] / LOCK_NAME).read_bytes()


def test_equal_files_give_equal_bytes(packed, tmp_path):
    bundle, folder, files = packed
    for number, name in enumerate(files):
        os.utime(folder / "cache" / name, (number, number))
        os.chmod(folder / "cache" / name, 0o600)
    write_bundle(tmp_path / "again.tar", folder, make_lock(files), make_lock(files).every_file()[::-1], Progress())
    assert (tmp_path / "again.tar").read_bytes() == bundle.read_bytes()


def test_a_bundle_replaces_no_node_and_follows_links(packed, tmp_path):
    bundle, folder, _ = packed
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "link.tar").symlink_to(tmp_path / "led.tar")
    assert main(["fetch", "--input", str(folder), "--bundle", str(tmp_path / "fifo")]) == 7
    assert main(["fetch", "--input", str(folder), "--bundle", str(tmp_path / "loop")]) == 7
    assert (tmp_path / "fifo").is_fifo() and (tmp_path / "loop").is_symlink()
    assert main(["fetch", "--input", str(folder), "--bundle", str(tmp_path / "link.tar")]) == 0
    assert (tmp_path / "link.tar").is_symlink() and (tmp_path / "led.tar").read_bytes() == bundle.read_bytes()
    if os.geteuid() == 0:
        try:
            os.mknod(tmp_path / "node", stat.S_IFCHR | 0o666, os.makedev(1, 7))
        except PermissionError:
            return
        assert main(["fetch", "--input", str(folder), "--bundle", str(tmp_path / "node")]) == 7
        assert (tmp_path / "node").is_char_device()


def test_what_is_missing_or_wrong_is_not_packed(packed, tmp_path):
    _, folder, files = packed
    lock = make_lock(files)
    (folder / "cache" / wheel("alpha")).write_bytes(b"x" * 20_000)
    with pytest.raises(ToolchainError, match=f"{wheel('alpha')}: expected SHA-256"):
        write_bundle(tmp_path / "b.tar", folder, lock, lock.every_file(), Progress())
    (folder / "cache" / wheel("alpha")).unlink()
    with pytest.raises(ToolchainError, match=f"{wheel('alpha')} is not in"):
        write_bundle(tmp_path / "b.tar", folder, lock, lock.every_file(), Progress())
    with pytest.raises(EnvironmentProblem, match="cannot be written"):
        write_bundle(packed[0] / "b.tar", folder, lock, (), Progress())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["carried.tar", "input"]


def test_every_truncation_is_refused_and_leaves_no_wrong_file(packed, tmp_path):
    bundle = packed[0]
    target = fresh(packed, tmp_path)
    whole = bundle.read_bytes()
    end = whole.rstrip(b"\0").__len__()
    for size in [0, 1, 511, 512, 700, 5000, 21_000, end - 5000, end - 600]:
        bundle.write_bytes(whole[:size])
        with pytest.raises(ArtifactError):
            read_bundle(bundle, target, Progress())
    assert list((target / "cache").iterdir()) == []


def test_a_flipped_byte_is_found(packed, tmp_path):
    bundle, _, files = packed
    whole = bytearray(bundle.read_bytes())
    whole[whole.index(files[wheel("beta")][1]) + 77] ^= 1
    bundle.write_bytes(whole)
    with pytest.raises(ArtifactError, match=f"corrupt: {wheel('beta')}: expected SHA-256"):
        read_bundle(bundle, fresh(packed, tmp_path), Progress())


def test_a_bundle_of_another_lock(packed, tmp_path):
    target = fresh(packed, tmp_path)
    (target / LOCK_NAME).write_text("# changed since\n" + (packed[1] / LOCK_NAME).read_text())
    with pytest.raises(ArtifactError, match="was made for another lock .*; make a new one for that lock"):
        read_bundle(packed[0], target, Progress())


def evil(packed, tmp_path, *members: tarfile.TarInfo | bytes, data: bytes = b""):
    """A bundle of the lock and these members, headers of tarfile's or bytes."""
    path = tmp_path / "evil.tar"
    text = (packed[1] / LOCK_NAME).read_bytes()
    pieces = [tar.header(tar.Member(LOCK_NAME, "file", len(text)), DIALECT), text, tar.padding(len(text))]
    for member in members:
        if isinstance(member, bytes):
            pieces.append(member)
            continue
        member.size, member.mode, member.uname, member.gname = len(data), 0o644, "root", "root"
        pieces += [member.tobuf(tarfile.GNU_FORMAT), data, tar.padding(len(data))]
    whole = b"".join(pieces)
    path.write_bytes(whole + tar.end(len(whole)))
    return path


def refused(path, folder, sentence: str) -> None:
    """Nothing is in the cache then, and nothing was written on the way."""
    meter = Meter()
    with pytest.raises(ArtifactError, match=sentence):
        read_bundle(path, folder, meter)
    assert meter.count == 0 and list((folder / "cache").iterdir()) == []


@pytest.mark.parametrize("name", ["cache/unknown.whl", "outside"])
def test_members_that_the_lock_does_not_name(packed, tmp_path, name):
    path = evil(packed, tmp_path, tarfile.TarInfo(name), data=b"x")
    refused(path, fresh(packed, tmp_path), "is not a file of its lock; do not use this bundle")


@pytest.mark.parametrize("name", ["../outside", "/tmp/outside", "cache/../../outside", f"cache/./{wheel('alpha')}"])
def test_names_that_are_not_plain(packed, tmp_path, name):
    path = evil(packed, tmp_path, tarfile.TarInfo(name), data=b"x")
    refused(path, fresh(packed, tmp_path), "is not plain; letters, digits")
    assert not (tmp_path / "outside").exists()


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.DIRTYPE])
def test_members_that_are_no_files(packed, tmp_path, kind):
    member = tarfile.TarInfo(f"cache/{wheel('alpha')}")
    member.type, member.linkname = kind, "passwd"
    refused(evil(packed, tmp_path, member), fresh(packed, tmp_path), "is corrupt|is not a file of its lock")


def sparse(name: str, size: int) -> bytes:
    """A GNU sparse member that unpacks to `size` bytes, of which the last block alone is in the tar."""
    block = bytearray(tarfile.TarInfo(name).tobuf(tarfile.GNU_FORMAT))
    block[124:136] = b"%011o\0" % 512
    block[156:157] = tarfile.GNUTYPE_SPARSE
    block[386:410] = b"%011o\0%011o\0" % (size - 512, 512)
    block[483:495] = b"%011o\0" % size
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block) + b"x" * 512


@pytest.mark.parametrize("size", [1 << 28, 20_480])
def test_a_sparse_member_is_refused_before_it_is_written(packed, tmp_path, size):
    name = f"cache/{wheel('alpha')}"
    with tarfile.open(fileobj=io.BytesIO(sparse(name, size))) as file:
        assert file.next().issparse() and file.getmembers()[0].size == size  # it is one
    path = evil(packed, tmp_path, sparse(name, size))
    refused(path, fresh(packed, tmp_path), "is not of a file, a folder or a link")


@pytest.mark.parametrize("size", [19_999, 20_001, 1 << 20])
def test_a_member_of_another_size_is_refused_before_it_is_written(packed, tmp_path, size):
    path = evil(packed, tmp_path, tarfile.TarInfo(f"cache/{wheel('alpha')}"), data=bytes(size))
    sentence = f"is corrupt: {wheel('alpha')} has {size} bytes, the lock says 20000"
    refused(path, fresh(packed, tmp_path), sentence)


def test_a_bundle_without_its_files(packed, tmp_path, capsys):
    target = fresh(packed, tmp_path)
    for path in (evil(packed, tmp_path), partial(packed, tmp_path, wheel("beta"))):
        assert main(["fetch", "--input", str(target), "--unbundle", str(path)]) == 6
        err = capsys.readouterr().err
        missing = 3 if path.name == "evil.tar" else 2
        assert f"lacks {missing} of the 3 files that its lock names for Python {running_python()}, first" in err
        assert list((target / "cache").iterdir()) == []


def partial(packed, tmp_path, *names: str):
    """A bundle as Kiln would write it, but with these files alone."""
    _, folder, files = packed
    lock = make_lock(files)
    write_bundle(tmp_path / "partial.tar", folder, lock, [f for f in lock.every_file() if f.name in names], Progress())
    return tmp_path / "partial.tar"


def test_what_belongs_together():
    """All that one Python or several need, and all of Triton's source or nothing of it."""

    def files(*rows):
        return tuple(LockedFile(name=name, pythons=pythons, size=1, sha256="0" * 64) for name, *pythons in rows)

    every = {"version": "1", "licence": "MIT"}
    lock = Lock(format=1, pythons=("3.11", "3.12"), packages=(
        Package(name="both", use="build", files=files(("both", "3.11", "3.12")), **every),
        Package(name="each", use="front", files=files(("each11", "3.11"), ("each12", "3.12")), **every),
        Package(name="source", use="triton-source", files=files(("s1",), ("s2",)), **every),
    ))  # fmt: skip
    for names in ("both each11", "both each12", "both each11 each12", "both each12 s1 s2"):
        assert _incomplete(lock, set(names.split())) == ""
    for names, sentence in (
        ("", "lacks 2 of the 2 files that its lock names for Python 3.1"),
        ("both", "lacks 1 of the 2 files that its lock names for Python 3.1"),
        ("each11", "lacks 1 of the 2 files that its lock names for Python 3.1"),
        ("both each12 s1", "lacks 1 of the 4 files that its lock names for Triton from source, first s2"),
        ("s1 s2", "lacks 2 of the 2 files that its lock names for Python 3.1"),
    ):
        assert _incomplete(lock, set(names.split())).startswith(sentence), names


def test_a_compressed_tar_and_a_missing_one(packed, tmp_path):
    with tarfile.open(tmp_path / "c.tar.gz", "w:gz") as tar:
        tar.add(packed[1] / LOCK_NAME, LOCK_NAME)
    with pytest.raises(ArtifactError, match="is truncated or corrupt|is corrupt"):
        read_bundle(tmp_path / "c.tar.gz", fresh(packed, tmp_path), Progress())
    with pytest.raises(EnvironmentProblem, match="No such file"):
        read_bundle(tmp_path / "gone.tar", tmp_path / "elsewhere", Progress())


def test_both_ways_that_need_no_package(packed, tmp_path):
    """Where there is no network a bundle is unpacked before any package is there."""
    bundle = packed[0]
    target = fresh(packed, tmp_path)
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(SOURCE)}

    def bare(*words):
        command = [sys.executable, "-S", "-B", "-m", "kiln_build", "fetch", "--input", str(target), *map(str, words)]
        return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)

    done = bare("--verify")
    assert done.returncode == 5 and f"missing  {wheel('alpha')}" in done.stdout, done.stderr
    done = bare("--unbundle", bundle)
    assert done.returncode == 0 and "3 files unpacked" in done.stdout, done.stderr
    done = bare("--verify")
    assert done.returncode == 0 and "is complete and right" in done.stdout, done.stderr
    done = bare("--bundle", tmp_path / "again.tar")
    assert done.returncode == 0 and (tmp_path / "again.tar").read_bytes() == bundle.read_bytes(), done.stderr
    (target / "cache" / wheel("alpha")).write_bytes(b"x")
    assert bare("--verify").returncode == 5
    (target / "cache" / wheel("alpha")).unlink()
    done = bare()
    assert done.returncode == 7 and "fetch needs the package requests" in done.stderr
