"""tests/gpu/models.py, which runs on a GPU what `kiln coverage` calls served: here on the definition of attention, with
small models of every kind; and a wrong result, or a refusal, is seen."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import kiln.torch as kt
from kiln.errors import UnsupportedError

sys.path.append(str(Path(__file__).resolve().parents[1] / "gpu"))
import models

KIND = {
    "name": "attention", "heads": 4, "heads_kv": 2, "head_dim": 16, "head_dim_v": 16, "dtype": "fp32",
    "cache_dtype": "fp32", "causal": True, "window": 0, "softcap": 0.0, "dropout": 0.0, "sinks": False, "bias": False,
    "alibi": False, "cross": False, "rows": 12, "keys": 12,
}  # fmt: skip
KINDS = {
    "plain": {},
    "two widths": {"head_dim_v": 8},
    "window and sinks": {"window": 5, "sinks": True},
    "softcap": {"softcap": 5.0},
    "bias": {"bias": True, "heads_kv": 4},
    "alibi": {"alibi": True},
    "bidirectional": {"causal": False},
    "cross": {"causal": False, "cross": True, "keys": 20},
    "dropout": {"dropout": 0.25},
}


def document(changes: dict) -> dict:
    """What `kiln coverage --json` says of a model with this kind of attention, all served."""
    uses = ("prefill", "decode", "training") if changes.get("causal", True) or "cross" in changes else ("prefill",)
    return {
        "source": "test",
        "models": [{"name": "model", "kinds": [{**KIND, **changes}]}],
        "verdicts": [
            {"model": "model", "attention": "attention", "use": use, "target": "sm_90", "served": True, "images": []}
            for use in uses
        ],
    }


@pytest.mark.parametrize("changes", KINDS.values(), ids=KINDS)
def test_what_is_right_is_right(definition, changes: dict) -> None:
    results = list(models.run(document(changes), "cpu"))
    assert results and all(one.is_right for one in results), results


def test_what_is_wrong_or_refused_is_seen(definition, monkeypatch: pytest.MonkeyPatch) -> None:
    attention = kt.attention
    monkeypatch.setattr(kt, "attention", lambda *arrays, **named: attention(*arrays, **{**named, "window": (3, 0)}))
    results = {one.use: one for one in models.run(document({}), "cpu")}
    assert not results["prefill"].is_right and results["decode"].is_right

    def refuse(*arrays: object, **named: object) -> None:
        raise UnsupportedError("no image")

    monkeypatch.setattr(kt, "decode", refuse)
    results = {one.use: one for one in models.run(document({}), "cpu")}
    assert results["decode"].problem == "UnsupportedError: no image"
    assert "UnsupportedError: no image" in "\n".join(models.table([*results.values()]))
