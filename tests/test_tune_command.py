"""`kiln tune` as users type it: its words, a run that goes on, what it writes and prints, and its exit codes."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from kiln_bench import shapes
from kiln_bench.release.library import Refused
from kiln_bench.tune import command, page, results, session
from kiln_recipe import targets
from kiln_recipe.console.progress import Progress
from kiln_recipe.errors import NotServed, UsageError, WrongResult
from kiln_recipe.plan import plan
from small_release import ROOT
from tune_rows import BINS, CONFIGURATIONS, COUNT, FLASH, FUNCTIONALS, NAME, PLAIN, rows_of

SHAPES = shapes.parse({"training": [{"head_dim": 64, "heads": 2, "length": 16, "batch": 1, "causal": [False, True]}],
                       "decoding": [{"head_dim": 64, "heads": 2, "keys": 32, "batch": 1}]}, "x", "x")  # fmt: skip
ABOUT = {"release": "0.1.0b", "target": "sm_90", "device": "a GPU", "driver": "580", "multiprocessors": 132,
         "pack": "0" * 64}  # fmt: skip
ROOF = {"tflops": 700.0, "gbytes": 4000.0}


def tune(capsys, *words: object) -> tuple[int, str, str]:
    code = command.main(["tune", *map(str, words)])
    said = capsys.readouterr()
    return code, said.out, said.err


def kept(path: Path, rows: list[dict], **more) -> Path:
    """What a run kept."""
    about = ABOUT | more.pop("about", {})
    made = session.Session(about, "x", "2026-11-25", ROOF, rows, ["1980 MHz", "1700 MHz"], path=path)
    made.add("forward", PLAIN, [], "1900 MHz")
    made.date = "2026-11-25"
    path.write_text(json.dumps(made.document() | more, indent=1))
    return path


# ---- a run -----------------------------------------------------------------------------------------------------------


class Counting:
    """A tuner that finds a row in each call."""

    def __init__(self) -> None:
        self.parts: list[str] = []

    def rows(self, problem, part):
        self.parts.append(part)
        return rows_of([[1.0] * COUNT], bins=BINS[:1])


def go_on(one, tuner, seconds=None, now=None, clock="1980 MHz", spread=False) -> int:
    wanted = session.Calls(SHAPES, spread, seconds)
    clocks = clock if callable(clock) else lambda: clock
    more = {} if now is None else {"now": now}
    return session.go_on(one, tuner, wanted, Progress(), 1, "cpu", clock_of=clocks, **more)


def test_a_run_goes_on_where_another_ended(tmp_path, capsys):
    pytest.importorskip("torch")
    path, clock = tmp_path / "sm_90.json", itertools.count(0.0, 10.0)
    first, tuner = session.begin(ABOUT, "x", path, None), Counting()
    left = go_on(first, tuner, 15.0, lambda: next(clock))
    assert left == 5 - len(tuner.parts) and 0 < len(tuner.parts) < 5 and path.read_bytes().startswith(session.BEGIN)
    again, rest = session.begin(ABOUT, "x", path, None), Counting()
    assert again.rows == first.rows and again.shapes == "x"
    assert go_on(again, rest) == 0 and len(rest.parts) == left and len(json.loads(path.read_text())["rows"]) == 5
    idle = Counting()
    assert go_on(session.begin(ABOUT, "y", path, None), idle) == 0 and idle.parts == []
    capsys.readouterr()
    more = session.begin(ABOUT | {"driver": "581"}, "y", path, None)
    assert more.rows and more.about["driver"] == "580, 581" and more.shapes == "x, y"
    other, said = session.begin(ABOUT | {"pack": "1" * 64, "device": "b"}, "x", path, None), capsys.readouterr().err
    assert other.rows == [] and f"{path} has times of another device and pack; it is replaced" in said


class Refusing(Counting):
    """A tuner that refuses forward without a mask."""

    def rows(self, problem, part):
        if part == "forward" and not problem.shape.causal and self.refuses:
            raise Refused(2, "the call needs more")
        return super().rows(problem, part)

    refuses = True


def test_refused_calls_are_kept_printed_and_tried_again(tmp_path, capsys):
    pytest.importorskip("torch")
    path = tmp_path / "sm_90.json"
    first, tuner = session.begin(ABOUT, "x", path, None), Refusing()
    assert go_on(first, tuner) == 0 and len(first.rows) == 4 == len(first.done)
    again = session.read(path)
    assert [(row["part"], row["why"]) for row in again.refused] == [("forward", "the call needs more")]
    again.rows[0]["refused"] = {
        "attn_fwd.hopper: A=1": "it wants 256 keys",
        "attn_fwd.hopper: A=2": "it wants 256 keys",
    }
    assert results.refusals(again) == [
        "1 of 5 calls refused: the call needs more (forward, d64, 2 heads, 16, batch 1)",
        "attn_fwd.hopper refused 2 times where another ran: it wants 256 keys",
    ]
    path.write_text(json.dumps(again.document()))
    code, _, err = tune(capsys, "--from", path)
    assert code == 0 and "1 of 5 calls refused: the call needs more" in err
    still, rest = session.begin(ABOUT, "x", path, None), Refusing()
    assert go_on(still, rest) == 0 and rest.parts == [] and len(still.refused) == 1, "tried again, and refused again"
    rest.refuses = False
    assert go_on(still, rest) == 0 and rest.parts == ["forward"]
    assert session.read(path).refused == [] and len(session.read(path).rows) == 5


def test_resume_is_of_the_same_images_or_refused(tmp_path):
    given = session.read(kept(tmp_path / "old.json", rows_of([[1.0] * COUNT], bins=BINS[:1])))
    more = session.begin(ABOUT, "llm", tmp_path / "new.json", given)
    assert more.rows == given.rows and more.shapes == "x, llm" and more.path == tmp_path / "new.json"
    with pytest.raises(UsageError, match="--resume has times of another device; leave it out to start anew"):
        session.begin(ABOUT | {"device": "another"}, "x", None, given)


def test_a_call_is_measured_again_where_the_clock_fell():
    pytest.importorskip("torch")
    clocks = iter(["1980 MHz", "1800 MHz", "1960 MHz", "1975 MHz", "", "1970 MHz"])
    one, tuner = session.Session(ABOUT, "x"), Counting()
    go_on(one, tuner, clock=lambda: next(clocks))
    assert len(tuner.parts) == 6 and len(one.rows) == 5 and one.rows[1]["clock"] == "1960 MHz"
    assert one.clocks == ["1980 MHz", "1960 MHz", "1975 MHz", "1970 MHz"]


def test_a_sample_lies_evenly_in_all_calls():
    assert session.spread_out(range(8)) == [0, 4, 2, 6, 1, 5, 3, 7] and session.spread_out([]) == []
    for count in (1, 2, 5, 13, 48):
        found = session.spread_out(range(count))
        assert sorted(found) == [*range(count)]
        quarters = {4 * number // count for number in found[: count // 2]}
        assert count < 8 or quarters == {0, 1, 2, 3}


def test_what_the_device_does_at_most():
    pytest.importorskip("torch")
    done = []

    def timed(works):
        done.extend(work() for work in works.values())
        return {"product": [0.5, 0.5, 9.0], "copy": [0.25, 0.25, 0.25]}

    side = 64
    assert session.roof(timed, side, "cpu") == {
        "tflops": round(2 * side**3 / 0.5 / 1e9, 1), "gbytes": round(2 * 4 * side**2 / 0.25 / 1e6, 1),
    }  # fmt: skip
    assert len(done) == 2


# ---- what comes of it ------------------------------------------------------------------------------------------------


def taken(folder: Path, text: str) -> dict[str, list[str]]:
    """By functional what each bin takes with a tuning file of this text, read as a build reads it."""
    (folder / "flash").mkdir(parents=True)
    (folder / "flash/sm_90.yaml").write_text(text)
    made = plan.make_plan([FLASH], [targets.by_name("sm_90")], tuning_root=folder)
    (kernel,) = (kernel for kernel in made.kernels if kernel.kernel.name == NAME)
    found = plan.explain(kernel, {variant.slot for variant in made.variants if variant.kernel == NAME})
    names = [configuration.name for configuration in kernel.configurations]
    rows = {functional.name: row for functional, row in zip(kernel.functionals, found)}
    return {name: [names[decision.configuration] for decision in rows[name]] for name in FUNCTIONALS}


def test_kept_times_become_rules_and_a_page(tmp_path, capsys):
    rows = rows_of([[3.0, 1.0, *[9.0] * (COUNT - 2)]] * 2 * len(BINS))
    path = kept(tmp_path / "kept.json", rows)
    code, out, err = tune(capsys, "--from", path, "--output", tmp_path / "sm_90.yaml")
    assert code == 0 and "200.0%" in out and CONFIGURATIONS[FUNCTIONALS[0]][1] in out
    assert f"wrote {tmp_path}/sm_90.yaml" in err and f"wrote {tmp_path}/sm_90.svg" in err
    text = (tmp_path / "sm_90.yaml").read_text()
    assert yaml.safe_load(text)["run"] == {
        "by": "kiln tune --shapes x", "date": "2026-11-25", "device": "a GPU", "driver": "580",
        "clock": "1700 to 1980 MHz", "release": "0.1.0b", "pack": "0" * 64, "calls": 1,
        "spread": "1.0% in the median, 1.0% at most", "outdated": True,
    }, "the times have no keys"  # fmt: skip
    keyed = [row | {"keys": {NAME: {"A=1": "0123456789ab"}}} for row in rows]
    new = results.text_of({}, session.read(kept(tmp_path / "keyed.json", keyed)), tmp_path / "none.yaml")
    assert yaml.safe_load(new)["run"].items() >= {"images": ["0123456789ab"]}.items() and "outdated" not in new
    for functional in FUNCTIONALS:
        assert {*taken(tmp_path / functional, text)[functional]} == {CONFIGURATIONS[functional][1]}
    assert tune(capsys, "--from", path, "--output", tmp_path / "sm_90.yaml")[0] == 0
    assert (tmp_path / "sm_90.yaml").read_text() == text, "rules that were there are covered by the same ones"


def test_json_has_what_was_found(tmp_path, capsys):
    rows = rows_of([[3.0, 1.0, *[9.0] * (COUNT - 2)]] * 2 * len(BINS))
    code, out, _ = tune(capsys, "--from", kept(tmp_path / "kept.json", rows), "--json")
    found = json.loads(out)
    assert code == 0 and found["rows"] == rows and found["about"] == ABOUT and found["left"] == 0
    assert [rule["use"] for rule in found["rules"][NAME]] == [
        {n: yaml.safe_load(v) for n, v in (w.split("=") for w in CONFIGURATIONS[f][1].split())} for f in FUNCTIONALS
    ]
    assert [*tmp_path.iterdir()] == [tmp_path / "kept.json"], "without --output nothing is written"


def test_the_page_has_each_part(tmp_path):
    every = rows_of([[3.0, 1.0, *[9.0] * (COUNT - 2)]] * 2 * len(BINS))
    one = session.read(kept(tmp_path / "kept.json", every))
    chosen = results.choices(FLASH, one.rows, 0.02)
    text = page.text(one, chosen, FLASH)
    assert text.startswith(page.BEGIN) and text == page.text(one, chosen, FLASH)
    assert text.count("percent of the fastest configuration") == -(-len(every) // 24), "of calls in a panel"
    assert text.count(">33<") >= len(every), "what the release takes has a third of the speed"
    assert text.count(f"{NAME}: time over the fastest") == 1 and text.count(">9.00<") == len(every) * (COUNT - 2)
    assert "Roofline: 700 TFLOP/s of a product in bf16, 4000 GB/s of a copy" in text and "a GPU, driver 580" in text
    for name in CONFIGURATIONS[FUNCTIONALS[0]]:
        assert f": {name}</text>" in text
    one.roof = {}
    assert "Roofline" not in page.text(one, chosen, FLASH)


def test_the_heuristic_of_the_page_is_what_a_plan_takes_without_rules():
    made = plan.make_plan([FLASH], [targets.by_name("sm_90")], "full")
    (kernel,) = (kernel for kernel in made.kernels if kernel.kernel.name == NAME)
    decisions = plan.explain(kernel, {variant.slot for variant in made.variants_of(kernel)})
    found = page.heuristic(FLASH, "sm_90")
    for functional, row in zip(kernel.functionals, decisions):
        for place, decision in zip(BINS, row):
            name = kernel.configurations[decision.configuration].name if decision.configuration is not None else None
            assert found.get((NAME, functional.name, tuple(place.items()))) == name


def test_work_of_calls():
    forward = page._work({"part": "forward", "shape": shapes.as_row(PLAIN)})
    heads, rows, width = PLAIN.heads, PLAIN.length * PLAIN.batch, PLAIN.head_dim
    assert forward == (4.0 * PLAIN.batch * heads * PLAIN.length**2 * width, 4 * rows * heads * width * 2)
    assert page._work({"part": "backward", "shape": shapes.as_row(PLAIN)})[1] == 2 * forward[1]
    (decoding,) = SHAPES.decoding
    assert page._work({"part": "decoding", "shape": shapes.as_row(decoding)}) == (4.0 * 2 * 32 * 64, decoding.bytes)


def test_letters():
    assert [page._letter(n) for n in (0, 25, 26, 51, 52, 701, 702)] == ["A", "Z", "AA", "AZ", "BA", "ZZ", "AAA"]
    assert page._color(1.0) != page._color(1.2) and page._color(1.5) == page._color(9.0) == "#ffffff"


# ---- checks ----------------------------------------------------------------------------------------------------------


def finish(rows, left=0, **more) -> int:
    one = session.Session(ABOUT, "x", "2026-11-25", {}, rows, ["1980 MHz"], [[1]])
    wanted = results.Wanted(**({"output": None, "tolerance": 0.02} | more))
    return results.finish(wanted, FLASH, one, left)


def test_a_check_names_what_is_slow(capsys):
    slow = rows_of([[1.04, 1.0, *[9.0] * (COUNT - 2)]], bins=BINS[:1])
    with pytest.raises(NotServed, match="1 of 1 take more than 3% longer than they could: forward, d64, 8 heads, 2k"):
        finish(slow, is_check=True)
    fine = rows_of([[1.02, 1.0, *[9.0] * (COUNT - 2)]], bins=BINS[:1])
    assert finish(fine, 3, is_check=True) == 0
    assert "a sample of 1 of 4 calls; --budget gives it more time" in capsys.readouterr().err
    assert finish(fine, 3) == 0 and "3 calls are left; the same command goes on" in capsys.readouterr().err


def test_wrong_images_and_nothing_to_choose():
    rows = rows_of([[1.0] * COUNT], bins=BINS[:1])
    rows[0]["wrong"] = {"attn_fwd.hopper: A=1": "its result differs from fp32's by 1"}
    with pytest.raises(
        WrongResult, match="images gave wrong results: attn_fwd.hopper: A=1: its result differs from fp32's by 1"
    ):
        finish(rows)
    with pytest.raises(NotServed, match="no call could be run by more than one image.*KILN_CONFIGURATIONS=all"):
        finish([])


def test_two_runs_agree_or_not(tmp_path, capsys):
    first = kept(tmp_path / "1.json", rows_of([[1.0, 1.01, *[9.0] * (COUNT - 2)]] * 2 * len(BINS)))
    alike = kept(tmp_path / "2.json", rows_of([[1.015, 1.0, *[9.0] * (COUNT - 2)]] * 2 * len(BINS)))
    code, _, err = tune(capsys, "--from", first, "--against", alike)
    said = f"in 100.0% of {2 * len(BINS)} times that a kernel could be chosen the fastest image is within 2% of the"
    assert code == 0 and said in err
    assert f"in 100.0% of {2 * len(BINS)} bins ({2 * len(BINS)} of {NAME}) the fastest configuration of an impl" in err
    few = 2 * len(BINS) // 18  # more than a twentieth
    other = [[1.015, 1.0, *[9.0] * (COUNT - 2)]] * (2 * len(BINS) - few) + [[1.03, 1.0, *[9.0] * (COUNT - 2)]] * few
    code, _, err = tune(capsys, "--from", first, "--against", kept(tmp_path / "3.json", rows_of(other)))
    assert code == 10 and err.count(f"in 94.4% of {2 * len(BINS)} ") == 2 and f"not in {NAME} head_dim=128" in err
    assert err.count("; and ") == 3 and len(err) < 1600, "two sentences, of which each names five"
    none = kept(tmp_path / "4.json", [])
    code, _, err = tune(capsys, "--from", first, "--against", none)
    assert code == 10 and "the two runs have no call in common" in err


# ---- words -----------------------------------------------------------------------------------------------------------


def test_help(capsys):
    code, out, _ = tune(capsys, "--help")
    assert (
        code == 0 and "take more than 3 % longer" in " ".join(out.split()) and "examples:\n  kiln tune release" in out
    )
    for option in ("--target", "--shapes", "--budget", "--check", "--resume", "--json", "--from", "--against"):
        assert f"  {option}" in out
    done = subprocess.run(
        [sys.executable, "-m", "kiln_bench.tune", "--help"], capture_output=True, text=True, cwd=ROOT / "v3python"
    )
    assert done.stdout.split() == out.split()


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        ([], 2, "`kiln tune` lacks release and --target; for example: `kiln tune release.tar.gz --target sm_90"),
        (["r.tar.gz"], 2, "`kiln tune` lacks --target"),
        (["no", "--target", "nope", "--shapes", "no"], 2, "unknown target 'nope'; the targets are"),
        (["no", "--target", "sm_90;gfx942"], 2, "--target sm_90;gfx942 means gfx942, sm_90, and `kiln tune` measures"),
        (["r.tar.gz", "--target", "sm_90", "--shapes", "."], 7, "--shapes . is a folder; give core, llm or a file"),
        (["r.tar.gz", "--target", "sm_90", "--tolerance", "x"], 2, "--tolerance x is invalid; expected a number"),
        (["r.tar.gz", "--target", "sm_90", "--tolerance", "-1"], 2, "--tolerance -1 is invalid; expected a number"),
        (["r.tar.gz", "--target", "sm_90", "--output", "x.txt"], 2, "--output x.txt is invalid; expected a file"),
        (["r.tar.gz", "--target", "sm_90", "--output", "no/x.yaml"], 7, "--output no/x.yaml: there is no folder"),
        (["r.tar.gz", "--target", "sm_90", "--output", "mine.yaml"], 2, "mine.yaml exists and is not a tuning file"),
        (["r.tar.gz", "--target", "sm_90", "--budget", "x"], 2, "--budget x is invalid"),
        (["r.tar.gz", "--target", "sm_90", "--shapes", "no"], 7, "--shapes no does not exist"),
        (["r.tar.gz", "--target", "sm_90", "--check", "--output", "x.yaml"], 2, "leave --output and --resume out"),
        (["r.tar.gz", "--target", "sm_90", "--output", "x.yaml"], 7, "r.tar.gz does not exist"),
        (["r.tar.gz", "--target", "sm_90", "--resume", "no.json"], 7, "no.json cannot be read (No such file"),
        (
            ["r.tar.gz", "--target", "sm_90", "--resume", "mine.json"],
            6,
            "mine.json has no times of `kiln tune`; give what",
        ),
        (["--from", "mine.yaml"], 6, "mine.yaml is not JSON"),
        (["--from", "old.json"], 6, "old.json has format 1, which this Kiln does not read; it reads 2"),
        (["--from", "cut.json"], 6, "cut.json lacks shapes, date, roof, rows, clocks, done"),
        (["--from", "x.json", "r", "--target", "sm_90"], 2, "--from shows what was measured before; leave release and"),
        (["r", "--target", "sm_90", "--bugdet", "1m"], 2, "`kiln tune` has no option '--bugdet'; did you mean"),
    ],
)
def test_refusals(capsys, tmp_path, monkeypatch, words, code, sentence):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text("mine: 1")
    (tmp_path / "mine.json").write_text("[1]")
    (tmp_path / "old.json").write_text(json.dumps({"made_by": "kiln tune", "format": 1}))
    (tmp_path / "cut.json").write_text(json.dumps({"made_by": "kiln tune", "format": 2, "about": {}}))
    found, out, err = tune(capsys, *words)
    assert (found, out) == (code, "") and sentence in err and err.count("\n") == 1


def test_a_place_that_cannot_be_written(capsys, tmp_path):
    path = kept(tmp_path / "kept.json", rows_of([[1.0, 1.01, *[9.0] * (COUNT - 2)]], bins=BINS[:1]))
    code, _, err = tune(capsys, "--from", path, "--output", "/proc/x.yaml")
    assert code == 7 and err.splitlines()[-1] == (
        "kiln: cannot write /proc/x.yaml: No such file or directory; give a name in a folder that can be written to"
    )


def test_files_of_others_stay(capsys, tmp_path):
    for suffix, text in ((".json", '{"mine": 1}'), (".svg", "<svg/>")):
        (tmp_path / f"sm_90{suffix}").write_text(text)
        code, _, err = tune(capsys, "r", "--target", "sm_90", "--output", tmp_path / "sm_90.yaml")
        assert code == 2 and "exists and is not a " in err and (tmp_path / f"sm_90{suffix}").read_text() == text
        (tmp_path / f"sm_90{suffix}").unlink()


def test_a_checkout_gets_its_own_rules_and_an_installed_kiln_asks_where(monkeypatch):
    assert command._usual_output("sm_90") == ROOT / "tuning/flash/sm_90.yaml"
    monkeypatch.setattr(command, "__file__", "/site/kiln_bench/tune/command.py")
    with pytest.raises(UsageError, match="this Kiln is installed, and not a checkout .*; give --output FILE.yaml"):
        command._usual_output("sm_90")


def test_without_what_reads_recipes(capsys, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "kiln_recipe.read", None)
    monkeypatch.delitem(sys.modules, "kiln_recipe.read.recipe", raising=False)
    code, out, err = tune(capsys, "--from", kept(tmp_path / "kept.json", []))
    assert (code, out) == (7, "") and "pip install PyYAML msgspec" in err


def test_a_damaged_file_is_named(tmp_path, capsys):
    every = rows_of([[1.0, 1.01, *[9.0] * (COUNT - 2)]] * 2 * len(BINS))
    whole, damaged = kept(tmp_path / "1.json", every), kept(tmp_path / "2.json", [*every[1:], {}])
    code, out, err = tune(capsys, "--from", damaged)
    assert (code, out) == (6, "") and err.startswith(f"kiln: {damaged} is damaged (")
    code, _, err = tune(capsys, "--from", whole, "--against", damaged)
    assert code == 6 and "the file of --against is damaged (" in err


def test_a_time_that_is_not_finite_is_named(tmp_path, capsys):
    path = kept(tmp_path / "1.json", rows_of([[1.0] * COUNT], bins=BINS[:1]))
    path.write_text(path.read_text().replace("0.01", "NaN", 1))
    for words in (["--from", path, "--json"], ["--from", path, "--output", tmp_path / "x.yaml"]):
        code, out, err = tune(capsys, *words)
        assert (code, out, err.count("\n")) == (6, "", 1) and f"{path} is not JSON (rows[0].spread." in err
    assert [*tmp_path.iterdir()] == [path]


def test_no_kept_text_makes_a_terminal_do_anything(tmp_path, capsys):
    rows = rows_of([[1.0] * COUNT], bins=BINS[:1])
    rows[0]["shape"]["softcap"] = "\x1b[2J"
    code, out, err = tune(capsys, "--from", kept(tmp_path / "1.json", rows))
    assert code in (0, 6) and "[2J" in out + err and (out + err).replace("\n", "").isprintable()
    name = tmp_path / "a\nkiln: all is well\x1b[2J\udcff.json"
    code, out, err = tune(capsys, "--from", name)
    assert code == 7 and err.count("\n") == 1 and err[:-1].isprintable() and "a\\nkiln: all is well\\x1b[2J" in err
