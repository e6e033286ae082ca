"""An unpacked release is found by CMake and by pkg-config wherever it lies, and consumers build, link and run."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from kiln_build.release import package
from kiln_recipe.errors import NativeBuildError
from small_release import ROOT, VERSION, small_release

PROGRAM = """
#include <stdio.h>
#include <string.h>
#include "kiln/kiln.h"
const char* kiln_toy(void);
int main(void) { return strcmp(kiln_version(), KILN_VERSION) || strcmp(kiln_toy(), KILN_VERSION) || KILN_ABI; }
"""
LISTS = """
cmake_minimum_required(VERSION 3.20)
project(consumer LANGUAGES C)
find_package(kiln {request} REQUIRED{components} PATHS "${{KILN}}" NO_DEFAULT_PATH)
find_package(kiln {request} REQUIRED PATHS "${{KILN}}" NO_DEFAULT_PATH)
message(STATUS "families: ${{kiln_FAMILIES}}, version ${{kiln_VERSION}}")
add_executable(consumer main.c)
target_link_libraries(consumer PRIVATE kiln::toy)
"""


@pytest.fixture
def unpacked(tmp_path) -> Path:
    """The release, unpacked into a folder with a space in its name."""
    folder = tmp_path / "some where"
    folder.mkdir()
    subprocess.run(["tar", "-xzf", small_release().tarball], cwd=folder, check=True)
    (tmp_path / "main.c").write_text(PROGRAM)
    return folder / "kiln"


def configure(tmp_path: Path, unpacked: Path, request: str, components: str = "") -> subprocess.CompletedProcess:
    (tmp_path / "CMakeLists.txt").write_text(LISTS.format(request=request, components=components))
    shutil.rmtree(tmp_path / "build", ignore_errors=True)
    command = ["cmake", "-S", ".", "-B", "build", f"-DKILN={unpacked}", "-DCMAKE_BUILD_TYPE=Release"]
    return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)


def run(command: list[str], cwd: Path) -> str:
    return subprocess.run(command, cwd=cwd, check=True, capture_output=True, text=True).stdout


@pytest.mark.skipif(not shutil.which("cmake"), reason="needs cmake")
def test_find_package(tmp_path, unpacked):
    done = configure(tmp_path, unpacked, "0.1", " COMPONENTS toy")
    assert done.returncode == 0, done.stderr
    assert "families: toy, version 0.1.0" in done.stdout
    run(["cmake", "--build", "build"], tmp_path)
    run([str(tmp_path / "build/consumer")], tmp_path)
    needed = run(["readelf", "-d", "build/consumer"], tmp_path)
    assert "[libkiln.so.0]" in needed and "[libkiln_toy.so]" in needed


@pytest.mark.skipif(not shutil.which("cmake"), reason="needs cmake")
@pytest.mark.parametrize(
    ("asked", "components", "message"),
    [
        ("0.2", "", "0.1.0"),
        ("1.0", "", "0.1.0"),
        ("0.1.1", "", "0.1.0"),
        ("0.1", " COMPONENTS attention", "attention"),
    ],
)
def test_find_package_refuses(tmp_path, unpacked, asked, components, message):
    done = configure(tmp_path, unpacked, asked, components)
    assert done.returncode != 0
    assert message in done.stderr


@pytest.mark.skipif(not shutil.which("pkg-config"), reason="needs pkg-config")
def test_pkg_config(tmp_path, unpacked):
    moved = tmp_path / "moved"
    unpacked.rename(moved)
    environment = {"PATH": "/usr/bin:/bin", "PKG_CONFIG_PATH": str(moved / "lib/pkgconfig")}
    version = subprocess.run(
        ["pkg-config", "--modversion", "kiln"], env=environment, check=True, capture_output=True, text=True
    ).stdout.strip()
    assert version == VERSION
    flags = subprocess.run(
        ["pkg-config", "--cflags", "--libs", "kiln_toy"], env=environment, check=True, capture_output=True, text=True
    ).stdout.split()
    assert {"-lkiln", "-lkiln_toy"} <= set(flags)
    run(["gcc", "main.c", *flags, "-o", "consumer"], tmp_path)
    subprocess.run([tmp_path / "consumer"], check=True, env={"LD_LIBRARY_PATH": str(moved / "lib")})


@pytest.mark.parametrize(
    ("version", "numbers"),
    [("0.1.0b", (0, 1, 0)), ("1.2", (1, 2, 0)), ("10.20.30rc1", (10, 20, 30)), ("0.2b", (0, 2, 0))],
)
def test_version_numbers(version, numbers):
    assert package.version_numbers(version) == numbers
    header = package.version_header((ROOT / "include/kiln/version.h.in").read_text(), version)
    assert f'#define KILN_VERSION "{version}"' in header and "@" not in header
    for name, number in zip(("MAJOR", "MINOR", "PATCH"), numbers):
        assert f"#define KILN_VERSION_{name} {number}" in header


def test_a_template_with_an_unknown_name():
    with pytest.raises(NativeBuildError, match="@KILN_VERSIN@"):
        package.version_header("@KILN_VERSIN@", VERSION)


def test_every_placeholder_is_filled():
    for families in ((), ("flash",), ("flash", "norm")):
        for adapters in ({}, {"torch": "libkiln_torch.so", "other": "libother.so.1"}):
            for text in package.package_files(ROOT / "cmake", VERSION, families, adapters).values():
                assert "@" not in text
