"""The slots of one kernel on one target: which a variant fills, what that is compiled from, why others are empty."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kiln_recipe.dtypes import TRITON_DTYPES
from kiln_recipe.errors import RecipeError
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
from kiln_recipe.plan.model import CompileSpec, Functional, KernelPlan, Variant, digest
from kiln_recipe.read import tuning
from kiln_recipe.read.configurations import MAX_CONFIGURATIONS
from kiln_recipe.read.descriptors import tile
from kiln_recipe.read.rules import is_one_of
from kiln_recipe.selection import spell_selection
from kiln_recipe.targets import Target

if TYPE_CHECKING:
    from kiln_recipe.selection import Selection


# Why a build without losers (selection.CHOSEN) lacks a variant.
NOT_CHOSEN = "no rule for this target chooses its configuration; KILN_CONFIGURATIONS=all builds it too"


def left_out(choice: Choice, place: int, profile: str, selection: Mapping[str, tuple[str, ...]]) -> str | None:
    """Why a build has no kernels of a choice's value, or None."""
    selected = selection.get(choice.name)
    if selected is not None:
        is_there = choice.spellings[place] in selected
        return None if is_there else f"this build was made for {choice.name}={','.join(selected)} alone"
    if profile == "core" and not choice.core[place]:
        return f"{choice.name}={choice.spellings[place]} is in the full profile only"
    return None


@dataclass
class Planner:
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
            narrow, *others = (self.target.name, *self.target.groups[1:2])
            wide = "".join(f" (or [{group}])" for group in others)
            raise RecipeError(
                f"{self.kernel.place}: {self.kernel.name} has no configurations for {self.target.name}; "
                f"add an entry with `targets: [{narrow}]`{wide}, or one without `targets`, which is for all others"
            )
        if len(self.configurations) > MAX_CONFIGURATIONS:
            raise RecipeError(
                f"{self.kernel.place}: {self.kernel.name} has {len(self.configurations)} configurations for "
                f"{self.target.name}; a target can have {MAX_CONFIGURATIONS}"
            )
        reasons = []  # for each functional those of all configurations
        for values in self.places():
            functional = Functional(
                " ".join(f"{c.name}={c.spellings[i]}" for c, i in zip(self.choices, values)),
                {c.name: c.values[i] for c, i in zip(self.choices, values)},
                {c.name: c.numbers[i] for c, i in zip(self.choices, values)},
            )
            self.functionals.append(functional)
            left_out = self.not_selected or next(iter(self.left_out(values).values()), None)
            reasons.append([left_out or self.excluded(functional, one) for one in self.configurations])
        self._fill(reasons)

    def _fill(self, reasons: Sequence[Sequence[str | None]]) -> None:
        """Fills the slots: of the configurations that the build has variants of, if it has any. Slots of the others
        would be most of a small pack.

        Args:
            reasons: for each functional why the build has none of a configuration, or None.
        """
        used = [any(row[number] is None for row in reasons) for number in range(len(self.configurations))]
        if any(used):
            self.configurations = tuple(itertools.compress(self.configurations, used))
            reasons = [[*itertools.compress(row, used)] for row in reasons]
        slot = 0
        for functional, row in zip(self.functionals, reasons):
            for configuration, reason in zip(self.configurations, row):
                for specialization in self.kernel.specializations:
                    if not reason:
                        self.variants.append(self.variant(slot, functional, configuration, specialization))
                    elif None in row:  # what the target cannot hold says more than what a configuration is for
                        self.absent[slot] = self.waiver(functional, configuration, specialization) or reason
                    else:
                        self.absent[slot] = reason
                    slot += 1

    @property
    def is_wanted(self) -> bool:
        """Whether the build takes this operation."""
        return not self._other_than(("family", self.recipe.family), ("operation", self.operation.name))

    @property
    def is_selected(self) -> bool:
        """Whether the build takes this implementation of the operation's kernel."""
        return not self._other_than(self._implementation)

    @property
    def not_selected(self) -> str | None:
        """Why the build takes nothing of this kernel, or None."""
        return self._other_than(
            ("family", self.recipe.family), ("operation", self.operation.name), self._implementation
        )

    @property
    def _implementation(self) -> tuple[str, str]:
        return self.kernel.kernel, self.kernel.implementation

    def _other_than(self, *settings: tuple[str, str]) -> str | None:
        """The reason by the first of these names and values that the selection leaves out, or None."""
        for name, value in settings:
            selected = self.selection.get(name, (value,))
            if value and value not in selected:
                return f"this build was made for {name}={','.join(selected)} alone"
        return None

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
        reasons = (left_out(choice, place, self.profile, self.selection) for choice, place in zip(self.choices, values))
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
        dtype = TRITON_DTYPES[str(functional.values[choice])] if choice else ""
        if parameter.descriptor is None:
            return f"*{dtype}" if choice else parameter.type
        dtype = dtype or TRITON_DTYPES[str(parameter.descriptor.dtype)]
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
