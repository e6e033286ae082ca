from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

import ffi
import nativebuild


@pytest.fixture(scope="session")
def built(tmp_path_factory) -> Path:
    """lib/ and include/ with the core, the toy families, their packs and the fake driver. KILN_TEST_BUILT names a
    folder that has them already (built with sanitizers, say)."""
    if "KILN_TEST_BUILT" in os.environ:
        return Path(os.environ["KILN_TEST_BUILT"])
    return nativebuild.build_all(tmp_path_factory.mktemp("kiln"))


@pytest.fixture(scope="session")
def library(built) -> ffi.Library:
    return ffi.Library(built / "lib")


@pytest.fixture(scope="session")
def toy(built) -> ctypes.CDLL:
    return ctypes.CDLL(str(built / "lib" / "libkiln_toy.so"))


@pytest.fixture(scope="session")
def bare(built) -> ctypes.CDLL:
    return ctypes.CDLL(str(built / "lib" / "libkiln_bare.so"))


@pytest.fixture(scope="session")
def fake_library(built) -> ffi.Fake:
    return ffi.Fake(built / "lib" / "libfake.so")


@pytest.fixture
def fake(fake_library) -> ffi.Fake:
    """The fake driver, all forgotten; device 0 (sm_90) is current."""
    fake_library.reset()
    fake_library.set_current(fake_library.context(0))
    return fake_library


@pytest.fixture
def kiln(library, fake, toy):
    """A runtime on the fake driver with the toy family."""
    with ffi.Kiln(library, fake) as kiln:
        kiln.register(toy)
        yield kiln
