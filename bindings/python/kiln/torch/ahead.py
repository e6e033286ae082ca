"""What a call would run on a target whose GPU need not be here: by the packs that are found, the package's recipe, and
the dispatch that also runs kiln.jit. Needs the packages of kiln.jit that read recipes, no device and no driver."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import kiln
from kiln import _arguments, _release
from kiln.errors import NotFoundError, UsageError
from kiln.information import Variant
from kiln.jit.errors import of_refusal
from kiln.jit.packages import need
from kiln_recipe import targets
from kiln_recipe.call import evaluate
from kiln_recipe.dtypes import DTYPES
from kiln_recipe.model import Kernel
from kiln_recipe.plan.model import Variant as Planned
from kiln_recipe.selection import parse_selection


class _Tensor(evaluate.Tensor):
    """As the formulas of arguments read it."""

    @property
    def shape(self) -> tuple[int, ...]:
        return self.sizes

    def dim(self) -> int:
        return len(self.sizes)


class Ahead:
    """The attention family's images for a target.

    Raises:
        UsageError: there is no such target, or the text means several.
        NotFoundError: no pack for it is found.
        MissingPackageError: what reads a recipe is not installed.
    """

    def __init__(self, word: str) -> None:
        need("msgspec"), need("yaml")
        from kiln.jit.recipes import own_recipe
        from kiln_recipe.call.dispatch import Tables
        from kiln_recipe.plan import plan
        from kiln_recipe.read import recipe

        found = targets.parse(word)
        if len(found) != 1:
            raise UsageError(f"target={word!r} means {len(found)} targets; give one")
        (self.target,) = found
        path, rules = own_recipe()
        self._recipe = recipe.load(path, native=False)
        self._kernels = {kernel.name: kernel for one in self._recipe.operations for kernel in one.kernels}
        self._rows = {
            (row.operation, row.kernel, row.functional, row.configuration, row.specialization): row
            for row in kiln.variants(target=self.target.name)
            if row.operation.startswith(f"{self._recipe.family}.")
        }
        if all(row.unavailable is not None for row in self._rows.values()):  # a pack lists its empty slots too
            raise NotFoundError(
                f"the pack of {self.target.name} has no images of {self._recipe.family}: this build was made for other "
                f"families alone; build one with family={self._recipe.family} in KILN_SELECT, or without KILN_SELECT"
            )
        selection = plan.selection_of(self._recipe, parse_selection(_release.SELECTION))
        self._tables = Tables(self._recipe, self.target, _release.PROFILE, selection, rules, lack=self._lack)

    def explain(self, operation: str, fields: Mapping[str, Any]) -> list[Variant]:
        """The images of a call.

        Args:
            fields: of the operation's structure by name; tensors as kiln._core takes them.

        Raises:
            ArgumentError, RangeError, UnsupportedError: as the runtime.
        """
        from kiln.jit.flash import within

        given = {**_arguments.DEFAULTS[operation], **fields}
        for name, value in given.items():
            if isinstance(value, tuple):
                address, dtype, sizes, strides = value
                given[name] = _Tensor(address, DTYPES[dtype], tuple(sizes), tuple(strides))
        for name, least, most, must in _arguments.LIMITS:
            if name in given:
                given[name] = within(given[name], least, most, must)
        model = next(one for one in self._recipe.operations if one.name == operation)
        values: list[Any] = []
        for argument in model.arguments:
            formula = _arguments.RECIPE.get(argument.name)
            value = formula(given) if formula else given.get(argument.name)
            values.append(int(value) if isinstance(value, bool) else value)
        try:
            chosen = self._tables.explain(model, f"{self._recipe.family}.{operation}", values)
            return [self._rows[self._place(one.variant)] for one in chosen]
        except evaluate.Refusal as refusal:
            raise of_refusal(refusal) from None

    def _lack(self, variant: Planned) -> str | None:
        row = self._rows.get(self._place(variant))
        return "the pack has no image of it" if row is None else row.unavailable

    def _place(self, variant: Planned) -> tuple[str, str, str, str, str]:
        kernel: Kernel = self._kernels[variant.kernel]
        name = f"{kernel.kernel}.{kernel.implementation}" if kernel.implementation else kernel.kernel
        operation = f"{variant.family}.{variant.operation}"
        return operation, name, variant.functional, variant.configuration, variant.specialization
