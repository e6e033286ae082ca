"""Configurations beside a recipe: tuning/<family>/space/<kernel>.yaml."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

import small_recipe
from kiln_recipe import targets
from kiln_recipe.errors import RecipeError
from kiln_recipe.plan import plan
from kiln_recipe.read import recipe

OWN = small_recipe.RECIPE[
    small_recipe.RECIPE.index("        configurations:\n          - targets: default") : small_recipe.RECIPE.index(
        "        heuristic:\n"
    )
]
SPACE = """define:
  wide: dtype != fp8e4m3 and columns_most > 64
  fits: BLOCK >= columns_most
tables:
  - targets: default
    rows:
      - where: fits and (wide or gemma)
        core:
          - {BLOCK: [64, 256], num_warps: [1, 4]}
        full:
          - {BLOCK: 512, num_warps: 8}
      - core: [{BLOCK: 1024, num_warps: 8}]
  - targets: [gfx942]
    rows:
      - core: [{BLOCK: 256, num_warps: 8, waves_per_eu: 1}]
spills:
  - {when: {BLOCK: 1024}, bytes: 24, reason: "a block of a kilobyte"}
"""


WITHOUT = small_recipe.RECIPE.replace(OWN, "")


def write(folder: Path, space: str = SPACE, text: str = WITHOUT, name: str = "norm") -> Path:
    (folder / "kernels" / "small").mkdir(parents=True)
    (folder / "tuning" / "small" / "space").mkdir(parents=True)
    (folder / "tuning" / "small" / "space" / f"{name}.yaml").write_text(space)
    return small_recipe.write(folder / "kernels" / "small", text.replace("use: {BLOCK: 256, num_warps: 4}", "use: {}"))


def test_a_table_for_each_group_of_targets(tmp_path):
    norm = recipe.load(write(tmp_path)).operations[0].kernels[0]
    (only,) = norm.sets_for(targets.by_name("gfx942"))
    assert [c.name for c in only.core] == ["BLOCK=256 num_warps=8 waves_per_eu=1"]
    first, second = norm.sets_for(targets.by_name("sm_90"))
    assert [c.mapping["BLOCK"] for c in (*first.core, *first.full, *second.core)] == [64, 64, 256, 256, 512, 1024]
    assert second.where is None
    call = {"dtype": 2, "columns_most": 128, "gemma": 0, "BLOCK": 256, "num_warps": 1}
    assert first.where.evaluate(call) == 1
    assert first.where.evaluate({**call, "BLOCK": 64}) == 0 == first.where.evaluate({**call, "dtype": 5})
    assert [(spill.bytes, spill.when.configuration) for spill in norm.spills][-1] == (24, (("BLOCK", (1024,)),))


def test_its_file_says_what_the_recipe_would(tmp_path):
    """The same configurations, in the recipe and beside it, make the same plan."""
    entries = yaml.safe_load(small_recipe.RECIPE)["operations"]["rms_norm"]["kernels"]["norm"]["configurations"]
    tables = [{"targets": entry.pop("targets"), "rows": [entry]} for entry in entries]
    beside = write(tmp_path / "beside", yaml.safe_dump({"tables": tables}), small_recipe.RECIPE.replace(OWN, ""))
    own = small_recipe.write(tmp_path, small_recipe.RECIPE)
    planned = [
        [v.name for v in plan.make_plan([recipe.load(path)], targets.load(), "full").variants] for path in (beside, own)
    ]
    assert planned[0] == planned[1] and len(planned[0]) > 500


def test_a_recipe_may_have_it_beside_itself(tmp_path):
    write(tmp_path)
    path = small_recipe.write(tmp_path, WITHOUT.replace("BLOCK: 256, num_warps: 4}}", "}}"))
    assert len(recipe.load(path).operations[0].kernels[0].configurations) == 3


@pytest.mark.parametrize(
    ("old", "new", "line", "says"),
    [
        ("rows:\n      - where", "rwos:\n      - where", 6, "has the unknown field 'rwos'; did you mean 'rows'?"),
        ("targets: default", "targets: hoper", 5, "unknown target hoper; did you mean 'hopper'?"),
        ("[gfx942]", "[default]", 15, "waves_per_eu is not an option of Triton's cuda backend"),
        ("fits and (wide", "fist and (wide", 3, "no condition reads 'fits'"),
        ("or gemma", "or gema", 7, "reads 'gema'"),
        ("columns_most > 64", "columns > 64", 2, "reads 'columns', which only a call knows"),
        ("wide: dtype", "dtype: dtype", 2, "'dtype' means something else already"),
        ("wide: dtype", "class: dtype", 2, "'class' cannot name a condition"),
        ("num_warps: 8, waves_per_eu: 1", "num_warps: 7", 15, "num_warps is 7; it must be a power of two"),
        ('bytes: 24, reason: "a block of a kilobyte"', 'bytes: 24, reason: ""', 17, "a reason is a sentence"),
    ],
)
def test_mistakes(tmp_path, old, new, line, says):
    assert SPACE.count(old) == 1
    path = write(tmp_path, SPACE.replace(old, new))
    with pytest.raises(RecipeError) as caught:
        recipe.load(path)
    file = tmp_path / "tuning" / "small" / "space" / "norm.yaml"
    assert str(caught.value).startswith(f"{file}:{line}: ") and says in str(caught.value)


def test_configurations_are_said_once_and_of_a_kernel(tmp_path):
    nowhere = small_recipe.write(tmp_path, WITHOUT)
    with pytest.raises(RecipeError, match=r":26: the kernel norm lacks configurations: list them here or in tuning/sm"):
        recipe.load(nowhere)
    twice = write(tmp_path / "twice", text=small_recipe.RECIPE)
    with pytest.raises(RecipeError, match="norm.yaml has configurations of the kernel too; leave out one"):
        recipe.load(twice)
    stranger = write(tmp_path / "stranger", name="nrom", text=small_recipe.RECIPE)
    with pytest.raises(RecipeError, match=r"nrom.yaml:1: small has no kernel 'nrom'; did you mean 'norm'\?"):
        recipe.load(stranger)


def test_words_of_choices_are_read_by_conditions(tmp_path):
    text = WITHOUT.replace(
        "      gemma: {of: gemma, values: [false, true]}",
        "      gemma: {of: gemma, values: [false, true]}\n"
        "      kind: {of: many if rows > 8 else few, values: [few, many]}",
    )
    text = text.replace("choices: [dtype, columns_most, gemma]", "choices: [dtype, columns_most, gemma, kind]")
    text = text.replace("KIND: dtype", "KIND: kind == many")
    path = write(tmp_path, SPACE.replace("wide or gemma", "wide or kind == many"), text)
    (operation,) = recipe.load(path).operations
    assert [operation.choices[3].of.evaluate({"rows": rows}) for rows in (8, 9)] == [0, 1]
    where = operation.kernels[0].configurations[0].where
    call = {"dtype": 5, "columns_most": 64, "BLOCK": 64, "kind": 1}
    assert where.evaluate(call) == 1 and where.evaluate({**call, "kind": 0}) == 0
