"""What jobs will take, by what they and their relatives took: names tell who is related to whom."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache


@dataclass
class _Mean:
    count: int = 0
    total: float = 0.0

    def add(self, value: float) -> None:
        self.count += 1
        self.total += value


@dataclass
class Estimates:
    """Seconds that a job will take, by what it or similar ones took.

    Names look like `kernel[functional][configuration][specialization]@target`. The nearest relatives count: the same
    but for the last bracket, for the last two ..., on the same target; nothing beyond the kernel and the target, which
    are a job's kind: how long one GPU's compiler takes says little about another's.
    """

    known: Mapping[str, float]
    _exact: dict[str, float] = field(default_factory=dict)
    _later: list[tuple[str, float]] = field(default_factory=list)  # what the means of relatives have yet to take in
    _means: dict[tuple[str, str], _Mean] = field(default_factory=dict)
    _all: _Mean = field(default_factory=_Mean)

    def __post_init__(self) -> None:
        for name, seconds in self.known.items():
            self.add(name, seconds)

    def __bool__(self) -> bool:
        return self._all.count > 0

    @property
    def mean(self) -> float:
        """Of all jobs; 0 if there was none."""
        return self._all.total / self._all.count if self._all.count else 0.0

    def add(self, name: str, seconds: float) -> None:
        """A job took so long."""
        self._exact[name] = seconds
        self._all.add(seconds)
        self._later.append((name, seconds))

    def __contains__(self, name: str) -> bool:
        """Whether this very job is known."""
        return name in self._exact

    def __call__(self, name: str) -> float | None:
        """The estimate, or None where nothing of this kind is known."""
        if (exact := self._exact.get(name)) is not None:
            return exact
        for other, seconds in self._later:
            for key in _relatives(other):
                self._means.setdefault(key, _Mean()).add(seconds)
        self._later.clear()
        for key in _relatives(name):
            if (mean := self._means.get(key)) is not None:
                return mean.total / mean.count
        return None


@lru_cache(maxsize=1 << 17)
def _relatives(name: str) -> tuple[tuple[str, str], ...]:
    """Groups that a name belongs to, the narrowest first; the last is its kind."""
    head, _, target = name.rpartition("@")
    groups = []
    while head.endswith("]") and "[" in head:
        head = head[: head.rindex("[")]
        groups.append((head, target))
    return tuple(groups) or ((head, target),)


def kind_of(name: str) -> tuple[str, str]:
    """Kernel and target of a job's name."""
    return _relatives(name)[-1]
