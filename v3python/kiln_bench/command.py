"""`kiln bench`: how fast a release's attention is on the GPU that is there, beside PyTorch and other libraries."""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kiln_bench import kept as kept_files
from kiln_bench import measure, plot, report, shapes, timing
from kiln_bench.attention import peers
from kiln_bench.release import places
from kiln_recipe.console import usage
from kiln_recipe.console.appear import write_whole
from kiln_recipe.console.files import check_new_file
from kiln_recipe.console.guard import run_verb
from kiln_recipe.console.progress import make_progress
from kiln_recipe.console.spelling import say
from kiln_recipe.console.tables import few
from kiln_recipe.errors import NotServed, UsageError, WrongResult, escaped
from kiln_recipe.suggest import nearest

EXAMPLE = """\
kiln bench                                               the release that is installed
kiln bench kiln-0.1.0b-manylinux_2_28_x86_64-shared.tar.gz --shapes llm --only forward,decoding
kiln bench old-wheels new-wheels --budget 60s --json results.json --plot results.svg
kiln bench --from results.json --plot results.png        of results that were kept; no GPU"""
SUMMARY = "Speed of a release's attention on the GPU that is there, beside PyTorch and other libraries"
_STDOUT, _NONE = "-", "none"
_PARTS, _SIDES = f"some of {','.join(shapes.PARTS)}", f"some of {','.join(peers.NAMES)}, or none"
_BEGIN = {".json": b'{\n "made_by": "kiln bench"', ".svg": plot.BEGIN.encode(), ".png": b"\x89PNG\r\n\x1a\n"}
_UNITS = {"": 1, "s": 1, "m": 60, "min": 60, "h": 3600}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "release", nargs="*", type=usage.filled("the release", places.RIGHT.removeprefix("give ")),
        help="a tarball, an unpacked release, or a folder of wheels; of several the first is set against the others; "
        "default: the release that is installed",
    )  # fmt: skip
    parser.add_argument(
        "--shapes", type=usage.filled("--shapes", "a preset or a file"), metavar="NAME|FILE",
        help=f"the calls: {', '.join(shapes.PRESETS)}, or a YAML or JSON file of your own; default: core",
    )  # fmt: skip
    parser.add_argument(
        "--layout", metavar="LAYOUT", type=usage.filled("--layout", f"one of {', '.join(shapes.LAYOUTS)}"),
        help=f"of q, k and v in memory, for calls that do not say it: {', '.join(shapes.LAYOUTS)}; default: "
        f"{shapes.LAYOUT}, [batch, rows, heads, head_dim] transposed, as PyTorch's models have them",
    )  # fmt: skip
    parser.add_argument(
        "--only", metavar="PARTS", default=",".join(shapes.PARTS), type=usage.filled("--only", _PARTS),
        help=f"some of {','.join(shapes.PARTS)}; default: all",
    )  # fmt: skip
    parser.add_argument(
        "--sides", metavar="NAMES", default=",".join(peers.NAMES), type=usage.filled("--sides", _SIDES),
        help=f"beside which it is measured, of {','.join(peers.NAMES)}, or none; default: all that are installed",
    )  # fmt: skip
    parser.add_argument(
        "--budget", metavar="TIME", type=usage.filled("--budget", "a time such as 60s or 5m"),
        help="about how long all of it may take, 60s or 5m; calls for which no time is left are listed",
    )  # fmt: skip
    parser.add_argument(
        "--rounds", type=usage.count("--rounds", 1000),
        help=f"turns of each side, whose median counts; default: {timing.ROUNDS}",
    )  # fmt: skip
    parser.add_argument(
        "--json", nargs="?", const=_STDOUT, metavar="FILE.json", type=usage.filled("--json", "a file, or nothing"),
        help="all figures; into a file that is written anew after each call, or printed instead of the tables",
    )  # fmt: skip
    parser.add_argument(
        "--plot", metavar="FILE.svg|.png", type=usage.filled("--plot", "the file to write"),
        help="a plot; a .png needs matplotlib",
    )  # fmt: skip
    parser.add_argument(
        "--from", dest="kept", metavar="FILE.json", type=usage.filled("--from", "what --json wrote"),
        help="show what --json wrote, or of that --only and --sides; measures nothing and needs no GPU",
    )  # fmt: skip


def check(arguments: argparse.Namespace) -> None:
    """
    Raises:
        UsageError: the words cannot be together, or one of them cannot be.
        EnvironmentProblem: a file cannot be written, or read.
    """
    measuring = ("shapes", "layout", "budget", "rounds")
    given = [*arguments.release, *(f"--{name}" for name in measuring if getattr(arguments, name) is not None)]
    if arguments.kept and given:
        raise UsageError(f"--from shows what was measured before; leave {' and '.join(given)} out")
    arguments.rounds = arguments.rounds or timing.ROUNDS
    arguments.only = _some_of("--only", arguments.only, shapes.PARTS, "parts")
    arguments.sides = [] if arguments.sides == _NONE else _some_of("--sides", arguments.sides, [*peers.NAMES], "sides")
    arguments.seconds = seconds(arguments.budget) if arguments.budget else None
    arguments.plot = _new_file("--plot", arguments.plot, plot.SUFFIXES) if arguments.plot else None
    if arguments.json and arguments.json != _STDOUT:
        arguments.json = _new_file("--json", arguments.json, (".json",))
    if arguments.plot:
        plot.check(arguments.plot)
    if not arguments.kept:
        layout = arguments.layout or shapes.LAYOUT
        if layout not in shapes.LAYOUTS:
            raise UsageError(f"--layout: unknown {layout!r}; {nearest(layout, [*shapes.LAYOUTS], 'layouts')}")
        arguments.shapes = shapes.read(arguments.shapes or "core", layout)


def run(arguments: argparse.Namespace) -> int:
    if arguments.kept:
        path = Path(arguments.kept)
        with kept_files.understood(path, report.RIGHT):
            results = report.selected(report.read(path), arguments.only, arguments.sides)
            _show(results, arguments)
            _keep(results, arguments)
        return 0
    kept: dict[str, Any] = {}

    def keep(found: dict[str, Any]) -> None:
        kept.update(found)
        _keep(found, arguments)

    wanted = measure.Wanted(arguments.shapes, arguments.only, arguments.sides, arguments.rounds, arguments.seconds)
    try:
        with contextlib.ExitStack() as stack:
            found = [stack.enter_context(places.found(word)) for word in arguments.release or [None]]
            measure.check_device(measure.MADE_BY)
            with make_progress() as progress:
                measure.run(wanted, found, progress, keep)
    finally:  # also of what was measured before something failed
        if kept:
            _show(kept, arguments)
    if sentences := report.wrong(kept) if kept else []:
        raise WrongResult(f"{len(sentences)} results of Kiln's are wrong: {few(sentences)}")
    if not kept or not report.has_figures(kept):
        raise NotServed("no call was served, or there was no time for one; the lines above say why")
    return 0


def _keep(results: report.Results, arguments: argparse.Namespace) -> None:
    if arguments.json and arguments.json != _STDOUT:
        write_whole(arguments.json, _json(results))


def _show(results: report.Results, arguments: argparse.Namespace) -> None:
    print(_json(results) if arguments.json == _STDOUT else escaped(report.text(results)))
    if not arguments.plot:
        return
    if plot.panels(results):
        plot.write(results, arguments.plot)
    else:
        say(f"--plot {arguments.plot} was not written: there are no figures")


def _json(results: report.Results) -> str:
    """One row a line."""
    about = json.dumps({name: value for name, value in results.items() if name != "rows"}, indent=1)
    rows = ",\n".join(f"  {json.dumps(row)}" for row in results["rows"])
    return "\n".join((f"{about[:-2]},", ' "rows": [', rows, " ]", "}"))


def _some_of(option: str, text: str, known: Sequence[str], what: str) -> list[str]:
    """Words between commas, in the order of `known`."""
    words = usage.split_list(option, text)
    for word in words:
        if word not in known:
            raise UsageError(f"{option}: unknown {word!r}; {nearest(word, known, what)}")
    if not words:
        raise UsageError(f"{option} is empty; give some of {','.join(known)}")
    return [word for word in known if word in words]


def seconds(text: str) -> float:
    """A time such as 60s, 5m or 1h.

    Raises:
        UsageError: it is none.
    """
    match = re.fullmatch(r"(\d{1,6}(?:\.\d+)?)\s*([a-z]*)", text.strip())
    if match is None or match[2] not in _UNITS or not float(match[1]):
        raise UsageError(f"--budget {text} is invalid; expected a time such as 60s, 5m or 1h")
    return float(match[1]) * _UNITS[match[2]]


def _new_file(option: str, word: str, suffixes: Sequence[str]) -> Path:
    suffix = Path(word).suffix
    if suffix not in suffixes:
        raise UsageError(f"{option} {word} is invalid; expected a file that ends in {' or '.join(suffixes)}")
    return check_new_file(word, Path.cwd(), option, _BEGIN[suffix], "file of `kiln bench`")


def main(words: Sequence[str] | None = None) -> int:
    """The verb of the command `kiln`; the first word is its name."""
    return run_verb(sys.modules[__name__], "bench", words)
