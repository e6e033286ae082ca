"""A program's flow: what can be reached; whether, on every path, what is used has come; and whether a wait or a barrier
that is missing is redundant.

The proofs are static. `unwaited` follows all that loads leave outstanding along every path, so also those that no call
takes. Of a wait that is missing, the registers and the memory that it waits for are followed from it along every path,
beside all else that is outstanding, until another wait covers them; it is redundant if nothing uses them before. Every
branch is taken to go both ways. Counters are counted as in hazards.c.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import decode
from decode import LoadedProgram
from records import Flag, Kind, Range

# enum emu_counter
VM, LGKM, EXP, VS, KM = range(5)
COUNTERS = 7
IN_ORDER = frozenset((VM, VS))  # what returns as it was issued; LDS does too, where no scalar load is among it
LDS, MEMORY = ("lds",), ("memory",)  # read or written, and written; of what other waves may do with it after a barrier

DS_STORES = ("write", "store", "add", "sub", "min", "max", "and_", "or_", "xor", "swap", "xchg", "inc", "dec")

# Counter; ("v" or "s", register) and of a vector register its half, LDS or MEMORY; whether it is the wait in question
# that waits for it.
Entry = tuple[int, tuple, bool]
Pending = dict[Entry, int]  # by entry, how many of its counter were issued behind it, at least


def name_of(program: LoadedProgram, index: int) -> str:
    """An instruction's mnemonic, with its suffix; of a VOPD the first one's."""
    return program.texts[index].partition(" ")[0]


def _architecture(program: LoadedProgram) -> int:
    """9, 11 or 12."""
    return int(decode.TARGETS[program.program.target][3:-2])


def _registers(program: LoadedProgram, ranges: Iterable[Range]) -> set[tuple]:
    """("v", 3, 0), ("s", 5) ... of ranges of a record. Where vector registers have halves that are waited for apart,
    gfx11 and gfx12, each is both of them: ("v", 3, 1) and ("v", 3, 2)."""
    both = (1, 2) if _architecture(program) >= 11 else (0,)
    found: set[tuple] = set()
    for one in ranges:
        numbers = range(one.first, one.first + one.count)
        if one.kind == Kind.SGPR:
            found |= {("s", number) for number in numbers}
        elif one.kind == Kind.VGPR:
            found |= {("v", number, half) for number in numbers for half in ((one.half,) if one.half else both)}
    return found


def successors(program: LoadedProgram, index: int) -> list[int]:
    """Where execution may go on; [] at the end.

    Raises:
        LookupError: it cannot be told.
    """
    name, target = name_of(program, index), program.instructions[index].target
    if name.startswith(("s_branch", "s_cbranch")) and target < 0:
        raise LookupError(f"`{program.texts[index]}` leads out of the program")
    if name.startswith(("s_endpgm", "s_trap")):
        return []
    if name == "s_setpc_b64" and target >= 0:
        return [target]
    if name.startswith(("s_setpc", "s_swappc", "s_cbranch_g", "s_cbranch_i", "s_cbranch_join", "s_call")):
        raise LookupError(f"{name} leads to where a register says")
    following = [index + 1] if index + 1 < len(program.texts) else []
    if name == "s_branch":
        following = []
    return [*following, *([target] if target >= 0 else [])]


def entries(program: LoadedProgram) -> list[int]:
    """Where execution may begin: with arguments preloaded, and where hardware does not do that."""
    return sorted({program.program.entry, program.program.plain_entry})


def reachable(program: LoadedProgram) -> set[int]:
    """The instructions that execution may come to; all behind a jump that cannot be followed."""
    found, open_ends = set(), entries(program)
    while open_ends:
        index = open_ends.pop()
        if index in found:
            continue
        found.add(index)
        try:
            open_ends += successors(program, index)
        except LookupError:
            return set(range(len(program.texts)))
    return found


def is_wait(program: LoadedProgram, index: int) -> bool:
    return any(most >= 0 for most in program.instructions[index].wait)


def is_barrier(program: LoadedProgram, index: int) -> bool:
    return name_of(program, index).startswith("s_barrier")


def _issued(program: LoadedProgram, index: int) -> Iterator[tuple[int, list[tuple]]]:
    """Counters that an instruction counts on, each with what it leaves pending.

    Raises:
        LookupError: it is of two kinds at once, which come in no order.
    """
    name, instruction = name_of(program, index), program.instructions[index]
    if name.startswith("flat_"):
        raise LookupError(f"`{program.texts[index]}` may be of LDS or of memory")
    loads, stores = _moves(name)
    if not (loads or stores):
        return
    written = sorted(_registers(program, instruction.write[: instruction.writes]))
    architecture = _architecture(program)
    newer = architecture >= 10
    returns = loads and bool(written)
    if name.startswith(("s_load", "s_buffer_load", "s_scratch_load")):
        yield (KM if architecture >= 12 else LGKM), written
    elif name.startswith("ds_"):
        yield LGKM, written + ([] if "permute" in name or "swizzle" in name else [LDS])
    else:
        to_lds = [LDS] if "_lds_" in name or instruction.flags & Flag.LDS else []
        counter = VS if newer and not returns else VM
        yield counter, written + to_lds + ([MEMORY] if stores else [])


def _moves(name: str) -> tuple[bool, bool]:
    """Whether an instruction loads, and whether it stores."""
    if name.startswith("ds_"):
        stores = any(word in name for word in DS_STORES)
        return not stores or "rtn" in name, stores
    if not name.startswith(("s_load", "s_buffer_load", "s_scratch_load", "global_", "buffer_", "scratch_")):
        return False, False
    if any(word in name for word in ("wbl2", "inv", "gl0", "gl1", "wb")):
        return False, False
    if "atomic" in name:
        return True, True
    return "load" in name, "store" in name


def _in_order(entry: Entry) -> bool:
    """Whether what is behind it comes after it: not of scalar loads. They are taken to be any that loads an SGPR."""
    return entry[1][0] != "s"


def _after_wait(pending: Pending, wait: Iterable[int]) -> Pending:
    """What is still pending behind a wait."""
    result = dict(pending)
    for counter, most in enumerate(wait):
        if most < 0:
            continue
        mixed = counter in (LGKM, KM) and any(e[0] == counter and not _in_order(e) for e in pending)
        for entry, behind in pending.items():
            if entry[0] == counter and (most == 0 or (behind >= most and not mixed)):
                result.pop(entry, None)
    return result


def _joined(one: Pending, other: Pending) -> Pending:
    return {e: min(one.get(e, 1 << 30), other.get(e, 1 << 30)) for e in {*one, *other}}


def _step(program: LoadedProgram, index: int, pending: Pending) -> Pending:
    """What is pending behind an instruction, with what it issues itself."""
    after = _after_wait(pending, program.instructions[index].wait)
    for counter, left in _issued(program, index):
        after = {e: behind + (e[0] == counter) for e, behind in after.items()}
        after |= {(counter, what, False): 0 for what in left}
    return after


def _uses(program: LoadedProgram, index: int, pending: Pending, waves: int) -> str | None:
    """How an instruction depends on what the wait in question waits for, or None."""
    instruction, name = program.instructions[index], name_of(program, index)
    read = _registers(program, instruction.read[: instruction.reads])
    written = _registers(program, instruction.write[: instruction.writes])
    own = {counter for counter, _ in _issued(program, index)}
    for counter, what, guarded in pending:
        if not guarded:
            continue
        # Results of one kind come in order: one after the other in a register is no matter.
        if what in read or (what in written and not (counter in own and what[0] == "v")):
            return f"`{program.texts[index]}` uses {what[0]}{what[1]}"
        if what == LDS and waves > 1 and is_barrier(program, index):
            return "a barrier hands LDS on before that is done with"
        if what == LDS and counter == VM and name.startswith("ds_"):
            return f"`{program.texts[index]}` touches LDS before what is copied there has come"
        if what == MEMORY and (is_barrier(program, index) or "atomic" in name or "wbl2" in name or "_inv" in name):
            return f"`{program.texts[index]}` hands memory on before it is written"
    return None


def pending_at(program: LoadedProgram, index: int) -> Pending:
    """What may be pending where an instruction begins, over all paths.

    Raises:
        LookupError: paths cannot be followed.
    """
    return _followed(program, {entry: {} for entry in entries(program)}).get(index, {})


def _followed(program: LoadedProgram, states: dict[int, Pending], stop=lambda at, pending: False) -> dict[int, Pending]:
    """What may be pending where instructions begin, over all paths from some that it is known of; to where `stop` is
    true."""
    work = list(states)
    while work:
        at = work.pop()
        if stop(at, states[at]):
            break
        after = _step(program, at, states[at])
        for next_one in successors(program, at):
            joined = _joined(states[next_one], after) if next_one in states else after
            if next_one not in states or states[next_one] != joined:
                states[next_one] = joined
                work.append(next_one)
    return states


def unwaited(program: LoadedProgram) -> list[str]:
    """Uses of registers, on any path, before what was loaded into them has come.

    Raises:
        LookupError: paths cannot be followed.
    """
    states = _followed(program, {entry: {} for entry in entries(program)})
    found = []
    for at in sorted(states):
        loads = {(counter, what, True): behind for (counter, what, _), behind in states[at].items()
                 if what not in (LDS, MEMORY)}  # fmt: skip
        if reason := _uses(program, at, loads, waves=1):
            found.append(f"0x{program.instructions[at].pc:x}: {reason}")
    return found


def need_of_wait(program: LoadedProgram, index: int, waves: int) -> str | None:
    """Why a wait is needed; None: it is redundant, on every path.

    Raises:
        LookupError: paths cannot be followed.
    """
    before = pending_at(program, index)
    kept = _after_wait(before, program.instructions[index].wait)
    pending = {
        (counter, what, (counter, what, guarded) not in kept): n for (counter, what, guarded), n in before.items()
    }
    needs: list[str] = []

    def needed(at: int, pending: Pending) -> bool:
        reason = _uses(program, at, pending, waves)
        needs.extend([reason] if reason else [])
        return bool(reason)

    _followed(program, dict.fromkeys(successors(program, index), pending), needed)
    return needs[0] if needs else None


def need_of_barrier(program: LoadedProgram, index: int, waves: int) -> str | None:
    """The same of a barrier: LDS is touched on both sides of it, with none between, and written on one; or memory is
    written before it, and touched behind it. Memory that is read before is none that is written behind: tensors that
    are read are lent to be read alone.

    Raises:
        LookupError: paths cannot be followed.
    """
    if waves == 1:
        return None
    backwards: dict[int, list[int]] = {}
    for at in reachable(program):
        for following in successors(program, at):
            backwards.setdefault(following, []).append(at)
    before = _until_barrier(program, backwards.get(index, []), lambda at: backwards.get(at, []))
    after = _until_barrier(program, successors(program, index), lambda at: successors(program, at))
    (reads_before, writes_before), (reads_after, writes_after) = before["lds"], after["lds"]
    if (writes_before and (reads_after or writes_after)) or (reads_before and writes_after):
        return "LDS is touched on both sides"
    return "memory is written before it, and touched behind" if before["memory"][1] and any(after["memory"]) else None


def _until_barrier(program: LoadedProgram, begin: list[int], onward) -> dict[str, tuple[bool, bool]]:
    """Of LDS and memory, whether they are read and written between here and the next barrier of any path."""
    seen: set[int] = set()
    found = {"lds": [False, False], "memory": [False, False]}
    work = list(begin)
    while work:
        at = work.pop()
        if at in seen or is_barrier(program, at):
            continue
        seen.add(at)
        name = name_of(program, at)
        loads, stores = _moves(name)
        if (loads or stores) and not name.startswith(("s_", "scratch_")) and "permute" not in name:
            kinds = ["lds"] if name.startswith("ds_") else ["lds", "memory"] if "_lds_" in name else ["memory"]
            for kind in kinds:
                found[kind][0] |= loads
                found[kind][1] |= stores or (kind == "lds" and "_lds_" in name)
        work += onward(at)
    return {kind: (reads, writes) for kind, (reads, writes) in found.items()}
