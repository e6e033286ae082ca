"""Times of several sides in turns, on a device whose clock is a number; how long a row may take."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable

import pytest

from kiln_bench import timing


class Device:
    """Works through what is enqueued; the host keeps ahead unless a call of its takes `host_ms`."""

    def __init__(self, host_ms: float = 0.0) -> None:
        self.enqueued = self.host = 0.0  # milliseconds: when the device will be done, where the host is
        self.host_ms, self.calls = host_ms, list[str]()

    def work(self, name: str, took: Callable[[], float]) -> timing.Work:
        def run() -> None:
            self.calls.append(name)
            self.host += self.host_ms
            self.enqueued = max(self.enqueued, self.host) + took()

        return run

    def mark(self) -> float:
        return self.enqueued

    def is_past(self, mark: float) -> bool:
        return mark <= self.host

    def milliseconds(self, begin: float, end: float) -> float:
        return end - begin

    def wait(self) -> None:
        self.host = self.enqueued = max(self.host, self.enqueued)


def test_medians_and_turns():
    device, looked = Device(), []
    sides = {name: device.work(name, lambda ms=ms: ms) for name, ms in (("one", 1.0), ("two", 2.0), ("three", 4.0))}
    times = timing.interleave(sides, 3, 16.0, device, lambda: looked.append(len(device.calls)), uncounted=0.5)
    assert times.host_ahead and {name: set(each) for name, each in times.milliseconds.items()} == {
        "one": {1.0}, "two": {2.0}, "three": {4.0},
    }  # fmt: skip
    assert all(len(each) == 3 for each in times.milliseconds.values())
    turns = device.calls[12:]  # four calls of each to know how long one takes
    order = [name for place, name in enumerate(turns) if place == 0 or turns[place - 1] != name]
    assert order == ["one", "three", "two", "three", "one", "two", "one", "three"]  # the third round begins with "two"
    assert [turns.count(name) // 3 for name in sides] == [16, 8, 4] and looked == [len(device.calls)]


@pytest.mark.parametrize("count", range(1, 9))
def test_each_side_comes_behind_each_other_equally_often(count):
    names = [str(number) for number in range(count)]
    orders = timing.balanced(names)
    assert all(sorted(order) == names for order in orders)
    first = Counter(order[place] for order in orders for place in (0, -1))
    behind = Counter(pair for order in orders for pair in itertools.pairwise(order))
    assert len(set(first.values())) == 1
    assert set(behind) == {(a, b) for a in names for b in names if a != b} and len({*behind.values(), 0}) <= 2


def test_a_slow_side_takes_part_in_fewer_rounds():
    device = Device()
    sides = {"slow": device.work("slow", lambda: 100.0), "fast": device.work("fast", lambda: 1.0)}
    times = timing.interleave(sides, 7, 20.0, device)
    assert len(times.milliseconds["slow"]) == 2 and len(times.milliseconds["fast"]) == 7
    assert device.calls.count("slow") == 1 + 2 * 2  # one to know, and one in each round that does not count


def test_what_another_side_left_does_not_count():
    """A side is three times as slow for 90 ms behind one that draws more power."""
    device, since = Device(), [0.0]

    def cool() -> float:
        slow = since[0] < 90.0
        since[0] += took if (took := 3.0 if slow else 1.0) else 0.0
        return took

    def hot() -> float:
        since[0] = 0.0
        return 2.0

    sides = {"hot": device.work("hot", hot), "cool": device.work("cool", cool)}
    assert timing.interleave(sides, 3, 140.0, device).milliseconds["cool"] == pytest.approx([1.0] * 3)
    since[0] = 0.0
    assert max(timing.interleave(sides, 3, 140.0, device, uncounted=0.0).milliseconds["cool"]) > 1.5


def test_the_side_that_the_host_was_late_for_is_known():
    """The device waits for the host in the turns of one side alone."""
    device = Device()
    quick, late = device.work("quick", lambda: 0.1), device.work("late", lambda: 0.1)

    def slowly() -> None:
        device.host += 5.0
        late()

    times = timing.interleave({"quick": quick, "late": slowly}, 3, 2.0, device)
    assert times.host_bound == ("late",) and not times.host_ahead


def test_where_the_host_is_late_graphs_are_timed():
    device = Device(host_ms=1.0)
    sides = {"one": device.work("one", lambda: 0.1)}
    assert not timing.interleave(sides, 3, 2.0, device).host_ahead

    def capture(work: timing.Work, count: int) -> timing.Work:
        return device.work("graph", lambda: 0.1 * count)

    counts = []

    def counted(work: timing.Work, count: int) -> timing.Work:
        counts.append(count)
        return capture(work, count)

    times = timing.measured(sides, 3, 8.0, cycle=15, clock=device, capture=counted)
    assert counts == [30] and times.milliseconds["one"] == pytest.approx([0.1] * 3)
    times = timing.measured(sides, 3, 8.0, clock=device, capture=capture)
    assert times.graphs and times.milliseconds["one"] == pytest.approx([0.1] * 3)

    def cannot(work: timing.Work, count: int) -> timing.Work:
        raise timing.NotCaptured("not while capturing")

    times = timing.measured(sides, 3, 8.0, clock=device, capture=cannot)
    assert not times.graphs and not times.host_ahead and times.milliseconds["one"][0] >= 1.0
    assert times.not_captured == {"one": "not while capturing"}


def test_a_budget_is_shared_by_the_rows_that_are_left():
    now = [0.0]
    budget = timing.Budget(10.0, 4, lambda: now[0])
    first = budget.turn_ms(2, 3)
    assert first == timing.TURN_MS and budget.slowest_ms() == pytest.approx(500 * 2.5 / 8)
    now[0] = 9.0  # the first row took nearly all
    budget.row_done()
    assert budget.turn_ms(2, 3) == pytest.approx(500 / 3 / (4 * 2)) and budget.remaining == pytest.approx(1.0)
    now[0] = 11.0
    assert (
        budget.slowest_ms() == 10.0
        and budget.is_used_up
        and budget.remaining == 0.0
        and budget.turn_ms(2, 3) == timing.LEAST_TURN_MS
    )


def test_without_a_budget_each_row_takes_what_it_wants():
    budget = timing.Budget(None, 1000)
    assert budget.turn_ms(9, 9) == timing.TURN_MS and budget.slowest_ms() is None and not budget.is_used_up
    assert budget.remaining is None
