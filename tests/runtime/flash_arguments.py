"""What the recipe of attention says of arguments, for tests that call every entry."""

from __future__ import annotations

from pathlib import Path

from kiln_recipe.documents import document
from kiln_recipe.documents.file import OperationShape, RecipeShape


def operations(recipe: Path) -> dict[str, OperationShape]:
    return document.read(recipe, RecipeShape).value.operations


def arguments(operation: OperationShape) -> dict[str, dict]:
    """By name, in the order of a call: `tensor` (its dtype) and `rank`, or `scalar`; `optional`."""
    return {
        name: {"scalar": argument.scalar}
        if argument.tensor is None
        else {
            "tensor": argument.tensor,
            "rank": len(argument.axes) if argument.axes is not None else argument.rank,
            "optional": argument.optional,
        }
        for name, argument in operation.arguments.items()
    }
