"""kiln.jit.Recipe: a stranger's family, the author's loop of edits, and what is said of mistakes."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

FAMILY = Path(__file__).resolve().parents[2] / "examples" / "family"


@pytest.fixture
def family(tmp_path) -> Path:
    """A copy of the example to edit; gives its recipe."""
    for name in ("recipe.yaml", "rms_norm.py"):
        shutil.copy(FAMILY / name, tmp_path)
    return tmp_path / "recipe.yaml"


def edit(path: Path, before: str, after: str) -> None:
    text = path.read_text()
    assert text.count(before) == 1
    path.write_text(text.replace(before, after))


# ---- in the child ----


def loaded(path: Path):
    import kiln.jit

    return kiln.jit.Recipe(path, interpret=True)


def tensors(rows: int = 5, columns: int = 1000, dtype: str = "float32"):
    import torch

    x = torch.randn(rows, columns, generator=torch.Generator().manual_seed(rows)).to(getattr(torch, dtype))
    return x, torch.ones(columns, dtype=x.dtype) * 2, torch.full_like(x, float("nan"))


def expected(x, factor: float = 1.0):
    x = x.double()
    return factor * 2 * x / (x.square().mean(1, keepdim=True) + 1e-6).sqrt()


def failure(path: Path, **changes: object) -> tuple[str, str]:
    """The class and the sentence of what a call raises."""
    import torch

    from kiln.errors import KilnError

    operation = loaded(path).operation("norm.rms_norm")
    x, w, out = tensors()
    made = {"x": x, "w": w, "out": out, "eps": 1e-6}
    special = {
        "wide": torch.ones(2, 4097), "half": w.half(), "meta": w.to("meta"), "complex": w.to(torch.complex64),
        "flat": x[0], "empty": torch.zeros(0),
    }  # fmt: skip
    for name, value in changes.items():
        if value == "missing":
            del made[name]
        else:
            made[name] = special.get(value, value) if isinstance(value, str) else value
    try:
        operation(**made)
    except KilnError as error:
        return type(error).__name__, str(error)
    return "", ""


def run_both(path: Path) -> None:
    import torch

    recipe = loaded(path)
    assert recipe.family == "norm" and recipe.operations == ("norm.rms_norm",)
    operation = recipe.operation("rms_norm")
    assert operation.arguments == ("x", "w", "out", "total", "eps")
    for dtype, tolerance in (("float32", 1e-5), ("float16", 2e-3), ("bfloat16", 2e-2)):
        x, w, out = tensors(dtype=dtype)
        total = torch.full((1,), 7.0)
        operation(x, w, out, total, 1e-6)
        torch.testing.assert_close(out.double(), expected(x), rtol=tolerance, atol=tolerance)
        torch.testing.assert_close(total.double()[0], x.double().square().sum(), rtol=1e-3, atol=0)
    x, w, out = tensors()
    operation(eps=0.5, out=out, w=w, x=x[:, ::1])
    assert not out.isnan().any()


def explained(path: Path) -> list:
    operation = loaded(path).operation("rms_norm")
    x, w, out = tensors(3, 1024)
    assert operation.workspace_size(x, w, out, None, 1e-6) == {"squares": 12}
    (one,) = operation.explain(x, w, out, None, 1e-6)
    assert out.isnan().all(), "nothing ran"
    given = dict(one.launch.arguments)
    return [
        one.variant.name,
        one.launch.grid,
        given["rows"],
        given["x_ptr"] == x.data_ptr(),
        "stride_x_column" in given,
    ]


def edited(path: Path) -> None:
    """An edit counts after reload(), at equal length and within the second that the file was written in."""
    import torch

    recipe = loaded(path)
    operation = recipe.operation("rms_norm")
    x, w, out = tensors()
    operation(x, w, out, None, 1e-6)
    for old, new in (("* scale * w", "+ scale * w"), ("+ scale * w", "* scale / w")):
        edit(path.parent / "rms_norm.py", old, new)
        before = out.clone()
        operation(x, w, out, None, 1e-6)
        assert torch.equal(out, before), "the edit counted before reload()"
        recipe.reload()
        operation(x, w, out, None, 1e-6)
        assert not torch.equal(out, before), "the edit did not count after reload()"
    torch.testing.assert_close(out.double(), expected(x, 0.25), rtol=1e-5, atol=1e-5)
    edit(path, "grid: [rows]", 'grid: ["min(rows, 2)"]')
    recipe.reload()
    out.fill_(float("nan"))
    operation(x, w, out, None, 1e-6)
    assert out[2:].isnan().all() and not out[:2].isnan().any()


def broken(path: Path, before: str, after: str) -> list[str]:
    """What a mistake in the kernel's source gives, interpreted and compiled; what was loaded before goes on."""
    from kiln.jit import KernelError
    from kiln.jit.compiled import compile_spec
    from kiln_recipe.targets import by_name

    recipe = loaded(path)
    operation = recipe.operation("rms_norm")
    x, w, out = tensors()
    operation(x, w, out, None, 1e-6)
    edit(path.parent / "rms_norm.py", before, after)
    operation(x, w, out, None, 1e-6)
    recipe.reload()
    sentences = []
    try:
        operation(x, w, out, None, 1e-6)
    except KernelError as error:
        sentences.append(str(error))
    try:
        (one,) = operation.explain(x, w, out, None, 1e-6)
        function = recipe._loaded.functions.get(one.variant.spec, False)
        compile_spec(one.variant.spec, by_name("sm_90"), function)
    except KernelError as error:
        sentences.append(str(error))
    return sentences


def beside(path: Path) -> None:
    """A file beside the kernel is its own, whatever a program has imported by that name."""
    import sys
    import types

    import torch

    (path.parent / "shared.py").write_text("import triton\n\n\n@triton.jit\ndef twice(x):\n    return x + x\n")
    edit(
        path.parent / "rms_norm.py",
        "import triton.language as tl\n",
        "import triton.language as tl\nfrom shared import twice\n",
    )
    edit(path.parent / "rms_norm.py", "(x * scale * w)", "twice(x * scale * w)")
    sys.modules["shared"] = other = types.ModuleType("shared")
    x, w, out = tensors()
    loaded(path).operation("rms_norm")(x, w, out, None, 1e-6)
    torch.testing.assert_close(out.double(), expected(x, 2), rtol=1e-5, atol=1e-5)
    assert sys.modules.pop("shared") is other and "rms_norm" not in sys.modules


def unknown(path: Path) -> list[str]:
    import kiln.jit
    from kiln.errors import KilnError

    sentences = []
    for what in (
        lambda: loaded(path).operation("rmsnorm"),
        lambda: kiln.jit.Recipe(path, target="sm_90;sm_80"),
        lambda: kiln.jit.Recipe(path, target="sm_91"),
        lambda: kiln.jit.Recipe(path.parent / "no.yaml"),
        lambda: kiln.jit.Recipe(path, interpret=False).operation("rms_norm")(*tensors(), None, 1e-6),
        lambda: kiln.jit.nothing,
    ):
        try:
            what()
        except (KilnError, AttributeError) as error:
            sentences.append(f"{type(error).__name__}: {error}")
    return sentences


# ---- here ----


def test_a_strangers_family_runs(child):
    child(run_both, FAMILY / "recipe.yaml")


def test_what_a_call_would_run(child):
    name, grid, rows, is_x, takes_stride = child(explained, FAMILY / "recipe.yaml")
    assert name == "norm.rms_norm/rms_norm[dtype=fp32 columns_up_to=1024][num_warps=4 num_stages=1][aligned]@sm_90"
    assert (grid, rows, is_x, takes_stride) == ((3, 1, 1), 3, True, False)


def test_edits_count_after_reload(child, family):
    child(edited, family)


def test_files_beside_a_kernel_are_its_own(child, family):
    child(beside, family)


@pytest.mark.parametrize(
    ("changes", "kind", "sentence"),
    [
        ({"eps": "missing"}, "ArgumentError", "norm.rms_norm lacks its argument eps"),
        ({"epz": 1.0}, "ArgumentError", "norm.rms_norm has no argument 'epz'; did you mean 'eps'?"),
        ({"x": "flat"}, "ArgumentError", "norm.rms_norm: x has rank 1; it must be 2"),
        ({"w": "half"}, "ArgumentError", "norm.rms_norm: w is fp16; it must be fp32, as this call's dtype"),
        ({"w": "meta"}, "ArgumentError", "norm.rms_norm: w is on meta and x on cpu; they must be on one device"),
        ({"w": "complex"}, "ArgumentError", "norm.rms_norm: w is torch.complex64, which is not a dtype of Kiln's"),
        ({"eps": [1]}, "ArgumentError", "eps is a list; an argument is a tensor, a number or None"),
        ({"eps": None}, "ArgumentError", "norm.rms_norm: eps is absent; it must be a floating number"),
        ({"eps": 1e300}, "RangeError", "the parameter eps of kernel rms_norm is 1e+300, which does not fit fp32"),
        ({"total": 3}, "ArgumentError", "norm.rms_norm: total is an integer; it must be a tensor"),
        ({"total": "empty"}, "ArgumentError", "norm.rms_norm: total must have an element"),
        ({"w": "flat", "out": "wide"}, "ArgumentError", "norm.rms_norm: out must have the shape of x"),
        ({"x": "wide", "out": "wide", "w": "flat"}, "ArgumentError", "w must have an element for each column of x"),
    ],
)
def test_what_is_wrong_with_a_call_is_said(child, changes, kind, sentence):
    found, said = child(of_example, changes)
    assert (found, sentence in said) == (kind, True), said


def of_example(changes: dict[str, object]) -> tuple[str, str]:
    return failure(FAMILY / "recipe.yaml", **changes)


def too_wide() -> str:
    import torch

    from kiln.errors import UnsupportedError

    x, out, w = torch.ones(2, 4097), torch.ones(2, 4097), torch.ones(4097)
    try:
        loaded(FAMILY / "recipe.yaml").operation("rms_norm")(x, w, out, None, 1e-6)
    except UnsupportedError as error:
        return str(error)
    return ""


def test_what_is_not_served_is_refused_with_the_nearest(child):
    assert child(too_wide) == (
        "norm.rms_norm has no image for dtype=fp32 columns_up_to=4097 on sm_90; "
        "the nearest that exists is dtype=fp32 columns_up_to=4096"
    )


@pytest.mark.parametrize(
    ("before", "after", "line", "words"),
    [
        ("squares = tl.sum(x * x, 0)", "squares = tl.sum(x * missing, 0)", 23, "missing"),
        ("    return offsets, inside, x, w", "    return offsets, inside, x, tl.nonsense(w)", 13, "nonsense"),
        ("import triton.language as tl\n", "import triton.language as tl\ntl.nonsense\n", 5, "AttributeError"),
    ],
)
def test_a_kernels_mistake_is_told_by_file_and_line(child, family, before, after, line, words):
    sentences = child(broken, family, before, after)
    assert len(sentences) == 2
    for sentence in sentences:
        assert sentence.startswith(f"{family.parent}/rms_norm.py:{line}: ") and words in sentence
        assert "\n" not in sentence


@pytest.mark.parametrize(
    ("before", "after", "line", "words"),
    [
        (
            "stride_x_column, mask=inside, other=0.0)",
            "stride_x_column)",
            11,
            "reads 4 bytes outside of the call's tensors",
        ),
        ("tl.store(squares_ptr + row, squares)", "tl.store(squares_ptr + row * 100, squares)", 26, "writes 4 bytes"),
    ],
)
def test_an_interpreted_kernel_stays_in_its_memory(child, family, before, after, line, words):
    (sentence,) = child(broken, family, before, after)
    assert sentence.startswith(f"{family.parent}/rms_norm.py:{line}: IndexError: ") and words in sentence


def settings() -> list[str]:
    import kiln.jit

    told = []
    wrong = [{"profile": "fat"}, {"select": "foo=1"}, {"select": "dtype=bf17"}, {"tuning": "/no/folder"},
             {"multiprocessors": 0}, {"multiprocessors": "x"}, {"interpret": "yes"}]  # fmt: skip
    for some in wrong:
        try:
            kiln.jit.Recipe(**some)
        except Exception as error:  # noqa: BLE001 - whatever it is
            told.append(f"{type(error).__name__}: {error}")
    return told


def test_settings_are_checked_at_once(child):
    words = [
        "unknown profile 'fat'; ", "the selection names the unknown choice 'foo'; ", "dtype has no value 'bf17'; ",
        "tuning='/no/folder' is not a folder; ", "multiprocessors=0 must be 1 or more, or None",
        "multiprocessors='x' must be 1 or more, or None", "interpret='yes' must be True, False or None",
    ]  # fmt: skip
    told = child(settings)
    assert len(told) == len(words)
    for sentence, part in zip(told, words):
        assert sentence.startswith("UsageError: ") and part in sentence


def test_what_is_not_there_is_named(child):
    operation, several, target, file, cpu, name = child(unknown, FAMILY / "recipe.yaml")
    assert operation.startswith("NotFoundError: ") and "did you mean 'rms_norm'?" in operation
    assert several == "UsageError: target='sm_90;sm_80' means 2 targets; give one"
    assert target.startswith("UsageError: unknown target 'sm_91'; the nearest is sm_90")
    assert file.startswith("EnvironmentProblem: ") and "no.yaml" in file
    assert cpu == (
        "ArgumentError: norm.rms_norm: compiled kernels run on GPUs, but these tensors are on cpu; "
        "interpret=True runs them there"
    )
    assert name == "AttributeError: module 'kiln.jit' has no attribute 'nothing'"


# ---- implementations ----

MATMUL = FAMILY.parent / "matmul" / "recipe.yaml"


def multiplied(target: str, transposed: bool) -> tuple[float, str, str]:
    """The largest error of a product, what ran, and what explain says of it."""
    import torch

    import kiln.jit

    operation = kiln.jit.Recipe(MATMUL, interpret=True, target=target).operation("matmul")
    generator = torch.Generator().manual_seed(1)
    a, b = (torch.randn(rows, 80, generator=generator).half() for rows in (70, 33))
    c = torch.full((70, 33), float("nan"), dtype=torch.float16)
    given = b if transposed else b.T.contiguous().T
    operation(a, given, c)
    (chosen,) = operation.explain(a, given, c)
    return (c.double() - a.double() @ b.double().T).abs().max().item(), chosen.variant.kernel, str(chosen)


@pytest.mark.parametrize("transposed", [True, False])
def test_the_interpreter_passes_over_what_it_cannot_run(child, transposed):
    error, ran, said = child(multiplied, "sm_90", transposed)
    assert error < 0.05 and ran == "matmul.general"
    assert said.splitlines()[1:] == [
        "  passed over: hopper: its source is in Gluon, but the interpreter only runs Triton",
        "  passed over: cdna: it is not for sm_90",
    ]


def compiled_choice(target: str) -> tuple[str, list[str]]:
    """What a call would run were it compiled: which implementation, and what it passed over."""
    import torch

    from kiln.jit.calls import Loaded, Settings
    from kiln_recipe import targets
    from kiln_recipe.call.evaluate import Device, Tensor
    from kiln_recipe.read import recipe

    loaded = Loaded(recipe.load(MATMUL), Settings(targets.by_name(target), "full", (), None, None))
    tables = loaded.tables(targets.by_name(target), False)
    x = Tensor(1 << 20, 3, (256, 256), (256, 1))
    device = Device("AMD" if target.startswith("gfx") else "NVIDIA", 132)
    call = tables.begin(loaded.operation("matmul"), "matmul.matmul", [x, x, x], device)
    (chosen,) = tables.dispatch(call, {})
    assert torch is not None
    return chosen.variant.kernel, list(map(str, chosen.passed))


def test_the_compiler_takes_the_first_that_fits(child):
    assert child(compiled_choice, "sm_90") == ("matmul.hopper", [])
    assert child(compiled_choice, "gfx942") == ("matmul.cdna", ["hopper: it is not for gfx942"])


def compared_names() -> list[tuple[str, tuple[str, ...]]]:
    """A call of the interpreter's against three rows of the runtime's."""
    import torch

    import kiln.jit
    from kiln.jit import parity

    operation = kiln.jit.Recipe(MATMUL, interpret=True, target="sm_90").operation("matmul")
    a = torch.ones(16, 64).half()
    chosen = operation.explain(a, a, torch.ones(16, 16).half())
    variant = chosen[0].variant
    row = {name: getattr(variant, name) for name in ("functional", "configuration", "specialization", "target")}
    row["key"] = variant.spec.key(parity.installed_toolchain().identity)
    rows = [
        {**row, "kernel": "matmul", "implementation": "general"},
        {**row, "kernel": "matmul.general", "implementation": "general"},
        {**row, "kernel": "matmul", "implementation": "hopper"},
    ]
    return [(one.kernel, one.differences) for ahead in rows for one in kiln.jit.compare(chosen, [ahead])]


def test_parity_knows_implementations_by_name(child):
    same, full, other = child(compared_names)
    assert same == full == ("matmul.general", ())
    assert other == ("matmul.general", ("kernel: matmul.general here, matmul.hopper ahead",))
