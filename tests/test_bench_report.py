"""What `kiln bench` shows of results: tables, notes, plots, the page of measurements."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import xml.etree.ElementTree as ET

import pytest

import bench_results
from bench_results import CACHE, CAUSAL, KEY, OTHER, PACK, PLAIN, VARLEN, results
from kiln_bench import plot, report, shapes
from kiln_recipe.errors import ArtifactError, EnvironmentProblem
from small_release import ROOT

sys.path.insert(0, str(ROOT / "docs"))
import measured

PAGE = ROOT / "benchmarks/attention/page.py"


def line(text: str, begin: str) -> list[str]:
    (found,) = [line for line in text.splitlines() if line.startswith(begin)]
    return found.removeprefix(begin).split()


def test_the_tables():
    text = report.text(results())
    forward, rest = text.split("Forward, TFLOP/s\n")[1].split("Backward, TFLOP/s\n")
    figures = [PLAIN.operations("forward") / ms / 1e9 for ms in (1.0, 1.5, 0.9)]
    assert line(forward, f"{PLAIN}") == [
        f"{figures[0]:.0f}", "±0.5%", f"{figures[1]:.0f}", "±0.0%", f"{figures[2]:.0f}", "±0.0%", "1.50", "0.90",
    ]  # fmt: skip
    assert line(forward, f"{VARLEN}")[2:] == ["refused", "refused", "-", "-"]
    assert line(forward, "geometric mean") == ["1.50", "0.90"] and line(forward, "least") == ["1.50", "0.90"]
    assert "wrong" not in line(rest.split("Decoding")[0], f"{PLAIN}")  # of cuDNN there is no column: it has no figure
    share = (CACHE.bytes / 0.3) / ((1 << 30) / 0.25)
    assert line(rest, f"{CACHE}") == [
        f"{CACHE.bytes / 0.3 / 1e9:.2f}", "±0.0%", f"{(1 << 30) / 0.25 / 1e9:.2f}", "±0.0%", "300.0", f"{share:.2f}",
    ]  # fmt: skip
    assert line(rest, "kiln.torch.attention  ") == ["8.10", "0.51"]
    assert line(rest, "kiln.torch.attention, recorded") == ["30.00", "1.25"]


def test_what_stands_above_and_below_them():
    text = report.text(results())
    for words in ("NVIDIA H200, driver 580.1, SM clock 1725 to 1980 MHz under load (at most 1980 MHz)",
                  "PyTorch 2.11.0 with cuDNN 91900", f"; nvidia-sm_90.pack, sha256 {PACK['sha256']}",
                  "\nKiln: 0.1.0b, kiln-0.1.0b.tar.gz;",
                  f"refused: PyTorch, flash; PyTorch, cuDNN: no varlen (forward: {VARLEN})",
                  f"wrong: PyTorch, cuDNN: its result differs from fp32's by 0.5 (backward: {PLAIN})",
                  f"not measured: the budget is used up (backward: {CAUSAL})",
                  "slow host: its time may be in the figures, so no ratio counts: it did not keep ahead of the GPU "
                  f"(forward: {CAUSAL})",
                  "no CUDA graphs: PyTorch, cuDNN: operation not permitted when stream is capturing (forward: ",
                  "1 rows of short calls were timed in CUDA graphs", "flashinfer is not installed"):  # fmt: skip
        assert words in text, words
    assert report.wrong(results()) == []  # of Kiln's own
    found = results()
    found["rows"][1]["wrong"]["kiln"] = "its result differs from fp32's by 0.2"
    assert report.wrong(found) == [f"forward, {PLAIN}: its result differs from fp32's by 0.2"]


def test_a_ratio_with_the_hosts_time_in_it_counts_nowhere(tmp_path):
    """As cuDNN's 52 times as long, of which the host took all but one."""
    found = results()
    usual = bench_results.row("forward", PLAIN, {"kiln": [1.0], "flash": [2.0], "cudnn": [1.2]})
    bound = bench_results.row("forward", CAUSAL, {"kiln": [1.0], "flash": [3.0], "cudnn": [52.0]}, host_ahead=False,
                              host_bound=["cudnn"])  # fmt: skip
    text = report.text(found | {"rows": [usual, bound]})
    assert line(text, f"{CAUSAL}")[-5:] == [
        f"{CAUSAL.operations('forward') / 52e9:.1f}",
        "±0.0%",
        "(host)",
        "3.00",
        "host",
    ]
    assert line(text, "geometric mean") == ["2.45", "1.20"] and line(text, "least") == ["2.00", "1.20"]
    assert "slow host: PyTorch, cuDNN: its time may be in the figures, so no ratio counts" in text
    done, page = page_of(tmp_path, found | {"rows": [usual, bound]})
    table = page.partition("## Forward, TFLOP/s")[2]
    assert f"{CAUSAL.operations('forward') / 52e9:.0f} (host) |" in table and "| 3.00 | host |" in table
    (mean,) = [one for one in table.splitlines() if one.startswith("| geometric mean |")]
    assert mean.endswith("| 2.45 | 1.20 |") and "52.00" not in table
    assert done.returncode == 0 and "judged: 1 of forward, shapes, of PyTorch, cuDNN" in done.stdout
    (kept,) = [bound | {"host_bound": None}]
    del kept["host_bound"]
    assert report.is_host_bound(kept, "kiln") and not report.is_host_bound(bound, "kiln"), "it may be any side's"
    assert report.ratio(kept, "kiln", "flash") is None and not report.is_host_bound(usual, "cudnn")


def test_a_figure_whose_rounds_differ_much_says_so(tmp_path):
    even, uneven = [1.0, 1.01, 1.02, 1.03, 1.04], [1.0, 1.1, 1.2, 1.3, 1.4]
    rows = [bench_results.row("forward", PLAIN, {"kiln": even, "flash": [2.5] * 5, "cudnn": uneven})]
    _, page = page_of(tmp_path, results() | {"rows": rows})
    kiln, flash, cudnn = (PLAIN.operations("forward") / ms / 1e9 for ms in (1.02, 2.5, 1.2))
    assert f"| {PLAIN} | {kiln:.0f} | {flash:.0f} | {cudnn:.0f} ±8 % |" in page
    assert "where that is more than 5%" in " ".join(page.split())


def test_many_calls_with_one_reason_are_counted():
    found = results()
    more = [bench_results.Training(64, 64, heads, heads, 1, 128, rows_first=True) for heads in (1, 2, 3)]
    found["rows"] += [bench_results.row("forward", shape, {}, refused={"flash": "no"}) for shape in more]
    assert "refused: PyTorch, flash: no (3 calls of forward)" in report.notes(found)


def test_results_that_were_kept(tmp_path):
    assert report.read(bench_results.written(tmp_path)) == json.loads(json.dumps(results()))
    path = tmp_path / "x.json"
    with pytest.raises(EnvironmentProblem, match="x.json cannot be read"):
        report.read(path)
    for text, sentence in (
        ("{", "is not JSON"),
        ("{}", "has no results of `kiln bench`; give what"),
        ("[1]", "has no"),
    ):
        path.write_text(text)
        with pytest.raises(ArtifactError, match=sentence):
            report.read(path)
    path.write_text(json.dumps(results() | {"format": 99}))
    with pytest.raises(ArtifactError, match="has format 99, which this Kiln does not read; it reads 1"):
        report.read(path)


# ---- plots -----------------------------------------------------------------------------------------------------------


def test_a_plot_is_an_svg_with_a_bar_for_each_figure(tmp_path):
    plot.write(results(), tmp_path / "x.svg")
    text = (tmp_path / "x.svg").read_text()
    assert text.startswith(plot.BEGIN) and plot.svg(plot.picture(results())) == text, "equal results, equal bytes"
    elements = list(ET.fromstring(text).iter())
    said = [e.text for e in elements if e.tag.endswith("text")]
    titles = {"Forward, TFLOP/s", "Backward, TFLOP/s", "Decoding, TB/s of the cache"}
    assert titles | {"d64", "causal", "copy"} <= set(said)
    figure = f"{PLAIN.operations('forward') / 0.9 / 1e9:.0f}"
    assert said.count(figure) == 1 and any(PACK["sha256"] in text for text in said)
    bars = [e for e in elements if e.get("fill") == "#1f5fa8"]
    assert len(bars) == 4 + 3 + 1 + 1 + 2  # legends of four panels; forward, backward, decoding, host
    width, height = map(float, ET.fromstring(text).get("viewBox").split()[2:])
    for element in elements:
        if element.get("x"):
            assert 0 <= float(element.get("x")) <= width and 0 <= float(element.get("y")) <= height


def test_axes_have_few_round_marks():
    for highest in (0.03, 0.9, 1.0, 3.3, 4.6, 12.0, 99.0, 650.0, 1200.0):
        step = plot._step(highest)
        assert 2 <= highest / step <= 10 and f"{step:e}"[0] in "125", (highest, step)


def test_a_png_needs_matplotlib(tmp_path):
    path = tmp_path / "x.png"
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        with pytest.raises(EnvironmentProblem, match="x.png needs matplotlib, which this Python lacks; give an .svg"):
            plot.check(path)
        return
    plot.check(path)
    plot.write(results(), path)
    assert path.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")


# ---- the page --------------------------------------------------------------------------------------------------------


def page_of(folder, found: dict, *words: object) -> tuple[subprocess.CompletedProcess, str]:
    page = folder / "page.md"
    command = [sys.executable, PAGE, bench_results.written(folder, found), page, *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert page.exists(), done.stderr
    return done, page.read_text()


def test_who_is_left_out_is_left_out_of_the_notes():
    for sides, is_said in ((["flash", "cudnn"], True), (["flash"], False)):
        kept = report.selected(results(), shapes.PARTS, sides)
        assert any(line.startswith("no CUDA graphs: PyTorch, cuDNN") for line in report.notes(kept)) == is_said
        assert not any("cudnn" in line for line in report.notes(kept))


def test_the_page_of_measurements_names_what_each_row_ran(tmp_path):
    done, text = page_of(tmp_path, results())
    assert f"| {PLAIN} | " in text and "| 1 | 1.50 | 0.90 |\n" in text and "| 2 1 |\n" in text
    assert f"1. `{KEY}` sm_90 flash.attn_fwd/attn_fwd[a=1][B=2][aligned]\n2. `{OTHER}`" in text
    assert measured.keys_of(text) == {KEY, OTHER}
    assert measured.filled(text, frozenset({KEY, OTHER})) == text
    assert "![Speed by shape](page.svg)" in text and (tmp_path / "page.svg").read_text().startswith(plot.BEGIN)
    assert done.returncode == 1
    assert f"missed: forward, {PLAIN}: 0.90 of PyTorch, cuDNN, not 1.0" in done.stdout
    assert "missed: forward: geometric mean 1.50 of PyTorch, flash, not 2.0" in done.stdout
    assert f"missed: decoding, {CACHE}: 0.83 of the copy bandwidth, not 0.9" in done.stdout


def test_a_page_keeps_the_calls_of_its_rows(tmp_path):
    """Those of long and short contexts apart, for the page that has them; none where results have none."""
    found = results()
    found["about"] |= {"multiprocessors": 132}
    for number, row in enumerate(found["rows"][1:]):
        row["calls"] = {"kiln": f"attn_{row['part']} causal={number}"} if "kiln" in row["milliseconds"] else {}
    long = {**found["rows"][5], "group": "long", "calls": {"kiln": "attn_decode splits=1"}}
    page_of(tmp_path, {**found, "rows": [*found["rows"], long]})
    kept = {path.name: json.loads(path.read_text()) for path in (tmp_path / "calls").iterdir()}
    assert kept.keys() == {"page.json", "decoding.json"}
    assert kept["decoding.json"]["calls"] == {"attn_decode splits=1": [OTHER, KEY]}
    assert kept["page.json"]["calls"] == {
        "attn_forward causal=0": [KEY], "attn_backward causal=1": [KEY], "attn_forward causal=2": [KEY],
        "attn_forward causal=3": [KEY], "attn_decoding causal=4": [OTHER, KEY],
    }  # fmt: skip
    page_of(tmp_path, results())
    assert [path.name for path in (tmp_path / "calls").iterdir()] == ["decoding.json"], "of another run than the page"


def test_a_page_that_misses_nothing(tmp_path):
    found = results()
    found["rows"] = [bench_results.row("forward", PLAIN, {"kiln": [1.0], "flash": [2.5], "cudnn": [1.2]})]
    done, _ = page_of(tmp_path, found)
    assert done.returncode == 0 and done.stdout.splitlines() == [
        "judged: 1 of forward, shapes, of PyTorch, cuDNN", "judged: 1 of forward, shapes, of PyTorch, flash", "passed",
    ]  # fmt: skip


def test_a_limit_that_judges_nothing_is_missed(tmp_path):
    found = results()
    left_out = bench_results.row("forward", PLAIN, {}, skipped="the budget is used up", group="fp8")
    alone = bench_results.row("forward", PLAIN, {"kiln": [1.0], "flash": [2.5]}, refused={"cudnn": "no"})
    found["rows"] = [left_out, alone | {"group": "shapes"}]
    done, _ = page_of(tmp_path, found)
    assert done.returncode == 1 and set(done.stdout.splitlines()) == {
        "judged: 0 of forward, shapes, of PyTorch, cuDNN", "judged: 1 of forward, shapes, of PyTorch, flash",
        "judged: 0 of forward, fp8, of bf16", "missed: forward, shapes, of PyTorch, cuDNN: no row has a figure",
        "missed: forward, fp8, of bf16: no row has a figure",
    }  # fmt: skip


def test_the_page_of_a_run_of_everything(tmp_path):
    """What speed.py adds: other ways of Kiln's, the call that a row is set against, a product of matrices."""
    found, plain = results(), shapes.as_row(CAUSAL)
    more = {"group": "calls", "product": 2 * 8192**3, "plain": plain}
    window = dataclasses.replace(CAUSAL, window=128)
    rows = [
        bench_results.row("forward", PLAIN, {"kiln": [1.0], "product": [2.0], "invariant": [1.25]}, product=2 * 8192**3,
                          group="shapes"),
        bench_results.row("forward", window, {"kiln": [0.1], "plain": [0.5], "product": [2.0]}, **more),
        bench_results.row("backward", window, {"kiln": [0.5], "deterministic": [1.0], "plain": [1.0]}, **more),
        bench_results.row("forward", PLAIN, {"kiln": [1.0], "fp8": [0.8], "product": [2.0]}, group="fp8"),
        bench_results.row("decoding", CACHE, {"kiln": [0.3], "invariant": [0.4], "copy": [0.25]}, copied_bytes=1 << 30,
                          group="decoding"),
    ]  # fmt: skip
    launch = tmp_path / "launch.txt"
    launch.write_text("first call          4088.1 us\nrepeated call          4.2 us\nratio              1.400\n")
    done, text = page_of(tmp_path, found | {"rows": rows}, "--host", launch)
    share = PLAIN.operations("forward") / 1.0 / (2 * 8192**3 / 2.0)
    assert f"| {PLAIN} | " in text and f" | 1 | {share:.2f} |" in text.partition("## Forward, TFLOP/s")[2]
    rate = window.operations("forward") / 0.1 / (CAUSAL.operations("forward") / 0.5)
    assert f" | 1 | {rate:.2f} |" in text.partition("## Forward, other calls")[2]
    assert "| 300.0 | 400.0 | " in text and "first call" in text and "4088.1" in text and "| ratio | 1.400 |" in text
    assert f"missed: backward, {window}: 0.50 of the fast one, not 0.85" in done.stdout
    assert f"missed: forward, {window}: {rate:.2f} of the call without, not 0.95" in done.stdout
    assert "missed: host: 1.40 of a call without descriptors, not 1.3" in done.stdout and "fp8, d128" not in done.stdout


def test_a_page_of_both_layouts_judges_the_one_of_models(tmp_path):
    found, other = results(), dataclasses.replace(PLAIN, rows_first=False)
    fast, slow = {"kiln": [1.0], "flash": [2.5], "cudnn": [1.2]}, {"kiln": [1.0], "flash": [2.5], "cudnn": [0.5]}
    rows = [bench_results.row("forward", PLAIN, fast), bench_results.row("forward", other, slow)]
    done, text = page_of(tmp_path, found | {"rows": rows})
    assert done.returncode == 0 and done.stdout.endswith("\npassed\n")
    assert f"| {PLAIN}, heads first | " in text and f"| {PLAIN} | " in text
    summary = text.partition("## Summary")[2].partition("##")[0]
    assert "| forward | all | 2.50 | 2.50 | 1.20 |" in summary
    assert "| forward | d64, heads first | 2.50 | 2.50 | 0.50 |" in summary
    done, _ = page_of(tmp_path, found | {"rows": rows[1:]})
    assert f"missed: forward, {PLAIN}, heads first: 0.50 of PyTorch, cuDNN, not 1.0" in done.stdout


def test_the_page_of_what_serves_each_feature(tmp_path):
    image = f"{KEY} sm_90 flash.attn_fwd/attn_fwd.hopper[a=1][B=2][generic]"
    narrow, amd = "narrow: it serves calls with width_v <= 128", "amd: it is not for sm_90"
    served = {"kernels": ["attn_fwd.hopper"], "images": [image], "milliseconds": 1.0, "tflops": 612.3,
              "passed_over": narrow}  # fmt: skip
    general = served | {"kernels": ["attn_fwd.general"], "passed_over": f"{narrow}\n{amd}"}
    unaligned = "hopper: stride 1 of q is 129 elements; its descriptor needs a multiple of 16 bytes below 2^40"
    left_out = "hopper: it serves calls with a == b: it is slow; so is c"
    said = {
        "plain": served,
        "dropout": general | {"passed_over": f"{narrow}\n{left_out}\n{amd}"},
        "strides of 2 bytes": general | {"passed_over": f"{narrow}\n{unaligned}\n{amd}"},
    }
    rows = [
        {"feature": feature, "dtype": dtype, "widths": [128, 128], **row}
        for feature, row in said.items() for dtype in ("bf16", "fp16")
    ]  # fmt: skip
    kept, page = tmp_path / "results.json", tmp_path / "page.md"
    about = {"gpu": {"name": "NVIDIA H200"}, "torch": "2.11.0", "release": "0.1.0b", "pack": PACK, "clocks": []}
    for more, code in ([], 0), ([{**general, "feature": "plain", "dtype": "bf16", "widths": [64, 64]}], 1):
        kept.write_text(json.dumps(about | {"rows": rows + more}))
        command = [sys.executable, PAGE.with_name("implementations.py"), "--page", kept, page]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == code, done.stderr
    text = page.read_text()
    assert "| plain | hopper 612 | general 612 (?) |" in text and "| dropout | general 612 (1) |" in text
    assert "| strides of 2 bytes | general 612 (2) |" in text
    assert "\n1. it is slow; so is c\n2. descriptors need a multiple of 16 bytes below 2^40\n" in text
    assert measured.keys_of(text) == {KEY} and "missed: plain, bf16, [64, 64]: ['attn_fwd.general']" in done.stdout
