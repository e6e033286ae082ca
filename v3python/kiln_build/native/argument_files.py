"""What is generated from a family's table of arguments (arguments.py), and from the table of dtypes.

The tables say what an argument is; templates/arguments*.jinja say how each consumer spells it.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from kiln_build.native import generate
from kiln_build.native.arguments import FILE, NAME, TABLE, Argument, Limit, Operation, Table, read
from kiln_recipe import dtypes
from kiln_recipe.errors import RecipeError
from kiln_recipe.model import Recipe


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
        if operation.name in table.without_entry:
            continue
        row = table.operation(operation.name)
        operations.append({
            "row": row,
            "limits": table.limits_of(row),
            "of_call": [name for name in _OF_CALL if any(name in (r.field, r.count) for r in row.others)],
            "lines": [*_pushes(table, row, [(a.name, a.kind, a.optional) for a in operation.arguments])],
        })  # fmt: skip
    return generate.render("arguments_entries.h.jinja", family=recipe.family, operations=operations, bounds=_bounds)


# Fields of kiln_call that parameter structures have too.
_OF_CALL = ("workspace", "workspace_bytes", "force_keys", "force_count", "force_target")


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
        formula = NAME.sub(lambda word: _in_cpp(word[0], fields), table.recipe.get(name, name))
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
    """What bindings/torch includes as arguments.h: the operators of kiln_native."""
    operations = [
        {
            "row": operation,
            "schema": textwrap.wrap(_native_schema(operation), 100, drop_whitespace=False),
            "extras": operation.of_kind("optional"),
            "tensors": _native_tensors(operation),
            "places": _places(operation),
        }
        for operation in table.operations
    ]
    forward, backward = table.operation("attn_fwd"), table.operation("attn_bwd")
    behind = {row.name for row in (*forward.of_kind("optional"), *forward.numbers)}
    shared = [row.name for row in (*backward.of_kind("optional"), *backward.numbers) if row.name in behind]
    return generate.render("arguments_torch.h.jinja", operations=operations, shared=shared, constant=_constant)


def _native_tensors(operation: Operation) -> list[Argument]:
    """Those that every call of the operator of kiln_native has. A simple one takes its results too."""
    results = {result.field for result in operation.results if operation.is_simple}
    return [*operation.of_kind("tensor"), *(row for row in operation.others if row.field in results)]


def _native_arguments(operation: Operation) -> list[tuple[str, str]]:
    """Each argument of the operator of kiln_native, and how its schema has it.

    What is rarely given stands at the end: Python leaves it out, and libtorch fills it in for next to nothing.
    """
    arguments = [(row.name, f"Tensor {row.name}") for row in _native_tensors(operation)]
    if operation.of_kind("optional") or not operation.is_simple:
        arguments += [("extras", "Tensor[] extras"), ("which", "int which=0")]
    if operation.of_kind("flag") or not operation.is_simple:
        arguments.append(("flags", "int flags=0"))
    for row in operation.numbers:
        default = "" if row.required else f"={row.default}." if row.is_real else f"={row.default}"
        arguments.append((row.name, f"{'float' if row.is_real else 'int'} {row.name}{default}"))
    return arguments


def _native_schema(operation: Operation) -> str:
    arguments = ", ".join(spelled for _, spelled in _native_arguments(operation))
    results = [] if operation.is_simple else [f"Tensor {result.field}" for result in operation.results]
    results.append("int status")
    return f"{operation.name}({arguments}) -> " + (f"({', '.join(results)})" if len(results) > 1 else results[0])


def _places(operation: Operation) -> dict[str, int]:
    """Where each argument of the operator of kiln_native lies on the stack."""
    return {name: place for place, (name, _) in enumerate(_native_arguments(operation))}


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
        recipe={name: NAME.sub(lambda word: _in_python(word[0], table), text) for name, text in table.recipe.items()},
        forward=forward,
        place=forward.arguments.index,
        backward=table.operation("attn_bwd"),
        schema=_schema,
        parameters=_parameters,
        of_dtype=lambda dtype: sorted({r.name for o in table.operations for r in o.arguments if r.dtype == dtype}),
        python_default=_python_default,
        parts={row.name: row.parts for operation in table.operations for row in operation.arguments if row.parts},
        sizes=lambda result: "".join(f"{_in_python_size(size)}, " for size in result.shape),
        torch_dtypes=dtypes.TORCH_DTYPES,
    )


def _in_python(word: str, table: Table) -> str:
    """A word of a formula in Python: a field of the call, or itself."""
    is_field = any(row.field == word for operation in table.operations for row in operation.fields)
    return f'of["{word}"]' if is_field else word


def _in_python_size(formula: str) -> str:
    """A size of a result: the recipe's spelling, x.size[0], of arguments by name."""
    return NAME.sub(lambda word: f'of["{word[0]}"]', formula).replace(".size", ".shape")


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
    results = [f"Tensor {result.field}" for result in operation.results]
    return f"({', '.join(arguments)}) -> " + (f"({', '.join(results)})" if len(results) > 1 else "Tensor")
