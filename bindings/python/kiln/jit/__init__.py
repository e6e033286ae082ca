"""Kiln's recipes run through Triton, in this process: for authors of kernels, and to compare with images made ahead.

    import kiln.jit, torch

    norm = kiln.jit.Recipe("examples/family/recipe.yaml").operation("norm.rms_norm")
    x, w = torch.randn(5, 1000, device="cuda"), torch.rand(1000, device="cuda")
    out = torch.empty_like(x)
    norm(x, w, out, None, 1e-6)              # compiled here, for the device of x
    norm.recipe.reload()                     # after an edit of the recipe or of a kernel

    with kiln.jit.use():                     # kiln.torch's functions run the attention family so
        out = kiln.torch.attention(q, k, v)
    with kiln.jit.use(interpret=True):       # and here in Triton's interpreter, on tensors of the CPU
        out = kiln.torch.attention(q.cpu(), k.cpu(), v.cpu())

The same recipe decides as in the runtime: which functional, configuration, specialization, grid and parameters. What it
does not serve is refused with the same sentence; nothing is tried in its place. Needs PyTorch, Triton, PyYAML and
msgspec: `pip install 'kiln-runtime[jit]'`. A missing package is reported at the first use, not at import.

All modules of the package are internal.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from kiln.errors import in_source_tree
from kiln.jit.errors import KernelError, MissingPackageError
from kiln.jit.packages import need

if TYPE_CHECKING:
    from kiln.jit.flash import Engine
    from kiln.jit.parity import Comparison, compare
    from kiln.jit.recipes import Operation, Recipe
    from kiln.jit.switch import disable, enable, is_enabled, use

_PLACES = {
    "Comparison": "parity",
    "compare": "parity",
    "Recipe": "recipes",
    "Operation": "recipes",
    "Engine": "flash",
    "enable": "switch",
    "disable": "switch",
    "is_enabled": "switch",
    "use": "switch",
}

__all__ = [
    "Comparison",
    "Engine",
    "KernelError",
    "MissingPackageError",
    "Operation",
    "Recipe",
    "compare",
    "disable",
    "enable",
    "is_enabled",
    "use",
]


def __getattr__(name: str) -> object:
    """What needs packages that the rest of Kiln does not is imported when it is asked for."""
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    need("yaml", "msgspec", "numpy", "torch")
    found = getattr(importlib.import_module(f"kiln.jit.{_PLACES[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    """What can be had: help() asks for each."""
    lacking = [name for name, place in _PLACES.items() if place in ("flash", "switch")] if in_source_tree() else []
    return sorted({*globals(), *__all__} - {*lacking})
