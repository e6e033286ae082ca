"""The libraries that offer the flash family by another's interface: what they are made of, and how they are linked."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from kiln_build.native import adapters
from kiln_recipe.errors import ToolchainError
from small_release import ROOT


@pytest.fixture
def site(tmp_path):
    header = tmp_path / "triton/backends/amd/include/hip/hip_runtime_api.h"
    header.parent.mkdir(parents=True)
    header.touch()
    return tmp_path


def run(command) -> str:
    done = subprocess.run([*map(str, command)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_what_they_are_made_of(site):
    *aotriton, torch = adapters.find(ROOT, site, "triton 1")
    for adapter in (*aotriton, torch):
        assert (adapter.folders[-1] / "exports.map").is_file(), adapter.library
        assert all(list(folder.glob("*.cc")) for folder in adapter.folders)
        assert all(path.is_file() for path in adapter.headers.values() if isinstance(path, Path))
    soname, names = torch.foreign
    assert soname == "libtorch_cpu.so" and names and all(name.isidentifier() for name in names)


def test_interfaces_of_aotriton(site):
    """Each has headers of its own, a prefix, and a name that ends in its version; the newest is the release's own."""
    *aotriton, _ = adapters.find(ROOT, site, "triton 1")
    assert [adapter.library for adapter in aotriton if adapter.is_main] == [aotriton[-1].library]
    versions = adapters.aotriton_versions(ROOT)
    assert len(aotriton) == len(versions) >= 4
    for adapter, version in zip(aotriton, versions):
        minor = int(version.split(".")[1])
        assert adapter.prefix.folder == f"lib/aotriton/0.{minor}" and adapter.library == f"libaotriton_v2.so.{version}"
        assert {"aotriton/flash.h", "aotriton/config.h", "aotriton/util.h"} <= set(adapter.headers)
        assert ("aotriton/v2/flash.h" in adapter.headers) == (minor < 13)
        assert f"#define AOTRITON_VERSION_MINOR {minor}u" in adapter.headers["aotriton/config.h"]
        assert "@" not in adapter.headers["aotriton/config.h"] + "".join(adapter.prefix.texts.values())
        assert set(adapter.links.values()) == {adapter.library}


@pytest.mark.skipif(not shutil.which("cmake"), reason="needs cmake")
@pytest.mark.parametrize("at", ["", "lib/aotriton/0.11"])
def test_cmake_finds_a_prefix_and_the_release_itself(site, tmp_path, at):
    """By find_package(aotriton), wherever they lie: the release is a prefix with the newest interface."""
    *aotriton, _ = adapters.find(ROOT, site, "triton 1")
    unpacked = tmp_path / "a folder/kiln"
    for adapter in (*aotriton, aotriton[-1]):
        prefix = unpacked / (adapter.prefix.folder if adapter is not aotriton[-1] else "")
        (prefix / "include").mkdir(parents=True, exist_ok=True)
        for name, text in adapter.prefix.texts.items():
            (prefix / name).parent.mkdir(parents=True, exist_ok=True)
            (prefix / name).write_text(text)
        run(["cc", "-shared", "-x", "c", "/dev/null", f"-Wl,-soname,{adapter.library}", "-o",
             prefix / "lib" / adapter.library])  # fmt: skip
    (tmp_path / "main.c").write_text("int main(void) { return 0; }\n")
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.18)\nproject(p C)\nfind_package(aotriton REQUIRED CONFIG)\n"
        "add_executable(main main.c)\ntarget_link_libraries(main -Wl,--no-as-needed aotriton_v2)\n"
    )
    (tmp_path / "link").symlink_to(unpacked / at)
    run(["cmake", "-S", tmp_path, "-B", tmp_path / "build", f"-DCMAKE_PREFIX_PATH={tmp_path / 'link'}"])
    run(["cmake", "--build", tmp_path / "build"])
    run([tmp_path / "build/main"])
    needed = run(["readelf", "-d", tmp_path / "build/main"])
    assert (aotriton[0] if at else aotriton[-1]).library in needed


def test_a_triton_without_headers_of_hip(tmp_path):
    with pytest.raises(ToolchainError, match="has no HIP headers .*; they are in Triton's package"):
        adapters.find(ROOT, tmp_path, "triton 1")
