"""`kiln targets`: the GPUs that Kiln compiles for."""

from __future__ import annotations

import argparse
import dataclasses
import json

from kiln_recipe import targets

EXAMPLE = """
kiln targets
kiln targets 'MI300X;RTX 4090' --json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("selection", nargs="*", help="as build.sh takes it: 'MI300X;sm_90', 'RTX 4090', cdna3, all")
    parser.add_argument("--json", action="store_true", help="as JSON: a list of the entries of targets.yaml")


def check(arguments: argparse.Namespace) -> None:
    if arguments.selection:
        targets.parse(" ".join(arguments.selection))


def run(arguments: argparse.Namespace) -> int:
    chosen = targets.parse(" ".join(arguments.selection)) if arguments.selection else targets.load()
    if arguments.json:
        print(json.dumps([dataclasses.asdict(target) for target in chosen], indent=2))
        return 0
    header = ("TARGET", "WARP", "SHARED", "REGISTERS", "DRIVER", "RUNS ON", "GPUS")
    rows = [
        (
            target.name,
            str(target.warp_size),
            f"{target.shared_memory // 1024} KiB",
            str(target.registers_per_thread),
            target.lowest_driver,
            " ".join(target.runs_on),
            ", ".join(target.names),
        )
        for target in chosen
    ]
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header) - 1)]
    for row in (header, *rows):
        print("  ".join([*(cell.ljust(width) for cell, width in zip(row, widths)), row[-1]]))
    return 0
