"""What a build leaves out as rules: they say of every slot what the pack says, of no other, and there are few."""

from __future__ import annotations

import itertools
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from kiln_build.artifacts import left_out, pack
from kiln_build.release import assemble
from kiln_recipe import targets
from kiln_recipe.plan import plan
from kiln_recipe.read import recipe

ROOT = Path(__file__).resolve().parents[1]


def packed(*kernels: pack.KernelSlots) -> pack.Pack:
    return pack.Pack("sm_90", "0.1", "0" * 64, 0, (), (), kernels)


def names(kernel: pack.KernelSlots) -> list[tuple[str, str, str]]:
    return list(itertools.product(kernel.functionals, kernel.configurations, kernel.specializations))


def matches(rule: dict, functional: str, configuration: str, specialization: str) -> bool:
    """What the manifest's schema says of a rule, word by word."""
    choices = dict(word.split("=") for word in functional.split())
    return (
        all(choices[name] in values for name, values in rule.get("where", {}).items())
        and configuration in rule.get("configurations", [configuration])
        and specialization in rule.get("specializations", [specialization])
    )


def check(kernel: pack.KernelSlots) -> list[dict]:
    rules = left_out.rules_of(packed(kernel))
    counts = [0] * len(rules)
    for slot, name in zip(kernel.slots, names(kernel)):
        if left_out.is_left_out(slot):
            (number,) = [n for n, rule in enumerate(rules) if matches(rule, *name)]
            assert rules[number]["reason"] == (slot.reason or "not part of this build")
            counts[number] += 1
    assert counts == [rule["variants"] for rule in rules]
    return rules


CHOICES = {"dtype": ("fp16", "bf16", "fp32"), "head_dim": ("64", "128"), "padded": ("false", "true")}
FUNCTIONALS = tuple(
    " ".join(f"{name}={value}" for name, value in zip(CHOICES, values))
    for values in itertools.product(*CHOICES.values())
)


def kernel(slots: list[pack.Slot], functionals: tuple[str, ...] = FUNCTIONALS) -> pack.KernelSlots:
    return pack.KernelSlots("f", "o", "k", functionals, ("B=1", "B=2", "B=3"), ("aligned", "generic"), "", tuple(slots))


@given(st.lists(st.sampled_from([None, "", "small", "large"]), min_size=72, max_size=72))
def test_rules_say_what_the_slots_say(reasons):
    check(kernel([pack.Slot(left_out.NO_KEY if r is not None else "1" * 64, reason=r) for r in reasons]))


def test_what_a_value_leaves_out_is_one_rule():
    slots = []
    for functional, configuration, _ in itertools.product(FUNCTIONALS, (1, 2, 3), range(2)):
        if "fp32" in functional:
            slots.append(pack.Slot(left_out.NO_KEY, reason="no fp32"))
        elif configuration == 2 and "head_dim=64" in functional:
            slots.append(pack.Slot(left_out.NO_KEY, reason="2 where head_dim == 128"))
        else:
            slots.append(pack.Slot("1" * 64, reason="unavailable"))
    place = {"target": "sm_90", "kernel": "f.o/k"}
    assert check(kernel(slots)) == [
        place
        | {"reason": "2 where head_dim == 128", "variants": 8, "configurations": ["B=2"]}
        | {"where": {"dtype": ["fp16", "bf16"], "head_dim": ["64"]}},
        place | {"reason": "no fp32", "variants": 24, "where": {"dtype": ["fp32"]}},
    ]


def test_functionals_that_are_no_list_of_choices():
    slots = [pack.Slot(left_out.NO_KEY, reason="no")] * 6 + [pack.Slot("1" * 64, reason="unavailable")] * 12
    for functionals in (
        ("a", "b c", "x=1"),
        ("x=1 x=2", "x=1 x=1", "x=2 x=2"),
        ("configuration=1", "configuration=2", "y"),
    ):
        (rule,) = left_out.rules_of(packed(kernel(slots, functionals)))
        assert (rule["where"], rule["variants"]) == ({"functional": [functionals[0]]}, 6)
    assert left_out.rules_of(packed(kernel(slots[:6], ("",)))) == [
        {"target": "sm_90", "kernel": "f.o/k", "reason": "no", "variants": 6}
    ]
    assert left_out.rules_of(packed()) == []


def test_the_attention_familys_are_few():
    """One for each value that the core profile has not, and one for each configuration's condition."""
    flash = recipe.load(ROOT / "tritonsrc/flash/recipe.yaml")
    made = plan.make_plan([flash], targets.parse("sm_90"), "core", (), ROOT / "tuning")
    keys = {v.name: f"{n:064x}" for n, v in enumerate(made.variants, 1)}
    harvest = assemble.Harvest({}, {v.name: "not compiled here" for v in made.variants}, keys)
    kernels = [assemble._slots(kernel, made, harvest, False) for kernel in made.kernels]
    every = sum(len(check(kernel)) for kernel in kernels)
    slots = sum(len(kernel.slots) for kernel in kernels)
    assert every < len(made.variants) < slots / 50, (every, len(made.variants), slots)
