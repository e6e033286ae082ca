"""What the model says of an image: bounds and simulated clocks of its loops."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from kiln_build.amd_model import architectures, disassembly, loops, simulation
from kiln_build.amd_model import instructions as units
from kiln_build.amd_model.architectures import Architecture
from kiln_build.amd_model.instructions import decode
from kiln_recipe import targets
from kiln_recipe.errors import ArtifactError, UsageError
from kiln_recipe.images import occupancy


@dataclass(frozen=True)
class Facts:
    """What of an image decides how many of its waves a SIMD holds.

    Attributes:
        registers: of a thread, accumulation registers included. shared: bytes of LDS of a block. threads: of a block.
    """

    registers: int
    shared: int
    threads: int


@dataclass(frozen=True)
class LoopFigures:
    """One loop, in clocks of a SIMD for one iteration of one wave.

    Attributes:
        begin, end: bytes from the kernel's beginning. instructions: of the loop.
        operations: that its matrix instructions do, of a wave.
        matrix_issues: matrix instructions. matrix: that these occupy the matrix unit. matrix_at_peak: that they
            would at the peak rate of their type.
        valu, transcendental: of vector instructions, of which transcendental ones.
        shared, memory: that LDS and the vector L1 take for its bytes.
        loaded: bytes that a wave loads from memory. spills: memory instructions for spilled registers.
        clocks: simulated, by the latency of memory: the usual one, of a main loop that multiplies all that there are.
            Of all waves together, so that it is less than a wave takes.
        waits: parts of the waves' time, by what they wait for, at the usual latency.
    """

    begin: int
    end: int
    instructions: int
    operations: int
    matrix: int
    matrix_at_peak: float
    valu: int
    transcendental: int
    shared: float
    memory: float
    loaded: int
    spills: int
    matrix_issues: int = 0
    clocks: dict[int, float] = field(default_factory=dict)
    waits: dict[str, float] = field(default_factory=dict)

    def needed(self, operations: int | None, warps: int) -> float:
        """Clocks that the matrix unit needs at its peak rate for what a block needs to multiply.

        Args:
            operations: of a block; None: what the loop does. warps: of a block.
        """
        if operations is None or not self.operations or operations > self.operations * warps:
            return self.matrix_at_peak
        return self.matrix_at_peak * operations / (self.operations * warps)

    def share(self, needed: float, latency: int) -> float | None:
        """The modelled share of the matrix peak; None of a loop without matrix instructions."""
        return needed / self.clocks[latency] if self.operations else None

    def bound(self, needed: float, architecture: Architecture) -> float | None:
        """The share if every unit were always busy that is busy longest."""
        matrix = self.matrix if architecture.matrix_on_valu else 0
        issue = self.valu + (matrix or self.matrix_issues * architecture.turn)
        return needed / max(self.matrix, issue, self.shared, self.memory) if self.operations else None


@dataclass(frozen=True)
class ImageFigures:
    """An image.

    Attributes:
        waves: that a SIMD holds. blocks: that a multiprocessor does.
        loops: the main one first; () of a kernel without any.
    """

    waves: float
    blocks: int
    warps: int
    loops: tuple[LoopFigures, ...]


def model(image: bytes, target: str, facts: Facts, tool: str, main_alone: bool = False) -> ImageFigures:
    """The figures of a code object.

    Args:
        target: "gfx942".
        tool: see `disassembly.find_tool`.
        main_alone: only the main loop, and only at the usual latency.

    Raises:
        UsageError: the model does not know the target.
        ArtifactError: the disassembler does not know the code, or the model an instruction that decides its time.
    """
    architecture = architectures.by_name(target)
    held = resident(target, facts)
    found = loops.find(disassembly.disassemble(image, tool))
    latencies = (architecture.usual_latency,)
    try:
        figures = [
            _loop(one, architecture, held, latencies if number or main_alone else architecture.memory_latencies)
            for number, one in enumerate(found[:1] if main_alone else found)
        ]
    except ValueError as error:
        raise ArtifactError(f"the model cannot read the code: {error}") from error
    return ImageFigures(held.waves, held.blocks, held.warps, tuple(figures))


@dataclass(frozen=True)
class Resident:
    """What is resident at once: blocks of a multiprocessor, warps of a block, waves of a SIMD, and how many of those a
    block has there, which wait for each other at barriers."""

    blocks: int
    warps: int
    waves: float
    group: int


def resident(target: str, facts: Facts) -> Resident:
    """
    Raises:
        UsageError: targets.yaml does not say what a multiprocessor holds.
    """
    its = targets.by_name(target)
    if its.residency is None:
        raise UsageError(f"{target} is not modelled: targets.yaml lacks the limits of its multiprocessor (residency)")
    warps = max(1, facts.threads // its.warp_size)
    blocks = occupancy.blocks(its.residency, facts.registers, facts.shared, warps)
    simds = its.residency.simds
    return Resident(blocks, warps, blocks * warps / simds, max(1, warps // simds))


def _loop(loop: loops.Loop, architecture: Architecture, held: Resident, latencies: Sequence[int]) -> LoopFigures:
    body = [decode(text, architecture) for text in loop.texts]
    matrix = [one for one in body if one.unit == units.MATRIX]
    vector = [one for one in body if one.unit == units.VALU]
    moved = {unit: sum(one.bytes for one in body if one.unit == unit) for unit in (units.SHARED, units.MEMORY)}
    if not matrix:
        latencies = (architecture.usual_latency,)
    waves = max(1, int(held.waves))  # of a block with fewer warps than there are SIMDs, a SIMD has one or none
    steady = {latency: simulation.simulate(body, architecture, waves, held.group, latency) for latency in latencies}
    return LoopFigures(
        begin=loop.begin,
        end=loop.end,
        instructions=len(body),
        operations=sum(one.operations for one in matrix),
        matrix=sum(one.clocks for one in matrix),
        matrix_at_peak=sum(one.operations / architecture.matrix[one.kind] for one in matrix),
        valu=sum(one.clocks for one in vector),
        transcendental=sum(one.clocks for one in vector if one.is_transcendental),
        shared=moved[units.SHARED] / architecture.shared_bytes,
        memory=moved[units.MEMORY] / architecture.memory_bytes,
        loaded=sum(one.bytes for one in body if one.unit == units.MEMORY and one.is_load and not one.is_scratch),
        spills=sum(one.is_scratch for one in body),
        clocks={latency: one.clocks for latency, one in steady.items()},
        waits=steady[architecture.usual_latency].waits,
        matrix_issues=len(matrix),
    )
