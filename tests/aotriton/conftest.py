from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "runtime"))
sys.path.append(str(Path(__file__).resolve().parents[1] / "recorder"))  # entries

import fake_release
import ffi
from aotriton_worker import Worker


@pytest.fixture(scope="session")
def release() -> fake_release.Release:
    """lib/ and include/ with libaotriton_v2.so, and drivers by name."""
    return fake_release.build()


@pytest.fixture(scope="session")
def _workers(release):
    workers = {"amd": Worker(release.folder, ffi.AMD), "nvidia": Worker(release.folder, ffi.NVIDIA)}
    yield workers
    for worker in workers.values():
        worker.close()


@pytest.fixture(params=["amd", "nvidia"])
def worker(request, _workers) -> Worker:
    """A process with the vendor's fake driver, which other tests have used."""
    _workers[request.param].events()
    return _workers[request.param]


@pytest.fixture
def start(release):
    """A function that starts a process of one's own: a vendor, a folder of drivers, a copy of the release to take
    instead of it, environment variables."""
    started = []

    def one(vendor: int = ffi.AMD, driver: str | None = None, folder: Path | None = None, **environment: str) -> Worker:
        started.append(Worker(folder or release.folder, vendor, driver, **environment))
        return started[-1]

    yield one
    for worker in started:
        worker.close()
