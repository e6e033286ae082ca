"""The farm's decisions. Each hard case in a few lines: events in, instructions out."""

from __future__ import annotations

import heapq
import math
import random
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kiln_build.farm.schedule import End, Kill, Outcome, Policy, Scheduler, Start

GIB = 1 << 30


def scheduler(*names: str, durations=None, first=(), **policy) -> Scheduler:
    policy = {"jobs": 1, "memory": 16 * GIB, "job_memory": GIB, "timeout": 10.0} | policy
    return Scheduler(names, Policy(**policy), durations, first)


def started(instructions) -> list[str]:
    return [instruction.name for instruction in instructions if isinstance(instruction, Start)]


def drain(s: Scheduler) -> list[str]:
    """Runs all to the end one after another; the order in which they were started."""
    order = []
    while not s.is_over:
        order.extend(started(s.step(0.0)))
        s.finished(order[-1], 1, 1.0)
    return order


# ---- order ----


def test_nothing_to_do_is_over_at_once():
    assert scheduler().is_over and scheduler().step(0.0) == []


def test_the_longest_goes_first():
    assert drain(scheduler("a", "b", "c", durations={"a": 1, "b": 3, "c": 2})) == ["b", "c", "a"]


def test_equal_jobs_keep_their_order():
    assert drain(scheduler("a@t", "b@t", "c@t", durations={"a@t": 1, "b@t": 1, "c@t": 1})) == ["a@t", "b@t", "c@t"]


def test_the_unknown_is_estimated_from_its_nearest_relative():
    durations = {"k[d=64][m=1][x]@t": 9, "k[d=64][m=2][x]@t": 1, "k[d=32][m=1][x]@t": 5}
    s = scheduler("k[d=64][m=2][y]@t", "k[d=64][m=1][y]@t", "k[d=32][m=7][y]@t", durations=durations)
    assert drain(s) == ["k[d=64][m=1][y]@t", "k[d=32][m=7][y]@t", "k[d=64][m=2][y]@t"]


def test_one_of_each_unknown_kind_goes_before_all_that_is_known():
    s = scheduler("k[1]@slow", "k[1]@t", "k[2]@t", "k[1]@u", jobs=3, durations={"k[1]@slow": 100})
    assert started(s.step(0.0)) == ["k[1]@t", "k[1]@u", "k[1]@slow"]


def test_what_is_learnt_on_the_way_changes_the_order():
    s = scheduler("k[1]@fast", "k[2]@fast", "k[1]@slow", "k[2]@slow", jobs=2)
    assert started(s.step(0.0)) == ["k[1]@fast", "k[1]@slow"]
    s.finished("k[1]@fast", 1, 1.0)
    s.finished("k[1]@slow", 1, 50.0)
    assert started(s.step(0.0)) == ["k[2]@slow", "k[2]@fast"]


def test_what_is_to_be_first_goes_before_the_longest_and_the_unknown():
    durations = {"k[1]@t": 1, "k[2]@t": 2, "l[1]@t": 9}
    s = scheduler("l[1]@t", "m[1]@t", "k[1]@t", "k[2]@t", durations=durations, first={"k[1]@t", "k[2]@t"})
    assert drain(s) == ["k[2]@t", "k[1]@t", "m[1]@t", "l[1]@t"]
    # A retry goes before it, and those of an unknown kind wait for one of them, as elsewhere.
    s = scheduler("l[1]@t", "m[1]@t", "m[2]@t", jobs=2, durations=durations, first={"m[1]@t", "m[2]@t"})
    assert started(s.step(0.0)) == ["m[1]@t", "l[1]@t"]
    s.died("l[1]@t", 1, "killed")
    assert started(s.step(0.0)) == ["l[1]@t"]
    s.failed("m[1]@t", 1, "broken")
    assert started(s.step(0.0)) == ["m[2]@t"]


def test_what_is_short_beside_what_is_left_keeps_its_order_and_the_longest_ends_no_build():
    short = {f"k[{number}]@t": 1 + number / 100 for number in range(100)}
    order = drain(scheduler(*short, "k[long]@t", durations=short | {"k[long]@t": 30}))
    assert order[:60] == ["k[long]@t", *list(short)[:59]]
    assert order[60:] != sorted(order[60:], key=list(short).index)
    assert order[-10:] == sorted(order[-10:], key=short.get, reverse=True)


def test_more_workers_make_jobs_long():
    short = {f"k[{number}]@t": 1 + number / 100 for number in range(100)}
    s = scheduler(*short, durations=short, jobs=1, memory=100 * GIB)
    assert started(s.step(0.0)) == ["k[0]@t"]
    s.resize(3, 100 * GIB)
    assert started(s.step(0.0)) == ["k[1]@t", "k[2]@t"]
    s.resize(13, 100 * GIB)
    assert started(s.step(0.0)) == [f"k[{number}]@t" for number in range(99, 89, -1)]
    s.resize(1, 100 * GIB)
    for name in ("k[0]@t", "k[1]@t", "k[2]@t", *(f"k[{number}]@t" for number in range(99, 89, -1))):
        s.finished(name, 1, 1.0)
    assert started(s.step(0.0)) == ["k[3]@t"]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(0.01, 9), min_size=1, max_size=300), st.integers(1, 8))
def test_a_build_takes_hardly_longer_than_with_the_longest_job_always_first(times, workers):
    durations = {f"k[{number}]@t": seconds for number, seconds in enumerate(times)}
    s = scheduler(*durations, durations=durations, jobs=workers, memory=100 * GIB, timeout=math.inf)
    running: list[tuple[float, str]] = []  # a heap, by when they end
    now = 0.0
    while not s.is_over:
        for name in started(s.step(now)):
            heapq.heappush(running, (now + durations[name], name))
        now, name = heapq.heappop(running)
        s.finished(name, 1, durations[name])
    free = [0.0] * workers
    for seconds in sorted(times, reverse=True):
        heapq.heapreplace(free, free[0] + seconds)
    # One that ends last and goes into what a worker has less than twenty times was never short: before it went only
    # longer ones. Any other begins before all workers would be done if they shared the work evenly.
    assert now <= max(max(free), sum(times) / workers * (1 + 1 / 20)) + 1e-6


def test_equal_names_are_one_job():
    assert drain(scheduler("a", "a", "b")) == ["a", "b"]


# ---- bounds ----


def test_no_more_than_jobs_run_at_once():
    s = scheduler("a", "b", "c", jobs=2)
    assert len(s.step(0.0)) == 2 and s.step(0.0) == []
    s.finished("a", 1, 1.0)
    assert started(s.step(0.0)) == ["c"]


def test_no_more_run_at_once_than_memory_allows():
    assert len(scheduler("a", "b", "c", "d", jobs=4, memory=3 * GIB).step(0.0)) == 3


def test_one_job_runs_even_if_memory_is_short():
    s = scheduler("a", "b", jobs=4, memory=GIB // 2)
    assert started(s.step(0.0)) == ["a"] and s.step(0.0) == []


def test_a_job_that_needs_more_memory_lets_others_pass():
    s = scheduler("big", "b", "c", jobs=2, memory=2 * GIB, durations={"big": 9, "b": 2, "c": 1})
    s.step(0.0)
    s.died("big", 1, "killed", out_of_memory=True)
    assert s.step(0.0) == [Start("c", 1, GIB)]
    s.finished("b", 1, 2.0)
    s.finished("c", 1, 1.0)
    assert s.step(0.0) == [Start("big", 2, 2 * GIB)]


# ---- timeouts ----


def test_a_job_that_takes_too_long_is_killed_once_and_not_tried_again():
    s = scheduler("a")
    s.step(0.0)
    s.started("a", 1, 5.0)
    assert s.next_deadline() == 15.0 and s.step(14.9) == []
    assert s.step(15.0) == [Kill("a", 1)] and s.step(16.0) == [] and s.next_deadline() == math.inf
    s.died("a", 1, "killed by signal 9")
    assert s.is_over and s.outcomes["a"] == Outcome(End.TIMEOUT, 1, "took longer than 10 s")


def test_the_clock_runs_only_once_the_worker_has_begun():
    s = scheduler("a")
    s.step(0.0)
    assert s.next_deadline() == math.inf and s.step(1e9) == []


def test_the_clock_stands_while_a_job_waits_for_another():
    s = scheduler("a")
    s.step(0.0)
    s.started("a", 1, 0.0)
    s.waits("a", 1, 4.0)
    assert s.step(1000.0) == []
    s.started("a", 1, 1000.0)
    assert s.next_deadline() == 1006.0


def test_a_result_that_comes_while_its_job_is_being_killed_counts():
    s = scheduler("a")
    s.step(0.0)
    s.started("a", 1, 0.0)
    s.step(10.0)
    s.finished("a", 1, 10.0)
    s.died("a", 1, "killed by signal 9")
    assert s.outcomes["a"].end is End.DONE and s.is_over


def test_a_job_that_is_being_killed_still_takes_its_place():
    s = scheduler("a", "b")
    s.step(0.0)
    s.started("a", 1, 0.0)
    assert s.step(10.0) == [Kill("a", 1)]
    s.died("a", 1, "")
    assert started(s.step(10.0)) == ["b"]


# ---- deaths ----


def test_a_job_whose_worker_dies_is_tried_again_at_once():
    s = scheduler("a", "b", durations={"a": 2, "b": 9})
    s.step(0.0)
    s.died("b", 1, "killed by signal 11")
    assert s.step(0.0) == [Start("b", 2, GIB)]
    s.finished("b", 2, 1.0)
    assert s.outcomes["b"] == Outcome(End.DONE, 2)


def test_three_deaths_are_a_crash():
    s = scheduler("a", "b")
    for attempt in (1, 2, 3):
        assert s.step(0.0) == [Start("a", attempt, GIB)]
        s.died("a", attempt, "killed by signal 6")
    assert s.outcomes["a"] == Outcome(End.CRASH, 3, "killed by signal 6, 3 times in a row")
    assert started(s.step(0.0)) == ["b"]


def test_out_of_memory_is_tried_again_with_twice_as_much_up_to_the_budget():
    s = scheduler("a", memory=3 * GIB)
    memory = []
    for attempt in (1, 2, 3):
        memory.append(s.step(0.0)[0].memory)
        s.died("a", attempt, "out of memory", out_of_memory=True)
    assert memory == [GIB, 2 * GIB, 3 * GIB] and s.outcomes["a"].end is End.CRASH


def test_out_of_memory_is_tried_again_with_twice_as_much_where_no_worker_is_left_just_now():
    s = scheduler("a", memory=8, job_memory=2)
    started(s.step(0))
    s.started("a", 1, 0.0)
    s.resize(0, 0)
    s.died("a", 1, "killed", out_of_memory=True)
    s.resize(1, 8)
    assert [one.memory for one in s.step(1)] == [4]


def test_a_retry_has_a_clock_of_its_own():
    s = scheduler("a")
    s.step(0.0)
    s.started("a", 1, 0.0)
    s.died("a", 1, "crash")
    s.step(9.0)
    s.started("a", 2, 9.0)
    assert s.next_deadline() == 19.0


def test_events_of_an_attempt_that_is_over_are_ignored():
    s = scheduler("a")
    s.step(0.0)
    s.died("a", 1, "crash")
    s.step(0.0)
    s.finished("a", 1, 1.0)
    s.failed("a", 1, "late")
    s.died("a", 1, "twice")
    s.started("a", 1, 1.0)
    assert not s.is_over and not s.outcomes
    s.finished("unknown", 1, 1.0)
    s.finished("a", 2, 1.0)
    s.failed("a", 2, "twice")
    assert s.outcomes == {"a": Outcome(End.DONE, 2)}


def test_a_failure_is_not_tried_again():
    s = scheduler("a")
    s.step(0.0)
    s.failed("a", 1, "no such register")
    assert s.is_over and s.outcomes["a"] == Outcome(End.FAILED, 1, "no such register")


# ---- stopping ----


def test_failures_do_not_stop_the_others():
    s = scheduler("a", "b")
    s.step(0.0)
    s.failed("a", 1, "broken")
    assert started(s.step(0.0)) == ["b"]


def test_cancel_kills_what_runs_and_starts_nothing():
    s = scheduler("a", "b", "c", jobs=2)
    s.step(0.0)
    s.finished("a", 1, 1.0)
    s.cancel()
    s.cancel()
    assert s.step(0.0) == [Kill("b", 1)] and s.step(0.0) == []
    s.died("b", 1, "")
    assert s.is_over and [s.outcomes[name].end for name in "abc"] == [End.DONE, End.CANCELLED, End.CANCELLED]


def test_a_death_after_cancel_is_not_tried_again():
    s = scheduler("a")
    s.step(0.0)
    s.cancel()
    s.died("a", 1, "killed by signal 9")
    s.step(0.0)
    assert s.is_over and s.outcomes["a"].end is End.CANCELLED


# ---- estimates ----


def test_remaining():
    s = scheduler("a", "b", "c", jobs=2, durations={"a": 10, "b": 4, "c": 2})
    assert s.remaining(0.0) == 8.0
    s.step(0.0)
    s.started("a", 1, 0.0)
    s.started("b", 1, 0.0)
    assert s.remaining(3.0) == 7.0, "the longest alone"
    s.finished("b", 1, 4.0)
    assert s.remaining(4.0) == 6.0
    s.step(4.0)
    s.finished("c", 1, 2.0)
    s.finished("a", 1, 10.0)
    assert s.remaining(10.0) == 0.0


def test_remaining_is_unknown_before_anything_is():
    s = scheduler("a@t", "b@t")
    assert s.remaining(0.0) is None
    s.step(0.0)
    s.finished("a@t", 1, 3.0)
    assert s.remaining(3.0) == 3.0


def simulated(*pace: float) -> list[tuple[float, tuple[float, float] | None]]:
    """Jobs of which each is expected to take 10 s, one after the other; each takes so many times that. `remaining` and
    `spread` after each."""
    names = [f"k[{n}][x][y]@t" for n in range(100)]
    s = scheduler(*names, jobs=1, durations=dict.fromkeys(names, 10.0))
    now, told = 0.0, []
    for factor in pace:
        (start,) = s.step(now)
        s.started(start.name, start.attempt, now)
        now += 10 * factor
        s.finished(start.name, start.attempt, 10 * factor)
        told.append((s.remaining(now), s.spread(now)))
    return told


def test_remaining_follows_the_pace_of_the_last_jobs():
    steady = simulated(*[1] * 40)
    assert [round(left) for left, _ in steady] == [10 * (99 - n) for n in range(40)]
    assert all(spread is None for _, spread in steady)
    slow = simulated(*[1] * 20, *[3] * 20)
    assert round(slow[19][0]) == 800 and round(slow[-1][0]) == pytest.approx(3 * 600, rel=0.02)
    assert slow[23][0] > 800, "four jobs are enough to tell"
    assert slow[-1][1] is None, "all of the last take as long"


def test_a_spread_where_paces_differ():
    mixed = simulated(*[1, 1, 1, 1, 2, 2, 2, 2] * 4)
    left, (low, high) = mixed[-1]
    assert low < left < high and high / low == pytest.approx(2, rel=0.02)
    assert mixed[3][1] is None, "of four jobs none can be told"


def test_what_jobs_cost_does_not_grow_with_their_number():
    names = [f"k[{n % 40}][{n // 40}]@{target}" for n in range(12_500) for target in "abcd"]
    began = time.process_time()
    order = drain(scheduler(*names))
    assert len(order) == 50_000 and time.process_time() - began < 60, "a step for each pair would take minutes"


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 5), st.integers(0, 12), st.integers(0, 6))
def test_whatever_happens_every_job_ends_once(seed, jobs, count, memory):
    """Random events, right and wrong ones: the bounds hold, and all jobs end."""
    dice = random.Random(seed)
    names = [f"k[{n}]@{dice.choice('ab')}" for n in range(count)]
    known = dict.fromkeys(names[:3], 1.0)
    s = scheduler(*names, jobs=jobs, memory=memory * GIB, durations=known)
    running: dict[str, Start] = {}
    attempts: dict[str, int] = {}
    now = 0.0
    while not s.is_over:
        now += dice.random() * 4
        for instruction in s.step(now):
            if isinstance(instruction, Start):
                assert instruction.name not in running
                running[instruction.name] = instruction
                attempts[instruction.name] = attempts.get(instruction.name, 0) + 1
                assert instruction.attempt == attempts[instruction.name] <= 3
            else:
                assert running[instruction.name].attempt == instruction.attempt
                running.pop(instruction.name)
                s.died(instruction.name, instruction.attempt, "killed")
        assert len(running) <= jobs
        assert len(running) <= 1 or sum(i.memory for i in running.values()) <= memory * GIB
        for name, start in list(running.items()):
            attempt = start.attempt if dice.random() < 0.9 else dice.randrange(4)
            event = dice.randrange(8)
            if event < 2:
                (s.started if event else s.waits)(name, attempt, now)
                continue
            if event == 2:
                s.finished(name, attempt, 1.0)
            elif event == 3:
                s.failed(name, attempt, "broken")
            elif event == 4:
                s.died(name, attempt, "crash", dice.random() < 0.5)
            elif event == 5 and dice.random() < 0.05:
                s.cancel()
                continue
            else:
                continue
            if attempt == start.attempt:
                running.pop(name)
    assert set(s.outcomes) == set(names) and not running


# ---- workers elsewhere ----


def test_what_was_lost_with_its_machine_is_no_attempt_of_the_job():
    s = scheduler("a", attempts=2)
    for attempt in range(1, 6):
        assert s.step(0.0) == [Start("a", attempt, GIB)]
        s.started("a", attempt, 1.0)
        s.died("a", attempt, "the machine is gone", lost=True)
    for attempt in (6, 7):
        assert s.step(0.0) == [Start("a", attempt, GIB)]
        s.died("a", attempt, "it was killed")
    assert s.outcomes["a"] == Outcome(End.CRASH, 7, "it was killed, 7 times in a row")


def test_a_job_under_which_every_machine_is_lost_ends():
    s = scheduler("a", attempts=1)
    for attempt in range(1, 12):
        assert started(s.step(0.0)) == ["a"]
        s.died("a", attempt, "the machine is gone", lost=True)
    assert s.outcomes["a"].end is End.CRASH


def test_a_machine_that_does_not_answer_is_no_timeout_of_its_job():
    s = scheduler("a", timeout=10.0)
    s.step(0.0)
    s.started("a", 1, 0.0)
    assert s.step(10.0) == [Kill("a", 1)]
    s.died("a", 1, "it does not answer", lost=True)
    assert s.step(20.0) == [Start("a", 2, GIB)]
    s.started("a", 2, 20.0)
    assert s.step(29.0) == [], "its clock began anew"
    s.cancel()
    assert s.step(29.5) == [Kill("a", 2)]
    s.died("a", 2, "it does not answer", lost=True)
    assert s.outcomes["a"].end is End.CANCELLED


def test_workers_come_and_go():
    s = scheduler("a", "b", "c", "d", jobs=0, memory=0)
    assert s.step(0.0) == [] and not s.is_over
    s.resize(2, 16 * GIB)
    assert started(s.step(0.0)) == ["a", "b"]
    s.resize(1, 16 * GIB)
    s.finished("a", 1, 1.0)
    assert started(s.step(1.0)) == []
    s.resize(3, 2 * GIB)
    assert started(s.step(1.0)) == ["c"], "memory bounds them too"
