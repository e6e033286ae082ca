"""Many threads at once, and what a repeated call costs."""

from __future__ import annotations

import ctypes
import threading

import ffi
import pytest
from ffi import AMD, NVIDIA
from test_launch import arguments, work


def in_threads(count: int, function) -> None:
    """Runs function(number) in `count` threads that start together; the first exception comes out."""
    barrier = threading.Barrier(count)
    problems = []

    def body(number: int) -> None:
        try:
            barrier.wait()
            function(number)
        except BaseException as problem:  # noqa: BLE001 - pytest.fail() raises no Exception
            problems.append(problem)

    threads = [threading.Thread(target=body, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if problems:
        raise problems[0]


def test_eight_threads_at_first_load(library, fake, toy):
    for _ in range(20):
        fake.reset()
        with ffi.Kiln(library, fake) as kiln:

            def first_call(number: int, kiln=kiln) -> None:
                fake.set_current(fake.context(0))
                kiln.register(toy)
                kiln.launch(work(kiln, arguments(), stream=fake.stream(device=number % 2 * 4)))

            in_threads(8, first_call)
            # once for each of the two devices
            assert fake.count("cuLibraryLoadData") == 2 and fake.count("cuInit") == 1
            assert len(fake.launches()) == 8 and len(kiln.variants("toy.mix", "sm_90")) == 50
            assert len([m for _, m in kiln.messages if m.startswith("opened ")]) == 1
        assert fake.loaded == 0


def test_threads_with_different_images_devices_and_vendors(library, fake, toy):
    fake.reset()
    with ffi.Kiln(library, fake) as kiln:
        kiln.register(toy)

        def body(number: int) -> None:
            vendor = (NVIDIA, AMD)[number % 2]
            for step in range(12):
                device = 0 if vendor == AMD else (0, 1, 3, 4)[step % 4]
                change = {"n": 1 + step % 2, "flag": step % 2, "rows": 100 + 2000 * (step % 2)}
                kiln.launch(work(kiln, arguments(**change), vendor=vendor, stream=fake.stream(vendor, device)))
                with pytest.raises(ffi.Failure, match="width=999"):
                    kiln.launch(work(kiln, arguments(cols=999), vendor=vendor, stream=fake.stream(vendor, device)))

        in_threads(8, body)
        loads = fake.count("cuLibraryLoadData") + fake.count("hipModuleLoadData")
        assert loads == fake.loaded
    assert fake.loaded == 0


def test_a_repeated_call_is_cheap(kiln, fake, built):
    """Host time of a repeated call, without a driver's part; the fake driver's is small. The bound is loose: what is
    looked for is a lock, an allocation or a search that crept in, tens of microseconds under contention."""
    import time

    fake.c.fake_set_recording(0)
    call = work(kiln, arguments(rows=100, n=1), stream=fake.stream())
    kiln.launch(call)
    launch, reference = kiln.library.c.kiln_launch, ctypes.byref(call)
    best = 1.0
    for _ in range(5):
        begin = time.perf_counter()
        for _ in range(2000):
            launch(reference)
        best = min(best, (time.perf_counter() - begin) / 2000)
    assert best < 20e-6
