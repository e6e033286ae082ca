"""Times of work on the GPU, of several sides in turns; how much time a row may take."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from kiln_bench.capture import NotCaptured, Work, captured

ROUNDS = 5
TURN_MS, LEAST_TURN_MS = 140.0, 1.0  # about how long a side works in a round
# The part of a turn that does not count. At its power limit a device sets its clocks by what it did in the last tenth
# of a second: on an H200, behind products of large matrices, a turn's first calls took 1.24 times as long as its last.
UNCOUNTED = 5 / 7
_SLOW_MS = 10.0  # what no call is refused for, however short the budget
_CALLS = 8  # of a side whose single call takes longer than its turn, its checks included


class Clock(Protocol):
    """The device's: marks are put between the work that is enqueued."""

    def mark(self) -> Any:
        """A moment between what was enqueued before and what will be."""

    def is_past(self, mark: Any) -> bool:
        """Whether the device has come there."""

    def milliseconds(self, begin: Any, end: Any) -> float:
        """Between two marks that are past."""

    def wait(self) -> None:
        """Until all that was enqueued is done."""


class DeviceClock:
    """PyTorch's events on its current stream."""

    def __init__(self) -> None:
        import torch

        self._cuda = torch.cuda

    def mark(self) -> Any:
        event = self._cuda.Event(enable_timing=True)
        event.record()
        return event

    def is_past(self, mark: Any) -> bool:
        return mark.query()

    def milliseconds(self, begin: Any, end: Any) -> float:
        return begin.elapsed_time(end)

    def wait(self) -> None:
        self._cuda.synchronize()


@dataclass(frozen=True)
class Times:
    """Of one row.

    Attributes:
        milliseconds: of one call in each round, by side.
        host_bound: the sides of which the host did not keep ahead of the device: its time may be in their figures.
        graphs: whether calls were captured into CUDA graphs, so that the host's time is in no figure.
        not_captured: the side whose calls could not be, so that there are no graphs, and why.
    """

    milliseconds: dict[str, list[float]]
    host_bound: tuple[str, ...] = ()
    graphs: bool = False
    not_captured: dict[str, str] = field(default_factory=dict)

    @property
    def host_ahead(self) -> bool:
        """Whether the host kept ahead of the device all the time, so that none of its time is in any figure."""
        return not self.host_bound


def interleave(
    sides: Mapping[str, Work], rounds: int, turn_ms: float, clock: Clock, while_busy: Work | None = None,
    uncounted: float = UNCOUNTED,
) -> Times:  # fmt: skip
    """Times the sides in turns.

    In each round every side works for about `turn_ms`, in another order; one whose single call takes longer takes part
    in fewer rounds. All rounds are enqueued at once: while the device is behind, no time of the host is in any figure.
    `while_busy` is called once, while the device works.

    Args:
        uncounted: the part of a turn, at its beginning, that does not count, but for one call at least: what another
            side left in clocks and caches.
    """
    about = {name: _about(work, clock, turn_ms) for name, work in sides.items()}
    counts = {name: max(1, round((1 - uncounted) * turn_ms / one)) for name, one in about.items()}
    before = {name: max(1, round(uncounted * turn_ms / one)) for name, one in about.items()}
    turns = {name: rounds if one <= turn_ms else max(2, int(rounds * turn_ms / one)) for name, one in about.items()}
    bound, orders = dict[str, None](), balanced(list(sides))
    marks: dict[str, list[tuple[Any, Any]]] = {name: [] for name in sides}
    clock.wait()
    for number in range(rounds):
        for name in orders[number % len(orders)]:
            if number >= turns[name]:
                continue
            for _ in range(before[name]):
                sides[name]()
            begin = clock.mark()
            for _ in range(counts[name] - 1):
                sides[name]()
            before_last = clock.mark()
            sides[name]()
            # A device that is past it already keeps up with the host, and so may wait for it.
            if clock.is_past(before_last):
                bound[name] = None
            marks[name].append((begin, clock.mark()))
    if while_busy:
        while_busy()
    clock.wait()
    spent = {name: [clock.milliseconds(*pair) / counts[name] for pair in pairs] for name, pairs in marks.items()}
    return Times(spent, tuple(bound))


def balanced(names: Sequence[str]) -> list[list[str]]:
    """Orders in which each name is equally often first, second and so on, and behind each of the others: a Latin square
    balanced for carry-over (Williams, 1949, Australian Journal of Scientific Research A 2, pp. 149-168); of an odd
    number of names two, the second in reverse."""
    count = len(names)
    # 0, n - 1, 1, n - 2, ...: all differences of neighbours are different.
    row = [place // 2 if place % 2 == 0 else count - 1 - place // 2 for place in range(count)]
    found = []
    for first in range(count):
        order = [names[(place + first) % count] for place in row]
        found += [order, order[::-1]] if count % 2 and count > 1 else [order]
    return found


def _about(work: Work, clock: Clock, enough_ms: float) -> float:
    """About how many milliseconds it takes: a call that takes `enough_ms`, or three."""
    took = 0.0
    for count in (1, 3):
        begin = clock.mark()
        for _ in range(count):
            work()
        end = clock.mark()
        clock.wait()
        took = max(clock.milliseconds(begin, end) / count, 0.001)
        if took >= enough_ms:
            break
    return took


IN_A_GRAPH = 20  # calls; then launching the graph is a small part of its time


def measured(
    sides: Mapping[str, Work], rounds: int, turn_ms: float, while_busy: Work | None = None, cycle: int = 1,
    clock: Clock | None = None, capture: Callable[[Work, int], Work] = captured, uncounted: float = UNCOUNTED,
) -> Times:  # fmt: skip
    """`interleave`; where the host does not keep ahead, again with all sides in CUDA graphs, if all can be captured.

    Args:
        cycle: after so many calls a side does the same again; a graph holds a multiple of that.
    """
    clock = clock or DeviceClock()
    plain = interleave(sides, rounds, turn_ms, clock, while_busy, uncounted)
    if plain.host_ahead:
        return plain
    count, graphs = -(-IN_A_GRAPH // cycle) * cycle, dict[str, Work]()
    for name, work in sides.items():
        try:
            graphs[name] = capture(work, count)
        except NotCaptured as error:
            return replace(plain, not_captured={name: str(error)})
    times = interleave(graphs, rounds, turn_ms, clock, uncounted=uncounted).milliseconds
    return Times({name: [value / count for value in each] for name, each in times.items()}, graphs=True)


class Budget:
    """How long the sides of a row may work, so that all rows together take a given time.

    Args:
        seconds: for all rows; None: as long as each wants.
        rows: how many there are.
    """

    def __init__(self, seconds: float | None, rows: int, now: Callable[[], float] = time.monotonic) -> None:
        self._seconds, self._left, self._now = seconds, rows, now
        self._begin = now()

    def turn_ms(self, sides: int, rounds: int) -> float:
        """Of a side of the next row, in a round. A row's tensors and checks take time as well."""
        if self._seconds is None:
            return TURN_MS
        return min(TURN_MS, max(LEAST_TURN_MS, 500 * self._share / ((rounds + 1) * max(sides, 1))))

    def slowest_ms(self) -> float | None:
        """Of a call of the next row's sides: what takes longer would take half of the row's time; None: any."""
        return None if self._seconds is None else max(_SLOW_MS, 500 * self._share / _CALLS)

    @property
    def _share(self) -> float:
        """Seconds of the next row."""
        return max(0.0, (self._seconds or 0.0) - self.spent) / max(self._left, 1)

    @property
    def spent(self) -> float:
        return self._now() - self._begin

    @property
    def is_used_up(self) -> bool:
        return self._seconds is not None and self.spent >= self._seconds

    @property
    def remaining(self) -> float | None:
        """Seconds that the rest will take, if that is known."""
        return None if self._seconds is None else max(0.0, self._seconds - self.spent)

    def row_done(self) -> None:
        self._left -= 1
