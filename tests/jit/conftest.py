"""kiln.jit's tests run in a process of their own: there `kiln` is the package of bindings/python and of v3python in
one, as a wheel has it; here, where pytest runs, it is v3python's alone."""

from __future__ import annotations

import importlib.util
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest

from merged import merge, plainly

# Looked for, not imported: what pytest's process does not import cannot disturb the other's.
LACKING = [package for package in ("numpy", "torch", "triton") if importlib.util.find_spec(package) is None]


def _process() -> ProcessPoolExecutor:
    if LACKING:
        pytest.skip(f"needs {' and '.join(LACKING)}")
    return ProcessPoolExecutor(1, mp_context=get_context("spawn"), initializer=merge, initargs=("kernels",))


@pytest.fixture(scope="module")
def child():
    """Calls a function in that process: child(function, *arguments). One process for a module's tests."""
    with _process() as executor:
        yield lambda function, *arguments: executor.submit(plainly, function, *arguments).result(timeout=300)


@pytest.fixture
def fresh():
    """As `child`, in a process of each test's own."""
    with _process() as executor:
        yield lambda function, *arguments: executor.submit(plainly, function, *arguments).result(timeout=300)
