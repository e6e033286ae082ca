"""Launches the kernels of the release of test_installed_build.py on the recording driver: its lib/ and the driver's.

In a process of its own, since pytest's has the core of tests/runtime by then.
"""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "runtime"))

import ffi


def main() -> None:
    lib, driver = map(Path, sys.argv[1:])
    norm = ctypes.CDLL(str(lib / "libkiln_norm.so"))
    fake = ffi.Fake(driver / "libfake.so")
    fake.set_current(fake.context(0))
    views = [
        ffi.tensor(0x10000, ffi.BF16, (5, 1000)),
        ffi.tensor(0x20000, ffi.BF16, (1000,)),
        ffi.tensor(0x30000, ffi.BF16, (5, 1000)),
        ffi.tensor(0x50000, ffi.FP32, (1,)),
        1e-6,
    ]
    with ffi.Kiln(ffi.Library(lib), fake) as kiln:
        kiln.register(norm, "norm")
        kiln.launch(kiln.call(views, operation="norm.rms_norm", workspace=0x100000, workspace_bytes=4096))
        first, second = fake.launches()
        assert (first.symbol, list(first.grid)) == (b"rms_norm", [5, 1, 1])
        assert (second.symbol, second.parameters()[:3]) == (b"total", [0x100000, 0x50000, 5])


if __name__ == "__main__":
    main()
