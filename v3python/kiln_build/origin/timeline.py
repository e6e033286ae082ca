"""The timeline of a build, kept while it goes on and written in the end; origin/timeline_file.py has the grammar."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kiln_build.origin.costs import Costs
from kiln_build.origin.timeline_file import FORMAT
from kiln_build.trust import statement
from kiln_recipe import digests
from kiln_recipe.console.appear import write_whole


@dataclass
class Timeline:
    """A build that goes on. `began` and all times that it is given are time.monotonic()'s; `costs` go through the same
    steps."""

    began: float = field(default_factory=time.monotonic)
    workers: int = 0
    costs: Costs = field(default_factory=Costs)
    _steps: list[tuple[str, float]] = field(default_factory=list)  # when each began
    _jobs: list[list[Any]] = field(default_factory=list)

    def step(self, name: str) -> None:
        """From now on the build does this; the step before ends."""
        self._steps.append((name, time.monotonic()))
        self.costs.step(name)

    def add_jobs(self, jobs: Iterable[tuple[int, float, float, str, str]], workers: int) -> None:
        """Compiles: worker, when it began and ended, what became of it, and the variant's name.

        Args:
            workers: how many there were.
        """
        self.workers = max(self.workers, workers)
        for worker, began, ended, outcome, name in jobs:
            self._jobs.append([worker, self._since(began), self._since(ended), outcome, name])

    def write(self, release: str, tarball: Path) -> Path:
        """Writes the timeline of the build that made a tarball, and ends now. One that is there is of the build that
        made these bytes first, and stays, as the provenance does.

        Raises:
            EnvironmentProblem: it cannot be written.
        """
        path = statement.timeline_of(tarball)
        if path.exists():
            return path
        text = json.dumps(self._document(release, digests.of_file(tarball)), ensure_ascii=False)
        write_whole(path, f"{text}\n")
        return path

    def _document(self, release: str, sha256: str) -> dict[str, Any]:
        now = time.monotonic()
        ends = [*(began for _, began in self._steps[1:]), now]
        return {
            "timeline": FORMAT,
            "release": release,
            "sha256": sha256,
            "seconds": self._since(now),
            "workers": self.workers,
            "steps": [[name, self._since(at), self._since(end)] for (name, at), end in zip(self._steps, ends)],
            "jobs": self._jobs,
        }

    def _since(self, at: float) -> float:
        return round(at - self.began, 3)
