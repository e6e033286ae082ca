"""Pages of measurements name their images: what the tree makes no more is not shown as if it did."""

from __future__ import annotations

import json
import re
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from small_release import ROOT

sys.path.insert(0, str(ROOT / "docs"))
import measured

PAGES = sorted(measured.PAGES.glob("*.md"))
KEY, OTHER = "0123456789ab", "ba9876543210"
PAGE = "# Speed\n\n{}Measured.\n\n## Images\n\n<!-- images: listed -->\n1. `" + KEY + "` sm_90 x\n<!-- end -->\n"


@pytest.fixture(scope="module")
def tree() -> frozenset[str]:
    return measured.tree_keys()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_says_whether_its_images_are_the_trees(page, tree):
    text = page.read_text()
    expected = measured.filled(text, tree, otherwise=measured.note_of(page))
    assert text == expected, "run: PYTHONPATH=v3python python3 docs/measured.py"


@pytest.mark.parametrize("page", sorted(measured.PAGES.glob("calls/*.json")), ids=lambda page: page.name)
def test_calls_that_were_kept_ran_images_of_their_page(page):
    kept, beside = json.loads(page.read_text()), page.parents[1] / f"{page.stem}.md"
    keys = {key for keys in kept["calls"].values() for key in keys}
    assert keys and keys <= (measured.keys_of(beside.read_text()) or frozenset()), f"of another run than {beside}"


TENSORS = "{}=bf16[1,32,512,128]/2097152,128,4096,1@0 out=bf16[1,32,512,128]/2097152,128,4096,1@1"
CACHE = "{}=bf16[1,8,8192,128]/8388608,128,1024,1@{}"
CALL = f"attn_fwd {TENSORS.format('q')} {CACHE.format('k', 2)} {CACHE.format('v', 3)} causal=1 bottom_right=1"


def test_calls_are_looked_up_again(tmp_path, tree):
    """In the recipe and the tuned rules of today, by the arguments that were kept."""
    lookup = measured.lookup_of("sm_90", "full", 132)
    (key,) = lookup(CALL)
    both = f"{CACHE.format('k_cache', 2)} {CACHE.format('v_cache', 3)} seqused_k=int32[1]/1@4 causal=1"
    chunk = f"attn_decode {TENSORS.format('q')} {both}"
    step = chunk.replace("[1,32,512,128]/2097152", "[1,32,1,128]/4096")
    found = {call: lookup(call) for call in (CALL, chunk, step, f"{chunk} splits=8", f"{chunk} sm_scale=-0.1")}
    assert {len(keys) for keys in found.values()} == {1, 2} and len({*map(tuple, found.values())}) == 5
    assert all(tree.issuperset(keys) for keys in found.values())
    assert lookup(f"{chunk} batch_invariant=1") == found[chunk] == lookup(f"{chunk} softcap=0.0")
    assert lookup(CALL.replace("128]/8388608", "64]/8388608")) == [], "it is refused"

    page, where = tmp_path / "x.md", {"target": "sm_90", "multiprocessors": 132, "profile": "full"}
    page.write_text(PAGE.format("").replace(KEY, key))
    assert measured.note_of(page) == "", "nothing was kept"
    (tmp_path / "calls").mkdir()
    for calls, note in (
        (found, ""),
        (found | {CALL: [KEY]}, measured.OTHERWISE.format(count=1, every=5)),
        (found | {CALL: [key, key], f"{CALL} sinks=fp32[31]/1@9": [key]},
         measured.OTHERWISE.format(count=2, every=6)),
    ):  # fmt: skip
        (tmp_path / "calls/x.json").write_text(json.dumps({**where, "calls": calls}))
        text = measured.filled(page.read_text(), frozenset({key}), otherwise=measured.note_of(page))
        assert (text == PAGE.format("").replace(KEY, key)) == (note == "") and note in text
        assert measured.filled(text, frozenset({key})) == PAGE.format("").replace(KEY, key), "the note goes again"
        of_other_images = measured.filled(text, frozenset(), otherwise=note)
        assert measured.OUTDATED in of_other_images and of_other_images.count("Outdated") == 1


@pytest.mark.parametrize("table", sorted(measured.TABLES.glob("*/*.yaml")), ids=lambda table: table.name)
def test_tuned_rules_say_whether_the_images_of_their_run_are_the_trees(table, tree):
    text = table.read_text()
    assert "run: {" in text, f"{table} does not say which run its rules come from"
    assert text == measured.with_runs_marked(text, tree), "run: PYTHONPATH=v3python python3 docs/measured.py"


def test_runs_are_marked_by_their_own_images():
    text = f"run: {{by: a, images: ['{KEY}']}}\nkernels: {{}}\nearlier:\n  - run: {{by: b, images: ['{OTHER}']}}\n"
    both, one = measured.with_runs_marked(text, frozenset()), measured.with_runs_marked(text, frozenset({KEY}))
    assert both.count("outdated: true") == 2 and one.count("outdated: true") == 1
    assert f"run: {{by: a, images: ['{KEY}']}}\n" in one
    assert "outdated" not in measured.with_runs_marked(both, frozenset({KEY, OTHER}))
    assert measured.with_runs_marked(one, frozenset({KEY})) == one
    unknown = "run: {by: a, outdated: true}\n"
    assert measured.with_runs_marked(unknown, frozenset({KEY})) == unknown


def test_there_are_pages_and_keys(tree):
    assert len(PAGES) >= 4 and len(tree) > 3000


def test_the_note_comes_and_goes():
    current, outdated = PAGE.format(""), PAGE.format(measured.OUTDATED + "\n\n")
    for text in (current, outdated):
        assert measured.filled(text, frozenset({KEY, OTHER})) == current
        assert measured.filled(text, frozenset({OTHER})) == outdated
    unknown = re.sub("listed.*<!-- end", "unknown -->\n<!-- end", outdated, flags=re.DOTALL)
    assert measured.filled(unknown, frozenset({KEY})) == unknown


def test_a_page_about_no_image_of_ours_is_never_outdated():
    text = re.sub("listed.*<!-- end", "none -->\n<!-- end", PAGE.format(""), flags=re.DOTALL)
    assert measured.filled(text, frozenset()) == text


def test_files_of_keys_count_as_the_pages_own(tmp_path):
    (tmp_path / "a.json").write_text(json.dumps({"keys": [KEY + "0" * 52]}))
    (tmp_path / "b.json").write_text(json.dumps({"keys": [OTHER + "0" * 52]}))
    text = "# Suite\n\nx\n\n<!-- images: a.json b.json -->\n"
    assert measured.keys_of(text, tmp_path) == {KEY, OTHER}
    assert measured.OUTDATED in measured.filled(text, frozenset({KEY}), tmp_path)
    assert measured.filled(text, frozenset({KEY, OTHER}), tmp_path) == text


@pytest.mark.parametrize(
    "block",
    [
        "",
        "<!-- images: listed -->\n<!-- end -->\n",
        f"<!-- images: listed -->\n`{KEY}` without an end\n",
        "<!-- images: unknown -->\n<!-- images: unknown -->\n",
    ],
)
def test_a_page_that_names_no_image_is_a_mistake(block):
    with pytest.raises(ValueError, match=r"names (its images [02] times|no key)"):
        measured.filled(f"# Speed\n\n{block}", frozenset({KEY}))


@given(st.lists(st.tuples(st.integers(0, 16**12 - 1).map("{:012x}".format), st.sampled_from(["x", "a[b=c ][]", ""]))))
def test_what_is_listed_is_read_back(images):
    text = f"# x\n\n{measured.listed(f'{key} sm_90 {name}' for key, name in images)}\n"
    assert measured.keys_of(text) == (frozenset(key for key, _ in images) or None)


FIGURE = re.compile(r"\d(?:\.\d+)? *(?:µs|us|ms|TB/s|TFLOP/s|times the speed|of the speed)\b|\b[01]\.\d\d\b")


@pytest.mark.parametrize(
    "page",
    [path for pattern in ("*.md", "docs/*.md") for path in sorted(ROOT.glob(pattern))],
    ids=lambda path: path.name,
)
def test_figures_are_on_the_pages_of_measurements_alone(page):
    """Where a text leads to one it repeats none of its figures, which would be old when the page is new."""
    for paragraph in page.read_text().split("\n\n"):
        if re.search(r"measurements/[\w-]+\.md", paragraph):
            assert not FIGURE.search(paragraph), paragraph


def table(text: str, begin: str) -> list[list[str]]:
    """The cells of each row of the table whose heading begins so, the heading's too, the line below it left out."""
    rows = text[text.index(f"| {begin}") :].partition("\n\n")[0].splitlines()
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows if set(row) - set("|- ")]


def test_shares_of_amd_are_those_of_their_page():
    """But what gfx1100's backward had before: the page says why its shares by the tool are too much."""
    (head, *rows) = table((measured.PAGES / "amd-images.md").read_text(), "target | kernel | dtype |")
    page = {tuple(row[:4]): [float(row[head.index(name)]) for name in ("before", "after")] for row in rows}
    ((_, *targets), *rows) = table((ROOT / "docs/attention.md").read_text(), "bf16, before and after |")
    compared = 0
    for (what, *cells), target in ((row, target) for row in rows for target in targets):
        kernel, _, head_dim = what.partition(", head_dim ")
        shown = [float(share) for share in cells[targets.index(target)].split(", ")]
        measures = page[target, kernel.replace("dk and dv", "dk_dv"), "bf16", head_dim]
        for share, there in list(zip(shown, measures))[target == "gfx1100" and kernel != "forward" :]:
            assert abs(share - there) <= 0.00501, (what, target, share, there)
            compared += 1
    assert compared == 32


def test_counts_of_the_page_of_builds_are_those_of_the_table():
    """Of variants and keys, which docs/tables.py counts. Counts of images want compiles, and are of the same day."""
    counts = r"([\d,]+) variants, ([\d,]+) keys and [\d,]+ images"
    pattern = rf"full profile for (\w+) has {counts}; its ledger, [^\d]*{counts}"
    ((target, *counted),) = re.findall(pattern, (ROOT / "docs/build.md").read_text())
    rows = table((ROOT / "docs/attention.md").read_text(), "targets | variants of a release |")
    assert counted == next(row[1:] for row in rows if f"`{target}`" in row[0]), "count its images again, too"
