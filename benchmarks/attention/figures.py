"""Figures that are measured once, kept, and shown again: the words that the benchmarks here share for that."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable
from pathlib import Path


def add_words(parser: argparse.ArgumentParser) -> None:
    """Adds --prefix or --from, --rounds, --budget-ms, --json and --markdown."""
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--prefix", type=Path, help="the unpacked release's folder `kiln`")
    source.add_argument("--from", type=Path, dest="kept", metavar="FILE", help="what --json wrote; measures nothing")
    parser.add_argument("--rounds", type=int, default=7, help="the median counts")
    parser.add_argument("--budget-ms", type=float, default=20.0, help="about how long a side works in a round")
    parser.add_argument("--json", type=Path, help="all figures; written anew after each row")
    parser.add_argument("--markdown", type=Path, help="the tables, as docs/measurements has them")


def taken(words: argparse.Namespace, measure: Callable[[argparse.Namespace, Callable], dict]) -> dict:
    """Results that --from names, or new ones; measure(words, keep) calls keep(results) after each row, which --json
    names a file for: what was measured outlives a device that fails."""

    def keep(results: dict) -> None:
        if words.json:
            write(words.json, json.dumps(results, indent=1) + "\n")

    results = json.loads(words.kept.read_text()) if words.kept else measure(words, keep)
    keep(results)
    return results


def write(path: Path, content: str) -> None:
    """Writes a file, which appears by rename."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(content)
    os.replace(temporary, path)
