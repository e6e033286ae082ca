"""`include`: what a recipe shares between mappings, or between lists, stands once under `shared`.

    shared:
      sequences: {cu_seqlens_q: {...}, cu_seqlens_k: {...}}
      places:
        - {that: ..., otherwise: ...}
    ...
        arguments:
          q: {...}
          include: sequences            # or a list of several
          dq: {...}
        require:
          - include: places

The entries of a shared mapping stand where `include` does; a name that the mapping itself has too keeps its place, and
the mapping's own value. Those of a shared list stand in the place of the entry that includes it. What is shared may
include what else is shared.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NoReturn

import yaml

from kiln_recipe.documents.yaml_limits import MOST_NODES
from kiln_recipe.errors import RecipeError
from kiln_recipe.suggest import nearest

KEY, SHARED = "include", "shared"
_TOO_LARGE = "is too large with what it includes"
Pair = tuple[yaml.Node, yaml.Node]


def expand(root: yaml.Node, path: Path) -> None:
    """Puts what is shared into the places that include it.

    Raises:
        RecipeError: a name is unknown, of the other kind, or of a block that would hold itself; or nothing includes it.
    """
    if not isinstance(root, yaml.MappingNode):
        return
    shared: dict[str, Pair] = {}
    for key, value in root.value:
        if key.value == SHARED and isinstance(value, yaml.MappingNode):
            shared = {str(name.value): (name, block) for name, block in value.value}
    expander = _Expander(path, shared)
    for key, value in root.value:
        if key.value != SHARED:
            expander.node(value)
    for name, (key, _) in shared.items():
        if name not in expander.used:
            expander.fail(key, f"nothing includes the shared block {name!r}")
    if _size(root, {}) > MOST_NODES:
        expander.fail(root, _TOO_LARGE)


class _Expander:
    def __init__(self, path: Path, shared: dict[str, Pair]) -> None:
        self.path = path
        self.shared = shared
        self.used: set[str] = set()
        self.done: set[int] = set()
        self.begun: list[str] = []

    def node(self, node: yaml.Node) -> None:
        """Expands a node and all below it, once: aliases of YAML's lead to the same."""
        if id(node) in self.done:
            return
        self.done.add(id(node))
        if isinstance(node, yaml.MappingNode):
            self.mapping(node)
        elif isinstance(node, yaml.SequenceNode):
            self.sequence(node)

    def mapping(self, node: yaml.MappingNode) -> None:
        own = {key.value for key, _ in node.value if key.value != KEY}
        entries: dict[Any, Pair] = {}
        brought: dict[Any, str] = {}
        for key, value in node.value:
            if key.value != KEY:
                self.node(value)
                entries[key.value] = (key, value)
                continue
            for name in self.names(value):
                block = self.block(value, name, yaml.MappingNode, "mapping")
                for inner, entry in block.value:
                    if inner.value in brought:
                        self.fail(value, f"{inner.value!r} stands in {brought[inner.value]!r} and in {name!r}")
                    brought[inner.value] = name
                    if inner.value not in own or inner.value not in entries:
                        entries[inner.value] = (inner, entry)
        node.value = list(entries.values())

    def sequence(self, node: yaml.SequenceNode) -> None:
        items: list[yaml.Node] = []
        for item in node.value:
            pairs = item.value if isinstance(item, yaml.MappingNode) else []
            if len(pairs) == 1 and pairs[0][0].value == KEY:
                for name in self.names(pairs[0][1]):
                    items += self.block(item, name, yaml.SequenceNode, "list").value
                if len(items) > MOST_NODES:
                    self.fail(item, _TOO_LARGE)
            else:
                self.node(item)
                items.append(item)
        node.value = items

    def names(self, node: yaml.Node) -> list[str]:
        names = node.value if isinstance(node, yaml.SequenceNode) else [node]
        found: list[str] = []
        for name in names:
            if not isinstance(name, yaml.ScalarNode):
                self.fail(name, f"{KEY} takes the name of a shared block, or a list of names")
            if name.value in found:
                self.fail(name, f"{KEY} names the shared block {name.value!r} twice")
            found.append(name.value)
        return found

    def block(self, place: yaml.Node, name: str, kind: type[yaml.Node], called: str) -> yaml.Node:
        """A shared block, itself expanded."""
        if name not in self.shared:
            known = nearest(name, self.shared, "shared blocks")
            self.fail(place, f"{KEY} names the unknown block {name!r}; {known}")
        if name in self.begun:
            self.fail(place, f"the shared block {name!r} includes itself")
        self.used.add(name)
        block = self.shared[name][1]
        if not isinstance(block, kind):
            self.fail(place, f"the shared block {name!r} is no {called}, and it is included in one")
        self.begun.append(name)
        self.node(block)
        self.begun.pop()
        return block

    def fail(self, node: yaml.Node, sentence: str) -> NoReturn:
        raise RecipeError(f"{self.path}:{node.start_mark.line + 1}: {sentence}")


def _size(node: yaml.Node, sizes: dict[int, int]) -> int:
    """The nodes that a node becomes where each that stands in several places is written out."""
    if id(node) not in sizes:
        sizes[id(node)] = MOST_NODES + 1  # of one that holds itself
        children = node.value if isinstance(node, yaml.CollectionNode) else []
        inner = [part for child in children for part in (child if isinstance(child, tuple) else (child,))]
        sizes[id(node)] = 1 + sum(_size(child, sizes) for child in inner)
    return sizes[id(node)]


def allow(schema: Any) -> Any:
    """A JSON schema in which mappings and lists may include what is shared."""
    if isinstance(schema, list):
        return [allow(entry) for entry in schema]
    if not isinstance(schema, dict):
        return schema
    result = {key: allow(value) for key, value in schema.items()}
    include = {
        "description": "Names of blocks under `shared`, whose entries stand here.",
        "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}],
    }
    if result.get("type") == "object" and isinstance(result.get("additionalProperties"), (dict, bool)):
        result["properties"] = {**result.get("properties", {}), KEY: include}
        if required := result.pop("required", None):
            result["anyOf"] = [{"required": required}, {"required": [KEY]}]
    if result.get("type") == "array" and "$ref" in result.get("items", {}):
        entry = {"type": "object", "properties": {KEY: include}, "required": [KEY], "additionalProperties": False}
        result["items"] = {"anyOf": [result["items"], entry]}
    return result
