"""PyTorch's own tests of attention with kiln.torch.use() in force, failures by their sentence.

    PYTHONPATH=SITE:tests/pytorch python tests/pytorch/routed_tests.py PATH/test_transformers.py [pytest's arguments]

PATH is a checkout's test folder of the PyTorch that is installed (the wheel has no tests). SITE is a folder of
tests/bindings/python_site.py, or none where kiln is installed. Without a GPU the engine is the definition of attention.
A test that fails without routing too is not listed: such are found by a first run without.
"""

from __future__ import annotations

import collections
import sys
from pathlib import Path

import pytest
import torch

import kiln.torch as kt
from kiln.torch import operators


class Outcomes:
    """A plugin of pytest: each test's outcome, with the last line of what failed."""

    def __init__(self) -> None:
        self.failed: dict[str, str] = {}
        self.passed = 0

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            lines = [line[1:].strip() for line in report.longreprtext.splitlines() if line.startswith("E ")]
            self.failed[report.nodeid.partition("::")[2]] = lines[0] if lines else report.longreprtext[-200:]
        elif report.when == "call" and report.passed:
            self.passed += 1


def run(arguments: list[str]) -> Outcomes:
    outcomes = Outcomes()
    pytest.main([*arguments, "-q", "-p", "no:cacheprovider", "--tb=short", "--no-header"], plugins=[outcomes])
    return outcomes


def main() -> int:
    arguments = sys.argv[1:]
    if not arguments or not Path(arguments[0]).is_file():
        print(__doc__, file=sys.stderr)
        return 2
    if not torch.cuda.is_available():
        from engines import Definition

        operators.set_engine(Definition())
    plain = run(arguments)
    with kt.use():
        routed = run(arguments)
    only = {name: why for name, why in routed.failed.items() if name not in plain.failed}
    print(f"\nnot routed: {plain.passed} passed, {len(plain.failed)} failed")
    print(f"routed: {routed.passed} passed, {len(routed.failed)} failed, {len(only)} of them only when routed")
    for why, count in collections.Counter(only.values()).most_common():
        names = sorted(name for name, other in only.items() if other == why)
        print(f"{count:5} {why}\n      {', '.join(names[:4])}{' ...' if count > 4 else ''}")
    print("passed on to PyTorch:")
    for why, count in sorted(kt.fallthroughs().items(), key=lambda item: -item[1])[:40]:
        print(f"{count:6} {why}")
    return bool(only)


if __name__ == "__main__":
    sys.exit(main())
