"""The MessagePack decoder against msgspec's encoder, and against anything at all."""

from __future__ import annotations

import contextlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kiln_recipe.images import messagepack

documents = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text()
    | st.binary(max_size=300),
    lambda inner: st.lists(inner, max_size=20) | st.dictionaries(st.text(max_size=40), inner, max_size=20),
    max_leaves=30,
)  # fmt: skip


@given(documents)
def test_reads_what_msgspec_writes(document):
    assert messagepack.unpack(msgspec.msgpack.encode(document)) == document


@pytest.mark.parametrize("size", [15, 16, 31, 32, 255, 256, 65535, 65536])
def test_every_length_of_length(size):
    for document in ("x" * size, b"x" * size, [1] * size, {str(i): i for i in range(size)}):
        assert messagepack.unpack(msgspec.msgpack.encode(document)) == document


@given(st.binary(max_size=60))
def test_anything_is_a_document_or_a_value_error(data):
    with contextlib.suppress(ValueError):
        messagepack.unpack(data)


@given(documents)
def test_truncated_or_followed_by_more(document):
    data = msgspec.msgpack.encode(document)
    for bad in (data[:-1], data + b"\0"):
        with pytest.raises(ValueError):
            messagepack.unpack(bad)


def test_single_floats_and_refused_types():
    assert messagepack.unpack(b"\xca\x3f\xc0\0\0") == 1.5
    with pytest.raises(ValueError, match="tag 0xd4"):
        messagepack.unpack(b"\xd4\1\1")
    with pytest.raises(ValueError, match="too deeply"):
        messagepack.unpack(b"\x91" * 100 + b"\1")
    with pytest.raises(ValueError, match="truncated"):
        messagepack.unpack(b"\xdd\xff\xff\xff\xff")
