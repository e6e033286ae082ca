"""What a build says of variants that have no image."""

from __future__ import annotations

import pytest

from kiln_build.farm.farm import Failure
from kiln_build.release import assemble
from kiln_recipe import targets
from kiln_recipe.errors import BuildFailed
from kiln_recipe.plan import plan
from kiln_recipe.plan.model import Variant
from kiln_recipe.read import recipe
from small_release import ROOT


def variant(number: int, waiver: str | None = None) -> Variant:
    return Variant("glu", "swiglu", "swiglu", f"width={number}", "", "generic", "sm_90", number, None, 0, waiver)


def failed(number: int, kind: str, message: str) -> Failure:
    return Failure(variant(number).name, kind, message, f"/logs/{number}.log")


def test_rejections_in_equal_words_are_said_once():
    outcomes = [failed(n, "compile", "/k/swiglu.py:14: nn is not defined") for n in range(6)]
    outcomes += [failed(6, "compile", "/k/swiglu.py:20: mm is not defined")]
    outcomes += [failed(n, "timeout", "took longer than 6 s") for n in (7, 8)]
    variants = [variant(n) for n in range(9)]
    with pytest.raises(BuildFailed) as error:
        assemble.judge_all(variants, {o.variant: o for o in outcomes}, {})
    assert str(error.value).splitlines() == [
        "9 of 9 variants failed:",
        "  glu.swiglu/swiglu[width=0][][generic]@sm_90 (and 5 more variants): "
        "/k/swiglu.py:14: nn is not defined (log: /logs/0.log)",
        "  glu.swiglu/swiglu[width=6][][generic]@sm_90: /k/swiglu.py:20: mm is not defined (log: /logs/6.log)",
        "  glu.swiglu/swiglu[width=7][][generic]@sm_90: took longer than 6 s (log: /logs/7.log)",
        "  glu.swiglu/swiglu[width=8][][generic]@sm_90: took longer than 6 s (log: /logs/8.log)",
    ]


def test_what_a_backend_refuses_may_be_left_out():
    refused = "swiglu for gfx942: error: could not allocate output register for constraint 'f'"
    with pytest.raises(BuildFailed) as error:
        assemble.judge_all([variant(0)], {variant(0).name: failed(0, "compile", refused)}, {})
    assert str(error.value).splitlines()[1:] == [
        f"  glu.swiglu/swiglu[width=0][][generic]@sm_90: {refused} (log: /logs/0.log)",
        "`targets` or `unavailable` in the recipe leaves out what a backend does not compile",
    ]


def test_a_waiver_covers_a_rejection_and_no_crash():
    outcomes = {o.variant: o for o in (failed(0, "compile", "no"), failed(1, "crash", "died"))}
    with pytest.raises(BuildFailed, match=r"1 of 2 variants failed:\n  .*width=1.*: died"):
        assemble.judge_all([variant(0, "not here"), variant(1, "not here")], outcomes, {})


@pytest.mark.parametrize(
    ("path", "headers"),
    [("examples/family/recipe.yaml", {"kiln/norm.h"}), ("tritonsrc/flash/recipe.yaml", {"kiln/flash.h"})],
)
def test_a_family_has_a_header_its_own_or_a_generated_one(path, headers):
    loaded = recipe.load(ROOT / path)
    made = plan.make_plan([loaded], targets.parse("sm_90"), "core", (), ROOT / "tuning")
    public = assemble.family_of(loaded, made, None, {}, "0.1.0b").public
    assert set(public) == headers
    assert all((isinstance(header, str)) == (name == "kiln/norm.h") for name, header in public.items())
