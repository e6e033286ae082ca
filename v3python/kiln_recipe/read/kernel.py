"""Reads the part of a recipe about one kernel, and checks it against the function's own signature."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from kiln_recipe.documents.document import Document, Keys
from kiln_recipe.documents.file import KernelShape, SpillShape
from kiln_recipe.expressions import Expression, Name, parse
from kiln_recipe.model import (
    DESCRIPTOR,
    OPTION_ORDER,
    Argument,
    Bin,
    Choice,
    Configuration,
    ConfigurationSet,
    Kernel,
    Parameter,
    Requirement,
    Scalar,
    Specialization,
    Spill,
    Unavailable,
    Workspace,
    Zero,
    spelled,
)
from kiln_recipe.read import fingerprint
from kiln_recipe.read.configurations import distinct, read_configurations, read_overrides, switched, with_configurations
from kiln_recipe.read.descriptors import check_tiles
from kiln_recipe.read.implementations import Implementation
from kiln_recipe.read.parameters import Nameable, check_parameters, read_parameters
from kiln_recipe.read.requirements import contiguous
from kiln_recipe.read.rules import Vocabulary, read_rules, read_when
from kiln_recipe.read.scope import Scope, check_name, constant, read_expression
from kiln_recipe.read.space import read_space
from kiln_recipe.suggest import nearest

MAX_ZEROS = 8  # KILN_MAX_ZEROS
MAX_BINS = 16  # KILN_MAX_BINS
MAX_EDGES = 4096  # KILN_MAX_EDGES
MAX_SPECIALIZATIONS = 256  # KILN_MAX_SPECIALIZATIONS


@dataclass(frozen=True)
class ReadKernel:
    """A kernel, and what its zeroing of whole tensors requires of a call."""

    kernel: Kernel
    requirements: tuple[Requirement, ...]


def read_kernel(
    name: str,
    implementation: Implementation,
    arguments: Sequence[Argument],
    choices: Sequence[Choice],
    workspaces: Sequence[Workspace],
    names: Nameable,
    folder: Path | None,
    scope: Scope,
) -> ReadKernel:
    """One implementation of a kernel of an operation.

    Args:
        name: of the kernel.
        names: what its parameters may be named after.
        folder: where its configurations may stand (space.find_folder).
        scope: of the operation: arguments, definitions, choices and workspaces.

    Raises:
        RecipeError: something in it does not hold.
    """
    document, keys, shape = implementation.document, implementation.keys, implementation.shape
    function = name if shape.function is None else shape.function
    source, signature = _function(document, keys, shape, function)
    own = _choices(document, keys, shape, choices)
    constexprs = [parameter.name for parameter in signature if parameter.constexpr]
    space = read_space(implementation, name, folder)
    switches = switched(space, shape)
    tunable = [name for name in constexprs if name not in shape.constants or name in switches]
    sets = read_configurations(implementation, space, tunable, switches, scope)
    all_configurations = distinct(c for entry in sets for c in (*entry.core, *entry.full))
    columns = _columns(document, keys, tunable, all_configurations, scope)
    inner = with_configurations(scope, columns, all_configurations, switches)
    constants = _constants(document, keys, shape, constexprs, inner)
    parameters = read_parameters(
        implementation, signature, function, own, arguments, workspaces, constants, names, inner
    )
    specializations = _specializations(implementation, parameters, tunable, sets)
    bins = _bins(document, keys, shape, own, columns, scope)
    words = Vocabulary(own, all_configurations, tuple(s.name for s in specializations), bins)
    zeros, requirements = _zeros(document, keys, shape, arguments, workspaces, inner)
    _refuse_too_many(document, keys, zeros, bins, specializations)
    of_grid = inner
    for parameter in parameters:
        if parameter.descriptor is None and not parameter.type.startswith(("*", "fp")):
            of_grid = of_grid.with_word(parameter.name, f"({parameter.value.text})")
    grid = [_side_of_grid(document, (*keys, "grid", i), text, of_grid) for i, text in enumerate(shape.grid)]
    x, y, z = (*grid, *(parse("1"),) * (3 - len(grid)))
    on_host = (*grid, *(p.value for p in parameters), *(e for zero in zeros for e in (zero.address, zero.bytes)))
    _refuse_overrides(document, keys, specializations, on_host)
    when, serves = (
        None if text is None else read_expression(document, (*keys, key), text, scope)
        for key, text in (("when", shape.when), ("serves", shape.serves))
    )
    for key, read, text in (("when", when, shape.when), ("serves", serves, shape.serves)):
        if text is not None and read is not None and constant(read) == 0:
            document.fail((*keys, key), f"{key} is always 0 ({spelled(text)}), so no call would run {name}")
    if shape.reason and serves is None:
        document.fail((*keys, "reason"), "reason says why `serves` leaves calls out, and there is no `serves`")
    kernel = Kernel(
        name=f"{name}.{implementation.name}" if implementation.name else name,
        summary=shape.summary,
        source=source,
        function=function,
        when=when,
        order=tuple(parameter.name for parameter in signature),
        choices=shape.choices,
        parameters=parameters,
        constants=constants,
        specializations=specializations,
        zeros=zeros,
        grid=(x, y, z),
        bins=bins,
        configurations=sets,
        columns=columns,
        heuristic=read_rules(document, (*keys, "heuristic"), shape.heuristic, words),
        spills=(
            *_spills(document, (*keys, "spills"), shape.spills, words),
            *_spills(space.document, ("spills",), space.spills, words),
        ),
        unavailable=_unavailable(document, keys, shape, words),
        place=document.place(keys),
        implementation=implementation.name,
        language=shape.language,
        targets=implementation.targets,
        serves=serves,
        reason=" ".join(shape.reason.split()),
        ptx=implementation.ptx,
        overlaps=shape.overlaps,
    )
    check_tiles(document, (*keys, "parameters"), kernel, own)
    return ReadKernel(kernel, requirements)


def _function(
    document: Document, keys: Keys, shape: KernelShape, function: str
) -> tuple[Path, Sequence[fingerprint.FunctionParameter]]:
    """The file of the kernel's function, and the function's parameters."""
    if not shape.source:
        document.fail((*keys, "source"), "source is empty; name the kernel's file, relative to the recipe")
    source = (document.path.parent / shape.source).resolve()
    if not source.is_file():
        wrong = "is not a file" if source.exists() else "does not exist"
        document.fail((*keys, "source"), f"the file {shape.source} {wrong} (at {source})")
    if shape.function == "":
        document.fail((*keys, "function"), "function is empty; leave it out where it is named like the kernel")
    shown = Path(document.path.parent, shape.source)
    signature = fingerprint.signature(shown, function)
    language = fingerprint.language(shown, function)
    if language != shape.language:
        document.fail(
            (*keys, "language"),
            f"{function} of {shape.source} is decorated as a function of {language.capitalize()}; the recipe says "
            f"`language: {shape.language}`",
        )
    fingerprint.sources(shown, function)  # so that what it may not import is said now
    check_parameters(document, keys, shape.parameters, signature, function)
    _check_constants(document, keys, shape, signature, function)
    return source, signature


def _columns(
    document: Document, keys: Keys, tunable: Sequence[str], configurations: Sequence[Configuration], scope: Scope
) -> tuple[str, ...]:
    """The names that configurations give values: constexpr parameters, then compile options."""
    columns = (*tunable, *(o for o in OPTION_ORDER if any(o in c.mapping for c in configurations)))
    for column in columns:
        if scope.knows(column):
            document.fail(
                keys, f"the kernel's {column!r} is {scope.kind(column)} of the operation too; rename one of them"
            )
    return columns


def _refuse_too_many(
    document: Document,
    keys: Keys,
    zeros: Sequence[Zero],
    bins: Sequence[Bin],
    specializations: Sequence[Specialization],
) -> None:
    for key, count, most, what in (
        ("zero", len(zeros), MAX_ZEROS, "ranges to zero"),
        ("lookup", len(bins), MAX_BINS, "bins"),
        ("specializations", len(specializations), MAX_SPECIALIZATIONS, "specializations"),
    ):
        if count > most:
            document.fail((*keys, key), f"gives {count} {what}; a kernel can have {most}")


def _spills(document: Document, keys: Keys, spills: Sequence[SpillShape], words: Vocabulary) -> tuple[Spill, ...]:
    return tuple(
        Spill(
            read_when(document, (*keys, i, "when"), entry.when, words, tuned=False),
            entry.bytes,
            _reason(document, (*keys, i, "reason"), entry.reason),
        )
        for i, entry in enumerate(spills)
    )


def _unavailable(document: Document, keys: Keys, shape: KernelShape, words: Vocabulary) -> tuple[Unavailable, ...]:
    return tuple(
        Unavailable(
            read_when(document, (*keys, "unavailable", i, "when"), entry.when, words, tuned=False),
            _reason(document, (*keys, "unavailable", i, "reason"), entry.reason),
        )
        for i, entry in enumerate(shape.unavailable)
    )


def _reason(document: Document, keys: Keys, text: str) -> str:
    """A reason as one line: it stands in errors, reports and packs, which hold nothing that a terminal would obey."""
    line = " ".join(text.split())
    if not line or not line.isprintable():
        document.fail(keys, f"is {text!r}; a reason is a sentence of printable characters")
    return line


def _choices(document: Document, keys: Keys, shape: KernelShape, choices: Sequence[Choice]) -> tuple[Choice, ...]:
    known = {choice.name: choice for choice in choices}
    for position, name in enumerate(shape.choices):
        if name not in known:
            document.fail((*keys, "choices", position), f"unknown choice {name!r}; {nearest(name, known, 'choices')}")
        if name in shape.choices[:position]:
            document.fail((*keys, "choices", position), f"the choice {name!r} stands here twice")
        if known[name].match == "first_that_fits":
            document.fail(
                (*keys, "choices", position),
                f"the choice {name} matches first_that_fits: it decides which kernels a call runs, by their `when`",
            )
    return tuple(known[name] for name in shape.choices)


def _check_constants(
    document: Document,
    keys: Keys,
    shape: KernelShape,
    signature: Sequence[fingerprint.FunctionParameter],
    function: str,
) -> None:
    """`constants` has nothing but constexpr parameters of the function."""
    constexprs = sorted(parameter.name for parameter in signature if parameter.constexpr)
    for name in shape.constants:
        if name not in constexprs:
            known = nearest(name, constexprs, "ones")
            document.fail((*keys, "constants", name), f"{function} has no constexpr parameter {name!r}; {known}")


def _constants(
    document: Document,
    keys: Keys,
    shape: KernelShape,
    constexprs: Sequence[str],
    scope: Scope,
) -> tuple[tuple[str, Expression | Scalar], ...]:
    keys = (*keys, "constants")
    names = [name for name in scope.names if scope.names[name] == "a value of configurations"]
    inner = scope.only_choices(shape.choices, names, "which no image can know")
    result: dict[str, Expression | Scalar] = {}
    for name, value in shape.constants.items():
        result[name] = value if not isinstance(value, str) else read_expression(document, (*keys, name), value, inner)
    return tuple((name, result[name]) for name in constexprs if name in result)


def _side_of_grid(document: Document, keys: Keys, text: str | int | bool, scope: Scope) -> Expression:
    side = read_expression(document, keys, text, scope)
    if (blocks := constant(side)) is not None and blocks < 1:
        document.fail(keys, f"the grid has {blocks} blocks here; a launch has 1 or more in each dimension")
    address = isinstance(side.root, Name) and (side.text.endswith(".data") or scope.kind(side.text) == "a workspace")
    if address:
        document.fail(keys, f"{text} is an address, and the grid is a number of blocks")
    return side


def _specializations(
    implementation: Implementation,
    parameters: Sequence[Parameter],
    tunable: Sequence[str],
    sets: Sequence[ConfigurationSet],
) -> tuple[Specialization, ...]:
    document, keys, shape = implementation.document, (*implementation.keys, "specializations"), implementation.shape
    if not shape.specializations:
        return (Specialization("generic", (), ()),)
    types = {parameter.name: parameter.type for parameter in parameters}
    result = []
    for name, entry in shape.specializations.items():
        named: dict[str, list[str]] = {}
        for field in ("divisible_by_16", "divisible_by_8", "equal_to_1"):
            named[field] = []
            for position, pattern in enumerate(getattr(entry, field)):
                here = (*keys, name, field, position)
                meant = [pattern] if pattern in types else []
                if "*" in pattern:
                    meant = [n for n in fnmatch.filter(types, pattern) if types[n] != DESCRIPTOR]
                if not meant:
                    document.fail(here, f"unknown parameter {pattern!r}; {nearest(pattern, types, 'parameters')}")
                for parameter in meant:
                    kind = types[parameter]
                    if kind == DESCRIPTOR:
                        document.fail(here, f"{parameter} is a tensor descriptor, whose tensor is aligned in any case")
                    if kind.startswith("fp") or (field == "equal_to_1" and kind.startswith("*")):
                        document.fail(here, f"{parameter} is of type {kind}, which cannot be {field}")
                named[field] += meant
        divisible = [(n, 16) for n in named["divisible_by_16"]] + [(n, 8) for n in named["divisible_by_8"]]
        for parameter, factor in divisible:
            if parameter in named["equal_to_1"]:
                document.fail((*keys, name), f"{parameter} cannot be both 1 and a multiple of {factor}")
            if factor == 8 and parameter in named["divisible_by_16"]:
                document.fail((*keys, name), f"{parameter} is a multiple of 16, and so of 8: name it once")
        check_name(document, (*keys, name), name, "a specialization")
        overrides = read_overrides(implementation, (*keys, name, "overrides"), entry, tunable, sets)
        result.append(Specialization(name, tuple(divisible), tuple(named["equal_to_1"]), overrides))
    if result[-1].divisible or result[-1].equal_to_one:
        document.fail(
            keys, f"the last specialization must hold for every call; put `generic: {{}}` after {result[-1].name}"
        )
    for earlier in result[:-1]:
        if not earlier.divisible and not earlier.equal_to_one:
            document.fail((*keys, earlier.name), f"{earlier.name} always holds, so what stands after it is never taken")
    return tuple(result)


def _refuse_overrides(
    document: Document, keys: Keys, specializations: Sequence[Specialization], on_host: Iterable[Expression]
) -> None:
    """What the host computes a launch from must be true of every image of the configuration."""
    used = {name for expression in on_host for name in expression.names}
    for specialization in specializations:
        for name, _ in specialization.overrides:
            if name in used:
                document.fail(
                    (*keys, "specializations", specialization.name, "overrides", name),
                    f"{name} cannot be overridden: the kernel's grid, a parameter or a range to zero depends on it",
                )


def _bins(
    document: Document, keys: Keys, shape: KernelShape, own: Sequence[Choice], columns: Sequence[str], scope: Scope
) -> tuple[Bin, ...]:
    result = []
    for name, entry in shape.lookup.items():
        here = (*keys, "lookup", name)
        check_name(document, here, name, "a bin")
        if any(choice.name == name for choice in own) or name in columns:
            document.fail(
                here, f"{name!r} is a choice or a value of configurations already; conditions could not tell them apart"
            )
        if len(entry.edges) > MAX_EDGES:
            document.fail((*here, "edges"), f"has {len(entry.edges)} edges; a bin can have {MAX_EDGES}")
        for position, edge in enumerate(entry.edges):
            if position and edge <= entry.edges[position - 1]:
                document.fail((*here, "edges", position), f"the edges of {name} do not ascend at {edge}")
        result.append(Bin(name, read_expression(document, (*here, "of"), entry.of, scope), entry.edges))
    return tuple(result)


def _zeros(
    document: Document,
    keys: Keys,
    shape: KernelShape,
    arguments: Sequence[Argument],
    workspaces: Sequence[Workspace],
    scope: Scope,
) -> tuple[tuple[Zero, ...], tuple[Requirement, ...]]:
    """What is zeroed. A tensor that is zeroed whole must be contiguous: that becomes a requirement of the call."""
    zeros, requirements = [], []
    tensors = {argument.name: argument for argument in arguments if argument.kind == "tensor"}
    by_name = {workspace.name: workspace for workspace in workspaces}
    for position, entry in enumerate(shape.zero):
        here = (*keys, "zero", position)
        if not isinstance(entry, str):
            zeros.append(
                Zero(
                    read_expression(document, (*here, "address"), entry.address, scope),
                    read_expression(document, (*here, "bytes"), entry.bytes, scope),
                )
            )
        elif entry in by_name:
            zeros.append(Zero(read_expression(document, here, entry, scope), by_name[entry].bytes))
        elif entry in tensors:
            axes = range(tensors[entry].rank)
            elements = " * ".join([f"{entry}.size[{axis}]" for axis in axes] or ["1"])
            text = f"{elements} * sizeof({entry}.dtype) if {entry}.data != 0 else 0"
            zeros.append(
                Zero(
                    read_expression(document, here, f"{entry}.data", scope),
                    read_expression(document, here, text, scope),
                )
            )
            requirement = read_expression(document, here, contiguous(tensors[entry]), scope)
            requirements.append(Requirement(requirement, f"{entry} must be contiguous, since it is set to zero"))
        else:
            known = [*by_name, *tensors]
            document.fail(here, f"unknown {entry!r}; {nearest(entry, known, 'workspaces and tensors')}")
    return tuple(zeros), tuple(requirements)
