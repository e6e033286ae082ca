"""Recipes: what a good one means, and the sentence for each way in which one is wrong."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import small_implementations
import small_recipe
from kiln_recipe import targets
from kiln_recipe.errors import RecipeError
from kiln_recipe.read import recipe

ROOT = Path(__file__).resolve().parents[1]
RECIPE, KERNEL = small_recipe.RECIPE, small_recipe.KERNEL


@pytest.fixture
def small(tmp_path) -> recipe.Recipe:
    return recipe.load(small_recipe.write(tmp_path))


def test_arguments_and_choices(small):
    (operation,) = small.operations
    x, w, _, eps, gemma = operation.arguments
    assert (x.kind, x.rank, x.dtype, x.dtype_choice, x.optional) == ("tensor", 2, None, "dtype", False)
    assert (w.kind, w.rank, w.dtype, w.dtype_choice, w.optional) == ("tensor", 1, "fp32", None, True)
    assert (eps.kind, eps.bits, gemma.kind, gemma.bits) == ("float", 32, "int", 1)
    assert x.values == ("x.data", "x.dtype", "x.size[0]", "x.size[1]", "x.stride[0]", "x.stride[1]")
    dtype, columns, flag = operation.choices
    assert (dtype.numbers, dtype.spellings, dtype.core) == ((2, 3, 5), ("fp16", "bf16", "fp8e4m3"), (True, True, False))
    assert (columns.match, columns.numbers) == ("next_larger", (64, 128, 256))
    assert (flag.kind, flag.values, flag.spellings) == ("bool", (False, True), ("false", "true"))


def test_kernels(small):
    norm, count = small.operations[0].kernels
    assert norm.order[:3] == ("x_ptr", "w_ptr", "out_ptr") and norm.order[-1] == "BLOCK"
    assert [(p.name, p.type, p.dtype_choice) for p in norm.parameters][:2] == [
        ("x_ptr", "*dtype", "dtype"),
        ("w_ptr", "*fp32", None),
    ]
    assert norm.columns == ("BLOCK", "num_warps", "waves_per_eu")
    assert [axis.text for axis in norm.grid] == ["rows", "1", "1"]
    assert [(s.name, s.divisible, s.equal_to_one) for s in norm.specializations] == [
        ("aligned", (("x_ptr", 16), ("out_ptr", 16), ("stride", 8)), ()),
        ("one", (("x_ptr", 16),), ("columns",)),
        ("generic", (), ()),
    ]
    assert norm.bin_total == 6
    assert count.specializations[0].name == "generic" and count.bin_total == 1
    assert count.zeros[0].bytes.text == "4 * max(rows, 1)" and count.zeros[0].address.text == "total"
    assert [c.name for c in norm.configurations[0].core][:2] == ["BLOCK=64 num_warps=1", "BLOCK=64 num_warps=4"]


@pytest.mark.parametrize(
    ("target", "warps"), [("sm_90", [1, 4, 1, 4]), ("gfx1100", [1, 4, 1, 4]), ("gfx90a", [4, 4]), ("gfx942", [8])]
)
def test_the_narrowest_name_of_a_target_decides(small, target, warps):
    sets = small.operations[0].kernels[0].sets_for(targets.by_name(target))
    assert [configuration.mapping["num_warps"] for entry in sets for configuration in entry.core] == warps


def test_floating_parameters_are_bits_of_a_double(tmp_path):
    text = RECIPE.replace("eps: {type: fp32, value: eps}", "eps: {type: fp32, value: 1e-6}")
    text = text.replace("      eps: {scalar: fp32}\n", "")
    parameter = recipe.load(small_recipe.write(tmp_path, text)).operations[0].kernels[0].parameters[5]
    assert struct.unpack("<d", struct.pack("<q", parameter.value.evaluate({})))[0] == 1e-6


def test_zeroing_a_whole_tensor_requires_that_it_is_contiguous(tmp_path):
    text = RECIPE.replace("zero: [total]", "zero: [total, out, {address: x.data, bytes: 16}]")
    (operation,) = recipe.load(small_recipe.write(tmp_path, text)).operations
    _, zero, explicit = operation.kernels[1].zeros
    env = {"out.data": 64, "out.size[0]": 3, "out.size[1]": 5, "out.dtype": 3, "out.stride[0]": 5, "out.stride[1]": 1}
    assert (zero.address.evaluate(env), zero.bytes.evaluate(env)) == (64, 30)
    assert zero.bytes.evaluate({**dict.fromkeys(env, 0)}) == 0
    assert explicit.bytes.evaluate({}) == 16
    requirement = operation.requirements[-1]
    assert requirement.otherwise == "out must be contiguous, since it is set to zero"
    assert requirement.that.evaluate(env) == 1
    assert requirement.that.evaluate({**env, "out.stride[0]": 6}) == 0
    assert requirement.that.evaluate({**env, "out.stride[0]": 6, "out.size[0]": 1}) == 1
    assert requirement.that.evaluate({**env, "out.stride[0]": 6, "out.size[1]": 0}) == 1


MISTAKES = [
    (module, mistake)
    for module, file in (
        (small_recipe, "recipe_mistakes.yaml"),
        (small_implementations, "implementation_mistakes.yaml"),
    )
    for mistake in yaml.safe_load(Path(__file__).with_name(file).read_text())
]


@pytest.mark.parametrize(
    ("module", "mistake"), MISTAKES, ids=[f"{mistake['line']}: {mistake['says']}" for _, mistake in MISTAKES]
)
def test_mistakes(tmp_path, module, mistake):
    text = module.RECIPE
    assert text.count(mistake["replace"]) == 1, "the test replaces something else than it thinks"
    path = module.write(tmp_path, text.replace(mistake["replace"], mistake["by"]))
    with pytest.raises(RecipeError) as caught:
        recipe.load(path)
    message = str(caught.value)
    assert message.startswith(f"{path}:{mistake['line']}: "), message
    assert mistake["says"] in message, message
    assert "\n" not in message and caught.value.exit_code == 3


@pytest.mark.parametrize(
    ("old", "new", "part"),
    [
        (
            "columns, eps, flag,",
            "columns, eps, flag: tl.constexpr,",
            "flag is a constexpr parameter of norm; it belongs",
        ),
        ("GEMMA: tl.constexpr", "GEMMA", "norm has no constexpr parameter 'GEMMA'"),
        ("def count", "def counts", "has no function count; its functions are counts, norm"),
        ("    row = tl.program_id(0)", "    row = = 1", "kernel.py:8: is not valid Python"),
        (
            "import triton\n",
            "def jit(function):\n    return function\n\n\n@jit\ndef norm(x_ptr):\n    pass\n\n\nimport triton\n",
            "kernel.py:15: norm is defined in line 6 already; Python would take the last alone",
        ),
        (
            "@triton.jit\ndef count",
            "def jit(function):\n    return function\n\n\n@jit\ndef count",
            "kernel.py:19: count is decorated with jit, and jit is the file's own; a kernel takes Triton's @triton.jit",
        ),
        ("@triton.jit\ndef count", "@jit\ndef count", "kernel.py:15: count is decorated with jit, and jit is imported"),
        ("import triton\n", "import torch\nimport triton\n", "kernel.py:1: imports torch"),
        ("@triton.jit\ndef norm", "@triton.autotune\n@triton.jit\ndef norm", "is decorated with triton.autotune"),
        ("x_ptr, w_ptr", "BLOCK_, x_ptr, w_ptr", "norm's parameter BLOCK_ follows from no argument"),
    ],
)
def test_a_kernel_that_does_not_fit(tmp_path, old, new, part):
    assert KERNEL.count(old) == 1
    with pytest.raises(RecipeError) as caught:
        recipe.load(small_recipe.write(tmp_path, kernel=KERNEL.replace(old, new)))
    assert part in str(caught.value)


def test_two_kernels_of_a_family_have_two_names(tmp_path):
    operation = RECIPE.split("operations:\n")[1]
    text = RECIPE + operation.replace("rms_norm:", "again:")
    with pytest.raises(RecipeError, match="the operation rms_norm has a kernel norm too"):
        recipe.load(small_recipe.write(tmp_path, text))


def test_a_recipe_may_lie_anywhere_and_its_kernel_elsewhere(tmp_path):
    (tmp_path / "kernels").mkdir()
    (tmp_path / "my recipes").mkdir()
    (tmp_path / "kernels" / "kernel.py").write_text(KERNEL)
    path = tmp_path / "my recipes" / "r.yaml"
    path.write_text(RECIPE.replace("kernel.py", "../kernels/kernel.py"))
    assert recipe.load(path).operations[0].kernels[0].source == tmp_path / "kernels" / "kernel.py"


def _paths(value, keys=()):
    yield keys
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from _paths(item, (*keys, key))


ALL_PATHS = list(_paths(yaml.safe_load(RECIPE)))


@settings(deadline=None, max_examples=200, suppress_health_check=list(HealthCheck))
@given(
    st.sampled_from(ALL_PATHS[1:]),
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-5, 300),
        st.floats(),
        st.sampled_from([[], {}, [[]], {"x": {}}, [{}], "delete"]),
        st.sampled_from(["x", "", "q.size[0]", "-", "1 +", "*", "default", "x.data", "a\nb", "\u00e4"]),
    ),
)
def test_any_value_anywhere_gives_a_recipe_or_a_sentence(tmp_path, keys, value):
    data = yaml.safe_load(RECIPE)
    inner = data
    for key in keys[:-1]:
        inner = inner[key]
    if value == "delete":
        del inner[keys[-1]]
    else:
        inner[keys[-1]] = value
    path = small_recipe.write(tmp_path, yaml.safe_dump(data, sort_keys=False))
    try:
        recipe.load(path)
    except RecipeError as error:
        assert str(error).startswith((f"{path}:", f"{tmp_path}/kernel.py:"))


def test_the_schema_accepts_the_recipe_and_names_every_field():
    schema = recipe.schema()
    assert schema["title"] == "Kiln recipe"
    text = json.dumps(schema)
    for field in (
        "arguments",
        "choices",
        "define",
        "require",
        "skip_when",
        "workspace",
        "kernels",
        "heuristic",
        "spills",
    ):
        assert f'"{field}"' in text
    jsonschema = pytest.importorskip("jsonschema")
    jsonschema.validate(yaml.safe_load(RECIPE), schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**yaml.safe_load(RECIPE), "familiy": "x"}, schema)


TARGETS = ("sm_90", "sm_120", "gfx942")


@pytest.fixture
def tiles(tmp_path) -> recipe.Operation:
    (operation,) = recipe.load(small_implementations.write(tmp_path)).operations
    return operation


def test_implementations_of_a_kernel_stand_together_and_share_what_the_kernel_says(tiles):
    gluon, _, plain = tiles.kernels
    assert tiles.steps == (tiles.kernels,)
    assert [k.name for k in tiles.kernels] == ["copy.tiles", "copy.described", "copy.plain"]
    assert {k.kernel for k in tiles.kernels} == {"copy"} and {k.choices for k in tiles.kernels} == {("dtype", "width")}
    assert {k.grid[0].text for k in tiles.kernels} == {"cdiv(rows, BLOCK)"}
    assert (gluon.language, gluon.targets, gluon.ptx, gluon.serves.text) == ("gluon", ("hopper",), 86, "rows >= limit")
    assert (plain.language, plain.targets, plain.ptx, plain.serves) == ("triton", ("default",), 0, None)
    assert [k.function for k in tiles.kernels] == ["copy_tiles", "copy_described", "copy"]
    for_target = {t: [k.implementation for k in tiles.kernels if k.is_for(targets.by_name(t))] for t in TARGETS}
    assert for_target == {
        "sm_90": ["tiles", "described", "plain"],
        "sm_120": ["described", "plain"],
        "gfx942": ["plain"],
    }


def test_a_descriptor_names_a_tensor_and_a_box_and_nothing_more(tiles):
    x, out, rows = tiles.kernels[0].parameters
    assert (x.type, x.dtype_choice, x.value.text, x.count, rows.count) == ("descriptor", "dtype", "x.data", 5, 1)
    assert [e.text for e in (*x.descriptor.sizes, *x.descriptor.strides)] == [
        "x.size[0]", "x.size[1]", "x.stride[0]", "x.stride[1]",
    ]  # fmt: skip
    assert [side.text for side in out.descriptor.box] == ["BLOCK", "WIDTH"] and out.descriptor.argument == "out"
    assert tiles.kernels[0].descriptors == (x, out) and tiles.kernels[2].descriptors == ()


def test_what_implementations_share_is_shown_where_it_stands(tmp_path):
    text = small_implementations.RECIPE.replace("        choices: [dtype, width]\n", "        choices: [dtype]\n")
    line = 1 + text.splitlines().index("        constants: {WIDTH: width}")
    with pytest.raises(RecipeError, match=rf"recipe.yaml:{line}: the expression 'width' reads 'width', a choice"):
        recipe.load(small_implementations.write(tmp_path, text))


def test_one_implementation_may_not_depend_on_a_choice_of_the_kernel_but_one_must(tmp_path):
    path = small_implementations.write(
        tmp_path, small_implementations.COUNTED, triton=small_implementations.TRITON_COUNTED
    )
    (operation,) = recipe.load(path).operations
    assert {kernel.choices for kernel in operation.kernels} == {("dtype", "width", "counted")}
    text = small_implementations.COUNTED.replace("COUNTED: counted}", "COUNTED: false}")
    line = 1 + text.splitlines().index("        choices: [dtype, width, counted]")
    with pytest.raises(RecipeError) as caught:
        recipe.load(small_implementations.write(tmp_path, text, triton=small_implementations.TRITON_COUNTED))
    assert str(caught.value) == (
        f"{path}:{line}: the kernel copy lists the choice counted, and no constant and no parameter's type of any "
        "implementation depends on it: its images would all be equal; take it out of `choices`, or pass it on under "
        "`constants`"
    )


def test_the_schema_knows_implementations():
    properties = recipe.schema()["$defs"]["KernelShape"]["properties"]
    for field in ("implementations", "language", "targets", "serves", "reason", "ptx"):
        assert properties[field]["description"]
    assert {"descriptor", "box"} <= set(recipe.schema()["$defs"]["ParameterShape"]["properties"])


@pytest.mark.parametrize(
    "path", sorted((*ROOT.glob("tritonsrc/*/recipe.yaml"), *ROOT.glob("examples/*/recipe.yaml"))), ids=str
)
def test_the_schema_accepts_every_recipe_of_the_tree(path):
    jsonschema = pytest.importorskip("jsonschema")
    jsonschema.validate(yaml.safe_load(path.read_text()), recipe.schema())
