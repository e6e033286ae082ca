"""Fills the tables of the pages from the code: `PYTHONPATH=v3python .kiln/venv/bin/python docs/tables.py`, with
the packages that `./kiln coverage` installs, or any Python that has them.

A table stands between `<!-- table: NAME -->` and `<!-- end -->`; tests/test_readme.py fails if one is out of date.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import models
from kiln_build import cli
from kiln_build.base import ROOT
from kiln_build.ledger import file as ledger_file
from kiln_build.options import variables
from kiln_recipe import errors, targets
from kiln_recipe.plan import plan
from kiln_recipe.read import recipe

PAGES = tuple(Path(__file__).resolve().parent / name for name in (
    "attention.md", "models.md", "reference.md", "rocm-wheels.md",
))  # fmt: skip
# The architectures of PyTorch's own wheels for ROCm.
_ROCM = ("gfx900", "gfx906", "gfx908", "gfx90a", "gfx942", "gfx950", "gfx1030", "gfx1100", "gfx1101", "gfx1102",
         "gfx1103", "gfx1150", "gfx1151", "gfx1200", "gfx1201")  # fmt: skip
_NAMES = 6  # of a target's GPUs; `kiln targets` shows all
_LEDGERS = ledger_file.targets_of(ROOT / "ledger")
_COUNTS = ("targets", "variants of a release", "its keys", "variants of the ledger", "its keys")
_RAN_ON = {"sm_90": "H100 and H200"}  # where tests/gpu/run_all.sh has passed


# By name; some take a while to make.
TABLES: Mapping[str, Callable[[], str]] = {
    "targets": lambda: _table(("target", "GPUs", "images"), map(_target, targets.load())),
    "commands": lambda: _table(("command", "what it does"), ((f"`kiln {v}`", cli.summary(v)) for v in cli.VERBS)),
    "variables": lambda: _table(("variable", "meaning"), ((f"`{n}`", m) for n, m in variables.VARIABLES.items())),
    "codes": lambda: _table(("code", "meaning"), _codes()),
    "rocm": lambda: _table(("in `PYTORCH_ROCM_ARCH`", "GPUs", "Kiln"), _rocm()),
    "models": lambda: _table(models.HEADER, models.rows()),
    "ledger": lambda: _table(_COUNTS, _ledger()),
}


def fill(text: str) -> str:
    """The text with all its tables up to date."""
    pattern = r"(<!-- table: (\w+) -->\n).*?(<!-- end -->)"
    return re.sub(pattern, lambda match: match[1] + TABLES[match[2]]() + match[3], text, flags=re.DOTALL)


def _codes() -> list[tuple[str, str]]:
    meanings: dict[int, list[str]] = {}
    for value in vars(errors).values():
        if isinstance(value, type) and issubclass(value, errors.KilnError) and value.exit_code not in (1, 130):
            meanings.setdefault(value.exit_code, []).append(" ".join(value.__doc__.split("\n\n")[0].split()))
    return [
        ("0", "Done."),
        ("1", "`kiln diff`, `kiln rebuild`: they differ, as diff has it. Else a defect of Kiln; please report it."),
        *((str(code), " ".join(sentences)) for code, sentences in sorted(meanings.items())),
        ("130, 143", "Ctrl-C, SIGTERM; what was done is kept."),
        ("141", "The reader closed the pipe."),
    ]


def _target(target: targets.Target) -> tuple[str, str, str]:
    """The row of a target: which GPUs have run its images, or whether the ledger has them all."""
    unrun = "compiled, not run" if target.name in _LEDGERS else "no ledger, not run"
    ran = _RAN_ON.get(target.name)
    return f"`{target.name}`", _some(target.names), f"run on {ran}" if ran else unrun


def _ledger() -> list[tuple[str, ...]]:
    """How many variants of attention, and how many keys, a release of the full profile has, and the ledger; targets
    with equal numbers together."""
    flash, rows = recipe.load(ROOT / "tritonsrc/flash/recipe.yaml"), {}
    for target in targets.load():
        kept = ledger_file.read(ledger_file.path_of(ROOT / "ledger", "flash", target.name))
        if kept:
            chosen = plan.make_plan([flash], [target], "full", (), ROOT / "tuning", "chosen").variants
            keys = {kept.name(place): line.key for place, line in kept.lines.items()}
            if missing := [one.name for one in chosen if one.name not in keys]:
                raise errors.UsageError(f"the ledger of {target.name} lacks {missing[0]}; run `kiln ledger --update`")
            counts = len(chosen), len({keys[one.name] for one in chosen}), len(keys), len({*keys.values()})
            rows.setdefault(counts, []).append(f"`{target.name}`")
    return [(", ".join(names), *map("{:,}".format, counts)) for counts, names in rows.items()]


def _rocm() -> list[tuple[str, str, str]]:
    """What there is for PyTorch's architectures, then those that there is nothing for."""
    known = {target.name: target for target in targets.load()}
    rows = [(f"`{name}`", _some(known[name].names), "yes") for name in _ROCM if name in known]
    others = ", ".join(f"`{name}`" for name in _ROCM if name not in known)
    return [*rows, (others, "", "no")]


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:_NAMES]) + (" …" if len(names) > _NAMES else "")


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    escaped = ([cell.replace("<", "&lt;").replace("|", "\\|") for cell in row] for row in rows)
    lines = [header, ["---"] * len(header), *escaped]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(fill(page.read_text()))
