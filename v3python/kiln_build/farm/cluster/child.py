"""What a process does that the agent of a Dask worker has started: its tasks come pickled, its values leave plain.

Imports nothing of Dask, which would take a second in each process.
"""

from __future__ import annotations

import pickle
from typing import Any

from kiln_build.farm.cluster import wire
from kiln_build.farm.cluster.bundle import There
from kiln_build.farm.job import Host


def start(data: bytes, host: Host | None) -> None:
    """Runs the initializer of a session; `host` is this machine's, and takes the place of `There`."""
    initializer, arguments = pickle.loads(data)
    if initializer is not None:
        initializer(*(host if isinstance(argument, There) else argument for argument in arguments))


def work(data: bytes, is_received: bool) -> bytes:
    """Runs a task; returns its bytes, or its value as plain data.

    Raises:
        TypeError: the value cannot travel.
    """
    function, arguments = pickle.loads(data)
    value: Any = function(*arguments)
    return value if is_received else wire.dumps(value)
