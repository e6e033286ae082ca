"""The file of a ledger: for one family and target what each variant's image takes, and its key.

    ledger   = "ledger 1: " family " on " target EOL toolchain columns EOL group* "keys" EOL keys*
    toolchain = "toolchain " key ", triton " version EOL           ; of the last update
    columns  = "registers spills shared warps blocks resident" " share"? EOL ; what the numbers of a line are
    group    = heading EOL line* EOL
    heading  = operation "/" kernel (" " choice "=" value)*        ; the kernel ("." its implementation) and functional
    line     = "  " facts "  " configuration " " specialization was? EOL
    facts    = number{6} share? | "none"                           ; "none": the recipe lets it be without an image
    share    = number | "-" | "?"                                  ; of AMD targets; "-": it multiplies no matrices
    was      = "  was registers=" number " spills=" number " blocks=" number (" share=" number)?
    keys     = operation "/" kernel EOL ("  " key (" " key){0,8} EOL)* ; in the order of the kernel's lines
    key      = 12 hexadecimal digits

Headings and lines are sorted, numbers in them by their value; a heading is no line of another group's. So a diff of the
facts is what changed of the images, each hunk under its heading (git shows the nearest line that begins with a letter);
keys, which change with every edit of a kernel, stand by themselves behind all facts.

registers: of a thread; spills: bytes of a thread; shared: bytes of a block; warps: of a block; blocks: that a
multiprocessor holds at once (occupancy.py); resident: the warps of all these; share: thousandths of the matrix units'
peak that its main loop reaches by the model (docs/model.md), "?" where it was not modelled. `was`: what the image took
before it got fewer blocks, more spills or a smaller share; it stands there until that is mended, and asks for a reason
(reasons.py).

Twelve digits of a key are 48 bits. A line's key is compared with one other, so that a changed image passes for the old
one with a chance of 2^-48; a key that a page of measurements names is compared with all of a tree's, some 7,000, which
makes it 2^-35.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from kiln_build.difference.images import Facts, Place, Was, measures
from kiln_recipe.console.appear import appear
from kiln_recipe.errors import ArtifactError, EnvironmentProblem, LedgerError

DIGITS = 12  # of a key
_IN_A_ROW = 9  # keys
COLUMNS = "registers spills shared warps blocks resident"
WITH_SHARE = f"{COLUMNS} share"
_NO_MATRIX, _UNKNOWN = "-", "?"


@dataclass(frozen=True)
class Line:
    """A variant. `facts`: None if it has no image, as its recipe allows."""

    key: str
    facts: Facts | None
    was: Was | None = None


@dataclass(frozen=True)
class Ledger:
    """What a file says. `toolchain`: short digest of the toolchain's identity; `triton`: its version; `has_shares`: the
    target is modelled."""

    family: str
    target: str
    toolchain: str
    triton: str
    lines: Mapping[Place, Line] = field(default_factory=dict)
    has_shares: bool = False

    def name(self, place: Place) -> str:
        """As Variant.name."""
        return place.name(self.family, self.target)


def path_of(folder: Path, family: str, target: str) -> Path:
    """Where the ledger of a family on a target is."""
    return folder / family / f"{target}.txt"


def targets_of(folder: Path) -> frozenset[str]:
    """Names of the targets that a folder has a ledger of, of any family."""
    return frozenset(path.stem for path in folder.glob("*/*.txt"))


def read(path: Path, in_order: bool = True) -> Ledger | None:
    """The ledger in a file; None if there is no file.

    Args:
        in_order: refuse lines that are out of order, as a merge by hand may leave them.

    Raises:
        EnvironmentProblem: it cannot be read.
        ArtifactError: it is damaged; the sentence begins with file:line.
        LedgerError: its lines are out of order.
    """
    try:
        text = path.read_bytes().decode()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise EnvironmentProblem(f"{path} cannot be read ({error.strerror}); restore it from git") from error
    except UnicodeDecodeError as error:
        raise ArtifactError(f"{path}:1: is not UTF-8 ({error.reason}); restore the file from git") from error
    return parse(text, str(path), in_order)


def write(path: Path, ledger: Ledger) -> None:
    """Writes the file, which appears complete.

    Raises:
        EnvironmentProblem: it cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with appear(path) as fresh:
            fresh.write_text(render(ledger))
    except OSError as error:
        raise EnvironmentProblem(f"{path} cannot be written ({error.strerror}); the ledger is kept in this folder")


def render(ledger: Ledger) -> str:
    """The file's text."""
    groups: dict[str, list[Place]] = {}
    for place in sorted(ledger.lines, key=_by_value):
        groups.setdefault(place.heading, []).append(place)
    text = [
        f"ledger 1: {ledger.family} on {ledger.target}",
        f"toolchain {ledger.toolchain}, triton {ledger.triton}",
        WITH_SHARE if ledger.has_shares else COLUMNS,
        "",
    ]
    for heading, places in groups.items():
        text += [heading, *(_line(place, ledger.lines[place], ledger.has_shares) for place in places), ""]
    text.append("keys")
    of_kernel: dict[str, list[str]] = {}
    for group in groups.values():
        for place in group:
            of_kernel.setdefault(place.kernel, []).append(ledger.lines[place].key)
    for kernel, keys in of_kernel.items():
        text += [kernel, *(f"  {' '.join(keys[at : at + _IN_A_ROW])}" for at in range(0, len(keys), _IN_A_ROW))]
    return "\n".join(text) + "\n"


def parse(text: str, name: str, in_order: bool = True) -> Ledger:
    """What `render` made of a ledger.

    Args:
        name: of the file, for the sentence.
        in_order: see `read`.

    Raises:
        ArtifactError: it is anything else.
        LedgerError: but for the order of its lines, it is one.
    """
    parser = _Parser(name)
    for number, line in enumerate(text.splitlines(), 1):
        parser.take(number, line)
    ledger = parser.ledger()
    if in_order and render(ledger) != text:
        raise LedgerError(f"{name}:1: lines are out of order, or differ in blanks; `kiln ledger --update` repairs that")
    return ledger


def _line(place: Place, line: Line, has_share: bool) -> str:
    facts, was = line.facts, line.was
    numbers = f"{'none':{30 if has_share else 25}}"
    if facts:
        numbers = (
            f"{facts.registers:3} {facts.spills:5} {facts.shared:6} {facts.warps:2} {facts.blocks:2} {facts.resident:3}"
        )
        if has_share:
            numbers += f" {_UNKNOWN if facts.share is None else facts.share or _NO_MATRIX:>4}"
    ending = f"  was registers={was.registers} spills={was.spills} blocks={was.blocks}" if was else ""
    if was and was.share is not None:
        ending += f" share={was.share}"
    return f"  {numbers}  {f'{place.configuration} {place.specialization}'.lstrip()}{ending}"


def _by_value(place: Place) -> list[list[tuple[int, str]]]:
    """A key to sort by: numbers by their value."""
    return [
        [(int(word) if word.isdecimal() else -1, word) for word in re.split(r"([0-9]+)", part)]
        for part in (place.heading, place.configuration, place.specialization)
    ]


_HEAD = re.compile(r"ledger 1: ([\w-]+) on ([\w-]+)")
_TOOLCHAIN = re.compile(r"toolchain ([0-9a-f]{12}), triton ([\w.+-]+)")
_NUMBER = r"([0-9]{1,9})"
_LINE = re.compile(
    rf"  (?: *{' +'.join([_NUMBER] * 6)}(?: +([0-9]{{1,4}}|[-?]))?|none +)  ((?:[^ ]+ )*?)([^ =]+)"
    rf"(?:  was registers={_NUMBER} spills={_NUMBER} blocks={_NUMBER}(?: share={_NUMBER})?)?"
)
_HEADING = re.compile(r"([\w-]+/[\w-]+(?:\.[\w-]+)?)((?: [\w-]+=[^ :]+)*)")
_KEYS = re.compile(r"  [0-9a-f]{12}(?: [0-9a-f]{12})*")


class _Parser:
    """Takes line after line; each is known by the grammar."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.head: list[str] = []
        self.groups: dict[str, dict[Place, tuple[Facts | None, Was | None]]] = {}
        self.keys: dict[str, list[str]] | None = None
        self.current: tuple[str, str, str] | None = None  # heading, kernel, functional
        self.has_shares = False
        self.number = 0

    def take(self, number: int, line: str) -> None:
        self.number = number
        if number <= 2:
            self.head += self.match((_HEAD, _TOOLCHAIN)[number - 1], line).groups()
        elif number == 3:
            self.has_shares = line == WITH_SHARE
            if line not in (COLUMNS, WITH_SHARE):
                self.fail(f"must be {COLUMNS!r}, for AMD targets {WITH_SHARE!r}")
        elif not line:
            return
        elif self.keys is not None:
            self.take_keys(line, self.keys)
        elif line == "keys":
            self.keys = {}
        elif line[0] == " ":
            self.image(line)
        else:
            kernel, functional = self.match(_HEADING, line).groups()
            if line in self.groups:
                self.fail(f"{line!r} appears a second time")
            self.current = (line, kernel, functional.lstrip())
            self.groups[line] = {}

    def take_keys(self, line: str, keys: dict[str, list[str]]) -> None:
        if line[0] != " ":
            if line in keys:
                self.fail(f"keys of {line!r} stand here a second time")
            keys[line] = []
        elif not keys:
            self.fail("keys without a kernel")
        else:
            keys[next(reversed(keys))] += self.match(_KEYS, line)[0].split()

    def image(self, line: str) -> None:
        found = self.match(_LINE, line).groups()
        if self.current is None:
            self.fail("an image without a heading")
        heading, kernel, functional = self.current
        place = Place(kernel, functional, found[7].rstrip(), found[8])
        facts = was = None
        if found[0] is not None:
            registers, spills, shared, warps, blocks, resident = map(int, found[:6])
            if (found[6] is not None) != self.has_shares:
                self.fail("the line has not as many numbers as there are columns")
            share = None if found[6] in (None, _UNKNOWN) else 0 if found[6] == _NO_MATRIX else int(found[6])
            facts = Facts(registers, spills, shared, warps, blocks, share)
            if not facts.warps:
                self.fail("a block has at least one warp")
            if resident != facts.resident:
                self.fail(f"{facts.blocks} blocks of {facts.warps} warps are {facts.resident} warps, not {resident}")
        if found[9] is not None:
            registers, spills, blocks = map(int, found[9:12])
            was = Was(registers, spills, blocks, None if found[12] is None else int(found[12]))
            if not measures(was, facts):
                self.fail("`was` is only for images that got worse, but this one did not")
        if place in self.groups[heading]:
            self.fail(f"{place.configuration} {place.specialization} appears a second time")
        self.groups[heading][place] = (facts, was)

    def ledger(self) -> Ledger:
        if len(self.head) != 4 or self.keys is None:
            self.fail("the file ends too early")
        of_kernel: dict[str, list[tuple[Place, Facts | None, Was | None]]] = {}
        for group in self.groups.values():
            for place, (facts, was) in group.items():
                of_kernel.setdefault(place.kernel, []).append((place, facts, was))
        lines: dict[Place, Line] = {}
        for kernel in of_kernel | self.keys:
            images, keys = of_kernel.get(kernel, []), self.keys.get(kernel, [])
            if len(keys) != len(images):
                self.fail(f"{kernel} has {len(images)} lines and {len(keys)} keys")
            lines |= {place: Line(key, facts, was) for (place, facts, was), key in zip(images, keys)}
        family, target, toolchain, triton = self.head
        return Ledger(family, target, toolchain, triton, lines, self.has_shares)

    def match(self, pattern: re.Pattern, line: str) -> re.Match:
        found = pattern.fullmatch(line)
        if found is None:
            self.fail(f"{line[:60]!r} is not a line of a ledger (kiln_build/ledger/file.py has the grammar)")
        return found

    def fail(self, sentence: str) -> NoReturn:
        raise ArtifactError(f"{self.name}:{max(self.number, 1)}: {sentence}; restore the file from git")


def short(key: str) -> str:
    """A key as ledgers and pages have it."""
    return key[:DIGITS]
