"""Makes `kiln` the package of bindings/python without its extension, in a process that has not imported it."""

from __future__ import annotations

import os
import sys
import traceback
import types
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "bindings" / "python" / "kiln"


def plainly(function: Callable, *arguments: object) -> object:
    """Calls a function, in such a process; what it raises is told as text, since the caller's process may not have its
    class."""
    try:
        return function(*arguments)
    except Exception:  # noqa: BLE001 - whatever it is
        told = traceback.format_exc()
    raise AssertionError(told)


def merge(*folders: str) -> None:
    """Lets `kiln.jit` and what it needs be imported.

    Args:
        folders: of tests, to import from.
    """
    assert "kiln" not in sys.modules
    os.environ["OMP_NUM_THREADS"] = "1"  # small arrays: threads would cost more than they save
    kiln = types.ModuleType("kiln")
    kiln.__path__ = [str(PACKAGE)]
    sys.modules["kiln"] = kiln
    sys.path += [str(ROOT / "v3python"), *(str(ROOT / "tests" / folder) for folder in folders)]
