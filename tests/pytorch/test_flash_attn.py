"""kiln.torch.flash_attn: see inside/test_flash_attn_calls.py."""

from __future__ import annotations

from pathlib import Path

import insides
import pytest

pytestmark = pytest.mark.slow


def test_calls(site: Path) -> None:
    for package in ("torch", "triton"):
        pytest.importorskip(package, reason=f"needs {package}")
    insides.run(site, "test_flash_attn_calls.py")
