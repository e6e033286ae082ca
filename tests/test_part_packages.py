"""`kiln split --format`: Debian, RPM and conda packages, looked at by the tools that install them where these are
there, and by the standard library everywhere."""

from __future__ import annotations

import functools
import hashlib
import io
import itertools
import json
import os
import re
import shutil
import subprocess
import tarfile
import zipfile
from pathlib import Path

import pytest
import zstandard
from conda_package_handling import api as conda

import minisign_keys
import shared
from kiln_build.artifacts import manifest, parts, reader, verify
from kiln_build.base import tarball
from kiln_build.cli import main
from kiln_build.parts import cut, package
from kiln_build.trust import statement
from small_release import VERSION, linked_release

NAMES = ("kiln-runtime", "kiln-images-gfx942", "kiln-images-sm-90")


def run(*words: object) -> int:
    return main([str(word) for word in words])


@functools.cache
def packages(form: str) -> Path:
    """A folder with the packages of the linked release, signed, and `kiln.pub`."""

    def make(folder: Path) -> None:
        keys = minisign_keys.make(folder)
        assert run("split", linked_release().tarball, folder, "--format", form, "--sign", keys.secret) == 0

    return shared.once(f"packages {form}", make)


def of(form: str, name: str) -> Path:
    (path,) = packages(form).glob(f"{name}[_-][0-9]*.{form}")
    return path


def token() -> str:
    return hashlib.sha256(reader.file_of(linked_release().tarball, manifest.PATH)).hexdigest()[:16]


def need(*tools: str) -> None:
    for tool in tools:
        if not shutil.which(tool):
            pytest.skip(f"needs {tool}")


def is_the_release(folder: Path) -> None:
    """What all packages have installed is whole, and the release when the parts' own files are gone."""
    report = verify.verify(reader.open_artifact(folder))
    assert not report.problems and not [note for note in report.notes if "installed" in note]
    shutil.rmtree(folder / parts.PARTS)
    rows = reader.open_artifact(linked_release().tarball).manifest["files"]
    assert [row.path for row in manifest.files_of(folder)] == [row["path"] for row in rows]


def unpacked(data: bytes) -> dict[str, tuple[tarfile.TarInfo, bytes]]:
    """The members of a tar, by name, and what files hold; none is there twice."""
    found: dict[str, tuple[tarfile.TarInfo, bytes]] = {}
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        for member in archive:
            assert member.name not in found
            file = archive.extractfile(member) if not member.issym() else None
            found[member.name] = member, file.read() if file else b""
    return found


def ar_members(path: Path) -> dict[str, bytes]:
    """What an ar of deb(5) holds."""
    data, found, at = path.read_bytes(), {}, 8
    assert data[:8] == b"!<arch>\n"
    while at < len(data):
        head = data[at : at + 60]
        assert head[58:] == b"`\n"
        size = int(head[48:58])
        found[head[:16].decode().strip()] = data[at + 60 : at + 60 + size]
        at += 60 + size + size % 2
    return found


@pytest.mark.parametrize("form", ["deb", "conda"])
def test_packages_are_the_same_bytes_every_time(form, tmp_path):
    assert run("split", linked_release().tarball, tmp_path, "--format", form) == 0
    for name in NAMES:
        again = tmp_path / of(form, name).name
        assert again.read_bytes() == of(form, name).read_bytes()
        listed = statement.checksum_of(again).read_text()
        assert listed == f"{hashlib.sha256(again.read_bytes()).hexdigest()}  {again.name}\n"
    assert len([*tmp_path.iterdir()]) == 2 * len(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_deb_by_the_standard_library(name, tmp_path):
    members = ar_members(of("deb", name))
    assert list(members) == ["debian-binary", "control.tar.gz", "data.tar.gz"] and members["debian-binary"] == b"2.0\n"
    control = unpacked(members["control.tar.gz"])
    assert list(control) == [".", "./control", "./md5sums"]
    lines = control["./control"][1].decode().splitlines()
    fields = dict(line.split(": ", 1) for line in lines if not line.startswith(" "))
    assert fields["Package"] == name and fields["Version"] == "0.1.0~b" and fields["Architecture"] == "amd64"
    if name == "kiln-runtime":
        assert fields["Depends"] == "libc6 (>= 2.28)" and fields["Provides"] == f"kiln-release-{token()}"
    else:
        assert fields["Depends"] == f"kiln-runtime (= 0.1.0~b), kiln-release-{token()}"
    data = unpacked(members["data.tar.gz"])
    seen: set[str] = set()
    for member, _ in data.values():
        assert (member.uid, member.gid, member.uname, member.mtime) == (0, 0, "root", tarball.TIME)
        assert member.name == "." or member.name.rpartition("/")[0] in seen, member.name
        seen.add(member.name)
    listed = dict(reversed(line.split("  ")) for line in control["./md5sums"][1].decode().splitlines())
    there = {name[2:]: content for name, (member, content) in data.items() if not member.isdir() and not member.issym()}
    assert {name: hashlib.md5(content).hexdigest() for name, content in there.items()} == listed
    assert b"A licence." in there[f"usr/share/doc/{name}/copyright"]


def test_dpkg_installs_them_beside_one_another_and_demands_the_runtime(tmp_path):
    need("dpkg", "dpkg-deb")
    for name in NAMES:
        assert subprocess.run(["dpkg-deb", "--info", of("deb", name)], capture_output=True).returncode == 0
        said = subprocess.run(["dpkg-deb", "--contents", of("deb", name)], capture_output=True, check=True).stdout
        assert b"./opt/kiln/share/kiln/installed/" in said
    root = tmp_path / "root"
    (root / "var/lib/dpkg/info").mkdir(parents=True)
    (root / "var/lib/dpkg/updates").mkdir()
    # libc6 is there in a root with a system; this one says so.
    (root / "var/lib/dpkg/status").write_text(
        "Package: libc6\nStatus: install ok installed\nArchitecture: amd64\nVersion: 2.36\nMaintainer: x <x@x>\n"
        "Description: x\n\n"
    )
    (root / "var/lib/dpkg/info/format").write_text("1\n")
    (root / "var/lib/dpkg/info/libc6:amd64.list").write_text("/.\n")
    dpkg = ["dpkg", f"--root={root}", "--force-not-root", "--force-bad-path", "--force-architecture", "-i"]

    def install(*paths: Path) -> subprocess.CompletedProcess:
        return subprocess.run([*dpkg, *paths], capture_output=True, text=True)

    alone = install(of("deb", "kiln-images-sm-90"))
    assert alone.returncode and f"depends on kiln-release-{token()}" in alone.stderr
    done = install(*(of("deb", name) for name in NAMES))
    assert not done.returncode, done.stderr
    checked = subprocess.run(["dpkg", f"--root={root}", "-V", *NAMES], capture_output=True)
    assert checked.returncode == 0 and not checked.stdout
    is_the_release(root / "opt/kiln")


def test_a_deb_of_more_than_one_gzip_member(tmp_path, monkeypatch):
    need("dpkg-deb")
    monkeypatch.setattr(tarball, "MEMBER_BYTES", 1 << 19)
    assert run("split", linked_release().tarball, tmp_path, "--format", "deb", "--prefix", "/usr/local/kiln",
               "--maintainer", "Jo Doe <jo@example.org>") == 0  # fmt: skip
    for path in tmp_path.glob("*.deb"):
        subprocess.run(["dpkg-deb", "-x", path, tmp_path / "root"], check=True)
        said = subprocess.run(["dpkg-deb", "--field", path, "Maintainer"], capture_output=True, text=True).stdout
        assert said == "Jo Doe <jo@example.org>\n"
    is_the_release(tmp_path / "root/usr/local/kiln")


def test_a_runtime_below_usr_calls_ldconfig(tmp_path):
    assert run("split", linked_release().tarball, tmp_path, "--format", "deb", "--prefix", "/usr") == 0
    for path in tmp_path.glob("*.deb"):
        members = ar_members(path)
        assert ("./triggers" in unpacked(members["control.tar.gz"])) == ("runtime" in path.name)
        assert "./usr/lib" in unpacked(members["data.tar.gz"])


def conda_members(path: Path) -> dict[str, bytes]:
    """What a conda package's info and contents hold, links left out."""
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        assert names == ["metadata.json", f"info-{path.stem}.tar.zst", f"pkg-{path.stem}.tar.zst"]
        assert all(member.compress_type == zipfile.ZIP_STORED for member in archive.infolist())
        assert json.loads(archive.read("metadata.json")) == {"conda_pkg_format_version": 2}
        found = {}
        for name in names[1:]:
            data = zstandard.ZstdDecompressor().decompress(archive.read(name))
            found |= {name: content for name, (_, content) in unpacked(data).items()}
    return found


@pytest.mark.parametrize("name", NAMES)
def test_a_conda_package_by_the_standard_library(name):
    path = of("conda", name)
    assert path.name == f"{name}-{VERSION}-h{token()}_0.conda"
    members = conda_members(path)
    index = json.loads(members["info/index.json"])
    assert (index["name"], index["version"], index["build"], index["subdir"]) == (
        name, VERSION, f"h{token()}_0", "linux-64",
    )  # fmt: skip
    wanted = ["__glibc >=2.28"] if name == "kiln-runtime" else [f"kiln-runtime {VERSION} h{token()}_0"]
    assert index["depends"] == wanted
    rows = json.loads(members["info/paths.json"])["paths"]
    assert [row["_path"] for row in rows] == members["info/files"].decode().splitlines()
    assert {row["_path"] for row in rows} == {name for name in members if not name.startswith("info/")}
    for row in rows:
        if row["path_type"] == "hardlink":
            data = members[row["_path"]]
            assert (row["sha256"], row["size_in_bytes"]) == (hashlib.sha256(data).hexdigest(), len(data))
    assert members["info/licenses/LICENSE"] == b"A licence.\n"


def test_conda_packages_extract_beside_one_another(tmp_path):
    for name in NAMES:
        conda.extract(str(of("conda", name)), str(tmp_path / name))
        shutil.rmtree(tmp_path / name / "info")
        shutil.copytree(tmp_path / name, tmp_path / "prefix", symlinks=True, dirs_exist_ok=True)
    is_the_release(tmp_path / "prefix")


def test_rpm_installs_them_beside_one_another(tmp_path):
    need("rpmbuild", "rpm")
    for name in NAMES:
        wanted = [f"kiln-release({token()})", "kiln-runtime = 0.1.0~b-1"]
        if name == "kiln-runtime":
            assert of("rpm", name).name == f"{name}-{VERSION}-1.x86_64.rpm"
        kind = "--provides" if name == "kiln-runtime" else "--requires"
        said = subprocess.run(["rpm", "-qp", kind, of("rpm", name)], capture_output=True, text=True, check=True).stdout
        assert set(wanted) <= set(said.splitlines())
    again = tmp_path / "again"
    assert run("split", linked_release().tarball, again, "--format", "rpm") == 0
    assert all((again / of("rpm", name).name).read_bytes() == of("rpm", name).read_bytes() for name in NAMES)
    if os.geteuid() == 0:  # rpm changes its root
        root = tmp_path / "root"
        root.mkdir()
        command = ["rpm", "--root", str(root), "-i", "--nodeps", *(str(of("rpm", name)) for name in NAMES)]
        subprocess.run(command, capture_output=True, check=True)
        is_the_release(root / "opt/kiln")


def test_without_rpmbuild_that_is_what_is_said(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert run("split", linked_release().tarball, tmp_path / "out", "--format", "rpm") == 7
    assert "--format rpm needs rpmbuild, which is not installed; install it" in capsys.readouterr().err


@pytest.mark.parametrize("form", ["deb", "conda", "rpm"])
def test_packages_verify_by_their_signature(form, tmp_path, capsys):
    if form == "rpm":
        need("rpmbuild")
    key = packages(form) / "kiln.pub"
    for name in NAMES:
        copies = [Path(shutil.copy(path, tmp_path)) for path in packages(form).glob(f"{of(form, name).name}*")]
        assert len(copies) == 3
        path = tmp_path / of(form, name).name
        assert run("verify", path, "--key", key, "--json") == 0
        said = json.loads(capsys.readouterr().out)
        assert said["release"] == VERSION and said["signed"][0]["kind"] == "package"
        assert not said["verified"]["complete"]
        data = path.read_bytes()
        path.write_bytes(data[:-1] + b"x")
        assert run("verify", path, "--key", key) == 6 and path.name in capsys.readouterr().err
        path.write_bytes(data)
        assert run("verify", path, "--key", key, "--release", "0.2.0") == 12
        other = path.rename(path.with_name(path.name.replace(VERSION, "0.2.0")))
        for end in (".sha256", ".sha256.minisig"):
            path.with_name(path.name + end).rename(other.with_name(other.name + end))
        assert run("verify", other, "--key", key) == 12
        capsys.readouterr()


@pytest.mark.parametrize(
    ("release", "version"),
    [
        ("0.1.0b", "0.1.0~b"), ("0.1.0b+full.s4f1c0a9e", "0.1.0~b+full.s4f1c0a9e"), ("1.2", "1.2"),
        ("0.2.0dev20261125", "0.2.0~~dev20261125"), ("1.2.0rc1+only.norm", "1.2.0~rc1+only.norm"),
    ],
)  # fmt: skip
def test_versions_sort_as_releases_do(release, version):
    part = cut.Part("runtime", Path("nowhere"), {})
    made = package.Package(part, "kiln-runtime", release, "", "", (), "", {})
    assert made.version == version


def test_dpkg_sorts_versions_so():
    need("dpkg")
    order = ["0.1.0~~dev20261125", "0.1.0~a1", "0.1.0~b", "0.1.0~b+full", "0.1.0~rc1", "0.1.0", "0.1.1~a"]
    for one, other in itertools.pairwise(order):
        assert subprocess.run(["dpkg", "--compare-versions", one, "lt", other]).returncode == 0, (one, other)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--format", "zip"), "unknown format 'zip'"),
        (("--prefix", "/opt/kiln"), "--prefix is of deb and rpm"),
        (("--format", "conda", "--maintainer", "Jo <jo@example.org>"), "--maintainer is of deb and rpm"),
        (("--format", "deb", "--prefix", "opt/kiln"), "is not an absolute path"),
        (("--format", "deb", "--prefix", "/opt/../kiln"), "is not an absolute path"),
        (("--format", "deb", "--maintainer", "Jo"), "is not a name and an address"),
        (("--format", "deb", "--maintainer", "Jo\nX: y <jo@example.org>"), "is not a name and an address"),
    ],
)
def test_mistakes_are_one_sentence(words, said, tmp_path, capsys):
    assert run("split", linked_release().tarball, tmp_path, *words) == 2
    assert re.search(re.escape(said), capsys.readouterr().err) and not [*tmp_path.iterdir()]
