"""How many blocks of an image one multiprocessor holds at once. The limits are data: `residency` in targets.yaml."""

from __future__ import annotations

from kiln_recipe.targets import Residency


def blocks(limits: Residency, registers: int, shared: int, warps: int) -> int:
    """Blocks that a multiprocessor holds at once; 0: not even one.

    Args:
        registers: of a thread.
        shared: bytes of a block, dynamic and static.
        warps: of a block.
    """
    most = limits.single_warp_blocks if warps == 1 and limits.single_warp_blocks else limits.blocks
    by_registers = limits.lane_registers // _up(max(registers, 1), limits.register_granule)
    by_warps = min(limits.warps, by_registers) * limits.simds // warps
    room = _up(shared + limits.shared_reserved, limits.shared_granule)
    return min(most, by_warps, limits.shared_memory // room if room else most)


def _up(number: int, granule: int) -> int:
    return -(-number // granule) * granule
