"""Writes the header of a family that brings none: how its operations are called."""

from __future__ import annotations

import re
import textwrap

from kiln_build.native.generate import render
from kiln_recipe.model import Choice, Operation, Recipe

_LONGEST_SHOWN = 60  # characters of an expression that a reader takes in


def family_header(recipe: Recipe, version: str) -> str:
    """The text of kiln/<family>.h: the declaration of the family's tables, and how its operations are called."""
    return render(
        "family.h.jinja",
        family=recipe.family,
        version=version,
        summary=_comment(recipe.summary),
        operations=[
            {
                "name": f"{recipe.family}.{operation.name}",
                "summary": _comment(operation.summary),
                "arguments": [line for argument in _argument_comments(operation) for line in argument],
                "choices": [line for choice in operation.choices for line in _choice_comment(operation, choice)],
                "requirements": [line for r in operation.requirements for line in _comment(f"required: {r.otherwise}")],
                "definitions": _definition_comment(operation),
                "workspace": operation.workspaces,
            }
            for operation in recipe.operations
        ],
    )


def _argument_comments(operation: Operation) -> list[list[str]]:
    """For each argument the lines that say what a call gives."""
    width = max((len(argument.name) for argument in operation.arguments), default=0)
    comments = []
    for number, argument in enumerate(operation.arguments):
        if argument.kind == "tensor":
            choice = operation.choice(argument.dtype_choice) if argument.dtype_choice else None
            dtype = f"{choice.name} ({', '.join(choice.spellings)})" if choice else argument.dtype or "any dtype"
            axes = f" [{', '.join(argument.axes)}]" if argument.axes else ""
            what = f"KILN_ARG_TENSOR of rank {argument.rank}{axes}, {dtype}"
        elif argument.kind == "int":
            what = "KILN_ARG_INT, " + ("a boolean" if argument.bits == 1 else f"{argument.bits} bits")
        else:
            what = "KILN_ARG_FLOAT"
        optional = ", or KILN_ARG_ABSENT" if argument.optional else ""
        text = f"{number}: {argument.name.ljust(width)}  {what}{optional}"
        comments.append(_comment(text, indent=" " * (len(str(number)) + width + 4)))
    return comments


def _choice_comment(operation: Operation, choice: Choice) -> list[str]:
    """The lines that say what a call may ask for of a choice; none where an argument's line lists its dtypes."""
    if any(argument.dtype_choice == choice.name for argument in operation.arguments):
        return []
    definitions = {definition.name: definition.value.text for definition in operation.definitions}
    of = " ".join(definitions.get(choice.of.text, choice.of.text).split())  # a caller knows arguments alone
    which = {
        "exact": f"{of} decides",
        "next_larger": f"the smallest that is not below {of}",
        "first_that_fits": f"the first from {of} on whose kernels all fit",
    }[choice.match]
    what = f"; {which}" if len(of) <= _LONGEST_SHOWN else ""
    return _comment(f"choice {choice.name}: {', '.join(choice.spellings)}{what}", indent="  ")


def _definition_comment(operation: Operation) -> list[str]:
    """What the names are that stand for sizes in the sentences above: "[rows, half]"."""
    shown = {word for r in operation.requirements for size in re.findall(r"\[(.*?)\]", r.otherwise)
             for word in re.findall(r"\w+", size)}  # fmt: skip
    meant = []
    for definition in reversed(operation.definitions):  # each reads those before it
        text = " ".join(definition.value.text.split())
        if definition.name in shown and len(text) <= _LONGEST_SHOWN:
            shown.update(re.findall(r"\w+", text))
            meant.append(f"{definition.name} = {text}")
    return _comment(f"where {', '.join(reversed(meant))}", indent="  ") if meant else []


def _comment(text: str, indent: str = "") -> list[str]:
    """`text` as lines that may stand in a comment of C, whatever a recipe's author wrote."""
    plain = text.encode("ascii", "replace").decode().replace("*/", "* /").replace("/*", "/ *").replace("??", "? ?")
    return textwrap.wrap(plain, 110, subsequent_indent=indent, replace_whitespace=True)
