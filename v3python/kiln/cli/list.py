"""`kiln list`: the variants in a tarball, an unpacked release or a pack, with their images' facts."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kiln import inspect
from kiln.errors import UsageError
from kiln.inspect import ImageFile
from kiln.tables import plural, table
from kiln.words import parse_selection

EXAMPLE = """\
kiln list output/kiln-0.1.0b-manylinux_2_28_x86_64-shared.tar.gz --target sm_90
kiln list kiln/ --select 'dtype=bf16;head_dim=128;specialization=generic' --json"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("artifact", help="a release's tarball, an unpacked release, or a pack")
    parser.add_argument("--target", action="append", default=[], help="only this target; may be given again")
    parser.add_argument("--select", default="", help="only these: 'dtype=bf16;head_dim=64,128;num_warps=4'")
    parser.add_argument("--keys", action="store_true", help="show whole keys, as a call's force_keys takes them")
    parser.add_argument("--missing", action="store_true", help="show those too that the build did not compile")
    parser.add_argument(
        "--json", action="store_true", help="as JSON: a list, with names, key, image and its facts of each variant"
    )


def run(arguments: argparse.Namespace) -> int:
    right = "give a release's tarball, the folder that it was unpacked to, or a pack"
    artifact = inspect.open_artifact(Path(arguments.artifact), right)
    if isinstance(artifact, ImageFile):
        raise UsageError(f"{arguments.artifact} is one image and has no variants; `kiln inspect` shows its facts")
    choices = dict(parse_selection(arguments.select, "--select"))
    every = inspect.variants_of(artifact)
    rows = inspect.select(every, choices, _targets(arguments.target, {row["target"] for row in every}))
    shown = [row for row in rows if arguments.missing or not _is_left_out(row)]
    if arguments.json:
        print(json.dumps(shown, indent=1))
        return 0
    header = ("TARGET", "KERNEL", "FUNCTIONAL", "CONFIGURATION", "SPECIALIZATION", "KEY",
              "BYTES", "REGISTERS", "SHARED", "SPILLS", "THREADS")  # fmt: skip
    lines = []
    for row in shown:
        name = (row["target"], row["kernel"], row["functional"], row["configuration"], row["specialization"])
        facts = [row.get(column, "-") for column in ("bytes", "registers", "shared", "spills", "threads")]
        key = "-" if _is_left_out(row) else row["key"]
        lines.append((*name, key if arguments.keys else key[:12], *facts))
    print(table(header, lines, header[6:]))
    reasons = [row["unavailable"] or "not part of this build" for row in rows if row["image"] is None]
    for reason in sorted(set(reasons)):
        print(f"without an image: {reasons.count(reason)}: {reason}")
    if count := len(rows) - len(shown):
        print(f"{plural(count, 'variant')} that the build did not compile: --missing shows them too")
    return 0


def _targets(words: Sequence[str], there: set[str]) -> set[str]:
    """The targets that are asked for, of which those of the artifact, `there`, are known in any Python."""
    names = {name for word in words for name in re.split(r"[;,\s]+", word) if name}
    if names <= there and all(map(str.strip, words)):
        return names
    try:
        from kiln import targets  # which needs more than a machine that only looks may have
    except ImportError:
        return names
    return {target.name for target in targets.parse(";".join(words))}


def _is_left_out(row: dict[str, Any]) -> bool:
    """Whether the build had nothing to compile here, and so no key."""
    return row["image"] is None and not row["key"].strip("0")
