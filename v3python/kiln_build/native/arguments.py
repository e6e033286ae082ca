"""A family's table of arguments (tritonsrc/flash/arguments.yaml, which explains itself): its model, and its reading.
argument_files.py generates what is made of it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NoReturn

import msgspec

from kiln_recipe.documents import document
from kiln_recipe.dtypes import DTYPES
from kiln_recipe.errors import RecipeError

FILE = "arguments.yaml"  # beside the recipe
TABLE = f"tritonsrc/flash/{FILE}"  # in a source tree
NO_FIELD = "none"
_TENSORS = ("tensor", "optional")
_REALS = ("real", "scale")
NAME = re.compile(r"(?<![\w.])[A-Za-z_]\w*")  # a word of a formula
ATTRIBUTE = re.compile(r"(?<![\w.])([A-Za-z_]\w*)\.(\w+)")


class RowShape(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    kind: Literal["tensor", "optional", "integer", "real", "scale", "flag", "dtype", "address", "keys", "text"]
    field: str | None = None
    default: int = 0
    required: bool = False
    dtype: Literal["int32", "fp32"] | None = None
    gradient: str | None = None
    written: bool = False
    count: str | None = None
    parts: tuple[str, ...] = ()
    forward_only: bool = False


class ResultShape(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    shape: str | tuple[int | str, ...] | None = None
    dtype: str | None = None


class OperationShape(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    arguments: tuple[dict[str, RowShape], ...]
    results: dict[str, ResultShape]
    fields: tuple[dict[str, RowShape], ...]
    plain: tuple[str, ...] = ()
    reserved: tuple[str, ...] = ()


class LimitShape(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    must: str
    least: float | None = None
    most: float | None = None


class TableShape(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    recipe: dict[str, str]
    limits: dict[str, LimitShape]
    flags: tuple[str, ...]
    operations: dict[str, OperationShape]
    without_entry: tuple[str, ...] = ()


@dataclass(frozen=True)
class Argument:
    """A row: an argument of an operator, a field of a structure, or most often both. `field` is None where it has
    none."""

    name: str
    kind: str
    field: str | None
    default: int
    required: bool
    dtype: str | None
    gradient: str | None
    written: bool
    count: str | None
    parts: tuple[str, ...]
    forward_only: bool

    @property
    def is_tensor(self) -> bool:
        return self.kind in _TENSORS

    @property
    def is_real(self) -> bool:
        return self.kind in _REALS


@dataclass(frozen=True)
class Result:
    """A result of an operator. `shape` has formulas for its sizes, of arguments; `dtype` is one, or the argument whose
    dtype it has. None: they are no more than code can say."""

    field: str
    shape: tuple[str, ...] | None
    dtype: str | None


@dataclass(frozen=True)
class Limit:
    """What the real in a field must be, besides finite."""

    field: str
    least: float | None
    most: float | None
    must: str


@dataclass(frozen=True)
class Operation:
    """Attributes:
    arguments: the operator's, in its order.
    others: what has a field and is no argument of the operator.
    results: of the operator, in its order.
    plain: arguments that the shortest way past PyTorch's dispatcher takes; it takes no call that has others.
    reserved: fields that must be 0.
    """

    name: str
    arguments: tuple[Argument, ...]
    others: tuple[Argument, ...]
    results: tuple[Result, ...]
    plain: tuple[str, ...]
    reserved: tuple[str, ...]

    @property
    def is_simple(self) -> bool:
        """Whether the table tells all of its results, so that no code is written for it between flash.h and users."""
        return all(result.shape is not None for result in self.results)

    @property
    def params(self) -> str:
        """Its structure in C."""
        return f"kiln_{self.name}_params"

    @property
    def initializer(self) -> str:
        return f"{self.params.upper()}_INIT"

    @property
    def type(self) -> str:
        """A name for it in C++: AttnFwd."""
        return self.name.title().replace("_", "")

    @property
    def fields(self) -> tuple[Argument, ...]:
        """All that has a field."""
        return tuple(row for row in (*self.arguments, *self.others) if row.field)

    @property
    def has_workspace(self) -> bool:
        """Whether it has the entries _workspace, _prepare and _explain."""
        return any(row.kind == "address" for row in self.others)

    @property
    def numbers(self) -> list[Argument]:
        """The operator's reals and integers, as kiln_native has them: reals first, but for those that came later, which
        stand behind rows_first."""
        rows = [row for row in self.arguments if row.field or row.name == "rows_first"]
        names = [row.name for row in rows]
        behind = names.index("rows_first") if "rows_first" in names else len(names)
        early, late = rows[:behind], rows[behind:]
        return [
            *(row for row in early if row.is_real),
            *(row for row in early if row.kind == "integer"),
            *(row for row in late if row.is_real or row.kind == "integer"),
        ]

    def of_kind(self, *kinds: str) -> list[Argument]:
        return [row for row in self.arguments if row.kind in kinds]


@dataclass(frozen=True)
class Table:
    path: Path
    recipe: Mapping[str, str]
    limits: tuple[Limit, ...]
    flags: Mapping[str, int]
    operations: tuple[Operation, ...]
    without_entry: tuple[str, ...]

    def limits_of(self, operation: Operation) -> list[Limit]:
        fields = {row.field for row in operation.fields}
        return [limit for limit in self.limits if limit.field in fields]

    def operation(self, name: str) -> Operation:
        """Raises:
        RecipeError: no operation has that name.
        """
        for operation in self.operations:
            if operation.name == name:
                return operation
        raise RecipeError(
            f"{self.path}: the recipe's operation {name} has no row; add it to `operations`, or to `without_entry`"
        )


def read(path: Path) -> Table:
    """Reads a table.

    Raises:
        EnvironmentProblem: it cannot be read.
        RecipeError: it lacks the shape, or its parts do not fit together.
    """
    read_document = document.read(path, TableShape)
    shape = read_document.value
    table = Table(
        path,
        shape.recipe,
        tuple(Limit(field, row.least, row.most, row.must) for field, row in shape.limits.items()),
        {name: 1 << bit for bit, name in enumerate(shape.flags)},
        tuple(
            Operation(
                name, tuple(_rows(row.arguments)), tuple(_rows(row.fields)), tuple(_results(row.results)), row.plain,
                row.reserved,
            )
            for name, row in shape.operations.items()
        ),
        shape.without_entry,
    )  # fmt: skip
    _check(table, read_document)
    return table


def _rows(groups: Sequence[Mapping[str, RowShape]]) -> Iterator[Argument]:
    for group in groups:
        for name, row in group.items():
            field = None if row.field == NO_FIELD else row.field or name
            yield Argument(
                name, row.kind, field, row.default, row.required, row.dtype, row.gradient, row.written, row.count,
                row.parts, row.forward_only,
            )  # fmt: skip


def _results(rows: Mapping[str, ResultShape]) -> Iterator[Result]:
    for name, row in rows.items():
        whole = (f"*{row.shape}.size",) if isinstance(row.shape, str) else None
        yield Result(name, whole or (None if row.shape is None else tuple(map(str, row.shape))), row.dtype)


def _check_backward(table: Table, source: document.Document[TableShape]) -> None:
    """Backward must get all that shapes the results of forward, or its gradients would be those of another call."""
    for forward in table.operations:
        gradients = {row.gradient for row in forward.arguments if row.gradient}
        for backward in table.operations if gradients else ():
            if not gradients <= {result.field for result in backward.results}:
                continue
            known = {row.name for row in backward.arguments}
            for row in forward.arguments:
                if (row.field or row.parts) and row.name not in known and not row.forward_only:
                    source.fail(
                        ("operations", forward.name),
                        f"{row.name!r} is an argument of {forward.name} and not of {backward.name}, whose gradients "
                        "would ignore it; add it there too, or say forward_only where they do not depend on it",
                    )


def _check(table: Table, source: document.Document[TableShape]) -> None:
    fields = {row.field for operation in table.operations for row in operation.fields}
    for limit in table.limits:
        if limit.field not in fields:
            source.fail(("limits", limit.field), f"{limit.field!r} is a field of no operation")
    gradients = {result.field for operation in table.operations for result in operation.results}
    _check_backward(table, source)
    for operation in table.operations:

        def fail(sentence: str, operation: Operation = operation) -> NoReturn:
            source.fail(("operations", operation.name), sentence)

        names = [row.name for row in (*operation.arguments, *operation.others)]
        for name in names:
            if names.count(name) > 1:
                fail(f"{name!r} stands in {operation.name} twice")
        needed = [row.kind == "tensor" or row.required for row in operation.arguments]
        if needed != sorted(needed, reverse=True):
            name = operation.arguments[len(needed) - 1 - needed[::-1].index(True)].name
            fail(f"{name!r} has no default and stands behind arguments that have one; move it before these")
        for row in operation.arguments:
            if row.kind == "flag" and row.name not in table.flags:
                fail(f"{row.name!r} is a flag without a bit; add it to the end of `flags`")
            if row.gradient and row.gradient not in gradients:
                fail(f"{row.name!r} has the gradient {row.gradient!r}, which is the result of no operation")
        for name in operation.plain:
            if name not in names:
                fail(f"{name!r} is plain, and no argument of {operation.name}")
        if operation.is_simple and any(row.written for row in operation.arguments):
            fail(f"an argument of {operation.name} is written, which the table cannot tell all of; leave `shape` out")
        known = {row.name: row for row in operation.arguments}
        if operation.is_simple and next((row.kind for row in operation.arguments), None) != "tensor":
            fail(f"the first argument of {operation.name} must be a tensor: its results are made where that lies")
        for result in operation.results:
            if result.field not in {row.field for row in operation.fields}:
                fail(f"the result {result.field!r} is no field of {operation.params}; add it to `fields`")
            if (result.shape is None) != (result.dtype is None) or (result.shape is None) == operation.is_simple:
                fail(f"{result.field!r}: all results of an operation have `shape` and `dtype`, or none has")
            for word in (word for size in result.shape or () for word in NAME.findall(size)):
                if word not in known:
                    fail(f"the shape of {result.field!r} is by {word!r}, which is no argument of {operation.name}")
            for name, attribute in (found for size in result.shape or () for found in ATTRIBUTE.findall(size)):
                if attribute != "size" or known[name].kind not in ("tensor", "optional"):
                    fail(f"the shape of {result.field!r} is by {name}.{attribute}; what has sizes is a tensor's `size`")
            leads = next(iter(known)), *(row.name for row in operation.of_kind("dtype"))
            if result.dtype is not None and result.dtype not in (*leads, *DTYPES):
                fail(f"the dtype of {result.field!r} is {result.dtype!r}; it must be one of Kiln's, or that of "
                     f"the first argument or of one of the kind dtype: {', '.join(leads)}")  # fmt: skip
        for row in operation.arguments:
            if len(row.parts) not in (0, 2):
                fail(f"{row.name!r} has {len(row.parts)} parts; they are two, the fields that get its two integers")
            missing = [part for part in row.parts if part not in {other.field for other in operation.others}]
            if missing:
                fail(f"{row.name!r} has the part {missing[0]!r}, which is no field of {operation.params}")
        for row in operation.others:
            if (row.kind == "keys") != (row.count is not None):
                fail(f"{row.name!r}: `count` is of keys, and of them alone")
