"""libkiln_torch.so by itself: what it links, what it registers, and its kernels on stand-ins for libtorch and Kiln."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import nativebuild
import pytest
from shim_symbols import listed

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]


@pytest.fixture
def fake(stand_ins: Path) -> Path:
    return stand_ins


def inside(folder: Path, code: str = "", **environment: str) -> str:
    """Runs Python code with the stand-ins loaded as `p`, in a process of its own; its output."""
    paths = os.pathsep.join(map(str, (HERE, ROOT / "tests", ROOT / "tests/runtime")))
    environment = {**os.environ, "KILN_FAKE": str(folder), "PYTHONPATH": paths, **environment}
    begin = "import os; from pathlib import Path; from stand_in import *; p = Process(Path(os.environ['KILN_FAKE']))\n"
    return nativebuild.run([sys.executable, "-c", begin + code], env=environment)


CALL = """
q = dense(2, 4, 8, 64)
print(p.call("attn_fwd", [q, q, q], [None] * 8, (0, 0.0, 0.0, 0.0, 0, 0, -1, -1), 2)[2])
"""


def test_registration(fake: Path) -> None:
    code = """
import json
schemas = []
while s := p.torch.fake_schema(len(schemas)): schemas.append(s.decode())
print(json.dumps([p.library.kiln_torch_failed(), schemas, [p.torch.fake_version(i) for i in range(5)],
                  [bool(p.torch.fake_kernel(s.partition("(")[0].encode(), b"CompositeExplicitAutograd"))
                   for s in schemas]]))
"""
    import json

    failed, schemas, versions, kernels = json.loads(inside(fake, code))
    assert failed == 0 and all(kernels)
    names = ["attn_fwd", "attn_fwd_fp8", "attn_bwd", "attn_decode", "dropout_mask", "is_watched"]
    assert [schema.partition("(")[0] for schema in schemas] == names
    assert set(versions) == {2 << 56 | 10 << 48}  # 2.10.0


@pytest.mark.parametrize("function", ["aoti_torch_library_init_def", "aoti_torch_library_init_impl"])
def test_a_registration_that_fails_is_counted(fake: Path, function: str) -> None:
    assert inside(fake, "print(p.library.kiln_torch_failed())", KILN_FAKE_REGISTRATION=function).strip() == "1"


def test_no_stream_is_an_error_and_never_the_null_stream(fake: Path) -> None:
    code = CALL + "print(p.error, len(p.entered))"
    found = inside(fake, code, KILN_FAKE_NO_STREAM="1").split("\n")
    assert found[:2] == [
        "13",
        "neither libtorch_cuda.so nor libtorch_hip.so is loaded, so the current stream is not known 0",
    ]


def test_rocm(fake: Path) -> None:
    """Its vendor, and HIP from the library that PyTorch has loaded."""
    code = (
        CALL
        + """
print(p.entered[0].vendor, p.entered[0].stream, bool(p.kiln.kiln_fake_resolve()))
"""
    )
    assert inside(fake, code, KILN_FAKE_BACKEND="libtorch_hip.so").split("\n")[:2] == ["0", f"2 {0x5000} True"]
    assert inside(fake, code).split("\n")[:2] == ["0", f"1 {0x5000} False"]


def test_a_runtime_that_does_not_open(fake: Path) -> None:
    code = "p.kiln.kiln_fake_open_status(11)" + CALL + "print(p.error)\np.kiln.kiln_fake_open_status(0)" + CALL
    assert inside(fake, code).split() == ["11", "it", "does", "not", "open", "0"]


def test_the_log_is_set_before_the_runtime_opens(fake: Path) -> None:
    code = """
import ctypes as c
seen = []
write = c.CFUNCTYPE(None, c.c_int32, c.c_char_p, c.c_void_p)(lambda *words: seen.append(words))
print(p.library.kiln_torch_set_log(write, c.c_void_p(7), 3))
"""
    code += (
        CALL + 'print(p.kiln.kiln_fake_log(2, b"opened"), seen, p.library.kiln_torch_set_log(None, None, 0), p.error)'
    )
    assert inside(fake, code).splitlines() == [
        "0",
        "0",
        "3 [(2, b'opened', 7)] 1 kiln_torch_set_log: the runtime is open already; set its log before the first call",
    ]
    assert inside(fake, CALL + 'print(p.kiln.kiln_fake_log(2, b"opened"))').split() == ["0", "-1"]


def test_what_it_links(torch_library: Path) -> None:
    dynamic = nativebuild.run(["readelf", "-dW", torch_library])
    needed = set(re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic))
    glibc = {"libc.so.6", "libdl.so.2", "libpthread.so.0", "libm.so.6", "ld-linux-x86-64.so.2"}
    assert {"libtorch_cpu.so", "libkiln_flash.so", "libkiln.so.0"} <= needed
    assert needed - glibc == {"libtorch_cpu.so", "libkiln_flash.so", "libkiln.so.0"}
    assert re.findall(r"\((?:RUNPATH|RPATH)\).*\[(.*)\]", dynamic) == ["$ORIGIN"]
    assert "TEXTREL" not in dynamic


def undefined(library: Path) -> set[str]:
    lines = nativebuild.run(["nm", "-D", "--undefined-only", library]).split("\n")
    return {line.split()[1] for line in lines if len(line.split()) > 1}


def test_symbols(torch_library: Path) -> None:
    """Of libtorch exactly what is listed, no C++ of anybody's, no exceptions."""
    names = undefined(torch_library)
    assert {name for name in names if "torch_" in name} == listed()
    rest = {name.partition("@")[0] for name in names if "torch_" not in name and not name.startswith("kiln_")}
    assert not [name for name in rest if name.startswith(("_Z", "__cxa", "__gxx", "_Unwind"))]
    defined = nativebuild.run(["nm", "-D", "--defined-only", torch_library]).split("\n")
    exported = {line.split()[-1].partition("@")[0] for line in defined if line.strip()}
    names = ("failed", "is_watched", "runtime", "set_log", "queue")
    assert exported == {f"kiln_torch_{name}" for name in names}
