"""The memory of workers: blocks lie where they were asked for, whole and apart, and none is handed out twice."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import nativebuild
import pytest

from executor_contract import collect
from kiln_build.farm.executor import Returned, Task
from kiln_build.farm.local import LocalExecutor
from kiln_build.native import native

ROOT = Path(__file__).resolve().parents[2]

# Blocks of all sizes, in several threads, some freed by another; each is filled with a byte of its own, which is still
# there when it ends.
STRESS = """
import ctypes, queue, random, threading
c = ctypes.CDLL(None, use_errno=True)
for name, arguments in {
    "malloc": [ctypes.c_size_t], "calloc": [ctypes.c_size_t] * 2, "realloc": [ctypes.c_void_p, ctypes.c_size_t],
    "aligned_alloc": [ctypes.c_size_t] * 2, "memalign": [ctypes.c_size_t] * 2,
}.items():
    getattr(c, name).argtypes, getattr(c, name).restype = arguments, ctypes.c_void_p
c.free.argtypes, c.free.restype = [ctypes.c_void_p], None
c.malloc_usable_size.argtypes, c.malloc_usable_size.restype = [ctypes.c_void_p], ctypes.c_size_t
passed_on = queue.SimpleQueue()
failures = []

def size_of(choose):
    return choose.choice([0, 1, 15, 16, 17, 1024, 1025, 8192, 8193, 65536, 65537, choose.randrange(1 << 21)])

def check(block, size, byte):
    assert ctypes.string_at(block, min(size, 4096)) == bytes([byte]) * min(size, 4096)
    if size > 4096:
        assert ctypes.string_at(block + size - 64, 64) == bytes([byte]) * 64

def work(seed):
    choose = random.Random(seed)
    held = []
    for step in range(3000):
        size, byte = size_of(choose), choose.randrange(1, 256)
        kind = choose.randrange(4)
        if kind == 0:
            block = c.malloc(size)
        elif kind == 1:
            block = c.calloc(3, size // 3)
            size = size // 3 * 3
            assert ctypes.string_at(block, size) == bytes(size)
        elif kind == 2:
            alignment = 1 << choose.randrange(4, 17)
            block = (c.aligned_alloc if step % 2 else c.memalign)(alignment, size)
            assert block % alignment == 0, (block, alignment)
        else:
            if not held:
                continue
            old, old_size, byte = held.pop(choose.randrange(len(held)))
            check(old, old_size, byte)
            block = c.realloc(old, size)
            check(block, min(size, old_size), byte)
        assert block % 16 == 0 and c.malloc_usable_size(block) >= size
        ctypes.memset(block, byte, size)
        held.append((block, size, byte))
        if len(held) > 60:
            one = held.pop(choose.randrange(len(held)))
            if step % 3:
                check(*one)
                c.free(one[0])
            else:
                passed_on.put(one)
            if not passed_on.empty():
                other = passed_on.get()
                check(*other)
                c.free(other[0])
    for one in held:
        check(*one)
        c.free(one[0])

def guarded(seed):
    try:
        work(seed)
    except BaseException as error:
        failures.append(repr(error))

threads = [threading.Thread(target=guarded, args=(seed,)) for seed in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert not failures, failures
assert c.malloc(1 << 60) is None and ctypes.get_errno() == 12
assert c.calloc(1 << 40, 1 << 40) is None and c.realloc(None, 1 << 60) is None
block = ctypes.c_void_p()
assert c.posix_memalign(ctypes.byref(block), ctypes.c_size_t(24), ctypes.c_size_t(8)) == 22
assert c.posix_memalign(ctypes.byref(block), ctypes.c_size_t(4096), ctypes.c_size_t(8)) == 0 and block.value % 4096 == 0
c.free(block)
c.free(None)
print("done")
"""

REUSE = """
import ctypes
c = ctypes.CDLL(None)
c.malloc.argtypes, c.malloc.restype, c.free.argtypes = [ctypes.c_size_t], ctypes.c_void_p, [ctypes.c_void_p]
for size in (64, 5000, 300_000):
    first = c.malloc(size)
    c.free(first)
    assert c.malloc(size) == first, size
print("done")
"""


@pytest.fixture(scope="module")
def memory() -> Path:
    compiler = native.own_zig(nativebuild.cache() / "zig")
    return native.build_memory(ROOT, compiler, nativebuild.cache())


def run(memory: Path, program: str, *, limit: int | None = None, what: int = resource.RLIMIT_AS):
    def limited() -> None:
        if limit is not None:
            resource.setrlimit(what, (limit, limit))

    return subprocess.run(
        [sys.executable, "-I", "-c", program],
        env={**os.environ, "LD_PRELOAD": str(memory)},
        capture_output=True,
        text=True,
        timeout=300,
        preexec_fn=limited,
    )


@pytest.mark.parametrize("program", [STRESS, REUSE], ids=["stress", "reuse"])
def test_blocks(memory, program):
    done = run(memory, program)
    assert done.returncode == 0 and done.stdout == "done\n", done.stderr[-3000:]


def test_it_takes_what_addresses_there_are(memory):
    done = run(memory, REUSE, limit=48 << 30)
    assert done.returncode == 0 and done.stdout == "done\n", done.stderr[-3000:]


def test_memory_that_runs_out_is_an_error_of_the_task(memory):
    """RLIMIT_DATA is how the farm keeps a job to what it has reserved."""
    program = "try:\n held = [bytearray(1 << 20) for _ in range(4000)]\nexcept MemoryError:\n print('done')"
    done = run(memory, program, limit=1 << 30, what=resource.RLIMIT_DATA)
    assert done.returncode == 0 and done.stdout == "done\n", done.stderr[-3000:]


def is_loaded() -> bool:
    """Whether this process has the library."""
    return "memory.so" in Path("/proc/self/maps").read_text()


def test_workers_are_run_with_it(memory, tmp_path):
    library = tmp_path / "a folder: with what LD_PRELOAD splits at" / "memory.so"
    library.parent.mkdir()
    shutil.copy(memory, library)
    with LocalExecutor(1, temporary=tmp_path / "workers", preload=library) as executor:
        executor.submit(Task(0, is_loaded, (), tmp_path / "log"))
        ended = collect(executor, 1, 60)
    assert isinstance(ended[0], Returned) and ended[0].value is True, ended
