"""What a YAML file may ask of its reader, found on its events before anything is made of it.

PyYAML makes nodes by calling itself, in C: a file of 20 KB that is nested deeply enough ends the process. Events come
one by one. So does the count of what aliases would become: each counts as all that its anchor holds.
"""

from __future__ import annotations

import yaml

LARGEST = 4 << 20  # bytes
MOST_DEPTH = 40
MOST_NODES = 200_000  # aliases can make a small file walk for ever
LONGEST_PLAIN = 4096  # characters of a scalar without quotes: a number of more would take long


class Refused(ValueError):
    """`str(error)` is what is wrong, as "is nested too deep"; `line`, from 1, where."""

    def __init__(self, line: int, sentence: str) -> None:
        super().__init__(sentence)
        self.line = line


def check(text: bytes, loader: type) -> None:
    """Holds a file against the limits.

    Args:
        loader: the one that will read it.

    Raises:
        Refused: it is beyond one, or has a tag.
        yaml.YAMLError: it is not YAML.
    """
    if len(text) > LARGEST:
        raise Refused(1, f"has {len(text)} bytes; it can have {LARGEST}")
    sizes: dict[str | None, int] = {}  # of what has an anchor, aliases spelled out
    begun: list[tuple[str | None, int]] = []  # anchor, and the nodes before it
    nodes = 0
    for event in yaml.parse(text, Loader=loader):
        line = event.start_mark.line + 1 if event.start_mark else 1
        if isinstance(event, yaml.AliasEvent):
            nodes += sizes.get(event.anchor, 1)
        elif isinstance(event, (yaml.SequenceEndEvent, yaml.MappingEndEvent)):
            anchor, before = begun.pop()
            if anchor is not None:
                sizes[anchor] = nodes - before
        elif isinstance(event, (yaml.ScalarEvent, yaml.CollectionStartEvent)):
            nodes += 1
            if event.tag not in (None, "!"):
                raise Refused(line, f"has the tag {event.tag!r}; no value here has one")
            if isinstance(event, yaml.ScalarEvent):
                if event.style in (None, "") and len(event.value) > LONGEST_PLAIN:
                    raise Refused(line, f"has {len(event.value)} characters without quotes; put a long text in quotes")
                if event.anchor is not None:
                    sizes[event.anchor] = 1
            else:
                if event.anchor is not None:
                    sizes[event.anchor] = MOST_NODES + 1  # until its end: it would hold itself
                begun.append((event.anchor, nodes - 1))
        if nodes > MOST_NODES or len(begun) > MOST_DEPTH:
            raise Refused(line, "is too large or nested too deep")
