"""KILN_TEST_REQUIRED="cmake clang": a test skipped because one of these is missing counts as failed. Continuous
integration names what it has, so that no test is skipped although its tool is there. "1": every skip fails, unless for
want of a GPU."""

from __future__ import annotations

import os
import re
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import hypothesis
import pytest

import builds
import shared
import users_package
from builds import Built

# Some virtual machines name Intel's AMX among what they have and end a program that uses it; oneDNN, in PyTorch, would.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

# How long an example takes depends on what else the machine does.
hypothesis.settings.register_profile("kiln", deadline=None)
hypothesis.settings.load_profile("kiln")

TESTS = Path(__file__).resolve().parent
SKIPPED = pytest.StashKey[list[str]]()
OF_THE_PACKAGE = pytest.StashKey[bool]()  # whether this session is the package's
TOO_LATE = "there was no time left to begin"


@pytest.fixture(scope="session")
def release() -> Built:
    """One small release, built by the front door, for all processes. KILN_TEST_RELEASE names a folder where it is kept
    for the next run."""
    return builds.release()


@pytest.fixture(scope="session")
def wide_release(release) -> Built:
    """The same with every functional of its dtype and head dimension."""
    return builds.wide_release()


@pytest.fixture(scope="session")
def workspace(release, tmp_path_factory) -> Path:
    """A workspace of this process, as the release's build left it: to build in."""
    return release.copy_workspace(tmp_path_factory.mktemp("work") / "work space")


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node) -> None:
    """Tells a worker of pytest-xdist where the run's folder is."""
    node.workerinput["shared"] = str(shared.folder())


@pytest.hookimpl(tryfirst=True)
def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """The users' package has a session of its own: see users_package.py. Where it is not asked for by name, the others
    are collected."""
    folder = collection_path.relative_to(TESTS).parts[:1] if collection_path.is_relative_to(TESTS) else ()
    if len(folder) and (TESTS / folder[0]).is_dir() and is_of_the_package(folder[0]) != config.stash[OF_THE_PACKAGE]:
        return True
    return None


def is_of_the_package(folder: str) -> bool:
    return folder in users_package.SESSION


def asks_for_the_package(config: pytest.Config) -> bool:
    named = [Path(config.invocation_params.dir, word.partition("::")[0]).resolve() for word in config.args]
    kinds = {is_of_the_package(path.relative_to(TESTS).parts[0]) for path in named if TESTS in path.parents}
    if len(kinds) > 1 or (True in kinds and TESTS in named):
        names = ", ".join(f"tests/{name}" for name in users_package.SESSION)
        raise pytest.UsageError(f"the tests of {names} run by themselves; say `bash test.sh`, which does both")
    return True in kinds


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput"):
        shared.use(Path(config.workerinput["shared"]))
    config.stash[SKIPPED] = []
    config.stash[OF_THE_PACKAGE] = asks_for_the_package(config)
    config.pluginmanager.register(Skips(config))
    # Under nohup, and in the background of a script, they are ignored, here and in all that the tests start: those that
    # send one would wait for ever.
    for number, handler in ((signal.SIGHUP, signal.SIG_DFL), (signal.SIGINT, signal.default_int_handler)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if os.environ.get("KILN_TEST_SLOW") != "1":
        leave_samples(items)
        heavy = [item for item in items if item.get_closest_marker("heavy")]
        config.hook.pytest_deselected(items=heavy)
        items[:] = [item for item in items if item not in heavy]
    items.sort(key=slowness(items))  # of equals the order stays


def slowness(items: list[pytest.Item]) -> Callable[[pytest.Item], int]:
    """Files that are slow come last, since these may be left out; the longest of them first, so that processes end
    together."""
    seconds: dict[Path, int] = {}
    for item in items:
        if mark := item.get_closest_marker("slow"):
            seconds[item.path] = max([seconds.get(item.path, 0), *mark.args])
    longest = max(seconds.values(), default=0)
    return lambda item: 1 + longest - seconds[item.path] if item.path in seconds else 0


def leave_samples(items: list[pytest.Item]) -> None:
    """Of the cases of each test that is marked so, the first of every n stays."""
    seen: Counter[str] = Counter()
    for item in items:
        if mark := item.get_closest_marker("sample"):
            test = item.nodeid.partition("[")[0]
            if seen[test] % mark.args[0]:
                item.add_marker(pytest.mark.heavy)
            seen[test] += 1


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
