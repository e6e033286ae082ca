"""Plans: the slot space, what is compiled of it, keys, digests, look-ups, and the verbs that print them."""

from __future__ import annotations

import cProfile
import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

import small_implementations
import small_recipe
from kiln_build import cli
from kiln_build.store.local import LocalStore
from kiln_recipe import model, targets
from kiln_recipe.compile import toolchain
from kiln_recipe.errors import RecipeError, ToolchainError, UsageError
from kiln_recipe.plan import plan
from kiln_recipe.plan.model import KernelPlan, Plan
from kiln_recipe.read import recipe

TREE = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> recipe.Recipe:
    return recipe.load(small_recipe.write(tmp_path_factory.mktemp("small")))


def planned(small, names: str = "sm_90", *arguments, **named) -> Plan:
    return plan.make_plan([small], targets.parse(names), *arguments, **named)


def kernel_plan(the_plan: Plan, kernel: str, target: str) -> KernelPlan:
    (found,) = [k for k in the_plan.kernels if k.kernel.name == kernel and k.target.name == target]
    return found


def test_the_slot_space_is_whole_and_each_slot_is_filled_or_says_why(small):
    the_plan = planned(small, "sm_90;gfx90a;gfx942", "core")
    assert [target.name for target in the_plan.targets] == ["gfx90a", "gfx942", "sm_90"]
    assert len(the_plan.kernels) == 6
    for kernel in the_plan.kernels:
        slots = [v.slot for v in the_plan.variants if (v.kernel, v.target) == (kernel.kernel.name, kernel.target.name)]
        assert sorted([*slots, *kernel.absent]) == list(range(kernel.slots))
        for variant in the_plan.variants:
            if (variant.kernel, variant.target) == (kernel.kernel.name, kernel.target.name):
                rest, specialization = divmod(variant.slot, len(kernel.kernel.specializations))
                functional, configuration = divmod(rest, len(kernel.configurations))
                assert kernel.functionals[functional].name == variant.functional
                assert kernel.configurations[configuration].name == variant.configuration
                assert kernel.kernel.specializations[specialization].name == variant.specialization
                assert kernel.slot(functional, configuration, specialization) == variant.slot


def test_configurations_without_variants_have_no_slots(small):
    """Of those that the profile, the selection or the recipe leaves out wherever the build has a functional."""

    def blocks(made: KernelPlan) -> set:
        return {configuration.mapping["BLOCK"] for configuration in made.configurations}

    narrow = kernel_plan(planned(small, "sm_90", "full", (("columns_most", ("256",)),)), "norm", "sm_90")
    whole = kernel_plan(planned(small, "sm_90", "full"), "norm", "sm_90")
    assert blocks(narrow) == {256, 512} and blocks(whole) == {64, 256, 512} and narrow.layout != whole.layout
    assert narrow.slots == len(narrow.functionals) * len(narrow.configurations) * 3 < whole.slots
    none = kernel_plan(planned(small, "sm_90", "core", (("gemma", ("false",)),)), "norm", "sm_90")
    assert blocks(none) == {64, 256}


def test_functionals_are_mixed_radix_numbers_the_first_choice_the_most_significant(small):
    names = [functional.name for functional in kernel_plan(planned(small), "norm", "sm_90").functionals]
    assert names[:3] == [
        "dtype=fp16 columns_most=64 gemma=false",
        "dtype=fp16 columns_most=64 gemma=true",
        "dtype=fp16 columns_most=128 gemma=false",
    ]
    assert len(names) == 3 * 3 * 2 and names[-1] == "dtype=fp8e4m3 columns_most=256 gemma=true"


def test_the_profiles(small):
    core, full = planned(small, "sm_90", "core"), planned(small, "sm_90", "full")
    assert len(kernel_plan(core, "norm", "sm_90").configurations) == 4
    assert len(kernel_plan(full, "norm", "sm_90").configurations) == 5
    assert kernel_plan(core, "norm", "sm_90").absent[200].startswith("dtype=fp8e4m3 is in the full profile only")
    assert not any("fp8" in variant.functional for variant in core.variants)
    assert any("fp8" in variant.functional for variant in full.variants)


def test_where_leaves_configurations_out(small):
    kernel = kernel_plan(planned(small), "norm", "sm_90")
    number = [f.name for f in kernel.functionals].index("dtype=fp16 columns_most=128 gemma=false")
    reason = "the recipe has BLOCK=64 num_warps=1 only where BLOCK >= columns_most"
    assert kernel.absent[kernel.slot(number, 0, 0)] == reason
    assert kernel.slot(number, 2, 0) not in kernel.absent


def test_specs(small):
    the_plan = planned(small, "sm_90;gfx90a")
    by_name = {variant.name: variant for variant in the_plan.variants}
    one = by_name["small.rms_norm/norm[dtype=bf16 columns_most=64 gemma=true][BLOCK=64 num_warps=4][one]@sm_90"]
    assert one.spec.signature == (
        ("x_ptr", "*bf16"), ("w_ptr", "*fp32"), ("out_ptr", "*bf16"), ("stride", "i64"), ("columns", "constexpr"),
        ("eps", "fp32"), ("flag", "i1"), ("COLUMNS", "constexpr"), ("GEMMA", "constexpr"), ("KIND", "constexpr"),
        ("BLOCK", "constexpr"),
    )  # fmt: skip
    assert one.spec.constants == (("columns", 1), ("COLUMNS", 64), ("GEMMA", True), ("KIND", "bf16"), ("BLOCK", 64))
    assert one.spec.constants[2][1] is True
    assert one.spec.divisible == (("x_ptr", 16),) and one.spec.options == (("num_warps", 4),)
    assert one.parameter_count == 6 and one.spill_allowance == 0 and one.waiver is None
    cdna = [variant for variant in the_plan.variants if variant.target == "gfx90a" and variant.kernel == "norm"]
    assert {variant.spec.options for variant in cdna} == {
        (("num_warps", 4), ("waves_per_eu", 0)),
        (("num_warps", 4), ("waves_per_eu", 2)),
    }
    generic = [
        variant for variant in the_plan.variants if variant.specialization == "generic" and variant.kernel == "norm"
    ]
    assert {variant.spill_allowance for variant in generic} == {8}


def test_a_specialization_overrides_its_images_constants_and_options_alone(tmp_path):
    overrides = "generic: {overrides: {BLOCK: 64, num_warps: 1, KIND: 7}}"
    path = small_recipe.write(tmp_path, small_recipe.RECIPE.replace("generic: {}\n", overrides + "\n", 1))
    variants = [v for v in planned(recipe.load(path)).variants if v.kernel == "norm" and v.target == "sm_90"]
    generic = [v for v in variants if v.specialization == "generic"]
    assert {v.configuration for v in generic} == {v.configuration for v in variants} and len(generic) > 4
    assert {v.spec.options for v in generic} == {(("num_warps", 1),)}
    assert {(dict(v.spec.constants)["BLOCK"], dict(v.spec.constants)["KIND"]) for v in generic} == {(64, 7)}
    # Configurations that differ in what is overridden alone have one image: their keys are equal.
    assert len({v.spec.key("t") for v in generic}) == len({v.functional for v in generic})
    others = [v for v in variants if v.specialization != "generic"]
    assert {dict(v.spec.constants)["BLOCK"] for v in others} == {64, 256}
    assert {dict(v.spec.options)["num_warps"] for v in others} == {1, 4}


def test_fp8_is_spelled_as_triton_does_and_waived_where_the_recipe_says(small):
    fp8 = [v for v in planned(small, "gfx90a;gfx942", "full").variants if "fp8" in v.functional]
    assert {dict(variant.spec.signature)["x_ptr"] for variant in fp8} == {"*fp8e4nv"}
    assert {variant.waiver for variant in fp8 if variant.target == "gfx90a"} == {"no fp8 there"}
    assert {variant.waiver for variant in fp8 if variant.target == "gfx942"} == {None}


def test_the_largest_spill_allowance_counts(small):
    variants = [v for v in planned(small, "gfx1100").variants if v.kernel == "norm"]
    allowed = {(v.spec.constants[-1][1], v.specialization): v.spill_allowance for v in variants}
    assert allowed[256, "aligned"] == 16 and allowed[256, "generic"] == 16
    assert allowed[64, "aligned"] == 0 and allowed[64, "generic"] == 8


def test_keys_are_contents_alone(small, tmp_path):
    moved = tmp_path / "else where"
    shutil.copytree(small.path.parent, moved)
    (moved / "kernel.py").write_text("# a comment\n" + (moved / "kernel.py").read_text())
    here, there = planned(small), planned(recipe.load(moved / "recipe.yaml"))
    assert [v.spec.source for v in here.variants] != [v.spec.source for v in there.variants]
    assert [v.spec.key("t") for v in here.variants] == [v.spec.key("t") for v in there.variants]
    assert len({v.spec.key("t") for v in here.variants}) == len(here.variants)


def test_everything_but_the_source_changes_the_key(small):
    spec = planned(small).variants[0].spec
    key = spec.key("t")
    assert len(key) == 64 and spec.key("u") != key
    assert replace(spec, source="/else/where.py").key("t") == key
    changes = {
        "function": "other",
        "fingerprint": "0",
        "signature": spec.signature[1:],
        "constants": spec.constants[1:],
        "divisible": (),
        "target": "sm_80",
        "options": (("num_warps", 2),),
    }
    keys = {replace(spec, **{name: value}).key("t") for name, value in changes.items()}
    assert len(keys) == len(changes) and key not in keys
    # A truth value is no number to Triton.
    assert replace(spec, constants=(("A", 1),)).key("t") != replace(spec, constants=(("A", True),)).key("t")


def test_changing_a_kernel_changes_its_keys_only(tmp_path):
    before = planned(recipe.load(small_recipe.write(tmp_path)))
    changed = small_recipe.KERNEL.replace("tl.sum(x * x, 0)", "tl.sum(x * x * x, 0)")
    after = planned(recipe.load(small_recipe.write(tmp_path, kernel=changed)))
    for old, new in zip(before.variants, after.variants):
        assert (old.spec.key("t") == new.spec.key("t")) == (old.kernel == "count")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("values: [64, 128, 256]", "values: [64, 128, 512]"),
        ("{BLOCK: [64, 256], num_warps: [1, 4]}", "{BLOCK: [64, 256], num_warps: [1, 8]}"),
        ("[x_ptr, out_ptr]", "[x_ptr]"),
        ("columns: {type: i32,", "columns: {type: i64,"),
        ("choices: [dtype, columns_most, gemma]", "choices: [columns_most, dtype, gemma]"),
    ],
)
def test_the_layout_digest_changes_with_the_tables(small, tmp_path, old, new):
    text = small_recipe.RECIPE.replace(old, new).replace("use: {BLOCK: 256, num_warps: 4}", "use: {BLOCK: 256}")
    after = kernel_plan(planned(recipe.load(small_recipe.write(tmp_path, text))), "norm", "sm_90")
    assert small_recipe.RECIPE.count(old) == 1
    assert after.layout != kernel_plan(planned(small), "norm", "sm_90").layout
    assert len({k.layout for k in planned(small, "sm_80;sm_90").kernels}) == 4


def test_selection(small):
    the_plan = planned(small, "sm_90", "core", (("dtype", ("bf16",)), ("columns_most", ("64", "128"))))
    norm = [variant for variant in the_plan.variants if variant.kernel == "norm"]
    assert {variant.functional.split()[0] for variant in norm} == {"dtype=bf16"}
    kernel = kernel_plan(the_plan, "norm", "sm_90")
    assert kernel.slots == 216 and kernel.absent[0] == "this build was made for dtype=bf16 alone"
    assert kernel.layout == kernel_plan(planned(small), "norm", "sm_90").layout
    # What it names is compiled, whatever the profile has.
    assert any("fp8" in v.functional for v in planned(small, "sm_90", "core", (("dtype", ("fp8e4m3",)),)).variants)


def test_a_selection_may_name_families_and_operations(small, tiles):
    both, sm_90 = [small, tiles], targets.parse("sm_90")
    for selection, family in (
        ((("family", ("tiles",)), ("dtype", ("fp16",))), "tiles"),
        ((("operation", ("rms_norm",)),), "small"),
        ((("dtype", ("fp16",)), ("family", ("small", "tiles")), ("operation", ("copy",))), "tiles"),
    ):
        the_plan = plan.make_plan(both, sm_90, "core", selection)
        assert {variant.family for variant in the_plan.variants} == {family}
        # Nobody is warned of what was asked for; the slots of the others are there and say it to their calls.
        assert the_plan.warnings == () and {kernel.family for kernel in the_plan.kernels} == {"small", "tiles"}
        name, values = next(one for one in selection if one[0] != "dtype" and len(one[1]) == 1)
        for kernel in the_plan.kernels:
            alone = f"this build was made for {name}={values[0]} alone"
            assert (kernel.family == family) == (alone not in kernel.absent.values())
            assert kernel.family == family or len(kernel.absent) == kernel.slots
    whole = plan.make_plan(both, sm_90).variants
    assert plan.make_plan(both, sm_90, "core", (("family", ("small",)),)).variants == tuple(
        variant for variant in whole if variant.family == "small"
    )
    with pytest.raises(UsageError, match=r"nothing is left to compile: .* fits 'family=small;operation=copy'"):
        plan.make_plan(both, sm_90, "core", (("family", ("small",)), ("operation", ("copy",))))


def test_what_serves_a_value_that_a_build_leaves_out(tmp_path):
    text = small_recipe.RECIPE.replace(
        "gemma: {of: gemma, values: [false, true]}",
        "weight: {of: gemma + (w.data != 0), values: [none, plain, both], general: both}",
    )
    text = text.replace("GEMMA: gemma", "GEMMA: weight").replace("columns_most, gemma]", "columns_most, weight]")
    small = recipe.load(small_recipe.write(tmp_path, text))

    def served(*selection: tuple[str, tuple[str, ...]], profile: str = "core") -> list[tuple[int, ...]]:
        (by_choice,) = planned(small, "sm_90", profile, selection).served.values()
        return list(by_choice.values())

    itself = (0, 1, 2)
    assert served(profile="full") == [itself, itself, itself]
    # What nothing serves stays what it is: its slots say why there is no image.
    assert served() == [itself, itself, itself]
    assert served(("dtype", ("bf16",)), ("columns_most", ("128",))) == [itself, (1, 1, 2), itself]
    assert served(("columns_most", ("64", "256")), ("weight", ("both",))) == [itself, (0, 2, 2), (2, 2, 2)]
    assert served(("weight", ("none", "plain"))) == [itself, itself, itself]


def limited(folder: Path, where: str, *, alone: bool = False) -> recipe.Recipe:
    """The small recipe, where its norm has configurations as `where` says but for CDNA; `alone`: its only kernel."""
    text = small_recipe.RECIPE.replace("where: BLOCK >= columns_most", f"where: {where}")
    if alone:
        text = text[: text.index("      count:\n")].replace("    workspace:\n      total: 4 * max(rows, 1)\n", "")
    return recipe.load(small_recipe.write(folder, text))


def test_what_a_selection_leaves_without_variants_is_named_with_what_there_is(small, tmp_path):
    one, wide = limited(tmp_path, "columns_most < 256"), (("columns_most", ("256",)),)
    with_256, there_are = "with columns_most=256 there is no image of", "there are some with columns_most=64,128"
    said = (f"{with_256} small.rms_norm/norm on sm_80, sm_90; {there_are}",)
    assert planned(one, "sm_80;sm_90;gfx90a", "core", wide).warnings == said
    assert planned(one, "sm_90", "core", (*wide, ("dtype", ("bf16",)))).warnings == (said[0].replace("sm_80, ", ""),)
    said = (f"{with_256} small.rms_norm/norm on any target; {there_are}",)
    assert planned(one, "sm_80;sm_90", "core", wide).warnings == said
    # Nothing to say: of what has variants, without a selection, and of a kernel that the recipe leaves empty.
    assert planned(one, "gfx90a", "core", wide).warnings == planned(one, "sm_90").warnings == ()
    assert planned(limited(tmp_path, "columns_most > 256"), "sm_90", "core", wide).warnings == ()


def test_an_operation_of_which_nothing_is_left_is_named_itself(tmp_path):
    one, wide = limited(tmp_path, "columns_most < 256", alone=True), (("columns_most", ("256",)),)
    (said,) = planned(one, "sm_90;gfx90a", "core", wide).warnings
    assert said.startswith("with columns_most=256 there is no image of small.rms_norm on sm_90; there are some with ")


def test_each_way_to_select_what_there_is_is_named(tmp_path):
    one = limited(tmp_path, "columns_most == 64 and dtype == fp8e4m3 or columns_most == 128 and dtype == fp16")
    (said,) = planned(one, "sm_90", "core", (("dtype", ("bf16",)), ("columns_most", ("256",)))).warnings
    both = "dtype=fp16,fp8e4m3;columns_most=64,128"
    assert said.startswith("with dtype=bf16;columns_most=256 ") and said.endswith(f"; there are some with {both}")
    # The profile leaves out as a selection does; what is not selected is not blamed.
    (said,) = planned(one, "sm_90", "core", (("columns_most", ("64",)),)).warnings
    assert said.startswith("with columns_most=64 ")
    assert said.endswith("there are some with columns_most=128, or with dtype=fp8e4m3")


def test_the_verb_warns_of_what_a_selection_leaves_out(capsys, tmp_path):
    path = limited(tmp_path, "columns_most < 256").path
    words = ["plan", "sm_90", "--recipe", str(path), "--json", "--select", "columns_most=256"]
    assert cli.main(words) == 0
    said = capsys.readouterr()
    assert said.err.startswith("kiln: warning: with columns_most=256 there is no image of small.rms_norm/norm on sm_90")
    assert said.err.count("\n") == 1 and json.loads(said.out)["variants"] == 1


@pytest.mark.parametrize(
    ("selection", "part"),
    [
        (
            (("dtyp", ("bf16",)),),
            "the unknown choice 'dtyp'; did you mean 'dtype'? the choices are dtype, columns_most",
        ),
        (
            (("dtype", ("bf61",)),),
            "dtype=bf61, but dtype has no value 'bf61'; did you mean 'bf16'? the values are fp16",
        ),
        ((("gemma", ("1",)),), "gemma has no value '1'; the values are false, true"),
        (
            (("family", ("smal",)),),
            "family=smal, but there is no family 'smal'; did you mean 'small'? the families are",
        ),
        ((("operation", ("norm",)),), "operation=norm, but there is no operation 'norm'; did you mean 'rms_norm'?"),
        ((("operations", ("norm",)),), "the unknown choice 'operations'; did you mean 'operation'?"),
    ],
)
def test_mistakes_in_a_selection(small, selection, part):
    with pytest.raises(UsageError) as caught:
        planned(small, "sm_90", "core", selection)
    assert part in str(caught.value)


def test_other_mistakes(small, tmp_path):
    with pytest.raises(UsageError, match="unknown profile 'al'"):
        planned(small, "sm_90", "al")
    (tmp_path / "other").mkdir()
    other = recipe.load(small_recipe.write(tmp_path / "other", "# another\n" + small_recipe.RECIPE))
    with pytest.raises(RecipeError) as caught:
        plan.make_plan([small, other], targets.parse("sm_90"))
    assert str(caught.value).startswith(f"{other.path}:2: {small.path} is of the family 'small' too;")
    text = small_recipe.RECIPE.replace(
        "          - core: [{BLOCK: 16, num_warps: 1}]", "          - {targets: amd, core: [{BLOCK: 16}]}"
    )
    amd = recipe.load(small_recipe.write(tmp_path, text))
    assert planned(amd, "gfx942").variants
    with pytest.raises(
        RecipeError, match=r"recipe.yaml:67: count has no configurations for sm_90; add an entry .* \[hopper\]\)"
    ):
        planned(amd, "sm_90")
    text = small_recipe.RECIPE.replace("where: BLOCK >= columns_most", "where: 1 // (columns_most - 128)")
    with pytest.raises(RecipeError, match="ends in division by zero for dtype=fp16 columns_most=128"):
        planned(recipe.load(small_recipe.write(tmp_path, text)))


def test_lookup_takes_what_has_all_specializations(small):
    kernel = kernel_plan(planned(small), "norm", "sm_90")
    everything = set(range(kernel.slots)) - set(kernel.absent)
    table = plan.lookup(kernel, everything)
    assert len(table) == len(kernel.functionals) * 6 and set(table) == {0, 2, 3, 255}
    fp8 = [i for i, f in enumerate(kernel.functionals) if "fp8" in f.name]
    assert all(table[i * 6 + b] == 255 for i in fp8 for b in range(6))
    # Without its `one` image the configuration is not taken any more.
    assert plan.lookup(kernel, everything - {kernel.slot(0, 0, 1)})[0] == 1
    assert set(plan.lookup(kernel, ())) == {255}
    assert plan.lookup(kernel, sorted(everything)) == table


def test_tuned_rules_decide(small, tmp_path):
    (tmp_path / "small").mkdir()
    (tmp_path / "small" / "sm_90.yaml").write_text("kernels: {norm: [{use: {BLOCK: 256, num_warps: 1}}]}")
    the_plan = planned(small, "sm_80;sm_90", "core", tuning_root=tmp_path)
    kernel = kernel_plan(the_plan, "norm", "sm_90")
    everything = set(range(kernel.slots)) - set(kernel.absent)
    assert set(plan.lookup(kernel, everything)) == {2, 255}
    assert plan.explain(kernel, everything)[0][0].rule == f"{tmp_path}/small/sm_90.yaml:1"
    assert not kernel_plan(the_plan, "norm", "sm_80").rules


def test_configuration_rows(small):
    kernel = kernel_plan(planned(small, "gfx90a"), "norm", "gfx90a")
    assert kernel.configuration_rows == ((256, 4, 0), (256, 4, 2))
    assert kernel_plan(planned(small), "norm", "sm_90").configuration_rows[1] == (64, 4, 0)


def test_planning_takes_few_steps(small):
    """Counted in calls of functions, the same on every machine: so many a variant, however many variants there are."""

    def steps(words: str) -> tuple[int, int]:
        with cProfile.Profile() as profile:
            the_plan = planned(small, words, "full")
        return sum(entry.callcount for entry in profile.getstats()), len(the_plan.variants)

    one, few = steps("sm_90")
    five, many = steps("MI300X;MI200;Navi31;sm_80;sm_90")
    assert many > 500
    assert five / many < 1.2 * one / few < 300


def test_the_tree_has_a_plan_for_every_target():
    """Every recipe of this tree, in both profiles."""
    recipes = [recipe.load(path) for path in recipe.find(TREE)]
    assert recipes
    for profile in plan.PROFILES:
        the_plan = plan.make_plan(recipes, targets.load(), profile, tuning_root=TREE / "tuning")
        assert {variant.target for variant in the_plan.variants} == {target.name for target in targets.load()}


# ---- kiln plan, kiln recipes ----


def run(capsys, *words: str, code: int = 0) -> str:
    assert cli.main(list(words)) == code
    captured = capsys.readouterr()
    return captured.out if code == 0 else captured.err


def test_the_verb_prints_counts_and_an_estimate(capsys, small):
    words = ["plan", "sm_90;gfx90a", "--recipe", str(small.path), "--jobs", "2"]
    out = run(capsys, *words, "--configurations", "all")
    header, *lines = out.splitlines()
    assert header.split()[:3] == ["TARGET", "KERNEL", "FUNCTIONALS"]
    row = next(line for line in lines if line.startswith("sm_90") and "/norm" in line)
    assert row.split()[1:] == ["small.rms_norm/norm", "12", "of", "18", "4", "3", "96", "0", "heuristic"]
    assert "170 variants for 2 targets, profile core: about 77 s of compiling (0.02 core-hours; 170 estimated" in out
    assert out.endswith("with 2 at once; an empty store is assumed: KILN_STORE or --store names one to look into\n")
    assert "110 variants for 2 targets, profile core: " in run(capsys, *words), "without configurations of no rule"
    assert "unknown configuration 'some'" in run(capsys, *words, "--configurations", "some", code=2)


def test_a_store_is_looked_into_without_the_packages_of_a_build(small, tmp_path):
    """`./kiln plan` installs input/front.lock and what reads stores, and neither jinja2 nor Triton."""
    LocalStore(tmp_path / "store").record_duration("x", 1.0)
    hidden = "import sys; sys.modules |= {'jinja2': None, 'triton': None}"
    code = f"{hidden}; from kiln_build import cli; sys.exit(cli.main())"
    words = ["plan", "sm_90", "--recipe", str(small.path), "--store", str(tmp_path / "store")]
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("has_triton", [True, False])
def test_the_verb_counts_what_the_store_has(capsys, small, tmp_path, monkeypatch, has_triton):
    def toolchain_of(_tree):
        if not has_triton:
            raise ToolchainError("no Triton is installed")
        return SimpleNamespace(identity="this one")

    monkeypatch.setattr("kiln_build.ledger.chain.toolchain_of", toolchain_of)
    store = LocalStore(tmp_path / "store")
    keys = {variant.spec.key("this one"): variant.name for variant in planned(small).variants}
    first = next(iter(keys))
    monkeypatch.setattr(LocalStore, "holds", lambda self, key: key in keys and key != first)
    for variant in planned(small).variants:
        store.record_duration(variant.name, 10.0)
    words = ["plan", "sm_90", "--recipe", str(small.path), "--store", str(tmp_path / "store"), "--jobs", "1"]
    words += ["--configurations", "all"]
    out = run(capsys, *words)
    if has_triton:
        assert (
            "about 10 s of compiling (0.00 core-hours; 1 recorded), " in out
            and f"96 of 97 are in the store {store.location}\n" in out
        )
    else:
        assert "about 16 min of compiling" in out and "without Triton it is not known which images it has" in out
    assert json.loads(run(capsys, *words, "--json"))["stored"] == (96 if has_triton else None)


def test_what_multiplies_no_matrices_is_estimated_lower(capsys, tmp_path, monkeypatch):
    """By all files that a kernel's own takes from."""
    monkeypatch.delenv("KILN_STORE", raising=False)
    head = "import triton\nimport triton.language as tl\n"
    silu = (TREE / "examples/silu/silu.py").read_text().replace("tl.exp(", "power(")
    shares = []
    bodies = {
        "elements": "tl.exp(x)", "gamma": "libdevice.lgamma(x)",
        "products": "tl.dot(x, x)", "cdna": "cdna3.mfma(x, x, x)", "hopper": "hopper.warpgroup_mma(x, x, x)",
    }  # fmt: skip
    for name, body in bodies.items():
        folder = tmp_path / name
        folder.mkdir()
        shutil.copy(TREE / "examples/silu/recipe.yaml", folder)
        (folder / "silu.py").write_text(silu.replace(head, f"{head}from powers import power\n"))
        (folder / "powers.py").write_text(f"{head}\n\n@triton.jit\ndef power(x):\n    return {body}\n")
        found = json.loads(run(capsys, "plan", "sm_90", "--recipe", str(folder / "recipe.yaml"), "--json"))
        assert found["expected_from"]["usual"] < found["variants"], "two images are equal, and are compiled once"
        compiled = found["expected_from"]["usual"]
        shares.append(found["seconds"] / compiled / targets.by_name("sm_90").compile_seconds)
    assert shares == pytest.approx([0.3, 0.3, 1.0, 1.0, 3.3], rel=0.05)


def test_the_verb_estimates_from_recorded_durations(capsys, small, tmp_path):
    store = LocalStore(tmp_path / "store")
    for variant in planned(small).variants:
        store.record_duration(variant.name, 10.0)
    out = run(
        capsys,
        "plan",
        "sm_90",
        "--recipe",
        str(small.path),
        "--store",
        str(tmp_path / "store"),
        "--jobs",
        "1",
        "--configurations",
        "all",
        "--json",
    )
    document = json.loads(out)
    assert document["variants"] == 97 and document["seconds"] == 970.0 and document["durations"] == "recorded"
    assert document["stored"] in (0, None), "None where no Triton is installed"
    assert [kernel["kernel"] for kernel in document["kernels"]] == ["small.rms_norm/norm", "small.rms_norm/count"]
    names = [variant["name"] for kernel in document["kernels"] for variant in kernel["variants"]]
    assert names == [variant.name for variant in planned(small).variants]


def test_the_verb_explains(capsys, small):
    out = run(capsys, "plan", "sm_90", "--recipe", str(small.path), "--explain")
    assert "1000 <= size < 100000, rate < 4" in out
    assert f"({small.path}:60)" in out and "no rule fits: first available" in out
    assert "left out: 6 functionals: dtype=fp8e4m3 is in the full profile only" in out


@pytest.mark.parametrize(
    ("narrow", "headings"),
    [
        (None, ["all 12 functionals that are compiled:"]),
        (
            "{dtype: bf16}",
            [
                "6 functionals: dtype=fp16 columns_most=64,128,256 gemma=false,true",
                "6 functionals: dtype=bf16 columns_most=64,128,256 gemma=false,true",
            ],
        ),
        (
            "{dtype: bf16, columns_most: 64, gemma: true}",
            [
                *(f"dtype=fp16 columns_most={n} gemma={g}" for n in (64, 128, 256) for g in ("false", "true")),
                "dtype=bf16 columns_most=64 gemma=false",
                *(f"dtype=bf16 columns_most={n} gemma={g}" for n in (128, 256) for g in ("false", "true")),
                "dtype=bf16 columns_most=64 gemma=true",
            ],
        ),
    ],
)
def test_the_verb_explains_together_what_is_alike(capsys, tmp_path, narrow, headings):
    """All; parts that are each combination of some values; a part that is not, and one functional."""
    first, _, behind = small_recipe.RECIPE.partition("        heuristic:\n")
    rules = "          - {use: {BLOCK: 256, num_warps: 4}}\n"
    if narrow:
        rules = f"          - {{when: {narrow}, use: {{BLOCK: 256, num_warps: 1}}}}\n{rules}"
    text = first + "        heuristic:\n" + rules + behind[behind.index("        spills:") :]
    path = small_recipe.write(tmp_path, text)
    printed = run(capsys, "plan", "sm_90", "--recipe", str(path), "--explain")
    kernel = printed.partition("norm on sm_90\n")[2].partition("  left out: ")[0].splitlines()
    assert [line.strip() for line in kernel if not line.startswith("    ")] == headings
    bins = [line for line in kernel if line.startswith("    ")]
    assert len(bins) == (12 if narrow else 6) and all("BLOCK=256 num_warps=4  (" in line for line in bins[:6])


def test_the_verb_obeys_the_variables_of_a_build(capsys, small, monkeypatch):
    monkeypatch.setenv("KILN_SELECT", "dtype=bf16")
    monkeypatch.setenv("KILN_PROFILE", "full")
    out = run(capsys, "plan", "sm_90", "--recipe", str(small.path), "--variants")
    assert "profile full" in out and "[dtype=bf16 " in out and "[dtype=fp16 " not in out
    error = run(capsys, "plan", "sm_90", "--recipe", str(small.path), "--select", "dtype=bf17", code=2)
    assert error == (
        "kiln: the selection wants dtype=bf17, but dtype has no value 'bf17'; did you mean 'bf16'? the values are "
        "fp16, bf16, fp8e4m3\n"
    )


def test_recipes_lists_checks_and_prints_the_schema(capsys, small, tmp_path):
    out = run(capsys, "recipes", str(small.path))
    assert (
        "small.rms_norm  out = x / rms(x)" in out
        and "columns_most = 64, 128, 256, the smallest that is large enough" in out
    )
    (one,) = json.loads(run(capsys, "recipes", str(small.path), "--json"))
    assert one["operations"][0]["kernels"][0]["parameters"][0] == {"name": "x_ptr", "type": "*dtype", "value": "x.data"}
    assert json.loads(run(capsys, "recipes", "--schema")) == recipe.schema()
    wrong = small_recipe.write(tmp_path, small_recipe.RECIPE.replace("grid: [rows]", "grids: [rows]"))
    error = run(capsys, "recipes", str(wrong), code=3)
    assert error.startswith(f"kiln: {wrong}:42: ") and "did you mean 'grid'?" in error and "Traceback" not in error


@pytest.fixture(scope="module")
def tiles(tmp_path_factory) -> recipe.Recipe:
    return recipe.load(small_implementations.write(tmp_path_factory.mktemp("tiles")))


def test_an_implementation_has_variants_on_its_own_targets_alone(tiles):
    the_plan = planned(tiles, "sm_90;sm_120;gfx942")
    found = {target.name: [] for target in the_plan.targets}
    for kernel in the_plan.kernels:
        found[kernel.target.name].append(kernel.kernel.name)
        assert len(the_plan.variants_of(kernel)) == kernel.slots
    assert found == {
        "gfx942": ["copy.plain"],
        "sm_90": ["copy.tiles", "copy.described", "copy.plain"],
        "sm_120": ["copy.described", "copy.plain"],
    }
    assert the_plan.variants[0].name.startswith(
        "tiles.copy/copy.plain[dtype=fp16 width=32][BLOCK=16 num_warps=4][aligned]"
    )


def test_language_and_ptx_are_in_a_key_where_they_are_not_the_usual(tiles):
    specs = {v.kernel: v.spec for v in planned(tiles).variants}
    assert specs["copy.tiles"].marks == {"language": "gluon", "ptx": 86}
    assert specs["copy.described"].marks == {"ptx": 87} and specs["copy.plain"].marks == {}
    keys = {one.key("toolchain") for one in (specs["copy.tiles"], replace(specs["copy.tiles"], ptx=0),
                                             replace(specs["copy.tiles"], language="triton"))}  # fmt: skip
    assert len(keys) == 3
    assert [specs[name].compile_options["ptx_version"] for name in specs] == [86, 87, 80]


def test_an_option_s_default_is_passed_and_is_in_a_key_by_the_toolchain(tiles, monkeypatch):
    spec = next(v.spec for v in planned(tiles).variants if v.kernel == "copy.plain")
    off = replace(spec, options=(*spec.options, ("enable_fp_fusion", False)))
    assert spec.compile_options["enable_fp_fusion"] is True and off.compile_options["enable_fp_fusion"] is False
    chain = toolchain.Toolchain("", "3.8.0", ())
    keys = {spec.key(chain.identity), off.key(chain.identity)}
    monkeypatch.setitem(model.OPTION_DEFAULTS, "enable_fp_fusion", False)
    assert len(keys | {spec.key(chain.identity)}) == 3


def test_a_descriptor_s_type_names_its_tile(tiles):
    signatures = {
        v.configuration + v.functional: v.spec.signature for v in planned(tiles).variants if v.kernel == "copy.tiles"
    }
    assert signatures["BLOCK=128 num_warps=4dtype=fp32 width=64"][:2] == (
        ("x_desc", "tensordesc<fp32[128,64]>"),
        ("out_desc", "tensordesc<fp32[128,64]>"),
    )


def test_a_selection_may_name_implementations(tiles):
    the_plan = planned(tiles, "sm_90;gfx942", "core", (("copy", ("plain", "tiles")), ("dtype", ("fp16",))))
    assert {variant.kernel for variant in the_plan.variants} == {"copy.plain", "copy.tiles"}
    described = kernel_plan(the_plan, "copy.described", "sm_90")
    assert set(described.absent.values()) == {"this build was made for copy=plain,tiles alone"}
    assert set(plan.lookup(described, ())) == {255} and the_plan.warnings == ()
    assert planned(tiles, "sm_90;gfx942", "core", (("copy", ("tiles",)),)).warnings == (
        "with copy=tiles there is no image of tiles.copy on gfx942; there are some with copy=plain",
    )
    for selection, sentence in (
        (
            (("copy", ("plane",)),),
            "the selection wants copy=plane, but copy has no value 'plane'; did you mean 'plain'",
        ),
        ((("cope", ("plain",)),), "the selection names the unknown choice 'cope'; did you mean 'copy'"),
    ):
        with pytest.raises(UsageError, match=sentence):
            planned(tiles, "sm_90", "core", selection)


def test_images_of_a_choice_that_an_implementation_does_not_depend_on_are_equal(tmp_path):
    path = small_implementations.write(
        tmp_path, small_implementations.COUNTED, triton=small_implementations.TRITON_COUNTED
    )
    the_plan = planned(recipe.load(path), "sm_90")
    keys = {
        name: [(v.functional, v.spec.key("toolchain")) for v in the_plan.variants if v.kernel == name]
        for name in ("copy.tiles", "copy.plain")
    }
    for name, distinct in (("copy.tiles", 0.5), ("copy.plain", 1)):
        assert len(dict(keys[name])) == 8 and len({key for _, key in keys[name]}) == distinct * len(keys[name])


def test_a_target_that_no_implementation_is_for(tmp_path):
    text = small_implementations.RECIPE.replace(
        "          plain:\n            source: triton_kernel.py\n",
        "          plain:\n            source: triton_kernel.py\n            targets: nvidia\n",
    )
    loaded = recipe.load(small_implementations.write(tmp_path, text))
    assert planned(loaded, "sm_80").variants
    with pytest.raises(RecipeError, match=r"recipe.yaml:\d+: copy has no implementation for gfx942; add one whose"):
        planned(loaded, "sm_80;gfx942")


def test_the_verbs_show_implementations(tmp_path, capsys):
    path = small_implementations.write(tmp_path)
    assert cli.main(["plan", "sm_90", "--recipe", str(path), "--explain"]) == 0
    printed = capsys.readouterr().out
    assert "tiles.copy/copy.tiles on sm_90" in printed and "1000 <= size  BLOCK=64" in printed
    assert cli.main(["recipes", str(path)]) == 0
    printed = capsys.readouterr().out
    assert "kernel     copy.tiles: for hopper, in Gluon, where rows >= limit; depends on dtype, width" in printed
    assert "kernel     copy.plain: depends on dtype, width" in printed
    assert cli.main(["recipes", str(path), "--json"]) == 0
    kernels = json.loads(capsys.readouterr().out)[0]["operations"][0]["kernels"]
    assert [k["language"] for k in kernels] == ["gluon", "triton", "triton"]
    assert (kernels[0]["serves"], kernels[0]["ptx"], kernels[0]["targets"]) == ("rows >= limit", "8.6", ["hopper"])
    assert kernels[0]["reason"] is None
    assert kernels[0]["parameters"][0] == {
        "name": "x_desc", "type": "descriptor", "value": "x.data", "descriptor": "x", "box": ["BLOCK", "WIDTH"],
    }  # fmt: skip
