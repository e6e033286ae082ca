"""Blocks a multiprocessor, against what the vendors' own calculators give."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kiln_recipe import targets
from kiln_recipe.images import occupancy

KEPT = [target for target in targets.load() if target.residency]


@pytest.mark.parametrize(
    ("target", "registers", "shared", "warps", "expected"),
    [
        # NVIDIA's occupancy calculator.
        ("sm_90", 128, 0, 8, 2),
        ("sm_90", 129, 0, 8, 1),
        ("sm_90", 156, 0, 8, 1),
        ("sm_90", 168, 0, 4, 3),
        ("sm_90", 169, 0, 4, 2),
        ("sm_90", 255, 0, 8, 1),
        ("sm_90", 255, 0, 4, 2),
        ("sm_90", 32, 0, 32, 2),
        ("sm_90", 16, 0, 1, 32),
        ("sm_90", 24, 0, 2, 32),
        ("sm_90", 24, 0, 4, 16),
        ("sm_90", 64, 232448, 4, 1),
        ("sm_90", 64, 115712, 4, 2),
        ("sm_90", 64, 115713, 4, 1),
        ("sm_80", 64, 166912, 4, 1),
        ("sm_80", 64, 82944, 4, 2),
        ("sm_80", 64, 82945, 4, 1),
        ("sm_80", 255, 0, 16, 0),
        ("sm_100", 64, 115712, 4, 2),
        ("sm_100", 64, 115713, 4, 1),
        ("sm_100", 168, 0, 4, 3),
        ("sm_100", 24, 0, 4, 16),
        ("sm_100", 16, 0, 1, 32),
        # "Occupancy" as LLVM's AMDGPU backend gives it, in waves a SIMD; four SIMDs.
        ("gfx942", 128, 0, 4, 4),
        ("gfx942", 129, 0, 4, 3),
        ("gfx942", 256, 0, 4, 2),
        ("gfx942", 257, 0, 4, 1),
        ("gfx942", 512, 0, 4, 1),
        ("gfx942", 64, 0, 4, 8),
        ("gfx942", 16, 0, 4, 8),
        ("gfx90a", 128, 32768, 4, 2),
        ("gfx90a", 128, 32769, 4, 1),
        ("gfx90a", 32, 0, 2, 16),
        ("gfx90a", 32, 0, 1, 32),
        ("gfx1100", 96, 0, 4, 16),
        ("gfx1100", 97, 0, 4, 12),
        ("gfx1100", 192, 0, 4, 8),
        ("gfx1100", 240, 0, 4, 6),
        ("gfx1100", 256, 0, 4, 5),
        ("gfx1100", 96, 65536, 4, 2),
        ("gfx1100", 24, 0, 1, 64),
    ],
)
def test_known_figures(target, registers, shared, warps, expected):
    assert occupancy.blocks(targets.by_name(target).residency, registers, shared, warps) == expected


@given(st.sampled_from(KEPT), st.integers(0, 600), st.integers(0, 300_000), st.sampled_from([1, 2, 4, 8, 16, 32]))
def test_more_of_anything_never_gives_more_blocks(target, registers, shared, warps):
    limits = target.residency
    found = occupancy.blocks(limits, registers, shared, warps)
    assert 0 <= found <= max(limits.blocks, limits.single_warp_blocks)
    assert occupancy.blocks(limits, registers + 1, shared, warps) <= found
    assert occupancy.blocks(limits, registers, shared + 1, warps) <= found
    assert occupancy.blocks(limits, registers, shared, 2 * warps) <= found


@pytest.mark.parametrize("target", KEPT, ids=lambda t: t.name)
def test_the_limits_of_a_multiprocessor_hold_what_a_block_may_have(target):
    limits = target.residency
    assert limits.simds * limits.lane_registers * target.warp_size == target.registers_per_multiprocessor
    assert target.shared_memory + limits.shared_reserved <= limits.shared_memory
    assert limits.simds * limits.warps * target.warp_size >= target.threads_per_block
    warps = target.threads_per_block // target.warp_size
    assert occupancy.blocks(limits, 1, target.shared_memory, warps) >= 1
