"""`kiln list`: the variants in a tarball, an unpacked release or a pack, with their images' facts."""

from __future__ import annotations

import argparse
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kiln_build.artifacts import presence
from kiln_build.artifacts import reader as inspect
from kiln_build.artifacts.reader import ImageFile, PackFile, Release
from kiln_build.options.words import check_there
from kiln_recipe import targets
from kiln_recipe.console.spelling import print_text
from kiln_recipe.console.tables import plural, print_json, table, table_lines
from kiln_recipe.console.usage import add_targets, filled, selection
from kiln_recipe.errors import UsageError

EXAMPLE = """\
kiln list output/kiln-0.1.0b-manylinux_2_28_x86_64-shared.tar.gz --target sm_90
kiln list kiln/ --select 'dtype=bf16;head_dim=128;specialization=generic' --json"""


_RIGHT = "a release's tarball, the folder that it was unpacked to, or a pack"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "artifact", type=filled("the artifact", _RIGHT), help="a release's tarball, an unpacked release, or a pack"
    )
    add_targets(parser, "only this target; may be repeated")
    parser.add_argument(
        "--select",
        type=selection("--select"),
        default=(),
        metavar="CHOICES",
        help="only these: 'operation=attn_fwd;dtype=bf16;head_dim=64,128;num_warps=4'",
    )
    parser.add_argument("--keys", action="store_true", help="show whole keys, as a call's force_keys takes them")
    parser.add_argument(
        "--missing", action="store_true", help="also show the rules by which the build left variants out"
    )
    parser.add_argument(
        "--json",
        action="store_true",
        help="as JSON: a list, with names, key, image and its facts of each variant; --missing: of each rule",
    )


def check(arguments: argparse.Namespace) -> None:
    check_there(arguments.artifact, f"give {_RIGHT}")


def run(arguments: argparse.Namespace) -> int:
    artifact = inspect.open_artifact(Path(arguments.artifact), f"give {_RIGHT}", takes_part=True)
    if isinstance(artifact, ImageFile):
        raise UsageError(f"{arguments.artifact} is a single image without variants; `kiln inspect` shows its facts")
    choices = dict(arguments.select)
    every, rules = inspect.variants_of(artifact), inspect.rules_of(artifact)
    chosen = _targets(arguments.target, {row["target"] for row in every})
    rows = inspect.select(every, choices, chosen, rules)
    rules = inspect.select_rules(rules, choices, chosen)
    absent = {}
    if isinstance(artifact, Release) and artifact.is_folder:
        shown, found = {row["target"] for row in rows}, presence.absent_packs(artifact)
        absent = {target: problem for target, problem in found.items() if target in shown}
    for row in rows:
        if row["target"] in absent and row["image"] is not None:
            row["unavailable"] = f"its pack {absent[row['target']]}"
    if arguments.json:
        print_json([*rows, *rules] if arguments.missing else rows)
        return 0
    header = ("TARGET", "KERNEL", "FUNCTIONAL", "CONFIGURATION", "SPECIALIZATION", "KEY",
              "BYTES", "REGISTERS", "SHARED", "SPILLS", "THREADS", "PTX")  # fmt: skip
    usual = {} if isinstance(artifact, PackFile) else {t["name"]: t for t in artifact.manifest["targets"]}
    lines = []
    for row in rows:
        name = (row["target"], row["kernel"], row["functional"], row["configuration"], row["specialization"])
        facts = [row.get(column, "-") for column in ("bytes", "registers", "shared", "spills", "threads")]
        facts.append(row.get("ptx_version") or usual.get(row["target"], {}).get("ptx_version", "-"))
        lines.append((*name, row["key"] if arguments.keys else row["key"][:12], *facts))
    for line in table_lines(header, lines, header[6:]):
        print_text(line)
    reasons = Counter(row["unavailable"] or "no reason given" for row in rows if row["image"] is None)
    for reason, count in sorted(reasons.items()):
        print_text(f"without an image: {count}: {reason}")
    if isinstance(artifact, Release):
        for sentence in presence.sentences_of(artifact, absent):
            print_text(sentence)
    if rules and arguments.missing:
        columns = ("TARGET", "KERNEL", "LEFT OUT", "WHERE", "REASON")
        lines = [(r["target"], r["kernel"], r["variants"], _where(r), r["reason"]) for r in rules]
        print_text("\n" + table(columns, lines, columns[2:3]))
    elif rules:
        combinations = plural(sum(rule["variants"] for rule in rules), "combination")
        print(f"left out by the profile, the selection or the recipe: {combinations}; --missing shows by which rules")
    return 0


def _where(rule: dict[str, Any]) -> str:
    """ "dtype=fp32; BLOCK_M=64 num_warps=4": what a rule is about."""
    parts = [f"{name}={','.join(values)}" for name, values in (rule.get("where") or {}).items()]
    parts += [", or ".join(rule[name]) for name in ("configurations", "specializations") if rule.get(name)]
    return "; ".join(parts) or "any"


def _targets(words: Sequence[str], there: set[str]) -> set[str]:
    """The targets that are asked for, of which those of the artifact, `there`, are known in any Python."""
    names = {name for word in words for name in re.split(r"[;,\s]+", word) if name}
    if names <= there and all(map(str.strip, words)):
        return names
    return {target.name for target in targets.parse(";".join(words))}
