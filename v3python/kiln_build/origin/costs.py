"""What a build took of processors: its steps, and each stage of its compiles by kernel and target. `kiln build
--profile` prints it and writes it beside the tarball.

The file is JSON: `costs` 1; `release`; `sha256` of the tarball; `steps`, each [name, seconds, seconds of processors];
`compiles`, each with `kernel`, `target`, `images` that were compiled, `shared`, how many took the image of another with
equal IR, and `stages`: seconds of processors of all of them, by stage in the order in which they run. The step
"compile" also has what workers take to start. All processes that the build has waited for are counted.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kiln_build.trust import statement
from kiln_recipe import digests
from kiln_recipe.compile.stages import cpu_seconds
from kiln_recipe.console.appear import write_whole
from kiln_recipe.console.tables import table_lines

FORMAT = 1


@dataclass
class Costs:
    """Those of a build that goes on."""

    _steps: list[tuple[str, float, float]] = field(default_factory=list)  # name, and when it began by both clocks
    _compiles: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)

    def step(self, name: str) -> None:
        """From now on the build does this; the step before ends."""
        self._steps.append((name, time.monotonic(), cpu_seconds()))

    def add(self, kernel: str, target: str, stages: Mapping[str, float], shared: bool) -> None:
        """A compile.

        Args:
            kernel: "flash.attn_fwd/attn_fwd".
            stages: seconds of processors by stage, in their order.
            shared: whether it ended at an IR that had been compiled before.
        """
        entry = self._compiles.setdefault((kernel, target), {"images": 0, "shared": 0, "stages": {}})
        entry["shared" if shared else "images"] += 1
        for stage, seconds in stages.items():
            entry["stages"][stage] = entry["stages"].get(stage, 0.0) + seconds

    def write(self, release: str, tarball: Path) -> Path:
        """Writes the file, anew where there is one, and ends now.

        Raises:
            EnvironmentProblem: it cannot be written.
        """
        path = statement.costs_of(tarball)
        write_whole(path, json.dumps(self.document(release, digests.of_file(tarball)), indent=1) + "\n")
        return path

    def document(self, release: str, sha256: str) -> dict[str, Any]:
        """What the file holds."""
        ends = [*(began[1:] for began in self._steps[1:]), (time.monotonic(), cpu_seconds())]
        return {
            "costs": FORMAT,
            "release": release,
            "sha256": sha256,
            "steps": [
                [name, round(end[0] - at, 3), round(end[1] - cpu, 3)] for (name, at, cpu), end in zip(self._steps, ends)
            ],
            "compiles": [
                {"kernel": kernel, "target": target, **entry, "stages": _rounded(entry["stages"])}
                for (kernel, target), entry in sorted(self._compiles.items())
            ],
        }


def lines(document: Mapping[str, Any]) -> Iterator[str]:
    """The document as tables: seconds of processors an image by stage, and those of each step."""
    compiles = document["compiles"]
    if compiles:
        stages = list(dict.fromkeys(stage for entry in compiles for stage in entry["stages"]))
        header = ["seconds of processors an image", "target", "images", *stages, "all"]
        rows = [_row(entry["kernel"], entry["target"], [entry], stages) for entry in compiles]
        targets = sorted({entry["target"] for entry in compiles})
        for target in targets:
            of_target = [entry for entry in compiles if entry["target"] == target]
            rows.append(_row("all kernels", target, of_target, stages))
        yield from table_lines(header, rows, right=header[2:])
        yield ""
    header = ["step", "seconds", "of processors"]
    yield from table_lines(
        header, [(name, f"{wall:.1f}", f"{cpu:.1f}") for name, wall, cpu in document["steps"]], header[1:]
    )


def _row(kernel: str, target: str, entries: list[Mapping[str, Any]], stages: list[str]) -> list[str]:
    """Shares of an image each: what ended at a known IR counts to the images that were compiled."""
    images = sum(entry["images"] for entry in entries)
    sums = [sum(entry["stages"].get(stage, 0.0) for entry in entries) for stage in stages]
    cells = [f"{seconds / max(1, images):.3f}" if seconds else "-" for seconds in sums]
    return [kernel, target, str(images), *cells, f"{sum(sums) / max(1, images):.3f}"]


def _rounded(stages: Mapping[str, float]) -> dict[str, float]:
    return {stage: round(seconds, 4) for stage, seconds in stages.items()}
