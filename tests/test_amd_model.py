"""The model of AMD images: what it reads of code, what its SIMD does with it, and `kiln model` as users run it."""

from __future__ import annotations

import dataclasses
import json
import shutil

import pytest

from kiln_build.amd_model import (
    architectures,
    disassembly,
    figures,
    instructions,
    loops,
    many,
    products,
    show,
    simulation,
)
from kiln_build.amd_model.figures import Facts
from kiln_build.cli import main
from kiln_build.front.workspace import own_workspace
from kiln_build.options.words import WORKSPACE_LOCK
from kiln_recipe import targets
from kiln_recipe.errors import EnvironmentProblem, UsageError
from small_release import small_release

CDNA3, CDNA4 = architectures.by_name("gfx942"), architectures.by_name("gfx950")
RDNA3, RDNA4 = architectures.by_name("gfx1100"), architectures.by_name("gfx1201")


def has_disassembler() -> bool:
    try:
        disassembly.find_tool()
    except EnvironmentProblem:
        return False
    return True


with_disassembler = pytest.mark.skipif(not has_disassembler(), reason="llvm-objdump is not installed")


def decoded(*texts, architecture=CDNA3):
    return [instructions.decode(text, architecture) for text in texts]


def clocks(*texts, architecture=CDNA3, waves=1, group=1, latency=500):
    return simulation.simulate(decoded(*texts, architecture=architecture), architecture, waves, group, latency).clocks


def test_every_amd_target_has_an_architecture():
    assert {target.name for target in targets.load() if target.vendor == "amd"} == architectures.load().keys()


@pytest.mark.parametrize(
    ("target", "kind", "published"),
    # Peaks of AMD's data sheets in TFLOP/s: MI100, one die of MI250X, MI300X, MI355X, RX 7900 XTX, RX 9070 XT.
    [("gfx908", "f16", 184.6), ("gfx90a", "f16", 191.5), ("gfx942", "bf16", 1307.4), ("gfx942", "fp8", 2614.9),
     ("gfx942", "f32", 163.4), ("gfx950", "f16", 2500), ("gfx1100", "f16", 122.8), ("gfx1201", "f16", 195)],
)  # fmt: skip
def test_rates_give_the_published_peaks(target, kind, published):
    its = architectures.by_name(target)
    assert its.matrix[kind] * its.simds * its.compute_units * its.mhz / 1e6 == pytest.approx(published, rel=0.01)


@pytest.mark.parametrize(
    ("text", "architecture", "clocks", "operations"),
    # Clocks: 4 for each pass of the instruction set documents.
    [
        ("v_mfma_f32_32x32x8_bf16 v[0:15], v[16:17], v[18:19], v[0:15]", CDNA3, 32, 16384),
        ("v_mfma_f32_16x16x16_f16 a[0:3], v[16:17], v[18:19], a[0:3]", CDNA3, 16, 8192),
        ("v_mfma_f32_16x16x32_fp8_bf8 v[0:3], v[16:17], v[18:19], v[0:3]", CDNA3, 16, 16384),
        ("v_mfma_f32_32x32x2_f32 v[0:15], v16, v17, v[0:15]", CDNA3, 64, 4096),
        ("v_mfma_f32_4x4x4_16b_f16 v[0:3], v[16:17], v[18:19], v[0:3]", CDNA3, 4, 2048),
        ("v_mfma_f32_32x32x8bf16_1k v[0:15], v[16:17], v[18:19], v[0:15]", architectures.by_name("gfx90a"), 64, 16384),
        ("v_mfma_f32_32x32x4bf16 v[0:15], v16, v17, v[0:15]", architectures.by_name("gfx908"), 64, 8192),
        ("v_mfma_f32_32x32x16_bf16 v[0:15], v[16:19], v[20:23], v[0:15]", CDNA4, 32, 32768),
        ("v_mfma_f32_16x16x16_bf16 v[0:3], v[16:17], v[18:19], v[0:3]", CDNA4, 16, 8192),  # as on CDNA 3
        ("v_mfma_f32_32x32x64_f8f6f4 v[0:15], v[16:23], v[24:31], v[0:15]", CDNA4, 64, 131072),
        ("v_wmma_f32_16x16x16_bf16 v[0:7], v[8:15], v[16:23], v[0:7]", RDNA3, 32, 8192),
        ("v_wmma_f32_16x16x16_f16 v[0:7], v[8:11], v[16:19], v[0:7]", RDNA4, 16, 8192),
        ("v_wmma_f32_16x16x16_fp8_fp8 v[0:7], v[8:9], v[16:17], v[0:7]", RDNA4, 8, 8192),
    ],
)
def test_matrix_instructions(text, architecture, clocks, operations):
    (one,) = decoded(text, architecture=architecture)
    assert (one.unit, one.clocks, one.operations) == (instructions.MATRIX, clocks, operations)
    assert one.writes == one.adds_to and not set(one.reads) & set(one.writes)


def test_a_matrix_instruction_without_a_rate_is_no_guess():
    with pytest.raises(ValueError, match="gfx942 has no rate for products of f8f6f4"):
        decoded("v_mfma_f32_32x32x64_f8f6f4 v[0:15], v[16:23], v[24:31], v[0:15]")


@pytest.mark.parametrize(
    ("text", "unit", "size"),
    [
        ("ds_read_b128 v[0:3], v4", "shared", 1024), ("ds_write2st64_b32 v0, v1, v2 offset1:4", "shared", 512),
        ("ds_read_u16_d16_hi v0, v1", "shared", 128), ("ds_bpermute_b32 v0, v1, v2", "shared", 256),
        ("ds_read_b64_tr_b16 v[0:1], v2", "shared", 512), ("global_load_dwordx4 v[0:3], v[4:5], off", "memory", 1024),
        ("buffer_load_ushort v0, v1, s[4:7], 0 offen", "memory", 128),
        ("scratch_load_dword v0, off, off", "memory", 256),
        ("global_load_lds_dwordx4 v[4:5], off", "memory", 1024),
    ],
)  # fmt: skip
def test_bytes_of_memory_instructions(text, unit, size):
    (one,) = decoded(text)
    assert (one.unit, one.bytes) == (unit, size)
    assert bool(one.writes) == (one.is_load and "lds" not in text)


def test_counters_by_architecture():
    vm, lgkm = instructions.LOADS, instructions.LOCAL
    assert decoded("s_waitcnt vmcnt(3) lgkmcnt(1)")[0].waits == ((vm, 3), (lgkm, 1))
    (both,) = decoded("s_wait_loadcnt_dscnt 0x102", architecture=RDNA4)
    assert both.waits == ((vm, 1), (lgkm, 2))
    assert decoded("s_wait_kmcnt 0x0", architecture=RDNA4)[0].waits == ((instructions.CONSTANTS, 0),)
    assert decoded("s_load_b64 s[0:1], s[2:3], 0x0", architecture=RDNA4)[0].counter == instructions.CONSTANTS
    assert decoded("global_store_dword v[0:1], v2, off")[0].counter == vm
    assert decoded("global_store_b32 v[0:1], v2, off", architecture=RDNA3)[0].counter == instructions.STORES
    assert decoded("s_waitcnt_depctr depctr_va_vdst(0)", architecture=RDNA3)[0].unit == instructions.FREE


def test_two_in_one_issue_are_one():
    (one,) = decoded("v_dual_mul_f32 v0, v1, v2 :: v_dual_add_f32 v3, v4, v5", architecture=RDNA3)
    assert (one.unit, one.clocks, one.writes, set(one.reads)) == ("valu", 1, (0, 3), {1, 2, 4, 5})


def test_simple_instructions_take_a_turn_each():
    adds = [f"v_add_f32_e32 v{n}, v{n + 20}, v{n + 40}" for n in range(16)]
    assert clocks(*adds, "s_branch 0") == 16 * 4 + 16
    assert clocks(*adds, "s_branch 0", waves=2) == 16 * 4  # one branches while the other adds
    assert clocks(*["v_exp_f32_e32 v0, v1"] * 8, waves=2) == 8 * 16


def test_matrix_instructions_overlap_with_others_on_cdna_alone():
    product = "v_mfma_f32_32x32x8_bf16 v[0:15], v[16:17], v[18:19], v[0:15]"
    adds = [f"v_add_f32_e32 v{n}, v{n + 10}, v{n + 20}" for n in range(100, 104)]
    assert clocks(product, *adds) == 32
    wmma = "v_wmma_f32_16x16x16_bf16 v[0:7], v[8:15], v[16:23], v[0:7]"
    assert clocks(wmma, *adds, architecture=RDNA3) == 32 + 4


def test_a_sum_goes_on_without_its_latency_and_another_result_waits():
    chain = "v_mfma_f32_32x32x8_bf16 v[0:15], v[16:17], v[18:19], v[0:15]"
    assert clocks(chain, chain) == 64
    assert clocks(chain, "v_add_f32_e32 v16, v0, v0") > 32 + CDNA3.matrix_latency


def test_a_wave_waits_for_memory_and_others_run():
    body = ("global_load_dword v0, v[2:3], off", "s_waitcnt vmcnt(0)", *["v_add_f32_e32 v1, v0, v0"] * 50)
    alone = clocks(*body)
    assert alone == pytest.approx(500 + 16 + 50 * 4, rel=0.05)
    assert clocks(*body, waves=4) < alone / 3
    assert clocks(*body, latency=900) == pytest.approx(alone + 400, rel=0.01)


def test_waves_of_a_block_meet_at_barriers():
    body = ("ds_read_b128 v[0:3], v4", "s_waitcnt lgkmcnt(0)", "s_barrier", *["v_add_f32_e32 v5, v0, v0"] * 20)
    for group in (1, 2, 4):
        steady = simulation.simulate(decoded(*body), CDNA3, 4, group, 500)
        assert ("barrier" in steady.waits) == (group > 1)
        assert steady.clocks >= 20 * 4


def test_lds_moves_so_many_bytes_a_clock():
    reads = [f"ds_read_b128 v[{4 * n}:{4 * n + 3}], v100" for n in range(8)]
    assert clocks(*reads, waves=4) == pytest.approx(8 * 1024 / CDNA3.shared_bytes, rel=0.01)


ASSEMBLY = """
0000000000001800 <kernel>:
	s_load_dwordx2 s[0:1], s[2:3], 0x0   // 000000001800: C0060080 00000000
	s_cbranch_scc0 4                     // 000000001808: BF840004 <kernel+0x1c>
	v_add_f32_e32 v0, v1, v2             // 00000000180C: 02000501
	v_mfma_f32_32x32x8_bf16 v[0:15], v[16:17], v[18:19], v[0:15]// 000000001810: D3E00000 04022510
	s_cbranch_scc1 65533                 // 000000001818: BF85FFFC <kernel+0xc>
	v_mfma_f32_32x32x8_bf16 v[0:15], v[16:17], v[18:19], v[0:15]// 00000000181C: D3E00000 04022510
	s_cbranch_scc1 65530                 // 000000001824: BF85FFFD <kernel+0x1c>
	s_cbranch_scc1 65520                 // 000000001828: BF85FFF7 <kernel+0x8>
	s_endpgm                             // 00000000182C: BF810000
"""


def test_innermost_loops_are_found_the_densest_first():
    code = disassembly.parse(ASSEMBLY)
    assert code.offsets[:3] == (0, 8, 12) and code.texts[0] == "s_load_dwordx2 s[0:1], s[2:3], 0x0"
    assert [(loop.begin, len(loop.texts)) for loop in loops.find(code)] == [(0x1C, 2), (0xC, 3)]


def test_what_a_kernel_needs_to_multiply():
    settings = {"BLOCK_M": "128", "BLOCK_N": "64", "head_dim": "128"}
    needed = 4 * 128 * 64 * 128
    assert products.needed_operations("flash.attn_fwd/attn_fwd.general", settings) == needed
    assert products.needed_operations("flash.attn_bwd/attn_bwd_dk_dv", settings) == 2 * needed
    assert products.needed_operations("norm.rms/rms", settings) is None
    assert products.needed_operations("flash.attn_fwd/attn_fwd", {}) is None


def test_duplicates_count_as_issued_and_not_as_needed():
    loop = figures.LoopFigures(
        0, 8, 2, operations=1000, matrix=64, matrix_at_peak=64.0, valu=0, transcendental=0, shared=0, memory=0,
        loaded=0, spills=0, matrix_issues=2, clocks={500: 128.0},
    )  # fmt: skip
    assert loop.needed(2000, warps=4) == 32 and loop.share(loop.needed(2000, warps=4), 500) == 0.25
    assert loop.needed(None, warps=4) == 64 and loop.needed(8000, warps=4) == 64  # a part of a block's step


def test_waves_of_a_simd():
    held = figures.resident("gfx942", Facts(registers=256, shared=16384, threads=256))
    assert (held.blocks, held.warps, held.waves, held.group) == (2, 4, 2.0, 1)
    assert figures.resident("gfx942", Facts(128, 0, 512)).group == 2


@pytest.fixture
def tarball(tmp_path, monkeypatch):
    monkeypatch.setenv("KILN_WORKSPACE", str(tmp_path / "workspace"))
    return str(small_release().tarball)


def test_a_release_compared_and_on_a_page(tarball, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(disassembly, "find_tool", lambda: "llvm-objdump")
    monkeypatch.setattr(disassembly, "disassemble", lambda image, tool: disassembly.parse(ASSEMBLY))
    page = tmp_path / "page.html"
    assert main(["model", tarball, "--json", "--jobs", "1", "--html", str(page)]) == 0
    document = json.loads(capsys.readouterr().out)
    assert {row["target"] for row in document["loops"]} == {"gfx942"}
    first, second = document["loops"][:2]
    assert (first["loop"], second["loop"]) == (0, 1) and first["image"] == second["image"]
    assert first["matrix_issued"] == first["matrix_needed"] == 32 and 0.5 < first["share"] <= first["bound"] == 1
    assert sorted(first["shares"], key=int) == ["120", "500", "900"] and list(second["shares"]) == ["500"]
    text = page.read_text()
    assert text.count("<tr>") > len(document["loops"]) and "<script>" in text
    assert main(["model", tarball, "--against", tarball]) == 0
    assert "geometric mean 1.000" in capsys.readouterr().out
    assert main(["model", tarball, "--html", tarball]) == 2
    assert "is not a page of `kiln model`" in capsys.readouterr().err


@with_disassembler
def test_images_without_matrix_instructions_have_no_share(tarball, capsys):
    assert main(["model", tarball, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["loops"]
    assert rows and all(row["share"] is None and row["valu"] > 0 for row in rows)


@with_disassembler
def test_results_are_kept_for_the_next_time(tarball, tmp_path, capsys, monkeypatch):
    assert main(["model", tarball, "--json", "--jobs", "1"]) == 0
    first = capsys.readouterr().out
    kept = list((tmp_path / "workspace" / many.FOLDER).rglob("*.json"))
    assert kept
    monkeypatch.setattr(many.figures, "model", lambda *words: pytest.fail("modelled again"))
    assert main(["model", tarball, "--json", "--jobs", "1"]) == 0
    assert capsys.readouterr().out == first
    monkeypatch.undo()
    monkeypatch.setenv("KILN_WORKSPACE", str(tmp_path / "workspace"))
    for path in kept:
        path.write_text("{")
    assert main(["model", tarball, "--json", "--jobs", "1"]) == 0
    assert capsys.readouterr().out == first


@with_disassembler
def test_the_folder_of_results_is_a_workspace(tarball, tmp_path, capsys, monkeypatch):
    place = tmp_path / "workspace"
    assert main(["model", tarball, "--json", "--jobs", "1"]) == 0
    assert {path.name for path in place.iterdir()} == {many.FOLDER, WORKSPACE_LOCK}
    with own_workspace(place, print, False):  # as `./kiln` and builds, which refuse what they do not know
        pass
    assert main(["clean", str(place)]) == 0 and "removed model" in capsys.readouterr().out
    other = tmp_path / "letters"
    (other / "to").mkdir(parents=True)
    monkeypatch.setenv("KILN_WORKSPACE", str(other))
    assert main(["model", tarball, "--json", "--jobs", "1"]) == 0
    assert "figures of images are not kept for the next time: workspace" in capsys.readouterr().err
    assert [path.name for path in other.iterdir()] == ["to"]


def test_without_a_disassembler_its_package_is_named(tarball, capsys, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert main(["model", tarball]) == 7
    assert "install Debian's package llvm-22" in capsys.readouterr().err


def test_only_images_for_amd(tarball, capsys):
    assert main(["model", tarball, "--target", "sm_90"]) == 2
    assert "there are no variants for sm_90, only for gfx942" in capsys.readouterr().err
    assert main(["model", tarball, "--shared", "1024"]) == 2
    assert "--shared is for code objects alone" in capsys.readouterr().err


def test_a_target_without_limits_is_refused():
    bare = [target.name for target in targets.load() if target.vendor == "amd" and target.residency is None]
    for name in bare:
        with pytest.raises(UsageError, match="targets.yaml lacks the limits"):
            figures.resident(name, Facts(64, 0, 256))


def test_figures_survive_their_file():
    its = figures.ImageFigures(2.0, 2, 4, (figures.LoopFigures(0, 8, 2, 1, 2, 3.0, 4, 5, 6.0, 7.0, 8, 9, 10,
                                                               {500: 1.5}, {"LDS": 0.5}),))  # fmt: skip
    assert many.read(json.loads(json.dumps(dataclasses.asdict(its)))) == its


def test_images_without_matrices_are_said_to_have_nothing_to_compare():
    (line,) = show.lines([], [])
    assert line.startswith("nothing to compare: no combination of choices that multiplies matrices is in both")
