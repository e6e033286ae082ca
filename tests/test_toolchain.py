"""The identity of a toolchain: every file that takes part in a compile counts, and no Python does."""

from __future__ import annotations

import base64
import contextlib
import csv
import hashlib
import io
import os
import tempfile
import zipfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from faulty_server import FaultyIndex
from kiln_build.fetch import wheel_members
from kiln_build.fetch.registry import ClientConfiguration, Registry
from kiln_build.fetch.relock import locked_files
from kiln_recipe.compile.lock import LOCK_NAME, Member, Package, read_lock
from kiln_recipe.compile.toolchain import find_toolchain, takes_part
from kiln_recipe.errors import ToolchainError

ROOT = Path(__file__).resolve().parents[1]
FILES = {
    "triton/__init__.py": b"import triton._C",
    "triton/_C/libtriton.so": b"the compiler, for any Python",
    "triton/backends/nvidia/compiler.py": b"stages",
    "triton/backends/nvidia/bin/ptxas": b"assembler",
    "triton/backends/nvidia/bin/ptxas-blackwell": b"another",
    "triton/backends/nvidia/lib/libdevice.10.bc": b"bitcode",
    "triton/backends/amd/lib/ockl.bc": b"ockl",
    "triton/backends/amd/lib/ocml.bc": b"ocml",
    "triton/backends/amd/lib/libcodegen.so": b"a code generator of its own",
    "triton.libs/libz.so": b"brought along",
}
ASIDE = (
    "triton/profiler/proton.py", "triton/_C/libproton.so", "triton/__pycache__/knobs.cpython-311.pyc",
    "triton/backends/nvidia/include/cuda.h", "triton/backends/nvidia/lib/cupti/libcupti.so", "elsewhere/x.py",
)  # fmt: skip


def install(site: Path, files: dict[str, bytes], version: str = "3.8.0") -> Path:
    for name, content in files.items():
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_bytes(content)
    info = site / f"triton-{version}.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: triton\nVersion: {version}\n")
    return site


def identity(site: Path, wheels: dict | None = None) -> str:
    return find_toolchain(site, wheels or {}).identity


def record(site: Path, version: str = "3.8.0") -> None:
    """What the package client keeps of an installation."""
    info = site / f"triton-{version}.dist-info"
    rows = [
        (path.relative_to(site).as_posix(), f"sha256={urlsafe(path.read_bytes())}", path.stat().st_size)
        for path in sorted(site.rglob("*"))
        if path.is_file()
    ]
    with (info / "RECORD").open("w", newline="") as file:
        csv.writer(file).writerows([*rows, (f"{info.name}/RECORD", "", "")])


def urlsafe(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def test_files_that_are_not_as_they_were_installed_are_named(tmp_path):
    site = install(tmp_path, FILES | dict.fromkeys(ASIDE, b""))
    assert find_toolchain(site, {}).changed == (), "nothing is known of what has no record"
    record(site)
    whole = find_toolchain(site, {})
    assert whole.changed == () and whole.warning == ""
    (site / "triton/backends/nvidia/compiler.py").write_bytes(b"other stages")
    (site / "triton/added.py").write_bytes(b"")
    (site / ASIDE[0]).write_bytes(b"takes no part")
    other = find_toolchain(site, {})
    assert other.changed == ("triton/added.py", "triton/backends/nvidia/compiler.py")
    assert other.identity != whole.identity
    assert other.warning.startswith(
        f"triton/added.py and 1 more of Triton 3.8.0 in {site} is not as it was installed: "
    )


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    return install(tmp_path_factory.mktemp("site"), FILES)


@given(st.sampled_from(sorted(FILES)), st.data())
def test_any_byte_of_any_file_counts(installed, name, data):
    before, path = identity(installed), installed / name
    content, status = FILES[name], os.stat(path)
    place = data.draw(st.integers(0, len(content) - 1))
    changed = bytearray(content)
    changed[place] ^= 1 << data.draw(st.integers(0, 7))
    try:
        path.write_bytes(changed)
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))  # size and time tell nothing
        assert identity(installed) != before
    finally:
        path.write_bytes(content)
    assert identity(installed) == before


def test_files_that_come_and_go_count_and_names_do(tmp_path):
    seen = [identity(install(tmp_path / "whole", FILES))]
    for name in sorted(set(FILES) - {"triton/backends/nvidia/bin/ptxas-blackwell"}):
        if "/backends/nvidia/bin" not in name and not name.endswith(".bc"):
            seen.append(identity(install(tmp_path / name, {k: v for k, v in FILES.items() if k != name})))
    seen.append(identity(install(tmp_path / "more", FILES | {"triton/backends/other/compiler.py": b""})))
    renamed = {name.replace("libcodegen", "libgenerate"): content for name, content in FILES.items()}
    seen.append(identity(install(tmp_path / "renamed", renamed)))
    seen.append(identity(install(tmp_path / "newer", FILES, version="3.8.1")))
    assert len(set(seen)) == len(seen)


def test_what_takes_no_part_does_not(tmp_path):
    before = identity(install(tmp_path, FILES))
    assert not any(map(takes_part, ASIDE)) and all(map(takes_part, FILES))
    assert identity(install(tmp_path, dict.fromkeys(ASIDE, b"any"))) == before
    assert identity(install(tmp_path / "elsewhere", FILES)) == before


def test_the_wheels_of_one_version_are_one_toolchain(tmp_path):
    """For any Python; but each by its content, if the lock does not have it, and of another version."""
    name = "triton/_C/libtriton.so"
    contents = [f"for Python 3.{minor}".encode() for minor in range(10, 15)]
    wheels = {"3.8.0": [{name: hashlib.sha256(content).hexdigest()} for content in contents]}
    sites = [install(tmp_path / str(number), FILES | {name: content}) for number, content in enumerate(contents)]
    assert len({identity(site, wheels) for site in sites}) == 1
    assert len({identity(site, {"3.9.0": wheels["3.8.0"]}) for site in sites}) == 5
    assert identity(sites[0], {}) == identity(sites[0], wheels) == identity(sites[3], wheels)
    (sites[3] / name).write_bytes(b"For Python 3.13")
    assert identity(sites[3], wheels) != identity(sites[0], wheels)
    # An equal change beside it is an equal change for every Python.
    for site in sites[:3]:
        (site / "triton/backends/nvidia/compiler.py").write_bytes(b"edited")
    assert len({identity(site, wheels) for site in sites[:3]}) == 1
    assert identity(sites[0], wheels) != identity(sites[4], wheels)


def test_an_installation_by_links(tmp_path):
    """As one for development is: folders elsewhere, one that leads back up."""
    before = identity(install(tmp_path / "site", FILES))
    os.rename(tmp_path / "site/triton/backends", tmp_path / "source")
    (tmp_path / "site/triton/backends").symlink_to(tmp_path / "source")
    assert identity(tmp_path / "site") == before
    (tmp_path / "source/up").symlink_to(tmp_path / "site/triton")
    assert identity(tmp_path / "site") == before
    (tmp_path / "source/nvidia/compiler.py").write_bytes(b"other stages")
    assert identity(tmp_path / "site") != before


def test_no_triton_and_half_of_one(tmp_path):
    with pytest.raises(ToolchainError, match="no Triton is installed in"):
        identity(tmp_path)
    with pytest.raises(ToolchainError, match="lacks backends/nvidia/lib/libdevice.10.bc, which every build needs"):
        identity(install(tmp_path, {k: v for k, v in FILES.items() if "libdevice" not in k}))


# ---- the lock ----


def test_the_committed_lock_has_the_native_library_of_each_wheel():
    lock = read_lock(ROOT / "input" / LOCK_NAME)
    (package,) = (package for package in lock.packages if package.name == "triton")
    assert [[member.path for member in file.members] for file in package.files] == [["triton/_C/libtriton.so"]] * 5
    (wheels,) = lock.members_of("triton").values()
    assert len({wheel["triton/_C/libtriton.so"] for wheel in wheels}) == len(lock.pythons) == 5


def wheel(files: dict[str, bytes]) -> bytes:
    record = io.StringIO()
    for name, content in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")
        csv.writer(record).writerow([name, f"sha256={digest}", len(content)])
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for name, content in {**files, "triton-3.8.0.dist-info/RECORD": record.getvalue().encode()}.items():
            archive.writestr(name, content)
    return made.getvalue()


WHEEL = wheel({"triton/__init__.py": b"import triton._C", "triton/x.py": b"x" * 300})


@settings(deadline=None, max_examples=500)
@given(st.integers(0, len(WHEEL) - 1), st.integers(0, 255), st.integers(0, len(WHEEL)))
def test_a_damaged_wheel_is_one_sentence(position, value, end):
    bad = bytearray(WHEEL)
    bad[position] = value
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "w.whl"
        for data in (bad, bad[:end]):
            path.write_bytes(data)
            with contextlib.suppress(ToolchainError):
                wheel_members.members_of("w.whl", path.as_uri(), Registry(ClientConfiguration((), ())))


@pytest.mark.parametrize("record", [b"a" * (1 << 18), b"a" * (17 << 20)])
def test_records_that_no_wheel_has(tmp_path, record):
    with zipfile.ZipFile(tmp_path / "w.whl", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("w.dist-info/RECORD", record)
    with pytest.raises(ToolchainError, match="w.whl: its contents cannot be read"):
        wheel_members.members_of("w.whl", (tmp_path / "w.whl").as_uri(), Registry(ClientConfiguration((), ())))


def wheels_of(pythons: list[str]) -> dict[str, bytes]:
    made = {}
    for python in pythons:
        own = {name: f"{name}, {python}".encode() for name in ("triton/_C/libtriton.so", "triton/_C/libproton.so")}
        short = python.replace(".", "")
        large = {"triton/backends/nvidia/include/cuda.h": os.urandom(1 << 18)}
        made[f"triton-3.8.0-cp{short}-cp{short}-manylinux_2_28_x86_64.whl"] = wheel(FILES | own | large)
    return made


@pytest.mark.parametrize("place", ["index", "folder"])
def test_relock_lists_what_differs_between_wheels(tmp_path, place):
    pythons = ["3.10", "3.11", "3.13"]
    made = wheels_of(pythons)
    package = Package(name="triton", version="3.8.0", licence="MIT", use="build")

    if place == "folder":
        for name, content in made.items():
            (tmp_path / name).write_bytes(content)
        files = locked_files(package, pythons, Registry(ClientConfiguration((), (str(tmp_path),))))
    else:
        with FaultyIndex({name: ("triton", content) for name, content in made.items()}) as index:
            files = locked_files(package, pythons, Registry(ClientConfiguration((index.url,), ())))
            for name, content in made.items():
                whole, *parts = index.served(name)  # this index states no digests
                ends = [tuple(map(int, span.removeprefix("bytes=").split("-"))) for span, _ in parts]
                assert whole == (None, None) and 0 < sum(end - start for start, end in ends) < len(content) // 2
            index.faults.ignored_ranges[name] = 1
            with pytest.raises(ToolchainError, match=f"{name}: .* does not support ranges.; give the folder"):
                locked_files(package, pythons, Registry(ClientConfiguration((index.url,), ())))
    assert [file.members for file in files] == [
        (
            Member(
                path="triton/_C/libtriton.so",
                sha256=hashlib.sha256(f"triton/_C/libtriton.so, {python}".encode()).hexdigest(),
            ),
        )
        for python in pythons
    ]
