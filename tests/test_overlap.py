"""Kernels that may begin before the one before them has ended: which a recipe refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from kiln_recipe.errors import RecipeError
from kiln_recipe.read import fingerprint, recipe

KERNELS = """import triton
import triton.language as tl
from triton.language.extra import cuda
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def twice(x_ptr, out_ptr):
    gdc_launch_dependents()
    tl.store(out_ptr, tl.load(x_ptr) * 2)


@triton.jit
def wait():
    gdc_wait()


@triton.jit
def again(x_ptr, out_ptr):
    wait()
    tl.store(out_ptr, tl.load(out_ptr) * 2)


@triton.jit
def by_attribute(x_ptr, out_ptr):
    cuda.gdc_wait()
    tl.store(out_ptr, tl.load(out_ptr) * 2)
"""
PARAMETERS = """
        targets: [hopper]
        choices: [dtype]
        grid: ["1"]
        parameters: {x_ptr: {type: "*dtype", value: x.data}, out_ptr: {type: "*dtype", value: out.data}}
        configurations: [{core: [{num_warps: 4}]}]
"""
RECIPE = f"""family: two
summary: Doubles twice.
operations:
  double:
    arguments:
      x: {{tensor: dtype, rank: 1}}
      out: {{tensor: dtype, rank: 1}}
    choices:
      dtype: {{of: x.dtype, values: [fp32]}}
    require:
      - {{that: "out.size[0] == x.size[0]", otherwise: "out must have the size of x"}}
    kernels:
      twice:
        source: kernels.py{PARAMETERS}
      again:
        source: kernels.py
        overlaps: true{PARAMETERS}"""
AGAIN, TWICE = "      again:\n        source: kernels.py\n", "      twice:\n        source: kernels.py\n"
POSITIVE, MORE = "        when: x.size[0] > 0\n", "        when: x.size[0] > 0 and out.size[0] > 1\n"
MAY = "again may overlap only with a kernel of the same call, and "


def load(folder: Path, text: str = RECIPE, kernels: str = KERNELS):
    (folder / "kernels.py").write_text(kernels)
    (folder / "recipe.yaml").write_text(text)
    return recipe.load(folder / "recipe.yaml")


@pytest.mark.parametrize(
    "text",
    [
        RECIPE,
        RECIPE.replace(AGAIN, f"{AGAIN}        function: by_attribute\n"),
        RECIPE.replace(AGAIN, AGAIN + POSITIVE),
        RECIPE.replace(TWICE, TWICE + POSITIVE).replace(AGAIN, AGAIN + POSITIVE),
        RECIPE.replace(TWICE, TWICE + POSITIVE).replace(AGAIN, AGAIN + MORE),
    ],
)
def test_one_that_waits_for_a_kernel_of_its_call(tmp_path, text):
    first, second = load(tmp_path, text).operations[0].kernels
    assert second.overlaps and not first.overlaps


def test_the_familys_own(tmp_path):
    flash = recipe.load(Path(__file__).resolve().parents[1] / "tritonsrc/flash/recipe.yaml")
    overlapping = [kernel.name for operation in flash.operations for kernel in operation.kernels if kernel.overlaps]
    assert len(overlapping) >= 4 and "attn_bwd_finish" in overlapping


@pytest.mark.parametrize(
    ("replaced", "by", "sentence"),
    [
        (TWICE, f"{TWICE}        overlaps: true\n",
         "twice may overlap only with a kernel of the same call, and it is the operation's first; leave overlaps"),
        (TWICE, TWICE + POSITIVE, f"{MAY}kernels before it have a `when` that again lacks; leave overlaps out"),
        (TWICE, TWICE + MORE, f"{MAY}kernels before it have a `when` that again lacks"),
        (f"{AGAIN}        overlaps: true", f"{AGAIN}        overlaps: true\n        function: twice",
         "twice of kernels.py never waits for the kernel before it; call gdc_wait() of triton.language.extra.cuda"),
        ("overlaps: true\n        targets: [hopper]", "overlaps: true\n        targets: [hopper, sm_80]",
         "a kernel for sm_80, which the implementation is for too, cannot overlap with another"),
    ],
)  # fmt: skip
def test_refusals(tmp_path, replaced, by, sentence):
    text = RECIPE.replace(replaced, by)
    assert text != RECIPE
    with pytest.raises(RecipeError) as refused:
        load(tmp_path, text)
    place, said = str(refused.value).split(": ", 1)
    assert sentence in said and "\n" not in said
    number = int(place.rpartition(":")[2])
    assert "overlaps: true" in text.splitlines()[number - 1]


def test_what_uses_a_name(tmp_path):
    """Also in what a function calls; being imported is not being used."""
    load(tmp_path)
    path = tmp_path / "kernels.py"
    found = {name: fingerprint.uses(path, name, "gdc_wait") for name in ("twice", "again", "by_attribute")}
    assert found == {"twice": False, "again": True, "by_attribute": True}
    assert fingerprint.uses(path, "twice", "gdc_launch_dependents")
