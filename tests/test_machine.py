"""Processors and memory of machines and control groups, from files made up to look like theirs."""

from __future__ import annotations

import os

import pytest

from kiln_build.base.machine import usable_cpus, usable_memory

GIB = 1 << 30


@pytest.fixture
def machine(tmp_path):
    """Writes files below proc/ and cgroup/; gives both folders."""

    def make(groups: str, files: dict[str, str], available_kib: int = 8 << 20):
        proc, cgroups = tmp_path / "proc", tmp_path / "cgroup"
        (proc / "self").mkdir(parents=True)
        (proc / "self" / "cgroup").write_text(groups)
        (proc / "meminfo").write_text(f"MemTotal: 99999999 kB\nMemAvailable: {available_kib} kB\n")
        cgroups.mkdir()
        for name, text in files.items():
            (cgroups / name).parent.mkdir(parents=True, exist_ok=True)
            (cgroups / name).write_text(text)
        return proc, cgroups

    return make


def test_this_machine():
    assert 1 <= usable_cpus() <= len(os.sched_getaffinity(0))
    assert 1 << 20 < usable_memory() < 1 << 50


def test_no_group_at_all(machine):
    assert usable_memory(*machine("", {})) == 8 * GIB


def test_the_second_version_counts_every_level_and_gives_back_caches(machine):
    files = {
        "a/memory.max": f"{4 * GIB}\n",
        "a/memory.current": f"{3 * GIB}\n",
        "a/memory.stat": f"anon 5\ninactive_file {GIB}\n",
        "a/b/memory.max": "max\n",
        "a/b/memory.current": "7\n",
        "a/cpu.max": "50000 100000\n",
    }
    folders = machine("0::/a/b\n", files)
    assert usable_memory(*folders) == 2 * GIB
    assert usable_cpus(*folders) == 1


def test_the_first_version(machine):
    files = {
        "memory/x/memory.limit_in_bytes": str(GIB),
        "memory/x/memory.usage_in_bytes": str(2 * GIB),
        "memory/x/memory.stat": "total_inactive_file 0\n",
        "cpu,cpuacct/cpu.cfs_quota_us": "-1",
        "cpu,cpuacct/cpu.cfs_period_us": "100000",
    }
    folders = machine("5:memory:/x\n4:cpu,cpuacct:/\n", files)
    assert usable_memory(*folders) == 0
    assert usable_cpus(*folders) == len(os.sched_getaffinity(0))


def test_a_group_that_cannot_be_seen(machine):
    assert usable_memory(*machine("0::/outside\n1:name=systemd:/\n", {"memory.max": "nonsense"})) == 8 * GIB
