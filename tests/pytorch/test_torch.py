"""kiln.torch where there is no GPU: see the files of inside/."""

from __future__ import annotations

from pathlib import Path

import insides
import pytest

pytestmark = pytest.mark.slow


OTHERS = ("test_flash_attn", "test_native_calls", "test_transformers")  # which have files of their own here
FILES = sorted(path.name for path in insides.INSIDE.glob("test_*.py") if not path.name.startswith(OTHERS))


@pytest.mark.parametrize("name", FILES)
def test_inside(site: Path, name: str) -> None:
    for package in ("torch", "triton") if name == "test_interpreted.py" else ("torch",):
        pytest.importorskip(package, reason=f"needs {package}")
    insides.run(site, name)
