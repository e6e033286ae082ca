"""Which families are built: Kiln's own, those of KILN_RECIPES, or what KILN_FAMILIES, --family and --recipe name."""

from __future__ import annotations

from pathlib import Path

import pytest

from kiln_build.cli import main
from kiln_build.options.options import narrow, read_build_variables
from kiln_build.release import families
from kiln_recipe.errors import EnvironmentProblem, UsageError

ROOT = Path(__file__).parent.parent
NORM, SILU = (ROOT / f"examples/{name}/recipe.yaml" for name in ("family", "silu"))
BOTH = f"{NORM}:{SILU}"


def choose(tree: Path = ROOT, **variables: str) -> families.Families:
    return families.choose(tree, read_build_variables({f"KILN_{name}": text for name, text in variables.items()}))


@pytest.mark.parametrize(
    ("asked", "built", "added", "only"),
    [
        ("", ["flash", "norm", "silu"], ("norm", "silu"), ()),
        ("silu", ["silu"], ("silu",), ("silu",)),
        ("KILN_RECIPES", ["norm", "silu"], ("norm", "silu"), ("norm", "silu")),
        ("flash", ["flash"], (), ()),  # which is what a build without KILN_RECIPES makes
        (" norm; flash", ["flash", "norm"], ("norm",), ()),
        ("flash,KILN_RECIPES", ["flash", "norm", "silu"], ("norm", "silu"), ()),
    ],
)
def test_what_is_built(asked, built, added, only):
    chosen = choose(RECIPES=BOTH, FAMILIES=asked)
    assert ([one.family for one in chosen.recipes], chosen.added, chosen.only) == (built, added, only)


@pytest.mark.parametrize("asked", ["", "flash,KILN_RECIPES"])
def test_a_recipe_counts_once_however_often_it_is_named(asked):
    flash = ROOT / "tritonsrc/flash/recipe.yaml"
    chosen = choose(RECIPES=f"{NORM}:{NORM.parent}/../family/recipe.yaml:{flash}", FAMILIES=asked)
    assert ([one.family for one in chosen.recipes], chosen.added, chosen.only) == (["flash", "norm"], ("norm",), ())


def test_the_tree_is_not_read_for_recipes_of_ones_own(tmp_path):
    broken = tmp_path / "tritonsrc/flash/recipe.yaml"
    broken.parent.mkdir(parents=True)
    broken.write_text("family: [")
    assert choose(tmp_path, RECIPES=str(NORM), FAMILIES="KILN_RECIPES").only == ("norm",)


def test_a_family_that_there_is_not():
    with pytest.raises(UsageError) as refused:
        choose(RECIPES=BOTH, FAMILIES="nrom")
    assert str(refused.value) == (
        "--family (KILN_FAMILIES) names 'nrom', which is not a family; did you mean 'norm'? the families are flash, "
        "norm, silu; --recipe (KILN_RECIPES) adds others"
    )


def test_options_go_before_variables(tmp_path):
    given = {"PATH": "/bin", "KILN_RECIPES": "x/recipe.yaml", "KILN_FAMILIES": "x"}
    assert narrow(given, [], [], tmp_path) == given
    assert narrow(given, [], ["norm", "silu"], tmp_path) == {**given, "KILN_FAMILIES": "norm,silu"}
    asked = narrow(given, [str(NORM)], ["flash"], tmp_path)
    assert asked == {**given, "KILN_RECIPES": str(NORM), "KILN_FAMILIES": "flash,KILN_RECIPES"}
    with pytest.raises(EnvironmentProblem, match="--recipe names gone.yaml, which is not a file"):
        narrow(given, ["gone.yaml"], [], tmp_path)
    (tmp_path / "a:b").mkdir()
    (tmp_path / "a:b/recipe.yaml").touch()
    with pytest.raises(UsageError, match="a:b/recipe.yaml has a ':' in its path"):
        narrow(given, ["a:b/recipe.yaml"], [], tmp_path)


@pytest.mark.parametrize(
    ("words", "there", "missing"),
    [
        (["--recipe", str(NORM)], "norm.rms_norm", "flash."),
        (["--family", "silu"], "silu.silu", "norm."),
        (["--family", "silu", "--family", "norm"], "norm.rms_norm", "flash."),
    ],
)
def test_a_plan_of_some_families(capsys, monkeypatch, words, there, missing):
    monkeypatch.setenv("KILN_RECIPES", BOTH)
    assert main(["plan", "sm_90", *words]) == 0
    out = capsys.readouterr().out
    assert there in out and missing not in out
