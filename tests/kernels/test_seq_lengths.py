"""Where sequences begin and how long they are, made of sums or of nothing: interpreted, against numpy."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from interpreter import seq_lengths

UNWRITTEN = 77


@settings(max_examples=60, deadline=None)
@given(
    batch=st.sampled_from([0, 1, 2, 15, 16, 17, 40, 1000]), has_sums=st.booleans(), wants_lengths=st.booleans(),
    wants_begins=st.booleans(), spare=st.integers(0, 2), most=st.sampled_from([0, 1, 7, 2**31 - 1]),
    total=st.integers(0, 2**31 - 1), seed=st.integers(0, 99),
)  # fmt: skip
def test_drawn(child, batch, has_sums, wants_lengths, wants_begins, spare, most, total, seed):
    draw = np.random.default_rng(seed)
    sums = np.cumsum(draw.integers(0, 20, batch + 1)).astype(np.int32) if has_sums else None
    begins = draw.integers(0, 2**31, batch + spare).astype(np.int32) if wants_begins else None
    lengths, begins_out = child.submit(seq_lengths, sums, begins, batch, most, total, wants_lengths).result(timeout=300)
    expected = np.full(batch, most) if sums is None else np.diff(sums)
    if sums is not None and most:
        expected = np.minimum(expected, most)
    assert list(lengths) == [*(expected if wants_lengths else [UNWRITTEN] * batch), UNWRITTEN]
    assert list(begins_out) == [*([*begins[:batch], total] if wants_begins else [UNWRITTEN] * (batch + 1)), UNWRITTEN]


def test_sums_that_fall_are_no_lengths_below_none(child):
    """A kernel that is told of fewer than no rows could read before its tensor."""
    sums = np.array([5, 3, 9, -(2**31), 2**31 - 1], np.int32)
    lengths, _ = child.submit(seq_lengths, sums, None, 4, 0, 0, True).result(timeout=300)
    assert (lengths[:4] >= 0).all() and list(lengths[:2]) == [0, 6]
