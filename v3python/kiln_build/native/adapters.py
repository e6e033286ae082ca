"""The libraries of a release that offer the flash family by somebody else's interface: AOTriton's, PyTorch's.

They are part of each release with that family. What they take of others is interfaces alone: HIP's headers come with
Triton, and PyTorch is stood for by the list of names that are taken from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from kiln_build.native.adapter import Adapter, Prefix
from kiln_recipe.errors import ToolchainError
from kiln_recipe.model import FAMILY

_HIP = Path("triton/backends/amd/include")


def find(source: Path, site: Path, triton: str) -> tuple[Adapter, ...]:
    """The adapters of a source tree.

    Args:
        site: the site-packages of a Triton, which brings HIP's headers.
        triton: that Triton's identity.

    Raises:
        ToolchainError: it has no headers of HIP.
    """
    hip = site / _HIP
    if not (hip / "hip/hip_runtime_api.h").is_file():
        raise ToolchainError(f"{hip} has no HIP headers (hip/hip_runtime_api.h); they are in Triton's package")
    return (
        *(_aotriton(source, version, hip, triton) for version in aotriton_versions(source)),
        Adapter(
            name="torch",
            library="libkiln_torch.so",
            over=FAMILY,
            folders=(source / "bindings/torch",),
            headers={"kiln/torch.h": source / "include/kiln/torch.h"},
            private={"layout.h": source / "bindings/layout.h"},
            foreign=("libtorch_cpu.so", _names(source / "bindings/torch/libtorch.symbols")),
        ),
    )


def aotriton_versions(source: Path) -> tuple[str, ...]:
    """The versions of AOTriton whose interface a release offers, oldest first: "0.13.1"."""
    return _names(source / "csrc/aotriton/interfaces.txt")


def aotriton_headers(source: Path, version: str) -> dict[str, Path | str]:
    """The public headers of an interface, by their path below include/."""
    include = source / "include"
    first, _, _ = version.rpartition(".")
    kept = "**/*.h" if tuple(map(int, first.split("."))) < (0, 13) else "*.h"  # later ones have no v2/
    headers: dict[str, Path | str] = {
        path.relative_to(include).as_posix(): path for path in sorted((include / "aotriton").glob(kept))
    }
    names = ("AOTRITON_VERSION_MAJOR", "AOTRITON_VERSION_MINOR", "AOTRITON_VERSION_PATCH")
    config = _filled((include / "aotriton/config.h.in").read_text(), dict(zip(names, version.split("."))))
    return {**headers, "aotriton/config.h": config}


def _aotriton(source: Path, version: str, hip: Path, triton: str) -> Adapter:
    library = f"libaotriton_v2.so.{version}"
    values = {"AOTRITON_VERSION": version, "AOTRITON_LIBRARY": library}
    packages = ("aotriton-config.cmake", "aotriton-config-version.cmake", "aotriton-targets.cmake")
    return Adapter(
        name="aotriton",
        library=library,
        links={"libaotriton_v2.so": library},
        over=FAMILY,
        folders=(source / "csrc/aotriton", source / "csrc/aotriton/interface"),
        headers=aotriton_headers(source, version),
        system=(hip,),
        # PyTorch's builds install what is called libaotriton_v2*.so* and aotriton.images, and no more.
        is_whole=True,
        prefix=Prefix(
            f"lib/aotriton/{version.rpartition('.')[0]}",
            "aotriton.images",
            {
                f"lib/cmake/aotriton/{name}": _filled((source / "cmake" / f"{name}.in").read_text(), values)
                for name in packages
            },
        ),
        is_main=version == aotriton_versions(source)[-1],
        identity=triton,
    )


def _filled(template: str, values: Mapping[str, str]) -> str:
    for name, value in values.items():
        template = template.replace(f"@{name}@", value)
    return template


def _names(path: Path) -> tuple[str, ...]:
    return tuple(line for line in path.read_text().splitlines() if line and not line.startswith("#"))
