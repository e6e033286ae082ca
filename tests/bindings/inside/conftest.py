from __future__ import annotations

import fakes
import ffi
import pytest
import recorded


@pytest.fixture(scope="session")
def fake_library() -> ffi.Fake:
    return ffi.Fake(fakes.LIB / "libfake.so")


@pytest.fixture
def fake(fake_library) -> ffi.Fake:
    """The fake driver, all forgotten; device 0 (sm_90) is current."""
    fake_library.reset()
    fake_library.set_current(fake_library.context(0))
    return fake_library


@pytest.fixture
def runtime(fake):
    """A runtime on the fake driver, with an image for each functional."""
    with fakes.opened(fake) as made:
        yield made


@pytest.fixture
def scratch_runtime(fake):
    """One whose images need 16 bytes of scratch for each program."""
    with fakes.opened(fake, "scratch.images") as made:
        yield made


@pytest.fixture
def launched(fake):
    """By name the arguments that the last launch handed its kernel, and the launch."""

    def last(operation: str) -> tuple[dict[str, int], recorded.Launch]:
        launch = fake.launches()[-1]
        assert launch.symbol.decode().startswith(operation)
        return dict(zip(fakes.arguments(operation), launch.parameters())), launch

    return last
