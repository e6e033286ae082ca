"""HTML from texts. What is not `Markup` is escaped, so that a name in a release cannot become a tag; what would not be
seen, or would turn the letters around it, is spelled."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from kiln_recipe.errors import escaped

_VOID = ("meta",)
_CLOSED = ("path", "rect")  # of pictures: they must say themselves that nothing is in them


class Markup(str):
    """Text that is HTML already."""


def text(content: object) -> Markup:
    """Content as HTML; a line break stays one, and None is nothing."""
    if isinstance(content, Markup):
        return content
    return Markup("" if content is None else escape(escaped(str(content))))


def element(name: str, *inside: object, **attributes: object) -> Markup:
    """An element. Attributes that are None or False are left out, True is one without a value; `class_` and `data_v`
    are called "class" and "data-v"."""
    words = [name]
    for key, value in attributes.items():
        if value is not None and value is not False:
            spelled = key.rstrip("_").replace("_", "-")
            words.append(spelled if value is True else f'{spelled}="{escape(escaped(str(value)))}"')
    begin = " ".join(words)
    if name in _VOID or name in _CLOSED:
        return Markup(f"<{begin}{'/' if name in _CLOSED else ''}>")
    return Markup(f"<{begin}>{''.join(map(text, inside))}</{name}>")


def drawing(inside: Markup, width: int, height: int, label: str) -> Markup:
    """A picture, in SVG; `label` says what it shows to who does not see it. Sizes are in pixels; it prints smaller
    where the paper is narrower."""
    return element(
        "svg", inside, width=width, height=height, viewBox=f"0 0 {width} {height}", role="img", aria_label=label
    )


def joined(parts: Iterable[Markup]) -> Markup:
    """Several elements, one behind the other."""
    return Markup("".join(parts))
