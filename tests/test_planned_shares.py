"""What `kiln plan` says of modelled shares: from a ledger, whether it is there or not."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from kiln_build.ledger import file as ledger_file
from kiln_build.ledger.file import Facts, Ledger, Line, Place
from kiln_build.ledger.planned import Shares, said_of_shares, spell_shares

NAMES = ("BLOCK_M=128", "BLOCK_M=64", "BLOCK_M=32")
KERNEL = SimpleNamespace(
    family="flash", target=SimpleNamespace(name="gfx942"), operation="attn_fwd",
    kernel=SimpleNamespace(name="attn_fwd", specializations=[SimpleNamespace(name="aligned")]),
    configurations=[SimpleNamespace(name=name) for name in NAMES],
)  # fmt: skip


@pytest.fixture
def shares(tmp_path) -> Shares:
    known = {("dtype=bf16", NAMES[0]): 433, ("dtype=bf16", NAMES[1]): 481, ("dtype=fp16", NAMES[0]): 512,
             ("dtype=fp16", NAMES[1]): 0, ("dtype=fp16", NAMES[2]): None}  # fmt: skip
    lines = {
        Place("attn_fwd/attn_fwd", functional, configuration, "aligned"): Line("0" * 12, Facts(1, 0, 0, 4, 1, share))
        for (functional, configuration), share in known.items()
    }
    ledger = Ledger("flash", "gfx942", "0" * 12, "3.8.0", lines, has_shares=True)
    ledger_file.write(ledger_file.path_of(tmp_path, "flash", "gfx942"), ledger)
    return Shares(tmp_path)


def test_shares_by_name(shares):
    assert shares(KERNEL, "dtype=bf16", NAMES[0], "aligned") == 433
    assert shares(KERNEL, "dtype=bf16", NAMES[2], "aligned") is None
    assert shares(KERNEL, "dtype=fp16", NAMES[1], "aligned") is None, "it multiplies no matrices"


def test_what_is_taken_and_what_would_be_better(shares):
    both = ["dtype=bf16", "dtype=fp16"]
    assert said_of_shares(KERNEL, both, NAMES[0], shares) == "; modelled 0.433-0.512; BLOCK_M=64 reaches 0.481"
    assert said_of_shares(KERNEL, both[1:], NAMES[0], shares) == "; modelled 0.512"
    assert said_of_shares(KERNEL, both, NAMES[2], shares) == ""


def test_without_a_ledger_nothing_is_said(tmp_path):
    assert said_of_shares(KERNEL, ["dtype=bf16"], NAMES[0], Shares(tmp_path / "none")) == ""
    assert spell_shares([None, 0]) == ""
