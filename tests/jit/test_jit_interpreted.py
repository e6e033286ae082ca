"""The attention family by kiln.jit in Triton's interpreter, on the CPU, against float64: through the typed layer that
kiln.torch calls, with the recipe deciding on everything between."""

from __future__ import annotations

import pytest

DENSE = {"q": (2, 4, 21, 16), "k": (2, 2, 30, 16), "v": (2, 2, 30, 16)}
ROWS_FIRST = {"q": (2, 21, 4, 16), "k": (2, 30, 2, 16), "v": (2, 30, 2, 24)}
PACKED = {"q": (1, 4, 40, 16), "k": (1, 2, 45, 16), "v": (1, 2, 45, 16)}
UNBATCHED = {"q": (40, 4, 16), "k": (45, 2, 16), "v": (45, 2, 16)}
SEQUENCES = {"cu_seqlens_q": [0, 17, 17, 38], "cu_seqlens_k": [0, 20, 25, 45]}
CALLS = {
    "plain": (DENSE, {}, {}),
    "causal": (DENSE, {}, {"causal": True}),
    "window, bottom right": (DENSE, {}, {"window_left": 7, "window_right": 2, "bottom_right": True}),
    "rows first, wider v": (ROWS_FIRST, {}, {"rows_first": True, "causal": True}),
    "scale": (DENSE, {}, {"scale": -0.4}),
    "bias of all heads": (DENSE, {"bias": (2, 1, 21, 30)}, {}),
    "bias and a soft cap": (DENSE, {"bias": (1, 4, 21, 30)}, {"softcap": 2.0, "causal": True}),
    "alibi, a slope for each head": (DENSE, {"alibi_slopes": (4,)}, {"causal": True, "bottom_right": True}),
    "sinks": (DENSE, {"sinks": (4,)}, {"causal": True}),
    "a scale that fp32 makes 0": (DENSE, {}, {"scale": 1e-50}),
    "dropout": (DENSE, {}, {"dropout": 0.3, "rng": [12345, 678]}),
    "sequences": (PACKED, SEQUENCES, {"max_seqlen_q": 21, "max_seqlen_k": 20, "causal": True}),
    "sequences without a batch": (UNBATCHED, SEQUENCES, {"rows_first": True}),
    "used": (DENSE, {"seqused_q": [21, 9], "seqused_k": [13, 30]}, {}),
}
# Of AMD's forward: blocks of keys without a mask, one after another.
PLENTY = {"q": (1, 2, 21, 64), "k": (1, 1, 150, 64), "v": (1, 1, 150, 64)}


def attend(name: str, dtype: str, target: str) -> None:
    import against

    shapes, given, options = (PLENTY, {}, {}) if name == "keys in plenty" else CALLS[name]
    against.attend(shapes, dtype, len(name), given, options, target)


@pytest.mark.parametrize("name", CALLS)
def test_forward_and_backward(child, name):
    dtype = ("float32", "float16", "bfloat16")[list(CALLS).index(name) % 3]
    child(attend, name, dtype, "sm_90")


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_every_dtype(child, dtype):
    child(attend, "bias and a soft cap", dtype, "sm_80")


@pytest.mark.parametrize(
    ("name", "dtype", "target"),
    [("causal", "float16", "gfx1100"), *(("keys in plenty", "bfloat16", target) for target in ("gfx942", "gfx1100"))],
)
def test_the_configurations_of_amd_targets(child, name, dtype, target):
    child(attend, name, dtype, target)


DECODING = {
    "plain": frozenset(),
    "in parts": frozenset({"softcap", "sinks"}),
    "pages, appended, rotated": frozenset({"paged", "new", "rotary", "causal"}),
    "rotated in pairs": frozenset({"new", "rotary", "interleaved", "leftpad"}),
    "sequences, slopes": frozenset({"packed", "alibi", "causal"}),
    "rows first": frozenset({"new", "rows_first", "causal"}),
}


def decode(name: str, dtype: str, cache: str) -> None:
    import against

    against.decode(dtype, cache, len(name), DECODING[name], splits=3 if name == "in parts" else 0)


@pytest.mark.parametrize("name", DECODING)
def test_decoding(child, name):
    dtype = ("float32", "float16", "bfloat16")[list(DECODING).index(name) % 3]
    child(decode, name, dtype, dtype)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_cache_of_fp8(child, dtype):
    child(decode, "pages, appended, rotated", dtype, "float8_e4m3fn")


def mask_of_dropout(dtype: str) -> None:
    import against

    against.mask_of_dropout(dtype)


@pytest.mark.parametrize("dtype", ["uint8", "float16", "bfloat16", "float32"])
def test_the_mask_of_dropout(child, dtype):
    child(mask_of_dropout, dtype)
