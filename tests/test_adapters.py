"""The libraries that offer the flash family by another's interface: what they are made of, and how they are linked."""

from __future__ import annotations

from pathlib import Path

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
    *aotriton, torch = adapters.find(ROOT, site, "triton 1")
    for adapter in (*aotriton, torch):
        assert (adapter.folders[-1] / "exports.map").is_file(), adapter.library
        assert all(list(folder.glob("*.cc")) for folder in adapter.folders)
        assert all(path.is_file() for path in adapter.headers.values() if isinstance(path, Path))
    soname, names = torch.foreign
    assert soname == "libtorch_cpu.so" and names and all(name.isidentifier() for name in names)


def test_interfaces_of_aotriton(site):
    """Each has headers of its own, a prefix, and a name that ends in its version; the newest is the release's own."""
    *aotriton, _ = adapters.find(ROOT, site, "triton 1")
    assert [adapter.library for adapter in aotriton if adapter.is_main] == [aotriton[-1].library]
    assert len({adapter.prefix for adapter in aotriton}) == len(aotriton) == 4
    for adapter, minor in zip(aotriton, (11, 12, 13, 14)):
        assert adapter.prefix == f"lib/aotriton/0.{minor}" and adapter.library.startswith(
            f"libaotriton_v2.so.0.{minor}."
        )
        assert {"aotriton/flash.h", "aotriton/config.h", "aotriton/util.h"} <= set(adapter.headers)
        assert ("aotriton/v2/flash.h" in adapter.headers) == (minor < 13)
        assert f"#define AOTRITON_VERSION_MINOR {minor}u" in adapter.headers["aotriton/config.h"]
        assert "@" not in adapter.headers["aotriton/config.h"] + "".join(adapter.package.values())
        assert set(adapter.links.values()) == {adapter.library}


def test_a_triton_without_headers_of_hip(tmp_path):
    with pytest.raises(ToolchainError, match="has no HIP headers .*; they are in Triton's package"):
        adapters.find(ROOT, tmp_path, "triton 1")
