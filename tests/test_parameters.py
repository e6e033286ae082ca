"""The parameters of kernels: what follows from a parameter's name, and what a recipe writes in its place."""

from __future__ import annotations

import pytest

from kiln_recipe.errors import RecipeError
from kiln_recipe.read import recipe

RECIPE = """family: small
operations:
  scale:
    arguments:
      x: {tensor: dtype, axes: bhm}
      weights: {tensor: fp32, axes: [row, column], alias: [w, g]}
      new_x: {tensor: int32, rank: 2, optional: true, alias: xb}
      n: {scalar: int64}
      eps: {scalar: fp64}
      flag: {scalar: bool}
    choices:
      dtype: {of: x.dtype, values: [fp16, bf16]}
    define: {rows: "x.size[0]"}
    workspace:
      sums: {dtype: fp32, elements: rows + n}
      copies: {dtype: dtype, elements: "rows if n > 0 else 0"}
      spare: rows * 4
    kernels:
      scale:
        source: kernel.py
        choices: [dtype]
        PARAMETERS
        specializations: {aligned: {divisible_by_8: ["stride*"]}, generic: {}}
        grid: [n, "new_x.size[0] + flag + 0 * spare"]
        configurations: [{core: [{num_warps: 1}]}]
"""
SOURCE = """import triton


@triton.jit
def scale(PARAMETERS):
    pass
"""


def parameters(folder, names: str, written: str = "{}"):
    """Those of a function with these, of which the recipe says what is `written`: by name type and value."""
    rest = "sums_ptr, copies_ptr, w_ptr, eps, dtype_ptr, stride_gcolumn"
    used = ", ".join(dict.fromkeys(f"{names}, {rest}".split(", ")))
    (folder / "kernel.py").write_text(SOURCE.replace("PARAMETERS", used))
    path = folder / "recipe.yaml"
    written = written.replace("{", "{dtype_ptr: x, ", 1) if written != "{}" else "{dtype_ptr: x}"
    path.write_text(RECIPE.replace("PARAMETERS", f"parameters: {written}"))
    (kernel,) = recipe.load(path).operations[0].kernels
    assert [p.name for p in kernel.parameters] == used.split(", ")  # the function's order
    return {p.name: (p.type, p.value.text) for p in kernel.parameters}


@pytest.mark.parametrize(
    ("name", "meaning"),
    [
        ("x_ptr", ("*dtype", "x.data")),
        ("weights_ptr", ("*fp32", "weights.data")),
        ("g_ptr", ("*fp32", "weights.data")),
        ("new_x_ptr", ("*i32", "new_x.data")),
        ("sums_ptr", ("*fp32", "sums")),
        ("copies_ptr", ("*dtype", "copies")),
        ("stride_xm", ("i64", "x.stride[2]")),
        ("stride_x_h", ("i64", "x.stride[1]")),
        ("stride_x", ("i64", "x.stride[0]")),
        ("stride_weights_column", ("i64", "weights.stride[1]")),
        ("stride_w", ("i64", "weights.stride[0]")),
        ("stride_xb1", ("i64", "new_x.stride[1]")),
        ("stride_new_x_0", ("i64", "new_x.stride[0]")),
        ("stride_xb", ("i64", "x.stride[0]")),  # of x along b, before xb's first
        ("n", ("i64", "n")),
        ("eps", ("fp64", "eps")),
        ("flag", ("i1", "flag")),
        ("rows", ("i32", "rows")),
        ("dtype", ("i32", "dtype")),
        ("multiprocessors", ("i32", "multiprocessors")),
    ],
)
def test_what_follows_from_a_name(tmp_path, name, meaning):
    assert parameters(tmp_path, name)[name] == meaning


@pytest.mark.parametrize(
    ("written", "meaning"),
    [
        ("weights", ("*fp32", "weights.data")),
        ("w", ("*fp32", "weights.data")),
        ("new_x.data", ("*i32", "new_x.data")),
        ("sums", ("*fp32", "sums")),
        ("n", ("i64", "n")),
        ("eps", ("fp64", "eps")),
        ("'x.stride[1]'", ("i64", "x.stride[1]")),
        ("rows + 1", ("i32", "rows + 1")),
        ("3", ("i32", "3")),
        ("{value: rows}", ("i32", "rows")),
        ("{type: u32, value: rows}", ("u32", "rows")),
        ('{type: "*fp32", value: spare}', ("*fp32", "spare")),
    ],
)
def test_what_is_written_in_its_place(tmp_path, written, meaning):
    assert parameters(tmp_path, "a", f"{{a: {written}}}")["a"] == meaning


def test_a_type_alone_leaves_the_value(tmp_path):
    assert parameters(tmp_path, "n, rows", "{n: {type: i32}, rows: {type: i64}}") | {} == {
        **parameters(tmp_path, "n, rows"), "n": ("i32", "n"), "rows": ("i64", "rows"),
    }  # fmt: skip


def test_a_stride_is_of_64_bits_whatever_it_is_computed_from(tmp_path):
    assert parameters(tmp_path, "stride_y", "{stride_y: rows * n}")["stride_y"] == ("i64", "rows * n")


def test_workspaces_of_a_dtype(tmp_path):
    parameters(tmp_path, "x_ptr")
    sums, copies, spare = recipe.load(tmp_path / "recipe.yaml").operations[0].workspaces
    call = {"rows": 5, "n": 2, "dtype": 3}
    assert [w.bytes.evaluate(call) for w in (sums, copies, spare)] == [28, 10, 20]


def test_a_pattern_means_every_parameter_of_that_kind(tmp_path):
    parameters(tmp_path, "stride_xm, n, stride_xh")
    (kernel,) = recipe.load(tmp_path / "recipe.yaml").operations[0].kernels
    assert kernel.specializations[0].divisible == (("stride_xm", 8), ("stride_xh", 8), ("stride_gcolumn", 8))


def test_what_follows_from_nothing_is_refused(tmp_path):
    text = "scale's parameter stride_xz follows from no argument, definition or workspace (did you mean 'stride_x"
    with pytest.raises(RecipeError) as caught:
        parameters(tmp_path, "stride_xz")
    assert text in str(caught.value) and str(caught.value).startswith(f"{tmp_path}/recipe.yaml:22: ")


def test_a_name_of_two_meanings_is_refused(tmp_path):
    (tmp_path / "kernel.py").write_text(SOURCE.replace("PARAMETERS", "x_ptr, stride_x_m"))
    path = tmp_path / "recipe.yaml"
    path.write_text(RECIPE.replace("axes: bhm", "axes: [m, _m]").replace("PARAMETERS", "parameters: {}"))
    with pytest.raises(RecipeError, match=r"stride_x_m may be x.stride\[0\] or x.stride\[1\]; say"):
        recipe.load(path)
