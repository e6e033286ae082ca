# ruff: noqa: UP045 - Python 3.9 reads these annotations too
"""Holds plain data, such as JSON gives, against frozen dataclasses, strictly; makes plain data of them, and their JSON
schema.

A dataclass is an object with a member for each field and no other; one that has its default is left out. Fields are
`str`, `int`, `bool`, other such dataclasses, `Optional`, `Mapping[str, X]` and `tuple[X, ...]` of these, and may be
`Annotated` with `Limits`. Needs only the standard library: releases are read on machines that have no more.
"""

from __future__ import annotations

import dataclasses
import functools
import re
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Optional

from kiln_recipe.errors import cut

LONGEST_TEXT = 4096  # where Limits do not say otherwise
LARGEST_NUMBER = 2**63 - 1
_MOST_ENTRIES = 4096

Check = Callable[[Any], str]  # what is wrong with a value: " is 3; it must be text", or ""


@dataclass(frozen=True)
class Limits:
    """What a field may hold. `pattern`: all of a text; `least`: of a number; `most`: entries of a tuple or mapping;
    `description` is for the schema."""

    pattern: str = ""
    least: Optional[int] = None
    most: int = _MOST_ENTRIES
    description: str = ""


def is_line(text: str) -> bool:
    """Whether a terminal that prints the text does nothing else: no control characters, nothing that hides or turns
    text, no half of a character, no line break."""
    return text.isprintable()


def shown(value: object) -> str:
    """A value in a sentence, cut where it is long."""
    if isinstance(value, (dict, list)):
        return "an object" if isinstance(value, dict) else "a list"
    if isinstance(value, int) and abs(value) > LARGEST_NUMBER and not isinstance(value, bool):
        return "a number beyond 64 bits"
    text = "null" if value is None else str(value).lower() if isinstance(value, bool) else ascii(value)
    return cut(text)


def _is_object(value: Any) -> bool:
    """Whether it is a dataclass, or one's instance. Checkers take what they know that of for nothing to cache by."""
    return dataclasses.is_dataclass(value)


@functools.cache
def fields_of(shape: type) -> dict[str, tuple[Any, Any]]:
    """Annotation and default (`dataclasses.MISSING` if it has none) of each field."""
    hints = typing.get_type_hints(shape, include_extras=True)
    return {field.name: (hints[field.name], field.default) for field in dataclasses.fields(shape)}


def entries_of(annotation: Any) -> Any:
    """The type of a tuple's entries; None of what is not a tuple."""
    if typing.get_origin(annotation) is typing.Annotated:
        annotation = typing.get_args(annotation)[0]
    return typing.get_args(annotation)[0] if typing.get_origin(annotation) is tuple else None


@functools.cache
def check(annotation: Any, limits: Limits = Limits()) -> Check:
    """The check of values that shall be of this type."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return check(arguments[0], arguments[1])
    if origin is typing.Union:
        inner = check(next(argument for argument in arguments if argument is not type(None)), limits)
        return lambda value: "" if value is None else inner(value)
    if origin is tuple:
        return _entries(list, "a list", check(arguments[0]), limits)
    if origin is not None and issubclass(origin, Mapping):
        return _entries(dict, "an object", check(arguments[1]), limits)
    if _is_object(annotation):
        return functools.partial(_object, {n: (check(a), default) for n, (a, default) in fields_of(annotation).items()})
    return {str: _text, int: _number, bool: _truth}[annotation](limits)


def plain(value: Any) -> Any:
    """The plain data of a dataclass; fields that have their default are left out."""
    if _is_object(value):
        members = ((n, getattr(value, n), default) for n, (_, default) in fields_of(value.__class__).items())
        return {name: plain(member) for name, member, default in members if member != default}
    if isinstance(value, (tuple, list)):
        return [plain(entry) for entry in value]
    if isinstance(value, Mapping):
        return {name: plain(entry) for name, entry in value.items()}
    return value


def schema(shape: type) -> dict[str, Any]:
    """The JSON schema of a dataclass."""
    named: dict[str, dict] = {}
    return {**_schema(shape, Limits(), named), "$defs": named}


def _object(fields: Mapping[str, tuple[Check, Any]], value: Any) -> str:
    if not isinstance(value, dict):
        return f" is {shown(value)}; it must be an object"
    for name, member in value.items():
        if name not in fields:
            return f" has the unknown field {shown(name)}"
        inner, default = fields[name]
        if problem := inner(member):
            return f".{name}{problem}"
        if member == default and default is not dataclasses.MISSING:
            return f".{name} is the default value {shown(member)}; leave the field out"
    for name, (_, default) in fields.items():
        if name not in value and default is dataclasses.MISSING:
            return f" lacks the field {name!r}"
    return ""


def _entries(kind: type[list | dict], called: str, inner: Check, limits: Limits) -> Check:
    def check_entries(value: Any) -> str:
        if not isinstance(value, kind):
            return f" is {shown(value)}; it must be {called}"
        if len(value) > limits.most:
            return f" has {len(value)} entries; it can have {limits.most}"
        entries: Iterable[tuple[Any, Any]] = value.items() if isinstance(value, dict) else enumerate(value)
        for name, entry in entries:
            if problem := inner(entry):
                return f"[{shown(name)}]{problem}"
            if kind is dict and not is_line(name):
                return f" has the name {shown(name)}; it must be a line without control characters"
        return ""

    return check_entries


def _text(limits: Limits) -> Check:
    pattern = re.compile(limits.pattern or "(?s).*")

    def check_text(value: Any) -> str:
        if not isinstance(value, str):
            return f" is {shown(value)}; it must be text"
        if len(value) > LONGEST_TEXT:
            return f" has {len(value)} characters; it can have {LONGEST_TEXT}"
        if not is_line(value):
            return f" is {shown(value)}; it must be a line without control characters"
        if not pattern.fullmatch(value):
            return f" is {shown(value)}; it must match {limits.pattern}"
        return ""

    return check_text


def _number(limits: Limits) -> Check:
    least = -LARGEST_NUMBER if limits.least is None else limits.least

    def check_number(value: Any) -> str:
        if isinstance(value, bool) or not isinstance(value, int):
            return f" is {shown(value)}; it must be a whole number"
        return "" if least <= value <= LARGEST_NUMBER else f" is {shown(value)}; it must be from {least} to 2^63 - 1"

    return check_number


def _truth(_limits: Limits) -> Check:
    return lambda value: "" if isinstance(value, bool) else f" is {shown(value)}; it must be true or false"


def _schema(annotation: Any, limits: Limits, named: dict[str, dict]) -> dict[str, Any]:
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return _schema(arguments[0], arguments[1], named)
    about = {"description": limits.description} if limits.description else {}
    if origin is typing.Union:
        inner = next(argument for argument in arguments if argument is not type(None))
        return {"anyOf": [_schema(inner, limits, named), {"type": "null"}]}
    if origin is tuple:
        return {"type": "array", "items": _schema(arguments[0], Limits(), named), "maxItems": limits.most, **about}
    if origin is not None and issubclass(origin, Mapping):
        values = _schema(arguments[1], Limits(), named)
        return {"type": "object", "additionalProperties": values, "maxProperties": limits.most, **about}
    if _is_object(annotation):
        if annotation.__name__ not in named:
            named[annotation.__name__] = {}
            fields = fields_of(annotation)
            named[annotation.__name__] |= {
                "type": "object",
                "description": " ".join((annotation.__doc__ or "").split()),
                "properties": {
                    n: {**_schema(a, Limits(), named), **({} if d is dataclasses.MISSING else {"default": d})}
                    for n, (a, d) in fields.items()
                },
                "required": [name for name, (_, default) in fields.items() if default is dataclasses.MISSING],
                "additionalProperties": False,
            }
        return {"$ref": f"#/$defs/{annotation.__name__}"}
    if annotation is str:
        pattern = {"pattern": f"^(?:{limits.pattern})$"} if limits.pattern else {}
        return {"type": "string", "maxLength": LONGEST_TEXT, **pattern, **about}
    if annotation is int:
        least = {} if limits.least is None else {"minimum": limits.least}
        return {"type": "integer", "maximum": LARGEST_NUMBER, **least, **about}
    return {"type": "boolean", **about}
