"""SHA-256 against Python's, both of its ways."""

from __future__ import annotations

import ctypes
import hashlib

import nativebuild
import pytest
from hypothesis import given
from hypothesis import strategies as st


@pytest.fixture(scope="module", params=["portable", "the processor's"])
def digest_of(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("sha256")
    source = folder / "shim.cc"
    text = (nativebuild.CORE / "sha256.cc").read_text()
    if request.param == "portable":
        assert text.count("defined(__x86_64__)") == 3
        text = text.replace("defined(__x86_64__)", "0")
    source.write_text(
        text
        + '\nextern "C" __attribute__((visibility("default"))) void digest(const void* d, size_t n, unsigned char* o)'
        " { kiln::sha256(d, n, o); }\n"
    )
    library = folder / "shim.so"
    nativebuild.run(["c++", *nativebuild.CXX_FLAGS, "-I", nativebuild.CORE, "-shared", source, "-o", library])
    entry = ctypes.CDLL(str(library)).digest

    def digest(data: bytes) -> bytes:
        out = ctypes.create_string_buffer(32)
        entry(data, ctypes.c_size_t(len(data)), out)
        return out.raw

    return digest


@given(data=st.binary(max_size=300))
def test_any_bytes(digest_of, data):
    assert digest_of(data) == hashlib.sha256(data).digest()


def test_every_length(digest_of):
    for size in [*range(200), 4096, 100001]:
        data = bytes(i * 7 % 251 for i in range(size))
        assert digest_of(data) == hashlib.sha256(data).digest()
