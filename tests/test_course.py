"""What a death or an error of a task means to a run; an executor that says what it is told to."""

from __future__ import annotations

import signal
from pathlib import Path
from types import SimpleNamespace

import pytest

from kiln_build.farm.course import Attempt, Course
from kiln_build.farm.executor import Began, Died, Executor, Raised, Returned, Task, Waits
from kiln_build.farm.job import ToolDied
from kiln_build.farm.schedule import End, Policy, Scheduler
from kiln_recipe.errors import CompileError, EnvironmentProblem

GIB = 1 << 30
DONE = SimpleNamespace(how="compiled", seconds=1.0, cpu=0.5)


class Scripted(Executor):
    """Each attempt at a task ends as its script says, one second after it was submitted."""

    def __init__(self, script: dict[str, list]) -> None:
        self.script = script
        self.now = 0.0
        self.memory: list[int | None] = []
        self.killed: list = []
        self._events: list = []

    def submit(self, task) -> None:
        self.memory.append(task.data_limit)
        ends = self.script[task.id[0]].pop(0)
        self._events += [Began(task.id, 1), *([] if ends is None else [ends(task.id)])]

    def kill(self, id) -> None:
        self.killed.append(id)
        self._events.append(Died(id, "killed by SIGKILL", signal.SIGKILL))

    def wait(self, timeout) -> list:
        self.now += min(timeout, 1.0)
        events, self._events = self._events, []
        return events


class Heard:
    """The jobs' side: what it was told."""

    def __init__(self) -> None:
        self.told: list = []

    def task(self, start):
        return Task((start.name, start.attempt), len, ((),), Path("/dev/null"), data_limit=start.memory)

    def returned(self, name, result, now):
        self.told.append(("returned", name, result))

    def explain(self, name, reason):
        return f"{reason} (its log says so)"

    def retried(self, name, attempt, reason):
        self.told.append(("retried", name, attempt, reason))

    def lost(self, name, reason):
        self.told.append(("lost", name, reason))

    def failed(self, name, seconds, now):
        self.told.append(("failed", name, seconds))


def run(script: dict[str, list], timeout: float = 10.0, **more) -> SimpleNamespace:
    executor, heard = Scripted(script), Heard()
    scheduler = Scheduler(script, Policy(1, 16 * GIB, GIB, timeout))
    course = Course(scheduler, executor, heard, lambda: executor.now)
    course.run(**more)
    return SimpleNamespace(executor=executor, told=heard.told, outcomes=scheduler.outcomes, attempts=course.attempts)


def returned(id):
    return Returned(id, DONE)


def test_a_result_is_told_and_kept():
    done = run({"a": [returned]})
    assert done.told == [("returned", "a", DONE)] and done.outcomes["a"].end is End.DONE
    assert done.attempts == [Attempt(1, 1.0, 1.0, "compiled", "a")]


@pytest.mark.parametrize(
    ("ends", "reason", "factor"),
    [
        (lambda id: Died(id, "killed by SIGSEGV", signal.SIGSEGV), "its worker was killed by SIGSEGV", 1),
        (lambda id: Died(id, "killed by SIGKILL", signal.SIGKILL), "its worker was killed by SIGKILL", 2),
        (lambda id: Died(id, "killed by SIGABRT", signal.SIGABRT), "its worker was killed by SIGABRT", 2),
        (lambda id: Died(id, "lost", 0), "its worker was lost", 1),
        (lambda id: Raised(id, MemoryError()), "out of memory", 2),
        (lambda id: Raised(id, ToolDied("ptxas was killed by signal 9", True)), "ptxas was killed by signal 9", 2),
        (lambda id: Raised(id, ToolDied("ptxas was killed by signal 11", False)), "ptxas was killed by signal 11", 1),
    ],
)
def test_a_death_is_tried_again_with_more_memory_where_that_may_be_why(ends, reason, factor):
    done = run({"a": [ends, returned]})
    assert done.told == [("retried", "a", 1, f"{reason} (its log says so)"), ("returned", "a", DONE)]
    assert done.executor.memory == [GIB, factor * GIB]
    again = run({"a": [ends] * 3})
    assert [kind for kind, *_ in again.told] == ["retried", "retried", "failed"]
    assert again.outcomes["a"].end is End.CRASH and "3 times in a row" in again.outcomes["a"].message


def test_what_is_lost_with_its_machine_is_started_again_as_it_was():
    def gone(id):
        return Died(id, "node7 is gone", 0, lost=True)

    done = run({"a": [gone, gone, gone, gone, returned]})
    assert done.told == [("lost", "a", "node7 is gone")] * 4 + [("returned", "a", DONE)]
    assert done.executor.memory == [GIB] * 5


@pytest.mark.parametrize(
    ("error", "message"),
    [(CompileError("no such register", "llir", ""), "no such register"), (KeyError("x"), "KeyError: 'x'")],
)
def test_an_error_of_the_job_is_not_tried_again(error, message):
    done = run({"a": [lambda id: Raised(id, error)], "b": [returned]})
    assert done.outcomes["a"].end is End.FAILED and done.outcomes["a"].message == message
    assert done.outcomes["b"].end is End.DONE and done.attempts[0].outcome == "failed"


def test_an_error_that_is_no_jobs_ends_the_run():
    with pytest.raises(EnvironmentProblem, match="the disk is full"):
        run({"a": [lambda id: Raised(id, EnvironmentProblem("the disk is full"))], "b": [returned]})


def test_what_takes_too_long_is_killed_and_fails():
    done = run({"a": [None]}, timeout=3.0)
    assert done.executor.killed == [("a", 1)] and done.outcomes["a"].end is End.TIMEOUT
    assert done.told == [("failed", "a", 4.0)] and done.attempts[0].outcome == "died"


def test_the_clock_stands_still_while_a_job_waits():
    def waits(id):
        return Waits(id)

    executor, heard = Scripted({"a": [waits]}), Heard()
    scheduler = Scheduler(["a"], Policy(1, GIB, GIB, 3.0))
    course = Course(scheduler, executor, heard, lambda: executor.now)
    after = iter([*[[]] * 8, [Began(("a", 1), 1)], [Returned(("a", 1), DONE)]])
    usual = executor.wait
    executor.wait = lambda timeout: usual(timeout) or next(after)
    course.run()
    assert heard.told == [("returned", "a", DONE)] and executor.killed == [] and executor.now > 8


def test_an_interruption_cancels_what_runs_and_what_waits():
    done = run({"a": [None], "b": [None]}, is_interrupted=lambda: True)
    assert {outcome.end for outcome in done.outcomes.values()} == {End.CANCELLED}
    asked = iter([False, True, True])
    done = run({"a": [None], "b": [None]}, is_interrupted=lambda: next(asked, True))
    assert {outcome.end for outcome in done.outcomes.values()} == {End.CANCELLED}
    assert done.executor.killed == [("a", 1)]
