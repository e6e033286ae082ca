"""What is drawn: calls for a path that others do not take, and a sample of variants."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs PyTorch")

import sample
from decode_calls import DecodeCall
from drawn import MOST_KEYS, MOST_ROWS, drawn_calls

from kiln_recipe import targets
from kiln_recipe.plan import plan
from kiln_recipe.read import recipe
from kiln_recipe.selection import CHOSEN

ROOT = Path(__file__).resolve().parents[2]

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


@pytest.fixture(scope="module")
def plans():
    """Of the full profile and of core, for a target."""
    recipes = [recipe.load(path) for path in recipe.find(ROOT)]
    return [plan.make_plan(recipes, targets.parse("gfx942"), profile, (), ROOT / "tuning", CHOSEN)
            for profile in ("full", "core")]  # fmt: skip


def test_few_are_images_that_core_lacks_and_what_their_calls_launch(plans):
    full, core = plans
    there = {variant.spec for variant in core.variants}
    some = sample.narrowed(full, 1, core, 20).variants
    lacking = {variant.spec for variant in some} - there
    assert 20 <= len(lacking) < 40
    assert {variant.operation for variant in some if variant.spec in lacking} == {"attn_fwd", "attn_bwd", "attn_decode"}
    forward = {variant.functional for variant in some if variant.operation == "attn_fwd"}
    wide = {variant.functional for variant in some if "head_dim" in variant.functional}
    assert {variant.functional for variant in some if variant.operation == "attn_bwd"} & wide <= forward
    for variant in some:  # a look-up takes a configuration of which all specializations are there
        place = variant.kernel, variant.functional, variant.configuration
        alike = {v.name for v in full.variants if (v.kernel, v.functional, v.configuration) == place}
        assert alike <= {v.name for v in some}


def test_few_are_drawn_by_the_seed_and_their_release_says_so(plans):
    full, core = plans
    drawn = [sample.narrowed(full, seed, core, 12) for seed in (1, 1, 2)]
    names = [[variant.name for variant in one.variants] for one in drawn]
    assert names[0] == names[1] != names[2]
    absent = {reason for kernel in drawn[2].kernels for reason in kernel.absent.values()}
    assert {sample.drawn_by(reason) for reason in absent} == {"", "2"}
