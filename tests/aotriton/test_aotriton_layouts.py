"""layouts.txt: each interface's structures and names; and that AOTriton's own headers say the same.

KILN_TEST_AOTRITON names a folder with AOTriton's trees, unpacked and configured: 0.11.2b/include, 0.12.1b/include and
so on. Nothing of them is kept here.
"""

from __future__ import annotations

import ctypes
import difflib
import os
import shutil
from pathlib import Path

import ffi
import pytest
from aotriton_interface import VERSIONS, Structures, imports_of, library_of, symbols_of
from fake_release import hip_headers
from nativebuild import run
from test_aotriton_program import FLAGS, HERE, calls_of, check, execute

TABLE = HERE / "layouts.txt"
HEAD = """\
# What AOTriton's interfaces are to a program that was compiled with their headers: each library's name, its structures,
# their constants, and the names that programs import. test_aotriton_layouts.py makes this table of Kiln's headers and
# libraries, and holds it against AOTriton's own headers: each section says which.
"""
# By interface, which of AOTriton's commits was held against it last.
AGAINST = {
    "0.11": "0.11.2b, dd1b68b604b5258ee7a9f7b66ad95e7a82c18065",
    "0.12": "0.12.1b, 8fdb4a4353f95b88c9542f5e5637efc1e1e0e530",
    "0.13": "0.13b, 6e00ef3e335b45dfb49065259533b59c68995bfe",
    "0.14": "main, 30ae96716b3e7a1bf0d7892ce3b8288244f8ebec, with the parameters of a later commit (kVersion 4 and 7)",
}


def printed(compiler: str, include: Path, prefix: Path, folder: Path) -> str:
    """What layouts.cc prints with the headers in a folder; what these leave to the library is taken from a prefix."""
    program = folder / "layouts"
    run([compiler, "-std=c++20", "-w", "-D__HIP_PLATFORM_AMD__", "-I", include, "-isystem", hip_headers(),
         HERE / "layouts.cc", prefix / "lib/libaotriton_v2.so", f"-Wl,-rpath,{prefix}/lib", "-o", program])  # fmt: skip
    return run([program])


def exports(library: Path) -> list[str]:
    """The names of AOTriton's that a library exports."""
    names = {line.split()[0] for line in run(["nm", "-DP", "--defined-only", library]).splitlines()}
    return sorted(names - {"kiln_aotriton_error"})


def section(version: str) -> str:
    """A version's part of the table, without its headline."""
    return TABLE.read_text().partition(f"\n[{version}]\n")[2].partition("\n[")[0]


@pytest.mark.parametrize("compiler", ["g++", "clang++"])
def test_the_table_is_what_the_headers_and_libraries_are(release, tmp_path, compiler):
    if not shutil.which(compiler):
        pytest.skip(f"there is no {compiler}")
    text = HEAD
    for version in VERSIONS:
        prefix, library = release.lib / "aotriton" / version, library_of(release.lib, version)
        text += f"\n[{version}]\nagainst {AGAINST.get(version, 'none yet')}\nlibrary {library.name}\n"
        text += printed(compiler, prefix / "include", prefix, tmp_path)
        text += "".join(f"exports {name}\n" for name in exports(library))
    made = tmp_path / "layouts.txt"
    made.write_text(text)
    kept = TABLE.read_text() if TABLE.exists() else ""
    changes = "\n".join(difflib.unified_diff(kept.splitlines(), text.splitlines(), lineterm="", n=1))
    assert not changes, f"if programs that exist are to see this change: cp {made} {TABLE}\n{changes}"


@pytest.mark.parametrize("version", VERSIONS)
def test_the_tests_call_with_these_structures(version):
    lines = section(version).splitlines()
    structures = Structures(version)
    for name, kind in (
        ("attn_fwd_params", structures.fwd), ("attn_bwd_params", structures.bwd), ("attn_options", structures.options),
    ):  # fmt: skip
        said = [line for line in lines if line.startswith(f"  {name}.")]
        fields = [(field, getattr(kind, field)) for field, _ in kind._fields_]
        if version == "0.14":  # there the byte is padding; the tests set it for older parameters alone
            fields = [(field, at) for field, at in fields if field != "varlen_type"]
        assert said == [f"  {name}.{field} at {at.offset}, {at.size} bytes" for field, at in fields]
        assert any(line.startswith(f"struct {name}: {ctypes.sizeof(kind)} bytes,") for line in lines)
    assert symbols_of(version) <= {line.removeprefix("exports ") for line in lines}


def own_headers(version: str) -> Path:
    """AOTriton's own include/ of a version. HIP's compiler is a clang++, and g++ does not read all of them."""
    given = os.environ.get("KILN_TEST_AOTRITON")
    if not given:
        pytest.skip("KILN_TEST_AOTRITON names no folder with AOTriton's headers")
    if not shutil.which("clang++"):
        pytest.skip("there is no clang++")
    found = [*Path(given).glob(f"{version}/include"), *Path(given).glob(f"{version}[.b]*/include")]
    assert len(found) == 1, f"KILN_TEST_AOTRITON={given}: one {version}*/include is wanted, and {len(found)} are there"
    return found[0]


@pytest.mark.heavy  # it needs what this tree does not have; layouts.txt keeps what it found
@pytest.mark.parametrize("version", VERSIONS)
def test_aotritons_own_headers_say_the_same(release, tmp_path, version):
    prefix = release.lib / "aotriton" / version
    said = printed("clang++", own_headers(version), prefix, tmp_path).splitlines()
    kept = section(version).splitlines()
    assert said == [line for line in kept if line.partition(" ")[0] not in ("against", "library", "exports")]


@pytest.mark.heavy
@pytest.mark.parametrize("version", VERSIONS)
def test_a_program_of_aotritons_own_headers_runs_unchanged(release, worker, tmp_path, version):
    prefix, program = release.lib / "aotriton" / version, tmp_path / "program"
    run(["clang++", "-std=c++20", "-O1", "-DAOTRITONS_OWN", *FLAGS[-1:], "-w", "-isystem", own_headers(version),
         "-isystem", hip_headers(), HERE / "program.cc", prefix / "lib/libaotriton_v2.so",
         f"-Wl,-rpath,{prefix}/lib", "-ldl", "-o", program])  # fmt: skip
    wanted = {name for name in run(["nm", "-uP", program]).split() if name.startswith("_ZN8aotriton")}
    assert {name for name in wanted if "attn_fwd_paramsC" in name or "attn_bwd_paramsC" in name}, "they are functions"
    assert wanted <= set(exports(library_of(release.lib, version))) and wanted - imports_of(version)
    names = [name for name in calls_of(version) if "0.8" not in name]
    if version == "0.12":  # its v2/ is for HIP's compiler alone
        names = [name for name in names if name in calls_of("0.13")]
    record = execute(program, release, "amd" if worker.vendor == ffi.AMD else "nvidia", tmp_path, names)
    check(release, worker, record, names)
