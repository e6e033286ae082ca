"""Makes the toolchain's lock anew: for each package and version that it names, the files that each Python installs.

To move to another version, edit `version:` in input/toolchain.lock.yaml and run `kiln fetch --relock`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

import requests
from packaging.specifiers import SpecifierSet
from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_sdist_filename, parse_wheel_filename

from kiln_build.fetch.download import spell_error
from kiln_build.fetch.registry import Candidate, Registry
from kiln_build.fetch.wheel_members import local_path, members_of
from kiln_recipe import digests
from kiln_recipe.compile.lock import (
    LOCK_NAME,
    Lock,
    LockedFile,
    Member,
    Package,
    parse_draft,
    parse_lock,
    read_text,
    write_lock,
)
from kiln_recipe.compile.toolchain import takes_part
from kiln_recipe.console.appear import appear
from kiln_recipe.errors import EnvironmentProblem, ToolchainError

# A release is built for glibc 2.28, and so are the wheels that build it; older names mean older glibcs.
_PLATFORMS = (*(f"manylinux_2_{minor}_x86_64" for minor in range(28, 4, -1)), "manylinux2014_x86_64")
_ALIASES = ("manylinux2010_x86_64", "manylinux1_x86_64")

FRONT_NAME = "front.lock"


def relock(folder: Path, registry: Registry) -> Lock:
    """Writes `folder`'s toolchain.lock.yaml and front.lock anew, and returns the lock.

    Raises:
        ToolchainError: the lock is malformed, a package has no file for one of its versions of Python, or the registry
            cannot be asked.
        EnvironmentProblem: the lock cannot be read or written.
    """
    path = folder / LOCK_NAME
    draft = parse_draft(read_text(path), str(path))
    text = path.read_text()
    header = "".join(line for line in text.splitlines(keepends=True)[: _header_lines(text)])
    try:
        packages = tuple(
            dataclasses.replace(package, files=locked_files(package, draft.pythons, registry))
            for package in draft.packages
        )
    except requests.RequestException as error:
        raise ToolchainError(f"the registry cannot be reached ({spell_error(error)}; looked in: {registry.places()})")
    written = write_lock(dataclasses.replace(draft, packages=packages), header)
    lock = parse_lock(written.encode(), str(path))
    _replace(path, written)
    _replace(folder / FRONT_NAME, lock.front_requirements())
    return lock


def best_wheel(names: Sequence[str], python: str) -> str | None:
    """The wheel that pip would take on glibc 2.28 or later with this version of CPython, or None."""
    version = tuple(int(part) for part in python.split("."))
    short = "".join(python.split("."))
    platforms = [*_PLATFORMS, *_ALIASES]
    order: dict[Tag, int] = {}
    for tag in cpython_tags(version, [f"cp{short}"], platforms):
        order.setdefault(tag, len(order))
    for tag in compatible_tags(version, f"cp{short}", platforms):
        order.setdefault(tag, len(order))
    ranked = []
    for name in names:
        tags = parse_wheel_filename(name)[3]
        ranks = [order[tag] for tag in tags if tag in order]
        if ranks:
            ranked.append((min(ranks), name))
    return min(ranked)[1] if ranked else None


def locked_files(package: Package, pythons: Sequence[str], registry: Registry) -> tuple[LockedFile, ...]:
    """The files of a package that these versions of Python install, with size and digest; its source if it asks so.

    Raises:
        ToolchainError: there is none for one of them.
    """
    by_name: dict[str, Candidate] = {}
    sources: list[str] = []
    for candidate in registry.candidates(package.name):
        try:
            if candidate.name.endswith(".whl"):
                name, version, *_ = parse_wheel_filename(candidate.name)
            elif candidate.name.endswith(".tar.gz"):
                name, version = parse_sdist_filename(candidate.name)
            else:
                continue
        except (InvalidWheelFilename, ValueError):
            continue
        if name == canonicalize_name(package.name) and str(version) == package.version:
            by_name.setdefault(candidate.name, candidate)
            if candidate.name.endswith(".tar.gz"):
                sources.append(candidate.name)
    wheels = [name for name in by_name if name.endswith(".whl")]
    serves: dict[str, list[str]] = {}
    for python in pythons if package.use != "source" else ():
        wheel = best_wheel([name for name in wheels if _admits(by_name[name], python)], python)
        if wheel is None:
            raise ToolchainError(f"{package.requirement} has no wheel for Python {python} and glibc 2.28; lock another")
        serves.setdefault(wheel, []).append(python)
    if package.source:
        if not sources:
            raise ToolchainError(f"{package.requirement} has no source distribution, which the lock requires")
        serves[sources[0]] = []
    known = {file.name: file for file in package.files}
    files = [_locked(by_name[name], tuple(served), known.get(name), registry) for name, served in serves.items()]
    if package.name == "triton":
        files = _with_members(files, by_name, registry)
    return tuple(files)


def _with_members(
    files: Sequence[LockedFile], candidates: Mapping[str, Candidate], registry: Registry
) -> list[LockedFile]:
    """The wheels of Triton, each with those of its members that keys must take for one (toolchain.py)."""
    wheels = {f.name: members_of(f.name, candidates[f.name].url, registry) for f in files if f.name.endswith(".whl")}
    paths = sorted(path for path in set().union(*wheels.values()) if takes_part(path))
    differ = [path for path in paths if len({wheel.get(path) for wheel in wheels.values()}) > 1]
    return [
        dataclasses.replace(
            file, members=tuple(Member(path=p, sha256=wheel[p]) for p in differ if p in (wheel := wheels[file.name]))
        )
        if file.name in wheels
        else file
        for file in files
    ]


def _admits(candidate: Candidate, python: str) -> bool:
    return candidate.requires_python is None or SpecifierSet(candidate.requires_python).contains(f"{python}.99")


def _locked(candidate: Candidate, pythons: tuple[str, ...], known: LockedFile | None, registry: Registry) -> LockedFile:
    digest, size = candidate.sha256, candidate.size
    if known and digest == known.sha256:
        size = known.size
    if digest is None or size is None:
        digest, size = _measure(candidate, registry)
    return LockedFile(name=candidate.name, pythons=pythons, size=size, sha256=digest)


def _measure(candidate: Candidate, registry: Registry) -> tuple[str, int]:
    """Digest and size of a file of which the index does not say them; its digest, if said, must hold."""
    if (local := local_path(candidate.url)) is not None:
        digest, size = digests.measure_file(local)
    else:
        with registry.request(candidate.url, {"Accept-Encoding": "identity"}) as response:
            response.raise_for_status()
            digest, size = digests.measure(response.iter_content(1 << 20))
    if candidate.sha256 not in (None, digest):
        raise ToolchainError(f"{candidate.name}: the index says {candidate.sha256}, its bytes {digest}")
    return digest, size


def _header_lines(text: str) -> int:
    return next((i for i, line in enumerate(text.splitlines()) if not line.startswith("#")), 0)


def _replace(path: Path, text: str) -> None:
    try:
        with appear(path) as fresh:
            fresh.write_text(text)
    except OSError as error:
        raise EnvironmentProblem(f"{path} cannot be written ({error.strerror}); give a folder that you may write to")
