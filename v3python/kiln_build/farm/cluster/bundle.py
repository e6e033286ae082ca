"""The sources of a build, for machines that do not have them: each file once, by the digest of them all."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from kiln_build.farm.job import Host
from kiln_recipe.console.appear import appear
from kiln_recipe.errors import EnvironmentProblem

if TYPE_CHECKING:
    from kiln_recipe.compile.toolchain import Toolchain

_HEAP, _PRELOAD = "heap.so", "preload.so"


@dataclass(frozen=True)
class There:
    """Stands for the `Host` of a worker's machine among the initializer's arguments, until they are there."""


class Bundle(msgspec.Struct, frozen=True):
    """All that a machine with Kiln and the toolchain lacks in order to run the jobs of a build.

    Attributes:
        files: contents, by path in the bundle: the folder of each kernel, since its file imports from beside it, and
            the library that makes an assembler's bytes equal, and the one that is preloaded into workers.
        sources: paths in the bundle, by the fingerprint of the function.
        toolchain: identity of the one that the build's keys are of.
    """

    files: dict[str, bytes]
    sources: dict[str, str]
    toolchain: str

    @property
    def digest(self) -> str:
        """By which tasks name it."""
        return hashlib.sha256(msgspec.json.encode(self, order="sorted")).hexdigest()

    def preload(self, place: Path) -> Path | None:
        """The library that is preloaded into workers, once it is unpacked."""
        return self._folder(place) / _PRELOAD if _PRELOAD in self.files else None

    def _folder(self, place: Path) -> Path:
        return place / self.digest[:16]

    def unpack(self, place: Path, store: str, toolchain: Toolchain) -> Host:
        """The host of this machine, with the sources in a folder of `place`.

        Args:
            store: as the workers of this machine reach it.
            toolchain: the one that is installed here.
        """
        folder = self._folder(place)
        for name, content in self.files.items():
            path = folder / name
            if not path.is_file() or path.stat().st_size != len(content):  # what cleans /tmp takes single files
                path.parent.mkdir(parents=True, exist_ok=True)
                with appear(path) as fresh:
                    fresh.write_bytes(content)
        sources = {fingerprint: str(folder / path) for fingerprint, path in self.sources.items()}
        if _HEAP in self.files:
            toolchain = replace(toolchain, heap=str(folder / _HEAP))
        return Host(sources, toolchain, store)


def bundle_of(host: Host, preload: Path | None = None) -> Bundle:
    """What jobs need of the machine that they were planned on.

    Args:
        preload: a library to preload into workers.

    Raises:
        EnvironmentProblem: a source cannot be read.
    """
    files: dict[str, bytes] = {}
    sources: dict[str, str] = {}
    folders: dict[Path, str] = {}
    try:
        for fingerprint, source in sorted(host.sources.items()):
            path = Path(source)
            name = folders.setdefault(path.parent, str(len(folders)))
            sources[fingerprint] = f"{name}/{path.name}"
        for folder, name in folders.items():
            files |= {f"{name}/{path.name}": path.read_bytes() for path in sorted(folder.glob("*.py"))}
        if heap := getattr(host.toolchain, "heap", ""):
            files[_HEAP] = Path(heap).read_bytes()
        if preload is not None:
            files[_PRELOAD] = preload.read_bytes()
    except OSError as error:
        raise EnvironmentProblem(f"{error.filename} cannot be read ({error.strerror}); workers need it")
    return Bundle(files, sources, host.toolchain.identity)
