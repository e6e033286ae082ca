"""Makes what a run of run_all.sh leaves: a page, and the keys of what was right for the next manifest.

    PYTHONPATH=v3python python3 tests/emulator/page.py PREFIX RESULTS PAGE VERIFIED [PREFIX RESULTS ...]

PREFIX is the release that was executed, RESULTS what run.py and mutations.py left. VERIFIED is a folder for the keys,
beside PAGE: nothing is written if an image was wrong. Releases behind them, with their results, are those of which a
sample was executed, or which are for other targets. Prints the page's first table.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from datetime import datetime, timezone
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "runtime"))  # ffi
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "gpu"))  # candidates, pool, release

import images
import sample
import verified
from report import image_rows, table


def read(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


def executed(row: dict) -> dict[str, tuple[int, int]]:
    """By digest of the code objects that a row's calls executed: how many instructions it has, and which, as bits. See
    process.py."""
    parts = {digest: text.partition("/") for digest, text in row.get("executed", {}).items()}
    return {digest: (int(count), int(bits, 16)) for digest, (count, _, bits) in parts.items()}


def coverage(rows: list[dict]) -> tuple[int, int, int]:
    """Of the code objects that were executed: how many there are, their instructions, and how many of these were."""
    counts, bits = {}, {}
    for row in rows:
        for digest, (count, some) in executed(row).items():
            counts[digest], bits[digest] = count, bits.get(digest, 0) | some
    return len(counts), sum(counts.values()), sum(some.bit_count() for some in bits.values())


def target_row(target: str, rows: list[dict]) -> list[object]:
    ran = [row for row in rows if row["kind"] == "image"]
    refused = [row for row in rows if row["kind"] == "refused"]
    worst = max((row["worst_share_of_limit"] for row in ran), default=0.0)
    count, total, there = coverage(rows)
    cases = sum(row["cases"] for row in ran)
    return [
        target, count, len(ran), cases, sum(bool(row["wrong"]) for row in ran), len(refused), f"{2 * worst:.2f}",
        f"{there:,} of {total:,} ({there / max(total, 1):.1%})", f"{sum(row['instructions'] for row in ran):,}",
        f"{sum(row['seconds'] for row in ran) / 60:.0f}",
    ]  # fmt: skip


UNKNOWN = re.compile(r"an instruction that the executor does not know: (\S+)")
TARGETS = ["target", "code objects", "variants forced", "calls", "wrong", "refused", "worst ratio",
           "instructions executed of all", "executed in all", "minutes"]  # fmt: skip


# Outcomes of what was made wrong that are no check's, with what each means.
BY_NO_CHECK = {
    "not executed": "no call came to the instruction",
    "not seen": "executed, with outputs of the same bits",
    "other bits": "executed, with outputs of other bits that are right to float64 all the same",
    "same instruction": "a bit that is no part of what the instruction does",
    "redundant": "a wait that no path needs, proven (docs/emulator.md)",
}


def mutation_lines(found: list[dict]) -> list[str]:
    """What became of code that was made wrong on purpose: a table of each kind, and how many of it a check saw."""
    lines = [
        "An outcome is the check that saw it: a fault (docs/emulator.md), `values`, outputs that are wrong to float64,",
        "`decoder`, words that LLVM does not know, or `paths`, the search through all paths of a program. Or none did:",
        "",
        *map("- `{0[0]}`: {0[1]}".format, BY_NO_CHECK.items()), "",
    ]  # fmt: skip
    for kind in dict.fromkeys(row["kind"] for row in found):
        rows = [row for row in found if row["kind"] == kind]
        targets = sorted({row["target"] for row in rows})
        outcomes = sorted({row["outcome"] for row in rows})
        lines += [
            f"### {kind.capitalize()}", "",
            *table(
                ["outcome", *targets, "in all"],
                [
                    [outcome, *(sum(r["outcome"] == outcome and r["target"] == t for r in rows) for t in targets),
                     sum(r["outcome"] == outcome for r in rows)]
                    for outcome in outcomes
                ],
            ),
            said_of_kind(rows), "",
        ]  # fmt: skip
    return lines


def said_of_kind(rows: list[dict]) -> str:
    """How many a check saw, and what became of the others."""
    counts = Counter(row["outcome"] for row in rows)
    others = [f"{counts[outcome]} {outcome}" for outcome in BY_NO_CHECK if counts[outcome]]
    seen = len(rows) - sum(counts[outcome] for outcome in BY_NO_CHECK)
    return f"A check saw {seen} of {len(rows)}" + (f"; {', '.join(others)}." if others else ".")


def others_lines(others: list[tuple[Path, Path]]) -> list[str]:
    """Of the other releases: what was asked of the build, what was executed, and which instructions are unknown."""
    rows = []
    for prefix, results in others:
        release = json.loads((prefix / "share/kiln/manifest.json").read_text())
        for target in targets_of(results):
            found = read(results / target / "images.jsonl")
            executed = found[0]["sample"]
            drawn = {word for word in map(sample.drawn_by, images.reasons(prefix, target)) if word}
            seeds = {str(executed), *drawn} - {"None"}
            cells = target_row(target, found)
            count = sum(1 for _ in images.images(prefix, target))
            faults = [fault for row in found for fault in row.get("wrong", ())]
            unknown = sorted({name for fault in faults for name in UNKNOWN.findall(fault)})
            rows.append(
                [target, ", ".join(filter(None, (release["profile"], release["selection"]))),
                 f"seed {', '.join(sorted(seeds))}" if seeds else "all", count, *cells[1:],
                 ", ".join(f"`{name}`" for name in unknown) or "none"]
            )  # fmt: skip
    names = ["target", "build", "sample", "images", "code objects executed", *TARGETS[2:], "unknown instructions met"]
    return table(names, rows)


def targets_of(results: Path) -> list[str]:
    return sorted(path.parent.name for path in results.glob("*/images.jsonl"))


def page(
    prefix: Path, results: Path, targets: list[str], files: list[str], others: list[tuple[Path, Path]]
) -> str:  # fmt: skip
    rows = {target: read(results / target / "images.jsonl") for target in targets}
    about = rows[targets[0]][0]
    numbers = ", ".join(str(schedule) for schedule, _ in about["seeds"])
    seeds = f"seeds {numbers}, by which bits were equal" if "," in numbers else f"one order, of the seed {numbers}"
    every = [row for target in targets for row in rows[target] if row["kind"] == "image"]
    followed = {digest for row in every for digest in row["followed"]}
    unfollowed = {digest for row in every for digest in executed(row)} - followed
    overview = table(TARGETS, [target_row(target, rows[target]) for target in targets])
    print("\n".join(overview))
    refused = sorted({row["sentence"] for target in targets for row in rows[target] if row["kind"] == "refused"})
    mutants = read(results / "mutations.jsonl")
    unseen = [f"- {row['target']} {row['what']}" for row in mutants if row["outcome"] == "not seen"]
    release = json.loads((prefix / "share/kiln/manifest.json").read_text())
    lines = [
        f"# AMD's images on the emulator, {datetime.now(timezone.utc):%Y-%m-%d}",
        "",
        "No AMD GPU ran any of this: the emulator of `tests/emulator` executed a release's code objects, launched",
        "by Kiln's own runtime (docs/emulator.md says what it checks, and what it cannot). Each variant was forced in",
        "small calls, whose outputs were held against float64 as the GPU suite does: a ratio is right if not above 2.",
        f"Kiln {release['kiln']}, commit {release['source']['commit'][:12]}; decoded by {about['decoder']}; {seeds}.",
        "",
        f"On every path of {len(followed)} code objects, also where no call went, what is loaded into a register is",
        f"waited for before it is used; {len(unfollowed)} have paths that cannot be followed.",
        "",
        *overview,
        "## By kernel",
        "",
        *table(["kernel", "target", "variants", "calls", "wrong", "worst ratio", "of"], image_rows(every)),
    ]  # fmt: skip
    if refused:
        lines += ["## Refused", "", "What the release has no image for, in its own words:", ""]
        lines += [*map("- {}".format, refused), ""]
    if others:
        lines += [
            "## Other builds", "",
            "Of the full profile a sample, drawn by a seed as docs/emulator.md says, with the images of core that its",
            "calls take. Of targets that are not in the table above, their core.", "",
            *others_lines(others),
        ]  # fmt: skip
    if mutants:
        lines += ["## Made wrong on purpose", "", *mutation_lines(mutants)]
    if unseen:
        lines += ["Not seen:", "", *unseen, ""]
    lines += ["## Keys", "", f"<!-- images: {' '.join(files)} -->",
              "The keys of the variants that were executed are in the files in `verified/`."]  # fmt: skip
    return "\n".join(lines).rstrip() + "\n"


def main() -> None:
    if len(sys.argv) < 5 or len(sys.argv) % 2 == 0:
        sys.exit("usage: page.py PREFIX RESULTS PAGE VERIFIED [PREFIX RESULTS ...]")
    prefix, results, written, folder, *more = map(Path, sys.argv[1:])
    others = list(zip(more[::2], more[1::2], strict=True))
    targets = targets_of(results)
    if not targets:
        sys.exit(f"{results} has no results of run.py")
    files = []
    for target in targets:
        decoder = read(results / target / "images.jsonl")[0]["decoder"]
        files += [f"{folder.name}/{path.name}" for path in verified.main(results / target, decoder, folder)]
    written.write_text(page(prefix, results, targets, files, others))


if __name__ == "__main__":
    main()
