"""Fills the tables of docs/reference.md from the code: `PYTHONPATH=v3python .kiln/venv/bin/python docs/tables.py`, with
the packages that `./kiln` installs, or any Python that has them.

A table stands between `<!-- table: NAME -->` and `<!-- end -->`; tests/test_readme.py fails if one is out of date.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from kiln_build import cli
from kiln_build.options import variables
from kiln_recipe import errors, targets

PAGE = Path(__file__).resolve().parent / "reference.md"
_NAMES = 6  # of a target's GPUs; `kiln targets` shows all


def tables() -> dict[str, str]:
    """Each table by its name."""
    return {
        "targets": _table(("target", "GPUs"), ((f"`{t.name}`", _some(t.names)) for t in targets.load())),
        "commands": _table(("command", "what it does"), ((f"`kiln {verb}`", cli.summary(verb)) for verb in cli.VERBS)),
        "variables": _table(("variable", "meaning"), ((f"`{n}`", m) for n, m in variables.VARIABLES.items())),
        "codes": _table(("code", "meaning"), _codes()),
    }


def filled(text: str) -> str:
    """The text with all tables up to date."""
    for name, table in tables().items():
        pattern = rf"(<!-- table: {name} -->\n).*?(<!-- end -->)"
        text = re.sub(pattern, lambda match, table=table: match[1] + table + match[2], text, flags=re.DOTALL)
    return text


def _codes() -> list[tuple[str, str]]:
    meanings: dict[int, list[str]] = {}
    for value in vars(errors).values():
        if isinstance(value, type) and issubclass(value, errors.KilnError) and value.exit_code not in (1, 130):
            meanings.setdefault(value.exit_code, []).append(" ".join(value.__doc__.split("\n\n")[0].split()))
    return [
        ("0", "Done."),
        ("1", "A defect of Kiln; please report it."),
        *((str(code), " ".join(sentences)) for code, sentences in sorted(meanings.items())),
        ("130, 143", "Ctrl-C, SIGTERM; what was done is kept."),
        ("141", "The reader closed the pipe."),
    ]


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:_NAMES]) + (" …" if len(names) > _NAMES else "")


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    escaped = ([cell.replace("<", "&lt;").replace("|", "\\|") for cell in row] for row in rows)
    lines = [header, ["---"] * len(header), *escaped]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text()))
