"""Kernels' Triton functions, from their sources as they are now: to compile, or to interpret."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from kiln.jit.errors import KernelError, KilnError
from kiln.jit.locks import TRITON
from kiln.jit.packages import check_triton, need
from kiln_recipe.compile import kernel_modules, mistakes
from kiln_recipe.plan.model import CompileSpec


def interprets_by_default() -> bool:
    """Whether TRITON_INTERPRET said so when Triton was imported; then nothing can be compiled in this process, since
    Triton's own functions are interpreted ones."""
    return type(need("triton", "triton.language").cdiv).__name__ == "InterpretedFunction"


class Functions:
    """The functions of one recipe. Each file is executed once for compiling, and once for interpreting."""

    def __init__(self) -> None:
        self._modules: dict[tuple[str, bool], ModuleType] = {}

    def get(self, spec: CompileSpec, interpreted: bool) -> object:
        """The function that a spec names.

        Raises:
            KernelError: its module cannot be executed; begins with file:line.
        """
        check_triton()
        known = (spec.source, interpreted)
        with TRITON:
            if known not in self._modules:
                with _decorating(interpreted):
                    self._modules[known] = _load(Path(spec.source))
        return getattr(self._modules[known], spec.function)


def _load(path: Path) -> ModuleType:
    try:
        return kernel_modules.load(path)
    except Exception as error:  # noqa: BLE001 - whatever a kernel's source, or Triton, raises
        place = mistakes.place_of(error, path.parent) or f"{path}:1"
        raise KernelError(
            f"{place}: {type(error).__name__}: {' '.join(str(error).split())}", traceback.format_exc()
        ) from None


@contextmanager
def _decorating(interpreted: bool) -> Iterator[None]:
    """Whether `@triton.jit` makes interpreted functions meanwhile."""
    knobs = need("triton", "triton.knobs")
    if not interpreted and interprets_by_default():
        raise KilnError(
            "Triton was imported with TRITON_INTERPRET=1, so nothing can be compiled in this process; "
            "unset it, or say interpret=True"
        )
    with knobs.runtime.scope():
        knobs.runtime.interpret = interpreted
        yield
