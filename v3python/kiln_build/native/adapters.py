"""The libraries of a release that offer the flash family by somebody else's interface: AOTriton's, PyTorch's.

They are part of each release with that family. What they take of others is interfaces alone: HIP's headers come with
Triton, and PyTorch is stood for by the list of names that are taken from it.
"""

from __future__ import annotations

from pathlib import Path

from kiln_build.native.native import Adapter
from kiln_recipe.errors import ToolchainError

FAMILY = "flash"
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
        Adapter(
            name="aotriton",
            library="libaotriton_v2.so.0",
            # PyTorch's build packs what lies in a folder of this name into its wheels, besides libraries.
            links={"libaotriton_v2.so": "libaotriton_v2.so.0", "aotriton.images": "kiln.images"},
            over=FAMILY,
            folder=source / "csrc/aotriton",
            headers=_headers(source / "include", "aotriton"),
            system=(hip,),
            identity=triton,
        ),
        Adapter(
            name="torch",
            library="libkiln_torch.so",
            over=FAMILY,
            folder=source / "bindings/torch",
            headers={"kiln/torch.h": source / "include/kiln/torch.h"},
            private={"layout.h": source / "bindings/layout.h"},
            foreign=("libtorch_cpu.so", _names(source / "bindings/torch/libtorch.symbols")),
        ),
    )


def _headers(include: Path, name: str) -> dict[str, Path]:
    """Public headers by their path below include/."""
    return {path.relative_to(include).as_posix(): path for path in sorted((include / name).rglob("*.h"))}


def _names(path: Path) -> tuple[str, ...]:
    return tuple(line for line in path.read_text().splitlines() if line and not line.startswith("#"))
