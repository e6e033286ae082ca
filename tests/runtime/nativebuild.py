"""Compiles the runtime and what the tests put around it, with the compilers of the machine."""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import flash_tables
import packs

import shared
from kiln_build.native import argument_files
from kiln_recipe.read import recipe

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
CORE = ROOT / "csrc" / "core"
FLASH = sorted((ROOT / "csrc" / "flash").glob("*.cc"))
ZSTD_SDIST = "zstandard-0.25.0.tar.gz"
MONOCYPHER_SDIST = "pymonocypher-4.0.3.4.tar.gz"
_LISTED = [line.split() for line in (ROOT / "csrc/flags.txt").read_text().splitlines() if line[:1] not in ("", "#")]


def listed(*kinds: str) -> list[str]:
    """The flags of csrc/flags.txt of these kinds."""
    return [flag for kind, flag in _LISTED if kind in kinds]


CXX_FLAGS = ["-std=c++17", "-O1", "-g", "-Werror", *listed("compile", "optimized", "c++")]
ZSTD_FLAGS = ["-O1", "-w", *listed("compile", "optimized", "zstd")]
LINK_FLAGS = ["-shared", f"-Wl,--version-script={ROOT / 'csrc/kiln.map'}", "-Wl,--build-id=none",
              *listed("link", "library")]  # fmt: skip
# What the sanitizers watch must not be a checked function's.
SANITIZE = ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-fno-omit-frame-pointer",
            "-U_FORTIFY_SOURCE"]  # fmt: skip


# By what names a vendor's driver is looked for.
DRIVERS = {"nvidia": ("libcuda.so.1",), "amd": ("libamdhip64.so", "libamdhip64.so.6")}


def run(command: list, **options: object) -> str:
    """Runs a command; its output is the failure's text."""
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, **options)
    assert done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stdout[-3000:]}\n{done.stderr[-6000:]}"
    return done.stdout


def cache() -> Path:
    """Where what is slow to make and never changes is kept between runs."""
    folder = Path(tempfile.gettempdir()) / f"kiln-tests-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def zstd_source() -> Path:
    """The folder of zstd.c: as the environment says, or out of the locked package."""
    if "KILN_ZSTD_SOURCE" in os.environ:
        return Path(os.environ["KILN_ZSTD_SOURCE"])
    return _unpacked(ZSTD_SDIST) / "zstd"


def monocypher_source() -> Path:
    """The folder of monocypher.c, out of the locked package."""
    return _unpacked(MONOCYPHER_SDIST)


def _unpacked(sdist: str) -> Path:
    name = sdist.removesuffix(".tar.gz")
    folder = cache() / name
    with (cache() / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if folder.is_dir():
            return folder
        archives = [*(ROOT / "input" / "cache").rglob(sdist), *cache().glob(sdist)]
        if not archives:
            run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", ":all:",
                 "--no-build-isolation", "-d", cache(), name.replace("-", "==")])  # fmt: skip
            archives = [cache() / sdist]
        with tarfile.open(archives[0]) as archive:
            members = [m for m in archive if m.name.endswith((".c", ".h", "LICENSE", "LICENSE.txt")) and m.isfile()]
            archive.extractall(cache(), members=members)
    return folder


def vendored() -> dict[str, Path]:
    """The folders of others' C, by name."""
    return {"zstd": zstd_source(), "monocypher": monocypher_source()}


def vendored_objects(compiler: str, flags: list[str]) -> list[Path]:
    """Others' C, compiled; it is not what is tested: without the sanitizers it is as fast as it is in use."""
    return [_vendored_object(compiler, flags, folder / f"{name}.c") for name, folder in vendored().items()]


def _vendored_object(compiler: str, flags: list[str], source: Path) -> Path:
    name = hashlib.sha256(repr((compiler, flags, str(source))).encode()).hexdigest()[:16]
    target = cache() / f"{source.stem}-{name}.o"
    with (cache() / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists():
            partial = target.with_suffix(f".{os.getpid()}.o")
            run([compiler, *flags, "-c", source, "-o", partial])
            partial.replace(target)
    return target


def stamp_headers(folder: Path, version: str = "1.2.3") -> Path:
    """The public headers as a build installs them."""
    include = folder / "include" / "kiln"
    include.mkdir(parents=True, exist_ok=True)
    for header in (ROOT / "include" / "kiln").glob("*.h*"):
        if header.suffix != ".in":
            (include / header.name).write_bytes(header.read_bytes())
    text = (ROOT / "include" / "kiln" / "version.h.in").read_text()
    values = {"VERSION": version, "VERSION_MAJOR": "1", "VERSION_MINOR": "2", "VERSION_PATCH": "3"}
    for name, value in values.items():
        text = text.replace(f"@KILN_{name}@", value)
    (include / "version.h").write_text(text)
    return folder / "include"


def objects(folder: Path, compile_command: list, sources: Iterable[Path]) -> list[Path]:
    """The sources compiled into `folder`, as many at once as there are processors: other processes may wait for it."""
    folder.mkdir(parents=True, exist_ok=True)
    made = {source: folder / f"{source.name}.o" for source in sources}
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        list(pool.map(lambda source: run([*compile_command, "-c", source, "-o", made[source]]), made))
    return list(made.values())


def core_objects(folder: Path, flags: list[str] = (), cc: str = "cc", cxx: str = "c++") -> list[Path]:
    """The core's objects."""
    include = stamp_headers(folder)
    command = [cxx, *CXX_FLAGS, *flags, "-I", include]
    command += [word for folder in vendored().values() for word in ("-I", folder)]
    made = objects(folder / "objects", command, [CORE / name for name in (CORE / "sources.txt").read_text().split()])
    return [*made, *vendored_objects(cc, ZSTD_FLAGS)]


def objects_of(folder: Path, family: str) -> list[Path]:
    """What build_family left of a family."""
    return sorted((folder / "objects" / family).glob("*.o"))


def build_core(folder: Path, flags: list[str] = (), cc: str = "cc", cxx: str = "c++") -> None:
    """lib/libkiln.so.0 and include/ in `folder`."""
    made = core_objects(folder, flags, cc, cxx)
    (folder / "lib").mkdir(exist_ok=True)
    run([cc, *flags, *LINK_FLAGS, "-Wl,-soname,libkiln.so.0", *made, "-o", folder / "lib" / "libkiln.so.0", "-ldl"])
    link = folder / "lib" / "libkiln.so"
    link.unlink(missing_ok=True)
    link.symlink_to("libkiln.so.0")


def build_family(folder: Path, name: str, sources: list[Path], flags: list[str] = (), cxx: str = "c++") -> Path:
    """lib/libkiln_<name>.so in `folder`, which has the core."""
    target = folder / "lib" / f"libkiln_{name}.so"
    made = objects(folder / "objects" / name, [cxx, *CXX_FLAGS, *flags, "-I", folder / "include"], sources)
    run([cxx, *flags, *made, *LINK_FLAGS, f"-Wl,-soname,{target.name}", "-Wl,--enable-new-dtags",
         "-Wl,-rpath,$ORIGIN", folder / "lib" / "libkiln.so.0", "-o", target])  # fmt: skip
    return target


def build_toy(folder: Path, flags: list[str] = ()) -> None:
    """The toy family with its packs beside it, and the same tables without digests as the family `bare`."""
    images = folder / "lib" / "kiln.images"
    images.mkdir(exist_ok=True)
    lines = ["#define TOY_HAS_DIGEST 1"]
    for target, file in packs.FILES.items():
        pack = packs.toy_pack(target)
        (images / file).write_bytes(pack)
        digits = bytes.fromhex(packs.digest_of(pack))
        lines.append(f"#define TOY_DIGEST_{target.upper()} {{{','.join(map(str, digits))}}}")
    (folder / "digests.h").write_text("\n".join(lines) + "\n")
    source = HERE / "toy_family.cc"
    build_family(folder, "toy", [source], [*flags, f'-DTOY_DIGESTS="{folder / "digests.h"}"'])
    build_family(folder, "bare", [source], [*flags, "-DTOY_NAME=bare"])


def build_tiles(folder: Path, flags: list[str] = ()) -> None:
    """The family `tiles`, which has implementations and descriptors, and its packs in packs/tiles."""
    images = folder / "packs" / "tiles"
    images.mkdir(parents=True, exist_ok=True)
    for target in packs.TILES_TARGETS:
        (images / packs.FILES[target]).write_bytes(packs.tiles_pack(target))
    build_family(folder, "tiles", [HERE / "tiles_family.cc"], flags)


def build_flash(folder: Path, flags: list[str] = (), tables: str | None = None) -> None:
    """The typed entries with tables, if not others then flash_tables.py's, which stay in `folder` as flash.cc."""
    (folder / "flash.cc").write_text(tables or flash_tables.make(folder / "flash").source)
    for name, text in flash_headers().items():
        (folder / "generated" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "generated" / name).write_text(text)
    build_family(folder, "flash", [folder / "flash.cc", *FLASH], [*flags, f"-I{folder / 'generated/flash'}"])


def flash_headers() -> dict[str, str]:
    """What a build generates of the table of arguments, by path."""
    return argument_files.family_files(recipe.load(ROOT / "tritonsrc/flash/recipe.yaml"))


def build_fake(folder: Path, flags: list[str] = ()) -> None:
    """lib/libfake.so, the fake driver, and driver_folder() for each vendor, in `folder`."""
    run(["cc", "-std=gnu11", "-O1", "-g", "-fPIC", "-shared", "-fvisibility=hidden", "-Wall", "-Wextra", "-Werror",
         *flags, *sorted(HERE.glob("fake_*.c")), "-o", folder / "lib" / "libfake.so", "-lpthread", "-ldl"])  # fmt: skip
    for vendor, names in DRIVERS.items():
        driver_folder(folder, vendor).mkdir()
        for name in names:
            (driver_folder(folder, vendor) / name).symlink_to(folder / "lib" / "libfake.so")


def fake_alone() -> Path:
    """A folder with the fake driver and nothing else, made once for a run."""

    def make(folder: Path) -> None:
        (folder / "lib").mkdir()
        build_fake(folder)

    return shared.once("driver", make)


def driver_folder(folder: Path, vendor: str) -> Path:
    """A folder, for LD_LIBRARY_PATH, in which `folder`'s fake driver is that of one vendor: "nvidia" or "amd"."""
    return folder / vendor


def build_all(folder: Path, flags: list[str] = ()) -> Path:
    """Everything that the tests load, under `folder`/lib."""
    build_core(folder, flags)
    build_toy(folder, flags)
    build_tiles(folder, flags)
    build_flash(folder, flags)
    build_fake(folder, flags)
    return folder
