"""Which configuration a call takes: tuned rules, then the recipe's heuristic, become the look-up.

Tuned rules of a family stand in `<root>/<family>/<target>.yaml`, or in the file of one of the target's groups (the
narrowest that is there). For each functional and bin the first rule that matches and has an available configuration
decides; where none does, the first available configuration.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kiln_recipe import targets
from kiln_recipe.documents.document import Keys, read
from kiln_recipe.documents.file import RuleShape, TuningShape
from kiln_recipe.errors import RecipeError
from kiln_recipe.model import Configuration, Kernel, Operation, Recipe, Rule, Value, When
from kiln_recipe.read.rules import Vocabulary, is_one_of, matches_use, read_rules
from kiln_recipe.suggest import nearest
from kiln_recipe.targets import Target

NO_CONFIGURATION = 255  # KILN_NO_CONFIGURATION


@dataclass(frozen=True)
class Decision:
    """What a bin's calls take.

    Attributes:
        configuration: its number, or None where nothing is available.
        rule: "file:line" of the rule that decided, or None: the first available one was taken.
    """

    configuration: int | None
    rule: str | None


def tuned_rules(root: Path | None, recipe: Recipe, target: Target) -> Mapping[str, tuple[Rule, ...]]:
    """By kernel the tuned rules of a family for a target; none where there is no file.

    Raises:
        RecipeError: a file's name means no target, or something in it does not hold.
    """
    folder = root / recipe.family if root else None
    if folder is None or not folder.is_dir():
        return {}
    files = {}
    for path in sorted(folder.glob("*.y*ml")):
        if path.stem not in targets.group_names():
            known = sorted(targets.group_names())
            raise RecipeError(f"{path}:1: tunes no target; {nearest(path.stem, known, 'names')}")
        files[path.stem] = path
    named = [name for name in files if target.is_called(name)]
    if not named:
        return {}
    document = read(files[max(named, key=target.specificity)], TuningShape)
    kernels = {kernel.name: (operation, kernel) for operation in recipe.operations for kernel in operation.kernels}
    rules: dict[str, tuple[Rule, ...]] = {}
    other = "" if kernels.keys() & document.value.kernels else f"; if {recipe.path} is of another family, rename it"
    blocks: list[tuple[Keys, Mapping[str, Sequence[RuleShape]]]] = [((), document.value.kernels)]
    blocks += [(("earlier", number), earlier.kernels) for number, earlier in enumerate(document.value.earlier)]
    for block, by_kernel in blocks:
        for name, raw in by_kernel.items():
            here = (*block, "kernels", name)
            if name not in kernels:
                document.fail(
                    here, f"{recipe.family} has no kernel {name!r}; {nearest(name, kernels, 'kernels')}{other}"
                )
            rules[name] = rules.get(name, ()) + read_rules(document, here, raw, vocabulary(*kernels[name]))
    return rules


def vocabulary(operation: Operation, kernel: Kernel) -> Vocabulary:
    """What tuned rules for a kernel may speak of."""
    configurations = dict.fromkeys(c for entry in kernel.configurations for c in (*entry.core, *entry.full))
    return Vocabulary(tuple(operation.choice(name) for name in kernel.choices), tuple(configurations), bins=kernel.bins)


def decide(
    kernel: Kernel,
    target: Target,
    configurations: Sequence[Configuration],
    functionals: Sequence[Mapping[str, Value]],
    rules: Sequence[Rule],
    available: Callable[[int, int], bool],
) -> tuple[tuple[Decision, ...], ...]:
    """The decision for each functional and, within it, each bin.

    Args:
        functionals: of each the value of every choice.
        rules: tuned ones; the kernel's heuristic stands behind them.
        available: whether a functional (its number) has images of a configuration (its number).
    """
    candidates = [
        (rule, [i for i, configuration in enumerate(configurations) if matches_use(configuration, rule.use)])
        for rule in (*rules, *kernel.heuristic)
        if not rule.when.targets or any(map(target.is_called, rule.when.targets))
    ]
    bins = list(itertools.product(*(range(len(axis.edges) + 1) for axis in kernel.bins)))
    names = [axis.name for axis in kernel.bins]
    decisions = []
    for number, functional in enumerate(functionals):
        there = {i for i in range(len(configurations)) if available(number, i)}
        usable = []
        for rule, having in candidates:
            if fits(rule.when, functional):
                taken = next((i for i in having if i in there), None)
                if taken is not None:
                    usable.append(({name: (first, last) for name, first, last in rule.when.bins}, taken, rule.place))
        otherwise = Decision(min(there, default=None), None)
        row = []
        for numbers in bins:
            position = dict(zip(names, numbers))
            row.append(
                next(
                    (
                        Decision(taken, place)
                        for ranges, taken, place in usable
                        if all(first <= position[name] <= last for name, (first, last) in ranges.items())
                    ),
                    otherwise,
                )
            )
        decisions.append(tuple(row))
    return tuple(decisions)


def fits(when: When, functional: Mapping[str, Value]) -> bool:
    """Whether a condition's choices are those of a functional."""
    return all(is_one_of(functional[name], values) for name, values in when.choices)
