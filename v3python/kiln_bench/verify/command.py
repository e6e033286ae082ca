"""`kiln verify-device`: every image of a release, forced in turn on the GPU that is there, and its results judged."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kiln_bench import kept
from kiln_bench.command import seconds
from kiln_bench.release import places
from kiln_bench.release.library import IMAGES, VENDORS
from kiln_bench.verify import memory, session
from kiln_recipe.console import usage
from kiln_recipe.console.files import check_new_file
from kiln_recipe.console.guard import run_verb
from kiln_recipe.console.progress import make_progress
from kiln_recipe.console.spelling import print_text
from kiln_recipe.console.tables import table
from kiln_recipe.errors import EnvironmentProblem, NotServed, UsageError, WrongResult
from kiln_recipe.selection import unknown, values_of
from kiln_recipe.suggest import nearest

COMMAND = "kiln verify-device"
SUMMARY = "Every image of a release, forced in turn on the GPU that is there, and its results judged"
EXAMPLE = """\
kiln verify-device kiln-0.1.0b-manylinux_2_28_x86_64-shared.tar.gz
kiln verify-device release.tar.gz --budget 5m             some of everything; the same command goes on from there
kiln verify-device --select 'kernel=attn_fwd.amd;dtype=bf16' --json
kiln verify-device --from kiln-verify-gfx942.json         shows results that were kept; no GPU"""
_SHOWN = 20  # wrong images


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "release", nargs="?", type=usage.filled("the release", places.RIGHT.removeprefix("give ")),
        help="a tarball, an unpacked release or a folder of wheels; default: the release that is installed",
    )  # fmt: skip
    parser.add_argument(
        "--device", type=usage.count("--device", 63, least=0), default=0, metavar="N",
        help="which GPU, as the driver counts; default: 0",
    )  # fmt: skip
    parser.add_argument(
        "--vendor", type=usage.filled("--vendor", " or ".join(sorted(VENDORS))),
        help="whose GPU, where the host has drivers of both; default: the first that the release has images for",
    )  # fmt: skip
    parser.add_argument(
        "--select", type=usage.selection("--select"), default=(), metavar="CHOICES",
        help="only these images: 'operation=attn_bwd;dtype=bf16;head_dim=64,128'",
    )  # fmt: skip
    parser.add_argument(
        "--sample", type=usage.count("--sample", 1_000_000), metavar="N",
        help="only N images, some of each kernel and functional",
    )  # fmt: skip
    parser.add_argument(
        "--budget", metavar="TIME", type=usage.filled("--budget", "a time such as 5m"),
        help="about how long it may take, 60s or 5m; the same command goes on from there; default: all images",
    )  # fmt: skip
    parser.add_argument(
        "--output", metavar="FILE.json", type=usage.path("--output", "the file of results"),
        help="where results are kept image by image, and from which a run of the same release on the same GPU goes on; "
        "default: kiln-verify-<target>.json",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print what the file has, instead of a table")
    parser.add_argument(
        "--from", dest="kept", metavar="FILE.json", type=usage.path("--from", "the results of a run"),
        help="show results that were kept; runs nothing, and needs no GPU",
    )  # fmt: skip


def check(arguments: argparse.Namespace) -> None:
    """
    Raises:
        UsageError: the words cannot be together, or one of them cannot be.
        EnvironmentProblem: a file cannot be written, or NumPy is missing.
    """
    running = {"the release": arguments.release, "--select": arguments.select, "--sample": arguments.sample,
               "--budget": arguments.budget, "--output": arguments.output, "--vendor": arguments.vendor}  # fmt: skip
    if arguments.kept:
        if given := [name for name, value in running.items() if value]:
            raise UsageError(f"--from shows what was found before; leave {' and '.join(given)} out")
        return
    if arguments.vendor and arguments.vendor not in VENDORS:
        raise UsageError(f"--vendor: unknown {arguments.vendor!r}; {nearest(arguments.vendor, [*VENDORS], 'vendors')}")
    arguments.seconds = seconds(arguments.budget) if arguments.budget else None
    if arguments.output:
        _check_output(arguments.output)
    if importlib.util.find_spec("numpy") is None:
        raise EnvironmentProblem(
            f"NumPy is not installed in this Python, {sys.executable}; `{COMMAND}` computes what is right with it: "
            "pip install numpy"
        )


def _check_output(path: Path) -> None:
    if path.suffix != ".json":
        raise UsageError(f"--output {path} is invalid; expected a file that ends in .json")
    check_new_file(path, Path.cwd(), "--output", session.BEGIN, f"file of `{COMMAND}`")


def run(arguments: argparse.Namespace) -> int:
    if arguments.kept:
        found = session.read(arguments.kept)
        left = 0
        with kept.understood(arguments.kept, session.RIGHT):
            shown = _shown(found, left, arguments.json)
    else:
        found, left = _verified(arguments)
        shown = _shown(found, left, arguments.json)
    print_text(shown)
    counts = found.document()["counts"]
    if counts["wrong"]:
        raise WrongResult(
            f"{counts['wrong']} of {len(found.rows)} images gave wrong results; {found.path} has them all"
        )
    if not counts["right"]:
        raise NotServed("no image was run; the lines above say why")
    return 0


def _shown(found: session.Session, left: int, is_json: bool) -> str:
    return json.dumps(found.document(), indent=1) if is_json else text(found, left)


def _verified(arguments: argparse.Namespace) -> tuple[session.Session, int]:
    """What was found, and how many images are left."""
    with places.found(arguments.release) as place:
        vendors = _vendors(place, arguments.vendor)
        if arguments.select:  # a word that means nothing is said before what this host lacks
            with contextlib.suppress(EnvironmentProblem, NotServed):  # of a damaged pack, which may be another GPU's
                _selected(_listed(place, vendors[0]), dict(arguments.select), "")
        process, vendor, began = _begun(place, vendors, arguments.device)
        try:
            variants = _selected(began["variants"], dict(arguments.select), " for this GPU")[: arguments.sample]
            path = arguments.output or Path(f"kiln-verify-{began['device']['target']}.json")
            if not arguments.output:
                _check_output(path)
            found = session.begin(session.about(place, vendor, began), path, len(began["variants"]))
            with make_progress() as progress:
                left = session.go_on(found, process, variants, arguments.seconds, progress)
        finally:
            process.end()
    return found, left


def _vendors(place: places.Place, asked: str | None) -> list[str]:
    """Those that the release has images for.

    Raises:
        NotServed: there is none.
    """
    packs = {path.name.partition("-")[0] for path in (place.libraries / IMAGES).glob("*.pack")}
    vendors = [name for name in sorted(VENDORS) if name in packs and (asked in (None, name))]
    if not vendors:
        raise NotServed(f"{place.name} has no images for {asked or 'any vendor'}; build it for your GPU's target")
    return vendors


def _listed(place: places.Place, vendor: str) -> Sequence[Mapping[str, Any]]:
    """The variants of all packs."""
    process = session.Process(place, vendor, session.LIST)
    try:
        return process.begin()["variants"]
    finally:
        process.end()


def _begun(
    place: places.Place, vendors: Sequence[str], ordinal: int
) -> tuple[session.Process, str, dict[str, Any]]:  # fmt: skip
    """A worker that has begun, the vendor, and what the worker said.

    Raises:
        EnvironmentProblem, NotServed: no vendor's driver has such a device that the release has images for.
    """
    there = [name for name in vendors if memory.load(name) is not None]
    if not there:
        raise EnvironmentProblem(
            f"there is no driver of {' or '.join(vendors)}; install one (AMD: ROCm's libamdhip64, NVIDIA: libcuda)"
        )
    for name in there:
        process = session.Process(place, name, ordinal)
        try:
            began = process.begin()
        except (EnvironmentProblem, NotServed):
            if name == there[-1]:
                raise
            continue
        if began["device"]["refusal"]:
            process.end()
            raise NotServed(
                f"{place.name} cannot run on this GPU, {began['device']['name']}: {began['device']['refusal']}"
            )
        return process, name, began
    raise AssertionError(there)


def _facts(variant: Mapping[str, Any]) -> dict[str, str]:
    """What a selection may name of a variant."""
    facts = values_of(f"{variant['functional']} {variant['configuration']}")
    named = {"kernel": variant["kernel"], "specialization": variant["specialization"]}
    return {"operation": variant["operation"].partition(".")[2]} | facts | named


def _selected(
    variants: Sequence[Mapping[str, Any]], choices: Mapping[str, tuple[str, ...]], of: str
) -> list[Mapping[str, Any]]:
    """In rounds, those that a selection means.

    Args:
        of: which the variants are, for the sentence: " for this GPU".

    Raises:
        UsageError: it means none.
    """

    facts = [_facts(variant) for variant in variants]
    if missed := unknown(facts, choices.items()):
        name, value, there = missed
        said = f"--select: none of the release's images{of} has"
        if value is None:
            raise UsageError(f"{said} a {name}; they have {', '.join(there)}")
        raise UsageError(f"{said} {name}={value}; {name} is one of {', '.join(sorted(there))}")
    found = [
        variant for variant, its in zip(variants, facts)
        if all(its.get(name) in values for name, values in choices.items())
    ]  # fmt: skip
    if not found:
        raise UsageError(f"--select means none of the release's images{of}; `kiln list` shows what it has")
    return session.in_rounds(found)


def text(found: session.Session, left: int) -> str:
    """What people read: a row a kernel, then what is wrong."""
    about, by_kernel = found.about, dict[str, list[dict[str, Any]]]()
    for row in found.rows:
        by_kernel.setdefault(row["kernel"], []).append(row)
    driver = about["driver"] or "unknown"
    lines = [f"{about['device']} ({about['target']}), driver {driver}; {about['release']}, Kiln {about['version']}"]
    header = ("KERNEL", "RIGHT", "WRONG", "UNREACHED", "WORST OF LIMIT")
    rows = []
    for kernel, its in sorted(by_kernel.items()):
        counts = [sum(session.outcome(row) == name for row in its) for name in session.OUTCOMES]
        shares = [math.inf if share is None else share for row in its for share in row.get("shares", {}).values()]
        rows.append((kernel, *map(str, counts), f"{max(shares):.2f}" if shares else "-"))
    lines.append(table(header, rows, header[1:]))
    wrong = [row for row in found.rows if session.outcome(row) == "wrong"]
    for row in wrong[:_SHOWN]:
        name = (
            f"{row['key'][:12]} {row['kernel']}[{row['functional']}][{row['configuration']}][{row['specialization']}]"
        )
        lines.append(f"wrong: {name}, {row['call']}: {'; '.join(row['wrong'])}")
    if len(wrong) > _SHOWN:
        lines.append(f"and {len(wrong) - _SHOWN} more wrong ones")
    reasons = dict.fromkeys(f"{row['kernel']}: {row['unreached']}" for row in found.rows if "unreached" in row)
    lines += [f"unreached: {reason}" for reason in reasons]
    rest = f"; {left} more for which no time was left: the same command goes on" if left else ""
    ran = sum("unreached" not in row for row in found.rows)
    lines.append(f"{ran} of {found.images} images were run{rest}. Results: {found.path}")
    return "\n".join(lines)


def main(words: Sequence[str] | None = None) -> int:
    """The verb of the command `kiln`; the first word is its name."""
    return run_verb(sys.modules[__name__], "verify-device", words)
