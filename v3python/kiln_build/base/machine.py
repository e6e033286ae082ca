"""What this machine, or the container that we are in, gives us: processors and memory."""

from __future__ import annotations

import contextlib
import math
import os
from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")


def usable_cpus(proc: Path = Path("/proc"), cgroups: Path = _CGROUPS) -> int:
    """Processors that we may use: affinity, and the quota of the control group."""
    number = len(os.sched_getaffinity(0))
    for folder in _own_cgroups("cpu", proc, cgroups):
        with contextlib.suppress(OSError, ValueError, ZeroDivisionError):
            if (folder / "cpu.max").exists():
                quota, period = (folder / "cpu.max").read_text().split()
            else:
                quota = (folder / "cpu.cfs_quota_us").read_text()
                period = (folder / "cpu.cfs_period_us").read_text()
            if quota != "max" and int(quota) > 0:
                number = min(number, math.ceil(int(quota) / int(period)))
    return max(number, 1)


def usable_memory(proc: Path = Path("/proc"), cgroups: Path = _CGROUPS) -> int:
    """Bytes that we may still take: what is available, and what the control group leaves."""
    free = 1 << 62
    for line in (proc / "meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            free = int(line.split()[1]) * 1024
    for folder in _own_cgroups("memory", proc, cgroups):
        with contextlib.suppress(OSError, ValueError):
            second = (folder / "memory.max").exists()
            limit = (folder / ("memory.max" if second else "memory.limit_in_bytes")).read_text().strip()
            if limit == "max":
                continue
            used = int((folder / ("memory.current" if second else "memory.usage_in_bytes")).read_text())
            # Pages of files count as used, but are given back on demand.
            cached = 0
            for line in (folder / "memory.stat").read_text().splitlines():
                name, _, value = line.partition(" ")
                if name == ("inactive_file" if second else "total_inactive_file"):
                    cached = int(value)
            free = min(free, max(int(limit) - used + cached, 0))
    return free


def _own_cgroups(controller: str, proc: Path, cgroups: Path) -> list[Path]:
    """Our control group for a controller and those above it, as far as they can be seen from here."""
    try:
        lines = (proc / "self" / "cgroup").read_text().splitlines()
    except OSError:
        return []
    folders = []
    for line in lines:
        number, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            root = cgroups / controllers if (cgroups / controllers).is_dir() else cgroups / controller
        elif number == "0" and not controllers:
            root = cgroups
        else:
            continue
        group = root / path.lstrip("/")
        while group != root:
            folders.append(group)
            group = group.parent
        folders.append(root)  # within a container's namespace, its own group is the root
    return [folder for folder in folders if folder.is_dir()]
