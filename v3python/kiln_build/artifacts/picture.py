"""A page that shows what is in a release or a pack: sizes of the targets, and for each kernel maps of registers, shared
memory, spills and image sizes over functionals and configurations. Plain HTML and SVG in one file, no script, no fetch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from html import escape
from typing import Any

from kiln_build.artifacts import reader as inspect
from kiln_build.artifacts.reader import PackFile, Release
from kiln_recipe.console.tables import plural, quantity, span

_CELL = 22  # pixels; a cell holds the specializations side by side
_LETTER = 7.0  # width of a letter of the labels, about
_STEPS = 12  # shades: a map of ten thousand cells is twelve paths
_LABELLED = 3000  # maps of more cells get no tooltips, which would be most of the page

# (fact, heading, format, darkest colour); the lightest is _PAPER.
_MAPS = (
    ("registers", "Registers a thread", str, (8, 69, 148)),
    ("shared", "Shared memory of a block", quantity, (0, 90, 50)),
    ("spills", "Spilled bytes per thread", str, (178, 24, 43)),
    ("bytes", "Image size", quantity, (84, 39, 143)),
)
_PAPER = (240, 243, 247)
_MISSING = "#b8b8b8"

STYLE = """
body { font: 14px/1.45 system-ui, sans-serif; color: #1c2733; background: #fff; margin: 2em auto; max-width: 1200px;
  padding: 0 1em }
h1 { font-size: 1.5em } h2 { margin: 2em 0 .3em; border-bottom: 1px solid #d5dce4 } h3 { margin: 1.2em 0 .3em }
table { border-collapse: collapse } td, th { padding: .15em .9em .15em 0; text-align: left; vertical-align: top }
td.n { text-align: right; font-variant-numeric: tabular-nums }
code { font-size: .92em } svg text { font: 11px ui-monospace, monospace; fill: #1c2733 }
.maps { display: flex; flex-wrap: wrap; gap: 1em 2em } .muted { color: #5c6b7a }
"""


# By which a page is known as one of ours.
BEGIN = '<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n<meta name="generator" content="kiln inspect">\n'


def page(artifact: Release | PackFile) -> Iterator[str]:
    """The page, as HTML, in pieces."""
    rows, rules = inspect.variants_of(artifact), inspect.rules_of(artifact)
    if isinstance(artifact, Release):
        title = f"Kiln {artifact.manifest['kiln']}"
        head = _release_head(artifact)
        sizes = {row["path"]: row.get("bytes", 0) for row in artifact.manifest["files"]}
        packs = {t["name"]: sizes.get(f"{inspect.IMAGES}/{t.get('pack')}", 0) for t in artifact.manifest["targets"]}
        about = {target["name"]: _about(target) for target in artifact.manifest["targets"]}
    else:
        title = f"{artifact.path.name} of Kiln {artifact.pack.release}"
        head = f"<p>Index <code>{escape(artifact.pack.index_digest)}</code></p>"
        packs = {artifact.pack.target: artifact.pack.file_bytes}
        about = {}
    highest = {fact: max((row.get(fact) or 0 for row in rows), default=0) for fact, *_ in _MAPS}
    cells: dict[str, dict[str, list]] = {target: {} for target in packs}
    for row in rows:
        cells.setdefault(row["target"], {}).setdefault(row["kernel"], []).append(row)
    lacking: Counter[tuple[str, str]] = Counter()
    for rule in rules:
        lacking[rule["target"], rule["kernel"]] += rule["variants"]
    yield f"{BEGIN}<title>{escape(title)}</title>\n"
    yield f"<style>{STYLE}</style>\n<h1>{escape(title)}</h1>\n{head}\n<h2>Size</h2>\n{_bars(packs, rows)}\n"
    for target in packs:
        yield f'<h2 id="{escape(target)}">{escape(target)}</h2>{about.get(target, "")}\n'
        for kernel, ours in cells[target].items():
            yield f"<h3>{escape(kernel)}</h3>{_kernel(ours, highest, lacking[target, kernel])}\n"
    yield "</html>\n"


def _release_head(release: Release) -> str:
    manifest = release.manifest
    source = manifest["source"]
    facts = [
        ("Platform", manifest["platform"]),
        ("Profile", f"{manifest['profile']} {manifest['selection']}"),
        ("Source", source["commit"] + (", dirty" if source["dirty"] else "")),
        ("Tools", inspect.tools_of(release)),
        *(("Waived", f"{w['kernel']}: {w['reason']} ({w['missing']} of {w['covers']})") for w in manifest["waivers"]),
    ]
    rows = "".join(f"<tr><th>{escape(name)}</th><td>{escape(str(value))}</td></tr>" for name, value in facts)
    return f"<table>{rows}</table>"


def _about(target: dict[str, Any]) -> str:
    parts = [f"lowest driver {target['lowest_driver']}", f"runs on {' '.join(target['runs_on'])}", target["verified"]]
    return f'<p class="muted">{escape("; ".join(parts))}</p>'


def _bars(packs: dict[str, int], rows: list[dict[str, Any]]) -> str:
    """For each target the bytes of its distinct images, and above them those of its pack."""
    raw = dict.fromkeys(packs, 0)
    for (target, _), size in {(row["target"], row["image"]): row["bytes"] for row in rows if row["image"]}.items():
        raw[target] = raw.get(target, 0) + size
    largest = max([1, *raw.values(), *packs.values()])
    width, parts = 520, []
    for number, target in enumerate(packs):
        y = number * 34
        parts.append(f'<a href="#{escape(target)}"><text x="0" y="{y + 17}">{escape(target)}</text></a>')
        for offset, value, colour, what in (
            (4, raw[target], "#c9d6e6", "images"),
            (16, packs[target], "#08519c", "pack"),
        ):
            length = max(1, round(width * value / largest))
            parts.append(f'<rect x="80" y="{y + offset}" width="{length}" height="11" fill="{colour}"/>')
            parts.append(f'<text x="{80 + length + 6}" y="{y + offset + 9}">{what} {escape(quantity(value))}</text>')
    return f'<svg width="{width + 260}" height="{len(packs) * 34 + 4}" role="img">{"".join(parts)}</svg>'


def _kernel(cells: list[dict[str, Any]], highest: dict[str, int], lacking: int) -> str:
    """The maps of a kernel; `lacking` is how many combinations of its choices the build left out."""
    there = dict.fromkeys(row["functional"] for row in cells if row["image"] is not None)
    if not there:
        return f"<p>None of its {plural(len(cells), 'variant')} has an image.</p>"
    cells = [row for row in cells if row["functional"] in there]
    functionals = list(there)
    configurations = list(dict.fromkeys(row["configuration"] for row in cells))
    specializations = list(dict.fromkeys(row["specialization"] for row in cells))
    missing = [row for row in cells if row["image"] is None]
    lines = [
        f"<p>{plural(len(functionals), 'functional')} (rows), {plural(len(configurations), 'configuration')} "
        f"(columns), in each cell from left to right: {escape(', '.join(specializations))}."
        + (f" Grey: {plural(len(missing), 'variant')} without an image." if missing else "")
        + (
            f" {plural(lacking, 'combination')} left out by the profile, the selection or the recipe."
            if lacking
            else ""
        )
        + "</p>"
    ]
    maps = []
    for fact, heading, form, dark in _MAPS:
        values = [row[fact] for row in cells if row["image"] is not None]
        caption = f"{heading}: {span(values) if form is str else _span_bytes(values)}"
        picture = _map(cells, (functionals, configurations, specializations), fact, dark, highest[fact], form)
        maps.append(f"<figure><figcaption>{escape(caption)}</figcaption>{picture}</figure>")
    lines.append(f'<div class="maps">{"".join(maps)}</div>')
    names = "".join(
        f'<tr><td class="n">{n}</td><td><code>{escape(c)}</code></td></tr>' for n, c in enumerate(configurations, 1)
    )
    return "\n".join([*lines, f"<details><summary>Configurations</summary><table>{names}</table></details>"])


def _map(
    cells: list[dict[str, Any]], axes: Sequence[list[str]], fact: str, dark: tuple[int, ...], highest: int, form
) -> str:
    """One map. Cells of one shade are one path; a map that is not too large has tooltips besides."""
    functionals, configurations, specializations = ({name: n for n, name in enumerate(axis)} for axis in axes)
    left = max((len(name) for name in functionals), default=0) * _LETTER + 8
    part = _CELL / max(1, len(specializations))
    shades: dict[str, list[str]] = {}
    tips = []
    for row in cells:
        x = left + configurations[row["configuration"]] * _CELL + specializations[row["specialization"]] * part
        y = 18 + functionals[row["functional"]] * _CELL
        value = None if row["image"] is None else row[fact]
        colour = _MISSING if value is None else _shade(value, highest, dark)
        box = (round(x, 1), y, round(part - 1, 1), _CELL - 1)
        shades.setdefault(colour, []).append("M{} {}h{}v{}h-{}z".format(*box[:3], box[3], box[2]))
        if len(cells) <= _LABELLED:
            text = f"{row['functional']} | {row['configuration']} | {row['specialization']}: "
            text += form(value) if value is not None else f"no image: {row['unavailable'] or 'not part of this build'}"
            x, y, width, height = box
            tips.append(
                f'<rect x="{x}" y="{y}" width="{width}" height="{height}" fill="transparent">'
                f"<title>{escape(text)}</title></rect>"
            )
    labels = [
        f'<text x="{left - 8}" y="{18 + n * _CELL + 15}" text-anchor="end">{escape(name)}</text>'
        for name, n in functionals.items()
    ]
    labels += [
        f'<text x="{left + n * _CELL + _CELL / 2}" y="12" text-anchor="middle">{n + 1}</text>'
        for n in configurations.values()
    ]
    width, height = left + len(configurations) * _CELL + 4, 18 + len(functionals) * _CELL + 2
    paths = [f'<path fill="{colour}" d="{"".join(pieces)}"/>' for colour, pieces in sorted(shades.items())]
    return f'<svg width="{width:.0f}" height="{height}" role="img">{"".join([*paths, *labels, *tips])}</svg>'


def _shade(value: int, highest: int, dark: tuple[int, ...]) -> str:
    """From the paper's colour at 0 to the dark one at the release's highest value, in steps; anything but 0 shows."""
    step = 0 if value == 0 or highest == 0 else max(1, round(_STEPS * value / highest))
    return "#" + "".join(f"{round(light + (deep - light) * step / _STEPS):02x}" for light, deep in zip(_PAPER, dark))


def _span_bytes(values: Sequence[int]) -> str:
    if not values:
        return "-"
    low, high = min(values), max(values)
    return quantity(low) if low == high else f"{quantity(low)} to {quantity(high)}"
