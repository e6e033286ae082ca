"""What every executor promises (kiln_build/farm/executor.py), as checks of what starts an executor.

tests/test_executor_contract.py runs them on every implementation, and shows that they find wrong ones.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import types
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import ANY

import pytest

import worker_tasks as tasks
from kiln_build.farm.executor import Began, Died, Event, Executor, Raised, Returned, StartExecutor, Task, Waits
from kiln_recipe.errors import CompileError, EnvironmentProblem, KilnError, ToolchainError

MIB = 1 << 20
PATIENCE = 60.0  # seconds until what must happen, and takes work, has happened
SURE = 20.0  # seconds until what must happen at once has happened
ASLEEP = 60.0  # seconds of a wait that is ended before
WATCH = 0.3  # seconds in which what must not happen is looked out for
Check = Callable[[StartExecutor, Path], None]
CHECKS: dict[str, Check] = {}


def check(function: Check) -> Check:
    CHECKS[function.__name__] = function
    return function


# ---- aids ----


def collect(executor: Executor, count: int, seconds: float | None = None) -> dict:
    """The last event of each of `count` tasks."""
    ended: dict = {}
    limit = time.monotonic() + (seconds or PATIENCE)
    while len(ended) < count:
        assert time.monotonic() < limit, f"of {count} tasks only {len(ended)} have ended"
        ended |= {e.id: e for e in executor.wait(0.5) if not isinstance(e, Began | Waits)}
    return ended


def run(executor: Executor, folder: Path, *calls, **options) -> list[Event]:
    """Runs tasks, and gives the last event of each."""
    for number, (function, *arguments) in enumerate(calls):
        executor.submit(Task(number, function, tuple(arguments), folder / f"{number}.log", **options))
    ended = collect(executor, len(calls))
    return [ended[number] for number in range(len(calls))]


def wait_for(condition, seconds: float | None = None, what: str = "too slow"):
    limit = time.monotonic() + (seconds or PATIENCE)
    while not (value := condition()):
        assert time.monotonic() < limit, what
        time.sleep(0.01)
    return value


def words_in(path: Path) -> list[str]:
    return wait_for(lambda: path.exists() and path.read_text()).split()


def number_in(path: Path) -> int:
    return int(words_in(path)[0])


def is_alive(pid: int) -> bool:
    """Whether it runs; one that was not reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@contextmanager
def hanging(executor: Executor, folder: Path, id: object = "hangs"):
    """A task that has begun and hangs, beside a child; gives the child's number."""
    executor.submit(Task(id, tasks.hang_with_a_child, (folder / "child",), folder / "hangs.log"))
    limit = time.monotonic() + PATIENCE
    while not (folder / "child").exists():
        assert time.monotonic() < limit, "the task does not begin"
        executor.wait(0.05)
    yield number_in(folder / "child")


# ---- ordinary work ----


@check
def gives_every_result(start: StartExecutor, folder: Path) -> None:
    with start(2) as executor:
        assert [e.value for e in run(executor, folder, *[(tasks.add, n, 1) for n in range(30)])] == list(range(1, 31))


@check
def reports_events_in_order(start: StartExecutor, folder: Path) -> None:
    with start(1) as executor:
        for number in range(4):
            executor.submit(Task(number, tasks.add, (number, 1), folder / "log"))
        events: list = []
        while len(events) < 8:
            new = executor.wait(10)
            assert new, "an event is missing"
            events += new
        assert events == [event for n in range(4) for event in (Began(n), Returned(n, n + 1))]


@check
def numbers_its_workers(start: StartExecutor, folder: Path) -> None:
    """Two that run at once have two numbers; a worker that takes a dead one's place has its number."""
    with start(2) as executor:
        for number in range(4):
            work = (tasks.leave, (3,)) if number == 1 else (tasks.sleep, (0.2,))
            executor.submit(Task(number, *work, folder / f"log{number}"))
        running: dict[int, int] = {}
        ended = 0
        while ended < 4:
            for event in executor.wait(10):
                if isinstance(event, Began):
                    assert event.worker in (1, 2) and event.worker not in running.values()
                    running[event.id] = event.worker
                else:
                    running.pop(event.id, None)
                    ended += 1


@check
def tells_of_waits(start: StartExecutor, folder: Path) -> None:
    with start(1) as executor:
        executor.submit(Task(0, tasks.wait_for_another, (0.05,), folder / "log"))
        events: list = []
        while len(events) < 4:
            new = executor.wait(10)
            assert new, "an event is missing"
            events += new
        assert events == [Began(0), Waits(0), Began(0), Returned(0, "waited")]


@check
def prepares_each_worker_once(start: StartExecutor, folder: Path) -> None:
    with start(1, tasks.prepare, ("made ready",)) as executor:
        prepared = [e.value for e in run(executor, folder, *[(tasks.what_was_prepared,)] * 3)]
        assert prepared == [[("made ready",)]] * 3, "the initializer is called once, before the first task"


@check
def runs_in_other_processes(start: StartExecutor, folder: Path) -> None:
    with start(2) as executor:
        processes = {e.value for e in run(executor, folder, *[(tasks.process_id, n) for n in range(20)])}
        assert os.getpid() not in processes, "a task runs in our process"


@check
def runs_so_many_at_once(start: StartExecutor, folder: Path) -> None:
    with start(2) as executor:
        run(executor, folder, (tasks.add, 1, 1), (tasks.add, 1, 1))
        for number in range(3):
            executor.submit(Task(number, tasks.say_and_sleep, (folder / f"began {number}", 60), folder / f"{number}"))
        limit = time.monotonic() + PATIENCE
        while sum((folder / f"began {n}").exists() for n in range(3)) < 2:
            assert time.monotonic() < limit, "two workers do not run two tasks at once"
            executor.wait(0.05)
        limit = time.monotonic() + WATCH
        while time.monotonic() < limit:
            executor.wait(0.05)
            assert not (folder / "began 2").exists(), "a third task runs beside two"


@check
def keeps_the_log_of_a_failure_alone(start: StartExecutor, folder: Path) -> None:
    with start(1) as executor:
        (failed,) = run(executor, folder, (tasks.speak, True))
        assert isinstance(failed, Raised)
        assert isinstance(failed.error, CompileError) and failed.error.stage == "llir"
        log = folder / "0.log"
        for words in ("from Python\n", "from Python's stderr", "from C", "from a child", "and its stderr", "Traceback"):
            assert words in log.read_text()
        run(executor, folder, (tasks.speak, True), is_retry=True)
        assert log.read_text().count("Traceback") == 2, "a retry adds to the log"
        run(executor, folder, (tasks.speak, True))
        assert log.read_text().count("Traceback") == 1, "what is no retry begins a new log"
        run(executor, folder, (tasks.speak, False))
        assert not log.exists(), "the log of a success goes"


@check
def makes_results_of_bytes(start: StartExecutor, folder: Path) -> None:
    with start(1) as executor:
        for number, receive in enumerate((len, tasks.refuse_nothing)):
            executor.submit(Task(number, bytes, (3,), folder / f"{number}.log", receive=receive))
        assert collect(executor, 2)[0] == Returned(0, 3)
        executor.submit(Task(2, bytes, (0,), folder / "2.log", receive=tasks.refuse_nothing))
        try:
            ended = collect(executor, 1)[2]
        except EnvironmentProblem as error:  # the worker is trusted no more, and there is no other
            reason = str(error)
        else:
            assert isinstance(ended, Died) and ended.lost, "damaged bytes are no result"
            reason = ended.reason
        assert "there is nothing" in reason


@check
def lets_no_exception_through(start: StartExecutor, folder: Path) -> None:
    only_here = types.ModuleType("only_here")
    exec("def f(): pass", only_here.__dict__)
    sys.modules["only_here"] = only_here
    try:
        with start(1) as executor:
            unpicklable, no_result, exits, unknown = run(
                executor, folder,
                (tasks.raise_unpicklable,), (tasks.return_unpicklable,), (tasks.sys_exit,), (only_here.f,),
            )  # fmt: skip
            assert all(isinstance(event, Raised) for event in (unpicklable, no_result, exits, unknown))
            assert "this and that" in str(unpicklable.error)
            assert "kernels may say this" in str(exits.error)
            assert "only_here" in str(unknown.error)
            assert run(executor, folder, (tasks.add, 1, 1))[0].value == 2
    finally:
        del sys.modules["only_here"]


@check
def can_be_woken(start: StartExecutor, folder: Path) -> None:
    with start(1) as executor:
        run(executor, folder, (tasks.add, 1, 1))
        began = time.monotonic()
        assert executor.wait(0.1) == [] and time.monotonic() - began < PATIENCE, "a wait ends with its time"
        executor.wake()
        assert executor.wait(ASLEEP) == [], "woken before the wait"
        handler = signal.signal(signal.SIGALRM, lambda *_: executor.wake())
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        assert executor.wait(ASLEEP) == [], "woken by a signal handler"
        signal.signal(signal.SIGALRM, handler)
        thread = threading.Timer(0.1, executor.wake)
        thread.start()
        assert executor.wait(ASLEEP) == [], "woken by a thread"
        thread.join()
        assert time.monotonic() - began < ASLEEP, "wake does not end a wait"
    executor.wake()


# ---- faults ----


@check
def a_death_costs_one_task(start: StartExecutor, folder: Path) -> None:
    with start(2) as executor:
        for function, argument, reason, number in (
            (tasks.kill_myself, signal.SIGKILL, "killed by SIGKILL", 9),
            (tasks.kill_myself, signal.SIGSEGV, "killed by SIGSEGV", 11),
            (tasks.leave, 0, "exited with code 0", 0),
            (tasks.leave, 3, "exited with code 3", 0),
        ):
            one, dead, *more = run(
                executor, folder, (tasks.add, 1, 1), (function, argument), (tasks.add, 2, 2), (tasks.add, 3, 3)
            )
            assert dead == Died(1, reason, number)
            assert [event.value for event in (one, *more)] == [2, 4, 6]


@check
def a_death_ends_what_the_task_has_started(start: StartExecutor, folder: Path) -> None:
    with start(1) as executor:
        assert isinstance(run(executor, folder, (tasks.die_beside_a_child, folder / "child"))[0], Died)
        wait_for(lambda: not is_alive(number_in(folder / "child")))


@check
def kills_a_task_and_what_it_has_started(start: StartExecutor, folder: Path) -> None:
    with start(1) as executor, hanging(executor, folder) as child:
        executor.kill("hangs")  # it would go on for ever
        assert collect(executor, 1)["hangs"] == Died("hangs", "killed by SIGKILL", 9)
        wait_for(lambda: not is_alive(child))
        executor.kill("hangs")
        assert run(executor, folder, (tasks.add, 1, 1))[0].value == 2, "a kill after the end does nothing"


@check
def kills_a_task_before_it_begins(start: StartExecutor, folder: Path) -> None:
    with start(1) as executor, hanging(executor, folder):
        executor.submit(Task("waits", tasks.announce, (folder / "ran", 1), folder / "waits.log"))
        executor.kill("waits")
        wait_for(lambda: Died("waits", ANY, 9) in executor.wait(0.1), SURE, "a killed task does not die")
        executor.kill("hangs")
        collect(executor, 1)
        executor.wait(0.2)
        assert not (folder / "ran").exists()


@check
def bounds_memory(start: StartExecutor, folder: Path) -> None:
    with start(1) as executor:
        (refused,) = run(executor, folder, (tasks.allocate, 1024 * MIB), data_limit=512 * MIB)
        assert isinstance(refused, Raised) and isinstance(refused.error, MemoryError), "memory has no limit"
        (aborted,) = run(executor, folder, (tasks.allocate_in_small_pieces, 1024 * MIB), data_limit=512 * MIB)
        assert aborted == Died(0, "killed by SIGABRT", 6) and "out of memory" in (folder / "0.log").read_text()
        (allowed,) = run(executor, folder, (tasks.allocate, 128 * MIB), data_limit=512 * MIB)
        assert allowed == Returned(0, 128 * MIB)
        (unbounded,) = run(executor, folder, (tasks.allocate, 600 * MIB))
        assert unbounded == Returned(0, 600 * MIB), "the limit went with its task"


@check
def says_why_workers_cannot_be_made_ready(start: StartExecutor, folder: Path) -> None:
    cases: tuple[tuple[Callable, type[KilnError], str], ...] = (
        (tasks.prepare_badly, ToolchainError, "no Triton is installed in /nowhere"),
        (tasks.prepare_with_a_defect, EnvironmentProblem, "workers cannot start: KeyError: 'oops'"),
        (tasks.die_at_once, EnvironmentProblem, "exited with code 127.*\n  the loader said no"),
    )
    for initializer, error, words in cases:
        with start(2, initializer) as executor, pytest.raises(error, match=words) as caught:
            executor.submit(Task(0, tasks.add, (1, 1), folder / "log"))
            collect(executor, 1)
        assert caught.value.has_lines == ("\n" in str(caught.value))


# ---- the end ----


@check
def leaving_kills_all(start: StartExecutor, folder: Path) -> None:
    with pytest.raises(KeyboardInterrupt), start(1) as executor, hanging(executor, folder) as child:
        raise KeyboardInterrupt
    wait_for(lambda: not is_alive(child), SURE, "a task's child goes on after the executor was left")
    executor.close()


_PARENT = """
import sys
from pathlib import Path
import worker_tasks as tasks
from {module} import {name} as start
from kiln_build.farm.executor import Task
folder = Path(sys.argv[1])
with start(2) as executor:
    executor.submit(Task(0, tasks.hang_with_a_child, (folder / "child",), folder / "0.log"))
    executor.submit(Task(1, tasks.say_and_sleep, (folder / "worker", 1000), folder / "1.log"))
    while True:
        executor.wait(10)
"""


@check
def our_death_ends_all(start: StartExecutor, folder: Path) -> None:
    code = _PARENT.format(module=start.__module__, name=start.__qualname__)  # type: ignore[attr-defined]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen([sys.executable, "-c", code, folder], env=environment, stderr=subprocess.DEVNULL)
    child, worker = number_in(folder / "child"), number_in(folder / "worker")
    process.kill()
    process.wait(5)
    wait_for(lambda: not is_alive(child) and not is_alive(worker), SURE, "a worker or its child outlives us")
