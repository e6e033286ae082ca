"""Packages that kiln.jit needs and the rest of Kiln does not: imported when they are used, missed in one sentence."""

from __future__ import annotations

import importlib
from types import ModuleType

from kiln.jit.errors import MissingPackageError

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
