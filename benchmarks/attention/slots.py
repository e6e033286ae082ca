"""What the main loops of a release's images for Hopper ask of a multiprocessor, counted in their instructions.

    python3 benchmarks/attention/slots.py RELEASE WORD... [--json]                          # no GPU
    python3 benchmarks/attention/slots.py kiln-sm_90.pack 'attn_fwd.hopper dtype=bf16 head_dim=128 extras=none'

RELEASE is a tarball, an unpacked release or a pack. Of all images whose kernel and variant have all parts of a WORD,
those with products of warpgroups (HGMMA, QGMMA) have a row for each loop around such products: how many instructions a
warp issues in an iteration, and how many clocks of a multiprocessor each unit works for an iteration of all warpgroups.
A unit that is the busiest bounds the loop; what it then takes longer is latency that nothing hides. nvdisasm comes with
Triton.

Clocks are those of one multiprocessor of compute capability 9.0 (CUDA C++ Programming Guide 13, 'Arithmetic
Instructions', and 4,096 floating point operations a clock in the tensor cores, 8,192 of bytes). Each of its four
schedulers issues one instruction a clock.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "v3python"))

from kiln_build.amd_model import images  # noqa: E402
from kiln_build.artifacts import reader  # noqa: E402
from kiln_build.artifacts.reader import PackFile, Release  # noqa: E402
from kiln_build.difference import code  # noqa: E402
from kiln_recipe import targets  # noqa: E402
from kiln_recipe.errors import KilnError, UsageError  # noqa: E402
from kiln_recipe.images import occupancy  # noqa: E402

TARGET = "sm_90"
RIGHT = "give a release's tarball, the folder that it was unpacked to, or a pack"
WARPGROUP = 128  # threads, a warp on each scheduler
_SECONDS = 120

_LABEL = re.compile(r"\s*(\.L_[\w.]+):")
_LINE = re.compile(
    r"\s*/\*[0-9a-f]{4,}\*/\s+(?P<guard>@!?U?P\w+\s+)?(?P<name>[A-Z][\w.]*)(?P<rest>[^;]*);?(?P<behind>.*)"
)
_TARGET = re.compile(r"\.L_[\w.]+")
_PRODUCT = re.compile(r"([HQ])GMMA(?:\.SP)?\.64x(\d+)x(\d+)\.")
# Clocks of a scheduler for an instruction of a warp, by its unit.
CLOCKS = {"exponentials": 8, "additions": 1, "others": 2}
_UNITS = {
    "exponentials": ("MUFU", "F2I", "I2F", "F2F"),
    "additions": ("FFMA", "FMUL", "FADD", "HFMA2", "HADD2", "HMUL2"),
    "others": (
        "FMNMX", "FSETP", "FSEL", "F2FP", "IADD3", "IMAD", "ISETP", "LEA", "LOP3", "MOV", "PRMT", "SEL", "SHF", "VIADD",
    ),
}  # fmt: skip


@dataclass
class Block:
    """Instructions without a branch among them. `next`: where it goes on, by the number of a block."""

    label: str = ""
    names: list[str] = field(default_factory=list)
    targets: list[str] = field(default_factory=list)
    falls: bool = True
    next: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Loop:
    """Loops around products that differ in less than a twentieth of their instructions.

    Attributes:
        copies: of the loop in the code: each warpgroup of a kernel whose warps do different things has its own.
        instructions: of a warp, in an iteration.
        products: clocks of the tensor cores for one warpgroup's.
        clocks: of a scheduler, for a warp, by unit.
    """

    copies: int
    instructions: int
    products: int
    clocks: dict[str, int]


def blocks_of(text: str) -> list[Block]:
    """The blocks of a kernel in nvdisasm's words, with their edges."""
    found = [Block()]
    for line in text.splitlines():
        if label := _LABEL.match(line):
            if found[-1].names or found[-1].label:
                found.append(Block())
            found[-1].label = label[1]
        elif match := _LINE.match(line):
            block, name = found[-1], match["name"]
            block.names.append(name + match["rest"])
            if name.split(".")[0] in ("BRA", "BRX", "EXIT", "RET"):
                block.targets = _TARGET.findall(match["rest"] + match["behind"])
                block.falls = bool(match["guard"])
                found.append(Block())
    places = {block.label: number for number, block in enumerate(found) if block.label}
    for number, block in enumerate(found):
        block.next = [places[label] for label in block.targets if label in places]
        if block.falls and number + 1 < len(found):
            block.next.append(number + 1)
    return found


def natural_loops(blocks: Sequence[Block]) -> list[frozenset[int]]:
    """The blocks of each loop: of all edges back to a block that is on every way to them (Aho, Sethi and Ullman, 1986,
    section 10.4)."""
    before: list[list[int]] = [[] for _ in blocks]
    for number, block in enumerate(blocks):
        for to in block.next:
            before[to].append(number)
    everything = frozenset(range(len(blocks)))
    above = [frozenset([0]), *[everything] * (len(blocks) - 1)]
    is_settled = False
    while not is_settled:
        is_settled = True
        for number in range(1, len(blocks)):
            fresh = frozenset([number]).union(
                frozenset.intersection(*(above[one] for one in before[number])) if before[number] else ()
            )
            if fresh != above[number]:
                above[number], is_settled = fresh, False
    found: dict[int, set[int]] = {}
    for number, block in enumerate(blocks):
        for head in block.next:
            if head in above[number]:
                inside, todo = found.setdefault(head, {head}), [number]
                while todo:
                    if (one := todo.pop()) not in inside:
                        inside.add(one)
                        todo += before[one]
    return [frozenset(inside) for inside in found.values()]


def loops_of(text: str) -> list[Loop]:
    """The innermost loops around products, the busiest first. What waits in a loop of its own does not count."""
    blocks = blocks_of(text)
    natural = natural_loops(blocks)
    around = [one for one in natural if any(_PRODUCT.match(name) for number in one for name in blocks[number].names)]
    rows = []
    for one in around:
        if any(other < one for other in around):
            continue
        waits = frozenset().union(*(other for other in natural if other < one))
        rows.append([name for number in sorted(one - waits) for name in blocks[number].names])
    return _merged(rows)


def _merged(rows: Sequence[Sequence[str]]) -> list[Loop]:
    """Loops with the same products and about as many instructions are one, of the mean counts."""
    groups: list[list[Sequence[str]]] = []
    for names in sorted(rows, key=len):
        products = Counter(match[0] for name in names if (match := _PRODUCT.match(name)))
        for group in groups:
            same = Counter(match[0] for name in group[0] if (match := _PRODUCT.match(name))) == products
            if same and len(names) < 1.05 * len(group[0]):
                group.append(names)
                break
        else:
            groups.append([names])
    return sorted(map(_loop, groups), key=lambda loop: -loop.products / loop.instructions)


def _loop(group: Sequence[Sequence[str]]) -> Loop:
    count = len(group)
    clocks = {
        unit: round(
            sum(name.split()[0].split(".")[0] in members for names in group for name in names) / count * CLOCKS[unit]
        )
        for unit, members in _UNITS.items()
    }
    products = sum(_product_clocks(name) for name in group[0])
    return Loop(count, round(sum(map(len, group)) / count), products, clocks)


def _product_clocks(name: str) -> int:
    """Of the tensor cores, for a warpgroup's product of 64 rows."""
    match = _PRODUCT.match(name)
    if not match:
        return 0
    kind, columns, depth = match[1], int(match[2]), int(match[3])
    return 2 * 64 * columns * depth // (8192 if kind == "Q" else 4096)


def disassembled(image: bytes, tool: str) -> str:
    """An image in nvdisasm's words."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(image)
        file.flush()
        done = subprocess.run([tool, "-c", file.name], capture_output=True, text=True, timeout=_SECONDS)
    return done.stdout


def wanted(path: Path, words: Sequence[str]) -> Iterator[tuple[dict[str, Any], bytes]]:
    """Rows of variants, one for each image, whose kernel and names have all parts of a word; and the image."""
    artifact = reader.open_artifact(path)
    if not isinstance(artifact, (Release, PackFile)):
        raise UsageError(f"{path} is a single image; {RIGHT}")
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for row in reader.variants_of(artifact):
        names = {row["kernel"].partition("/")[2], *row["functional"].split(), *row["specialization"].split()}
        if row["target"] == TARGET and row["image"] and any(names.issuperset(word.split()) for word in words):
            rows.setdefault((row["target"], row["image"]), row)
    if not rows:
        raise UsageError(
            f"{path} has no image of {TARGET} like {' or '.join(words)}; `kiln inspect` lists its variants"
        )
    for target, digest, image in images.codes(artifact, rows.__contains__):
        yield rows[target, digest], image


def measures(row: dict[str, Any], image: bytes, tool: str) -> list[dict[str, Any]]:
    """An image's loops, as rows of the table: clocks of a multiprocessor for an iteration of a block's warpgroups."""
    fits = occupancy.blocks(
        targets.by_name(TARGET).residency, row["registers"], row["shared"], -(-row["threads"] // 32)
    )
    text, found = disassembled(image, tool), []
    for loop in loops_of(text):
        # Warps that do different things are sent to their code by an indirect branch; others are all in one loop.
        groups = loop.copies * (1 if "BRX" in text else row["threads"] // WARPGROUP)
        name = f"{row['kernel'].partition('/')[2]} {row['functional']} {row['specialization']}"
        found.append({
            "image": name, "digest": row["image"],
            "registers": row["registers"], "spills": row["spills"], "blocks": fits, "warpgroups": groups,
            "instructions": loop.instructions, "products": groups * loop.products,
            "issue": groups * loop.instructions,
            **{unit: groups * clocks for unit, clocks in loop.clocks.items()},
        })  # fmt: skip
    return found


def table(found: Sequence[dict[str, Any]]) -> str:
    columns = ("image", "registers", "blocks", "warpgroups", "instructions", "products", "issue", *CLOCKS)
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    return "\n".join(lines + [f"| {' | '.join(str(row[name]) for name in columns)} |" for row in found])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("release", type=Path)
    parser.add_argument("words", nargs="+", metavar="WORD")
    parser.add_argument("--json", action="store_true", help="the table's rows as JSON, with digests of the images")
    words = parser.parse_args()
    try:
        tool = code.find_nvdisasm(())
        found = [one for row, image in wanted(words.release, words.words) for one in measures(row, image, tool)]
    except KilnError as error:
        print(f"slots.py: {error}", file=sys.stderr)
        return error.exit_code
    print(json.dumps(found, indent=1) if words.json else table(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
