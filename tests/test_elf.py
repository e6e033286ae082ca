"""Code objects: facts against what the compilers themselves report, stripping, and no crash on any damage.

The images are made here, by Triton and its assembler, for a kernel that uses shared memory.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import random
import re
import struct
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from elftools.common.exceptions import ELFError
from elftools.elf.elffile import ELFFile
from elftools.elf.sections import NoteSection

from kiln_recipe import targets
from kiln_recipe.errors import ArtifactError, ToolchainError
from kiln_recipe.images import elf, elf_file, elf_limits

KERNEL = """
import triton
import triton.language as tl


@triton.jit
def product(a_ptr, b_ptr, out_ptr, scale, n, N: tl.constexpr):
    i = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
    a = tl.load(a_ptr + i, mask=i < n)
    out = tl.dot(a, tl.load(b_ptr + i, mask=i < n))
    tl.store(out_ptr + i, out * scale)
"""

COMPILE = """
import contextlib, io, json, pathlib, sys
import kernel, triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

out = pathlib.Path(sys.argv[1])
targets = {"gfx942": ("hip", "gfx942", 64), "gfx1100": ("hip", "gfx1100", 32), "sm_80": ("cuda", 80, 32),
           "sm_90": ("cuda", 90, 32)}
for name, target in targets.items():
    signature = {"a_ptr": "*bf16", "b_ptr": "*bf16", "out_ptr": "*fp32", "scale": "fp32", "n": "i64", "N": "constexpr"}
    source = ASTSource(kernel.product, signature, {"N": 64})
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        compiled = triton.compile(source, target=GPUTarget(*target), options={"num_warps": 4})
    (out / name).write_bytes(compiled.asm["cubin" if target[0] == "cuda" else "hsaco"])
    (out / f"{name}.log").write_text(printed.getvalue())
    (out / f"{name}.asm").write_text(compiled.asm["ptx" if target[0] == "cuda" else "amdgcn"])
    (out / f"{name}.json").write_text(json.dumps({"shared": compiled.metadata.shared}))
"""

AMD, NVIDIA = ["gfx942", "gfx1100"], ["sm_80", "sm_90"]
PARAMETER_SIZES = [8, 8, 8, 4, 8, 8, 8]  # the last two: Triton's hidden ones


@pytest.fixture(scope="module", params=["plain", "lines"])
def images(request, tmp_path_factory) -> Path:
    """A folder of images, without and with line information."""
    pytest.importorskip("triton")
    folder = tmp_path_factory.mktemp(request.param)
    (folder / "kernel.py").write_text(KERNEL)
    (folder / "compile.py").write_text(COMPILE)
    import triton

    ptxas = Path(triton.__file__).parent / "backends/nvidia/bin/ptxas"
    environment = {
        "PATH": "/usr/bin:/bin",
        "TRITON_CACHE_DIR": str(folder / "cache"),
        "TRITON_DISABLE_LINE_INFO": "1" if request.param == "plain" else "0",
        "TRITON_DUMP_PTXAS_LOG": "1",
        "TRITON_PTXAS_PATH": str(ptxas),
        "TRITON_PTXAS_BLACKWELL_PATH": str(ptxas),
    }
    subprocess.run([sys.executable, "compile.py", folder], cwd=folder, env=environment, check=True)
    return folder


def read(images: Path, name: str) -> tuple[bytes, str, str]:
    return (images / name).read_bytes(), (images / f"{name}.log").read_text(), (images / f"{name}.asm").read_text()


@pytest.mark.parametrize("name", AMD)
def test_amd_facts_are_those_of_the_assembly(images, name):
    code, _, assembly = read(images, name)
    facts = elf.amd_facts(code)

    def stated(key: str) -> int:
        return int(re.search(rf"\.{key}:\s*(\d+)", assembly)[1])

    assert (facts.target, facts.kernel, facts.symbol) == (name, "product", "product.kd")
    assert facts.code_object_version == 5
    assert facts.wavefront_size == {"gfx942": 64, "gfx1100": 32}[name] == stated("wavefront_size")
    assert facts.max_flat_workgroup_size == 4 * facts.wavefront_size
    assert (facts.sgprs, facts.vgprs) == (stated("sgpr_count"), stated("vgpr_count"))
    assert (facts.sgpr_spills, facts.vgpr_spills) == (stated("sgpr_spill_count"), stated("vgpr_spill_count"))
    assert (facts.group_segment, facts.private_segment) == (
        stated("group_segment_fixed_size"),
        stated("private_segment_fixed_size"),
    )
    assert facts.kernarg_size == stated("kernarg_segment_size")
    assert [argument.size for argument in facts.arguments] == PARAMETER_SIZES
    assert facts.arguments[0].kind == "global_buffer" and facts.arguments[3].kind == "by_value"
    end = 0
    for argument in facts.arguments:
        assert argument.offset >= end and argument.offset % argument.size == 0
        end = argument.offset + argument.size


def test_what_hip_fills_is_no_parameter(images, monkeypatch):
    """A kernel that may ask for the size of the grid gets it, and much else, behind its own arguments."""
    code, *_ = read(images, "gfx942")
    facts = elf.amd_facts(code)
    hidden = (elf.Parameter(facts.kernarg_size, 4, "hidden_block_count_x"),)
    assert elf.stated_facts(code)[0]["parameters"] == len(PARAMETER_SIZES)
    monkeypatch.setattr(elf, "amd_facts", lambda code: replace(facts, arguments=facts.arguments + hidden))
    assert elf.stated_facts(code)[0]["parameters"] == len(PARAMETER_SIZES)
    assert elf.amd_facts(code).parameters == len(PARAMETER_SIZES) == len(elf.amd_facts(code).arguments) - 1


@pytest.mark.parametrize("name", NVIDIA)
def test_nvidia_facts_are_those_of_the_assembler(images, name):
    code, log, ptx = read(images, name)
    facts, report = elf.nvidia_facts(code), elf.ptxas_report(log, "product")
    assert (facts.sm, facts.abi, facts.kernel) == (int(name[3:]), 7, "product")
    assert (facts.threads, facts.threads_required) == (int(re.search(r"\.reqntid (\d+)", ptx)[1]), True)
    assert (facts.registers, facts.stack, facts.shared) == (report.registers, report.stack, report.static_shared)
    assert [parameter.size for parameter in facts.parameters] == PARAMETER_SIZES
    assert facts.parameters[4].offset == 32, "an 8-byte parameter after a 4-byte one"
    assert f"Used {facts.registers} registers" in log


def sections(code: bytes) -> dict[str, bytes]:
    return {s.name: s.data() for s in ELFFile(io.BytesIO(code)).iter_sections() if s["sh_type"] != "SHT_NOBITS"}


@pytest.mark.parametrize("name", AMD + NVIDIA)
def test_strip_keeps_what_runs(images, name):
    code, _, _ = read(images, name)
    stripped = elf.strip(code)
    facts = elf.amd_facts if name in AMD else elf.nvidia_facts
    assert facts(stripped) == facts(code)
    assert elf.strip(stripped) == stripped == elf.strip(code)
    before, after = sections(code), sections(stripped)
    assert list(before) == list(after), "sections are referred to by number"
    debug = {n for n in before if re.match(r"(\.rela?)?\.(debug|nv_debug)_|\.comment", n)}
    assert {n: d for n, d in after.items() if n not in debug} == {n: d for n, d in before.items() if n not in debug}
    if images.name.startswith("lines"):
        assert debug and all(after[name] == b"" for name in debug)
        assert len(stripped) < (0.95 if name in AMD else 0.6) * len(code)
    for old, new in zip(ELFFile(io.BytesIO(code)).iter_segments(), ELFFile(io.BytesIO(stripped)).iter_segments()):
        assert {**old.header, "p_offset": 0} == {**new.header, "p_offset": 0}
        assert (old["p_offset"] - new["p_offset"]) % max(1, old["p_align"]) == 0
    for old, new in zip(ELFFile(io.BytesIO(code)).iter_sections(), ELFFile(io.BytesIO(stripped)).iter_sections()):
        alignment = max(1, old["sh_addralign"])
        assert new["sh_offset"] % alignment == old["sh_offset"] % alignment


@pytest.mark.parametrize("name", AMD + NVIDIA)
def test_without_line_information_little_is_left_to_strip(images, name):
    if images.name.startswith("plain"):
        code, _, _ = read(images, name)
        assert len(code) - len(elf.strip(code)) < 512


@pytest.mark.parametrize("name", AMD + NVIDIA)
def test_the_wrong_kind(images, name):
    code, _, _ = read(images, name)
    assert elf.kind_of(code) == ("hsaco" if name in AMD else "cubin")
    with pytest.raises(ArtifactError, match="not a cubin" if name in AMD else "not a hsaco"):
        (elf.nvidia_facts if name in AMD else elf.amd_facts)(code)


@pytest.mark.parametrize("content", [b"", b"\x7fELF", b"x" * 100, Path(sys.executable).read_bytes()[:5000]])
def test_no_image(content):
    for function in (elf.amd_facts, elf.nvidia_facts, elf.strip, elf.kind_of):
        with pytest.raises(ArtifactError, match="must be a 64-bit ELF file"):
            function(content)


@pytest.mark.parametrize("name", AMD + NVIDIA)
def test_no_damage_is_a_crash(images, name):
    """Every truncation of the structure and a thousand altered words: facts, or one sentence."""
    code, _, _ = read(images, name)
    source = random.Random(7)
    facts = elf.amd_facts if name in AMD else elf.nvidia_facts
    interesting = [*range(0, 64, 2), *range(len(code) - 1500, len(code) - 4, 8)]
    wrong = 0
    for _ in range(300):
        bad = bytearray(code)
        position = source.choice([source.choice(interesting), source.randrange(len(code) - 4)])
        struct.pack_into("<I", bad, position, source.choice([0, 1, 0x7FFFFFFF, 0xFFFFFFFF, source.getrandbits(32)]))
        if source.random() < 0.1:
            del bad[source.randrange(len(bad)) :]
        for function in (facts, elf.strip):
            try:
                function(bytes(bad))
            except ArtifactError as error:
                wrong += 1
                assert "\n" not in str(error)
    assert wrong > 20


METADATA = (32, "NT_AMDGPU_METADATA")  # as versions of pyelftools name it


def by_pyelftools(code: bytes) -> tuple:
    """Sections with their contents, the numbers of the kernel's symbols, and AMD's notes."""
    sections = list(ELFFile(io.BytesIO(code)).iter_sections())
    table = next((s for s in sections if s.name == ".symtab" and s["sh_type"] in ("SHT_SYMTAB", "SHT_DYNSYM")), None)
    numbers = [n for n, s in enumerate(table.iter_symbols()) if s.name == "product"] if table else []
    notes = [note for s in sections if isinstance(s, NoteSection) for note in s.iter_notes()]
    return (
        [(s.name, b"" if s["sh_type"] in ("SHT_NULL", "SHT_NOBITS") else s.data()) for s in sections],
        numbers,
        [note["n_descdata"] for note in notes if note["n_name"] == "AMDGPU" and note["n_type"] in METADATA],
    )


def by_kiln(code: bytes) -> tuple:
    sections = elf_file.named(code)
    table = next((s for name, s in sections if name == ".symtab" and s.kind in elf_file.SYMBOL_TABLES), None)
    return (
        [(name, elf_file.content(code, section)) for name, section in sections],
        elf_file.symbols(code, table, "product") if table else [],
        [content for name, kind, content in elf_file.notes(code) if (name, kind) == (b"AMDGPU\0", 32)],
    )


@pytest.mark.parametrize("name", AMD + NVIDIA)
def test_what_is_read_is_what_pyelftools_reads(images, name):
    """Of the image, and of what its limits let pass of damaged headers and tables."""
    code, _, _ = read(images, name)
    assert by_kiln(code) == by_pyelftools(code) and by_kiln(code)[1]
    assert len(by_kiln(code)[2]) == (name in AMD)
    source = random.Random(3)
    start, count = struct.unpack_from("<Q", code, 40)[0], struct.unpack_from("<H", code, 60)[0]
    same = 0
    for _ in range(200):
        bad = bytearray(code)
        position = source.choice([source.randrange(len(code) - 4), start + 4 * source.randrange(16 * count)])
        struct.pack_into("<I", bad, position, source.choice([0, 1, 3, 7, 8, 0xFFFFFFFF, source.getrandbits(8)]))
        try:
            elf_limits.check(bytes(bad))
            assert by_kiln(bytes(bad)) == by_pyelftools(bytes(bad))
            same += 1
        except (ArtifactError, ValueError, ELFError):  # what either refuses
            pass
    assert same > 100


def test_a_note_that_is_cut_off(images):
    code = bytearray(read(images, "gfx942")[0])
    note = next(section for section in elf_file.sections(bytes(code)) if section.kind == elf_file.NOTE)
    struct.pack_into("<I", code, note.offset + 4, note.size)
    with pytest.raises(ArtifactError, match=r"the hsaco is truncated or corrupt \(a note is cut off\)"):
        elf.amd_facts(bytes(code))


def test_header_against_metadata(images):
    code = bytearray(read(images, "gfx942")[0])
    code[48] = 0x3F
    with pytest.raises(ArtifactError, match="for gfx90a by its header and for gfx942 by its metadata"):
        elf.amd_facts(bytes(code))


def test_a_machine_that_is_unknown_is_refused(images):
    code = bytearray(read(images, "gfx942")[0])
    code[48] = 0xFE
    with pytest.raises(ArtifactError, match="for machine 0xfe by its header, which Kiln does not know; it must be one"):
        elf.amd_facts(bytes(code))


def test_the_header_of_every_target_is_known():
    assert {t.name for t in targets.load() if t.vendor == "amd"} <= {*elf.AMD_MACHINES.values()}


REPORT = """ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'bar' for 'sm_90'
ptxas info    : Function properties for bar
    8 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 10 registers, used 1 barriers, 256 bytes smem
ptxas info    : Compile time = 25.416 ms
ptxas info    : Compiling entry function 'foo' for 'sm_90'
ptxas info    : Function properties for foo
    4096 bytes stack frame, 12 bytes spill stores, 16 bytes spill loads
ptxas info    : Used 40 registers, used 0 barriers, 4112 bytes cumulative stack size, 128+16 bytes smem
ptxas info    : Compile time = 1.787 ms
ptxas info    : Function properties for helper
    16 bytes stack frame, 4 bytes spill stores, 4 bytes spill loads
"""


def test_ptxas_report():
    assert elf.ptxas_report(REPORT, "bar") == elf.PtxasReport(10, 0, 0, 8, 256)
    assert elf.ptxas_report(REPORT, "foo") == elf.PtxasReport(40, 16, 20, 4112, 128)
    with pytest.raises(ToolchainError, match="nothing on fo"):
        elf.ptxas_report(REPORT, "fo")


PTX = """.version 8.7
.target {arch}
.address_size 64
.shared .align 16 .b8 tile[256];
.visible .entry kernel(.param .u64 p, .param .align 64 .b8 big[{big}], .param .u32 n) {directive}
{{ .reg .u64 %rd<4>; .reg .u32 %r<4>; ld.param.u64 %rd1,[p]; mov.u32 %r1, %tid.x; mov.u32 %r2, tile;
   st.shared.u32 [%r2], %r1; bar.sync 0; ld.shared.u32 %r3,[%r2+4]; st.global.u32 [%rd1], %r3; ret; }}
"""


@pytest.mark.parametrize(
    ("arch", "big", "directive", "abi", "threads"),
    [
        ("sm_80", 128, ".reqntid 64", 7, (64, True)),
        ("sm_89", 128, "", 7, (0, False)),
        ("sm_90", 8000, ".maxntid 96, 2", 7, (192, False)),
        ("sm_90a", 128, ".reqntid 8, 4, 2", 7, (64, True)),
        ("sm_100a", 128, ".reqntid 64", 8, (64, True)),
        ("sm_120", 128, ".reqntid 64", 8, (64, True)),
    ],
)
def test_cubins_of_every_generation(tmp_path, arch, big, directive, abi, threads):
    triton = pytest.importorskip("triton")
    ptxas = Path(triton.__file__).parent / "backends/nvidia/bin/ptxas"
    (tmp_path / "k.ptx").write_text(PTX.format(arch=arch, big=big, directive=directive))
    command = [ptxas, "-v", f"-arch={arch}", "k.ptx", "-o", "k.cubin"]
    done = subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True)
    report = elf.ptxas_report(done.stderr + done.stdout, "kernel")
    facts = elf.nvidia_facts((tmp_path / "k.cubin").read_bytes())
    assert (facts.sm, facts.abi) == (int(re.search(r"\d+", arch)[0]), abi)
    assert facts.shared == report.static_shared == 256
    assert facts.registers == report.registers
    assert (facts.threads, facts.threads_required) == threads
    # Offsets are relative to the constant bank's own start, which is a multiple of 16 only, so 64 is not among them.
    first, second, third = facts.parameters
    assert (first.size, second.size, third.size) == (8, big, 4)
    assert first.offset + first.size <= second.offset and second.offset + second.size == third.offset


def test_several_kernels(tmp_path):
    triton = pytest.importorskip("triton")
    ptxas = Path(triton.__file__).parent / "backends/nvidia/bin/ptxas"
    text = PTX.format(arch="sm_90", big=8, directive="")
    (tmp_path / "k.ptx").write_text(text + "\n.visible .entry other(){ ret; }\n")
    subprocess.run([ptxas, "-arch=sm_90", "k.ptx", "-o", "k.cubin"], cwd=tmp_path, check=True)
    with pytest.raises(ArtifactError, match="has 2 kernels"):
        elf.nvidia_facts((tmp_path / "k.cubin").read_bytes())


def test_needs_no_more_than_pyelftools():
    """On another machine: no msgspec, no PyYAML, no Triton."""
    program = (
        "import sys; from kiln_recipe.images import elf; "
        "print([m for m in ('msgspec', 'yaml', 'jinja2', 'triton', 'zstandard', 'tqdm') if m in sys.modules])"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(elf.__file__).parents[2])}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.strip() == "[]"


def test_same_bytes_every_time(images):
    digests = {n: hashlib.sha256(elf.strip(read(images, n)[0])).hexdigest() for n in AMD + NVIDIA}
    assert json.dumps(digests) == json.dumps(
        {n: hashlib.sha256(elf.strip(read(images, n)[0])).hexdigest() for n in digests}
    )
