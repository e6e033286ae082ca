"""How a farm runs: with how many workers, what jobs may take, where logs go, and which executor starts the workers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from kiln_build.base import machine
from kiln_build.farm.executor import StartExecutor
from kiln_build.farm.local import LocalExecutor
from kiln_build.options.variables import BuildVariables
from kiln_recipe.errors import EnvironmentProblem

# What a compile of the largest kernels takes resident (docs/build.md, 'The farm'); more is found out by trying.
JOB_MEMORY = 1 << 30
_HEADROOM = 0.9  # of the memory that is free when we begin: others live here too


def free_memory(limit: int | None = None) -> int:
    """Bytes that all jobs on this machine may take together.

    Args:
        limit: what the machine's owner gives us of it.
    """
    return int(_HEADROOM * min(machine.usable_memory(), limit or 1 << 60))


def workers_for(missing: int, asked: int, memory: int, job_memory: int = JOB_MEMORY) -> int:
    """How many compile at once: no more than are asked for, than images are missing, and than memory allows."""
    return max(1, min(asked, memory // job_memory, missing))


@dataclass(frozen=True)
class FarmOptions:
    """How a farm runs.

    Attributes:
        logs: the folder for the logs of jobs that fail.
        temporary: the folder for the temporary files of compilers; None: the system's.
        jobs: compiles at once; None: as many as processors and memory allow.
        timeout: seconds that one job may take.
        attempts: how often a job is tried whose worker dies.
        memory: bytes that all jobs may take together; None: what is free.
        job_memory: bytes that one job may take at first; twice as much each time that this was too little.
        executor: what starts the workers.
        elsewhere: its workers are those of other machines: their number and memory are the executor's to know, and
            images come back with results.
    """

    logs: Path
    temporary: Path | None = None
    jobs: int | None = None
    timeout: float = 300.0
    attempts: int = 3
    memory: int | None = None
    job_memory: int = JOB_MEMORY
    executor: StartExecutor = LocalExecutor
    elsewhere: bool = False

    @classmethod
    def of(cls, build: BuildVariables, folder: Path) -> FarmOptions:
        """As a build asks for; logs and temporary files go to `folder`. What it runs on is chosen here.

        Raises:
            EnvironmentProblem: a scheduler is named, and the packages that speak to it are not installed.
        """
        start: StartExecutor = LocalExecutor
        if build.scheduler:
            start = _cluster(build.scheduler, build.scheduler_tls)
        logs, temporary = folder / "logs", folder / "tmp"
        return cls(logs, temporary, build.jobs, build.job_timeout, executor=start, elsewhere=bool(build.scheduler))

    def workers(self, missing: int) -> int:
        """How many compile at once where so many images are missing; of workers elsewhere, at most."""
        if self.elsewhere:
            return max(1, min(self.jobs or missing, missing))
        return workers_for(missing, self.jobs or machine.usable_cpus(), self.usable_memory(), self.job_memory)

    def usable_memory(self) -> int:
        """Bytes that all jobs may take together."""
        return self.memory if self.memory is not None else free_memory()


def _cluster(scheduler: str, tls: str | None) -> StartExecutor:
    try:
        from kiln_build.farm.cluster import connect
    except ModuleNotFoundError as error:
        raise EnvironmentProblem(
            f"KILN_SCHEDULER={scheduler} needs the package {error.name}, which this Python lacks; build by build.sh or "
            "./kiln, which install it, or install kiln-build[dask]"
        ) from error
    return connect.cluster(scheduler, tls)
