"""Requirements: what each predicate asks of a call, and its sentence."""

from __future__ import annotations

import pytest

from kiln_recipe.errors import RecipeError
from kiln_recipe.read import recipe

RECIPE = """family: small
axes: {b: batch size, d: head dimension}
operations:
  copy:
    arguments:
      x: {tensor: fp32, axes: bmd}
      y: {tensor: fp32, axes: bmd}
      z: {tensor: fp32, axes: db, optional: true}
      w: {tensor: int32, rank: 1, optional: true}
      n: {scalar: int64}
    define: {rows: "x.size[1] + 0 * given(w) + 0 * y.size[0] + 0 * given(z)"}
    require:
      - REQUIREMENT
    kernels:
      copy: {source: kernel.py, grid: [n], configurations: [{core: [{num_warps: 1}]}]}
"""
SOURCE = "import triton\n\n\n@triton.jit\ndef copy(x_ptr, rows):\n    pass\n"


def load(folder, requirement: str):
    (folder / "kernel.py").write_text(SOURCE)
    path = folder / "recipe.yaml"
    path.write_text(RECIPE.replace("REQUIREMENT", requirement))
    return recipe.load(path).operations[0]


def refusal(operation, **tensors) -> str:
    """The sentence for a call with these tensors (shape, strides; None: not there), "" if it is accepted."""
    given = {
        "x": ((2, 3, 4), (12, 4, 1)), "y": ((2, 3, 4), (12, 4, 1)), "z": ((4, 2), (2, 1)), "w": ((2,), (1,)), **tensors,
    }  # fmt: skip
    call = {"n": tensors.pop("n", 7), "rows": 3}
    for argument in operation.arguments:
        if argument.kind == "tensor":
            shape, strides = given[argument.name] or ((0,) * argument.rank,) * 2
            call |= {f"{argument.name}.data": 64 if given[argument.name] else 0, f"{argument.name}.dtype": 1}
            call |= {f"{argument.name}.size[{i}]": size for i, size in enumerate(shape)}
            call |= {f"{argument.name}.stride[{i}]": stride for i, stride in enumerate(strides)}
    return next((r.otherwise for r in operation.requirements if not r.that.evaluate(call)), "")


@pytest.mark.parametrize(
    ("requirement", "call", "sentence"),
    [
        ("{contiguous: [x, y]}", {"y": ((2, 3, 4), (12, 5, 1))}, "y must be contiguous"),
        ("{contiguous: [x, y]}", {"y": ((2, 1, 4), (4, 99, 1))}, ""),
        ("{contiguous: [x, y]}", {"y": ((2, 0, 4), (7, 7, 7))}, ""),
        ("{contiguous: w}", {"w": ((2,), (2,))}, "w must be contiguous"),
        ("{contiguous: w}", {"w": ((1,), (2,))}, ""),
        ("{contiguous: w}", {"w": None}, ""),
        (
            "{contiguous: [x, y], axes: d}",
            {"y": ((2, 3, 4), (12, 4, 2))},
            "the last dimension of y must be contiguous (stride 1)",
        ),
        ("{contiguous: [x, y], axes: d}", {"x": ((2, 3, 1), (9, 3, 5))}, ""),
        ("{contiguous: z, axes: d}", {}, "dimension 0 of z must be contiguous (stride 1)"),
        (
            "{not_broadcast: y}",
            {"y": ((2, 3, 4), (0, 4, 1))},
            "y must not be a broadcast view (stride 0): its rows would overwrite each other",
        ),
        ("{not_broadcast: y}", {"y": ((1, 3, 4), (0, 4, 1))}, ""),
        ("{not_broadcast: y}", {"y": ((2, 0, 4), (0, 0, 0))}, ""),
        ("{not_broadcast: y, axes: m}", {"y": ((2, 3, 4), (0, 4, 1))}, ""),
        ("{not_broadcast: z}", {"z": None}, ""),
        ("{same_shape: [x, y]}", {"y": ((2, 3, 5), (15, 5, 1))}, "y must have the shape of x"),
        ("{same_shape: [x, y], axes: bm}", {"y": ((2, 3, 5), (15, 5, 1))}, ""),
        (
            "{same_shape: [x, y], axes: bm}",
            {"y": ((3, 3, 4), (12, 4, 1))},
            "x and y must have the same batch size (dimension 0)",
        ),
        (
            "{same_shape: [x, y], axes: bm}",
            {"y": ((2, 2, 4), (12, 4, 1))},
            "x and y must have the same size in dimension 1",
        ),
        ("{same_shape: [x, z], axes: d}", {}, ""),
        (
            "{same_shape: [x, z], axes: d}",
            {"z": ((5, 2), (2, 1))},
            "x and z must have the same head dimension (axis d)",
        ),
        ("{same_shape: [x, z], axes: d}", {"z": None}, ""),
        ("{shape: [x, y], is: [2, rows, 4 if n > 0 else 0]}", {}, ""),
        ("{shape: y, is: [2, rows, 5]}", {}, "y must have the shape [2, rows, 5]"),
        ('{shape: y, is: [">= 1", ">= rows", 4]}', {}, ""),
        ('{shape: y, is: [2, ">= rows + 1", 4]}', {}, "y must have the shape [2, rows + 1 or more, 4]"),
        ("{shape: z, is: [9, 9]}", {"z": None}, ""),
        ("{elements: w, count: rows, each: row}", {}, "w must have an element for each row"),
        ("{elements: w, count: rows, each: row}", {"w": ((3,), (1,))}, ""),
        ("{belong_together: [z, w]}", {"w": None}, "z and w belong together"),
        ("{belong_together: [z, w]}", {"w": None, "z": None}, ""),
        ("{one_launch: [n, rows, rows + 1]}", {"n": 178956970}, ""),
        (
            "{one_launch: [n, rows, rows + 1]}",
            {"n": 178956971},
            "n * rows * (rows + 1) must be below 2^31, or the call is too large for one launch",
        ),
        ("{one_launch: [n, rows - 3]}", {"n": 2**62}, ""),
        ("{contiguous: y, axes: d, when: n > 7}", {"y": ((2, 3, 4), (12, 4, 2))}, ""),
        ("{contiguous: y, when: n > 6, otherwise: y is no good}", {"y": ((2, 3, 4), (12, 4, 2))}, "y is no good"),
        ("{that: n > 7, when: given(w), otherwise: n must be large}", {}, "n must be large"),
        ("{that: n > 7, when: given(w), otherwise: n must be large}", {"w": None}, ""),
    ],
)
def test_predicates(tmp_path, requirement, call, sentence):
    assert refusal(load(tmp_path, requirement), **call) == sentence


@pytest.mark.parametrize(
    ("requirement", "says"),
    [
        ("{otherwise: no}", "the requirement says nothing that must hold: it is one of that, contiguous"),
        (
            "{that: n, contiguous: x, otherwise: no}",
            "has that and contiguous, of which it can have one",
        ),
        ("{that: n > 0}", "the requirement lacks the field 'otherwise', the sentence for the caller"),
        ("{contiguous: q}", "'q' is no tensor; the tensors are x, y, z, w"),
        ("{contiguous: n}", "'n' is a scalar"),
        ("{contiguous: x, axes: h}", "x has no axis 'h'; the axes are b, m, d"),
        ("{contiguous: w, axes: [1]}", "w has no axis '1'; the axes are 0"),
        ("{same_shape: [x]}", "same_shape names one tensor; give two or more"),
        ("{same_shape: [x, z]}", "x has rank 3 and z 2; say which `axes` are equal"),
        ("{shape: x, is: [1]}", "has 1 sizes, and x has rank 3"),
        ("{shape: x}", "the requirement lacks the field 'is', which shape needs"),
        ("{shape: x, is: [1, 2, cows]}", "reads 'cows'"),
        ("{elements: x, count: 1, each: row}", "x has rank 3; say its shape instead"),
        ("{elements: w, count: 1}", "the requirement lacks the field 'each', which elements needs"),
        ("{belong_together: [x, w]}", "takes two or more optional tensors"),
        ("{contiguous: x, count: 3}", "count is for elements, not for contiguous"),
        ("{one_launch: []}", "has 0 entries; it needs 1 or more"),
        ("{contiguous: x, when: cows}", "reads 'cows'"),
    ],
)
def test_mistakes(tmp_path, requirement, says):
    with pytest.raises(RecipeError) as caught:
        load(tmp_path, requirement)
    assert str(caught.value).startswith(f"{tmp_path}/recipe.yaml:13: ") and says in str(caught.value)


def test_equal_requirements_are_asked_once(tmp_path):
    operation = load(tmp_path, "{contiguous: [x, y]}\n      - {contiguous: y}")
    assert [r.otherwise for r in operation.requirements] == ["x must be contiguous", "y must be contiguous"]


def test_a_grid_reads_parameters(tmp_path):
    text = RECIPE.replace("grid: [n]", "parameters: {rows: {type: i64}, x_ptr: x}, grid: [2 * rows]")
    (tmp_path / "kernel.py").write_text(SOURCE.replace("rows", "tiles"))
    path = tmp_path / "recipe.yaml"
    text = text.replace("rows: {type: i64}", "tiles: rows + n").replace("2 * rows", "2 * tiles")
    path.write_text(text.replace("REQUIREMENT", "{contiguous: x}"))
    (kernel,) = recipe.load(path).operations[0].kernels
    assert kernel.grid[0].evaluate({"rows": 3, "n": 4}) == 14
