"""All that is told of a release, gathered once, for the page and for programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from kiln_build.difference import show
from kiln_build.difference.compare import Difference
from kiln_build.difference.side import Side
from kiln_build.origin.timeline_file import Timeline
from kiln_build.report import coverage, images, verification
from kiln_build.report.coverage import Kernel
from kiln_build.report.verification import Record


@dataclass(frozen=True)
class Report:
    """A release.

    Attributes:
        records: of runs; None: there are none to hold the release against, so that `verification` is empty.
        spilling: a variant's row of each image that spills.
        timeline: of the build, if it is known.
        difference: to an earlier release, if one was given.
    """

    side: Side
    records: Sequence[Record] | None
    coverage: Sequence[Kernel]
    verification: Sequence[verification.Line]
    sizes: Sequence[images.Size]
    images: Sequence[images.Line]
    spilling: Sequence[Mapping[str, Any]]
    timeline: Timeline | None = None
    difference: Difference | None = None


def gather(
    side: Side,
    records: Sequence[Record] | None = None,
    timeline: Timeline | None = None,
    difference: Difference | None = None,
) -> Report:
    """The report of a release; arguments as Report has them."""
    return Report(
        side,
        records,
        coverage.of(side),
        [] if records is None else verification.of(side, records),
        images.sizes(side),
        images.lines(side),
        images.spilling(side),
        timeline,
        difference,
    )


def document(report: Report) -> dict[str, Any]:
    """Everything, as plain data."""
    side = report.side
    names = ("target", "kernel", "functional", "configuration", "specialization", "spills", "registers", "image")
    return {
        "file": side.path.name,
        "kind": side.kind,
        "release": side.version,
        "sha256": side.digest or None,
        "stated": side.stated,
        "targets": side.targets,
        "absent": side.absent,
        "coverage": [
            {
                "kernel": kernel.name,
                "choices": kernel.choices,
                "counts": kernel.counts,
                "combinations": [
                    {
                        "values": dict(zip(kernel.choices, line.values)),
                        "served": {target: asdict(answer) for target, answer in zip(side.targets, line.answers)},
                    }
                    for line in kernel.lines
                ],
            }
            for kernel in report.coverage
        ],
        "verification": {
            "stated": verification.stated(side),
            "by_kernel": None if report.records is None else [asdict(line) for line in report.verification],
        },
        "sizes": [asdict(size) for size in report.sizes],
        "images": [asdict(line) for line in report.images],
        "spilling": [{name: row[name] for name in names} for row in report.spilling],
        "timeline": asdict(report.timeline) if report.timeline else None,
        "changes": show.document(report.difference) if report.difference else None,
        "notes": side.notes,
    }
