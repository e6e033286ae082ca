"""The executor, with real faults: kills, aborts, hangs, greed, orphans, and our own death."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import worker_tasks as tasks
from kiln_build.farm.executor import Began, Died, LocalExecutor, Raised, Returned, Task, Waits, spell_exit
from kiln_recipe.errors import CompileError, EnvironmentProblem, ToolchainError

GIB = 1 << 30


@pytest.fixture
def run(tmp_path):
    """A function that runs tasks in one executor and gives their last events."""
    with LocalExecutor(2, tasks.prepare, ("made ready",)) as executor:

        def run(*calls, **options):
            for number, (function, *arguments) in enumerate(calls):
                executor.submit(Task(number, function, tuple(arguments), tmp_path / f"{number}.log", **options))
            ended = collect(executor, len(calls))
            return [ended[number] for number in range(len(calls))]

        run.executor = executor
        run.log = lambda number=0: (tmp_path / f"{number}.log").read_text()
        yield run


def collect(executor: LocalExecutor, count: int, seconds: float = 20) -> dict:
    ended = {}
    limit = time.monotonic() + seconds
    while len(ended) < count:
        assert time.monotonic() < limit, "too slow"
        ended |= {e.id: e for e in executor.wait(0.5) if not isinstance(e, Began | Waits)}
    return ended


def wait_for(condition, seconds: float = 10):
    limit = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < limit, "too slow"
        time.sleep(0.01)
    return value


def words_in(path: Path) -> list[str]:
    return wait_for(lambda: path.exists() and path.read_text()).split()


def number_in(path: Path) -> int:
    return int(words_in(path)[0])


def is_alive(pid: int) -> bool:
    """Whether it runs; one that nobody has reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


# ---- ordinary work ----


def test_tasks_run_in_warm_workers(run):
    results = run(*[(tasks.add, n, 1) for n in range(30)])
    assert [r.value for r in results] == list(range(1, 31))
    assert run((tasks.what_was_prepared,))[0].value == [("made ready",)]
    assert len({r.value for r in run(*[(tasks.process_id, n) for n in range(30)])}) <= 2
    assert os.getpid() not in {r.value for r in run((tasks.process_id, 0))}


def test_no_more_workers_than_needed(tmp_path):
    with LocalExecutor(8) as executor:
        executor.submit(Task(0, tasks.add, (1, 1), tmp_path / "log"))
        collect(executor, 1)
        assert len(executor._workers) == 1


def test_all_output_goes_to_the_tasks_log_which_stays_after_a_failure(run, capfd):
    (result,) = run((tasks.speak, True))
    assert isinstance(result.error, CompileError) and result.error.stage == "llir"
    for words in ("from Python\n", "from Python's stderr", "from C", "from a child", "and its stderr", "Traceback"):
        assert words in run.log()
    assert capfd.readouterr() == ("", "")


def test_the_log_of_a_success_goes(run, tmp_path):
    run((tasks.speak, False))
    assert not (tmp_path / "0.log").exists()


def test_a_retry_adds_to_the_log(run):
    run((tasks.speak, True))
    run((tasks.speak, True), is_retry=True)
    assert run.log().count("Traceback") == 2
    run((tasks.speak, True))
    assert run.log().count("Traceback") == 1


def test_exceptions_that_cannot_travel_arrive_all_the_same(run):
    unpicklable, no_result, exits = run((tasks.raise_unpicklable,), (tasks.return_unpicklable,), (tasks.sys_exit,))
    assert "this and that" in str(unpicklable.error)
    assert "cannot be sent" in str(no_result.error)
    assert "kernels may say this" in str(exits.error)
    assert run((tasks.add, 1, 1))[0].value == 2


def test_a_function_that_workers_cannot_import(run, monkeypatch):
    import types

    module = types.ModuleType("only_here")
    exec("def f(): pass", module.__dict__)
    monkeypatch.setitem(sys.modules, "only_here", module)
    (result,) = run((module.f,))
    assert isinstance(result, Raised) and "only_here" in str(result.error)


def test_a_log_that_cannot_be_written(tmp_path):
    with LocalExecutor(1) as executor:
        executor.submit(Task(0, tasks.add, (1, 1), tmp_path / "missing" / "log"))
        assert isinstance(collect(executor, 1)[0].error, EnvironmentProblem)


def test_workers_are_replaced_after_some_tasks_or_when_they_have_grown(tmp_path):
    with LocalExecutor(1, tasks_per_worker=3, bytes_per_worker=300 << 20) as executor:
        for number in range(6):
            executor.submit(Task(number, tasks.process_id, (), tmp_path / "log"))
        pids = [event.value for event in collect(executor, 6).values()]
        assert len(set(pids)) == 2
        executor.submit(Task("greedy", tasks.grow, (400 << 20,), tmp_path / "log"))
        executor.submit(Task("next", tasks.process_id, (), tmp_path / "log"))
        ended = collect(executor, 2)
        assert ended["greedy"].value != ended["next"].value


def test_temporary_files_lie_where_they_are_told_to(tmp_path):
    place = tmp_path / "not there" / "yet"
    with LocalExecutor(1, temporary=place) as executor:
        executor.submit(Task(0, tasks.temporary_folder, (), tmp_path / "log"))
        assert place in Path(collect(executor, 1)[0].value).parents
    wait_for(lambda: not list(place.iterdir()))


def test_a_folder_for_temporary_files_that_cannot_be_made(tmp_path):
    (tmp_path / "file").touch()
    with LocalExecutor(1, temporary=tmp_path / "file") as executor:
        with pytest.raises(EnvironmentProblem, match="cannot start a worker process: File exists"):
            executor.submit(Task(0, tasks.process_id, (), tmp_path / "log"))


def test_wake_interrupts_a_wait(run):
    run((tasks.add, 1, 1))
    handler = signal.signal(signal.SIGALRM, lambda *_: run.executor.wake())
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    began = time.monotonic()
    assert run.executor.wait(20) == []
    assert time.monotonic() - began < 5
    signal.signal(signal.SIGALRM, handler)


def test_a_wait_for_others_is_reported(run, tmp_path):
    run.executor.submit(Task(0, tasks.wait_for_another, (0.05,), tmp_path / "log"))
    events = []
    while len(events) < 4:
        events += run.executor.wait(5)
    assert events == [Began(0), Waits(0), Began(0), Returned(0, "waited")]


# ---- faults ----


@pytest.mark.parametrize(
    "function, arguments, reason, number",
    [
        (tasks.kill_myself, (signal.SIGKILL,), "killed by SIGKILL", 9),
        (tasks.kill_myself, (signal.SIGSEGV,), "killed by SIGSEGV", 11),
        (tasks.kill_myself, (signal.SIGRTMIN + 3,), f"killed by signal {signal.SIGRTMIN + 3}", signal.SIGRTMIN + 3),
        (tasks.leave, (0,), "exited with code 0", 0),
        (tasks.leave, (3,), "exited with code 3", 0),
    ],
)
def test_a_death_costs_one_task_and_names_it(run, function, arguments, reason, number):
    results = run((tasks.add, 1, 1), (function, *arguments), (tasks.add, 2, 2), (tasks.add, 3, 3))
    assert results[1] == Died(1, reason, number)
    assert [results[n].value for n in (0, 2, 3)] == [2, 4, 6]


def test_an_abort_leaves_its_words_and_the_stack_in_the_log(run):
    assert run((tasks.speak_then_abort,)) == [Died(0, "killed by SIGABRT", 6)]
    assert "LLVM ERROR" in run.log() and "isReg" in run.log() and "speak_then_abort" in run.log()


def test_a_worker_killed_from_outside(run, tmp_path):
    run.executor.submit(Task("victim", tasks.say_and_sleep, (tmp_path / "pid", 60), tmp_path / "log"))
    assert run.executor.wait(10) in ([], [Began("victim")])
    while not (tmp_path / "pid").exists():
        run.executor.wait(0.05)
    os.kill(number_in(tmp_path / "pid"), signal.SIGKILL)
    assert collect(run.executor, 1, 2) == {"victim": Died("victim", "killed by SIGKILL", 9)}


def test_an_idle_worker_killed_from_outside_costs_nothing(run):
    pid = run((tasks.process_id,))[0].value
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not is_alive(pid))
    assert run((tasks.add, 1, 1))[0].value == 2


def test_kill_ends_a_hanging_task_and_its_child_at_once(run, tmp_path):
    run.executor.submit(Task("hangs", tasks.hang_with_a_child, (tmp_path / "pid",), tmp_path / "log"))
    while not (tmp_path / "pid").exists():
        run.executor.wait(0.05)
    child = number_in(tmp_path / "pid")
    began = time.monotonic()
    run.executor.kill("hangs")
    assert collect(run.executor, 1)["hangs"] == Died("hangs", "killed by SIGKILL", 9)
    wait_for(lambda: not is_alive(child))
    assert time.monotonic() - began < 5  # it would go on for ever
    run.executor.kill("hangs")
    assert run((tasks.add, 1, 1))[0].value == 2


def test_a_child_left_by_a_dead_worker_dies(run, tmp_path):
    assert isinstance(run((tasks.die_beside_a_child, tmp_path / "pid"))[0], Died)
    child = number_in(tmp_path / "pid")
    wait_for(lambda: not is_alive(child))


def test_a_task_that_has_not_begun_can_be_killed(run, tmp_path):
    for number in range(3):
        run.executor.submit(Task(number, tasks.sleep, (0.2,), tmp_path / f"{number}.log"))
    run.executor.kill(2)
    ended = collect(run.executor, 3)
    assert ended[2] == Died(2, "killed before it began", 9) and ended[1] == Returned(1, 0.2)


def test_too_much_memory_is_refused_by_name(run):
    (result,) = run((tasks.allocate, 3 * GIB), data_limit=GIB)
    assert isinstance(result.error, MemoryError)
    (result,) = run((tasks.allocate_in_small_pieces, 3 * GIB), data_limit=GIB)
    assert result == Died(0, "killed by SIGABRT", 6) and "out of memory" in run.log()
    assert run((tasks.allocate, GIB // 4), data_limit=GIB)[0].value == GIB // 4
    assert run((tasks.allocate, GIB // 2))[0].value == GIB // 2, "the limit went with its task"


def test_temporary_files_of_the_dead_are_removed(run):
    path = run((tasks.temporary_folder,))[0].value
    assert Path(path).exists()
    run.executor.close()
    assert not Path(path).parent.parent.exists()


# ---- start ----


def test_an_initializer_that_fails_says_why(tmp_path):
    for initializer, error, words in (
        (tasks.prepare_badly, ToolchainError, "no Triton is installed in /nowhere"),
        (tasks.prepare_with_a_defect, EnvironmentProblem, "cannot be made ready: KeyError: 'oops'"),
        (tasks.die_at_once, EnvironmentProblem, "exited with code 127.*\n  the loader said no"),
    ):
        with LocalExecutor(2, initializer) as executor, pytest.raises(error, match=words):
            executor.submit(Task(0, tasks.add, (1, 1), tmp_path / "log"))
            collect(executor, 1)


# ---- our own death ----

_PARENT = """
import signal, sys
from pathlib import Path
import worker_tasks as tasks
from kiln_build.farm.executor import LocalExecutor, Task
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where the tests run in the background
folder = Path(sys.argv[1])
with LocalExecutor(2) as executor:
    executor.submit(Task(0, tasks.hang_with_a_child, (folder / "child",), folder / "0.log"))
    executor.submit(Task(1, tasks.say_and_sleep, (folder / "worker", 1000), folder / "1.log"))
    (folder / "new").write_text(f"{executor._guardian.pid} {executor._folder}")
    (folder / "new").rename(folder / "guardian")
    while True:
        executor.wait(10)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_nothing_outlives_us(tmp_path, number):
    process = subprocess.Popen(
        [sys.executable, "-c", _PARENT, tmp_path],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        stderr=subprocess.DEVNULL,
    )
    child, worker = number_in(tmp_path / "child"), number_in(tmp_path / "worker")
    guardian, folder = words_in(tmp_path / "guardian")
    assert is_alive(child) and is_alive(worker) and is_alive(int(guardian)) and Path(folder).exists()
    process.send_signal(number)
    process.wait(5)
    wait_for(lambda: not any(map(is_alive, (child, worker, int(guardian)))), 3)
    assert not Path(folder).exists()


def test_workers_follow_us_even_without_the_guardian(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-c", _PARENT, tmp_path], env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    )
    child, worker = number_in(tmp_path / "child"), number_in(tmp_path / "worker")
    guardian, folder = words_in(tmp_path / "guardian")
    os.kill(int(guardian), signal.SIGKILL)
    process.kill()
    process.wait()
    wait_for(lambda: not is_alive(worker), 3)
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, signal.SIGKILL)
    shutil.rmtree(folder)


def test_spell_exit():
    assert [spell_exit(code) for code in (0, 2, -6, -60)] == [
        "exited with code 0",
        "exited with code 2",
        "killed by SIGABRT",
        "killed by signal 60",
    ]
