"""What others link: the unpacked release with CMake, pkg-config, both C++ ABIs, gcc and clang; and what it exports."""

from __future__ import annotations

import ctypes
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import hardening
import pytest

from builds import NAME, loaded

PROGRAM = r"""
#include <kiln/flash.h>
#include <kiln/kiln.hpp>
#include <stdio.h>
#include <string>
int main() {
    kiln_t kiln = NULL;
    if (kiln_open(NULL, &kiln) != KILN_OK) return 1;
    if (kiln_register_family(kiln, kiln_flash_family()) != KILN_OK) return 2;
    int count = 0;
    kiln_variant_fn visit = [](const kiln_variant* variant, void* user) -> int32_t {
        *(int*)user += variant->unavailable == NULL;
        return 0;
    };
    if (kiln_variants(kiln, "flash.attn_fwd", NULL, visit, &count) != KILN_OK) return puts(kiln_error()), 3;
    printf("%s %d\n", std::string(kiln_version()).c_str(), count);
    return kiln_close(kiln);
}
"""


def run(*words: object, **options: object) -> str:
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def prefix(release, tmp_path) -> Path:
    """The release moved elsewhere: nothing in it may know where it was built."""
    return Path(shutil.copytree(release.prefix, tmp_path / "some where" / "kiln", symlinks=True))


@pytest.fixture
def program(tmp_path) -> Path:
    (tmp_path / "program.cc").write_text(PROGRAM)
    return tmp_path / "program.cc"


def expect(text: str) -> None:
    version, count = text.split()
    assert version == NAME and int(count) >= 8


@pytest.mark.parametrize("compiler", ["g++", "clang++"])
@pytest.mark.parametrize("abi", [0, 1])
def test_both_abis(prefix, program, tmp_path, compiler, abi):
    if shutil.which(compiler) is None:
        pytest.skip(f"{compiler} is not installed")
    flags = ["-std=c++17", "-Wall", "-Wextra", "-Werror", f"-D_GLIBCXX_USE_CXX11_ABI={abi}", f"-I{prefix}/include"]
    run(compiler, *flags,
        program, f"-L{prefix}/lib", "-lkiln_flash", "-lkiln", f"-Wl,-rpath,{prefix}/lib", "-o", tmp_path / "p",
    )  # fmt: skip
    expect(run(tmp_path / "p"))


@pytest.mark.skipif(shutil.which("cmake") is None, reason="cmake is not installed")
def test_find_package_refuses_another_version(prefix, tmp_path):
    """What it is found for, test_examples.py builds."""
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.18)\nproject(consumer NONE)\nfind_package(kiln 7.0 REQUIRED)\n"
    )
    done = subprocess.run(["cmake", "-S", tmp_path, "-B", tmp_path / "b", f"-DCMAKE_PREFIX_PATH={prefix}"],
                          capture_output=True, text=True)  # fmt: skip
    assert done.returncode != 0 and "kiln" in done.stderr and "7.0" in done.stderr


@pytest.mark.skipif(shutil.which("pkg-config") is None, reason="pkg-config is not installed")
def test_pkg_config_in_a_folder_with_a_space(prefix):
    """What it is built with, test_examples.py builds; here the prefix has a space in its path."""
    environment = os.environ | {"PKG_CONFIG_PATH": str(prefix / "lib/pkgconfig")}
    flags = shlex.split(run("pkg-config", "--cflags", "--libs", "kiln", env=environment))
    assert (Path(flags[0].removeprefix("-I")) / "kiln/kiln.h").is_file()
    assert (Path(flags[1].removeprefix("-L")) / "libkiln.so").exists() and "-lkiln" in flags
    assert run("pkg-config", "--modversion", "kiln", env=environment).strip().startswith("0.1.0")


@pytest.mark.parametrize("name", ["libkiln.so.0", "libkiln_flash.so", "libkiln_norm.so"])
def test_what_a_library_needs_and_exports(release, name):
    path = release.prefix / "lib" / name
    dynamic = run("readelf", "-dW", path)
    needed = set(re.findall(r"NEEDED.*\[(.*)\]", dynamic))
    allowed = {"libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "ld-linux-x86-64.so.2"}
    if name == "libkiln_flash.so":  # its typed entries call the core; a family of tables alone needs nothing
        allowed |= {"libkiln.so.0"}
        assert "libkiln.so.0" in needed and re.search(r"RUNPATH.*\[\$ORIGIN\]", dynamic)
    assert needed <= allowed
    assert "INIT_ARRAY" not in dynamic and "TEXTREL" not in dynamic
    versions = {tuple(map(int, v.split("."))) for v in re.findall(r"GLIBC_([0-9.]+)", run("readelf", "-VW", path))}
    assert max(versions, default=(0,)) <= (2, 28)
    exported = [line.split()[-1] for line in run("nm", "-D", "--defined-only", path).splitlines()]
    assert exported and all(re.fullmatch(r"kiln_\w+@@KILN_0|KILN_0", symbol) for symbol in exported)
    hardening.check(path)


@pytest.mark.parametrize("name", ["libkiln_torch.so", "libaotriton_v2.so"])
def test_what_offers_another_interface_is_hardened_too(release, name):
    hardening.check(release.prefix / "lib" / name)


def test_the_release_is_a_prefix_of_aotriton_itself(release):
    newest = max((release.prefix / "lib/aotriton").iterdir(), key=lambda path: int(path.name.rpartition(".")[2]))
    own = sorted((newest / "lib/cmake/aotriton").iterdir())
    assert own, newest
    for path in own:
        assert (release.prefix / path.relative_to(newest)).read_bytes() == path.read_bytes()


def test_close_then_unload(release):
    """dlclose() after kiln_close() leaves nothing of the libraries in the process."""
    code = f"""
import ctypes, _ctypes
flash = ctypes.CDLL({str(release.prefix / "lib/libkiln_flash.so")!r})
core = ctypes.CDLL({str(release.prefix / "lib/libkiln.so.0")!r})
kiln = ctypes.c_void_p()
assert core.kiln_open(None, ctypes.byref(kiln)) == 0
flash.kiln_flash_family.restype = ctypes.c_void_p
assert core.kiln_register_family(kiln, ctypes.c_void_p(flash.kiln_flash_family())) == 0
visit = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p)(lambda v, u: 0)
assert core.kiln_variants(kiln, None, None, visit, None) == 0
assert "libkiln" in open("/proc/self/maps").read()
assert core.kiln_close(kiln) == 0
_ctypes.dlclose(flash._handle)
_ctypes.dlclose(core._handle)
assert "libkiln" not in open("/proc/self/maps").read(), "still mapped"
"""
    run(release.python, "-c", code)


def test_the_headers_are_plain_c(prefix, tmp_path):
    for header in ("kiln.h", "family.h", "flash.h"):
        (tmp_path / "h.c").write_text(f"#include <kiln/{header}>\nint main(void) {{ return KILN_OK; }}\n")
        flags = ["-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror", f"-I{prefix}/include"]
        run("cc", *flags, "-c", tmp_path / "h.c",
            "-o", tmp_path / "h.o")  # fmt: skip


def test_a_pack_of_another_release_is_refused(release, builder, prefix, tmp_path):
    """Another version's packs beside the library: the digests differ, and the sentence names the file."""
    import hashlib

    pack = prefix / "lib/kiln.images/nvidia-sm_90.pack"
    data = bytearray(pack.read_bytes())
    size = int.from_bytes(data[16:24], "little")
    at = data.index(NAME.encode() + b"\0", 64)
    data[at : at + 6] = b"0.2.0b"
    data[24:56] = hashlib.sha256(data[64 : 64 + size]).digest()
    pack.write_bytes(data)
    with loaded(prefix, "flash") as (core, flash):
        core.kiln_error.restype = ctypes.c_char_p
        flash.kiln_flash_family.restype = ctypes.c_void_p
        kiln = ctypes.c_void_p()
        assert core.kiln_open(None, ctypes.byref(kiln)) == 0
        assert core.kiln_register_family(kiln, ctypes.c_void_p(flash.kiln_flash_family())) == 0
        visit = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p)(lambda v, u: 0)
        status = core.kiln_variants(kiln, None, b"sm_90", visit, None)
        sentence = core.kiln_error().decode()
        core.kiln_close(kiln)
    assert status == 6 and "nvidia-sm_90.pack" in sentence and "0.2.0b" in sentence
