"""The conditions (`when`) and rules (`use`) of recipes and tuning files, each name and value in them checked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from kiln_recipe import targets
from kiln_recipe.documents.document import Document, Keys
from kiln_recipe.documents.file import RuleShape
from kiln_recipe.model import Bin, Choice, Configuration, Rule, Value, When, spelled
from kiln_recipe.suggest import nearest


@dataclass(frozen=True)
class Vocabulary:
    """What a condition on a kernel may speak of.

    Attributes:
        choices: those that the kernel depends on.
        configurations: all that it has, on any target and in any profile.
        specializations: their names; empty where a condition cannot know them.
        bins: those of its look-up; empty where a condition cannot know them.
    """

    choices: tuple[Choice, ...]
    configurations: tuple[Configuration, ...]
    specializations: tuple[str, ...] = ()
    bins: tuple[Bin, ...] = ()

    def configured(self) -> dict[str, set[Value]]:
        """The values that each name has in some configuration."""
        values: dict[str, set[Value]] = {}
        for configuration in self.configurations:
            for name, value in configuration.values:
                values.setdefault(name, set()).add(value)
        return values


def read_when(document: Document, keys: Keys, raw: Mapping[str, object], words: Vocabulary, tuned: bool) -> When:
    """A condition; `tuned`: of a rule, which knows bins but neither configurations nor specializations.

    Raises:
        RecipeError: it speaks of what is not there.
    """
    choices, configuration, bins = [], [], []
    named_targets: tuple[str, ...] = ()
    specializations: tuple[str, ...] = ()
    by_choice = {choice.name: choice for choice in words.choices}
    by_bin = {axis.name: axis for axis in words.bins} if tuned else {}
    configured = {} if tuned else words.configured()
    for name, value in raw.items():
        here = (*keys, name)
        if name == "targets":
            named_targets = read_targets(document, here, value)
        elif name == "specialization" and not tuned:
            specializations = tuple(map(str, _listed(value)))
            for specialization in specializations:
                if specialization not in words.specializations:
                    document.fail(
                        here,
                        f"unknown specialization {specialization!r}; "
                        f"{nearest(specialization, words.specializations, 'specializations')}",
                    )
        elif name in by_choice:
            values = tuple(_listed(value))
            for item in values:
                known = by_choice[name].values
                if not any(_same(item, value) for value in known):
                    document.fail(
                        here, f"{name} has no value {_shown(item)}; its values are {', '.join(map(spelled, known))}"
                    )
            choices.append((name, values))
        elif name in by_bin:
            bins.append((name, *_bins(document, here, value, by_bin[name])))
        elif name in configured:
            values = tuple(_listed(value))
            for item in values:
                if not any(_same(item, known) for known in configured[name]):
                    document.fail(here, _unknown_value(name, item, configured[name]))
            configuration.append((name, values))
        else:
            names = [*by_choice, *by_bin, *configured, *([] if tuned else ["specialization"]), "targets"]
            document.fail(here, f"a condition on the unknown {name!r}; {nearest(name, names, 'names')}")
    return When(named_targets, tuple(choices), tuple(configuration), specializations, tuple(bins))


def read_targets(document: Document, keys: Keys, raw: object) -> tuple[str, ...]:
    """Names of targets and groups.

    Raises:
        RecipeError: an unknown one, or none at all.
    """
    names = tuple(_listed(raw))
    if not names:
        document.fail(keys, "names no target; say default for all")
    for name in names:
        if not isinstance(name, str) or name not in targets.group_names():
            known = [target.name for target in targets.load()]
            known += sorted(targets.group_names() - set(known))
            if called := targets.name_in_recipes(str(name)):
                document.fail(keys, f"unknown target {_shown(name)}; a recipe calls it {called}")
            document.fail(keys, f"unknown target {_shown(name)}; {nearest(str(name), known, 'names')}")
    return names


def read_rules(document: Document, keys: Keys, raw: Sequence[RuleShape], words: Vocabulary) -> tuple[Rule, ...]:
    """Rules of a heuristic or a tuning file.

    Raises:
        RecipeError: a condition does not hold, or no configuration of any target has the values of a `use`.
    """
    rules = []
    for position, rule in enumerate(raw):
        here = (*keys, position)
        use = tuple(rule.use.items())
        configured = words.configured()
        for name, value in use:
            if name not in configured:
                document.fail((*here, "use", name), f"unknown value {name!r}; {nearest(name, configured, 'values')}")
            if not any(_same(value, known) for known in configured[name]):
                document.fail((*here, "use", name), _unknown_value(name, value, configured[name]))
        if not any(matches_use(configuration, use) for configuration in words.configurations):
            shown = " ".join(f"{name}={spelled(value)}" for name, value in use)
            document.fail((*here, "use"), f"no configuration has {shown} together")
        when = read_when(document, (*here, "when"), rule.when, words, tuned=True)
        rules.append(Rule(when, use, document.place(here)))
    return tuple(rules)


def matches_use(configuration: Configuration, use: Sequence[tuple[str, Value]]) -> bool:
    """Whether a configuration has all the values that a rule gives."""
    mapping = configuration.mapping
    return all(name in mapping and _same(mapping[name], value) for name, value in use)


def is_one_of(value: Value, values: Sequence[Value]) -> bool:
    """Whether a value is among others; 1 is not true."""
    return any(_same(value, other) for other in values)


def _bins(document: Document, keys: Keys, raw: object, axis: Bin) -> tuple[int, int]:
    """The first and the last number of the bins that a condition means."""
    if not isinstance(raw, dict) or not raw or set(raw) - {"at_least", "below"}:
        document.fail(keys, f"a condition on the bin {axis.name} is {{at_least: edge, below: edge}}, or one of the two")
    for word, edge in raw.items():
        if type(edge) is not int or edge not in axis.edges:
            document.fail(
                keys, f"{word} {_shown(edge)} is not an edge of the bin {axis.name}: {', '.join(map(str, axis.edges))}"
            )
    first = axis.edges.index(raw["at_least"]) + 1 if "at_least" in raw else 0
    last = axis.edges.index(raw["below"]) if "below" in raw else len(axis.edges)
    if first > last:
        document.fail(keys, f"at_least {raw['at_least']} and below {raw['below']} leave nothing")
    return first, last


def _same(a: object, b: object) -> bool:
    return type(a) is type(b) and a == b


def _listed(value: object) -> Sequence:
    return value if isinstance(value, (list, tuple)) else (value,)


def _unknown_value(name: str, value: object, known: Iterable[Value]) -> str:
    values = ", ".join(map(_shown, known))
    return f"no configuration has {name}={_shown(value)}; those that there are have {values}"


def _shown(value: object) -> str:
    return spelled(value) if isinstance(value, (bool, int, float, str)) else repr(value)
