"""The tuner: candidates and their race, and the file that comes of the times: whatever these are, it takes a fast
configuration in each bin."""

from __future__ import annotations

import math
import random
from collections import defaultdict
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from kiln_bench import shapes
from kiln_bench.shapes import Decoding, Training
from kiln_bench.tune import candidates, table
from kiln_bench.tune.race import STAGES, Stage, race
from kiln_recipe import targets
from kiln_recipe.call import evaluate
from kiln_recipe.dtypes import DTYPES
from kiln_recipe.errors import RecipeError, UsageError
from kiln_recipe.plan import plan
from small_release import ROOT
from tune_rows import AXES, BINS, CONFIGURATIONS, COUNT, FLASH, FUNCTIONALS, KERNELS, NAME, PLAIN, rows_of

TOLERANCE = 0.02
RUN = {"by": "kiln tune", "date": "2026-11-25", "device": "a GPU"}
DQ = KERNELS["attn_bwd_dq"].configurations[0].core[0].mapping


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
    text = table.file_text({NAME: rules_of(rows), "attn_bwd_dq": []}, [], RUN | {"device": "a GPU: 'quoted'"})
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
    text = table.file_text({NAME: written}, [table.Block(before)], RUN)
    found = decisions(tmp_path, text)[FUNCTIONALS[0]]
    assert found[0][0] == first and {name for name, _ in found[1:]} == {last} and "      attn_bwd_dq:\n" in text


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
    assert table.file_text({NAME: []}, [], RUN).endswith("kernels:\n  {}\n")


def test_rules_that_never_fire_go():
    """Of the file that was there those go which new rules cover; the others stay, and say the same."""
    new = [{"when": {"head_dim": [64, 128], "keys": {"at_least": 513}}, "use": {"BLOCK_M": 64}}]
    gone = [
        {"when": {"head_dim": 64, "padded": True, "keys": {"at_least": 4097}}, "use": {"BLOCK_M": 128}},
        {"when": {"head_dim": 128, "keys": {"at_least": 513, "below": 4097}}, "use": {"BLOCK_M": 128}},
    ]
    stay = [{"when": {"head_dim": 64, "keys": {"below": 4097}}, "use": {"BLOCK_M": 128}},
            {"when": {"head_dim": 96, "keys": {"at_least": 513}}, "use": {"BLOCK_M": 128}},
            {"when": {"head_dim": True, "keys": {"at_least": 513}}, "use": {"BLOCK_M": 128}},
            {"use": {"BLOCK_M": 128}}]  # fmt: skip
    text = table.file_text({NAME: new}, [table.Block({NAME: [*gone, *stay]})], RUN)
    assert yaml.safe_load(text) == {
        "summary": "Tuned on a GPU", "run": RUN, "kernels": {NAME: new}, "earlier": [{"kernels": {NAME: stay}}],
    }  # fmt: skip
    assert "earlier" not in table.file_text({NAME: new}, [table.Block({NAME: gone})], RUN)


def test_each_runs_rules_keep_where_they_come_from(tmp_path):
    """Of another card and pack, say, which the latest run's name does not stand for."""

    def rule(head_dim: int, configuration: str) -> dict:
        return {"when": about(head_dim), "use": table.values(configuration)}

    path, first = tmp_path / "sm_90.yaml", CONFIGURATIONS[FUNCTIONALS[0]][0]
    oldest, older = RUN | {"device": "card 1", "outdated": True}, RUN | {"device": "card 2", "note": "by hand: two"}
    path.write_text(
        table.file_text({NAME: [rule(64, first), rule(128, first)], "attn_bwd_dq": [{"use": {}}]}, [], oldest)
    )
    path.write_text(table.file_text({NAME: [rule(64, first)]}, table.read_before(path), older))
    assert [block.run for block in table.read_before(path)] == [older, oldest]
    last = CONFIGURATIONS[FUNCTIONALS[1]][-1]
    path.write_text(table.file_text({NAME: [rule(128, last)]}, table.read_before(path), RUN))
    assert [(block.run, block.kernels) for block in table.read_before(path)] == [
        (RUN, {NAME: [rule(128, last)]}), (older, {NAME: [rule(64, first)]}), (oldest, {"attn_bwd_dq": [{"use": {}}]}),
    ]  # fmt: skip
    path.write_text(path.read_text().replace("{use: {}}", f"{{use: {table.inline(DQ)}}}"))
    found = decisions(tmp_path / "read", path.read_text())
    assert {name for name, _ in found[FUNCTIONALS[0]]} == {first} and {n for n, _ in found[FUNCTIONALS[1]]} == {last}
    assert all("sm_90.yaml" in place for row in found.values() for _, place in row), "earlier blocks decide, too"


def test_a_file_that_is_no_tuning_file_stays(tmp_path):
    for number, text in enumerate(["mine: 1\n", "[", "kernels: [1]\n", "kernels: {a: 1}\n",
                                     "kernels: {}\nearlier: [{a: 1}]\n"]):  # fmt: skip
        (tmp_path / f"{number}.yaml").write_text(text)
        with pytest.raises(UsageError, match="exists and is not a tuning file, so it stays"):
            table.read_before(tmp_path / f"{number}.yaml")
    assert table.read_before(tmp_path / "none.yaml") == []
    (block,) = table.read_before(ROOT / "tuning/flash/sm_90.yaml")
    assert block.kernels.keys() >= {NAME} and block.run and block.run["device"] == "NVIDIA H200"


# ---- the race --------------------------------------------------------------------------------------------------------


def test_losers_drop_out_early():
    timed = []

    def times(works, rounds, turn_ms):
        timed.append((set(works), rounds, turn_ms))
        return {name: [work() * 1.001**n for n in range(rounds)] for name, work in works.items()}

    speeds = {"a": 1.0, "b": 1.05, "c": 1.3, "d": 9.0}
    figures = race({name: lambda ms=ms: ms for name, ms in speeds.items()}, times, dict.fromkeys(speeds, NAME))
    assert [names for names, _, _ in timed] == [{"a", "b", "c", "d"}, {"a", "b", "c"}, {"a", "b"}]
    assert [(rounds, turn) for _, rounds, turn in timed] == [(stage.rounds, stage.turn_ms) for stage in STAGES]
    assert {name: figure.rounds for name, figure in figures.items()} == {"a": 7, "b": 7, "c": 3, "d": 2}
    assert min(figures, key=lambda name: figures[name].microseconds) == "a" and figures["d"].microseconds > 9000


def test_one_that_is_left_has_won():
    timed = []
    alike = {"a": NAME, "b": NAME}
    race({"a": int, "b": int}, lambda works, *_: timed.append(1) or {n: [1.0 + 9 * (n == "b")] for n in works}, alike)
    assert len(timed) == 1 and race({}, lambda *_: {}, {}) == {} and Stage(1, 1.0, 2.0).keep == 2.0


def test_each_implementation_is_raced_to_the_end():
    """One that is five times behind has its own configurations told apart by the long turns, not by the first ones."""
    speeds = {"hopper": 1.0, "general, first": 5.0, "general, second": 5.1, "general, third": 9.0}
    kernels = {name: name.partition(",")[0] for name in speeds}

    def times(works, rounds, turn_ms):  # short turns have the second ahead, and the long ones the first
        return {n: [ms * (0.9 if turn_ms < 10 and "second" in n else 1.0)] * rounds for n, ms in works.items()}

    figures = race(speeds, times, kernels)  # type: ignore[arg-type]
    assert {name: figure.rounds for name, figure in figures.items()} == {
        "hopper": 7, "general, first": 7, "general, second": 7, "general, third": 2,
    }  # fmt: skip
    assert figures["general, first"].microseconds < figures["general, second"].microseconds


def kept_row(times: dict, rounds: dict, **more) -> dict:
    """A row that was kept, by kernel and configuration."""
    bins = {kernel: dict.fromkeys(AXES, 0) for kernel in times}
    return {"part": "forward", "shape": shapes.as_row(PLAIN), "functional": FUNCTIONALS[0], "bins": bins,
            "microseconds": times, "rounds": rounds, "used": [NAME, "A=1"]} | more  # fmt: skip


def test_times_of_first_turns_become_no_rules():
    """As runs kept them whose race let a whole implementation drop out."""
    general = {"A=1": 5.0, "A=2": 5.1}
    for hopper, rounds in ((2, 2), (7, 2), (7, 3), (3, 2)):
        row = kept_row({"attn_fwd.hopper": {"B=1": 1.0}, NAME: general},
                       {"attn_fwd.hopper": {"B=1": hopper}, NAME: dict.fromkeys(general, rounds)})  # fmt: skip
        assert table.gathered([row], NAME) == {}, (hopper, rounds)
        assert [*table.gathered([row], "attn_fwd.hopper").values()] == [{"B=1": 1.0}]
    whole = kept_row({"attn_fwd.hopper": {"B=1": 1.0}, NAME: general},
                     {"attn_fwd.hopper": {"B=1": 7}, NAME: {"A=1": 7, "A=2": 3}})  # fmt: skip
    assert [*table.gathered([row, whole], NAME).values()] == [pytest.approx({"A=1": 1.0, "A=2": 1.02})]
    won = kept_row({NAME: general}, {NAME: {"A=1": 2, "A=2": 2}})
    assert table.gathered([won], NAME), "the one that was left had won"


def test_two_runs_are_compared_by_the_fastest_of_all_implementations():
    def row(hopper: float, general: float, **more) -> dict:
        return kept_row({"attn_fwd.hopper": {"B=1": hopper}, NAME: {"A=1": general}}, {}, **more)

    (one,) = table.agreement_of_calls([row(1.0, 2.0)], [row(1.1, 1.0, used=["attn_fwd.hopper", "B=1"])])
    assert one[1] == pytest.approx(1.1), "the first run's hopper takes 1.1 times the second's fastest"
    (one,) = table.agreement_of_calls([row(1.0, 2.0)], [kept_row({NAME: {"A=1": 1.0, "A=2": 2.0}}, {})])
    assert one[1] == math.inf, "the other run did not measure it"
    assert table.agreement_of_calls([row(1.0, 2.0)], [kept_row({NAME: {"A=1": 1.0}}, {})]) == []
    other = shapes.as_row(Training(64, 64, 8, 8, 2, 4096))
    assert table.agreement_of_calls([row(1.0, 2.0)], [row(1.0, 2.0, shape=other)]) == []
    assert table.agreement_of_calls([row(1.0, 2.0)], [row(1.0, 2.0, used=["attn_fwd_combine.early", "B=1"])]) == []


# ---- candidates ------------------------------------------------------------------------------------------------------


def variant(kernel: str, configuration: str, functional="f", specialization="aligned", unavailable=None) -> dict:
    return {
        "operation": "flash.attn_fwd", "kernel": kernel, "configuration": configuration, "functional": functional,
        "specialization": specialization, "unavailable": unavailable,
        "key": f"{kernel} {configuration} {functional}{'' if specialization == 'aligned' else ' ' + specialization}",
    }  # fmt: skip


def test_candidates_are_of_the_same_functional_and_kernel():
    ran = variant("attn_fwd.hopper", "A=1")
    beside = [variant("attn_fwd.hopper", "A=2"), variant("attn_fwd.general", "B=1")]
    others = [
        variant("attn_fwd.hopper", "A=3", unavailable="spills"), variant("attn_fwd.hopper", "A=1", functional="g"),
        variant("attn_fwd.hopper", "A=4", specialization="generic"), variant("attn_bwd_dq", "A=1"),
    ]  # fmt: skip
    found = candidates.Images([ran, *beside, *others]).beside(ran)
    assert found == {(v["kernel"], v["configuration"]): (v["key"],) for v in (ran, *beside)}
    assert candidates.Images([]).beside(ran) == {}


def test_other_implementations_have_specializations_of_their_own():
    """A kernel for descriptors has one, "generic"; of another that is the image for tensors that are not aligned."""
    ran = variant("attn_fwd.hopper", "A=1", specialization="generic")
    general = [variant("attn_fwd.general", "B=1"), variant("attn_fwd.general", "B=1", specialization="generic")]
    found = candidates.Images([*general, ran]).beside(ran)
    assert found == {
        ("attn_fwd.general", "B=1"): tuple(one["key"] for one in general),
        ("attn_fwd.hopper", "A=1"): (ran["key"],),
    }


def test_bins_of_calls():
    small = candidates.bin_of(KERNELS[NAME], Training(64, 64, 1, 1, 1, 64), 132)
    assert small == {"queries": 0, "keys": 0, "causal": 0, "occupancy": 0}
    long = candidates.bin_of(KERNELS[NAME], Training(64, 64, 32, 32, 1, 8192), 132)
    assert long == {"queries": 1025, "keys": 4097, "causal": 0, "occupancy": 4}
    causal = candidates.bin_of(KERNELS[NAME], Training(64, 64, 32, 32, 1, 8192, causal=True), 132)
    assert causal == long | {"causal": 1}
    windowed = candidates.bin_of(KERNELS[NAME], Training(64, 64, 32, 32, 1, 8192, causal=True, window=512), 132)
    assert windowed == long | {"keys": 0}, "a row sees 512 keys"
    grouped = candidates.bin_of(KERNELS["attn_decode.general"], Decoding(128, 64, 2, 1, 1024), 132)
    assert grouped == {"packed": 17}
    for kernel in KERNELS.values():  # of all, something is known
        shape = Decoding(128, 8, 8, 1, 64) if kernel.name.startswith("attn_decode") else PLAIN
        assert candidates.bin_of(kernel, shape, 132).keys() == {axis.name for axis in kernel.bins}


def call_of(shape: Training | Decoding) -> evaluate.Call:
    """The family's own reading of a call, from tensors of that shape."""

    def tensor(*sizes: int, dtype: str = "bf16") -> evaluate.Tensor:
        strides = [math.prod(sizes[place + 1 :]) for place in range(len(sizes))]
        return evaluate.Tensor(1 << 20, DTYPES[dtype], sizes, tuple(strides))

    if isinstance(shape, Decoding):
        name, rows = "attn_decode", tensor(shape.batch, shape.heads, 1, shape.head_dim)
        pages = shape.batch * shape.keys // (shape.page or shape.keys)
        cache = tensor(pages, shape.heads_kv, shape.page or shape.keys, shape.head_dim, dtype=shape.cache_dtype)
        some = {"q": rows, "out": rows, "k_cache": cache, "v_cache": cache, "max_seqlen_k": shape.keys}
        some["seqused_k"] = tensor(shape.batch, dtype="int32")
        if shape.cache_dtype == "fp8e4m3":
            some |= {f"{which}_scale": tensor(shape.heads_kv, dtype="fp32") for which in "kv"}
        if shape.page:
            some["block_table"] = tensor(shape.batch, shape.keys // shape.page, dtype="int32")
    else:
        name, rows = "attn_fwd", tensor(shape.batch, shape.heads, shape.rows, shape.head_dim)
        out = tensor(shape.batch, shape.heads, shape.rows, shape.head_dim_v)
        k, v = (tensor(shape.batch, shape.heads_kv, shape.rows, width) for width in (shape.head_dim, shape.head_dim_v))
        some = {"q": rows, "out": out, "k": k, "v": v}
        if shape.lengths:
            some |= {f"cu_seqlens_{which}": tensor(len(shape.lengths) + 1, dtype="int32") for which in "qk"}
            some |= {f"max_seqlen_{which}": shape.length for which in "qk"}
        some["window_left"] = shape.window - 1 if shape.window else -1
        some["window_right"] = 0 if shape.causal else -1
    some = {"window_left": -1, "window_right": -1} | some
    (operation,) = (operation for operation in FLASH.operations if operation.name == name)
    usual = {"int": 0, "float": 0.0}
    given = [some.get(a.name, None if a.optional else usual.get(a.kind)) for a in operation.arguments]
    return evaluate.begin(operation, f"flash.{name}", given, evaluate.Device("NVIDIA", 132))


def test_a_calls_bins_are_those_that_dispatch_looks_in():
    """What the tuner knows of a shape repeats definitions of the recipe."""
    presets = [shapes.read(name) for name in shapes.PRESETS]
    every: list[Training | Decoding] = [shape for read in presets for shape in (*read.forward, *read.decoding)]
    every += [Training(64, 64, heads, 1, 1, length, rows_first=True) for heads in (1, 64) for length in (32, 700)]
    every += [Decoding(128, heads, 1, batch, 512) for heads in (1, 24, 128) for batch in (1, 200)]
    found_by = defaultdict(set)
    for shape in every:
        call = call_of(shape)
        for kernel in call.operation.kernels:
            number = 0
            found = candidates.bin_of(kernel, shape, 132)
            for axis in kernel.bins:
                number = number * (len(axis.edges) + 1) + [0, *axis.edges].index(found[axis.name])
            assert number == evaluate.bin_number(call, kernel), (kernel.name, str(shape), found)
            if kernel.bins:
                found_by[kernel.name].add(number)
    assert len(found_by) >= 4 and all(len(numbers) > 1 for numbers in found_by.values()), found_by


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
        if keys and "other" in keys[0] and "generic" not in keys[0]:
            raise Refused(2, "its tensors are not aligned")
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
    assert row["keys"] == {NAME: {name: f"{NAME} {name} x"[:12] for name in ("B=1", "B=3")}}
    assert row["refused"] == {"attn_fwd.hopper: A=1": "it serves calls with more keys"}
    assert row["wrong"].keys() == {f"{NAME}: B=2"} and why.startswith("its result differs from fp32's by ")
    assert row["bins"] == {NAME: {"queries": 0, "keys": 0, "causal": 0, "occupancy": 0}} and row[
        "shape"
    ] == shapes.as_row(shape)
    assert loss(row) == pytest.approx(0.5) and winner(row) == (NAME, "B=3") and "B=3" in kiln.ran[-1]
    other = [variant("attn_fwd.other", "C=1", functional, word) for word in ("aligned", "generic")]
    kernels = KERNELS | {"attn_fwd.other": KERNELS[NAME]}
    (row,) = Tuner(kiln, candidates.Images([every[0], *other]), kernels, 132, timed).rows(
        Problem(shape, "cpu"), "forward"
    )
    assert not row["refused"] and any(other[1]["key"] in ran for ran in kiln.ran), "the first that takes the call"
    alone = Tuner(kiln, candidates.Images(every[:1]), KERNELS, 132, timed)
    assert alone.rows(Problem(shape, "cpu"), "forward") == [], "there is nothing to choose"
