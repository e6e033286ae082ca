"""Loads shared objects, each of program.cc with an interface of its own, into one process, and runs each.

    python together.py <driver> <vendor> <object>...

Each is loaded with RTLD_LOCAL; the result is the largest that one returned."""

from __future__ import annotations

import ctypes
import os
import sys


def main() -> int:
    driver, vendor, *paths = sys.argv[1:]
    stand_in = ctypes.CDLL(driver)
    objects = [(path, ctypes.CDLL(path, mode=os.RTLD_LOCAL)) for path in paths]
    results = []
    for path, loaded in objects:
        stand_in.fake_mark(f"begin {os.path.basename(path)}".encode())
        results.append(loaded.run_all(ctypes.c_void_p(stand_in._handle), int(vendor)))
    return max(results)


if __name__ == "__main__":
    sys.exit(main())
