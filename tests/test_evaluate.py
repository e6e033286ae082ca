"""A call evaluated in Python: arguments, choices, launches, refusals. tests/end_to_end/test_dispatch.py holds all of it
against the library."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

import small_implementations
import small_recipe
from kiln_recipe import targets
from kiln_recipe.call import dispatch, evaluate, nearest
from kiln_recipe.call.evaluate import Device, Refusal, Tensor
from kiln_recipe.call.implementations import Described
from kiln_recipe.read import recipe

FP16, BF16, FP32, FP8 = 2, 3, 1, 5
DEVICE = Device("NVIDIA", 132)


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> recipe.Recipe:
    return recipe.load(small_recipe.write(tmp_path_factory.mktemp("small")))


@pytest.fixture(scope="module")
def operation(small):
    return small.operations[0]


@pytest.fixture(scope="module")
def tables(small) -> dispatch.Tables:
    return dispatch.Tables(small, targets.by_name("sm_90"), "core", (), None)


def matrix(rows: int, columns: int, dtype: int = BF16, address: int = 0x1000, pitch: int | None = None) -> Tensor:
    return Tensor(address, dtype, (rows, columns), (columns if pitch is None else pitch, 1))


def given_of(rows: int = 5, columns: int = 100, **some: object) -> list[object]:
    values = {
        "x": matrix(rows, columns),
        "w": None,
        "out": matrix(rows, columns, address=0x2000),
        "eps": 1e-6,
        "gemma": 0,
    }
    return list((values | some).values())


def dispatched(operation, tables, *arguments: object, **some: object) -> list[dispatch.Chosen]:
    call = tables.begin(operation, "small.rms_norm", given_of(*arguments, **some), DEVICE)
    return tables.dispatch(call, {"total": 0x9000})


def refused(operation, tables, **some: object) -> tuple[str, str]:
    with pytest.raises(Refusal) as refusal:
        dispatched(operation, tables, **some)
    return refusal.value.status, str(refusal.value)


def test_a_call_becomes_launches(operation, tables):
    norm, count = dispatched(operation, tables, 5, 100, gemma=1)
    assert norm.variant.functional == "dtype=bf16 columns_most=128 gemma=true"
    assert norm.launch.grid == (5, 1, 1) and norm.launch.zeros == ()
    assert dict(norm.launch.arguments) | {"eps": 0} == {
        "x_ptr": 0x1000, "w_ptr": 0, "out_ptr": 0x2000, "stride": 100, "columns": 100, "eps": 0, "flag": 0,
    }  # fmt: skip
    assert (count.launch.grid, count.launch.zeros) == ((1, 1, 1), ((0x9000, 20),))
    assert dict(count.launch.arguments) == {"total_ptr": 0x9000, "out_ptr": 0x2000, "n": 5}


def test_a_call_is_explained_for_a_gpu_that_is_not_here(operation, tables):
    explained = tables.explain(operation, "small.rms_norm", given_of(5, 100, gemma=1))
    assert [one.variant for one in explained] == [one.variant for one in dispatched(operation, tables, 5, 100, gemma=1)]
    assert explained[1].launch.zeros[0][0] == 1 << 60  # of a workspace that is nowhere
    assert tables.explain(operation, "small.rms_norm", given_of(0)) == []  # nothing to do
    assert Device.of(targets.by_name("sm_90")) == DEVICE
    assert Device.of(targets.by_name("gfx942"), 304) == Device("AMD", 304, describes=False)


def test_a_fp32_parameter_is_rounded_once(operation, tables):
    (norm,) = dispatched(operation, tables, eps=0.1)
    assert dict(norm.launch.arguments)["eps"] == struct.unpack("<f", struct.pack("<f", 0.1))[0] != 0.1


@pytest.mark.parametrize(
    ("x", "specialization", "left_out"),
    [
        (matrix(5, 64), "aligned", set()),
        (matrix(5, 64, address=0x1002), "generic", set()),
        (matrix(5, 64, pitch=100), "generic", set()),
        (matrix(5, 1, pitch=9), "one", {"columns"}),
    ],
)
def test_the_first_specialization_that_holds(operation, tables, x, specialization, left_out):
    out = Tensor(0x2000, BF16, x.sizes, x.strides)
    (norm,) = dispatched(operation, tables, x=x, out=out)
    assert norm.variant.specialization == specialization
    parameters = {parameter.name for parameter in operation.kernels[0].parameters}
    assert parameters - set(dict(norm.launch.arguments)) == left_out


def test_what_is_left_out_or_empty(operation, tables):
    assert dispatched(operation, tables, 0, 100) == []
    none = Tensor(0, BF16, (5, 0), (0, 1))
    (norm,) = dispatched(operation, tables, x=none, w=Tensor(0, FP32, (0,), (1,)))
    given = dict(norm.launch.arguments)
    assert (given["x_ptr"], given["w_ptr"], given["flag"]) == (evaluate.NOWHERE, evaluate.NOWHERE, 1)


@pytest.mark.parametrize(
    ("some", "status", "sentence"),
    [
        ({"x": None}, "ARGUMENT", "x is absent; it must be a tensor"),
        ({"x": 5}, "ARGUMENT", "x is an integer; it must be a tensor"),
        ({"gemma": 0.5}, "ARGUMENT", "gemma is a floating number; it must be an integer"),
        ({"eps": True}, "ARGUMENT", "eps is an integer; it must be a floating number"),
        ({"x": Tensor(1, BF16, (5,), (1,))}, "ARGUMENT", "x has rank 1; it must be 2"),
        ({"w": Tensor(1, BF16, (5,), (1,))}, "ARGUMENT", "w is bf16; it must be fp32"),
        ({"x": Tensor(0, BF16, (5, 5), (5, 1))}, "ARGUMENT", "the data of x is NULL although it has elements"),
        ({"out": matrix(5, 100, FP16)}, "ARGUMENT", "out is fp16; it must be bf16, as this call's dtype"),
        ({"out": matrix(4, 100)}, "ARGUMENT", "out must have the rows of x"),
        ({"gemma": 2}, "RANGE", "gemma is 2; a boolean must be 0 or 1"),
        ({"eps": 1e39}, "RANGE", "the parameter eps of kernel norm is 1e+39, which does not fit fp32"),
        ({"x": matrix(2**33, 0), "out": matrix(2**33, 0)}, "RANGE",
         "grid dimension 0 of kernel norm is 8589934592; NVIDIA devices take 0 to 2147483647"),
        ({"x": matrix(2**62, 2), "out": matrix(2**62, 2)}, "RANGE", "the bin size of this call overflows"),
        ({"x": matrix(5, 300)}, "UNSUPPORTED",
         "has no image for dtype=bf16 columns_most=300 gemma=false on sm_90; the nearest that exists is dtype=bf16 "
         "columns_most=256 gemma=false"),
        ({"x": matrix(5, 100, FP8), "out": matrix(5, 100, FP8)}, "UNSUPPORTED",
         "has no image for dtype=fp8e4m3 columns_most=128 gemma=false on sm_90: dtype=fp8e4m3 is in the full profile "
         "only; the nearest that exists is dtype=bf16 columns_most=128 gemma=false"),
        ({"x": matrix(5, 100, FP32), "out": matrix(5, 100, FP32)}, "UNSUPPORTED",
         "no image for dtype=fp32 columns_most=128"),
    ],
)  # fmt: skip
def test_refusals(operation, tables, some, status, sentence):
    found, said = refused(operation, tables, **some)
    assert found == status and said.startswith("small.rms_norm") and sentence in said


def test_the_number_of_arguments(operation):
    with pytest.raises(Refusal, match="small.rms_norm: 4 arguments are given; it takes 5"):
        evaluate.begin(operation, "small.rms_norm", given_of()[:4], DEVICE)


def test_workspaces_have_a_sensible_size(operation):
    call = evaluate.begin(operation, "small.rms_norm", given_of(7), DEVICE)
    assert evaluate.workspaces(call) == {"total": 28}
    many = matrix(2**61, 0)
    call = evaluate.begin(operation, "small.rms_norm", given_of(x=many, out=many), DEVICE)
    with pytest.raises(Refusal, match="the workspace total of this call has an invalid size"):
        evaluate.workspaces(call)


def test_nothing_near(operation):
    call = evaluate.begin(operation, "small.rms_norm", given_of(5, 300), DEVICE)
    assert call.missing
    refusal = nearest.unsupported(call, (), "sm_90", None, lambda kernel, functional: False)
    assert str(refusal).endswith("on sm_90, nor for anything similar")


def test_what_the_compiler_may_reject_counts_as_not_there(small, operation):
    """On gfx90a the recipe waives fp8."""
    tables = dispatch.Tables(small, targets.by_name("gfx90a"), "full", (), None)
    x = matrix(5, 100, FP8)
    with pytest.raises(Refusal, match="on gfx90a: no fp8 there; the nearest that exists is dtype=bf16"):
        dispatched(operation, tables, x=x, out=x)


def test_the_larger_serves_where_a_build_leaves_the_next_out(small, operation):
    tables = dispatch.Tables(small, targets.by_name("sm_90"), "core", (("columns_most", ("64", "256")),), None)
    for columns, most in ((64, 64), (65, 256), (128, 256)):
        norm, _ = dispatched(operation, tables, 5, columns, w=Tensor(8, FP32, (columns,), (1,)), gemma=1)
        assert f"columns_most={most} " in norm.variant.functional
    tables = dispatch.Tables(small, targets.by_name("sm_90"), "core", (("columns_most", ("64",)),), None)
    with pytest.raises(Refusal, match="columns_most=128 gemma=false on sm_90: this build was made for columns_most=64"):
        dispatched(operation, tables, 5, 65)
    tables = dispatch.Tables(small, targets.by_name("sm_90"), "core", (("columns_most", ("256",)),), None)
    x = matrix(5, 100, FP8)
    with pytest.raises(Refusal) as refusal:  # what is asked for is named, not what would serve it
        dispatched(operation, tables, x=x, out=x)
    assert str(refusal.value) == (
        "small.rms_norm has no image for dtype=fp8e4m3 columns_most=128 gemma=false on sm_90: dtype=fp8e4m3 is in the "
        "full profile only; the nearest that exists is dtype=bf16 columns_most=256 gemma=false"
    )


@pytest.fixture(scope="module")
def tiles(tmp_path_factory) -> recipe.Recipe:
    return recipe.load(small_implementations.write(tmp_path_factory.mktemp("tiles")))


def copied(tiles, target: str = "sm_90", device: Device = DEVICE, select=(), limit: int = 0, **some: object):
    """The one kernel of a call of tiles.copy."""
    x = some.pop("x", Tensor(0x1000, FP16, (100, 64), (64, 1)))
    out = some.pop("out", Tensor(0x2000, FP16, x.sizes, (x.sizes[1], 1)))
    tables = dispatch.Tables(tiles, targets.by_name(target), "core", select, None, **some)
    call = tables.begin(tiles.operations[0], "tiles.copy", [x, out, limit], device)
    (chosen,) = tables.dispatch(call, {})
    return chosen


def test_the_first_implementation_that_fits_runs(tiles):
    chosen = copied(tiles)
    assert chosen.variant.kernel == "copy.tiles" and chosen.passed == ()
    x, out, rows = chosen.launch.arguments
    assert x == ("x_desc", Described("x", 0x1000, FP16, (100, 64), (64, 1))) and rows == ("rows", 100)
    assert out[1].address == 0x2000 and chosen.launch.grid == (2, 1, 1)


@pytest.mark.parametrize(
    ("some", "taken", "passed"),
    [
        ({"limit": 101}, "described", ["tiles: it serves calls with rows >= limit"]),
        ({"target": "sm_120"}, "described", ["tiles: it is not for sm_120"]),
        ({"target": "gfx942", "device": Device("AMD", 304)}, "plain",
         ["tiles: it is not for gfx942", "described: it is not for gfx942"]),
        ({"device": Device("NVIDIA", 132, describes=False)}, "plain",
         [f"{name}: it takes tensor descriptors, and this driver has no entry point cuTensorMapEncodeTiled"
          for name in ("tiles", "described")]),
        ({"x": Tensor(0x1008, FP16, (100, 64), (64, 1))}, "plain",
         [f"{name}: x is at 0x1008; its descriptor needs a multiple of 16" for name in ("tiles", "described")]),
        ({"x": Tensor(0x1000, FP16, (100, 64), (68, 1))}, "plain",
         [f"{name}: stride 0 of x is 68 elements; its descriptor needs a multiple of 16 bytes below 2^40"
          for name in ("tiles", "described")]),
        ({"x": Tensor(0x1000, FP16, (100, 64), (-64, 1))}, "plain",
         [f"{name}: stride 0 of x is -64 elements; its descriptor needs a multiple of 16 bytes below 2^40"
          for name in ("tiles", "described")]),
        ({"x": Tensor(0x1000, FP16, (100, 64), (2**39, 1))}, "plain",
         [f"{name}: stride 0 of x is 549755813888 elements; its descriptor needs a multiple of 16 bytes below 2^40"
          for name in ("tiles", "described")]),
        ({"x": Tensor(0x1000, FP16, (100, 64), (1, 104))}, "plain",
         [f"{name}: the last stride of x is 104; its descriptor needs 1" for name in ("tiles", "described")]),
        ({"select": (("copy", ("plain",)),)}, "plain",
         [f"{name}: this build was made for copy=plain alone" for name in ("tiles", "described")]),
        ({"unfit": lambda kernel: "odd" if kernel.language == "gluon" else None}, "described", ["tiles: odd"]),
    ],
)  # fmt: skip
def test_an_implementation_that_does_not_fit_is_passed_over(tiles, some, taken, passed):
    chosen = copied(tiles, **some)
    assert (chosen.variant.kernel, list(map(str, chosen.passed))) == (f"copy.{taken}", passed)
    assert str(chosen).splitlines()[1:] == [f"  passed over: {one}" for one in passed]


def test_the_recipes_reason_is_told(tmp_path):
    serves = "            serves: rows >= limit\n"
    text = small_implementations.RECIPE.replace(serves, serves + "            reason: >-\n              few rows\n"
                                                "              are slow\n")  # fmt: skip
    loaded = recipe.load(small_implementations.write(tmp_path, text))
    chosen = copied(loaded, limit=101)
    assert list(map(str, chosen.passed)) == ["tiles: it serves calls with rows >= limit: few rows are slow"]


@pytest.mark.parametrize(("limit", "counted"), [(0, "false"), (50, "true")])
def test_an_implementation_that_does_not_depend_on_a_choice_serves_each_value(tmp_path, limit, counted):
    path = small_implementations.write(
        tmp_path, small_implementations.COUNTED, triton=small_implementations.TRITON_COUNTED
    )
    chosen = copied(recipe.load(path), limit=limit)
    assert (chosen.variant.kernel, chosen.passed) == ("copy.tiles", ())
    assert chosen.variant.functional == f"dtype=fp16 width=64 counted={counted}"


def test_a_driver_that_is_too_old(tiles):
    old = Device("NVIDIA", 170, driver=12040)
    with pytest.raises(Refusal) as refusal:
        copied(tiles, "sm_120", old)
    assert str(refusal.value) == (
        "tiles.copy: kernel copy does not take this call on sm_120: tiles: it is not for sm_120; described: it needs a "
        "driver for CUDA 12.8 or later; this one is for CUDA 12.4; plain: it needs a driver for CUDA 12.8 or later; "
        "this one is for CUDA 12.4"
    )
    assert refusal.value.status == "UNSUPPORTED"
    assert copied(tiles, "sm_120", Device("NVIDIA", 170, driver=12080)).variant.kernel == "copy.described"


def test_where_images_are_lacking_the_nearest_is_named(tiles):
    with pytest.raises(Refusal) as refusal:
        copied(tiles, x=Tensor(0x1000, FP16, (100, 64), (64, 1)), select=(("width", ("32",)),))
    assert str(refusal.value) == (
        "tiles.copy has no image for dtype=fp16 width=64 on sm_90: this build was made for width=32 alone; the nearest "
        "that exists is dtype=fp16 width=32"
    )


def test_the_span_of_a_tensor():
    assert Tensor(1000, BF16, (3, 4), (10, 1)).span == (1000, 1000 + 2 * 24)
    assert Tensor(1000, FP32, (3, 4), (-10, 1)).span == (1000 - 80, 1000 + 16)
    assert Tensor(1000, FP32, (3, 0), (10, 1)).span == (1000, 1000)


numbers = st.one_of(st.integers(-(2**63), 2**63 - 1), st.integers(-2, 300), st.sampled_from([2**31, 2**62]))
tensors = st.builds(
    Tensor, st.integers(0, 2**47), st.sampled_from([FP16, BF16, FP32, FP8, 12]),
    st.lists(numbers.map(abs), min_size=1, max_size=3).map(tuple), st.lists(numbers, min_size=3, max_size=3).map(tuple),
)  # fmt: skip
anything = st.one_of(st.none(), numbers, st.booleans(), st.floats(), tensors)


@given(st.tuples(tensors, st.one_of(st.none(), tensors), tensors, st.floats(), numbers) | st.tuples(*[anything] * 5))
def test_any_call_is_launched_or_refused(operation, tables, values):
    """Nothing else escapes, whatever is given."""
    values = [
        Tensor(v.data, v.dtype, v.sizes, v.strides[: len(v.sizes)]) if isinstance(v, Tensor) else v for v in values
    ]
    try:
        call = evaluate.begin(operation, "small.rms_norm", values, DEVICE)
        evaluate.workspaces(call)
        for one in tables.dispatch(call, {"total": 0x9000}):
            assert all(0 <= blocks <= most for blocks, most in zip(one.launch.grid, DEVICE.max_grid))
    except Refusal as refusal:
        assert str(refusal).startswith("small.rms_norm") and refusal.status in ("ARGUMENT", "RANGE", "UNSUPPORTED")
