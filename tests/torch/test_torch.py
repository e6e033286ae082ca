"""kiln.torch where there is no GPU: see the files of inside/."""

from __future__ import annotations

from pathlib import Path

import insides
import pytest

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", ["test_sdpa.py", "test_routing.py", "test_operators.py", "test_engines.py"])
def test_inside(site: Path, name: str) -> None:
    pytest.importorskip("torch", reason="needs torch")
    insides.run(site, name)
