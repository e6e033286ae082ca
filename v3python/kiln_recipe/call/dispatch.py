"""The dispatch tables of a recipe for a target, as a build would generate them, but in Python: from a call's values to
the variants that it runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kiln_recipe.call import evaluate, nearest
from kiln_recipe.call.evaluate import Call, Device, Given, Launch
from kiln_recipe.model import Kernel, Operation, Recipe
from kiln_recipe.plan import plan
from kiln_recipe.plan.model import KernelPlan, Variant
from kiln_recipe.read import tuning
from kiln_recipe.targets import Target

if TYPE_CHECKING:
    from kiln_recipe.selection import Selection


@dataclass(frozen=True)
class Chosen:
    """A kernel of a call: how it is launched, and what is compiled for it."""

    launch: Launch
    variant: Variant

    def __str__(self) -> str:
        return f"{self.variant.name} on a grid of {' x '.join(map(str, self.launch.grid))}"


@dataclass(frozen=True)
class _KernelTable:
    plan: KernelPlan
    variants: Mapping[int, Variant]  # by slot
    reasons: Mapping[int, str]  # by slot why there is none
    lookup: bytes

    def exists(self, functional: int) -> bool:
        """Whether some bin of the look-up leads to a configuration."""
        bins = self.plan.kernel.bin_total
        return any(n != tuning.NO_CONFIGURATION for n in self.lookup[functional * bins : (functional + 1) * bins])

    def reason(self, functional: int) -> str | None:
        """Why the look-up leads nowhere: what the first of the functional's slots without a variant says."""
        each = len(self.plan.configurations) * len(self.plan.kernel.specializations)
        slots = range(functional * each, (functional + 1) * each)
        return next((self.reasons[slot] for slot in slots if slot in self.reasons), None)


class Tables:
    """What there is of a recipe for one target.

    A variant that the recipe lists as `unavailable` counts as not there, as in a build whose compiler rejects it.
    """

    def __init__(
        self, recipe: Recipe, target: Target, profile: str, selection: Selection, tuning_root: Path | None
    ) -> None:
        made = plan.make_plan([recipe], (target,), profile, selection, tuning_root)
        self.target = target
        self._served = {operation: served for (_, operation), served in made.served.items()}
        self.kernels: dict[str, _KernelTable] = {}  # kernels of a family have different names
        for kernel in made.kernels:
            variants = {v.slot: v for v in made.variants_of(kernel) if v.waiver is None}
            waived = {v.slot: v.waiver for v in made.variants_of(kernel) if v.waiver is not None}
            self.kernels[kernel.kernel.name] = _KernelTable(
                kernel, variants, {**kernel.absent, **waived}, plan.lookup(kernel, variants)
            )

    def begin(self, operation: Operation, name: str, given: Sequence[Given], device: Device) -> Call:
        """A call up to its choices, as `evaluate.begin`, served by what there is.

        Raises:
            evaluate.Refusal: an argument is none of the operation's, or a requirement does not hold.
        """
        return evaluate.begin(operation, name, given, device, self._served[operation.name])

    def dispatch(self, call: Call, addresses: Mapping[str, int]) -> list[Chosen]:
        """The kernels that a call runs, in their order.

        Args:
            addresses: of the operation's workspaces.

        Raises:
            evaluate.Refusal: nothing serves it.
        """
        if call.missing:
            raise self.unsupported(call, None, None)
        if call.skipped:
            return []
        wanted = (kernel for kernel in call.operation.kernels if evaluate.is_wanted(call, kernel))
        return [self._choose(call, kernel, addresses) for kernel in wanted]

    def unsupported(self, call: Call, kernel: Kernel | None, why: str | None) -> evaluate.Refusal:
        return nearest.unsupported(
            call, kernel, self.target.name, why, lambda other, functional: self.kernels[other.name].exists(functional)
        )

    def _choose(self, call: Call, kernel: Kernel, addresses: Mapping[str, int]) -> Chosen:
        table = self.kernels[kernel.name]
        functional = call.functional(kernel)
        configuration = table.lookup[functional * kernel.bin_total + evaluate.bin_number(call, kernel)]
        if configuration == tuning.NO_CONFIGURATION:
            raise self.unsupported(call, kernel, table.reason(functional))
        row = table.plan.configuration_rows[configuration]
        launch = evaluate.launch(call, kernel, configuration, row, addresses)
        slot = table.plan.slot(functional, configuration, launch.specialization)
        return Chosen(launch, table.variants[slot])
