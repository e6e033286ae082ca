"""The Triton that keys are of. `kiln plan` asks for it too, with the packages of input/front.lock alone, so nothing
that a build needs besides is imported here."""

from __future__ import annotations

import sysconfig
from pathlib import Path

from kiln_recipe.compile import lock, toolchain
from kiln_recipe.compile.toolchain import Toolchain


def toolchain_of(tree: Path) -> Toolchain:
    """The Triton that this Python has, by the wheels of the tree's lock.

    Raises:
        ToolchainError: there is none, or it is not whole.
    """
    wheels = lock.read_lock(tree / "input" / lock.LOCK_NAME).members_of("triton")
    return toolchain.find_toolchain(Path(sysconfig.get_paths()["purelib"]), wheels)
