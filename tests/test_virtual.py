"""The executor of simulations: what happens when, told as another executor would tell it."""

from __future__ import annotations

import contextlib
import math
import signal
from pathlib import Path

import pytest

from kiln_build.farm.executor import Began, Died, Raised, Returned, Task
from kiln_build.foresight.virtual import Clock, Pretended, VirtualExecutor


def executor(workers: int = 1, **named) -> tuple[VirtualExecutor, Clock]:
    clock = Clock()
    return VirtualExecutor(workers, clock, **named), clock


def task(name: str, seconds: float, error: Exception | None = None) -> Task:
    return Task((name, 1), lambda: Pretended(seconds, error=error), (), Path("/dev/null"))


def told(one: VirtualExecutor, clock: Clock, most: int = 100) -> list[tuple[float, type, str]]:
    """All that happens: when, what, and to which task."""
    found = []
    with contextlib.suppress(RuntimeError):  # nothing is under way
        for _ in range(most):
            events = one.wait(None)
            found += [(round(clock.now, 6), type(event), event.id[0]) for event in events]
    return found


def test_tasks_run_in_the_order_given_as_workers_are_free():
    one, clock = executor(2, start_up=1.0)
    for name, seconds in (("a", 3.0), ("b", 1.0), ("c", 1.0)):
        one.submit(task(name, seconds))
    assert told(one, clock) == [
        (1.0, Began, "a"), (1.0, Began, "b"), (2.0, Returned, "b"), (2.0, Began, "c"), (3.0, Returned, "c"),
        (4.0, Returned, "a"),
    ]  # fmt: skip


def test_what_happens_at_one_moment_comes_at_once_and_a_worker_has_its_number():
    one, clock = executor(2)
    one.submit(task("a", 1.0))
    one.submit(task("b", 1.0))
    began = one.wait(None)
    assert [event.worker for event in began] == [1, 2] and clock.now == 0.0
    assert len(one.wait(None)) == 2 and clock.now == 1.0


def test_it_waits_no_longer_than_it_may():
    one, clock = executor()
    one.submit(task("a", 5.0))
    one.wait(None)
    assert one.wait(2.0) == [] and clock.now == 2.0
    assert [type(event) for event in one.wait(3.0)] == [Returned] and clock.now == 5.0
    assert one.wait(1.0) == [] and clock.now == 6.0
    with pytest.raises(RuntimeError, match="never happens"):
        one.wait(None)


def test_errors_are_raised_when_the_task_ends():
    one, clock = executor()
    one.submit(task("a", 2.0, MemoryError()))
    assert told(one, clock) == [(0.0, Began, "a"), (2.0, Raised, "a")]


def test_a_killed_task_ends_now_with_its_worker():
    one, clock = executor(start_up=1.0)
    one.submit(task("a", 9.0))
    one.submit(task("b", 1.0))
    one.wait(None)
    one.wait(2.0)
    one.kill(("a", 1))
    one.kill(("a", 1))
    (died,) = one.wait(None)
    assert isinstance(died, Died) and died.signal == signal.SIGKILL and clock.now == 3.0
    assert told(one, clock) == [(4.0, Began, "b"), (5.0, Returned, "b")], "by a worker that has yet to start"
    one.submit(task("c", 1.0))
    one.submit(task("d", 1.0))
    one.kill(("d", 1))
    assert [type(event) for event in one.wait(None)][-1] is Died, "of a task that has yet to begin"


def test_a_lost_worker_takes_its_task_along_and_another_takes_its_place():
    one, clock = executor(2, start_up=1.0, dies={2: 3.0})
    one.submit(task("a", 9.0))
    one.submit(task("b", 9.0))
    assert told(one, clock)[2:] == [(3.0, Died, "b"), (10.0, Returned, "a")] and one.lost == 1
    one.submit(task("b", 2.0))
    one.submit(task("c", 2.0))
    assert told(one, clock) == [(10.0, Began, "b"), (11.0, Began, "c"), (12.0, Returned, "b"), (13.0, Returned, "c")]


def test_a_worker_that_is_lost_before_it_begins_has_no_beginning():
    one, clock = executor(start_up=5.0, dies={1: 3.0})
    one.submit(task("a", 1.0))
    assert told(one, clock) == [(3.0, Died, "a")]


def test_an_idle_worker_that_was_lost_gets_no_task():
    one, clock = executor(start_up=1.0, dies={1: 5.0})
    one.submit(task("a", 1.0))
    told(one, clock)
    one.wait(8.0)
    one.submit(task("b", 1.0))
    assert told(one, clock) == [(11.0, Began, "b"), (12.0, Returned, "b")] and one.lost == 1


def test_losses_follow_the_rate_and_the_seed():
    def lost(seed: int) -> list[float]:
        one, clock = executor(1, loss=36.0, seed=seed)  # one in 100 s
        moments = []
        for number in range(400):
            one.submit(task(str(number), 10.0))
            moments += [when for when, what, _ in told(one, clock) if what is Died]
        return moments

    first = lost(1)
    assert first == lost(1) and first != lost(2)
    assert len(first) == pytest.approx(40, abs=20), "in about 3,800 s"


def test_whoever_builds_takes_time_for_each_event():
    one, clock = executor(2, handling=0.25)
    one.submit(task("a", 1.0))
    one.submit(task("b", 1.0))
    assert len(one.wait(None)) == 2 and clock.now == 0.5
    assert len(one.wait(None)) == 2 and clock.now == 1.5
    assert one.wait(0.0) == [] and not math.isnan(clock.now)
