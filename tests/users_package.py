"""The package `kiln` as users import it, in the processes that test it.

Made once for a run, over libraries for the fake driver (bindings/python_site.py). It is on the path of the folders that
SESSION names. Their tests are a session of their own: the dynamic loader gives a process one libkiln.so.0, and the
package's takes the place of those that other tests load.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import cache
from multiprocessing import get_context
from pathlib import Path

import pytest

import shared

TESTS = Path(__file__).resolve().parent
SESSION = ("python", "pytorch", "jit", "kernels")
_BESIDE = tuple(TESTS / name for name in ("python", "pytorch", "kernels", "runtime"))


def lacking(*packages: str) -> list[str]:
    """Those that are not installed. They are looked for, not imported."""
    return [package for package in packages if importlib.util.find_spec(package) is None]


def site_module():
    """bindings/python_site.py; skips the test where what it needs is missing."""
    if absent := lacking("nanobind", "ziglang"):
        pytest.skip(f"needs {' and '.join(absent)}")
    sys.path += [str(TESTS / name) for name in ("bindings", "runtime") if str(TESTS / name) not in sys.path]
    import python_site

    return python_site


def site() -> Path:
    """An importable folder of the package, for this Python."""
    python_site = site_module()

    from kiln_build.native import pythons
    from kiln_recipe.errors import EnvironmentProblem

    try:
        pythons.headers_of(sys.executable)
    except EnvironmentProblem as error:
        pytest.skip(f"needs headers: {error}")
    return shared.once("site", python_site.make_site)


@cache
def put_on_path() -> None:
    """Lets this process, and those that it starts, import the package and what its tests share."""
    folders = [str(folder) for folder in (site(), *_BESIDE)]
    sys.path[:0] = folders
    os.environ["PYTHONPATH"] = os.pathsep.join(folders)
    os.environ["OMP_NUM_THREADS"] = "1"  # small arrays: threads would cost more than they save


class Module(pytest.Module):
    """A module of tests, for whose import `kiln` is put on the path."""

    packages: tuple[str, ...] = ()

    def collect(self):
        put_on_path()
        if absent := lacking(*self.packages):
            pytest.skip(f"needs {' and '.join(absent)}")
        return super().collect()


def module(path: Path, parent: pytest.Collector, *packages: str) -> Module:
    """What a conftest.py answers to pytest_pycollect_makemodule.

    Args:
        packages: without which the module is skipped.
    """
    made = Module.from_parent(parent, path=path)
    made.packages = packages
    return made


# ---- processes of their own ------------------------------------------------------------------------------------------


def _plainly(function: Callable, *arguments: object) -> object:
    """Calls a function; what it raises is told as text, since the caller's process may not have its class."""
    try:
        return function(*arguments)
    except Exception:  # noqa: BLE001 - whatever it is
        told = traceback.format_exc()
    raise AssertionError(told)


@contextmanager
def process(begin: Callable | None = None, *words: object) -> Iterator[Callable]:
    """A new process, which calls begin(*words) first; calls functions there: call(function, *arguments)."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn"), initializer=begin, initargs=words) as executor:
        yield lambda function, *arguments: executor.submit(_plainly, function, *arguments).result(timeout=300)
