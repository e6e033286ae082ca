"""Packages that kiln.jit needs and the rest of Kiln does not: imported when they are used, missed in one sentence."""

from __future__ import annotations

import importlib
import re
import warnings
from functools import cache
from types import ModuleType

from kiln.jit.errors import MissingPackageError
from kiln_recipe.compile.toolchain import JIT_VERSIONS

_NAMES = {"yaml": "PyYAML", "msgspec": "msgspec", "triton": "Triton", "torch": "PyTorch", "numpy": "NumPy"}


def need(*modules: str) -> ModuleType:
    """The last of these modules.

    Raises:
        MissingPackageError: the package of one is not installed, or cannot be imported.
    """
    for module in modules:
        package = module.partition(".")[0]
        try:
            found = importlib.import_module(module)
        except ImportError as error:
            name = _NAMES.get(package, package)
            if isinstance(error, ModuleNotFoundError) and error.name == package:
                what, how = "is not installed", f"pip install {name.lower() if name != 'PyTorch' else 'torch'}"
            else:
                what, how = f"cannot be imported ({error})", "install it anew"
            raise MissingPackageError(
                f"kiln.jit needs {name}, which {what}; {how}, or all that it needs with pip install 'kiln-runtime[jit]'"
            ) from error
    return found


def minor_version() -> tuple[int, ...] | None:
    """Of the installed Triton: (3, 8); None if its version begins otherwise."""
    numbers = re.match(r"(\d+)\.(\d+)", need("triton").__version__)
    return None if numbers is None else tuple(map(int, numbers.groups()))


@cache
def check_triton() -> None:
    """Warns, once, if kiln.jit was not tested with the installed version of Triton."""
    version, minor = need("triton").__version__, minor_version()
    oldest, newest = JIT_VERSIONS
    if minor is None or not oldest <= minor <= newest:
        tested = " to ".join(".".join(map(str, one)) for one in JIT_VERSIONS)
        warnings.warn(
            f"kiln.jit is tested with Triton {tested}, but Triton {version} is installed; it is used, but may "
            "fail or give other results: if so, install one of those",
            stacklevel=2,
        )
