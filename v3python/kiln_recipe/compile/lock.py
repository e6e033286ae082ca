"""The toolchain's lock, input/toolchain.lock.yaml: every file that a build reads, with size, SHA-256 and licence.

Packages of the registries stand by name, version and file name; where they come from is the client's own
configuration. Other files stand by address.

Standard library only, but for locks that somebody has edited: where there is no network, `kiln fetch --unbundle` runs
before any package is there.
"""

from __future__ import annotations

import dataclasses
import functools
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from kiln_recipe import digests
from kiln_recipe.errors import EnvironmentProblem, ToolchainError, UsageError

LOCK_NAME = "toolchain.lock.yaml"
LARGEST = 4 << 20  # bytes; it has 13,000
FORMAT = 1
_MOST_PYTHONS, _MOST_OVERRIDES = 32, 256
_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+!-]*")
_MEMBER_PATH = re.compile(r"[A-Za-z0-9._+-]+(?:/[A-Za-z0-9._+-]+)*")


@dataclass(frozen=True, kw_only=True)
class Member:
    """A file in a wheel; `path` is where it is installed, in the site-packages."""

    path: str
    sha256: str


@dataclass(frozen=True, kw_only=True)
class LockedFile:
    """One file of a package.

    Attributes:
        name: as the registry names it, and as it lies in the cache.
        pythons: Python versions ("3.12") that install it; empty: read by the build, not installed (a source).
        size: bytes.
        sha256: 64 hexadecimal digits.
        members: of a wheel of Triton: the files that take part in a compile and differ between its version's wheels.
    """

    name: str
    pythons: tuple[str, ...]
    size: int
    sha256: str
    members: tuple[Member, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Package:
    """One version of a package of the registry.

    Attributes:
        use: "front": needed to check a build's input; "build": by the build; "override": for some targets only;
            "triton-source": to build Triton from source; "scheduler": to have a Dask cluster compile; "source": not
            installed, only its source is read.
        source: whether its source distribution is locked too.
        licence: an SPDX expression.
    """

    name: str
    version: str
    licence: str
    use: Literal["front", "build", "override", "triton-source", "scheduler", "source"]
    source: bool = False
    files: tuple[LockedFile, ...] = ()

    @property
    def requirement(self) -> str:
        """As pip writes it: "triton==3.8.0"."""
        return f"{self.name}=={self.version}"


@dataclass(frozen=True, kw_only=True)
class LockedAddress:
    """A file that no registry has."""

    url: str
    name: str
    size: int
    sha256: str
    licence: str


@dataclass(frozen=True, kw_only=True)
class Lock:
    """The whole lock.

    Attributes:
        format: 1.
        pythons: versions of Python that a build may run on.
        overrides: targets (or groups of targets) that another Triton compiles for: {"gfx1201": "triton==3.9.0"}.
    """

    format: int
    pythons: tuple[str, ...]
    packages: tuple[Package, ...]
    overrides: dict[str, str] = dataclasses.field(default_factory=dict)
    files: tuple[LockedAddress, ...] = ()

    def wanted(
        self, pythons: Iterable[str], uses: Iterable[str] = ("front", "build", "override")
    ) -> tuple[LockedFile | LockedAddress, ...]:
        """The files that builds on these versions of Python read, each once, in the lock's order; sources whatever the
        uses are."""
        asked, used = set(pythons), {*uses, "source"}
        files = (f for p in self.packages if p.use in used for f in p.files if not f.pythons or asked & set(f.pythons))
        return (*files, *self.files)

    def every_file(self) -> tuple[LockedFile | LockedAddress, ...]:
        """All files, for all versions of Python."""
        return (*self._package_files(), *self.files)

    def package_of(self, file_name: str) -> Package | None:
        """The package that a file belongs to; None for files by address."""
        return next((p for p in self.packages for f in p.files if f.name == file_name), None)

    def members_of(self, package: str) -> dict[str, list[dict[str, str]]]:
        """By version of a package: for each of its wheels its listed members, digests by path."""
        versions: dict[str, list[dict[str, str]]] = {}
        for entry in self.packages:
            if entry.name == package:
                wheels = versions.setdefault(entry.version, [])
                wheels += [{member.path: member.sha256 for member in file.members} for file in entry.files]
        return versions

    def source_of(self, package: str) -> LockedFile:
        """The source distribution of a package.

        Raises:
            ToolchainError: the lock has none.
        """
        for entry in self.packages:
            for file in entry.files:
                if entry.name == package and not file.pythons:
                    return file
        raise ToolchainError(f"the toolchain's lock has no source of {package}; give its package `source: true`")

    def wheel_of(self, package: str, python: str) -> LockedFile:
        """What `python` installs of a package.

        Raises:
            ToolchainError: the lock has nothing.
        """
        for entry in self.packages:
            for file in entry.files:
                if entry.name == package and python in file.pythons:
                    return file
        raise ToolchainError(f"the toolchain's lock has no {package} for Python {python}; add it to its packages")

    def requirements(
        self, python: str, uses: Iterable[str], *, without: Sequence[str] = (), only: Sequence[str] | None = None
    ) -> str:
        """A requirement file for `pip install --require-hashes`: what `python` installs for these uses.

        Args:
            without: names of packages to leave out.
            only: requirements ("triton==3.9.0"), or names, to restrict it to.
        """
        lines = []
        for package in self.packages:
            hashes = [f.sha256 for f in package.files if python in f.pythons]
            is_one = only is None or package.requirement in only or package.name in only
            asked = package.name not in without and is_one
            if package.use in set(uses) and asked and hashes:
                lines.append(f"{package.requirement} " + " ".join(f"--hash=sha256:{digest}" for digest in hashes))
        return "".join(f"{line}\n" for line in lines)

    def override_of(self, names: Iterable[str]) -> Package | None:
        """The Triton of a target that goes by `names` (its own first, then its groups'), or None: the default one."""
        for name in names:
            if name in self.overrides:
                return next(p for p in self.packages if p.requirement == self.overrides[name])
        return None

    def front_requirements(self) -> str:
        """input/front.lock: what build.sh installs before it can read this lock, for every version of Python."""
        lines = ["# Made from toolchain.lock.yaml by `kiln fetch --relock`: its packages of use `front`.\n"]
        for package in self.packages:
            if package.use == "front":
                hashes = sorted({f.sha256 for f in package.files if f.pythons})
                lines.append(" \\\n    ".join([package.requirement, *(f"--hash=sha256:{h}" for h in hashes)]) + "\n")
        return "".join(lines)

    def _package_files(self) -> Iterator[LockedFile]:
        for package in self.packages:
            yield from package.files


def read_lock(path: Path) -> Lock:
    """Reads and checks a lock.

    Raises:
        EnvironmentProblem: it cannot be read.
        ToolchainError: it is malformed, or contradicts itself; the sentence names the file.
    """
    return parse_lock(read_text(path), str(path))


def read_text(path: Path) -> bytes:
    """A lock as it was written.

    Raises:
        EnvironmentProblem: it cannot be read.
    """
    try:
        with path.open("rb") as file:
            text = file.read(LARGEST + 1)
    except OSError as error:
        raise EnvironmentProblem(f"{path} cannot be read ({error.strerror}); give the folder input/ of the source tree")
    if len(text) > LARGEST:
        raise ToolchainError(f"{path} has more than {LARGEST >> 20} MiB; give a lock that `kiln fetch --relock` wrote")
    return text


@functools.lru_cache(4)
def parse_lock(text: bytes, name: str) -> Lock:
    """The lock that `text` holds; `name` is for the sentences.

    Raises:
        ToolchainError: as `read_lock`.
    """
    lock = _read_written(text) or parse_draft(text, name)
    for problem in _problems(lock):
        raise ToolchainError(f"{name}: {problem}; `kiln fetch --relock` writes it anew")
    return lock


def parse_draft(text: bytes, name: str) -> Lock:
    """A lock that may contradict itself, since somebody has edited it.

    Raises:
        ToolchainError: it is malformed, or the packages that read YAML are not there.
    """
    try:
        import msgspec
        import yaml

        from kiln_recipe.documents import yaml_limits
    except ImportError as error:
        raise ToolchainError(
            f"{name} is not as `kiln fetch --relock` writes it, and to read it this Python lacks {error.name}; "
            "give one that Kiln wrote"
        ) from error
    try:
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        yaml_limits.check(text, loader)
        rows = yaml.load(text, loader)
        lock = msgspec.convert(rows, Lock)
        for unknown in _unknown_fields(rows):
            raise msgspec.ValidationError(f"it contains the unknown field `{unknown}`")
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f":{mark.line + 1}" if mark else ""
        problem = " ".join(str(getattr(error, "problem", None) or error).split())
        raise ToolchainError(f"{name}{where} is not YAML: {problem}")
    except yaml_limits.Refused as error:
        raise ToolchainError(f"{name}:{error.line} {error}")
    except ValueError as error:  # msgspec's, and of texts that YAML takes for dates that there are not
        raise ToolchainError(f"{name} is not a toolchain lock: {error}")
    if lock.format != FORMAT:
        raise ToolchainError(f"{name} has format {lock.format}; this Kiln reads format {FORMAT}")
    return lock


def check_file(path: Path, locked: LockedFile | LockedAddress, read: Callable[[int], object] = lambda n: None) -> str:
    """What is wrong with a file, naming it, what was expected and what is there; "" if it is right."""
    digest, size = digests.measure_file(path, read)
    return difference(locked, size, digest)


def has_size(path: Path, size: int) -> bool:
    """Whether the file is there, in its full size; its bytes are not read."""
    try:
        return path.stat().st_size == size
    except OSError:
        return False


def difference(locked: LockedFile | LockedAddress, size: int, digest: str) -> str:
    """`check_file` for a file that was measured."""
    if size != locked.size:
        more = "more than " if size > locked.size else ""
        return f"{locked.name}: expected {locked.size} bytes, got {more}{min(size, locked.size) if more else size}"
    if digest != locked.sha256:
        return f"{locked.name}: expected SHA-256 {locked.sha256}, got {digest}"
    return ""


def running_python() -> str:
    """ "3.11" """
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def check_python(lock: Lock, python: str) -> str:
    """Returns `python`.

    Raises:
        UsageError: the lock has no files for that version.
    """
    if python not in lock.pythons:
        raise UsageError(f"Python {python} is not one that the toolchain is locked for: {', '.join(lock.pythons)}")
    return python


def write_lock(lock: Lock, header: str) -> str:
    """The text of a lock: a file a line, so that changes are easy to review."""
    lines = [header.rstrip(), f"format: {lock.format}", f"pythons: {_flow(list(lock.pythons))}"]
    lines.append("overrides: {" + ", ".join(f"{key}: {value}" for key, value in lock.overrides.items()) + "}")
    lines.append("packages:")
    for package in lock.packages:
        lines += [f"  - name: {package.name}", f'    version: "{package.version}"', f"    licence: {package.licence}"]
        lines += [f"    use: {package.use}", *(["    source: true"] if package.source else []), "    files:"]
        for file in package.files:
            lines.append(
                f"      - {{name: {file.name}, pythons: {_flow(list(file.pythons))}, size: {file.size},\n"
                f'         sha256: "{file.sha256}"{_members(file.members)}}}'
            )
    lines.append("files:" if lock.files else "files: []")
    for address in lock.files:
        lines += [f"  - url: {address.url}", f"    name: {address.name}", f"    size: {address.size}"]
        lines += [f'    sha256: "{address.sha256}"', f"    licence: {address.licence}"]
    return "\n".join(lines) + "\n"


# A lock as `write_lock` writes it: all that is read without PyYAML.
_PLAIN = re.compile(rb"[\n -\[\]-~]*")  # printable ASCII, no backslash
_TEXT = r"[A-Za-z0-9](?:[A-Za-z0-9 ._+!()=-]*[A-Za-z0-9._+!()=-])?"
_WRITTEN_LOCK = re.compile(
    r"((?:#.*\n)+)format: 1\npythons: \[(.*)\]\noverrides: \{(.*)\}\n"
    r"packages:\n((?:  .*\n)*)files:(?: \[\])?\n((?:  .*\n)*)"
)
_WRITTEN_PACKAGE = re.compile(
    rf'  - name: ({_TEXT})\n    version: "({_TEXT})"\n    licence: ({_TEXT})\n'
    r"    use: (front|build|override|triton-source|scheduler|source)\n(    source: true\n)?"
    r"    files:\n((?:      .*\n)*)"
)
_WRITTEN_FILE = re.compile(
    rf'      - \{{name: ({_TEXT}), pythons: \[(.*)\], size: ([0-9]+),\n         sha256: "([0-9a-f]+)"'
    r"(?:,\n         members: \[(.*)\])?\}\n"
)
_WRITTEN_MEMBER = re.compile(r'\{path: ([A-Za-z0-9._/+-]+), sha256: "([0-9a-f]+)"\}')
_WRITTEN_ADDRESS = re.compile(
    rf'  - url: (\S+)\n    name: ({_TEXT})\n    size: ([0-9]+)\n    sha256: "([0-9a-f]+)"\n    licence: ({_TEXT})\n'
)


def _read_written(text: bytes) -> Lock | None:
    """What `text` says if `write_lock` wrote it; None if it did not, to a byte."""
    # YAML reads more into a backslash and refuses control characters; the patterns would take both as they are.
    if not _PLAIN.fullmatch(text):
        return None
    found = _WRITTEN_LOCK.fullmatch(text.decode())
    if found is None:
        return None
    header, pythons, overrides, packages, addresses = found.groups()
    lock = Lock(
        format=FORMAT,
        pythons=_words(pythons),
        overrides=dict(pair.split(": ", 1) for pair in overrides.split(", ") if ": " in pair),
        packages=tuple(
            Package(
                name=name, version=version, licence=licence, use=use, source=bool(source),
                files=tuple(
                    LockedFile(
                        name=file, pythons=_words(pythons), size=int(size[:18]), sha256=sha256,
                        members=tuple(Member(path=p, sha256=d) for p, d in _WRITTEN_MEMBER.findall(members)),
                    )
                    for file, pythons, size, sha256, members in _WRITTEN_FILE.findall(files)
                ),
            )
            for name, version, licence, use, source, files in _WRITTEN_PACKAGE.findall(packages)
        ),
        files=tuple(
            LockedAddress(url=url, name=name, size=int(size[:18]), sha256=sha256, licence=licence)
            for url, name, size, sha256, licence in _WRITTEN_ADDRESS.findall(addresses)
        ),
    )  # fmt: skip
    return lock if write_lock(lock, header).encode() == text else None


def _words(text: str) -> tuple[str, ...]:
    return tuple(re.findall(r'"([^"]*)"', text))


def _unknown_fields(rows: Mapping[str, Any]) -> Iterator[str]:
    """Fields that no lock has; `rows` have the right shape otherwise."""
    tables = [(Lock, [rows]), (Package, rows["packages"]), (LockedAddress, rows.get("files", ()))]
    files = [file for package in rows["packages"] for file in package.get("files", ())]
    tables += [(LockedFile, files), (Member, [member for file in files for member in file.get("members", ())])]
    for shape, entries in tables:
        known = {field.name for field in dataclasses.fields(shape)}
        yield from (str(name) for entry in entries for name in entry if name not in known)


def _flow(words: list[str]) -> str:
    return "[" + ", ".join(f'"{word}"' for word in words) + "]"


def _members(members: Sequence[Member]) -> str:
    rows = ", ".join(f'{{path: {member.path}, sha256: "{member.sha256}"}}' for member in members)
    return f",\n         members: [{rows}]" if members else ""


def _problems(lock: Lock) -> Iterator[str]:
    if not lock.pythons:
        yield "it names no version of Python"
    if len(lock.pythons) > _MOST_PYTHONS or len(lock.overrides) > _MOST_OVERRIDES:
        yield f"it has more than {_MOST_PYTHONS} versions of Python, or more than {_MOST_OVERRIDES} overrides"
    seen: dict[str, str] = {}
    for file in lock.every_file():
        if not _FILE_NAME.fullmatch(file.name):
            yield f"{file.name!r} is not a plain file name"
        if not digests.is_digest(file.sha256) or file.size < 0:
            yield f"{file.name} has a malformed size or sha256"
        for member in file.members if isinstance(file, LockedFile) else ():
            if not _MEMBER_PATH.fullmatch(member.path) or not digests.is_digest(member.sha256):
                yield f"{file.name} has a member with a malformed path or sha256"
        if file.name in seen:
            yield f"{file.name} is locked twice"
        seen[file.name] = file.sha256
    for package in lock.packages:
        for python in lock.pythons:
            count = sum(python in file.pythons for file in package.files)
            if count != (0 if package.use == "source" else 1):
                right = "none, as a source is not installed" if package.use == "source" else "one"
                yield f"{package.requirement} has {count} files for Python {python} instead of {right}"
        if (package.source or package.use == "source") and all(file.pythons for file in package.files):
            yield f"{package.requirement} has no source distribution"
    for target, requirement in lock.overrides.items():
        if not any(p.use == "override" and p.requirement == requirement for p in lock.packages):
            yield f"the override of {target} asks for {requirement}, which is not a package of use `override`"
