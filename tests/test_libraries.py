"""What is cut out of libdevice, ocml and ockl makes the images that the whole libraries make."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from kiln_recipe.compile import libraries

PACKAGES = Path(libraries.__file__).parents[2]
has_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")

# Functions that call others of the library, that have tables, that no library has (printf), that are called twice.
KERNELS = """
import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def small(x, y):
    at = tl.arange(0, 128)
    tl.store(y + at, tl.log2(tl.load(x + at)))


@triton.jit
def large(x, y):
    at = tl.arange(0, 128)
    a = tl.load(x + at)
    a = libdevice.tanh(a) + libdevice.erf(libdevice.tanh(a)) + libdevice.pow(a, 1.5) + libdevice.cos(a)
    tl.device_print("a", a)
    tl.store(y + at, a + tl.umulhi(at.to(tl.uint32), 0x9E3779B9).to(tl.float32))


@triton.jit
def none(x, y):
    at = tl.arange(0, 128)
    tl.store(y + at, tl.load(x + at) + 1)
"""

COMPARE = """
import sys
sys.path[:0] = sys.argv[1:3]
import triton
from triton._C.libtriton import ir, llvm
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

import kernels
from kiln_recipe.compile import libraries

def compiled():
    made = {}
    for backend, arch, width, kind in (("cuda", 90, 32, "ptx"), ("hip", "gfx942", 64, "amdgcn")):
        for name in ("small", "large", "none", "small"):
            source = ASTSource(getattr(kernels, name), {"x": "*fp32", "y": "*fp32"}, {})
            asm = triton.compile(source, target=GPUTarget(backend, arch, width)).asm
            made[arch, name] = asm["llir"], asm[kind]
    return made

whole, link, linked = compiled(), llvm.link_extern_libs, []
llvm.link_extern_libs = lambda module, paths: linked.append(tuple(paths)) or link(module, paths)
libraries.link_what_is_called(ir, llvm)
cut = compiled()
assert cut.keys() == whole.keys()
for name, texts in whole.items():
    assert cut[name] == texts, name
of_a_library = [paths for paths in linked if paths[0].endswith(".bc")]
assert len(of_a_library) == len(set(linked) - set(of_a_library)) == 4, linked  # each target's two sets of functions
assert len(linked) - len(of_a_library) == 6, linked  # and three of its images call some
print("done")
"""


@has_triton
def test_images_are_those_of_the_whole_libraries(tmp_path):
    (tmp_path / "kernels.py").write_text(KERNELS)
    variables = {"TRITON_CACHE_DIR": str(tmp_path / "cache"), "TRITON_ALWAYS_COMPILE": "1", "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        [sys.executable, "-c", COMPARE, str(PACKAGES), str(tmp_path)],
        capture_output=True, text=True, timeout=600, env=variables,
    )  # fmt: skip
    assert done.returncode == 0 and done.stdout == "done\n", done.stderr
