"""The toolchain of the Python that runs the tests, as builds have it."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from kiln_build.native import native
from kiln_recipe import targets
from kiln_recipe.compile.lock import LOCK_NAME, read_lock
from kiln_recipe.compile.toolchain import Toolchain, find_toolchain

ROOT = Path(__file__).resolve().parents[1]


def own(folder: Path, site: Path | None = None) -> Toolchain:
    """With what NVIDIA's assemblers are run with, built in the folder.

    Args:
        site: where the toolchain lies; default: this Python's site-packages.
    """
    wheels = read_lock(ROOT / "input" / LOCK_NAME).members_of("triton")
    chain = find_toolchain(site or Path(importlib.util.find_spec("triton").origin).parents[1], wheels)
    return native.with_heap(chain, targets.parse("sm_90"), ROOT, native.own_zig(folder / "zig"), folder)
