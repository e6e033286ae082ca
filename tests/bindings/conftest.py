"""Tests of the Python package run in processes of their own: pytest's has the generator's package `kiln`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import shared

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests/runtime")]

collect_ignore = ["inside", "gpu"]


@pytest.fixture(scope="session")
def site() -> Path:
    """An importable folder of the package for this Python, over libraries for the fake driver."""
    pytest.importorskip("nanobind", reason="needs nanobind")
    import python_site

    from kiln_build.native import pythons
    from kiln_recipe.errors import EnvironmentProblem

    try:
        pythons.headers_of(sys.executable)
    except EnvironmentProblem as error:
        pytest.skip(f"needs headers: {error}")
    return shared.once("site", python_site.make_site)
