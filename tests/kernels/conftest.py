from __future__ import annotations

from pathlib import Path

import pytest

import users_package


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    """Triton's interpreter works on PyTorch's tensors; test_compiled.py says for itself what it needs."""
    if module_path.name == "test_compiled.py":
        return None
    return users_package.module(module_path, parent, "numpy", "torch", "triton")


@pytest.fixture(scope="module")
def child():
    """The executor of a process that interprets."""
    from interpreter import interpreter

    with interpreter() as executor:
        yield executor
