"""What a user sees of work that takes long: a bar on a terminal, plain lines elsewhere, JSON lines on request.

Nothing else in Kiln prints progress. All of them speak one interface, `Progress`, whose methods may be called from any
thread, and never fail because they are not read. tqdm draws the bar where it is installed.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from kiln_recipe.console.files import what_keeps
from kiln_recipe.console.spelling import spell_seconds
from kiln_recipe.errors import EnvironmentProblem, escaped

if TYPE_CHECKING:
    import tqdm

    Remaining = float | tuple[float, float] | None

# Outcomes that a user must see at once; all others are only counted.
FAILED = "failed"

_SECONDS_BETWEEN_LINES, _SECONDS_BETWEEN_BARS = 5.0, 0.2
_BAR, _TO_END = 24, "\x1b[K"  # characters of a bar; what clears the rest of a terminal's line
_LOG = re.compile(r" \(log: [^()]*\)$")  # with which the farm ends a detail


@dataclass(frozen=True)
class Piece:
    """A finished piece of work; see Progress.done."""

    name: str
    seconds: float
    outcome: str
    detail: str
    remaining: Remaining


class Progress:
    """Told of work by those who do it. This one shows nothing.

    A phase is `start`, any number of `advance`, `done` and `message`, and `close`; phases may follow one another. One
    of nothing is told to programs alone.
    Its maker leaves it (`with`) after the last one.
    """

    def start(self, total: int, estimate: float | None = None, *, title: str = "", unit: str = "job") -> None:
        """A phase of `total` units begins; `estimate` is its expected length in seconds, if known.

        The unit "B" means bytes: they are counted by `advance`, and `done` names a file that is complete.
        """

    def advance(self, amount: int) -> None:
        """`amount` units are done, of something that `done` will name later. May be negative: work was lost."""

    def done(
        self,
        name: str,
        seconds: float = 0.0,
        outcome: str = "done",
        *,
        detail: str = "",
        remaining: Remaining = None,
    ) -> None:
        """One piece is finished.

        Args:
            name: of the piece.
            seconds: what it took.
            outcome: one word, "compiled", "reused", "failed" ...
            detail: why it failed.
            remaining: seconds that the rest of the phase is expected to take, or from how many to how many, if known.
        """
        self.finished(Piece(name, seconds, outcome, detail, remaining))

    def finished(self, piece: Piece) -> None:
        """What `done` says, as one value."""

    def message(self, text: str, **facts: object) -> None:
        """A sentence for the user, outside of any count; `facts` say the same to programs."""

    def close(self) -> None:
        """The phase is over, finished or not. May be called twice."""

    def __enter__(self) -> Progress:  # noqa: PYI034  (Self needs Python 3.11)
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Failures:
    """The failures of a phase, for people: those that differ in nothing but the piece and its log are said once."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._alike: dict[str, list[str]] = {}

    def add(self, piece: Piece) -> None:
        names = self._alike.setdefault(_LOG.sub("", piece.detail), [])
        names.append(piece.name)
        if len(names) == 1 or not piece.detail:
            detail = f": {piece.detail}" if piece.detail else ""
            self._say(f"FAILED {piece.name} after {spell_seconds(piece.seconds)}{detail}")

    def close(self) -> None:
        """Says how many there were of each that was said once."""
        for detail, (first, *more) in self._alike.items():
            if more and detail:
                self._say(f"FAILED {first} {and_more(len(more))}")
        self._alike.clear()


class Bar(Progress):
    """A tqdm bar with an estimate, for terminals. Failures and messages stay on the screen above it."""

    def __init__(self, stream: TextIO) -> None:
        import tqdm

        self._tqdm = tqdm.tqdm
        self._stream = stream
        self._lock = threading.RLock()
        self._bar: tqdm.tqdm | None = None
        self._failures = _Failures(self.message)
        self._counts_bytes = False

    def start(self, total: int, estimate: float | None = None, *, title: str = "", unit: str = "job") -> None:
        with self._lock:
            self.close()
            if not total:
                return
            self._counts_bytes = unit == "B"
            shape = "{desc}{percentage:3.0f}% |{bar}| {n_fmt}/{total_fmt} [{elapsed}"
            self._bar = self._tqdm(
                total=total,
                desc=title + " " if title else "",
                unit=unit,
                unit_scale=self._counts_bytes,
                unit_divisor=1024,
                file=self._stream,
                leave=True,
                dynamic_ncols=True,
                bar_format=shape + ("<{remaining}, {rate_fmt}]" if self._counts_bytes else "{postfix}]"),
            )
            self._show(self._bar, estimate)

    def advance(self, amount: int) -> None:
        with self._lock:
            if self._bar is not None:
                self._bar.update(amount)

    def finished(self, piece: Piece) -> None:
        with self._lock:
            if self._bar is None:
                return
            if piece.outcome == FAILED:
                self._failures.add(piece)
            self._show(self._bar, piece.remaining)
            if not self._counts_bytes:
                self._bar.update(1)

    def message(self, text: str, **_: object) -> None:
        with self._lock:
            self._tqdm.write(escaped(text), file=self._stream)

    def close(self) -> None:
        with self._lock:
            if self._bar is not None:
                self._failures.close()
                self._bar.set_postfix_str("", refresh=False)
                self._bar.close()
                self._bar = None

    def _show(self, bar: tqdm.tqdm, remaining: Remaining) -> None:
        if remaining is not None and not self._counts_bytes:
            bar.set_postfix_str(_left(remaining), refresh=False)


class Lines(Progress):
    """Plain lines for logs and pipes: at most one each few seconds, each failure, and one at the end of a phase."""

    def __init__(
        self,
        stream: TextIO,
        interval: float = _SECONDS_BETWEEN_LINES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stream = stream
        self._interval = interval
        self._clock = clock
        self._lock = threading.RLock()
        self._failures = _Failures(self.message)
        self._open = False

    def start(self, total: int, estimate: float | None = None, *, title: str = "", unit: str = "job") -> None:
        with self._lock:
            self.close()
            self._open, self._total, self._title, self._unit = bool(total), total, title, unit
            self._count = 0
            self._outcomes: Counter[str] = Counter()
            self._remaining: Remaining = estimate
            self._began = self._last = self._clock()

    def advance(self, amount: int) -> None:
        with self._lock:
            if self._open:
                self._count += amount
                self._maybe_print()

    def finished(self, piece: Piece) -> None:
        with self._lock:
            if not self._open:
                return
            if piece.outcome == FAILED:
                self._failures.add(piece)
            self._outcomes[piece.outcome] += 1
            self._remaining = self._remaining if piece.remaining is None else piece.remaining
            if self._unit != "B":
                self._count += 1
            self._maybe_print()

    def message(self, text: str, **_: object) -> None:
        with self._lock:
            self._print(escaped(text))

    def close(self) -> None:
        with self._lock:
            if not self._open:
                return
            self._open = False
            self._failures.close()
            outcomes = ", ".join(f"{number} {outcome}" for outcome, number in sorted(self._outcomes.items()))
            took = spell_seconds(self._clock() - self._began)
            self._print(f"{self._heading()}" + (f": {outcomes}" if outcomes else "") + f", in {took}")

    def _maybe_print(self) -> None:
        now = self._clock()
        if now - self._last < self._interval:
            return
        self._last = now
        left = "" if self._remaining is None else _left(self._remaining)
        took = spell_seconds(now - self._began)
        self._show(f"{self._heading()} after {took}" + (f", {left}" if left else ""))

    def _heading(self) -> str:
        if self._unit == "B":
            count, total = (f"{number / 2**20:.1f}" for number in (self._count, self._total))
            return f"{self._title}{' ' if self._title else ''}{count}/{total} MiB"
        return f"{self._title}{' ' if self._title else ''}{self._count}/{self._total}"

    def _show(self, text: str) -> None:
        """How far the phase is."""
        self._print(text)

    def _print(self, text: str, end: str = "\n") -> None:
        with contextlib.suppress(OSError, ValueError):  # a closed pipe is no reason to stop a build
            print(text, file=self._stream, flush=True, end=end)


class Line(Lines):
    """A bar in one line that is written over: for terminals, where there is no tqdm."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(stream, _SECONDS_BETWEEN_BARS, clock)

    def _show(self, text: str) -> None:
        done = min(1.0, self._count / self._total)
        bar = "#" * round(_BAR * done)
        super()._print(f"\r{text} |{bar:-<{_BAR}}|{_TO_END}", end="")

    def _print(self, text: str, end: str = "\n") -> None:
        super()._print(f"\r{text}{_TO_END}", end)


class JsonLines(Progress):
    """One JSON object a line, for programs: {"time": ..., "event": "start|done|message|close|error", ...}.

    `time` is in seconds since the epoch. Bytes are reported at most every `interval` seconds.
    """

    def __init__(self, descriptor: int, owned: bool = False, interval: float = 1.0) -> None:
        self._descriptor = descriptor
        self._owned = owned
        self._interval = interval
        self._lock = threading.RLock()
        self._open = False
        self._count = 0
        self._last = 0.0

    def start(self, total: int, estimate: float | None = None, *, title: str = "", unit: str = "job") -> None:
        with self._lock:
            self.close()
            self._open, self._count = True, 0
            self._write(event="start", title=title, total=total, unit=unit, estimate=estimate)

    def advance(self, amount: int) -> None:
        with self._lock:
            self._count += amount
            if time.monotonic() - self._last >= self._interval:
                self._last = time.monotonic()
                self._write(event="advance", count=self._count)

    def finished(self, piece: Piece) -> None:
        spread = piece.remaining if isinstance(piece.remaining, tuple) else None
        self._write(
            event="done", name=piece.name, seconds=round(piece.seconds, 4), outcome=piece.outcome, detail=piece.detail,
            remaining=sum(spread) / 2 if spread else piece.remaining, spread=spread,
        )  # fmt: skip

    def message(self, text: str, **facts: object) -> None:
        self._write(event="message", text=text, **facts)

    def error(self, text: str, code: int) -> None:
        """The last line of a build that failed: the sentence that the user sees, and the exit code."""
        self._write(event="error", text=text, code=code)

    def close(self) -> None:
        with self._lock:
            if self._open:
                self._open = False
                self._write(event="close")

    def __enter__(self) -> JsonLines:  # noqa: PYI034  (Self needs Python 3.11)
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
        if self._owned:
            os.close(self._descriptor)

    def _write(self, **fields: object) -> None:
        fields = {"time": round(time.time(), 3), **fields}
        line = json.dumps(fields, separators=(",", ":")).encode() + b"\n"
        with self._lock, contextlib.suppress(OSError):
            while line:  # a pipe may take less than the whole
                line = line[os.write(self._descriptor, line) :]


class Several(Progress):
    """Tells each of several."""

    def __init__(self, members: Iterable[Progress]) -> None:
        self._members = tuple(members)

    def start(self, total: int, estimate: float | None = None, *, title: str = "", unit: str = "job") -> None:
        for member in self._members:
            member.start(total, estimate, title=title, unit=unit)

    def advance(self, amount: int) -> None:
        for member in self._members:
            member.advance(amount)

    def finished(self, piece: Piece) -> None:
        for member in self._members:
            member.finished(piece)

    def message(self, text: str, **facts: object) -> None:
        for member in self._members:
            member.message(text, **facts)

    def close(self) -> None:
        for member in self._members:
            member.close()

    def __exit__(self, *_: object) -> None:
        for member in self._members:
            member.__exit__()


def make_progress(stream: TextIO | None = None, log_json: str | int | Path | None = None) -> Progress:
    """The progress that fits `stream` (standard error by default): a bar on a terminal, lines elsewhere.

    Args:
        stream: where people look.
        log_json: a file to append JSON lines to, or a file descriptor (an integer, or a text of digits); it comes
            besides, not instead.

    Raises:
        EnvironmentProblem: the file cannot be opened, or the descriptor is not open.
    """
    stream = sys.stderr if stream is None else stream
    try:
        shown: Progress = Bar(stream) if stream.isatty() else Lines(stream)
    except ImportError:
        shown = Line(stream)
    return shown if log_json is None else Several((shown, open_log(log_json)))


def open_log(log_json: str | int | Path) -> JsonLines:
    """What writes JSON lines to a file, or a descriptor, as `make_progress` takes it and raises for it."""
    text = str(log_json)
    try:
        if text.isdecimal():
            if problem := what_keeps(text, os.O_RDONLY):
                raise EnvironmentProblem(
                    f"progress goes to descriptor {text}, which {problem}; give a file, or one that can be written"
                )
            return JsonLines(int(text))
        descriptor = os.open(text, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise EnvironmentProblem(
            f"progress cannot be written to {text} ({error.strerror}); give a file, or a descriptor that is open"
        )
    return JsonLines(descriptor, owned=True)


def _left(remaining: float | tuple[float, float]) -> str:
    """ "about 2:05 left", "8 to 20 min left", or "" if the estimate is used up: at the end, or where a job takes longer
    than expected."""
    low, high = remaining if isinstance(remaining, tuple) else (remaining, remaining)
    if round(high, 1) <= 0:
        return ""
    for unit, seconds, most in (("s", 1, 90), ("min", 60, 90 * 60), ("h", 3600, float("inf"))):
        if high < most and (first := f"{low / seconds:.0f}") != (last := f"{high / seconds:.0f}"):
            return f"{first} to {last} {unit} left"
    return f"about {spell_seconds((low + high) / 2)} left"


def and_more(number: int) -> str:
    """ "(and 5 more variants)" """
    return f"(and {number} more variant{'s' if number > 1 else ''})"
