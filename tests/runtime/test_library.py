"""The built libraries and headers, as a consumer meets them."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import ffi
import hardening
import nativebuild
import packs
import pytest
from elftools.elf.elffile import ELFFile
from nativebuild import HERE, ROOT, run

from kiln_build.native import native

EXPORTS = [
    "kiln_close",
    "kiln_devices",
    "kiln_error",
    "kiln_explain",
    "kiln_find_operation",
    "kiln_launch",
    "kiln_open",
    "kiln_operation_arguments",
    "kiln_operations",
    "kiln_prepare",
    "kiln_read_struct",
    "kiln_register_family",
    "kiln_set_error",
    "kiln_status_name",
    "kiln_synchronize",
    "kiln_variants",
    "kiln_version",
    "kiln_workspace_size",
]
FLASH_EXPORTS = [
    "kiln_attn_bwd",
    "kiln_attn_bwd_explain",
    "kiln_attn_bwd_prepare",
    "kiln_attn_bwd_workspace",
    "kiln_attn_decode",
    "kiln_attn_decode_explain",
    "kiln_attn_decode_prepare",
    "kiln_attn_decode_workspace",
    "kiln_attn_fwd",
    "kiln_attn_fwd_explain",
    "kiln_attn_fwd_fp8",
    "kiln_attn_fwd_fp8_explain",
    "kiln_attn_fwd_fp8_prepare",
    "kiln_attn_fwd_fp8_workspace",
    "kiln_attn_fwd_prepare",
    "kiln_attn_fwd_workspace",
    "kiln_dropout_mask",
    "kiln_flash_family",
]
GLIBC = re.compile(r"(libc|libm|libdl|libpthread|librt|ld-linux-x86-64)\.so\.\d+")


def facts(path: Path) -> dict:
    """What matters of a shared library: its dynamic entries, sections, exports and the versions that it needs."""
    with path.open("rb") as file:
        elf = ELFFile(file)
        dynamic = elf.get_section_by_name(".dynamic")
        tags = [(tag.entry.d_tag, tag) for tag in dynamic.iter_tags()]
        needs = elf.get_section_by_name(".gnu.version_r")
        symbols = elf.get_section_by_name(".dynsym")
        versions = elf.get_section_by_name(".gnu.version_d")
        return {
            "needed": [tag.needed for name, tag in tags if name == "DT_NEEDED"],
            "soname": [tag.soname for name, tag in tags if name == "DT_SONAME"],
            "runpath": [tag.runpath for name, tag in tags if name == "DT_RUNPATH"],
            "tags": {name for name, _ in tags},
            "sections": {section.name for section in elf.iter_sections()},
            "exports": sorted(
                s.name for s in symbols.iter_symbols()
                if s.entry.st_shndx != "SHN_UNDEF" and s.entry.st_info.bind != "STB_LOCAL" and s.name != "KILN_0"
            ),
            "defines": [next(aux).name for _, aux in versions.iter_versions()],
            "versions": sorted({aux.name for _, group in needs.iter_versions() for aux in group} if needs else []),
        }  # fmt: skip


def check_library(path: Path, exports: list[str], runpath: list[str]) -> dict:
    found = facts(path)
    assert found["exports"] == sorted(exports)
    assert "KILN_0" in found["defines"]
    assert not found["sections"] & {".init_array", ".ctors", ".preinit_array", ".fini_array", ".init", ".fini"}
    assert not found["tags"] & {"DT_INIT", "DT_INIT_ARRAY", "DT_FINI", "DT_FINI_ARRAY", "DT_TEXTREL"}
    assert all(GLIBC.fullmatch(name) or name == "libkiln.so.0" for name in found["needed"]), found["needed"]
    assert found["runpath"] == runpath
    hardening.check(path)
    return found


def test_what_the_libraries_need_and_export(built):
    core = check_library(built / "lib" / "libkiln.so.0", EXPORTS, [])
    assert core["soname"] == ["libkiln.so.0"]
    toy = check_library(built / "lib" / "libkiln_toy.so", ["kiln_toy_family"], ["$ORIGIN"])
    assert toy["needed"].count("libkiln.so.0") <= 1
    flash = check_library(built / "lib" / "libkiln_flash.so", FLASH_EXPORTS, ["$ORIGIN"])
    assert "libkiln.so.0" in flash["needed"]


@pytest.mark.slow
def test_the_releases_compiler(built):
    """zig, as kiln_build.native calls it: for glibc 2.28, on whatever this machine is."""
    version = run([sys.executable, "-m", "ziglang", "version"]).strip()
    compiler = native.zig_compiler(sys.executable, nativebuild.cache() / "zig", version)
    headers = nativebuild.stamp_headers(nativebuild.cache() / "stamped") / "kiln"
    family = native.FamilySources(
        "flash",
        (built / "flash.cc").read_text(),
        tuple(nativebuild.FLASH),
        (headers / "flash.h",),
        generated=nativebuild.flash_headers(),
    )
    libraries = native.build_libraries(
        ROOT, nativebuild.vendored(), (headers / "version.h").read_text(), [family], [], compiler,
        nativebuild.cache() / "native", 1,
    )  # fmt: skip
    core = check_library(libraries["libkiln.so.0"], EXPORTS, [])
    flash = check_library(libraries["libkiln_flash.so"], FLASH_EXPORTS, ["$ORIGIN"])
    versions = [tuple(map(int, v[6:].split("."))) for v in core["versions"] + flash["versions"] if v[:6] == "GLIBC_"]
    assert versions and max(versions) <= (2, 28)


def test_clang_builds_it(tmp_path):
    if not shutil.which("clang++"):
        pytest.skip("no clang here")
    nativebuild.build_core(tmp_path, cxx="clang++")
    check_library(tmp_path / "lib" / "libkiln.so.0", EXPORTS, [])


def test_layout_of_the_interface(built, tmp_path):
    """Golden sizes and offsets: a change here is a break of libkiln.so.0."""
    golden = {
        "kiln_options": (72, {"pack_path": 8, "log": 24, "log_level": 40, "resolve": 48, "trusted_keys": 64}),
        "kiln_device": (56, {"vendor": 8, "warp_size": 20, "name": 24, "refusal": 48}),
        "kiln_queue": (24, {"vendor": 8, "device": 12, "stream": 16}),
        "kiln_tensor": (160, {"dtype": 8, "rank": 12, "sizes": 16, "strides": 80, "reserved": 144}),
        "kiln_argument": (16, {"kind": 0, "value": 8}),
        "kiln_argument_info": (32, {"name": 8, "kind": 16, "optional": 28}),
        "kiln_call": (72, {"operation": 8, "queue": 16, "arguments": 24, "force_count": 36, "workspace_bytes": 64}),
        "kiln_variant": (104, {"key": 8, "unavailable": 64, "has_ptx": 72, "threads": 88, "passed_over": 96}),
        "kiln_attn_fwd_params": (264, {"q": 8, "sinks": 48, "sm_scale": 184, "padded": 248, "batch_invariant": 256}),
        "kiln_attn_fwd_fp8_params": (200, {"q": 8, "v_descale": 64, "sm_scale": 144, "force_count": 192}),
        "kiln_attn_bwd_params": (288, {"q": 8, "sinks": 96, "sm_scale": 216, "workspace": 240, "padded": 280}),
        "kiln_attn_decode_params": (256, {"q": 8, "leftpad": 96, "splits": 184, "batch_invariant": 248}),
        "kiln_dropout_mask_params": (64, {"mask": 8, "seed_value": 32, "dropout": 48, "force_target": 56}),
        "kiln_family": (56, {"abi": 8, "name": 24, "packs": 48}),
        "kiln_kernel_target_table": (80, {"driver": 12, "configurations": 16, "layout": 40, "ptx_driver": 72}),
        "kiln_kernel_table": (176, {"when": 16, "choices": 40, "grid": 104, "target_count": 156, "overlaps": 168}),
        "kiln_descriptor_table": (96, {"rank": 8, "dtype": 12, "sizes": 16, "strides": 56}),
        "kiln_operation_table": (112, {"skip_when": 8, "kernels": 72, "value_count": 108}),
        "kiln_pack_table": (64, {"vendor": 16, "runs_on": 24, "index_digest": 32}),
        "kiln_parameter_table": (16, {"type": 8, "descriptor": 12}),
    }
    lines = ['#include "kiln/family.h"', '#include "kiln/flash.h"']
    for name, (size, fields) in golden.items():
        lines.append(f'_Static_assert(sizeof({name}) == {size}, "{name}");')
        lines += [f'_Static_assert(offsetof({name}, {f}) == {o}, "{name}.{f}");' for f, o in fields.items()]
    source = tmp_path / "layout.c"
    source.write_text("\n".join([*lines, "int x;"]))
    run(["cc", "-std=c11", "-c", source, "-I", built / "include", "-o", tmp_path / "layout.o"])


@pytest.mark.parametrize(
    ("structure", "macro", "mirror"),
    [
        ("kiln_attn_fwd_params", "KILN_ATTN_FWD_PARAMS_INIT", ffi.AttnFwd()),
        ("kiln_attn_fwd_fp8_params", "KILN_ATTN_FWD_FP8_PARAMS_INIT", ffi.AttnFwdFp8()),
        ("kiln_attn_bwd_params", "KILN_ATTN_BWD_PARAMS_INIT", ffi.AttnBwd()),
        ("kiln_attn_decode_params", "KILN_ATTN_DECODE_PARAMS_INIT", ffi.AttnDecode()),
        ("kiln_dropout_mask_params", "KILN_DROPOUT_MASK_PARAMS_INIT", ffi.DropoutMask(ctypes.sizeof(ffi.DropoutMask))),
    ],
)  # fmt: skip
def test_parameters_and_their_defaults_are_those_that_the_tests_use(built, tmp_path, structure, macro, mirror):
    """Each field of ffi.py's structures lies where the header has it, and the macro's defaults are theirs."""
    fields = [(name, getattr(type(mirror), name)) for name, _ in mirror._fields_]
    asserts = [f'_Static_assert(offsetof({structure}, {n}) == {field.offset}, "{n}");' for n, field in fields]
    source = tmp_path / "defaults.c"
    source.write_text(
        "#include <stdio.h>\n#include <kiln/flash.h>\n" + "\n".join(asserts) + "\nint main(void) {\n"
        f"  static const {structure} p = {macro};\n  return fwrite(&p, sizeof p, 1, stdout) != 1;\n}}\n"
    )
    run(["cc", "-std=c11", "-Wall", "-Wextra", "-Werror", source, "-I", built / "include", "-o", tmp_path / "defaults"])
    assert subprocess.run([tmp_path / "defaults"], capture_output=True, check=True).stdout == bytes(mirror)


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
@pytest.mark.parametrize("header", ["kiln.h", "family.h", "flash.h", "version.h"])
def test_headers_alone(built, tmp_path, compiler, header):
    """Each public header compiles by itself, as strict C99 and as C++."""
    if not shutil.which(compiler):
        pytest.skip(f"no {compiler} here")
    for language, standard in (("c", "c99"), ("c++", "c++11")):
        source = tmp_path / f"alone.{language}"
        source.write_text(f"#include <kiln/{header}>\n#include <kiln/{header}>\nint kiln_test_nothing;\n")
        run([compiler, "-x", language, f"-std={standard}", "-Wall", "-Wextra", "-pedantic", "-Werror", "-I",
             built / "include", "-c", source, "-o", tmp_path / "alone.o"])  # fmt: skip


@pytest.mark.parametrize("compiler", ["g++", "clang++"])
@pytest.mark.parametrize("standard", ["c++11", "c++20"])
def test_the_wrapper_takes_any_cpp_since_11(built, tmp_path, compiler, standard):
    if not shutil.which(compiler):
        pytest.skip(f"no {compiler} here")
    run([compiler, f"-std={standard}", "-Wall", "-Wextra", "-pedantic", "-Werror", "-I", built / "include", "-I", HERE,
         "-c", HERE / "consumer.cc", "-o", tmp_path / "consumer.o"])  # fmt: skip


@pytest.mark.parametrize("compiler", ["g++", "clang++"])
@pytest.mark.parametrize("abi", [0, 1])
def test_cpp_consumer(built, tmp_path, compiler, abi):
    """One binary serves consumers of either C++ ABI."""
    if not shutil.which(compiler):
        pytest.skip(f"no {compiler} here")
    program = tmp_path / "consumer"
    lib = built / "lib"
    run([compiler, "-std=c++17", "-Wall", "-Wextra", "-Werror", f"-D_GLIBCXX_USE_CXX11_ABI={abi}", "-I",
         built / "include", "-I", HERE, HERE / "consumer.cc", "-o", program, "-L", lib, "-lkiln", "-lkiln_toy",
         "-lfake", f"-Wl,-rpath,{lib}"])  # fmt: skip
    seen = run([program])
    assert seen == "1.2.3 10 50 aligned 2 KILN_E_RANGE toy.mix: flag is 7; a boolean must be 0 or 1\n"


def test_another_core_in_the_process_names_itself(built, tmp_path):
    """A core is found by its soname: what a test loads before would be what the others test."""
    other = shutil.copy(built / "lib" / "libkiln.so.0", tmp_path)
    script = f"""
import ctypes, sys
sys.path.insert(0, {str(HERE)!r})
import ffi
ffi.Library(ffi.Path({str(built / "lib")!r}))  # alone it is fine
ctypes.CDLL({str(other)!r})
try:
    ffi.Library(ffi.Path({str(built / "lib")!r}))
except AssertionError as problem:
    print(problem)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert f"has another libkiln.so.0 than that of {built / 'lib'}: {other}. " in done.stdout, done.stderr


def build_program(built: Path, folder: Path, flags: list[str] = ()) -> Path:
    program = folder / "program"
    run(["cc", "-std=gnu99", "-Wall", "-Wextra", *flags, "-I", built / "include", "-I", HERE, HERE / "program.c", "-o",
         program, "-L", built / "lib", "-lfake", "-ldl", f"-Wl,-rpath,{built / 'lib'}"])  # fmt: skip
    return program


def test_unloading_is_real(built, tmp_path):
    """dlclose() after kiln_close() takes the libraries out of the process; fifty times."""
    assert run([build_program(built, tmp_path), built / "lib"]) == "fine\n"


def build_linked(built: Path, source: str, folder: Path, flags: list[str] = ()) -> Path:
    """A program that is linked with the core, the toy family and the fake driver."""
    program = folder / Path(source).stem
    run(["cc", "-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", *flags, "-rdynamic", "-I", built / "include",
         "-I", HERE, HERE / source, "-o", program, "-L", built / "lib", "-lkiln", "-lkiln_toy", "-lkiln_tiles",
         "-lfake", "-ldl", "-lpthread", f"-Wl,-rpath,{built / 'lib'}"])  # fmt: skip
    return program


def tiles_pack(built: Path) -> tuple[Path, str]:
    """The folder of the packs of the family `tiles`, and the digest of that for sm_90."""
    folder = built / "packs" / "tiles"
    return folder, packs.digest_of((folder / packs.FILES["sm_90"]).read_bytes())


def test_a_repeated_call_allocates_nothing_and_takes_no_lock(built, tmp_path):
    """With cached descriptors neither."""
    program = build_linked(built, "hotpath.c", tmp_path)
    for words in ([program], [program, *tiles_pack(built)]):
        allocations, locks, *nanoseconds = map(int, run(words).split())
        assert (allocations, locks) == (0, 0)
        # 0.3 us on an idle machine; what is looked for is a search or a system call that crept in
        assert max(nanoseconds) < 20000


@pytest.mark.slow
def test_thread_sanitizer(tmp_path_factory):
    flags = ["-fsanitize=thread"]
    built = tmp_path_factory.mktemp("threads")
    nativebuild.build_core(built, flags)
    nativebuild.build_toy(built, flags)
    nativebuild.build_tiles(built, flags)
    nativebuild.build_fake(built, flags)
    program = build_linked(built, "threads.c", built, flags)
    done = subprocess.run([program, *tiles_pack(built)], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout == "fine\n", done.stdout + done.stderr[-6000:]


@pytest.mark.slow(110)
def test_sanitizers(tmp_path_factory):
    """The program and these tests once more, with address and undefined-behaviour sanitizers; leaks by the program."""
    built = nativebuild.build_all(tmp_path_factory.mktemp("sanitized"), nativebuild.SANITIZE)
    program = build_program(built, built, nativebuild.SANITIZE)
    assert run([program, built / "lib", "kept"]) == "fine\n"
    preload = [run(["cc", f"-print-file-name={name}"]).strip() for name in ("libasan.so", "libubsan.so")]
    environment = os.environ | {
        "LD_PRELOAD": " ".join(preload), "ASAN_OPTIONS": "detect_leaks=0", "KILN_TEST_BUILT": str(built),
        "PYTHONMALLOC": "malloc", "UBSAN_OPTIONS": "print_stacktrace=1",
    }  # fmt: skip
    tests = [
        HERE / f"test_{name}.py"
        for name in ("launch", "calls", "packs", "fuzz", "threads", "flash", "implementations", "descriptors")
    ]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests], env=environment, text=True,
        capture_output=True, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]


def hip_headers() -> Path:
    """Those that Triton brings."""
    return Path(importlib.util.find_spec("triton").submodule_search_locations[0]) / "backends/amd/include"


def cmake_build(folder: Path, built: Path, source: Path, *options: str) -> None:
    run(["cmake", "-S", source, "-B", folder, *options])
    run(["cmake", "--build", folder])


NOTICES = ("LICENSE", "NOTICES.txt", "licences/zstd.txt")


@pytest.fixture(scope="module")
def installed(built, tmp_path_factory) -> Path:
    """A release as CMake installs it, from the toy family's tables."""
    folder = tmp_path_factory.mktemp("cmake")
    generated = folder / "generated"
    generated.mkdir()
    digests = (built / "digests.h").read_text()
    (generated / "toy.cc").write_text(
        (HERE / "toy_family.cc").read_text().replace("#ifdef TOY_DIGESTS\n#include TOY_DIGESTS\n", f"#if 1\n{digests}")
    )
    shutil.copy(built / "flash.cc", generated / "flash.cc")
    shutil.copytree(built / "generated", generated, dirs_exist_ok=True)
    (generated / "toy.h").write_text("/* as the generator writes one */\n")
    lines = [f"{packs.digest_of(path.read_bytes())}  {path.name}" for path in (built / "lib/kiln.images").iterdir()]
    (generated / "packs.txt").write_text("\n".join(lines))
    for name in NOTICES:
        (generated / "notices" / name).parent.mkdir(parents=True, exist_ok=True)
        (generated / "notices" / name).write_text(f"{name}\n")
    cmake_build(
        folder / "build", built, ROOT, "-DKILN_VERSION=1.2.3+full", f"-DKILN_ZSTD_SOURCE={nativebuild.zstd_source()}",
        f"-DKILN_MONOCYPHER_SOURCE={nativebuild.monocypher_source()}",
        f"-DKILN_GENERATED={generated}", f"-DKILN_PACKS={built / 'lib' / 'kiln.images'}", "-DCMAKE_BUILD_TYPE=Release",
        "-DCMAKE_C_FLAGS_RELEASE=-O1", "-DCMAKE_CXX_FLAGS_RELEASE=-O1", "-DCMAKE_INSTALL_LIBDIR=lib",
        f"-DKILN_HIP_INCLUDE={hip_headers()}",
    )  # fmt: skip
    run(["cmake", "--install", folder / "build", "--prefix", folder / "kiln"])
    shutil.move(folder / "kiln", folder / "moved away")  # a package must not remember where it was made
    return folder / "moved away"


def test_cmake_install(installed):
    files = {str(path.relative_to(installed)) for path in installed.rglob("*") if not path.is_dir()}
    assert {
        "include/kiln/kiln.h", "include/kiln/kiln.hpp", "include/kiln/family.h", "include/kiln/flash.h",
        "include/kiln/version.h", "include/kiln/toy.h", "lib/libkiln.so", "lib/libkiln.so.0", "lib/libkiln_toy.so",
        "lib/libkiln_flash.so", "lib/kiln.images/nvidia-sm_90.pack", "lib/pkgconfig/kiln.pc",
        "lib/cmake/kiln/kilnConfig.cmake", "lib/cmake/kiln/kilnConfigVersion.cmake",
        *(f"share/kiln/{name}" for name in NOTICES),
    } <= files  # fmt: skip
    assert not any(name.endswith(".in") for name in files)
    headers = {path.name for path in [*(ROOT / "include/kiln").iterdir(), *(ROOT / "include/kiln/jit").glob("*")]}
    assert {path.name for path in (installed / "include/kiln").rglob("*.h*")} <= {*headers, "version.h", "toy.h"}
    check_library(installed / "lib" / "libkiln.so.0", EXPORTS, [])
    flash = check_library(installed / "lib" / "libkiln_flash.so", FLASH_EXPORTS, ["$ORIGIN"])
    assert "libkiln.so.0" in flash["needed"]
    for name in ("libkiln_torch.so", "libaotriton_v2.so"):
        hardening.check(installed / "lib" / name)
    assert '#define KILN_VERSION "1.2.3+full"' in (installed / "include/kiln/version.h").read_text()


def test_cmake_installs_packs_and_licences_once(installed, tmp_path):
    """Their other places are links to them, also below DESTDIR, and are in the list of what was installed."""
    build = installed.parent / "build"
    run(["cmake", "--install", build, "--prefix", "/usr"], env={**os.environ, "DESTDIR": str(tmp_path)})
    listed = (build / "install_manifest.txt").read_text().splitlines()
    for prefix in (installed, tmp_path / "usr"):
        packs = [*prefix.rglob("nvidia-sm_90.pack")]
        places = {path.relative_to(prefix / "lib").as_posix() for path in packs}
        assert {"kiln.images/nvidia-sm_90.pack", "aotriton.images/nvidia-sm_90.pack",
                "aotriton/0.13/lib/aotriton.images/nvidia-sm_90.pack"} <= places  # fmt: skip
        assert len({path.stat().st_ino for path in packs}) == 1 and len(packs) == packs[0].stat().st_nlink == 6
        for notice in NOTICES:
            for images in ("lib/aotriton.images", "lib/aotriton/0.11/lib/aotriton.images"):
                assert (prefix / images / "kiln" / notice).samefile(prefix / "share/kiln" / notice)
    assert {f"/usr/lib/{place}" for place in places} <= {path.replace(str(tmp_path), "") for path in listed}


def test_find_package(installed, built, tmp_path):
    (tmp_path / "CMakeLists.txt").write_text(f"""
cmake_minimum_required(VERSION 3.20)
project(consumer C CXX)
set(CMAKE_CXX_STANDARD 17)
find_package(kiln 1.2 REQUIRED COMPONENTS toy flash)
add_executable(consumer "{HERE}/consumer.cc")
target_include_directories(consumer PRIVATE {HERE})
target_link_libraries(consumer PRIVATE kiln::kiln kiln::toy {built}/lib/libfake.so)
""")
    cmake_build(tmp_path / "b", built, tmp_path, f"-DCMAKE_PREFIX_PATH={installed}")
    assert run([tmp_path / "b" / "consumer"]).startswith("1.2.3+full 10 50 aligned 2 ")
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.20)\nproject(consumer C)\nfind_package(kiln 1.3 REQUIRED)\n"
    )
    done = subprocess.run(
        ["cmake", "-S", tmp_path, "-B", tmp_path / "c", f"-DCMAKE_PREFIX_PATH={installed}"],
        capture_output=True,
        text=True,
    )
    assert done.returncode != 0 and "1.3" in done.stderr


def test_pkg_config(installed, built, tmp_path):
    if not shutil.which("pkg-config"):
        # what a pkg-config would print, by the file's own words
        text = (installed / "lib/pkgconfig/kiln.pc").read_text()
        prefix = installed / "lib" / "pkgconfig" / ".." / ".."
        assert "${pcfiledir}/../.." in text and "Version: 1.2.3" in text
        words = ["-I", prefix / "include", "-L", prefix / "lib", "-lkiln"]
    else:
        environment = os.environ | {"PKG_CONFIG_PATH": str(installed / "lib/pkgconfig")}
        words = [w.replace("\\ ", " ") for w in re.split(r"(?<!\\)\s+", run(
            ["pkg-config", "--cflags", "--libs", "kiln"], env=environment).strip())]  # fmt: skip
        assert run(["pkg-config", "--modversion", "kiln"], env=environment) == "1.2.3\n"
    source = tmp_path / "version.c"
    source.write_text(
        "#include <kiln/kiln.h>\n#include <stdio.h>\nint main(void) { return puts(kiln_version()) < 0; }\n"
    )
    run(["cc", source, *words, f"-Wl,-rpath,{installed / 'lib'}", "-o", tmp_path / "version"])
    assert run([tmp_path / "version"]) == "1.2.3+full\n"


@pytest.mark.parametrize("version", ["1/2", "1", "v1.2", "1.2.3.4", "1.2-rc1", ""])
def test_cmake_refuses_versions(tmp_path, version):
    done = subprocess.run(
        ["cmake", "-S", ROOT, "-B", tmp_path / "b", f"-DKILN_VERSION={version}"], capture_output=True, text=True
    )
    assert done.returncode != 0 and "it must be X.Y or X.Y.Z" in done.stderr


def test_cmake_refuses_packs_of_another_build(installed, built, tmp_path):
    other = tmp_path / "images"
    cache = ["cmake", "-S", ROOT, "-B", tmp_path / "b", "-DKILN_VERSION=1.2.3", f"-DKILN_PACKS={other}",
             f"-DKILN_ZSTD_SOURCE={nativebuild.zstd_source()}",
        f"-DKILN_MONOCYPHER_SOURCE={nativebuild.monocypher_source()}",
             f"-DKILN_GENERATED={installed.parent / 'generated'}"]  # fmt: skip
    other.mkdir()
    for name, sentence in (
        ("", "must be a folder with packs"),
        (packs.FILES["sm_90"], "is not of the build that made"),
    ):
        if name:
            (other / name).write_bytes(packs.toy_pack("sm_80"))
        done = subprocess.run([*map(str, cache)], capture_output=True, text=True)
        assert done.returncode != 0 and sentence in " ".join(done.stderr.split())


def test_cmake_without_tables_has_the_licences_of_its_sources(tmp_path):
    zstd = tmp_path / "zstd"
    zstd.mkdir()
    for name in ("zstd.c", "LICENSE"):
        (zstd / name).write_text("/* of zstd */")
    for name in ("monocypher.c", "LICENSE.txt"):
        (zstd / name).write_text("/* of Monocypher */")
    build = tmp_path / "b"
    run(["cmake", "-S", ROOT, "-B", build, "-DKILN_VERSION=1.2.3", f"-DKILN_ZSTD_SOURCE={zstd}",
         f"-DKILN_MONOCYPHER_SOURCE={zstd}"])  # fmt: skip
    (build / "libkiln.so.0").touch()
    (build / "libkiln.so").touch()
    run(["cmake", "--install", build, "--prefix", tmp_path / "kiln"])
    assert (tmp_path / "kiln/share/kiln/LICENSE").read_text() == (ROOT / "LICENSE").read_text()
    assert (tmp_path / "kiln/share/kiln/licences/zstd.txt").read_text() == "/* of zstd */"
    assert (tmp_path / "kiln/share/kiln/licences/monocypher.txt").read_text() == "/* of Monocypher */"
