"""Choices of the first value that fits: kernels that a call runs as a whole, or others instead of all of them."""

from __future__ import annotations

import pytest

import small_implementations
from kiln_recipe import targets
from kiln_recipe.call import dispatch, evaluate
from kiln_recipe.call.evaluate import Device, Refusal, Tensor
from kiln_recipe.errors import RecipeError
from kiln_recipe.plan import plan
from kiln_recipe.read import recipe

FP16, FP32 = 2, 1
NVIDIA = Device("NVIDIA", 132)
RECIPE = """family: tiles
summary: Copies, by way of a workspace or at once.
operations:
  copy:
    arguments:
      x: {tensor: dtype, rank: 2}
      out: {tensor: dtype, rank: 2}
      exact: {scalar: bool}
    choices:
      dtype: {of: x.dtype, values: [fp16, fp32]}
      width: {of: "x.size[1]", values: [32, 64]}
      way: {of: plain if exact else tiles, values: [tiles, described, plain], match: first_that_fits}
    define:
      rows: x.size[0]
    workspace:
      between: {dtype: dtype, shape: [rows if way != plain else 0, "x.size[1]"]}
    kernels:
      there:
        when: way == tiles
        choices: [dtype, width]
        source: gluon_kernel.py
        function: copy_tiles
        language: gluon
        targets: [hopper]
        ptx: "8.6"
        grid: ["cdiv(rows, BLOCK)"]
        constants: {WIDTH: width}
        parameters:
          x_desc: {descriptor: x, box: [BLOCK, WIDTH]}
          out_desc: {descriptor: between, box: [BLOCK, WIDTH]}
          rows: {type: i32, value: rows}
        configurations:
          - core: [{BLOCK: 64, num_warps: 4}]
      back:
        when: way == tiles or way == described
        choices: [dtype, width]
        source: triton_kernel.py
        function: copy_described
        targets: [hopper, sm_120]
        ptx: "8.7"
        grid: ["cdiv(rows, BLOCK)"]
        constants: {WIDTH: width}
        parameters:
          x_desc: {descriptor: x, box: [BLOCK, WIDTH]}
          out_desc: {descriptor: out, box: [BLOCK, WIDTH]}
          rows: {type: i32, value: rows}
        configurations:
          - core: [{BLOCK: 32, num_warps: 4}]
      copy:
        when: way == plain
        choices: [dtype, width]
        source: triton_kernel.py
        grid: ["cdiv(rows, BLOCK)"]
        constants: {WIDTH: width}
        parameters:
          x_ptr: {type: "*dtype", value: x.data}
          out_ptr: {type: "*dtype", value: out.data}
          stride_x: {type: i64, value: "x.stride[0]"}
          stride_x_column: {type: i64, value: "x.stride[1]"}
          stride_out: {type: i64, value: "out.stride[0]"}
          rows: {type: i32, value: rows}
        configurations:
          - core: [{BLOCK: 16, num_warps: 4}]
"""


@pytest.fixture(scope="module")
def ways(tmp_path_factory) -> recipe.Recipe:
    return recipe.load(small_implementations.write(tmp_path_factory.mktemp("ways"), RECIPE))


def begun(ways, target: str = "sm_90", device: Device = NVIDIA, select=(), exact: int = 0, pitch: int = 64, **some):
    x = Tensor(some.pop("address", 0x1000), FP16, (100, 64), (pitch, 1))
    tables = dispatch.Tables(ways, targets.by_name(target), "core", select, None, **some)
    out = Tensor(0x8000, FP16, (100, 64), (64, 1))
    return tables, tables.begin(ways.operations[0], "tiles.copy", [x, out, exact], device)


def ran(*args, **some) -> tuple[list[str], list[str]]:
    """The kernels of a call, and what is said of those that it does not run."""
    tables, call = begun(*args, **some)
    chosen = tables.dispatch(call, {"between": 0x10000})
    assert all(one.passed == () for one in chosen[1:])
    return [one.variant.kernel for one in chosen], [str(one) for one in chosen[0].passed]


@pytest.mark.parametrize(
    ("some", "kernels", "passed"),
    [
        ({}, ["there", "back"], []),
        ({"exact": 1}, ["copy"], []),
        ({"target": "sm_120"}, ["back"], ["there: it is not for sm_120"]),
        ({"target": "sm_80"}, ["copy"], ["there: it is not for sm_80", "back: it is not for sm_80"]),
        ({"pitch": 68}, ["copy"],
         [f"{name}: stride 0 of x is 68 elements; its descriptor needs a multiple of 16 bytes below 2^40"
          for name in ("there", "back")]),
        ({"device": Device("NVIDIA", 132, describes=False)}, ["copy"],
         [f"{name}: it takes tensor descriptors, and this driver has no entry point cuTensorMapEncodeTiled"
          for name in ("there", "back")]),
        ({"select": (("way", ("plain",)),)}, ["copy"], []),
        ({"select": (("way", ("described", "plain")),)}, ["back"], []),
        ({"lack": lambda variant: "damaged" if variant.kernel == "back" else None}, ["copy"],
         ["back: it has no image for this call", "back: it has no image for this call"]),
    ],
)  # fmt: skip
def test_the_first_value_whose_kernels_all_fit_is_taken(ways, some, kernels, passed):
    got, said = ran(ways, **some)
    assert got == kernels
    assert [line.replace("damaged", "it has no image for this call") for line in said] == passed


def test_workspaces_follow_the_value_that_is_taken(ways):
    _, call = begun(ways)
    assert evaluate.workspaces(call) == {"between": 100 * 64 * 2}
    _, call = begun(ways, target="sm_80")
    assert evaluate.workspaces(call) == {"between": 0}


def test_a_workspace_is_described_by_its_shape(ways):
    tables, call = begun(ways)
    there, _ = tables.dispatch(call, {"between": 0x10000})
    described = dict(there.launch.arguments)["out_desc"]
    assert (described.argument, described.address, described.dtype) == ("between", 0x10000, FP16)
    assert (described.sizes, described.strides) == ((100, 64), (64, 1))


def test_where_the_last_value_does_not_fit_its_kernel_is_named(ways):
    tables, call = begun(ways, lack=lambda variant: "damaged" if variant.kernel in ("back", "copy") else None)
    with pytest.raises(Refusal, match=r"^tiles.copy has no image for dtype=fp16 width=64 on sm_90: damaged"):
        tables.dispatch(call, {"between": 0x10000})


def test_a_kernel_that_may_be_replaced_need_not_be_for_every_target(ways):
    made = plan.make_plan([ways], (targets.by_name("gfx942"),), "core")
    assert {kernel.kernel.name for kernel in made.kernels} == {"copy"}


@pytest.mark.parametrize(
    ("replace", "by", "says"),
    [
        ("choices: [dtype, width]\n        source: gluon", "choices: [dtype, way]\n        source: gluon",
         "the choice way matches first_that_fits: it decides which kernels a call runs, by their `when`"),
        ("values: [fp16, fp32]}", "values: [fp16, fp32], match: first_that_fits}",
         "one choice of an operation may match first_that_fits"),
        ("match: first_that_fits}", "match: first_that_fits, general: plain}", "general is for what matches exactly"),
        ("descriptor: between", "descriptor: betwen", "'betwen' is not an argument; did you mean 'between'?"),
        ('{dtype: dtype, shape: [rows if way != plain else 0, "x.size[1]"]}',
         "{dtype: dtype, elements: rows if way != plain else 0}", "'between' is a workspace without a `shape`"),
        ("shape: [rows", "elements: 3, shape: [rows", "must have either `elements`, how many, or `shape`, their sizes"),
    ],
)  # fmt: skip
def test_mistakes(tmp_path, replace, by, says):
    text = RECIPE.replace(replace, by, 1)
    assert text != RECIPE
    with pytest.raises(RecipeError) as caught:
        recipe.load(small_implementations.write(tmp_path, text))
    assert says in str(caught.value)


def test_one_that_no_kernel_asks_is_refused(tmp_path):
    text = RECIPE
    for when in ("way == tiles or way == described", "way == tiles", "way == plain"):
        text = text.replace(f"        when: {when}\n", "")
    with pytest.raises(RecipeError, match="the choice way is used by no kernel: none has it in `when`"):
        recipe.load(small_implementations.write(tmp_path, text))
