"""Compiles one variant in a process of its own, the usual way: `triton.compile`, which imports, compiles and caches.

    python one_kernel.py SPEC.json IMAGE

The yardstick of run.py: nothing of Kiln is imported here.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

job = json.loads(Path(sys.argv[1]).read_text())
sys.path.insert(0, job["site"])
sys.path.insert(0, str(Path(job["source"]).parent))

import triton  # noqa: E402
from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402

spec = importlib.util.spec_from_file_location("kernel", job["source"])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
function = getattr(module, job["function"])
places = {name: (place,) for place, name in enumerate(function.arg_names)}
source = ASTSource(
    function,
    dict(job["signature"]),
    {places[name]: value for name, value in job["constants"]},
    {places[name]: [["tt.divisibility", factor]] for name, factor in job["divisible"]},
)
arch = int(job["arch"]) if job["arch"].isdecimal() else job["arch"]
compiled = triton.compile(source, GPUTarget(job["backend"], arch, job["warp_size"]), dict(job["options"]))
Path(sys.argv[2]).write_bytes(compiled.asm[job["kind"]])
