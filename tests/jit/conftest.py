"""kiln.jit's tests run in processes of their own: Triton is told by its environment and by what was imported first."""

from __future__ import annotations

from pathlib import Path

import pytest

import users_package


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    return users_package.module(module_path, parent, "numpy", "torch", "triton")


@pytest.fixture(scope="module")
def child():
    """Calls a function in another process: child(function, *arguments). One process for a module's tests."""
    with users_package.process() as call:
        yield call


@pytest.fixture
def fresh():
    """As `child`, in a process of each test's own."""
    with users_package.process() as call:
        yield call
