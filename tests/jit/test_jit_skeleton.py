"""Recipes that `kiln recipes --new` writes are right as they are: what they run gives what the kernels compute."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from kiln_build import cli

KERNELS = Path(__file__).with_name("new_kernels.py")
NAMES = ("add_kernel", "softmax", "layer_norm", "column_sums", "scale_heads", "row_norms", "matmul")


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("new")
    shutil.copy(KERNELS, folder / "mine.py")
    assert cli.main(["recipes", "--new", str(folder / "mine.py"), *NAMES]) == 0
    return folder / "recipe.yaml"


def error_of(path: Path, name: str) -> float:
    """How far what an operation gives is from what PyTorch computes."""
    import torch

    import kiln.jit

    operation = kiln.jit.Recipe(path, interpret=True).operation(name)
    draw = torch.Generator().manual_seed(7)
    x, y = (torch.randn(70, 130, generator=draw) for _ in range(2))
    out = torch.full_like(x, float("nan"))
    if name == "add":
        out = out.reshape(-1)
        operation(x.reshape(-1), y.reshape(-1), out)
        expected = (x + y).reshape(-1)
    elif name == "softmax":
        operation(out=out, x=x)
        expected = torch.softmax(x, 1)
    elif name == "layer_norm":
        w, mean, rstd = torch.rand(130, generator=draw), torch.empty(70), torch.empty(70)
        operation(x=x, y=out, w=w, b=None, mean=mean, rstd=rstd, eps=1e-5)
        plain = out.clone()
        operation(x=x, y=out, w=w, b=y[0], mean=mean, rstd=rstd, eps=1e-5)
        torch.testing.assert_close(out - plain, y[:1].expand(70, 130), rtol=1e-3, atol=1e-3)
        expected = torch.nn.functional.layer_norm(x, (130,), w, y[0])
    elif name == "column_sums":
        out = torch.full((130,), float("nan"))
        operation(dy=x, sums=out)
        expected = x.sum(0)
    elif name == "scale_heads":
        x = torch.randn(2, 5, 7, 130, generator=draw)
        out = torch.full_like(x, float("nan"))
        operation(x, y[:5], out)
        expected = x * y[:5, None]
    elif name == "row_norms":
        out = torch.full((70,), float("nan"))
        operation(x, out, 0)
        expected = x.norm(dim=1)
    else:
        out = torch.full((70, 50), float("nan"), dtype=torch.float16)
        a, b = x.half(), y[:50].half().T
        operation(a, b, out, 1)
        expected = torch.nn.functional.leaky_relu(a.float() @ b.float())
    return (out.float() - expected).abs().max().item()


@pytest.mark.parametrize("name", ["add", *NAMES[1:]])
def test_a_recipe_as_it_is_written_gives_what_the_kernel_computes(child, written, name):
    assert child(error_of, written, name) < (0.05 if name == "matmul" else 1e-3)


def refused(path: Path) -> str:
    import torch

    import kiln.jit

    operation = kiln.jit.Recipe(path, interpret=True).operation("softmax")
    out = torch.zeros(1, 130).expand(70, 130)
    try:
        operation(out=out, x=torch.randn(70, 130))
    except kiln.errors.ArgumentError as error:
        return str(error)
    return ""


def test_programs_never_race_for_one_row(child, written):
    assert child(refused, written) == (
        "mine.softmax: out must not be a broadcast view (stride 0): its rows would overwrite each other"
    )
