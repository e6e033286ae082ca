"""What a recipe says of one kernel, before it is written down; and the names that it may use."""

from __future__ import annotations

import keyword
import re
import unicodedata
from dataclasses import dataclass, field

from kiln_recipe.expressions import CONSTANTS, FUNCTIONS
from kiln_recipe.model import OPTION_ORDER
from kiln_recipe.read.descriptors import LEAST_PTX

RESERVED = frozenset({*CONSTANTS, *FUNCTIONS, *OPTION_ORDER, "device", "multiprocessors", "targets", "specialization"})


@dataclass
class Entry:
    """A line of the skeleton: a key, what stands behind it, and what to check about it, where there is anything."""

    key: str
    text: str
    check: str = ""


@dataclass
class Sketch:
    """What a recipe says of one kernel."""

    function: str
    language: str
    name: str
    summary: str
    arguments: list[Entry] = field(default_factory=list)
    choices: list[Entry] = field(default_factory=list)
    define: list[Entry] = field(default_factory=list)
    require: list[Entry] = field(default_factory=list)
    parameters: list[Entry] = field(default_factory=list)
    constants: list[Entry] = field(default_factory=list)
    configuration: list[Entry] = field(default_factory=list)
    grid: list[Entry] = field(default_factory=list)
    zero: list[str] = field(default_factory=list)
    aligned: list[str] = field(default_factory=list)
    ones: list[str] = field(default_factory=list)
    skip_when: str = ""
    targets: str = ""
    ptx: str = ""

    def use_descriptors(self) -> None:
        """The first GPUs that have tensor descriptors, with the PTX that their copies need. Later ones are left to the
        author: their own PTX is newer, and `ptx` would take its place."""
        self.targets, self.ptx = "[hopper]", f"{LEAST_PTX // 10}.{LEAST_PTX % 10}"


def plain(name: str) -> str:
    """A name that recipes take: without what marks a function as a kernel's."""
    text = re.sub("[^A-Za-z0-9_]", "_", spelled(name)).strip("_")
    text = re.sub("^(triton|gluon)_|_(kernel|triton|gluon|jit)$", "", text) or "kernel"
    return f"k_{text}" if text[0].isdigit() or keyword.iskeyword(text) or text in RESERVED else text


def spelled(name: str) -> str:
    """In ASCII: letters without their accents, and the names of others, "alpha"."""
    return "".join(one if one.isascii() else _letter(one) for one in name)


def _letter(one: str) -> str:
    bare = unicodedata.normalize("NFKD", one).encode("ascii", "ignore").decode()
    return bare or unicodedata.name(one, "x").split()[-1].lower()


def plain_word(word: str) -> bool:
    return re.fullmatch("[A-Za-z][A-Za-z0-9_]*", word) is not None and word not in RESERVED
