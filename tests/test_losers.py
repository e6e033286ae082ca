"""Configurations that no call takes are left out of a build, and the look-up is the same without them."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import small_recipe
from kiln_recipe import targets
from kiln_recipe.plan import plan
from kiln_recipe.plan.model import KernelPlan, Plan
from kiln_recipe.plan.slots import NOT_CHOSEN
from kiln_recipe.read import recipe
from kiln_recipe.selection import ALL, CHOSEN
from small_release import ROOT

FLASH = recipe.load(ROOT / "tritonsrc/flash/recipe.yaml")
TARGETS = [target.name for target in targets.load()]


def both(given_recipe, target: str, profile="core", tuning_root=None) -> tuple[Plan, Plan]:
    """A plan with all configurations, and one with the chosen ones."""
    words = ([given_recipe], [targets.by_name(target)], profile, (), tuning_root)
    return plan.make_plan(*words, ALL), plan.make_plan(*words, CHOSEN)


def available(made: Plan, kernel: KernelPlan, lack=()) -> set[int]:
    return {variant.slot for variant in made.variants_of(kernel) if variant.slot not in lack}


def waived(made: Plan, kernel: KernelPlan) -> list[int]:
    return [variant.slot for variant in made.variants_of(kernel) if variant.waiver is not None]


@pytest.mark.parametrize("target, has_losers", [("gfx942", True), ("gfx1201", False), ("sm_80", True), ("sm_90", True)])
def test_calls_take_what_they_took(target, has_losers):
    every, chosen = both(FLASH, target, "core", ROOT / "tuning")
    assert (len(chosen.variants) < len(every.variants)) == has_losers
    assert {(v.name, v.slot, v.spec) for v in chosen.variants} <= {(v.name, v.slot, v.spec) for v in every.variants}
    for one, other in zip(every.kernels, chosen.kernels):
        there = available(chosen, other)
        assert plan.lookup(other, there) == plan.lookup(one, available(every, one)) and one.layout == other.layout
        lost = available(every, one) - there
        assert {other.absent[slot] for slot in lost} <= {NOT_CHOSEN} and other.absent.keys() >= one.absent.keys()
        taken = {(f, d.configuration) for f, row in enumerate(plan.explain(other, there)) for d in row}
        alike = len(one.kernel.specializations)
        assert {divmod(slot // alike, len(one.configurations)) for slot in there} <= taken, "a loser is left"


RULES = st.lists(
    st.tuples(
        st.dictionaries(
            st.sampled_from(["dtype", "gemma"]), st.sampled_from([0, 1]), max_size=2
        ),
        st.sampled_from([None, {"below": 1000}, {"at_least": 1000, "below": 100000}, {"at_least": 100000}]),
        st.sampled_from([{"BLOCK": 64}, {"BLOCK": 256, "num_warps": 1}, {"num_warps": 4}, {"num_warps": 8}]),
    ),
    max_size=4,
)  # fmt: skip


@settings(max_examples=30, deadline=None)
@given(rules=RULES, target=st.sampled_from(["gfx90a", "gfx942", "sm_90"]), data=st.data())
def test_whatever_the_rules_and_whichever_images_are_missing(tmp_path_factory, rules, target, data):
    """Of images that the recipe lets be missing, all may be there or any may lack."""
    folder = tmp_path_factory.mktemp("r")
    given_recipe = recipe.load(small_recipe.write(folder))
    values = {"dtype": ["fp16", "bf16"], "gemma": ["false", "true"]}
    lines = [f"kernels:\n  norm:{'' if rules else ' []'}"]
    for when, size, use in rules:
        words = [f"{name}: {values[name][value]}" for name, value in when.items()]
        words += [f"size: {{{', '.join(f'{k}: {v}' for k, v in size.items())}}}"] if size else []
        used = ", ".join(f"{name}: {value}" for name, value in use.items())
        lines.append(f"    - {{when: {{{', '.join(words)}}}, use: {{{used}}}}}")
    (folder / "small").mkdir()
    (folder / f"small/{target}.yaml").write_text("\n".join(lines) + "\n")
    every, chosen = both(given_recipe, target, "full", folder)
    for one, other in zip(every.kernels, chosen.kernels):
        assert plan.lookup(other, available(chosen, other)) == plan.lookup(one, available(every, one))
        lack = data.draw(st.sets(st.sampled_from(waived(every, one)))) if waived(every, one) else set()
        whole = plan.lookup(one, available(every, one, lack))
        left = plan.lookup(other, available(chosen, other, lack))
        served = [number != 255 for number in whole]
        assert [number != 255 for number in left] == served, "a call is served as long as it would be"


def test_what_is_left_out_is_said(tmp_path: Path):
    every, chosen = both(recipe.load(small_recipe.write(tmp_path)), "sm_90")
    said = {reason for kernel in chosen.kernels for reason in kernel.absent.values()}
    assert NOT_CHOSEN in said and not any(NOT_CHOSEN in kernel.absent.values() for kernel in every.kernels)
