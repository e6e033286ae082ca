"""A C++ program that uses each entry as PyTorch's ROCm backend does: compiled, linked, run, and what it launched."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
from pathlib import Path

import ffi
import pytest
import recorded
from aotriton_calls import DENSE, PACKED, STEP, at, gradients, launches
from aotriton_interface import (
    BF16,
    BOTTOM_RIGHT,
    COMPACT,
    FP32,
    INT64,
    SUCCESS,
    UINT64,
    VERSIONS,
    WINDOWED,
    functions_of,
    imports_of,
)
from fake_release import hip_headers
from nativebuild import run

HERE = Path(__file__).resolve().parent
FLAGS = ["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-D__HIP_PLATFORM_AMD__"]
SEEDS = {"seed": (STEP * 40, INT64), "offset1": (STEP * 41, INT64)}
CAPTURED = {
    "p": 0.25, "seed": (STEP * 44, UINT64), "offset1": (STEP * 45, UINT64), "offset2": 5,
    "seed_out": (STEP * 40, UINT64), "offset_out": (STEP * 41, UINT64),
}  # fmt: skip
USED = {"p": 0.25} | SEEDS
MASK = at(46, BF16, (2, 4, 100, 120))
BIAS, DBIAS = at(9, BF16, (2, 4, 100, 120)), at(10, BF16, (2, 4, 100, 120))
LAST = {"causal_type": WINDOWED, "left": BOTTOM_RIGHT, "right": BOTTOM_RIGHT}
WINDOW = {"causal_type": WINDOWED, "left": 8, "right": 120}
RIGHT = {"causal_type": WINDOWED, "left": 100, "right": 3, "varlen_type": COMPACT}
SCALE = {"scale": 0.125}


def delta(call: dict) -> dict:
    return {"delta": at(30, FP32, call["lse"][2])}


def v3(call: dict) -> dict:
    return call | gradients(call) | SCALE


CALLS = {
    "check_gpu": ("v2.check_gpu", {}),
    "forward": ("v2.attn_fwd", DENSE | SCALE),
    "forward, causal": ("v2.attn_fwd", DENSE | SCALE | {"is_causal": True}),
    "backward, causal": ("v2.attn_bwd", DENSE | SCALE | gradients(DENSE) | delta(DENSE) | {"is_causal": True}),
    "forward, captured": ("v2.attn_fwd", DENSE | SCALE | CAPTURED | {"encoded": MASK}),
    "backward, captured": ("v2.attn_bwd_fused", DENSE | SCALE | gradients(DENSE) | USED),
    "forward, bias": ("v2.attn_fwd", DENSE | SCALE | {"b": BIAS}),
    "backward, bias": ("v2.attn_bwd", DENSE | SCALE | gradients(DENSE) | delta(DENSE) | {"b": BIAS, "db": DBIAS}),
    "forward, packed": ("v2.attn_fwd_compact_varlen", PACKED | SCALE | {"is_causal": True}),
    "backward, packed": (
        "v2.attn_bwd_compact_varlen", PACKED | SCALE | gradients(PACKED) | delta(PACKED) | {"is_causal": True},
    ),
    "forward of 0.8": ("v2.attn_fwd of 0.8", DENSE | SCALE),
    "forward of 0.8, packed": ("v2.attn_fwd_compact_varlen of 0.8", PACKED | SCALE),
    "v3 forward": ("v3.attn_fwd", DENSE | SCALE),
    "v3 backward": ("v3.attn_bwd", v3(DENSE)),
    "v3 forward, causal": ("v3.attn_fwd", DENSE | SCALE | LAST),
    "v3 backward, causal": ("v3.aiter_bwd", v3(DENSE) | LAST),
    "v3 forward, window": ("v3.attn_fwd", DENSE | SCALE | WINDOW),
    "v3 backward, window": ("v3.attn_bwd", v3(DENSE) | WINDOW),
    "v3 forward, packed": ("v3.attn_fwd", PACKED | SCALE | CAPTURED | RIGHT),
    "v3 backward, packed": ("v3.attn_bwd", v3(PACKED) | USED | RIGHT),
    "mask": (
        "v2.debug_simulate_encoded_softmax", {"r": MASK, "p": 0.25, "offset2": 5} | {k: CAPTURED[k] for k in SEEDS},
    ),
}  # fmt: skip
VENDORS = {"amd": ffi.AMD, "nvidia": ffi.NVIDIA}


def calls_of(version: str) -> list[str]:
    """Those of CALLS that a version's program makes."""
    there = functions_of(version)
    return [name for name, (entry, _) in CALLS.items() if entry in there or entry == "v3.aiter_bwd"]


def listed(names: str | list[str]) -> list[str]:
    return calls_of(names) if isinstance(names, str) else names


def execute(program: Path, release, vendor: str, tmp_path: Path, names: str | list[str]) -> recorded.Record:
    """What it left in the record; it must succeed. `names`: of its calls, or the version of which it makes all."""
    record = tmp_path / "record.jsonl"
    folder = release.folder / "driver" / vendor
    environment = {**os.environ, "LD_LIBRARY_PATH": str(folder), "FAKE_DRIVER_RECORD": str(record)}
    said = run([program, next(folder.iterdir()), VENDORS[vendor]], env=environment)
    assert [line.split("\t") for line in said.splitlines()] == [[name, "0"] for name in listed(names)]
    return recorded.read(record)


def plain(steps: list[tuple]) -> list[tuple]:
    """Without what differs between two processes: streams, and where a workspace lies."""
    taken = (0x600000000000).to_bytes(8, "little")[4:]
    return [
        (*step[:5], step[6], tuple(a for a in step[7] if a[4:] != taken)) if isinstance(step, tuple) else step.bytes
        for step in steps
    ]


def check(release, worker, record: recorded.Record, names: str | list[str]) -> None:
    """Each call against the same one by way of ctypes, of the version that has all functions."""
    stream = worker.stream()
    names = [*listed(names), "end"]
    for name, following in itertools.pairwise(names):
        part = record.between(name, following)
        entry, fields = CALLS[name]
        error, sentence = worker.call(entry, stream, **fields)
        assert error == SUCCESS, sentence
        assert plain(launches(part)) == plain(launches(worker.events())), name
        kernels = 0 if name == "check_gpu" else 1
        assert len(part.launches) >= kernels
        assert len({launch.stream for launch in part.launches}) == kernels
        assert not [leak for leak in part.leaks() if "module" not in leak]


@pytest.fixture(scope="module", params=[
    "g++ 17 0 0.11", "g++ 20 1 0.11", "clang++ 17 1 0.11", "clang++ 20 0 0.11",
    "g++ 20 1 0.12", "clang++ 17 1 0.13", "g++ 17 0 0.14", "clang++ 20 1 0.14",
])  # fmt: skip
def program(request, release, tmp_path_factory) -> tuple[Path, str]:
    """By hand, and a version: a compiler, a standard of C++, and which std::string libstdc++ has."""
    compiler, standard, abi, version = request.param.split()
    if not shutil.which(compiler):
        pytest.skip(f"there is no {compiler}")
    program, prefix = tmp_path_factory.mktemp("program") / "program", release.lib / "aotriton" / version
    run([compiler, f"-std=c++{standard}", "-O1", *FLAGS, f"-D_GLIBCXX_USE_CXX11_ABI={abi}",
         "-I", prefix / "include", "-isystem", hip_headers(), HERE / "program.cc",
         prefix / "lib/libaotriton_v2.so", f"-Wl,-rpath,{prefix}/lib", "-ldl", "-o", program])  # fmt: skip
    return program, version


def test_compiled_by_hand(release, worker, program, tmp_path):
    path, version = program
    wanted = {name for name in run(["nm", "-uP", path]).split() if name.startswith("_ZN8aotriton")}
    assert wanted == imports_of(version), "a program needs each function, and by the names that are exported"
    vendor = "amd" if worker.vendor == ffi.AMD else "nvidia"
    check(release, worker, execute(path, release, vendor, tmp_path, version), version)


@pytest.fixture(scope="module", params=[*VERSIONS, "default"])
def installed(request, release, tmp_path_factory) -> tuple[Path, str]:
    """What CMake makes of a prefix, as PyTorch's build takes it."""
    if not shutil.which("cmake"):
        pytest.skip("there is no cmake")
    folder = tmp_path_factory.mktemp("cmake")
    prefix = release.folder if request.param == "default" else release.lib / "aotriton" / request.param
    environment = {**os.environ, "AOTRITON_INSTALLED_PREFIX": str(prefix)}
    run(["cmake", "-S", HERE, "-B", folder / "build", f"-DHIP_INCLUDE={hip_headers()}",
         f"-DCMAKE_INSTALL_PREFIX={folder / 'to'}"], env=environment)  # fmt: skip
    run(["cmake", "--build", folder / "build"], env=environment)
    run(["cmake", "--install", folder / "build"], env=environment)
    return folder / "to", VERSIONS[-1] if request.param == "default" else request.param


@pytest.mark.parametrize("vendor", VENDORS)
def test_installed_by_cmake(release, installed, vendor, tmp_path):
    to, version = installed
    assert (to / "torch/include/aotriton/flash.h").is_file()
    record = execute(to / "program", release, vendor, tmp_path, version)
    assert len(record.launches) > len(calls_of(version))


def test_packs_in_a_folder_of_aotritons_name(release, installed, tmp_path):
    """PyTorch's wheels take libraries along, and the folder aotriton.images."""
    to, version = installed
    shutil.copytree(to, tmp_path / "to", symlinks=True)
    lib = tmp_path / "to/torch/lib"
    if (lib / "kiln.images").is_dir():
        shutil.rmtree(lib / "kiln.images")
    execute(tmp_path / "to/program", release, "amd", tmp_path, version)
    shutil.rmtree(lib / "aotriton.images")
    folder = release.folder / "driver/amd"
    done = subprocess.run(
        [tmp_path / "to/program", next(folder.iterdir()), "2"], env={**os.environ, "LD_LIBRARY_PATH": str(folder)},
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 1 and "check_gpu\t301" in done.stdout
    lines = done.stderr.splitlines()
    assert {line.partition(":")[0] for line in lines} == {"kiln"} and len(lines) == len(set(lines))
    assert all("filled with NaN" in line and "there is no pack amd-gfx942.pack" in line for line in lines)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("compiler", ["g++", "clang++"])
def test_each_header_stands_alone(release, tmp_path, compiler, version):
    if not shutil.which(compiler):
        pytest.skip(f"there is no {compiler}")
    include = release.lib / "aotriton" / version / "include"
    for header in sorted(path.relative_to(include) for path in include.rglob("*.h")):
        (tmp_path / "one.cc").write_text(f"#include <{header}>\n#include <{header}>\n")
        run([compiler, "-std=c++17", *FLAGS, "-Wconversion", "-Wshadow", "-fsyntax-only", "-I", include,
             "-isystem", hip_headers(), tmp_path / "one.cc"])  # fmt: skip
