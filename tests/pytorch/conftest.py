"""kiln.torch's tests. pytest's own process has the generator's package `kiln`: whatever imports the other one runs in a
process of its own, with a folder made by tests/bindings/python_site.py on its path."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import shared

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests/runtime"), str(ROOT / "tests/bindings")]  # nativebuild, python_site

collect_ignore = ["inside"]


def site_module():
    for package in ("nanobind", "ziglang"):
        pytest.importorskip(package, reason=f"needs {package}")
    import python_site

    return python_site


@pytest.fixture(scope="session")
def torch_library() -> Path:
    """libkiln_torch.so, as a release has it."""
    python_site = site_module()
    return python_site.torch_library(python_site.fake_release())


@pytest.fixture(scope="session")
def site() -> Path:
    """An importable kiln, over the libraries for the fake driver."""
    python_site = site_module()

    from kiln_build.native import pythons
    from kiln_recipe.errors import EnvironmentProblem

    try:
        pythons.headers_of(sys.executable)
    except EnvironmentProblem as error:
        pytest.skip(f"needs headers: {error}")
    return shared.once("site", python_site.make_site)
