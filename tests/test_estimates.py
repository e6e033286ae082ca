"""What jobs are expected to take, by their relatives."""

from __future__ import annotations

import pytest

from kiln_build.farm.estimates import Estimates


@pytest.mark.parametrize(
    "name, expected",
    [
        ("k[1][2][x]@t", 1.0),
        ("k[1][2][z]@t", 1.5),
        ("k[1][9][x]@t", (1 + 2 + 6) / 3),
        ("k[7][9][x]@t", (1 + 2 + 6) / 3),
        ("k[1][2][x]@u", None),
        ("j[1][2][x]@t", None),
        ("plain", None),
    ],
)
def test_the_nearest_relatives_count(name, expected):
    assert Estimates({"k[1][2][x]@t": 1.0, "k[1][2][y]@t": 2.0, "k[1][3][x]@t": 6.0})(name) == expected


def test_what_was_learned_later_counts_too():
    estimates = Estimates({"k[1][x]@t": 1.0})
    assert (estimates.mean, estimates("k[1][y]@t"), "k[1][y]@t" in estimates) == (1.0, 1.0, False)
    estimates.add("k[1][z]@t", 3.0)
    assert (estimates.mean, estimates("k[1][y]@t"), estimates("k[1][z]@t")) == (2.0, 2.0, 3.0)
    assert not Estimates({}) and Estimates({}).mean == 0
