"""The ledger's file: what is written is read back, and nothing else is taken."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kiln_build.difference.images import Facts, Place, Was, former, measures
from kiln_build.ledger import file as ledger_file
from kiln_build.ledger.file import Ledger, Line
from kiln_recipe.errors import ArtifactError, EnvironmentProblem, LedgerError

words = st.text("abcXYZ_019", min_size=1, max_size=6).filter(lambda word: word not in ("none", "keys"))
settings = st.lists(st.tuples(words, words), max_size=3).map(lambda pairs: " ".join(f"{n}={v}" for n, v in pairs))
kernels = words | st.tuples(words, words).map(".".join)  # the second with its implementation
places = st.builds(Place, st.tuples(words, kernels).map("/".join), settings, settings, words)
shares = st.none() | st.integers(0, 1000)
facts = st.builds(
    Facts, st.integers(0, 600), st.integers(0, 99999), st.integers(0, 300_000), st.integers(1, 32), st.integers(0, 64),
    shares,
)  # fmt: skip
keys = st.text("0123456789abcdef", min_size=12, max_size=12)


@st.composite
def lines(draw) -> Line:
    taken = draw(st.none() | facts)
    was = draw(st.none() | st.builds(Was, st.integers(0, 600), st.integers(0, 99), st.integers(0, 64), shares))
    return Line(draw(keys), taken, was if measures(was, taken) else None)


def without_shares(line: Line) -> Line:
    taken = replace(line.facts, share=None) if line.facts else None
    return Line(line.key, taken, line.was if measures(line.was, taken) else None)


@st.composite
def ledgers_of(draw) -> Ledger:
    found, has_shares = draw(st.dictionaries(places, lines(), max_size=12)), draw(st.booleans())
    kept = found if has_shares else {place: without_shares(line) for place, line in found.items()}
    return Ledger(draw(words), draw(words), draw(keys), "3.8.0+git1", kept, has_shares)


ledgers = ledgers_of()


@given(ledgers)
def test_round_trip(ledger):
    text = ledger_file.render(ledger)
    assert ledger_file.parse(text, "x") == ledger
    assert ledger_file.render(ledger_file.parse(text, "x")) == text


@given(ledgers, st.randoms(use_true_random=False))
def test_a_file_does_not_depend_on_the_order_of_lines(ledger, random):
    shuffled = list(ledger.lines.items())
    random.shuffle(shuffled)
    other = replace(ledger, lines=dict(shuffled))
    assert ledger_file.render(other) == ledger_file.render(ledger)


@given(st.text(max_size=60), st.integers(0, 20), st.integers(0, 10))
def test_whatever_else_is_a_sentence(noise, row, cut):
    rows = ledger_file.render(EXAMPLE).split("\n")
    rows[row : row + cut] = noise.split("\n")
    text = "\n".join(rows)
    try:
        assert ledger_file.render(ledger_file.parse(text, "some/file")) == text
    except (ArtifactError, LedgerError) as error:
        assert str(error).startswith("some/file:") and "\n" not in str(error)
        assert error.exit_code == (9 if "out of order" in str(error) else 6)


def place(head_dim: int, block: int, specialization: str = "aligned") -> Place:
    return Place("attn_fwd/attn_fwd", f"dtype=bf16 head_dim={head_dim}", f"BLOCK_M={block} num_warps=8", specialization)


EXAMPLE = Ledger(
    "flash", "sm_90", "0123456789ab", "3.8.0",
    {
        place(128, 64): Line("b" * 12, Facts(255, 64, 98304, 8, 1)),
        place(64, 128): Line("a" * 12, Facts(156, 0, 49152, 8, 1), Was(128, 0, 2)),
        place(64, 64, "generic"): Line("c" * 12, Facts(128, 0, 0, 8, 2)),
        place(64, 64): Line("d" * 12, None),
    },
)  # fmt: skip
TEXT = """\
ledger 1: flash on sm_90
toolchain 0123456789ab, triton 3.8.0
registers spills shared warps blocks resident

attn_fwd/attn_fwd dtype=bf16 head_dim=64
  none                       BLOCK_M=64 num_warps=8 aligned
  128     0      0  8  2  16  BLOCK_M=64 num_warps=8 generic
  156     0  49152  8  1   8  BLOCK_M=128 num_warps=8 aligned  was registers=128 spills=0 blocks=2

attn_fwd/attn_fwd dtype=bf16 head_dim=128
  255    64  98304  8  1   8  BLOCK_M=64 num_warps=8 aligned

keys
attn_fwd/attn_fwd
  dddddddddddd cccccccccccc aaaaaaaaaaaa bbbbbbbbbbbb
"""


def test_what_a_file_looks_like():
    """Numbers sort by value; each heading begins a line, so that git shows it above a hunk."""
    assert ledger_file.render(EXAMPLE) == TEXT
    assert EXAMPLE.name(place(128, 64)) == (
        "flash.attn_fwd/attn_fwd[dtype=bf16 head_dim=128][BLOCK_M=64 num_warps=8][aligned]@sm_90"
    )


WITH_SHARES = """\
ledger 1: flash on gfx942
toolchain 0123456789ab, triton 3.8.0
registers spills shared warps blocks resident share

attn_fwd/attn_fwd dtype=bf16 head_dim=64
  none                            BLOCK_M=64 num_warps=8 aligned
  128     0      0  8  2  16    ?  BLOCK_M=64 num_warps=8 generic
  156     0  49152  8  2  16  433  BLOCK_M=128 num_warps=8 aligned  was registers=128 spills=0 blocks=2 share=481

attn_fwd/attn_fwd dtype=bf16 head_dim=128
  255    64  98304  8  1   8    -  BLOCK_M=64 num_warps=8 aligned

keys
attn_fwd/attn_fwd
  dddddddddddd cccccccccccc aaaaaaaaaaaa bbbbbbbbbbbb
"""


def test_shares_of_modelled_targets():
    found = ledger_file.parse(WITH_SHARES, "x")
    assert ledger_file.render(found) == WITH_SHARES
    assert [found.lines[place(*which)].facts.share for which in ((64, 128), (64, 64, "generic"), (128, 64))] == [
        433, None, 0,
    ]  # fmt: skip
    assert found.lines[place(64, 128)].was == Was(128, 0, 2, 481)
    with pytest.raises(ArtifactError, match="x:7: the line has not as many numbers as there are columns"):
        ledger_file.parse(WITH_SHARES.replace("    ?  ", "  ", 1), "x")


@pytest.mark.parametrize(
    ("before", "after", "is_worse"),
    [(481, 433, True), (481, 467, False), (481, 500, False), (None, 1, False), (481, None, False), (0, 0, False)],
)
def test_a_share_is_worse_beyond_what_phases_change(before, after, is_worse):
    assert measures(Was(1, 0, 1, before), Facts(1, 0, 0, 1, 1, after)) == (("share",) if is_worse else ())


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("ledger 1", "ledger 2", "x:1: 'ledger 2: flash on sm_90' is not a line of a ledger"),
        ("registers spills", "spills registers", "x:3: must be 'registers spills shared warps blocks resident'"),
        ("2  16", "2  17", "x:7: 2 blocks of 8 warps are 16 warps, not 17"),
        ("0  8  2  16", "0  0  2   0", "x:7: a block has at least one warp"),
        ("blocks=2", "blocks=1", "x:8: `was` is only for images that got worse, but this one did not"),
        (" aaaaaaaaaaaa", "", "x:15: attn_fwd/attn_fwd has 4 lines and 3 keys"),
        ("keys\nattn_fwd/attn_fwd", "keys\nattn_bwd/x", "x:15: attn_fwd/attn_fwd has 4 lines and 0 keys"),
        ("keys\nattn_fwd/attn_fwd", "keys", "x:14: keys without a kernel"),
        (
            "M=128 num_warps=8 al",
            "M=64 num_warps=8 al",
            "x:8: BLOCK_M=64 num_warps=8 aligned appears a second time",
        ),
        ("head_dim=128\n", "head_dim=64\n", "x:10: 'attn_fwd/attn_fwd dtype=bf16 head_dim=64' appears a second time"),
        ("keys\n", "", "x:14: '  dddddddddddd cccccccccccc aaaaaaaaaaaa bbbbbbbbbbbb' is not a line of a ledger"),
        ("<<<<<<< HEAD", "", ""),
    ],
)
def test_mistakes(old, new, sentence):
    text = TEXT.replace(old, new, 1) if sentence else "<<<<<<< HEAD\n" + TEXT
    with pytest.raises(ArtifactError) as caught:
        ledger_file.parse(text, "x")
    assert str(caught.value).startswith(sentence or "x:1: '<<<<<<< HEAD'")


def test_lines_out_of_order_are_mended_by_an_update():
    first, second = TEXT.splitlines(keepends=True)[6:8]
    text = TEXT.replace(first + second, second + first)
    with pytest.raises(LedgerError, match="x:1: lines are out of order"):
        ledger_file.parse(text, "x")
    assert ledger_file.parse(text, "x", in_order=False).lines.keys() == EXAMPLE.lines.keys()


def test_a_configuration_that_gained_or_lost_settings_is_the_same():
    def of(configuration: str, specialization: str = "aligned") -> Place:
        return Place("attn_fwd/attn_fwd", "dtype=bf16", configuration, specialization)

    old = of("BLOCK_M=128 num_warps=8")
    limited = of("BLOCK_M=128 num_warps=8 maxnreg=128")
    assert former(limited, {old: 1}, {limited}) == old
    assert former(old, {limited: 1}, {old}) == limited
    assert former(old, {old: 1, limited: 1}, {old}) == old
    assert former(limited, {old: 1}, {limited, old}) is None, "it is there still"
    assert former(of("BLOCK_M=64 num_warps=8"), {old: 1}, set()) is None
    assert former(of("BLOCK_M=128 num_warps=8 maxnreg=128", "generic"), {old: 1}, set()) is None
    both = {of("num_warps=8"): 1, old: 1}
    assert former(limited, both, {limited}) == old, "the nearest"


def test_a_file_that_is_not_there_or_no_text(tmp_path):
    assert ledger_file.read(tmp_path / "x.txt") is None
    (tmp_path / "x.txt").mkdir()
    with pytest.raises(EnvironmentProblem, match=r"x.txt cannot be read .Is a directory.; restore"):
        ledger_file.read(tmp_path / "x.txt")


@given(st.integers(0, len(TEXT) - 1), st.sampled_from([b"", b"\xff", b"\x00"]))
def test_a_file_that_was_cut_or_is_no_text_is_damaged(at, then):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "x.txt")
        path.write_bytes(TEXT.encode()[:at] + then)
        with pytest.raises((ArtifactError, LedgerError)) as caught:
            ledger_file.read(path)
    assert str(caught.value).startswith(f"{path}:") and "\n" not in str(caught.value)
    # Without its last end of line alone, all that it says is there.
    assert caught.value.exit_code == (9 if (at, then) == (len(TEXT) - 1, b"") else 6)
