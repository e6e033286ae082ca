"""The workers of a cluster, as one build knows them: who may work for it, who not and why, and what each has done."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kiln_build.farm.cluster import agent
from kiln_build.farm.executor import Capacity
from kiln_recipe.console.tables import plural
from kiln_recipe.errors import EnvironmentProblem

_GRACE = 120.0  # seconds that a worker has to announce itself: it reads 590 MB, perhaps over a network, perhaps busy
_PATIENCE = 5.0  # seconds without any worker after which the user is told
_NAMED = 8  # workers, more are not named one by one


@dataclass
class _Worker:
    name: str
    address: str
    resources: Mapping[str, float]
    since: float


@dataclass
class _Work:
    """What a worker has done: tasks, the seconds that they took, and when it began and ended."""

    tasks: int = 0
    seconds: float = 0.0
    began: float = 0.0
    ended: float = 0.0


class Roll:
    """
    Args:
        toolchain: identity of the one that workers must have; "": any will do, and so will none.
        bytes_per_task: memory that a task takes, mostly.
    """

    def __init__(self, toolchain: str, bytes_per_task: int) -> None:
        self._toolchain = toolchain
        self._bytes_per_task = bytes_per_task
        self._needed = agent.resource_of(toolchain) if toolchain else agent.SLOTS
        self._workers: dict[str, _Worker] = {}
        self._names: dict[str, str] = {}  # of all that were ever there
        self._excluded: dict[str, str] = {}
        self._told: set[str] = set()
        self._work: dict[str, _Work] = {}
        self._capacity = Capacity(0, 0)
        self._largest = 0.0

    def look(self, known: Mapping[str, Mapping[str, Any]], cluster: str, seconds: float) -> list[str]:
        """Takes the scheduler's list of its workers; gives sentences for the user.

        Args:
            known: by address.
            seconds: that the cluster has been known.
        """
        now = time.monotonic()
        self._workers = {
            address: _Worker(str(one["name"]), address, one["resources"], self._since(address, now))
            for address, one in known.items()
        }
        self._names |= {address: one.name for address, one in self._workers.items()}
        self._count_capacity()
        notices = []
        for one in self._workers.values():
            reason = self._refusal(one, now)
            if reason and one.address not in self._told:
                self._told.add(one.address)
                notices.append(f"warning: the worker {self.name(one.address)} is given nothing: {reason}")
        if not self._workers and seconds > _PATIENCE and "" not in self._told:
            self._told.add("")
            notices.append(f"the scheduler {cluster} has no worker yet; waiting")
        return notices

    def problem(self, cluster: str) -> EnvironmentProblem | None:
        """Why nothing will ever be done: every worker that there is was refused."""
        now = time.monotonic()
        reasons = {one.address: self._refusal(one, now) for one in self._workers.values()}
        if not reasons or not all(reasons.values()):
            return None
        listed = "".join(f"\n  {self.name(address)}: {why}" for address, why in list(reasons.items())[:_NAMED])
        more = f"\n  and {len(reasons) - _NAMED} more" if len(reasons) > _NAMED else ""
        return EnvironmentProblem(
            f"none of the workers of {cluster} can compile for this build; start `dask worker` in an environment with "
            f"kiln-build and the locked toolchain of the build{listed}{more}",
            has_lines=True,
        )

    def name(self, address: str) -> str:
        """What people call a worker."""
        name = self._names.get(address, address)
        return name if name == address or not address else f"{name} ({address})"

    @property
    def is_unsure(self) -> bool:
        """Whether some worker has yet to announce itself."""
        return any(agent.SLOTS not in one.resources and self._told.isdisjoint({one.address})
                   for one in self._workers.values())  # fmt: skip

    @property
    def accepted(self) -> list[str]:
        """Addresses of those that may work."""
        return [a for a, one in self._workers.items() if self._needed in one.resources and a not in self._excluded]

    def only(self) -> list[str] | None:
        """The addresses that Dask must choose among; None: its resources say enough."""
        return self.accepted if self._excluded else None

    def freest(self, taken: Mapping[str, int]) -> str:
        """The address of the worker that has most to spare, where some have tasks already. One must be accepted."""
        return min(self.accepted, key=lambda one: (taken.get(one, 0) + 1) / self._workers[one].resources[self._needed])

    def capacity(self) -> Capacity:
        """What those that may work can do together."""
        return self._capacity

    def resources(self, memory: int | None) -> dict[str, float]:
        """What a task asks of its worker. No task asks for more memory than any has: one alone may always run."""
        asked = {self._needed: 1.0}
        if memory is not None and self._largest:
            asked[agent.MEMORY] = min(float(memory), self._largest)
        return asked

    def exclude(self, address: str, reason: str) -> None:
        """A worker is given nothing any more."""
        self._excluded[address] = reason
        self._told.add(address)
        self._count_capacity()

    def remove(self, address: str) -> None:
        """A worker is gone."""
        self._workers.pop(address, None)
        self._count_capacity()

    def clear(self) -> None:
        """All are gone."""
        self._workers.clear()
        self._count_capacity()

    def count(self, address: str, seconds: float) -> None:
        """A worker has done a task."""
        now = time.monotonic()
        work = self._work.setdefault(self._names.get(address, address), _Work(began=now - seconds))
        work.tasks += 1
        work.seconds += seconds
        work.ended = now

    def summary(self) -> list[str]:
        """What the workers have done, a line for each; of many, the range."""
        paces = {name: 60 * one.tasks / max(one.ended - one.began, 0.001) for name, one in self._work.items()}
        if not paces:
            return []
        if len(paces) > _NAMED:
            slow, fast = min(paces, key=paces.__getitem__), max(paces, key=paces.__getitem__)
            return [
                f"{len(paces)} workers did {sum(one.tasks for one in self._work.values())} jobs: "
                f"{paces[slow]:.1f} a minute ({slow}) to {paces[fast]:.1f} ({fast}), median "
                f"{statistics.median(paces.values()):.1f}"
            ]
        return [
            f"{name}: {plural(one.tasks, 'job')}, {paces[name]:.1f} a minute, {one.seconds / one.tasks:.1f} s each"
            for name, one in sorted(self._work.items())
        ]

    # ---- inside ----

    def _since(self, address: str, now: float) -> float:
        known = self._workers.get(address)
        return known.since if known else now

    def _count_capacity(self) -> None:
        tasks, memory, self._largest = 0, 0.0, 0.0
        for address in self.accepted:
            resources = self._workers[address].resources
            has = resources.get(agent.MEMORY, 0.0)
            tasks += int(min(resources[self._needed], max(1, has // self._bytes_per_task)))
            memory += has
            self._largest = max(self._largest, has)
        self._capacity = Capacity(tasks, int(memory))

    def _refusal(self, one: _Worker, now: float) -> str:
        """Why a worker may not work; "" if it may, or if that is not known yet."""
        if one.address in self._excluded:
            return self._excluded[one.address]
        if self._needed in one.resources:
            return ""
        if agent.SLOTS in one.resources:
            others = [name.removeprefix(agent.TOOLCHAIN) for name in one.resources if name.startswith(agent.TOOLCHAIN)]
            has = f"its toolchain is {others[0][:12]}" if others else "no toolchain is installed there"
            return f"{has}, and the build's is {self._toolchain[:12]}"
        if now - one.since > _GRACE:
            return "it announces no toolchain; start it in an environment with kiln-build, as `kiln worker` does"
        return ""
