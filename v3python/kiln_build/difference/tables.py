"""The dispatch tables in a family's library, read from its file: what include/kiln/family.h declares. Nothing of the
library is run, and nothing that it states is believed: every address must lie in it, every count within a limit.

Needs only the standard library.
"""

from __future__ import annotations

import bisect
import itertools
import math
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from kiln_recipe.errors import ArtifactError
from kiln_recipe.images import elf_file, elf_limits

ABI = 7  # KILN_FAMILY_ABI: of the structures below
NO_CONFIGURATION = 255

# The structures of family.h: P a pointer, which relocations hold; i an int32_t; 8s and such what is not looked at.
_FAMILY = struct.Struct("<Qiiii4Q")
_OPERATION = struct.Struct("<Q16xQ40xQ4xi12xi8x")  # name, choices, kernels, choice_count, kernel_count
_CHOICE = struct.Struct("<Q8xii8xQQ8x")  # name, match, count, spellings, served
# name, implementation, serves_text, choices, bins, targets, choice_count, bin_count, target_count
_KERNEL = struct.Struct("<QQ16xQQ24xQ16xQ28xi8xi8xi16x")
_TARGET = struct.Struct("<Qi12xQQ40x")  # name, configuration_count, configuration_names, lookup
_BIN = struct.Struct("<Q8xQi4x")  # name, edges, edge_count
_RELOCATION = struct.Struct("<QQq")

_RELATIVE = 8  # R_X86_64_RELATIVE
_SYMBOLS, _RELOCATIONS, _NO_BYTES, _DYNAMIC_SYMBOLS = 2, 4, 8, 11
_ALLOCATED = 2
_MOST = {"operations": 256, "choices": 32, "values": 4096, "kernels": 32, "targets": 64, "bins": 16, "edges": 4096,
         "configurations": 255, "entries": 1 << 22}  # fmt: skip
_LONGEST_TEXT = 4096


@dataclass(frozen=True)
class Choice:
    """A choice of an operation: the spellings of its values, and for each the number of the value that serves it."""

    name: str
    spellings: tuple[str, ...]
    served: tuple[int, ...]


@dataclass(frozen=True)
class Bin:
    """An axis of a look-up: which bin a value is in is the number of edges that are not above it."""

    name: str
    edges: tuple[int, ...]


@dataclass(frozen=True)
class Table:
    """The look-up of a kernel on a target.

    Attributes:
        kernel: "attn_fwd/attn_fwd.hopper", as packs name it.
        serves: which calls the implementation serves, "k >= 64"; "": all.
        choices: those that the kernel depends on.
        lookup: for each functional, and within it each bin, the number of a configuration or NO_CONFIGURATION.
    """

    kernel: str
    target: str
    serves: str
    choices: tuple[Choice, ...]
    bins: tuple[Bin, ...]
    configurations: tuple[str, ...]
    lookup: bytes

    def rows(self) -> Iterator[tuple[str, bytes]]:
        """Each functional, "dtype=bf16 head_dim=64", and its part of the look-up."""
        size = math.prod(len(one.edges) + 1 for one in self.bins)
        axes = [[f"{one.name}={value}" for value in one.spellings] for one in self.choices]
        for number, words in enumerate(itertools.product(*axes)):
            yield " ".join(words), self.lookup[number * size : (number + 1) * size]


@dataclass(frozen=True)
class Family:
    """The tables of a library. `choices`: by operation."""

    name: str
    version: str
    choices: Mapping[str, tuple[Choice, ...]]
    tables: tuple[Table, ...]


def read(library: bytes, name: str) -> Family:
    """The tables of the family `name` in its library.

    Raises:
        ArtifactError: there are none, they are of another ABI, or they are malformed.
    """
    try:
        memory = _Memory(library)
        place, abi = memory.family(name)
        if abi != ABI:
            raise ArtifactError(f"its tables are of ABI {abi}; this Kiln reads {ABI}")
        return _read(memory, place)
    except (struct.error, UnicodeDecodeError, IndexError) as error:
        raise ArtifactError("its tables are malformed") from error


def symbols(library: bytes) -> list[str]:
    """The names that a library exports, sorted.

    Raises:
        ArtifactError: it is malformed.
    """
    found = set()
    try:
        elf_limits.check(library)
        sections = elf_file.sections(library)
        for _, kind, _, _, offset, size, link, *_ in sections:
            if kind != _DYNAMIC_SYMBOLS:
                continue
            names = sections[link].offset
            for name, info, _, section, *_ in elf_file.SYMBOL.iter_unpack(library[offset : offset + size]):
                if section and info >> 4 in (1, 2) and name:  # defined, and global or weak
                    start = names + name
                    found.add(library[start : library.index(b"\0", start)].decode())
    except (struct.error, ValueError, IndexError) as error:
        raise ArtifactError("its symbols are malformed") from error
    return sorted(found)


class _Memory:
    """A library as it will lie in memory, at address 0: its sections, and the pointers that relocations make."""

    def __init__(self, library: bytes) -> None:
        elf_limits.check(library)
        self._parts: list[tuple[int, bytes]] = []
        self._pointers: dict[int, int] = {}
        for _, kind, flags, address, offset, size, *_ in elf_file.sections(library):
            content = library[offset : offset + size]
            if kind == _RELOCATIONS:
                whole = content[: len(content) // _RELOCATION.size * _RELOCATION.size]
                for place, info, addend in _RELOCATION.iter_unpack(whole):
                    if info == _RELATIVE:
                        self._pointers[place] = addend
            elif flags & _ALLOCATED and kind != _NO_BYTES:
                self._parts.append((address, content))
        self._parts.sort()
        self._starts = [address for address, _ in self._parts]

    def bytes(self, address: int, size: int) -> bytes:
        number = bisect.bisect_right(self._starts, address) - 1
        if number < 0:
            raise ArtifactError("its tables have an address outside of it")
        start, content = self._parts[number]
        found = content[address - start : address - start + size]
        if len(found) != size:
            raise ArtifactError("its tables have an address outside of it")
        return found

    def text(self, address: int) -> str:
        number = bisect.bisect_right(self._starts, address) - 1
        start, content = self._parts[max(number, 0)]
        end = content.find(b"\0", address - start, address - start + _LONGEST_TEXT)
        if number < 0 or address >= start + len(content) or end < 0:
            raise ArtifactError("its tables have a text outside of it")
        return content[address - start : end].decode()

    def pointer(self, address: int) -> int:
        """What lies there when the library is loaded; 0: nothing."""
        return self._pointers.get(address, 0)

    def rows(self, row: struct.Struct, address: int, count: int, what: str) -> Iterator[tuple[int, tuple[int, ...]]]:
        """(address, numbers) of each row of an array; pointers are to be asked for."""
        _check(count, what)
        data = self.bytes(address, count * row.size) if count else b""
        for number, values in enumerate(row.iter_unpack(data)):
            yield address + number * row.size, values

    def numbers(self, form: str, address: int, count: int, what: str) -> tuple[int, ...]:
        _check(count, what)
        return struct.unpack(f"<{count}{form}", self.bytes(address, count * struct.calcsize(form))) if count else ()

    def texts(self, address: int, count: int, what: str) -> tuple[str, ...]:
        _check(count, what)
        return tuple(self.text(self.pointer(address + 8 * number)) for number in range(count))

    def family(self, name: str) -> tuple[int, int]:
        """Where the family's structure is, and its ABI: nothing else has that size, such counts, and that name."""
        for start, content in self._parts:
            for offset in range(-start % 8, len(content) - _FAMILY.size + 1, 8):
                size, abi, operations, packs, zero, *_ = _FAMILY.unpack_from(content, offset)
                if not (size == _FAMILY.size and 0 < abi < 1000 and 0 < operations <= _MOST["operations"] and not zero):
                    continue
                at = self.pointer(start + offset + 24)
                if at and 0 <= packs <= _MOST["targets"] and self.text(at) == name:
                    return start + offset, abi
        raise ArtifactError(f"it has no tables of the family {name}")


def _check(count: int, what: str) -> None:
    if not 0 <= count <= _MOST[what]:
        raise ArtifactError(f"its tables state {count} {what}; the limit is {_MOST[what]}")


def _read(memory: _Memory, place: int) -> Family:
    operations = struct.unpack("<i", memory.bytes(place + 12, 4))[0]
    choices: dict[str, tuple[Choice, ...]] = {}
    tables: list[Table] = []
    for at, row in memory.rows(_OPERATION, memory.pointer(place + 40), operations, "operations"):
        operation = memory.text(memory.pointer(at))
        choices[operation] = tuple(
            _choice(memory, *one) for one in memory.rows(_CHOICE, memory.pointer(at + 24), row[3], "choices")
        )
        for kernel in memory.rows(_KERNEL, memory.pointer(at + 72), row[4], "kernels"):
            tables += _kernel(memory, *kernel, operation, choices[operation])
    name, version = (memory.text(memory.pointer(place + offset)) for offset in (24, 32))
    return Family(name, version, choices, tuple(tables))


def _choice(memory: _Memory, at: int, row: tuple[int, ...]) -> Choice:
    count = row[2]
    spellings = memory.texts(memory.pointer(at + 32), count, "values")
    served = memory.numbers("i", memory.pointer(at + 40), count, "values")
    if any(not 0 <= number < count for number in served):
        raise ArtifactError("its tables serve a value by one that there is not")
    return Choice(memory.text(memory.pointer(at)), spellings, served)


def _kernel(
    memory: _Memory, at: int, row: tuple[int, ...], operation: str, choices: tuple[Choice, ...]
) -> Iterator[Table]:
    _, _, _, _, _, _, choice_count, bin_count, target_count = row
    name = memory.text(memory.pointer(at))
    if implementation := memory.pointer(at + 8):
        name += f".{memory.text(implementation)}"
    serves = memory.pointer(at + 32)
    own = tuple(choices[n] for n in memory.numbers("i", memory.pointer(at + 40), choice_count, "choices"))
    bins = tuple(
        Bin(memory.text(memory.pointer(one)), memory.numbers("q", memory.pointer(one + 16), count, "edges"))
        for one, (_, _, count) in memory.rows(_BIN, memory.pointer(at + 72), bin_count, "bins")
    )
    entries = math.prod(len(one.spellings) for one in own) * math.prod(len(one.edges) + 1 for one in bins)
    _check(entries, "entries")
    for one, (_, count, _, _) in memory.rows(_TARGET, memory.pointer(at + 96), target_count, "targets"):
        names = memory.texts(memory.pointer(one + 24), count, "configurations")
        lookup = memory.bytes(memory.pointer(one + 32), entries)
        if any(number >= count and number != NO_CONFIGURATION for number in lookup):
            raise ArtifactError("its tables choose a configuration that there is not")
        yield Table(
            f"{operation}/{name}", memory.text(memory.pointer(one)), memory.text(serves) if serves else "", own, bins,
            names, lookup,
        )  # fmt: skip
