"""What is drawn: calls for a path that others do not take, and a sample of variants."""

from __future__ import annotations

import itertools

import pytest

pytest.importorskip("torch", reason="needs PyTorch")

import sample
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


CHOICES = {"dtype": ("bf16", "fp16", "fp32"), "head_dim": (16, 32, 64, 128), "extras": ("none", "bias", "any")}


def functionals() -> list[tuple[str, str]]:
    """Of two operations, one of whose kernels has fewer choices."""
    rows = [dict(zip(CHOICES, values)) for values in itertools.product(*CHOICES.values())]
    words = [" ".join(f"{name}={value}" for name, value in row.items()) for row in rows]
    padded = [f"{word} padded={value}" for word in words for value in ("false", "true")]
    return [
        *(("fwd", word) for word in padded),
        *(("bwd", word) for word in words),
        *(("bwd", f"dtype={d}") for d in CHOICES["dtype"]),
    ]


def test_a_sample_has_each_two_values_together():
    every = functionals()
    some = [one for one, is_drawn in zip(every, sample.sampled(every, 1)) if is_drawn]
    for operation in ("fwd", "bwd"):
        rows = {
            sample.row_of(functional) for name, functional in some if name == operation and "head_dim" in functional
        }
        wanted = len(CHOICES["head_dim"]) * len(CHOICES["dtype"])
        assert wanted <= len(rows) < 1.5 * wanted, "of 36 combinations"
        for one, other in itertools.combinations(CHOICES, 2):
            pairs = {(dict(row)[one], dict(row)[other]) for row in rows}
            assert len(pairs) == len(CHOICES[one]) * len(CHOICES[other])


def test_a_sample_has_all_that_a_call_of_its_rows_launches():
    every = functionals()
    some = [one for one, is_drawn in zip(every, sample.sampled(every, 1)) if is_drawn]
    assert {f"dtype={dtype}" for dtype in CHOICES["dtype"]} <= {
        functional for name, functional in some if name == "bwd"
    }
    forward = {functional for name, functional in some if name == "fwd"}
    assert {word.replace("padded=true", "padded=false") for word in forward} <= forward


def test_a_sample_of_a_sample_is_all_of_it():
    every = functionals()
    some = [one for one, is_drawn in zip(every, sample.sampled(every, 1)) if is_drawn]
    assert all(sample.sampled(some, 1))
    assert all(sample.sampled(some[::-1], 1))
    assert sample.sampled(every, 2) != sample.sampled(every, 1)
