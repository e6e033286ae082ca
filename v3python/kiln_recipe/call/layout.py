"""Where each value of a call lies in the array `v` that expressions read (include/kiln/family.h, 'Values')."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass

from kiln_recipe.model import MULTIPROCESSORS, Operation


@dataclass(frozen=True)
class Layout:
    """Indices in `v`, by name.

    Attributes:
        call: what definitions and requirements read: arguments, the device, definitions.
        asked: by choice what its `of` reads: the choices above it besides.
        operation: what skip_when, workspaces, the `when` of kernels and bins read: choices and workspaces besides.
        kernels: by kernel what parameters, grid and zeros read: the configuration's values besides.
        arguments: by argument the index of its first value.
        choices, definitions, workspaces: by name.
        multiprocessors: of the device.
        configuration: of the first value of a configuration; the kernels share the room.
        count: length of `v`.
    """

    call: Mapping[str, int]
    asked: Mapping[str, Mapping[str, int]]
    operation: Mapping[str, int]
    kernels: Mapping[str, Mapping[str, int]]
    arguments: Mapping[str, int]
    choices: Mapping[str, int]
    definitions: Mapping[str, int]
    workspaces: Mapping[str, int]
    multiprocessors: int
    configuration: int
    count: int


def layout(operation: Operation) -> Layout:
    """The layout of an operation's values; the generated tables and the Python evaluation share it."""
    call: dict[str, int] = {}
    arguments: dict[str, int] = {}
    end = 0
    for argument in operation.arguments:
        arguments[argument.name] = end
        for name in argument.values:
            call[name] = end
            end += 1
    multiprocessors = end
    call |= dict.fromkeys(MULTIPROCESSORS, end)
    end += 1
    choices = {choice.name: end + i for i, choice in enumerate(operation.choices)}
    end += len(choices)
    definitions = {definition.name: end + i for i, definition in enumerate(operation.definitions)}
    end += len(definitions)
    workspaces = {workspace.name: end + i for i, workspace in enumerate(operation.workspaces)}
    end += len(workspaces)
    call |= definitions
    asked = {name: {**call, **dict(itertools.islice(choices.items(), i))} for i, name in enumerate(choices)}
    everything = {**call, **choices, **workspaces}
    kernels = {
        kernel.name: {**everything, **{name: end + i for i, name in enumerate(kernel.columns)}}
        for kernel in operation.kernels
    }
    columns = max(len(kernel.columns) for kernel in operation.kernels)
    return Layout(
        call,
        asked,
        everything,
        kernels,
        arguments,
        choices,
        definitions,
        workspaces,
        multiprocessors,
        end,
        end + columns,
    )
