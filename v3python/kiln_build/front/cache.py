"""The download cache before a build: filled from the lock, for the Python that builds."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from kiln_build.fetch import fetch
from kiln_build.fetch.registry import Registry, read_configuration
from kiln_recipe.compile.lock import Lock
from kiln_recipe.console import progress
from kiln_recipe.errors import ToolchainError

_USES = ("front", "build", "override")


def fill(
    lock: Lock, python: str, cache: Path, ca_bundle: Path | None, triton: str = "wheel", *, scheduler: bool = False,
    only: Collection[str] | None = None,
) -> None:  # fmt: skip
    """Fetches what builds on `python` read and the cache lacks; needs no network if it is full.

    Args:
        python: "3.12".
        triton: "wheel", or "source": what Triton is built with is wanted too.
        scheduler: what speaks to a Dask cluster is wanted too.
        only: names of packages to restrict it to.

    Raises:
        ToolchainError: something cannot be had.
    """
    more = {"triton-source": triton == "source", "scheduler": scheduler}
    wanted = lock.wanted([python], (*_USES, *(use for use, is_asked in more.items() if is_asked)))
    if only is not None:
        wanted = tuple(file for file in wanted if (of := lock.package_of(file.name)) and of.name in only)
    if not fetch.missing_files(wanted, cache):
        return
    try:
        with progress.make_progress() as shown:
            fetch.fetch_files(lock, wanted, cache, lambda: Registry(read_configuration(ca_bundle)), shown)
    except ToolchainError as error:
        raise ToolchainError(f"{error}; without a network, fill the cache with `kiln fetch --unbundle`")
