"""The units and rates of AMD's architectures: architectures.yaml, read."""

from __future__ import annotations

import functools
import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from kiln_recipe import plain_yaml
from kiln_recipe.errors import UsageError

TABLE = "architectures.yaml"  # beside this module


@dataclass(frozen=True)
class Architecture:
    """What one SIMD does in how many clocks. Latencies are clocks beyond the unit's own time, sizes bytes.

    Attributes:
        name: of the target, "gfx942".
        turn: clocks from one issue for a wave to the next; also those of a simple vector instruction.
        lanes: threads of a wave.
        matrix: floating-point operations a clock, by the type of a matrix instruction's operands.
        row_clocks: a matrix instruction takes at least so many clocks for each row of its result.
        matrix_on_valu: matrix instructions (WMMA) occupy the vector unit; else they have a unit of their own (MFMA).
        wide_multiply, double, transcendental: clocks of products of 32-bit integers, of fp64, of exp, rcp and so on.
        taken_branch: clocks until a wave goes on behind a branch.
        valu_latency, transcendental_latency, dpp_latency, matrix_latency: until a result can be read.
        shared_bytes, memory_bytes: that a SIMD's part of LDS, and of the vector L1, moves in a clock.
        shared_latency: of LDS. memory_latencies: of loads, those to model; the second is the usual one.
        scratch_latency, store_latency, scalar_latency: of spilled registers, of stores, of scalar loads.
        simds: of a compute unit. compute_units, mhz: of a GPU, at its peak clock.
    """

    name: str
    turn: int
    lanes: int
    matrix: Mapping[str, int]
    matrix_on_valu: bool
    wide_multiply: int
    double: int
    transcendental: int
    taken_branch: int
    valu_latency: int
    transcendental_latency: int
    dpp_latency: int
    matrix_latency: int
    shared_bytes: int
    shared_latency: int
    memory_bytes: int
    memory_latencies: tuple[int, ...]
    scratch_latency: int
    store_latency: int
    scalar_latency: int
    simds: int
    compute_units: int
    mhz: int
    row_clocks: int = 0

    @property
    def usual_latency(self) -> int:
        return self.memory_latencies[1]


@functools.cache
def load() -> dict[str, Architecture]:
    """All of the table, by the target's name."""
    text = cast(bytes, pkgutil.get_data(__package__, TABLE)).decode()
    found = {}
    for row in plain_yaml.read(text)["architectures"]:
        values: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in row.items()}
        found[row["name"]] = Architecture(**values)
    return found


def by_name(name: str) -> Architecture:
    """The architecture of a target.

    Raises:
        UsageError: the model does not know it.
    """
    if name not in load():
        raise UsageError(f"{name} is not modelled; the model knows {', '.join(load())}")
    return load()[name]
