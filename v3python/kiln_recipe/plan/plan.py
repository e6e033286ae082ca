"""Which variants exist: recipes, targets, tuned rules and a selection become a plan. Nothing is compiled here."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from kiln_recipe.documents import document
from kiln_recipe.documents.file import RecipeShape
from kiln_recipe.errors import RecipeError, UsageError
from kiln_recipe.model import Choice, Kernel, Operation, Recipe
from kiln_recipe.plan.model import KernelPlan, Plan, Variant
from kiln_recipe.plan.slots import NOT_CHOSEN, Planner, left_out
from kiln_recipe.read import tuning
from kiln_recipe.read.fingerprint import fingerprint
from kiln_recipe.selection import ALL, PROFILES, SELECTED_NAMES, spell_selection
from kiln_recipe.suggest import nearest
from kiln_recipe.targets import Target

if TYPE_CHECKING:
    from kiln_recipe.selection import Selection


def make_plan(
    recipes: Sequence[Recipe],
    targets: Sequence[Target],
    profile: str = "core",
    selection: Selection = (),
    tuning_root: Path | None = None,
    configurations: str = ALL,
) -> Plan:
    """The plan of a build.

    Args:
        profile: "core" or "full": which configurations exist, and which values of choices are compiled.
        selection: (name, values): which families, operations, implementations and functionals are compiled; a choice
            that it names is free of the profile.
        tuning_root: the folder of tuned rules.
        configurations: one of selection.CONFIGURATIONS.

    Raises:
        UsageError: the profile or something in the selection is unknown, or nothing is left to compile.
        RecipeError: a recipe or a tuning file does not hold, or two recipes are of one family.
    """
    check_profile(profile)
    first: dict[str, Recipe] = {}
    for recipe in recipes:
        if first.setdefault(recipe.family, recipe) is not recipe:
            document.read(recipe.path, RecipeShape).fail(
                ("family",),
                f"{first[recipe.family].path} is of the family {recipe.family!r} too; give each a name of its own",
            )
    selected = check_selection(selection, recipes)
    kernels: list[KernelPlan] = []
    variants: list[Variant] = []
    empty: list[list[Planner]] = []
    fingerprints: dict[tuple[Path, str], str] = {}
    for target in targets:
        for recipe in recipes:
            rules = tuning.tuned_rules(tuning_root, recipe, target)
            for operation in recipe.operations:
                steps: list[list[Planner]] = []
                for step in _implementations(operation, target):
                    planners = []
                    for kernel in step:
                        source = (kernel.source, kernel.function)
                        if source not in fingerprints:
                            fingerprints[source] = fingerprint(*source)
                        planner = Planner(recipe, operation, kernel, target, profile, selected, fingerprints[source])
                        planner.run()
                        planners.append(planner)
                        made, own = planner.plan(rules.get(kernel.name, ())), planner.variants
                        if configurations != ALL:
                            made, own = _without_losers(made, own)
                        kernels.append(made)
                        variants += own
                    steps.append(planners)
                if selected:
                    empty += [step for step in steps if _is_missed(step, steps, selected)]
    if not variants:
        shown = spell_selection(selection)
        raise UsageError(f"nothing is left to compile: no functional of the profile {profile} fits {shown!r}")
    served = {
        (recipe.family, operation.name): {c.name: _served(c, profile, selected) for c in operation.choices}
        for recipe in recipes
        for operation in recipe.operations
    }
    return Plan(
        tuple(recipes),
        tuple(targets),
        profile,
        tuple(kernels),
        tuple(variants),
        served,
        _left_empty(empty, len(targets)),
    )


def _without_losers(plan: KernelPlan, variants: Sequence[Variant]) -> tuple[KernelPlan, list[Variant]]:
    """Without the variants whose configuration the look-up takes for no call, whether or not those have images that the
    recipe lets be missing. The look-up is the same without them: what decides a bin is still the first that it finds.
    A functional of which all may be missing keeps them all.
    """
    every = {variant.slot for variant in variants}
    certain = {variant.slot for variant in variants if variant.waiver is None}
    taken = {
        (functional, decision.configuration)
        for available in (every, certain)
        for functional, row in enumerate(explain(plan, available))
        for decision in row
    }
    alike = len(plan.kernel.specializations)
    places = {v.slot: divmod(v.slot // alike, len(plan.configurations)) for v in variants}
    kept = [v for v in variants if places[v.slot] in taken or (places[v.slot][0], None) in taken]
    lost = dict.fromkeys(sorted(every - {variant.slot for variant in kept}), NOT_CHOSEN)
    return replace(plan, absent={**plan.absent, **lost}), kept


def _implementations(operation: Operation, target: Target) -> Iterator[list[Kernel]]:
    """Of each kernel those that are for a target.

    Raises:
        RecipeError: a kernel has none for it, and no others are run instead.
    """
    for step in operation.steps:
        own = [kernel for kernel in step if kernel.is_for(target)]
        if not own and operation.may_be_replaced(step[0]):
            continue
        if not own:
            raise RecipeError(
                f"{step[0].place}: {step[0].kernel} has no implementation for {target.name}; add one whose `targets` "
                "mean it, or build for other targets"
            )
        yield own


def check_profile(profile: str) -> None:
    """Raises UsageError for one that there is not."""
    if profile not in PROFILES:
        raise UsageError(f"unknown profile {profile!r}; {nearest(str(profile), PROFILES, 'profiles')}")


def check_selection(selection: Selection, recipes: Sequence[Recipe]) -> Mapping[str, tuple[str, ...]]:
    """By choice the selected values, as they are spelled; by kernel the selected implementations; by "family" and
    "operation" the selected ones.

    Raises:
        UsageError: no recipe has such a name or value.
    """
    spellings = known_names(recipes)
    for name, values in selection:
        if name not in spellings:
            raise UsageError(f"the selection names the unknown choice {name!r}; {nearest(name, spellings, 'choices')}")
        for value in values:
            if value not in spellings[name]:
                lack = f"there is no {name}" if name in SELECTED_NAMES else f"{name} has no value"
                known = nearest(value, spellings[name], SELECTED_NAMES.get(name, "values"))
                raise UsageError(f"the selection wants {name}={value}, but {lack} {value!r}; {known}")
    return dict(selection)


def known_names(recipes: Sequence[Recipe]) -> Mapping[str, Mapping[str, None]]:
    """What a selection can name, and for each name its values, in the order of the recipes."""
    spellings: dict[str, dict[str, None]] = {}
    for recipe in recipes:
        for operation in recipe.operations:
            for choice in operation.choices:
                spellings.setdefault(choice.name, {}).update(dict.fromkeys(choice.spellings))
            for kernel in operation.kernels:
                if kernel.implementation:
                    spellings.setdefault(kernel.kernel, {}).setdefault(kernel.implementation)
    families = {recipe.family: None for recipe in recipes}
    operations = {operation.name: None for recipe in recipes for operation in recipe.operations}
    return {**spellings, "family": families, "operation": operations}


def selection_of(recipe: Recipe, selection: Selection) -> Selection:
    """What of a release's selection is about a recipe: the release may have other families, with choices of their
    own."""
    known = known_names([recipe])
    return tuple(
        (name, tuple(value for value in values if value in known[name])) for name, values in selection if name in known
    )


def _served(choice: Choice, profile: str, selection: Mapping[str, tuple[str, ...]]) -> tuple[int, ...]:
    """For each value of a choice the place of the value that serves it (Plan.served). Where none does, its own: what
    says there why it was left out is the refusal's reason."""
    there = [place for place in range(len(choice.values)) if not left_out(choice, place, profile, selection)]

    def serves(place: int) -> int:
        if place in there:
            return place
        if choice.match in ("next_larger", "first_that_fits"):
            return next((larger for larger in there if larger > place), place)
        return choice.general if choice.general in there else place

    return tuple(map(serves, range(len(choice.values))))


def _is_missed(step: Sequence[Planner], steps: Sequence[Sequence[Planner]], selection: Mapping[str, object]) -> bool:
    """Whether a kernel has no variants, and calls want some: not where others of the operation may run instead, which
    are to have variants and all that the selection restricts of the kernel."""

    def has_variants(planners: Sequence[Planner]) -> bool:
        return any(planner.variants for planner in planners)

    operation, kernel = step[0].operation, step[0].kernel
    if not step[0].is_wanted or has_variants(step):
        return False
    restricted = selection.keys() & {*kernel.choices}
    return not operation.may_be_replaced(kernel) or not any(
        has_variants(other) and operation.may_be_replaced(other[0].kernel) and restricted <= {*other[0].kernel.choices}
        for other in steps
    )


def _left_empty(empty: Sequence[Sequence[Planner]], targets: int) -> tuple[str, ...]:
    """A sentence for each operation that a selection leaves without variants, or for those of its kernels.

    Args:
        empty: the kernels on their targets, each with its implementations there.
        targets: how many the plan has.
    """
    kernels: dict[tuple[str, str, str, str], list[Planner]] = {}
    for step in empty:
        planner = next((planner for planner in reversed(step) if planner.is_selected), step[-1])  # the most general
        if not planner.is_selected:
            kernel, others = planner.kernel.kernel, tuple(one.kernel.implementation for one in step)
            selected = spell_selection(((kernel, planner.selection[kernel]),))
            remedy = spell_selection(((kernel, others),))
        elif remedies := planner.remedies():
            selected, remedy = planner.selected(remedies), ", or with ".join(map(spell_selection, remedies))
        else:
            continue  # the recipe has nothing there, whatever is selected
        name = f"{planner.recipe.family}.{planner.operation.name}"
        kernels.setdefault((name, planner.target.name, selected, remedy), []).append(planner)
    places: dict[tuple[str, str, str], list[str]] = {}
    for (operation, target, selected, remedy), planners in kernels.items():
        whole = len(planners) == len(planners[0].operation.steps)
        what = operation if whole else " and ".join(f"{operation}/{planner.kernel.kernel}" for planner in planners)
        places.setdefault((what, selected, remedy), []).append(target)
    return tuple(
        f"with {selected} there is no image of {what} on "
        f"{'any target' if 1 < len(there) == targets else ', '.join(there)}; there are some with {remedy}"
        for (what, selected, remedy), there in places.items()
    )


def lookup(plan: KernelPlan, available: Collection[int]) -> bytes:
    """The look-up of a kernel on its target: for [functional][bin] a configuration's number or 255.

    A configuration is taken for a functional only where all its specializations have images, since the look-up cannot
    know which of them a call will ask for.

    Args:
        available: slots that have an image.
    """
    return bytes(
        tuning.NO_CONFIGURATION if decision.configuration is None else decision.configuration
        for row in explain(plan, available)
        for decision in row
    )


def explain(plan: KernelPlan, available: Collection[int]) -> tuple[tuple[tuning.Decision, ...], ...]:
    """As `lookup`: for each functional and bin the configuration and the rule that decided."""
    there = available if isinstance(available, (set, frozenset, dict)) else set(available)
    specializations = range(len(plan.kernel.specializations))
    return tuning.decide(
        plan.kernel,
        plan.target,
        plan.configurations,
        [functional.values for functional in plan.functionals],
        plan.rules,
        lambda f, c: all(plan.slot(f, c, s) in there for s in specializations),
    )
