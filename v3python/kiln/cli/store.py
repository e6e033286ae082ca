"""`kiln store`: what is in a store of images; checks it, makes it smaller."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from dataclasses import asdict
from pathlib import Path

from kiln import options
from kiln.errors import ArtifactError, EnvironmentProblem, UsageError
from kiln.store import Store

EXAMPLE = """\
kiln store info --store /shared/kiln-store
kiln store verify
kiln store gc --max-size 10G"""

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Counts what is in a store of images, checks all of it, or makes it smaller."
    parser.add_argument(
        "action",
        choices=("info", "verify", "gc"),
        help="info: counts and sizes; verify: read everything and remove what is corrupt; "
        "gc: remove what has not been used for longest, but nothing that a running build uses",
    )
    parser.add_argument("--store", metavar="DIR", help="the store, or a build's workspace; default: KILN_STORE")
    parser.add_argument("--max-size", metavar="SIZE", help="for gc: what the store may take then: 10G, 500M, 0")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def run(arguments: argparse.Namespace) -> int:
    if (arguments.action == "gc") != (arguments.max_size is not None):
        raise UsageError("--max-size belongs to `kiln store gc`, which needs it: kiln store gc --max-size 10G")
    max_bytes = parse_size(arguments.max_size) if arguments.max_size is not None else 0
    store = Store(_root(arguments.store or options.read_build_variables(os.environ).store))
    if arguments.action == "info":
        info = store.info()
        _print(
            arguments,
            info,
            f"{info.root}: {info.variants} variants and {info.irs} IRs in {info.objects} objects, "
            f"{spell_size(info.bytes)}; {info.running_builds} running builds",
        )
        return 0
    if arguments.action == "gc":
        collected = store.gc(max_bytes)
        text = f"{collected.removed_images} images removed, {spell_size(collected.removed_bytes)}; "
        text += f"{spell_size(collected.bytes)} are left"
        if collected.bytes > max_bytes:
            text += f", of which running builds use {spell_size(collected.protected_bytes)}"
        _print(arguments, collected, text)
        return 0
    verified = store.verify()
    broken = len(verified.removed_objects) + len(verified.removed_entries)
    text = f"{verified.objects} objects and {verified.entries} entries read: "
    text += f"{broken} were broken and are removed; the next build compiles them anew" if broken else "all whole"
    _print(arguments, verified, text)
    return ArtifactError.exit_code if broken else 0


def _print(arguments: argparse.Namespace, result: object, text: str) -> None:
    print(json.dumps(asdict(result), indent=2) if arguments.json else text, file=sys.stdout)


def _root(word: str | Path | None) -> Path:
    if not word:
        raise UsageError("which store? name its folder: --store DIR, or KILN_STORE")
    root = Path(word).absolute()
    if (root / "store" / "format").is_file():
        return root / "store"
    if not (root / "format").is_file():
        raise EnvironmentProblem(f"{root}: no store is there; a store is a folder that builds have filled")
    return root


def parse_size(word: str) -> int:
    """Bytes that a word like 10G, 1.5GiB, 500m or 0 means; K, M, G and T are powers of 1024.

    Raises:
        UsageError: it is no size.
    """
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([KMGT]?)(?:I?B)?", word.strip().upper())
    if match is None:
        raise UsageError(f"{word!r} is no size; write a number with K, M, G or T, like 10G, 500M or 0")
    return int(float(match[1]) * _UNITS[match[2]])


def spell_size(number: int) -> str:
    """1.5 GiB, 20.0 MiB, 512 bytes."""
    for unit in ("T", "G", "M", "K"):
        if number >= _UNITS[unit]:
            return f"{number / _UNITS[unit]:.1f} {unit}iB"
    return f"{number} bytes"
