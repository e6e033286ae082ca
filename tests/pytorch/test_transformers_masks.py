"""What kiln.torch's masks for Transformers say, against Transformers' own, whatever lengths, windows and padding."""

from __future__ import annotations

import copy
import pickle
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("transformers", minversion="5.4", reason="needs transformers 5.4 or later")

from transformers import masking_utils

from kiln.torch.transformers_attention import _cached, _chosen
from kiln.torch.transformers_lazy import LazyMask, Pattern, pattern_of
from kiln.torch.transformers_masks import make_mask


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
    config = SimpleNamespace(model_type="else", sliding_window=size, attention_chunk_size=None)
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
    dtype = data.draw(st.sampled_from((torch.float32, torch.bfloat16, torch.float16)), "dtype")
    mask = make_mask(**call, dtype=dtype)
    expected = masking_utils.eager_mask(**call, dtype=dtype)
    if mask is None:
        # Transformers looks at all of the padding, also where kv_offset leaves out what it hides.
        assert expected is None or (truth.all() and not expected.any())
        return
    assert expected is not None
    pattern = pattern_of(mask)
    if pattern.is_whole:
        assert torch.equal(told(pattern, rows, keys).expand(batch, -1, -1), truth)
    if pattern.seen is not None:
        assert torch.equal(pattern.seen[:, 0], truth)
    # Whatever reads it reads what "eager" would.
    assert isinstance(mask, torch.Tensor) and mask.shape == expected.shape and mask.dtype == dtype
    assert mask.stride() == expected.contiguous().stride()
    assert torch.equal(mask + 0, expected) and torch.equal(mask[..., :1].clone(), expected[..., :1])
    assert pattern_of(mask) == pattern
    mask[0, 0, 0, 0] = 3.0
    expected[0, 0, 0, 0] = 3.0
    assert torch.equal(mask + 0, expected) and not pattern_of(mask).is_whole and pattern_of(mask).seen is None
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
    pattern = pattern_of(mask)
    assert pattern.packed and not pattern.is_whole
    seen = told(Pattern(causal=pattern.causal, window=pattern.window), rows, rows) & alone(pattern, batch, rows)
    assert torch.equal(seen, mask[:, 0] == 0)


def lazy(**call) -> LazyMask:
    mask = make_mask(**{"batch_size": 2, "q_length": 4, "kv_length": 6, "q_offset": 2, **call})
    assert isinstance(mask, LazyMask) and mask.spelled is None
    return mask


def test_what_is_derived_of_a_mask_says_nothing():
    mask = lazy(attention_mask=torch.tensor([[False] + [True] * 5] * 2))
    assert mask.kiln.is_whole
    others = (mask[..., :4], mask * 1, mask.to(torch.bfloat16), mask.clone(), torch.cat([mask, mask], -1), mask.bool())
    for other in others:
        assert type(other) is torch.Tensor and not hasattr(other, "kiln")


def test_what_changes_nothing_stays_lazy():
    mask = lazy()
    for other in (mask[:, :, :, :6], mask.detach(), mask.to(torch.float32), mask.contiguous(), mask[:, :, :, :99]):
        assert isinstance(other, LazyMask) and pattern_of(other).is_whole and mask.spelled is None
    alias = mask[:, :, :, :6]
    alias[0, 0, 0, 5] = 1.0  # of the same memory, as slices are
    assert mask[0, 0, 0, 5] == 1.0 and not pattern_of(mask).is_whole and not pattern_of(alias).is_whole


@pytest.mark.parametrize("inference", [False, True])
def test_a_view_that_is_written_to(inference):
    with torch.inference_mode(inference):
        mask = lazy()
        assert pattern_of(mask).is_whole
        row = mask[0, 0, 1]
        assert pattern_of(mask).is_whole  # it was only read
        row.fill_(0.0)
        assert not pattern_of(mask).is_whole and not (mask[0, 0, 1] != 0).any()


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("keys", [None, torch.tensor([[False] + [True] * 5, [True] * 6])])
def test_lazy_masks_go_into_compiled_code(backend, keys):
    scores = torch.randn(2, 1, 4, 6)

    def added(scores, mask):
        return (scores + mask[:, :, :, :6]).softmax(-1)

    mask = lazy(attention_mask=keys)
    compiled = torch.compile(added, fullgraph=True, backend=backend)
    assert torch.equal(compiled(scores, mask), added(scores, lazy(attention_mask=keys)))
    written = lazy(attention_mask=keys)
    written[0, 0, 0, 0] = -7.0
    expected = added(scores, written)
    assert torch.equal(compiled(scores, written), expected)


def test_copies_of_lazy_masks():
    mask = lazy()
    other = copy.deepcopy(mask)
    other[0] = 1.0
    assert pattern_of(mask).is_whole and (other[0] == 1.0).all() and torch.equal(other[1], mask[1])
    assert torch.equal(pickle.loads(pickle.dumps(mask)), mask + 0)


def test_chosen_keys_are_still_of_the_past():
    indices = torch.tensor([[[0, 3], [1, 2], [0, 2], [3, 1]]])
    seen = _chosen(None, indices, 4, True)[0, 0]
    assert seen.int().tolist() == [[1, 0, 0, 0], [0, 1, 0, 0], [1, 0, 1, 0], [0, 1, 0, 1]]
    assert _chosen(None, indices, 4, False)[0, 0].sum() == 8
