"""Compiles the libraries: with zig for glibc 2.28 (the release), or with any C++17 compiler that is named.

`csrc/core/sources.txt` lists the core's sources and `csrc/flags.txt` the flags, for this module and for CMakeLists.txt.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import io
import shutil
import sys
import tarfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from kiln_build.native.adapter import Adapter
from kiln_build.native.library import Compiler, Flags, Library, Part, build_once, run
from kiln_recipe.compile.lock import Lock
from kiln_recipe.console.appear import appear_folder
from kiln_recipe.errors import ToolchainError

if TYPE_CHECKING:
    from kiln_recipe.compile.toolchain import Toolchain
    from kiln_recipe.targets import Target

# The public headers of every release; a family's recipe names its own.
CORE_HEADERS = ("kiln.h", "kiln.hpp", "family.h")

ZIG_TARGET = "x86_64-linux-gnu.2.28"
ZIG_CPU = "x86_64"  # what manylinux promises and no more

_BESIDE = ("-Wl,-rpath,$ORIGIN", "-Wl,--enable-new-dtags")  # needs what lies in the same folder


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


def write_generated(
    families: Sequence[FamilySources], folder: Path, packs: Mapping[str, str], notices: Mapping[str, str]
) -> None:
    """Leaves in `folder`, which is emptied first, what CMakeLists.txt takes as KILN_GENERATED.

    Args:
        packs: the digest of each pack's index, which the tables hold, by the pack's file; empty without images.
        notices: texts by path below share/kiln/.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for family in families:
        (folder / f"{family.name}.cc").write_text(family.tables)
        if family.header:
            (folder / f"{family.name}.h").write_text(family.header)
        for name, text in family.generated.items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(text)
    if packs:
        (folder / "packs.txt").write_text("".join(f"{digest}  {file}\n" for file, digest in sorted(packs.items())))
    for name, text in notices.items():
        (folder / "notices" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "notices" / name).write_text(text)


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


def own_zig(cache: Path) -> Compiler:
    """`zig_compiler` of the Python that runs."""
    return zig_compiler(sys.executable, cache, importlib.metadata.version("ziglang"))


@dataclass(frozen=True)
class Vendored:
    """C of others that is compiled into the runtime.

    Attributes:
        name: its main file is <name>.c.
        package: whose source distribution, in the toolchain's lock, has it.
        holds: whether a path in that, below its top folder, is of this C.
    """

    name: str
    package: str
    holds: Callable[[str], bool]


# zstd's amalgamated decoder, and Monocypher, whose Ed25519 checks signatures of packs.
VENDORED = (
    Vendored("zstd", "zstandard", lambda path: path.startswith("zstd/") and path.count("/") == 1),
    Vendored("monocypher", "pymonocypher", lambda path: path in ("monocypher.c", "monocypher.h")),
)


def extract_source(source: Vendored, archive: Path, sha256: str, folder: Path) -> Path:
    """The folder of C out of a source distribution.

    Args:
        sha256: what the toolchain's lock says of the archive.
        folder: gets <name>-<sha256>/, which appears complete; those of other archives are removed.

    Raises:
        ToolchainError: the archive is not there, is not what is locked, or does not hold the source.
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
    done = folder / f"{source.name}-{sha256}"
    for other in (*folder.glob(f"{source.name}*"), *folder.glob(f".{source.name}-*")):
        if other != done:
            shutil.rmtree(other, ignore_errors=True)
    sources = {}
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        for member in tar.getmembers():
            path = Path(member.name)
            inside = member.name.partition("/")[2]
            if source.holds(inside) and path.suffix in (".c", ".h") and member.isfile():
                file = tar.extractfile(member)
                if file is not None:
                    sources[path.name] = file.read()
    if f"{source.name}.c" not in sources:
        raise ToolchainError(f"{archive} does not hold the C source {source.name}.c")
    if not _holds(done, sources):  # what an earlier build unpacked may have been changed since
        if done.is_symlink() or done.is_file():
            done.unlink()
        with appear_folder(done) as fresh:
            for name, content in sources.items():
                (fresh / name).write_bytes(content)
    return done


def extract_sources(the_lock: Lock, cache: Path, folder: Path) -> dict[str, Path]:
    """The folders of all of VENDORED, by name, out of the locked archives in `cache`.

    Raises:
        ToolchainError: as `extract_source`.
    """
    locked = {one: the_lock.source_of(one.package) for one in VENDORED}
    return {one.name: extract_source(one, cache / file.name, file.sha256, folder) for one, file in locked.items()}


def _holds(folder: Path, files: Mapping[str, bytes]) -> bool:
    """Whether it has just these files."""
    try:
        there = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file() and not path.is_symlink()}
        return there == files and len(there) == sum(1 for _ in folder.iterdir())
    except OSError:
        return False


def build_libraries(
    root: Path, vendored: Mapping[str, Path], version_header: str, families: Sequence[FamilySources],
    adapters: Sequence[Adapter], compiler: Compiler, folder: Path, jobs: int,
) -> dict[str, Path]:  # fmt: skip
    """Builds `libkiln.so.0`, `libkiln_<family>.so` for each family, and the adapters of these families; by name.

    A library whose inputs and compiler are those of the last time is not built again.

    Args:
        vendored: by the names of VENDORED, what `extract_source` made of each.

    Raises:
        NativeBuildError: the compiler rejected something; carries what it said.
    """
    flags = read_flags(root)
    core = _core(root, vendored, version_header)
    headers = _public_headers(root, version_header)
    name = "libkiln.so.0"
    made = {name: Library(name, (core,), root / "csrc/kiln.map", ("-ldl", "-lpthread"))}
    public: dict[str, Path | str] = dict(headers)
    parts = {}
    for family in families:
        parts[family.name] = _family(family, headers)
        public |= _below_include(family.public)
        name = f"libkiln_{family.name}.so"
        made[name] = Library(name, (parts[family.name],), root / "csrc/kiln.map", _BESIDE, needs=("libkiln.so.0",))
    for adapter in adapters:
        if adapter.over in parts:
            family = next(family for family in families if family.name == adapter.over)
            own = _adapter(adapter, public, family.generated_for(adapter.name))
            made[adapter.library] = _adapter_library(adapter, own, core, parts[adapter.over])
    return _build_all(made, compiler, flags, folder, jobs)


def _build_all(
    made: Mapping[str, Library], compiler: Compiler, flags: Flags, folder: Path, jobs: int
) -> dict[str, Path]:
    """All objects first, those of a part that several libraries have once, then the libraries, each after those that it
    needs; `jobs` commands at a time."""
    libraries: dict[str, Path] = {}

    def link(library: Library) -> Path:
        needed = {f"lib/{need}": libraries[need] for need in library.needs}
        return library.build(compiler, flags, folder, needed)

    with ThreadPoolExecutor(max(1, jobs)) as pool:
        parts = {id(part): part for library in made.values() for part in library.parts}
        makers = [maker for part in parts.values() for maker in part.objects(compiler, flags, folder)]
        for _ in pool.map(lambda maker: maker(), makers):
            pass
        while waiting := [library for library in made.values() if library.name not in libraries]:
            ready = [library for library in waiting if set(library.needs) <= libraries.keys()]
            if not ready:
                raise ValueError(f"{waiting[0].name} needs {waiting[0].needs}, which are not all of this build")
            libraries |= zip([library.name for library in ready], pool.map(link, ready))
    return {name: libraries[name] for name in made}


def with_heap(chain: Toolchain, targets: Iterable[Target], root: Path, compiler: Compiler, folder: Path) -> Toolchain:
    """The toolchain that compiles for these targets: with the library of `build_heap`, if one of them is NVIDIA's.

    Raises:
        NativeBuildError: as there.
    """
    if not any(target.vendor == "nvidia" for target in targets):
        return chain
    return replace(chain, heap=str(build_heap(root, compiler, folder)))


def build_heap(root: Path, compiler: Compiler, folder: Path) -> Path:
    """Builds what NVIDIA's assemblers are run with, so that their bytes are equal everywhere (csrc/assembler/heap.c).

    Raises:
        NativeBuildError: the compiler rejected it; carries what it said.
    """
    return _build_preloaded(root / "csrc/assembler/heap.c", root, compiler, folder)


def build_memory(root: Path, compiler: Compiler, folder: Path) -> Path:
    """Builds what workers are run with, so that they allocate in less time (csrc/worker/memory.c).

    Raises:
        NativeBuildError: as `build_heap`.
    """
    return _build_preloaded(root / "csrc/worker/memory.c", root, compiler, folder)


def _build_preloaded(source: Path, root: Path, compiler: Compiler, folder: Path) -> Path:
    """A library of one file of C, for LD_PRELOAD."""
    unit, name, flags = source.name, f"{source.stem}.so", read_flags(root)
    words = [*compiler.c, *flags.c, "-std=c11", "-Wall", "-Wextra", *flags.linked, unit, "-o", name]
    contents = {unit: source.read_bytes()}
    return build_once(folder, name, (compiler.identity, flags), contents, lambda work: run(compiler, words, work))


def _below_include(headers: Mapping[str, Path | str]) -> dict[str, Path | str]:
    return {f"include/{name}": header for name, header in headers.items()}


def _public_headers(root: Path, version_header: str) -> dict[str, Path | str]:
    files: dict[str, Path | str] = {f"include/kiln/{name}": root / "include/kiln" / name for name in CORE_HEADERS}
    return files | {"include/kiln/version.h": version_header}


def _core(root: Path, vendored: Mapping[str, Path], version_header: str) -> Part:
    sources = [
        line.strip()
        for line in (root / "csrc/core/sources.txt").read_text().splitlines()
        if line.strip() and not line.startswith("#")
    ]
    files = {f"csrc/core/{p.name}": p for p in sorted((root / "csrc/core").iterdir()) if p.is_file()}
    others = {f"{name}/{p.name}": p for name, folder in vendored.items() for p in sorted(folder.glob("*.[ch]"))}
    units = (*(f"csrc/core/{source}" for source in sources), *(f"{name}/{name}.c" for name in vendored))
    return Part(_public_headers(root, version_header) | files | others, units)


def _family(family: FamilySources, headers: Mapping[str, Path | str]) -> Part:
    sources = {f"family/{path.name}": path for path in family.sources}
    private = {f"family/{path.name}": path for source in family.sources for path in source.parent.glob("*.h")}
    public = {f"include/kiln/{path.name}": path for path in family.headers}
    texts = {f"family/{name}": text for name, text in family.generated_for(family.name).items()}
    texts["family/tables.cc"] = family.tables
    return Part({**headers, **public, **private, **sources, **texts}, ("family/tables.cc", *sources))


def _adapter(adapter: Adapter, headers: Mapping[str, Path | str], generated: Mapping[str, str]) -> tuple[Part, ...]:
    """A part for each folder, with what the folders before it share."""
    parts: list[Part] = []
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
        parts.append(Part({**contents, **own}, units, adapter.system, adapter.identity))
        contents |= {name: path for name, path in own.items() if name.endswith(".h")}
    return tuple(parts)


def _adapter_library(adapter: Adapter, own: tuple[Part, ...], core: Part, family: Part) -> Library:
    exports = adapter.folders[-1] / "exports.map"
    if adapter.is_whole:
        return Library(adapter.library, (core, family, *own), exports, ("-ldl", "-lpthread"))
    needs = ("libkiln.so.0", f"libkiln_{adapter.over}.so")
    stubs = {}
    if adapter.foreign:
        soname, names = adapter.foreign
        stubs[soname] = "".join(f"void {name}(void) {{}}\n" for name in names)
    return Library(adapter.library, own, exports, _BESIDE, needs, stubs)
