"""The layout of a call's values: every name has its place, and no two that differ share one."""

from __future__ import annotations

from pathlib import Path

import pytest

import small_recipe
from kiln_recipe.call.layout import layout
from kiln_recipe.read import recipe


@pytest.fixture
def small(tmp_path) -> recipe.Recipe:
    return recipe.load(small_recipe.write(tmp_path))


def test_places(small):
    (operation,) = small.operations
    places = layout(operation)
    names = [name for argument in operation.arguments for name in argument.values]
    assert [places.call[name] for name in names] == list(range(len(names)))
    assert (
        places.multiprocessors == places.call["multiprocessors"] == places.call["device.multiprocessors"] == len(names)
    )
    assert places.arguments == {"x": 0, "w": 6, "out": 10, "eps": 16, "gemma": 17}
    # One name for both: the argument where the choice is not yet known, the choice after that.
    assert places.call["gemma"] == 17 and places.operation["gemma"] == places.choices["gemma"] == len(names) + 3
    everything = {*names, *places.choices, *places.definitions, *places.workspaces}
    assert "rows" in places.call and "total" not in places.call
    assert set(places.operation) == everything | {"multiprocessors", "device.multiprocessors"}
    assert places.kernels["norm"]["BLOCK"] == places.kernels["count"]["BLOCK"] == places.configuration
    used = {*places.operation.values(), places.call["gemma"], *places.kernels["norm"].values()}
    assert used == set(range(places.count))


@pytest.mark.parametrize("path", recipe.find(Path(__file__).parents[1]), ids=lambda path: path.parent.name)
def test_every_expression_of_the_tree_can_be_rendered(path):
    """Each in the scope that docs/recipes.md, 'Expressions', gives its place."""
    for operation in recipe.load(path).operations:
        places = layout(operation)
        early = [d.value for d in operation.definitions] + [r.that for r in operation.requirements]
        for expression in early:
            assert "kiln_result(" in expression.to_cpp(places.call)
        for choice in operation.choices:
            assert "kiln_result(" in choice.of.to_cpp(places.asked[choice.name])
        for expression in [operation.skip_when, *(w.bytes for w in operation.workspaces)]:
            assert expression is None or "kiln_result(" in expression.to_cpp(places.operation)
        for kernel in operation.kernels:
            for expression in [kernel.when, *(axis.of for axis in kernel.bins)]:
                assert expression is None or "kiln_result(" in expression.to_cpp(places.operation)
            late = [*(p.value for p in kernel.parameters), *kernel.grid, *(z.bytes for z in kernel.zeros)]
            for expression in late:
                assert "kiln_result(" in expression.to_cpp(places.kernels[kernel.name])
