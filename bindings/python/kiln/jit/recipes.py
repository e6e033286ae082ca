"""Recipe and Operation: a recipe's operations, called on PyTorch's tensors."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kiln.errors import NotFoundError, UsageError
from kiln.jit import functions
from kiln.jit.calls import Loaded, Run, Settings
from kiln_recipe import suggest, targets
from kiln_recipe.call.dispatch import Chosen
from kiln_recipe.plan import plan
from kiln_recipe.read import recipe
from kiln_recipe.selection import parse_selection


def own_recipe() -> tuple[Path, Path]:
    """The attention family's recipe, and the folder of tuned rules: of the installed package, or of the source tree."""
    package = Path(__file__).absolute().parents[1]
    installed = package / "flash" / "recipe.yaml"
    if installed.is_file():
        return installed, package / "flash" / "tuning"
    tree = Path(__file__).resolve().parents[4]
    return tree / "tritonsrc" / "flash" / "recipe.yaml", tree / "tuning"


class Recipe:
    """A family of kernels, run from its recipe and its sources through Triton, as a build would have compiled them.

        norm = kiln.jit.Recipe("examples/family/recipe.yaml")
        norm.operation("rms_norm")(x, w, out, None, 1e-6)

    Each call goes the runtime's way: definitions, requirements, choices, the look-up's configuration, the
    specialization, grid and parameters; the kernels are compiled with exactly what a build gives the compiler for that
    variant. A call that the recipe does not serve raises what the runtime raises, with its sentence.

    Args:
        path: a recipe.yaml; None: the attention family's own.
        target: compile and look up for it ("sm_90", or any spelling that `kiln targets` lists); None: the device's own,
            and where the interpreter runs "sm_90".
        profile: "full", or "core" for the configurations and values of choices that a core release has.
        select: "operation=attn_fwd;dtype=bf16;head_dim=64": only these, as KILN_SELECT.
        tuning: the folder of tuned rules (<folder>/<family>/<target>.yaml); None: of the attention family its own, of
            others none.
        interpret: run Triton's interpreter on tensors of the CPU; None: as TRITON_INTERPRET said when Triton was
            imported.
        multiprocessors: what expressions read; None: the device's own, and where the interpreter runs 132.

    Raises:
        RecipeError: the recipe does not hold; begins with file:line.
        UsageError: an unknown target, profile or selection; a setting of another kind.
    """

    def __init__(
        self,
        path: str | Path | None = None,
        *,
        target: str | None = None,
        profile: str = "full",
        select: str = "",
        tuning: str | Path | None = None,
        interpret: bool | None = None,
        multiprocessors: int | None = None,
    ) -> None:
        _check(tuning, interpret, multiprocessors)
        own, rules = own_recipe()
        self.path = Path(path) if path is not None else own
        self._interpret = interpret
        self._settings = Settings(
            None if target is None else _one_target(target),
            profile,
            parse_selection(select, "select"),
            Path(tuning) if tuning is not None else rules if path is None else None,
            multiprocessors,
        )
        self._lock = threading.Lock()
        self.reload()

    def reload(self) -> None:
        """Reads the recipe again; kernels' sources and tuned rules are read again at their next use. Operations that
        were taken from this recipe follow.

        Raises:
            RecipeError: the recipe is wrong now; what was loaded stays.
            UsageError: nothing in it matches the selection; what was loaded stays.
        """
        loaded = recipe.load(self.path, native=False)
        plan.check_profile(self._settings.profile)
        plan.check_selection(self._settings.selection, [loaded])
        self._loaded = Loaded(loaded, self._settings)

    @property
    def interpret(self) -> bool:
        """Whether calls are interpreted."""
        return functions.interprets_by_default() if self._interpret is None else self._interpret

    @property
    def family(self) -> str:
        """The family's name, "flash"."""
        return self._loaded.recipe.family

    @property
    def operations(self) -> tuple[str, ...]:
        """The names of its operations, "flash.attn_fwd" first."""
        return tuple(f"{self.family}.{operation.name}" for operation in self._loaded.recipe.operations)

    def operation(self, name: str) -> Operation:
        """One of them, by its name with or without the family's.

        Raises:
            NotFoundError: no operation has that name; names the nearest.
        """
        short = name.removeprefix(f"{self.family}.")
        known = [operation.name for operation in self._loaded.recipe.operations]
        if short not in known:
            raise NotFoundError(f"{self.path} has no operation {name!r}; {suggest.nearest(short, known, 'operations')}")
        return Operation(self, short)

    def __repr__(self) -> str:
        return f"kiln.jit.Recipe({str(self.path)!r})"


class Operation:
    """An operation of a recipe. It is called with the recipe's arguments, in their order or by name: tensors and
    numbers; optional tensors may be left out or None. What a call writes, it writes into tensors that it is given."""

    def __init__(self, recipe: Recipe, name: str) -> None:
        self.recipe = recipe
        self.name = name

    @property
    def arguments(self) -> tuple[str, ...]:
        """The names of its arguments, in the order of a call."""
        return tuple(argument.name for argument in self.recipe._loaded.operation(self.name).arguments)

    def __call__(self, *values: object, **named: object) -> None:
        """Runs it: enqueues its kernels on the device's current stream, or interprets them.

        Raises:
            ArgumentError, RangeError, UnsupportedError: as the runtime.
            KernelError: a kernel's source does not hold, or Triton rejects it.
            ResourcesError: the device has too little shared memory, or too few threads.
        """
        self._run(values, named).execute()

    def explain(self, *values: object, **named: object) -> tuple[Chosen, ...]:
        """The kernels that the same call would run, in their order; nothing runs. Of each `variant` says its names and
        what is compiled, `launch` its grid and arguments; workspaces get made-up addresses. Some tensors may be
        described (kiln_recipe.call.evaluate.Tensor) instead of given."""
        run = self._run(values, named)
        address, addresses = 1 << 40, {}
        for name, size in run.workspaces().items():
            addresses[name] = address
            address += -(-size // 256) * 256
        return tuple(run.dispatch(addresses))

    def workspace_size(self, *values: object, **named: object) -> Mapping[str, int]:
        """By workspace the bytes that the same call takes."""
        return self._run(values, named).workspaces()

    def __repr__(self) -> str:
        return f"{self.recipe!r}.operation({self.name!r})"

    def _run(self, values: tuple[object, ...], named: Mapping[str, object]) -> Run:
        return Run.begin(self.recipe._loaded, self.name, values, named, self.recipe.interpret)


def _check(tuning: Any, interpret: object, multiprocessors: object) -> None:
    """Refuses settings that no call could be run with."""
    if tuning is not None and not Path(tuning).is_dir():
        raise UsageError(f"tuning={str(tuning)!r} is not a folder; it must hold <family>/<target>.yaml")
    if interpret is not None and not isinstance(interpret, bool):
        raise UsageError(f"interpret={interpret!r} must be True, False or None")
    is_count = isinstance(multiprocessors, int) and not isinstance(multiprocessors, bool) and multiprocessors > 0
    if multiprocessors is not None and not is_count:
        raise UsageError(f"multiprocessors={multiprocessors!r} must be 1 or more, or None")


def _one_target(text: str) -> targets.Target:
    found = targets.parse(text)
    if len(found) != 1:
        raise UsageError(f"target={text!r} means {len(found)} targets; give one")
    return found[0]
