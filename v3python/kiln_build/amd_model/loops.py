"""The loops of a kernel that its time goes into."""

from __future__ import annotations

from dataclasses import dataclass

from kiln_build.amd_model.disassembly import Code
from kiln_build.amd_model.instructions import is_matrix

_MEMORY = ("global_load", "buffer_load", "flat_load")


@dataclass(frozen=True)
class Loop:
    """A loop: `texts` of its instructions, the branch back last; `begin`, `end`: bytes from the kernel's beginning."""

    begin: int
    end: int
    texts: tuple[str, ...]

    @property
    def density(self) -> float:
        """Matrix instructions in its instructions."""
        return sum(map(is_matrix, self.texts)) / len(self.texts)


def find(code: Code) -> list[Loop]:
    """The innermost loops that multiply matrices, the main one first: the one where the most of the instructions do,
    since loops over masked blocks have more besides. Of code without matrix instructions, the innermost loops that load
    from memory, the longest first."""
    index = {offset: number for number, offset in enumerate(code.offsets)}
    spans = {
        (index[target], number)
        for number, target in code.targets.items()
        if target in index and index[target] <= number
    }
    has_matrix = any(map(is_matrix, code.texts))

    def counts(span: tuple[int, int]) -> bool:
        body = code.texts[span[0] : span[1]]
        return any(is_matrix(text) if has_matrix else text.startswith(_MEMORY) for text in body)

    candidates = sorted(filter(counts, spans))
    innermost = [
        (begin, end)
        for begin, end in candidates
        if not any(other != (begin, end) and other[0] >= begin and other[1] <= end for other in candidates)
    ]
    loops = [Loop(code.offsets[begin], code.offsets[end], code.texts[begin : end + 1]) for begin, end in innermost]
    return sorted(loops, key=lambda loop: (-loop.density, -len(loop.texts) if not has_matrix else 0, loop.begin))
