"""A sample of a profile: which of its variants are drawn by a seed, and a release that has these alone.

    KILN_STORE=store KILN_PROFILE=full PYTHONPATH=v3python <workspace>/venv/bin/python tests/emulator/sample.py 1 \\
        input <workspace> output 0.1.0b "gfx942;gfx90a;gfx1100"

Of each operation and target as many combinations of its choices (dtypes, head_dim, extras) are drawn as it takes until
every two values that occur together in the profile do so in the sample; of these combinations all variants are in it,
padded or not, of every kernel that a call of theirs launches. So `run.py --sample SEED` executes the same of a release
of the whole profile as of the one that is built here. `--list`: nothing is built, and the variants' names are printed.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from unittest import mock

from kiln_recipe.selection import values_of

PADDED = "padded"  # no feature of a call: an image without masks for columns, where widths allow it
_NOT_DRAWN = "it is not in the sample that was drawn"

Row = tuple[tuple[str, str], ...]  # (choice, value), sorted


def row_of(functional: str) -> Row:
    """The choices of a functional that are drawn together."""
    return tuple(sorted((name, value) for name, value in values_of(functional).items() if name != PADDED))


def drawn(rows: Iterable[Row], seed: int) -> list[Row]:
    """Rows by which each value, and each two values that a row has together, are in one of those drawn: the one that
    brings most that is new first, of equal ones the first by a digest of the seed. What is drawn of the rows that were
    drawn is all of them."""
    left = sorted(set(rows), key=lambda row: hashlib.sha256(f"{seed} {row}".encode()).digest())
    pairs = {row: {*row, *itertools.combinations(row, 2)} for row in left}
    covered: set = set()
    chosen = []
    while True:
        best = max(left, key=lambda row: len(pairs[row] - covered), default=None)
        if best is None or not pairs[best] - covered:
            return chosen
        covered |= pairs[best]
        chosen.append(best)


def sampled(functionals: Sequence[tuple[str, str]], seed: int) -> list[bool]:
    """Of each (operation, functional) of a target, whether it is in the sample: it has no choice, or agrees with a row
    that is drawn of its operation's longest functionals."""
    rows: dict[str, list[Row]] = {}
    for operation, functional in functionals:
        rows.setdefault(operation, []).append(row_of(functional))
    there = {}
    for operation, every in rows.items():
        longest = max(map(len, every))
        there[operation] = [set(row) for row in drawn([row for row in every if len(row) == longest], seed)]
    return [any(set(row_of(functional)) <= row for row in there[operation]) for operation, functional in functionals]


def narrowed(plan, seed: int):
    """A kiln_recipe.plan.model.Plan with the variants of the sample alone; the others' slots say why they are empty."""
    kept = []
    for target in plan.targets:
        there = [variant for variant in plan.variants if variant.target == target.name]
        flags = sampled([(f"{v.family}.{v.operation}", v.functional) for v in there], seed)
        kept += [variant for variant, flag in zip(there, flags) if flag]
    slots: dict[tuple, set[int]] = {}
    for v in kept:
        slots.setdefault((v.family, v.operation, v.kernel, v.target), set()).add(v.slot)
    kernels = []
    for kernel in plan.kernels:
        name = (kernel.family, kernel.operation, kernel.kernel.name, kernel.target.name)
        lost = {v.slot for v in plan.variants_of(kernel)} - slots.get(name, set())
        kernels.append(replace(kernel, absent={**kernel.absent, **dict.fromkeys(sorted(lost), _NOT_DRAWN)}))
    return replace(plan, variants=tuple(kept), kernels=tuple(kernels))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("seed", type=int, help="that the sample is drawn by")
    parser.add_argument(
        "--list", action="store_true", help="print the names of the sample's variants, and build nothing"
    )
    for name, what in (
        ("input", "the folder input/ of the source tree"), ("workspace", "the folder for temporary files"),
        ("output", "the folder for the tarball"), ("version", "as 0.1.0b"), ("targets", "as 'gfx942;gfx1100'"),
    ):  # fmt: skip
        parser.add_argument(name, help=f"as of `kiln build`: {what}")
    options = parser.parse_args()
    from kiln_build import cli
    from kiln_build.release import build

    whole = build.make_plan

    def part(*arguments):
        plan = narrowed(whole(*arguments), options.seed)
        if options.list:
            print(*(variant.name for variant in plan.variants), sep="\n")
            sys.exit(0)
        return plan

    words = [options.input, options.workspace, options.output, options.version, options.targets]
    with mock.patch.object(build, "make_plan", part):
        return cli.main(["build", *words])


if __name__ == "__main__":
    sys.exit(main())
