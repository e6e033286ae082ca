"""Makes `kiln` the package of bindings/python and of v3python in one, in a process that has not imported it."""

from __future__ import annotations

import sys
import types
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PARTS = (ROOT / "bindings" / "python" / "kiln", ROOT / "v3python" / "kiln")


def merge() -> None:
    """Where both have a module (errors), that of bindings/python is the one."""
    assert "kiln" not in sys.modules
    kiln = types.ModuleType("kiln")
    kiln.__path__ = [str(part) for part in PARTS]
    sys.modules["kiln"] = kiln
