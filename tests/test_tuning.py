"""Which configuration decides: tuned rules, the heuristic, what is available."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import small_implementations
import small_recipe
from kiln_recipe import targets
from kiln_recipe.errors import RecipeError
from kiln_recipe.model import Configuration, Rule, When
from kiln_recipe.plan import plan
from kiln_recipe.read import recipe, tuning

HOPPER = targets.by_name("sm_90")
ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> recipe.Recipe:
    return recipe.load(small_recipe.write(tmp_path_factory.mktemp("small")))


@pytest.fixture
def norm(small):
    return small.operations[0].kernels[0]


def configurations(*pairs: tuple[int, int]) -> tuple[Configuration, ...]:
    return tuple(Configuration((("BLOCK", block), ("num_warps", warps))) for block, warps in pairs)


FOUR = configurations((64, 1), (64, 4), (256, 1), (256, 4))
FUNCTIONALS = [
    {"dtype": dtype, "columns_most": columns, "gemma": gemma}
    for dtype, columns, gemma in itertools.product(["fp16", "bf16", "fp8e4m3"], [64, 128, 256], [False, True])
]


def tuned(root, text: str, name: str = "sm_90", family: str = "small"):
    (root / family).mkdir(exist_ok=True)
    (root / family / f"{name}.yaml").write_text(text)
    return root


def test_without_rules_the_heuristic_then_the_first_available(norm):
    decisions = tuning.decide(norm, HOPPER, FOUR, FUNCTIONALS, (), lambda f, c: True)
    heuristic = [rule.place for rule in norm.heuristic]
    for functional, row in zip(FUNCTIONALS, decisions):
        for (size, rate), decision in zip(itertools.product(range(3), range(2)), row):
            if size == 0 and functional["dtype"] == "bf16":
                assert decision == tuning.Decision(0, heuristic[0])
            elif rate == 1:
                assert decision == tuning.Decision(3, heuristic[1])
            else:
                assert decision == tuning.Decision(0, None)


def test_a_rule_for_other_targets_does_not_count(norm):
    decisions = tuning.decide(norm, targets.by_name("gfx1100"), FOUR, FUNCTIONALS[:1], (), lambda f, c: True)
    assert {decision.rule for decision in decisions[0]} == {None}


def test_what_is_not_available_is_never_taken(norm):
    decisions = tuning.decide(norm, HOPPER, FOUR, FUNCTIONALS, (), lambda f, c: c == 1 and f != 0)
    assert {decision.configuration for decision in decisions[0]} == {None}
    assert {decision.configuration for row in decisions[1:] for decision in row} == {1}
    assert {decision.rule for row in decisions for decision in row} == {None}


def test_the_next_rule_decides_where_the_first_has_nothing_available(norm):
    rules = [
        Rule(When(), (("BLOCK", 64),), "a:1"),
        Rule(When(), (("BLOCK", 256), ("num_warps", 4)), "a:2"),
    ]
    decisions = tuning.decide(norm, HOPPER, FOUR, FUNCTIONALS[:1], rules, lambda f, c: c >= 2)
    assert set(decisions[0]) == {tuning.Decision(3, "a:2")}


def test_tuned_rules_stand_before_the_heuristic(tmp_path, small, norm):
    root = tuned(
        tmp_path,
        "summary: measured\nkernels:\n  norm:\n"
        "    - {when: {dtype: [bf16, fp16], size: {at_least: 1000, below: 100000}}, use: {num_warps: 4}}\n",
    )
    rules = tuning.tuned_rules(root, small, HOPPER)["norm"]
    decisions = tuning.decide(norm, HOPPER, FOUR, FUNCTIONALS, rules, lambda f, c: True)
    for functional, row in zip(FUNCTIONALS, decisions):
        for (size, _), decision in zip(itertools.product(range(3), range(2)), row):
            by_tuning = decision == tuning.Decision(1, f"{root}/small/sm_90.yaml:4")
            assert by_tuning == (size == 1 and functional["dtype"] != "fp8e4m3")


def test_the_narrowest_file_of_a_target_is_taken(tmp_path, small):
    for name, warps in (("nvidia", 1), ("hopper", 4), ("default", 8)):
        tuned(tmp_path, f"kernels: {{norm: [{{use: {{num_warps: {warps}}}}}]}}", name)
    for target, warps in (("sm_90", 4), ("sm_80", 1), ("gfx942", 8)):
        (rule,) = tuning.tuned_rules(tmp_path, small, targets.by_name(target))["norm"]
        assert rule.use == (("num_warps", warps),)
    tuned(tmp_path, "kernels: {}", "sm_90")
    assert tuning.tuned_rules(tmp_path, small, HOPPER) == {}


def test_no_file_and_no_folder(tmp_path, small):
    assert tuning.tuned_rules(None, small, HOPPER) == {}
    assert tuning.tuned_rules(tmp_path, small, HOPPER) == {}
    tuned(tmp_path, "kernels: {}", family="another")
    assert tuning.tuned_rules(tmp_path, small, HOPPER) == {}


@pytest.mark.parametrize(
    ("rule", "part"),
    [
        ("{use: {num_warps: 2}}", "no configuration has num_warps=2"),
        ("{use: {num_warps: 1, BLOCK: 512}}", "no configuration has num_warps=1 BLOCK=512 together"),
        ("{use: {num_warps: true}}", "no configuration has num_warps=true"),
        ("{when: {dtype: fp32}, use: {}}", "dtype has no value fp32"),
        ("{when: {gemma: 1}, use: {}}", "gemma has no value 1"),
        ("{when: {size: 1000}, use: {}}", "a condition on the bin size is {at_least: edge, below: edge}"),
        ("{when: {size: {at_least: 7}}, use: {}}", "at_least 7 is not an edge of the bin size: 1000, 100000"),
        ("{when: {specialization: generic}, use: {}}", "a condition on the unknown 'specialization'"),
        ("{when: {sise: {below: 1000}}, use: {}}", "did you mean 'size'"),
        ("{whem: {}, use: {}}", "has the unknown field 'whem'; did you mean 'when'"),
    ],
)
def test_mistakes(tmp_path, small, rule, part):
    root = tuned(tmp_path, f"kernels:\n  norm:\n    - {rule}\n")
    with pytest.raises(RecipeError) as caught:
        tuning.tuned_rules(root, small, HOPPER)
    assert str(caught.value).startswith(f"{root}/small/sm_90.yaml:3: ") and part in str(caught.value)


def test_an_unknown_kernel_and_an_unknown_target(tmp_path, small):
    root = tuned(tmp_path, "kernels:\n  norms: []\n")
    said = r"sm_90.yaml:2: small has no kernel 'norms'; did you mean 'norm'\?.*; if \S+recipe.yaml is of another family"
    with pytest.raises(RecipeError, match=said):
        tuning.tuned_rules(root, small, HOPPER)
    tuned(tmp_path, "kernels: {}", "sm_91")
    with pytest.raises(RecipeError, match=r"sm_91.yaml:1: tunes no target; did you mean 'sm_90'\?"):
        tuning.tuned_rules(root, small, targets.by_name("gfx942"))


@settings(deadline=None, max_examples=100)
@given(st.data())
def test_decisions_are_total(norm_kernel, data):
    """Whatever is available and whatever the rules say: something is taken if anything is available, and it is."""
    there = {
        (f, c) for f in range(len(FUNCTIONALS)) for c in range(len(FOUR)) if data.draw(st.booleans(), label=f"{f},{c}")
    }
    rules = [
        Rule(
            When(
                choices=data.draw(st.sampled_from([(), (("dtype", ("bf16",)),), (("gemma", (True,)),)])),
                bins=data.draw(st.sampled_from([(), (("size", 0, 1),), (("rate", 1, 1), ("size", 2, 2))])),
            ),
            data.draw(st.sampled_from([(), (("BLOCK", 64),), (("BLOCK", 256),), (("num_warps", 4),), (("BLOCK", 7),)])),
            "x:1",
        )
        for _ in range(data.draw(st.integers(0, 4)))
    ]
    decisions = tuning.decide(norm_kernel, HOPPER, FOUR, FUNCTIONALS, rules, lambda f, c: (f, c) in there)
    assert len(decisions) == len(FUNCTIONALS) and {len(row) for row in decisions} == {norm_kernel.bin_total}
    for number, row in enumerate(decisions):
        for decision in row:
            if decision.configuration is None:
                assert not any((number, c) in there for c in range(len(FOUR)))
            else:
                assert (number, decision.configuration) in there


@pytest.fixture(scope="module")
def norm_kernel(small):
    return small.operations[0].kernels[0]


@pytest.mark.parametrize(
    "path", sorted((ROOT / "tuning").glob("*/*.yaml")), ids=lambda path: f"{path.parent.name}-{path.stem}"
)
def test_every_rule_that_is_shipped_decides_something(path):
    """A rule for configurations that the recipe no longer has would be passed over in silence."""
    shipped = recipe.load(ROOT / "tritonsrc" / path.parent.name / "recipe.yaml")
    called = [target for target in targets.load() if target.is_called(path.stem)]
    the_plan = plan.make_plan([shipped], called, "full", (), ROOT / "tuning")
    rules, decided = set(), set()
    for kernel in the_plan.kernels:
        rules |= {rule.place for rule in kernel.rules}
        every = {variant.slot for variant in the_plan.variants_of(kernel)}
        decided |= {decision.rule for row in plan.explain(kernel, every) for decision in row}
    assert rules and rules <= decided


def test_rules_name_implementations(tmp_path):
    tiles = recipe.load(small_implementations.write(tmp_path))
    text = "kernels:\n  copy.plain:\n    - {when: {size: {at_least: 1000}}, use: {BLOCK: 16}}\n"
    rules = tuning.tuned_rules(tuned(tmp_path, text, family="tiles"), tiles, HOPPER)
    assert list(rules) == ["copy.plain"] and rules["copy.plain"][0].use == (("BLOCK", 16),)
    with pytest.raises(RecipeError, match="tiles has no kernel 'copy'; the kernels are copy.tiles"):
        tuning.tuned_rules(tuned(tmp_path, text.replace("copy.plain", "copy"), family="tiles"), tiles, HOPPER)
