"""Attention of an unpacked release beside PyTorch's FlashAttention-2 and cuDNN's; decoding beside copies of memory.

    python3 benchmarks/attention/run.py --prefix <unpacked>/kiln --json FILE [--markdown FILE] [--svg FILE]
    python3 benchmarks/attention/run.py --prefix <unpacked>/kiln --against <another>/kiln --json FILE
    python3 benchmarks/attention/run.py --from FILE --markdown FILE --svg FILE     # of results that were kept; no GPU

Needs an NVIDIA GPU and PyTorch; the plot matplotlib. Kiln is called through its C ABI. Sides work in turns, on the same
tensors; device time counts, the host's does not. A side that refuses, or a result that differs from the others', gives
no figure, and the reason is printed. Judged (exit code 1 if one is missed), of what was asked for:

    forward     geometric mean of Kiln / FlashAttention-2 at least 1.3, none below 1.0
    backward    at least 1.2, none below 1.0
    decode      over 32,768 keys of --dtype: bytes of the cache a second at least 0.8 of what a copy reads and writes
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import time
from datetime import datetime, timezone
from pathlib import Path

import figures
import report
from shapes import caches, shapes

ROOT = Path(__file__).resolve().parents[2]
DIRECTIONS = ("forward", "backward", "decode")


def about(words: argparse.Namespace, release: str) -> dict:
    import entries
    import timing
    import torch

    return {
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d"), "gpu": timing.nvidia_smi(), "torch": torch.__version__,
        "cudnn": str(torch.backends.cudnn.version()), "release": release, "manifest": entries.digest(words.prefix),
        "dtype": words.dtype, "layout": words.layout, "rounds": words.rounds, "budget_ms": words.budget_ms,
        "splits": words.splits, **({"against": entries.digest(words.against)} if words.against else {}),
    }  # fmt: skip


def measure(words: argparse.Namespace, keep) -> dict:
    """All results. keep(results) is called after each row: what was measured outlives a device that fails."""
    sys.path.append(str(ROOT / "tests/runtime"))  # ffi
    import decoding
    import timing
    import torch
    import training
    from entries import Entries

    torch.manual_seed(0)
    dtype = decoding.DTYPES[words.dtype]
    with contextlib.ExitStack() as stack:
        entries = stack.enter_context(Entries(words.prefix))
        releases = {"kiln": entries}
        if words.against:
            releases["against"] = stack.enter_context(Entries(words.against, is_second=True))
        results = {"about": about(words, entries.version), "busy": [], "rows": []}

        def add(row: dict, began: float) -> None:
            results["rows"].append(row)
            keep(results)
            if words.verbose:
                print(f"{time.monotonic() - began:5.1f} s  {row['direction']}, {report.title(row)}", file=sys.stderr)

        directions = [direction for direction in DIRECTIONS[:2] if direction in words.only]
        longest = max(words.lengths)
        for shape in shapes(words.head_dims, words.lengths) if directions else ():
            began = time.monotonic()
            problem = training.Problem(releases, shape, dtype, words.layout)
            for direction in directions:
                # The device works longest on these, so that nvidia-smi finds it at work.
                look = (lambda: results["busy"].append(timing.nvidia_smi())) if shape.length == longest else None
                add(training.measure(problem, direction, words.rounds, words.budget_ms, look), began)
            del problem
        if "decode" in words.only:
            types = [words.dtype] if words.without_fp8 else [words.dtype, "fp8e4m3"]
            cases = caches(words.head_dims, words.cache_lengths, words.pages, types)
            memory = decoding.Memory(cases)
            for case in cases:
                began = time.monotonic()
                common = (words.layout, words.rounds, words.budget_ms / 2, words.splits)
                add(decoding.measure(entries, case, memory, dtype, *common), began)
    return results


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    figures.add_words(parser)
    parser.add_argument(
        "--against", type=Path, metavar="PREFIX", help="another unpacked release: forward and backward beside it too"
    )
    parser.add_argument("--only", nargs="+", choices=DIRECTIONS, default=list(DIRECTIONS))
    parser.add_argument("--dtype", choices=("bf16", "fp16"), default="bf16")
    parser.add_argument("--layout", choices=("bhsd", "bshd"), default="bhsd", help="of tensors in memory")
    parser.add_argument("--head-dims", nargs="+", type=int, default=[64, 128])
    parser.add_argument("--lengths", nargs="+", type=int, default=[2048, 8192, 16384], help="of sequences, training")
    parser.add_argument("--cache-lengths", nargs="+", type=int, default=[2048, 8192, 32768])
    parser.add_argument("--without-fp8", action="store_true", help="no caches of fp8e4m3")
    parser.add_argument("--pages", nargs="+", type=int, default=[0, 16, 256], help="keys on a page; 0: contiguous")
    parser.add_argument("--splits", type=int, default=0, help="of the keys in decoding; 0: the library's choice")
    parser.add_argument("--svg", type=Path, help="a plot of forward and backward")
    parser.add_argument("--verbose", action="store_true", help="a line for each shape, with the seconds that it took")
    words = parser.parse_args(arguments)
    for length in words.cache_lengths:
        for page in words.pages:
            if page < 0 or (page and length % page):
                parser.error(f"a cache of {length} keys does not consist of pages of {page}")
    if words.rounds < 1 or words.budget_ms <= 0:
        parser.error("--rounds and --budget-ms must be above 0")
    return words


def main() -> int:
    words = parse()
    results = figures.taken(words, measure)
    print(report.text(results))
    if words.svg and (report.of(results, "forward") or report.of(results, "backward")):
        try:
            report.plot(results, words.svg)
        except ImportError:
            print("no plot: there is no matplotlib; --from makes one of what --json kept", file=sys.stderr)
            words.svg = None
    if words.markdown:
        near = os.path.relpath(words.svg, words.markdown.parent) if words.svg else ""
        figures.write(words.markdown, report.markdown(results, near))
    return 1 if report.judge(results) else 0


if __name__ == "__main__":
    sys.exit(main())
