"""Where two images differ: the section, and in code the first instructions, by the vendors' disassemblers."""

from __future__ import annotations

import re
import shutil
import subprocess
import sysconfig
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kiln_build.amd_model import disassembly
from kiln_recipe.errors import ArtifactError, EnvironmentProblem
from kiln_recipe.images import elf_file, elf_limits

_NO_BYTES = 8
_NVDISASM = "triton/backends/nvidia/bin/nvdisasm"
_LINE = re.compile(r"\s*/\*([0-9a-f]{4,})\*/\s+(.*?)\s*;")
# How far AMD's branches lead is printed, and is another number where code between was inserted; NVIDIA's name labels.
_BRANCH = re.compile(r"(s_(?:c?branch|call)\w*)\s.*")
_SECONDS = 120
SHOWN = 3  # instructions of each side


@dataclass(frozen=True)
class Instruction:
    """`offset`: bytes from the section's beginning."""

    offset: int
    text: str

    def __str__(self) -> str:
        return f"{self.offset:#06x}  {self.text}"


@dataclass(frozen=True)
class CodeDifference:
    """Where two images differ first.

    Attributes:
        section: ".text.attn_fwd"; of several that differ the first with code, else the first.
        offset: of the first byte that differs, from the section's beginning.
        sections: all that differ.
        before, after: the instructions from the first that differs on, and not in how far it leads alone; () where
            the section has no code, or no disassembler can be had, which `note` says then.
    """

    section: str
    offset: int
    sections: tuple[str, ...]
    before: tuple[Instruction, ...] = ()
    after: tuple[Instruction, ...] = ()
    note: str = ""


def first_difference(before: bytes, after: bytes, kind: str, sites: Sequence[Path] = ()) -> CodeDifference:
    """Where two images of a kernel differ.

    Args:
        kind: "cubin" or "hsaco".
        sites: folders of packages in which Triton may lie, whose nvdisasm is used.

    Raises:
        ArtifactError: one is malformed, or they are equal.
    """
    names = sections_that_differ(before, after)
    if not names:
        raise ArtifactError("the images differ in nothing but the places of their sections")
    section = names[0]
    old, new = _sections(before), _sections(after)
    ends = old.get(section, b""), new.get(section, b"")
    offset = _first(*ends)
    if not section.startswith(".text"):
        return CodeDifference(section, offset, tuple(names))
    try:
        ours, theirs = (_instructions(image, kind, section, sites) for image in (before, after))
    except EnvironmentProblem as error:
        return CodeDifference(section, offset, tuple(names), note=str(error))
    printed = _first([one.text for one in ours], [one.text for one in theirs])
    first, note = _first(*([_BRANCH.sub(r"\1", one.text) for one in side] for side in (ours, theirs))), ""
    if first == len(ours) == len(theirs):
        first = printed
    elif printed < first:
        note = "before it, only how far branches lead differs"
    if first == len(ours) == len(theirs):  # what is not printed: stalls, barriers and such
        first = max((n for n, one in enumerate(ours) if one.offset <= offset), default=0)
        note = "the instructions are the same, and are encoded differently"
    end = first + SHOWN
    return CodeDifference(section, offset, tuple(names), tuple(ours[first:end]), tuple(theirs[first:end]), note)


def _first(ours: Sequence[object], theirs: Sequence[object]) -> int:
    """The number of the first that differ; where one side ends first, of its end."""
    return next((n for n, (a, b) in enumerate(zip(ours, theirs)) if a != b), min(len(ours), len(theirs)))


def sections_that_differ(before: bytes, after: bytes) -> list[str]:
    """Names of sections, those with code first.

    Raises:
        ArtifactError: one is no ELF file, or malformed.
    """
    if before[:4] != b"\x7fELF" or after[:4] != b"\x7fELF":
        raise ArtifactError("it is not an ELF file")
    old, new = _sections(before), _sections(after)
    names = [name for name in dict.fromkeys((*old, *new)) if old.get(name) != new.get(name)]
    return sorted(names, key=lambda name: not name.startswith(".text"))


def _sections(image: bytes) -> dict[str, bytes]:
    """The contents of an image's sections by their names; those of one name, which only a damaged one has, together."""
    elf_limits.check(image)
    found: dict[str, bytes] = {}
    for name, section in elf_file.named(image):
        content = section.size.to_bytes(8, "little") if section.kind == _NO_BYTES else elf_file.content(image, section)
        found[name] = found.get(name, b"") + content
    return found


def _instructions(image: bytes, kind: str, section: str, sites: Sequence[Path]) -> list[Instruction]:
    if kind == "hsaco":
        code = disassembly.disassemble(image, disassembly.find_tool())
        return [Instruction(offset, text) for offset, text in zip(code.offsets, code.texts)]
    tool = find_nvdisasm(sites)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(image)
        file.flush()
        try:
            done = subprocess.run([tool, "-c", file.name], capture_output=True, text=True, timeout=_SECONDS)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise EnvironmentProblem(f"{tool} cannot be run, or does not come to an end ({error})") from error
    found, is_inside = [], False
    for line in done.stdout.splitlines():
        if line.startswith("//-----"):
            is_inside = line.split()[1:2] == [section]
        elif is_inside and (match := _LINE.match(line)):
            found.append(Instruction(int(match[1], 16), match[2]))
    if done.returncode or not found:
        said = " ".join(done.stderr.split()).replace(file.name, "it")[:200]
        raise EnvironmentProblem(f"nvdisasm finds no code in it that it knows ({said or 'no instructions'})")
    return found


def find_nvdisasm(sites: Sequence[Path]) -> str:
    """NVIDIA's disassembler: Triton's, in one of these folders of packages or Python's own, or one on the path.

    Raises:
        EnvironmentProblem: there is none.
    """
    for site in (*sites, Path(sysconfig.get_paths()["purelib"])):
        if (site / _NVDISASM).is_file():
            return str(site / _NVDISASM)
    if path := shutil.which("nvdisasm"):
        return path
    raise EnvironmentProblem("nvdisasm, which comes with Triton, is not here, so instructions are not shown")
