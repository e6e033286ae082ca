"""The libraries that offer the flash family by another's interface: what they are made of, and how they are linked."""

from __future__ import annotations

import pytest

from kiln_build.native import adapters
from kiln_recipe.errors import ToolchainError
from small_release import ROOT


@pytest.fixture
def site(tmp_path):
    header = tmp_path / "triton/backends/amd/include/hip/hip_runtime_api.h"
    header.parent.mkdir(parents=True)
    header.touch()
    return tmp_path


def test_what_they_are_made_of(site):
    for adapter in adapters.find(ROOT, site, "triton 1"):
        assert (adapter.folder / "exports.map").is_file() and list(adapter.folder.glob("*.cc")), adapter.library
        assert all(path.is_file() for path in adapter.headers.values())
    aotriton, torch = adapters.find(ROOT, site, "triton 1")
    assert {"aotriton/flash.h", "aotriton/v2/flash.h", "aotriton/config.h"} <= set(aotriton.headers)
    soname, names = torch.foreign
    assert soname == "libtorch_cpu.so" and names and all(name.isidentifier() for name in names)


def test_a_triton_without_headers_of_hip(tmp_path):
    with pytest.raises(ToolchainError, match="has no HIP headers .*; they are in Triton's package"):
        adapters.find(ROOT, tmp_path, "triton 1")
