"""YAML files as msgspec structs, each mistake reported with its file and line.

msgspec checks shapes but knows no lines; PyYAML's nodes know lines but no shapes. Here a walk over the nodes along the
struct's type finds the first mistake and where it stands, and remembers the line of everything for later checks.
"""

from __future__ import annotations

import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar

import msgspec
import yaml
from msgspec import inspect

from kiln_recipe.documents import include, yaml_limits
from kiln_recipe.errors import EnvironmentProblem, RecipeError, cut
from kiln_recipe.suggest import nearest

T = TypeVar("T")
Key = str | int
Keys = tuple[Key, ...]
MEANS = "means"  # of a text's Meta.extra: what its pattern allows, in words


if TYPE_CHECKING:
    from yaml import SafeLoader as _SafeLoader
else:
    _SafeLoader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the same in C, where PyYAML was built with it


class _Loader(_SafeLoader):
    """Reads scalars as YAML 1.2 does: `on` and `no` are text, so are 1:30 and 010, and 1e-6 is a number."""

    yaml_implicit_resolvers: dict = {}


for _tag, _pattern, _first in (
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("int", r"[-+]?(0|[1-9][0-9]*)|0x[0-9a-fA-F]+", "-+0123456789"),
    (
        "float",
        r"[-+]?((\.[0-9]+|[0-9]+\.[0-9]*)([eE][-+]?[0-9]+)?|[0-9]+[eE][-+]?[0-9]+|\.(inf|Inf|INF))",
        "-+.0123456789",
    ),
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("merge", r"<<", "<"),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(f"^(?:{_pattern})$"), list(_first))


@dataclass(frozen=True)
class Document(Generic[T]):
    """A YAML file that has its shape.

    Attributes:
        path: of the file, as it was given.
        value: what it says.
        lines: for the keys that lead to a value the line of it, from 1.
    """

    path: Path
    value: T
    lines: Mapping[Keys, int]

    def place(self, keys: Keys = ()) -> str:
        """ "file:line" of what the keys lead to, or of the nearest thing around it."""
        while keys and keys not in self.lines:
            keys = keys[:-1]
        return f"{self.path}:{self.lines.get(keys, 1)}"

    def fail(self, keys: Keys, sentence: str) -> NoReturn:
        """Raises a RecipeError at the place that the keys lead to."""
        raise RecipeError(f"{self.place(keys)}: {sentence}")


def read(path: Path, shape: type[T]) -> Document[T]:
    """Reads a YAML file into a msgspec struct.

    Raises:
        EnvironmentProblem: it cannot be read.
        RecipeError: it is no YAML, or lacks the shape.
    """
    text = _bytes_of(path)
    if path.suffix == ".py":
        raise RecipeError(
            f"{path}:1: is a Python file, and no recipe; `kiln recipes --new {path}` writes a recipe for its kernels"
        )
    lines: dict[Keys, int] = {}
    try:
        yaml_limits.check(text, _Loader)
        loader = _Loader(text)
        try:
            node = loader.get_single_node()
            if node is None:
                raise RecipeError(f"{path}:1: is empty")
            _refuse_duplicates(node, path)
            if include.SHARED in shape.__annotations__:
                include.expand(node, path)
            data = loader.construct_document(node)
        finally:
            loader.dispose()
    except RecipeError:  # which is a ValueError too
        raise
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = " ".join(filter(None, (error.context, error.problem)))
        hint = _hint(text, mark, problem) if mark else ""
        where = f" in column {mark.column + 1}" if mark else ""
        raise RecipeError(f"{path}:{mark.line + 1 if mark else 1}: is not valid YAML: {problem}{where}{hint}") from None
    except yaml_limits.Refused as error:
        raise RecipeError(f"{path}:{error.line}: {error}") from None
    except yaml.reader.ReaderError as error:
        raise RecipeError(_unreadable(path, text, error)) from None
    except (yaml.YAMLError, ValueError) as error:
        raise RecipeError(f"{path}:1: is not valid YAML: {' '.join(str(error).split())}") from None
    _Walk(path, lines).check(node, data, inspect.type_info(shape), ())
    try:
        return Document(path, msgspec.convert(data, shape), lines)
    except msgspec.ValidationError as error:
        raise RecipeError(f"{path}:1: {error}") from error


def _unreadable(path: Path, text: bytes, error: yaml.reader.ReaderError) -> str:
    """The sentence for a character that YAML does not take; YAML's own gives its distance from the file's beginning."""
    try:
        characters = text.decode()
        place = next((i for i, c in enumerate(characters) if ord(c) == error.character), 0)
        line = characters[:place].count("\n") + 1
        what = f"the character U+{error.character:04X} cannot stand there"
    except UnicodeDecodeError as wrong:
        line = text[: wrong.start].count(b"\n") + 1
        what = f"the byte {text[wrong.start]:#04x} is not UTF-8"
    return f"{path}:{line}: is not valid YAML: {what}; is it a text file?"


def _bytes_of(path: Path) -> bytes:
    """What a file holds, up to what is too much. A pipe has no end that one could wait for, and is not opened."""
    wanted = "give a YAML file that is there"
    try:
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):  # of a folder the system's own words tell
            raise EnvironmentProblem(f"{path} is a {'pipe' if stat.S_ISFIFO(mode) else 'device'}; {wanted}")
        with path.open("rb") as file:
            return file.read(yaml_limits.LARGEST + 1)
    except OSError as error:
        raise EnvironmentProblem(f"{path} cannot be read ({error.strerror}); {wanted}") from error


def _hint(text: bytes, mark: yaml.Mark, problem: str) -> str:
    """What YAML's own sentence leaves out of the mistakes that are made most."""
    line = text.decode(errors="replace").split("\n")[mark.line :][:1]
    rest = line[0][mark.column :] if line else ""
    if "alias" in problem and (word := re.match(r"\*[A-Za-z0-9_]+", rest)):
        return f'; a text that begins with * stands in quotes: "{word[0]}"'
    if re.match(r" *\t", line[0] if line else ""):
        return "; the line begins with a tab, and YAML indents with spaces alone"
    if rest[:1] in ("@", "`", "%"):
        return f"; a text that begins with {rest[0]} stands in quotes"
    if "flow" in problem and (word := re.search(r"[\w.]+\[\d*\]?", line[0] if line else "")):
        return f'; in a list or mapping on one line an expression with brackets stands in quotes: "{word[0]}"'
    if "mapping values" in problem:
        return "; is the line indented like its neighbours? a text that holds a colon stands in quotes"
    if "block" in problem:
        return "; does the line begin under the one that it belongs to?"
    return ""


def _refuse_duplicates(node: yaml.Node, path: Path) -> None:
    """YAML's last one wins, silently; here a name stands once."""
    seen: set[int] = set()
    pending = [node]
    while pending:
        current = pending.pop()
        if id(current) in seen:
            continue
        seen.add(id(current))
        if isinstance(current, yaml.MappingNode):
            names: set[str] = set()
            for key, value in current.value:
                if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                    if key.value in names:
                        raise RecipeError(
                            f"{path}:{key.start_mark.line + 1}: {cut(repr(key.value))} appears a second time"
                        )
                    names.add(key.value)
                pending += (key, value)
        elif isinstance(current, yaml.SequenceNode):
            pending += current.value


@dataclass
class _Walk:
    path: Path
    lines: dict[Keys, int]

    def check(self, node: yaml.Node, data: Any, shape: inspect.Type, keys: Keys) -> None:
        line = node.start_mark.line + 1
        self.lines.setdefault(keys, line)
        meant = None
        if isinstance(data, str):
            self.characters(line, keys, data)
        if isinstance(shape, inspect.Metadata):
            meant = (shape.extra or {}).get(MEANS)
            shape = shape.type
        options = shape.types if isinstance(shape, inspect.UnionType) else (shape,)
        for option in options:
            if isinstance(option, inspect.Metadata):
                option = option.type
            if isinstance(node, yaml.MappingNode) and isinstance(option, inspect.StructType):
                return self.struct(node, data, option, keys)
            if isinstance(node, yaml.MappingNode) and isinstance(option, inspect.DictType):
                return self.mapping(node, data, option, keys)
            if isinstance(data, list) and isinstance(option, (inspect.ListType, inspect.VarTupleType)):
                self.length(line, keys, len(data), option)
                for position, (child, value) in enumerate(zip(node.value, data)):
                    self.check(child, value, option.item_type, (*keys, position))
                return None
            if _is_scalar(data, option):
                if isinstance(option, inspect.StrType) and option.pattern and not re.search(option.pattern, data):
                    wanted = meant or f"text that matches {option.pattern}"
                    self.fail(line, keys, f"is {cut(repr(data))}; it must be {wanted}")
                return None
        self.fail(line, keys, f"is {_shown(data)}; it must be {' or '.join(dict.fromkeys(map(_expected, options)))}")
        return None

    def mapping(self, node: yaml.MappingNode, data: dict, shape: inspect.DictType, keys: Keys) -> None:
        self.length(node.start_mark.line + 1, keys, len(data), shape)
        children = _children(node)
        for key, value in data.items():
            if not isinstance(key, str):
                line = node.start_mark.line + 1
                self.fail(line, keys, f"has the key {cut(repr(key))}; a key must be text, so put it in quotes")
            line, child = children[key]
            self.characters(line, keys, key)
            here = (*keys, key)
            self.lines[here] = line
            self.check(child, value, shape.value_type, here)

    def struct(self, node: yaml.MappingNode, data: dict, shape: inspect.StructType, keys: Keys) -> None:
        fields = {field.encode_name: field for field in shape.fields}
        children = _children(node)
        for key, value in data.items():
            line, child = children.get(str(key), (node.start_mark.line + 1, node))
            if key not in fields:
                self.fail(line, keys, f"has the unknown field {cut(repr(key))}; {nearest(str(key), fields)}")
            here = (*keys, key)
            self.lines[here] = line
            self.check(child, value, fields[key].type, here)
        for name, field in fields.items():
            if field.required and name not in data:
                self.fail(node.start_mark.line + 1, keys, f"lacks the field {name!r}")

    def characters(self, line: int, keys: Keys, text: str) -> None:
        """Refuses what no file could be written with: half of a pair of UTF-16, as "\\ud800" gives."""
        half = next((c for c in text if "\ud800" <= c <= "\udfff"), None)
        if half:
            self.fail(line, keys, f"has \\u{ord(half):04x}, which is half a character; write the character itself")

    def length(self, line: int, keys: Keys, length: int, shape: Any) -> None:
        if shape.min_length is not None and length < shape.min_length:
            self.fail(line, keys, f"has {length} entries; it needs {shape.min_length} or more")
        if shape.max_length is not None and length > shape.max_length:
            self.fail(line, keys, f"has {length} entries; it can have {shape.max_length}")

    def fail(self, line: int, keys: Keys, sentence: str) -> NoReturn:
        raise RecipeError(f"{self.path}:{line}: {_spelled(keys)} {sentence}")


def _children(node: yaml.MappingNode) -> dict[str, tuple[int, yaml.Node]]:
    """Line and value of each key; what a merge (`<<`) brought stands first, so that the mapping's own come to win."""
    return {key.value: (key.start_mark.line + 1, child) for key, child in node.value if isinstance(key.value, str)}


def _spelled(keys: Keys) -> str:
    """ "operations.attn_fwd.grid[0]"."""
    text = ""
    for key in keys:
        text += f"[{key}]" if isinstance(key, int) else f".{key}" if text else str(key)
    return text or "the file"


def _is_scalar(data: Any, option: inspect.Type) -> bool:
    if isinstance(option, inspect.AnyType):
        return True
    if isinstance(option, inspect.LiteralType):
        return any(type(data) is type(value) and data == value for value in option.values)
    if isinstance(data, bool):
        return isinstance(option, inspect.BoolType)
    if isinstance(data, int):
        return isinstance(option, inspect.FloatType) or (isinstance(option, inspect.IntType) and _within(data, option))
    if isinstance(data, float):
        return isinstance(option, inspect.FloatType)
    if isinstance(data, str):
        return isinstance(option, inspect.StrType)
    return data is None and isinstance(option, inspect.NoneType)


def _within(data: int, option: inspect.IntType) -> bool:
    if not -(2**63) <= data < 2**63:
        return False
    return (option.ge is None or data >= option.ge) and (option.le is None or data <= option.le)


def _shown(data: Any) -> str:
    if data is None:
        return "empty"
    if isinstance(data, bool):
        return str(data).lower()
    if isinstance(data, (dict, list)):
        return "a mapping" if isinstance(data, dict) else "a list"
    if isinstance(data, int) and abs(data) > 2**128:
        return "a number far beyond 64 bits"  # Python spells none of thousands of digits
    return cut(repr(data))


def _expected(option: inspect.Type) -> str:
    if isinstance(option, inspect.Metadata):
        option = option.type
    if isinstance(option, inspect.LiteralType):
        return " or ".join(str(value) for value in option.values)
    if isinstance(option, (inspect.StructType, inspect.DictType)):
        return "a mapping"
    if isinstance(option, (inspect.ListType, inspect.VarTupleType)):
        return "a list"
    if isinstance(option, inspect.IntType):
        if option.ge is not None and option.le is not None:
            return f"an integer from {option.ge} to {option.le}"
        return f"an integer of {option.ge} or more" if option.ge is not None else "an integer of 64 bits"
    names = {"StrType": "text", "BoolType": "true or false", "FloatType": "a number", "NoneType": "empty"}
    return names.get(type(option).__name__, type(option).__name__)
