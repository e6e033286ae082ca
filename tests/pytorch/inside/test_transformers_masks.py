"""What kiln.torch's masks for Transformers say, against Transformers' own, whatever lengths, windows and padding."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("transformers", minversion="5.4", reason="needs transformers 5.4 or later")

from transformers import masking_utils

from kiln.torch.transformers_attention import _cached, _without_mask
from kiln.torch.transformers_masks import Pattern, make_mask

QUERY = torch.zeros(1, 1, 1, 1)


def told(pattern: Pattern, rows: int, keys: int) -> torch.Tensor:
    """[batch or 1, rows, keys], true where a row sees a key, by what the pattern says."""
    used = torch.full((1,), keys) if pattern.seqused_k is None else pattern.seqused_k.long()
    i, j = torch.arange(rows)[None, :, None], torch.arange(keys)[None, None, :]
    i = i + (used[:, None, None] - rows if pattern.bottom_right else 0)
    seen = (j < used[:, None, None]) & torch.ones_like(i, dtype=torch.bool)
    left, right = pattern.window
    right = 0 if pattern.causal else right
    seen = seen & (j >= i - left) if left >= 0 else seen
    seen = seen & (j <= i + right) if right >= 0 else seen
    return seen if pattern.keys is None else seen & pattern.keys[:, 0]


def alone(pattern: Pattern, batch: int, rows: int) -> torch.Tensor:
    """[batch, rows, rows] by the lengths of packed sequences."""
    number = torch.searchsorted(pattern.cu_seqlens[1:].long(), torch.arange(batch * rows), right=True)
    number = number.reshape(batch, rows)
    assert pattern.longest == pattern.cu_seqlens.diff().max()
    return number[:, :, None] == number[:, None, :]


kinds = st.sampled_from(["causal", "window", "chunk", "both", "wide", "custom"])


@settings(deadline=None, max_examples=600)
@given(st.data())
def test_a_mask_says_what_it_is(data):
    batch, rows = data.draw(st.integers(1, 3), "batch"), data.draw(st.integers(1, 9), "rows")
    past, room = data.draw(st.integers(0, 9), "past"), data.draw(st.integers(0, 5), "room")
    cut = data.draw(st.integers(0, past), "kv_offset")  # keys that a sliding cache has let go
    keys = past - cut + rows + room
    kind, size = data.draw(kinds, "kind"), data.draw(st.integers(1, 12), "size")
    is_tensor = data.draw(st.booleans(), "offset as a tensor")
    tells = data.draw(st.booleans(), "told")
    config = SimpleNamespace(model_type="mistral" if tells else "else", sliding_window=size, attention_chunk_size=None)
    call = {"batch_size": batch, "q_length": rows, "kv_length": keys, "kv_offset": cut, "config": config,
            "q_offset": torch.tensor(past) if is_tensor else past, "device": torch.device("cpu")}  # fmt: skip
    functions = {
        "causal": masking_utils.causal_mask_function,
        "window": masking_utils.sliding_window_causal_mask_function(size),
        "chunk": masking_utils.chunked_causal_mask_function(size, torch.zeros(batch, dtype=torch.int64)),
        "both": masking_utils.bidirectional_mask_function,
        "wide": masking_utils.sliding_window_bidirectional_mask_function(size),
        "custom": lambda b, h, q, k: (k + q) % 3 < 2,
    }
    call["mask_function"] = functions[kind]
    if kind in ("window", "chunk", "wide"):
        call["local_size"] = size
    if kind == "chunk":
        config.sliding_window, config.attention_chunk_size = data.draw(st.sampled_from((None, size))), size
    call["allow_is_causal_skip"] = kind in ("causal", "window", "chunk") and (rows > 1 or data.draw(st.booleans()))
    call["allow_is_bidirectional_skip"] = kind in ("both", "wide")
    if data.draw(st.booleans(), "padding"):
        length = data.draw(st.integers(1, past + rows + room), "length of the padding mask")
        bits = st.lists(st.booleans(), min_size=length, max_size=length)
        call["attention_mask"] = torch.tensor([data.draw(bits) for _ in range(batch)])

    truth = masking_utils.sdpa_mask(**{**call, "allow_is_causal_skip": False, "allow_is_bidirectional_skip": False})
    truth = truth[:, 0]
    mask = make_mask(**call)
    if mask is None:
        module = SimpleNamespace(is_causal=kind in ("causal", "window", "chunk"), config=config)
        query, key = QUERY.expand(batch, 1, rows, 1), QUERY.expand(batch, 1, keys, 1)
        pattern, reach = _without_mask(module, query, key, None, size if kind == "window" else None)
        assert torch.equal(told(pattern, rows, reach).expand(batch, -1, -1), truth[..., :reach])
        assert not truth[..., reach:].any()
        return
    assert mask.dtype == torch.bool and torch.equal(mask[:, 0], truth)
    pattern = mask.kiln
    if pattern.is_whole:
        assert torch.equal(told(pattern, rows, keys).expand(batch, -1, -1), truth)
    if pattern.span is not None:
        first, end = (x[:, None, None] for x in pattern.span)
        places = torch.arange(keys)[None, None, :]
        assert rows == 1 and torch.equal((places >= first) & (places < end), truth)
    cached = _cached(pattern)
    assert cached is None or pattern.span is not None or pattern.bottom_right
    if kind in ("causal", "both"):
        assert pattern.is_whole


@settings(deadline=None, max_examples=100)
@given(st.data())
def test_packed_sequences_are_found(data):
    batch, rows = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 12))
    window = data.draw(st.sampled_from((None, 1, 3, 20)))
    ends = st.lists(st.booleans(), min_size=rows, max_size=rows)
    numbers = torch.tensor([data.draw(ends) for _ in range(batch)]).cumsum(1)
    base = masking_utils.causal_mask_function
    if window is not None:
        base = masking_utils.sliding_window_causal_mask_function(window)
    call = {"batch_size": batch, "q_length": rows, "kv_length": rows, "local_size": window, "device": "cpu",
            "mask_function": masking_utils.and_masks(base, masking_utils.packed_sequence_mask_function(numbers)),
            "config": SimpleNamespace(sliding_window=window)}  # fmt: skip
    mask = make_mask(**call, allow_is_causal_skip=False)
    pattern = mask.kiln
    assert pattern.packed and not pattern.is_whole
    seen = told(Pattern(causal=pattern.causal, window=pattern.window), rows, rows) & alone(pattern, batch, rows)
    assert torch.equal(seen, mask[:, 0])


def test_what_is_derived_of_a_mask_says_nothing():
    mask = make_mask(batch_size=1, q_length=4, kv_length=6, attention_mask=torch.tensor([[False] + [True] * 5]))
    assert mask.kiln.is_whole
    for other in (mask[..., :4], mask & True, mask.float(), mask.clone(), torch.cat([mask, mask], -1)):
        assert not hasattr(other, "kiln")
