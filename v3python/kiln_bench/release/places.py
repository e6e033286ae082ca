"""Where the libraries of a release are: installed, in an unpacked release, in a tarball, or in a folder of wheels.

Of a tarball or of wheels, what is needed is unpacked into a temporary folder. Python's packages come with wheels alone;
without them the host's time of a call cannot be measured.
"""

from __future__ import annotations

import hashlib
import importlib.util
import re
import shutil
import sys
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from kiln_bench.release import headers
from kiln_bench.release.library import CORE, FLASH, IMAGES
from kiln_recipe.errors import ArtifactError, EnvironmentProblem

RIGHT = "give a release's tarball, the folder that it was unpacked to, or a folder of its wheels"
_LARGEST = 1 << 30  # bytes of one file
_MEMBERS = re.compile(rf"kiln/(lib/(?:{CORE}|{FLASH}|{IMAGES}/[\w.-]+\.pack)|include/kiln/\w+\.h)")
_RUNTIME = re.compile(r"kiln_runtime-([^-]+)-(cp\d+)-(?:cp\d+|abi3)-.+\.whl")
_IN_WHEELS = re.compile(r"(kiln|kiln_recipe|kiln_bench)/[\w./-]+")


@dataclass(frozen=True)
class Place:
    """A release that can be loaded.

    Attributes:
        name: what the user called it, without its folder; "installed".
        libraries: the folder with its libraries and, in IMAGES, its packs.
        headers: the folder with its headers, or with our own.
        site: the folder for sys.path that has its Python packages; "" where they are installed; None: it has none.
        without_site: why it has none, in words.
    """

    name: str
    libraries: Path
    headers: Path
    site: str | None
    without_site: str = ""

    def pack(self, target: str) -> dict[str, str] | None:
        """The pack of a target, its file and sha256; None if it has none."""
        for path in sorted((self.libraries / IMAGES).glob("*.pack")):
            if path.stem.partition("-")[2] == target:
                return {"file": path.name, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
        return None


@contextmanager
def found(word: str | None) -> Iterator[Place]:
    """The release that a word names; None: the one that is installed. What was unpacked is gone afterwards.

    Raises:
        EnvironmentProblem: nothing is there.
        ArtifactError: it is not a release, or cannot be read.
    """
    if word is None:
        yield _installed()
        return
    path = Path(word)
    with tempfile.TemporaryDirectory(prefix="kiln-bench-") as temporary:
        try:
            if path.is_dir():
                yield _folder(path, Path(temporary))
            elif path.is_file():
                yield _tarball(path, Path(temporary))
            else:
                raise EnvironmentProblem(f"{word} does not exist, or is neither a file nor a folder; {RIGHT}")
        except PermissionError as error:
            raise EnvironmentProblem(f"{error.filename or word} cannot be read ({error.strerror}); {RIGHT}") from error


def _installed() -> Place:
    package = importlib.util.find_spec("kiln")
    libraries = Path(package.origin).parent / "lib" if package and package.origin else None
    if libraries is None or not (libraries / CORE).is_file():
        raise EnvironmentProblem(f"no release is installed in this Python, {sys.executable}; {RIGHT}")
    return Place("installed", libraries, headers.own(), "")


def _folder(path: Path, temporary: Path) -> Place:
    wheels = sorted(path.glob("kiln_*.whl"))
    for root in (path, path / "kiln"):
        if (root / "lib" / CORE).is_file():
            return _unpacked(path.resolve().name, root)
    if wheels:
        return _wheels(path, wheels, temporary)
    raise ArtifactError(f"{path} has neither lib/{CORE} nor wheels of kiln-runtime; {RIGHT}")


def _unpacked(name: str, root: Path) -> Place:
    if not (root / "lib" / FLASH).is_file():
        raise ArtifactError(f"{root} has no lib/{FLASH}: it was built without attention, which `kiln bench` measures")
    declared = root / "include/kiln"
    why = "a tarball has no Python package; give a folder of its wheels"
    return Place(name, root / "lib", declared if declared.is_dir() else headers.own(), None, why)


def _tarball(path: Path, temporary: Path) -> Place:
    try:
        with tarfile.open(path, "r:gz") as archive:
            for member in archive:
                if not _MEMBERS.fullmatch(member.name) or not member.isfile():
                    continue
                if member.size > _LARGEST:
                    raise ArtifactError(f"{path} has {member.size >> 20} MiB in {member.name}; no release does")
                target = temporary / member.name
                target.parent.mkdir(parents=True, exist_ok=True)
                source = archive.extractfile(member)
                assert source is not None
                with target.open("wb") as file:
                    shutil.copyfileobj(source, file)
    except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
        if isinstance(error, PermissionError):
            raise
        raise ArtifactError(f"{path} is not a tarball that can be read ({error}); {RIGHT}") from error
    if not (temporary / "kiln/lib" / CORE).is_file():
        raise ArtifactError(f"{path} has no kiln/lib/{CORE}; {RIGHT}")
    return _unpacked(path.name, temporary / "kiln")


def _wheels(path: Path, wheels: list[Path], site: Path) -> Place:
    runtimes = {match[0]: match for match in map(_RUNTIME.fullmatch, (wheel.name for wheel in wheels)) if match}
    versions = sorted({match[1] for match in runtimes.values()})
    if len(versions) != 1:
        what = f"wheels of several versions, {' and '.join(versions)}" if versions else "no wheel of kiln-runtime"
        raise ArtifactError(f"{path} has {what}; give a folder with the wheels of one release")
    fitting = next((name for name, match in runtimes.items() if match[2] == _tag()), None)
    taken = fitting or min(runtimes)
    others = [w for w in wheels if w.name.partition("-")[2].startswith(f"{versions[0]}-") and w.name not in runtimes]
    for wheel in (path / taken, *others):
        _unzip(wheel, site)
    if not (site / "kiln/lib" / CORE).is_file():
        raise ArtifactError(f"{path / taken} has no kiln/lib/{CORE}; {RIGHT}")
    declared = site / "kiln_bench/include"
    why = (
        ""
        if fitting
        else f"there is no wheel of kiln-runtime for this Python ({_tag()}), only {' and '.join(runtimes)}"
    )
    return Place(
        path.resolve().name, site / "kiln/lib", declared if declared.is_dir() else headers.own(),
        str(site) if fitting else None, why,
    )  # fmt: skip


def _tag() -> str:
    """Of the wheel that this Python takes: from 3.12 on there is one for all."""
    return f"cp3{min(sys.version_info[1], 12)}"


def _unzip(wheel: Path, site: Path) -> None:
    try:
        with zipfile.ZipFile(wheel) as archive:
            for member in archive.infolist():
                if not _IN_WHEELS.fullmatch(member.filename) or ".." in member.filename.split("/"):
                    continue
                if member.file_size > _LARGEST:
                    raise ArtifactError(f"{wheel} has {member.file_size >> 20} MiB in {member.filename}; no wheel does")
                archive.extract(member, site)
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError) as error:
        if isinstance(error, PermissionError):
            raise
        raise ArtifactError(f"{wheel} is not a wheel that can be read ({error}); {RIGHT}") from error
