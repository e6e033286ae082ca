"""What each stage of a compile takes of processors."""

from __future__ import annotations

import resource

# What a compile does outside of Triton's stages, whose names are the backend's: "ttir", "ttgir", "llir", then "ptx" and
# "cubin", or "amdgcn" and "hsaco".
FRONT_END = "front end"  # the kernel's Python to Triton's first IR, and its digest
IMAGE = "image"  # facts are read, what no GPU needs is stripped, garbage is collected


class Stages:
    """Seconds of processors by stage, in the order in which they first ended; assemblers count as their stage."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._at = cpu_seconds()

    def end(self, stage: str) -> None:
        """All since the last stage ended was this one's."""
        now = cpu_seconds()
        self.seconds[stage] = self.seconds.get(stage, 0.0) + now - self._at
        self._at = now


def cpu_seconds() -> float:
    """Of this process, and of the children that it has waited for."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)
