"""The tuner: candidates and their race, a run that goes on, and the file that comes of the times: whatever these
are, it takes a fast configuration in each bin."""

from __future__ import annotations

import argparse
import itertools
import json
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kiln_bench import shapes
from kiln_bench.shapes import Decoding, Training
from kiln_bench.tune import candidates, command, session, table
from kiln_bench.tune.race import STAGES, Stage, race
from kiln_recipe import targets
from kiln_recipe.console.progress import Progress
from kiln_recipe.errors import NotServed, RecipeError, UsageError, WrongResult
from kiln_recipe.plan import plan
from kiln_recipe.read import recipe
from small_release import ROOT

FLASH = recipe.load(ROOT / "tritonsrc/flash/recipe.yaml")
NAME, TOLERANCE = "attn_fwd.general", 0.02
KERNELS = candidates.kernels(FLASH)
AXES = {axis.name: list(axis.edges) for axis in KERNELS[NAME].bins}
FUNCTIONALS = [f"dtype=bf16 head_dim={head_dim} padded=false extras=none" for head_dim in (64, 128)]
PLAN = plan.make_plan([FLASH], [targets.by_name("sm_90")])
CONFIGURATIONS = {
    name: list(dict.fromkeys(v.configuration for v in PLAN.variants if v.kernel == NAME and v.functional == name))
    for name in FUNCTIONALS
}
(COUNT,) = {len(names) for names in CONFIGURATIONS.values()}
BINS = [dict(zip(AXES, place)) for place in itertools.product(*([0, *edges] for edges in AXES.values()))]
PLAIN = Training(64, 64, 8, 8, 2, 2048)


def rows_of(times: list[list[float]], bins=BINS) -> list[dict]:
    """What a run kept, of two functionals of bf16."""
    return [
        {"part": "forward", "shape": shapes.as_row(PLAIN), "functional": name, "bins": {NAME: place}, "wrong": {},
         "microseconds": {NAME: dict(zip(CONFIGURATIONS[name], row))}, "spread": {NAME: {"x": 0.01}},
         "used": [NAME, CONFIGURATIONS[name][0]]}
        for (name, place), row in zip(itertools.product(FUNCTIONALS, bins), times)
    ]  # fmt: skip


def rules_of(rows: list[dict]) -> list[dict]:
    return table.rules(AXES, table.choose(table.gathered(rows, NAME), TOLERANCE))


def decisions(folder: Path, text: str) -> dict[str, list]:
    """By functional what each bin takes, with the tuning file that has this text."""
    (folder / "flash").mkdir(parents=True)
    (folder / "flash/sm_90.yaml").write_text(text)
    made = plan.make_plan([FLASH], [targets.by_name("sm_90")], tuning_root=folder)
    (kernel,) = (kernel for kernel in made.kernels if kernel.kernel.name == NAME)
    found = plan.explain(kernel, {variant.slot for variant in made.variants if variant.kernel == NAME})
    names = [configuration.name for configuration in kernel.configurations]
    return {
        functional.name: [(names[decision.configuration], decision.rule) for decision in row]
        for functional, row in zip(kernel.functionals, found)
        if functional.name in FUNCTIONALS
    }


@settings(max_examples=6, deadline=None)
@given(seed=st.integers(0, 2**32), few=st.booleans())
def test_each_bin_takes_a_configuration_within_the_tolerance(tmp_path_factory, seed, few):
    generator = random.Random(seed)
    levels = [1.0, 1.01, 2.0] if few else [generator.uniform(1, 10) for _ in range(50)]
    rows = rows_of([[generator.choice(levels) for _ in range(COUNT)] for _ in range(2 * len(BINS))])
    text = table.file_text({NAME: rules_of(rows), "attn_bwd_dq": []}, {}, "Made of random times.", "a GPU: 'quoted'")
    found = decisions(tmp_path_factory.mktemp("tuning"), text)
    for row in rows:
        name, rule = found[row["functional"]][BINS.index(row["bins"][NAME])]
        times = row["microseconds"][NAME]
        assert times[name] <= min(times.values()) * (1 + TOLERANCE)
        assert "sm_90.yaml" in rule, "the heuristic decided, not the tuning file"


def about(head_dim: int) -> dict:
    return {"head_dim": head_dim, "padded": False, "extras": "none"}


def test_one_winner_is_one_rule_for_each_functional():
    rows = rows_of([[1.0 + i for i in range(COUNT)]] * 2 * len(BINS))
    assert [rule["when"] for rule in rules_of(rows)] == [about(64), about(128)]


def test_where_not_all_bins_were_measured_the_others_keep_their_rules(tmp_path):
    first, last = CONFIGURATIONS[FUNCTIONALS[0]][0], CONFIGURATIONS[FUNCTIONALS[0]][-1]
    rows = rows_of([[1.0, *[9.0] * (COUNT - 1)]], bins=BINS[:1])
    written = rules_of(rows)
    assert len(written) == 1 and written[0]["when"].keys() == {*about(64), *AXES}
    before = {NAME: [{"when": about(64), "use": table.values(last)}], "attn_bwd_dq": [{"use": {"BLOCK_M": 64}}]}
    text = table.file_text({NAME: written}, before, "Made.", "a GPU")
    found = decisions(tmp_path, text)[FUNCTIONALS[0]]
    assert found[0][0] == first and {name for name, _ in found[1:]} == {last} and "  attn_bwd_dq:\n" in text


def test_bins_that_touch_are_merged():
    """One axis decides: its bins are one rule, not one for each bin of the others."""
    axis = next(iter(AXES))
    slow = [9.0] * (COUNT - 1)
    times = [[*slow, 1.0] if place[axis] == 0 else [1.0, *slow] for place in BINS]
    written = rules_of(rows_of(times + times))
    assert len(written) == 4
    assert written[0]["when"] == about(64) | {axis: {"below": AXES[axis][0]}}


def test_calls_of_one_bin_count_alike_and_dtypes_together():
    rows = rows_of([[1.0, 2.0], [100.0, 300.0]], bins=BINS[:1])[:1] * 2
    rows = [dict(row) for row in rows]
    one, two = CONFIGURATIONS[FUNCTIONALS[0]][:2]
    rows[0]["microseconds"] = {NAME: {one: 1.0, two: 2.0}}
    rows[1] |= {"microseconds": {NAME: {one: 300.0, two: 100.0}}, "functional": FUNCTIONALS[0].replace("bf16", "fp16")}
    (times,) = table.gathered(rows, NAME).values()
    assert times == pytest.approx({one: 3**0.5, two: 2**0.5})


def test_names_become_values():
    assert table.values("head_dim=64 padded=false extras=none ADVANCE=true") == about(64) | {"ADVANCE": True}
    assert table.file_text({NAME: []}, {}, "x", "y").endswith("kernels:\n  {}\n")


# ---- the race --------------------------------------------------------------------------------------------------------


def test_losers_drop_out_early():
    timed = []

    def times(works, rounds, turn_ms):
        timed.append((set(works), rounds, turn_ms))
        return {name: [work() * 1.001**n for n in range(rounds)] for name, work in works.items()}

    speeds = {"a": 1.0, "b": 1.05, "c": 1.3, "d": 9.0}
    figures = race({name: lambda ms=ms: ms for name, ms in speeds.items()}, times)
    assert [names for names, _, _ in timed] == [{"a", "b", "c", "d"}, {"a", "b", "c"}, {"a", "b"}]
    assert [(rounds, turn) for _, rounds, turn in timed] == [(stage.rounds, stage.turn_ms) for stage in STAGES]
    assert {name: figure.rounds for name, figure in figures.items()} == {"a": 7, "b": 7, "c": 3, "d": 2}
    assert min(figures, key=lambda name: figures[name].microseconds) == "a" and figures["d"].microseconds > 9000


def test_one_that_is_left_has_won():
    timed = []
    race({"a": int, "b": int}, lambda works, *_: timed.append(1) or {n: [1.0 + 9 * (n == "b")] for n in works})
    assert len(timed) == 1 and race({}, lambda *_: {}) == {} and Stage(1, 1.0, 2.0).keep == 2.0


# ---- candidates ------------------------------------------------------------------------------------------------------


def variant(kernel: str, configuration: str, functional="f", specialization="aligned", unavailable=None) -> dict:
    return {
        "operation": "flash.attn_fwd", "kernel": kernel, "configuration": configuration, "functional": functional,
        "specialization": specialization, "unavailable": unavailable, "key": f"{kernel} {configuration} {functional}",
    }  # fmt: skip


def test_candidates_are_of_the_same_functional_and_kernel():
    ran = variant("attn_fwd.hopper", "A=1")
    beside = [variant("attn_fwd.hopper", "A=2"), variant("attn_fwd.general", "B=1")]
    others = [
        variant("attn_fwd.hopper", "A=3", unavailable="spills"), variant("attn_fwd.hopper", "A=1", functional="g"),
        variant("attn_fwd.hopper", "A=4", specialization="generic"), variant("attn_bwd_dq", "A=1"),
    ]  # fmt: skip
    found = candidates.Images([ran, *beside, *others]).beside(ran)
    assert found == {(v["kernel"], v["configuration"]): v["key"] for v in (ran, *beside)}
    assert candidates.Images([]).beside(ran) == {}


def test_bins_of_calls():
    small = candidates.bin_of(KERNELS[NAME], Training(64, 64, 1, 1, 1, 64), 132)
    assert small == {"queries": 0, "keys": 0, "occupancy": 0}
    long = candidates.bin_of(KERNELS[NAME], Training(64, 64, 32, 32, 1, 8192), 132)
    assert long == {"queries": 1025, "keys": 4097, "occupancy": 4}
    grouped = candidates.bin_of(KERNELS["attn_decode.general"], Decoding(128, 64, 2, 1, 1024), 132)
    assert grouped == {"packed": 17}
    for kernel in KERNELS.values():  # of all, something is known
        shape = Decoding(128, 8, 8, 1, 64) if kernel.name.startswith("attn_decode") else PLAIN
        assert candidates.bin_of(kernel, shape, 132).keys() == {axis.name for axis in kernel.bins}


def test_an_axis_that_a_shape_does_not_tell(monkeypatch):
    monkeypatch.setattr(candidates, "_values", lambda shape: {})
    with pytest.raises(RecipeError, match="has the axis queries, which asks for 'seqlen_q': the tuner knows"):
        candidates.bin_of(KERNELS[NAME], PLAIN, 132)


# ---- a call's candidates, measured -----------------------------------------------------------------------------------


class Images:
    """A release whose images are right, or wrong, or do not serve a call; `ran` has the forced keys of what ran."""

    def __init__(self, usual: dict) -> None:
        self.usual, self.ran = usual, list[str]()

    def training(self, problem, part, keys=()):
        from kiln_bench.attention.problem import Prepared
        from kiln_bench.release.library import Refused

        if keys and "hopper" in keys[0]:
            raise Refused(2, "it serves calls with more keys")
        function = pytest.importorskip("torch").nn.functional.scaled_dot_product_attention
        out = function(problem.q, problem.k, problem.v) * (2 if keys and "B=2" in keys[0] else 1)
        return Prepared([lambda: self.ran.append("".join(keys))], lambda: {"out": out}, [], [self.usual])


def test_a_row_has_the_candidates_that_are_right():
    pytest.importorskip("torch")
    from kiln_bench.attention.problem import Problem
    from kiln_bench.tune.measure import Tuner, loss, winner

    functional = FUNCTIONALS[0]
    every = [variant(NAME, f"B={n}", functional) for n in (1, 2, 3)] + [variant("attn_fwd.hopper", "A=1", functional)]
    kiln = Images(every[0])

    def timed(works, rounds, turn_ms):
        for work in works.values():
            work()
        return {name: [3.0 if "B=1" in name else 2.0] * rounds for name in works}

    tuner = Tuner(kiln, candidates.Images(every), KERNELS, 132, timed)
    shape = Training(64, 64, 2, 2, 1, 40)
    (row,) = tuner.rows(Problem(shape, "cpu"), "forward")
    assert row["microseconds"] == {NAME: {"B=1": 3000.0, "B=3": 2000.0}} and row["used"] == [NAME, "B=1"]
    (why,) = row["wrong"].values()
    assert row["wrong"].keys() == {f"{NAME}: B=2"} and why.startswith("its result differs from fp32's by ")
    assert row["bins"] == {NAME: {"queries": 0, "keys": 0, "occupancy": 0}} and row["shape"] == shapes.as_row(shape)
    assert loss(row) == pytest.approx(0.5) and winner(row) == (NAME, "B=3") and "B=3" in kiln.ran[-1]
    alone = Tuner(kiln, candidates.Images(every[:1]), KERNELS, 132, timed)
    assert alone.rows(Problem(shape, "cpu"), "forward") == [], "there is nothing to choose"


# ---- a session -------------------------------------------------------------------------------------------------------

SHAPES = shapes.parse({"training": [{"head_dim": 64, "heads": 2, "length": 16, "batch": 1, "causal": [False, True]}],
                       "decoding": [{"head_dim": 64, "heads": 2, "keys": 32, "batch": 1}]}, "x", "x")  # fmt: skip
ABOUT = {"release": "0.1.0b", "target": "sm_90", "device": "a GPU", "multiprocessors": 132, "pack": "0" * 64}


class Counting:
    """A tuner that finds a row in each call."""

    def __init__(self) -> None:
        self.parts: list[str] = []

    def rows(self, problem, part):
        self.parts.append(part)
        return rows_of([[1.0] * COUNT], bins=BINS[:1])


def test_a_run_goes_on_where_another_ended(tmp_path):
    pytest.importorskip("torch")
    path, clock = tmp_path / "sm_90.json", itertools.count(0.0, 10.0)
    first, tuner = session.Session(ABOUT, path), Counting()
    left = session.go_on(first, tuner, SHAPES, 15.0, Progress(), 1, "cpu", lambda: next(clock))
    assert left == 5 - len(tuner.parts) and 0 < len(tuner.parts) < 5 and path.read_bytes().startswith(session.BEGIN)
    again, rest = session.Session(ABOUT, path), Counting()
    assert again.rows == first.rows
    assert session.go_on(again, rest, SHAPES, None, Progress(), 1, "cpu") == 0 and len(rest.parts) == left
    assert len(json.loads(path.read_text())["rows"]) == 5
    assert session.go_on(session.Session(ABOUT, path), Counting(), SHAPES, None, Progress(), 1, "cpu") == 0
    other = session.Session(ABOUT | {"pack": "1" * 64}, path)
    assert other.rows == [], "of other images nothing is taken"


def arguments(tmp_path, **more) -> argparse.Namespace:
    (tmp_path / "t").mkdir(exist_ok=True)
    words = {"check": False, "output": tmp_path / "t/sm_90.yaml", "shapes": SHAPES, "tolerance": 0.02}
    return argparse.Namespace(**(words | more))


def test_what_comes_of_it(tmp_path, capsys):
    times = [[3.0, 1.0, *[9.0] * (COUNT - 2)]] * 2 * len(BINS)
    rows = rows_of(times)
    assert command.finish(arguments(tmp_path), FLASH, ABOUT, rows, ["1980 MHz", "1700 MHz"], 0) == 0
    text, said = (tmp_path / "t/sm_90.yaml").read_text(), capsys.readouterr()
    assert text.startswith("# Made by `python -m kiln_bench.tune --shapes x` on ") and "a GPU, driver " in text
    assert "SM clock 1700 to 1980 MHz, release 0.1.0b.\n# 54 calls; quartiles" in text and f"sha256 {'0' * 64}" in text
    assert "200.0%" in said.out and CONFIGURATIONS[FUNCTIONALS[0]][1] in said.out and "sm_90.yaml" in said.out
    found = decisions(tmp_path / "again", text)
    assert {name for name, _ in found[FUNCTIONALS[0]]} == {CONFIGURATIONS[FUNCTIONALS[0]][1]}


def test_a_check_writes_nothing_and_names_what_is_slow(tmp_path, capsys):
    slow = rows_of([[1.04, 1.0, *[9.0] * (COUNT - 2)]], bins=BINS[:1])
    with pytest.raises(NotServed, match="1 of 1 take more than 3% longer than they could"):
        command.finish(arguments(tmp_path, check=True), FLASH, ABOUT, slow, [], 0)
    fine = rows_of([[1.02, 1.0, *[9.0] * (COUNT - 2)]], bins=BINS[:1])
    assert command.finish(arguments(tmp_path, check=True), FLASH, ABOUT, fine, [], 3) == 0
    assert "3 calls are left; the same command goes on" in capsys.readouterr().err
    assert not [*(tmp_path / "t").iterdir()]


def test_wrong_images_and_nothing_to_choose(tmp_path):
    rows = rows_of([[1.0] * COUNT], bins=BINS[:1])
    rows[0]["wrong"] = {"attn_fwd.hopper: A=1": "its result differs from fp32's by 1"}
    with pytest.raises(
        WrongResult, match="images gave wrong results: attn_fwd.hopper: A=1: its result differs from fp32's by 1"
    ):
        command.finish(arguments(tmp_path), FLASH, ABOUT, rows, [], 0)
    with pytest.raises(NotServed, match="no call could be run by more than one image"):
        command.finish(arguments(tmp_path), FLASH, ABOUT, [], [], 0)


def test_help(capsys):
    assert command.main(["tune", "--help"]) == 0
    said = capsys.readouterr().out
    assert "take more than 3 % longer" in " ".join(said.split()) and "examples:\n  python -m kiln_bench.tune" in said


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (["r.tar.gz"], 2, "`python -m kiln_bench.tune` lacks --target"),
        (["r.tar.gz", "--target", "sm_90", "--tolerance", "x"], 2, "--tolerance x is invalid; expected a number"),
        (
            ["r.tar.gz", "--target", "sm_90", "--output", "x.txt"],
            2,
            "--output x.txt is invalid; expected a file",
        ),
        (["r.tar.gz", "--target", "sm_90", "--budget", "x"], 2, "--budget x is invalid"),
        (["r.tar.gz", "--target", "sm_90", "--output", "x.yaml"], 7, "r.tar.gz does not exist"),
    ],
)
def test_words(capsys, tmp_path, monkeypatch, words, code, sentence):
    monkeypatch.chdir(tmp_path)
    assert command.main(["tune", *words]) == code
    said = capsys.readouterr()
    assert said.out == "" and sentence in said.err and said.err.count("\n") == 1
    with pytest.raises(UsageError):
        command._share("-1")
