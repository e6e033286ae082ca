"""benchmarks/attention/slots.py: loops in nvdisasm's words, and what an iteration asks of a multiprocessor."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import small_release as small

ROOT = Path(__file__).resolve().parents[1]
PROGRAM = ROOT / "benchmarks/attention/slots.py"
sys.path.append(str(PROGRAM.parent))

import slots  # noqa: E402

PRODUCTS = [
    "HGMMA.64x128x16.F32.BF16 R24, R180, gdesc[UR16], RZ, !UPT",
    "HGMMA.64x128x16.F32.BF16 R24, R4, gdesc[UR8], R24",
]
WORK = [
    "MUFU.EX2 R1, R2",
    "FFMA R1, R2, UR7, -R3.reuse",
    "FMNMX R1, R2, R3, !PT",
    "@!P1 STS [R1], R1",
    "UIADD3 UR4, UR4, 0x1, URZ",
]


def assembly(*lines: str) -> str:
    """Labels as they are, instructions as nvdisasm -c prints them."""
    found, offset = ["//--------------------- .text.kernel --------------------------"], 0
    for line in lines:
        if line.startswith("."):
            found.append(line)
            continue
        text, _, behind = line.partition("  ")
        found.append(f"        /*{offset:04x}*/                   {text} ;{behind}")
        offset += 16
    return "\n".join(found)


def a_loop(number: int, *more: str) -> list[str]:
    """With a wait in its middle, of which the code that waits on is elsewhere (waits)."""
    return [
        f".L_x_{number}:", "SYNCS.PHASECHK.TRANS64.TRYWAIT P1, [UR22], R24", f"@!P1 BRA `(.L_x_{number + 1})",
        f".L_x_{number + 2}:", *PRODUCTS, *WORK, *more, f"@P0 BRA `(.L_x_{number})",
    ]  # fmt: skip


def waits(number: int) -> list[str]:
    return [
        f".L_x_{number + 1}:", "SYNCS.PHASECHK.TRANS64.TRYWAIT P1, [UR22], R24", f"@!P1 BRA `(.L_x_{number + 1})",
        f"BRA `(.L_x_{number + 2})",
    ]  # fmt: skip


def test_an_iteration_is_counted_by_unit_and_waiting_is_not():
    (loop,) = slots.loops_of(assembly("MOV R1, R2", *a_loop(0), "EXIT", *waits(0)))
    # The wait, its branch, products and work, the branch back; and the branch that ends a wait.
    assert loop.instructions == 2 + len(PRODUCTS) + len(WORK) + 1 + 1
    assert loop.products == 2 * 64
    assert loop.clocks == {"exponentials": 8, "additions": 1, "others": 2}
    assert loop.copies == 1


def test_the_loop_around_a_loop_is_none_of_its_own():
    inner = a_loop(10)
    (loop,) = slots.loops_of(assembly(".L_x_0:", *PRODUCTS, *inner, "@P2 BRA `(.L_x_0)", "EXIT", *waits(10)))
    assert loop.products == 2 * 64


def test_copies_for_several_warpgroups_are_one_row_and_a_loop_with_a_mask_is_another():
    work, masked = ["MOV R1, R2"] * 40, ["FSEL R1, R2, -INF, P1"] * 40
    text = assembly(
        'BRX R2 -0x10  (*"BRANCH_TARGETS .L_x_10,.L_x_20,.L_x_30"*)', *a_loop(10, *work), "EXIT",
        *a_loop(20, *work, "NOP"), "EXIT", *a_loop(30, *work, *masked), "EXIT", *waits(10), *waits(20), *waits(30),
    )  # fmt: skip
    plain, slow = slots.loops_of(text)
    assert (plain.copies, slow.copies) == (2, 1)
    assert plain.clocks["others"] == 2 * 41
    assert slow.clocks["others"] == 2 * 81


@pytest.mark.parametrize(
    ("name", "clocks"),
    [("HGMMA.64x64x16.F32 R0", 32), ("HGMMA.64x256x16.F32.BF16 R0", 128), ("QGMMA.64x128x32.F32.E4M3.E4M3 R0", 64),
     ("HMMA.16816.F32 R0", 0)],
)  # fmt: skip
def test_products_take_what_tensor_cores_take_at_their_rate(name, clocks):
    assert slots._product_clocks(name) == clocks


def test_a_release_without_such_an_image_is_refused_in_one_sentence():
    tarball = small.small_release().tarball
    done = subprocess.run(
        [sys.executable, PROGRAM, tarball, "attn_fwd.unknown"], capture_output=True, text=True, check=False
    )
    assert done.returncode in (2, 7)
    assert "attn_fwd.unknown" in done.stderr or "nvdisasm" in done.stderr
    assert "Traceback" not in done.stderr
