from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

# Looked for, not imported: see interpreter.py.
LACKING = [package for package in ("numpy", "torch", "triton") if importlib.util.find_spec(package) is None]


class _Skipped(pytest.Module):
    def collect(self):
        pytest.skip(f"needs {' and '.join(LACKING)}: Triton's interpreter works on PyTorch's tensors")


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    """Modules that interpret are not imported where that would fail; test_compiled.py says for itself what it needs."""
    if LACKING and module_path.name != "test_compiled.py":
        return _Skipped.from_parent(parent, path=module_path)
    return None


@pytest.fixture(scope="module")
def child():
    """The executor of a process that interprets."""
    from interpreter import interpreter

    with interpreter() as executor:
        yield executor
