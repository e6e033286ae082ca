"""Which images a page of measurements is about, and whether the tree still makes them.

    PYTHONPATH=v3python python3 docs/measured.py

A page in docs/measurements/ names its images once, by twelve digits of their keys, as the ledger does:

    <!-- images: listed -->            keys in backquotes, up to the next `<!-- end -->`
    <!-- images: FILE FILE -->         files of keys beside the page: verified/nvidia-h200-image.json
    <!-- images: unknown -->           they were not kept, so that the page cannot be of today's
    <!-- images: none -->              it is about no image of Kiln's

Its calls, where the program that measured them kept them, lie in calls/<page>.json beside it (`kept_calls`), each with
the images that it ran, so that they can be looked up again without a GPU.

Where the tree makes other images by now, or looks up others for a call, a note under the title says so. This program
writes that note, and takes it away where all images are the tree's; tests/test_measurements.py fails where it is
missing, and where it is wrong. So it does with `outdated: true` of the runs that tuned rules come from,
tuning/<family>/<target>.yaml.
Standard library only, but for the keys of the tree, which want the packages of a build.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGES = ROOT / "docs/measurements"
TABLES = ROOT / "tuning"
DIGITS = 12
OUTDATED = (
    "**Outdated: by their keys, the tree's images are others than those that were measured here.** The figures are\n"
    "history until they are measured again."
)
OTHERWISE = (
    "**Outdated: by today's look-up {count} of the {every} calls that were measured here run other images.** Their\n"
    "figures are history until they are measured again."
)
ABOUT = "What Kiln ran, by their places in the tables: key, target, variant."
_RUN = re.compile(r"^( *(?:- )?run: )(\{.*\})$", re.M)
_NOTE = re.compile(r"^\*\*Outdated: (?:[^\n]+\n)+\n", re.M)
_BLOCK = re.compile(r"<!-- images: ([^>]+) -->\n")


def listed(images: Iterable[str], about: str = ABOUT) -> str:
    """The section that names images, each "KEY TARGET VARIANT"; `about` is the sentence above them."""
    rows = [f"{place}. `{image[:DIGITS]}`{image[DIGITS:]}" for place, image in enumerate(images, 1)]
    if not rows:
        return "<!-- images: unknown -->\nThe keys of the images were not kept."
    return "\n".join([about, "", "<!-- images: listed -->", *rows, "<!-- end -->"])


def keys_of(text: str, folder: Path = PAGES) -> frozenset[str] | None:
    """The shortened keys that a page is about; None if it says that they are unknown.

    Raises:
        ValueError: it does not say, or says it twice, or names no key.
    """
    blocks = list(_BLOCK.finditer(text))
    if len(blocks) != 1:
        raise ValueError(f"names its images {len(blocks)} times; once is right: <!-- images: listed -->, or unknown")
    words = blocks[0][1].split()
    if words == ["unknown"]:
        return None
    if words == ["none"]:
        return frozenset()
    if words == ["listed"]:
        body, end, _ = text[blocks[0].end() :].partition("<!-- end -->")
        found = re.findall(rf"`([0-9a-f]{{{DIGITS}}})`", body) if end else []
    else:
        found = [key[:DIGITS] for word in words for key in json.loads((folder / word).read_text())["keys"]]
    if not found:
        raise ValueError("names no key of an image")
    return frozenset(found)


def filled(text: str, tree: frozenset[str], folder: Path = PAGES, otherwise: str = "") -> str:
    """A page with the note if it needs one, without it if not.

    Args:
        tree: the shortened keys of the images that the tree makes.
        otherwise: the note of a page whose images are the tree's, if calls run others of them by now.

    Raises:
        ValueError: as `keys_of`, or the page has no title.
    """
    keys = keys_of(text, folder)
    title, blank, rest = _NOTE.sub("", text, count=1).partition("\n\n")
    if not title.startswith("# ") or not blank:
        raise ValueError("does not begin with a title and an empty line")
    note = otherwise if keys is not None and keys <= tree else OUTDATED
    return "\n\n".join(filter(None, (title, note, rest)))


# ---- calls that are looked up again ----------------------------------------------------------------------------------


def kept_calls(results: Mapping[str, Any]) -> str:
    """What calls/<page>.json holds of results as `kiln bench --json` has them: each call once, in a line, and the keys
    of the images that it ran. The same call may have run several, by a library that changed its mind: the last counts.
    """
    about = results["about"]
    where = {
        "target": about["target"], "multiprocessors": about["multiprocessors"],
        "profile": "full" if "full" in about["releases"][0]["version"] else "core",
    }  # fmt: skip
    calls = {
        call: [image[:DIGITS] for image in row["images"][side]]
        for row in results["rows"]
        for side, call in row.get("calls", {}).items()
    }
    lines = ",\n".join(f"{json.dumps(call)}: {json.dumps(keys)}" for call, keys in calls.items())
    return f'{json.dumps(where)[:-1]}, "calls": {{\n{lines}\n}}}}\n'


def calls_of(page: Path) -> dict[str, Any] | None:
    """What was kept of a page's calls, if anything was."""
    path = page.parent / "calls" / f"{page.stem}.json"
    return json.loads(path.read_text()) if path.is_file() else None


def looked_up_otherwise(kept: Mapping[str, Any], lookup: Callable[[str], list[str]]) -> list[str]:
    """The calls that run other images by now, or that are refused; lookup(call) gives the keys, and of a refused call
    none."""
    return [call for call, keys in kept["calls"].items() if lookup(call) != keys]


def note_of(page: Path) -> str:
    """OTHERWISE of a page, if calls of it are looked up otherwise; else ""."""
    kept = calls_of(page)
    if kept is None:
        return ""
    others = looked_up_otherwise(kept, lookup_of(kept["target"], kept["profile"], kept["multiprocessors"]))
    return OTHERWISE.format(count=len(others), every=len(kept["calls"])) if others else ""


@cache
def lookup_of(target: str, profile: str, multiprocessors: int) -> Callable[[str], list[str]]:
    """What gives, for a call as kiln_bench.release.called spells it, the shortened keys of the images that a release of
    this tree would run, in their order; none if it is refused."""
    from kiln_bench.release import called
    from kiln_build.ledger import file as ledger_file
    from kiln_build.ledger.chain import toolchain_of
    from kiln_build.native import argument_files, arguments
    from kiln_recipe import dtypes, targets
    from kiln_recipe.call import dispatch, evaluate
    from kiln_recipe.read import recipe

    flash = recipe.load(ROOT / "tritonsrc/flash/recipe.yaml")
    tables = dispatch.Tables(flash, targets.by_name(target), profile, (), TABLES)
    identity, operations = toolchain_of(ROOT).identity, {one.name: one for one in flash.operations}
    # As kiln.jit turns a structure's fields into the recipe's arguments.
    module: dict[str, Any] = {}
    exec(argument_files.python_module(arguments.read(ROOT / arguments.TABLE)), module)
    device = evaluate.Device.of(targets.by_name(target), multiprocessors)

    class Shaped(evaluate.Tensor):
        @property
        def shape(self) -> tuple[int, ...]:
            return self.sizes

        def dim(self) -> int:
            return len(self.sizes)

    def lookup(text: str) -> list[str]:
        entry, given = called.parsed(text)
        fields = dict(module["DEFAULTS"][entry])
        for name, value in given.items():
            if isinstance(value, called.Tensor):
                value = Shaped(value.address, dtypes.DTYPES[value.dtype], value.sizes, value.strides)
            fields[name] = value
        operation, values = operations[entry], []
        for argument in operation.arguments:
            formula = module["RECIPE"].get(argument.name)
            value = formula(fields) if formula else fields[argument.name]
            values.append(int(value) if isinstance(value, bool) else value)
        try:
            found = tables.explain(operation, f"flash.{entry}", values, device)
        except evaluate.Refusal:
            return []
        return [ledger_file.short(chosen.variant.spec.key(identity)) for chosen in found]

    return lookup


def with_runs_marked(text: str, tree: frozenset[str]) -> str:
    """A tuning file in which just the runs are `outdated` of which an image is not the tree's, or whose images are not
    known."""
    import yaml

    def marked(match: re.Match) -> str:
        run = yaml.safe_load(match[2])
        is_outdated = not run.get("images") or not tree.issuperset(run["images"])
        if bool(run.pop("outdated", False)) == is_outdated:
            return match[0]
        run |= {"outdated": True} if is_outdated else {}
        line = yaml.safe_dump(run, default_flow_style=True, width=10**6, sort_keys=False)
        return match[1] + line.strip()

    return _RUN.sub(marked, text)


def tree_keys() -> frozenset[str]:
    """The shortened keys of all images that the tree makes for the ledger's targets, of its examples too."""
    try:
        from kiln_build.ledger import file as ledger_file
        from kiln_build.ledger import ledger
        from kiln_build.ledger.chain import toolchain_of
        from kiln_recipe.plan import plan
        from kiln_recipe.read import recipe
    except ModuleNotFoundError as error:
        sys.exit(f"measured.py: {error.name} is not on the path; it wants PYTHONPATH=v3python and the tests' packages")
    recipes = [recipe.load(path) for path in (*recipe.find(ROOT), *sorted(ROOT.glob("examples/*/recipe.yaml")))]
    identity = toolchain_of(ROOT).identity
    variants = plan.make_plan(recipes, ledger.kept_targets(ROOT / "ledger"), ledger.PROFILE).variants
    return frozenset(ledger_file.short(variant.spec.key(identity)) for variant in variants)


def main() -> int:
    tree = tree_keys()
    for page in sorted(PAGES.glob("*.md")):
        text = page.read_text()
        try:
            page.write_text(filled(text, tree, otherwise=note_of(page)))
        except ValueError as error:
            print(f"{page}: {error}", file=sys.stderr)
            return 1
        print(f"{page.relative_to(ROOT)}: {'outdated' if _NOTE.search(page.read_text()) else 'of the tree'}")
    for table in sorted(TABLES.glob("*/*.yaml")):
        table.write_text(with_runs_marked(table.read_text(), tree))
        print(f"{table.relative_to(ROOT)}: {'outdated' if 'outdated: true' in table.read_text() else 'of the tree'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
