"""What a built library has against memory that is overrun, as its ELF file tells."""

from __future__ import annotations

import re
from pathlib import Path

from elftools.elf.elffile import ELFFile

EXECUTE, WRITE = 1, 2
# By library: whether some of its functions have arrays on the stack, which are guarded; and whether it formats text.
EXPECTED = {
    "libkiln.so.0": (True, True),
    "libkiln_flash.so": (True, False),
    "libkiln_toy.so": (False, False),
    "libkiln_norm.so": (False, False),
    "libkiln_torch.so": (True, True),
    "libaotriton_v2.so": (True, True),  # of each version
    "_core": (True, True),
}
# Of the C library: what formats has a checked form, which is called wherever a compiler does not see that nothing can
# go wrong. That of others is called where the size of what they write to is known, too.
FORMATTING = {"sprintf", "snprintf", "vsprintf", "vsnprintf", "fprintf", "vfprintf", "printf", "vprintf", "dprintf"}


def imports(path: Path) -> set[str]:
    """The functions that it takes from others."""
    with path.open("rb") as file:
        symbols = ELFFile(file).get_section_by_name(".dynsym").iter_symbols()
        return {symbol.name for symbol in symbols if symbol.entry.st_shndx == "SHN_UNDEF"} - {""}


def segments(path: Path) -> list[tuple[str, int]]:
    with path.open("rb") as file:
        return [(segment.header.p_type, segment.header.p_flags) for segment in ELFFile(file).iter_segments()]


def tags(path: Path) -> dict[str, int]:
    with path.open("rb") as file:
        dynamic = ELFFile(file).get_section_by_name(".dynamic")
        return {tag.entry.d_tag: tag.entry.d_val for tag in dynamic.iter_tags()}


def check(path: Path) -> None:
    """Asserts that a library was compiled and linked with csrc/flags.txt, whatever of it applies to what it does."""
    guards, formats = EXPECTED[
        re.sub(r"(?<=^_core)\..*|(?<=^libaotriton_v2\.so)\..*|-[0-9a-f]{16}$", "", path.name)
    ]  # as an import, as it is built
    taken, found, dynamic = imports(path), segments(path), tags(path)
    checked = {name.removeprefix("__").removesuffix("_chk") for name in taken if re.fullmatch(r"__\w+_chk", name)}
    assert ("__stack_chk_fail" in taken) == guards, f"{path.name}: stack protector"
    assert bool(checked & FORMATTING) == formats, f"{path.name} has checked {checked}"
    assert "PT_GNU_RELRO" in dict(found), f"{path.name} can be written to where it is relocated"
    assert dynamic.get("DT_FLAGS", 0) & 8 or dynamic.get("DT_FLAGS_1", 0) & 1, f"{path.name} is bound lazily"
    assert dict(found)["PT_GNU_STACK"] & EXECUTE == 0, f"{path.name} wants a stack that can be executed"
    assert not [kind for kind, flags in found if flags & EXECUTE and flags & WRITE], path.name
    assert "DT_TEXTREL" not in dynamic
