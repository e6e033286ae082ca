"""What Triton's interpreter would let pass, or compute otherwise than a compiled kernel, in a recipe that `kiln recipes
--new` writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from kiln_build import cli

HEAD = "import triton\nimport triton.language as tl\n{imports}\n\n@triton.jit\n"
ROWS = """def work(x_ptr, residual_ptr, out_ptr, n, HAS_RESIDUAL: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n, other=0.0)
    {statement}
    if HAS_RESIDUAL:
        x += tl.load(residual_ptr + i, mask=i < n, other=0.0)
    tl.store(out_ptr + i, x, mask=i < n)
"""


def written(tmp_path: Path, statement: str, imports: str = "") -> Path:
    (tmp_path / "work.py").write_text(HEAD.format(imports=imports) + ROWS.format(statement=statement))
    assert cli.main(["recipes", "--new", str(tmp_path / "work.py")]) == 0
    return tmp_path / "recipe.yaml"


# ---- in the child ----


def run(path: Path, values: list[float]) -> list[float]:
    """What the operation makes of these, without a residual."""
    import torch

    import kiln.jit

    x = torch.tensor(values)
    out = torch.full_like(x, float("nan"))
    kiln.jit.Recipe(path, interpret=True).operation("work")(x, None, out)
    return out.tolist()


def failure(path: Path) -> tuple[str, str]:
    """What the operation raises: its sentence, and what Python prints where nothing catches it."""
    import traceback

    from kiln.jit import KernelError

    try:
        run(path, [1.0, 2.0, 3.0])
    except KernelError as error:
        return str(error), traceback.format_exc()
    return "", ""


def compiled(path: Path) -> None:
    """Compiles what is refused here: the compiler takes it."""
    import torch

    import kiln.jit
    from kiln.jit.compiled import compile_spec
    from kiln_recipe.targets import by_name

    recipe = kiln.jit.Recipe(path, interpret=True)
    x = torch.ones(3)
    (one,) = recipe.operation("work").explain(x, None, x)
    compile_spec(one.variant.spec, by_name("sm_90"), recipe._loaded.functions.get(one.variant.spec, False))


# ---- here ----


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("x = tl.load(x_ptr + i, mask=i < n) + x", [2, 4, 6]),  # what is masked is stored nowhere
        ("x += tl.sum(tl.load(x_ptr + i, mask=i < n))", None),
        ("x += tl.sum(tl.load(x_ptr + i, mask=i < n, other=0.0))", [7, 8, 9]),
        ("x += tl.sum(tl.load(out_ptr.to(tl.pointer_type(tl.int32)) + i, mask=i < 0)) == 0", [1, 2, 3]),
    ],
)
def test_what_a_mask_leaves_open_is_no_zero(child, tmp_path, statement, expected):
    found = child(run, written(tmp_path, statement), [1.0, 2.0, 3.0])
    assert found == expected if expected else all(value != value for value in found), found


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("x = tl.where((i > 0) and (x < 3), 9.0, x)", [1, 9, 3]),
        ("inside = (i > 0) and (x < 3) and i < n\n    x = tl.where(inside, 9.0, x)", [1, 9, 3]),
        ("x = tl.where((i == 0) or (x == 3), 9.0, x)", [9, 2, 9]),
        ("x = tl.where(not (x < 3), 9.0, x)", [1, 2, 9]),
        ("x = tl.load(x_ptr + i, mask=(i < n) and (i >= 0), other=0.0) + 1", [2, 3, 4]),
        ("if BLOCK > 1 and not HAS_RESIDUAL:\n        x += 1", [2, 3, 4]),
    ],
)
def test_logic_of_blocks_goes_by_element(child, tmp_path, statement, expected):
    path = written(tmp_path, statement)
    assert child(run, path, [1.0, 2.0, 3.0]) == expected
    child(compiled, path)


def test_a_tensor_that_a_call_leaves_out_is_named(child, tmp_path):
    path = written(tmp_path, "x += 1")
    kernel = path.with_name("work.py")
    kernel.write_text(kernel.read_text().replace("x += 1", "x += tl.load(residual_ptr + i, mask=i < n, other=0.0)"))
    sentence, _ = child(failure, path)
    assert sentence == f"{tmp_path}/work.py:9: IndexError: reads residual, which this call leaves out"


@pytest.mark.parametrize(
    ("imports", "called"),
    [
        ("from triton.language.extra import libdevice", "libdevice.tanh"),
        ("from triton.language.extra.libdevice import tanh", "tanh"),
        ("", "tl.extra.libdevice.tanh"),
        ("", "tl.extra.cuda.libdevice.tanh"),
    ],
)
def test_the_interpreter_says_that_it_has_no_libdevice(child, tmp_path, imports, called):
    path = written(tmp_path, f"x = {called}(x) + 1", imports)
    sentence, printed = child(failure, path)
    assert sentence.startswith(f"{tmp_path}/work.py:9: Triton's interpreter has no libdevice; ")
    assert "triton/runtime" not in printed and "handling of the above" not in printed
    child(compiled, path)
