"""The toolchain: which Triton and which assemblers compile, who they are, and the environment that they run in.

Nothing here imports Triton: a plan and a look at the store never pay for it. The identity covers every installed file
that takes part in a compile, by its content. Wheels of one version for different Pythons give equal images, but their
native libraries are not the same bytes: where the lock's wheels of a version differ in a file, each of theirs counts as
the first one's, so the Python that runs is no part of the identity. Of a Triton that was built from source the digests
of what it was built from stand beside it, in SOURCES_NAME.
"""

from __future__ import annotations

import base64
import fnmatch
import importlib.metadata
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from kiln_recipe import digests
from kiln_recipe.errors import ToolchainError
from kiln_recipe.model import OPTION_DEFAULTS

if TYPE_CHECKING:
    from kiln_recipe.targets import Target

# Every variable that steers a compile is set here and nowhere else; workers start from an environment without any
# other. Line information would make images depend on paths and line numbers, and triples a cubin's size.
PINNED_ENVIRONMENT: Mapping[str, str] = {
    "TRITON_DISABLE_LINE_INFO": "1",
    "TRITON_DUMP_PTXAS_LOG": "1",
    # Its own backends, not those that other packages announce by entry points.
    "TRITON_BACKENDS_IN_TREE": "1",
}

# What an option's default is called in the identity: by Triton's variable of that default, which once pinned it. Any
# name would do; this one keeps the keys of images whose bytes are the same.
_VARIABLES_OF_DEFAULTS = {"enable_fp_fusion": "TRITON_DEFAULT_FP_FUSION"}

# What a worker keeps of the caller's environment: where to find programs and put temporary files, no more.
INHERITED_VARIABLES = ("PATH", "TMPDIR", "LANG", "LC_ALL", "HOME", "LD_LIBRARY_PATH")

# The oldest and the newest minor version of Triton that kiln.jit is tested with (tests/triton.in). A build takes the
# one that its lock names.
JIT_VERSIONS = ((3, 6), (3, 9))

# The oldest minor version of Triton whose Gluon is the one that kernels are written in; it changes with each.
GLUON_SINCE = (3, 8)

# In the site-packages of a Triton that was built here: {"source archive": SHA-256, ...}
SOURCES_NAME = "kiln-sources.json"

_BINARIES = "backends/nvidia/bin"
_IDENTIFIED_FILES = {
    "ptxas": f"{_BINARIES}/ptxas",
    "ptxas-blackwell": f"{_BINARIES}/ptxas-blackwell",
    "libdevice": "backends/nvidia/lib/libdevice.10.bc",
    "ockl": "backends/amd/lib/ockl.bc",
    "ocml": "backends/amd/lib/ocml.bc",
}
# All other files that take part: one digest, of their paths and digests.
_COMPILER = "compiler"
# What takes no part in a compile, by path in the site-packages: what is launched and measured with, tools and headers.
# A file that is listed nowhere counts. Bytecode does not: workers read none (compile.py).
_NO_PART = (
    "triton/_C/libproton.so",
    "triton/FileCheck",
    "triton/backends/*/include/*",
    "triton/backends/nvidia/bin/cuobjdump",
    "triton/backends/nvidia/bin/nvdisasm",
    "triton/backends/nvidia/lib/cupti*",
    "triton/instrumentation/*",
    "triton/plugins/*",
    "triton/profiler/*",
    "*.pyc",
)

# By version of Triton: for each of its locked wheels the digests of those files that differ between them, by path.
WheelMembers = Mapping[str, Sequence[Mapping[str, str]]]


@dataclass(frozen=True)
class Toolchain:
    """One installed Triton.

    Attributes:
        site: the folder that holds the package `triton`; no part of the identity.
        triton_version: "3.8.0", or with "+git..." for a build from source.
        files: (name, SHA-256) of the assemblers and device libraries, of all other files that take part in a compile
            together, and of what a Triton from source was built from.
        changed: those of the files that are not as they were installed, by path; they have changed the identity too.
        heap: the library that makes an NVIDIA assembler's bytes equal in each run (assembler.py), which a build
            compiles; "" where bytes go into no store and no release. No part of the identity: it is the same for all
            builds of a Kiln, and image.FORMAT stands for it.
    """

    site: str
    triton_version: str
    files: tuple[tuple[str, str], ...]
    changed: tuple[str, ...] = field(default=(), compare=False)
    heap: str = field(default="", compare=False)

    @property
    def identity(self) -> str:
        """Digest that stands for this toolchain in the keys of images."""
        defaults = {_VARIABLES_OF_DEFAULTS[name]: str(int(value)) for name, value in OPTION_DEFAULTS.items()}
        environment = {**PINNED_ENVIRONMENT, **defaults}
        document = {"triton": self.triton_version, "files": self.files, "environment": environment}
        return digests.of_text(json.dumps(document, sort_keys=True))

    @property
    def warning(self) -> str:
        """A sentence where a file is not as it was installed; else ""."""
        if not self.changed:
            return ""
        others = f" and {len(self.changed) - 1} more" if len(self.changed) > 1 else ""
        return (
            f"{self.changed[0]}{others} of Triton {self.triton_version} in {self.site} is not as it was installed: "
            "images get other keys, and the release another digest; after `kiln clean` a build installs it anew"
        )

    def assembler(self, target: Target, ptx: int = 0) -> Path:
        """The assembler pinned for an NVIDIA target and a version of PTX (Target.assembly).

        Raises:
            ToolchainError: this Triton comes without it.
        """
        name = target.assembly(ptx).assembler
        if self.files and name not in dict(self.files):  # kiln.jit reads no digests
            raise ToolchainError(
                f"Triton {self.triton_version} in {self.site} has no {name}, which PTX {ptx // 10}.{ptx % 10} needs; "
                "build with the locked Triton, or without what wants that PTX"
            )
        return Path(self.site, "triton", _BINARIES, name)

    def environment(self, target: Target, ptx: int = 0) -> dict[str, str]:
        """Variables of a compile for `target`, over and above the inherited ones.

        Args:
            ptx: version of the PTX that is assembled; 0: the target's.
        """
        variables = dict(PINNED_ENVIRONMENT)
        if target.vendor == "nvidia":
            # Triton takes the second from sm_90 on, whatever its name says.
            path = str(self.assembler(target, ptx))
            variables |= {"TRITON_PTXAS_PATH": path, "TRITON_PTXAS_BLACKWELL_PATH": path}
        return variables


def takes_part(path: str) -> bool:
    """Whether a file of the site-packages, "triton/_C/libtriton.so", takes part in a compile."""
    return path.startswith(("triton/", "triton.libs/")) and not any(fnmatch.fnmatchcase(path, p) for p in _NO_PART)


def find_toolchain(site: Path, wheels: WheelMembers) -> Toolchain:
    """The toolchain installed in a site-packages folder. Reads all of it, half a second's work: once for a build.

    Args:
        wheels: what the lock says of Triton's wheels (`Lock.members_of`).

    Raises:
        ToolchainError: no Triton there, or a file that every build reads is missing from it or cannot be read.
    """
    distributions = importlib.metadata.distributions(path=[str(site)])
    installed = next((d for d in distributions if d.metadata["Name"] == "triton"), None)
    if installed is None or not (site / "triton").is_dir():
        raise ToolchainError(f"no Triton is installed in {site}; build.sh or `kiln fetch` installs the locked one")
    version = installed.version
    try:
        there = {path: digests.of_file(site / path) for path in _parts(site)}
    except OSError as error:
        raise ToolchainError(f"Triton {version} in {site}: {error.filename} cannot be read ({error.strerror})")
    found = {path: _as_first(wheels.get(version, ()), path, digest) for path, digest in there.items()}
    files = []
    for name, relative in _IDENTIFIED_FILES.items():
        digest = found.pop(f"triton/{relative}", None)
        if digest is not None:
            files.append((name, digest))
        elif name != "ptxas-blackwell":  # a Triton built from source may come with one assembler only
            raise ToolchainError(f"Triton {version} in {site} lacks {relative}, which every build needs")
    files.append((_COMPILER, digests.of_text(json.dumps(sorted(found.items())))))
    files += _sources(site / SOURCES_NAME)
    return Toolchain(str(site), version, tuple(files), _changed(there, installed))


def _parts(site: Path) -> Iterator[str]:
    """Every file that takes part in a compile, by its path in the site-packages."""
    seen = set()
    for top in ("triton", "triton.libs"):
        # An installation for development links to folders of its source.
        for folder, subfolders, names in os.walk(site / top, followlinks=True):
            real = os.path.realpath(folder)
            if real in seen:
                subfolders.clear()  # a link to a folder above
                continue
            seen.add(real)
            for name in names:
                path = Path(folder, name)
                relative = path.relative_to(site).as_posix()
                if takes_part(relative) and path.is_file():
                    yield relative


def _changed(there: Mapping[str, str], installed: importlib.metadata.Distribution) -> tuple[str, ...]:
    """Paths of files that the package client did not install so; none where it kept no record, as for a folder of
    sources that is linked to."""
    recorded = {file.as_posix(): file.hash for file in installed.files or ()}
    if not any(path in recorded for path in there):
        return ()
    installed_so = {
        path: base64.urlsafe_b64decode(f"{stated.value}==").hex()
        for path, stated in recorded.items()
        if stated is not None and stated.mode == "sha256" and path in there
    }
    return tuple(sorted(path for path, digest in there.items() if installed_so.get(path) != digest))


def _as_first(wheels: Sequence[Mapping[str, str]], path: str, digest: str) -> str:
    """The digest of a file, or if it is that of one of the wheels, that of the first wheel's."""
    stated = [wheel[path] for wheel in wheels if path in wheel]
    return stated[0] if digest in stated else digest


def _sources(path: Path) -> list[tuple[str, str]]:
    try:
        stated = json.loads(path.read_bytes())
        return sorted((str(name), str(digest)) for name, digest in stated.items())
    except FileNotFoundError:
        return []  # a wheel of the lock
    except (OSError, ValueError, AttributeError) as error:
        raise ToolchainError(f"{path} does not say what its Triton was built from ({error}); remove its folder")
