"""The executor of this machine: what only it promises, with real faults. The contract is in executor_contract.py."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import worker_tasks as tasks
from executor_contract import collect, is_alive, number_in, wait_for, words_in
from kiln_build.farm.executor import Began, Died, Task
from kiln_build.farm.local import LocalExecutor, spell_exit
from kiln_recipe.errors import EnvironmentProblem

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


# ---- ordinary work ----


def test_no_more_workers_than_needed(tmp_path):
    with LocalExecutor(8) as executor:
        executor.submit(Task(0, tasks.add, (1, 1), tmp_path / "log"))
        collect(executor, 1)
        assert len(executor._workers) == 1


def test_workers_stay_warm(run):
    assert len({event.value for event in run(*[(tasks.process_id, n) for n in range(30)])}) <= 2


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


# ---- faults ----


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


def test_temporary_files_of_the_dead_are_removed(run):
    path = run((tasks.temporary_folder,))[0].value
    assert Path(path).exists()
    run.executor.close()
    assert not Path(path).parent.parent.exists()


# ---- our own death ----

_PARENT = """
import signal, sys
from pathlib import Path
import worker_tasks as tasks
from kiln_build.farm.executor import Task
from kiln_build.farm.local import LocalExecutor
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
