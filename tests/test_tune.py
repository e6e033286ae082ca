"""benchmarks/tune: whatever the times are, the file that comes of them takes a fast configuration in each bin."""

from __future__ import annotations

import importlib.util
import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from kiln_recipe import targets
from kiln_recipe.plan import plan
from kiln_recipe.read import recipe
from small_release import ROOT

_spec = importlib.util.spec_from_file_location("rules", ROOT / "benchmarks/tune/rules.py")
rules = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(rules)

RECIPE = ROOT / "tritonsrc/flash/recipe.yaml"
ABOUT = {"date": "2026-01-01", "device": "a GPU: 'quoted'", "driver": "1.2", "clock": "1 MHz", "release": "0.1.0"}
TOLERANCE = 0.02
FLASH = recipe.load(RECIPE)
NAME = "attn_fwd.general"
AXES = rules.edges(RECIPE, "attn_fwd", NAME)
FUNCTIONALS = [f"dtype=bf16 head_dim={head_dim} padded=false extras=none" for head_dim in (64, 128)]
PLAN = plan.make_plan([FLASH], [targets.by_name("sm_90")])
CONFIGURATIONS = {
    name: list(dict.fromkeys(v.configuration for v in PLAN.variants if v.kernel == NAME and v.functional == name))
    for name in FUNCTIONALS
}
(COUNT,) = {len(names) for names in CONFIGURATIONS.values()}
BINS = list(itertools.product(*([0, *edges] for edges in AXES.values())))


def rows_of(times: list[list[float]]) -> list[dict]:
    """What run.py measured, for two functionals of bf16."""
    places = itertools.product(FUNCTIONALS, BINS)
    return [
        {"functional": name, "bin": dict(zip(AXES, place)), "microseconds": dict(zip(CONFIGURATIONS[name], row))}
        for (name, place), row in zip(places, times)
    ]


@settings(max_examples=6, deadline=None)
@given(seed=st.integers(0, 2**32), few=st.booleans())
def test_each_bin_takes_a_configuration_within_the_tolerance(tmp_path_factory, seed, few):
    import random

    generator = random.Random(seed)
    levels = [1.0, 1.01, 2.0] if few else [generator.uniform(1, 10) for _ in range(50)]
    rows = rows_of([[generator.choice(levels) for _ in range(COUNT)] for _ in range(2 * len(BINS))])
    written = rules.make(AXES, rows, rules.choose(rows, TOLERANCE))
    folder = tmp_path_factory.mktemp("tuning")
    (folder / "flash").mkdir()
    (folder / "flash" / "sm_90.yaml").write_text(rules.tuning_file({NAME: written, "attn_bwd_dq": []}, ABOUT))

    made = plan.make_plan([FLASH], [targets.by_name("sm_90")], tuning_root=folder)
    (kernel,) = (kernel for kernel in made.kernels if kernel.kernel.name == NAME)
    decisions = plan.explain(kernel, {variant.slot for variant in made.variants if variant.kernel == NAME})
    by_functional = {functional.name: row for functional, row in zip(kernel.functionals, decisions)}
    for row in rows:
        decision = by_functional[row["functional"]][BINS.index(tuple(row["bin"].values()))]
        taken = row["microseconds"][kernel.configurations[decision.configuration].name]
        assert taken <= min(row["microseconds"].values()) * (1 + TOLERANCE)
        assert "sm_90.yaml" in decision.rule, "the heuristic decided, not the tuning file"


def test_one_winner_is_one_rule_for_each_functional():
    rows = rows_of([[1.0 + i for i in range(COUNT)]] * 2 * len(BINS))
    written = rules.make(AXES, rows, rules.choose(rows, TOLERANCE))
    assert [rule["when"] for rule in written] == [about(64), about(128)]


def about(head_dim: int) -> dict:
    return {"head_dim": head_dim, "padded": False, "extras": "none"}


def test_names_become_values():
    assert rules.values("head_dim=64 padded=false extras=none ADVANCE=true") == about(64) | {"ADVANCE": True}
    assert "kernels:\n  {}\n" in rules.tuning_file({NAME: []}, ABOUT)


def test_bins_that_touch_are_merged():
    """One axis decides: its bins are one rule, not one for each bin of the others."""
    first = next(iter(AXES))
    slow = [9.0] * (COUNT - 1)
    times = [[*slow, 1.0] if place[0] == 0 else [1.0, *slow] for place in BINS]
    rows = rows_of(times + times)
    written = rules.make(AXES, rows, rules.choose(rows, TOLERANCE))
    assert len(written) == 4
    assert written[0]["when"] == about(64) | {first: {"below": AXES[first][0]}}
