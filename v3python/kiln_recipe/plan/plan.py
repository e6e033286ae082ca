"""Which variants exist: recipes, targets, tuned rules and a selection become a plan. Nothing is compiled here."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from kiln_recipe.errors import RecipeError, UsageError
from kiln_recipe.expressions import Expression, Fault, Name
from kiln_recipe.model import (
    OPTION_ORDER,
    Choice,
    Configuration,
    ConfigurationSet,
    Kernel,
    Operation,
    Parameter,
    Recipe,
    Rule,
    Scalar,
    Specialization,
    When,
    spelled,
)
from kiln_recipe.plan.model import CompileSpec, Functional, KernelPlan, Plan, Variant, digest
from kiln_recipe.read import document, tuning
from kiln_recipe.read.configurations import MAX_CONFIGURATIONS
from kiln_recipe.read.descriptors import tile
from kiln_recipe.read.file import RecipeShape
from kiln_recipe.read.fingerprint import fingerprint
from kiln_recipe.read.parameters import triton_dtype
from kiln_recipe.read.rules import is_one_of
from kiln_recipe.selection import PROFILES, spell_selection
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
) -> Plan:
    """The plan of a build.

    Args:
        profile: "core" or "full": which configurations exist, and which values of choices are compiled.
        selection: (choice, values): which functionals are compiled; a choice that it names is free of the profile.
        tuning_root: the folder of tuned rules.

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
    empty: list[list[_Planner]] = []
    fingerprints: dict[tuple[Path, str], str] = {}
    for target in targets:
        for recipe in recipes:
            rules = tuning.tuned_rules(tuning_root, recipe, target)
            for operation in recipe.operations:
                for step in _implementations(operation, target):
                    planners = []
                    for kernel in step:
                        source = (kernel.source, kernel.function)
                        if source not in fingerprints:
                            fingerprints[source] = fingerprint(*source)
                        planner = _Planner(recipe, operation, kernel, target, profile, selected, fingerprints[source])
                        planner.run()
                        planners.append(planner)
                        kernels.append(planner.plan(rules.get(kernel.name, ())))
                        variants += planner.variants
                    if selected and not any(planner.variants for planner in planners):
                        empty.append(planners)
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


def _implementations(operation: Operation, target: Target) -> Iterator[list[Kernel]]:
    """Of each kernel those that are for a target.

    Raises:
        RecipeError: a kernel has none for it.
    """
    for step in operation.steps:
        own = [kernel for kernel in step if kernel.is_for(target)]
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
    """By choice the selected values, as they are spelled; by kernel the selected implementations.

    Raises:
        UsageError: a choice or a value, a kernel or an implementation, is none of any recipe's.
    """
    spellings: dict[str, dict[str, None]] = {}
    for recipe in recipes:
        for operation in recipe.operations:
            for choice in operation.choices:
                spellings.setdefault(choice.name, {}).update(dict.fromkeys(choice.spellings))
            for kernel in operation.kernels:
                if kernel.implementation:
                    spellings.setdefault(kernel.kernel, {}).setdefault(kernel.implementation)
    for name, values in selection:
        if name not in spellings:
            raise UsageError(f"the selection names the unknown choice {name!r}; {nearest(name, spellings, 'choices')}")
        for value in values:
            if value not in spellings[name]:
                known = nearest(value, spellings[name], "values")
                raise UsageError(f"the selection wants {name}={value}, but {name} has no value {value!r}; {known}")
    return dict(selection)


def _left_out(choice: Choice, place: int, profile: str, selection: Mapping[str, tuple[str, ...]]) -> str | None:
    """Why a build has no kernels of a choice's value, or None."""
    selected = selection.get(choice.name)
    if selected is not None:
        is_there = choice.spellings[place] in selected
        return None if is_there else f"this build was made for {choice.name}={','.join(selected)} alone"
    if profile == "core" and not choice.core[place]:
        return f"{choice.name}={choice.spellings[place]} is in the full profile only"
    return None


def _served(choice: Choice, profile: str, selection: Mapping[str, tuple[str, ...]]) -> tuple[int, ...]:
    """For each value of a choice the place of the value that serves it (Plan.served). Where none does, its own: what
    says there why it was left out is the refusal's reason."""
    there = [place for place in range(len(choice.values)) if not _left_out(choice, place, profile, selection)]

    def serves(place: int) -> int:
        if place in there:
            return place
        if choice.match == "next_larger":
            return next((larger for larger in there if larger > place), place)
        return choice.general if choice.general in there else place

    return tuple(map(serves, range(len(choice.values))))


def _left_empty(empty: Sequence[Sequence[_Planner]], targets: int) -> tuple[str, ...]:
    """A sentence for each operation that a selection leaves without variants, or for those of its kernels.

    Args:
        empty: the kernels on their targets, each with its implementations there.
        targets: how many the plan has.
    """
    kernels: dict[tuple[str, str, str, str], list[_Planner]] = {}
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


@dataclass
class _Planner:
    """Fills the slots of one kernel on one target."""

    recipe: Recipe
    operation: Operation
    kernel: Kernel
    target: Target
    profile: str
    selection: Mapping[str, tuple[str, ...]]
    fingerprint: str
    functionals: list[Functional] = field(default_factory=list)
    variants: list[Variant] = field(default_factory=list)
    absent: dict[int, str] = field(default_factory=dict)

    def run(self) -> None:
        self.choices = [self.operation.choice(name) for name in self.kernel.choices]
        self.sets = self.kernel.sets_for(self.target)
        self.configurations = tuple(
            dict.fromkeys(configuration for entry in self.sets for configuration in self.listed(entry))
        )
        if not self.configurations:
            raise RecipeError(
                f"{self.kernel.place}: {self.kernel.name} has no configurations for {self.target.name}; "
                "add an entry for it, or one for default"
            )
        if len(self.configurations) > MAX_CONFIGURATIONS:
            raise RecipeError(
                f"{self.kernel.place}: {self.kernel.name} has {len(self.configurations)} configurations for "
                f"{self.target.name}; a target can have {MAX_CONFIGURATIONS}"
            )
        slot = 0
        for values in self.places():
            functional = Functional(
                " ".join(f"{c.name}={c.spellings[i]}" for c, i in zip(self.choices, values)),
                {c.name: c.values[i] for c, i in zip(self.choices, values)},
                {c.name: c.numbers[i] for c, i in zip(self.choices, values)},
            )
            self.functionals.append(functional)
            left_out = self.not_selected or next(iter(self.left_out(values).values()), None)
            reasons = [left_out or self.excluded(functional, configuration) for configuration in self.configurations]
            for configuration, reason in zip(self.configurations, reasons):
                for specialization in self.kernel.specializations:
                    if not reason:
                        self.variants.append(self.variant(slot, functional, configuration, specialization))
                    elif None in reasons:  # what the target cannot hold says more than what a configuration is for
                        self.absent[slot] = self.waiver(functional, configuration, specialization) or reason
                    else:
                        self.absent[slot] = reason
                    slot += 1

    @property
    def is_selected(self) -> bool:
        """Whether the build takes this implementation."""
        return not self.kernel.implementation or self.kernel.implementation in self.selection.get(
            self.kernel.kernel, (self.kernel.implementation,)
        )

    @property
    def not_selected(self) -> str | None:
        """Why the build does not take this implementation, or None."""
        selected = ",".join(self.selection.get(self.kernel.kernel, ()))
        return None if self.is_selected else f"this build was made for {self.kernel.kernel}={selected} alone"

    def places(self) -> Iterator[tuple[int, ...]]:
        """For each functional the places of its values in their choices."""
        return itertools.product(*(range(len(choice.values)) for choice in self.choices))

    def remedies(self) -> tuple[Selection, ...]:
        """Selections that would give variants to a kernel that has none. Of those that change fewest choices, each: the
        choices that are to be changed, and to which values."""
        possible = [
            (place, tuple(self.left_out(place)))
            for place, functional in zip(self.places(), self.functionals)
            if not all(self.excluded(functional, configuration) for configuration in self.configurations)
        ]
        fewest = min((len(names) for _, names in possible), default=0)
        found: dict[tuple[str, ...], list[tuple[int, ...]]] = {}
        for place, names in possible:
            if len(names) == fewest:
                found.setdefault(names, []).append(place)
        return tuple(
            tuple(
                (choice.name, tuple(choice.spellings[i] for i in sorted({place[n] for place in places})))
                for n, choice in enumerate(self.choices)
                if choice.name in names
            )
            for names, places in found.items()
        )

    def selected(self, remedies: Sequence[Selection]) -> str:
        """What was selected of the choices that are named there; of all that the kernel has, where that is nothing."""
        named = {name for remedy in remedies for name, _ in remedy}
        own = [(name, values) for name, values in self.selection.items() if name in self.kernel.choices]
        return spell_selection(tuple(entry for entry in own if entry[0] in named) or tuple(own))

    def listed(self, entry: ConfigurationSet) -> tuple[Configuration, ...]:
        """What a list gives in this profile."""
        return entry.core if self.profile == "core" else (*entry.core, *entry.full)

    def left_out(self, values: Sequence[int]) -> dict[str, str]:
        """By choice why the functional of these values is not compiled in this build."""
        reasons = (
            _left_out(choice, place, self.profile, self.selection) for choice, place in zip(self.choices, values)
        )
        return {choice.name: reason for choice, reason in zip(self.choices, reasons) if reason}

    def excluded(self, functional: Functional, configuration: Configuration) -> str | None:
        """Why the recipe leaves a configuration out for a functional, or None. Any set that has it may let it in."""
        conditions = []
        for entry in self.sets:
            if configuration not in self.listed(entry):
                continue
            if entry.where is None or self.evaluate(entry.where, functional, configuration):
                return None
            conditions.append(entry.where.text)
        return f"the recipe has {configuration.name} only where {', or where '.join(conditions)}"

    def evaluate(self, expression: Expression, functional: Functional, configuration: Configuration) -> int:
        values = {n: int(v) for n, v in configuration.values if not isinstance(v, str)}
        try:
            return expression.evaluate({**functional.numbers, **values})
        except Fault as fault:
            raise RecipeError(
                f"{self.kernel.place}: {expression.text!r} ends in {fault} for {functional.name} {configuration.name}"
            ) from None

    def constants(self, functional: Functional, configuration: Configuration) -> dict[str, Scalar]:
        """The values of the function's constexpr parameters; what the configuration says goes before `constants`."""
        known: dict[str, Scalar] = {n: v for n, v in configuration.values if n in self.kernel.order}
        for name, value in self.kernel.constants:
            if name in known:
                continue
            if not isinstance(value, Expression):
                known[name] = value
            elif isinstance(value.root, Name) and value.root.text in functional.values:
                known[name] = functional.values[value.root.text]  # keeps its type: True, "bf16"
            else:
                known[name] = self.evaluate(value, functional, configuration)
        return known

    def variant(
        self,
        slot: int,
        functional: Functional,
        configuration: Configuration,
        specialization: Specialization,
    ) -> Variant:
        kernel = self.kernel
        compiled = configuration.overridden(specialization.overrides)
        constants = self.constants(functional, compiled) | dict.fromkeys(specialization.equal_to_one, 1)
        types = {parameter.name: self.type(parameter, functional, compiled) for parameter in kernel.parameters}
        spec = CompileSpec(
            source=str(kernel.source),
            function=kernel.function,
            fingerprint=self.fingerprint,
            signature=tuple((name, "constexpr" if name in constants else types[name]) for name in kernel.order),
            constants=tuple((name, constants[name]) for name in kernel.order if name in constants),
            divisible=tuple(sorted(specialization.divisible, key=lambda entry: kernel.order.index(entry[0]))),
            target=self.target.name,
            options=tuple((name, compiled.mapping[name]) for name in OPTION_ORDER if name in compiled.mapping),
            language=kernel.language,
            ptx=kernel.ptx,
        )
        matching = [
            entry for entry in kernel.spills if self.matches(entry.when, functional, configuration, specialization)
        ]
        return Variant(
            family=self.recipe.family,
            operation=self.operation.name,
            kernel=kernel.name,
            functional=functional.name,
            configuration=configuration.name,
            specialization=specialization.name,
            target=self.target.name,
            slot=slot,
            spec=spec,
            spill_allowance=max((entry.bytes for entry in matching), default=0),
            waiver=self.waiver(functional, configuration, specialization),
            parameter_count=sum(p.count for p in kernel.parameters) - len(specialization.equal_to_one),
        )

    def type(self, parameter: Parameter, functional: Functional, configuration: Configuration) -> str:
        """A parameter's type, as Triton spells it; of a descriptor without the layout of its tile in shared memory."""
        choice = parameter.dtype_choice
        dtype = triton_dtype(str(functional.values[choice])) if choice else ""
        if parameter.descriptor is None:
            return f"*{dtype}" if choice else parameter.type
        dtype = dtype or triton_dtype(str(parameter.descriptor.dtype))
        sides = tile(parameter.descriptor, self.kernel.constants, functional.numbers, configuration)
        return f"tensordesc<{dtype}[{','.join(map(str, sides))}]>"

    def waiver(
        self, functional: Functional, configuration: Configuration, specialization: Specialization
    ) -> str | None:
        """Why a variant may be without an image, if the recipe says so."""
        for entry in self.kernel.unavailable:
            if self.matches(entry.when, functional, configuration, specialization):
                return entry.reason
        return None

    def matches(
        self, when: When, functional: Functional, configuration: Configuration, specialization: Specialization
    ) -> bool:
        return (
            (not when.targets or any(map(self.target.is_called, when.targets)))
            and tuning.fits(when, functional.values)
            and all(
                name in configuration.mapping and is_one_of(configuration.mapping[name], values)
                for name, values in when.configuration
            )
            and (not when.specializations or specialization.name in when.specializations)
        )

    def plan(self, rules: tuple[Rule, ...]) -> KernelPlan:
        return KernelPlan(
            self.recipe.family,
            self.operation.name,
            self.kernel,
            self.target,
            tuple(self.functionals),
            self.configurations,
            rules,
            self.absent,
            self.layout(),
        )

    def layout(self) -> str:
        kernel = self.kernel
        return digest(
            {
                "family": self.recipe.family,
                "operation": self.operation.name,
                "kernel": kernel.name,
                "target": self.target.name,
                "choices": [(c.name, c.numbers, c.spellings) for c in self.choices],
                "columns": kernel.columns,
                "configurations": [[(n, spelled(v)) for n, v in c.values] for c in self.configurations],
                "specializations": [(s.name, s.divisible, s.equal_to_one) for s in kernel.specializations],
                "parameters": [(p.name, p.type, *_rank(p)) for p in kernel.parameters],
            }
        )


def _rank(parameter: Parameter) -> tuple[int, ...]:
    """Of a tensor descriptor the rank, by which it takes parameters of an image."""
    return () if parameter.descriptor is None else (parameter.descriptor.rank,)
