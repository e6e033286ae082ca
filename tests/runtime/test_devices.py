"""Drivers and devices: found, refused, absent."""

from __future__ import annotations

import ctypes
import re
import subprocess

import ffi
import pytest
from ffi import AMD, NVIDIA
from test_launch import arguments, work


def test_devices_of_both_vendors(kiln):
    devices = kiln.devices()
    assert [(d["vendor"], d["ordinal"], d["target"]) for d in devices] == [
        (NVIDIA, 0, b"sm_90"), (NVIDIA, 1, b"sm_80"), (NVIDIA, 2, b"sm_75"), (NVIDIA, 3, b"sm_86"),
        (NVIDIA, 4, b"sm_90"),
        (AMD, 0, b"gfx942"), (AMD, 1, b"gfx90a"), (AMD, 2, b"gfx1100"), (AMD, 3, b"gfx1201"), (AMD, 4, b"gfx942"),
    ]  # fmt: skip
    assert devices[1]["id"] == b"GPU-01112131-4151-6171-8191-a1b1c1d1e1f1" and devices[1]["multiprocessors"] == 108
    assert devices[1]["name"] == b"Fake NVIDIA 1" and devices[1]["warp_size"] == 32
    assert devices[5]["id"] == b"0000:01:00.0" and devices[5]["warp_size"] == 64
    refusals = {d["target"]: d["refusal"] for d in devices if d["refusal"]}
    assert refusals[b"sm_75"] == (
        b"no pack of toy serves the NVIDIA device 2 (Fake NVIDIA 2, sm_75); its NVIDIA targets are: sm_80, sm_90"
    )
    assert set(refusals) == {b"sm_75", b"gfx90a", b"gfx1201"}


def test_refusal_without_family_and_without_packs(library, fake, bare):
    with ffi.Kiln(library, fake) as kiln:
        assert all(
            device["refusal"].startswith(b"no family is registered; register one with kiln_register_family(")
            for device in kiln.devices()
        )
        kiln.register(bare, "bare")
        assert b"is not trusted" in kiln.devices()[0]["refusal"]


def test_unserved_device(kiln, fake):
    with pytest.raises(ffi.Failure, match="no pack of toy serves the NVIDIA device 2") as failure:
        kiln.launch(work(kiln, arguments(), stream=fake.stream(device=2)))
    assert failure.value.status == ffi.NO_DEVICE
    kiln.launch(work(kiln, arguments(rows=0), stream=fake.stream(device=2)))  # nothing to do needs no pack


def test_kernel_that_a_target_lacks(kiln, fake):
    with pytest.raises(ffi.Failure, match="its target has no such kernel, nor for anything similar") as failure:
        kiln.launch(work(kiln, arguments(), vendor=AMD, stream=fake.stream(AMD, 2)))
    assert failure.value.status == ffi.UNSUPPORTED


@pytest.mark.parametrize(
    "vendor, entries", [(NVIDIA, ("cuInit", "cuLibraryLoadData")), (AMD, ("hipInit", "hipStreamGetDevice"))]
)
def test_missing_entries(kiln, fake, vendor, entries):
    for entry in reversed(entries):
        fake.hide(entry)
        with pytest.raises(ffi.Failure, match=f"has no entry point {entry}") as failure:
            kiln.launch(work(kiln, arguments(), vendor=vendor, stream=fake.stream(vendor)))
        assert failure.value.status == ffi.NO_DEVICE


def test_optional_entries(kiln, fake):
    fake.hide("cuStreamGetCtx_v2")
    fake.hide("cuCtxFromGreenCtx")
    kiln.launch(work(kiln, arguments(), stream=fake.stream()))
    with pytest.raises(ffi.Failure, match="cannot be used"):
        kiln.launch(work(kiln, arguments(), stream=fake.c.fake_green_stream(0)))


def test_old_drivers(kiln, fake):
    fake.c.fake_set_version(11080, 50500000)
    fake.hide("cuLibraryLoadData")  # an old driver lacks it; its age is the better reason
    with pytest.raises(
        ffi.Failure, match=r"the NVIDIA driver is for CUDA 11.8; Kiln needs a driver for CUDA 12.0 or later"
    ):
        kiln.launch(work(kiln, arguments()))
    with pytest.raises(ffi.Failure, match=r"the HIP runtime is from ROCm 5.5; Kiln needs 5.6 or later") as failure:
        kiln.launch(work(kiln, arguments(), vendor=AMD))
    assert failure.value.status == ffi.NO_DEVICE
    with pytest.raises(ffi.Failure, match=r"CUDA 11.8.*; .*ROCm 5.5") as failure:
        kiln.devices()
    assert failure.value.status == ffi.NO_DEVICE


def test_one_vendor_is_enough(kiln, fake):
    fake.c.fake_set_device_count(NVIDIA, 0)
    assert [d["vendor"] for d in kiln.devices()] == [AMD] * 5
    with pytest.raises(ffi.Failure, match="the NVIDIA driver has no device") as failure:
        kiln.launch(work(kiln, arguments()))
    assert failure.value.status == ffi.NO_DEVICE
    fake.c.fake_set_device_count(NVIDIA, 5)
    kiln.launch(work(kiln, arguments()))  # a driver that had nothing is asked again


def test_a_vendor_that_fails_hides_no_other(kiln, fake):
    for vendor, symbol, sentence in [
        (AMD, "hipInit", r"hipInit: the HIP runtime returned hipErrorUnknown \(999\)"),
        (AMD, "hipGetDeviceCount", "hipGetDeviceCount: the HIP runtime"),
        (NVIDIA, "cuInit", r"cuInit: the CUDA driver returned CUDA_ERROR_\? \(999\)"),
    ]:
        fake.reset()
        with ffi.Kiln(kiln.library, fake) as other:
            fake.fail(symbol, 999)
            seen = []
            with pytest.raises(ffi.Failure, match=f"^4: {sentence}") as failure:
                other.devices(seen)
            assert failure.value.status == ffi.DRIVER
            assert [device["vendor"] for device in seen] == [NVIDIA + AMD - vendor] * 5
            assert len(other.devices()) == 10  # the driver is asked again


def test_a_driver_that_fails_is_worse_than_none(kiln, fake):
    fake.c.fake_set_device_count(NVIDIA, 0)
    fake.fail("hipInit", 999)
    with pytest.raises(ffi.Failure, match="^4: the NVIDIA driver has no device; hipInit: the HIP") as failure:
        kiln.devices()
    assert failure.value.status == ffi.DRIVER


@pytest.mark.parametrize(
    "vendor, symbol, call",
    [
        (NVIDIA, "cuDeviceGet", 1), (NVIDIA, "cuDeviceGetAttribute", 6), (NVIDIA, "cuDeviceGetUuid_v2", 1),
        (NVIDIA, "cuDeviceGetName", 1), (AMD, "hipDeviceGetAttribute", 8), (AMD, "hipDeviceGetName", 1),
        (AMD, "hipDeviceGetPCIBusId", 1), (AMD, "hipGetDevicePropertiesR0600", 1),
    ],
)  # fmt: skip
def test_a_device_that_cannot_be_asked_hides_no_other(kiln, fake, vendor, symbol, call):
    """The second device fails; `call`: how often each device is asked."""
    fake.fail(symbol, 999, nth=call + 1)
    devices = kiln.devices()
    assert len(devices) == 10
    by_place = {(device["vendor"], device["ordinal"]): device for device in devices}
    bad = by_place.pop((vendor, 1))
    assert re.fullmatch(rf"{symbol[:-3] if symbol.endswith('_v2') else symbol.replace('R0600', '')}: the .* \(999\)",
                        bad["refusal"].decode())  # fmt: skip
    assert (bad["name"], bad["id"], bad["target"], bad["multiprocessors"], bad["warp_size"]) == (b"", b"", b"", 0, 0)
    assert all(device["target"] and device["multiprocessors"] for device in by_place.values())
    again = {(device["vendor"], device["ordinal"]): device for device in kiln.devices()}
    assert again.pop((vendor, 1))["target"] in (b"sm_80", b"gfx90a") and again == by_place


@pytest.mark.parametrize("vendor, symbol", [(NVIDIA, "cuDeviceGetName"), (AMD, "hipDeviceGetName")])
def test_a_device_that_cannot_be_asked_stops_no_other(kiln, fake, vendor, symbol):
    """Calls on the others run; a call on it says what failed, and asks again."""
    fake.fail(symbol, 999)
    with pytest.raises(ffi.Failure, match=symbol) as failure:
        kiln.launch(work(kiln, arguments(), vendor=vendor, stream=fake.stream(vendor, 0)))
    assert failure.value.status == ffi.DRIVER
    kiln.launch(work(kiln, arguments(), vendor=vendor, stream=fake.stream(vendor, 4)))
    kiln.launch(work(kiln, arguments(), vendor=vendor, stream=fake.stream(vendor, 0)))
    assert [launch.device for launch in fake.launches()] == [4, 0]
    assert fake.count(symbol) == 3  # a device that no call uses is not asked


def test_a_device_without_a_number(kiln, fake):
    """cuDeviceGet fails for an earlier one: the stream's own is found; for all of them: that is the error."""
    fake.fail("cuDeviceGet", 3)
    kiln.launch(work(kiln, arguments(), stream=fake.stream(device=4)))
    assert fake.launches()[0].device == 4
    fake.fail("cuDeviceGet", 3, sticky=True)
    with pytest.raises(
        ffi.Failure, match="cuDeviceGet: the CUDA driver returned CUDA_ERROR_NOT_INITIALIZED"
    ) as failure:
        kiln.launch(work(kiln, arguments(), stream=fake.stream(device=1)))
    assert failure.value.status == ffi.DRIVER and fake.current() == fake.context(0)


def test_no_driver_on_this_machine(library, toy):
    if b"libcuda.so.1" in subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True).stdout:
        pytest.skip("this machine has an NVIDIA driver")
    with ffi.Kiln(library, None) as kiln:
        kiln.register(toy)
        with pytest.raises(ffi.Failure, match=r"there is no NVIDIA driver: .*; there is no AMD driver: ") as failure:
            kiln.devices()
        assert failure.value.status == ffi.NO_DEVICE


@pytest.mark.parametrize("mode, target", [(0, b"gfx90a"), (1, b"gfx90a"), (2, b"")])
def test_architecture_of_amd_devices(kiln, fake, mode, target):
    """Where newer runtimes have it, elsewhere, and nowhere."""
    fake.c.fake_set_properties(mode)
    device = [d for d in kiln.devices() if d["vendor"] == AMD][1]
    assert device["target"] == target
    if mode == 2:
        assert device["refusal"] == b"the HIP runtime does not report the architecture of device 1"
        with pytest.raises(ffi.Failure, match="does not report the architecture") as failure:
            kiln.launch(work(kiln, arguments(), vendor=AMD, stream=fake.stream(AMD, 1)))
        assert failure.value.status == ffi.NO_DEVICE


def test_devices_stop_when_told(kiln):
    seen = []
    visit = ffi.DeviceFn(lambda device, _: seen.append(1) or 1)
    assert kiln.library.c.kiln_devices(kiln.handle, visit, None) == ffi.OK and len(seen) == 1


def test_explain(kiln, fake):
    variants = kiln.explain(work(kiln, arguments(rows=5000), stream=fake.stream()))
    assert [v["kernel"] for v in variants] == [b"main", b"reduce"]
    assert variants[0]["configuration"] == b"BLOCK=128 SPLIT=2" and variants[1]["functional"] == b"dtype=fp16"
    assert not fake.launches() and fake.loaded == 0 and fake.current() == fake.context(0)


def test_family_tables_are_validated(built, library, fake, tmp_path):
    """One broken field at a time; the tables that it belongs to are copied and changed."""
    import nativebuild

    source = tmp_path / "broken.cc"
    toy_source = (nativebuild.HERE / "toy_family.cc").read_text()
    cases = [
        ("KILN_FAMILY_ABI, 1, 4", "KILN_FAMILY_ABI + 1, 1, 4", "are of ABI 8; Kiln 1.2.3 reads ABI 7"),
        ("{sizeof(kiln_family),", "{sizeof(kiln_family) - 8,", "its size is less"),
        ('"1.2.3"', '""', "it has no version"),
        ("7, 3, 3, 1, 1, 2, MP, VALUES}", "7, 3, 3, 1, 1, 2, MP, 513}", "more values than KILN_MAX_VALUES"),
        ("7, 3, 3, 1, 1, 2, MP, VALUES}", "7, 3, 3, 1, 1, 33, MP, VALUES}", "1 to KILN_MAX_KERNELS kernels"),
        ("7, 3, 3, 1, 1, 2, MP, VALUES}", "7, 3, 3, 1, 1, 2, 30, VALUES}", "multiprocessors lie outside"),
        ("7, 3, 3, 1, 1, 2, MP, VALUES}", "7, 3, 3, 1, 1, 2, MP, 29}", "main: its configuration lies outside"),
        ('{"w", KILN_ARG_TENSOR, 1, KILN_FP32', '{"w", KILN_ARG_TENSOR, 9, KILN_FP32', "rank is out of range"),
        ('{"w", KILN_ARG_TENSOR, 1, KILN_FP32', '{"w", KILN_ARG_TENSOR, 1, 77', "dtype is unknown"),
        ('{"w", KILN_ARG_TENSOR, 1, KILN_FP32', '{"w", KILN_ARG_TENSOR, 1, -4', "dtype is unknown"),
        ('{"w", KILN_ARG_TENSOR', '{"w", 7', "of an unknown kind"),
        ("0, 0, 0, N, 32}", "0, 0, 0, N, 33}", "neither 1, 32 nor 64 bits"),
        ("0, 0, 0, N, 32}", "0, 0, 0, -1, 32}", "an argument lies outside"),
        ("kWidths[] = {64, 128}", "kWidths[] = {128, 64}", "do not ascend"),
        ("KILN_MATCH_NEXT_LARGER, 2", "5, 2", "unknown way to match"),
        ("kItself[] = {0, 1}", "kItself[] = {0, 2}", "the value that serves another of a choice does not exist"),
        ("kDtypeNames, kItself", "kDtypeNames, nullptr", "a choice has no values"),
        ('kDefinitions[] = {"rows"', 'kDefinitions[] = {""', "a definition has no name"),
        ("kDefinitions, define,", "kDefinitions, nullptr,", "its definitions or its requirements have no function"),
        ("kRequirements, check,", "kRequirements, nullptr,", "its definitions or its requirements have no function"),
        ('{"x and y must have the same number of rows"}', "{nullptr}", "a requirement has no sentence"),
        ("kMainParameters, kMainValues,", "kMainParameters, nullptr,", "kernel main: its parameters have no function"),
        ('{{"partial", partial_bytes, WS', '{{"partial", nullptr, WS', "a workspace has no name"),
        ("kMainChoices[] = {0, 1, 2}", "kMainChoices[] = {0, 1, 3}", "a choice that does not exist"),
        ('{"scale", KILN_PARAMETER_FP32', '{"scale", 13', "a parameter is of an unknown type"),
        ('"pointers", 1 << 0 | 1 << 1,', '"pointers", 1 << 10,', "names a parameter that is not one"),
        ('"pointers", 1 << 0 | 1 << 1,', '"pointers", 1 << 4,', "names a parameter that is not one"),
        ('{"generic", 0, 0, 0}};\nconstexpr kiln_specialization_table kReduce',
         '{"generic", 1, 0, 0}};\nconstexpr kiln_specialization_table kReduce', "does not always hold"),
        ("{grid_x, big, one}", "{grid_x, nullptr, one}", "kernel main: it has no grid"),
        ("{{partial, partial_bytes}}", "{{partial, nullptr}}", "to zero has no expression"),
        ("make_lookup(1, -1)", "make_lookup(2, -1)", "leads to a configuration that does not exist"),
        ('{"sm_80", 1, 0, kConfigurationsOne', '{"sm_80", 255, 0, kConfigurationsOne', "1 to 254 configurations"),
        ('{"sm_80", 1, 0, kConfigurationsOne', '{"sm_80", 1, 0, nullptr', "a target has no configurations"),
        ('{"nvidia-sm_80.pack"', '{"../nvidia-sm_80.pack"', "not a plain name"),
        ('"sm_80", KILN_VENDOR_NVIDIA', '"sm_80", 3', "of an unknown vendor"),
        ("TOY_HAS_DIGEST, kOn80", "TOY_HAS_DIGEST, nullptr", "what it runs on"),
        ("TOY_TEXT(TOY_NAME)", '"a.b"', "its name is empty or has a dot"),
    ]  # fmt: skip
    # one library with all of them, each in a namespace of its own
    parts = []
    for number, (old, new, _) in enumerate(cases):
        assert toy_source.count(old) >= 1, old
        body = toy_source.replace(old, new, 1).replace('#include "kiln/family.h"', "")
        body = body.split("namespace {", 1)[1].replace(
            "TOY_JOIN(kiln_, TOY_NAME, _family)", f"kiln_broken{number}_family"
        )
        parts.append(f"namespace broken{number} {{ namespace {{{body} }}\n#undef E\n")
    head = toy_source.split("namespace {", 1)[0]
    source.write_text(head + "\n".join(parts))
    flags = ["-I", built / "include", "-Wno-unused-const-variable", "-Wno-unused-function"]
    broken = tmp_path / "libbroken.so"
    nativebuild.run(["c++", "-std=c++17", "-O0", "-fPIC", "-shared", *flags, source, "-o", broken])
    loaded = ctypes.CDLL(str(broken))
    with ffi.Kiln(library, fake) as kiln:
        for number, (_, new, sentence) in enumerate(cases):
            with pytest.raises(ffi.Failure, match=sentence) as failure:
                kiln.register(loaded, f"broken{number}")
            assert failure.value.status == ffi.FAMILY, new


def test_registering_twice(kiln, toy, built, tmp_path):
    kiln.register(toy)
    copy = tmp_path / "libkiln_toy.so"
    copy.write_bytes((built / "lib" / "libkiln_toy.so").read_bytes())
    with pytest.raises(
        ffi.Failure, match=r"another family toy \(release 1.2.3, in .*/lib\) is registered already"
    ) as f:
        kiln.register(ctypes.CDLL(str(copy)))
    assert f.value.status == ffi.FAMILY
