"""Reads the parameters that are tensor descriptors, and what tiles they copy."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from kiln_recipe.documents.document import Document, Keys
from kiln_recipe.documents.file import ParameterShape
from kiln_recipe.dtypes import DTYPE_BYTES, DTYPES
from kiln_recipe.expressions import Expression, Fault
from kiln_recipe.model import (
    DESCRIPTOR,
    Argument,
    Choice,
    Configuration,
    ConfigurationSet,
    Descriptor,
    Kernel,
    Parameter,
    Scalar,
    Value,
    Workspace,
    spelled,
)
from kiln_recipe.read.scope import Scope, read_expression
from kiln_recipe.suggest import nearest
from kiln_recipe.targets import Target

MAX_DESCRIPTORS = 8  # KILN_MAX_DESCRIPTORS
MAX_RANK = 5  # KILN_MAX_DESCRIPTOR_RANK
LONGEST_SIDE = 256  # of a box
GRANULE = 16  # bytes: the innermost side is a multiple
LEAST_PTX = 86  # the first with cp.async.bulk.tensor to the shared memory of one block, as Triton writes it

Constants = Sequence[tuple[str, Expression | Scalar]]


def read_descriptor(
    document: Document,
    keys: Keys,
    name: str,
    shape: ParameterShape,
    arguments: Sequence[Argument],
    workspaces: Sequence[Workspace],
    choices: Sequence[str],
    served: Sequence[Target],
    ptx: int,
    scope: Scope,
    tile_scope: Scope,
) -> Parameter:
    """A parameter that is a tensor descriptor.

    Args:
        choices: names of those that the kernel lists.
        served: the targets that it is compiled for.
        ptx: the PTX version that it states; 0: that of each target.
        scope: of the kernel's parameters.
        tile_scope: of boxes: `scope_of_tiles`.

    Raises:
        RecipeError: it is of no tensor, its box has another rank or reads what no image knows, or a target has no
            tensor descriptors, or a PTX version without their instructions.
    """
    for field in ("type", "value"):
        if getattr(shape, field) is not None:
            document.fail((*keys, field), f"{name} is a tensor descriptor: its {field} follows from the tensor")
    tensor = _tensor(document, keys, name, shape.descriptor or "", arguments, workspaces)
    given = tensor.name
    if not 1 <= tensor.rank <= MAX_RANK:
        document.fail(
            (*keys, "descriptor"), f"{given} has rank {tensor.rank}; a tensor descriptor has from 1 to {MAX_RANK}"
        )
    if not shape.box:
        count = "a side" if tensor.rank == 1 else f"the {tensor.rank} sides"
        document.fail(keys, f"{name} lacks its box: {count} of the tile of {given} that one copy moves")
    if len(shape.box) != tensor.rank:
        document.fail(
            (*keys, "box"),
            f"the box of {name} has {len(shape.box)} side{'s' * (len(shape.box) > 1)}, and {given} has rank "
            f"{tensor.rank}; give a side for each dimension",
        )
    if tensor.dtype_choice is not None and tensor.dtype_choice not in choices:
        document.fail(
            (*keys, "descriptor"),
            f"the dtype of {given} is the choice {tensor.dtype_choice}, which the kernel does not list: `choices` has "
            f"{', '.join(choices) or 'none'}",
        )
    for target in served:
        if not target.tensor_descriptors:
            document.fail(keys, without_descriptors(name, target))
        if (ptx or target.ptx_version) < LEAST_PTX:
            stated = f"{(ptx or target.ptx_version) // 10}.{(ptx or target.ptx_version) % 10}"
            document.fail(
                keys,
                f"{name} is a tensor descriptor, whose copies need PTX 8.6, and images for {target.name} are assembled "
                f'from PTX {stated}; say ptx: "8.6" beside `parameters`',
            )

    def read(texts: Iterable[str]) -> tuple[Expression, ...]:
        return tuple(read_expression(document, keys, text, scope) for text in texts)

    box = tuple(read_expression(document, (*keys, "box", i), side, tile_scope) for i, side in enumerate(shape.box))
    descriptor = Descriptor(given, tensor.dtype, read(tensor.sizes), read(tensor.strides), box)
    address = read_expression(document, keys, tensor.address, scope)
    return Parameter(name, DESCRIPTOR, tensor.dtype_choice, address, descriptor)


@dataclass(frozen=True)
class _Described:
    """A tensor or workspace; what its address, sizes and strides are, as expressions."""

    name: str
    dtype: str | None
    dtype_choice: str | None
    address: str
    sizes: tuple[str, ...]
    strides: tuple[str, ...]

    @property
    def rank(self) -> int:
        return len(self.sizes)


def _tensor(
    document: Document,
    keys: Keys,
    name: str,
    given: str,
    arguments: Sequence[Argument],
    workspaces: Sequence[Workspace],
) -> _Described:
    """What `given`, a tensor or a workspace with a shape, has to be described."""
    tensors = {argument.name: argument for argument in arguments if argument.kind == "tensor"}
    if given in tensors:
        tensor = tensors[given]
        sizes, strides = (
            tuple(f"{given}.{what}[{axis}]" for axis in range(tensor.rank)) for what in ("size", "stride")
        )
        return _Described(given, tensor.dtype, tensor.dtype_choice, f"{given}.data", sizes, strides)
    workspace = next((one for one in workspaces if one.name == given), None)
    if workspace is None or not workspace.sizes:
        if workspace is not None:
            why = "is a workspace without a `shape`"
        elif any(argument.name == given for argument in arguments):
            why = "is a scalar"
        else:
            shaped = [one.name for one in workspaces if one.sizes]
            why = f"is not an argument; {nearest(given, [*tensors, *shaped], 'tensors')}"
        document.fail((*keys, "descriptor"), f"{name} must be the descriptor of a tensor, and {given!r} {why}")
    sizes = tuple(f"({size.text})" for size in workspace.sizes)
    strides = tuple(" * ".join((*sizes[place + 1 :], "1")) for place in range(len(sizes)))
    return _Described(given, workspace.dtype, workspace.dtype_choice, given, sizes, strides)


def without_descriptors(name: str, target: Target) -> str:
    """The sentence for a parameter that a target cannot have."""
    what = "AMD's GPUs" if target.vendor == "amd" else "NVIDIA's GPUs before Hopper"
    return (
        f"{name} is a tensor descriptor, and {what} ({target.name}) have none; say for which `targets` the "
        "implementation is: of sm_90 and later ones, such as [hopper]"
    )


def scope_of_tiles(scope: Scope, choices: Sequence[str], constants: Constants) -> Scope:
    """What the sides of a box may read: choices, configuration values and constants that are whole numbers."""
    whole = [name for name, value in constants if isinstance(value, (Expression, bool, int)) and not scope.knows(name)]
    configured = [name for name in scope.names if scope.names[name] == "a value of configurations"]
    return scope.with_names(whole, "constant").only_choices(
        choices, [*configured, *whole], "which no image knows; a box follows from choices, constants and configurations"
    )


def tile(
    descriptor: Descriptor, constants: Constants, numbers: Mapping[str, int], configuration: Configuration
) -> tuple[int, ...]:
    """The sides of a descriptor's tile in an image.

    Args:
        constants: of the kernel.
        numbers: by choice its value.

    Raises:
        Fault: a side overflows, or divides by zero.
    """
    known = {**numbers, **{n: int(v) for n, v in configuration.values if not isinstance(v, str)}}
    for name, value in constants:
        if name in known or isinstance(value, (float, str)):
            continue
        known[name] = value.evaluate(known) if isinstance(value, Expression) else int(value)
    return tuple(side.evaluate(known) for side in descriptor.box)


def check_tiles(document: Document, keys: Keys, kernel: Kernel, choices: Sequence[Choice]) -> None:
    """Holds every tile of every descriptor against what a copy can move.

    Args:
        keys: of the kernel's parameters.
        choices: those of the kernel.

    Raises:
        RecipeError: a side is no power of two or too long, or the innermost has an odd number of bytes.
    """
    for parameter in kernel.descriptors:
        for numbers, values, configuration in _images(kernel, choices):
            _check_tile(document, (*keys, parameter.name, "box"), kernel, parameter, numbers, values, configuration)


def _images(
    kernel: Kernel, choices: Sequence[Choice]
) -> Iterator[tuple[Mapping[str, int], Mapping[str, Value], Configuration]]:
    """The settings that images are compiled with, as far as tiles depend on them."""
    for place in itertools.product(*(range(len(choice.values)) for choice in choices)):
        numbers = {choice.name: choice.numbers[i] for choice, i in zip(choices, place)}
        values = {choice.name: choice.values[i] for choice, i in zip(choices, place)}
        for entry in kernel.configurations:
            for configuration in (*entry.core, *entry.full):
                if entry.where is None or _holds(entry, numbers, configuration):
                    for specialization in kernel.specializations:
                        yield numbers, values, configuration.overridden(specialization.overrides)


def _holds(entry: ConfigurationSet, numbers: Mapping[str, int], configuration: Configuration) -> bool:
    assert entry.where is not None
    values = {name: int(value) for name, value in configuration.values if not isinstance(value, str)}
    try:
        return entry.where.evaluate({**numbers, **values}) != 0
    except Fault:
        return False  # which the plan tells


def _check_tile(
    document: Document,
    keys: Keys,
    kernel: Kernel,
    parameter: Parameter,
    numbers: Mapping[str, int],
    values: Mapping[str, Value],
    configuration: Configuration,
) -> None:
    assert parameter.descriptor is not None
    setting = " ".join((*(f"{n}={spelled(v)}" for n, v in values.items()), configuration.name))
    try:
        sides = tile(parameter.descriptor, kernel.constants, numbers, configuration)
    except Fault as fault:
        document.fail(keys, f"the box of {parameter.name} ends in {fault} for {setting}")
    for place, side in enumerate(sides):
        if not 1 <= side <= LONGEST_SIDE or side & (side - 1):
            document.fail(
                (*keys, place),
                f"the box of {parameter.name} has the side {side} for {setting}; a side is a power of two up to "
                f"{LONGEST_SIDE}",
            )
    dtype = parameter.descriptor.dtype
    if parameter.dtype_choice is not None:
        dtype = next(name for name, code in DTYPES.items() if code == numbers[parameter.dtype_choice])
    if dtype is not None and sides[-1] * DTYPE_BYTES[dtype] % GRANULE:
        document.fail(
            (*keys, len(sides) - 1),
            f"the innermost side of the box of {parameter.name} has {sides[-1] * DTYPE_BYTES[dtype]} bytes for "
            f"{setting}; it must be a multiple of {GRANULE}",
        )
