"""A shared library: compiled from its parts and linked, each object and each library once for the same inputs.

Commands run inside a folder of their own on relative names, so that nothing of where the build stands enters a library.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from kiln_build.base import kept
from kiln_recipe.errors import NativeBuildError


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
        zstd: others' C, zstd's first of all.
        linked: all that is linked.
        library: libraries.
    """

    c: tuple[str, ...]
    cxx: tuple[str, ...]
    zstd: tuple[str, ...]
    linked: tuple[str, ...]
    library: tuple[str, ...]


@dataclass(frozen=True)
class Part:
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
        include = [
            "-Iinclude",
            "-Icsrc",
            "-Izstd",
            "-Imonocypher",
            *(word for path in self.system for word in ("-isystem", str(path))),
        ]
        command = [*compiler.c, *flags.zstd] if unit.endswith(".c") else [*compiler.cxx, *flags.cxx]
        read = {name: contents[name] for name in self._read_by(unit)}

        def make(place: Path) -> None:
            run(compiler, [*command, *include, "-c", unit, "-o", output], place)

        return build_once(folder / "objects", output, (compiler.identity, flags, unit, self.identity), read, make)

    def _read_by(self, unit: str) -> tuple[str, ...]:
        """A unit and all that it may include: of others' C its own files, else whatever is no unit."""
        within = f"{unit.partition('/')[0]}/" if unit.endswith(".c") else ""
        others = (name for name in self.contents if name not in self.units and name.startswith(within))
        return (unit, *others)


@dataclass(frozen=True)
class Library:
    """A shared library.

    Attributes:
        name: its file, which is its SONAME.
        exports: a linker's version script.
        link: what else the linker is told.
        needs: libraries of the build that it needs.
        stubs: by SONAME, C that stands at linking for a library that it needs and no build has.
    """

    name: str
    parts: tuple[Part, ...]
    exports: Path
    link: tuple[str, ...]
    needs: tuple[str, ...] = ()
    stubs: Mapping[str, str] = field(default_factory=dict)

    def build(self, compiler: Compiler, flags: Flags, folder: Path, needed: Mapping[str, Path]) -> Path:
        """Links it, of objects that are made where they are not there."""
        made = [make() for part in self.parts for make in part.objects(compiler, flags, folder)]
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
