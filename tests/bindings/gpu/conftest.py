"""The Python package on real hardware, with arrays of whatever libraries are there:

    PYTHONPATH=<where the wheels are installed> python3 -m pytest -c tests/bindings/gpu/pytest.ini tests/bindings/gpu

Needs a GPU, Kiln's package with images of the GPU, and PyTorch, CuPy or JAX; what one of them lacks is skipped. Where
`kiln` is the generator, as in the whole suite, there is nothing to collect here; with KILN_REQUIRED=1 that, no GPU, or
a library that is missing, is an error.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # JAX leaves memory for the others


def why_not() -> str | None:
    """Why these tests cannot run here, or None."""
    try:
        from kiln import devices
    except ImportError as error:
        return f"needs Kiln's package on PYTHONPATH ({error})"
    refusals = [device.refusal for device in devices()]
    return None if None in refusals else f"needs a GPU that Kiln has images for: {refusals}"


REASON = why_not()
collect_ignore_glob = ["test_*.py"] if REASON else []
if REASON and os.environ.get("KILN_REQUIRED"):
    raise pytest.UsageError(f"the GPU tests of Kiln's Python package cannot run: {REASON}")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.gpu)


def need(name: str):
    """A library, or a skip, which is a failure where all are required."""
    if os.environ.get("KILN_REQUIRED"):
        return __import__(name)
    return pytest.importorskip(name)
