"""Runs with a folder of tests/bindings/python_site.py on the path: `kiln` is the package that users import."""

from __future__ import annotations

import pytest


@pytest.fixture
def definition():
    """kiln.torch on an engine that is the definition of attention and takes tensors of the CPU."""
    import torch
    from engines import Definition

    import kiln.torch as kt
    from kiln.torch import operators

    torch.manual_seed(0)
    engine = Definition()
    operators.set_engine(engine)
    kt.reset_fallthroughs()
    yield engine
    operators.set_engine(None)
    assert not kt.is_routed()
    torch._dynamo.reset()
