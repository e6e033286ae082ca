"""A code object made a program of the executor: its kernel descriptor, and its instructions as LLVM's disassembler
writes them, each parsed once into a fixed record (struct emu_instruction of machine/machine.h).
"""

from __future__ import annotations

import ctypes
import functools
import gc
import hashlib
import io
import os
import re
import struct
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import build
import records
from elftools.elf.elffile import ELFFile
from records import Flag, Instruction, Kind, Operand, Program

from kiln_build.amd_model.disassembly import find_tool
from kiln_recipe.images import elf

TARGETS = ("gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1151", "gfx1200", "gfx1201")
UNKNOWN = 2**32 - 1

_LINE = re.compile(r"^\t(.*?)\s*// ([0-9A-F]{12}):((?: [0-9A-F]{8})+)(?: <.*>)?$")
_REGISTER = re.compile(r"^(v|s|a|ttmp)(?:(\d+)(?:\.([lh]))?|\[(\d+)(?::(\d+))?\])$")
_SUFFIX = re.compile(r"(_e32|_e64|_dpp|_sdwa|_dpp8)+$")
_FLOAT = re.compile(r"^-?\d+\.\d+(?:e[-+]?\d+)?$|^-?\d+e[-+]?\d+$")
# The sum of the address of a far branch, see _far_branches.
_FAR_LOW = re.compile(r"s_add_(?:co_)?u32 s(\d+), s(\d+), (?:lit\()?(-?(?:0x)?[0-9a-f]+)\)?")
_FAR_HIGH = re.compile(r"s_add(?:c|_co_ci)_u32 s(\d+), s(\d+), (?:lit\()?(-?(?:0x)?[0-9a-f]+)\)?")
_INTEGER = re.compile(r"^-?(?:0x[0-9a-f]+|\d+)$")

# Scalar registers with names, as machine.h numbers them: (index, words). A wave32's VCC and EXEC are one word.
_NAMED = {
    "vcc": (106, 2), "vcc_lo": (106, 1), "vcc_hi": (107, 1), "exec": (126, 2), "exec_lo": (126, 1), "exec_hi": (127, 1),
    "m0": (125, 1), "null": (124, 1), "flat_scratch": (102, 2), "flat_scratch_lo": (102, 1),
    "flat_scratch_hi": (103, 1), "xnack_mask": (104, 2), "xnack_mask_lo": (104, 1), "xnack_mask_hi": (105, 1),
}  # fmt: skip
_SPECIAL = {
    "scc": 0, "src_scc": 0, "src_vccz": 1, "vccz": 1, "src_execz": 2, "execz": 2, "src_shared_base": 3,
    "src_shared_limit": 4, "src_private_base": 5, "src_private_limit": 6,
}  # fmt: skip
_FLAGS = {
    "clamp": Flag.CLAMP, "lds": Flag.LDS, "offen": Flag.OFFEN, "idxen": Flag.IDXEN, "sc0": Flag.SC0, "glc": Flag.SC0,
    "sc1": Flag.SC1, "nt": Flag.NT, "gds": Flag.GDS, "tfe": Flag.TFE, "fi:1": Flag.FETCH_INVALID,
    "bound_ctrl:1": Flag.BOUND_CTRL, "bound_ctrl:0": Flag.BOUND_CTRL, "th:TH_ATOMIC_RETURN": Flag.SC0,
    "th:TH_LOAD_NT": Flag.NT, "th:TH_STORE_NT": Flag.NT, "th:TH_LOAD_LU": Flag.LAST_USE, "slc": 0, "dlc": 0,
    "scope:SCOPE_CU": 0, "scope:SCOPE_SE": 0, "scope:SCOPE_DEV": 0, "scope:SCOPE_SYS": 0,
    # When a cache lets go of lines: of no account here.
    **dict.fromkeys(("th:TH_LOAD_HT", "th:TH_LOAD_NT_RT", "th:TH_LOAD_RT_NT", "th:TH_LOAD_NT_HT", "th:TH_STORE_HT",
                     "th:TH_STORE_WB", "th:TH_STORE_NT_RT", "th:TH_STORE_RT_NT", "th:TH_STORE_NT_HT",
                     "th:TH_STORE_NT_WB"), 0),
}  # fmt: skip
_DPP = {name: code for code, name in enumerate(records.DPP, start=1)}
_PARTS = {"DWORD": 0, "BYTE_0": 1, "BYTE_1": 2, "BYTE_2": 3, "BYTE_3": 4, "WORD_0": 5, "WORD_1": 6}
_UNUSED = {"UNUSED_PAD": 0, "UNUSED_SEXT": 1, "UNUSED_PRESERVE": 2}
_COUNTERS = {"vmcnt": 0, "lgkmcnt": 1, "expcnt": 2, "vscnt": 3}
# gfx12's own waits, by mnemonic: the counters that the immediate's parts are for.
_WAITS = {
    "s_waitcnt_vscnt": (3,), "s_waitcnt_vmcnt": (0,), "s_waitcnt_lgkmcnt": (1,), "s_waitcnt_expcnt": (2,),
    "s_wait_loadcnt": (0,), "s_wait_storecnt": (3,), "s_wait_dscnt": (1,), "s_wait_kmcnt": (4,), "s_wait_expcnt": (2,),
    "s_wait_samplecnt": (5,), "s_wait_bvhcnt": (6,),
}  # fmt: skip
_PAIRED_WAITS = {"s_wait_loadcnt_dscnt": (0, 1), "s_wait_storecnt_dscnt": (3, 1)}
# Instructions whose operands are not registers, or do not matter to what they do.
_NO_OPERANDS = {"s_nop", "s_sleep", "s_setprio", "s_clause", "s_delay_alu", "s_set_inst_prefetch_distance",
                "s_inst_prefetch", "s_sendmsg", "s_waitcnt_depctr", "s_wait_alu", "s_barrier_signal", "s_barrier_wait",
                "s_endpgm", "s_icache_inv", "s_code_end", "s_barrier", "s_wait_idle",
                "buffer_wbl2", "buffer_inv", "buffer_invl2", "buffer_wbinvl1", "buffer_wbinvl1_vol", "buffer_gl0_inv",
                "buffer_gl1_inv", "global_inv", "global_wb", "global_wbinv", "s_prefetch_data", "s_prefetch_inst",
                "s_prefetch_data_pc_rel", "s_prefetch_inst_pc_rel", "s_buffer_prefetch_data"}  # fmt: skip
_HARDWARE_REGISTERS = {"HW_REG_MODE": 1, "HW_REG_STATUS": 2}


class UnknownError(Exception):
    """A code object, or what the disassembler says of one, that the executor is not made for."""


@dataclass(frozen=True)
class Code:
    """What a code object says: the descriptor's fields and its instructions' text.

    Attributes:
        lines: (address from the kernel's first instruction, bytes of the instruction, text), ascending.
        entry: address of the first instruction executed.
        plain_entry: the same where hardware does not preload arguments.
    """

    facts: elf.AmdFacts
    descriptor: bytes
    lines: tuple[tuple[int, int, str], ...]
    entry: int
    plain_entry: int


class LoadedProgram:
    """A program, in memory for as long as this object lives.

    Attributes:
        program: the struct emu_program; `address`: where it is.
        texts: each record's line, as the disassembler wrote it (both records of a VOPD have the same).
    """

    def __init__(self, code: Code, records_: list[Instruction], texts: list[str]) -> None:
        self.code, self.texts = code, texts
        self.symbol, self.kernarg_size = code.facts.kernel, code.facts.kernarg_size
        self._instructions = (Instruction * len(records_))(*records_)
        joined, offsets = bytearray(), {}
        for text, record in zip(texts, self._instructions, strict=True):
            if text not in offsets:
                offsets[text] = len(joined)
                joined += text.encode() + b"\0"
            record.text = offsets[text]
        self._texts = ctypes.create_string_buffer(bytes(joined), len(joined) + 1)
        self._executed = (ctypes.c_uint64 * len(records_))()
        self.program = _describe(code, self._instructions, self._texts, self._executed)
        refused = library().emu_program_prepare(ctypes.byref(self.program))
        if refused:
            raise UnknownError(f"{self.symbol}: the executor cannot read the operands of: {texts[refused - 1]}")

    @property
    def address(self) -> int:
        return ctypes.addressof(self.program)

    @property
    def count(self) -> int:
        return len(self.texts)

    def text(self, index: int) -> str:
        return self.texts[index]

    def name(self, index: int) -> str:
        """A record's mnemonic, as the disassembler writes it."""
        text = self.texts[index]
        if self._instructions[index].size == 0:  # the second half of a VOPD
            text = text.partition(" :: ")[2]
        return text.partition(" ")[0]

    @property
    def instructions(self) -> ctypes.Array[Instruction]:
        """The records; a change of one takes effect at the next launch."""
        return self._instructions

    def executed(self) -> list[int]:
        """How often each record was executed, waves summed, since it was loaded."""
        return list(self._executed)

    def forget(self) -> None:
        """Counts what is executed from 0 on again."""
        ctypes.memset(self._executed, 0, ctypes.sizeof(self._executed))

    def unknown(self) -> list[str]:
        """Texts of instructions that the executor does not know: a fault where one is executed."""
        return sorted({t for t, i in zip(self.texts, self._instructions, strict=True) if i.opcode == UNKNOWN})


@functools.cache
def library() -> ctypes.CDLL:
    """The executor, compiled and loaded; its structs compared with those of records.py."""
    loaded = ctypes.CDLL(str(build.library()))
    loaded.emu_find_op.argtypes, loaded.emu_find_op.restype = [ctypes.c_char_p], ctypes.c_uint32
    for which, struct_ in enumerate((Operand, Instruction, Program, records.Launch, records.Report)):
        size = loaded.emu_layout(which)
        assert size == ctypes.sizeof(struct_), f"{struct_.__name__} has {ctypes.sizeof(struct_)} bytes, in C {size}"
    return loaded


disassembler = functools.cache(find_tool)


def tool(name: str) -> Path:
    """The path of another of LLVM's programs, of the disassembler's version; it may not be there."""
    path = Path(disassembler())
    return path.with_name(path.name.replace("llvm-objdump", name))


@functools.cache
def version() -> str:
    """The disassembler's, as "LLVM 22.1.2"."""
    said = subprocess.run([disassembler(), "--version"], capture_output=True, text=True).stdout
    found = re.search(r"version (\S+)", said)
    return f"LLVM {found[1]}" if found else "LLVM of unknown version"


@functools.lru_cache(maxsize=64)
def load(code: bytes) -> LoadedProgram:
    """The program of a code object. The same bytes give the same object.

    Raises:
        UnknownError: the code object is of a target, or has operands, that the executor does not know.
        kiln_recipe.errors.ArtifactError: it is malformed.
    """
    read_code = read(code)
    return LoadedProgram(read_code, *parse(read_code))


def read(code: bytes) -> Code:
    """What a code object says. Raises as `load`."""
    facts = elf.amd_facts(code)
    if facts.target.split(":")[0] not in TARGETS:
        raise UnknownError(f"{facts.kernel} is for {facts.target}; the executor knows {', '.join(TARGETS)}")
    file = ELFFile(io.BytesIO(code))
    symbols = {symbol.name: symbol for symbol in file.get_section_by_name(".symtab").iter_symbols()}
    start = symbols[facts.kernel]["st_value"]
    descriptor = _bytes_at(file, symbols[facts.symbol]["st_value"], 64)
    lines = [
        (address - start, size, text) for address, size, text in disassemble(code, facts.target) if address >= start
    ]
    entry = symbols[facts.symbol]["st_value"] + struct.unpack_from("<q", descriptor, 16)[0] - start
    # Hardware that fills scalar registers with arguments starts behind the code that would load them.
    preloaded = struct.unpack_from("<H", descriptor, 58)[0] & 0x7F
    return Code(facts, descriptor, tuple(lines), entry + (256 if preloaded else 0), entry)


def _bytes_at(file: ELFFile, address: int, size: int) -> bytes:
    for segment in file.iter_segments():
        offset = address - segment["p_vaddr"]
        if segment["p_type"] == "PT_LOAD" and offset >= 0 and offset + size <= segment["p_filesz"]:
            return segment.data()[offset : offset + size]
    raise UnknownError(f"the code object has no bytes at 0x{address:x}, where its kernel descriptor should be")


def disassemble(code: bytes, target: str) -> list[tuple[int, int, str]]:
    kept = Path(tempfile.gettempdir()) / f"kiln-executor-{os.getuid()}" / "disassembled"
    kept.mkdir(parents=True, exist_ok=True)
    path = kept / f"{hashlib.sha256(code).hexdigest()[:32]}.{Path(disassembler()).name}"
    if not path.is_file():
        # gfx11 and gfx12 name halves of registers only where that feature is on; the code object does not say.
        halves = ["--mattr=+real-true16"] if target.startswith(("gfx11", "gfx12")) else []
        with tempfile.NamedTemporaryFile(suffix=".hsaco", dir=kept) as image:
            image.write(code)
            image.flush()
            done = subprocess.run([disassembler(), "-d", *halves, image.name], capture_output=True, text=True)
        if done.returncode:
            raise UnknownError(f"{disassembler()} cannot read the code object: {done.stderr.strip()}")
        partial = path.with_suffix(f".{os.getpid()}")
        partial.write_text(done.stdout)
        partial.replace(path)
    lines = []
    for line in path.read_text().splitlines():
        found = _LINE.match(line)
        if found:
            lines.append((int(found[2], 16), 4 * len(found[3].split()), found[1]))
        elif line.startswith("\t"):
            raise UnknownError(f"a line of the disassembler that the executor cannot read: {line.strip()}")
    return lines


# ---- records ------------------------------------------------------------------------------------------------------


def parse(code: Code) -> tuple[list[Instruction], list[str]]:
    """The records of a code object, and the text of each."""
    # Thousands of small objects that all live on: the collector would look through them again and again.
    collects = gc.isenabled()
    gc.disable()
    try:
        return _parse(code)
    finally:
        if collects:
            gc.enable()


def _parse(code: Code) -> tuple[list[Instruction], list[str]]:
    at: dict[int, int] = {}
    made: list[Instruction] = []
    texts: list[str] = []
    branches: list[tuple[int, int]] = []
    for address, size, text in code.lines:
        at[address] = len(made)
        for half, part in enumerate(halves := text.split(" :: ")):
            record = record_of(part)
            record.pc, record.size = address, size if half == 0 else 0
            if half + 1 < len(halves):
                record.flags |= Flag.DUAL
            if part.startswith(("s_branch", "s_cbranch")):
                offset = int(part.split()[1])
                branches.append((len(made), address + size + 4 * (offset - 65536 if offset >= 32768 else offset)))
            made.append(record)
            texts.append(text)
    for index, target in [*branches, *_far_branches(texts, made)]:
        made[index].target = at.get(target, -1)
    for entry in {code.entry, code.plain_entry} - set(at):
        raise UnknownError(f"{code.facts.kernel} starts at 0x{entry:x}, where no instruction is")
    return made, texts


def _far_branches(texts: list[str], made: list[Instruction]) -> Iterator[tuple[int, int]]:
    """Jumps to an address that is so far from the instruction before, as LLVM writes branches that are too far for a
    s_branch: index, and the address."""
    for index, text in enumerate(texts[3:], start=3):
        if not text.startswith("s_setpc_b64 "):
            continue
        register = text.partition(" ")[2]
        ahead, low, high = texts[index - 3 : index]
        found = _REGISTER.match(register), _FAR_LOW.fullmatch(low), _FAR_HIGH.fullmatch(high)
        if ahead != f"s_getpc_b64 {register}" or not all(found):
            continue
        first = int(found[0][4])
        numbers = [(int(one[1]), int(one[2]), int(one[3], 0)) for one in found[1:]]
        if [one[:2] for one in numbers] == [(first, first), (first + 1, first + 1)]:
            offset = (numbers[0][2] & 0xFFFFFFFF) | (numbers[1][2] & 0xFFFFFFFF) << 32
            behind = made[index - 3].pc + made[index - 3].size
            yield index, (behind + offset) & 0xFFFFFFFFFFFFFFFF


def record_of(text: str) -> Instruction:
    """One instruction's record. What cannot be read makes its opcode unknown."""
    word, _, rest = text.partition(" ")
    name = _SUFFIX.sub("", word)
    name = re.sub(r"^v_dual_", "v_", name)
    record = Instruction(opcode=_find(name), target=-1, row_mask=15, bank_mask=15)
    for counter in range(len(record.wait)):
        record.wait[counter] = -1
    if "_sdwa" in word:
        record.flags |= Flag.SDWA
    try:
        _fill(record, name, rest.strip())
    except UnknownError:
        record.opcode = UNKNOWN
    return record


@functools.cache
def _find(name: str) -> int:
    return int(library().emu_find_op(name.encode()))


def _fill(record: Instruction, name: str, rest: str) -> None:
    if name == "s_waitcnt":
        for counter, left in re.findall(r"(\w+)\((\d+)\)", rest):
            record.wait[_COUNTERS[counter]] = int(left)
        return
    if name in _WAITS:
        record.wait[_WAITS[name][0]] = min(int(rest.split(", ")[-1], 0), 127)
        return
    if name in _PAIRED_WAITS:
        both = int(rest, 0)
        for counter, left in zip(_PAIRED_WAITS[name], (both >> 8, both & 0xFF), strict=True):
            record.wait[counter] = min(left, 127)
        return
    if name in _NO_OPERANDS or name.startswith(("s_branch", "s_cbranch")):
        if name == "s_nop":
            record.immediate = int(rest, 0)
        elif "depctr_va_vdst(0)" in rest:
            record.immediate = 1
        return
    if found := re.search(r"hwreg\((\w+)(?:, (\d+), (\d+))?\)", rest):
        register, offset, size = found[1], int(found[2] or 0), int(found[3] or 32)
        if register not in _HARDWARE_REGISTERS:
            raise UnknownError(register)
        record.immediate = _HARDWARE_REGISTERS[register] | offset << 6 | (size - 1) << 11
        rest = rest.replace(found[0], "").strip().strip(",").strip()
    operands, modifiers = _split(rest)
    for text in operands:
        if record.operands == len(record.operand):
            raise UnknownError(text)
        record.operand[record.operands] = _operand(text)
        record.operands += 1
    for modifier in modifiers:
        _modify(record, modifier)


def _split(rest: str) -> tuple[list[str], list[str]]:
    """Operands, between commas, and the modifiers behind the last."""
    parts = re.split(r",\s+(?![^\[(]*[\])])", rest) if rest else []
    if not parts:
        return [], []
    last, *modifiers = re.split(r"\s+(?![^\[(]*[\])])", parts[-1])
    return [*parts[:-1], last], modifiers


@functools.lru_cache(maxsize=4096)
def _operand(text: str) -> Operand:
    operand = Operand()
    while True:
        if text.startswith("sext(") and text.endswith(")"):
            operand.sext, text = 1, text[5:-1]
        elif text.startswith("neg(") and text.endswith(")"):
            operand.neg, text = 1, text[4:-1]
        elif text.startswith("abs(") and text.endswith(")"):
            operand.abs, text = 1, text[4:-1]
        elif text.startswith("|") and text.endswith("|"):
            operand.abs, text = 1, text[1:-1]
        elif text.startswith("lit(") and text.endswith(")"):  # a word of its own, though it would fit the instruction
            text = text[4:-1]
        elif text.startswith("-") and not (_INTEGER.match(text) or _FLOAT.match(text)):
            operand.neg, text = 1, text[1:]
        else:
            break
    if found := _REGISTER.match(text):
        bank, single, part, first, last = found.groups()
        index = int(single if single is not None else first)
        operand.words = 1 if last is None else int(last) - index + 1
        operand.kind = Kind.VGPR if bank in "va" else Kind.SGPR
        operand.index = index + {"v": 0, "a": 256, "s": 0, "ttmp": 108}[bank]
        operand.part = {None: 0, "l": 5, "h": 6}[part]
    elif text in _NAMED:
        operand.kind = Kind.SGPR
        operand.index, operand.words = _NAMED[text]
    elif text in _SPECIAL:
        operand.kind, operand.index, operand.words = Kind.SPECIAL, _SPECIAL[text], 1
    elif text == "off":
        operand.kind = Kind.NONE
    elif _FLOAT.match(text):
        operand.kind, operand.value = Kind.FLOAT, float(text)
    elif _INTEGER.match(text):
        operand.kind, operand.bits = Kind.INTEGER, int(text, 0) & (2**64 - 1)
    else:
        raise UnknownError(text)
    return operand


def _modify(record: Instruction, modifier: str) -> None:
    if modifier in _FLAGS:
        record.flags |= _FLAGS[modifier]
        return
    name, _, value = modifier.partition(":")
    if name in _DPP:
        record.flags |= Flag.DPP
        record.dpp = _DPP[name]
        if value.startswith("["):
            bits = 3 if name == "dpp8" else 2
            record.dpp_value = sum(int(v) << bits * k for k, v in enumerate(value[1:-1].split(",")))
        else:
            record.dpp_value = int(value, 0) if value else 0
    elif name in ("row_mask", "bank_mask", "cbsz", "abid"):
        setattr(record, name, int(value, 0))
    elif name == "blgp":
        record.blgp = int(value, 0)
    elif name in ("offset", "offset0"):
        record.offset = int(value, 0)
    elif name == "offset1":
        record.offset1 = int(value, 0)
    elif name in ("op_sel", "op_sel_hi", "neg_lo", "neg_hi"):
        setattr(record, name, sum(int(v) << k for k, v in enumerate(value[1:-1].split(","))))
        if name == "op_sel_hi":
            record.flags |= Flag.OP_SEL_HI
    elif name == "neg":  # of an MFMA of f64
        record.neg_lo = sum(int(v) << k for k, v in enumerate(value[1:-1].split(",")))
    elif name in ("mul", "div"):
        record.omod = {"mul:2": 1, "mul:4": 2, "div:2": 3}[modifier]
    elif name in ("dst_sel", "dst_unused"):
        setattr(record, {"dst_sel": "dst_part"}.get(name, name), (_PARTS | _UNUSED)[value])
    elif name in ("src0_sel", "src1_sel"):
        _select(record, int(name[3]), _PARTS[value])
    elif name == "bitop3":
        record.immediate = int(value, 0)
    elif name == "byte_sel":
        record.op_sel = int(value, 0)
    else:
        raise UnknownError(modifier)


def _select(record: Instruction, source: int, part: int) -> None:
    """SDWA: the part of a source. Sources stand behind the result; of v_cmp it is VCC."""
    record.operand[1 + source].part = part


# ---- the descriptor -----------------------------------------------------------------------------------------------


def _describe(code: Code, instructions: ctypes.Array, texts: ctypes.Array, executed: ctypes.Array) -> Program:
    facts, descriptor = code.facts, code.descriptor
    lds, scratch, kernarg = struct.unpack_from("<3I", descriptor, 0)
    rsrc1, rsrc2, properties, preload = struct.unpack_from("<IIHH", descriptor, 48)
    # Registers come in eights; from gfx90a on, accumulation registers lie behind the others in one file.
    vgprs, agprs = 8 * ((rsrc1 & 63) + 1), 0
    if facts.target.startswith("gfx9"):
        whole, vgprs = vgprs, 4 * ((struct.unpack_from("<I", descriptor, 44)[0] & 63) + 1)
        agprs = max(whole - vgprs, 0)
    at = {record.pc: k for k, record in reversed(list(enumerate(instructions)))}
    return Program(
        target=TARGETS.index(facts.target.split(":")[0]),
        wave_size=facts.wavefront_size,
        count=len(instructions),
        entry=at[code.entry],
        plain_entry=at[code.plain_entry],
        vgprs=min(vgprs, 256),
        agprs=min(agprs, 256),
        sgprs=facts.sgprs,
        lds=lds,
        scratch=scratch,
        mode=rsrc1 >> 12 & 0xFF | (rsrc1 >> 21 & 1) << 8 | (rsrc1 >> 23 & 1) << 9 | (rsrc1 >> 26 & 1) << 23,
        properties=properties,
        rsrc2=rsrc2,
        preload=preload & 0x7F,
        preload_offset=preload >> 7,
        kernarg=kernarg,
        texts_size=len(texts),
        instructions=instructions,
        texts=ctypes.cast(texts, ctypes.c_char_p),
        executed=executed,
    )
