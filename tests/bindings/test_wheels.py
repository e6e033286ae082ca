"""The wheels of a release: installed from local files, judged by the tools that judge wheels, run without a GPU."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

import bench_results
import test_types
from builds import NAME, ROOT, SELECTION, Built, environment
from kiln_build.native import pythons
from kiln_build.release import wheel
from kiln_recipe.errors import EnvironmentProblem
from kiln_recipe.selection import parse_selection, spell_selection

pytestmark = pytest.mark.slow(80)
VERSION = wheel.python_version(NAME)
RUNTIME = f"kiln_runtime-{VERSION}"
BIN = Path(sys.executable).parent


def make(release: Built, output: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(release.python), "-m", "kiln_build", "wheel", str(release.tarball), str(output), *words],
        env=environment(PYTHONPATH=str(ROOT / "v3python")), capture_output=True, text=True,
    )  # fmt: skip


def abis() -> dict[tuple[int, int], str]:
    """By ABI the command of a Python of this host that has headers for it."""
    found = {}
    for command in pythons.python_commands(os.environ):
        try:
            found.setdefault(wheel.abi_of(pythons.headers_of(command)), command)
        except EnvironmentProblem:
            continue
    return found


@pytest.fixture(scope="module")
def commands() -> dict[tuple[int, int], str]:
    if not (found := abis()):
        pytest.skip("needs headers of a Python")
    return found


@pytest.fixture(scope="module")
def wheels(release, commands, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("wheels")
    done = make(release, folder)
    assert done.returncode == 0, done.stderr
    return folder


def runtimes(wheels: Path) -> list[Path]:
    return sorted(wheels.glob(f"{RUNTIME}-*.whl"))


@pytest.fixture(scope="module", params=wheel.ABIS, ids=["3.10", "3.11", "3.12 and later"])
def installed(request, wheels, commands, tmp_path_factory) -> Path:
    """The Python of a fresh environment with the runtime and one target's images, from local files alone."""
    if request.param not in commands:
        pytest.skip(f"needs headers of a Python {'.'.join(map(str, request.param))}")
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([commands[request.param], "-m", "venv", folder], check=True)
    pip = [folder / "bin/pip", "install", "-q", "--disable-pip-version-check", "--no-index", "--find-links", wheels]
    done = subprocess.run([*pip, "kiln-images-sm-90"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder / "bin/python"


def run(python: Path, *words: object, **more: str) -> str:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "KILN"))}
    done = subprocess.run([str(python), *map(str, words)], env=kept | more, capture_output=True, text=True, cwd="/")
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_which_are_made(release, wheels, commands):
    tags = {(3, 10): "cp310-cp310", (3, 11): "cp311-cp311", (3, 12): "cp312-abi3"}
    names = {f"{RUNTIME}-{tags[abi]}-manylinux_2_28_x86_64.whl" for abi in commands}
    names |= {f"kiln_images_{target}-{VERSION}-py3-none-any.whl" for target in ("sm_90", "gfx942")}
    names |= {f"kiln_{package}-{VERSION}-py3-none-any.whl" for package in ("build", "cli", "recipe")}
    assert {path.name for path in wheels.iterdir()} == names


def test_the_same_bytes_every_time(release, wheels, tmp_path):
    """Another folder, nothing compiled yet."""
    for path in (release.workspace / "build/lib").glob("_core.*"):
        path.unlink()
    done = make(release, tmp_path / "a b", "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert sorted(report["wheels"]) == sorted(str(tmp_path / "a b" / path.name) for path in wheels.iterdir())
    for path in wheels.iterdir():
        again = tmp_path / "a b" / path.name
        assert hashlib.sha256(again.read_bytes()).digest() == hashlib.sha256(path.read_bytes()).digest(), path.name


def test_one_python_and_one_target(release, commands, tmp_path):
    abi, command = next(iter(commands.items()))
    done = make(release, tmp_path, "--python", command, "--target", "gfx942", "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    *pythons, family = report["left_out"]
    assert len(report["wheels"]) == 5 and len(pythons) == len(wheel.ABIS) - 1
    assert family.startswith("no library for the family norm: ")
    assert all(f"kiln: {reason}\n" in done.stderr for reason in report["left_out"])
    selection = spell_selection(parse_selection(SELECTION["KILN_SELECT"]))
    assert f"kiln: the wheels have attention for gfx942 (profile core, {selection})\n" in done.stderr
    assert (report["targets"], report["profile"], report["selection"]) == (["gfx942"], "core", selection)
    assert not any(".".join(map(str, abi)) in reason.partition(":")[0] for reason in report["left_out"])


def test_what_is_in_them(release, wheels):
    for path in runtimes(wheels):
        with zipfile.ZipFile(path) as archive:
            assert archive.testzip() is None
            names = set(archive.namelist())
            for name in ("libkiln.so.0", "libkiln_flash.so", "libkiln_torch.so"):
                assert archive.read(f"kiln/lib/{name}") == (release.prefix / "lib" / name).read_bytes()
            assert {f"kiln/{name}" for name in wheel.package_files(ROOT)} <= names
            assert sum(name.startswith("kiln/_core.") and name.endswith(".so") for name in names) == 1
            texts = {f"{RUNTIME}.dist-info/licenses/{name}" for name in ("LICENSE", "NOTICES.txt")}
            assert texts <= names and not any("aotriton" in name for name in names)
            assert f"{RUNTIME}.dist-info/sboms/kiln-runtime.cdx.json" in names
            metadata = archive.read(f"{RUNTIME}.dist-info/METADATA").decode()
        for line in ("Name: kiln-runtime", f"Version: {VERSION}", "Requires-Python: >=3.10", "Provides-Extra: jit",
                     'Requires-Dist: torch>=2.10; extra == "torch"', "Provides-Extra: sm-90",
                     f'Requires-Dist: kiln-images-gfx942=={VERSION}; extra == "gfx942"'):  # fmt: skip
            assert line in metadata.splitlines()
    with zipfile.ZipFile(wheels / f"kiln_images_sm_90-{VERSION}-py3-none-any.whl") as archive:
        pack = "kiln/lib/kiln.images/nvidia-sm_90.pack"
        assert archive.read(pack) == (release.prefix / pack.removeprefix("kiln/")).read_bytes()


# ---- the tools that judge wheels -------------------------------------------------------------------------------------


def tool(name: str, *words: object) -> subprocess.CompletedProcess[str]:
    if not (BIN / name).exists():
        pytest.skip(f"needs {name}")
    path = os.pathsep.join([str(BIN), os.environ["PATH"]])
    return subprocess.run(
        [str(BIN / name), *map(str, words)], env={**os.environ, "PATH": path, "COLUMNS": "300"}, capture_output=True,
        text=True,
    )  # fmt: skip


def shown(path: Path) -> dict:
    """What auditwheel finds out of a wheel."""
    done = tool("auditwheel", "show", "--json", path)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def is_allowed(tag: str) -> bool:
    """Whether what a tag promises holds on glibc 2.28."""
    found = re.fullmatch(r"manylinux_2_([0-9]+)_x86_64", tag)
    return found is not None and int(found[1]) <= 28


def test_auditwheel(wheels, tmp_path):
    """manylinux_2_28; the part for PyTorch needs libtorch_cpu.so besides, and nothing else is missing."""
    for path in runtimes(wheels):
        facts = shown(path)
        assert facts["external_libs"] == {"libtorch_cpu.so": None} and is_allowed(facts["sym_tag"])
        assert not facts["unsupported_isa"]
        repaired = tool("auditwheel", "repair", "--exclude", "libtorch_cpu.so", "--plat", "manylinux_2_28_x86_64",
                        "--only-plat", "-w", tmp_path, path)  # fmt: skip
        assert repaired.returncode == 0, repaired.stderr
        with zipfile.ZipFile(path) as before, zipfile.ZipFile(tmp_path / path.name) as after:
            for name in before.namelist():
                if ".so" in name:
                    assert after.read(name) == before.read(name), "nothing had to be changed or taken in"


def test_abi3audit(wheels):
    stable = [path for path in runtimes(wheels) if "abi3" in path.name]
    if not stable:
        pytest.skip("needs headers of a Python 3.12 or later")
    done = tool("abi3audit", "--strict", "--report", stable[0])
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    (facts,) = report["specs"].values()
    for each in facts["wheel"]:
        assert each["result"]["is_abi3"] and not each["result"]["non_abi3_symbols"]
        assert not each["result"]["future_abi3_objects"]


# ---- installed -------------------------------------------------------------------------------------------------------


def test_bench_is_there_and_wants_pytorch(installed, tmp_path):
    """Its words, the release that is installed, and results of others; measuring needs more than a wheel has."""
    kiln = installed.parent / "kiln"
    assert "usage: kiln bench" in run(kiln, "bench", "--help") == run(installed, "-m", "kiln", "bench", "--help")
    assert "Forward, TFLOP/s" in run(kiln, "bench", "--from", bench_results.written(tmp_path))
    done = subprocess.run([kiln, "bench"], capture_output=True, text=True, cwd="/")
    assert (done.returncode, done.stdout) == (7, "")
    assert done.stderr.startswith("kiln: PyTorch is not installed in this Python, ") and done.stderr.count("\n") == 1


def test_importing_needs_no_gpu(installed):
    said = run(installed, "-m", "kiln", "info")
    assert f"Kiln {NAME} in " in said and "targets:  sm_90 (" in said
    info = json.loads(run(installed, "-m", "kiln", "info", "--json"))
    assert info["problem"] is None and info["families"] == ["flash"]
    assert (info["profile"], info["selection"]) == ("core", "dtype=bf16;extras=none;head_dim=64;padded=false")
    assert run(installed, "-m", "pip", "--disable-pip-version-check", "check").startswith("No broken")
    assert "NAME\n    kiln - Kiln: attention kernels" in run(installed, "-c", "import kiln; help(kiln)", PAGER="cat")


def test_a_call_on_real_images(installed):
    """On the recording driver, under the name that the runtime looks for: it reads images as a driver does."""
    import nativebuild

    driver = nativebuild.driver_folder(nativebuild.fake_alone(), "nvidia")
    code = """
import ctypes, kiln
from fakes import StandardArray
driver = ctypes.CDLL("libcuda.so.1")
q, k = StandardArray((2, 8, 300, 64)), StandardArray((2, 2, 500, 64))
out, lse = kiln.attn_fwd(q, k, k, causal=True, return_lse=True, stream=0)
grads = kiln.attn_bwd(out, q, k, k, out, lse, causal=True, stream=0)
print(driver.fake_launches(), *kiln.explain(kiln.attn_fwd, q, k, k, causal=True, stream=0))
"""
    path = os.pathsep.join(str(ROOT / "tests" / folder) for folder in ("python", "runtime"))
    said = run(installed, "-c", code, PYTHONPATH=path, LD_LIBRARY_PATH=str(driver))
    launches, _, explained = said.partition(" ")
    assert int(launches) >= 3 and explained.startswith("attn_fwd.general (dtype=bf16 head_dim=64")


def test_type_checkers_know_the_functions(installed, tmp_path):
    pytest.importorskip("mypy")
    assert test_types.check(tmp_path, test_types.SAMPLE, installed) == []
    test_types.check_wrong_calls(tmp_path, installed)


def test_images_without_a_runtime_of_their_version(wheels, tmp_path):
    old = tmp_path / f"{RUNTIME.replace(VERSION, '0.0.9')}-py3-none-any.whl"
    metadata = "Metadata-Version: 2.1\nName: kiln-runtime\nVersion: 0.0.9\n"
    from kiln_build.base.wheel_file import Wheel, write_wheel

    write_wheel(Wheel("kiln-runtime", "0.0.9", "py3-none-any", "test", metadata, {}), tmp_path)
    assert old.exists()
    venv.create(tmp_path / "v", with_pip=True)
    shutil.copy(wheels / f"kiln_images_sm_90-{VERSION}-py3-none-any.whl", tmp_path)
    done = subprocess.run(
        [tmp_path / "v/bin/pip", "install", "--disable-pip-version-check", "--no-index", "--find-links", tmp_path,
         "kiln-images-sm-90"], capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode != 0 and f"kiln-runtime[sm-90]==={VERSION}" in done.stderr
