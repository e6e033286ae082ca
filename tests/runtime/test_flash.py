"""The typed entries of csrc/flash/attention.cc, on tables that hand the kernel all of its arguments."""

from __future__ import annotations

import ctypes
import struct

import ffi
import packs
import pytest
from ffi import BF16, FP16, FP32, tensor

SIZES = [8, 8, 8, 8, 8, 4, 4, 8, 8]


@pytest.fixture
def flash(built, library, fake, tmp_path):
    """(runtime, a function that calls kiln_attn_fwd)"""
    images, slots = [], []
    for dtype in ("fp16", "bf16"):
        symbol = f"attn_{dtype}"
        images.append(packs.Image(symbol, packs.fake_code(symbol, SIZES), 1, 9, scratch=64, scratch_align=16))
        slots.append((len(images) - 1, packs.NONE, None, packs.key_of(dtype)))
    kernel = packs.Kernel("flash", "attn_fwd", "attn_fwd", ["num_warps=4"], ["generic"], ["dtype=fp16", "dtype=bf16"],
                          bytes([5]).ljust(32, b"\0"), slots)  # fmt: skip
    data = packs.write("sm_90", "1.2.3", [kernel], images)
    (tmp_path / packs.FILES["sm_90"]).write_bytes(data)
    entries = ctypes.CDLL(str(built / "lib" / "libkiln_flash.so"))
    with ffi.Kiln(library, fake, pack_path=str(tmp_path), trusted_packs=packs.digest_of(data)) as kiln:

        def call(name="kiln_attn_fwd", extra=(), queue=None, **fields):
            views = {"q": view(0x10000), "k": view(0x20000), "v": view(0x30000), "out": view(0x40000)}
            views.update({key: fields.pop(key) for key in list(fields) if isinstance(fields[key], ffi.Tensor)})
            pointers = {key: ctypes.pointer(value) for key, value in views.items()}
            defaults = {"size": ctypes.sizeof(ffi.AttnFwd), "workspace": 0x100000, "workspace_bytes": 4096}
            params = ffi.AttnFwd(**(defaults | pointers | fields))
            queue = queue or ffi.Queue(ctypes.sizeof(ffi.Queue), ffi.NVIDIA, -1, None)
            status = getattr(entries, name)(kiln.handle, ctypes.byref(queue), ctypes.byref(params), *extra)
            library.check(status)

        yield kiln, call


def view(data: int, dtype: int = BF16, sizes: tuple[int, ...] = (2, 4, 100, 64)) -> ffi.Tensor:
    return tensor(data, dtype, sizes)


def fp32(value: float) -> int:
    return struct.unpack("<I", struct.pack("<f", value))[0]


def test_arguments_in_the_recipes_order(flash, fake):
    _, call = flash
    call()
    call(lse=view(0x50000, FP32, (2, 4, 100)), sm_scale=0.25, causal=7)
    first, second = fake.launches()
    assert first.symbol == b"attn_bf16" and list(first.grid) == [2, 1, 1]
    pointers = [0x10000, 0x20000, 0x30000, 0x40000]
    assert first.parameters() == [*pointers, 0, fp32(0.125), 0, 0x100000, 0]  # 1 / sqrt(64)
    assert second.parameters() == [*pointers, 0x50000, fp32(0.25), 1, 0x100000, 0]


def test_family_registers_itself_once(flash):
    kiln, call = flash
    call()
    call()
    assert len([m for _, m in kiln.messages if "registered the family flash" in m]) == 1


def test_workspace(flash):
    _, call = flash
    size = ctypes.c_uint64()
    call("kiln_attn_fwd_workspace", extra=(ctypes.byref(size),), workspace=None, workspace_bytes=0)
    assert size.value == 2 * 64
    with pytest.raises(ffi.Failure, match="needs 128 bytes of workspace and is given 100") as failure:
        call(workspace_bytes=100)
    assert failure.value.status == ffi.WORKSPACE


def test_forcing(flash, fake):
    _, call = flash
    keys = (ctypes.c_char_p * 1)(packs.key_of("bf16").hex().encode())
    call(force_keys=keys, force_count=1)
    assert len(fake.launches()) == 1
    with pytest.raises(ffi.Failure, match="no variant of this call's functional"):
        call(force_keys=keys, force_count=1, **{n: view(0x10000, FP16) for n in ("q", "k", "v", "out")})
    with pytest.raises(ffi.Failure, match="flash has no target sm_70"):
        call(force_target=b"sm_70")


@pytest.mark.parametrize(
    "fields, status, sentence",
    [
        ({"q": None}, ffi.ARGUMENT, "flash.attn_fwd: q is absent; it must be a tensor"),
        ({"out": None}, ffi.ARGUMENT, "flash.attn_fwd: out is absent"),
        ({"q": view(0x10000, BF16, (2, 4, 64))}, ffi.ARGUMENT, "q has rank 3; it must be 4"),
        ({"q": view(0x10000, BF16, (2, 4, 100, 0))}, None, ""),
        ({"k": view(0x10000, FP16)}, ffi.ARGUMENT, "k is fp16; it must be bf16, as this call's dtype"),
        ({"lse": view(0x10000, BF16, (2, 4, 100))}, ffi.ARGUMENT, "lse is bf16; it must be fp32"),
        ({"q": view(0x10000, FP32)}, ffi.UNSUPPORTED, "dtype=fp32 on sm_90; the nearest that exists is dtype=fp16"),
        ({"size": 0}, ffi.ARGUMENT, "kiln_attn_fwd_params.size is 0"),
        ({"reserved0": 1}, ffi.NEWER_CALLER, "kiln_attn_fwd_params.reserved0 is not zero"),
    ],
)  # fmt: skip
def test_bad_calls(flash, fields, status, sentence):
    _, call = flash
    if status is None:
        call(**fields)
        return
    with pytest.raises(ffi.Failure, match=sentence) as failure:
        call(**fields)
    assert failure.value.status == status


def test_older_and_newer_callers(flash, fake, built):
    kiln, call = flash
    with pytest.raises(ffi.Failure, match="its workspace is NULL"):
        call(size=ffi.AttnFwd.sm_scale.offset, sm_scale=9.0)
    call(size=ffi.AttnFwd.force_keys.offset, force_count=5)  # beyond its size: not read
    assert len(fake.launches()) == 1

    class Newer(ctypes.Structure):
        _fields_ = [("params", ffi.AttnFwd), ("tail", ctypes.c_uint64)]

    newer = Newer(tail=1)
    newer.params.size = ctypes.sizeof(Newer)
    entries = ctypes.CDLL(str(built / "lib" / "libkiln_flash.so"))
    assert entries.kiln_attn_fwd(kiln.handle, None, ctypes.byref(newer)) == ffi.NEWER_CALLER
    assert entries.kiln_attn_fwd(kiln.handle, None, None) == ffi.ARGUMENT
    assert entries.kiln_attn_fwd(None, None, ctypes.byref(ffi.AttnFwd(ctypes.sizeof(ffi.AttnFwd)))) == ffi.ARGUMENT
    assert kiln.library.error() == "the kiln_t is NULL"
