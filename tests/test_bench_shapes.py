"""The calls that `kiln bench` measures: presets, files, mistakes in them, what they cost."""

from __future__ import annotations

import json

import pytest

from kiln_bench import shapes
from kiln_bench.shapes import Decoding, Training
from kiln_recipe.errors import EnvironmentProblem, UsageError


def test_presets():
    core, llm = (shapes.read(name) for name in shapes.PRESETS)
    assert core.forward == core.backward and len(core.forward) == 24 and len(core.decoding) == 18
    assert {shape.batch * shape.length for shape in core.forward} == {16384}
    assert all(shape.bytes >= 10**9 for shape in core.decoding)
    assert any(shape.lengths for shape in llm.forward) and any(shape.window for shape in llm.forward)
    titles = [str(shape) for shape in (*core.forward, *core.decoding, *llm.forward, *llm.decoding)]
    assert len(set(titles)) == len(titles)


@pytest.mark.parametrize("name", shapes.PRESETS)
def test_kept_shapes_are_read_back(name):
    read = shapes.read(name)
    for part, every in (("forward", read.forward), ("decoding", read.decoding)):
        for shape in every:
            kept = json.loads(json.dumps({"part": part, "shape": shapes.as_row(shape)}))
            assert shapes.of_row(kept) == shape


def test_what_a_call_costs():
    plain = Training(128, 128, 16, 16, 2, 8192)
    assert plain.operations("forward") == 4 * 2 * 16 * 8192**2 * 128
    assert plain.operations("backward") == 2.5 * plain.operations("forward")
    causal = Training(128, 128, 16, 16, 2, 8192, causal=True)
    assert causal.operations("forward") == plain.operations("forward") / 2
    window = Training(128, 128, 1, 1, 1, 8, causal=True, window=3)
    assert window.pairs == sum(min(row + 1, 3) for row in range(8))
    assert Training(8, 8, 1, 1, 1, 4, (4, 3)).pairs == 16 + 9
    assert Training(192, 128, 1, 1, 1, 4).operations("forward") == 2 * 16 * (192 + 128)
    assert Decoding(128, 32, 8, 2, 1024, 0, "bf16", "fp8e4m3").bytes == 2 * 2 * 8 * 1024 * 128


def test_a_file_of_ones_own(tmp_path):
    (tmp_path / "mine.yaml").write_text(
        "forward:\n- {head_dim: [64, 128], heads: 8, heads_kv: 2, length: 512, batch: 3, causal: [true, false]}\n"
        "backward:\n- {head_dim: 64, width: 256, lengths: [5, 7], dtype: fp16, rows_first: true}\n"
        "decoding:\n- {head_dim: 64, heads: 8, keys: 512, page: [0, 16], batch: 1}\n"
    )
    read = shapes.read(str(tmp_path / "mine.yaml"))
    assert read.name == "mine.yaml" and len(read.forward) == 4 and len(read.decoding) == 2
    assert read.backward == (Training(64, 64, 4, 4, 1, 7, (5, 7), dtype="fp16", rows_first=True),)
    (tmp_path / "mine.json").write_text('{"forward": [{"head_dim": 64, "heads": 8, "length": 16, "batch": 1}]}')
    assert shapes.read(str(tmp_path / "mine.json")).forward == (Training(64, 64, 8, 8, 1, 16, rows_first=True),)


def test_layouts():
    """Rows come first, as PyTorch's models have them, unless a call or --layout says something else."""
    usual, heads, both = (shapes.read("llm", layout) for layout in ("rows-first", "heads-first", "both"))
    assert shapes.read("llm") == usual and all(shape.rows_first for shape in usual.forward)
    assert [shape.rows_first for shape in heads.forward] == [bool(shape.lengths) for shape in heads.forward]
    several = sum(bool(shape.lengths) for shape in usual.forward)
    assert several and len(both.forward) == 2 * len(usual.forward) - several
    assert [shape.rows_first for shape in both.forward[:4]] == [True, False, True, False]
    assert str(both.forward[1]) == f"{both.forward[0]}, heads first"
    assert usual.decoding == heads.decoding == both.decoding
    call = {"head_dim": 64, "heads": 8, "length": 16, "batch": 1, "rows_first": False}
    for layout in shapes.LAYOUTS:
        assert shapes.parse({"forward": [call]}, "x", "x", layout).forward == (Training(64, 64, 8, 8, 1, 16),)


GOOD = "{head_dim: 64, heads: 8, length: 512, batch: 1}"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "it must have some of training, forward, backward, decoding"),
        ("- 1", "it must have some of training, forward, backward, decoding"),
        ("forwrd: []", "unknown part 'forwrd'; did you mean 'forward'?"),
        ("forward: 3", "forward must be a list of calls"),
        ("forward: [3]", "forward, call 1: must be a mapping"),
        (f"forward: [{GOOD}, {{heads: 8, length: 4, batch: 1}}]", "forward, call 2: has no head_dim"),
        (f"forward: [{GOOD[:-1]}, causl: true}}]", "unknown 'causl'; did you mean 'causal'?"),
        (f"forward: [{GOOD[:-1]}, tokens: 3}}]", "has both batch and tokens; give one"),
        ("forward: [{head_dim: 64, length: 4, batch: 1}]", "has neither heads nor width; give one"),
        (f"forward: [{GOOD.replace('64', '-1')}]", "head_dim is -1; expected a whole number from 1 to"),
        (f"forward: [{GOOD.replace('64', 'true')}]", "head_dim is True; expected a whole number"),
        (f"forward: [{GOOD[:-1]}, causal: 1}}]", "causal is 1; expected true or false"),
        (f"forward: [{GOOD[:-1]}, dtype: bf61}}]", "dtype is 'bf61'; did you mean 'bf16'?"),
        (f"forward: [{GOOD[:-1]}, heads_kv: 3}}]", "heads is 8, no multiple of heads_kv, 3"),
        (f"forward: [{GOOD[:-1]}, window: 3}}]", "window is the keys up to a row's own, which wants causal: true"),
        ("forward: [{head_dim: 64, heads: 8, lengths: [0]}]", "lengths is [0]; expected whole numbers"),
        (
            "decoding: [{head_dim: 64, heads: 8, keys: 20, page: 16, batch: 1}]",
            "20 keys does not consist of pages of 16",
        ),
        ("forward: [", "is not valid YAML"),
    ],
)
def test_mistakes_are_one_sentence(tmp_path, text, sentence):
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(UsageError) as mistake:
        shapes.read(str(path))
    assert sentence in str(mistake.value) and str(path) in str(mistake.value) and "\n" not in str(mistake.value)


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(EnvironmentProblem, match="--shapes nope does not exist; give core, llm or a file"):
        shapes.read("nope")
    (tmp_path / "x.json").write_text("{")
    with pytest.raises(UsageError, match="is not valid JSON"):
        shapes.read(str(tmp_path / "x.json"))
