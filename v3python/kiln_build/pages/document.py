"""A whole page: head, policy, contents, and its parts."""

from __future__ import annotations

import base64
import hashlib
import pkgutil
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import cast

from kiln_build.options.words import check_outside
from kiln_build.pages.markup import Markup, element, joined, text
from kiln_recipe.console.appear import appear
from kiln_recipe.console.files import check_new_file
from kiln_recipe.errors import unwritable

FILES = ("style.css", "script.js")  # beside this module


@dataclass(frozen=True)
class Part:
    """A part of a page, with a heading. `kind`: "worse" or "better", which colours its heading."""

    title: str
    body: Iterable[Markup]
    kind: str = ""


def begin(command: str) -> str:
    """What all pages of a command begin with, by which they are known: "kiln diff"."""
    return f'<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n<meta name="generator" content="{command}">\n'


def document(command: str, title: str, lead: Iterable[Markup], parts: Sequence[Part]) -> Iterator[str]:
    """The page, in pieces.

    Args:
        command: that wrote it, "kiln diff".
        title: its heading.
        lead: what stands above all parts.
    """
    style, script = map(_file, FILES)
    policy = f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; base-uri 'none'"
    yield begin(command)
    yield element("meta", http_equiv="Content-Security-Policy", content=f"{policy}; form-action 'none'")
    yield '\n<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield '\n<meta name="color-scheme" content="light dark">\n'
    yield f"{element('title', title)}\n<style>{style}</style>\n"
    names = _names([part.title for part in parts])
    yield '<a class="skip" href="#content">Skip to the content</a>\n'
    yield f'<header>{element("h1", title)}<button type="button" id="theme" hidden></button></header>\n'
    if len(parts) > 1:
        links = [element("li", element("a", part.title, href=f"#{name}")) for part, name in zip(parts, names)]
        yield f'<nav aria-label="Contents"><ul>{joined(links)}</ul></nav>\n'
    yield '<main id="content">\n'
    yield from lead
    for part, name in zip(parts, names):
        yield f'<section aria-labelledby="{name}">'
        yield f"{element('h2', part.title, id=name, class_=part.kind or None)}\n"
        yield from part.body
        yield "</section>\n"
    yield f"</main>\n{element('footer', f'Written by {command}. This page loads nothing.')}\n"
    yield f"<script>{script}</script>\n</html>\n"


def check_place(word: str, command: str, artifacts: Iterable[Path], what: str = "--html") -> Path:
    """Where a page that the user names is to be written: it replaces nothing but a page of this command, and is no
    file of an unpacked release.

    Args:
        artifacts: what is read.
        what: the sentence's first words.

    Raises:
        UsageError, EnvironmentProblem: it may not, or cannot, be written there.
    """
    path = check_new_file(word, Path.cwd(), what, begin(command).encode(), f"page of `{command}`")
    for artifact in artifacts:
        check_outside(path, artifact, f"{what} {word}")
    return path


def write(path: Path, pieces: Iterable[str]) -> None:
    """Writes a page, which appears complete.

    Raises:
        EnvironmentProblem: it cannot be written.
    """
    try:
        with appear(path) as fresh, fresh.open("w", encoding="utf-8") as file:
            file.writelines(pieces)
    except OSError as error:
        raise unwritable(path, error) from error


def details(summary: str, *inside: Markup) -> Markup:
    """What is shown when its line is chosen, and in print."""
    return element("details", element("summary", summary), *inside)


def notes(lines: Iterable[str]) -> Markup:
    """A list of sentences."""
    return element("ul", *(element("li", text(line)) for line in lines))


@cache
def _file(name: str) -> str:
    return cast(bytes, pkgutil.get_data("kiln_build.pages", name)).decode()  # in a zip file too


def _hash(content: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"


def _names(titles: Sequence[str]) -> list[str]:
    """What links call the parts: letters and digits of their titles, each name once."""
    found: list[str] = []
    for title in titles:
        name = "part-" + re.sub("[^a-z0-9_]+", "-", title.lower()).strip("-")
        found.append(name if name not in found else f"{name}-{len(found)}")
    return found
