"""Reads the part of YAML that targets.yaml is written in, with the standard library alone: `build.sh` and `./kiln` know
the targets before any package is installed, and the inspector of a release where none ever is.

    file     = entry*                            lines of '#' alone are comments
    entry    = key ":" [" &" anchor] NEWLINE (field* | item*)
    item     = "  - " field ("    " field)*      a line begins with two spaces for each level
    field    = key ": " value | "<<: *" anchor   a merge stands first; the fields after it win
    value    = "*" anchor | "[" [scalar ("," scalar)*] "]" | "{" [key ":" scalar ("," key ":" scalar)*] "}" | scalar
    scalar   = '"' text '"' | true | false | number | text       the last begins with a letter

A list or a mapping in brackets may go over several lines. Anything else is refused, and never read as something else.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

_KEY = r"([A-Za-z_][\w-]*)"
_WORDS = {"true": True, "false": False}
# Words that YAML takes for something else, in one of its versions.
_MEANT = ("null", "true", "false", "yes", "no", "on", "off", "y", "n")


def read(text: str) -> dict[str, Any]:
    """The file's mappings, and its lists of mappings, by their keys.

    Raises:
        ValueError: a line is beyond the grammar; names it.
    """
    found: dict[str, Any] = {}
    anchors: dict[str, dict[str, Any]] = {}
    fields: dict[str, Any] = {}
    key = ""
    for number, line in _lines(text):
        try:
            entry = re.fullmatch(rf"{_KEY}:(?: &{_KEY})?", line)
            if entry:
                key = entry[1]
                found[key] = fields = {}
                if entry[2]:
                    anchors[entry[2]] = fields
                continue
            item = re.fullmatch("( {2}- | {4}| {2})(\\S.*)", line)
            if not key or item is None:
                raise ValueError("not an entry, an item or a field")
            if item[1] == "  - ":
                fields = {}
                found[key] = [*(found[key] or ()), fields]
            elif (item[1] == "    ") != isinstance(found[key], list):
                raise ValueError("indented as no field is here")
            _add(fields, item[2], anchors)
        except (KeyError, ValueError, IndexError) as error:
            raise ValueError(f"line {number} cannot be read, {line.strip()!r}: {error}") from None
    return found


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Each line that is not empty or a comment, with its number; one with an open bracket, with those up to its end."""
    open_line, first = "", 0
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        first = first if open_line else number
        open_line = f"{open_line} {line.strip()}" if open_line else line.rstrip()
        if sum(map(open_line.count, "[{")) <= sum(map(open_line.count, "]}")):
            yield first, open_line
            open_line = ""
    if open_line:
        yield first, open_line


def _add(fields: dict[str, Any], text: str, anchors: dict[str, dict[str, Any]]) -> None:
    merged = re.fullmatch(rf"<<: \*{_KEY}", text)
    if merged:
        if fields:
            raise ValueError("a merge stands first")
        fields.update(anchors[merged[1]])
        return
    name, value = _field(text)
    fields[name] = anchors[value[1:]] if value.startswith("*") else _value(value)


def _field(text: str) -> tuple[str, str]:
    field = re.fullmatch(rf"{_KEY}: +(\S.*)", text)
    if field is None:
        raise ValueError("not a field")
    return field[1], field[2]


def _value(text: str) -> Any:
    if text[0] == "[" and text[-1] == "]":
        return [_scalar(part) for part in _parts(text)]
    if text[0] == "{" and text[-1] == "}":
        return {name: _scalar(value) for name, value in map(_field, _parts(text))}
    return _scalar(text)


def _parts(text: str) -> list[str]:
    return [part.strip() for part in text[1:-1].split(",")] if text[1:-1].strip() else []


def _scalar(text: str) -> str | int | float | bool:
    if quoted := re.fullmatch(r'"([^"\\]*)"', text):
        return quoted[1]
    if text in _WORDS:
        return _WORDS[text]
    if re.fullmatch("0|[1-9][0-9]*", text):
        return int(text)
    if re.fullmatch(r"[0-9]+\.[0-9]+", text):
        return float(text)
    if not re.fullmatch(r"[A-Za-z][\w .+/-]*", text, re.ASCII) or text.lower() in _MEANT:
        raise ValueError(f"{text!r} needs quotes, or is not of this part of YAML")
    return text
