"""What compiles are expected to take, and how what they took is kept."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import small_recipe
from kiln_build.farm.durations import Basis, Durations, work
from kiln_build.store import durations as lines
from kiln_build.store.store import Took, is_time
from kiln_recipe import targets
from kiln_recipe.plan import plan
from kiln_recipe.read import recipe

seconds = st.floats(0, 1e6).map(lambda number: round(number, 3))
records = st.dictionaries(st.text(), st.builds(Took, seconds, st.none() | seconds))


def variant(name: str) -> SimpleNamespace:
    return SimpleNamespace(name=name, spec=None)


@pytest.mark.parametrize("number", [-0.001, math.inf, -math.inf, math.nan])
def test_what_is_no_time(number):
    assert not is_time(number) and is_time(0.0) and is_time(1e6)


# ---- what is kept ----


@given(records)
def test_what_was_written_is_read_again(known):
    assert lines.decode(b"".join(lines.encode(name, one) for name, one in known.items())) == known


@given(st.binary())
def test_any_bytes_are_read(data):
    for name, one in lines.decode(data).items():
        assert isinstance(name, str) and all(0 <= number < math.inf for number in one if number is not None)


def test_lines_that_say_nothing_are_passed_over():
    data = b'["a",1.5]\n["b",2,1]\n["c",-1]\n["d",1e999]\n["e"]\n["f",1,2,3]\n{"g":1}\n["a",3.0,2.5]\n["h",1'
    assert lines.decode(data) == {"a": Took(3.0, 2.5), "b": Took(2.0, 1.0)}


damaged_lines = st.binary(max_size=20).map(lambda data: b"{" + data.replace(b"\n", b""))


@given(records, st.lists(damaged_lines, max_size=4), st.booleans())
def test_damaged_lines_are_counted_and_one_on_its_way_is_not(known, damage, is_torn):
    whole = [lines.encode(name, one) for name, one in known.items()]
    data = b"".join([*(line + b"\n" for line in damage), *whole]) + (b'["a",1' if is_torn else b"")
    told: list[str] = []
    assert lines.decode(data, told.append) == known
    every = len(known) + len(damage)
    said = f"{len(damage)} of {every} lines are damaged" if every > 1 else "its line is damaged"
    assert told == ([said] if damage else [])


def test_seconds_of_processors_count_where_they_are_known():
    assert work({"a": Took(9.0, 2.0), "b": Took(3.0)}) == {"a": 2.0, "b": 3.0}


# ---- what is expected ----


def test_what_was_recorded_is_expected_again():
    expected = Durations({"k[a][b][c]@sm_90": Took(9.0, 2.0)})(variant("k[a][b][c]@sm_90"))
    assert expected == (2.0, Basis.RECORDED)


@pytest.mark.parametrize(
    ("name", "seconds"),
    [
        ("k[a][b][new]@sm_90", 2.0),
        ("k[a][new][c]@sm_90", 3.0),
        ("k[new][b][c]@sm_90", 4.0),
        ("k[a][x][c]@gfx942", 20.0),  # the same variant on the one of its family that was recorded
        ("k[new][x][c]@gfx950", 20.0),  # the same kernel there
    ],
)
def test_what_is_new_is_expected_of_its_nearest_kin(name, seconds):
    known = {"k[a][b][c]@sm_90": 2.0, "k[a][d][c]@sm_90": 4.0, "k[e][b][c]@sm_90": 6.0, "k[a][x][c]@gfx90a": 20.0}
    expected = Durations({name: Took(one) for name, one in known.items()})(variant(name))
    assert expected == (pytest.approx(seconds), Basis.KIN)


def test_kin_on_another_target_counts_by_what_its_compiler_takes():
    expected = Durations({"k[a]@sm_90": Took(3.0)})(variant("k[a]@sm_100"))
    ratio = targets.by_name("sm_100").compile_seconds / targets.by_name("sm_90").compile_seconds
    assert expected == (pytest.approx(3.0 * ratio), Basis.KIN)


def test_of_what_nothing_is_known_the_usual_is_expected(tmp_path):
    small = recipe.load(small_recipe.write(tmp_path))
    one = plan.make_plan([small], targets.parse("sm_90")).variants[0]
    foreign = {"k[a]@sm_90": Took(50.0), f"{one.name[:-6]}@no_such_target": Took(70.0), "": Took(1.0)}
    for durations in (Durations({}), Durations(foreign)):
        assert durations(one) == (pytest.approx(0.3 * targets.by_name("sm_90").compile_seconds), Basis.USUAL)
    assert not Durations({}) and Durations(foreign)
