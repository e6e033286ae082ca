"""The small release's own libraries and packs on the recording driver."""

from __future__ import annotations

import _ctypes
import ctypes
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "runtime"))  # ffi, nativebuild
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "aotriton"))  # its functions and what they mean

import ffi
import nativebuild
import oracle

from builds import loaded


@pytest.fixture(scope="session")
def driver() -> Path:
    """A folder with lib/libfake.so."""
    return nativebuild.fake_alone()


@pytest.fixture(scope="session")
def fake_library(driver) -> ffi.Fake:
    return ffi.Fake(driver / "lib" / "libfake.so")


@pytest.fixture
def fake(fake_library) -> ffi.Fake:
    """The driver, all forgotten; the first NVIDIA device's context is current."""
    fake_library.reset()
    fake_library.set_current(fake_library.context(0))
    return fake_library


@pytest.fixture(scope="module")
def libraries(wide_release) -> Iterator[tuple[ffi.Library, ctypes.CDLL]]:
    """The core and the flash family's library."""
    with loaded(wide_release.prefix, "flash") as (_, flash):
        flash.kiln_flash_family.restype = ctypes.c_void_p
        library = ffi.Library(wide_release.prefix / "lib")
        yield library, flash
        _ctypes.dlclose(library.c._handle)


@pytest.fixture(scope="session", params=list(oracle.DEVICES))
def judge(request, wide_release) -> oracle.Oracle:
    """For each target of the release."""
    return oracle.Oracle(wide_release.prefix, request.param)


@pytest.fixture(scope="session")
def placed(wide_release, driver, tmp_path_factory) -> Path:
    """The release's lib/ and include/, and folders of drivers by name, as Worker wants them."""
    folder = tmp_path_factory.mktemp("placed")
    for name in ("lib", "include"):
        (folder / name).symlink_to(wide_release.prefix / name)
    (folder / "driver").mkdir()
    for vendor in ("amd", "nvidia"):
        (folder / "driver" / vendor).symlink_to(nativebuild.driver_folder(driver, vendor))
    return folder
