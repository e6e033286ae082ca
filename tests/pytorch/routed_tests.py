"""PyTorch's own tests of attention with kiln.torch.use() in force, failures by their sentence.

    PYTHONPATH=SITE:tests/pytorch python tests/pytorch/routed_tests.py [--shard I/N] [--seconds S]
        PATH/test_transformers.py [pytest's arguments]

PATH is a checkout's test folder of the PyTorch that is installed (the wheel has no tests). SITE is a folder of
tests/bindings/python_site.py, or none where kiln is installed. Without a GPU the engine is the definition of attention.
What fails is run again without routing, in a process of its own: a test that fails then too is not listed. --shard:
every N-th test from the I-th on; --seconds: no test begins later, and the number not run is printed.
"""

from __future__ import annotations

import argparse
import collections
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
import torch

import kiln.torch as kt
from kiln.torch import operators


class Outcomes:
    """A plugin of pytest: chooses tests, and keeps each one's outcome, with the last line of what failed.

    Args:
        is_chosen: of a test's place and name.
        seconds: no test begins later.
    """

    def __init__(self, is_chosen: Callable[[int, str], bool], seconds: float) -> None:
        self.failed: dict[str, str] = {}
        self.passed = self.skipped = self.chosen = self.status = 0
        self._is_chosen, self._end = is_chosen, time.monotonic() + seconds

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [item for place, item in enumerate(items) if self._is_chosen(place, name_of(item.nodeid))]

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.chosen = len(session.items)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            lines = [line[1:].strip() for line in report.longreprtext.splitlines() if line.startswith("E ")]
            self.failed[name_of(report.nodeid)] = lines[0] if lines else report.longreprtext[-200:]
        elif report.skipped:
            self.skipped += 1
        elif report.when == "call":
            self.passed += 1

    def pytest_runtest_logfinish(self) -> None:
        if time.monotonic() > self._end:
            self.session.shouldstop = "--seconds are over"

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        self.session = session

    def __str__(self) -> str:
        left = self.chosen - self.passed - self.skipped - len(self.failed)
        return f"{self.passed} passed, {len(self.failed)} failed, {self.skipped} skipped, {left} not run"


def name_of(nodeid: str) -> str:
    return nodeid.partition("::")[2]


def run(arguments: list[str], is_chosen: Callable[[int, str], bool], seconds: float) -> Outcomes:
    outcomes = Outcomes(is_chosen, seconds)
    words = [*arguments, "-q", "-p", "no:cacheprovider", "--tb=short", "--no-header"]
    outcomes.status = int(pytest.main(words, plugins=[outcomes]))
    return outcomes


def failed_without(arguments: list[str], names: Iterable[str]) -> set[str]:
    """Those of the tests that fail without routing too. In another process: a GPU that a kernel has lost, or memory
    that tests still hold, is no excuse there."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "names.json")
        file.write_text(json.dumps(sorted(names)))
        subprocess.run([sys.executable, __file__, "--plain", file, *arguments], check=True)
        return set(json.loads(file.read_text()))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shard", default="0/1", metavar="I/N")
    parser.add_argument("--seconds", type=float, default=float("inf"), metavar="S")
    parser.add_argument("--plain", type=Path, help=argparse.SUPPRESS)  # a file of names; then of those that failed
    parser.add_argument("tests", type=Path)
    words, arguments = parser.parse_known_args()
    if not words.tests.is_file():
        parser.error(f"there is no file {words.tests}")
    shard, shards = map(int, words.shard.split("/"))
    if not 0 <= shard < shards:
        parser.error(f"--shard {words.shard}: right is 0/N to N-1/N")
    arguments.insert(0, str(words.tests))
    if words.plain:
        names = set(json.loads(words.plain.read_text()))
        plain = run(arguments, lambda place, name: name in names, float("inf"))
        words.plain.write_text(json.dumps(sorted(plain.failed)))
        return 0
    if not torch.cuda.is_available():
        from engines import Definition

        operators.set_engine(Definition())
    with kt.use():
        routed = run(arguments, lambda place, name: place % shards == shard, words.seconds)
    passed_on = kt.fallthroughs()
    if not routed.chosen or routed.status not in (0, 1, 2):  # 2: --seconds were over
        print(f"no test ran as it should: pytest ended with {routed.status}", file=sys.stderr)
        return 2
    plain = failed_without(arguments, routed.failed) if routed.failed else set()
    only = {name: why for name, why in routed.failed.items() if name not in plain}
    print(f"\nrouted: {routed}; {len(only)} of the failures only when routed")
    for why, count in collections.Counter(only.values()).most_common():
        names = sorted(name for name, other in only.items() if other == why)
        print(f"{count:5} {why}\n      {', '.join(names[:4])}{' ...' if count > 4 else ''}")
    print("passed on to PyTorch:")
    for why, count in sorted(passed_on.items(), key=lambda item: -item[1])[:40]:
        print(f"{count:6} {why}")
    return bool(only)


if __name__ == "__main__":
    sys.exit(main())
