"""How kiln.jit fails: with the runtime's own exceptions, and two of its own."""

from __future__ import annotations

from kiln.errors import ArgumentError, KilnError, RangeError, ResourcesError, UnsupportedError
from kiln_recipe.call.evaluate import Refusal

__all__ = [
    "ArgumentError",
    "KernelError",
    "KilnError",
    "MissingPackageError",
    "RangeError",
    "ResourcesError",
    "UnsupportedError",
    "of_refusal",
]

_BY_STATUS = {"ARGUMENT": ArgumentError, "RANGE": RangeError, "UNSUPPORTED": UnsupportedError}


class KernelError(KilnError):
    """A kernel that does not hold: its source cannot be executed, Triton or an assembler rejects it, or it fails where
    it is interpreted. Where the mistake is the kernel's own, str() begins with file:line.

    Attributes:
        log: what the tools said, the source lines that led there, or of what was interpreted Python's whole account;
            may be empty.
    """

    def __init__(self, sentence: str, log: str = "") -> None:
        super().__init__(sentence)
        self.log = log


class MissingPackageError(KilnError, ImportError):
    """A package that kiln.jit needs is not there."""


def of_refusal(refusal: Refusal) -> KilnError:
    """The runtime's exception for what kiln_recipe.call.evaluate refused."""
    return _BY_STATUS[refusal.status](str(refusal))
