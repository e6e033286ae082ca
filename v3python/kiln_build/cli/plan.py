"""`kiln plan`: how many variants a build compiles, and how long that takes, before anything is compiled."""

from __future__ import annotations

import argparse
import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kiln_build.base import ROOT, machine
from kiln_build.options import options, words
from kiln_recipe import targets
from kiln_recipe.console.spelling import print_text, say, spell_estimate
from kiln_recipe.console.tables import plural, table_lines
from kiln_recipe.console.usage import add_families, count, filled, one_of, path, selection
from kiln_recipe.errors import EnvironmentProblem, ToolchainError
from kiln_recipe.selection import CONFIGURATIONS, PROFILES

if TYPE_CHECKING:
    from kiln_build.farm.durations import Basis
    from kiln_build.ledger.planned import Shares
    from kiln_build.options.variables import BuildVariables
    from kiln_build.store.store import Store, Took
    from kiln_recipe.plan.model import KernelPlan, Plan, Variant

EXAMPLE = """
kiln plan "MI300X;sm_90"                             counts by target and kernel, and an estimate
kiln plan sm_90 --select "dtype=bf16;head_dim=64"    of a part
kiln plan sm_90 --explain                            which rule chose which configuration
kiln plan all --profile full --json
"""


def add_release(parser: argparse.ArgumentParser, verb: str, store: str) -> None:
    """The options that say what a build would compile.

    Args:
        verb: what the command does with it, "plan".
        store: what a store is for.
    """
    parser.add_argument("targets", nargs="*", help="as build.sh takes them; default: all")
    parser.add_argument(
        "--profile", type=one_of("profile", PROFILES), help="core or full; default: KILN_PROFILE, or core"
    )
    parser.add_argument(
        "--configurations", type=one_of("configuration", CONFIGURATIONS),
        help="chosen: those that some call takes, or all; default: KILN_CONFIGURATIONS, or chosen",
    )  # fmt: skip
    parser.add_argument(
        "--select",
        type=selection("--select"),
        metavar="CHOICES",
        help="'operation=attn_fwd;dtype=bf16'; default: KILN_SELECT, or everything in the profile",
    )
    add_families(parser, verb)
    parser.add_argument(
        "--tuning",
        type=path("--tuning", "a folder with tuned rules, as tuning/ is"),
        metavar="FOLDER",
        help="with tuned rules; default: tuning/",
    )
    parser.add_argument(
        "--store", type=filled("--store", "a store, or a build's workspace"), metavar="FOLDER",
        help=f"a store, or a build's workspace: {store}; default: KILN_STORE",
    )  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_release(parser, "plan", "its images are not counted, its durations are used")
    parser.add_argument(
        "--jobs",
        type=count("--jobs"),
        metavar="N",
        help="number of parallel compiles; default: KILN_JOBS, or all cores",
    )
    parser.add_argument(
        "--explain",
        action="store_true",
        help="print the configuration of each functional and bin, and why",
    )
    parser.add_argument("--variants", action="store_true", help="print the name of each variant")
    parser.add_argument(
        "--json", action="store_true", help="as JSON: counts, seconds, and the whole plan under `kernels`"
    )


def check(arguments: argparse.Namespace) -> None:
    options.check_environment()
    asked = read_asked(arguments)
    targets.parse(_targets(arguments))
    tuning = _tuning(arguments)
    if not tuning.is_dir():
        raise EnvironmentProblem(f"--tuning {tuning} is not a folder; give one with rules, as tuning/ is")
    if not any(tuning.glob("*/*.yaml")):
        raise EnvironmentProblem(
            f"--tuning {tuning} has no rules, FAMILY/TARGET.yaml; give a folder with some, as tuning/ is"
        )
    for word in asked.recipes:
        words.check_recipe(word, Path.cwd())
    if not arguments.store and asked.store and not Path(asked.store).is_dir():  # one to read may be read-only
        words.check_store(asked.store, Path.cwd())


def run(arguments: argparse.Namespace) -> int:
    from kiln_build.ledger.explained import explain  # here, so that --help needs no package
    from kiln_build.ledger.planned import Shares

    asked = read_asked(arguments)
    the_plan = make(arguments, asked)
    for warning in the_plan.warnings:
        say(f"warning: {warning}")
    held = _look_up(the_plan, open_there(arguments.store, asked.store))
    jobs = arguments.jobs or asked.jobs or machine.usable_cpus()
    times, shares = _Times(held), Shares(ROOT / "ledger")
    if arguments.json:
        print(json.dumps(_document(the_plan, times, jobs, shares), indent=2))
        return 0
    _print_counts(the_plan, times, jobs, shares)
    if arguments.variants:
        print()
        print_text("\n".join(variant.name for variant in the_plan.variants))
    if arguments.explain:
        for kernel in the_plan.kernels:
            print()
            print_text(f"{_kernel_name(kernel)} on {kernel.target.name}")
            print_text("\n".join(f"  {line}" for line in explain(kernel, shares)))
    return 0


def read_asked(arguments: argparse.Namespace) -> BuildVariables:
    """The variables of a build, narrowed by the options of `add_release`."""
    environment = options.narrow(os.environ, arguments.recipe, arguments.family, Path.cwd())
    return options.read_build_variables(environment)


def make(arguments: argparse.Namespace, asked: BuildVariables) -> Plan:
    """The plan of the build that the options of `add_release` ask for."""
    from kiln_build.release import families  # here, so that --help needs no package
    from kiln_recipe.plan import plan

    return plan.make_plan(
        families.choose(ROOT, asked).recipes,
        targets.parse(_targets(arguments)),
        arguments.profile or asked.profile,
        asked.selection if arguments.select is None else arguments.select,
        _tuning(arguments),
        arguments.configurations or asked.configurations,
    )


def _targets(arguments: argparse.Namespace) -> str:
    return " ".join(arguments.targets or ["all"])


def _tuning(arguments: argparse.Namespace) -> Path:
    return arguments.tuning or ROOT / "tuning"


def open_there(named: str | None, usual: str | None) -> Store | None:
    """The store that is asked; a build makes the usual one, so that may be missing yet."""
    place = named or (usual if usual and (words.scheme_of(usual) or Path(usual).is_dir()) else None)
    if place is None:
        return None
    from kiln_build.store.stores import open_store

    return open_store(place, there=named is not None)


@dataclass(frozen=True)
class _Held:
    """What a store has for a plan.

    Attributes:
        durations: what variants took, by name.
        names: of the variants whose images it has; None: that is not known.
        note: what is said of it.
    """

    durations: Mapping[str, Took]
    names: frozenset[str] | None
    note: str


def _look_up(the_plan: Plan, store: Store | None) -> _Held:
    if store is None:
        return _Held({}, None, "an empty store is assumed: KILN_STORE or --store names one to look into")
    from kiln_build.farm.job import Job
    from kiln_build.ledger.chain import toolchain_of
    from kiln_recipe.compile import lock

    durations = store.durations()
    try:
        identity = toolchain_of(ROOT).identity
    except ToolchainError:  # every key depends on it
        why = "without Triton it is not known which images it has; KILN_WORKSPACE=<a build's workspace> uses that one's"
        return _Held(durations, None, f"{store.location} has the durations; {why}")
    others = lock.read_lock(ROOT / "input" / lock.LOCK_NAME).overrides  # compiled by another Triton
    ours = {target.name for target in the_plan.targets if not any(target.is_called(name) for name in others)}
    names = frozenset(
        variant.name
        for variant in the_plan.variants
        if variant.target in ours and store.holds(Job.of(variant.spec, identity).key)
    )
    return _Held(durations, names, f"{len(names)} of {len(the_plan.variants)} are in the store {store.location}")


class _Times:
    """Seconds that variants will take, those that the store has aside. Variants of equal images are compiled once."""

    def __init__(self, held: _Held) -> None:
        from kiln_build.farm.durations import Durations

        self.held = held
        self.durations = Durations(held.durations)
        self.bases: Counter[Basis] = Counter()  # of the compiles that were asked for
        self._seen: set[str] = set()

    def __call__(self, variants: Sequence[Variant]) -> float:
        total = 0.0
        for variant in variants:
            key = variant.spec.key("")
            if variant.name in (self.held.names or ()) or key in self._seen:
                continue
            self._seen.add(key)
            seconds, basis = self.durations(variant)
            self.bases[basis] += 1
            total += seconds
        return total


@dataclass(frozen=True)
class _Row:
    kernel: KernelPlan
    variants: tuple[Variant, ...]
    seconds: float


def _rows(the_plan: Plan, times: _Times) -> list[_Row]:
    by_kernel: dict[tuple[str, str, str, str], list[Variant]] = {}
    for variant in the_plan.variants:
        by_kernel.setdefault((variant.target, variant.family, variant.operation, variant.kernel), []).append(variant)
    rows = []
    for kernel in the_plan.kernels:
        variants = by_kernel.get((kernel.target.name, kernel.family, kernel.operation, kernel.kernel.name), [])
        rows.append(_Row(kernel, tuple(variants), times(variants)))
    return rows


_NUMBERS = ("FUNCTIONALS", "CONFIGURATIONS", "SPECIALIZATIONS", "VARIANTS", "WAIVED")


def _print_counts(the_plan: Plan, times: _Times, jobs: int, shares: Shares) -> None:
    from kiln_build.ledger.planned import spell_shares

    table: list[tuple[str, ...]] = [("TARGET", "KERNEL", *_NUMBERS, "TUNED BY", "MODELLED")]
    rows = _rows(the_plan, times)
    for row in rows:
        functionals = len({variant.functional for variant in row.variants})
        planned, there = functionals, len(row.kernel.functionals)
        table.append(
            (
                row.kernel.target.name,
                _kernel_name(row.kernel),
                str(there) if planned == there else f"{planned} of {there}",
                str(len(row.kernel.configurations)),
                str(len(row.kernel.kernel.specializations)),
                str(len(row.variants)),
                str(sum(variant.waiver is not None for variant in row.variants)),
                f"{len(row.kernel.rules)} rules" if row.kernel.rules else "heuristic",
                spell_shares(shares.of_variant(row.kernel, variant) for variant in row.variants) or "-",
            )
        )
    if all(line[-1] == "-" for line in table[1:]):
        table = [line[:-1] for line in table]
    print_text("\n".join(table_lines(table[0], table[1:], _NUMBERS)))
    total = sum(row.seconds for row in rows)
    variants, on = plural(len(the_plan.variants), "variant"), plural(len(the_plan.targets), "target")
    print(
        f"\n{variants} for {on}, profile {the_plan.profile}: about {spell_estimate(total)} of compiling "
        f"({total / 3600:.2f} core-hours; {spell_bases(times.bases)}), "
        f"{spell_estimate(total / jobs)} with {jobs} at once; {times.held.note}"
    )


def spell_bases(bases: Counter[Basis]) -> str:
    """ "90 recorded, 6 estimated from their kin": how far an estimate can be trusted."""
    from kiln_build.farm.durations import Basis

    spelled = {
        Basis.RECORDED: "recorded",
        Basis.KIN: "estimated from their kin",
        Basis.USUAL: "estimated from what such kernels usually take",
    }
    return ", ".join(f"{bases[basis]} {said}" for basis, said in spelled.items() if bases[basis]) or "nothing to do"


def _document(the_plan: Plan, times: _Times, jobs: int, shares: Shares) -> dict:
    from kiln_build.farm.durations import Basis
    from kiln_build.ledger.explained import bin_names

    rows = _rows(the_plan, times)
    total = sum(row.seconds for row in rows)
    return {
        "profile": the_plan.profile,
        "targets": [target.name for target in the_plan.targets],
        "variants": len(the_plan.variants),
        "stored": None if times.held.names is None else len(times.held.names),
        "seconds": round(total, 1),
        "seconds_elapsed": round(total / jobs, 1),
        "jobs": jobs,
        "core_hours": round(total / 3600, 3),
        "durations": "recorded" if times.durations else "default",
        "expected_from": {basis.value: times.bases[basis] for basis in Basis},
        "kernels": [
            {
                "target": row.kernel.target.name,
                "kernel": _kernel_name(row.kernel),
                "functionals": [functional.name for functional in row.kernel.functionals],
                "configurations": [configuration.name for configuration in row.kernel.configurations],
                "specializations": [entry.name for entry in row.kernel.kernel.specializations],
                "slots": row.kernel.slots,
                "bins": bin_names(row.kernel),
                "layout": row.kernel.layout,
                "seconds": round(row.seconds, 1),
                "variants": [
                    {
                        "name": variant.name,
                        "slot": variant.slot,
                        "waiver": variant.waiver,
                        "spill_allowance": variant.spill_allowance,
                        "modelled_share": share / 1000 if (share := shares.of_variant(row.kernel, variant)) else None,
                    }
                    for variant in row.variants
                ],
            }
            for row in rows
        ],
    }


def _kernel_name(kernel: KernelPlan) -> str:
    return f"{kernel.family}.{kernel.operation}/{kernel.kernel.name}"
