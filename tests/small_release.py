"""A small but real release for tests: two packs of images that Triton and ptxas made, libraries that gcc made.

Made once a test run; tests copy what they want to damage.
"""

from __future__ import annotations

import functools
import hashlib
import os
import pickle
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import shared
from kiln_build.artifacts import left_out, manifest, pack, pack_writer, split
from kiln_build.release import package, release
from kiln_recipe import targets
from kiln_recipe.compile.toolchain import Toolchain
from kiln_recipe.images import elf
from kiln_recipe.images.image import ImageInfo

ROOT = Path(__file__).parent.parent
VERSION = "0.1.0b"

KERNEL = """
import triton, triton.language as tl

@triton.jit
def scale(x_ptr, out_ptr, factor, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + i, tl.load(x_ptr + i, mask=i < n) * factor, mask=i < n)
"""
COMPILE = """
import pathlib, sys
import kernel, triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
for name, target in {"gfx942": ("hip", "gfx942", 64), "sm_90": ("cuda", 90, 32)}.items():
    for block in (256, 1024):
        for dtype in ("fp16", "bf16"):
            data = "*" + dtype
            signature = {"x_ptr": data, "out_ptr": data, "factor": "fp32", "n": "i64", "BLOCK": "constexpr"}
            source, options = ASTSource(kernel.scale, signature, {"BLOCK": block}), {"ptx_version": 80}
            options = options if target[0] == "cuda" else {}
            compiled = triton.compile(source, target=GPUTarget(*target), options=options)
            kind = "cubin" if target[0] == "cuda" else "hsaco"
            pathlib.Path(f"{name}-{block}-{dtype}").write_bytes(compiled.asm[kind])
            if kind == "cubin":
                pathlib.Path(f"{name}-{block}-{dtype}.ptx").write_text(compiled.asm["ptx"])
"""


@dataclass(frozen=True)
class SmallRelease:
    """`stage`: the folder of its contents; `tarball`: what was made of it; `packs`: paths by target."""

    stage: Path
    tarball: Path
    packs: dict[str, Path]
    images: Path
    inputs: manifest.Inputs


@functools.cache
def images() -> Path:
    """A folder of images: <target>-<block>-<dtype>, and .ptx for NVIDIA."""
    return shared.once("images", _compile_images)


def _compile_images(folder: Path) -> None:
    import triton

    (folder / "kernel.py").write_text(KERNEL)
    (folder / "compile.py").write_text(COMPILE)
    ptxas = str(Path(triton.__file__).parent / "backends/nvidia/bin/ptxas")
    environment = {
        "PATH": os.environ["PATH"],
        "TRITON_CACHE_DIR": str(folder / "cache"),
        "TRITON_DISABLE_LINE_INFO": "1",
        "TRITON_PTXAS_PATH": ptxas,
        "TRITON_PTXAS_BLACKWELL_PATH": ptxas,
    }
    subprocess.run([sys.executable, "compile.py"], cwd=folder, env=environment, check=True)


def info_of(code: bytes) -> ImageInfo:
    """What compile.py notes of an image that spills nothing."""
    common = {"spills": 0, "scratch": 0, "scratch_align": 1, "profile_scratch": 0, "clusters": 1}
    if elf.kind_of(code) == "hsaco":
        facts = elf.amd_facts(code)
        return ImageInfo(
            "hsaco", facts.kernel, threads=facts.max_flat_workgroup_size, shared=facts.group_segment,
            registers=facts.vgprs, stack=facts.private_segment, parameters=len(facts.arguments),
            abi=facts.code_object_version, ptx_version="", **common,
        )  # fmt: skip
    facts = elf.nvidia_facts(code)
    return ImageInfo(
        "cubin", facts.kernel, threads=facts.threads, shared=facts.shared, registers=facts.registers,
        stack=facts.stack, parameters=len(facts.parameters), abi=facts.abi, ptx_version="8.0", **common,
    )  # fmt: skip


def write_pack(folder: Path, target: str, with_ptx: bool = False, sources: str = "") -> Path:
    """A pack of 3 functionals x 2 configurations x 2 specializations. The last of bf16 is unavailable; fp32
    is left out, one configuration for a reason of its own. Other `sources` have other keys and the same images."""
    contents: dict[str, bytes] = {}
    slots = []

    def add(data: bytes) -> str:
        digest = hashlib.sha256(data).hexdigest()
        contents[digest] = data
        return digest

    for dtype in ("fp16", "bf16"):
        for block in (256, 1024):
            for specialization in ("aligned", "generic"):
                key = hashlib.sha256(f"{target} {dtype} {block} {specialization}{sources}".encode()).hexdigest()
                if (dtype, block, specialization) == ("bf16", 1024, "generic"):
                    slots.append(pack.Slot(key, reason="not on this GPU"))
                    continue
                image = add(elf.strip((images() / f"{target}-{block}-{dtype}").read_bytes()))
                ptx = add((images() / f"{target}-{block}-{dtype}.ptx").read_bytes()) if with_ptx else None
                slots.append(pack.Slot(key, image, ptx))
    for reason in ("not in this build", "too large"):
        slots += [pack.Slot(left_out.NO_KEY, reason=reason)] * 2
    kernel = pack.KernelSlots(
        "toy", "scale", "scale", ("dtype=fp16", "dtype=bf16", "dtype=fp32"),
        ("BLOCK=256 num_warps=4", "BLOCK=1024 num_warps=4"), ("aligned", "generic"),
        hashlib.sha256(b"layout").hexdigest(), tuple(slots),
    )  # fmt: skip
    path = folder / targets.by_name(target).pack_file
    folder.mkdir(parents=True, exist_ok=True)
    pack_writer.write_pack(
        path, target, split.INSTRUCTIONS[targets.by_name(target).instructions], VERSION, [kernel],
        lambda d: info_of(contents[d]), contents.__getitem__, elf.code_ranges,
    )  # fmt: skip
    return path


def build_libraries(folder: Path, digests: list[str]) -> dict[str, Path]:
    """libkiln.so.0 with kiln_version(), and libkiln_toy.so, which needs it and holds the packs' index digests."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "core.c").write_text(f'const char* kiln_version(void) {{ return "{VERSION}"; }}\n')
    rows = ", ".join("{" + ", ".join(str(byte) for byte in bytes.fromhex(d)) + "}" for d in digests) or "{0}"
    (folder / "toy.c").write_text(
        "const char* kiln_version(void);\n"
        f"const unsigned char kiln_toy_digests[][32] = {{{rows}}};\n"
        "const char* kiln_toy(void) { return kiln_version(); }\n"
    )
    flags = ["-shared", "-fPIC", "-O1"]
    subprocess.run(["gcc", *flags, "core.c", "-Wl,-soname,libkiln.so.0", "-o", "libkiln.so.0"], cwd=folder, check=True)
    subprocess.run(
        ["gcc", *flags, "toy.c", "libkiln.so.0", "-Wl,-soname,libkiln_toy.so", "-Wl,-rpath,$ORIGIN",
         "-Wl,--enable-new-dtags", "-o", "libkiln_toy.so"], cwd=folder, check=True,
    )  # fmt: skip
    return {name: folder / name for name in ("libkiln.so.0", "libkiln_toy.so")}


def contents(folder: Path, packs: dict[str, Path]) -> release.Contents:
    digests = [pack.read_pack(path).index_digest for path in packs.values()]
    headers: dict[str, Path | str] = {f"kiln/{p.name}": p for p in sorted((ROOT / "include/kiln").glob("*.h"))}
    headers["kiln/version.h"] = package.version_header((ROOT / "include/kiln/version.h.in").read_text(), VERSION)
    return release.Contents(
        version=VERSION,
        libraries=build_libraries(folder / "libraries", digests),
        families=("toy",),
        packs={path.name: path for path in packs.values()},
        headers=headers,
        templates=ROOT / "cmake",
        notices={"LICENSE": "A licence.\n", "licences/zstd.txt": "Another.\n"},
    )


@functools.cache
def small_release() -> SmallRelease:
    """The release with packs for gfx942, and for sm_90 with PTX."""
    folder = shared.once("small release", _make)
    return pickle.loads((folder / "release.pickle").read_bytes())


@functools.cache
def linked_release() -> SmallRelease:
    """The same with two prefixes below lib/other/, whose packs, and a header, are hard links."""
    folder = shared.once("linked release", _make_linked)
    return pickle.loads((folder / "release.pickle").read_bytes())


def _make_linked(folder: Path) -> None:
    made = small_release()
    shutil.copytree(made.stage, folder / "stage", symlinks=True)
    (folder / "stage" / manifest.PATH).unlink()
    for version in ("1.0", "2.0"):
        prefix = folder / "stage/lib/other" / version
        for part in ("include", "lib/other.images"):
            (prefix / part).mkdir(parents=True)
        shutil.copyfile(folder / "stage/lib/libkiln_toy.so", prefix / "lib/libother.so.2")
        (prefix / "lib/libother.so").symlink_to("libother.so.2")
        (prefix / "include/version.h").write_text(f"// {version}\n")
        os.link(folder / "stage/include/kiln/kiln.h", prefix / "include/kiln.h")
        for path in made.packs.values():
            os.link(folder / "stage/lib/kiln.images" / path.name, prefix / "lib/other.images" / path.name)
    _seal(folder, made.inputs, made.packs)


def _seal(folder: Path, inputs: manifest.Inputs, packs: dict[str, Path]) -> None:
    rows = manifest.make_manifest(inputs, folder / "stage", release.PLATFORM)
    (folder / "stage" / manifest.PATH).write_bytes(manifest.encode(rows))
    tarball = release.make_release(folder / "stage", folder, VERSION)
    made = SmallRelease(folder / "stage", tarball, packs, images(), inputs)
    (folder / "release.pickle").write_bytes(pickle.dumps(made))


def _make(folder: Path) -> None:
    packs = {name: write_pack(folder / "packs", name, with_ptx=name == "sm_90") for name in ("gfx942", "sm_90")}
    release.lay_out(contents(folder, packs), folder / "stage")
    digest = hashlib.sha256(b"tool").hexdigest()
    files = tuple((name, digest) for name in ("ptxas", "libdevice", "ockl", "ocml"))
    toolchain = Toolchain(site="/nowhere", triton_version="3.8.0", files=files)
    inputs = manifest.Inputs(
        version=VERSION,
        profile="core",
        selection="",
        ptx=True,
        source=manifest.Source(commit="1" * 40, dirty=False),
        tools=(manifest.Tool(name="zig", version="0.17.0", sha256=digest),),
        targets=tuple(targets.by_name(name) for name in packs),
        toolchains=dict.fromkeys(packs, toolchain),
        packs={name: pack.read_pack(path) for name, path in packs.items()},
        waivers=(manifest.Waiver(kernel="toy.scale/scale", reason="not on this GPU", covers=2, missing=2),),
    )
    _seal(folder, inputs, packs)
