"""The parameters of a kernel that are no constexpr. Most follow from their names, and a recipe writes the others:

    x_ptr             the tensor or workspace x
    stride_xm         the stride of x along its axis m; stride_x_m and, of the second axis, stride_x1 are the same
    stride_x          the stride of x along its first axis
    n                 the scalar argument, definition or choice n

x is the tensor's name or an `alias` of it. Pointers have the tensor's dtype, scalar arguments their own type, strides
are i64, and what an expression computes is i32: a call whose value does not fit is refused.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NoReturn

from kiln_recipe.documents.document import Document, Keys
from kiln_recipe.documents.file import MAX_RANK, ArgumentShape, OperationShape, ParameterShape, WorkspaceShape
from kiln_recipe.dtypes import DTYPES, TRITON_DTYPES
from kiln_recipe.expressions import Expression, parse
from kiln_recipe.model import Argument, Choice, Parameter, Scalar, Workspace
from kiln_recipe.read.descriptors import MAX_DESCRIPTORS, read_descriptor, scope_of_tiles
from kiln_recipe.read.fingerprint import FunctionParameter
from kiln_recipe.read.implementations import Implementation
from kiln_recipe.read.scope import Scope, check_name, read_expression
from kiln_recipe.suggest import guess, nearest

MAX_PARAMETERS = 64  # KILN_MAX_PARAMETERS

_SCALARS = ("i1", "i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64", "fp32", "fp64")
_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?|[-+]?inf")


@dataclass(frozen=True)
class Nameable:
    """What a kernel's parameters may be named after.

    Attributes:
        arguments: the operation's, by their names.
        tensors: by each name and alias of a tensor its argument.
        axes: by a tensor's name what its axes are called: "b", "h", "m"; without names "0", "1".
        workspaces: by name what they hold: a dtype, a choice of dtypes, or None where the recipe gives bytes alone.
    """

    arguments: Mapping[str, Argument]
    tensors: Mapping[str, Argument]
    axes: Mapping[str, Sequence[str]]
    workspaces: Mapping[str, str | None]

    @cached_property
    def strides(self) -> Mapping[str, tuple[str, ...]]:
        """By the name of a parameter what it may be, "q.stride[0]"; a tensor with an axis comes before one alone."""
        named: dict[str, dict[str, None]] = {}
        for called, tensor in self.tensors.items():
            for axis, name in enumerate(self.axes[tensor.name]):
                for spelled in (f"stride_{called}{name}", f"stride_{called}_{name}"):
                    named.setdefault(spelled, {})[f"{tensor.name}.stride[{axis}]"] = None
        for called, tensor in self.tensors.items():
            if tensor.rank:
                named.setdefault(f"stride_{called}", {f"{tensor.name}.stride[0]": None})
        return {name: tuple(values) for name, values in named.items()}


def rank_of(document: Document, keys: Keys, name: str, shape: ArgumentShape) -> int:
    """The rank of a tensor, which is said or is the number of its axes."""
    axes = axes_of(shape)
    for position, axis in enumerate(axes):
        if not re.fullmatch("[A-Za-z_]+", axis) or axis in axes[:position]:
            document.fail(
                (*keys, "axes"), f"{axis!r} cannot name an axis of {name}: each has a word or letter of its own"
            )
    if len(axes) > MAX_RANK:
        document.fail((*keys, "axes"), f"{name} has {len(axes)} axes; a tensor can have {MAX_RANK}")
    if shape.axes is not None and shape.rank is not None:
        document.fail((*keys, "rank"), f"{name} has {len(axes)} axes, which say its rank; leave rank out")
    if shape.axes is None and shape.rank is None:
        document.fail(keys, f"the tensor {name} lacks its rank (rank: 2), or names of its axes (axes: [row, column])")
    return len(axes) if shape.rank is None else shape.rank


def axes_of(shape: ArgumentShape) -> tuple[str, ...]:
    """What a tensor's axes are called; () where the recipe does not say."""
    return tuple(shape.axes or ())


def nameable(document: Document, keys: Keys, shape: OperationShape, arguments: Sequence[Argument]) -> Nameable:
    """What parameters of an operation's kernels may be named after.

    Raises:
        RecipeError: an alias is no name, or means something else already.
    """
    tensors = {argument.name: argument for argument in arguments if argument.kind == "tensor"}
    called = dict(tensors)
    axes = {}
    for argument in arguments:
        entry, here = shape.arguments[argument.name], (*keys, "arguments", argument.name)
        aliases = (entry.alias,) if isinstance(entry.alias, str) else entry.alias
        axes[argument.name] = axes_of(entry) or tuple(map(str, range(argument.rank)))
        for alias in aliases:
            check_name(document, (*here, "alias"), alias, "a tensor")
            if alias in called or alias in shape.workspace:
                document.fail((*here, "alias"), f"{alias!r} names something else already; give another alias")
            called[alias] = argument
    workspaces = {n: w.dtype if isinstance(w, WorkspaceShape) else None for n, w in shape.workspace.items()}
    return Nameable({argument.name: argument for argument in arguments}, called, axes, workspaces)


def check_parameters(
    document: Document,
    keys: Keys,
    given: Mapping[str, ParameterShape | bool | int | float | str],
    signature: Sequence[FunctionParameter],
    function: str,
) -> None:
    """Refuses what the recipe writes about parameters that the function has not, or that are constants."""
    keys = (*keys, "parameters")
    expected = [parameter.name for parameter in signature if not parameter.constexpr]
    for name in given:
        if any(parameter.name == name for parameter in signature if parameter.constexpr):
            document.fail((*keys, name), f"{name} is a constexpr parameter of {function}; it belongs into `constants`")
        if name not in expected:
            document.fail(
                (*keys, name), f"{function} has no parameter {name!r}; {nearest(name, expected, 'parameters')}"
            )
    if len(expected) > MAX_PARAMETERS:
        document.fail(keys, f"{function} has {len(expected)} parameters; a kernel can have {MAX_PARAMETERS}")


def read_parameters(
    implementation: Implementation,
    signature: Sequence[FunctionParameter],
    function: str,
    own: Sequence[Choice],
    arguments: Sequence[Argument],
    workspaces: Sequence[Workspace],
    constants: Sequence[tuple[str, Expression | Scalar]],
    names: Nameable,
    scope: Scope,
) -> tuple[Parameter, ...]:
    """A kernel's parameters, in the function's order: as the recipe writes them, or as they follow from their names.

    Args:
        own: the choices that the kernel depends on.
        arguments, workspaces: of the operation.
        constants: of the kernel, which the tiles of descriptors may read.
        scope: what the parameters' values may read.

    Raises:
        RecipeError: one follows from nothing, or what is written does not hold.
    """
    document, keys, shape = implementation.document, (*implementation.keys, "parameters"), implementation.shape
    reader = _Reader(document, keys, function, own, names, scope)
    tiles = scope_of_tiles(scope, shape.choices, constants)
    result: list[Parameter] = []
    for name in (parameter.name for parameter in signature if not parameter.constexpr):
        given, here = shape.parameters.get(name), (*keys, name)
        if isinstance(given, ParameterShape) and given.descriptor is not None:
            served, ptx = implementation.served, implementation.ptx
            result.append(
                read_descriptor(
                    document, here, name, given, arguments, workspaces, shape.choices, served, ptx, scope, tiles
                )
            )
            if sum(entry.descriptor is not None for entry in result) > MAX_DESCRIPTORS:
                document.fail(here, f"a kernel can have {MAX_DESCRIPTORS} tensor descriptors")
            continue
        if isinstance(given, ParameterShape) and given.box:
            document.fail((*here, "box"), f"{name} has a box and no `descriptor`, which names its tensor")
        result.append(reader.read(name, given))
    return tuple(result)


@dataclass(frozen=True)
class _Reader:
    document: Document
    keys: Keys
    function: str
    own: Sequence[Choice]
    names: Nameable
    scope: Scope

    def read(self, name: str, given: ParameterShape | bool | float | str | None) -> Parameter:
        keys = (*self.keys, name)
        said = given.type if isinstance(given, ParameterShape) else None
        value = given.value if isinstance(given, ParameterShape) else given
        kind = said
        if value is None:
            value = self.meant(name)
        if kind is None:
            kind = self.type_of(name, value)
        if isinstance(value, str) and self.is_memory(value.strip()):
            tensor = self.names.tensors.get(value.strip())
            value = f"{tensor.name}.data" if tensor else value
        triton_type, dtype_choice = self.type(keys, name, kind)
        return Parameter(name, triton_type, dtype_choice, self.value(keys, name, triton_type, value))

    def meant(self, name: str) -> str:
        """The value that follows from a parameter's name."""
        if name.endswith("_ptr") and self.is_memory(name.removesuffix("_ptr")):
            return name.removesuffix("_ptr")
        strides = self.names.strides.get(name, ())
        if len(strides) > 1:
            self.fail(name, f"may be {' or '.join(strides)}; say under `parameters` which it is")
        if strides:
            return strides[0]
        values = [n for n in (*self.scope.names, *self.scope.floats) if "." not in n and n not in self.names.workspaces]
        if name not in values:
            pointers = (f"{called}_ptr" for called in (*self.names.tensors, *self.names.workspaces))
            near = guess(name, [*pointers, *self.names.strides, *values])
            self.fail(
                name,
                f"follows from no argument, definition or workspace{near}: say under `parameters` what it is, or "
                "annotate it as tl.constexpr if it is a constant",
            )
        return name

    def is_memory(self, called: str) -> bool:
        return called in self.names.tensors or called in self.names.workspaces

    def type_of(self, name: str, value: bool | float | str) -> str:
        """The type of a parameter that has this value, where the recipe does not say."""
        text = str(value).strip().removesuffix(".data")
        if self.is_memory(text):
            return self.pointer(name, text)
        if argument := self.names.arguments.get(text):
            return {"float": f"fp{argument.bits}", "int": f"i{argument.bits}"}[argument.kind]
        if isinstance(value, float) or (isinstance(value, str) and _NUMBER.fullmatch(text) and not text.isdigit()):
            self.fail(name, f"is {text}, and may be fp32 or fp64: say {{type: fp32, value: {text}}}")
        return "i64" if name.startswith("stride_") or re.fullmatch(r"\w+\.stride\[\d+\]", text) else "i32"

    def pointer(self, name: str, called: str) -> str:
        """The type of a pointer to a tensor or workspace."""
        tensor = self.names.tensors.get(called)
        dtype = (tensor.dtype or tensor.dtype_choice) if tensor else self.names.workspaces[called]
        if dtype is None:
            self.fail(
                name,
                f"is the workspace {called}, of which bytes are given, and no dtype: say `{called}: {{dtype: fp32, "
                f"elements: ...}}` there, or the parameter's type",
            )
        if dtype not in DTYPES and not any(choice.name == dtype for choice in self.own):
            self.fail(name, f"is {called}, whose dtype is the choice {dtype}; add it to the kernel's `choices`")
        return f"*{dtype}"

    def fail(self, name: str, sentence: str) -> NoReturn:
        self.document.fail((*self.keys, name), f"{self.function}'s parameter {name} {sentence}")

    def type(self, keys: Keys, name: str, text: str) -> tuple[str, str | None]:
        """A parameter's type as Triton spells it, and the choice that decides it."""
        if text.startswith("*"):
            pointed = text[1:].strip()
            for choice in self.own:
                if choice.name == pointed:
                    if choice.kind != "dtype":
                        self.document.fail(keys, f"the values of the choice {pointed} are not dtypes")
                    return f"*{pointed}", pointed
            if pointed in DTYPES:
                return f"*{TRITON_DTYPES[pointed]}", None
            if pointed in TRITON_DTYPES.values():
                return f"*{pointed}", None
            known = [*(f"*{c.name}" for c in self.own if c.kind == "dtype"), *(f"*{dtype}" for dtype in DTYPES)]
            self.document.fail(keys, f"{name} has the unknown type {text!r}; {nearest(text, known, 'pointers')}")
        scalar = {**TRITON_DTYPES, "fp16": "", "bf16": ""}.get(text, text)
        if scalar not in _SCALARS:
            known = list(_SCALARS)
            self.document.fail(
                keys, f"{name} has the unknown type {text!r}; {nearest(text, known, 'types of scalars')}"
            )
        return scalar, None

    def value(self, keys: Keys, name: str, kind: str, value: bool | float | str) -> Expression:
        text = str(value).strip()
        if not kind.startswith("fp"):
            if isinstance(value, float):
                self.document.fail(keys, f"{name} is of type {kind} and cannot be {value}")
            return read_expression(self.document, keys, text, self.scope)
        if text in self.scope.floats:
            self.scope.used.add(text)
            return parse(text)
        if isinstance(value, bool) or not _NUMBER.fullmatch(text):
            self.document.fail(
                keys,
                f"{name} is of type {kind}: its value must be a floating argument alone or a number, not {text!r}",
            )
        return parse(str(struct.unpack("<q", struct.pack("<d", float(text)))[0]))
