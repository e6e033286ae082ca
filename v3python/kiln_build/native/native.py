"""Compiles the libraries: with zig for glibc 2.28 (the release), or with any C++17 compiler that is named.

`csrc/core/sources.txt` lists the core's sources and `csrc/flags.txt` the flags, for this module and for CMakeLists.txt.
Commands run inside a folder of their own on relative names, so that nothing of where the build stands enters a library.
"""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from kiln_build.base import kept
from kiln_build.base.appear import appear_folder
from kiln_recipe.errors import NativeBuildError, ToolchainError

# The public headers of every release; a family's recipe names its own.
CORE_HEADERS = ("kiln.h", "kiln.hpp", "family.h")

ZIG_TARGET = "x86_64-linux-gnu.2.28"
ZIG_CPU = "x86_64"  # what manylinux promises and no more

_BESIDE = ("-Wl,-rpath,$ORIGIN", "-Wl,--enable-new-dtags")  # needs what lies in the same folder


@dataclass(frozen=True)
class Compiler:
    """A C and C++ compiler.

    Attributes:
        c, cxx: their commands.
        environment: variables over and above the process's own.
        identity: what stands for it in keys and in the manifest.
    """

    c: tuple[str, ...]
    cxx: tuple[str, ...]
    environment: tuple[tuple[str, str], ...]
    identity: str


@dataclass(frozen=True)
class Flags:
    """What a release's compiler is told: the flags of csrc/flags.txt, and those that CMake has by a build's type.

    Attributes:
        c: all that is compiled.
        cxx: C++ without its runtime.
        zstd: zstd's C.
        linked: all that is linked.
        library: libraries.
    """

    c: tuple[str, ...]
    cxx: tuple[str, ...]
    zstd: tuple[str, ...]
    linked: tuple[str, ...]
    library: tuple[str, ...]


def read_flags(root: Path) -> Flags:
    """The flags of a source tree."""
    listed: dict[str, list[str]] = {}
    for line in (root / "csrc/flags.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            kind, flag = line.split()
            listed.setdefault(kind, []).append(flag)
    c = ("-O2", "-g0", "-DNDEBUG", *listed["compile"], *listed["optimized"])
    linked = ("-shared", *listed["link"], "-Wl,--build-id=none", "-Wl,-s")
    return Flags(
        c=c,
        cxx=(*c, "-std=c++17", *listed["c++"]),
        zstd=(*c, *listed["zstd"], "-w"),
        linked=linked,
        library=(*linked, *listed["library"]),
    )


@dataclass(frozen=True)
class FamilySources:
    """What a family's library is made of: the generated tables, and hand-written typed entries if it has any.

    Attributes:
        sources: of the entries; they may include what lies beside them (*.h).
        headers: hand-written public headers.
        header: the text of the public header that was generated, kiln/<name>.h; "" where there are hand-written ones.
        generated: private headers of the entries and of the adapters, texts by "<family's or adapter's name>/<file>".
    """

    name: str
    tables: str
    sources: tuple[Path, ...]
    headers: tuple[Path, ...]
    header: str = ""
    generated: Mapping[str, str] = field(default_factory=dict)

    @property
    def public(self) -> dict[str, Path | str]:
        """Its public headers by their path below include/."""
        generated = {f"kiln/{self.name}.h": self.header} if self.header else {}
        return generated | {f"kiln/{path.name}": path for path in self.headers}

    def generated_for(self, name: str) -> dict[str, str]:
        """The private headers of the family's own entries, or of an adapter, by file."""
        return {path.partition("/")[2]: text for path, text in self.generated.items() if path.partition("/")[0] == name}


@dataclass(frozen=True)
class Adapter:
    """A library over a family's, which offers it by the interface of somebody else.

    Attributes:
        name: of its target in the CMake package.
        library: its file, which is its SONAME.
        over: the family.
        folders: have its sources (*.cc) and what they share (*.h). The sources of the last may include what the others
            have, and alone see `headers`; it has exports.map, a linker's version script.
        links: what stands beside it, by name: where it leads.
        headers: its public headers, by their path below include/: a file, or its text.
        private: headers that lie elsewhere and are no part of the release, by name.
        system: folders of headers that are another's, and no part of the release.
        foreign: the SONAME of a library that it needs and that no build has, with the names that it takes from there.
        is_whole: it has the core's and the family's code in itself, and needs neither library.
        prefix: a folder of the release that is an installed prefix of its own, with this library, its headers, the
            packs and `package`; "": none.
        is_main: it is in the release's own lib/ and include/ too.
        images: a prefix's folder of packs below its lib/.
        package: files of a prefix by path: texts.
        identity: what stands for `system` in keys.
    """

    name: str
    library: str
    over: str
    folders: tuple[Path, ...]
    links: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, Path | str] = field(default_factory=dict)
    private: Mapping[str, Path] = field(default_factory=dict)
    system: tuple[Path, ...] = ()
    foreign: tuple[str, tuple[str, ...]] | None = None
    is_whole: bool = False
    prefix: str = ""
    is_main: bool = True
    images: str = ""
    package: Mapping[str, str] = field(default_factory=dict)
    identity: str = ""


def write_generated(families: Sequence[FamilySources], folder: Path) -> None:
    """Leaves in `folder`, which is emptied first, what CMakeLists.txt takes as KILN_GENERATED."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for family in families:
        (folder / f"{family.name}.cc").write_text(family.tables)
        if family.header:
            (folder / f"{family.name}.h").write_text(family.header)
        for name, text in family.generated.items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(text)


def zig_compiler(python: str, cache: Path, version: str) -> Compiler:
    """The release's compiler: zig from its locked package, its caches in the workspace."""
    command = (python, "-m", "ziglang")
    target = ("-target", ZIG_TARGET, f"-mcpu={ZIG_CPU}")
    return Compiler(
        c=(*command, "cc", *target),
        cxx=(*command, "c++", *target),
        environment=(("ZIG_GLOBAL_CACHE_DIR", str(cache)), ("ZIG_LOCAL_CACHE_DIR", str(cache))),
        identity=f"zig {version} {ZIG_TARGET} {ZIG_CPU}",
    )


def extract_zstd(archive: Path, sha256: str, folder: Path) -> Path:
    """The folder of zstd's amalgamated C source from zstandard's source distribution.

    Args:
        sha256: what the toolchain's lock says of the archive.
        folder: gets zstd-<sha256>/, which appears complete; those of other archives are removed.

    Raises:
        ToolchainError: the archive is not there, is not what is locked, or does not hold zstd's source.
    """
    try:
        data = archive.read_bytes()  # once, so that what is unpacked is what was checked
    except OSError as error:
        raise ToolchainError(f"{archive} cannot be read ({error.strerror}); `kiln fetch` downloads it")
    found = hashlib.sha256(data).hexdigest()
    if found != sha256:
        raise ToolchainError(
            f"{archive} has SHA-256 {found}, but the toolchain's lock says {sha256}; "
            "remove the file, and `kiln fetch` downloads the right one"
        )
    done = folder / f"zstd-{sha256}"
    for other in (*folder.glob("zstd*"), *folder.glob(".zstd-*")):
        if other != done:
            shutil.rmtree(other, ignore_errors=True)
    sources = {}
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        for member in tar.getmembers():
            path = Path(member.name)
            if path.parent.name == "zstd" and path.suffix in (".c", ".h") and member.isfile():
                file = tar.extractfile(member)
                if file is not None:
                    sources[path.name] = file.read()
    if "zstd.c" not in sources:
        raise ToolchainError(f"{archive} does not hold zstd's C source (zstd/zstd.c)")
    if not _holds(done, sources):  # what an earlier build unpacked may have been changed since
        if done.is_symlink() or done.is_file():
            done.unlink()
        with appear_folder(done) as fresh:
            for name, content in sources.items():
                (fresh / name).write_bytes(content)
    return done


def _holds(folder: Path, files: Mapping[str, bytes]) -> bool:
    """Whether it has just these files."""
    try:
        there = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file() and not path.is_symlink()}
        return there == files and len(there) == sum(1 for _ in folder.iterdir())
    except OSError:
        return False


def build_libraries(
    root: Path, zstd: Path, version_header: str, families: Sequence[FamilySources], adapters: Sequence[Adapter],
    compiler: Compiler, folder: Path, jobs: int,
) -> dict[str, Path]:  # fmt: skip
    """Builds `libkiln.so.0`, `libkiln_<family>.so` for each family, and the adapters of these families; by name.

    A library whose inputs and compiler are those of the last time is not built again.

    Raises:
        NativeBuildError: the compiler rejected something; carries what it said.
    """
    flags = read_flags(root)
    core = _core(root, zstd, version_header)
    headers = _public_headers(root, version_header)
    name = "libkiln.so.0"
    made = {name: _Library(name, (core,), root / "csrc/kiln.map", ("-ldl", "-lpthread"))}
    public: dict[str, Path | str] = dict(headers)
    parts = {}
    for family in families:
        parts[family.name] = _family(family, headers)
        public |= _below_include(family.public)
        name = f"libkiln_{family.name}.so"
        made[name] = _Library(name, (parts[family.name],), root / "csrc/kiln.map", _BESIDE, needs=("libkiln.so.0",))
    for adapter in adapters:
        if adapter.over in parts:
            family = next(family for family in families if family.name == adapter.over)
            own = _adapter(adapter, public, family.generated_for(adapter.name))
            made[adapter.library] = _adapter_library(adapter, own, core, parts[adapter.over])
    libraries: dict[str, Path] = {}
    for name, library in made.items():
        needed = {f"lib/{need}": libraries[need] for need in library.needs}
        libraries[name] = library.build(compiler, flags, folder, jobs, needed)
    return libraries


@dataclass(frozen=True)
class _Part:
    """Sources that are compiled alike, with all that they may include; their objects may go into several libraries.

    Attributes:
        contents: by path in the folder where they are compiled.
        units: of those, the ones that are compiled.
        system: folders of others' headers; `identity` stands for them in keys.
    """

    contents: Mapping[str, Path | str]
    units: tuple[str, ...]
    system: tuple[Path, ...] = ()
    identity: str = ""

    def objects(self, compiler: Compiler, flags: Flags, folder: Path) -> list[Callable[[], Path]]:
        """What makes each unit's object, or takes what was compiled of it before: a build with other images has other
        tables, and all else is as it was."""
        contents = {name: _bytes_of(content) for name, content in self.contents.items()}
        return [partial(self._object, compiler, flags, folder, unit, contents) for unit in self.units]

    def _object(self, compiler: Compiler, flags: Flags, folder: Path, unit: str, contents: Mapping[str, bytes]) -> Path:
        output = unit.replace("/", "_") + ".o"
        include = ["-Iinclude", "-Icsrc", "-Izstd", *(word for path in self.system for word in ("-isystem", str(path)))]
        command = [*compiler.c, *flags.zstd] if unit.endswith(".c") else [*compiler.cxx, *flags.cxx]
        read = {name: contents[name] for name in self._read_by(unit)}

        def make(place: Path) -> None:
            run(compiler, [*command, *include, "-c", unit, "-o", output], place)

        return build_once(folder / "objects", output, (compiler.identity, flags, unit, self.identity), read, make)

    def _read_by(self, unit: str) -> tuple[str, ...]:
        """A unit and all that it may include: of zstd its own files, else whatever is no unit."""
        within = "zstd/" if unit.startswith("zstd/") else ""
        others = (name for name in self.contents if name not in self.units and name.startswith(within))
        return (unit, *others)


@dataclass(frozen=True)
class _Library:
    """A shared library.

    Attributes:
        name: its file, which is its SONAME.
        exports: a linker's version script.
        link: what else the linker is told.
        needs: libraries of the build that it needs.
        stubs: by SONAME, C that stands at linking for a library that it needs and no build has.
    """

    name: str
    parts: tuple[_Part, ...]
    exports: Path
    link: tuple[str, ...]
    needs: tuple[str, ...] = ()
    stubs: Mapping[str, str] = field(default_factory=dict)

    def build(self, compiler: Compiler, flags: Flags, folder: Path, jobs: int, needed: Mapping[str, Path]) -> Path:
        with ThreadPoolExecutor(max(1, jobs)) as pool:
            makers = [maker for part in self.parts for maker in part.objects(compiler, flags, folder)]
            made = list(pool.map(lambda maker: maker(), makers))
        objects = {f"objects/{number}.o": path for number, path in enumerate(made)}
        contents = {
            name: path.read_bytes() for name, path in {**objects, **needed, "exports.map": self.exports}.items()
        }
        settings = (compiler.identity, flags, self.link, tuple(self.stubs.items()))

        def make(work: Path) -> None:
            for soname, source in self.stubs.items():
                (work / "lib").mkdir(exist_ok=True)
                (work / "stub.c").write_text(source)
                stub = ["-shared", "-nostdlib", f"-Wl,-soname,{soname}", "stub.c", "-o", f"lib/{soname}"]
                run(compiler, [*compiler.c, *stub], work)
            soname = f"-Wl,-soname,{self.name}"
            others = [*needed, *(f"lib/{stub}" for stub in self.stubs)]
            link = [*flags.library, "-Wl,--version-script=exports.map", *objects, soname, *self.link, *others]
            run(compiler, [*compiler.c, *link, "-o", self.name], work)

        return build_once(folder, self.name, settings, contents, make)


def _bytes_of(content: Path | str) -> bytes:
    return content.read_bytes() if isinstance(content, Path) else content.encode()


def _below_include(headers: Mapping[str, Path | str]) -> dict[str, Path | str]:
    return {f"include/{name}": header for name, header in headers.items()}


def _public_headers(root: Path, version_header: str) -> dict[str, Path | str]:
    files: dict[str, Path | str] = {f"include/kiln/{name}": root / "include/kiln" / name for name in CORE_HEADERS}
    return files | {"include/kiln/version.h": version_header}


def _core(root: Path, zstd: Path, version_header: str) -> _Part:
    sources = [
        line.strip()
        for line in (root / "csrc/core/sources.txt").read_text().splitlines()
        if line.strip() and not line.startswith("#")
    ]
    files = {f"csrc/core/{p.name}": p for p in sorted((root / "csrc/core").iterdir()) if p.is_file()}
    zstd_files = {f"zstd/{p.name}": p for p in sorted(zstd.iterdir()) if p.suffix in (".c", ".h")}
    units = (*(f"csrc/core/{source}" for source in sources), "zstd/zstd.c")
    return _Part(_public_headers(root, version_header) | files | zstd_files, units)


def _family(family: FamilySources, headers: Mapping[str, Path | str]) -> _Part:
    sources = {f"family/{path.name}": path for path in family.sources}
    private = {f"family/{path.name}": path for source in family.sources for path in source.parent.glob("*.h")}
    public = {f"include/kiln/{path.name}": path for path in family.headers}
    texts = {f"family/{name}": text for name, text in family.generated_for(family.name).items()}
    texts["family/tables.cc"] = family.tables
    return _Part({**headers, **public, **private, **sources, **texts}, ("family/tables.cc", *sources))


def _adapter(adapter: Adapter, headers: Mapping[str, Path | str], generated: Mapping[str, str]) -> tuple[_Part, ...]:
    """A part for each folder, with what the folders before it share."""
    parts: list[_Part] = []
    contents: dict[str, Path | str] = dict(headers)
    contents |= {f"adapter/{name}": header for name, header in adapter.private.items()}
    contents |= {f"adapter/{name}": text for name, text in generated.items()}
    top = adapter.folders[0]
    for number, folder in enumerate(adapter.folders):
        own = {
            f"adapter/{path.relative_to(top).as_posix()}": path
            for path in sorted(folder.iterdir())
            if path.suffix in (".cc", ".h")
        }
        if number == len(adapter.folders) - 1:
            contents |= _below_include(adapter.headers)
        units = tuple(name for name in own if name.endswith(".cc"))
        parts.append(_Part({**contents, **own}, units, adapter.system, adapter.identity))
        contents |= {name: path for name, path in own.items() if name.endswith(".h")}
    return tuple(parts)


def _adapter_library(adapter: Adapter, own: tuple[_Part, ...], core: _Part, family: _Part) -> _Library:
    exports = adapter.folders[-1] / "exports.map"
    if adapter.is_whole:
        return _Library(adapter.library, (core, family, *own), exports, ("-ldl", "-lpthread"))
    needs = ("libkiln.so.0", f"libkiln_{adapter.over}.so")
    stubs = {}
    if adapter.foreign:
        soname, names = adapter.foreign
        stubs[soname] = "".join(f"void {name}(void) {{}}\n" for name in names)
    return _Library(adapter.library, own, exports, _BESIDE, needs, stubs)


def build_once(
    folder: Path, name: str, settings: tuple[object, ...], contents: Mapping[str, bytes], make: Callable[[Path], None]
) -> Path:
    """The file that `make` leaves as `name` in a folder of `contents`; what was made of the same is not made again.

    Args:
        folder: keeps it, under a name that tells what it was made of.
        settings: what it depends on besides the contents.
        contents: files by path.
        make: is given a folder of its own, which is removed afterwards.
    """
    key = hashlib.sha256(repr(settings).encode())
    for path in sorted(contents):
        key.update(f"{path} {len(contents[path])}\n".encode() + contents[path])
    done = folder / f"{name}-{key.hexdigest()[:16]}"
    if not kept.is_whole(done):
        folder.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix=f".{name}.", dir=folder))  # of its own: threads may make files of one name
        try:
            for path, data in contents.items():
                (work / path).parent.mkdir(parents=True, exist_ok=True)
                (work / path).write_bytes(data)
            make(work)
            os.replace(work / name, done)
            kept.seal(done)
        finally:
            shutil.rmtree(work, ignore_errors=True)
    return done


def run(compiler: Compiler, command: list[str], work: Path) -> None:
    """Runs a compiler's command in the folder `work`.

    Raises:
        NativeBuildError: it rejected something, or is not there; carries what it said.
    """
    environment = {**os.environ, **dict(compiler.environment)}
    try:
        done = subprocess.run(command, cwd=work, env=environment, capture_output=True, text=True, errors="replace")
    except FileNotFoundError as error:
        raise NativeBuildError(f"the compiler {command[0]} does not exist") from error
    if done.returncode:
        raise NativeBuildError(
            f"{' '.join(command)} failed with {done.returncode}:\n{(done.stdout + done.stderr)[-4000:]}"
        )
