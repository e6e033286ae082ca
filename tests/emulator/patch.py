"""Changes of a code object's instructions, in place."""

from __future__ import annotations

import io
import re
import subprocess

import decode
from elftools.elf.elffile import ELFFile

NOP = bytes.fromhex("000080bf")  # s_nop 0, of every target


def begin_of_text(code: bytes, symbol: str) -> int:
    """Where in the file the kernel's first instruction lies."""
    elf = ELFFile(io.BytesIO(code))
    (found,) = elf.get_section_by_name(".symtab").get_symbol_by_name(symbol)
    section = elf.get_section(found["st_shndx"])
    return section["sh_offset"] + found["st_value"] - section["sh_addr"]


def patched(code: bytes, offset: int, new: bytes) -> bytes:
    return code[:offset] + new + code[offset + len(new) :]


def flipped(code: bytes, offset: int, bit: int) -> bytes:
    """With a bit of the word at an offset changed."""
    word = int.from_bytes(code[offset : offset + 4], "little") ^ 1 << bit
    return patched(code, offset, word.to_bytes(4, "little"))


def assembled(target: str, text: str) -> bytes:
    """An instruction's bytes.

    Raises:
        ValueError: it is none.
    """
    command = [str(decode.tool("llvm-mc")), "-triple=amdgcn-amd-amdhsa", f"-mcpu={target}", "-show-encoding"]
    done = subprocess.run(command, input=f"{text}\n", capture_output=True, text=True)
    found = re.search(r"encoding: \[([0-9a-fx,]+)\]", done.stdout)
    if done.returncode or not found:
        raise ValueError(f"`{text}` is no instruction of {target}: {done.stderr.strip()}")
    return bytes(int(byte, 16) for byte in found[1].split(","))


def neighbour(target: str, text: str) -> str:
    """A matrix instruction whose first source is the registers behind those that it should be.

    Raises:
        ValueError: it has no such source.
    """
    step = 1 if target.startswith("gfx1") else 2  # pairs begin at even registers there
    head, first, rest = re.fullmatch(r"(\S+ [^,]+, )([av]\[\d+:\d+\]|[av]\d+)(,.*)", text).groups()
    numbers = [int(number) for number in re.findall(r"\d+", first)]
    top = max(numbers) + step > 255
    moved = re.sub(r"\d+", lambda number: str(int(number[0]) + (-step if top else step)), first)
    return head + moved + rest
