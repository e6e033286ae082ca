"""KILN_TEST_REQUIRED="cmake clang": a test that is skipped for want of one of these counts as failed. Continuous
integration names what it has, so that no test is skipped for want of what is there. "1": every skip fails, unless for
want of a GPU."""

from __future__ import annotations

import os
import re
import signal
import time
from collections import Counter
from pathlib import Path

import hypothesis
import pytest

from builds import Built, front_door, widen

# Some virtual machines name Intel's AMX among what they have and end a program that uses it; oneDNN, in PyTorch, would.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

# How long an example takes depends on what else the machine does.
hypothesis.settings.register_profile("kiln", deadline=None)
hypothesis.settings.load_profile("kiln")

SKIPPED = pytest.StashKey[list[str]]()
TOO_LATE = "there was no time left to begin"


@pytest.fixture(scope="session")
def kept(tmp_path_factory) -> Path:
    """Where releases are built: KILN_TEST_RELEASE, whose releases of an earlier run are taken, or a new folder. Of
    several processes each has its own: one at a time may build in a workspace."""
    if "KILN_TEST_RELEASE" not in os.environ:
        return tmp_path_factory.mktemp("a build")
    folder = Path(os.environ["KILN_TEST_RELEASE"], os.environ.get("PYTEST_XDIST_WORKER", ""))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def release(kept) -> Built:
    """One small release, built by the front door."""
    return front_door(kept)


@pytest.fixture(scope="session")
def wide_release(release, kept) -> Built:
    """The same with every functional of its dtype and head dimension."""
    (kept / "wide").mkdir(exist_ok=True)
    return widen(release, kept / "wide")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[SKIPPED] = []
    config.pluginmanager.register(Skips(config))
    # Under nohup, and in the background of a script, they are ignored, here and in all that the tests start: those that
    # send one would wait for ever.
    for number, handler in ((signal.SIGHUP, signal.SIG_DFL), (signal.SIGINT, signal.default_int_handler)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path in slow)  # of equals the order stays


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    until = float(os.environ.get("KILN_TEST_UNTIL") or "inf")
    if item.get_closest_marker("slow") and not item.get_closest_marker("gpu") and time.time() > until:
        pytest.skip(TOO_LATE)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo):
    report = yield
    report.is_for_gpu = item.get_closest_marker("gpu") is not None
    return report


class Skips:
    """Gathers what was skipped, wherever it ran."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped and not hasattr(report, "wasxfail") and not report.is_for_gpu:
            self.config.stash[SKIPPED].append(described(report))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.skipped:
            self.config.stash[SKIPPED].append(described(report))


def described(report: pytest.TestReport | pytest.CollectReport) -> str:
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return f"{report.nodeid}: {reason.removeprefix('Skipped: ')}"


def missing(config: pytest.Config) -> list[str]:
    words = os.environ.get("KILN_TEST_REQUIRED", "").split()
    named = re.compile("|".join(rf"(?<![\w+-]){re.escape(word)}(?![\w+-])" for word in words))
    lines = [line for line in config.stash[SKIPPED] if not line.endswith(TOO_LATE)]
    return [line for line in lines if words and (words == ["1"] or named.search(line))]


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    if missing(session.config) and session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    late = Counter(line.partition("::")[0] for line in config.stash[SKIPPED] if line.endswith(TOO_LATE))
    if late:
        terminalreporter.section(f"{late.total()} slow test(s) were not begun: {TOO_LATE}", yellow=True)
        for file, count in late.items():
            terminalreporter.write_line(f"{file}: {count}")
    if missing(config):
        terminalreporter.section(f"skipped, but {os.environ['KILN_TEST_REQUIRED']} required: this fails", red=True)
        for line in missing(config):
            terminalreporter.write_line(line)
