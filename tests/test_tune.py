"""benchmarks/tune: whatever the times are, the file that comes of them takes a fast configuration in each bin."""

from __future__ import annotations

import importlib.util
import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from kiln import plan, recipe, targets
from small_release import ROOT

_spec = importlib.util.spec_from_file_location("rules", ROOT / "benchmarks/tune/rules.py")
rules = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(rules)

RECIPE = ROOT / "tritonsrc/flash/recipe.yaml"
ABOUT = {"date": "2026-01-01", "device": "a GPU: 'quoted'", "driver": "1.2", "clock": "1 MHz", "release": "0.1.0"}
TOLERANCE = 0.02
FLASH = recipe.load(RECIPE)
AXES = rules.edges(RECIPE, "attn_fwd", "attn_fwd")
(KERNEL,) = plan.make_plan([FLASH], [targets.by_name("sm_90")]).kernels
CONFIGURATIONS = [configuration.name for configuration in KERNEL.configurations]
BINS = list(itertools.product(*([0, *edges] for edges in AXES.values())))


def rows_of(times: list[list[float]]) -> list[dict]:
    """What run.py measured, for two functionals of bf16."""
    names = [f"dtype=bf16 head_dim={head_dim} causal=true" for head_dim in (64, 128)]
    places = itertools.product(names, BINS)
    return [
        {"functional": name, "bin": dict(zip(AXES, place)), "microseconds": dict(zip(CONFIGURATIONS, row))}
        for (name, place), row in zip(places, times)
    ]


@settings(max_examples=6, deadline=None)
@given(seed=st.integers(0, 2**32), few=st.booleans())
def test_each_bin_takes_a_configuration_within_the_tolerance(tmp_path_factory, seed, few):
    import random

    generator = random.Random(seed)
    levels = [1.0, 1.01, 2.0] if few else [generator.uniform(1, 10) for _ in range(50)]
    rows = rows_of([[generator.choice(levels) for _ in CONFIGURATIONS] for _ in range(2 * len(BINS))])
    written = rules.make(AXES, rows, rules.choose(rows, TOLERANCE))
    folder = tmp_path_factory.mktemp("tuning")
    (folder / "flash").mkdir()
    (folder / "flash" / "sm_90.yaml").write_text(rules.tuning_file("attn_fwd", written, ABOUT))

    made = plan.make_plan([FLASH], [targets.by_name("sm_90")], tuning_root=folder)
    (kernel,) = made.kernels
    decisions = plan.explain(kernel, {variant.slot for variant in made.variants})
    by_functional = {functional.name: row for functional, row in zip(kernel.functionals, decisions)}
    for row in rows:
        decision = by_functional[row["functional"]][BINS.index(tuple(row["bin"].values()))]
        taken = row["microseconds"][kernel.configurations[decision.configuration].name]
        assert taken <= min(row["microseconds"].values()) * (1 + TOLERANCE)
        assert "sm_90.yaml" in decision.rule, "the heuristic decided, not the tuning file"


def test_one_winner_is_one_rule_for_each_functional():
    rows = rows_of([[1.0 + i for i in range(len(CONFIGURATIONS))]] * 2 * len(BINS))
    written = rules.make(AXES, rows, rules.choose(rows, TOLERANCE))
    assert [rule["when"] for rule in written] == [{"head_dim": 64, "causal": True}, {"head_dim": 128, "causal": True}]


def test_bins_that_touch_are_merged():
    """One axis decides: its bins are one rule, not one for each bin of the others."""
    first = next(iter(AXES))
    slow = [9.0] * (len(CONFIGURATIONS) - 1)
    times = [[*slow, 1.0] if place[0] == 0 else [1.0, *slow] for place in BINS]
    rows = rows_of(times + times)
    written = rules.make(AXES, rows, rules.choose(rows, TOLERANCE))
    assert len(written) == 4
    assert written[0]["when"] == {"head_dim": 64, "causal": True, first: {"below": AXES[first][0]}}
