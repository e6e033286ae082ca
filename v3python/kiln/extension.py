"""Compiles kiln._core, the Python package's extension, for one Python; and finds out whose headers a Python has.

It is built as the libraries are: in a folder of its own on relative names, by zig for glibc 2.28, with libc++ linked
in. From Python 3.12 on one extension serves all (the stable ABI); 3.10 and 3.11 want one each.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from kiln.errors import EnvironmentProblem, NativeBuildError, ToolchainError
from kiln.native import Compiler

STABLE = (3, 12)  # the first Python whose stable ABI has what nanobind needs

_FLAGS = ("-std=c++17", "-O2", "-g0", "-fPIC", "-fvisibility=hidden", "-fvisibility-inlines-hidden",
          "-ffunction-sections", "-fdata-sections", "-D_GNU_SOURCE", "-DNDEBUG", "-DNB_COMPACT_ASSERTIONS",
          "-DNB_DOMAIN=kiln")  # fmt: skip
_OURS = ("-Wall", "-Wextra", "-Wno-missing-field-initializers")
_THEIRS = ("-w", "-fno-strict-aliasing")  # nanobind's own sources, as it asks for
_LINK = ("-shared", "-Wl,--version-script=core/exports.map", "-Wl,-z,relro", "-Wl,-z,now", "-Wl,--gc-sections",
         "-Wl,--as-needed", "-Wl,--build-id=none", "-Wl,-s", "-Wl,-rpath,$ORIGIN/lib", "-Wl,--enable-new-dtags")  # fmt: skip
_LIBRARIES = ("libkiln.so.0", "libkiln_flash.so")

_ASK = """
import json, sys, sysconfig
paths = sysconfig.get_paths()
print(json.dumps({
    "implementation": sys.implementation.name,
    "version": list(sys.version_info[:2]),
    "full": sys.version.split()[0],
    "free_threaded": bool(sysconfig.get_config_var("Py_GIL_DISABLED")),
    "debug": bool(sysconfig.get_config_var("Py_DEBUG")),
    "machine": sysconfig.get_platform(),
    "include": sorted({paths["include"], paths["platinclude"]}),
}))
"""


@dataclass(frozen=True)
class Headers:
    """The headers of a CPython.

    Attributes:
        version: (3, 11).
        full: "3.11.7".
        include: folders.
    """

    version: tuple[int, int]
    full: str
    include: tuple[Path, ...]

    @property
    def is_stable(self) -> bool:
        """Whether an extension built with them is for the stable ABI."""
        return self.version >= STABLE

    @property
    def tags(self) -> tuple[str, str]:
        """Python and ABI tag of a wheel: ("cp311", "cp311"), ("cp312", "abi3")."""
        version = STABLE if self.is_stable else self.version
        python = "cp{}{}".format(*version)
        return python, "abi3" if self.is_stable else python

    @property
    def file_name(self) -> str:
        """What such a Python calls the extension."""
        if self.is_stable:
            return "_core.abi3.so"
        return "_core.cpython-{}{}-x86_64-linux-gnu.so".format(*self.version)


def headers_of(python: str) -> Headers:
    """The headers of a Python.

    Args:
        python: its command.

    Raises:
        EnvironmentProblem: it cannot be run, has no headers, or is one that Kiln's extension is not made for.
    """
    try:
        done = subprocess.run([python, "-I", "-c", _ASK], capture_output=True, text=True, timeout=60)
        facts = json.loads(done.stdout) if done.returncode == 0 else None
    except (OSError, ValueError, subprocess.TimeoutExpired):
        facts = None
    if facts is None:
        raise EnvironmentProblem(f"{python} is no Python that can be run; name one, python3.12 say")
    name = f"{python} (Python {facts['full']})"
    if facts["implementation"] != "cpython" or tuple(facts["version"]) < (3, 10):
        raise EnvironmentProblem(f"{name} is not what Kiln's extension is made for, which is CPython from 3.10 on")
    if facts["free_threaded"] or facts["debug"]:
        kind = "free-threaded" if facts["free_threaded"] else "debug"
        raise EnvironmentProblem(f"{name} is a {kind} build, which Kiln's extension is not made for; name another")
    if facts["machine"] != "linux-x86_64":
        raise EnvironmentProblem(f"{name} is for {facts['machine']}; Kiln's extension is made for linux-x86_64")
    include = tuple(Path(folder) for folder in facts["include"])
    if not any((folder / "Python.h").is_file() for folder in include):
        raise EnvironmentProblem(
            f"{name} has no headers: {include[0]}/Python.h is not there; "
            "install its development package (python3.X-dev, python3.X-devel)"
        )
    return Headers(tuple(facts["version"]), facts["full"], include)


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
        "the package nanobind, which the extension is made with, is not in this Python; a build leaves a Python with "
        "all packages in <workspace>/venv/bin/python"
    )


def build_extension(
    sources: Path, nanobind: Path, public: Mapping[str, bytes], libraries: Mapping[str, Path], headers: Headers,
    compiler: Compiler, folder: Path, jobs: int,
) -> Path:  # fmt: skip
    """Builds the extension; its path in `folder`. What was built from the same is not built again.

    Args:
        sources: bindings/core of the source tree.
        nanobind: see nanobind_folder().
        public: the release's headers by path, "kiln/kiln.h".
        libraries: libkiln.so.0 and libkiln_flash.so by name; it finds them in lib/ beside it.

    Raises:
        NativeBuildError: the compiler rejected something; carries what it said.
    """
    files = {f"core/{path.name}": path.read_bytes() for path in sorted(sources.iterdir()) if path.is_file()}
    files |= {
        f"nanobind/{path.relative_to(nanobind).as_posix()}": path.read_bytes()
        for part in ("include", "src", "ext")
        for path in sorted((nanobind / part).rglob("*"))
        if path.suffix in (".h", ".cpp")
    }
    files |= {f"include/{name}": data for name, data in public.items()}
    files |= {name: libraries[name].read_bytes() for name in _LIBRARIES}
    units = ("nanobind/src/nb_combined.cpp", *sorted(name for name in files if name.endswith(".cc")))
    define = ("-DPy_LIMITED_API=0x{:02x}{:02x}0000".format(*STABLE),) if headers.is_stable else ()
    python = hashlib.sha256(b"".join(_header_bytes(headers))).hexdigest()
    key = hashlib.sha256(repr((compiler.identity, _FLAGS, _OURS, _THEIRS, _LINK, define, python, units)).encode())
    for name in sorted(files):
        key.update(f"{name} {len(files[name])}\n".encode() + files[name])
    done = folder / f"{headers.file_name}-{key.hexdigest()[:16]}"
    if not done.is_file():
        work = folder / f".{headers.file_name}.{os.getpid()}"
        shutil.rmtree(work, ignore_errors=True)
        try:
            _build(files, units, define, headers, compiler, work, jobs)
            os.replace(work / headers.file_name, done)
        finally:
            shutil.rmtree(work, ignore_errors=True)
    return done


def _build(
    files: Mapping[str, bytes], units: Sequence[str], define: tuple[str, ...], headers: Headers, compiler: Compiler,
    work: Path, jobs: int,
) -> None:  # fmt: skip
    for name, data in files.items():
        (work / name).parent.mkdir(parents=True, exist_ok=True)
        (work / name).write_bytes(data)
    include = ["-Iinclude", "-Icore", "-isystem", "nanobind/include", "-isystem", "nanobind/ext/robin_map/include"]
    for folder in headers.include:
        include += ["-isystem", str(folder)]

    def compile_unit(unit: str) -> str:
        output = unit.replace("/", "_") + ".o"
        own = _THEIRS if unit.startswith("nanobind/") else _OURS
        _run(compiler, [*compiler.cxx, *_FLAGS, *own, *define, *include, "-c", unit, "-o", output], work)
        return output

    with ThreadPoolExecutor(max(1, jobs)) as pool:
        objects = list(pool.map(compile_unit, units))
    # The libraries by their bare names: that is how one without a SONAME would be looked for.
    _run(compiler, [*compiler.cxx, *_LINK, *objects, *_LIBRARIES, "-o", headers.file_name], work)


def _header_bytes(headers: Headers) -> list[bytes]:
    return [
        path.relative_to(folder).as_posix().encode() + path.read_bytes()
        for folder in headers.include
        for path in sorted(folder.rglob("*.h"))
    ]


def _run(compiler: Compiler, command: list[str], work: Path) -> None:
    environment = {**os.environ, **dict(compiler.environment)}
    try:
        done = subprocess.run(command, cwd=work, env=environment, capture_output=True, text=True, errors="replace")
    except FileNotFoundError as error:
        raise NativeBuildError(f"the compiler {command[0]} is not there") from error
    if done.returncode:
        raise NativeBuildError(
            f"{' '.join(command)} failed with {done.returncode}:\n{(done.stdout + done.stderr)[-4000:]}"
        )
