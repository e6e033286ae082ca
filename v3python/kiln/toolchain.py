"""The toolchain: which Triton and which assemblers compile, who they are, and the environment that they run in.

Nothing here imports Triton: a plan, a look at the store and a build with nothing to do never pay for it. The identity
is Triton's version and the digests of what turns its output into images (assemblers, device libraries). Wheels of one
version for different Pythons give equal images, so the Python that runs is no part of it. A version says less of a
Triton that was built from source: the digests of what it was built from stand beside it, in SOURCES_NAME.
"""

from __future__ import annotations

import importlib.metadata
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kiln import digests
from kiln.errors import ToolchainError

if TYPE_CHECKING:
    from kiln.targets import Target

# Every variable that steers a compile is set here and nowhere else; workers start from an environment without any
# other. Line information would make images depend on paths and line numbers, and triples a cubin's size.
PINNED_ENVIRONMENT: Mapping[str, str] = {
    "TRITON_DISABLE_LINE_INFO": "1",
    "TRITON_DEFAULT_FP_FUSION": "1",
    "TRITON_DUMP_PTXAS_LOG": "1",
}

# What a worker keeps of the caller's environment: where to find programs and put temporary files, no more.
INHERITED_VARIABLES = ("PATH", "TMPDIR", "LANG", "LC_ALL", "HOME", "LD_LIBRARY_PATH")

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


@dataclass(frozen=True)
class Toolchain:
    """One installed Triton.

    Attributes:
        site: the folder that holds the package `triton`; no part of the identity.
        triton_version: "3.8.0", or with "+git..." for a build from source.
        files: (name, SHA-256) of the assemblers and device libraries, and of what a Triton from source was built from.
    """

    site: str
    triton_version: str
    files: tuple[tuple[str, str], ...]

    @property
    def identity(self) -> str:
        """Digest that stands for this toolchain in the keys of images."""
        document = {"triton": self.triton_version, "files": self.files, "environment": dict(PINNED_ENVIRONMENT)}
        return digests.of_text(json.dumps(document, sort_keys=True))

    def assembler(self, target: Target) -> Path:
        """The assembler pinned for an NVIDIA target."""
        return Path(self.site, "triton", _BINARIES, target.assembler)

    def environment(self, target: Target) -> dict[str, str]:
        """Variables of a compile for `target`, over and above the inherited ones."""
        variables = dict(PINNED_ENVIRONMENT)
        if target.vendor == "nvidia":
            # Triton takes the second from sm_90 on, whatever its name says.
            path = str(self.assembler(target))
            variables |= {"TRITON_PTXAS_PATH": path, "TRITON_PTXAS_BLACKWELL_PATH": path}
        return variables


def find_toolchain(site: Path) -> Toolchain:
    """The toolchain installed in a site-packages folder.

    Raises:
        ToolchainError: no Triton there, or a file that every build reads is missing from it.
    """
    package = site / "triton"
    version = next(
        (d.version for d in importlib.metadata.distributions(path=[str(site)]) if d.metadata["Name"] == "triton"), None
    )
    if version is None or not package.is_dir():
        raise ToolchainError(f"no Triton is installed in {site}; build.sh or `kiln fetch` installs the locked one")
    files = []
    for name, relative in _IDENTIFIED_FILES.items():
        path = package / relative
        if path.is_file():
            files.append((name, digests.of_file(path)))
        elif name != "ptxas-blackwell":  # a Triton built from source may come with one assembler only
            raise ToolchainError(f"Triton {version} in {site} lacks {relative}, which every build needs")
    files += _sources(site / SOURCES_NAME)
    return Toolchain(site=str(site), triton_version=version, files=tuple(files))


def _sources(path: Path) -> list[tuple[str, str]]:
    try:
        stated = json.loads(path.read_bytes())
        return sorted((str(name), str(digest)) for name, digest in stated.items())
    except FileNotFoundError:
        return []  # a wheel of the lock
    except (OSError, ValueError, AttributeError) as error:
        raise ToolchainError(f"{path} does not say what its Triton was built from ({error}); remove its folder")
