"""Compiles kiln._core, the Python package's extension, for one Python.

It is built as the libraries are: in a folder of its own on relative names, by zig for glibc 2.28, with libc++ linked
in. From Python 3.12 on one extension serves all (the stable ABI); 3.10 and 3.11 want one each.
"""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from kiln_build.native import argument_files, library, native
from kiln_build.native.library import Compiler
from kiln_build.native.pythons import STABLE, Headers
from kiln_recipe.errors import ToolchainError

# Besides those of csrc/flags.txt.
_FLAGS = ("-std=c++17", "-fvisibility-inlines-hidden", "-DNB_COMPACT_ASSERTIONS", "-DNB_DOMAIN=kiln",
          "-include", "stdio.h")  # nanobind counts on Python.h for it, and that of the stable ABI has none  # fmt: skip
_OURS = ("-Wall", "-Wextra", "-Wno-missing-field-initializers")
_THEIRS = ("-w", "-fno-strict-aliasing")  # nanobind's own sources, as it asks for
_LINK = ("-Wl,--version-script=core/exports.map", "-Wl,-rpath,$ORIGIN/lib", "-Wl,--enable-new-dtags")
LIBRARIES = ("libkiln.so.0", "libkiln_flash.so")  # that it links, and finds in lib/ beside it


def nanobind_folder() -> Path:
    """Where the locked nanobind is installed.

    Raises:
        ToolchainError: it is not.
    """
    spec = importlib.util.find_spec("nanobind")
    for folder in spec.submodule_search_locations or () if spec else ():
        if (Path(folder) / "src/nb_combined.cpp").is_file():
            return Path(folder)
    raise ToolchainError(
        "this Python lacks the package nanobind, which building the extension needs; a build leaves a Python with "
        "all packages in <workspace>/venv/bin/python"
    )


def build_extension(
    sources: Path, nanobind: Path, public: Mapping[str, bytes], libraries: Mapping[str, Path], headers: Headers,
    compiler: Compiler, folder: Path, jobs: int, say: Callable[[str], None] = lambda _: None,
) -> Path:  # fmt: skip
    """Builds the extension; its path in `folder`. What was built from the same is not built again.

    Args:
        sources: bindings/core of the source tree.
        nanobind: see nanobind_folder().
        public: the release's headers by path, "kiln/kiln.h".
        libraries: libkiln.so.0 and libkiln_flash.so by name; it finds them in lib/ beside it.
        say: is told that it is compiled, which takes a minute or more.

    Raises:
        NativeBuildError: the compiler rejected something; carries what it said.
    """
    source = sources.parents[1]
    files = {f"core/{path.name}": path.read_bytes() for path in sorted(sources.iterdir()) if path.is_file()}
    files["core/layout.h"] = (sources.parent / "layout.h").read_bytes()
    files |= {f"core/{name}": text.encode() for name, text in argument_files.core_files(source).items()}
    files |= {
        f"nanobind/{path.relative_to(nanobind).as_posix()}": path.read_bytes()
        for part in ("include", "src", "ext")
        for path in sorted((nanobind / part).rglob("*"))
        if path.suffix in (".h", ".cpp")
    }
    files |= {f"include/{name}": data for name, data in public.items()}
    files |= {name: libraries[name].read_bytes() for name in LIBRARIES}
    # Those alone: beside them, in /usr/include, lie the headers of the host's glibc, which is not zig's.
    files |= {
        f"multiarch/{folder.parent.name}/{folder.name}/{path.relative_to(folder).as_posix()}": path.read_bytes()
        for folder in headers.multiarch
        for path in sorted(folder.rglob("*.h"))
    }
    units = ("nanobind/src/nb_combined.cpp", *sorted(name for name in files if name.endswith(".cc")))
    define = ("-DPy_LIMITED_API=0x{:02x}{:02x}0000".format(*STABLE),) if headers.is_stable else ()
    python = hashlib.sha256(b"".join(_header_bytes(headers))).hexdigest()
    flags = native.read_flags(source)
    settings = (compiler.identity, flags.c, flags.linked, _FLAGS, _OURS, _THEIRS, _LINK, define, python, units)

    def make(work: Path) -> None:
        later = " and later" if headers.is_stable else ""
        say("compiling the extension for Python {}.{}{}".format(*(STABLE if later else headers.version), later))
        _build(units, flags, define, headers, compiler, work, jobs)

    return library.build_once(folder, headers.file_name, settings, files, make)


def _build(
    units: Sequence[str], flags: library.Flags, define: tuple[str, ...], headers: Headers, compiler: Compiler,
    work: Path, jobs: int,
) -> None:  # fmt: skip
    include = ["-Iinclude", "-Icore", "-isystem", "nanobind/include", "-isystem", "nanobind/ext/robin_map/include"]
    for folder in (*headers.include, *(["multiarch"] if headers.multiarch else [])):
        include += ["-isystem", str(folder)]

    def compile_unit(unit: str) -> str:
        output = unit.replace("/", "_") + ".o"
        own = _THEIRS if unit.startswith("nanobind/") else _OURS
        library.run(
            compiler, [*compiler.cxx, *flags.c, *_FLAGS, *own, *define, *include, "-c", unit, "-o", output], work
        )
        return output

    with ThreadPoolExecutor(max(1, jobs)) as pool:
        objects = list(pool.map(compile_unit, units))
    # The libraries by their bare names: that is how one without a SONAME would be looked for.
    library.run(compiler, [*compiler.cxx, *flags.linked, *_LINK, *objects, *LIBRARIES, "-o", headers.file_name], work)


def _header_bytes(headers: Headers) -> list[bytes]:
    return [
        path.relative_to(folder).as_posix().encode() + path.read_bytes()
        for folder in headers.include
        for path in sorted(folder.rglob("*.h"))
    ]
