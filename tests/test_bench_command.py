"""The words of `kiln bench`, what it refuses and with which exit code, and what it does with kept results."""

from __future__ import annotations

import json
import subprocess
import sys
from types import ModuleType, SimpleNamespace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import bench_results
from kiln_bench import command, measure, plot, shapes
from kiln_bench.attention import peers
from kiln_recipe.errors import ArtifactError, EnvironmentProblem, NotServed, WrongResult
from small_release import ROOT
from test_bench_release import tarball, unpacked


def bench(capsys, *words: object) -> tuple[int, str, str]:
    code = command.main(["bench", *map(str, words)])
    said = capsys.readouterr()
    return code, said.out, said.err


def test_help_has_examples(capsys):
    code, out, err = bench(capsys, "--help")
    assert (code, err) == (0, "") and "examples:\n  kiln bench " in out
    for option in ("--shapes", "--layout", "--only", "--sides", "--budget", "--rounds", "--json", "--plot", "--from"):
        assert f"  {option}" in out
    done = subprocess.run(
        [sys.executable, "-m", "kiln_bench", "--help"], capture_output=True, text=True, cwd=ROOT / "v3python"
    )
    assert done.stdout.replace("\n", " ").split() == out.split()


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (["--shapes", "nope"], 7, "--shapes nope does not exist; give core, llm or a file"),
        (["--shapes", ""], 2, "--shapes is empty; give a preset or a file"),
        (["--layout", "row-first"], 2, "--layout: unknown 'row-first'; did you mean 'rows-first'?"),
        (["--layout", ""], 2, "--layout is empty; give one of rows-first, heads-first, both"),
        (["--from", "x.json", "--layout", "both"], 2, "leave --layout out"),
        (["--only", "forwrd"], 2, "--only: unknown 'forwrd'; did you mean 'forward'?"),
        (["--only", ","], 2, "--only is empty; give some of forward,backward,decoding,host"),
        (["--sides", "cudn"], 2, "--sides: unknown 'cudn'; did you mean 'cudnn'?"),
        (["--budget", "soon"], 2, "--budget soon is invalid; expected a time such as 60s, 5m or 1h"),
        (["--budget", "0s"], 2, "--budget 0s is invalid"),
        (["--rounds", "0"], 2, "--rounds 0 is invalid; expected a whole number from 1 to 1000"),
        (["--json", "release.tar.gz"], 2, "--json release.tar.gz is invalid; expected a file that ends in .json"),
        (["--json", "/nowhere/x.json"], 7, "--json /nowhere/x.json: there is no folder /nowhere"),
        (["--plot", "x.pdf"], 2, "--plot x.pdf is invalid; expected a file that ends in .svg or .png"),
        (["--from", "x.json", "release"], 2, "--from shows what was measured before; leave release out"),
        (["--from", "x.json", "--budget", "3s", "--rounds", "3"], 2, "leave --budget and --rounds out"),
        (["--from", "nowhere.json"], 7, "nowhere.json cannot be read (No such file or directory); give what"),
        (["--form", "x"], 2, "`kiln bench` has no option '--form'; did you mean '--from'?"),
        (["nowhere"], 7, "nowhere does not exist, or is neither a file nor a folder; give a release's tarball"),
        ([""], 2, "the release is empty; give a release's tarball"),
    ],
)
def test_refusals(capsys, tmp_path, monkeypatch, words, code, sentence):
    monkeypatch.chdir(tmp_path)
    found, out, err = bench(capsys, *words)
    assert (found, out) == (code, "") and err.startswith("kiln: ") and sentence in err and err.count("\n") == 1


def test_a_file_of_another_kind_stays(capsys, tmp_path):
    for name, option in (("mine.json", "--json"), ("mine.svg", "--plot")):
        (tmp_path / name).write_text("<!-- mine -->" if name.endswith("svg") else '{"mine": 1}')
        before = (tmp_path / name).read_text()
        code, _, err = bench(capsys, option, tmp_path / name)
        assert code == 2 and "exists and is not a file of `kiln bench`, so it stays" in err
        assert (tmp_path / name).read_text() == before


def test_without_pytorch_or_a_gpu(capsys, tmp_path, monkeypatch):
    path = tarball(tmp_path / "r.tar.gz")
    monkeypatch.setitem(sys.modules, "torch", None)
    code, _, err = bench(capsys, path)
    assert (
        code == 7 and f"PyTorch is not installed in this Python, {sys.executable}" in err and "pip install torch" in err
    )
    assert "`kiln bench` measures with it" in err and "KILN_PYTHON=" in err
    with pytest.raises(EnvironmentProblem, match="`kiln tune` measures with it"):
        measure.check_device("kiln tune")
    monkeypatch.undo()
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    code, _, err = bench(capsys, path)
    assert (
        code == 7 and f"PyTorch {torch.__version__}, built " in err and "finds no GPU" in err and err.count("\n") == 1
    )


# ---- what it makes ---------------------------------------------------------------------------------------------------


def test_kept_results_are_shown_again(capsys, tmp_path):
    kept = bench_results.written(tmp_path)
    code, out, err = bench(capsys, "--from", kept, "--plot", tmp_path / "x.svg")
    assert (code, err) == (0, "") and "Forward, TFLOP/s" in out and (tmp_path / "x.svg").is_file()
    code, out, _ = bench(capsys, "--from", kept, "--json", "--plot", tmp_path / "x.svg")  # its own file is replaced
    assert code == 0 and json.loads(out) == bench_results.results()


@pytest.mark.parametrize("words", [("--json", "/proc/x.json"), ("--plot", "/proc/x.svg"), ("--plot", "/proc/x.png")])
def test_a_place_that_cannot_be_written(capsys, tmp_path, words, monkeypatch):
    # What matplotlib draws is no matter here, and a plain machine has none.
    monkeypatch.setitem(sys.modules, "matplotlib", ModuleType("matplotlib"))
    monkeypatch.setattr(plot, "_drawn", lambda drawn: SimpleNamespace(savefig=lambda file, **_: file.write(b"PNG")))
    code, _, err = bench(capsys, "--from", bench_results.written(tmp_path), *words)
    assert (code, err.count("\n")) == (7, 1)
    assert f"kiln: cannot write {words[1]}: No such file or directory; give" in err


def test_some_of_what_was_kept(capsys, tmp_path):
    kept, less = bench_results.written(tmp_path), tmp_path / "less.json"
    words = ["--from", kept, "--only", "forward,host", "--sides", "flash", "--json", less]
    code, out, _ = bench(capsys, *words)
    assert code == 0 and "Backward" not in out and "cuDNN" not in out.partition("Forward")[2]
    assert "to flash" in out and "Host, " in out and "flashinfer" not in out
    found = json.loads(less.read_text())
    assert [row["part"] for row in found["rows"]] == ["host", "forward", "forward", "forward"]
    assert found["sides"].keys() == {"kiln", "flash"} and found["rows"][1]["milliseconds"].keys() == {"kiln", "flash"}
    assert found["rows"][0] == bench_results.results()["rows"][0]
    alone = bench(capsys, "--from", kept, "--only", "forward", "--sides", "none")[1]
    assert "flash" not in alone and "geometric mean" not in alone


@pytest.fixture
def measured(monkeypatch):
    """A function that lets `kiln bench` find these results, kept row by row, instead of measuring."""

    def stand_in(found, failure=None):
        def run(wanted, there, progress, keep):
            rows = found["rows"]
            for count in range(1, len(rows) + 1):
                keep(found | {"rows": rows[:count]})
            if failure:
                raise failure
            stand_in.wanted, stand_in.places = wanted, there

        monkeypatch.setattr(measure, "check_device", lambda command: None)
        monkeypatch.setattr(measure, "run", run)

    return stand_in


def test_a_run(capsys, tmp_path, measured):
    measured(bench_results.results())
    (tmp_path / "b").mkdir()
    releases = tarball(tmp_path / "a.tar.gz"), unpacked(tmp_path / "b")
    words = ["--only", "decoding,forward", "--sides", "cudnn", "--budget", "1.5m", "--shapes", "llm", "--rounds", "3"]
    code, out, err = bench(capsys, *releases, *words, "--json", tmp_path / "r.json", "--plot", tmp_path / "r.svg")
    assert (code, err) == (0, "") and "Decoding, TB/s" in out
    assert [place.name for place in measured.places] == ["a.tar.gz", "b"]
    wanted = measured.wanted
    assert (wanted.parts, wanted.sides, wanted.seconds, wanted.rounds) == (["forward", "decoding"], ["cudnn"], 90, 3)
    assert wanted.shapes.name == "llm" and json.loads((tmp_path / "r.json").read_text()) == bench_results.results()
    measured(bench_results.results())
    code, _, _ = bench(capsys, releases[0], "--sides", "none", "--json", tmp_path / "r.json")
    assert code == 0 and measured.wanted.sides == [] and measured.wanted.parts == list(shapes.PARTS)
    assert measured.wanted.shapes == shapes.read("core", "rows-first")
    measured(bench_results.results())
    assert bench(capsys, releases[0], "--layout", "both")[0] == 0
    assert measured.wanted.shapes == shapes.read("core", "both")
    measured(bench_results.results())
    assert bench(capsys, releases[0])[0] == 0 and measured.wanted.sides == list(peers.NAMES)


def test_what_was_measured_outlives_a_failure(capsys, tmp_path, measured):
    measured(bench_results.results(), KeyboardInterrupt())
    code, out, err = bench(capsys, tarball(tmp_path / "a.tar.gz"), "--json", tmp_path / "r.json")
    assert code == 130 and "Forward, TFLOP/s" in out and "interrupted" in err
    assert len(json.loads((tmp_path / "r.json").read_text())["rows"]) == len(bench_results.results()["rows"])


def test_wrong_results_of_kilns_are_a_failure(capsys, tmp_path, measured):
    found = bench_results.results()
    found["rows"][1]["wrong"]["kiln"] = "its result differs from fp32's by 0.2"
    measured(found)
    code, out, err = bench(capsys, tarball(tmp_path / "a.tar.gz"))
    assert code == WrongResult.exit_code == 11 and "wrong" in out
    assert err.startswith("kiln: 1 results of Kiln's are wrong: forward, d64, ")


def test_nothing_served_is_a_failure(capsys, tmp_path, measured):
    found = bench_results.results()
    found["rows"] = [bench_results.row("forward", bench_results.PLAIN, {}, refused={"kiln": "no image"})]
    measured(found)
    code, out, err = bench(capsys, tarball(tmp_path / "a.tar.gz"), "--plot", tmp_path / "x.svg")
    assert code == NotServed.exit_code and "refused: Kiln: no image" in out
    assert "no call was served" in err and "x.svg was not written: there are no figures" in err
    assert not (tmp_path / "x.svg").exists()


def test_forward_and_backward_of_a_shape_stand_together():
    wanted = measure.Wanted(shapes.read("core"), list(shapes.PARTS), [])
    rows = wanted.rows()
    assert len(rows) == 24 * 2 + 18 and rows[0][1] is rows[1][1]
    assert [part for part, _ in rows[:3]] == ["forward", "backward", "decoding"]
    assert [shape for part, shape in rows if part == "decoding"] == [*wanted.shapes.decoding]
    assert [shape for part, shape in rows if part == "backward"] == [*wanted.shapes.backward]
    only = measure.Wanted(shapes.read("core"), ["decoding"], [])
    assert {part for part, _ in only.rows()} == {"decoding"}


def test_a_damaged_file_is_named(capsys, tmp_path):
    found = bench_results.results()
    del found["rows"][1]["shape"]["length"]
    path = bench_results.written(tmp_path, found)
    code, out, err = bench(capsys, "--from", path)
    assert (code, out) == (ArtifactError.exit_code, "")
    assert err.startswith(f"kiln: {path} is damaged (") and "give what `kiln bench --json` wrote" in err
    bench_results.written(tmp_path, bench_results.results() | {"about": None})
    assert bench(capsys, "--from", path, "--json")[0] == ArtifactError.exit_code


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", "1e999"])
@pytest.mark.parametrize("more", [(), ("--json",)])
def test_a_kept_number_that_is_not_finite_is_named(capsys, tmp_path, value, more):
    path = bench_results.written(tmp_path)
    path.write_text(path.read_text().replace("1.01", value, 1))
    code, out, err = bench(capsys, "--from", path, *more)
    assert (code, out, err.count("\n")) == (6, "", 1)
    assert f"kiln: {path} is not JSON (rows[1].milliseconds.kiln[1] is " in err


def test_shapes_with_a_number_that_is_not_finite(capsys, tmp_path):
    for name, value in (("x.json", "NaN"), ("y.json", "1e999"), ("x.yaml", ".nan"), ("y.yaml", ".inf")):
        path = tmp_path / name
        call = f'"head_dim": 64, "heads": 8, "length": 64, "batch": 1, "softcap": {value}'
        path.write_text(f'{{"forward": [{{{call}}}]}}')
        code, _, err = bench(capsys, "--shapes", path)
        assert (code, err.count("\n")) == (2, 1) and "softcap is " in err


def texts(document):
    """Where the texts of a document stand: what holds each, and its key."""
    for key, value in document.items() if isinstance(document, dict) else enumerate(document):
        if isinstance(value, str):
            yield document, key
        elif isinstance(value, (dict, list)):
            yield from texts(value)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_no_kept_text_makes_a_terminal_do_anything(capsys, tmp_path, data):
    found = json.loads(json.dumps(bench_results.results()))  # whose parts others use too
    for holder, key in [*texts(found)][2:]:
        if data.draw(st.booleans()):
            holder[key] += data.draw(st.sampled_from(["\x1b[2J", "\x9b31m", "\x07", "\ud800", "\r", "\u202e"]))
    names = found["sides"]
    names[data.draw(st.sampled_from([*names]))] += "\x1b]0;title\x07"
    code, out, err = bench(capsys, "--from", bench_results.written(tmp_path, found), "--plot", tmp_path / "x.svg")
    assert code in (0, 6) and (out + err).replace("\n", "").isprintable()
    if code == 0:
        assert (tmp_path / "x.svg").read_text("utf-8").replace("\n", "").isprintable()
