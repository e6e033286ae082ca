"""The instructions of a code object, by LLVM's disassembler, which knows every AMD target from version 22 on."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from kiln_recipe.errors import ArtifactError, EnvironmentProblem

_NAME = "llvm-objdump"
_NEWEST, _OLDEST = 40, 19  # versions that Debian puts behind the name; the newest that is installed is taken
_PACKAGE = "llvm-22"
_SECONDS = 120
_LINE = re.compile(r"\s+(\S.*?)\s*// ([0-9A-F]+): ([0-9A-F]{8})?")


@dataclass(frozen=True)
class Code:
    """A kernel's code.

    Attributes:
        texts: of its instructions, one after another.
        offsets: of each, bytes from the kernel's beginning.
        targets: by the number of a branch the offset that it goes to.
    """

    texts: tuple[str, ...]
    offsets: tuple[int, ...]
    targets: dict[int, int]


def find_tool() -> str:
    """The path of the newest llvm-objdump.

    Raises:
        EnvironmentProblem: there is none.
    """
    for version in range(_NEWEST, _OLDEST - 1, -1):
        if path := shutil.which(f"{_NAME}-{version}"):
            return path
    if path := shutil.which(_NAME):
        return path
    raise EnvironmentProblem(
        f"{_NAME} is not installed, by which AMD code is read; install Debian's package {_PACKAGE} "
        "(https://apt.llvm.org), or put LLVM 19 or later into PATH"
    )


def disassemble(image: bytes, tool: str) -> Code:
    """
    Args:
        image: a code object with one kernel.
        tool: see `find_tool`.

    Raises:
        ArtifactError: the disassembler finds no code that it knows.
        EnvironmentProblem: it cannot be run.
    """
    with tempfile.NamedTemporaryFile(suffix=".hsaco") as file:
        file.write(image)
        file.flush()
        words = [tool, "-d", "--no-show-raw-insn", "--section=.text", file.name]
        try:
            done = subprocess.run(words, capture_output=True, text=True, timeout=_SECONDS)
        except subprocess.TimeoutExpired as error:
            raise ArtifactError(f"{Path(tool).name} does not come to an end with it in {_SECONDS} s") from error
        except OSError as error:
            raise EnvironmentProblem(f"{tool} cannot be run ({error.strerror})") from error
    code = parse(done.stdout)
    if done.returncode or not code.texts:
        said = " ".join(done.stderr.split()).replace(file.name, "it")
        raise ArtifactError(f"{Path(tool).name} finds no code in it that it knows ({said or 'no instructions'})")
    return code


def parse(text: str) -> Code:
    """What the disassembler printed."""
    texts: list[str] = []
    offsets: list[int] = []
    targets: dict[int, int] = {}
    first: int | None = None
    for line in text.splitlines():
        found = _LINE.match(line)
        if found is None:
            continue
        address = int(found[2], 16)
        first = address if first is None else first
        if found[3] and found[1].startswith(("s_cbranch", "s_branch")):
            # The low half of its word: how many words the target is behind the next instruction.
            words = int(found[3], 16) & 0xFFFF
            targets[len(texts)] = address + 4 + 4 * (words - 0x10000 if words & 0x8000 else words) - first
        texts.append(found[1].strip())
        offsets.append(address - first)
    return Code(tuple(texts), tuple(offsets), targets)
