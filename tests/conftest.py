"""KILN_TEST_REQUIRED=1: a test that is skipped counts as failed, unless it needs a GPU. Continuous integration sets it,
so that green means that everything ran."""

from __future__ import annotations

import os

import pytest

SKIPPED = pytest.StashKey[list[str]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[SKIPPED] = []


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo):
    report = yield
    if report.skipped and not hasattr(report, "wasxfail") and item.get_closest_marker("gpu") is None:
        item.config.stash[SKIPPED].append(described(report))
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector):
    report = yield
    if report.skipped:
        collector.config.stash[SKIPPED].append(described(report))
    return report


def described(report: pytest.TestReport | pytest.CollectReport) -> str:
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return f"{report.nodeid}: {reason.removeprefix('Skipped: ')}"


def missing(config: pytest.Config) -> list[str]:
    return config.stash[SKIPPED] if os.environ.get("KILN_TEST_REQUIRED") == "1" else []


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    if missing(session.config) and session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if missing(config):
        terminalreporter.section("skipped, and KILN_TEST_REQUIRED is 1: this fails", red=True)
        for line in missing(config):
            terminalreporter.write_line(line)
