"""A family's table of arguments (tritonsrc/flash/arguments.yaml, which explains itself), and what is generated from it.

The table says what an argument is; templates/arguments_*.jinja say how each consumer spells it.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NoReturn

import msgspec

from kiln_build.native import generate
from kiln_recipe import dtypes
from kiln_recipe.documents import document
from kiln_recipe.errors import RecipeError
from kiln_recipe.model import Recipe

FILE = "arguments.yaml"  # beside the recipe
TABLE = f"tritonsrc/flash/{FILE}"  # in a source tree
NO_FIELD = "none"
_TENSORS = ("tensor", "optional")
_REALS = ("real", "scale")
_NAME = re.compile(r"(?<![\w.])[A-Za-z_]\w*")


class RowShape(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    kind: Literal["tensor", "optional", "integer", "real", "scale", "flag", "dtype", "address", "keys", "text"]
    field: str | None = None
    default: int = 0
    required: bool = False
    dtype: Literal["int32", "fp32"] | None = None
    gradient: str | None = None
    written: bool = False
    count: str | None = None


class OperationShape(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    arguments: tuple[dict[str, RowShape], ...]
    results: tuple[str, ...]
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

    @property
    def is_tensor(self) -> bool:
        return self.kind in _TENSORS

    @property
    def is_real(self) -> bool:
        return self.kind in _REALS


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
    results: of the operator, by field.
    plain: arguments that the shortest way past PyTorch's dispatcher takes; it takes no call that has others.
    reserved: fields that must be 0.
    """

    name: str
    arguments: tuple[Argument, ...]
    others: tuple[Argument, ...]
    results: tuple[str, ...]
    plain: tuple[str, ...]
    reserved: tuple[str, ...]

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
        names = [row.name for row in self.arguments]
        behind = names.index("rows_first") if "rows_first" in names else len(names)
        early, late = self.arguments[:behind], self.arguments[behind:]
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

    def limits_of(self, operation: Operation) -> list[Limit]:
        fields = {row.field for row in operation.fields}
        return [limit for limit in self.limits if limit.field in fields]

    def operation(self, name: str) -> Operation:
        """Raises:
        RecipeError: there is none of that name.
        """
        for operation in self.operations:
            if operation.name == name:
                return operation
        raise RecipeError(f"{self.path}: the recipe's operation {name} has no row; add it to `operations`")


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
                name, tuple(_rows(row.arguments)), tuple(_rows(row.fields)), row.results, row.plain, row.reserved
            )
            for name, row in shape.operations.items()
        ),
    )  # fmt: skip
    _check(table, read_document)
    return table


def _rows(groups: Sequence[Mapping[str, RowShape]]) -> Iterator[Argument]:
    for group in groups:
        for name, row in group.items():
            field = None if row.field == NO_FIELD else row.field or name
            yield Argument(
                name, row.kind, field, row.default, row.required, row.dtype, row.gradient, row.written, row.count
            )


def _check(table: Table, source: document.Document[TableShape]) -> None:
    fields = {row.field for operation in table.operations for row in operation.fields}
    for limit in table.limits:
        if limit.field not in fields:
            source.fail(("limits", limit.field), f"{limit.field!r} is a field of no operation")
    gradients = {name for operation in table.operations for name in operation.results}
    for operation in table.operations:

        def fail(sentence: str, operation: Operation = operation) -> NoReturn:
            source.fail(("operations", operation.name), sentence)

        names = [row.name for row in (*operation.arguments, *operation.others)]
        for name in names:
            if names.count(name) > 1:
                fail(f"{name!r} stands in {operation.name} twice")
        for row in operation.arguments:
            if row.kind == "flag" and row.name not in table.flags:
                fail(f"{row.name!r} is a flag without a bit; add it to the end of `flags`")
            if row.gradient and row.gradient not in gradients:
                fail(f"{row.name!r} has the gradient {row.gradient!r}, which is the result of no operation")
        for name in operation.plain:
            if name not in names:
                fail(f"{name!r} is plain, and no argument of {operation.name}")
        for row in operation.others:
            if (row.kind == "keys") != (row.count is not None):
                fail(f"{row.name!r}: `count` is of keys, and of them alone")


def family_files(recipe: Recipe) -> dict[str, str]:
    """What a family's library and its adapters include, by path below a folder of generated sources; none without a
    table."""
    path = recipe.path.parent / FILE
    if not path.is_file():
        return {}
    table = read(path)
    return {
        f"{recipe.family}/arguments.h": entries_header(recipe, table),
        "torch/arguments.h": torch_header(table),
        "torch/flags.h": flags_header(table),
        "torch/dtypes.h": dtypes_header(),
    }


def core_files(source: Path) -> dict[str, str]:
    """What bindings/core of a source tree includes."""
    table = read(source / TABLE)
    return {"arguments.h": core_header(table), "flags.h": flags_header(table), "dtypes.h": dtypes_header()}


def dtypes_header() -> str:
    """The table of dtypes, for bindings/core and bindings/torch."""
    return generate.render("dtypes.h.jinja", dtypes=dtypes.TABLE)


def flags_header(table: Table) -> str:
    """The bits of flags."""
    return generate.render("arguments_flags.h.jinja", flags=[(_constant(n), bit) for n, bit in table.flags.items()])


# ---- csrc/flash -----------------------------------------------------------------------------------------------------


def entries_header(recipe: Recipe, table: Table) -> str:
    """What csrc/flash includes as arguments.h: how parameters become the arguments of the recipe's operations.

    Raises:
        RecipeError: the recipe has an operation or an argument that the table does not know.
    """
    operations = []
    for operation in recipe.operations:
        row = table.operation(operation.name)
        operations.append({
            "row": row,
            "limits": table.limits_of(row),
            "lines": [*_pushes(table, row, [(a.name, a.kind, a.optional) for a in operation.arguments])],
        })  # fmt: skip
    return generate.render("arguments_entries.h.jinja", family=recipe.family, operations=operations, bounds=_bounds)


def _pushes(table: Table, operation: Operation, arguments: Sequence[tuple[str, str, bool]]) -> Iterator[str]:
    """C++ that hands on the recipe's arguments, each a name, "tensor", "int" or "float", and whether it is optional."""
    fields = {row.field: row for row in operation.fields if row.field}
    run: list[str] = []
    for name, kind, optional in arguments:
        row = fields.get(name)
        if kind == "tensor":
            if row is None or row.kind != ("optional" if optional else "tensor"):
                wanted = "optional" if optional else "tensor"
                raise RecipeError(f"{table.path}: the recipe's {operation.name} has the {wanted} tensor {name}; the "
                                  f"table must have it as a row of the kind {wanted!r}")  # fmt: skip
            run.append(f"params.{name}")
            continue
        if run:
            yield f"to->tensors({{{', '.join(run)}}});"
            run = []
        if name not in table.recipe and row is None:
            raise RecipeError(f"{table.path}: the recipe's {operation.name} has the argument {name}, which is no field "
                              "of its structure; say under `recipe` how it follows from fields")  # fmt: skip
        formula = _NAME.sub(lambda word: _in_cpp(word[0], fields), table.recipe.get(name, name))
        yield f"to->{'integer' if kind == 'int' else 'real'}({formula});"
    if run:
        yield f"to->tensors({{{', '.join(run)}}});"


def _in_cpp(word: str, fields: Mapping[str, Argument]) -> str:
    """A word of a formula in C++: a field as an integer, a truth value or a double, and else itself."""
    row = fields.get(word)
    if row is None:
        return word
    if row.kind == "flag":
        return f"bool(params.{word})"
    return f"double{{params.{word}}}" if row.is_real else f"params.{word}"


def _bounds(limit: Limit) -> str:
    """C++ that says that a field's value is within its limits, after what says that it is finite."""
    sides = ((">=", limit.least), ("<=", limit.most))
    return "".join(f" && params.{limit.field} {sign} {float(end)!r}f" for sign, end in sides if end is not None)


# ---- bindings/core --------------------------------------------------------------------------------------------------

_CORE_KINDS = {
    "tensor": "kTensor", "optional": "kTensor", "integer": "kInteger", "real": "kReal", "flag": "kFlag",
    "address": "kAddress", "keys": "kKeys", "text": "kText",
}  # fmt: skip


def core_header(table: Table) -> str:
    """What bindings/core includes as arguments.h: the fields of each structure."""
    operations = [{"row": operation, "fields": [*_core_fields(operation)]} for operation in table.operations]
    return generate.render("arguments_core.h.jinja", operations=operations)


def _core_fields(operation: Operation) -> Iterator[tuple[str, str, str, str]]:
    """For each name that Python may give: the name, its kind, its field, and the field that has the count of its
    keys."""
    for row in operation.fields:
        field = str(row.field)
        if row.kind == "scale":
            yield row.name, "kScale", field, field
        yield field, _CORE_KINDS["real" if row.kind == "scale" else row.kind], field, row.count or field


def _constant(name: str) -> str:
    return "k" + name.title().replace("_", "")


# ---- bindings/torch -------------------------------------------------------------------------------------------------


def torch_header(table: Table) -> str:
    """What bindings/torch includes as arguments.h: the operators of kiln_native that have tensors which may be left
    out."""
    operations = [
        {
            "row": operation,
            "schema": textwrap.wrap(_native_schema(operation), 100, drop_whitespace=False),
            "extras": operation.of_kind("optional"),
        }
        for operation in table.operations
        if operation.of_kind("optional")
    ]  # fmt: skip
    forward, backward = table.operation("attn_fwd"), table.operation("attn_bwd")
    behind = {row.name for row in (*forward.of_kind("optional"), *forward.numbers)}
    shared = [row.name for row in (*backward.of_kind("optional"), *backward.numbers) if row.name in behind]
    return generate.render("arguments_torch.h.jinja", operations=operations, shared=shared, constant=_constant)


def _native_schema(operation: Operation) -> str:
    """What is rarely given stands at the end: Python leaves it out, and libtorch fills it in for next to nothing."""
    arguments = [f"Tensor {row.name}" for row in operation.of_kind("tensor")]
    arguments += ["Tensor[] extras", "int which=0", "int flags=0"]
    for row in operation.numbers:
        arguments.append(f"float {row.name}={row.default}." if row.is_real else f"int {row.name}={row.default}")
    results = [f"Tensor {name}" for name in operation.results]
    return f"{operation.name}({', '.join(arguments)}) -> ({', '.join([*results, 'int status'])})"


# ---- bindings/python ------------------------------------------------------------------------------------------------

PYTHON_MODULE = "_arguments.py"  # of the package kiln, whose stub is in the tree


def python_module(table: Table) -> str:
    """The text of the package's module kiln._arguments."""
    forward = table.operation("attn_fwd")
    return generate.render(
        "arguments.py.jinja",
        flags=table.flags,
        operations=table.operations,
        limits=table.limits,
        recipe={name: _NAME.sub(lambda word: _in_python(word[0], table), text) for name, text in table.recipe.items()},
        forward=forward,
        place=forward.arguments.index,
        backward=table.operation("attn_bwd"),
        schema=_schema,
        parameters=_parameters,
        of_dtype=lambda dtype: sorted({r.name for o in table.operations for r in o.arguments if r.dtype == dtype}),
        python_default=_python_default,
    )


def _in_python(word: str, table: Table) -> str:
    """A word of a formula in Python: a field of the call, or itself."""
    is_field = any(row.field == word for operation in table.operations for row in operation.fields)
    return f'of["{word}"]' if is_field else word


def _python_default(row: Argument) -> str:
    if row.is_tensor:
        return "None"
    if row.is_real:
        return repr(float(row.default))
    return repr(bool(row.default)) if row.kind == "flag" else repr(row.default)


def _parameters(operation: Operation) -> str:
    """Those of a function in Python that takes what the operator takes."""
    return ", ".join(
        row.name if row.kind == "tensor" or row.required else f"{row.name}={_python_default(row)}"
        for row in operation.arguments
    )


_SCHEMA_TYPES = {
    "tensor": "Tensor", "optional": "Tensor?", "integer": "SymInt", "real": "float", "scale": "float", "flag": "bool",
    "dtype": "ScalarType",
}  # fmt: skip


def _schema(operation: Operation) -> str:
    """Of the operator of torch.ops.kiln, behind its name."""
    arguments, written = [], iter("abcdefgh")
    for row in operation.arguments:
        kind = f"Tensor({next(written)}!)" if row.written else _SCHEMA_TYPES[row.kind]
        default = "uint8" if row.kind == "dtype" else _python_default(row).removesuffix("0") if row.is_real else ""
        default = default or _python_default(row)
        arguments.append(f"{kind} {row.name}" + ("" if row.kind == "tensor" or row.required else f"={default}"))
    results = [f"Tensor {name}" for name in operation.results]
    return f"({', '.join(arguments)}) -> " + (f"({', '.join(results)})" if len(results) > 1 else "Tensor")
