"""What a call's arguments must fulfil: expressions with a sentence, and predicates that have one of their own.

An optional tensor that a call leaves out fulfils every predicate but `belong_together`. The stride of an axis with one
element means nothing, so it may be any.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from kiln_recipe.documents.document import Document, Keys
from kiln_recipe.documents.file import RequirementShape
from kiln_recipe.expressions import Expression
from kiln_recipe.model import Argument, Requirement
from kiln_recipe.read.parameters import Nameable
from kiln_recipe.read.scope import Scope, constant, read_expression
from kiln_recipe.suggest import nearest

MOST_BLOCKS = 2**31 - 1  # of a launch

_PREDICATES = (
    "that",
    "contiguous",
    "not_broadcast",
    "same_shape",
    "shape",
    "elements",
    "belong_together",
    "one_launch",
)
_BESIDE = {"axes": ("contiguous", "not_broadcast", "same_shape"), "is": ("shape",), "count": ("elements",),
           "each": ("elements",)}  # fmt: skip

Condition = tuple[str, str]  # an expression and the sentence for the caller


def read_requirements(
    document: Document,
    keys: Keys,
    shapes: Sequence[RequirementShape],
    names: Nameable,
    titles: Mapping[str, str],
    scope: Scope,
) -> tuple[Requirement, ...]:
    """The requirements of an operation, in order.

    Args:
        keys: of the list.
        titles: of axes: {"b": "batch size"}.

    Raises:
        RecipeError: one is no predicate, or names no tensor.
    """
    found: list[Requirement] = []
    for position, shape in enumerate(shapes):
        reader = _Reader(document, (*keys, position), shape, names, titles, scope)
        if shape.when is not None:
            read_expression(document, (*keys, position, "when"), shape.when, scope)
        for text, sentence in reader.conditions():
            if shape.when is not None:
                text = f"not ({shape.when}) or ({text})"
            that = read_expression(
                document, (*keys, position, *(("that",) if shape.that is not None else ())), text, scope
            )
            if constant(that) == 0:
                document.fail((*keys, position), f"the requirement refuses every call: {text} is always 0")
            requirement = Requirement(that, shape.otherwise or sentence)
            if requirement not in found:
                found.append(requirement)
    return tuple(found)


def contiguous(tensor: Argument) -> str:
    """The expression for: a tensor's elements lie one after another."""
    name, terms, inner = tensor.name, [], "1"
    for axis in reversed(range(tensor.rank)):
        terms.append(f"({name}.size[{axis}] < 2 or {name}.stride[{axis}] == {inner})")
        inner = f"{name}.size[{axis}] * {inner}" if axis < tensor.rank - 1 else f"{name}.size[{axis}]"
    return " or ".join([*_is_empty(tensor), f"({' and '.join(terms)})" if terms else "true"])


def _is_empty(tensor: Argument) -> list[str]:
    return [f"{tensor.name}.size[{axis}] == 0" for axis in range(tensor.rank)] if tensor.rank > 1 else []


def _listed(words: Sequence[str]) -> str:
    """ "a, b and c"."""
    return f"{', '.join(words[:-1])} and {words[-1]}" if len(words) > 1 else words[0]


@dataclass(frozen=True)
class _Reader:
    document: Document
    keys: Keys
    shape: RequirementShape
    names: Nameable
    titles: Mapping[str, str]
    scope: Scope

    def conditions(self) -> Iterator[Condition]:
        said = [word for word in _PREDICATES if getattr(self.shape, word) is not None]
        if len(said) != 1:
            words = f"has {_listed(said)}, of which it can have one" if said else "says nothing that must hold"
            self.document.fail(self.keys, f"the requirement {words}: it is one of {', '.join(_PREDICATES)}")
        for field, owners in _BESIDE.items():
            value = self.shape.sizes if field == "is" else getattr(self.shape, field)
            if value is not None and said[0] not in owners:
                self.document.fail((*self.keys, field), f"{field} is for {_listed(owners)}, not for {said[0]}")
            if value is None and said[0] in owners and field != "axes":
                self.document.fail(self.keys, f"the requirement lacks the field {field!r}, which {said[0]} needs")
        if said[0] == "that" and self.shape.otherwise is None:
            self.document.fail(self.keys, "the requirement lacks the field 'otherwise', the sentence for the caller")
        if self.shape.otherwise is not None and not self.shape.otherwise.strip():
            self.document.fail((*self.keys, "otherwise"), "otherwise is empty; it is the sentence that a caller gets")
        if self.shape.axes is not None and not self.shape.axes:
            self.document.fail((*self.keys, "axes"), f"axes names none; leave it out, or say which of {said[0]}")
        predicates: dict[str, Callable[[], Iterator[Condition]]] = {
            "that": self.that, "contiguous": self.contiguous, "not_broadcast": self.not_broadcast,
            "same_shape": self.same_shape, "shape": self.shape_is, "elements": self.elements,
            "belong_together": self.belong_together, "one_launch": self.one_launch,
        }  # fmt: skip
        return predicates[said[0]]()

    def that(self) -> Iterator[Condition]:
        self.check(self.shape.that, "that")
        yield str(self.shape.that), ""

    def contiguous(self) -> Iterator[Condition]:
        for tensor in self.tensors("contiguous"):
            if self.shape.axes is None:
                yield self.optional(contiguous(tensor), tensor), f"{tensor.name} must be contiguous"
                continue
            for axis in self.axes(tensor):
                text = f"{tensor.name}.stride[{axis}] == 1 or {tensor.name}.size[{axis}] < 2"
                which = "the last dimension" if axis == tensor.rank - 1 else f"dimension {axis}"
                yield self.optional(text, tensor), f"{which} of {tensor.name} must be contiguous (stride 1)"

    def not_broadcast(self) -> Iterator[Condition]:
        for tensor in self.tensors("not_broadcast"):
            axes = self.axes(tensor) if self.shape.axes is not None else range(tensor.rank)
            terms = (f"({tensor.name}.size[{axis}] < 2 or {tensor.name}.stride[{axis}] != 0)" for axis in axes)
            text = " or ".join([f"({' and '.join(terms)})", *_is_empty(tensor)])
            sentence = f"{tensor.name} must not be a broadcast view (stride 0): its rows would overwrite each other"
            yield self.optional(text, tensor), sentence

    def same_shape(self) -> Iterator[Condition]:
        first, *others = tensors = self.tensors("same_shape")
        if not others:
            self.document.fail((*self.keys, "same_shape"), "same_shape names one tensor; give two or more")
        if self.shape.axes is None:
            for other in others:
                if other.rank != first.rank:
                    self.document.fail(
                        (*self.keys, "same_shape"),
                        f"{first.name} has rank {first.rank} and {other.name} {other.rank}; say which `axes` are equal",
                    )
                text = " and ".join(f"{other.name}.size[{i}] == {first.name}.size[{i}]" for i in range(first.rank))
                yield self.optional(text, first, other), f"{other.name} must have the shape of {first.name}"
            return
        for place, axis in enumerate(self.axes(first)):
            name = self.names.axes[first.name][axis]
            text = " and ".join(
                f"{other.name}.size[{self.axes(other)[place]}] == {first.name}.size[{axis}]" for other in others
            )
            where = {self.axes(tensor)[place] for tensor in tensors}
            shown = f"dimension {axis}" if len(where) == 1 else f"axis {name}"
            title = f"{self.titles[name]} ({shown})" if name in self.titles else f"size in {shown}"
            yield self.optional(text, *tensors), f"{_listed([t.name for t in tensors])} must have the same {title}"

    def shape_is(self) -> Iterator[Condition]:
        sizes = [str(size).strip() for size in self.shape.sizes or ()]
        for place, size in enumerate(sizes):
            if re.match(r"<|>(?!=)|=|!=", size) or size == ">=":
                wanted = "an expression, which the size equals, or '>=' and one, which it is not below"
                self.document.fail((*self.keys, "is", place), f"the size {size!r} must be {wanted}")
            self.check(size.removeprefix(">="), "is", place)
        for tensor in self.tensors("shape"):
            if len(sizes) != tensor.rank:
                self.document.fail(
                    (*self.keys, "is"), f"`is` has {len(sizes)} sizes, and {tensor.name} has rank {tensor.rank}"
                )
            terms = [
                f"{tensor.name}.size[{axis}] >= ({size[2:]})"
                if size.startswith(">=")
                else f"{tensor.name}.size[{axis}] == ({size})"
                for axis, size in enumerate(sizes)
            ]
            shown = ", ".join(f"{s[2:].strip()} or more" if s.startswith(">=") else s for s in sizes)
            yield self.optional(" and ".join(terms), tensor), f"{tensor.name} must have the shape [{shown}]"

    def elements(self) -> Iterator[Condition]:
        self.check(self.shape.count, "count")
        for tensor in self.tensors("elements"):
            if tensor.rank != 1:
                self.document.fail(
                    (*self.keys, "elements"), f"{tensor.name} has rank {tensor.rank}; say its shape instead"
                )
            sentence = f"{tensor.name} must have an element for each {self.shape.each}"
            yield self.optional(f"{tensor.name}.size[0] == ({self.shape.count})", tensor), sentence

    def belong_together(self) -> Iterator[Condition]:
        tensors = self.tensors("belong_together")
        if len(tensors) < 2 or not all(tensor.optional for tensor in tensors):
            self.document.fail((*self.keys, "belong_together"), "belong_together takes two or more optional tensors")
        first, *others = (f"given({tensor.name})" for tensor in tensors)
        text = " and ".join(f"{other} == {first}" for other in others)
        yield text, f"{_listed([tensor.name for tensor in tensors])} belong together"

    def one_launch(self) -> Iterator[Condition]:
        for place, factor in enumerate(self.shape.one_launch or ()):
            value = constant(self.check(factor, "one_launch", place))
            if value is not None and value < 1:
                self.document.fail(
                    (*self.keys, "one_launch", place), f"one_launch has the factor {value}; a constant is 1 or more"
                )
        first, *others = (f"({factor})" for factor in self.shape.one_launch or ())
        shown = (str(factor).strip() for factor in self.shape.one_launch or ())
        product = " * ".join(f"({factor})" if re.search(r" [-+] |^-", factor) else factor for factor in shown)
        text = " or ".join([*(f"{o} == 0" for o in others), f"{first} <= {' // '.join([str(MOST_BLOCKS), *others])}"])
        yield text, f"{product} must be below 2^31, or the call is too large for one launch"

    def check(self, text: str | int | bool | None, *keys: str | int) -> Expression:
        """Checks an expression by itself, so that a mistake shows what was written, not a predicate of it."""
        return read_expression(self.document, (*self.keys, *keys), str(text).strip(), self.scope)

    def tensors(self, field: str) -> list[Argument]:
        given = getattr(self.shape, field)
        tensors = {name: argument for name, argument in self.names.arguments.items() if argument.kind == "tensor"}
        for name in (given,) if isinstance(given, str) else given:
            if name not in tensors:
                why = (
                    "is a scalar"
                    if name in self.names.arguments
                    else f"is no tensor; {nearest(name, tensors, 'tensors')}"
                )
                self.document.fail((*self.keys, field), f"{name!r} {why}")
            if not isinstance(given, str) and given.count(name) > 1:
                self.document.fail((*self.keys, field), f"{field} names {name} twice")
        return [tensors[name] for name in ((given,) if isinstance(given, str) else given)]

    def axes(self, tensor: Argument) -> list[int]:
        """The places of the predicate's axes in a tensor."""
        known = self.names.axes[tensor.name]
        axes = [str(axis) for axis in self.shape.axes or ()]
        for axis in axes:
            if axis not in known:
                self.document.fail(
                    (*self.keys, "axes"), f"{tensor.name} has no axis {axis!r}; {nearest(axis, known, 'axes')}"
                )
        return [list(known).index(axis) for axis in axes]

    def optional(self, text: str, *tensors: Argument) -> str:
        """The condition, fulfilled where one of the tensors is left out."""
        absent = [f"not given({tensor.name})" for tensor in tensors if tensor.optional]
        return " or ".join([*absent, f"({text})"]) if absent else text
