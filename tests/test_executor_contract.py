"""Every executor keeps the contract; and the contract's checks find executors that do not."""

from __future__ import annotations

import pytest

from executor_contract import CHECKS
from kiln_build.farm.executor import Began, Died, Raised, Returned
from kiln_build.farm.local import LocalExecutor

# To add an implementation is to add a line; test_cluster_contract.py has the one that needs a cluster.
EXECUTORS = {
    "local": LocalExecutor,
}


@pytest.mark.parametrize("name", CHECKS)
@pytest.mark.parametrize("executor", EXECUTORS)
def test_contract(executor, name, tmp_path):
    CHECKS[name](EXECUTORS[executor], tmp_path)


# ---- wrong ones, and the check that finds each ----


class LosesDeaths(LocalExecutor):
    def wait(self, timeout):
        return [event for event in super().wait(timeout) if not isinstance(event, Died)]


class RunsHere(LocalExecutor):
    """A function call in this process: the executor that somebody writes first."""

    def submit(self, task):
        self._events.append(Began(task.id))
        try:
            self._events.append(Returned(task.id, task.function(*task.arguments)))
        except Exception as error:  # noqa: BLE001
            self._events.append(Raised(task.id, error))


class KeepsAllLogs(LocalExecutor):
    def submit(self, task):
        super().submit(type(task)(task.id, task.function, task.arguments, task.log, True, task.data_limit))


class KillsNothingThatWaits(LocalExecutor):
    def kill(self, id):
        if all(task.id != id for task in self._queue):
            super().kill(id)


class ForgetsToPrepare(LocalExecutor):
    def __init__(self, workers, initializer=None, arguments=(), **more):
        super().__init__(workers, **more)


class LeavesAllRunning(LocalExecutor):
    """What was started is not waited for: its children go on."""

    def __exit__(self, *_):
        pass


class CannotBeWoken(LocalExecutor):
    def wake(self):
        pass


class KnowsNoLimit(LocalExecutor):
    def submit(self, task):
        super().submit(type(task)(task.id, task.function, task.arguments, task.log, task.is_retry, None))


class RunsAllAtOnce(LocalExecutor):
    def __init__(self, workers, *words, **more):
        super().__init__(workers + 1, *words, **more)


WRONG = {
    LosesDeaths: ("kills_a_task_before_it_begins", "a killed task does not die"),
    RunsHere: ("runs_in_other_processes", "a task runs in our process"),
    KeepsAllLogs: ("keeps_the_log_of_a_failure_alone", "begins a new log"),
    KillsNothingThatWaits: ("kills_a_task_before_it_begins", "a killed task does not die"),
    ForgetsToPrepare: ("prepares_each_worker_once", "the initializer is called once"),
    LeavesAllRunning: ("leaving_kills_all", "goes on after the executor was left"),
    CannotBeWoken: ("can_be_woken", "wake does not end a wait"),
    KnowsNoLimit: ("bounds_memory", "memory has no limit"),
    RunsAllAtOnce: ("runs_so_many_at_once", "a third task runs beside two"),
}


@pytest.mark.parametrize("executor", WRONG)
def test_a_wrong_executor_is_found(executor, tmp_path, monkeypatch):
    name, words = WRONG[executor]
    for limit in ("SURE", "ASLEEP"):
        monkeypatch.setattr(f"executor_contract.{limit}", 2.0)  # which some use up
    monkeypatch.setattr("executor_contract.WATCH", 60.0)  # and these do not
    made = []

    def start(*arguments, **more):
        made.append(executor(*arguments, **more))
        return made[-1]

    try:
        with pytest.raises(AssertionError, match=words):
            CHECKS[name](start, tmp_path)
    finally:
        for one in made:
            one.close()
