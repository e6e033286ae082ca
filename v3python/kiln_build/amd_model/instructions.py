"""What an instruction of AMD's is to the model: the unit that it takes, for how long, and what it waits for.

Read from the text of LLVM's disassembler. Registers are numbers: vector registers from 0, accumulation registers from
_ACCUMULATION, scalar registers and flags behind them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from kiln_build.amd_model.architectures import Architecture

# Units, and what takes none.
VALU, MATRIX, SHARED, MEMORY, SCALAR, SCALAR_LOAD = "valu", "matrix", "shared", "memory", "scalar", "scalar load"
WAIT, BARRIER, NOP, BRANCH, FREE = "wait", "barrier", "nop", "branch", "free"
# Counters of what is under way, in the order of `Instruction.waits`.
LOADS, LOCAL, STORES, CONSTANTS = range(4)

_ACCUMULATION, _SCALAR, _FLAGS = 1024, 2048, 4096
_FLAG_NAMES = ("vcc", "exec", "scc", "m0")
_REGISTER = re.compile(r"\b([vas])(\d+)\b|\b([vas])\[(\d+):(\d+)\]|\b(vcc|exec|scc|m0)")
_FIRST = {"v": 0, "a": _ACCUMULATION, "s": _SCALAR}
_ENCODING = re.compile(r"_e(32|64)(_dpp)?$|_dpp$|_sdwa$")
_OPERAND = re.compile(r",(?![^\[]*\])")
_MATRIX = re.compile(r"v_(?:mfma|wmma)(?:_scale)?_[a-z0-9]+?_(\d+)x(\d+)x(\d+)_?(?:(\d+)b_)?([a-z]\w*)")
_TRANSCENDENTAL = ("v_exp", "v_log", "v_rcp", "v_rsq", "v_sqrt", "v_sin", "v_cos")
_WIDE_MULTIPLY = ("v_mul_lo", "v_mul_hi", "v_mad_u64", "v_mad_i64")
_OWN_RESULT = ("v_fmac", "v_pk_fmac", "v_dot")  # read what they write
_EXCHANGES = ("v_swap", "v_permlane32_swap", "v_permlane16_swap")
_FREE = ("s_setprio", "s_delay", "s_sleep", "s_sched", "s_clause", "s_wait_alu", "s_wait_idle", "s_endpgm",
         "s_inst_pref", "s_set_", "s_code_end", "s_ttrace", "s_icache", "s_waitcnt_depctr",
         "s_waitcnt_expcnt")  # fmt: skip
# The counters that RDNA 4 waits for by name; two at once: loads or stores from bit 8 on, LDS in the low bits.
_NAMED_WAITS = {
    "s_wait_loadcnt": (LOADS,), "s_wait_samplecnt": (LOADS,), "s_wait_bvhcnt": (LOADS,), "s_wait_dscnt": (LOCAL,),
    "s_wait_storecnt": (STORES,), "s_wait_kmcnt": (CONSTANTS,), "s_wait_loadcnt_dscnt": (LOADS, LOCAL),
    "s_wait_storecnt_dscnt": (STORES, LOCAL), "s_waitcnt_vscnt": (STORES,), "s_waitcnt_vmcnt": (LOADS,),
    "s_waitcnt_lgkmcnt": (LOCAL,),
}  # fmt: skip


@dataclass(frozen=True)
class Instruction:
    """One instruction.

    Attributes:
        unit: one of the units above.
        reads, writes: registers; of a matrix instruction without what it adds to.
        adds_to: of a matrix instruction, which need not wait for the sum before if that has the same registers.
        clocks: that it occupies its unit; of a nop, that the wave waits.
        latency: clocks from issue until what it writes can be read; of memory, what the unit's queue adds not counted.
        bytes: that it moves, of all lanes.
        operations: floating-point operations. kind: of a matrix instruction, the type whose rate it has.
        counter: that is raised until it is done; -1: none.
        waits: (counter, how many may be under way).
        is_transcendental, is_load: a vector instruction, a memory instruction of that kind.
    """

    unit: str
    reads: tuple[int, ...] = ()
    writes: tuple[int, ...] = ()
    adds_to: tuple[int, ...] = ()
    clocks: int = 0
    latency: int = 0
    bytes: int = 0
    operations: int = 0
    kind: str = ""
    counter: int = -1
    waits: tuple[tuple[int, int], ...] = ()
    is_transcendental: bool = False
    is_load: bool = False
    is_scratch: bool = False


def is_matrix(text: str) -> bool:
    return text.startswith(("v_mfma", "v_wmma"))


def decode(text: str, architecture: Architecture) -> Instruction:
    """The instruction of a text, as the disassembler has it: "v_add_f32_e32 v0, v1, v2".

    Raises:
        ValueError: it is a matrix instruction whose rate is not known.
    """
    if " :: " in text:  # RDNA's VOPD: two in one issue
        first, second = (decode(half.strip().replace("v_dual_", "v_"), architecture) for half in text.split(" :: "))
        return replace(first, reads=first.reads + second.reads, writes=first.writes + second.writes)
    word, _, rest = text.partition(" ")
    name = _ENCODING.sub("", word)
    operands = [part.strip() for part in _OPERAND.split(rest)] if rest else []
    if is_matrix(name):
        return _matrix(name, operands, architecture)
    if name.startswith("ds_"):
        return _shared(name, operands, architecture)
    if name.startswith(("global_", "buffer_", "flat_", "scratch_")):
        return _memory(name, operands, text, architecture)
    if name.startswith("v_"):
        return _vector(name, operands, text, architecture)
    if name.startswith("s_"):
        return _scalar(name, operands, text, architecture)
    return Instruction(FREE)


def registers(operands: str) -> tuple[int, ...]:
    """The numbers of the registers in a text."""
    found: list[int] = []
    for match in _REGISTER.finditer(operands):
        if match[1]:
            found.append(_FIRST[match[1]] + int(match[2]))
        elif match[3]:
            found += range(_FIRST[match[3]] + int(match[4]), _FIRST[match[3]] + int(match[5]) + 1)
        else:
            found.append(_FLAGS + _FLAG_NAMES.index(match[6]))
    return tuple(found)


_VCC, _SCC = _FLAGS, _FLAGS + 2


def _matrix(name: str, operands: list[str], architecture: Architecture) -> Instruction:
    found = _MATRIX.match(name)
    if found is None:
        raise ValueError(f"{name} is not known to the model")
    rows, columns, depth = int(found[1]), int(found[2]), int(found[3])
    operations = 2 * rows * columns * depth * int(found[4] or 1)
    kind = rate_of(found[5], architecture)
    clocks = max(operations // architecture.matrix[kind], rows * architecture.row_clocks)
    return Instruction(
        MATRIX,
        reads=registers(",".join(operands[1:3])),
        writes=registers(operands[0]),
        adds_to=registers(operands[3]) if len(operands) > 3 else (),
        clocks=clocks,
        latency=clocks + architecture.matrix_latency,
        operations=operations,
        kind=kind,
    )


def rate_of(operand: str, architecture: Architecture) -> str:
    """The key of Architecture.matrix for a matrix instruction's operands: "fp8" of "bf8_fp8".

    Raises:
        ValueError: the architecture multiplies no such thing.
    """
    first = operand.partition("_")[0]
    for kind in (operand, first, "fp8" if first in ("fp8", "bf8") else first):
        if kind in architecture.matrix:
            return kind
    raise ValueError(f"{architecture.name} has no rate for products of {operand} in the model's table")


def _shared(name: str, operands: list[str], architecture: Architecture) -> Instruction:
    width = re.search(r"[bui](128|96|64|32|16|8)\b", name.replace("_", " "))
    size = int(width[1]) // 8 if width else 4
    if "2st64" in name or re.search(r"(read|write|load|store)_?2|_2addr", name):
        size *= 2
    if "permute" in name or "swizzle" in name:
        size = 4
    is_store = "write" in name or "store" in name
    return Instruction(
        SHARED,
        reads=registers(",".join(operands if is_store else operands[1:])),
        writes=() if is_store else registers(operands[0]),
        latency=architecture.shared_latency,
        bytes=size * architecture.lanes,
        counter=LOCAL,
        is_load=not is_store,
    )


def _memory(name: str, operands: list[str], text: str, architecture: Architecture) -> Instruction:
    width = re.search(r"dwordx(\d)|b(\d+)$|b(\d+)_|dword|short|ushort|byte|[iu]8|[iu]16", name)
    size = 4
    if width:
        bits = width[2] or width[3]
        narrow = {"short": 2, "ushort": 2, "byte": 1, "i8": 1, "u8": 1, "i16": 2, "u16": 2}
        size = 4 * int(width[1]) if width[1] else int(bits) // 8 if bits else narrow.get(width[0], 4)
    is_scratch = name.startswith("scratch_")
    is_store = "store" in name or ("atomic" in name and not re.search(r"\b(sc0|glc)\b|TH_ATOMIC_RETURN", text))
    into_shared = "_lds" in name or text.endswith(" lds")  # no register gets what these load
    has_result = not is_store and not into_shared
    separate = architecture.turn == 1  # RDNA counts stores apart from loads
    return Instruction(
        MEMORY,
        reads=registers(",".join(operands[1:] if has_result else operands)),
        writes=registers(operands[0]) if has_result else (),
        latency=architecture.scratch_latency if is_scratch else architecture.store_latency if is_store else 0,
        bytes=size * architecture.lanes,
        counter=STORES if is_store and separate else LOADS,
        is_load=not is_store,
        is_scratch=is_scratch,
    )


def _vector(name: str, operands: list[str], text: str, architecture: Architecture) -> Instruction:
    reads, writes = registers(",".join(operands[1:])), registers(operands[0]) if operands else ()
    if name.startswith("v_cmp") and not operands[0].startswith(("s", "vcc")):
        reads, writes = registers(",".join(operands)), (_VCC,)
    if name.startswith("v_cndmask") and len(operands) == 3:
        reads += (_VCC,)
    if name.startswith(_EXCHANGES):
        reads = writes = registers(",".join(operands))
    if name.startswith(_OWN_RESULT):
        reads += writes
    is_transcendental = name.startswith(_TRANSCENDENTAL)
    clocks = architecture.turn
    if is_transcendental:
        clocks = architecture.transcendental
    elif "_f64" in name:
        clocks = architecture.double
    elif name.startswith(_WIDE_MULTIPLY):
        clocks = architecture.wide_multiply
    latency = clocks + (architecture.transcendental_latency if is_transcendental else architecture.valu_latency)
    if "row_" in text or "quad_perm" in text:
        latency += architecture.dpp_latency
    return Instruction(
        VALU, reads=reads, writes=writes, clocks=clocks, latency=latency, is_transcendental=is_transcendental
    )


def _scalar(name: str, operands: list[str], text: str, architecture: Architecture) -> Instruction:
    if name.startswith(_FREE):
        return Instruction(FREE)
    if name in _NAMED_WAITS or name == "s_waitcnt":
        return Instruction(WAIT, waits=_waits(name, operands, text))
    if name.startswith("s_barrier"):
        return Instruction(FREE if name.startswith("s_barrier_signal") else BARRIER)
    if name.startswith(("s_cbranch", "s_branch")):
        return Instruction(BRANCH, clocks=architecture.taken_branch)
    if name == "s_nop":
        return Instruction(NOP, clocks=architecture.turn * (int(operands[0], 0) + 1))
    if name.startswith(("s_cmp", "s_bitcmp")):
        return Instruction(SCALAR, reads=registers(",".join(operands)), writes=(_SCC,), latency=architecture.turn)
    reads = registers(",".join(operands[1:]))
    writes = registers(operands[0]) if operands else ()
    if name.startswith(("s_load", "s_buffer_load")):
        counter = CONSTANTS if architecture.name.startswith("gfx12") else LOCAL
        latency = architecture.scalar_latency
        return Instruction(SCALAR_LOAD, reads=reads, writes=writes, latency=latency, counter=counter)
    return Instruction(SCALAR, reads=reads, writes=writes, latency=architecture.turn)


def _waits(name: str, operands: list[str], text: str) -> tuple[tuple[int, int], ...]:
    if name == "s_waitcnt":
        found = {word: int(number) for word, number in re.findall(r"(vmcnt|lgkmcnt)\((\d+)\)", text)}
        return tuple((LOADS if word == "vmcnt" else LOCAL, number) for word, number in found.items())
    counters, number = _NAMED_WAITS[name], int(operands[-1], 0)
    if len(counters) == 1:
        return ((counters[0], number),)
    return ((counters[0], number >> 8), (counters[1], number & 0xFF))
