"""The dispatch tables of a recipe for a target, as a build would generate them, but in Python: from a call's values to
the variants that it runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kiln_recipe.call import evaluate, implementations, nearest
from kiln_recipe.call.evaluate import Call, Device, Given, Launch
from kiln_recipe.call.implementations import PassedOver
from kiln_recipe.model import Kernel, Operation, Recipe
from kiln_recipe.plan import plan
from kiln_recipe.plan.model import KernelPlan, Variant
from kiln_recipe.read import tuning
from kiln_recipe.targets import Target

if TYPE_CHECKING:
    from kiln_recipe.selection import Selection


@dataclass(frozen=True)
class Chosen:
    """A kernel of a call: how it is launched, and what is compiled for it.

    Attributes:
        passed: the implementations that are tried before this one, and why the call does not run them.
    """

    launch: Launch
    variant: Variant
    passed: tuple[PassedOver, ...] = ()

    def __str__(self) -> str:
        said = f"{self.variant.name} on a grid of {' x '.join(map(str, self.launch.grid))}"
        return "\n".join([said, *(f"  passed over: {one}" for one in self.passed)])


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


def _made_up(call: Call) -> dict[str, int]:
    """Addresses of a call's workspaces that nothing is written to."""
    addresses, end = {}, 1 << 60
    for workspace, size in evaluate.workspaces(call).items():
        addresses[workspace] = end
        end += size + -size % evaluate.ALIGNMENT
    return addresses


class Tables:
    """What there is of a recipe for one target.

    Unless `lack` tells, a variant that the recipe lists as `unavailable` counts as not there, as in a build whose
    compiler rejects it.

    Args:
        unfit: why an implementation cannot run here, whatever the call; None where it can.
        lack: why there is no image of a variant; None where there is one.
    """

    def __init__(
        self,
        recipe: Recipe,
        target: Target,
        profile: str,
        selection: Selection,
        tuning_root: Path | None,
        unfit: Callable[[Kernel], str | None] = lambda _kernel: None,
        lack: Callable[[Variant], str | None] = lambda variant: variant.waiver,
    ) -> None:
        made = plan.make_plan([recipe], (target,), profile, selection, tuning_root)
        self.target = target
        self._unfit = unfit
        self._served = {operation: served for (_, operation), served in made.served.items()}
        self.kernels: dict[str, _KernelTable] = {}  # kernels of a family have different names
        for kernel in made.kernels:
            lacks = {v.slot: lack(v) for v in made.variants_of(kernel)}
            variants = {v.slot: v for v in made.variants_of(kernel) if lacks[v.slot] is None}
            missing = {slot: why for slot, why in lacks.items() if why is not None}
            self.kernels[kernel.kernel.name] = _KernelTable(
                kernel, variants, {**kernel.absent, **missing}, plan.lookup(kernel, variants)
            )

    def begin(self, operation: Operation, name: str, given: Sequence[Given], device: Device) -> Call:
        """A call up to its choices, as `evaluate.begin`, served by what there is.

        Raises:
            evaluate.Refusal: the operation has no such argument, or a requirement does not hold.
        """
        served = self._served[operation.name]
        call = evaluate.begin(operation, name, given, device, served)
        while not call.missing and not call.skipped:
            passed = self._none_fits(call)
            following = evaluate.with_next(call, served, passed) if passed else None
            if following is None:
                break
            call = following
        return call

    def _none_fits(self, call: Call) -> list[PassedOver]:
        """Why no implementation of one of the call's kernels fits; empty where each has one that does. Asked only of
        calls that could run others instead."""
        if all(choice.match != "first_that_fits" for choice in call.operation.choices):
            return []
        addresses = _made_up(call)
        for step in call.operation.steps:
            if evaluate.is_wanted(call, step[0]):
                passed: list[PassedOver] = []
                for kernel in step:
                    found = self._try(call, kernel, addresses)
                    if isinstance(found, Chosen):
                        break
                    passed.append(found)
                else:
                    return passed
        return []

    def dispatch(self, call: Call, addresses: Mapping[str, int]) -> list[Chosen]:
        """The kernels that a call runs, in their order.

        Args:
            addresses: of the operation's workspaces.

        Raises:
            evaluate.Refusal: nothing serves it.
        """
        if call.missing:
            raise self.unsupported(call, (), None)
        if call.skipped:
            return []
        wanted = (step for step in call.operation.steps if evaluate.is_wanted(call, step[0]))
        chosen = [self._choose(call, step, addresses) for step in wanted]
        if chosen and call.passed:
            chosen[0] = dataclasses.replace(chosen[0], passed=(*call.passed, *chosen[0].passed))
        return chosen

    def explain(
        self, operation: Operation, name: str, given: Sequence[Given], device: Device | None = None
    ) -> list[Chosen]:
        """The kernels that a call would run on a GPU that need not be here; its workspaces are at made-up addresses.

        Args:
            device: None: a typical one of the target.

        Raises:
            evaluate.Refusal: it is not served.
        """
        call = self.begin(operation, name, given, device or Device.of(self.target))
        return self.dispatch(call, {} if call.missing or call.skipped else _made_up(call))

    def unsupported(self, call: Call, failed: Sequence[Kernel], why: str | None) -> evaluate.Refusal:
        def exists(kernel: Kernel, functional: int) -> bool:
            return self._disqualified(call, kernel) is None and self.kernels[kernel.name].exists(functional)

        return nearest.unsupported(call, failed, self.target.name, why, exists)

    def none_fits(self, call: Call, step: Sequence[Kernel], passed: Sequence[PassedOver]) -> evaluate.Refusal:
        """The refusal of a call that no implementation of a kernel fits. Where the last of them, which the others leave
        calls to, lacks an image, that is the reason, whatever the others do not take."""
        last = passed[-1]
        if last.kernel.name in self.kernels and last.of_images:
            return self.unsupported(call, step, last.lack)
        lacks = "; ".join(map(str, passed))
        if not all(one.of_images for one in passed):
            return evaluate.Refusal(
                "UNSUPPORTED",
                f"{call.name}: kernel {step[0].kernel} does not take this call on {self.target.name}: {lacks}",
            )
        return self.unsupported(call, step, lacks if len(step) > 1 else "its target has no such kernel")

    def _choose(self, call: Call, step: Sequence[Kernel], addresses: Mapping[str, int]) -> Chosen:
        """The first implementation of a kernel that fits a call."""
        passed: list[PassedOver] = []
        for kernel in step:
            found = self._try(call, kernel, addresses)
            if isinstance(found, Chosen):
                return dataclasses.replace(found, passed=tuple(passed))
            passed.append(found)
        raise self.none_fits(call, step, passed)

    def _disqualified(self, call: Call, kernel: Kernel) -> PassedOver | None:
        """Why no call on this device runs an implementation, or None."""
        if kernel.name not in self.kernels:
            return implementations.lack_of_target(kernel, self.target)
        if reason := self._unfit(kernel):
            return PassedOver(kernel, reason)
        return implementations.lack_of_driver(kernel, self.target, call.device)

    def _try(self, call: Call, kernel: Kernel, addresses: Mapping[str, int]) -> Chosen | PassedOver:
        if lack := self._disqualified(call, kernel) or evaluate.serves(call, kernel):
            return lack
        table = self.kernels[kernel.name]
        functional = call.functional(kernel)
        configuration = table.lookup[functional * kernel.bin_total + evaluate.bin_number(call, kernel)]
        if configuration == tuning.NO_CONFIGURATION:
            return PassedOver(kernel, table.reason(functional) or "", of_images=True)
        row = table.plan.configuration_rows[configuration]
        launch = evaluate.launch(call, kernel, configuration, row, addresses)
        if isinstance(launch, PassedOver):
            return launch
        slot = table.plan.slot(functional, configuration, launch.specialization)
        return Chosen(launch, table.variants[slot])
