"""Opens the store that KILN_STORE or --store names: which kind it is, its address says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from kiln_build.options.words import scheme_of
from kiln_build.store.files import find_store, print_warning
from kiln_build.store.local import LocalStore
from kiln_build.store.store import Store
from kiln_recipe.errors import UsageError

Opener = Callable[[str, Callable[[str], None]], Store]

# By what stands before "://" in the address; "" is a folder.
_KINDS: dict[str, Opener] = {
    "": lambda folder, warn: LocalStore(Path(folder), warn),
}


def open_store(location: str | Path, warn: Callable[[str], None] = print_warning, *, there: bool = False) -> Store:
    """The store at an address.

    Args:
        location: a folder, or an address: "scheme://...".
        warn: is given a sentence for each thing that was found broken and was removed.
        there: the store must be there; a folder may then also be the workspace that has it.

    Raises:
        UsageError: there is no store of this kind.
        EnvironmentProblem: it cannot be reached, or is none.
        ArtifactError: it is a store of another format.
    """
    scheme = scheme_of(str(location))
    if scheme not in _KINDS:
        raise UsageError(f"the store {location} is of an unknown kind, {scheme!r}; give a folder")
    if there and not scheme:
        location = find_store(Path(location))
    return _KINDS[scheme](str(location), warn)
