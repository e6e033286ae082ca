"""Instructions by themselves: assembled by llvm-mc, executed on a wave's state, the state looked at:
`Single("gfx942", "v_add_f32 v0, v1, v2").run(state)`.
"""

from __future__ import annotations

import ctypes
import functools
import subprocess

import decode
import numpy as np
import pytest
from records import CHECKS, Instruction, Launch, Program, Region, Report

LANES, VGPRS, SGPRS = 64, 512, 128
VCC, M0, EXEC = 106, 125, 126
AGPR = 256  # of a0 in State.vgpr
# Rounding to nearest, subnormal numbers kept.
MODE = 0xF0


class State:
    """A wave's registers and memory.

    Attributes:
        vgpr: uint32 [512, 64], v0 up and a0 up from 256 on.
        sgpr: uint32 [128]; VCC, M0 and EXEC with them.
        lds: bytes of its group.
        scratch: bytes of each lane, [64, bytes].
    """

    def __init__(self, seed: int = 0, lds: int = 0, scratch: int = 0) -> None:
        draw = np.random.default_rng(seed)
        self.vgpr = draw.integers(0, 2**32, (VGPRS, LANES), np.uint32)
        self.sgpr = draw.integers(0, 2**32, SGPRS, np.uint32)
        self.lds = draw.integers(0, 256, lds, np.uint8)
        self.scratch = draw.integers(0, 256, (LANES, scratch), np.uint8)
        self.scc, self.mode = 0, MODE
        self.exec = 2**64 - 1

    @property
    def exec(self) -> int:
        return int(self.sgpr[EXEC]) | int(self.sgpr[EXEC + 1]) << 32

    @exec.setter
    def exec(self, mask: int) -> None:
        self.set_pair(EXEC, mask)

    @property
    def on(self) -> np.ndarray:
        """Of each lane, whether EXEC has it."""
        return (self.exec >> np.arange(LANES, dtype=object) & 1).astype(bool)

    def set_pair(self, index: int, value: int) -> None:
        self.sgpr[index : index + 2] = value & 0xFFFFFFFF, value >> 32 & 0xFFFFFFFF

    def copy(self) -> State:
        other = State.__new__(State)
        other.__dict__.update({k: v.copy() if isinstance(v, np.ndarray) else v for k, v in self.__dict__.items()})
        return other


class _State(ctypes.Structure):
    _fields_ = [("vgpr", ctypes.c_void_p), ("sgpr", ctypes.c_void_p), ("lds", ctypes.c_void_p),
                ("scratch", ctypes.c_void_p), ("lds_size", ctypes.c_uint32), ("scc", ctypes.c_uint32),
                ("mode", ctypes.c_uint32)]  # fmt: skip


class Faulted(Exception):
    """What the executor found wrong.

    Attributes:
        check: a name of records.CHECKS.
    """

    def __init__(self, report: Report) -> None:
        self.check, self.lane, self.address = CHECKS[report.fault.check], report.fault.lane, report.fault.address
        super().__init__(f"{self.check}: {report.fault.why.decode()}")


class Single:
    """Instructions of a target, executed one after the other.

    Args:
        text: a line each.
    """

    def __init__(self, target: str, text: str) -> None:
        self.target, self.text = target, text
        self.records = (Instruction * (text.count("\n") + 1))(*assemble(target, text))
        self._executed = (ctypes.c_uint64 * len(self.records))()

    def run(self, state: State, regions: list[np.ndarray] = (), read_only: list[np.ndarray] = ()) -> None:  # type: ignore[assignment]
        """Executes them on `state`, with arrays as the memory that there is.

        Raises:
            Faulted: the executor found something wrong; `state` is as it was then.
        """
        program = Program(
            target=decode.TARGETS.index(self.target), wave_size=32 if self.target.startswith("gfx1") else 64,
            count=len(self.records), vgprs=256, agprs=256, sgprs=SGPRS, scratch=state.scratch.shape[1],
            instructions=self.records, executed=self._executed,
        )  # fmt: skip
        library = _library()
        refused = library.emu_program_prepare(ctypes.byref(program))
        assert not refused, f"{self.text}: operands do not fit"
        memory = sorted(
            (Region(a.ctypes.data, a.nbytes, a is not None and not any(a is r for r in read_only), k)
             for k, a in enumerate([*regions, *read_only])), key=lambda region: region.base)  # fmt: skip
        launch = Launch(program=ctypes.pointer(program), regions=(Region * len(memory))(*memory),
                        region_count=len(memory))  # fmt: skip
        given = _State(state.vgpr.ctypes.data, state.sgpr.ctypes.data, state.lds.ctypes.data, state.scratch.ctypes.data,
                       state.lds.nbytes, state.scc, state.mode)  # fmt: skip
        report = Report()
        failed = library.emu_run_records(ctypes.byref(launch), ctypes.byref(given), ctypes.byref(report))
        state.scc, state.mode = given.scc, given.mode
        if failed:
            raise Faulted(report)


@functools.cache
def _library() -> ctypes.CDLL:
    return decode.library()


@functools.cache
def single(target: str, text: str) -> Single:
    """The same program for the same text: for tests that do not change its records."""
    return Single(target, text)


def assemble(target: str, text: str) -> list[Instruction]:
    """The records of instructions, out of the disassembler's text of what the assembler made of them."""
    lines = [line for _, _, line in decode.disassemble(assembled(target, text), target)]
    records = [decode.record_of(line) for line in lines]
    unknown = [line for line, record in zip(lines, records, strict=True) if record.opcode == decode.UNKNOWN]
    assert not unknown, f"unknown to the executor: {unknown}"
    return records


def assembled(target: str, text: str) -> bytes:
    """The object that the assembler makes of instructions."""
    done = _assembled(target, text)
    assert done.returncode == 0, f"{target}: {text}\n{done.stderr.decode()}"
    return done.stdout


@functools.cache
def _assembled(target: str, text: str) -> subprocess.CompletedProcess:
    command = [assembler(), "--arch=amdgcn", f"--mcpu={target}", "--filetype=obj"]
    return subprocess.run(command, input=text.encode() + b"\n", capture_output=True)


@functools.cache
def assembler() -> str:
    """LLVM's assembler, beside its disassembler. Skips the test where none is installed."""
    path = decode.tool("llvm-mc")
    if not path.is_file():
        pytest.skip(f"{path.name} is not installed")
    return str(path)
