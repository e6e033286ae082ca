"""kiln.torch on real hardware, with whatever PyTorch is there:

    PYTHONPATH=<where the wheels are unpacked> python3 -m pytest -c tests/pytorch/gpu/pytest.ini tests/pytorch/gpu

Needs a GPU, PyTorch from 2.10 on, and Kiln's package with images of the GPU. Where `kiln` is the generator, as in the
whole suite, there is nothing to collect here; with KILN_REQUIRED=1 that, or no GPU, is an error.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parents[1] / "gpu")]  # judge


def why_not() -> str | None:
    """Why these tests cannot run here, or None."""
    try:
        import torch

        import kiln.torch  # noqa: F401
    except ImportError as error:
        return f"needs PyTorch and Kiln's package on PYTHONPATH ({error})"
    return None if torch.cuda.is_available() else "needs a GPU that PyTorch can use"


REASON = why_not()
collect_ignore_glob = ["test_*.py"] if REASON else []
if REASON and os.environ.get("KILN_REQUIRED"):
    raise pytest.UsageError(f"the GPU tests of kiln.torch cannot run: {REASON}")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.gpu)


@pytest.fixture(autouse=True)
def as_it_was():
    """Each test begins with what was compiled ahead, nothing routed and no reasons counted, and ends so."""
    import torch

    import kiln.torch as kt
    from kiln.torch import operators

    torch.manual_seed(0)
    kt.reset_fallthroughs()
    yield
    operators.set_engine(None)
    assert not kt.is_routed()
    torch._dynamo.reset()
