"""What benchmarks/attention/speed.py measures, by its words; its runs need a GPU."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from kiln_bench.attention.row import DeviceFailed
from kiln_bench.release.library import Refused

pytest.importorskip("torch")
SPEED = Path(__file__).resolve().parents[1] / "benchmarks/attention/speed.py"


@pytest.fixture(scope="module")
def speed():
    description = importlib.util.spec_from_file_location("speed", SPEED)
    module = importlib.util.module_from_spec(description)
    before = [*sys.path]
    sys.path.insert(0, str(SPEED.parent))
    sys.modules["speed"] = module
    description.loader.exec_module(module)
    yield module
    sys.path[:] = before
    del sys.modules["speed"], sys.modules["session"]


def test_both_layouts_of_a_shape_come_together(speed):
    first, heads, both = (speed.entries(["shapes", "fp8"], name) for name in ("rows-first", "heads-first", "both"))
    assert all(entry.shape.rows_first for entry in first) and not any(entry.shape.rows_first for entry in heads)
    assert len(both) == 2 * len(first) and set(both) == {*first, *heads}
    order = [(entry.part, entry.shape.rows_first) for entry in both[:4]]
    assert order == [("forward", True), ("backward", True), ("forward", False), ("backward", False)]


def test_each_part_has_rows_of_its_own(speed):
    every = speed.entries([*speed.PARTS], "rows-first")
    assert {entry.group for entry in every} == set(speed.PARTS) and len(set(every)) == len(every)
    assert all(entry.shape.rows_first for entry in every if entry.group == "calls")
    assert speed.entries(["calls"], "both") == speed.entries(["calls"], "heads-first"), "they are rows first"


def test_words_that_cannot_be(speed, monkeypatch, capsys):
    for words, sentence in (
        (["--parts", "shape"], "--parts: unknown shape; the parts are shapes, calls, fp8"),
        (["--layout", "rows"], "argument --layout: invalid choice: 'rows'"),
        (["--rounds", "4"], "--rounds: 4 are too few for quartiles; 5 or more are right"),
        (["--budget", "soon"], "--budget soon is invalid; expected a time such as 60s, 5m or 1h"),
    ):
        monkeypatch.setattr(sys, "argv", ["speed.py", "release", "results.json", *words])
        with pytest.raises(SystemExit):
            speed.main()
        assert sentence in capsys.readouterr().err


def test_a_row_that_fails_leaves_out_itself_alone(speed):
    """The next one gets tensors of its own."""
    entry, asked, faults = speed.entries(["calls"], "both")[0], [], []

    class Makes:
        def problem(self, entry, before):
            asked.append(before)
            return object()

        def row(self, entry, problem, turn_ms):
            raise faults[-1]

    for fault, why in (
        (RuntimeError("forward: its result differs\nby 0.2"), "forward: its result differs by 0.2"),
        (Refused(6, "no image serves it"), "no image serves it"),
        (speed.torch.OutOfMemoryError("tried to allocate 9 GiB"), "tried to allocate 9 GiB"),
    ):
        faults.append(fault)
        row, problem = speed.session.attempt(Makes(), entry, "before", lambda sides: 1.0)
        assert (row["skipped"], row["group"], row["part"], problem) == (why, "calls", entry.part, None)
        assert row["milliseconds"] == {} and asked.pop() == "before"
    faults.append(DeviceFailed("the GPU failed"))
    with pytest.raises(DeviceFailed):
        speed.session.attempt(Makes(), entry, None, lambda sides: 1.0)
