"""A call's way through a recipe, evaluated in Python: the steps, the order and the sentences of the runtime's own
dispatch (csrc/core/arguments.cc, dispatch.cc). What runs a recipe without the runtime (kiln.jit), and the tests that
hold the runtime against its recipe, share it.

Addresses are plain integers here: nothing is read from them, and no driver is asked.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from kiln_recipe.call.implementations import Described, PassedOver, describe, lack_of_description
from kiln_recipe.dtypes import DTYPE_BYTES, DTYPES
from kiln_recipe.expressions import INT64_MAX, Expression, Fault
from kiln_recipe.model import MULTIPROCESSORS, Argument, Choice, Kernel, Operation, Specialization
from kiln_recipe.targets import Target

ALIGNMENT = 256  # KILN_WORKSPACE_ALIGNMENT
MOST_BYTES = INT64_MAX // 512  # of a workspace: INT64_MAX / KILN_MAX_VALUES
NOWHERE = 256  # the address of an empty tensor without memory, which is given all the same

# Of a device that is not here: it decides which configuration a call takes, not whether it is served.
TYPICAL_MULTIPROCESSORS = 132
_VENDORS = {"nvidia": "NVIDIA", "amd": "AMD"}

DTYPE_NAMES: Mapping[int, str] = {code: name for name, code in DTYPES.items()}
_BYTES = {DTYPES[name]: size for name, size in DTYPE_BYTES.items()}
_KINDS = {"tensor": "a tensor", "int": "an integer", "float": "a floating number"}


class Refusal(Exception):
    """A call that the recipe does not serve; str() is the runtime's sentence.

    Attributes:
        status: the name of the runtime's status without KILN_E_: "ARGUMENT", "RANGE" or "UNSUPPORTED".
    """

    def __init__(self, status: str, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


@dataclass(frozen=True)
class Tensor:
    """A tensor argument. `dtype` is a kiln_dtype; sizes and strides count elements."""

    data: int
    dtype: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def span(self) -> tuple[int, int]:
        """The addresses that its elements lie at: [begin, end); empty if it has none."""
        if 0 in self.sizes:
            return self.data, self.data
        reaches = [(size - 1) * stride for size, stride in zip(self.sizes, self.strides)]
        below, above = sum(min(reach, 0) for reach in reaches), sum(max(reach, 0) for reach in reaches)
        return self.data + below * _BYTES[self.dtype], self.data + (above + 1) * _BYTES[self.dtype]


Given = Tensor | int | float | None


@dataclass(frozen=True)
class Device:
    """What a call depends on of the device.

    Attributes:
        max_grid: blocks that a grid may have in each dimension.
        driver: NVIDIA: what cuDriverGetVersion() says; None: one that loads everything.
        describes: the driver makes tensor descriptors.
    """

    vendor: str
    multiprocessors: int
    max_grid: tuple[int, int, int] = (2**31 - 1, 65535, 65535)
    driver: int | None = None
    describes: bool = True

    @staticmethod
    def of(target: Target, multiprocessors: int = TYPICAL_MULTIPROCESSORS) -> Device:
        """A device of a target, with a driver that loads everything."""
        return Device(_VENDORS[target.vendor], multiprocessors, describes=target.vendor == "nvidia")


@dataclass(frozen=True)
class Call:
    """A call whose arguments hold.

    Attributes:
        name: "flash.attn_fwd".
        values: what expressions read (docs/recipes.md, 'Expressions'); a floating argument's are a double's bits.
        asked: by choice the value that the call wants, whatever serves it.
        chosen: by choice the place of the value that serves it; -1 where none does.
        skipped: there is nothing to do.
        passed: implementations of kernels that other values of a choice which matches first_that_fits would run.
    """

    operation: Operation
    name: str
    device: Device
    values: Mapping[str, int]
    asked: Mapping[str, int]
    chosen: Mapping[str, int]
    skipped: bool
    passed: tuple[PassedOver, ...] = ()

    @property
    def missing(self) -> bool:
        """Whether some choice has no value that serves."""
        return -1 in self.chosen.values()

    def functional(self, kernel: Kernel) -> int:
        """The number of the functional of a kernel that the call takes."""
        return self.number_of(kernel, self.chosen)

    def number_of(self, kernel: Kernel, places: Mapping[str, int]) -> int:
        """The number of a kernel's functional: its choices in mixed radix, the first the most significant.

        Args:
            places: by choice the place of its value.
        """
        number = 0
        for name in kernel.choices:
            number = number * len(self.operation.choice(name).values) + places[name]
        return number


@dataclass(frozen=True)
class Launch:
    """One kernel of a call, ready to run.

    Attributes:
        configuration, specialization: their numbers.
        arguments: (parameter, value) in the function's order; those that are 1 by the specialization are left out. A
            tensor that is given as a descriptor stands for all that the image takes of it.
        grid: blocks; the kernel is not launched where one of them is 0.
        zeros: (address, bytes): what is set to zero before it.
    """

    kernel: Kernel
    functional: int
    configuration: int
    specialization: int
    arguments: tuple[tuple[str, int | float | Described], ...]
    grid: tuple[int, int, int]
    zeros: tuple[tuple[int, int], ...]


def begin(
    operation: Operation,
    name: str,
    given: Sequence[Given],
    device: Device,
    served: Mapping[str, Sequence[int]] | None = None,
) -> Call:
    """A call up to the choices of its operation.

    Args:
        name: the operation's with its family's.
        given: the arguments, in the recipe's order; None for an optional tensor that is left out.
        served: by choice for each of its values the place of the one that calls of it get (plan.model.Plan.served);
            None: its own.

    Raises:
        Refusal: the operation has no such argument, or a requirement does not hold.
    """
    values = arguments(operation, name, given)
    values |= dict.fromkeys(MULTIPROCESSORS, device.multiprocessors)
    for definition in operation.definitions:
        values[definition.name] = _evaluate(name, definition.value, values, f"the value {definition.name}")
    for requirement in operation.requirements:
        if not _evaluate(name, requirement.that, values, f"what decides that {requirement.otherwise}"):
            raise Refusal("ARGUMENT", f"{name}: {requirement.otherwise}")
    wanted, chosen = {}, {}
    for choice in operation.choices:
        asked = _evaluate(name, choice.of, values, f"the choice {choice.name}")
        place = _match(choice, asked)
        wanted[choice.name] = asked if place < 0 else choice.numbers[place]
        chosen[choice.name] = place if served is None or place < 0 else served[choice.name][place]
        values[choice.name] = asked if place < 0 else choice.numbers[chosen[choice.name]]
    if -1 in chosen.values():
        return Call(operation, name, device, values, wanted, chosen, False)
    _check_dtypes(operation, name, given, values, chosen)
    skipped = operation.skip_when is not None and _evaluate(name, operation.skip_when, values, "skip_when") != 0
    return Call(operation, name, device, values, wanted, chosen, skipped)


def with_next(call: Call, served: Mapping[str, Sequence[int]], passed: Sequence[PassedOver]) -> Call | None:
    """The call with the next value of its choice that matches first_that_fits; None if there is none.

    Args:
        served: as of begin().
        passed: why it is not taken with its value.
    """
    choice = next((choice for choice in call.operation.choices if choice.match == "first_that_fits"), None)
    if choice is None:
        return None
    later = (served[choice.name][place] for place in range(call.chosen[choice.name] + 1, len(choice.values)))
    place = next((place for place in later if place > call.chosen[choice.name]), None)
    if place is None:
        return None
    values = {**call.values, choice.name: choice.numbers[place]}
    skip_when = call.operation.skip_when
    return replace(
        call,
        values=values,
        chosen={**call.chosen, choice.name: place},
        skipped=skip_when is not None and _evaluate(call.name, skip_when, values, "skip_when") != 0,
        passed=(*call.passed, *(replace(one, instead=True) for one in passed)),
    )


def arguments(operation: Operation, name: str, given: Sequence[Given]) -> dict[str, int]:
    """The values that a call's arguments give to expressions.

    Raises:
        Refusal: one is of another kind, rank or dtype than the recipe says, or out of its range.
    """
    if len(given) != len(operation.arguments):
        raise Refusal("ARGUMENT", f"{name}: {len(given)} arguments are given; it takes {len(operation.arguments)}")
    values: dict[str, int] = {}
    for wanted, value in zip(operation.arguments, given):
        if value is None and wanted.optional:
            values |= dict.fromkeys(wanted.values, 0)
            continue
        kind = _kind(wanted, value)
        if value is None or kind != wanted.kind:
            raise Refusal(
                "ARGUMENT", f"{name}: {wanted.name} is {_KINDS.get(kind, 'absent')}; it must be {_KINDS[wanted.kind]}"
            )
        if isinstance(value, Tensor):
            values |= _read_tensor(name, wanted, value)
        elif kind == "int":
            values[wanted.name] = _read_integer(name, wanted, int(value))
        else:
            values[wanted.name] = bits_of(float(value))
    return values


def bits_of(real: float) -> int:
    """The bits of a double as a signed integer, which is how `v` holds a floating argument."""
    return struct.unpack("<q", struct.pack("<d", real))[0]


def workspaces(call: Call) -> Mapping[str, int]:
    """By workspace its bytes.

    Raises:
        Refusal: one has no sensible size.
    """
    sizes = {}
    for workspace in call.operation.workspaces:
        try:
            sizes[workspace.name] = workspace.bytes.evaluate(call.values)
        except Fault:
            sizes[workspace.name] = -1
        if not 0 <= sizes[workspace.name] <= MOST_BYTES:
            raise Refusal("RANGE", f"{call.name}: the workspace {workspace.name} of this call has an invalid size")
    return sizes


def is_wanted(call: Call, kernel: Kernel) -> bool:
    """Whether the call runs a kernel.

    Raises:
        Refusal: what decides that overflows.
    """
    if kernel.when is None:
        return True
    return _evaluate(call.name, kernel.when, call.values, f"the condition of kernel {kernel.kernel}") != 0


def serves(call: Call, kernel: Kernel) -> PassedOver | None:
    """Why an implementation does not serve a call, or None.

    Raises:
        Refusal: what decides that overflows.
    """
    if kernel.serves is None:
        return None
    what = f"what decides whether it is served by kernel {kernel.name}"
    if _evaluate(call.name, kernel.serves, call.values, what):
        return None
    return PassedOver(kernel, f"it serves calls with {kernel.serves_text}")


def bin_number(call: Call, kernel: Kernel) -> int:
    """The number of the look-up's bin that a call lies in: bins in mixed radix, the first the most significant.

    Raises:
        Refusal: a bin's value overflows.
    """
    number = 0
    for axis in kernel.bins:
        value = _evaluate(call.name, axis.of, call.values, f"the bin {axis.name}")
        number = number * (len(axis.edges) + 1) + sum(edge <= value for edge in axis.edges)
    return number


def launch(
    call: Call,
    kernel: Kernel,
    configuration: int,
    row: Sequence[int],
    addresses: Mapping[str, int],
) -> Launch | PassedOver:
    """A kernel of a call with the configuration that its look-up gives; or why it cannot run, of which a descriptor
    cannot describe a tensor.

    Args:
        configuration: its number.
        row: its values in the order of the kernel's columns (plan.model.configuration_rows).
        addresses: of the workspaces.

    Raises:
        Refusal: a parameter does not fit its type, or the grid the device.
    """
    values = {**call.values, **addresses, **dict(zip(kernel.columns, row))}
    given = {
        parameter.name: _evaluate(call.name, parameter.value, values, f"the parameter {parameter.name}")
        for parameter in kernel.parameters
    }
    number = next(i for i, s in enumerate(kernel.specializations) if _holds(s, given))
    left_out = kernel.specializations[number].equal_to_one
    described = {parameter.name: describe(parameter, values) for parameter in kernel.descriptors}
    for tensor in described.values():
        if lack := lack_of_description(kernel, tensor):
            return lack
    encoded = tuple(
        (
            parameter.name,
            described.get(parameter.name)
            or _encode(call.name, kernel, parameter.name, parameter.type, given[parameter.name]),
        )
        for parameter in kernel.parameters
    )
    return Launch(
        kernel,
        call.functional(kernel),
        configuration,
        number,
        tuple(entry for entry in encoded if entry[0] not in left_out),
        _grid(call, kernel, values),
        _zeros(call, kernel, values),
    )


def _kind(wanted: Argument, value: Given) -> str:
    """What is given. A whole number may stand for a floating one, as in Python."""
    if isinstance(value, Tensor):
        return "tensor"
    if isinstance(value, int):
        return "float" if wanted.kind == "float" and not isinstance(value, bool) else "int"
    return "float" if isinstance(value, float) else ""


def _read_tensor(name: str, wanted: Argument, tensor: Tensor) -> dict[str, int]:
    if len(tensor.sizes) != wanted.rank:
        raise Refusal("ARGUMENT", f"{name}: {wanted.name} has rank {len(tensor.sizes)}; it must be {wanted.rank}")
    if wanted.dtype is not None and tensor.dtype != DTYPES[wanted.dtype]:
        raise Refusal("ARGUMENT", f"{name}: {wanted.name} is {DTYPE_NAMES[tensor.dtype]}; it must be {wanted.dtype}")
    if not tensor.data and 0 not in tensor.sizes:
        raise Refusal("ARGUMENT", f"{name}: the data of {wanted.name} is NULL although it has elements")
    return dict(zip(wanted.values, (tensor.data or NOWHERE, tensor.dtype, *tensor.sizes, *tensor.strides)))


def _read_integer(name: str, wanted: Argument, value: int) -> int:
    if wanted.bits == 1 and value not in (0, 1):
        raise Refusal("RANGE", f"{name}: {wanted.name} is {value}; a boolean must be 0 or 1")
    bits = max(wanted.bits, 32)
    if not -(2 ** (bits - 1)) <= value < 2 ** (bits - 1):
        raise Refusal("RANGE", f"{name}: {wanted.name} is {value}, which does not fit its {bits} bits")
    return value


def _check_dtypes(
    operation: Operation, name: str, given: Sequence[Given], values: Mapping[str, int], chosen: Mapping[str, int]
) -> None:
    """Tensors whose dtype a choice decides have that choice's."""
    for argument, value in zip(operation.arguments, given):
        if argument.dtype_choice is None or value is None:
            continue
        choice = operation.choice(argument.dtype_choice)
        dtype = values[f"{argument.name}.dtype"]
        if dtype != values[choice.name]:
            raise Refusal(
                "ARGUMENT",
                f"{name}: {argument.name} is {DTYPE_NAMES[dtype]}; it must be "
                f"{choice.spellings[chosen[choice.name]]}, as this call's {choice.name}",
            )


def _evaluate(name: str, expression: Expression, values: Mapping[str, int], what: str) -> int:
    try:
        return expression.evaluate(values)
    except Fault:
        raise Refusal("RANGE", f"{name}: {what} of this call overflows or divides by zero") from None


def _match(choice: Choice, asked: int) -> int:
    """The place of the value that is asked for; -1 where there is none."""
    for place, number in enumerate(choice.numbers):
        if number == asked or (choice.match == "next_larger" and number > asked):
            return place
    return -1


def _holds(specialization: Specialization, given: Mapping[str, int]) -> bool:
    return all(given[name] % factor == 0 for name, factor in specialization.divisible) and all(
        given[name] == 1 for name in specialization.equal_to_one
    )


def _encode(name: str, kernel: Kernel, parameter: str, kind: str, value: int) -> int | float:
    """The value as the kernel takes it: a number of its type."""
    what = f"the parameter {parameter} of kernel {kernel.name}"
    if kind in ("fp32", "fp64"):
        real = struct.unpack("<d", struct.pack("<q", value))[0]
        if kind == "fp64":
            return real
        try:
            return struct.unpack("<f", struct.pack("<f", real))[0]
        except OverflowError:
            raise Refusal("RANGE", f"{name}: {what} is {real:g}, which does not fit fp32") from None
    if kind.startswith("*"):
        return value
    bits = int(kind[1:])
    low, high = {"i": (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1), "u": (0, 2**bits - 1)}[kind[0]]
    if kind == "i1":
        low, high = 0, 1
    if not low <= value <= high:
        raise Refusal("RANGE", f"{name}: {what} is {value}, which does not fit {kind}")
    return value


def _grid(call: Call, kernel: Kernel, values: Mapping[str, int]) -> tuple[int, int, int]:
    grid = []
    for axis, expression in enumerate(kernel.grid):
        most = call.device.max_grid[axis]
        try:
            blocks = expression.evaluate(values)
        except Fault:
            blocks = None
        if blocks is None or not 0 <= blocks <= most:
            found = "overflows at 0" if blocks is None else f"is {blocks}"
            raise Refusal(
                "RANGE",
                f"{call.name}: grid dimension {axis} of kernel {kernel.name} {found}; "
                f"{call.device.vendor} devices take 0 to {most}",
            )
        grid.append(blocks)
    x, y, z = grid
    return x, y, z


def _zeros(call: Call, kernel: Kernel, values: Mapping[str, int]) -> tuple[tuple[int, int], ...]:
    ranges = []
    for number, zero in enumerate(kernel.zeros):
        try:
            address, size = zero.address.evaluate(values), zero.bytes.evaluate(values)
        except Fault:
            address, size = 0, -1
        if size < 0 or (size > 0 and address == 0):
            raise Refusal(
                "RANGE",
                f"{call.name}: range {number} that kernel {kernel.name} wants zeroed has no sensible size or address",
            )
        if size:
            ranges.append((address, size))
    return tuple(ranges)
