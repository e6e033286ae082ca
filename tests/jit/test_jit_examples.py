"""The program of docs/recipes.md, and examples/silu on the CPU: as a kernel author meets them first."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from kiln_build import cli

ROOT = Path(__file__).resolve().parents[2]

ADD = """import triton
import triton.language as tl


@triton.jit
def add(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n)
    tl.store(out_ptr + at, x + tl.load(y_ptr + at, mask=at < n), mask=at < n)
"""
CALL = """import kiln.jit, torch

x, out = torch.arange(1000.0), torch.empty(1000)
kiln.jit.Recipe("recipe.yaml", interpret=True).operation("add")(x, x, out)
print((out - 2 * x).abs().max().item())
"""


def test_the_page_s_program_runs_and_prints_what_the_page_says():
    page = (ROOT / "docs/recipes.md").read_text()
    ((program, output),) = re.findall(r"```python\n([^`]*interpret=True.*?)```\n\n```\n(.*?)```", page, re.DOTALL)
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout) == (0, output), done.stderr


def test_a_checkout_is_enough(tmp_path):
    """Nothing is built, no wheel installed: kiln.jit runs recipes, and the rest of the package says what it lacks."""
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}/bindings/python:{ROOT}/v3python"}

    def python(*words: str) -> subprocess.CompletedProcess:
        command = [sys.executable, "-B", *words]
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)

    (tmp_path / "kernel.py").write_text(ADD)
    assert cli.main(["recipes", "--new", str(tmp_path / "kernel.py")]) == 0
    done = python("-c", CALL)
    assert (done.returncode, done.stdout) == (0, "0.0\n"), done.stderr
    for name in ("kiln.attn_fwd", "kiln.info", "__import__('kiln.torch')", "kiln.jit.use(interpret=True).__enter__()"):
        done = python("-c", f"import kiln.jit\n{name}")
        assert done.returncode == 1 and "is a checkout, where kiln.jit.Recipe alone works" in done.stderr, name
    done = python("-m", "kiln", "info")
    assert done.returncode == 5 and done.stderr.startswith("kiln: kiln.info needs") and done.stderr.count("\n") == 1
    assert (
        python("-c", "import kiln; print(hasattr(kiln, '__path__'), hasattr(kiln, '__wrapped__'))").stdout
        == "True False\n"
    )


def silu(columns: int, step: int, with_residual: bool) -> tuple[str, str, str, float]:
    """What a call runs: the implementation, its functional, its specialization; and the largest error.

    Args:
        step: from one element of a row of x to the next.
    """
    import torch

    import kiln.jit

    operation = kiln.jit.Recipe(ROOT / "examples/silu/recipe.yaml", interpret=True).operation("silu")
    drawn = torch.Generator().manual_seed(columns)
    x = torch.randn(20, columns * step, generator=drawn).half()[:, ::step]
    residual = torch.randn(20, columns, generator=drawn).half() if with_residual else None
    out = torch.full((20, columns), float("nan"), dtype=torch.float16)
    operation(x, residual, out)
    expected = torch.nn.functional.silu(x.double()) + (residual.double() if with_residual else 0)
    error = (out.double() - expected).abs().max().item()
    (one,) = operation.explain(x, residual, out)
    functional, specialization = re.fullmatch(r".*?\[(.*?)\].*\[(.*?)\]@sm_90", one.variant.name).groups()
    return one.variant.kernel, functional, specialization, error


def test_an_optional_tensor(child):
    """One that is left out counts as aligned; one that is given has images of its own, aligned and not."""
    calls = {  # columns, step, with a residual
        (136, 1, False): ("has_residual=false", "aligned"),
        (136, 1, True): ("has_residual=true", "aligned"),
        (135, 1, True): ("has_residual=true", "generic"),
        (136, 2, False): ("has_residual=false", "generic"),
    }
    for call, (residual, specialization) in calls.items():
        kernel, functional, special, error = child(silu, *call)
        assert (kernel, functional, special) == ("silu.general", f"dtype=fp16 {residual}", specialization), call
        assert error < 4e-3, (call, error)


def test_help_comes_to_the_classes_in_a_checkout():
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}/bindings/python:{ROOT}/v3python", "PAGER": "cat"}
    command = [sys.executable, "-B", "-c", "import kiln.jit; help(kiln.jit)"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "class Recipe" in done.stdout and "class Operation" in done.stdout and "compare(" in done.stdout
