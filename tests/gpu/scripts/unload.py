"""Opens, calls and closes twenty times, then unloads the libraries: what is left of them?"""

from __future__ import annotations

import _ctypes
import ctypes
import json
import sys
from pathlib import Path

from common import attention, cudadriver, ffi, make_context, make_tensors

prefix = Path(sys.argv[1])


def mapped() -> list[str]:
    lines = Path("/proc/self/maps").read_text().splitlines()
    return sorted({line.split()[-1] for line in lines if "/libkiln" in line or "kiln.images" in line})


def free_bytes() -> int:
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    cudadriver.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
    return free.value


make_context()
tensors = make_tensors()
library = ffi.Library(prefix / "lib")
flash = ctypes.CDLL(str(prefix / "lib/libkiln_flash.so"))
free = []
for _ in range(20):
    kiln = ffi.Kiln(library, None)
    assert attention(library, flash, kiln.handle, tensors) == ffi.OK, library.error()
    cudadriver.call("cuCtxSynchronize")
    kiln.close()
    free.append(free_bytes())
before = mapped()
_ctypes.dlclose(flash._handle)
_ctypes.dlclose(library.c._handle)
print(json.dumps({"mapped_before": before, "mapped_after": mapped(), "leaked_bytes": free[1] - free[-1]}))
