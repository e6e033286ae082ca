"""The program of docs/recipes.md, and examples/silu on the CPU: as a kernel author meets them first."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_page_s_program_runs_and_prints_what_the_page_says():
    page = (ROOT / "docs/recipes.md").read_text()
    ((program, output),) = re.findall(r"```python\n([^`]*interpret=True.*?)```\n\n```\n(.*?)```", page, re.DOTALL)
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout) == (0, output), done.stderr


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
