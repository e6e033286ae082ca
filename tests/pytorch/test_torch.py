"""kiln.torch where there is no GPU: see the files of inside/."""

from __future__ import annotations

from pathlib import Path

import insides
import pytest

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    "name",
    [
        "test_arguments.py",
        "test_sdpa.py",
        "test_routing.py",
        "test_operators.py",
        "test_engines.py",
        "test_interpreted.py",
    ],
)
def test_inside(site: Path, name: str) -> None:
    for package in ("torch", "triton") if name == "test_interpreted.py" else ("torch",):
        pytest.importorskip(package, reason=f"needs {package}")
    insides.run(site, name)
