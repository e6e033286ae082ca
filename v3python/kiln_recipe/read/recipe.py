"""Reads a recipe from YAML, checks it, and gives it meaning.

What `load` gives is complete: every expression is parsed, every name is known to exist, kernel functions have the
parameters that the recipe says; what follows (plan, generate) checks nothing again. documents/file.py has the shape
of the YAML, model.py that of the result, kernel.py reads the part about one kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from kiln_recipe.documents import include
from kiln_recipe.documents.document import Document, Keys, read
from kiln_recipe.documents.file import (
    MAX_KERNELS,
    ArgumentShape,
    ChoiceShape,
    OperationShape,
    RecipeShape,
    Text,
    WorkspaceShape,
)
from kiln_recipe.dtypes import DTYPE_BYTES, DTYPES
from kiln_recipe.expressions import Expression
from kiln_recipe.model import (
    Argument,
    Choice,
    Definition,
    Kernel,
    Native,
    Operation,
    Recipe,
    Requirement,
    Workspace,
    spelled,
)
from kiln_recipe.read import space
from kiln_recipe.read.implementations import (
    read_implementations,
    refuse_overlap,
    refuse_unreachable,
    refuse_unused_choices,
)
from kiln_recipe.read.kernel import read_kernel
from kiln_recipe.read.parameters import axes_of, nameable, rank_of
from kiln_recipe.read.requirements import read_requirements
from kiln_recipe.read.scope import Scope, check_name, constant, read_expression
from kiln_recipe.selection import SELECTED_NAMES
from kiln_recipe.suggest import guess, nearest

__all__ = ["Recipe", "find", "load", "schema"]

_SCALARS = {
    "bool": ("int", 1),
    "int32": ("int", 32),
    "int64": ("int", 64),
    "fp32": ("float", 32),
    "fp64": ("float", 64),
}
_SCALAR_ALIASES = {"i32": "int32", "i64": "int64", "i1": "bool"}
# What a release has under a name of its own, which a family of that name would take.
TAKEN_NAMES = {
    "kiln": "the header kiln/kiln.h", "family": "the header kiln/family.h", "version": "the header kiln/version.h",
    "torch": "libkiln_torch.so", "aotriton": "the CMake target kiln::aotriton",
}  # fmt: skip
MAX_VALUES = 512  # KILN_MAX_VALUES
MAX_CALL_DESCRIPTORS = 32  # KILN_MAX_CALL_DESCRIPTORS


def load(path: Path | str, native: bool = True) -> Recipe:
    """Reads and checks a recipe, wherever it lies.

    Args:
        native: whether the C++ that it names must be there: what compiles no library does not need it.

    Raises:
        RecipeError: something in it does not hold; begins with file:line.
    """
    path = Path(path)
    document = read(path, RecipeShape)
    shape = document.value
    if taken := TAKEN_NAMES.get(shape.family):
        document.fail(("family",), f"a release has {taken} of its own; give the family another name")
    folder = space.find_folder(path, shape.family)
    operations = []
    owners: dict[str, str] = {}
    for name, operation in shape.operations.items():
        keys = ("operations", name)
        check_name(document, keys, name, "an operation")
        operations.append(_operation(document, keys, name, operation, folder))
        for kernel in operation.kernels:
            if kernel in owners:
                document.fail(
                    (*keys, "kernels", kernel),
                    f"the operation {owners[kernel]} has a kernel {kernel} too; tuning files name kernels, "
                    "so give each of a family a name of its own (and say `function:`)",
                )
            owners[kernel] = name
    full = (kernel.name for operation in operations for kernel in operation.kernels)
    space.refuse_strangers(folder, shape.family, dict.fromkeys((*owners, *full)))
    files = Native((), ())
    if native:
        files = Native(
            _files(document, ("native", "sources"), shape.native.sources),
            _files(document, ("native", "headers"), shape.native.headers),
        )
    return Recipe(path.resolve(), shape.family, shape.summary, files, tuple(operations))


def find(tree: Path) -> tuple[Path, ...]:
    """The recipes of a source tree: tritonsrc/<family>/recipe.yaml, in the order of their names."""
    return tuple(sorted(tree.glob("tritonsrc/*/recipe.yaml")))


def schema() -> dict:
    """The JSON schema of a recipe's YAML."""
    document = msgspec.json.decode(msgspec.json.encode(msgspec.json.schema(RecipeShape)))
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Kiln recipe",
        **include.allow(document),
    }


def _files(document: Document, keys: Keys, names: tuple[str, ...]) -> tuple[Path, ...]:
    paths = tuple((document.path.parent / name).resolve() for name in names)
    for position, path in enumerate(paths):
        if not path.is_file():
            document.fail((*keys, position), f"the file {names[position]} does not exist (at {path})")
    return paths


def _operation(document: Document, keys: Keys, name: str, shape: OperationShape, folder: Path | None) -> Operation:
    arguments = tuple(
        _argument(document, (*keys, "arguments", argument), argument, value, shape)
        for argument, value in shape.arguments.items()
    )
    call = Scope.of_call(arguments)
    definitions = []
    for definition, text in shape.define.items():
        here = (*keys, "define", definition)
        check_name(document, here, definition, "a definition")
        if definition in shape.arguments:
            document.fail(here, f"{definition!r} is an argument already; give the definition another name")
        definitions.append(Definition(definition, read_expression(document, here, text, call)))
        call = call.with_names([definition], "definition")
    names = nameable(document, keys, shape, arguments)
    titles = document.value.axes
    requirements = read_requirements(document, (*keys, "require"), shape.require, names, titles, call)
    chosen = call
    choices: tuple[Choice, ...] = ()
    for choice, choice_shape in shape.choices.items():
        if choice_shape.match == "first_that_fits" and any(one.match == "first_that_fits" for one in choices):
            document.fail((*keys, "choices", choice, "match"), "one choice of an operation may match first_that_fits")
        choices += (_choice(document, (*keys, "choices", choice), choice, choice_shape, chosen, shape),)
        chosen = chosen.with_names([choice], "choice")
    chosen = chosen.with_words_of(choices)
    skip_when = None
    if shape.skip_when is not None:
        skip_when = read_expression(document, (*keys, "skip_when"), shape.skip_when, chosen)
        if constant(skip_when):
            document.fail(
                (*keys, "skip_when"), f"skip_when is always true ({spelled(shape.skip_when)}), which skips every call"
            )
    workspaces = []
    for workspace, entry in shape.workspace.items():
        here = (*keys, "workspace", workspace)
        check_name(document, here, workspace, "a workspace")
        if chosen.knows(workspace):
            document.fail(here, f"{workspace!r} is {chosen.kind(workspace)} already; give the workspace another name")
        workspaces.append(_workspace(document, here, workspace, entry, choices, chosen))
    everything = chosen.with_names(list(shape.workspace), "workspace")
    kernels: list[Kernel] = []
    contiguous: list[Requirement] = []
    for kernel, kernel_shape in shape.kernels.items():
        here = (*keys, "kernels", kernel)
        check_name(document, here, kernel, "a kernel")
        implementations = read_implementations(document, here, kernel_shape)
        if kernel_shape.implementations:
            _refuse_selected_name(document, here, kernel, "a kernel with implementations")
            if kernel in shape.choices:
                document.fail(
                    here, f"{kernel!r} is a choice too, and a selection could not tell them apart; rename one"
                )
        before = tuple(kernels)
        for implementation in implementations:
            read_one = read_kernel(
                kernel, implementation, arguments, choices, tuple(workspaces), names, folder, everything
            )
            refuse_overlap(implementation, read_one.kernel, before)
            kernels.append(read_one.kernel)
            contiguous += [r for r in read_one.requirements if r not in contiguous]
        refuse_unused_choices(document, here, kernel_shape.choices, kernels[-len(implementations) :])
        refuse_unreachable(document, here, kernels[-len(implementations) :])
    if len(kernels) > MAX_KERNELS:
        document.fail(
            (*keys, "kernels"), f"has {len(kernels)} kernels with their implementations; it can have {MAX_KERNELS}"
        )
    operation = Operation(
        name,
        shape.summary,
        arguments,
        choices,
        tuple(definitions),
        (*requirements, *contiguous),
        skip_when,
        tuple(workspaces),
        tuple(kernels),
    )
    _refuse_unused(document, keys, operation, everything)
    descriptors = sum(max(len(kernel.descriptors) for kernel in step) for step in operation.steps)
    if descriptors > MAX_CALL_DESCRIPTORS:
        document.fail(
            (*keys, "kernels"), f"take {descriptors} tensor descriptors together; they can have {MAX_CALL_DESCRIPTORS}"
        )
    values = sum(len(argument.values) for argument in arguments) + 1 + len(choices) + len(definitions) + len(workspaces)
    if values + max(len(kernel.columns) for kernel in kernels) > MAX_VALUES:
        document.fail(keys, f"the operation {name} needs more than {MAX_VALUES} values for its expressions")
    return operation


def _argument(document: Document, keys: Keys, name: str, shape: ArgumentShape, operation: OperationShape) -> Argument:
    check_name(document, keys, name, "an argument")
    if shape.scalar is not None and shape.tensor is None:
        scalar = _SCALAR_ALIASES.get(shape.scalar, shape.scalar)
        if scalar not in _SCALARS:
            document.fail((*keys, "scalar"), f"unknown scalar {scalar!r}; {nearest(scalar, _SCALARS, 'scalars')}")
        for field in ("rank", "axes", "alias", "optional"):
            if getattr(shape, field):
                document.fail((*keys, field), f"{field} is for tensors; {name} is a scalar")
        kind, bits = _SCALARS[scalar]
        return Argument(name, kind, 0, None, None, False, bits)
    if shape.scalar is not None or shape.tensor is None:
        document.fail(keys, f"the argument {name} must be either a tensor (tensor: and axes:) or a scalar (scalar:)")
    rank = rank_of(document, keys, name, shape)
    axes = axes_of(shape)
    if shape.tensor in operation.choices:
        values = operation.choices[shape.tensor].values
        if not any(value in DTYPES for value in values if isinstance(value, str)):
            for position, value in enumerate(values):
                if guess(str(value), DTYPES):  # a misspelled dtype, rather than a choice that decides no dtype
                    document.fail(
                        (*keys[:2], "choices", shape.tensor, "values", position),
                        f"the choice {shape.tensor} decides the dtype of {name}, and {value!r} is not a dtype; "
                        f"{nearest(str(value), DTYPES, 'dtypes')}",
                    )
            document.fail((*keys, "tensor"), f"the values of the choice {shape.tensor} are not dtypes")
        return Argument(name, "tensor", rank, None, shape.tensor, shape.optional, 0, axes)
    if shape.tensor not in DTYPES:
        known = [*operation.choices, *DTYPES]
        document.fail(
            (*keys, "tensor"), f"unknown dtype {shape.tensor!r}; {nearest(shape.tensor, known, 'choices and dtypes')}"
        )
    return Argument(name, "tensor", rank, shape.tensor, None, shape.optional, 0, axes)


def _workspace(
    document: Document, keys: Keys, name: str, entry: WorkspaceShape | Text, choices: Sequence[Choice], scope: Scope
) -> Workspace:
    if not isinstance(entry, WorkspaceShape):
        return Workspace(name, _size(document, keys, entry, "bytes", scope))
    dtypes = [choice.name for choice in choices if choice.kind == "dtype"]
    if entry.dtype not in DTYPES and entry.dtype not in dtypes:
        known = nearest(entry.dtype, [*dtypes, *DTYPES], "choices and dtypes")
        document.fail((*keys, "dtype"), f"unknown dtype {entry.dtype!r}; {known}")
    if (entry.elements is None) == (entry.shape is None):
        document.fail(keys, f"the workspace {name} must have either `elements`, how many, or `shape`, their sizes")
    field = "elements" if entry.shape is None else "shape"
    sizes = entry.shape or ()
    for place, text in enumerate(sizes):
        _size(document, (*keys, field, place), text, "elements along a dimension", scope)
    elements = " * ".join(f"({size})" for size in sizes) if entry.elements is None else entry.elements
    _size(document, (*keys, field), elements, "elements", scope)
    size = DTYPE_BYTES.get(entry.dtype) or f"sizeof({entry.dtype})"
    return Workspace(
        name,
        read_expression(document, (*keys, field), f"({elements}) * {size}", scope),
        entry.dtype if entry.dtype in DTYPES else None,
        None if entry.dtype in DTYPES else entry.dtype,
        tuple(read_expression(document, (*keys, field, i), text, scope) for i, text in enumerate(sizes)),
    )


def _size(document: Document, keys: Keys, text: Text, what: str, scope: Scope) -> Expression:
    expression = read_expression(document, keys, text, scope)
    value = constant(expression)
    if value is not None and value < 0:
        document.fail(keys, f"the workspace {keys[3]} has {value} {what}; it must have 0 or more")
    return expression


def _refuse_selected_name(document: Document, keys: Keys, name: str, what: str) -> None:
    if name in SELECTED_NAMES:
        document.fail(
            keys, f"{name!r} cannot name {what}: in a selection, {name}= names {SELECTED_NAMES[name]}; rename it"
        )


_TRUTHS = frozenset({"yes", "no", "on", "off", "true", "false"})  # as older versions of YAML spell them


def _choice(
    document: Document, keys: Keys, name: str, shape: ChoiceShape, call: Scope, operation: OperationShape
) -> Choice:
    check_name(document, keys, name, "a choice")
    _refuse_selected_name(document, keys, name, "a choice")
    values = shape.values
    text = "dtype" if any(isinstance(v, str) and v in DTYPES for v in values) else "word"
    kinds = {"bool" if isinstance(v, bool) else "int" if isinstance(v, int) else text: v for v in values}
    if len(kinds) > 1:
        kind_of = {"bool": "a truth value", "int": "an integer", "dtype": "a dtype", "word": "a word"}
        shown = (f"{spelled(value)} is {kind_of[kind]}" for kind, value in kinds.items())
        document.fail((*keys, "values"), f"the values of {name} must all be of one kind, and {' and '.join(shown)}")
    (kind,) = kinds
    if kind == "word" and all(str(value).lower() in _TRUTHS for value in values):
        document.fail(
            (*keys, "values"),
            f"the values of {name} are the words {' and '.join(map(str, values))}, which are all true in a kernel; for "
            "truth values say [false, true]",
        )
    if kind == "word":
        for position, value in enumerate(values):
            call = call.with_word(str(value), str(position))
    of = read_expression(document, (*keys, "of"), shape.of, call)
    for position, value in enumerate(values):
        if isinstance(value, str) and kind == "dtype" and value not in DTYPES:
            document.fail((*keys, "values", position), f"unknown dtype {value!r}; {nearest(value, DTYPES, 'dtypes')}")
        if isinstance(value, str) and kind == "word":
            check_name(document, (*keys, "values", position), value, "a value")
        if value in values[:position]:
            document.fail((*keys, "values", position), f"{name} has the value {value} twice")
    numbers = tuple(
        int(value) if not isinstance(value, str) else DTYPES[value] if kind == "dtype" else position
        for position, value in enumerate(values)
    )
    if shape.match == "next_larger" and (kind != "int" or list(numbers) != sorted(numbers)):
        document.fail(
            (*keys, "values"), f"the values of {name} must be ascending integers, since it matches next_larger"
        )
    # One name for an argument and a choice is clear only where both are always equal.
    is_argument = name in operation.arguments and of.text.strip() == name and shape.match == "exact"
    if call.knows(name) and (not is_argument or shape.general is not None):
        document.fail(keys, f"{name!r} is {call.kind(name)} already; give the choice another name")
    core = values if shape.core is None else shape.core
    for position, value in enumerate(core):
        if value not in values:
            document.fail((*keys, "core", position), f"{value} is not one of the values of {name}")
    if shape.general is not None and shape.match != "exact":
        document.fail((*keys, "general"), f"general is for what matches exactly; {name} matches {shape.match}")
    if shape.general is not None and shape.general not in values:
        document.fail((*keys, "general"), f"{shape.general} is not one of the values of {name}")
    general = None if shape.general is None else values.index(shape.general)
    return Choice(name, of, kind, shape.match, values, numbers, tuple(value in core for value in values), general)


def _refuse_unused(document: Document, keys: Keys, operation: Operation, scope: Scope) -> None:
    for choice in operation.choices:
        if choice.match == "first_that_fits":
            if not any(operation.may_be_replaced(kernel) for kernel in operation.kernels):
                document.fail(
                    (*keys, "choices", choice.name),
                    f"the choice {choice.name} is used by no kernel: none has it in `when`",
                )
        elif not any(choice.name in kernel.choices for kernel in operation.kernels):
            document.fail((*keys, "choices", choice.name), f"the choice {choice.name} is used by no kernel")
    for argument in operation.arguments:
        if not scope.used & set(argument.values):
            document.fail((*keys, "arguments", argument.name), f"the argument {argument.name} is used by no expression")
    for workspace in operation.workspaces:
        if workspace.name not in scope.used:
            document.fail((*keys, "workspace", workspace.name), f"the workspace {workspace.name} is used by no kernel")
