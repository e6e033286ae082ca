"""Times of work on the GPU, of several sides in turns; and the state of the device."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import torch

Work = Callable[[], object]
QUERY = (
    "name", "driver_version", "clocks.sm", "clocks.max.sm", "clocks.mem", "power.draw", "power.limit", "compute_cap",
)  # fmt: skip


def nvidia_smi() -> dict[str, str]:
    """Empty without the program."""
    try:
        done = subprocess.run(
            ["nvidia-smi", f"--query-gpu={','.join(QUERY)}", "--format=csv,noheader"], capture_output=True, text=True
        )
        return dict(zip(QUERY, map(str.strip, done.stdout.splitlines()[0].split(","))))
    except (OSError, IndexError):
        return {}


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)


def _once(work: Work) -> float:
    """About how many milliseconds it takes, after what only a first call does."""
    work()
    torch.cuda.synchronize()
    begin, end = _event(), _event()
    begin.record()
    for _ in range(3):
        work()
    end.record()
    torch.cuda.synchronize()
    return max(begin.elapsed_time(end) / 3, 0.002)


def interleave(
    sides: dict[str, Work], rounds: int, budget_ms: float, while_busy: Work | None = None
) -> tuple[dict[str, list[float]], bool]:
    """Milliseconds of one call in each round, by side; and whether the host kept ahead of the device all the time.

    In each round every side works for about `budget_ms`, and another one is first. All rounds are enqueued at once,
    after one that does not count: while the device is behind, no time of the host is in any figure. So calls must take
    the device longer than the host needs to make them, a few tens of microseconds in PyTorch. `while_busy` is called
    once, while the device works.
    """
    counts = {name: max(1, round(budget_ms / _once(work))) for name, work in sides.items()}
    names, marks, ahead = list(sides), {name: [] for name in sides}, True
    torch.cuda.synchronize()
    for number in range(rounds + 1):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            begin, before_last, end = _event(), _event(), _event()
            begin.record()
            for _ in range(counts[name] - 1):
                sides[name]()
            before_last.record()
            sides[name]()
            # A device that is past it already keeps up with the host, and so may wait for it.
            ahead &= number == 0 or not before_last.query()
            end.record()
            marks[name].append((begin, end))
    if while_busy:
        while_busy()
    torch.cuda.synchronize()
    times = {
        name: [begin.elapsed_time(end) / counts[name] for begin, end in pairs[1:]] for name, pairs in marks.items()
    }
    return times, ahead
