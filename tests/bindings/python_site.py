"""An importable folder of the Python package, out of the source tree and without wheels.

    python tests/bindings/python_site.py FOLDER [--python python3.12] [--release PREFIX]
    PYTHONPATH=FOLDER python3.11 -c 'import kiln; print(kiln.info())'

FOLDER gets what an installed wheel has: kiln/ with its extension, and kiln/lib/. The Python modules are links into the
source tree, so that what is edited there counts at once. The libraries come from an unpacked release; without one they
are compiled here, where the flash family's tables are flash_tables.py's, whose kernels are handed all arguments, with a
pack of images for the fake driver, and kiln/lib/libfake.so is that driver. What was compiled of the same sources before
is taken from a cache. libkiln_torch.so is compiled if the release has none and its sources are there.

Needs nanobind and ziglang in the Python that runs it, and the headers of the one that it is for.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "v3python"), str(ROOT / "tests"), str(ROOT / "tests/runtime")]

import flash_tables  # noqa: E402
import nativebuild  # noqa: E402
import packs  # noqa: E402

from kiln_build.native import extension, library, native, pythons  # noqa: E402
from kiln_build.release import wheel  # noqa: E402

PACKAGE = ROOT / "bindings/python/kiln"
JOBS = max(1, len(os.sched_getaffinity(0)))


def make_site(to: Path, python: str = sys.executable, release: Path | None = None) -> Path:
    """Fills the folder `to`, which may hold an earlier one, and returns it.

    Args:
        python: the command of the Python that will import it.
        release: an unpacked release, .../kiln; None: libraries for the fake driver.
    """
    headers = pythons.headers_of(python)
    prefix = release or fake_release()
    libraries = {name: prefix / "lib" / name for name in ("libkiln.so.0", "libkiln_flash.so")}
    public = {p.relative_to(prefix / "include").as_posix(): p.read_bytes() for p in (prefix / "include/kiln").iterdir()}
    core = extension.build_extension(
        ROOT / "bindings/core", extension.nanobind_folder(), public, libraries, headers, zig(), cache("extension"), JOBS
    )
    package = to / "kiln"
    lib = package / "lib"
    shutil.rmtree(package, ignore_errors=True)
    lib.mkdir(parents=True)
    for name, path in wheel.package_files(ROOT).items():
        if name.startswith("flash/"):
            (package / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, package / name)
        elif "/" not in name:
            (package / name).symlink_to(path)
        elif not (folder := package / name.partition("/")[0]).exists():
            folder.symlink_to(PACKAGE / folder.name)
    for name, data in wheel.generated_files(ROOT, *made_for(release)).items():
        (package / name).write_bytes(data)
    (to / "kiln_recipe").unlink(missing_ok=True)
    (to / "kiln_recipe").symlink_to(ROOT / "v3python/kiln_recipe")
    shutil.copyfile(core, package / headers.file_name)
    for path in sorted((prefix / "lib").glob("lib*.so*")):
        if not path.is_symlink():
            shutil.copyfile(path, lib / path.name)
    torch = torch_library(prefix)
    if torch:
        shutil.copyfile(torch, lib / "libkiln_torch.so")
    for images in (prefix / "lib").glob("*.images"):
        if not images.is_symlink():
            (lib / images.name).symlink_to(images.resolve())
    return to


def made_for(release: Path | None) -> tuple[str, str]:
    """The profile and the selection of an unpacked release; of libraries for the fake driver what their tables have."""
    if release is None:
        return "full", "family=flash"
    manifest = json.loads((release / "share/kiln/manifest.json").read_text())
    return manifest["profile"], manifest["selection"]


def fake_release() -> Path:
    """A prefix for the fake driver: the core, the flash family with an image for each functional, libfake.so.

    lib/kiln.images/trusted.txt has the digest that kiln_options.trusted_packs wants, since tables without images trust
    no pack; lib/scratch.images is the same with images that need 16 bytes for each program.
    """
    sources = [ROOT / "csrc/flags.txt", *nativebuild.CORE.iterdir(),
               *nativebuild.HERE.glob("fake_*"), *(ROOT / "csrc/flash").iterdir(),
               *(ROOT / "include/kiln").iterdir(), *(ROOT / "v3python").rglob("*.*"),
               *(ROOT / "tritonsrc/flash").glob("*.yaml"), Path(flash_tables.__file__), Path(nativebuild.__file__),
               Path(packs.__file__), Path(__file__)]  # fmt: skip
    return made("release", digest(sources), _fill_fake_release)


def _fill_fake_release(folder: Path) -> None:
    nativebuild.build_core(folder)
    nativebuild.build_flash(folder)
    nativebuild.build_fake(folder)
    tables = flash_tables.make(folder / "tables")
    for name, data in {"kiln.images": tables.pack(), "scratch.images": tables.pack(scratch=16)}.items():
        images = folder / "lib" / name
        images.mkdir()
        (images / packs.FILES["sm_90"]).write_bytes(data)
        (images / "trusted.txt").write_text(packs.digest_of(data))


def torch_library(prefix: Path) -> Path | None:
    """libkiln_torch.so over a prefix's libraries; None without sources. PyTorch is stood for as in a build."""
    folder = ROOT / "bindings/torch"
    sources = sorted(folder.glob("*.cc"))
    if not sources or not all((folder / name).is_file() for name in ("exports.map", "libtorch.symbols")):
        return None
    libraries = [prefix / "lib" / name for name in ("libkiln_flash.so", "libkiln.so.0")]
    headers = sorted((prefix / "include/kiln").iterdir())
    compiler, flags = zig(), native.read_flags(ROOT)
    generated = nativebuild.flash_headers()

    def fill(work: Path) -> None:
        names = [n for n in (folder / "libtorch.symbols").read_text().splitlines() if n and not n.startswith("#")]
        (work / "stub.c").write_text("".join(f"void {name}(void) {{}}\n" for name in names))
        stub = work / "libtorch_cpu.so"
        environment = {**os.environ, **dict(compiler.environment)}
        nativebuild.run([*compiler.c, "-shared", "-nostdlib", f"-Wl,-soname,{stub.name}", work / "stub.c", "-o", stub],
                        env=environment)  # fmt: skip
        for name, text in generated.items():
            (work / name).parent.mkdir(exist_ok=True)
            (work / name).write_text(text)
        objects = []
        for source in sources:
            objects.append(work / f"{source.stem}.o")
            nativebuild.run([*compiler.cxx, *flags.cxx, "-I", prefix / "include", "-I", ROOT / "bindings",
                             "-I", work / "torch", "-c", source, "-o", objects[-1]], env=environment)  # fmt: skip
        nativebuild.run([*compiler.c, *flags.library, f"-Wl,--version-script={folder / 'exports.map'}", *objects,
                         "-Wl,-soname,libkiln_torch.so", "-Wl,-rpath,$ORIGIN", "-Wl,--enable-new-dtags",
                         *libraries, stub, "-o", work / "libkiln_torch.so"], env=environment)  # fmt: skip

    inputs = [*folder.iterdir(), *headers, *libraries, ROOT / "csrc/flags.txt", ROOT / "bindings/layout.h"]
    key = digest(inputs, Path(native.__file__).read_text() + "".join(generated.values()))
    return made("torch", key, fill) / "libkiln_torch.so"


def zig() -> library.Compiler:
    from importlib.metadata import version

    return native.zig_compiler(sys.executable, cache("zig"), version("ziglang"))


def cache(name: str) -> Path:
    folder = nativebuild.cache() / name
    folder.mkdir(exist_ok=True)
    return folder


def made(name: str, key: str, fill: Callable[[Path], None]) -> Path:
    """The folder <name>-<key> of the cache, filled once."""
    done = cache(name) / key
    if not done.is_dir():
        work = Path(tempfile.mkdtemp(dir=cache(name)))
        fill(work)
        try:
            work.rename(done)
        except OSError:  # another process was first
            shutil.rmtree(work)
    return done


def digest(paths: Iterable[Path], more: str = "") -> str:
    found = hashlib.sha256(more.encode())
    for path in sorted(set(paths)):
        if path.is_file() and "__pycache__" not in path.parts:
            found.update(path.name.encode() + b"\0" + path.read_bytes())
    return found.hexdigest()[:16]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--python", default=sys.executable, help="the Python that will import it; default: this one")
    parser.add_argument("--release", type=Path, help="an unpacked release, .../kiln; default: for the fake driver")
    arguments = parser.parse_args()
    print(make_site(arguments.folder.absolute(), arguments.python, arguments.release))


if __name__ == "__main__":
    main()
