"""What is drawn: calls for a path that others do not take, and a sample of variants."""

from __future__ import annotations

import itertools

import pytest

pytest.importorskip("torch", reason="needs PyTorch")

import run
from decode_calls import DecodeCall
from drawn import MOST_KEYS, MOST_ROWS, drawn_calls

FUNCTIONALS = {
    "attn_fwd": ("attn_fwd.amd", "dtype=bf16 head_dim=128 padded=false extras=none"),
    "attn_bwd": ("attn_bwd_dq", "dtype=fp16 head_dim=64 padded=true extras=any"),
    "attn_decode": ("attn_decode.general", "dtype=fp16 cache_dtype=fp16 head_dim=64 extras=none"),
}


@pytest.mark.parametrize("operation", FUNCTIONALS)
def test_calls_are_of_the_functional_and_small(operation):
    kernel, functional = FUNCTIONALS[operation]
    calls = list(itertools.islice(drawn_calls(operation, functional, kernel, 1), 40))
    assert calls == list(itertools.islice(drawn_calls(operation, functional, kernel, 1), 40))
    assert calls != list(itertools.islice(drawn_calls(operation, functional, kernel, 2), 40))
    for call in calls:
        assert f"dtype={call.dtype} " in functional
        assert call.rows <= MOST_ROWS and call.keys <= MOST_KEYS and call.heads % call.heads_kv == 0, call
        if "extras=none" in functional:
            assert not (call.softcap or call.alibi or call.sinks), call
        if isinstance(call, DecodeCall):
            assert not call.fp8 and len(call.used) in (0, call.batch) and len(call.lengths_q) in (0, call.batch), call
        else:
            assert call.backward == (operation == "attn_bwd") and len(call.lengths_k) in (0, call.batch), call


def test_a_sample_has_one_of_each_group():
    variants = [
        {"kernel": kernel, "functional": f"dtype={dtype} head_dim={size} padded={padded} extras=none", "key": str(key)}
        for key, (kernel, dtype, size, padded) in enumerate(
            itertools.product(("dq", "dk_dv"), ("bf16", "fp16"), (16, 32, 64, 80, 96, 128), ("true", "false"))
        )
    ]
    some = run.drawn(variants, 1)
    assert len(some) == 2 * 2 * 3, "up to 32, 64 and 128"
    assert some == run.drawn(list(reversed(variants)), 1)[::-1]
    assert some != run.drawn(variants, 2)
