"""Choices among words: what a call asks for is a word's place, what a kernel, a rule and a person read is the word."""

from __future__ import annotations

import pytest

import small_recipe
from kiln_build.native import generate
from kiln_recipe import targets
from kiln_recipe.errors import RecipeError, UsageError
from kiln_recipe.plan import plan
from kiln_recipe.read import recipe

BOOLEAN = "gemma: {of: gemma, values: [false, true]}"
WORDS = "gemma: {of: gemma, values: [plain, added], core: [added]}"
RECIPE = small_recipe.RECIPE.replace(BOOLEAN, WORDS)
SM_90 = targets.parse("sm_90")


@pytest.fixture
def small(tmp_path) -> recipe.Recipe:
    return recipe.load(small_recipe.write(tmp_path, RECIPE))


def test_words_are_numbered_by_their_places(small):
    choice = small.operations[0].choice("gemma")
    assert (choice.kind, choice.values, choice.numbers) == ("word", ("plain", "added"), (0, 1))
    assert (choice.spellings, choice.core) == (("plain", "added"), (False, True))


def test_the_kernel_gets_the_word_and_expressions_its_number(tmp_path):
    text = RECIPE.replace("where: BLOCK >= columns_most", "where: BLOCK >= columns_most and gemma == 1")
    made = plan.make_plan([recipe.load(small_recipe.write(tmp_path, text))], SM_90, "full")
    norm = [variant for variant in made.variants if variant.kernel == "norm"]
    assert norm and all(variant.functional.endswith("gemma=added") for variant in norm)
    assert {dict(variant.spec.constants)["GEMMA"] for variant in norm} == {"added"}
    computed = RECIPE.replace("GEMMA: gemma", 'GEMMA: "2 * gemma"')
    made = plan.make_plan([recipe.load(small_recipe.write(tmp_path, computed))], SM_90, "full")
    assert {dict(variant.spec.constants).get("GEMMA") for variant in made.variants if variant.kernel == "norm"} == {
        0,
        2,
    }


def test_profiles_selections_and_rules_name_words(tmp_path, small):
    def functionals(*arguments) -> set[str]:
        variants = plan.make_plan([small], SM_90, *arguments).variants
        return {variant.functional.split("gemma=")[1] for variant in variants if variant.kernel == "norm"}

    assert functionals("core") == {"added"} and functionals("full") == {"plain", "added"}
    assert functionals("core", (("gemma", ("plain",)),)) == {"plain"}
    with pytest.raises(UsageError, match="gemma has no value 'plane'; did you mean 'plain'"):
        functionals("core", (("gemma", ("plane",)),))
    (tmp_path / "small").mkdir()
    rules = "kernels: {norm: [{when: {gemma: added}, use: {BLOCK: 256, num_warps: 1}}]}"
    (tmp_path / "small" / "sm_90.yaml").write_text(rules)
    made = plan.make_plan([small], SM_90, "full", (), tmp_path)
    kernel = made.kernels[0]
    decisions = plan.explain(kernel, {variant.slot for variant in made.variants if variant.kernel == "norm"})
    for functional, row in zip(kernel.functionals, decisions):
        decided = {decision.rule is not None and "sm_90.yaml" in decision.rule for decision in row}
        assert decided == {functional.values["gemma"] == "added"}
    (tmp_path / "small" / "sm_90.yaml").write_text(rules.replace("gemma: added", "gemma: 1"))
    with pytest.raises(RecipeError, match="gemma has no value 1; its values are plain, added"):
        plan.make_plan([small], SM_90, "full", (), tmp_path)


def test_tables_have_places_and_spellings(small):
    made = plan.make_plan([small], SM_90, "full")
    tables = [generate.KernelTables(kernel, plan.lookup(kernel, ())) for kernel in made.kernels]
    text = "".join(generate.family_source(small, tables, SM_90, made.served, {}, "0.1.0b").split())
    assert "rms_norm_gemma_values[]={INT64_C(0),INT64_C(1)}" in text
    assert 'rms_norm_gemma_spellings[]={"plain","added"}' in text


def test_words_are_no_dtypes(tmp_path):
    text = RECIPE.replace("w: {tensor: fp32,", "w: {tensor: gemma,")
    with pytest.raises(RecipeError, match=r":8: the values of the choice gemma are not dtypes"):
        recipe.load(small_recipe.write(tmp_path, text))
    text = RECIPE.replace('w_ptr: {type: "*fp32"', 'w_ptr: {type: "*gemma"')
    with pytest.raises(RecipeError, match=r": the values of the choice gemma are not dtypes"):
        recipe.load(small_recipe.write(tmp_path, text))
