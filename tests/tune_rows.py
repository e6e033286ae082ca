"""Times as `kiln tune` keeps them, of runs that were never made: of two functionals of attention forward."""

from __future__ import annotations

import itertools
from dataclasses import replace

from kiln_bench import shapes
from kiln_bench.shapes import Training
from kiln_bench.tune import candidates
from kiln_bench.tune.race import STAGES
from kiln_recipe import targets
from kiln_recipe.plan import plan
from kiln_recipe.read import recipe
from small_release import ROOT

FLASH = recipe.load(ROOT / "tritonsrc/flash/recipe.yaml")
NAME = "attn_fwd.general"
KERNELS = candidates.kernels(FLASH)
AXES = {axis.name: list(axis.edges) for axis in KERNELS[NAME].bins}
FUNCTIONALS = [f"dtype=bf16 head_dim={head_dim} padded=false extras=none" for head_dim in (64, 128)]
PLAN = plan.make_plan([FLASH], [targets.by_name("sm_90")])
CONFIGURATIONS = {
    name: list(dict.fromkeys(v.configuration for v in PLAN.variants if v.kernel == NAME and v.functional == name))
    for name in FUNCTIONALS
}
(COUNT,) = {len(names) for names in CONFIGURATIONS.values()}
BINS = [dict(zip(AXES, place)) for place in itertools.product(*([0, *edges] for edges in AXES.values()))]
PLAIN = Training(64, 64, 8, 8, 2, 2048)


def rows_of(times: list[list[float]], bins=BINS) -> list[dict]:
    """A row for each functional and bin, each bin with a shape of its own, with the times of the configurations."""
    calls = [(replace(PLAIN, batch=PLAIN.batch + number), place) for number, place in enumerate(bins)]
    return [
        {"part": "forward", "shape": shapes.as_row(shape), "functional": name, "bins": {NAME: place}, "wrong": {},
         "microseconds": {NAME: dict(zip(CONFIGURATIONS[name], row))}, "spread": {NAME: {"x": 0.01}},
         "rounds": {NAME: dict.fromkeys(CONFIGURATIONS[name], STAGES[-1].rounds)},
         "used": [NAME, CONFIGURATIONS[name][0]], "clock": "1980 MHz"}
        for (name, (shape, place)), row in zip(itertools.product(FUNCTIONALS, calls), times)
    ]  # fmt: skip
