"""Facts read off code objects, and their stripping. Needs only the standard library and pyelftools: `kiln inspect`
reads images on machines that have no more.

Where the facts stand. AMD: the MessagePack map of the note NT_AMDGPU_METADATA and the ELF header ("User Guide for
AMDGPU Backend" of LLVM). NVIDIA: the attributes of `.nv.info` and `.nv.info.<kernel>`, the size of
`.nv.shared.<kernel>` and the ELF header; registers and frames are there, spills only the assembler reports.
"""

from __future__ import annotations

import io
import re
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, cast

from elftools.common.exceptions import ELFError
from elftools.construct import ConstructError
from elftools.elf.elffile import ELFFile

from kiln_recipe.errors import ArtifactError, ToolchainError
from kiln_recipe.images import elf_file, elf_limits, messagepack
from kiln_recipe.shape import is_line

_AMDGPU_MACHINE = 224
_CUDA_MACHINE = 190

# e_flags & 0xff of a code object (EF_AMDGPU_MACH), to hold against the target that the metadata names: all that Triton
# compiles for, so that a new target needs nothing here. Not in targets.yaml, which needs a reader of YAML.
AMD_MACHINES = {
    0x30: "gfx908", 0x3F: "gfx90a", 0x4C: "gfx942", 0x4F: "gfx950", 0x36: "gfx1030", 0x41: "gfx1100", 0x46: "gfx1101",
    0x47: "gfx1102", 0x44: "gfx1103", 0x43: "gfx1150", 0x4A: "gfx1151", 0x55: "gfx1152", 0x58: "gfx1153",
    0x5D: "gfx1170", 0x5E: "gfx1171", 0x5C: "gfx1172", 0x48: "gfx1200", 0x4E: "gfx1201", 0x49: "gfx1250",
    0x5A: "gfx1251",
}  # fmt: skip
_NT_AMDGPU_METADATA = 32

# Attributes of .nv.info: u8 format, u8 attribute, then a u16 value or, in format 4, a u16 size and that many bytes.
_SIZED = 4
_MAX_THREADS, _REQUIRED_THREADS = 0x05, 0x10
_FRAME_SIZE, _MIN_STACK_SIZE = 0x11, 0x12
_PARAMETER, _WIDE_PARAMETER = 0x17, 0x45
_REGISTER_COUNT = 0x2F

# From sm_90 on the system keeps so many bytes of each block's shared memory; they count in `.nv.shared.<kernel>`, but
# neither in the assembler's report nor against a block's limit.
_SYSTEM_SHARED = 1024

TENSOR_MAP_BYTES = 128  # of a CUtensorMap


@dataclass(frozen=True)
class Parameter:
    """A kernel parameter. `offset` and `size`: bytes, in the argument buffer. `kind`: AMD's value_kind, or ""."""

    offset: int
    size: int
    kind: str = ""


@dataclass(frozen=True)
class AmdFacts:
    """Facts of a code object with one kernel. Registers are per thread (SGPRs: per wavefront), sizes in bytes.

    Attributes:
        target: "gfx942", of the metadata, with features as "gfx90a:xnack+" if the code object fixes any.
        kernel: the kernel's name.
        symbol: its descriptor, "<kernel>.kd".
        vgprs: vector registers, accumulation registers included where the two share one file.
        vgpr_spills, sgpr_spills: registers (of 4 bytes) stored by spills.
        group_segment: static LDS of a block. private_segment: scratch of a thread.
    """

    target: str
    code_object_version: int
    kernel: str
    symbol: str
    wavefront_size: int
    max_flat_workgroup_size: int
    sgprs: int
    vgprs: int
    agprs: int
    sgpr_spills: int
    vgpr_spills: int
    group_segment: int
    private_segment: int
    kernarg_size: int
    arguments: tuple[Parameter, ...]

    @property
    def parameters(self) -> int:
        """How many arguments a launch passes: not those that HIP itself fills, such as the size of the grid."""
        return sum(not argument.kind.startswith("hidden_") for argument in self.arguments)


@dataclass(frozen=True)
class NvidiaFacts:
    """Facts of a cubin with one kernel. Sizes in bytes.

    Attributes:
        sm: 90 for sm_90 and sm_90a alike: newer assemblers no longer write which.
        abi: ELF ABI version; 8 needs a driver of the 13.x generation.
        threads: of a block: exactly so many if `threads_required`, else at most; 0 if the cubin says nothing.
        shared: static shared memory of a block.
        stack: local memory of a thread.
    """

    sm: int
    abi: int
    kernel: str
    registers: int
    shared: int
    stack: int
    threads: int
    threads_required: bool
    parameters: tuple[Parameter, ...]


@dataclass(frozen=True)
class PtxasReport:
    """What `ptxas -v` says of a kernel and the functions that it calls. Spills and stack: bytes of a thread."""

    registers: int
    spill_stores: int
    spill_loads: int
    stack: int
    static_shared: int


def kind_of(code: bytes) -> str:
    """ "cubin" or "hsaco".

    Raises:
        ArtifactError: it is neither.
    """
    if len(code) >= 64 and code[:6] == b"\x7fELF\x02\x01":
        machine = struct.unpack_from("<H", code, 18)[0]
        if machine in (_AMDGPU_MACHINE, _CUDA_MACHINE):
            return "hsaco" if machine == _AMDGPU_MACHINE else "cubin"
    raise ArtifactError("not an image: it must be a 64-bit ELF file for AMD or NVIDIA GPUs")


def amd_facts(code: bytes) -> AmdFacts:
    """Facts of an AMD code object.

    Raises:
        ArtifactError: it is no such file, malformed, or has not exactly one kernel.
    """
    with _checked("hsaco", code):
        metadata = _amd_metadata(code)
        kernels = metadata["amdhsa.kernels"]
        if len(kernels) != 1:
            raise ArtifactError(f"the code object has {len(kernels)} kernels; Kiln's images have one")
        (kernel,) = kernels
        target = _name(metadata["amdhsa.target"]).rpartition("--")[2]
        number = _U32.unpack_from(code, 48)[0] & 0xFF
        mach = AMD_MACHINES.get(number)
        if mach is None:
            raise ArtifactError(
                f"the code object is for machine 0x{number:02x} by its header, which Kiln does not know; "
                f"it must be one of {', '.join(AMD_MACHINES.values())}"
            )
        if mach != target.split(":")[0]:
            raise ArtifactError(f"the code object is for {mach} by its header and for {target} by its metadata")
        return AmdFacts(
            target=target,
            code_object_version=code[8] + 2,
            kernel=_name(kernel[".name"]),
            symbol=_name(kernel[".symbol"]),
            wavefront_size=_count(kernel[".wavefront_size"]),
            max_flat_workgroup_size=_count(kernel[".max_flat_workgroup_size"]),
            sgprs=_count(kernel[".sgpr_count"]),
            vgprs=_count(kernel[".vgpr_count"]),
            agprs=_count(kernel.get(".agpr_count", 0)),
            sgpr_spills=_count(kernel.get(".sgpr_spill_count", 0)),
            vgpr_spills=_count(kernel.get(".vgpr_spill_count", 0)),
            group_segment=_count(kernel[".group_segment_fixed_size"]),
            private_segment=_count(kernel[".private_segment_fixed_size"]),
            kernarg_size=_count(kernel[".kernarg_segment_size"]),
            arguments=tuple(
                Parameter(_count(a[".offset"]), _count(a[".size"]), _name(a[".value_kind"]))
                for a in kernel.get(".args", ())
            ),
        )


def nvidia_facts(cubin: bytes) -> NvidiaFacts:
    """Facts of a cubin.

    Raises:
        ArtifactError: it is no cubin, malformed, or has not exactly one kernel.
    """
    with _checked("cubin", cubin):
        abi, flags = cubin[8], _U32.unpack_from(cubin, 48)[0]
        # The architecture moved by a byte with ABI 8.
        sm = flags & 0xFF if abi < 8 else flags >> 8 & 0xFF
        named = elf_file.named(cubin)
        names = [name.removeprefix(".nv.info.") for name, _ in named if name.startswith(".nv.info.")]
        if len(names) != 1:
            raise ArtifactError(f"the cubin has {len(names)} kernels; Kiln's images have one")
        kernel, sections = _name(names[0]), dict(named)
        symbols = {_U32.pack(number) for number in elf_file.symbols(cubin, _section(sections, ".symtab"), kernel)}
        common = [v for v in _nv_attributes(cubin, _section(sections, ".nv.info")) if v[1][:4] in symbols]
        own = _nv_attributes(cubin, _section(sections, f".nv.info.{kernel}"))
        threads, required, parameters = 0, False, []
        for attribute, value in own:
            if attribute in (_MAX_THREADS, _REQUIRED_THREADS):
                x, y, z = struct.unpack("<3I", value)
                threads, required = x * y * z, attribute == _REQUIRED_THREADS
            elif attribute == _PARAMETER:
                _, ordinal, offset, packed = struct.unpack("<IHHI", value)
                parameters.append((ordinal, Parameter(offset, packed >> 18)))
            elif attribute == _WIDE_PARAMETER:
                _, ordinal, offset, size = struct.unpack("<IHHI", value)
                parameters.append((ordinal, Parameter(offset, size)))
        shared = sections.get(f".nv.shared.{kernel}")
        shared_bytes = shared.size if shared else 0
        parameters.sort()
        if [ordinal for ordinal, _ in parameters] != list(range(len(parameters))):
            raise ArtifactError("the cubin is corrupt: its kernel's parameters are not numbered one after another")
        return NvidiaFacts(
            sm=sm,
            abi=abi,
            kernel=kernel,
            registers=_value_of(common, _REGISTER_COUNT),
            shared=max(0, shared_bytes - _SYSTEM_SHARED) if sm >= 90 else shared_bytes,
            stack=max(_value_of(common, _FRAME_SIZE), _value_of(common, _MIN_STACK_SIZE)),
            threads=threads,
            threads_required=required,
            parameters=tuple(parameter for _, parameter in parameters),
        )


class Stated(NamedTuple):
    """What an image says of itself.

    Attributes:
        facts: under the names of `ImageInfo`, and its `target`.
        shared: bytes of shared memory, to which dynamic comes.
        tensor_maps: how many of its parameters are a CUtensorMap, which nothing else is as large as.
    """

    facts: dict[str, int | str]
    shared: int
    tensor_maps: int


def stated_facts(code: bytes) -> Stated:
    """What an image says of itself.

    Raises:
        ArtifactError: it is no image, malformed, or has not exactly one kernel.
    """
    kind = kind_of(code)
    if kind == "hsaco":
        amd = amd_facts(code)
        return Stated({
            "kind": kind, "target": amd.target.split(":")[0], "symbol": amd.kernel, "registers": amd.vgprs,
            "threads": amd.max_flat_workgroup_size, "stack": amd.private_segment,
            "parameters": amd.parameters, "abi": amd.code_object_version, "spills": 4 * amd.vgpr_spills,
        }, amd.group_segment, 0)  # fmt: skip
    cubin = nvidia_facts(code)
    return Stated({
        "kind": kind, "target": f"sm_{cubin.sm}", "symbol": cubin.kernel, "registers": cubin.registers,
        "threads": cubin.threads, "stack": cubin.stack, "parameters": len(cubin.parameters),
        "abi": cubin.abi,
    }, cubin.shared, sum(parameter.size == TENSOR_MAP_BYTES for parameter in cubin.parameters))  # fmt: skip


def ptxas_report(log: str, symbol: str) -> PtxasReport:
    """Reads what `ptxas -v` printed about the kernel `symbol`. Spills of functions that it calls are added.

    Raises:
        ToolchainError: the log says nothing about that kernel.
    """
    block = re.search(
        rf"Compiling entry function '{re.escape(symbol)}' for.*?(?=Compiling entry function '|\Z)", log, re.DOTALL
    )
    used = block and re.search(r"Used (\d+) registers(.*)", block[0])
    if not block or not used:
        raise ToolchainError(f"the assembler's report has nothing on {symbol}; it must be run with -v")
    frames = [
        tuple(map(int, numbers))
        for numbers in re.findall(
            r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", block[0]
        )
    ]
    cumulative = re.search(r"(\d+) bytes cumulative stack size", used[2])
    shared = re.search(r"(\d+)(?:\+\d+)? bytes smem", used[2])
    return PtxasReport(
        registers=int(used[1]),
        spill_stores=sum(frame[1] for frame in frames),
        spill_loads=sum(frame[2] for frame in frames),
        stack=max([int(cumulative[1]) if cumulative else 0, *(frame[0] for frame in frames)]),
        static_shared=int(shared[1]) if shared else 0,
    )


def strip(code: bytes) -> bytes:
    """The image without debugging information and comments. Deterministic; strip(strip(x)) == strip(x).

    Sections are emptied, never taken out: other sections, symbols and `.nv.info` refer to sections and symbols by
    number, and AMD's loader (ROCR) trips over a null section between others. It also looks kernels up in `.symtab`, by
    that name, so a code object keeps its symbols. Everything that is part of a segment stays as it is.

    Raises:
        ArtifactError: it is no image, or malformed.
    """
    with _reading(kind_of(code), code) as elf:
        sections = list(elf.iter_sections())
        kept_ranges = [(s["p_offset"], s["p_offset"] + s["p_filesz"]) for s in elf.iter_segments()]
        empty = {
            number
            for number, section in enumerate(sections)
            if re.match(r"(\.rela?)?\.(debug_|nv_debug_)|\.comment$", section.name)
            and section["sh_type"] not in ("SHT_NULL", "SHT_NOBITS")  # which have no bytes, whatever their size
            and not section["sh_flags"] & 2  # allocated
            and not any(s < section["sh_offset"] + section["sh_size"] and section["sh_offset"] < e
                        for s, e in kept_ranges)
        }  # fmt: skip
        return _without(code, elf, sections, empty)


def code_ranges(code: bytes) -> list[tuple[int, int]]:
    """(offset, bytes) of the machine code, ascending.

    Raises:
        ArtifactError: it is no image, or malformed.
    """
    with _checked(kind_of(code), code):
        return sorted((one.offset, one.size) for one in elf_file.sections(code) if one.is_code)


def _without(code: bytes, elf: ELFFile, sections: list, empty: set[int]) -> bytes:
    data = bytearray(code)
    removed: list[tuple[int, int]] = []  # (start, size), ascending
    aligned = [(s["sh_offset"], s["sh_addralign"]) for s in sections]
    aligned += [(s["p_offset"], s["p_align"]) for s in elf.iter_segments()]
    for start, end in _merge(sections, empty):
        data[start:end] = bytes(end - start)
        # What follows moves by a multiple of its largest alignment, so that it keeps its own; the rest stays, as zeros.
        alignment = max([8, *(alignment for offset, alignment in aligned if offset >= end)])
        if size := (end - start) // alignment * alignment:
            removed.append((start, size))

    def moved(offset: int) -> int:
        return offset - sum(min(size, max(0, offset - start)) for start, size in removed)

    def patch(position: int, form: str, value: int) -> None:
        struct.pack_into(form, data, position, value)

    header = elf.header
    for number, section in enumerate(sections):
        row = header["e_shoff"] + number * header["e_shentsize"]
        patch(row + 24, "<Q", moved(section["sh_offset"]))
        if number in empty:
            patch(row + 32, "<Q", 0)
    for number, segment in enumerate(elf.iter_segments()):
        patch(header["e_phoff"] + number * header["e_phentsize"] + 8, "<Q", moved(segment["p_offset"]))
    patch(32, "<Q", moved(header["e_phoff"]))
    patch(40, "<Q", moved(header["e_shoff"]))
    for start, size in reversed(removed):
        del data[start : start + size]
    return bytes(data)


def _merge(sections: list, empty: set[int]) -> Iterator[tuple[int, int]]:
    """The bytes of the sections in `empty`, those joined that only padding separates: (start, end)."""
    spans = sorted((sections[n]["sh_offset"], sections[n]["sh_size"]) for n in empty if sections[n]["sh_size"])
    others = sorted(s["sh_offset"] for n, s in enumerate(sections) if n not in empty and s["sh_type"] != "SHT_NOBITS")
    start = end = -1
    for offset, size in spans:
        if start >= 0 and not any(end <= other < offset for other in others) and offset - end < 16:
            end = max(end, offset + size)
        else:
            if start >= 0:
                yield start, end
            start, end = offset, offset + size
    if start >= 0:
        yield start, end


class _checked:
    """Around the reading of an image; any way in which a malformed one can fail leaves as an ArtifactError."""

    def __init__(self, kind: str, code: bytes) -> None:
        if kind_of(code) != kind:
            raise ArtifactError(f"not a {kind}: the file is a {kind_of(code)}")
        self.kind, self.code = kind, code

    def __enter__(self) -> object:
        try:
            elf_limits.check(self.code)
            return self._opened()
        except ArtifactError as error:
            raise ArtifactError(f"the {self.kind} is truncated or corrupt: {error}") from error
        except Exception as error:
            self.__exit__(type(error), error, None)
            raise

    def _opened(self) -> object:
        return None

    def __exit__(self, _type, error, _traceback) -> None:
        malformed = (
            ELFError, ConstructError, struct.error, LookupError, ValueError, TypeError, AttributeError, OverflowError,
            AssertionError, MemoryError, RecursionError, zlib.error,
        )  # fmt: skip
        if isinstance(error, malformed):
            raise ArtifactError(f"the {self.kind} is truncated or corrupt ({error or type(error).__name__})") from error


class _reading(_checked):
    """The same with pyelftools."""

    def __enter__(self) -> ELFFile:
        return cast(ELFFile, super().__enter__())

    def _opened(self) -> ELFFile:
        return ELFFile(io.BytesIO(self.code))


def _name(value: object) -> str:
    if not isinstance(value, str) or not is_line(value) or len(value) > elf_limits.LONGEST_NAME:
        raise ValueError("a name is not a line of text")
    return value


def _count(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 32:
        raise ValueError("a number is not one of 32 bits")
    return value


def _section(sections: dict[str, elf_file.Section], name: str) -> elf_file.Section:
    if (section := sections.get(name)) is None:
        raise ArtifactError(f"the image is truncated or corrupt: it has no section {name}")
    return section


def _amd_metadata(code: bytes) -> dict:
    for name, kind, content in elf_file.notes(code):
        if name.rstrip(b"\0") == b"AMDGPU" and kind == _NT_AMDGPU_METADATA:
            return messagepack.unpack(content)
    raise ArtifactError("the code object has no metadata note (NT_AMDGPU_METADATA); code object version 3 or later has")


_U32 = struct.Struct("<I")


def _nv_attributes(cubin: bytes, section: elf_file.Section) -> list[tuple[int, bytes]]:
    if section.size > elf_limits.MOST_ATTRIBUTES:
        raise ArtifactError(f"the cubin is corrupt: .nv.info has more than {elf_limits.MOST_ATTRIBUTES} bytes")
    data = elf_file.content(cubin, section)
    attributes, position = [], 0
    while position < len(data):
        form, attribute, size = struct.unpack_from("<BBH", data, position)
        position += 4
        if form == _SIZED:
            if position + size > len(data):
                raise ArtifactError("the cubin is corrupt: an attribute of .nv.info is longer than the section")
            attributes.append((attribute, data[position : position + size]))
            position += size
    return attributes


def _value_of(attributes: list[tuple[int, bytes]], wanted: int) -> int:
    return max((_U32.unpack_from(value, 4)[0] for attribute, value in attributes if attribute == wanted), default=0)
