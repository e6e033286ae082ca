"""Fills the table of docs/models.md: `PYTHONPATH=v3python .kiln/venv/bin/python docs/models.py`, with the packages that
`./kiln coverage` installs, or any Python that has them. tests/test_models.py fails if the table is out of date.

The configurations are in tests/models/; each names the source of its values.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from kiln_build.coverage import judge, show
from kiln_build.coverage.attention import USES, Model
from kiln_build.coverage.configuration import config
from kiln_build.coverage.judge import Verdict
from kiln_build.coverage.source import Source, open_source
from kiln_recipe.selection import PROFILES

PAGE = Path(__file__).resolve().parent / "models.md"
CONFIGURATIONS = PAGE.parents[1] / "tests" / "models"


def models() -> list[Model]:
    return [config.read(path) for path in sorted(CONFIGURATIONS.glob("*.json"))]


def table() -> str:
    """For each kind of attention the least profile that serves each use of it, on all targets."""
    found = models()
    sources = [open_source(profile) for profile in PROFILES]
    verdicts = {source.profile: judge.judge(source, found, source.targets) for source in sources}
    lines = ["| model | attention | prefill | decode | training |", "| --- | --- | --- | --- | --- |"]
    for model in found:
        for kind in model.kinds:
            cells = []
            for use in USES:
                own = {
                    profile: [v for v in every if (v.model, v.kind, v.use) == (model.name, kind, use)]
                    for profile, every in verdicts.items()
                }
                cells.append(_cell(sources, own))
            lines.append(f"| {model.name} | {kind.name}: {kind} | {' | '.join(cells)} |")
    return "".join(f"{line}\n" for line in lines)


def filled(text: str) -> str:
    """The text with the table up to date."""
    made = table()
    return re.sub(
        r"(<!-- table: models -->\n).*?(<!-- end -->)", lambda match: match[1] + made + match[2], text, flags=re.DOTALL
    )


def _cell(sources: list[Source], own: dict[str, list[Verdict]]) -> str:
    """ "core", "full", "full, not on sm_80", "not served"."""
    if not any(own.values()):
        return ""
    return "; ".join(_parts(sources, own)) or "not served"


def _parts(sources: list[Source], own: dict[str, list[Verdict]]) -> Iterator[str]:
    before: set[str] = set()
    for source in sources:
        serving = {one.target for one in own[source.profile] if one.is_served}
        if serving > before:
            missing = [target.name for target in source.targets if target.name not in serving]
            yield source.profile + (f", not on {show.targets_in_words(missing, source)}" if missing else "")
        before = serving


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text()))
