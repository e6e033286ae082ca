"""Every architecture that the installed Transformers builds from a tiny configuration: none is wrong.

As a program of its own, for other versions or on a GPU: see every_architecture.py.
"""

from __future__ import annotations

import pytest

pytest.importorskip("transformers", minversion="5.4", reason="needs transformers 5.4 or later")

import every_architecture as every
import torch

PARTS = 8


@pytest.mark.parametrize("part", range(PARTS))
def test_no_architecture_is_wrong(part):
    torch.set_num_threads(1)
    findings = every.examine_all(every.architectures()[part::PARTS], "cpu", torch.float32, every.CLOSE, print)
    assert not [f for f in findings if f.verdict == "WRONG"]
    verdicts = [f.verdict for f in findings]
    assert verdicts.count("served") > len(verdicts) // 3  # the rules of tiny_configs.py fit what is installed


def test_what_is_known_of_some():
    """What the verdicts are made of."""
    names = {"llama": "served", "bloom": "own code", "falcon": "refused", "mamba": "no attention"}
    chosen = [(t, n) for t, n in every.architectures() if t in names and n.endswith("ForCausalLM")]
    findings = every.examine_all(chosen, "cpu", torch.float32, every.CLOSE, print)
    assert {f.name: f.verdict for f in findings} == names
    bloom = next(f for f in findings if f.name == "bloom")
    assert bloom.warned and bloom.own == bloom.eager and max(bloom.errors.values()) == 0.0
