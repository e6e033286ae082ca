"""Paths of what the tests here share with the GPU suite and the runtime's, and what they cannot do without."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from kiln_recipe.errors import EnvironmentProblem

HERE = Path(__file__).resolve().parent
for folder in (HERE, HERE.parent / "runtime", HERE.parent / "gpu"):
    sys.path.insert(0, str(folder))


def why_not() -> str | None:
    """Why nothing can be executed here, or None."""
    import decode

    if shutil.which("cc") is None:
        return "needs a C compiler by the name cc"
    try:
        decode.disassembler()
    except EnvironmentProblem as error:
        return f"needs llvm-22: {error}"
    return None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    ours = [item for item in items if HERE in item.path.parents]
    if ours and (reason := why_not()):
        for item in ours:
            item.add_marker(pytest.mark.skip(reason=reason))
