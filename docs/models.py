"""The table of published models, with which docs/tables.py fills docs/models.md.

The configurations are in tests/models/; each names the source of its values.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from kiln_build.coverage import judge
from kiln_build.coverage.attention import USES, Model
from kiln_build.coverage.configuration import config
from kiln_build.coverage.judge import Verdict
from kiln_build.coverage.source import Source, open_source
from kiln_recipe.selection import PROFILES

CONFIGURATIONS = Path(__file__).resolve().parents[1] / "tests" / "models"
HEADER = ("model", "attention", *USES)


def models() -> list[Model]:
    return [config.read(path) for path in sorted(CONFIGURATIONS.glob("*.json"))]


def rows() -> Iterator[tuple[str, ...]]:
    """For each kind of attention the least profile that serves each use of it, on all targets."""
    found = models()
    sources = [open_source(profile) for profile in PROFILES]
    verdicts = {source.profile: judge.judge(source, found, source.targets) for source in sources}
    for model in found:
        for kind in model.kinds:
            cells = []
            for use in USES:
                own = {
                    profile: [v for v in every if (v.model, v.kind, v.use) == (model.name, kind, use)]
                    for profile, every in verdicts.items()
                }
                cells.append(_cell(sources, own))
            yield model.name, f"{kind.name}: {kind}", *cells


def _cell(sources: list[Source], own: dict[str, list[Verdict]]) -> str:
    """ "core", "full", "full on all but sm_80", "not served"."""
    if not any(own.values()):
        return ""
    return "; ".join(_parts(sources, own)) or "not served"


def _parts(sources: list[Source], own: dict[str, list[Verdict]]) -> Iterator[str]:
    before: set[str] = set()
    for source in sources:
        serving = {one.target for one in own[source.profile] if one.is_served}
        if serving > before:
            every = [target.name for target in source.targets]
            ours = [name for name in every if name in serving]
            yield source.profile + (f" on {judge.in_words(ours, every)}" if len(ours) < len(every) else "")
        before = serving
