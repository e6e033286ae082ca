"""A command's words, read by argparse, whose every mistake becomes a `UsageError`: one sentence with an example."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, TypeVar

from kiln_recipe.errors import UsageError
from kiln_recipe.selection import parse_selection
from kiln_recipe.suggest import nearest

if TYPE_CHECKING:
    from kiln_recipe.selection import Selection

T = TypeVar("T")


class Parser(argparse.ArgumentParser):
    """The words of one command.

    Args:
        name: as users type it, "kiln list".
        summary: what it does, for its help.
        examples: lines; two spaces or more stand between a line's words and what is said about them.
    """

    def __init__(self, name: str, summary: str, examples: str) -> None:
        self._examples = examples.strip().splitlines()
        title = "examples:" if len(self._examples) > 1 else "example:"
        super().__init__(
            prog=name,
            description=summary,
            epilog="\n  ".join([title, *self._examples]),
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        self._behind = ""  # the argument that takes what stands behind --, and
        self._check_behind: Callable[[str], str] = str  # ... each of these words

    def add_behind(self, name: str, check: Callable[[str], str], help: str) -> None:
        """Takes the words behind a `--`, whatever they are, as a list of texts. argparse itself would not, where an
        option stands between the other words and the `--`."""
        self._behind = self.add_argument(name, nargs="*", type=check, default=[], help=help).dest
        self._check_behind = check

    def format_help(self) -> str:
        """What it does and examples, before the list of all arguments."""
        page = self._get_formatter()
        page.add_text(self.description)
        page.add_text(self.epilog)
        page.add_usage(self.usage, self._actions, self._mutually_exclusive_groups)
        for group in self._action_groups:
            page.start_section(group.title)
            page.add_text(group.description)
            page.add_arguments(group._group_actions)
            page.end_section()
        return page.format_help()

    def read(self, words: Sequence[str]) -> argparse.Namespace | None:
        """What the words say; None if they asked for help, which is printed.

        Raises:
            UsageError: they cannot be.
        """
        for action in self._actions:
            if action.nargs == "*":
                action.required = False  # argparse would say that such arguments are missing where another is
        behind: list[str] = []
        if self._behind and "--" in words:
            at = list(words).index("--")
            words, behind = words[:at], list(words[at + 1 :])
        try:
            arguments, rest = self.parse_known_args(words)
            if self._behind:
                before = getattr(arguments, self._behind)
                setattr(arguments, self._behind, [*before, *map(self._check_behind, behind)])
        except SystemExit:  # of --help alone: `error` raises
            return None
        except _WrongWord as error:
            raise UsageError(str(error)) from None
        for word in rest:
            options = [name for action in self._actions for name in action.option_strings if name.startswith("--")]
            if word.startswith("-"):
                near = nearest(word.partition("=")[0], options, "options")
                raise UsageError(f"`{self.prog}` has no option {word!r}; {near}")
            raise UsageError(f"`{self.prog}` does not take {word!r}; {self._right(word)}")
        return arguments

    def error(self, message: str) -> NoReturn:
        missing = re.fullmatch("the following arguments are required: (.*)", message)
        said = f" lacks {missing[1]}" if missing else f": {message.removeprefix('argument ').replace(': ', ' ', 1)}"
        raise UsageError(f"`{self.prog}`{said}; {self._right(message)}")

    def _right(self, message: str) -> str:
        """The first example, or the first that has the option which a message is about."""
        option = re.search("--[a-z-]+", message)
        fitting = [example for example in self._examples if option and option[0] in example]
        words = re.split(" {2,}", (fitting or self._examples)[0])[0]
        return f"for example: `{words}`"


class _WrongWord(Exception):
    """What the types below say. No UsageError, which is a ValueError: argparse would put its own words for it."""


def one_of(what: str, allowed: Sequence[str]) -> Callable[[str], str]:
    """A `type=` for argparse: one of some words; argparse's own `choices` would not name the nearest."""

    def check(word: str) -> str:
        if word not in allowed:
            raise _WrongWord(f"unknown {what} {word!r}; {nearest(word, allowed, f'{what}s')}")
        return word

    return check


def count(option: str, most: int = 10_000, least: int = 1) -> Callable[[str], int]:
    """A `type=` for argparse: a whole number from `least` to `most`."""
    right = f"a whole number from {least} to {most}"
    is_filled = filled(option, right)

    def check(word: str) -> int:
        is_filled(word)
        if not re.fullmatch("[0-9]{1,9}", word) or not least <= int(word) <= most:
            raise _WrongWord(f"{option} {word} is invalid; expected {right}")
        return int(word)

    return check


def number(option: str, least: float, most: float) -> Callable[[str], float]:
    """A `type=` for argparse: a number from `least` to `most`."""
    right = f"a number from {least:g} to {most:g}"
    is_filled = filled(option, right)

    def check(word: str) -> float:
        is_filled(word)
        if not re.fullmatch(r"[0-9]{1,12}(\.[0-9]{0,12})?|\.[0-9]{1,12}", word) or not least <= float(word) <= most:
            raise _WrongWord(f"{option} {word} is invalid; expected {right}")
        return float(word)

    return check


def several(option: str, check: Callable[[str], T]) -> Callable[[str], list[T]]:
    """A `type=` for argparse: one or more of what another type takes, with commas between them; each counts once."""

    def check_all(words: str) -> list[T]:
        try:
            split = split_list(option, words)
        except UsageError as error:
            raise _WrongWord(str(error)) from None
        return list(dict.fromkeys(map(check, split or [""])))

    return check_all


def split_list(option: str, text: str) -> list[str]:
    """The words between commas; none of a text without words.

    Raises:
        UsageError: nothing stands between two commas, or before or behind one.
    """
    words = [word.strip() for word in text.split(",")] if text.strip(", ") else []
    if "" in words:
        raise UsageError(f"{option} {text} has a comma too many; give values with one comma between two of them")
    return words


def filled(name: str, right: str) -> Callable[[str], str]:
    """A `type=` for argparse: any text but an empty one.

    Args:
        name: "--select", or "the artifact".
        right: what the error says that one should give.
    """

    def check(word: str) -> str:
        if not word.strip():
            raise _WrongWord(f"{name} is empty; give {right}")
        return word

    return check


def selection(option: str) -> Callable[[str], Selection]:
    """A `type=` for argparse: choices and their values, as `parse_selection` reads them, but for an empty text."""
    is_filled = filled(option, "for example 'dtype=bf16;head_dim=64,128', or leave it out")

    def check(word: str) -> Selection:
        try:
            return parse_selection(is_filled(word), option)
        except UsageError as error:
            raise _WrongWord(str(error)) from None

    return check


def path(name: str, right: str) -> Callable[[str], Path]:
    """A `type=` for argparse: a path; an empty one would mean the current folder. Every path in a command's words is
    read by this or, where it may be an address or its spelling counts, by `filled`."""
    check = filled(name, right)
    return lambda word: Path(check(word))


def add_families(parser: argparse.ArgumentParser, verb: str) -> None:
    """The options --recipe and --family: `recipe` and `family`, lists of texts.

    Args:
        verb: what the command does with a family, "build".
    """
    parser.add_argument(
        "--recipe", action="append", type=filled("--recipe", "the path of a recipe.yaml"), default=[], metavar="FILE",
        help=f"{verb} only the family of this recipe; may be repeated; default: Kiln's own and those of KILN_RECIPES",
    )  # fmt: skip
    parser.add_argument(
        "--family", action="append", type=filled("--family", "the name of a family"), default=[], metavar="NAME",
        help=f"{verb} only this family, of Kiln's own or of KILN_RECIPES; may be repeated; default: KILN_FAMILIES, "
        "or all",
    )  # fmt: skip


def add_targets(parser: argparse.ArgumentParser, meaning: str) -> None:
    """The option --target, of which each use gives one target: `target`, a list of texts, empty by default."""
    parser.add_argument(
        "--target", action="append", type=filled("--target", "the name of a target"), default=[], help=meaning
    )
