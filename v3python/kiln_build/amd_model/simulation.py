"""One SIMD that issues a loop's instructions for its waves, in order, until they repeat themselves.

Every `turn` clocks the SIMD looks at its waves, the oldest first, and issues at most one instruction of each wave, and
one for each unit. A wave waits for registers that are not there yet (a scoreboard), for its unit, for memory that is
under way, by its counters, and at a barrier for the other waves of its block on this SIMD. Memory returns in order,
LDS and the vector L1 move so many bytes a clock. Waves of different blocks begin apart.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from kiln_build.amd_model import instructions as units
from kiln_build.amd_model.architectures import Architecture
from kiln_build.amd_model.instructions import Instruction

_APART = 700.0  # clocks between the first instructions of two blocks
_QUEUES = {units.SHARED: 64, units.MEMORY: 256}  # clocks of work that LDS and L1 take in before a wave has to wait
_ITERATIONS_BEFORE = 2  # of each wave before clocks are counted
_ITERATIONS, _OF_EACH = 12, 5  # of all waves together, and for each of them, that are counted if they never repeat
_LEAST_OF_EACH, _INSTRUCTIONS = 2, 40_000  # less of long loops
_NEVER = math.inf
_ISSUES = (units.VALU, units.MATRIX, units.SHARED, units.MEMORY, units.SCALAR, units.SCALAR_LOAD)
_BLOCKED_BY = {
    units.VALU: "vector unit", units.MATRIX: "matrix unit", units.SHARED: "LDS bytes", units.MEMORY: "L1 bytes",
    units.SCALAR: "scalar unit", units.SCALAR_LOAD: "scalar unit",
}  # fmt: skip
_REASONS = ("memory", "LDS", "barrier", "dependence", *dict.fromkeys(_BLOCKED_BY.values()))


@dataclass(frozen=True)
class Steady:
    """What a loop comes to.

    Attributes:
        clocks: of the SIMD for one iteration of one wave.
        waits: parts of the waves' time, by what they wait for: "memory", "LDS", "barrier", "dependence", "matrix unit",
            "vector unit", "LDS bytes", "L1 bytes", "scalar unit".
    """

    clocks: float
    waits: dict[str, float] = field(default_factory=dict)


def simulate(body: Sequence[Instruction], architecture: Architecture, waves: int, group: int, latency: int) -> Steady:
    """
    Args:
        body: of the loop.
        waves: on the SIMD. group: how many of these belong to one block, and share barriers.
        latency: of loads from memory, clocks.

    Raises:
        ValueError: the waves wait for each other for ever.
    """
    return _Simd(body, architecture, waves, group, latency).run()


class _Wave:
    __slots__ = ("accumulated", "at", "counters", "is_blocked", "iteration", "last", "ready", "since", "wake")

    def __init__(self, wake: float, registers: int) -> None:
        self.at = self.iteration = 0
        self.wake = wake
        self.ready = [0.0] * registers  # when a register can be read
        self.accumulated: dict[int, float] = {}  # of what matrix instructions wrote last: when it can be written
        self.counters: list[list[float]] = [[], [], [], []]  # when what is under way is done
        self.last: tuple[tuple[int, ...], float] = ((), 0.0)  # result and end of the last matrix instruction
        self.is_blocked = False  # its registers are there, and its unit is not free
        self.since = 0.0  # when it was blocked, or came to a barrier; below 0: all others of its block came too


class _Simd:
    def __init__(
        self, body: Sequence[Instruction], architecture: Architecture, waves: int, group: int, latency: int
    ) -> None:
        number = _numbering(body)
        self.body = [
            (one, one.unit, tuple(number[r] for r in one.reads), tuple(number[r] for r in one.writes),
             tuple(number[r] for r in one.adds_to))
            for one in body
        ]  # fmt: skip
        self.architecture, self.group, self.latency = architecture, max(1, group), latency
        self.waves = [_Wave(wave // self.group * _APART, len(number)) for wave in range(waves)]
        self.free = dict.fromkeys(_ISSUES, 0.0)  # by unit, when it takes the next instruction
        self.ends = dict.fromkeys(_QUEUES, 0.0)  # when LDS and L1 have moved all that they were given
        self.rate = {units.SHARED: architecture.shared_bytes, units.MEMORY: architecture.memory_bytes}
        self.turn = architecture.turn
        self.stalls: dict[str, float] = dict.fromkeys(_REASONS, 0.0)

    def run(self) -> Steady:
        waves, turn, step = self.waves, self.turn, self.step
        seen: dict[tuple, tuple[float, int, dict[str, float]]] = {}
        begin: tuple[float, float, dict[str, float]] | None = None
        most = max(_LEAST_OF_EACH * len(waves), _INSTRUCTIONS / len(self.body))
        enough = min(max(_ITERATIONS, _OF_EACH * len(waves)), most)
        now, first = 0.0, 0
        while True:
            for index, wave in enumerate(waves):
                if wave.wake <= now:
                    step(index, wave, now)
            if waves[0].iteration != first:
                first = waves[0].iteration
                total = sum(wave.iteration for wave in waves)
                state = self.state(now)
                if state in seen and total > seen[state][1]:
                    began, before, stalls = seen[state]
                    return self.steady(now - began, total - before, stalls)
                seen[state] = (now, total, self.stalls.copy())
                if begin is None and self.is_warm():
                    begin = (now, self.issued(), self.stalls.copy())
                elif begin and self.issued() - begin[1] >= enough:
                    return self.steady(now - begin[0], self.issued() - begin[1], begin[2])
            soonest = min([wave.wake for wave in waves])
            if soonest == _NEVER:
                raise ValueError("the waves of a block wait for each other")
            now = max(now + turn, math.ceil(soonest / turn) * turn)

    def is_warm(self) -> bool:
        """Whether each wave has begun, or the older ones leave the youngest no turn."""
        iterations = [wave.iteration for wave in self.waves]
        return min(iterations) >= _ITERATIONS_BEFORE or sum(iterations) >= 2 * _ITERATIONS_BEFORE * len(iterations)

    def issued(self) -> float:
        """Iterations of all waves, with the parts that are done."""
        return sum(wave.iteration + wave.at / len(self.body) for wave in self.waves)

    def steady(self, clocks: float, iterations: float, before: dict[str, float]) -> Steady:
        whole = clocks * len(self.waves)
        parts = {reason: min(1.0, (stall - before[reason]) / whole) for reason, stall in self.stalls.items()}
        most = sorted(parts, key=lambda reason: -parts[reason])
        return Steady(clocks / iterations, {reason: parts[reason] for reason in most if parts[reason] > 0})

    def state(self, now: float) -> tuple:
        """All that decides what comes next, relative to now."""
        of_waves = []
        for index, wave in enumerate(self.waves):
            leader = self.waves[index - index % self.group]
            of_waves.append(
                (
                    wave.at,
                    wave.iteration - leader.iteration,
                    wave.wake - now,
                    tuple((r, end - now) for r, end in enumerate(wave.ready) if end > now),
                    tuple((r, end - now) for r, end in wave.accumulated.items() if end > now),
                    tuple(tuple(end - now for end in ends if end > now) for ends in wave.counters),
                    wave.last[0],
                    max(wave.last[1] - now, 0.0),
                )
            )
        return (tuple(of_waves), tuple(max(end - now, 0.0) for end in (*self.free.values(), *self.ends.values())))

    def step(self, index: int, wave: _Wave, now: float) -> None:
        """Issues the wave's next instruction, or puts it off."""
        one, unit, reads, writes, adds_to = self.body[wave.at]
        pause: float = self.turn
        if unit in _ISSUES:
            free = self.free
            if not wave.is_blocked:
                need = self.need(wave, unit, reads, writes, adds_to)
                if need > now:
                    self.put_off(wave, now, "dependence", need)
                    return
            until = free[unit]
            if unit == units.MATRIX and free[units.VALU] > until:
                until = free[units.VALU]
            if until > now:
                if not wave.is_blocked:
                    wave.is_blocked, wave.since = True, now
                wave.wake = until
                return
            if wave.is_blocked:
                wave.is_blocked = False
                self.stalls[_BLOCKED_BY[unit]] += now - wave.since
            end = self.issue(wave, one, unit, writes, now)
            ready = wave.ready
            for register in writes:
                ready[register] = end
        elif unit == units.WAIT:
            if self.puts_off_for_counters(one, wave, now):
                return
        elif unit == units.BARRIER:
            if self.group > 1 and self.puts_off_for_others(index, wave, now):
                return
        elif unit != units.FREE:  # a nop or a branch
            pause = one.clocks
        wave.wake = now + pause
        wave.at += 1
        if wave.at == len(self.body):
            wave.at = 0
            wave.iteration += 1

    def need(
        self, wave: _Wave, unit: str, reads: tuple[int, ...], writes: tuple[int, ...], adds_to: tuple[int, ...]
    ) -> float:
        """When the wave has what its instruction reads, and may write its result."""
        ready = wave.ready
        need = 0.0
        for register in reads:
            if ready[register] > need:
                need = ready[register]
        if unit == units.MATRIX:
            sums = max([ready[register] for register in adds_to], default=0.0)
            if wave.last[0] == adds_to:  # the sum goes on without its latency
                sums = min(sums, wave.last[1])
            return max(need, sums)
        if wave.accumulated:
            for register in writes:
                end = wave.accumulated.get(register, 0.0)
                if end > need:
                    need = end
        return need

    def issue(self, wave: _Wave, one: Instruction, unit: str, writes: tuple[int, ...], now: float) -> float:
        """Occupies the unit; gives when the result can be read."""
        free = self.free
        if unit == units.VALU:
            free[unit] = now + one.clocks
            return now + one.latency
        if unit == units.MATRIX:
            if self.architecture.matrix_on_valu:
                free[units.VALU] = now + one.clocks
            else:
                free[units.VALU] = now + self.turn
                free[units.MATRIX] = now + one.clocks
            end = now + one.latency
            for register in writes:
                wave.accumulated[register] = end
            wave.last = (writes, now + one.clocks)
            return end
        if unit in self.rate:
            # `free` is when the queue has room again, one instruction a turn.
            queue = _QUEUES[unit]
            done = max(self.ends[unit], now) + one.bytes / self.rate[unit]
            free[unit] = max(now + self.turn, done - queue)
            self.ends[unit] = done
            end = done + (one.latency or self.latency)
        else:
            free[units.SCALAR] = free[units.SCALAR_LOAD] = now + self.turn
            end = now + one.latency
        if one.counter >= 0:
            wave.counters[one.counter].append(end)
        return end

    def put_off(self, wave: _Wave, now: float, reason: str, until: float) -> None:
        wave.wake = max(until, now + self.turn)
        self.stalls[reason] += wave.wake - now

    def puts_off_for_counters(self, one: Instruction, wave: _Wave, now: float) -> bool:
        until, reason = now, ""
        for counter, under_way in one.waits:
            ends = wave.counters[counter]
            if len(ends) > under_way and ends[len(ends) - under_way - 1] > until:
                until = ends[len(ends) - under_way - 1]
                reason = "LDS" if counter == units.LOCAL else "memory"
        if reason:
            self.put_off(wave, now, reason, until)
            return True
        wave.counters = [[end for end in ends if end > now] for ends in wave.counters]
        return False

    def puts_off_for_others(self, index: int, wave: _Wave, now: float) -> bool:
        """A wave at a barrier sleeps until the last of its block comes, which wakes the others."""
        if wave.since < 0:
            wave.since = 0.0
            return False
        first = index - index % self.group
        others = [n for n in range(first, min(first + self.group, len(self.waves))) if n != index]
        if any(self.waves[n].wake != _NEVER for n in others):
            wave.since, wave.wake = now, _NEVER
            return True
        for n in others:
            other = self.waves[n]
            other.wake = now if n > index else now + self.turn
            self.stalls["barrier"] += other.wake - other.since
            other.since = -1.0
        return False


def _numbering(body: Sequence[Instruction]) -> dict[int, int]:
    """The registers that a loop uses, numbered from 0."""
    used = itertools.chain.from_iterable((*one.reads, *one.writes, *one.adds_to) for one in body)
    return {register: number for number, register in enumerate(dict.fromkeys(used))}
