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
    assert text == measured.filled(text, tree), "run: PYTHONPATH=v3python python3 docs/measured.py"


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
