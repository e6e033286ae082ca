"""Which names an expression of a recipe may read, depending on where it stands."""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from kiln_recipe.documents.document import Document, Keys
from kiln_recipe.expressions import (
    CONSTANTS,
    FUNCTIONS,
    Call,
    Expression,
    ExpressionError,
    Fault,
    Name,
    Node,
    parse,
    steps,
)
from kiln_recipe.model import MULTIPROCESSORS, Argument, Choice
from kiln_recipe.suggest import nearest, nearest_of_many

_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_RESERVED = frozenset({*CONSTANTS, *FUNCTIONS, "device", "multiprocessors", "targets", "specialization"})


@dataclass(frozen=True)
class Scope:
    """The names that an expression may read.

    Attributes:
        names: each with what it is: "argument", "choice" ...
        floats: arguments that are floating numbers, which no expression can compute with.
        missing: names that exist elsewhere, with a clause that says why not here.
        words: names that stand for a text: words of choices for their places, conditions for what they mean.
        used: every name that was read in this scope or one made from it; shared by them all.
    """

    names: Mapping[str, str]
    floats: frozenset[str] = frozenset()
    missing: Mapping[str, str] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)
    words: Mapping[str, str] = field(default_factory=dict)

    @staticmethod
    def of_call(arguments: Sequence[Argument]) -> Scope:
        """Arguments and the device."""
        names = {name: "an argument" for a in arguments if a.kind != "float" for name in a.values}
        names |= dict.fromkeys(MULTIPROCESSORS, "the device")
        return Scope(names, frozenset(a.name for a in arguments if a.kind == "float"))

    def with_names(self, names: Iterable[str], kind: str) -> Scope:
        article = "an" if kind[0] in "aeiou" else "a"
        return replace(self, names={**self.names, **dict.fromkeys(names, f"{article} {kind}")})

    def only(self, names: Iterable[str], missing: Mapping[str, str]) -> Scope:
        """A scope of fewer names; `missing` says of others why they are not there."""
        return Scope({name: self.names[name] for name in names}, frozenset(), missing, self.used, self.words)

    def with_word(self, word: str, text: str) -> Scope:
        return replace(self, words={**self.words, word: text})

    def with_words_of(self, choices: Sequence[Choice]) -> Scope:
        """With the words of choices, each for its place; without those that two choices have at different places."""
        words: dict[str, str] = {}
        for choice in choices:
            for place, word in enumerate(choice.values if choice.kind == "word" else ()):
                words[str(word)] = str(place) if words.get(str(word), str(place)) == str(place) else ""
        return replace(self, words={word: place for word, place in words.items() if place})

    def expanded(self, text: str) -> str:
        """An expression with what its words stand for; a name of the scope comes before a word."""
        words = [word for word in self.words if word not in self.names]
        if not words:
            return text
        pattern = rf"(?<![\w.])({'|'.join(map(re.escape, words))})(?![\w.(\[])"
        return re.sub(pattern, lambda match: self.words[match[1]], text)

    def only_choices(self, choices: Sequence[str], names: Sequence[str], otherwise: str) -> Scope:
        """What an image can know: the kernel's choices, and `names`; `otherwise` says why not the rest."""
        missing = dict.fromkeys(self.names, otherwise)
        unlisted = f"a choice that the kernel does not list: `choices` has {', '.join(choices) or 'none'}"
        missing |= {name: unlisted for name in self.names if self.names[name] == "a choice"}
        return self.only([*choices, *names], {**missing, **self.missing})

    def knows(self, name: str) -> bool:
        return name in self.names or name in self.floats

    def kind(self, name: str) -> str:
        """ "an argument", "a choice" ..."""
        return self.names.get(name, "an argument")


def check_name(document: Document, keys: Keys, name: str, what: str) -> None:
    """Refuses names that C++, Python or the expressions could not hold."""
    if not _WORD.fullmatch(name) or keyword.iskeyword(name) or name.startswith("__"):
        document.fail(keys, f"{name!r} cannot name {what}; a name is letters, digits and _, and no keyword")
    if name in _RESERVED:
        document.fail(keys, f"{name!r} cannot name {what}: it means something in expressions or conditions already")


def read_expression(document: Document, keys: Keys, text: str | int | bool, scope: Scope) -> Expression:
    """Parses an expression and checks the names that it reads.

    Raises:
        RecipeError: it is none, or reads an unknown name.
    """
    text = str(text)
    try:
        expression = parse(scope.expanded(text))
    except ExpressionError as error:
        document.fail(keys, f"the expression {text!r} {error}")
    if fault := _certain_fault(expression.root):
        document.fail(keys, f"the expression {text!r} {fault}")
    for name in sorted(expression.names):
        if name not in scope.names:
            document.fail(keys, f"the expression {text!r} reads {name!r}, {_why_not(name, scope)}")
    scope.used.update(expression.names)
    return expression


def constant(expression: Expression) -> int | None:
    """The value of an expression that reads nothing."""
    return None if expression.names else expression.evaluate({})


def _certain_fault(root: Node) -> str | None:
    """What is wrong with a step that no call can take."""
    for node in reversed(list(steps(root))):  # what stands below it first
        if isinstance(node, Call) and not any(isinstance(step, Name) for step in steps(node)):
            try:
                node.evaluate({})
            except Fault as fault:
                return f"ends in {fault}"
        if isinstance(node, Call) and node.operation in ("//", "%", "cdiv", "align"):
            divisor = node.operands[1]
            if not any(isinstance(step, Name) for step in steps(divisor)) and divisor.evaluate({}) == 0:
                return "ends in division by zero"
    return None


def _why_not(name: str, scope: Scope) -> str:
    if name in scope.missing:
        return scope.missing[name]
    if name in scope.floats:
        return "a floating number; expressions compute with integers (a parameter of type fp32 or fp64 may be it alone)"
    owner = re.split(r"[.\[]", name)[0]
    own = [known for known in scope.names if known.startswith(f"{owner}.")]
    if own:
        return f"which it does not have: {nearest(name, own, 'values')}"
    return f"which is unknown; {nearest_of_many(name, scope.names, 'names')}"
