"""The typed entries of csrc/flash, on tables that hand each kernel all arguments of the recipe's operation."""

from __future__ import annotations

import ctypes
import math
import struct
from collections.abc import Mapping

import ffi
import flash_tables
import packs
import pytest
from ffi import BF16, FP16, FP32, tensor

from kiln_build.native import arguments
from kiln_recipe.dtypes import DTYPES

TABLE = arguments.read(flash_tables.ROOT / arguments.TABLE)

PARAMS = {
    "attn_fwd": ffi.AttnFwd, "attn_fwd_fp8": ffi.AttnFwdFp8, "attn_bwd": ffi.AttnBwd, "attn_decode": ffi.AttnDecode,
    "dropout_mask": ffi.DropoutMask,
}  # fmt: skip
ATTENTION = ("attn_fwd", "attn_fwd_fp8", "attn_bwd", "attn_decode")
SIZES = {4: (2, 4, 100, 64), 3: (2, 4, 100), 2: (2, 32), 1: (3,), 0: ()}
INFINITE = (1 << 64) - 1  # -1 in 64 bits


def fp32(value: float) -> int:
    return struct.unpack("<I", struct.pack("<f", value))[0]


def view(data: int, dtype: int = BF16, sizes: tuple[int, ...] = SIZES[4]) -> ffi.Tensor:
    return tensor(data, dtype, sizes)


def tensor_fields(operation: str) -> list[str]:
    """The fields of an entry's structure that are tensors, in its order."""
    return [name for name, kind in PARAMS[operation]._fields_ if kind is ctypes.POINTER(ffi.Tensor)]


class Entries:
    """The typed entries of a kiln_t."""

    def __init__(self, kiln: ffi.Kiln, library: ctypes.CDLL, tables: flash_tables.Tables) -> None:
        self.kiln, self.library, self.tables = kiln, library, tables

    def views(self, operation: str, is_wanted=lambda argument: not argument.get("optional")) -> dict[str, ffi.Tensor]:
        """By field a tensor of the recipe's rank and dtype, each at an address of its own; the mandatory ones."""
        views = {}
        for number, field in enumerate(tensor_fields(operation), 1):
            argument = self.tables.arguments[operation][field]
            if is_wanted(argument):
                dtype = DTYPES.get(argument["tensor"], BF16)  # what a choice decides is bf16
                views[field] = view(0x10000 * number, dtype, SIZES[argument["rank"]])
        return views

    def params(self, operation: str, **fields: object) -> ctypes.Structure:
        """The mandatory tensors and `fields`."""
        made = self.views(operation) | {"size": ctypes.sizeof(PARAMS[operation])} | fields
        return PARAMS[operation](**{k: ctypes.pointer(v) if isinstance(v, ffi.Tensor) else v for k, v in made.items()})

    def call(self, operation: str = "attn_fwd", suffix: str = "", extra: tuple = (), **fields: object) -> None:
        queue = ffi.Queue(ctypes.sizeof(ffi.Queue), ffi.NVIDIA, -1, None)
        params = self.params(operation, **fields)
        entry = getattr(self.library, f"kiln_{operation}{suffix}")
        self.kiln.library.check(entry(self.kiln.handle, ctypes.byref(queue), ctypes.byref(params), *extra))

    def arguments(self, operation: str, **fields: object) -> Mapping[str, int]:
        """What the kernel of a call gets, by the recipe's names of its arguments."""
        before = len(self.kiln.fake.launches())
        self.call(operation, **fields)
        (launch,) = self.kiln.fake.launches()[before:]
        return dict(zip(self.tables.arguments[operation], launch.parameters()))

    def tensors(self, operation: str, **fields: object) -> dict[str, int]:
        got = self.arguments(operation, **fields)
        return {n: got[n] for n, argument in self.tables.arguments[operation].items() if "tensor" in argument}

    def scalars(self, operation: str, **fields: object) -> dict[str, int]:
        got = self.arguments(operation, **fields)
        return {n: got[n] for n, argument in self.tables.arguments[operation].items() if "scalar" in argument}


@pytest.fixture(scope="module")
def tables(tmp_path_factory) -> flash_tables.Tables:
    return flash_tables.make(tmp_path_factory.mktemp("flash"))


@pytest.fixture
def flash(request, built, library, fake, tables, tmp_path):
    """Entries; by a parameter, on images that need so many bytes of scratch."""
    data = tables.pack(scratch=getattr(request, "param", 0))
    (tmp_path / packs.FILES["sm_90"]).write_bytes(data)
    with ffi.Kiln(library, fake, pack_path=str(tmp_path), trusted_packs=packs.digest_of(data)) as kiln:
        yield Entries(kiln, ctypes.CDLL(str(built / "lib" / "libkiln_flash.so")), tables)


@pytest.mark.parametrize("operation", TABLE.operations, ids=lambda operation: operation.name)
def test_the_structures_of_these_tests_are_the_table_s(operation):
    fields = [name for row in operation.fields for name in (row.field, row.count) if name]
    has = {name for name, _ in PARAMS[operation.name]._fields_} - {"size"}
    assert has == {*fields, *operation.reserved}, f"bring {operation.type} in tests/runtime/ffi.py up to date"


def test_every_operation_of_the_recipe_has_an_entry(tables):
    assert set(tables.arguments) - {"seq_lengths"} == set(PARAMS), "seq_lengths is launched by its name alone"


@pytest.mark.parametrize("operation", PARAMS)
def test_each_tensor_is_the_argument_of_its_name(flash, operation):
    everything = flash.views(operation, lambda argument: True)
    got = flash.tensors(operation, **everything)
    assert got == {field: 0x10000 * number for number, field in enumerate(everything, 1)}
    mandatory = flash.views(operation)
    without = {name: address if name in mandatory else 0 for name, address in got.items()}
    assert flash.tensors(operation) == without, "what a call leaves out is 0"


SHARED = {
    "max_seqlen_q": 0, "max_seqlen_k": 0, "window_left": INFINITE, "window_right": INFINITE, "bottom_right": 0,
    "is_padded": 0, "sm_scale": fp32(0.125), "is_negative": 0, "is_capped": 0, "softcap": fp32(1.0), "threshold": 0,
    "keep_scale": fp32(1.0), "seed_value": 0, "offset_value": 0,
}  # fmt: skip
DEFAULTS = {
    "attn_fwd": {"batch_invariant": 0, **SHARED},
    "attn_fwd_fp8": {
        name: SHARED[name]
        for name in ("max_seqlen_q", "max_seqlen_k", "window_left", "window_right", "bottom_right", "is_padded",
                     "sm_scale", "is_negative")
    },
    "attn_bwd": {"deterministic": 0, **SHARED},
    "attn_decode": {
        "max_seqlen_q": 0, "max_seqlen_k": 0, "window_left": INFINITE, "window_right": INFINITE, "wanted_splits": 0,
        "sm_scale": fp32(0.125), "is_negative": 0, "is_capped": 0, "softcap": fp32(1.0), "rotary_interleaved": 0,
        "batch_invariant": 0,
    },
    "dropout_mask": {"threshold": 0, "seed_value": 0, "offset_value": 0},
}  # fmt: skip


@pytest.mark.parametrize("operation", PARAMS)
def test_defaults(flash, operation):
    assert flash.scalars(operation) == DEFAULTS[operation]


# A field, its value, and by argument what the value means.
FIELDS = [
    ("max_seqlen_q", 70, {"max_seqlen_q": 70}),
    ("max_seqlen_k", 1 << 40, {"max_seqlen_k": 1 << 40}),
    ("window_left", 3, {"window_left": 3}),
    ("window_right", 5, {"window_right": 5}),
    ("causal", 7, {"window_right": 0}),
    ("bottom_right", -2, {"bottom_right": 1}),
    ("padded", 3, {"is_padded": 1}),
    ("sm_scale", 0.25, {"sm_scale": fp32(0.25)}),
    ("sm_scale", -3.0, {"sm_scale": fp32(-3.0), "is_negative": 1}),
    ("softcap", 30.0, {"softcap": fp32(30.0), "is_capped": 1}),
    ("dropout", 0.5, {"threshold": 1 << 31, "keep_scale": fp32(2.0)}),
    ("dropout", 1 - 2**-13, {"threshold": (1 << 32) - (1 << 19), "keep_scale": fp32(2.0**13)}),
    ("dropout", 2.0**-40, {"threshold": 0, "keep_scale": fp32(1.0)}),
    ("seed_value", 1 << 62, {"seed_value": 1 << 62}),
    ("offset_value", -1, {"offset_value": INFINITE}),
    ("deterministic", 9, {"deterministic": 1}),
    ("splits", 12, {"wanted_splits": 12}),
    ("batch_invariant", 2, {"batch_invariant": 1}),
    ("rotary_interleaved", 4, {"rotary_interleaved": 1}),
]


@pytest.mark.parametrize("operation", PARAMS)
def test_each_number_is_the_argument_that_it_means_and_no_other(flash, operation):
    known = {name for name, _ in PARAMS[operation]._fields_}
    before = flash.scalars(operation)
    tested = set()
    for field, value, meaning in FIELDS:
        if field in known:
            expected = before | {name: number for name, number in meaning.items() if name in before}
            assert flash.scalars(operation, **{field: value}) == expected, (field, value)
            tested.add(field)
    numbers = {name for name, kind in PARAMS[operation]._fields_ if kind in (ctypes.c_int64, ctypes.c_float)}
    assert numbers <= tested


@pytest.mark.parametrize("operation", ATTENTION)
def test_causal_goes_before_the_window(flash, operation):
    got = flash.scalars(operation, causal=1, window_left=8, window_right=5)
    assert (got["window_left"], got["window_right"]) == (8, 0)


@pytest.mark.parametrize("operation", ATTENTION)
def test_the_scale_follows_the_head_dimension(flash, operation):
    dtype = flash.views(operation)["q"].dtype
    for width in (1, 80, 512):
        got = flash.scalars(operation, q=view(0x10000, dtype, (2, 4, 100, width)))
        assert got["sm_scale"] == fp32(1 / math.sqrt(width))


@pytest.mark.parametrize("operation", PARAMS)
@pytest.mark.parametrize("field", ["dropout", "softcap"])
def test_numbers_that_mean_nothing(flash, operation, field):
    if field not in {name for name, _ in PARAMS[operation]._fields_}:
        return
    most = 0.99991 if field == "dropout" else 1.001e30
    for value in (math.nan, -1e-30, -1.0, most, math.inf, -math.inf):
        with pytest.raises(ffi.Failure, match=f"flash: {field} must be") as failure:
            flash.call(operation, **{field: value})
        assert failure.value.status == ffi.ARGUMENT
    assert not flash.kiln.fake.launches()


@pytest.mark.parametrize("operation", ATTENTION)
def test_a_scale_that_is_no_number(flash, operation):
    for value in (math.nan, math.inf, -math.inf):
        with pytest.raises(ffi.Failure, match="flash: sm_scale must be a finite number") as failure:
            flash.call(operation, sm_scale=value)
        assert failure.value.status == ffi.ARGUMENT
    assert not flash.kiln.fake.launches()


@pytest.mark.parametrize("operation", PARAMS)
def test_reserved_fields_and_sizes(flash, operation):
    structure = PARAMS[operation]
    for field in [name for name, _ in structure._fields_ if name.startswith("reserved")]:
        with pytest.raises(ffi.Failure, match=f"kiln_{operation}_params is not zero") as failure:
            flash.call(operation, **{field: 1})
        assert failure.value.status == ffi.NEWER_CALLER
    with pytest.raises(ffi.Failure, match=f"kiln_{operation}_params.size is 0") as failure:
        flash.call(operation, size=0)
    assert failure.value.status == ffi.ARGUMENT
    assert not flash.kiln.fake.launches()


@pytest.mark.parametrize("operation", PARAMS)
def test_newer_callers(flash, operation):
    class Newer(ctypes.Structure):
        _fields_ = [("params", PARAMS[operation]), ("tail", ctypes.c_uint64)]

    entry = getattr(flash.library, f"kiln_{operation}")
    queue = ffi.Queue(ctypes.sizeof(ffi.Queue), ffi.NVIDIA, -1, None)
    params = flash.params(operation, size=ctypes.sizeof(Newer))
    newer = Newer(params)
    for newer.tail, status in ((0, ffi.OK), (1, ffi.NEWER_CALLER)):
        assert entry(flash.kiln.handle, ctypes.byref(queue), ctypes.byref(newer)) == status
    assert entry(flash.kiln.handle, None, None) == ffi.ARGUMENT
    newer.tail = 0
    assert entry(None, None, ctypes.byref(newer)) == ffi.ARGUMENT
    assert flash.kiln.library.error() == "the kiln_t is NULL"


@pytest.mark.parametrize("operation", PARAMS)
def test_older_callers(flash, operation):
    """What lies beyond a structure's size is not read, and has its default, zero or not."""
    last = [name for name, kind in PARAMS[operation]._fields_ if kind is ctypes.POINTER(ffi.Tensor)][-1]
    field = getattr(PARAMS[operation], last)
    numbers = {name: value for name, value, _ in FIELDS if name in {n for n, _ in PARAMS[operation]._fields_}}
    got = flash.scalars(operation, size=field.offset + field.size, **numbers)
    assert got == {name: DEFAULTS[operation][name] for name in got}


@pytest.mark.parametrize("flash", [64], indirect=True)
@pytest.mark.parametrize("operation", ATTENTION)
def test_workspace(flash, operation):
    size = ctypes.c_uint64()
    flash.call(operation, "_workspace", (ctypes.byref(size),))
    assert size.value == 2 * 64, "the scratch of two programs"
    for fields, says in (({}, "its workspace is NULL"), ({"workspace": 0x100000}, "is given 100")):
        with pytest.raises(ffi.Failure, match=f"needs 128 bytes of workspace and {says}") as failure:
            flash.call(operation, workspace_bytes=100, **fields)
        assert failure.value.status == ffi.WORKSPACE
    assert not flash.kiln.fake.launches()
    flash.call(operation, workspace=0x100000, workspace_bytes=128)
    (launch,) = flash.kiln.fake.launches()
    assert launch.parameters()[-2:] == [0x100000, 0]


@pytest.mark.parametrize("operation", ATTENTION)
def test_prepare_and_explain_launch_nothing(flash, operation):
    flash.call(operation, "_prepare")
    loaded = flash.kiln.fake.loaded
    assert loaded
    keys = []
    visit = ffi.VariantFn(lambda variant, _: keys.append(variant.contents.key.decode()) or 0)
    flash.call(operation, "_explain", (visit, None))
    (functional,) = (f.name for f in flash.tables.kernels[operation].functionals if set(f.values.values()) == {"bf16"})
    assert keys == [packs.key_of(operation, functional).hex()]
    assert not flash.kiln.fake.launches()
    flash.call(operation)
    assert len(flash.kiln.fake.launches()) == 1 and flash.kiln.fake.loaded == loaded


@pytest.mark.parametrize("operation", ATTENTION)
def test_forcing(flash, operation):
    (functional,) = (f.name for f in flash.tables.kernels[operation].functionals if set(f.values.values()) == {"bf16"})
    keys = (ctypes.c_char_p * 1)(packs.key_of(operation, functional).hex().encode())
    flash.call(operation, force_keys=keys, force_count=1)
    assert len(flash.kiln.fake.launches()) == 1
    half = {n: view(v.data, FP16) for n, v in flash.views(operation).items() if v.dtype == BF16}
    with pytest.raises(ffi.Failure, match="is not a variant of this call's functional on sm_90"):
        flash.call(operation, force_keys=keys, force_count=1, **half)


@pytest.mark.parametrize("operation", PARAMS)
def test_another_target(flash, operation):
    with pytest.raises(ffi.Failure, match="flash has no target sm_70"):
        flash.call(operation, force_target=b"sm_70")


def test_the_family_registers_itself_once(flash):
    for operation in PARAMS:
        flash.call(operation)
    assert len([m for _, m in flash.kiln.messages if "registered the family flash" in m]) == 1


@pytest.mark.parametrize(
    "fields, status, sentence",
    [
        ({"q": None}, ffi.ARGUMENT, "flash.attn_fwd: q is absent; it must be a tensor"),
        ({"out": None}, ffi.ARGUMENT, "flash.attn_fwd: out is absent"),
        ({"q": view(0x10000, BF16, (2, 4, 64))}, ffi.ARGUMENT, "q has rank 3; it must be 4"),
        ({"k": view(0x10000, FP16)}, ffi.ARGUMENT, "k is fp16; it must be bf16, as this call's dtype"),
        ({"lse": view(0x10000, BF16, (2, 4, 100))}, ffi.ARGUMENT, "lse is bf16; it must be fp32"),
        ({"q": view(0x10000, ffi.FP64)}, ffi.UNSUPPORTED, "dtype=fp64 on sm_90; the nearest that exists is dtype="),
        ({"cu_seqlens_q": view(0x10000, FP32, (3,))}, ffi.ARGUMENT, "cu_seqlens_q is fp32; it must be int32"),
    ],
)  # fmt: skip
def test_bad_calls(flash, fields, status, sentence):
    with pytest.raises(ffi.Failure, match=sentence) as failure:
        flash.call(**fields)
    assert failure.value.status == status


def test_an_empty_head_dimension_is_the_recipes_to_refuse(flash):
    flash.call(q=view(0x10000, BF16, (2, 4, 100, 0)))
    assert len(flash.kiln.fake.launches()) == 1
