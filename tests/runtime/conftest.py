from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

import ffi
import nativebuild
import packs

import shared


@pytest.fixture(scope="session")
def built() -> Path:
    """lib/ and include/ with the core, the toy families, their packs and the fake driver. KILN_TEST_BUILT names a
    folder that has them already (built with sanitizers, say)."""
    if "KILN_TEST_BUILT" in os.environ:
        return Path(os.environ["KILN_TEST_BUILT"])
    return shared.once("runtime", nativebuild.build_all)


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
def tiles(built) -> ctypes.CDLL:
    return ctypes.CDLL(str(built / "lib" / "libkiln_tiles.so"))


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
def forged(library, fake, bare, tmp_path):
    """A function that opens a runtime with the family `bare` and its pack for sm_90 after change(main, images): the
    kernel main and the rows of images."""
    opened = []

    def open_one(change) -> ffi.Kiln:
        images: list[packs.Image] = []
        kernels = packs.toy_kernels("bare", "sm_90", images)
        change(kernels[0], images)
        data = packs.write("sm_90", "1.2.3", kernels, images)
        (tmp_path / packs.FILES["sm_90"]).write_bytes(data)
        kiln = ffi.Kiln(library, fake, pack_path=str(tmp_path), trusted_packs=packs.digest_of(data))
        opened.append(kiln)
        kiln.register(bare, "bare")
        return kiln

    yield open_one
    for kiln in opened:
        kiln.close()


@pytest.fixture
def kiln(library, fake, toy):
    """A runtime on the fake driver with the toy family."""
    with ffi.Kiln(library, fake) as kiln:
        kiln.register(toy)
        yield kiln


@pytest.fixture
def tiled(library, fake, tiles, tmp_path):
    """A function that opens a runtime with the family `tiles` and its pack for sm_90 after change(kernels, images)."""
    made = []

    def open_one(change=lambda kernels, images: None, version: int = 12080) -> ffi.Kiln:
        fake.c.fake_set_version(version, 60200000)
        trusted = []
        for target in packs.TILES_TARGETS:
            data = packs.tiles_pack(target, change if target == "sm_90" else lambda kernels, images: None)
            (tmp_path / packs.FILES[target]).write_bytes(data)
            trusted.append(packs.digest_of(data))
        kiln = ffi.Kiln(library, fake, pack_path=str(tmp_path), trusted_packs=",".join(trusted))
        made.append(kiln)
        kiln.register(tiles, "tiles")
        return kiln

    yield open_one
    for kiln in made:
        kiln.__exit__()
