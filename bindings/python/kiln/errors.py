"""What Kiln raises: a class for each kind of failure, all of them `KilnError`.

`str(error)` is one sentence that names what is wrong and what would be right; `error.status` is the status of the C
interface, `error.status_name` its name there. A wrong or a missing keyword is Python's own TypeError.

    try:
        kiln.attn_fwd(q, k, v)
    except kiln.UnsupportedError as error:
        print(error)   # names the nearest that exists
"""

from __future__ import annotations

import os
import re
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import NoReturn

from kiln_recipe.errors import (
    ArgumentError,
    EnvironmentProblem,
    KilnError,
    RecipeError,
    ToolchainError,
    UsageError,
)  # fmt: skip

__all__ = [
    "ArgumentError",
    "DriverError",
    "EnvironmentProblem",
    "FamilyError",
    "ForkedError",
    "KilnError",
    "NoDeviceError",
    "NotFoundError",
    "OutOfMemoryError",
    "PackCorruptError",
    "PackError",
    "PackMismatchError",
    "PackNotFoundError",
    "QueueError",
    "RangeError",
    "RecipeError",
    "ResourcesError",
    "ToolchainError",
    "UnsupportedError",
    "UsageError",
    "WorkspaceError",
]


class UnsupportedError(KilnError):
    """No kernel serves this call; the sentence names the nearest that exists."""

    status, status_name = 2, "KILN_E_UNSUPPORTED"


class NoDeviceError(KilnError):
    """There is no driver, no device, or the device is one that no pack serves."""

    status, status_name = 3, "KILN_E_NO_DEVICE"


class DriverError(KilnError):
    """The driver returned an error; the sentence has its name and number."""

    status, status_name = 4, "KILN_E_DRIVER"


class PackError(KilnError):
    """The images of a target cannot be used; which way, the classes below say."""


class PackNotFoundError(PackError):
    """There is no pack for this device's target; the package kiln-images-<target> brings it."""

    status, status_name = 5, "KILN_E_PACK_NOT_FOUND"


class PackMismatchError(PackError):
    """The pack is of another release than the library, or was not named."""

    status, status_name = 6, "KILN_E_PACK_MISMATCH"


class PackCorruptError(PackError):
    """The pack is truncated, malformed, or has other bytes than its release."""

    status, status_name = 7, "KILN_E_PACK_CORRUPT"


class WorkspaceError(KilnError):
    """The workspace is missing, too small or not aligned to 256 bytes."""

    status, status_name = 8, "KILN_E_WORKSPACE"


class ForkedError(KilnError):
    """The runtime belongs to the parent of this process."""

    status, status_name = 10, "KILN_E_FORKED"


class OutOfMemoryError(KilnError, MemoryError):
    """Memory of the host has run out."""

    status, status_name = 11, "KILN_E_OUT_OF_MEMORY"


class NotFoundError(KilnError, LookupError):
    """There is no operation, variant or target of that name."""

    status, status_name = 12, "KILN_E_NOT_FOUND"


class QueueError(KilnError):
    """The stream belongs to another device than the arrays, or cannot be used."""

    status, status_name = 13, "KILN_E_QUEUE"


class RangeError(ArgumentError):
    """A value overflows: a stride or size that the kernel cannot address."""

    status, status_name = 14, "KILN_E_RANGE"


class ResourcesError(KilnError):
    """The image needs more shared memory or threads than this device gives."""

    status, status_name = 15, "KILN_E_RESOURCES"


class FamilyError(KilnError):
    """A family's tables are malformed, or of an ABI that the library does not know."""

    status, status_name = 16, "KILN_E_FAMILY"


_CLASSES: dict[int, type[KilnError]] = {
    cls.status: cls
    for cls in (
        ArgumentError, UnsupportedError, NoDeviceError, DriverError, PackNotFoundError, PackMismatchError,
        PackCorruptError, WorkspaceError, ForkedError, OutOfMemoryError, NotFoundError, QueueError, RangeError,
        ResourcesError, FamilyError,
    )
}  # fmt: skip


def of_status(status: int, sentence: str) -> KilnError:
    """The exception for a status of the C interface; `KilnError` itself for one that has no class.

    Args:
        sentence: what kiln_error() says.
    """
    if kind := _CLASSES.get(status):
        return kind(with_package(sentence))
    from kiln import _core

    error = KilnError(sentence)
    error.status, error.status_name = status, _core.status_name(status)
    return error


def with_package(sentence: str) -> str:
    """A sentence of the runtime's; where it misses a pack, with the package that would bring it."""
    missing = re.search(r"there is no pack (?:nvidia|amd)-(\w+)\.pack", sentence)
    return f"{sentence}; the package kiln-images-{missing[1].replace('_', '-')} brings it" if missing else sentence


def in_source_tree() -> bool:
    """Whether this package is a checkout's, which has no extension and no generated module."""
    package = Path(__file__).parent
    tree = package.parent.parent.parent  # at any depth, where `parents` may have no third
    return not any(package.glob("_core.*.so")) and (tree / "tritonsrc/flash/recipe.yaml").is_file()


def needs_extension(name: str) -> NoReturn:
    """Stands for what a checkout's package lacks.

    Raises:
        AttributeError: `name` is a special name, for which Python itself asks.
        ImportError: in words.
    """
    if name.startswith("__") or name in ("errors", "jit", "torch"):
        raise AttributeError(f"module 'kiln' has no attribute {name!r}")
    raise ImportError(
        f"kiln.{name} needs compiled libraries, and {Path(__file__).parent} is a checkout, where kiln.jit.Recipe alone "
        "works; install the wheels of a release (kiln wheel), and leave the checkout out of PYTHONPATH"
    )


def of_import(error: ImportError) -> ImportError:
    """Why the extension cannot be loaded, where this Python or another release's libraries are why; else `error`.

    The loader answers every request for libkiln.so.0 with the first that the process has loaded. That may be
    of another release, as long as it has every function that the extension calls.
    """
    made = sorted(path.name for path in Path(__file__).parent.glob("_core.*.so"))
    fits = any(name == f"_core{suffix}" for name in made for suffix in EXTENSION_SUFFIXES)
    if made and (not fits or "undefined symbol: Py" in str(error)):
        version = ".".join(map(str, sys.version_info[:2]))
        return ImportError(
            f"the package kiln in {Path(__file__).parent} has {' and '.join(made)}, which Python {version} does not "
            "load; install the wheel of kiln-runtime for this Python (cp310, cp311, or cp312-abi3 from 3.12 on)"
        )
    if not re.search("undefined symbol: kiln_|version `KILN_", str(error)):
        return error
    import ctypes

    def version_of(library: str | Path, mode: int) -> str:
        ask = ctypes.CDLL(str(library), mode).kiln_version
        ask.restype = ctypes.c_char_p
        return ask().decode()

    own = Path(__file__).parent / "lib/libkiln.so.0"
    try:
        there, here = version_of(own.name, os.RTLD_NOW | os.RTLD_NOLOAD), version_of(own, os.RTLD_NOW)
    except (OSError, AttributeError):  # none was loaded before; or they are not Kiln's libraries
        return error
    return ImportError(
        f"this process has loaded libkiln.so.0 of Kiln {there} before, which does not match the package kiln of "
        f"{here} in {own.parents[1]}; use both from one release: {error}"
    )
