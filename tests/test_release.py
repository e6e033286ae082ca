"""The tarball: the same bytes wherever and whenever it is made, nothing of its maker, complete or not there."""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import os
import shutil
import subprocess
import tarfile
import threading
from pathlib import Path

import deflate
import pytest

from kiln_build.artifacts import manifest, verify
from kiln_build.artifacts import reader as inspect
from kiln_build.base import tarball
from kiln_build.native.adapter import Adapter, Prefix
from kiln_build.release import release, replacement
from kiln_build.trust import statement
from kiln_recipe.errors import EnvironmentProblem
from small_release import VERSION, small_release


@pytest.fixture
def stage(tmp_path) -> Path:
    return Path(shutil.copytree(small_release().stage, tmp_path / "stage", symlinks=True))


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_layout_and_checksum():
    made = small_release()
    assert made.tarball.name == "kiln-0.1.0b-manylinux_2_28_x86_64-shared.tar.gz"
    with tarfile.open(made.tarball) as tar:
        names = tar.getnames()
    assert names == sorted(names) and len(names) == len(set(names))
    assert {name.split("/")[0] for name in names} == {"kiln"}
    for name in (
        "lib/libkiln.so.0", "lib/libkiln.so", "lib/libkiln_toy.so", "lib/kiln.images/amd-gfx942.pack",
        "lib/kiln.images/nvidia-sm_90.pack", "lib/cmake/kiln/kilnConfig.cmake", "lib/pkgconfig/kiln.pc",
        "lib/pkgconfig/kiln_toy.pc", "lib/cmake/kiln/kilnConfigVersion.cmake", "include/kiln/kiln.h",
        "include/kiln/version.h",
        "share/kiln/manifest.json", "share/kiln/LICENSE", "share/kiln/licences/zstd.txt",
    ):  # fmt: skip
        assert f"kiln/{name}" in names
    check = ["sha256sum", "-c", f"{made.tarball.name}.sha256"]
    subprocess.run(check, cwd=made.tarball.parent, check=True, stdout=subprocess.DEVNULL)


def test_nothing_of_who_made_it_where_and_when():
    with tarfile.open(small_release().tarball) as tar:
        for member in tar:
            assert (member.uid, member.gid, member.uname, member.gname) == (0, 0, "", "")
            assert member.mtime == 315532800 and not member.pax_headers
            expected = (
                0o777
                if member.issym()
                else 0o755
                if member.isdir() or member.name.endswith((".so.0", ".so", ".pyz"))
                else 0o644
            )
            assert member.mode == expected
    raw = gzip.decompress(small_release().tarball.read_bytes())
    assert len(raw) % 10240 == 0 and raw[:5] == b"kiln/"
    assert raw[329:345] == bytes(16), "no numbers of devices, whichever Python wrote it"
    head = small_release().tarball.read_bytes()[:10]
    assert head[3] == 0 and head[4:8] == bytes(4), "neither name nor time in the header of gzip"


def test_system_tar_unpacks_it(tmp_path):
    subprocess.run(["tar", "-xzf", small_release().tarball], cwd=tmp_path, check=True)
    library = tmp_path / "kiln/lib/libkiln.so"
    assert os.readlink(library) == "libkiln.so.0"
    assert library.read_bytes() == (small_release().stage / "lib/libkiln.so.0").read_bytes()


def test_same_bytes_from_another_folder_umask_order_and_time(stage, tmp_path):
    other = tmp_path / "another place" / "stage"
    for path in sorted(stage.rglob("*"), reverse=True):  # folders' own order differs
        copy = other / path.relative_to(stage)
        copy.parent.mkdir(parents=True, exist_ok=True)
        if path.is_symlink():
            copy.symlink_to(os.readlink(path))
        elif path.is_file():
            copy.write_bytes(path.read_bytes())
            copy.chmod(0o600)
            os.utime(copy, (1e9, 1e9))
    made = release.make_release(other, tmp_path, VERSION)
    assert digest(made) == digest(small_release().tarball)


def test_more_than_one_gzip_member(stage, tmp_path, monkeypatch):
    monkeypatch.setattr(tarball, "MEMBER_BYTES", 20000)
    made = release.make_release(stage, tmp_path, VERSION)
    assert made.read_bytes().count(b"\x1f\x8b\x08\0\0\0\0\0") > 3
    assert gzip.decompress(made.read_bytes()) == gzip.decompress(small_release().tarball.read_bytes())
    subprocess.run(["tar", "-xzf", made], cwd=tmp_path, check=True)
    assert digest(tmp_path / "kiln/share/kiln/manifest.json") == digest(stage / "share/kiln/manifest.json")
    assert verify.verify(inspect.open_artifact(made)).problems == []
    longer = tmp_path / "longer.tar.gz"
    longer.write_bytes(made.read_bytes() + deflate.gzip_compress(bytes(512), 6))
    found = verify.verify(inspect.open_artifact(longer)).problems
    assert len(found) == 1 and found[0].startswith(f"{longer} has bytes after the end of its ")


def test_an_older_tarball_is_replaced_whole(stage, tmp_path):
    path = tmp_path / release.tarball_name(VERSION)
    path.write_text("old")
    (tmp_path / f"{path.name}.sha256").write_text("old")
    assert release.make_release(stage, tmp_path, VERSION, replace=True) == path
    assert (tmp_path / f"{path.name}.sha256").read_text() == f"{digest(path)}  {path.name}\n"
    assert sorted(p.name for p in tmp_path.iterdir()) == [path.name, f"{path.name}.sha256", "stage"]


def replaced_at(path: Path) -> tuple[int, int]:
    return path.stat().st_ino, path.stat().st_mtime_ns


def test_two_that_finish_at_once(tmp_path, monkeypatch):
    """The second comes when the first has seen that nothing is there, and waits until the first's is."""
    path, is_equal, threads, refused = tmp_path / "x.tar.gz", replacement.is_equal, [], []

    def second() -> None:
        try:
            release.put(path, iter([b"second"]))
        except replacement.InTheWay as error:
            refused.append(error)

    def seen(*words: object) -> bool:
        found = is_equal(*words)
        if not threads:
            threads.append(threading.Thread(target=second))
            threads[0].start()
            threads[0].join(0.5)  # if it does not wait for the first, it is done by then
        return found

    monkeypatch.setattr(replacement, "is_equal", seen)
    release.put(path, iter([b"first"]))
    threads[0].join()
    assert path.read_bytes() == b"first" and digest(path) in statement.checksum_of(path).read_text()
    assert len(refused) == 1 and sorted(tmp_path.iterdir()) == [path, statement.checksum_of(path)]


def test_another_builds_tarball_stays(stage, tmp_path):
    tarball = release.make_release(stage, tmp_path, VERSION)
    before = replaced_at(tarball)
    assert release.make_release(stage, tmp_path, VERSION) == tarball
    assert replaced_at(tarball) == before, "the same bytes: nothing to do"
    (stage / "include/kiln/kiln.h").write_text("changed")
    with pytest.raises(replacement.InTheWay, match=f"has a {tarball.name} with other bytes .*; KILN_REPLACE=1"):
        release.make_release(stage, tmp_path, VERSION)
    assert replaced_at(tarball) == before
    assert sorted(p.name for p in tmp_path.iterdir()) == [tarball.name, f"{tarball.name}.sha256", "stage"]
    assert release.make_release(stage, tmp_path, VERSION, replace=True) == tarball
    assert replaced_at(tarball) != before and digest(tarball) in statement.checksum_of(tarball).read_text()


def test_a_tarball_counts_with_its_checksum_alone(tmp_path):
    path = tmp_path / release.tarball_name(VERSION)
    assert not replacement.is_finished(path)
    path.touch()
    assert not replacement.is_finished(path)
    (tmp_path / f"{path.name}.sha256").touch()
    assert replacement.is_finished(path)
    assert not replacement.is_finished(tmp_path / release.tarball_name("0.2"))


def test_a_tarball_without_its_checksum_is_somebodys_too(stage, tmp_path):
    """Copied without it, say."""
    tarball = release.make_release(stage, tmp_path, VERSION)
    before, checksum = replaced_at(tarball), statement.checksum_of(tarball)
    stated = checksum.read_text()
    checksum.unlink()
    assert release.make_release(stage, tmp_path, VERSION) == tarball, "the same bytes get their checksum again"
    assert checksum.read_text() == stated and digest(tarball) in stated
    checksum.unlink()
    before = replaced_at(tarball)
    (stage / "include/kiln/kiln.h").write_text("changed")
    with pytest.raises(replacement.InTheWay, match=f"has a {tarball.name} with other bytes .*; KILN_REPLACE=1"):
        release.make_release(stage, tmp_path, VERSION)
    assert replaced_at(tarball) == before and not checksum.exists()


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda path: path.write_text("somebody's"), "cannot be read"),
        (os.mkfifo, "cannot be read"),
        (lambda path: path.symlink_to("nowhere"), "cannot be read"),
        (Path.mkdir, "cannot be read"),
    ],
)
def test_whatever_stands_in_a_tarballs_place_is_found_before_anything_is_compiled(stage, tmp_path, make, sentence):
    path = tmp_path / release.tarball_name(VERSION)
    make(path)
    with pytest.raises(replacement.InTheWay, match=sentence):
        replacement.check_before(path, replacement.Inputs("unknown", False, "", {}, set))
    with pytest.raises(EnvironmentProblem):
        release.make_release(stage, tmp_path, VERSION)
    assert os.path.lexists(path) and not statement.checksum_of(path).exists()


def test_a_failure_leaves_the_earlier_tarball_as_it_was(stage, tmp_path, monkeypatch):
    path = tmp_path / release.tarball_name(VERSION)
    earlier = {path.name: "old", f"{path.name}.sha256": "its digest"}
    for name, text in earlier.items():
        (tmp_path / name).write_text(text)

    def full(*_arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(EnvironmentProblem, match="No space left on device"):
        release.make_release(stage, tmp_path, VERSION)
    assert {p.name: p.read_text() for p in tmp_path.iterdir() if p.is_file()} == earlier


def test_a_failure_leaves_no_tarball(stage, tmp_path):
    os.mkfifo(stage / "share/kiln/pipe")
    with pytest.raises(EnvironmentProblem, match="pipe is neither a file, a folder nor a link"):
        release.make_release(stage, tmp_path, VERSION)
    assert [p.name for p in tmp_path.iterdir()] == ["stage"]


def test_a_full_disk_leaves_no_tarball(stage, tmp_path, monkeypatch):
    def full(*_arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(EnvironmentProblem, match="No space left on device"):
        release.make_release(stage, tmp_path, VERSION)
    assert [p.name for p in tmp_path.iterdir()] == ["stage"]


def test_a_disk_that_is_full_at_the_very_end_leaves_nothing_half_made(stage, tmp_path, monkeypatch):
    """The digest cannot be written: the tarball without it does not count, and no temporary file is left."""
    replace = os.replace

    def full(source, target):
        if str(target).endswith(".sha256"):
            raise OSError(28, "No space left on device")
        replace(source, target)

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(EnvironmentProblem, match="No space left on device"):
        release.make_release(stage, tmp_path, VERSION)
    assert sorted(p.name for p in tmp_path.iterdir()) == [release.tarball_name(VERSION), "stage"]


def test_a_path_that_is_too_long(stage, tmp_path):
    (stage / ("a" * 200) / ("b" * 200)).mkdir(parents=True)
    with pytest.raises(EnvironmentProblem, match="cannot be in a tarball"):
        release.make_release(stage, tmp_path, VERSION)
    assert [p.name for p in tmp_path.iterdir()] == ["stage"]


def test_without_a_manifest(stage, tmp_path):
    (stage / manifest.PATH).unlink()
    with pytest.raises(EnvironmentProblem, match="every release has one"):
        release.make_release(stage, tmp_path, VERSION)


def test_output_that_is_not_there(stage, tmp_path):
    with pytest.raises(EnvironmentProblem, match=r"cannot write .*nowhere"):
        release.make_release(stage, tmp_path / "nowhere", VERSION)


def test_each_adapter_has_a_prefix_and_the_main_one_the_release_itself(tmp_path):
    """As AOTriton's interfaces: what a prefix has, the release has of the newest."""
    from small_release import contents

    def adapter(version: str, is_main: bool) -> Adapter:
        library, texts = f"libother.so.{version}", {"lib/cmake/other/other-config.cmake": f"# {version}\n"}
        return Adapter(
            "other", library, "toy", (), {"libother.so": library}, {"other/other.h": f"// {version}\n"},
            prefix=Prefix(f"lib/other/{version}", "other.images", texts), is_main=is_main,
        )  # fmt: skip

    adapters = (adapter("1", False), adapter("2", True))
    small, stage = contents(tmp_path, small_release().packs), tmp_path / "stage"
    libraries = {**small.libraries, **{one.library: small.libraries["libkiln_toy.so"] for one in adapters}}
    release.lay_out(dataclasses.replace(small, libraries=libraries, adapters=adapters), stage)
    assert not (stage / "lib/libother.so.1").exists()
    for folder, version in ((stage, 2), (stage / "lib/other/1", 1), (stage / "lib/other/2", 2)):
        assert (folder / "lib/libother.so").readlink() == Path(f"libother.so.{version}")
        assert (folder / "lib/cmake/other/other-config.cmake").read_text() == f"# {version}\n"
        assert (folder / "include/other/other.h").read_text() == f"// {version}\n"
        for pack in small.packs:
            assert (folder / "lib/other.images" / pack).samefile(stage / "lib/kiln.images" / pack)
        for notice in ("LICENSE", "licences/zstd.txt"):
            assert (folder / "lib/other.images/kiln" / notice).samefile(stage / "share/kiln" / notice)
    assert (stage / "lib/other/2/lib/libother.so.2").samefile(stage / "lib/libother.so.2")
    assert (stage / "lib/cmake/kiln/kilnConfig.cmake").is_file()


def test_laying_out_again_forgets_what_was_there(tmp_path):
    from small_release import contents

    (tmp_path / "stage/lib/kiln.images").mkdir(parents=True)
    (tmp_path / "stage/lib/kiln.images/amd-gfx900.pack").write_text("of another build")
    release.lay_out(contents(tmp_path, small_release().packs), tmp_path / "stage")
    names = sorted(p.name for p in (tmp_path / "stage/lib/kiln.images").iterdir())
    assert names == ["amd-gfx942.pack", "nvidia-sm_90.pack"]
