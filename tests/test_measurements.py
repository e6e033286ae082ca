"""Pages of measurements name their images: what the tree makes no more is not shown as if it did."""

from __future__ import annotations

import json
import re
import subprocess
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


def test_there_are_pages_and_keys(tree):
    assert len(PAGES) >= 4 and len(tree) > 3000


def test_the_note_comes_and_goes():
    current, outdated = PAGE.format(""), PAGE.format(measured.OUTDATED + "\n\n")
    for text in (current, outdated):
        assert measured.filled(text, frozenset({KEY, OTHER})) == current
        assert measured.filled(text, frozenset({OTHER})) == outdated
    unknown = re.sub("listed.*<!-- end", "unknown -->\n<!-- end", outdated, flags=re.DOTALL)
    assert measured.filled(unknown, frozenset({KEY})) == unknown


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


def test_the_benchmarks_page_names_what_each_row_ran(tmp_path):
    """From the results that a run keeps."""

    def row(direction, images, **more):
        times = {"kiln": [1.0], "flash": [1.5], "cudnn": [0.9], "copy": [1.0]}
        sides = {"forward": ("kiln", "flash", "cudnn"), "decode": ("kiln", "copy")}[direction]
        return {
            "direction": direction, "head_dim": 64, "causal": False, "length": 2048, "refusals": {}, "images": images,
            "milliseconds": {side: times[side] for side in sides}, "host_ahead": True, **more,
        }  # fmt: skip

    one, two = f"{KEY} sm_90 flash.attn_fwd/attn_fwd[a=1][B=2][aligned]", f"{OTHER} sm_90 flash.attn_decode/x[][B=2][c]"
    cache = {"kind": "MHA", "keys": 32768, "page": 0, "dtype": "bf16", "batch": 4, "bytes": 10**9, "copied": 10**9}
    about = {"date": "2026-11-23", "gpu": {}, "torch": "2.11", "cudnn": "9", "release": "0.1.0b", "manifest": "0" * 64,
             "dtype": "bf16", "layout": "bhsd", "rounds": 7, "budget_ms": 20.0, "splits": 0}  # fmt: skip
    rows = [row("forward", [one]), row("forward", [one], causal=True), row("decode", [two, one], **cache)]
    (tmp_path / "r.json").write_text(json.dumps({"about": about, "busy": [], "rows": rows}))
    page = tmp_path / "page.md"
    command = [sys.executable, ROOT / "benchmarks/attention/run.py", "--from", tmp_path / "r.json", "--markdown", page]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert page.exists(), done.stderr
    text = page.read_text()
    assert "| 64 | false | 2048 |" in text and "| 1 |\n" in text and "| 2 1 |\n" in text
    assert f"1. `{KEY}` sm_90 flash.attn_fwd/attn_fwd[a=1][B=2][aligned]\n2. `{OTHER}`" in text
    assert "the other release" not in text
    rows[0]["milliseconds"]["against"] = [2.0]
    about["against"] = "1" * 64
    (tmp_path / "r.json").write_text(json.dumps({"about": about, "busy": [], "rows": rows}))
    subprocess.run(command, capture_output=True, text=True, check=False)
    beside = page.read_text()
    assert "| Kiln | FlashAttention-2 | cuDNN | the other release |" in beside and "| to the other release |" in beside
    assert "| 1.50 | 0.90 | 2.00 | 1 |" in beside and f"of the other release `{'1' * 64}`" in " ".join(beside.split())
    assert measured.keys_of(text) == {KEY, OTHER}
    assert measured.filled(text, frozenset({KEY, OTHER})) == text


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
