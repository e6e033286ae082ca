"""Pages in Chromium: nothing is loaded, nothing complains, tables sort and search, narrow screens hold all of it."""

from __future__ import annotations

import contextlib
import json

import pytest

import browser
from browser import SCHEMES, WIDTHS, Browser
from kiln_build.difference import compare, page
from kiln_build.difference.side import Side
from kiln_build.origin.timeline_file import Job, Step, Timeline
from kiln_build.pages import document
from kiln_build.report import gather
from kiln_build.report import page as report_page
from small_release import small_release

pytestmark = pytest.mark.skipif(browser.find() is None, reason="needs chromium")

SIZES = (64, 128, 16, 96, 80, 48, 32, 256, 192)  # sorted as words, 128 would come before 16


def row(kernel: str, size: int, target: str = "sm_90", **more: object) -> dict:
    return {
        "target": target, "kernel": f"flash.{kernel}", "functional": f"dtype=bf16 head_dim={size} extras=none",
        "configuration": f"BLOCK_M=64 BLOCK_N=128 KEY_STAGES=3 STAGES=2 ROW_STAGES=2 REGISTERS={size} num_warps=4 "
        "matrix_instr_nonkdim=16",
        "specialization": "aligned", "key": f"{size:064d}", "image": f"{kernel}{size}{more}", "unavailable": None,
        "bytes": 1000 * size, "registers": size % 255, "spills": size // 64, "shared": 1024 * size, "threads": 128,
        **more,
    }  # fmt: skip


def side(*rows: dict) -> Side:
    stated = {"profile": "full", "commit": "0" * 40, "sm_90: verified": "compiled, not run"}
    return Side(small_release().tarball, "tarball", "0.1.0b", stated, ["sm_90", "gfx942"], {}, [*rows], [])


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """A report and a difference, of a release that has what makes tables wide."""
    folder = tmp_path_factory.mktemp("pages")
    names = ("attn_fwd/attn_fwd.hopper_narrow", "attn_decode/attn_decode_reduce.general")
    rows = [row(name, size, target) for name in names for size in SIZES for target in ("sm_90", "gfx942")]
    old, new = side(*rows), side(*(one | {"spills": one["spills"] + 8, "image": one["image"] + "n"} for one in rows))
    found = compare.compare(old, new)
    jobs = [Job(f"{one['kernel']}[x][y][z]@{one['target']}", n, n + 1.5, n % 4 + 1, "compiled")
            for n, one in enumerate(rows)]  # fmt: skip
    times = Timeline("0.1.0b", "0", 60, 4, (Step("plan", 0, 1), Step("compile", 1, 60)),
                              tuple(jobs))  # fmt: skip
    written = {"report": report_page.page(gather.gather(new, [], times, found)), "diff": page.page(found)}
    for name, pieces in written.items():
        document.write(folder / f"{name}.html", pieces)
    return folder


@pytest.fixture(scope="module")
def chromium():
    with contextlib.closing(Browser()) as opened:
        yield opened


def texts(opened: Browser, table: int, column: int) -> list[str]:
    """What the rows that are shown have in a column of a table of the page."""
    return opened.run(
        f"[...document.querySelectorAll('table.rows')[{table}].tBodies[0].rows].filter(row => row.offsetParent)"
        f".map(row => row.cells[{column}].textContent)"
    )


def place_of(opened: Browser, caption: str) -> int:
    """The number of the table with this caption."""
    found = opened.run("[...document.querySelectorAll('table.rows')].map(table => table.caption.textContent)")
    return found.index(caption)


@pytest.mark.parametrize("name", ["report", "diff"])
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_complains_is_loaded_or_stands_out(chromium, pages, name, scheme, width):
    path = pages / f"{name}.html"
    chromium.open(path, width, scheme)
    assert chromium.run("document.documentElement.scrollWidth") == width
    wide = chromium.run(
        "[...document.querySelectorAll('main *')].filter(one => !one.closest('.wide, pre, .maps') "
        "&& one.getBoundingClientRect().right > innerWidth + 1).map(one => one.outerHTML.slice(0, 100))"
    )
    assert wide == []
    chromium.run("document.querySelectorAll('details').forEach(one => { one.open = true; })")
    later = "new Promise(done => setTimeout(() => done(document.documentElement.scrollWidth), 50))"
    assert chromium.run(later) == width
    assert chromium.seen.requests == [path.as_uri()] and chromium.seen.complaints == []


def test_what_the_policy_forbids_does_not_run(chromium, pages):
    """Else the test above would show nothing: a script and a picture that are not the page's."""
    text = (pages / "diff.html").read_text()
    planted = '<script>document.title = "planted"</script><img src="missing.png"><p style="color: red">x</p></main>'
    (pages / "planted.html").write_text(text.replace("</main>", planted))
    chromium.open(pages / "planted.html", 1280)
    assert chromium.run("document.title") != "planted"
    assert len([one for one in chromium.seen.complaints if "Content Security Policy" in one]) == 3
    chromium.open(pages / "diff.html", 1280)


@pytest.mark.parametrize("width", WIDTHS)
def test_tables_sort_by_their_headings(chromium, pages, width):
    chromium.open(pages / "report.html", width)
    table = place_of(chromium, "images by kernel and configuration")
    head = f"document.querySelectorAll('table.rows')[{table}].tHead.rows[0].cells"
    names = chromium.run(f"[...{head}].map(one => one.textContent)")
    column = names.index("Shared")
    orders = []
    for wanted in ("ascending", "descending"):
        chromium.run(f"{head}[{column}].querySelector('button').click()")
        assert chromium.run(f"{head}[{column}].getAttribute('aria-sort')") == wanted
        orders.append([int(one) for one in texts(chromium, table, column)])
    assert orders[0] == sorted(orders[0]) and orders[1] == orders[0][::-1] and len(set(orders[0])) == len(SIZES)
    chromium.run(f"{head}[{names.index('Configuration')}].querySelector('button').click()")
    assert chromium.run(f"[...{head}].filter(one => one.hasAttribute('aria-sort')).length") == 1
    configurations = texts(chromium, table, names.index("Configuration"))
    sizes = [int(one.rpartition("REGISTERS=")[2].split()[0]) for one in configurations]
    assert sizes == sorted(sizes), "numbers within words count as numbers"
    sized = names.index("Bytes")
    chromium.run(f"{head}[{sized}].querySelector('button').click()")
    assert texts(chromium, table, sized)[0] == "15.6 KiB" and texts(chromium, table, sized)[-1] == "250 KiB"


@pytest.mark.parametrize("width", WIDTHS)
def test_tables_are_searched(chromium, pages, width):
    chromium.open(pages / "report.html", width)
    table = place_of(chromium, "images by kernel and configuration")
    place = f"document.querySelectorAll('table.rows')[{table}].closest('.wide').previousElementSibling"
    every = texts(chromium, table, 0)
    for words, count in (("GFX942 hopper", 9), ("registers=16 sm_90", 2), ("nothing has this", 0), ("", len(every))):
        chromium.run(
            f"{{ const input = {place}.querySelector('input'); input.value = {json.dumps(words)}; "
            "input.dispatchEvent(new Event('input')); }"
        )
        assert len(texts(chromium, table, 0)) == count
        said = chromium.run(f"{place}.querySelector('[role=status]').textContent")
        assert said == (f"{count} of {len(every)} rows" if words else f"{len(every)} rows")


def test_colours_are_the_systems_until_they_are_switched(chromium, pages):
    colour = "getComputedStyle(document.body).backgroundColor"
    found = {}
    for scheme in SCHEMES:
        chromium.open(pages / "diff.html", 1280, scheme)
        found[scheme] = chromium.run(colour)
        assert chromium.run("document.getElementById('theme').textContent") == (
            "Dark colours" if scheme == "light" else "Light colours"
        )
    assert found["light"] == "rgb(255, 255, 255)" and found["dark"] != found["light"]
    chromium.run("document.getElementById('theme').click()")
    assert chromium.run(colour) == found["light"]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_texts_stand_out_from_what_is_behind_them(chromium, pages, scheme):
    """By WCAG's contrast, 4.5 to 1 at least."""
    chromium.open(pages / "report.html", 1280, scheme)
    assert chromium.run(CONTRAST) == []


def test_a_keyboard_reaches_what_can_be_done(chromium, pages):
    chromium.open(pages / "report.html", 1280)
    reached = []
    for _ in range(40):
        chromium.press("Tab", 9)
        reached.append(chromium.run("document.activeElement.textContent.trim() || document.activeElement.id"))
    assert reached[:3] == ["Skip to the content", "Dark colours", "Coverage"]
    assert "Kernel" in reached and any(one.startswith("search-") for one in reached)
    unnamed = chromium.run(
        "[...document.querySelectorAll('input, button, svg, nav, section, .wide')].filter(one => !(one.ariaLabel || "
        "one.textContent.trim() || one.labels?.length || one.getAttribute('aria-labelledby'))).length"
    )
    assert unnamed == 0


def test_a_narrow_table_is_still_a_table_to_screen_readers(chromium, pages):
    chromium.open(pages / "report.html", 400)
    roles = chromium.run("[...document.querySelectorAll('.stacked *, .stacked')].filter(one => one.matches("
                         "'table, thead, tbody, tr, th, td')).map(one => one.getAttribute('role'))")  # fmt: skip
    assert roles and None not in roles
    cells = "[...document.querySelectorAll('.stacked tbody tr:first-child td')]"
    labels = chromium.run(f"{cells}.map(one => one.dataset.label)")
    assert "Configuration" in labels and None not in labels
    chromium.open(pages / "report.html", 1280)
    assert chromium.run("document.querySelectorAll('.stacked').length") == 0


def test_tables_fit_a_wide_screen(chromium, pages):
    """Where they are wider than it, words break."""
    tables = "[...document.querySelectorAll('table.rows')].filter(one => one.offsetWidth"
    for width in (1280, 1150):
        chromium.open(pages / "report.html", width)
        chromium.run("document.querySelectorAll('details').forEach(one => { one.open = true; })")
        chromium.run("new Promise(done => setTimeout(done, 50))")
        assert chromium.run(f"{tables}).length") > 5
        assert chromium.run(f"{tables} > one.parentElement.clientWidth + 1).length") == 0, width
    assert chromium.run("document.querySelectorAll('table.tight').length") > 0


def test_print_shows_what_is_closed(chromium, pages):
    chromium.open(pages / "report.html", 1280, "dark")
    closed = chromium.run("document.querySelectorAll('details:not([open])').length")
    chromium.ask("Emulation.setEmulatedMedia", media="print")
    chromium.ask("Emulation.setDeviceMetricsOverride", width=718, height=900, deviceScaleFactor=1, mobile=False)  # A4
    cut = "[...document.querySelectorAll('.wide')].filter(one => one.scrollWidth > one.clientWidth + 1).length"
    assert chromium.run(cut) == 0, "what paper cuts off nobody can scroll to"
    assert chromium.run("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert chromium.run("getComputedStyle(document.querySelector('.search')).display") == "none"
    chromium.run("dispatchEvent(new Event('beforeprint'))")
    assert closed and chromium.run("document.querySelectorAll('details:not([open])').length") == 0
    chromium.run("dispatchEvent(new Event('afterprint'))")
    assert chromium.run("document.querySelectorAll('details:not([open])').length") == closed
    chromium.ask("Emulation.setEmulatedMedia", media="")


# The texts whose colour is too near to that of the first ancestor that has one.
CONTRAST = """(() => {
  const parts = colour => colour.match(/[0-9.]+/g).map(Number);
  const light = ([red, green, blue]) => [red, green, blue].map(one => one / 255)
    .map(one => one <= 0.03928 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4)
    .reduce((sum, one, at) => sum + one * [0.2126, 0.7152, 0.0722][at], 0);
  const behind = one => {
    for (let place = one; place; place = place.parentElement) {
      const colour = parts(getComputedStyle(place).backgroundColor);
      if (colour.length < 4 || colour[3] > 0) return colour;
    }
    return [255, 255, 255];
  };
  const found = new Set();
  for (const one of document.querySelectorAll("h1, h2, h3, p, td, th, a, li, button, summary, label, .found, footer")) {
    if (!one.offsetParent || !one.textContent.trim()) continue;
    const [a, b] = [light(parts(getComputedStyle(one).color)), light(behind(one))];
    const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (contrast < 4.5) found.add(`${one.localName}.${one.className}: ${contrast.toFixed(2)}`);
  }
  return [...found];
})()"""
