"""Implementations of a kernel: which of them a call runs, and what is said of the others."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys

import ffi
import nativebuild
import packs
import pytest
from ffi import AMD, BF16, FP16, tensor

A, B, C, WORK = 0x100000, 0x200000, 0x300000, 0x400000
NOT_BLACKWELL = "blackwell: it is not for sm_90"
NOT_DEEP = "deep: it serves calls with k >= 1024"


def product(kiln, m=64, n=128, k=64, dtype=FP16, a=A, b=B, c=C, strides=None, **options):
    views = tensor(a, dtype, (m, k), strides), tensor(b, dtype, (k, n)), tensor(c, dtype, (m, n))
    return kiln.call([*views], operation="tiles.product", **options)


def taken(kiln, call) -> tuple[str, list[str]]:
    """The implementation that a call runs, and the lines about those before it."""
    (variant,) = kiln.explain(call)
    passed = variant["passed_over"]
    kernel, implementation = variant["kernel"].decode().split(".")
    assert kernel == "matmul"
    return implementation, passed.decode().split("\n") if passed else []


def refusal(kiln, call) -> str:
    """The sentence with which every call of the interface refuses it."""
    sentences = set()
    for attempt in (kiln.launch, kiln.prepare, kiln.workspace_size, kiln.explain):
        with pytest.raises(ffi.Failure) as failure:
            attempt(call)
        assert failure.value.status == ffi.UNSUPPORTED
        sentences.add(failure.value.sentence)
    (sentence,) = sentences
    return sentence


@pytest.mark.parametrize(
    ("change", "implementation", "passed"),
    [
        ({}, "hopper", [NOT_BLACKWELL, NOT_DEEP]),
        ({"k": 1024}, "deep", [NOT_BLACKWELL]),
        ({"k": 1024, "dtype": BF16}, "hopper", [NOT_BLACKWELL, f"deep: {packs.WAIVED}"]),
        ({"a": A + 8}, "general",
         [NOT_BLACKWELL, NOT_DEEP, "hopper: a is at 0x100008; its descriptor needs a multiple of 16"]),
        ({"c": C + 2}, "general",
         [NOT_BLACKWELL, NOT_DEEP, "hopper: c is at 0x300002; its descriptor needs a multiple of 16"]),
        ({"strides": (68, 1)}, "general", [NOT_BLACKWELL, NOT_DEEP,
         "hopper: stride 0 of a is 68 elements; its descriptor needs a multiple of 16 bytes below 2^40"]),
        ({"strides": (-64, 1)}, "general", [NOT_BLACKWELL, NOT_DEEP,
         "hopper: stride 0 of a is -64 elements; its descriptor needs a multiple of 16 bytes below 2^40"]),
        ({"strides": (2**39, 1)}, "general", [NOT_BLACKWELL, NOT_DEEP,
         "hopper: stride 0 of a is 549755813888 elements; its descriptor needs a multiple of 16 bytes below 2^40"]),
        ({"strides": (2**39 - 8, 1)}, "hopper", [NOT_BLACKWELL, NOT_DEEP]),
        ({"strides": (0, 1)}, "hopper", [NOT_BLACKWELL, NOT_DEEP]),
        ({"strides": (64, 2)}, "general",
         [NOT_BLACKWELL, NOT_DEEP, "hopper: the last stride of a is 2; its descriptor needs 1"]),
        ({"k": 68}, "general", [NOT_BLACKWELL, NOT_DEEP,
         "hopper: the last size of a is 68 elements; its descriptor needs a multiple of 16 bytes"]),
        ({"k": 0}, "general",
         [NOT_BLACKWELL, NOT_DEEP, "hopper: size 1 of a is 0; its descriptor takes 1 to 2147483647"]),
    ],
)  # fmt: skip
def test_the_first_that_fits_is_taken(tiled, fake, change, implementation, passed):
    kiln = tiled()
    call = product(kiln, **change)
    assert taken(kiln, call) == (implementation, passed)
    kiln.launch(call)
    (launch,) = fake.launches()
    assert launch.symbol.decode().startswith(f"matmul_{implementation}_")
    kiln.prepare(call)
    assert fake.loaded == 1 and kiln.workspace_size(call) == 0


def test_a_size_beyond_32_bits(tiled):
    kiln = tiled()
    assert taken(kiln, product(kiln, m=2**31 - 2))[0] == "hopper"
    implementation, passed = taken(kiln, product(kiln, m=2**31))
    assert implementation == "general"
    assert passed[2] == "hopper: size 0 of a is 2147483648; its descriptor takes 1 to 2147483647"


@pytest.mark.parametrize(
    ("version", "implementation", "passed"),
    [
        (12000, "general", "hopper: it needs a driver for CUDA 12.3 or later; this one is for CUDA 12.0"),
        (12020, "general", "hopper: it needs a driver for CUDA 12.3 or later; this one is for CUDA 12.2"),
        (12030, "hopper", None),
    ],
)
def test_an_older_driver_gets_the_next(tiled, fake, version, implementation, passed):
    kiln = tiled(version=version)
    call = product(kiln)
    assert taken(kiln, call) == (implementation, [NOT_BLACKWELL, NOT_DEEP, *([passed] if passed else [])])
    kiln.launch(call)
    assert f"_{implementation}_" in fake.launches()[0].symbol.decode()


def test_a_driver_that_is_too_old_for_ptx(tiled, fake):
    """The cubin's own bound does not count where its PTX runs."""
    kiln = tiled(version=12060)
    call = product(kiln, target="sm_90", stream=fake.stream(device=1))
    assert taken(kiln, call)[0] == "general"
    assert "hopper: it needs a driver for CUDA 12.8 or later; this one is for CUDA 12.6" in taken(kiln, call)[1]
    assert taken(kiln, product(kiln))[0] == "hopper"
    assert taken(tiled(), product(kiln, target="sm_90", stream=fake.stream(device=1)))[0] == "general"
    kiln = tiled(version=12080)
    assert taken(kiln, product(kiln, target="sm_90", stream=fake.stream(device=1)))[0] == "hopper"


def test_a_driver_without_the_entry_point_gets_the_next(tiled, fake):
    fake.hide("cuTensorMapEncodeTiled")
    kiln = tiled()
    implementation, passed = taken(kiln, product(kiln))
    assert implementation == "general" and passed[2] == (
        "hopper: it takes tensor descriptors, and this driver has no entry point cuTensorMapEncodeTiled"
    )
    kiln.launch(product(kiln))
    assert fake.launches()[0].symbol == b"matmul_general_fp16_generic"


@pytest.mark.parametrize(
    ("flags", "version", "passed"),
    [
        ((), "13000", None),
        ((), "12020", "hopper: it needs a driver for CUDA 12.3 or later; this one is for CUDA 12.2"),
        (("-DFAKE_WITHOUT_MAPS",), "12080",
         "hopper: it takes tensor descriptors, and this driver has no entry point cuTensorMapEncodeTiled"),
    ],
)  # fmt: skip
def test_the_driver_that_the_process_has(built, tmp_path, flags, version, passed):
    """Found by its name, not through kiln_options.resolve."""
    (tmp_path / "lib").mkdir()
    nativebuild.build_fake(tmp_path, list(flags))
    folder = built / "packs" / "tiles"
    script = f"""
import ctypes, sys
sys.path[:0] = [{str(nativebuild.HERE)!r}, {str(nativebuild.HERE.parent)!r}]
import ffi, packs
from test_implementations import product, taken
folder = ffi.Path({str(folder)!r})
digest = packs.digest_of((folder / packs.FILES["sm_90"]).read_bytes())
with ffi.Kiln(ffi.Library(ffi.Path({str(built / "lib")!r})), None, pack_path=str(folder), trusted_packs=digest) as kiln:
    kiln.register(ctypes.CDLL({str(built / "lib" / "libkiln_tiles.so")!r}), "tiles")
    call = product(kiln, device=0)
    kiln.launch(call)
    print(*taken(kiln, call)[1][2:], sep="")
"""
    environment = os.environ | {
        "LD_LIBRARY_PATH": str(nativebuild.driver_folder(tmp_path, "nvidia")), "FAKE_DRIVER_VERSION": version
    }  # fmt: skip
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment)
    assert done.stdout == f"{passed or ''}\n", done.stderr


def test_another_target(tiled, fake):
    kiln = tiled()
    call = product(kiln, stream=fake.stream(device=1))
    others = [f"{name}: it is not for sm_80" for name in ("blackwell", "deep", "hopper")]
    assert taken(kiln, call) == ("general", others)
    call = product(kiln, target="sm_80")  # by PTX, on sm_90
    assert taken(kiln, call) == ("general", others)
    kiln.launch(call)
    assert fake.launches()[0].symbol == b"matmul_general_fp16_generic"


def test_hip(tiled, fake):
    kiln = tiled()
    call = product(kiln, vendor=AMD, stream=fake.stream(AMD))
    assert taken(kiln, call)[0] == "general"
    kiln.launch(call)
    assert fake.launches()[0].parameters()[:3] == [A, B, C]
    copying = kiln.call([tensor(A, FP16, (2, 4, 64)), tensor(B, ffi.FP32, (64,))], operation="tiles.copy", vendor=AMD,
                        stream=fake.stream(AMD))  # fmt: skip
    assert refusal(kiln, copying) == (
        "tiles.copy: kernel copy does not take this call on gfx942: "
        "it takes tensor descriptors, which AMD GPUs do not have"
    )


def test_none_fits(tiled):
    kiln = tiled()
    assert refusal(kiln, product(kiln, m=65, a=A + 8)) == (
        f"tiles.product: kernel matmul does not take this call on sm_90: {NOT_BLACKWELL}; {NOT_DEEP}; "
        "hopper: a is at 0x100008; its descriptor needs a multiple of 16; general: it serves calls with m % 2 == 0"
    )


def test_none_has_an_image(tiled):
    """The reason is that of the last; the nearest is looked for among all that lack images."""

    def without_bf16(kernels, images):
        for kernel in kernels:
            per_functional = len(kernel.slots) // 2
            for number in range(per_functional, 2 * per_functional):
                *_, key = kernel.slots[number]
                kernel.slots[number] = (packs.NONE, packs.NONE, f"{kernel.name} has no bf16", key)

    kiln = tiled(without_bf16)
    assert refusal(kiln, product(kiln, k=1024, dtype=BF16)) == (
        "tiles.product has no image for dtype=bf16 on sm_90: matmul.general has no bf16; the nearest that exists is "
        "dtype=fp16"
    )
    copying = kiln.call([tensor(A, BF16, (2, 4, 64)), tensor(B, ffi.FP32, (64,))], operation="tiles.copy")
    assert refusal(kiln, copying) == (
        "tiles.copy has no image for dtype=bf16 on sm_90: copy has no bf16; the nearest that exists is dtype=fp16"
    )


def test_one_implementation_alone(tiled, fake):
    views = tensor(A + 4, FP16, (2, 4, 64)), tensor(B, ffi.FP32, (64,))
    kiln = tiled()
    assert refusal(kiln, kiln.call([*views], operation="tiles.copy")) == (
        "tiles.copy: kernel copy does not take this call on sm_90: x is at 0x100004; its descriptor needs a multiple "
        "of 16"
    )
    fine = [tensor(A, FP16, (2, 4, 64)), views[1]]
    (variant,) = kiln.explain(kiln.call(fine, operation="tiles.copy"))
    assert (variant["kernel"], variant["passed_over"]) == (b"copy", None)
    fake.hide("cuTensorMapEncodeTiled")
    kiln = tiled()
    assert "kernel copy does not take this call on sm_90: it takes tensor descriptors, and this driver" in refusal(
        kiln, kiln.call(fine, operation="tiles.copy")
    )
    kiln = tiled()
    assert refusal(kiln, kiln.call(fine, operation="tiles.copy", stream=fake.stream(device=1))) == (
        "tiles.copy has no image for dtype=fp16 on sm_80: its target has no such kernel, nor for anything similar"
    )


def test_what_decides_overflows(tiled):
    kiln = tiled()
    with pytest.raises(ffi.Failure) as failure:
        kiln.launch(product(kiln, m=77, a=A + 8))
    assert failure.value.status == ffi.RANGE and failure.value.sentence == (
        "tiles.product: what decides whether it is served by kernel matmul.general of this call overflows or divides "
        "by zero"
    )


def key(kernel: str, dtype: str = "fp16", specialization: str = "generic") -> str:
    return packs.key_of("tiles", "sm_90", kernel, dtype, specialization).hex()


def test_a_forced_variant_decides_the_implementation(tiled, fake):
    kiln = tiled()
    for name, specialization in (("general", "generic"), ("hopper", "generic"), ("hopper", "constant")):
        call = product(kiln, keys=(key(f"matmul.{name}", specialization=specialization),))
        assert taken(kiln, call) == (name, [])
        kiln.launch(call)
        assert fake.launches()[-1].symbol.decode() == f"matmul_{name}_fp16_{specialization}"


@pytest.mark.parametrize(
    ("keys", "change", "status", "sentence"),
    [
        ((key("matmul.deep"),), {}, ffi.UNSUPPORTED, "tiles.product: the variant forced for kernel matmul does not "
         "take this call on sm_90: deep: it serves calls with k >= 1024"),
        ((key("matmul.hopper"),), {"a": A + 8}, ffi.UNSUPPORTED, "tiles.product: the variant forced for kernel matmul "
         "does not take this call on sm_90: hopper: a is at 0x100008; its descriptor needs a multiple of 16"),
        ((key("matmul.hopper"), key("matmul.general")), {}, ffi.ARGUMENT,
         "tiles.product: two variants are forced for kernel matmul; give at most one"),
        ((key("matmul.deep", "bf16"),), {"dtype": BF16}, ffi.UNSUPPORTED, "tiles.product: the variant "
         f"{key('matmul.deep', 'bf16')} forced for kernel matmul.deep is not available: {packs.WAIVED}"),
        ((key("copy"),), {}, ffi.UNSUPPORTED,
         f"tiles.product: the forced key {key('copy')} is not a variant of this call's functional on sm_90"),
    ],
)  # fmt: skip
def test_forced_variants_that_do_not_fit(tiled, keys, change, status, sentence):
    kiln = tiled()
    with pytest.raises(ffi.Failure) as failure:
        kiln.launch(product(kiln, keys=keys, **change))
    assert (failure.value.status, failure.value.sentence) == (status, sentence)


def test_variants_name_their_implementation(tiled):
    kiln = tiled()
    seen = {(v["kernel"].decode(), v["passed_over"]) for v in kiln.variants(target="sm_90")}
    assert seen == {(name, None) for name in ("matmul.deep", "matmul.hopper", "matmul.general", "copy")}


def test_a_pack_without_an_implementation(tiled):
    def without_hopper(kernels, images):
        (hopper,) = (kernel for kernel in kernels if kernel.name == "matmul.hopper")
        hopper.name = "matmul.hoppe"

    kiln = tiled(without_hopper)
    with pytest.raises(ffi.Failure, match="kernel matmul.hopper of tiles.product: the pack does not hold it") as f:
        kiln.launch(product(kiln))
    assert f.value.status == ffi.PACK_MISMATCH


@pytest.mark.parametrize(
    ("descriptors", "what"),
    [
        ((packs.Descriptor((64, 64)),) * 2, "their number"),
        ((packs.Descriptor((64, 64)), packs.Descriptor((64,)), packs.Descriptor((64, 64))), "a rank"),
        ((packs.Descriptor((64, 64)), packs.Descriptor((64, 32), 7), packs.Descriptor((64, 64))),
         "the size of an element"),
    ],
)  # fmt: skip
def test_descriptors_of_the_pack_that_are_not_the_tables(tiled, descriptors, what):
    def change(kernels, images):
        for image in images:
            if image.symbol.startswith("matmul_hopper"):
                image.descriptors = descriptors

    kiln = tiled(change)
    with pytest.raises(ffi.Failure) as failure:
        kiln.launch(product(kiln))
    assert failure.value.status == ffi.PACK_CORRUPT
    assert failure.value.sentence.endswith(
        "the descriptors of matmul_hopper_fp16_constant differ from those in the tables of kernel matmul.hopper in "
        + what
    )


def test_tables_are_validated(library, fake, built, tmp_path):
    """Each row broken in the source; what is registered is the sentence's proof."""
    original = (nativebuild.HERE / "tiles_family.cc").read_text()
    cases = [
        ('{"matmul", "deep"', '{"matmul", nullptr', "one of several implementations has no name"),
        ('{"matmul", "deep"', '{"matmul", "blackwell"', "two implementations have the same name"),
        ('{"matmul", "deep", nullptr', '{"other", "deep", nullptr', "differ in its name or in when it runs"),
        ('{"matmul", "deep", nullptr', '{"matmul", "deep", no_rows', "differ in its name or in when it runs"),
        ('deep_enough, "k >= 1024"', "deep_enough, nullptr", "it does not say which calls it serves"),
        ("one}, 0, 1, 6, 2", "one}, 2, 1, 6, 2", "the operation's kernels do not ascend one by one"),
        ("one}, 0, 1, 2, 1", "one}, 1, 1, 2, 1", "the operation's kernels do not ascend one by one"),
        ("DESCRIPTOR, 1},  {", "DESCRIPTOR, 2},  {", "are not in its parameters' order"),
        ("6, 2, 0, 0, 3, 1", "6, 2, 0, 0, 2, 1", "it does not take each of its descriptors"),
        ("6, 2, 0, 0, 3, 1", "6, 2, 0, 0, 9, 1", "a table is missing or a count is out of range"),
        ('{"a", 2, -1, {', '{"a", 6, -1, {', "a descriptor's rank is not 1 to 5"),
        ('{"a", 2, -1, {', '{"a", 0, -1, {', "a descriptor's rank is not 1 to 5"),
        ('{"a", 2, -1, {', '{"a", 2, -2, {', "a descriptor's dtype is unknown"),
        ('{"a", 2, -1, {', '{"a", 2, 99, {', "a descriptor's dtype is unknown"),
        ('{"b_desc", KILN', '{"", KILN', "a parameter has no name"),
        ('{"a", 2, -1, {', '{nullptr, 2, -1, {', "a descriptor names no argument"),
        ("{m, k}, {a_stride0,", "{m}, {a_stride0,", "a descriptor has no sizes or no strides"),
        ("{m, k}, {a_stride0,", "{m, k}, {nullptr,", "a descriptor has no sizes or no strides"),
        ('"constant", 0, 0, 1 << 5', '"constant", 1 << 1, 0, 0', "names a parameter that is not one of its integers"),
    ]  # fmt: skip
    parts = []
    for number, (old, new, _) in enumerate(cases):
        assert original.count(old) >= 1, old
        body = original.replace(old, new, 1).split("namespace {", 1)[1].replace("kiln_tiles", f"kiln_broken{number}")
        parts.append(f"namespace broken{number} {{ namespace {{{body} }}\n#undef E\n")
    source, broken = tmp_path / "broken.cc", tmp_path / "libbroken.so"
    source.write_text('#include "kiln/family.h"\n' + "\n".join(parts))
    nativebuild.run(["c++", "-std=c++17", "-O0", "-fPIC", "-shared", "-I", built / "include", source, "-o", broken])
    loaded = ctypes.CDLL(str(broken))
    with ffi.Kiln(library, fake) as kiln:
        for number, (_, new, sentence) in enumerate(cases):
            with pytest.raises(ffi.Failure, match=sentence) as failure:
                kiln.register(loaded, f"broken{number}")
            assert failure.value.status == ffi.FAMILY, new
