"""Small programs in assembly, launched as kernels are: work-groups of waves, hazards watched."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace

import decode
import numpy as np
from records import CHECKS, Instruction, Launch, LaunchFlag, Program, Region, Report
from single import assembled

# Of the kernel descriptor: s[0:1] point to the arguments, s2 is the group's number (gfx12: ttmp9).
_KERNARG_POINTER = 8
_TWO_USER_SGPRS_AND_GROUP = 2 << 1 | 1 << 7
MODE = 0xF0  # to the nearest, subnormal numbers kept


class Outcome:
    """What became of a launch.

    Attributes:
        check: a name of records.CHECKS, "ok" if all is well; `why`: its sentence.
        instructions, unwritten: as of struct emu_report.
    """

    def __init__(self, report: Report) -> None:
        self.check, self.why = CHECKS[report.fault.check], report.fault.why.decode()
        self.instructions, self.unwritten = report.instructions, report.unwritten
        self.wave, self.lane, self.pc = report.fault.wave, report.fault.lane, report.fault.pc


class Kernel:
    """A program of a target, a line for each instruction; labels as of the assembler.

    Attributes:
        records: the instructions, which may be changed before a launch.
    """

    def __init__(self, target: str, text: str, *, lds: int = 0, vgprs: int = 256, mode: int = MODE) -> None:
        code = SimpleNamespace(lines=decode.disassemble(assembled(target, text), target), entry=0, plain_entry=0)
        made, self.texts = decode.parse(code)
        self.records = (Instruction * len(made))(*made)
        self._executed = (ctypes.c_uint64 * len(made))()
        joined = b"\0".join(line.encode() for line in self.texts) + b"\0"
        offset = 0
        for record, line in zip(self.records, self.texts, strict=True):
            record.text, offset = offset, offset + len(line.encode()) + 1
        self.program = Program(
            target=decode.TARGETS.index(target), wave_size=32 if target.startswith("gfx1") else 64, count=len(made),
            vgprs=vgprs, agprs=256, sgprs=128, lds=lds, mode=mode, properties=_KERNARG_POINTER,
            rsrc2=_TWO_USER_SGPRS_AND_GROUP, instructions=self.records, texts=joined, texts_size=len(joined),
            executed=self._executed,
        )  # fmt: skip
        refused = decode.library().emu_program_prepare(ctypes.byref(self.program))
        assert not refused, f"operands do not fit: {self.texts[refused - 1]}"

    def launch(
        self, *arrays: np.ndarray, waves: int = 1, groups: int = 1, seed: int = 0, contents: int = 0,
        flags: LaunchFlag = LaunchFlag(0), limit: int = 100_000, items: int | None = None,
    ) -> Outcome:  # fmt: skip
        """Runs it with the addresses of the arrays as arguments. `items`: of a group, if not all lanes of its waves."""
        arguments = np.array([array.ctypes.data for array in arrays], np.uint64).tobytes()
        memory = sorted((Region(a.ctypes.data, a.nbytes, 1, k) for k, a in enumerate(arrays)), key=lambda r: r.base)
        launch = Launch(
            program=ctypes.pointer(self.program), grid=(groups, 1, 1),
            block=(waves * self.program.wave_size if items is None else items, 1, 1), kernarg_size=len(arguments),
            kernarg=arguments, regions=(Region * len(memory))(*memory), region_count=len(memory), flags=flags,
            schedule_seed=seed, contents_seed=contents, limit=limit,
        )  # fmt: skip
        report = Report()
        decode.library().emu_run(ctypes.byref(launch), ctypes.byref(report))
        return Outcome(report)

    def executed(self) -> list[int]:
        return list(self._executed)
