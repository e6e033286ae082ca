"""A sample of a profile: which of its variants are drawn by a seed, and a release that has these alone.

    KILN_STORE=store KILN_PROFILE=full PYTHONPATH=v3python <workspace>/venv/bin/python tests/emulator/sample.py 1 \\
        --few 30 input <workspace> output 0.1.0b "gfx942;gfx90a;gfx1100"

Of each operation and target as many combinations of its choices (dtypes, head_dim, extras) are drawn as it takes until
every two values that occur together in the profile do so in the sample; of these combinations all variants are in it,
padded or not, of every kernel that a call of theirs launches. So `run.py --sample SEED` executes the same of a release
of the whole profile as of the one that is built here.

With --few N, calls are drawn until the images that they may take, and the core profile has not, are N of a target or
more: of each operation as many, and of its calls those that bring most values of choices, and pairs of them, an image
that are in no image of that kernel yet. Each is a combination of all choices; in the sample is what the look-up may
take for it, of every kernel of the operation, of the forward that a backward's call needs before it, of the mask of a
call that drops weights, and of the call by which candidates.py reaches kernels that do not depend on head_dim. A
target draws others than the next.

`--list`: nothing is built, and the variants' names are printed.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from unittest import mock

from kiln_recipe.plan import plan as planning
from kiln_recipe.plan.model import CompileSpec, KernelPlan, Plan, Variant
from kiln_recipe.selection import values_of

PADDED = "padded"  # no feature of a call: an image without masks for columns, where widths allow it
FORWARD, BACKWARD = "flash.attn_fwd", "flash.attn_bwd"
MASKS = "flash.dropout_mask", {"mask_dtype": "uint8"}  # by which what a call drops is known
PLAIN = {"head_dim": "64", "extras": "any"}  # in calls of candidates.py for kernels that do not depend on these
_NOT_DRAWN = "it is not in the sample that was drawn by the seed {}"

_DRAWN = re.compile(re.escape(_NOT_DRAWN).replace(r"\{\}", "([0-9]+)"))

Row = tuple[tuple[str, str], ...]  # (choice, value), sorted


def row_of(functional: str) -> Row:
    """The choices of a functional that are drawn together."""
    return tuple(sorted((name, value) for name, value in values_of(functional).items() if name != PADDED))


def drawn_by(reason: str) -> str:
    """The seed of the sample that a release is, by why one of its slots is empty; "" of other reasons."""
    found = _DRAWN.fullmatch(reason)
    return found[1] if found else ""


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


@dataclass(frozen=True)
class Offer:
    """A kernel's functional: its values, and the variants that the look-up may take for calls of it."""

    operation: str
    values: Mapping[str, str]
    variants: tuple[Variant, ...]


def drawn_few(plan: Plan, core: Plan, target: str, seed: int, most: int) -> list[Variant]:
    """Of a target the variants that --few says."""
    offers = [offer for kernel in plan.kernels if kernel.target.name == target for offer in _offers(plan, kernel)]
    there = {variant.spec for variant in core.variants}
    digests = {str(call): hashlib.sha256(f"{seed} {target} {call}".encode()).digest() for call in _calls(offers)}
    left = sorted(_calls(offers), key=lambda call: digests[str(call)])
    taken = [(operation, _taken_by(offers, operation, values)) for operation, values in left]
    new = [{v.spec: _features(v) for v in variants if v.spec not in there} for _, variants in taken]
    lacking: dict[CompileSpec, set] = {}
    counts = dict.fromkeys(sorted({operation for operation, _ in left}), 0)
    names: set[str] = set()
    while len(lacking) < most and counts:
        covered = set().union(*lacking.values())
        operation = min(counts, key=counts.__getitem__)
        best, most_worth = None, 0.0
        for place, some in enumerate(new):
            added = some.keys() - lacking.keys()
            brings = set().union(*(some[spec] for spec in added)) - covered
            worth = len(brings) / max(len(added), 1)
            if taken[place][0] == operation and worth > most_worth:
                best, most_worth = place, worth
        if best is None:
            del counts[operation]
            continue
        counts[operation] += len(new[best].keys() - lacking.keys())
        lacking |= new[best]
        names |= {variant.name for variant in taken[best][1]}
    return [variant for variant in plan.variants if variant.target == target and variant.name in names]


def _features(variant: Variant) -> set:
    """Of a kernel each value of a choice, and each two of them."""
    ones = tuple(f"{variant.kernel} {name}={value}" for name, value in sorted(values_of(variant.functional).items()))
    return {variant.kernel, *ones, *itertools.combinations(ones, 2)}


def _offers(plan: Plan, kernel: KernelPlan) -> Iterator[Offer]:
    variants = {variant.slot: variant for variant in plan.variants_of(kernel)}
    decisions = planning.explain(kernel, variants)
    specializations = range(len(kernel.kernel.specializations))
    for number, functional in enumerate(kernel.functionals):
        taken = sorted({d.configuration for d in decisions[number] if d.configuration is not None})
        found = tuple(variants[kernel.slot(number, one, place)] for one in taken for place in specializations)
        if found:
            yield Offer(f"{kernel.family}.{kernel.operation}", values_of(functional.name), found)


def _calls(offers: Sequence[Offer]) -> list[tuple[str, Mapping[str, str]]]:
    """Of each operation the combinations of its choices, as the kernels that depend on most of them have them; padded
    or not, since calls of most widths are padded, and share an image with others."""
    rows: dict[str, dict[Row, Mapping[str, str]]] = {}
    for offer in offers:
        values = {name: value for name, value in offer.values.items() if name != PADDED}
        rows.setdefault(offer.operation, {})[tuple(sorted(values.items()))] = values
    most = {operation: max(map(len, some)) for operation, some in rows.items()}
    return [(name, values) for name, some in rows.items() for values in some.values() if len(values) == most[name]]


def _taken_by(offers: Sequence[Offer], operation: str, values: Mapping[str, str]) -> list[Variant]:
    """What is to be there that a call can be made, and that each image of it is reached; nothing if some of that is
    not in the profile."""
    calls: list[tuple[str, Mapping[str, str]]] = [(operation, values)]
    if any("head_dim" not in offer.values for offer in _agreeing(offers, operation, values)):
        calls.append((operation, {**values, **PLAIN}))
    if operation == BACKWARD:
        calls += [(FORWARD, row) for _, row in calls]
    if any(row.get("extras") in ("any", "dropout") for _, row in calls):
        calls.append(MASKS)
    found = [_agreeing(offers, *call) for call in calls]
    return [variant for some in found for offer in some for variant in offer.variants] if all(found) else []


def _agreeing(offers: Sequence[Offer], operation: str, values: Mapping[str, str]) -> list[Offer]:
    return [
        offer
        for offer in offers
        if offer.operation == operation and all(values.get(name, one) == one for name, one in offer.values.items())
    ]


def narrowed(plan: Plan, seed: int, core: Plan | None = None, few: int = 0) -> Plan:
    """A plan with the variants of the sample alone; the others' slots say why they are empty.

    Args:
        core: if given, calls are drawn until the sample has `few` images of a target that this has not.
    """
    kept = []
    for target in plan.targets:
        if core is not None:
            kept += drawn_few(plan, core, target.name, seed, few)
            continue
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
        why = _NOT_DRAWN.format(seed)
        kernels.append(replace(kernel, absent={**kernel.absent, **dict.fromkeys(sorted(lost), why)}))
    return replace(plan, variants=tuple(kept), kernels=tuple(kernels))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("seed", type=int, help="that the sample is drawn by")
    parser.add_argument(
        "--few", type=int, metavar="N", help="draw calls, until N images of a target or more are in that core has not"
    )
    parser.add_argument(
        "--list", action="store_true", help="print the names of the sample's variants, and build nothing"
    )
    for name, what in (
        ("input", "the folder input/ of the source tree"), ("workspace", "the folder for temporary files"),
        ("output", "the folder for the tarball"), ("version", "as 0.1.0b"), ("targets", "as 'gfx942;gfx1100'"),
    ):  # fmt: skip
        parser.add_argument(name, help=f"as of `kiln build`: {what}")
    options = parser.parse_args()
    if options.few is not None and options.few < 1:
        parser.error(f"--few {options.few} draws nothing; give 1 or more")
    from kiln_build import cli
    from kiln_build.release import build

    whole = build.make_plan

    def part(asked, chosen):
        core = None
        if options.few is not None:
            core = whole(replace(asked, build=replace(asked.build, profile="core")), chosen)
        plan = narrowed(whole(asked, chosen), options.seed, core, options.few)
        if options.list:
            print(*(variant.name for variant in plan.variants), sep="\n")
            sys.exit(0)
        return plan

    words = [options.input, options.workspace, options.output, options.version, options.targets]
    with mock.patch.object(build, "make_plan", part):
        return cli.main(["build", *words])


if __name__ == "__main__":
    sys.exit(main())
