"""JSON as its standard has it: what is read, what is refused by its place, and what is written."""

from __future__ import annotations

import json
import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kiln_recipe import plain_json

FINITE = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
NOT_FINITE = st.sampled_from([math.nan, math.inf, -math.inf])


def documents(leaf):
    return st.recursive(leaf, lambda inner: st.lists(inner) | st.dictionaries(st.text("abc", min_size=1), inner))


def looked_up(document, place):
    for name, number in re.findall(r"([a-c]+)|\[(\d+)\]", place):
        document = document[name or int(number)]
    return document


@given(documents(FINITE))
def test_what_is_valid_is_read_as_it_is(document):
    assert plain_json.read(json.dumps(document)) == plain_json.read(json.dumps(document).encode()) == document
    assert plain_json.nulled(document) == document


@given(documents(FINITE | NOT_FINITE))
def test_what_is_not_finite_is_named_and_written_as_null(document):
    text = json.dumps(document)
    nulled = json.dumps(plain_json.nulled(document), allow_nan=False)
    assert len(plain_json.read(nulled)) == len(document) if isinstance(document, (list, dict)) else True
    try:
        assert json.loads(json.dumps(document, allow_nan=False)) == plain_json.read(text)
    except ValueError:
        with pytest.raises(ValueError, match="which is not a finite number") as caught:
            plain_json.read(text)
        place, value = str(caught.value).removesuffix(", which is not a finite number").split(" is ")
        assert str(looked_up(document, "" if place == "it" else place)).lower() == str(float(value)).lower()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('{"rows": [{"seconds": 1e999}]}', "rows[0].seconds is Infinity, which is not a finite number"),
        ("-1e999", "it is -Infinity, which is not a finite number"),
        ('{"a": 1e999, "a": 1}', "a field that is given twice is 1e999, which is not a finite number"),
        (f'{{"{"a" * 999}": NaN}}', f"{'a' * 197}... is NaN, which is not a finite number"),
        ("[" * 100_000, "it is nested too deep"),
    ],
)
def test_what_is_refused(text, sentence):
    with pytest.raises(ValueError, match=re.escape(sentence)):
        plain_json.read(text)
