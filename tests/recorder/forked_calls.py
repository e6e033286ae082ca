"""Calls of AOTriton's functions, each in a process in which they were never called: the library keeps one runtime for
its process, and what a driver's failure leaves behind is to be seen at the first call too.

    python forked_calls.py <lib> <the fake driver> <vendor>

For each line of JSON, [entry, fields, what fails or null], it prints one: what became of that call, and of the same
call once more. Every call is made by a fork of this process."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "runtime"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "aotriton"))

import ffi
from aotriton_interface import Interface, library_of

DEVICE = 4  # the stream's; device 0 is the current one


def calls(interface: Interface, library: ffi.Library, fake: ffi.Fake, vendor: int, request: list) -> list[dict]:
    """What became of the two calls: `events` are those of the call itself."""
    entry, fields, fails = request
    fake.reset()
    current = 0 if vendor == ffi.AMD else fake.context(0)
    fake.set_current(current, vendor)
    stream, results, begin = fake.stream(vendor, DEVICE), [], 0
    if fails:
        for symbol in fails["symbols"]:
            fake.fail(symbol, fails["code"], fails["nth"])
    for _ in range(2):
        error = interface.call(entry, stream, **fields)
        record = fake.record()
        results.append({
            "error": error, "sentence": interface.error() if error else "", "events": record.events[begin:],
            "is_restored": (fake.current(vendor) or 0) == current, "last_error": fake.last_error,
            "allocated": fake.c.fake_allocated(),
        })  # fmt: skip
        begin = len(record.events)
        fake.set_current(current, vendor)
    return results


def forked(interface: Interface, library: ffi.Library, fake: ffi.Fake, vendor: int, request: list) -> str:
    """The line that a fork of this process answers a request with."""
    reading, writing = os.pipe()
    if os.fork() == 0:
        try:
            answer = json.dumps(calls(interface, library, fake, vendor, request))
        except BaseException as failure:  # noqa: BLE001 - the parent's test asserts that there is none
            answer = json.dumps(repr(failure))
        with os.fdopen(writing, "w") as pipe:
            pipe.write(answer)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        answer = pipe.read()
    _, status = os.wait()
    return answer if status == 0 else json.dumps(f"the call ended its process: {status}")


def main() -> None:
    lib, driver, vendor = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    parts = Interface(library_of(lib, "0.11")), ffi.Library(lib), ffi.Fake(driver)
    for line in sys.stdin:
        print(forked(*parts, vendor, json.loads(line)), flush=True)


if __name__ == "__main__":
    main()
