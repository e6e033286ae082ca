"""Calls Kiln in a child of fork(), with its parent's kiln_t and with one of its own."""

from __future__ import annotations

import ctypes
import json
import os
import sys
from pathlib import Path

from common import attention, cudadriver, ffi, make_context, make_tensors

prefix = Path(sys.argv[1])
make_context()
tensors = make_tensors()
library = ffi.Library(prefix / "lib")
flash = ctypes.CDLL(str(prefix / "lib/libkiln_flash.so"))
kiln = ffi.Kiln(library, None)
answer = {"parent_before": attention(library, flash, kiln.handle, tensors)}

reading, writing = os.pipe()
child = os.fork()
if child == 0:
    visit = ffi.DeviceFn(lambda device, user: 0)
    seen = {"child_call": attention(library, flash, kiln.handle, tensors), "child_sentence": library.error()}
    seen["child_devices"] = library.c.kiln_devices(kiln.handle, visit, None)
    kiln.close()
    own = ffi.Kiln(library, None)
    own.register(flash, "flash")
    seen["child_own_devices"] = library.c.kiln_devices(own.handle, visit, None)
    own.close()
    os.write(writing, json.dumps(seen).encode())
    os._exit(0)
os.close(writing)
with os.fdopen(reading) as pipe:
    answer |= json.loads(pipe.read() or "{}")
answer["child_exit"] = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
answer["parent_after"] = attention(library, flash, kiln.handle, tensors)
cudadriver.call("cuCtxSynchronize")
kiln.close()
print(json.dumps(answer))
