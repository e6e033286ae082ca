"""The Python package on the fake driver."""

from __future__ import annotations

from pathlib import Path

import pytest

import users_package


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    return users_package.module(module_path, parent)


@pytest.fixture(scope="session")
def fake_library():
    import fakes
    import ffi

    return ffi.Fake(fakes.LIB / "libfake.so")


@pytest.fixture
def fake(fake_library):
    """The fake driver, all forgotten; device 0 (sm_90) is current."""
    fake_library.reset()
    fake_library.set_current(fake_library.context(0))
    return fake_library


@pytest.fixture
def runtime(fake):
    """A runtime on the fake driver, with an image for each functional."""
    import fakes

    with fakes.opened(fake) as made:
        yield made


@pytest.fixture
def scratch_runtime(fake):
    """One whose images need 16 bytes of scratch for each program."""
    import fakes

    with fakes.opened(fake, "scratch.images") as made:
        yield made


@pytest.fixture
def launched(fake):
    """By name the arguments that the last launch handed its kernel, and the launch."""
    import fakes

    def last(operation: str):
        launch = fake.launches()[-1]
        assert launch.symbol.decode().startswith(operation)
        return dict(zip(fakes.arguments(operation), launch.parameters())), launch

    return last
