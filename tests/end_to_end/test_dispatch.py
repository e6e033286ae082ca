"""The release's own libraries and packs on the recording driver: what single calls lead to, and what is refused. Many
calls, byte by byte: tests/recorder."""

from __future__ import annotations

import _ctypes
import struct

import ffi
import nativebuild
import pytest
from ffi import BF16, FP8E4M3, FP16, FP32, INT32, UINT8, tensor

from builds import ROOT, loaded
from kiln_recipe.model import Argument, Operation
from kiln_recipe.read import recipe

FLASH = ROOT / "tritonsrc/flash/recipe.yaml"


@pytest.fixture(scope="module")
def fake_library() -> ffi.Fake:
    return ffi.Fake(nativebuild.fake_alone() / "lib" / "libfake.so")


@pytest.fixture(scope="module")
def libraries(release):
    """(the core, norm, flash)"""
    with loaded(release.prefix, "norm", "flash") as (_, norm, flash):
        library = ffi.Library(release.prefix / "lib")
        yield library, norm, flash
        _ctypes.dlclose(library.c._handle)


@pytest.fixture
def kiln(libraries, fake_library):
    fake_library.reset()
    fake_library.set_current(fake_library.context(0))
    library, norm, flash = libraries
    with ffi.Kiln(library, fake_library) as kiln:
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


def test_a_total_without_an_element_is_refused(kiln):
    empty = tensor(0, FP32, (0,))
    call = kiln.call(
        [tensor(0x10000, BF16, (5, 64)), tensor(0x20000, BF16, (64,)), tensor(0x30000, BF16, (5, 64)), empty, 1e-6],
        operation="norm.rms_norm",
    )
    with pytest.raises(ffi.Failure, match="total must have an element"):
        kiln.explain(call)


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
    assert len(launch.arguments) - parameters in (0, 1, 2), "Triton's own pointers follow"


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


# Scalars of attention that mean something where they are not given; the others are 0.
NUMBERS = {"window_left": -1, "window_right": -1, "sm_scale": 0.125, "softcap": 1.0, "keep_scale": 1.0}


@pytest.fixture(scope="module")
def flash_operations() -> dict[str, Operation]:
    return {operation.name: operation for operation in recipe.load(FLASH).operations}


def values_of(operation: Operation, some: dict[str, object]) -> list[object]:
    """A call's arguments in the recipe's order: `some`, the others absent or as NUMBERS has them."""

    def other(argument: Argument) -> object:
        number = NUMBERS.get(argument.name, 0)
        return {"tensor": None, "int": number, "float": float(number)}[argument.kind]

    assert set(some) <= {argument.name for argument in operation.arguments}
    return [some.get(argument.name, other(argument)) for argument in operation.arguments]


def flash_call(kiln, operation: Operation, keys: tuple[str, ...] = (), **some: object) -> ffi.Call:
    """A call with the workspace that it needs."""
    values, name = values_of(operation, some), f"flash.{operation.name}"
    size = kiln.workspace_size(kiln.call(values, operation=name, keys=keys))
    return kiln.call(values, operation=name, keys=keys, workspace=0x10000000, workspace_bytes=size)


def attention(operation: str, batch: int, heads: int, heads_kv: int, queries: int, keys: int) -> dict[str, object]:
    """Arguments of a call that runs all kernels of an operation which this build has."""
    if operation == "dropout_mask":
        return {"mask": tensor(0x10000, UINT8, (batch, heads, queries, keys)), "threshold": 1 << 31}
    q, k = (batch, heads, queries, 64), (batch, heads_kv, keys, 64)
    cache = "_cache" if operation == "attn_decode" else ""
    shapes = {"q": q, f"k{cache}": k, f"v{cache}": k, "out": q}
    numbers: dict[str, object] = {"window_right": 0}
    if operation == "attn_bwd":
        shapes |= {"dout": q, "dq": q, "dk": k, "dv": k}
    if operation == "attn_decode":
        new, angles = (batch, heads_kv, 5, 64), (keys, 16)
        shapes |= {"k_new": new, "v_new": new, "rotary_cos": angles, "rotary_sin": angles}
        numbers |= {"seqused_k": tensor(0x1000, INT32, (batch,)), "wanted_splits": 3}
    dtypes = dict.fromkeys("qkv", ffi.FP8E4M3) if operation == "attn_fwd_fp8" else {}
    made = {
        name: tensor(0x100000 * i, dtypes.get(name, BF16), shape) for i, (name, shape) in enumerate(shapes.items(), 1)
    }
    made["lse"] = tensor(0x2000000, FP32, q[:3])
    if operation == "attn_bwd":
        made |= {name: tensor(0x3000000, FP32, (heads,)) for name in ("sinks", "dsinks")}
    return made | numbers


def launched(kiln, fake_library, operation: Operation, **arguments: object) -> dict[str, list[int]]:
    """The grid of each kernel that a call launches."""
    before = len(fake_library.launches())
    kiln.launch(flash_call(kiln, operation, **arguments))
    return {launch.symbol.decode(): list(launch.grid) for launch in fake_library.launches()[before:]}


@pytest.mark.parametrize(
    ("operation", "queries", "keys", "kernels"),
    [
        ("attn_fwd", 0, 50, []),
        ("attn_fwd", 50, 0, ["attn_fwd"]),  # rows that see nothing are zeros
        ("attn_bwd", 0, 50, ["attn_bwd_dk_dv", "attn_bwd_dsinks"]),  # gradients of what nothing was made of: zeros
        ("attn_bwd", 50, 0, ["attn_bwd_means", "attn_bwd_dq", "attn_bwd_dsinks"]),
        ("attn_decode", 0, 50, ["append_kv"]),
    ],
)
def test_what_is_empty_is_still_written(kiln, fake_library, flash_operations, operation, queries, keys, kernels):
    arguments = attention(operation, 2, 4, 2, queries, keys)
    assert list(launched(kiln, fake_library, flash_operations[operation], **arguments)) == kernels


@pytest.mark.parametrize("operation", ["attn_fwd", "attn_bwd", "attn_decode"])
def test_sequences_whose_longest_is_not_known_may_be_as_long_as_all(kiln, fake_library, flash_operations, operation):
    """max_seqlen_q = 0 launches what covers any split of the rows; a longest that is known launches no more."""
    arguments = attention(operation, 1, 4, 2, 700, 900) | {"cu_seqlens_q": tensor(0x1000, INT32, (4,))}
    if operation == "attn_decode":
        arguments |= dict.fromkeys(("k_new", "v_new", "rotary_cos", "rotary_sin"))
        addresses = {"k_cache": 0x200000, "v_cache": 0x300000}
        arguments |= {name: tensor(address, BF16, (3, 2, 900, 64)) for name, address in addresses.items()}
        arguments |= {"seqused_k": tensor(0x2000, INT32, (3,))}
    else:
        arguments |= {"cu_seqlens_k": tensor(0x2000, INT32, (4,))}
    known = flash_operations[operation]
    lengths = (0, 700, 1000, 50 if operation == "attn_decode" else 600)  # fewer rows are another kernel's elsewhere
    grids = [launched(kiln, fake_library, known, **arguments | {"max_seqlen_q": longest}) for longest in lengths]
    assert grids[0] and grids[0] == grids[1] == grids[2]
    assert set(grids[3]) == set(grids[0])
    if operation == "attn_decode":
        assert all(small[0] < large[0] for small, large in zip(grids[3].values(), grids[0].values()))
    else:  # as many blocks as all sequences together need, however long each is
        assert grids[3] == grids[0]


def integers(count: int) -> ffi.Tensor:
    return tensor(0x1000, INT32, (count,))


def angles(rows: int) -> dict[str, ffi.Tensor]:
    return {name: tensor(0x600000, BF16, (rows, 16)) for name in ("rotary_cos", "rotary_sin")}


NOTHING = tensor(0, BF16, (2, 2, 0, 64))
PACKED = {name: tensor(0x200000, BF16, (1, 2, 900, 64)) for name in ("k", "v")}
QUANTIZED = {name: tensor(0x200000, FP8E4M3, (2, 2, 900, 64)) for name in ("k_cache", "v_cache")}


@pytest.mark.parametrize(
    ("operation", "batch", "some", "sentence"),
    [
        ("attn_fwd", 1, {"cu_seqlens_q": integers(0)}, "cu_seqlens_q must have an element more than there are"),
        ("attn_fwd", 2, {"cu_seqlens_q": integers(3)}, "with cu_seqlens_q, q and out must have the batch size 1"),
        ("attn_fwd", 1, {"cu_seqlens_q": integers(4), "cu_seqlens_k": integers(3)},
         "cu_seqlens_k must have an element more than there are sequences of queries"),
        ("attn_fwd", 2, {"cu_seqlens_k": integers(3)}, "with cu_seqlens_k, k and v must have the batch size 1"),
        ("attn_fwd", 1, {"cu_seqlens_q": integers(4)},
         "k and v must have a batch for each sequence, or cu_seqlens_k must be given"),
        ("attn_fwd", 2, PACKED, "k and v must have as many batches as there are sequences of queries"),
        ("attn_fwd", 2, PACKED | {"cu_seqlens_k": integers(3)}, None),
        ("attn_fwd", 1, {"cu_seqlens_q": integers(2)}, None),  # of one sequence, all keys are its own
        ("attn_decode", 2, {"k_cache": QUANTIZED["k_cache"]}, "k_cache and v_cache must have the same dtype"),
        ("attn_decode", 2, QUANTIZED, "k_scale and v_scale belong to a cache of fp8e4m3"),
        ("attn_decode", 2, angles(899), "must have a row for each key of the longest sequence: max_seqlen_k, or"),
        ("attn_decode", 2, angles(899) | {"max_seqlen_k": 899}, None),
        ("attn_decode", 2, angles(900) | {"max_seqlen_k": 5000}, None),  # the cache holds no more
        ("attn_decode", 2, angles(0) | dict.fromkeys(("k_cache", "v_cache", "k_new", "v_new"), NOTHING),
         "and one at least"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(kiln, flash_operations, operation, batch, some, sentence):
    arguments = attention(operation, batch, 4, 2, 700, 900) | some
    if sentence is None:
        flash_call(kiln, flash_operations[operation], **arguments)
        return
    with pytest.raises(ffi.Failure, match=sentence) as failure:
        flash_call(kiln, flash_operations[operation], **arguments)
    assert failure.value.status == ffi.ARGUMENT


def lengths(
    batch: int = 1000, *, cu: int | None = None, begins: int | None = None, lacks: str = "", **some: object
) -> dict[str, object]:
    """Arguments of seq_lengths that hold, but for `some`; `cu` and `begins` are other counts of elements, and `lacks`
    names what the call goes without."""
    counts = {
        "cu_seqlens": batch + 1 if cu is None else cu, "begins": batch if begins is None else begins,
        "lengths": batch, "begins_out": batch + 1,
    }  # fmt: skip
    made = {name: tensor(0x1000 * i, INT32, (count,)) for i, (name, count) in enumerate(counts.items(), 1)}
    made = {name: made[name] for name in made if name not in lacks.split()}
    return {**made, "most": 20, "total": 33} | some


@pytest.mark.parametrize(
    ("arguments", "parameters"),
    [
        (lengths(), [0x1000, 0x2000, 0x3000, 0x4000, 1000, 20, 33, 1, 1, 1]),
        (lengths(lacks="cu_seqlens"), [0, 0x2000, 0x3000, 0x4000, 1000, 20, 33, 0, 1, 1]),
        (lengths(lacks="begins begins_out"), [0x1000, 0, 0x3000, 0, 1000, 20, 33, 1, 1, 0]),
        (lengths(lacks="cu_seqlens lengths"), [0, 0x2000, 0, 0x4000, 1000, 20, 33, 0, 0, 1]),
        (lengths(begins=2000), [0x1000, 0x2000, 0x3000, 0x4000, 1000, 20, 33, 1, 1, 1]),
    ],
)
def test_lengths_of_sequences(kiln, fake_library, flash_operations, arguments, parameters):
    """An operation without an entry of its own: one launch by kiln_launch."""
    kiln.launch(flash_call(kiln, flash_operations["seq_lengths"], **arguments))
    (launch,) = fake_library.launches()
    assert (launch.symbol, list(launch.grid), list(launch.block)) == (b"seq_lengths", [4, 1, 1], [128, 1, 1])
    assert launch.parameters()[:10] == parameters


def test_lengths_of_no_sequence(kiln, fake_library, flash_operations):
    """`total` is still written."""
    known = flash_operations["seq_lengths"]
    assert launched(kiln, fake_library, known, **lengths(0, lacks="begins begins_out")) == {}
    assert launched(kiln, fake_library, known, **lengths(0)) == {"seq_lengths": [1, 1, 1]}


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (lengths(lacks="cu_seqlens begins lengths begins_out"), "lengths or begins_out must be given, to be written"),
        (lengths(lacks="begins"), "begins and begins_out"),
        (lengths(lacks="begins_out"), "begins and begins_out"),
        (lengths(lacks="lengths"), "cu_seqlens needs lengths, which are its differences"),
        (lengths(cu=1000), "cu_seqlens must have an element more than lengths"),
        (lengths(begins_out=tensor(0x1000, INT32, (1000,))), "begins_out must have an element more than there are"),
        (lengths(lacks="cu_seqlens lengths", begins_out=tensor(0x1000, INT32, (0,))), "sequences: one at least"),
        (lengths(begins=999), "begins must have an element for each sequence"),
        (lengths(lengths=tensor(0x1000, INT32, (1000,), (2,))), "lengths must be contiguous"),
        (lengths(lengths=tensor(0x1000, FP32, (1000,))), "lengths"),
        (lengths(most=-1), "most and total must be 0 to"),
        (lengths(total=1 << 31), "most and total must be 0 to"),
        (lengths(1 << 30), "there must be fewer than 2.30 sequences"),
    ],
)
def test_wrong_lengths_of_sequences_are_named(kiln, flash_operations, arguments, sentence):
    with pytest.raises(ffi.Failure, match=sentence) as failure:
        flash_call(kiln, flash_operations["seq_lengths"], **arguments)
    assert failure.value.status == ffi.ARGUMENT
