"""The release's own libraries and packs on the recording fake driver: every launch against its image's own metadata."""

from __future__ import annotations

import _ctypes
import itertools
import struct
from pathlib import Path

import ffi
import nativebuild
import packs
import pytest
from builds import ROOT, loaded
from ffi import BF16, FP16, FP32, tensor

from kiln import elf, pack, split

# "sm_90" is the fake driver's device 0; its cubins cannot be parsed by it, so each image is replaced by a description
# of its own parameters, read off the real one.


def described(path: Path, folder: Path) -> str:
    """Writes the pack with each image replaced; returns its index's digest."""
    data = path.read_bytes()
    real = pack.parse_pack(data, str(path))
    groups = [pack.decode_group(data, group, str(path)) for group in real.groups]
    infos, codes = {}, {}
    for image in real.images:
        cubin = groups[image.group][image.offset : image.offset + image.bytes]
        sizes = [p.size for p in elf.nvidia_facts(cubin).parameters]
        assert len(sizes) == image.info.parameters
        code = packs.fake_code(image.info.symbol, sizes) + image.digest.encode()
        infos[image.digest], codes[image.digest] = image.info, code
    (folder / path.name).unlink(missing_ok=True)
    return pack.write_pack(
        folder / path.name,
        real.target,
        split.INSTRUCTIONS["sass"],
        real.release,
        real.kernels,
        infos.__getitem__,
        codes.__getitem__,
        lambda _: (),
    )


@pytest.fixture(scope="module")
def fake_library(tmp_path_factory) -> ffi.Fake:
    folder = tmp_path_factory.mktemp("fake")
    (folder / "lib").mkdir()
    nativebuild.build_fake(folder)
    return ffi.Fake(folder / "lib" / "libfake.so")


@pytest.fixture(scope="module")
def packed(release, tmp_path_factory) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp("packs")
    return folder, described(release.prefix / "lib/kiln.images/nvidia-sm_90.pack", folder)


@pytest.fixture(scope="module")
def libraries(release):
    """(the core, norm, flash)"""
    with loaded(release.prefix, "norm", "flash") as (_, norm, flash):
        library = ffi.Library(release.prefix / "lib")
        yield library, norm, flash
        _ctypes.dlclose(library.c._handle)


@pytest.fixture
def kiln(libraries, fake_library, packed):
    fake_library.reset()
    fake_library.set_current(fake_library.context(0))
    library, norm, flash = libraries
    folder, digest = packed
    with ffi.Kiln(library, fake_library, pack_path=str(folder), trusted_packs=digest) as kiln:
        kiln.register(norm, "norm")
        kiln.register(flash, "flash")
        yield kiln


def fp32(value: float) -> int:
    return struct.unpack("<I", struct.pack("<f", value))[0]


def norm_call(kiln, dtype=BF16, rows=5, columns=1000, x=0x10000, total=None, strides=None, **fields):
    views = [
        tensor(x, dtype, (rows, columns), strides),
        tensor(0x20000, dtype, (columns,)),
        tensor(0x30000, dtype, (rows, columns)),
        total and tensor(total, FP32, (1,)),
        1e-6,
    ]
    return kiln.call(views, operation="norm.rms_norm", **fields)


def test_a_strangers_family_is_launched(kiln, fake_library):
    call = norm_call(kiln, total=0x50000, workspace=0x100000, workspace_bytes=4096)
    assert kiln.workspace_size(call) == 256, "20 bytes of squares, aligned"
    kiln.launch(call)
    first, second = fake_library.launches()
    # 1000 columns are no multiple of 16; the last stride is 1, which the image does not take.
    assert (first.symbol, list(first.grid)) == (b"rms_norm", [5, 1, 1])
    assert first.parameters()[:9] == [0x10000, 0x20000, 0x30000, 0x100000, 5, 1000, 1000, 1000, fp32(1e-6)]
    assert (second.symbol, list(second.grid)) == (b"total", [1, 1, 1])
    assert second.parameters()[:3] == [0x100000, 0x50000, 5]
    (zero,) = fake_library.zeros()
    assert (zero.address, zero.bytes, zero.launches_before) == (0x50000, 4, 1)
    names = [v["specialization"].decode() for v in kiln.explain(call)]
    assert names == ["contiguous", "generic"]


def test_a_kernel_that_is_not_wanted_is_left_out(kiln, fake_library):
    kiln.launch(norm_call(kiln, workspace=0x100000, workspace_bytes=4096))
    assert [launch.symbol for launch in fake_library.launches()] == [b"rms_norm"]
    assert fake_library.zeros() == []


@pytest.mark.parametrize(
    ("fields", "specialization", "parameters"),
    [
        ({"columns": 1024}, "aligned", 9),
        ({"columns": 1024, "x": 0x10002}, "contiguous", 9),
        ({"columns": 1000}, "contiguous", 9),
        ({"columns": 1024, "strides": (4096, 2)}, "generic", 10),
    ],
)
def test_specializations_from_the_real_arguments(kiln, fake_library, fields, specialization, parameters):
    call = norm_call(kiln, workspace=0x100000, workspace_bytes=4096, **fields)
    (variant,) = kiln.explain(call)
    assert variant["specialization"].decode() == specialization
    kiln.launch(call)
    (launch,) = fake_library.launches()
    assert launch.parameter_count - parameters in (0, 1, 2), "Triton's own pointers follow"


def test_the_next_larger_size_serves(kiln, fake_library):
    for columns, functional in ((1, 1024), (1024, 1024), (1025, 4096), (4096, 4096)):
        call = norm_call(kiln, columns=columns, workspace=0x100000, workspace_bytes=4096)
        assert f"columns_up_to={functional}" in kiln.explain(call)[0]["functional"].decode()
    with pytest.raises(ffi.Failure, match=r"columns_up_to.*4096") as failure:
        kiln.explain(norm_call(kiln, columns=4097))
    assert failure.value.status == 2


def test_what_was_not_selected_is_refused_by_its_reason(kiln):
    with pytest.raises(ffi.Failure, match="fp16") as failure:
        kiln.explain(norm_call(kiln, dtype=FP16))
    assert failure.value.status == 2 and "dtype=bf16" in failure.value.sentence


def test_every_attention_variant_can_be_forced(kiln, fake_library):
    """Each image in turn: the kernel, grid, block and shared memory of its own row; parameters by its own sizes."""
    variants = [v for v in kiln.variants("flash.attn_fwd", "sm_90") if v["unavailable"] is None]
    assert len(variants) >= 4
    shapes = itertools.cycle([(2, 4, 2, 200, 333), (1, 8, 8, 1024, 1024), (3, 2, 1, 1, 77)])
    for variant, (batch, heads, heads_kv, queries, keys) in zip(variants, shapes):
        q = tensor(0x100000, BF16, (batch, heads, queries, 64))
        k = tensor(0x200000, BF16, (batch, heads_kv, keys, 64))
        arguments = [q, k, k, q, tensor(0x300000, FP32, (batch, heads, queries)), 0.125, True]
        key = variant["key"].decode()
        fake_library.reset()
        fake_library.set_current(fake_library.context(0))
        call = kiln.call(arguments, operation="flash.attn_fwd", keys=(key,))
        assert [v["key"].decode() for v in kiln.explain(call)] == [key]
        kiln.launch(call)
        (launch,) = fake_library.launches()
        block_m = int(variant["configuration"].decode().split("BLOCK_M=")[1].split()[0])
        blocks = -(-queries // block_m)
        assert launch.grid[0] * launch.grid[1] * launch.grid[2] == blocks * heads * batch
        assert launch.block[0] == variant["threads"] and launch.shared <= variant["shared_bytes"]
        assert launch.parameters()[:3] == [0x100000, 0x200000, 0x200000]
        assert fp32(0.125) in launch.parameters()
        sizes = list(launch.sizes[: launch.parameter_count])
        assert all(size in (4, 8) for size in sizes)


def test_python_and_the_library_choose_alike(kiln, release):
    """The look-up in Python (what `kiln plan` explains) and in C++ lead to the same configuration for any call."""
    from hypothesis import given, settings
    from hypothesis import strategies as st

    from kiln import layout, plan, recipe, targets, words

    flash = recipe.load(ROOT / "tritonsrc/flash/recipe.yaml")
    operation = next(o for o in flash.operations if o.name == "attn_fwd")
    made = plan.make_plan(
        [flash],
        (targets.by_name("sm_90"),),
        "core",
        words.parse_selection("dtype=bf16;head_dim=64;causal=true"),
        ROOT / "tuning",
    )
    (kernel,) = made.kernels
    available = {v.slot for v in made.variants}
    table = plan.lookup(kernel, available)
    functional = next(i for i, f in enumerate(kernel.functionals) if f.name == "dtype=bf16 head_dim=64 causal=true")

    @settings(deadline=None, max_examples=150)
    @given(
        batch=st.integers(1, 64), heads_kv=st.integers(1, 8), group=st.integers(1, 8),
        queries=st.integers(1, 20000), keys=st.integers(0, 20000),
    )  # fmt: skip
    def check(batch, heads_kv, group, queries, keys):
        heads = heads_kv * group
        q = tensor(0x100000, BF16, (batch, heads, queries, 64))
        k = tensor(0x200000, BF16, (batch, heads_kv, keys, 64))
        call = kiln.call([q, k, k, q, None, 0.125, True], operation="flash.attn_fwd")
        (chosen,) = kiln.explain(call)
        environment = dict.fromkeys(layout.layout(operation).kernels[kernel.kernel.name], 0)
        for name, view in (("q", q), ("k", k), ("v", k), ("out", q)):
            environment |= {f"{name}.size[{i}]": view.sizes[i] for i in range(4)}
            environment |= {f"{name}.stride[{i}]": view.strides[i] for i in range(4)}
        environment |= {"q.dtype": BF16, "causal": 1, "sm_scale": 0}
        for spelling in ("device.multiprocessors", "multiprocessors"):
            environment[spelling] = kiln.devices()[0]["multiprocessors"]
        for definition in operation.definitions:
            environment[definition.name] = definition.value.evaluate(environment)
        environment |= {"dtype": BF16, "head_dim": 64}
        number = 0
        for axis in kernel.kernel.bins:
            value = axis.of.evaluate(environment)
            number = number * (len(axis.edges) + 1) + sum(edge <= value for edge in axis.edges)
        expected = kernel.configurations[table[functional * kernel.kernel.bin_total + number]].name
        assert chosen["configuration"].decode() == expected

    check()
