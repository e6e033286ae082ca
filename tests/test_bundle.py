"""The one file that is carried: deterministic, and nothing in it believed."""

from __future__ import annotations

import io
import os
import shutil
import stat
import subprocess
import sys
import tarfile

import pytest

from kiln.bundle import read_bundle, write_bundle
from kiln.cli import main
from kiln.errors import ArtifactError, EnvironmentProblem, ToolchainError
from kiln.lock import LOCK_NAME, write_lock
from kiln.progress import Progress
from test_fetch import SOURCE, make_files, make_lock, wheel


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
    bundle, _, files = packed
    target = fresh(packed, tmp_path)
    whole = bundle.read_bytes()
    end = whole.rstrip(b"\0").__len__()
    for size in [0, 1, 511, 512, 700, 5000, 21_000, end - 5000, end - 600]:
        bundle.write_bytes(whole[:size])
        with pytest.raises(ArtifactError):
            read_bundle(bundle, target, Progress())
    for path in (target / "cache").glob("*"):
        assert path.read_bytes() == files[path.name][1]


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
    with pytest.raises(ArtifactError, match="is of another lock"):
        read_bundle(packed[0], target, Progress())


def evil(packed, tmp_path, member: tarfile.TarInfo, data: bytes = b""):
    path = tmp_path / "evil.tar"
    with tarfile.open(path, "w") as tar:
        text = (packed[1] / LOCK_NAME).read_bytes()
        head = tarfile.TarInfo(LOCK_NAME)
        head.size = len(text)
        tar.addfile(head, io.BytesIO(text))
        member.size = len(data)
        tar.addfile(member, io.BytesIO(data))
    return path


@pytest.mark.parametrize("name", ["../outside", "/tmp/outside", "cache/../../outside", "cache/unknown.whl", "outside"])
def test_members_that_the_lock_does_not_name(packed, tmp_path, name):
    with pytest.raises(ArtifactError, match="is no file of its lock; do not use this bundle"):
        read_bundle(evil(packed, tmp_path, tarfile.TarInfo(name), b"x"), fresh(packed, tmp_path), Progress())
    assert not (tmp_path / "outside").exists()


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.DIRTYPE])
def test_members_that_are_no_files(packed, tmp_path, kind):
    member = tarfile.TarInfo(f"cache/{wheel('alpha')}")
    member.type, member.linkname = kind, "/etc/passwd"
    with pytest.raises(ArtifactError, match="is no file of its lock"):
        read_bundle(evil(packed, tmp_path, member), fresh(packed, tmp_path), Progress())
    assert list((tmp_path / "elsewhere" / "cache").iterdir()) == []


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
def test_a_sparse_member_is_refused_before_it_is_written(packed, tmp_path, size, monkeypatch):
    name = f"cache/{wheel('alpha')}"
    with tarfile.open(fileobj=io.BytesIO(sparse(name, size))) as tar:
        assert tar.next().issparse() and tar.getmembers()[0].size == size  # it is one
    path = evil(packed, tmp_path, tarfile.TarInfo("unused"))
    whole = path.read_bytes()
    at = whole.index(b"unused")
    path.write_bytes(whole[:at] + sparse(name, size) + whole[at + 512 :])
    refuse_to_copy(monkeypatch)
    with pytest.raises(ArtifactError, match="is no file of its lock; do not use this bundle"):
        read_bundle(path, fresh(packed, tmp_path), Progress())


@pytest.mark.parametrize("size", [19_999, 20_001, 1 << 20])
def test_a_member_of_another_size_is_refused_before_it_is_written(packed, tmp_path, size, monkeypatch):
    path = evil(packed, tmp_path, tarfile.TarInfo(f"cache/{wheel('alpha')}"), bytes(size))
    refuse_to_copy(monkeypatch)
    with pytest.raises(ArtifactError, match=f"is corrupt: {wheel('alpha')} has {size} bytes, the lock says 20000"):
        read_bundle(path, fresh(packed, tmp_path), Progress())


def refuse_to_copy(monkeypatch) -> None:
    def copy(*_: object) -> None:
        raise AssertionError("bytes are written")

    monkeypatch.setattr(shutil, "copyfileobj", copy)


def test_a_compressed_tar_and_a_missing_one(packed, tmp_path):
    with tarfile.open(tmp_path / "c.tar.gz", "w:gz") as tar:
        tar.add(packed[1] / LOCK_NAME, LOCK_NAME)
    with pytest.raises(ArtifactError, match="no bundle"):
        read_bundle(tmp_path / "c.tar.gz", fresh(packed, tmp_path), Progress())
    with pytest.raises(EnvironmentProblem, match="No such file"):
        read_bundle(tmp_path / "gone.tar", tmp_path / "elsewhere", Progress())


def test_both_ways_that_need_no_package(packed, tmp_path):
    """Where there is no network a bundle is unpacked before any package is there."""
    bundle = packed[0]
    target = fresh(packed, tmp_path)
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(SOURCE)}

    def bare(*words):
        command = [sys.executable, "-S", "-B", "-m", "kiln", "fetch", "--input", str(target), *map(str, words)]
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
