"""The recording driver itself: it reads images as they are, records what it is told, fails when it is to, and is found
by a driver's name."""

from __future__ import annotations

import ctypes
import os
import struct
import subprocess

import ffi
import nativebuild
import pytest
import recorded
from oracle import Oracle

from builds import Built

LOADS = {"sm_90": ("cuLibraryLoadData", [None, None, 0, None, None, 0]), "gfx942": ("hipModuleLoadData", [])}


def load(fake: ffi.Fake, target: str, code: bytes) -> ctypes.c_void_p:
    name, more = LOADS[target]
    module = ctypes.c_void_p()
    assert getattr(fake.c, name)(ctypes.byref(module), code, *more) == 0
    return module


def test_it_reads_every_image_as_its_metadata_is_read_in_python(fake, judge):
    """The kernel's name, static shared memory, the offset and size of each parameter, and where the file ends."""
    for digest, code in judge.codes.items():
        load(fake, judge.target, code + b"\x7f" * 64)  # what follows in memory is not its own
        image = fake.record().images[len(fake.record().images)]
        assert image.code == code
        assert (image.symbol, image.shared, image.parameters) == judge.facts(digest)


PTX = b"""
.version 8.7
.target sm_90a
.address_size 64
.visible .entry mix(
\t.param .u64 .ptr .global .align 1 mix_param_0,
\t.param .u32 mix_param_1,
\t.param .align 64 .b8 mix_param_2[128],
\t.param .f32 mix_param_3
)
.reqntid 128
{
\tld.param.b32 %r1, [mix_param_1];
\tret;
}
\0"""


def test_it_reads_ptx_by_its_declarations(fake):
    load(fake, "sm_90", PTX)
    image = fake.record().images[1]
    assert (image.code, image.symbol, image.shared) == (PTX, "mix", 0)
    assert image.parameters == ((0, 8), (8, 4), (64, 128), (192, 4))


@pytest.mark.parametrize("code", [b"\x7fELF\2\1\1" + bytes(64), b"hello\0", b"FAKE \0"])
def test_it_takes_nothing_else_for_an_image(fake, code):
    module = ctypes.c_void_p()
    assert fake.c.cuLibraryLoadData(ctypes.byref(module), code, None, None, 0, None, None, 0) == 200
    assert fake.c.hipModuleLoadData(ctypes.byref(module), code) == 209
    assert fake.loaded == 0 and not fake.record().images


def launch(fake: ffi.Fake, target: str, module: ctypes.c_void_p, parameters: object, extra: object) -> int:
    one = [1, 1, 1]
    name = "cuLaunchKernel" if target == "sm_90" else "hipModuleLaunchKernel"
    return getattr(fake.c, name)(module, *one, 64, 1, 1, 0, None, parameters, extra)


def test_parameters_in_one_buffer_are_recorded_as_those_that_come_apart(fake, judge):
    """As callers of a driver may give them: by HIP_LAUNCH_PARAM_BUFFER_POINTER, or CU_LAUNCH_PARAM_BUFFER_POINTER."""
    code = pack_image(judge)
    module = load(fake, judge.target, code)
    parameters = fake.record().images[1].parameters
    size = max(offset + length for offset, length in parameters)
    buffer = ctypes.create_string_buffer(bytes(number % 251 for number in range(size)), size)
    length, end = ctypes.c_size_t(size), 0 if judge.target == "sm_90" else 3
    extra = (ctypes.c_void_p * 5)(1, ctypes.addressof(buffer), 2, ctypes.addressof(length), end)
    apart = (ctypes.c_void_p * len(parameters))(*(ctypes.addressof(buffer) + offset for offset, _ in parameters))
    assert launch(fake, judge.target, module, None, extra) == 0
    assert launch(fake, judge.target, module, apart, None) == 0
    packed, other = fake.launches()
    assert packed.arguments == other.arguments == tuple(buffer.raw[o : o + n] for o, n in parameters)
    assert (packed.buffer, other.buffer) == (buffer.raw, None)
    length.value = size - 1
    assert launch(fake, judge.target, module, None, extra) == 1, "the last parameter is not in it"
    assert launch(fake, judge.target, module, apart, extra) == 1, "one way or the other"
    assert len(fake.launches()) == 2


def pack_image(judge: Oracle) -> bytes:
    """The image of a kernel with parameters of several sizes."""
    return next(
        judge.codes[slot.image]
        for place, kernel in judge.slots.items()
        if place == ("flash", "attn_fwd", "attn_fwd.general")
        for slot in kernel.slots
        if slot.image
    )


def test_memory_and_streams_that_are_kept_are_leaks(fake):
    address, stream = ctypes.c_uint64(), ctypes.c_void_p()
    for take, give_back in (("hipMallocAsync", "hipFreeAsync"), ("cuMemAllocAsync", "cuMemFreeAsync")):
        assert getattr(fake.c, take)(ctypes.byref(address), ctypes.c_size_t(1000), None) == 0
        assert [leak.split()[-1] for leak in fake.record().leaks()] == [take] and fake.c.fake_allocated() == 1
        assert getattr(fake.c, give_back)(address, None) == 0
        assert fake.record().leaks() == [] and fake.c.fake_allocated() == 0
        assert getattr(fake.c, give_back)(address, None) == 1, "it is gone"
    assert fake.c.hipStreamCreate(ctypes.byref(stream)) == 0 and len(fake.record().leaks()) == 1
    assert fake.c.hipStreamDestroy(stream) == 0 and fake.record().leaks() == []
    assert fake.last_error == 1, "hipFreeAsync's"


def test_an_image_of_another_device_is_refused(fake):
    """HIP's modules belong to a device, and streams to theirs."""
    code = b"FAKE one 0 8\0"
    module = load(fake, "gfx942", code)
    value = ctypes.c_uint64(5)
    parameters = (ctypes.c_void_p * 1)(ctypes.addressof(value))
    assert launch(fake, "gfx942", module, parameters, None) == 0
    fake.set_current(4, ffi.AMD)
    assert launch(fake, "gfx942", module, parameters, None) == 400


PROGRAM = r"""
#include <stdio.h>
#include "fake_driver.h"
#include "kiln/flash.h"

/* One forward on the first device of a vendor, found by its driver's name. */
int main(int count, char** words) {
  int vendor = words[count - 1][0] - '0';
  kiln_t kiln;
  kiln_tensor q = {(void*)0x10000, KILN_BF16, 4, {2, 4, 100, 64}, {25600, 6400, 64, 1}, {0}};
  kiln_attn_fwd_params params = KILN_ATTN_FWD_PARAMS_INIT;
  kiln_queue queue = KILN_QUEUE_INIT(vendor, fake_stream(vendor, 0, 1));
  params.q = params.k = params.v = params.out = &q;
  if (kiln_open(NULL, &kiln)) return 1;
  fake_mark("begin");
  kiln_status status = kiln_attn_fwd(kiln, &queue, &params);
  fake_mark("end");
  printf("%d %s", status, status ? kiln_error() : "");
  return kiln_close(kiln);
}
"""


@pytest.fixture(scope="module")
def program(wide_release: Built, driver, tmp_path_factory):
    folder = tmp_path_factory.mktemp("program")
    (folder / "program.c").write_text(PROGRAM)
    lib = wide_release.prefix / "lib"
    nativebuild.run(["cc", "-Wall", "-Wextra", "-Werror", "-I", wide_release.prefix / "include", "-I", nativebuild.HERE,
         folder / "program.c", driver / "lib/libfake.so", "-L", lib, "-lkiln_flash", "-lkiln", f"-Wl,-rpath,{lib}",
         f"-Wl,-rpath,{driver / 'lib'}", "-o", folder / "program"])  # fmt: skip
    return folder / "program"


@pytest.mark.parametrize("failure", ["", "Load:1:719", "Launch:1:719"])
def test_a_program_finds_it_by_its_name(driver, program, judge, tmp_path, failure):
    vendor, folder = {"sm_90": (1, "nvidia"), "gfx942": (2, "amd")}[judge.target]
    names = {"Load": LOADS[judge.target][0], "Launch": {1: "cuLaunchKernel", 2: "hipModuleLaunchKernel"}[vendor]}
    fail = failure and f"{names[failure.split(':')[0]]}:{failure.split(':', 1)[1]}"
    environment = os.environ | {
        "LD_LIBRARY_PATH": str(nativebuild.driver_folder(driver, folder)), "FAKE_DRIVER_FAIL": fail,
        "FAKE_DRIVER_RECORD": str(tmp_path / "record"),
    }  # fmt: skip
    done = subprocess.run([program, str(vendor)], env=environment, capture_output=True, text=True)
    assert done.returncode == 0 and not done.stderr
    record = recorded.read(tmp_path / "record")
    part = record.between("begin", "end")
    assert record.leaks() == []
    if failure:
        assert done.stdout.startswith(f"4 {fail.split(':')[0]}: the ") and "(719)" in done.stdout and not part.steps
        return
    (step,) = part.launches
    symbol = {"sm_90": b"attn_fwd", "gfx942": b"attn_fwd_amd"}[judge.target]
    assert done.stdout == "0 " and step.symbol == symbol and len(part.images) == 1
    assert judge.images[next(d for d, c in judge.codes.items() if c == part.images[1].code)]
    assert struct.unpack("<3Q", b"".join(step.arguments[:3])) == (0x10000,) * 3
