"""kiln.torch's tests, where there is no GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

import users_package

collect_ignore = ["gpu"]
# What needs no package `kiln`.
_WITHOUT = ("test_shim.py", "test_torch_library.py", "test_native_calls.py")


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    if module_path.name in _WITHOUT:
        return users_package.module(module_path, parent)
    with_triton = module_path.name in ("test_interpreted.py", "test_flash_attn_calls.py")
    return users_package.module(module_path, parent, "torch", *["triton"] * with_triton)


@pytest.fixture(scope="session")
def torch_library() -> Path:
    """libkiln_torch.so, as a release has it."""
    python_site = users_package.site_module()
    return python_site.torch_library(python_site.fake_release())


@pytest.fixture(scope="session")
def stand_ins(torch_library: Path) -> Path:
    """A folder with libkiln_torch.so, and stand-ins for all that it links."""
    import stand_in

    return stand_in.make(torch_library)


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
