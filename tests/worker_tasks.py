"""What the tests of the executor and the farm let workers do. Imported by workers: keep it light."""

from __future__ import annotations

import ctypes
import hashlib
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from kiln_build.farm.worker import waiting
from kiln_recipe.compile.compile import Compiled
from kiln_recipe.errors import ArtifactError, CompileError, EnvironmentProblem, ToolchainError
from kiln_recipe.images.image import Image, ImageInfo

prepared: list = []


def announce(path, number) -> None:
    """Tells the test a process's number, by a file that appears complete."""
    new = Path(f"{path}.new")
    new.write_text(str(number))
    new.rename(path)


def prepare(*values) -> None:
    prepared.append(values)


def prepare_badly() -> None:
    raise ToolchainError("no Triton is installed in /nowhere")


def prepare_with_a_defect() -> None:
    raise KeyError("oops")


def die_at_once() -> None:
    print("the loader said no", flush=True)
    os._exit(127)


def add(a, b):
    return a + b


def what_was_prepared():
    return prepared


def process_id(*_):
    return os.getpid()


def sleep(seconds):
    time.sleep(seconds)
    return seconds


def say_and_sleep(path, seconds):
    announce(path, os.getpid())
    time.sleep(seconds)


def speak(fail: bool):
    print("from Python")
    print("from Python's stderr", file=sys.stderr)
    ctypes.CDLL(None).puts(b"from C")
    subprocess.run(["sh", "-c", "echo from a child; echo and its stderr >&2"], check=True)
    if fail:
        raise CompileError("no such register", "llir", "the tools' words")


def speak_then_abort():
    print("LLVM ERROR: out of registers")
    ctypes.CDLL(None).puts(b"Assertion `isReg()' failed.")
    os.abort()


def kill_myself(number):
    os.kill(os.getpid(), number)
    time.sleep(10)


def leave(code):
    os._exit(code)


def sys_exit():
    sys.exit("kernels may say this")


def allocate(size):
    return len(bytearray(size))


def allocate_in_small_pieces(size):
    """As a compiler does; through C's malloc, whose failure no Python code sees."""
    c = ctypes.CDLL(None)
    c.malloc.restype = ctypes.c_void_p
    for _ in range(size // (1 << 20)):
        block = c.malloc(1 << 20)
        if not block:
            print("LLVM ERROR: out of memory")
            os.abort()
        ctypes.memset(block, 1, 1 << 20)


def grow(size):
    global kept
    kept = bytearray(size)
    return os.getpid()


def hang_with_a_child(path):
    """Like a worker whose assembler hangs. The child ignores polite signals."""
    child = subprocess.Popen(["sh", "-c", "trap '' TERM INT HUP; while :; do sleep 1; done"])
    announce(path, child.pid)
    child.wait()


def die_beside_a_child(path):
    child = subprocess.Popen(["sleep", "1000"])
    announce(path, child.pid)
    os.kill(os.getpid(), 9)


def wait_for_another(seconds):
    with waiting():
        time.sleep(seconds)
    return "waited"


class Unpicklable(Exception):
    def __init__(self, a, b):
        super().__init__(f"{a} and {b}")


def raise_unpicklable():
    raise Unpicklable("this", "that")


def return_unpicklable():
    return lambda: None


def refuse_nothing(data: bytes) -> bytes:
    if not data:
        raise ArtifactError("there is nothing")
    return data


def temporary_folder():
    import tempfile

    handle, path = tempfile.mkstemp()
    os.close(handle)
    return path


# ---- stand-ins for the compiler ----


@dataclass(frozen=True)
class StandInSpec:
    """What `compile_stand_in` is to do; `text` makes the IR and, with it, the image."""

    text: str
    action: str = "compile"
    seconds: float = 0.0
    folder: str = ""
    source: str = "where it is here"
    function: str = "k"
    fingerprint: str = "f" * 64
    target: str = "gfx942"

    def key(self, toolchain_identity: str) -> str:
        return hashlib.sha256(f"{toolchain_identity} {self.text} {self.action}".encode()).hexdigest()


@dataclass(frozen=True)
class StandInVariant:
    name: str
    spec: StandInSpec
    waiver: str | None = None


@dataclass(frozen=True)
class StandInToolchain:
    identity: str = "1"


def expected_image(ir_text: str) -> Image:
    info = ImageInfo("cubin", "kernel", 128, 0, 32, 0, 0, 4, 0, 1, 0, 1, 7, "8.8")
    return Image(b"code of " + ir_text.encode(), info, "// PTX of " + ir_text)


def count_compile(spec: StandInSpec) -> int:
    """How often this has been compiled, this time included."""
    if not spec.folder:
        return 1
    with open(Path(spec.folder) / "compiled", "a+") as file:
        file.write(f"{spec.text}\n")
        file.flush()
        file.seek(0)
        return file.read().splitlines().count(spec.text)


def compile_stand_in(spec: StandInSpec, toolchain: StandInToolchain, reuse) -> Compiled:
    """Compiles nothing, but fails in every way in which compilers fail. Equal first words are equal IR."""
    assert spec.source == "where it is here"
    ir_text = spec.text.split()[0]
    ir = hashlib.sha256(f"{toolchain.identity} {ir_text}".encode()).hexdigest()
    with reuse(ir) as known:
        if known is not None:
            return Compiled(known, ir, shared=True)
        times = count_compile(spec)
        time.sleep(spec.seconds)
        if spec.action == "reject":
            raise CompileError(f"{spec.text}: no such register", "llir", "many words of the tools")
        if spec.action == "defect":
            raise KeyError("a defect")
        if spec.action == "abort" or (spec.action == "abort once" and times == 1):
            speak_then_abort()
        if spec.action == "be killed once" and times == 1:
            os.kill(os.getpid(), 9)
        if spec.action == "hang":
            hang_with_a_child(Path(spec.folder) / "child")
        if spec.action == "allocate":
            allocate_in_small_pieces(1 << 30)
        if spec.action == "allocate in Python":
            try:
                allocate(1 << 30)
            except MemoryError as error:  # as compile.py does it
                raise CompileError("out of memory", "ttir") from error
        if spec.action == "assembler dies once" and times == 1:
            try:
                subprocess.run(["sh", "-c", "kill -11 $$"], check=True)
            except subprocess.CalledProcessError as error:
                raise CompileError("`ptxas` failed with error code -11", "cubin") from error
        if spec.action == "disk full":
            raise EnvironmentProblem("cannot write the store: No space left on device")
        return Compiled(expected_image(ir_text), ir, shared=False)


def prepare_badly_for(_toolchain) -> None:
    prepare_badly()
