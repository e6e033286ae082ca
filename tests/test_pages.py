"""What all pages share: nothing that a release says becomes a tag, and nothing is loaded or run but what is in them."""

from __future__ import annotations

import base64
import errno
import hashlib
import html.parser
import re

import pytest

from kiln_build.difference import compare, page
from kiln_build.difference.side import File, Side
from kiln_build.pages import document, tables
from kiln_build.pages.document import Part
from kiln_build.pages.markup import Markup, element, text
from kiln_build.pages.tables import Cell
from kiln_build.report import gather
from kiln_build.report import page as report_page
from kiln_recipe.errors import EnvironmentProblem
from small_release import small_release

NASTY = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'&\x1b\u202e\ud800"


class Tags(html.parser.HTMLParser):
    """The tags of a page with their attributes, and its texts."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attributes)))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_what_is_no_markup_is_escaped():
    assert text("<b>&\"'") == "&lt;b&gt;&amp;&quot;&#x27;"
    assert text(Markup("<b>")) == "<b>" and text(None) == "" and text(0) == "0"
    assert (
        element("td", "<", class_="n", data_v=0, title=None, hidden=True) == '<td class="n" data-v="0" hidden>&lt;</td>'
    )
    assert element("a", element("b", "x"), href='">') == '<a href="&quot;&gt;"><b>x</b></a>'
    assert text("a\x1b[2J\u202eb\ud800\nc") == "a\\x1b[2J\\u202eb\\ud800\nc"


def test_a_policy_allows_the_style_and_the_script_of_the_page_alone():
    whole = "".join(document.document("kiln x", "T", [], [Part("A", []), Part("A", [])]))
    assert whole.startswith(document.begin("kiln x"))
    parsed = Tags(whole)
    (policy,) = [tag[1]["content"] for tag in parsed.tags if tag[1].get("http-equiv") == "Content-Security-Policy"]
    for name in ("style", "script"):
        (content,) = re.findall(f"<{name}>(.*?)</{name}>", whole, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{name}-src 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none';") and "unsafe" not in policy
    ids = [tag[1]["id"] for tag in parsed.tags if "id" in tag[1]]
    assert len(ids) == len(set(ids))
    assert {tag[1]["href"] for tag in parsed.tags if tag[0] == "a"} <= {f"#{one}" for one in ids}


def test_a_table_says_how_many_rows_it_leaves_out(monkeypatch):
    monkeypatch.setattr(tables, "MOST", 2)
    made = "".join(tables.table("x", ("NAME", "n"), [("a", Cell("1 KiB", 1024)), ("b", 2), ("c", 3)], ("n",)))
    assert made.count("<tr>") == 3 and "1 more rows are not on this page" in made
    assert 'data-v="1024"' in made and '<th scope="col">Name</th><th scope="col" class="n">n</th>' in made


def side(name: str, version: str) -> Side:
    row = {
        "target": NASTY, "kernel": f"f.{name}/{name}", "functional": f"a={name}", "configuration": name,
        "specialization": name, "key": "0" * 64, "image": version * 64, "unavailable": None, "bytes": 5,
        "registers": 8, "spills": 4, "shared": 0, "threads": 32,
    }  # fmt: skip
    rule = {"target": NASTY, "kernel": row["kernel"], "reason": name, "variants": 1}
    return Side(
        small_release().tarball, "tarball", name, {"profile": name, "tool x": name, "waiver x": name}, [NASTY], {},
        [row, {**row, "image": None, "unavailable": name}], [rule], {f"{name}{version}": File(1, name)},
        {"a.h": (name + version).encode("utf-8", "replace")}, {name: [name + version]}, {}, name, [name],
    )  # fmt: skip


@pytest.mark.parametrize("kind", ["report", "diff"])
def test_names_of_a_release_stay_names(kind):
    old, new = side(NASTY, "1"), side(NASTY, "2")
    found = compare.compare(old, new)
    report = gather.gather(new, [], None, found)
    whole = "".join(report_page.page(report) if kind == "report" else page.page(found))
    whole.encode()
    parsed = Tags(whole)
    assert [tag for tag, _ in parsed.tags].count("script") == 1 and "img" not in [tag for tag, _ in parsed.tags]
    attributes = {name for _, every in parsed.tags for name in every}
    assert not [name for name in attributes if name.startswith("on") or name in ("style", "src", "srcdoc", "action")]
    assert any("<script>alert(1)</script>" in one for one in parsed.texts)
    assert "\x1b" not in whole and "\u202e" not in whole
    assert whole == "".join(report_page.page(report) if kind == "report" else page.page(found))


def test_a_page_on_a_full_disk_leaves_nothing_and_asks_for_room(tmp_path):
    def pieces():
        yield "a page"
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(EnvironmentProblem, match=r"^cannot write \S+/a.html: No space left on device; make room on"):
        document.write(tmp_path / "a.html", pieces())
    assert not list(tmp_path.iterdir())
