"""`kiln recipes --new`: a recipe's skeleton from a kernel's source, which the reader takes as it is."""

from __future__ import annotations

import keyword
import math
import os
import shlex
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kiln_build import cli
from kiln_recipe.read import recipe

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
NEW_KERNELS = Path(__file__).with_name("jit") / "new_kernels.py"
HEAD = "import triton\nimport triton.language as tl\n\n\n"
ADD = (
    HEAD
    + """@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    tl.store(out_ptr + offsets, tl.load(x_ptr + offsets, mask=mask) + tl.load(y_ptr + offsets, mask=mask), mask=mask)
"""
)
SOFTMAX = (
    HEAD
    + """@triton.jit
def softmax(OUT, X, in_row_stride, out_row_stride, n_rows, n_cols, BLOCK_SIZE: tl.constexpr):
    for row in tl.range(tl.program_id(0), n_rows, tl.num_programs(0)):
        cols = tl.arange(0, BLOCK_SIZE)
        x = tl.load(X + row * in_row_stride + cols, mask=cols < n_cols, other=-float("inf")).to(tl.float32)
        e = tl.exp(x - tl.max(x, 0))
        tl.store(OUT + row * out_row_stride + cols, e / tl.sum(e, 0), mask=cols < n_cols)
"""
)
BIASED = (
    HEAD
    + """@triton.jit
def biased(x_ptr, bias_ptr, out_ptr, stride_xm, stride_xn, stride_om, n, alpha, ACTIVATION: tl.constexpr,
           HAS_BIAS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(1).to(tl.int64)
    cols = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * stride_xm + cols * stride_xn, mask=cols < n, other=0.0) * alpha
    if HAS_BIAS:
        x += tl.load(bias_ptr + cols, mask=cols < n, other=0.0)
    if ACTIVATION == "relu":
        x = tl.maximum(x, 0.0)
    tl.store(out_ptr + row * stride_om + cols, x, mask=cols < n)
"""
)


def new(tmp_path: Path, text: str, *names: str) -> recipe.Recipe:
    (tmp_path / "work.py").write_text(text)
    assert cli.main(["recipes", "--new", str(tmp_path / "work.py"), *names]) == 0
    return recipe.load(tmp_path / "recipe.yaml")


def test_a_vector_addition_needs_no_edit(tmp_path, capsys):
    (operation,) = new(tmp_path, ADD).operations
    assert operation.name == "add" and [a.name for a in operation.arguments] == ["x", "y", "out"]
    (kernel,) = operation.kernels
    assert kernel.function == "add_kernel" and kernel.grid[0].text == "cdiv(n, BLOCK)"
    assert [(d.name, d.value.text) for d in operation.definitions] == [("n", "x.size[0]")]
    assert "TODO" in capsys.readouterr().out
    assert cli.main(["plan", "sm_90", "--recipe", str(tmp_path / "recipe.yaml")]) == 0


def test_what_holds_a_whole_row_is_a_choice_by_its_size(tmp_path):
    (operation,) = new(tmp_path, SOFTMAX).operations
    choice = next(choice for choice in operation.choices if choice.match == "next_larger")
    (kernel,) = operation.kernels
    assert choice.of.text == "n_cols" and dict(kernel.constants)["BLOCK_SIZE"].text == choice.name
    assert "multiprocessors" in kernel.grid[0].text
    values = {parameter.name: parameter.value.text for parameter in kernel.parameters}
    assert values["in_row_stride"] == "x.stride[0]" and values["out_row_stride"] == "out.stride[0]"


def test_flags_words_and_numbers(tmp_path):
    (operation,) = new(tmp_path, BIASED).operations
    by_name = {argument.name: argument for argument in operation.arguments}
    assert by_name["bias"].optional and by_name["alpha"].kind == "float" and by_name["activation"].bits == 32
    choices = {choice.name: choice for choice in operation.choices}
    assert choices["has_bias"].of.text == "given(bias)" and choices["activation"].values == ("none", "relu")


def written(tmp_path: Path, name: str) -> tuple[str, recipe.Recipe]:
    """The text of a recipe for a kernel of tests/jit/new_kernels.py, and what the reader makes of it."""
    made = new(tmp_path, NEW_KERNELS.read_text(), name)
    return (tmp_path / "recipe.yaml").read_text(), made


def sides(made: recipe.Recipe) -> dict[str, int]:
    """The largest value of each constant of the only kernel that is a number."""
    (operation,) = made.operations
    (kernel,) = operation.kernels
    choices = {choice.name: choice.values for choice in operation.choices}
    largest = {name: max(choices[value.text]) for name, value in kernel.constants if value.text in choices}
    (entry,) = kernel.configurations
    return largest | dict(entry.core[0].values)


def test_no_tile_is_too_large(tmp_path):
    _, made = written(tmp_path, "scale_heads")
    values = sides(made)
    assert values["DIM"] * values["HEADS"] == 4096 and values["HEADS"] == 4
    for number, count in enumerate((1, 2, 3, 4)):
        folder = tmp_path / str(count)
        folder.mkdir()
        names = "ABCD"[:count]
        ranges = [f"tl.program_id({min(i, 2)}) * {n} + tl.arange(0, {n})" for i, n in enumerate(names)]
        address = " + ".join(f"({index}) * stride_{n.lower()}" for n, index in zip(names, ranges))
        inputs = ", ".join([*(f"stride_{n.lower()}" for n in names), *(f"{n}: tl.constexpr" for n in names)])
        text = f"{HEAD}@triton.jit\ndef fill(x_ptr, {inputs}):\n    tl.store(x_ptr + {address}, 1.0)\n"
        values = sides(new(folder, text))
        assert 1024 <= math.prod(values[n] for n in names) <= 4096, number


def test_axes_are_called_as_their_sizes_are(tmp_path):
    text, made = written(tmp_path, "scale_heads")
    (operation,) = made.operations
    assert text.count("{tensor: dtype, axes: [batch, token, head, dim]}") == 2
    assert text.count("TODO: no stride or size names batch: is it that?") == 2
    assert [(d.name, d.value.text) for d in operation.definitions if d.name == "batches"] == [("batches", "x.size[0]")]


def test_a_size_that_is_divided_is_doubted(tmp_path):
    whole, half = "(i < dim)\n", "(i < half)\n"
    text = NEW_KERNELS.read_text()
    assert text.count(whole) == 1
    text = text.replace(whole, half).replace("    inside = (head", "    half = dim // 2\n    inside = (head")
    new(tmp_path, text, "scale_heads")
    written = (tmp_path / "recipe.yaml").read_text()
    assert written.count("# TODO: the kernel divides dim: is it this size, or a part of it?\n") == 2


def test_what_is_written_to_must_not_be_broadcast(tmp_path):
    assert "{not_broadcast: [out]}" in written(tmp_path, "scale_heads")[0]


def test_a_parameter_that_is_not_used_is_said_to_be(tmp_path):
    text, made = written(tmp_path, "row_norms")
    (operation,) = made.operations
    assert [(d.name, d.value.text) for d in operation.definitions if d.name == "rows"] == [("rows", "x.size[0]")]
    assert "TODO: the kernel does not use its parameter rows: taken for this" in text
    by_name = {argument.name: argument for argument in operation.arguments}
    assert "rows" not in by_name and "TODO: the kernel does not use it" in text.partition("flavour")[0]


@pytest.mark.parametrize(
    ("file", "names"),
    [("family/rms_norm.py", ["rms_norm", "total"]), ("silu/silu.py", ["silu"]), ("silu/silu.py", ["silu_described"]),
     ("matmul/general.py", []), ("matmul/cdna.py", []), ("matmul/hopper.py", ["matmul_hopper"])],
)  # fmt: skip
def test_the_examples_kernels_are_taken(tmp_path, file, names):
    output = tmp_path / "new.yaml"
    assert cli.main(["recipes", "--new", str(EXAMPLES / file), *names, "--output", str(output)]) == 0
    assert len(recipe.load(output).operations) == max(len(names), 1)


def test_tiles_of_a_matrix_product_are_counted(tmp_path):
    output = tmp_path / "new.yaml"
    assert cli.main(["recipes", "--new", str(EXAMPLES / "matmul/general.py"), "--output", str(output)]) == 0
    (operation,) = recipe.load(output).operations
    (by_hand,) = recipe.load(EXAMPLES / "matmul/recipe.yaml").operations
    general = by_hand.kernels[-1]
    (kernel,) = operation.kernels
    assert kernel.grid[0].text == general.grid[0].text
    assert [(p.name, p.type, p.value.text) for p in kernel.parameters] == [
        (p.name, p.type, p.value.text) for p in general.parameters
    ]


def test_nothing_is_replaced_and_standard_output_is_the_same(tmp_path, capsys):
    new(tmp_path, ADD)
    written = (tmp_path / "recipe.yaml").read_text()
    capsys.readouterr()
    assert cli.main(["recipes", "--new", str(tmp_path / "work.py")]) == 2
    assert "exists and stays as it is" in capsys.readouterr().err
    assert cli.main(["recipes", "--new", str(tmp_path / "work.py"), "add"]) == 2
    assert "has no kernel 'add'; the kernels are add_kernel" in capsys.readouterr().err
    assert cli.main(["recipes", "--new", str(tmp_path / "work.py"), "--output", "-"]) == 0
    assert capsys.readouterr().out == written == (tmp_path / "recipe.yaml").read_text()


@pytest.mark.parametrize(
    ("text", "names", "code", "said"),
    [
        (None, [], 7, "cannot be read"),
        ("def f(:\n", [], 3, "work.py:1: is not valid Python"),
        ("\0", [], 3, "is not valid Python"),
        ("x = 1\n", [], 3, "has no function that is decorated"),
        (ADD, ["adds"], 2, "has no kernel 'adds'"),
        (ADD, ["add_kernel", "add_kernel"], 2, "is named twice"),
        (ADD + SOFTMAX.removeprefix(HEAD), [], 2, "has 2 kernels: add_kernel, softmax"),
        ("import torch\n" + ADD, [], 3, "imports torch"),
        (HEAD + "@triton.jit\ndef f():\n    pass\n", [], 3, "has no parameters"),
        ("#" * (5 << 20), [], 3, "is larger than 4 MiB"),
    ],
)
def test_what_cannot_be_is_one_sentence(tmp_path, capsys, text, names, code, said):
    if text is not None:
        (tmp_path / "work.py").write_text(text)
    assert cli.main(["recipes", "--new", str(tmp_path / "work.py"), *names]) == code
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1 and not (tmp_path / "recipe.yaml").exists()


def test_an_optional_tensor_that_no_choice_asks_for_is_doubted(tmp_path, capsys):
    new(tmp_path, BIASED)
    path = tmp_path / "recipe.yaml"
    capsys.readouterr()
    assert cli.main(["recipes", str(path)]) == 0
    assert capsys.readouterr().err == ""
    path.write_text(path.read_text().replace("given(bias), values: [false, true]", "alpha_, values: [0, 1]"))
    path.write_text(path.read_text().replace("arguments:", "arguments:\n      alpha_: {scalar: int32}"))
    assert cli.main(["recipes", str(path)]) == 0
    error = capsys.readouterr().err
    assert "of biased asks given(bias)" in error and error.count("\n") == 1


def test_the_name_of_kiln_s_own_family_is_doubted(tmp_path, capsys):
    new(tmp_path, ADD)
    path = tmp_path / "recipe.yaml"
    path.write_text(path.read_text().replace("family: work", "family: flash"))
    capsys.readouterr()
    assert cli.main(["recipes", str(path)]) == 0
    assert (
        capsys.readouterr().err == f"kiln: warning: {path}: Kiln has a family flash; a build needs another name here\n"
    )


def test_the_examples_and_attention_ask_for_what_is_optional(capsys):
    assert cli.main(["recipes", *map(str, EXAMPLES.glob("*/recipe.yaml"))]) == cli.main(["recipes"]) == 0
    assert capsys.readouterr().err == ""


def test_files_where_others_are_wanted_are_told_apart(tmp_path, capsys):
    new(tmp_path, ADD)
    capsys.readouterr()
    for words, code, said in (
        (["recipes", str(tmp_path / "work.py")], 3, f"`kiln recipes --new {tmp_path}/work.py`"),
        (["plan", str(tmp_path / "recipe.yaml"), "sm_90"], 2, f"--recipe {tmp_path}/recipe.yaml"),
    ):
        assert cli.main(words) == code
        error = capsys.readouterr().err
        assert said in error and error.count("\n") == 1


def test_a_pipe_is_not_waited_for(tmp_path, capsys):
    os.mkfifo(tmp_path / "work.py")
    assert cli.main(["recipes", "--new", str(tmp_path / "work.py")]) == 7
    assert "is a pipe" in capsys.readouterr().err


NAMES = st.one_of(
    st.sampled_from(
        ["x_ptr", "X", "x", "stride_x", "stride_xm", "n", "N", "min", "dtype", "true", "num_warps", "Mean"]
    ),
    st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,8}", fullmatch=True),
).filter(lambda name: not keyword.iskeyword(name) and name not in ("tl", "triton", "f"))
USES = st.sampled_from(
    ["tl.load({a})", "tl.store({a} + {b} * tl.program_id(0), 1.0)", "tl.load({a} + tl.arange(0, 64) * {b})",
     "tl.atomic_add({a}, 1.0)", "tl.arange(0, 64) < {a}", "tl.program_id(1) // {a}", "{a} * 2.5"]
)  # fmt: skip


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_signature_gives_what_the_reader_takes(tmp_path_factory, data):
    names = data.draw(st.lists(NAMES, min_size=1, max_size=7, unique=True))
    constants = data.draw(st.sets(st.sampled_from(names[1:]), max_size=3)) if len(names) > 1 else set()
    given_ = [name for name in names if name not in constants]
    lines = [f"    if {name}:\n        pass" for name in sorted(constants) if data.draw(st.booleans())]
    for _ in range(data.draw(st.integers(0, 5))):
        a, b = data.draw(st.sampled_from(given_)), data.draw(st.sampled_from(given_))
        lines.append(f"    {data.draw(USES).format(a=a, b=b)}")
    signature = ", ".join(f"{name}: tl.constexpr" if name in constants else name for name in names)
    body = "\n".join(lines) or "    pass"
    folder = tmp_path_factory.mktemp("any")
    (folder / "work.py").write_text(f"{HEAD}@triton.jit\ndef f({signature}):\n{body}\n")
    assert cli.main(["recipes", "--new", str(folder / "work.py")]) == 0


@pytest.mark.parametrize(
    ("kernel", "lines"),
    [
        (  # an expression with brackets ends no mapping on one line
            "def k(a_ptr, b_ptr, stride, W: tl.constexpr):\n"
            "    at = tl.program_id(0) * stride + tl.arange(0, W)\n"
            "    tl.store(b_ptr + at, tl.load(a_ptr + at))\n",
            ['w: {of: "a.size[1]", values: [128, 1024]}'],
        ),
        (  # names that recipes cannot have
            "def size(α_ptr, β, n, BLOCK: tl.constexpr):\n"
            "    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)\n"
            "    tl.store(α_ptr + at, tl.load(α_ptr + at, mask=at < n) * β, mask=at < n)\n",
            ["alpha: {tensor: dtype, rank: 1}", "beta: {scalar: fp32}", "α_ptr: alpha"],
        ),
        (  # what is compared for equality is a whole number, though with what was loaded
            "def k(x_ptr, ignored, n, BLOCK: tl.constexpr):\n"
            "    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)\n"
            "    x = tl.load(x_ptr + at, mask=at < n)\n"
            "    tl.store(x_ptr + at, tl.where(x == ignored, 0, x), mask=at < n)\n",
            ["ignored: {scalar: int32}"],
        ),
        (  # what a default says of a parameter
            "def k(x_ptr, n, bias_ptr=None, mode='relu', BLOCK: tl.constexpr = 64):\n"
            "    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)\n"
            "    tl.store(x_ptr + at, tl.load(bias_ptr + at, mask=at < n), mask=at < n)\n",
            ["# TODO: its default lets callers leave it out", "# TODO: a kernel is passed no text"],
        ),
        (  # a number that is no tile is not taken for one in silence
            "def k(x_ptr, n, SIZE: tl.constexpr):\n"
            "    at = tl.program_id(0) * SIZE + tl.arange(0, SIZE)\n"
            "    tl.store(x_ptr + at, 1, mask=at < n)\n",
            ["# TODO: SIZE: taken for a tile's side"],
        ),
    ],
)
def test_what_a_kernel_has_of_its_own_is_said(tmp_path: Path, kernel: str, lines: list[str]) -> None:
    new(tmp_path, HEAD + "@triton.jit\n" + kernel)
    written = (tmp_path / "recipe.yaml").read_text()
    assert [line for line in lines if line not in written] == []


@pytest.mark.parametrize("outer", ["def make():", "class Kernels:"])
def test_a_kernel_inside_something_is_to_be_moved(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], outer: str
) -> None:
    inner = "".join(f"    {line}\n" for line in ADD.removeprefix(HEAD).splitlines())
    (tmp_path / "work.py").write_text(f"{HEAD}{outer}\n{inner}")
    assert cli.main(["recipes", "--new", str(tmp_path / "work.py")]) == 3
    assert f"add_kernel stands inside {outer.split()[1].rstrip('():')}" in capsys.readouterr().err
    assert not (tmp_path / "recipe.yaml").exists()


def test_a_kernel_whose_name_no_image_can_have_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "work.py").write_text(ADD.replace("add_kernel", "größe"))
    assert cli.main(["recipes", "--new", str(tmp_path / "work.py")]) == 3
    assert "größe is not ASCII, as a kernel's name in an image must be; rename it" in capsys.readouterr().err


def test_a_family_gets_no_name_that_a_release_has(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text(ADD)
    assert cli.main(["recipes", "--new", str(tmp_path / "torch.py")]) == 0
    assert recipe.load(tmp_path / "recipe.yaml").family == "torch_family"


def test_the_next_commands_can_be_pasted(tmp_path, capsys):
    folder = tmp_path / "a b's"
    folder.mkdir()
    (folder / "kernel.py").write_text((EXAMPLES / "silu/silu.py").read_text())
    assert cli.main(["recipes", "--new", str(folder / "kernel.py"), "silu"]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith(("next: ", "then: "))]
    assert [shlex.split(line)[-1] for line in lines] == [str(folder / "recipe.yaml")] * 2
