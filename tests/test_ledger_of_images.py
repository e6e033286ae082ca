"""The repository's own ledger is the tree's: every image that the tree makes is in it, with what it takes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kiln_build.ledger import file as ledger_file
from kiln_build.ledger.planned import Shares
from kiln_recipe import targets
from kiln_recipe.plan import plan
from kiln_recipe.read import recipe

ROOT = Path(__file__).resolve().parents[1]
TARGETS = ledger_file.targets_of(ROOT / "ledger")


def kiln_ledger(*words: str) -> subprocess.CompletedProcess:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "v3python")}
    command = [sys.executable, "-m", "kiln_build", "ledger", *words]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)


def test_every_image_is_in_the_ledger_and_what_is_worse_has_a_reason():
    done = kiln_ledger("--json")
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    keys = {one["target"]: one["keys"] for one in json.loads(done.stdout)["ledgers"]}
    assert set(keys) == TARGETS and min(keys.values()) > 500


def test_where_nothing_is_tuned_the_model_decides():
    """Of long calls the heuristic takes what the model ranks first, or nearly: 0.85 is for what it cannot know."""
    amd = [target for target in targets.load() if target.vendor == "amd" and target.name in TARGETS]
    the_plan = plan.make_plan([recipe.load(path) for path in recipe.find(ROOT)], amd, "full", (), ROOT / "tuning")
    shares, judged = Shares(ROOT / "ledger"), 0
    for kernel in the_plan.kernels:
        if kernel.kernel.name.partition(".")[0] not in ("attn_fwd", "attn_bwd_dq", "attn_bwd_dk_dv"):
            continue  # decoding waits for memory, whatever its products take
        available = set(range(kernel.slots)) - set(kernel.absent)
        first = kernel.kernel.specializations[0].name
        for functional, row in zip(kernel.functionals, plan.explain(kernel, available)):
            if row[-1].configuration is None:
                continue
            names = [one.name for one in kernel.configurations]
            known = {name: shares(kernel, functional.name, name, first) for name in names}
            taken = known[names[row[-1].configuration]]
            if taken:
                judged += 1
                best = max(filter(None, known.values()))
                assert taken >= 0.85 * best, (kernel.target.name, kernel.kernel.name, functional.name, known)
    assert judged > 20


@pytest.mark.slow(25)
def test_images_drawn_from_it_are_as_it_says():
    done = kiln_ledger("--sample", "4", "--jobs", "2")
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert "4 images compiled, 0 differ from the ledger" in done.stdout
