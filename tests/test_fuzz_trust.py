"""Keys, signatures, lists, statements and envelopes that somebody has made up: whatever they hold, the parser raises
its own error or reads them, and what it has read it would write in the same way."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Sequence

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kiln_build.trust import check, minisign, provenance, statement
from kiln_build.trust.minisign import PublicKey, SecretKey, Signature
from kiln_build.trust.statement import Statement
from kiln_recipe.errors import ArtifactError, KilnError, TrustError, UsageError

KEY = SecretKey(b"a number", bytes(range(32)))
TARBALL = "kiln-0.1.0b-manylinux_2_28_x86_64-shared.tar.gz"
SIGNED = minisign.sign(KEY, [b"data"], Statement("tarball", "0.1.0b", f"{TARBALL}.sha256").spell()).spell()
PUBLIC = f"untrusted comment: minisign public key\n{KEY.public.spell()}\n".encode()
SECRET = b"untrusted comment: a secret key\n" + base64.b64encode(
    b"Ed\0\0B2" + bytes(48) + KEY.id + KEY.seed + KEY.public.key + bytes(32)
)
LIST = f"{hashlib.sha256().hexdigest()}  {TARBALL}\n".encode()
SAID = provenance.envelope(b'{"_type": "x"}', KEY)
WHOLE = (SIGNED, PUBLIC, SECRET, LIST, SAID)


@st.composite
def changed(draw: st.DrawFn, whole: Sequence[bytes]) -> bytes:
    """One of these files with some pieces cut out, doubled, put elsewhere or written over; or anything at all."""
    data = bytearray(draw(st.sampled_from(whole)))
    for _ in range(draw(st.integers(0, 4))):
        begin = draw(st.integers(0, len(data)))
        end = draw(st.integers(begin, min(begin + 80, len(data))))
        piece = draw(
            st.one_of(
                st.binary(max_size=8),
                st.sampled_from([b"\n", b"\r\n", b"=", b"untrusted comment: ", b"trusted comment: ", b"\0", b"kiln "]),
                st.just(bytes(data[begin:end]) * 2),
            )
        )
        data[begin:end] = piece
    return bytes(data)


def given_files(whole: Sequence[bytes] = WHOLE) -> Callable:
    def decorate(test: Callable) -> Callable:
        for one in (*whole, b"", b"\n" * 9000, b"\xff" * 100):
            test = example(one)(test)
        return given(st.one_of(changed(whole), st.binary(max_size=300)))(settings(max_examples=400)(test))

    return decorate


@given_files()
def test_signatures(data):
    try:
        found = minisign.read_signature(data, "x.minisig")
    except KilnError as error:
        assert type(error) is TrustError and str(error).startswith("x.minisig") and str(error).isprintable()
        return
    assert isinstance(found, Signature)
    lines = found.spell().split(b"\n")[1:]
    assert data.split(b"\n")[1:4] == lines[:3], "but for the first line, which nobody vouches for"
    try:
        said = statement.read(found.comment, "x.minisig")
    except KilnError as error:
        assert type(error) is TrustError and str(error).isprintable()
    else:
        assert said.spell().encode() == found.comment
    is_ours = minisign.is_signed(KEY.public, found, [b"data"])
    assert not is_ours or lines == SIGNED.split(b"\n")[1:], "there is one signature by this key"


@given_files()
def test_public_keys(data):
    try:
        found = minisign.read_public_key(data, "x.pub")
    except KilnError as error:
        assert type(error) is UsageError and str(error).startswith("x.pub: ") and str(error).isprintable()
    else:
        assert isinstance(found, PublicKey) and found.spell().encode() in data.split(b"\n")


@given_files((SECRET, PUBLIC))
def test_secret_keys(data):
    try:
        minisign.is_encrypted(data)
    except KilnError as error:
        assert type(error) is UsageError
    try:
        found = minisign.read_secret_key(data, b"", "x.key")
    except KilnError as error:
        assert type(error) is UsageError and "x.key" in str(error) and str(error).isprintable()
    else:
        assert found.public.key == KEY.public.key


@given(st.binary(max_size=200), st.integers(0, 158))
def test_secret_keys_of_unknown_kinds(noise, place):
    """Behind base64 that is in order."""
    raw = bytearray(base64.b64decode(SECRET.split(b"\n")[1]))
    raw[place : place + len(noise)] = noise[: len(raw) - place]
    if bytes(raw[2:4]) == b"Sc":
        raw[2:4] = b"\0\0"  # what asks scrypt for a gigabyte has a test of its own
    data = SECRET.split(b"\n")[0] + b"\n" + base64.b64encode(bytes(raw))
    try:
        minisign.read_secret_key(data, b"", "x.key")
    except KilnError as error:
        assert type(error) is UsageError and "x.key" in str(error)


@given_files((LIST, LIST * 2, SIGNED))
def test_lists(data):
    try:
        rows = check.read_list(data, "x.sha256")
    except KilnError as error:
        assert type(error) is ArtifactError and str(error).startswith("x.sha256 ")
    else:
        assert "".join(f"{digest}  {name}\n" for digest, name in rows).encode() == data


@given_files((SAID, b'{"_type": "x"}'))
def test_envelopes(data):
    try:
        found = provenance.check_envelope(data, "x.jsonl", b'{"_type": "x"}', {KEY.public.name: KEY.public})
    except KilnError as error:
        assert type(error) is TrustError and str(error).startswith("x.jsonl ")
    else:
        assert found == KEY.public.name and data == SAID


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.just("source")),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(
                ["_type", "subject", "predicate", "predicateType", "buildDefinition", "runDetails", "name", "digest",
                 "externalParameters", "resolvedDependencies", "builder", "metadata", "version", "sha256", "gitCommit"]
            ),
            inner,
            max_size=4,
        ),
    ),
    max_leaves=20,
)  # fmt: skip


@given(st.one_of(JSON.map(lambda value: json.dumps(value).encode()), changed((SAID,)), st.binary()))
def test_provenances(data):
    with pytest.raises(KilnError) as caught:
        provenance.read(data, "x.json", TARBALL, "0" * 64)
    assert type(caught.value) in (ArtifactError, TrustError) and str(caught.value).startswith("x.json ")


def test_the_seeds_are_what_they_say():
    """Else nothing above reads anything."""
    assert minisign.is_signed(KEY.public, minisign.read_signature(SIGNED, ""), [b"data"])
    assert minisign.read_public_key(PUBLIC, "") == KEY.public
    assert minisign.read_secret_key(SECRET, b"", "") == KEY
    assert check.read_list(LIST, "") == [(hashlib.sha256().hexdigest(), TARBALL)]
