"""Every architecture that the installed Transformers builds from a tiny configuration: none is wrong.

Every sixteenth here, and those whose attention once went wrong; all with KILN_TEST_ARCHITECTURES=all, which takes
minutes.
As a program of its own, for other versions or on a GPU: see every_architecture.py.
"""

from __future__ import annotations

import os

import pytest

pytest.importorskip("transformers", minversion="5.4", reason="needs transformers 5.4 or later")

import every_architecture as every
import torch

PARTS = 16
# Written out, or by a function of their own: once wrong in silence or a KeyError, now served or refused.
ONCE_WRONG = """
bloom codegen xglm mpt mpnet rembert megatron-bert roformer ibert convbert squeezebert falcon gptj gpt_neo
doge
"""
CHOSEN = range(PARTS) if os.environ.get("KILN_TEST_ARCHITECTURES") == "all" else [0]


def examined(architectures: list[tuple[str, str]]) -> list[every.Finding]:
    """Findings, of which none is WRONG."""
    torch.set_num_threads(1)
    findings = every.examine_all(architectures, "cpu", torch.float32, every.CLOSE, print)
    assert not [f for f in findings if f.verdict == "WRONG"]
    return findings


@pytest.mark.parametrize("part", CHOSEN)
def test_no_architecture_is_wrong(part):
    findings = examined(every.architectures()[part::PARTS])
    # The rules of tiny_configs.py fit what is installed.
    assert [f.verdict for f in findings].count("served") > len(findings) // 3


def test_what_was_wrong_once():
    types = {t: n for t, n in every.architectures() if t in ONCE_WRONG.split()}
    findings = examined(list(types.items()))
    assert {f.name for f in findings if f.verdict in ("served", "own code", "refused")} == set(ONCE_WRONG.split())


def test_what_is_known_of_some():
    """What the verdicts are made of."""
    names = {"llama": "served", "bloom": "own code", "falcon": "refused", "mamba": "no attention"}
    chosen = [(t, n) for t, n in every.architectures() if t in names and n.endswith("ForCausalLM")]
    findings = every.examine_all(chosen, "cpu", torch.float32, every.CLOSE, print)
    assert {f.name: f.verdict for f in findings} == names
    bloom = next(f for f in findings if f.name == "bloom")
    assert bloom.warned and bloom.own == bloom.eager and max(bloom.errors.values()) == 0.0
