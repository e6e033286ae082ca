"""A skeleton as YAML, with a line of its own, which begins with `# TODO:`, for each thing to check."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from kiln_build.skeleton.sketch import Entry, Sketch

TODO = "# TODO: "
_WIDTH = 120
_NO_TEXT = frozenset({"true", "false", "null"})  # as YAML reads them, however they are capitalized


def recipe(family: str, source: str, sketches: Sequence[Sketch]) -> str:
    """The text of a recipe.

    Args:
        source: the kernels' file, relative to the recipe.
        sketches: an operation each; no two of one name.
    """
    listed = ", ".join(sketch.function for sketch in sketches)
    lines = [
        f"# Written from {listed} of {_line(source)} by `kiln recipes --new`.",
        "# Check each line under a TODO, and delete the TODO. docs/recipes.md explains all keys; `kiln recipes FILE`",
        "# checks this file, and `kiln plan --recipe FILE` lists its images.",
        f"family: {family}",
        f'summary: ""  {TODO}one line: what the kernels compute',
        "",
        "operations:",
    ]
    for sketch in sketches:
        lines += [f"  {line}".rstrip() for line in _operation(sketch, source)]
    return "\n".join(lines) + "\n"


def _operation(sketch: Sketch, source: str) -> Iterator[str]:
    yield f"{key(sketch.name)}:"
    yield f"  summary: {quoted(sketch.summary)}"
    yield "  arguments:  # what a call gives, in this order"
    yield from _entries(sketch.arguments, 4)
    yield ""
    if sketch.choices:
        yield "  choices:  # what changes the compiled kernel"
        yield from _entries(sketch.choices, 4)
        yield ""
    if sketch.define:
        yield "  define:"
        yield from _entries(sketch.define, 4)
        yield ""
    if sketch.require:
        yield f"  require:  {TODO}what else must hold of a call? the kernel computes addresses without asking"
        yield from _entries(sketch.require, 4)
        yield ""
    if sketch.skip_when:
        yield f"  skip_when: {sketch.skip_when}"
        yield ""
    yield "  kernels:"
    yield f"    {key(sketch.name)}:"
    yield from (f"      {line}" for line in _kernel(sketch, source))


def _kernel(sketch: Sketch, source: str) -> Iterator[str]:
    yield f"source: {quoted(source)}"
    if sketch.function != sketch.name:
        yield f"function: {quoted(sketch.function)}"
    if sketch.language != "triton":
        yield f"language: {sketch.language}"
    if sketch.targets:
        yield f"targets: {sketch.targets}  {TODO}tensor descriptors: NVIDIA's GPUs from sm_90 on"
        yield f'ptx: "{sketch.ptx}"'
    if sketch.choices:
        yield f"choices: [{', '.join(key(entry.key) for entry in sketch.choices)}]"
    if sketch.parameters:
        yield "parameters:  # what does not follow from their names"
        yield from _entries(sketch.parameters, 2)
    if sketch.constants:
        yield "constants:"
        yield from _entries(sketch.constants, 2)
    if sketch.zero:
        yield f"zero: [{', '.join(map(key, sketch.zero))}]"
    if sketch.aligned or sketch.ones:
        given = [("divisible_by_16", sketch.aligned), ("equal_to_1", sketch.ones)]
        yield "specializations:  # an image for calls that allow faster memory accesses, and one for all others"
        yield "  aligned:"
        yield from (line for name, found in given if found for line in _list(f"    {name}: ", found))
        yield "  generic: {}"
    sides = ", ".join(f'"{side.text}"' for side in sketch.grid)
    yield from (f"{TODO}{side.check}" for side in sketch.grid if side.check)
    yield f"grid: [{sides}]"
    yield "configurations:"
    yield f"  {TODO}try more: a list of values means each of them, and docs/recipes.md says how rules choose"
    for entry in sketch.configuration:
        if entry.check:
            yield f"  {TODO}{entry.key}: {entry.check}"
    values = ", ".join(f"{key(entry.key)}: {entry.text}" for entry in sketch.configuration)
    yield f"  - core: [{{{values}}}]"


def _entries(entries: Sequence[Entry], indent: int) -> Iterator[str]:
    margin = " " * indent
    for entry in entries:
        if entry.check:
            yield f"{margin}{TODO}{entry.check}"
        yield f"{margin}{f'{key(entry.key)}:' if entry.key else '-'} {entry.text}"


def _list(begin: str, names: Sequence[str]) -> Iterator[str]:
    """A list in brackets, over several lines where it is long."""
    line = f"{begin}["
    for place, name in enumerate(names):
        word = f"{key(name)}{', ' if place < len(names) - 1 else ']'}"
        if len(line) + len(word) > _WIDTH - 10 and line.strip():
            yield line.rstrip()
            line = " " * (len(begin) + 1)
        line += word
    yield line


def key(name: str) -> str:
    """A name as a key: what YAML would not read as a text stands in quotes."""
    return f'"{name}"' if name.lower() in _NO_TEXT else name


def quoted(text: str) -> str:
    """A text as YAML: as it is where it can be, else in double quotes."""
    line = _line(text)
    if re.fullmatch(r"[A-Za-z][\w./-]*", line) and line.lower() not in _NO_TEXT:
        return line
    escaped = line.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _line(text: str) -> str:
    """On one line, and nothing that a terminal would obey."""
    return "".join(c if c.isprintable() else "?" for c in " ".join(text.split()))
