"""A call of an operation, from PyTorch's tensors to kernels that run."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from kiln.errors import NotFoundError
from kiln.jit import tensors
from kiln.jit.compiled import Images, not_compiled
from kiln.jit.errors import ArgumentError, KilnError, UnsupportedError, of_refusal
from kiln.jit.functions import Functions
from kiln.jit.interpreted import Interpreter, not_interpreted
from kiln.jit.tensors import Memory
from kiln_recipe import suggest, targets
from kiln_recipe.call import evaluate
from kiln_recipe.call.dispatch import Chosen, Tables
from kiln_recipe.call.evaluate import Call, Device, Refusal
from kiln_recipe.model import Argument, Operation, Recipe
from kiln_recipe.targets import Target

if TYPE_CHECKING:
    from kiln_recipe.selection import Selection

INTERPRETED_TARGET = "sm_90"


@dataclass(frozen=True)
class Settings:
    """What a recipe is run with: as of recipes.Recipe; None: the device's own, or nothing tuned."""

    target: Target | None
    profile: str
    selection: Selection
    tuning: Path | None
    multiprocessors: int | None


class Loaded:
    """A recipe as its files were when it was read, and what was made of it since."""

    def __init__(self, recipe: Recipe, settings: Settings) -> None:
        self.recipe = recipe
        self.settings = settings
        self.functions = Functions()
        self.images = Images()
        self.interpreter = Interpreter()
        self._tables: dict[tuple[str, bool], Tables] = {}
        self._lock = threading.Lock()

    def operation(self, name: str) -> Operation:
        for operation in self.recipe.operations:
            if operation.name == name:
                return operation
        raise NotFoundError(f"{self.recipe.path} has no operation {name!r} any more")

    def tables(self, target: Target, interpreted: bool) -> Tables:
        """The dispatch tables for a target, made at their first use: of the implementations that the interpreter, or
        the installed Triton, can run."""
        settings, key = self.settings, (target.name, interpreted)
        with self._lock:
            if key not in self._tables:
                unfit = not_interpreted if interpreted else not_compiled
                self._tables[key] = Tables(
                    self.recipe, target, settings.profile, settings.selection, settings.tuning, unfit
                )
            return self._tables[key]


@dataclass(frozen=True)
class Run:
    """A call whose arguments hold.

    Attributes:
        tensors: its tensors, by name.
        absent: those that it leaves out.
    """

    loaded: Loaded
    call: Call
    device: torch.device
    target: Target
    tensors: Mapping[str, torch.Tensor]
    absent: Sequence[str]
    interpreted: bool

    @staticmethod
    def begin(
        loaded: Loaded, operation: str, values: Sequence[object], named: Mapping[str, object], interpreted: bool
    ) -> Run:
        """A call up to its choices.

        Args:
            values, named: its arguments, in the recipe's order and by name.

        Raises:
            ArgumentError, RangeError: the operation has no such argument, or a requirement does not hold.
        """
        model, full = loaded.operation(operation), f"{loaded.recipe.family}.{operation}"
        given = _bind(full, model.arguments, values, named)
        used = {name: value for name, value in given.items() if isinstance(value, torch.Tensor)}
        device = tensors.one_device(full, used)
        target = _target(full, device, loaded.settings.target, interpreted)
        count = loaded.settings.multiprocessors or _multiprocessors(device)
        plain: list[Any] = [
            tensors.describe(full, name, value) if name in used else value for name, value in given.items()
        ]
        try:
            call = loaded.tables(target, interpreted).begin(model, full, plain, Device.of(target, count))
        except Refusal as refusal:
            raise of_refusal(refusal) from None
        absent = [one.name for one in model.arguments if one.kind == "tensor" and given[one.name] is None]
        return Run(loaded, call, device, target, used, absent, interpreted)

    def workspaces(self) -> Mapping[str, int]:
        """By workspace its bytes."""
        if self.call.missing or self.call.skipped:
            return {}
        try:
            return evaluate.workspaces(self.call)
        except Refusal as refusal:
            raise of_refusal(refusal) from None

    def dispatch(self, addresses: Mapping[str, int]) -> list[Chosen]:
        """The kernels that it runs.

        Args:
            addresses: of the workspaces.

        Raises:
            UnsupportedError, RangeError: nothing serves it.
        """
        if self.call.skipped:
            return []
        try:
            return self.loaded.tables(self.target, self.interpreted).dispatch(self.call, addresses)
        except Refusal as refusal:
            raise of_refusal(refusal) from None

    def execute(self) -> None:
        """Runs it. Everything is compiled, or read, before anything runs: a call does all or nothing as far as that can
        be known."""
        # The interpreter's are filled with NaN, so that what is read before it is written is seen.
        made = tensors.allocate(self.workspaces(), self.device, poisoned=self.interpreted)
        chosen = self.dispatch({name: address for name, (address, _) in made.items()})
        memory = Memory.of({**self.tensors, **{name: block for name, (_, block) in made.items()}}, self.absent)
        ready = [self.loaded.functions.get(one.variant.spec, self.interpreted) for one in chosen]
        if self.interpreted:
            for function in ready:
                self.loaded.interpreter.prepare(function)
            with self.loaded.interpreter.running(memory):
                for one, function in zip(chosen, ready):
                    self._zero(one, memory)
                    self.loaded.interpreter.run(one, function)
            return
        with torch.cuda.device(self.device):
            images = [self.loaded.images.get(*pair, self.target, self.device) for pair in zip(chosen, ready)]
            for one, image in zip(chosen, images):
                self._zero(one, memory)
                image.launch(one)

    def _zero(self, chosen: Chosen, memory: Memory) -> None:
        for number, (address, size) in enumerate(chosen.launch.zeros):
            if not memory.zero(address, size):
                raise KilnError(
                    f"{self.call.name}: range {number} that kernel {chosen.launch.kernel.name} wants zeroed, "
                    f"{size} bytes, is outside of the call's tensors and workspaces"
                )


def _bind(
    full: str, wanted: Sequence[Argument], values: Sequence[object], named: Mapping[str, object]
) -> dict[str, object]:
    """The arguments by name, in the recipe's order; None for what is left out and may be."""
    names = [argument.name for argument in wanted]
    if len(values) > len(names):
        raise ArgumentError(f"{full}: {len(values)} arguments are given; it takes {len(names)}: {', '.join(names)}")
    given = dict(zip(names, values))
    for name, value in named.items():
        if name not in names:
            raise ArgumentError(f"{full} has no argument {name!r}; {suggest.nearest(name, names, 'arguments')}")
        if name in given:
            raise ArgumentError(f"{full}: {name} is given twice")
        given[name] = value
    for argument in wanted:
        if argument.name not in given and not argument.optional:
            raise ArgumentError(f"{full} lacks its argument {argument.name}")
        value = given.get(argument.name)
        if value is not None and not isinstance(value, (int, float, torch.Tensor, evaluate.Tensor)):
            raise ArgumentError(
                f"{full}: {argument.name} is a {type(value).__name__}; an argument is a tensor, a number or None"
            )
    return {name: given.get(name) for name in names}


def _target(full: str, device: torch.device, wanted: Target | None, interpreted: bool) -> Target:
    """The target that a call is looked up for.

    Raises:
        ArgumentError: the tensors are where nothing can run.
    """
    if interpreted:
        if device.type != "cpu":
            raise ArgumentError(f"{full}: the interpreter takes tensors of the CPU, but these are on {device}")
        return wanted or targets.by_name(INTERPRETED_TARGET)
    if device.type != "cuda":
        raise ArgumentError(
            f"{full}: compiled kernels run on GPUs, but these tensors are on {device}; interpret=True runs them there"
        )
    return wanted or _target_of(full, device)


def _target_of(full: str, device: torch.device) -> Target:
    """The target of a GPU: its own, or one whose images it executes."""
    properties = torch.cuda.get_device_properties(device)
    name = f"sm_{properties.major}{properties.minor}"
    if torch.version.hip:
        name = properties.gcnArchName.partition(":")[0]
    serving = [target for target in targets.load() if target.name == name or name in target.runs_on]
    if not serving:
        known = ", ".join(target.name for target in targets.load())
        raise UnsupportedError(f"{full}: {device} is a {name}, which no target serves; the targets are {known}")
    return max(serving, key=lambda target: target.name == name)


def _multiprocessors(device: torch.device) -> int:
    if device.type != "cuda":
        return evaluate.TYPICAL_MULTIPROCESSORS
    return torch.cuda.get_device_properties(device).multi_processor_count
