"""Transformers' models with Kiln's attention against their own, by the engine that is the definition."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("transformers", minversion="5.4", reason="needs transformers 5.4 or later")

import transformers_models as models
from transformers import DynamicCache, StaticCache

import kiln.jit
import kiln.torch as kt
from kiln.torch import transformers_masks

CLOSE = 5e-5
NAMES = ["llama", *models.WINDOWED, *models.OTHERS]
DECODERS = ["llama", "mistral", "gemma2", "gpt_oss"]
GENERATION = {"max_new_tokens": 9, "do_sample": False, "disable_compile": True}


@pytest.fixture(autouse=True)
def registered(definition):
    kt.register_transformers()
    return definition


@pytest.fixture
def calls(definition, monkeypatch):
    """What the engine was called with: (function, arguments by name)."""
    made = []
    attn_fwd = (
        "q k v bias alibi_slopes sinks cu_seqlens_q cu_seqlens_k seqused_q seqused_k rng max_seqlen_q max_seqlen_k "
        "scale softcap dropout causal window_left window_right bottom_right rows_first return_lse"
    )
    attn_decode = "q k_cache v_cache out k_new v_new seqused_k cu_seqlens_q block_table cache_batch leftpad"
    for function, words in (("attn_fwd", attn_fwd), ("attn_decode", attn_decode)):
        inner = getattr(definition, function)

        def outer(*given, _inner=inner, _function=function, _words=words.split(), **more):
            made.append((_function, {**dict.fromkeys(_words), **dict(zip(_words, given)), **more}))
            return _inner(*given, **more)

        monkeypatch.setattr(definition, function, outer)
    return made


def inputs(name: str, mask: torch.Tensor | None) -> dict[str, torch.Tensor | None]:
    given = {"input_ids": models.tokens(), "attention_mask": mask}
    if name in ("t5", "bart"):
        given["decoder_input_ids"] = models.tokens(length=7, seed=1)
    return given


def value(model: torch.nn.Module, **given) -> torch.Tensor:
    out = model(**given)
    return out.logits if hasattr(out, "logits") else out.last_hidden_state


@pytest.mark.parametrize("side", [None, "left", "right", "hole"])
@pytest.mark.parametrize("name", NAMES)
def test_values(name, side):
    eager, ours = models.pair(name)
    mask = None if side is None else models.padded(side=side)
    with torch.no_grad():
        expected, found = value(eager, **inputs(name, mask)), value(ours, **inputs(name, mask))
    rows = None if name in ("t5", "bart") else mask
    assert models.far(found, expected, rows) < CLOSE * float(expected.abs().max())
    assert torch.isfinite(found).all()


@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt_oss"])
def test_kernels(name):
    """The kernels themselves, in Triton's interpreter."""
    pytest.importorskip("triton", reason="needs triton")
    eager, ours = models.pair(name, num_hidden_layers=2)
    given = {"input_ids": models.tokens(length=7), "attention_mask": models.padded(7, pads=2), "max_new_tokens": 3,
             "do_sample": False, "cache_implementation": "static", "disable_compile": True}  # fmt: skip
    with kiln.jit.use(interpret=True):
        found = ours.generate(**given)
    assert torch.equal(found, eager.generate(**given))


@pytest.mark.parametrize("name", ["mistral", "gemma2", "qwen2_moe"])
def test_windows_matter(name):
    """The models above are ones whose answers a window changes."""
    eager, _ = models.pair(name)
    wide, _ = models.pair(name, sliding_window=64)
    with torch.no_grad():
        assert models.far(value(wide, **inputs(name, None)), value(eager, **inputs(name, None))) > 0.01


@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt_oss", "t5", "bert"])
def test_gradients(name):
    eager, ours = models.pair(name)
    mask = models.padded()
    gradients = []
    for model in (eager, ours):
        found = value(model, **inputs(name, mask))
        found = found if name == "t5" else found[mask.bool()]
        found.square().mean().backward()
        gradients.append({n: p.grad for n, p in model.named_parameters() if p.grad is not None})
    assert gradients[0].keys() == gradients[1].keys()
    for n, expected in gradients[0].items():
        assert models.far(gradients[1][n], expected) < CLOSE * max(1.0, float(expected.abs().max())), n


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("side", [None, "left"])
@pytest.mark.parametrize("name", [*DECODERS, "qwen2_moe", "t5", "bart", "gpt2"])
def test_generation(name, side, cache, calls):
    eager, ours = models.pair(name)
    given = {"input_ids": models.tokens(), "cache_implementation": cache, **GENERATION}
    if side:
        given["attention_mask"] = models.padded(side=side)
    expected = eager.generate(**given)
    assert not calls
    assert torch.equal(ours.generate(**given), expected)
    decoded = any(function == "attn_decode" for function, _ in calls)
    assert decoded == (name != "t5")  # one row over the keys of a cache, where no bias is added


def test_a_cache_that_knows_no_windows(calls):
    """Its single rows see more keys than the window has; nothing but the module says so."""
    eager, ours = models.pair("mistral")
    found = []
    for model in (eager, ours):
        found.append(model.generate(models.tokens(), past_key_values=DynamicCache(), **GENERATION))
    assert torch.equal(found[1], found[0])
    assert calls[-1][1]["k_cache"].shape[2] > models.WINDOW


def test_a_decoder_that_looks_both_ways():
    for side in (None, "left"):
        eager, ours = models.pair("llama", is_causal=False)
        mask = models.padded(side=side) if side else None
        with torch.no_grad():
            expected, found = (value(model, **inputs("llama", mask)) for model in (eager, ours))
            causal = value(models.pair("llama")[0], **inputs("llama", mask))
        assert models.far(found, expected, mask) < CLOSE * float(expected.abs().max())
        assert models.far(found, causal, mask) > 0.01


def test_beams():
    eager, ours = models.pair("gemma2")
    given = {"input_ids": models.tokens(), "attention_mask": models.padded(), "num_beams": 3, **GENERATION}
    assert torch.equal(ours.generate(**given), eager.generate(**given))


@pytest.mark.parametrize("kind", ["dynamic", "static"])
@pytest.mark.parametrize("name", DECODERS)
def test_a_prompt_in_pieces(name, kind, calls):
    """Several rows over a cache that is filled in part: the last row and the last key that is there belong together."""
    eager, ours = models.pair(name)
    ids, mask = models.tokens(length=21), models.padded(21)
    for use_mask in (False, True):
        found = []
        for model in (eager, ours):
            cache = DynamicCache(config=model.config) if kind == "dynamic" else StaticCache(model.config, 32)
            parts = []
            for begin, end in ((0, 8), (8, 13), (13, 14), (14, 21)):
                given = {"attention_mask": mask[:, :end]} if use_mask else {}
                with torch.no_grad():
                    parts.append(model(ids[:, begin:end], past_key_values=cache, **given).logits)
            found.append(torch.cat(parts, 1))
        assert models.far(found[1], found[0], mask if use_mask else None) < CLOSE * float(found[0].abs().max())
    assert any(call["seqused_k"] is not None for _, call in calls) or kind == "dynamic"


@pytest.mark.parametrize("name", ["llama", "mistral", "gemma2"])
def test_packed_sequences(name, calls):
    """By position_ids that begin again, and by lengths: the same as each sequence alone."""
    eager, ours = models.pair(name)
    ids, lengths = models.tokens(1, 16), (7, 1, 8)
    begins = torch.tensor([0, 7, 8, 16], dtype=torch.int32)
    positions = torch.cat([torch.arange(n) for n in lengths])[None]
    told = {"cu_seq_lens_q": begins, "cu_seq_lens_k": begins, "max_length_q": 8, "max_length_k": 8}
    with torch.no_grad():
        alone = torch.cat([eager(part).logits for part in ids.split(lengths, 1)], 1)
        expected = eager(ids, position_ids=positions, use_cache=False).logits
        assert models.far(expected, alone) < CLOSE * float(alone.abs().max())
        for more in ({}, told):
            calls.clear()
            found = ours(ids, position_ids=positions, use_cache=False, **more).logits
            assert models.far(found, expected) < CLOSE * float(expected.abs().max())
            assert all(call["cu_seqlens_q"].tolist() == begins.tolist() for _, call in calls)
        calls.clear()  # of a cache no packing is seen, but lengths may be told
        found = ours(ids, position_ids=positions, **told).logits
        assert models.far(found, expected) < CLOSE * float(expected.abs().max())


def test_packed_sequences_in_batches(calls):
    eager, ours = models.pair("mistral")
    ids = models.tokens(2, 12)
    positions = torch.stack([torch.cat([torch.arange(n) for n in lengths]) for lengths in ((7, 5), (2, 10))])
    with torch.no_grad():
        expected = eager(ids, position_ids=positions, use_cache=False).logits
        found = ours(ids, position_ids=positions, use_cache=False).logits
    assert models.far(found, expected) < CLOSE * float(expected.abs().max())
    assert calls[0][1]["cu_seqlens_q"].tolist() == [0, 7, 12, 14, 24] and calls[0][1]["max_seqlen_q"] == 10


def test_masks_are_as_cheap_as_they_can_be(calls):
    def first(name: str, **given) -> dict:
        calls.clear()
        with torch.no_grad():
            models.pair(name)[1](**{"input_ids": models.tokens(), **given})
        return calls[0][1]

    ones = torch.ones(2, 13, dtype=torch.long)
    for given in ({}, {"attention_mask": ones}):
        call = first("llama", **given)
        assert call["bias"] is None and call["causal"] and call["window_left"] == -1
        call = first("mistral", **given)
        assert call["bias"] is None and call["causal"] and call["window_left"] == models.WINDOW - 1
    call = first("qwen2_moe")  # whose modules do not tell: its mask does
    assert call["bias"] is None and call["causal"]
    call = first("llama", past_key_values=StaticCache(models.pair("llama")[1].config, 32))
    assert call["bias"] is None and call["k"].shape[2] == 13  # of 32
    call = first("mistral", attention_mask=models.padded())
    assert call["causal"] and call["window_left"] == models.WINDOW - 1
    assert call["bias"].shape == (2, 1, 13, 13) and call["bias"].stride(2) == 0  # keys alone


def test_masks_of_a_models_own(definition):
    """Four dimensions, of booleans or what is added: all that masks."""
    eager, ours = models.pair("llama")
    seen = torch.rand(2, 1, 13, 13, generator=torch.Generator().manual_seed(3)) < 0.6
    seen |= torch.eye(13, dtype=torch.bool)
    added = torch.zeros(2, 1, 13, 13).masked_fill(~seen, torch.finfo(torch.float32).min)
    with torch.no_grad():
        expected = eager(models.tokens(), attention_mask=added).logits
        for mask in (seen, added):
            found = ours(models.tokens(), attention_mask=mask).logits
            assert models.far(found, expected) < CLOSE * float(expected.abs().max())


def test_a_mask_that_was_written_to_is_read_again():
    eager, ours = models.pair("llama")
    mask = transformers_masks.make_mask(
        batch_size=2, q_length=13, kv_length=13, attention_mask=models.padded().bool(), config=ours.config
    )
    mask[:, :, 9:, 3] = torch.finfo(torch.float32).min
    added = mask.clone()
    with torch.no_grad():
        expected = eager(models.tokens(), attention_mask=added).logits
        found = ours(models.tokens(), attention_mask=mask).logits
    assert models.far(found, expected, models.padded()) < CLOSE * float(expected.abs().max())


def test_dropout_is_drawn_by_torch(calls):
    _, ours = models.pair("llama", attention_dropout=0.5)
    ours.train()
    values = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        values.append(ours(models.tokens()).logits.detach())
    assert torch.equal(values[0], values[1]) and not torch.equal(values[0], values[2])
    assert all(call["dropout"] == 0.5 for _, call in calls)
    calls.clear()
    with torch.no_grad():  # a single row over a cache is no decoding's either
        cache = ours(models.tokens()).past_key_values
        ours(models.tokens(length=1), past_key_values=cache)
    assert all(call["dropout"] == 0.5 for _, call in calls)
    ours.eval()
    calls.clear()
    with torch.no_grad():
        ours(models.tokens())
    assert all(not call["dropout"] for _, call in calls)


def test_checkpoints_draw_the_same_again():
    _, ours = models.pair("llama", attention_dropout=0.5)
    gradients = []
    for kept in (False, True):
        ours.train()
        ours.zero_grad()
        if kept:
            ours.gradient_checkpointing_enable({"use_reentrant": False})
        torch.manual_seed(5)
        ours(models.tokens(), labels=models.tokens()).loss.backward()
        gradients.append([p.grad.clone() for p in ours.parameters()])
    for one, other in zip(*gradients):
        assert torch.allclose(one, other, atol=1e-6)


@pytest.mark.parametrize("name", ["llama", "gemma2", "qwen3"])
def test_autocast(name, calls):
    """Norms of queries and keys leave them in float32, and values in bfloat16."""
    eager, ours = models.pair(name)
    given = {"input_ids": models.tokens(), "attention_mask": models.padded()}
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert models.far(ours(**given).logits, eager(**given).logits, given["attention_mask"]) < 0.4
        ours.generate(**given, **GENERATION)
    for _, call in calls:
        cached = (call["q"], call.get("k", call.get("k_cache")), call.get("v", call.get("v_cache")))
        assert {x.dtype for x in cached} == {torch.bfloat16}


@pytest.mark.parametrize("name", ["llama", "gemma2", "mistral"])
@pytest.mark.parametrize("use_cache", [False, True])
def test_compiled(name, use_cache):
    eager, ours = models.pair(name, num_hidden_layers=2)
    compiled = torch.compile(ours, fullgraph=True, backend="aot_eager")
    for mask in (None, models.padded()):
        given = {"input_ids": models.tokens(), "attention_mask": mask, "use_cache": use_cache}
        with torch.no_grad():
            expected, found = eager(**given).logits, compiled(**given).logits
        assert models.far(found, expected, mask) < CLOSE * float(expected.abs().max())
    losses = [model(models.tokens(), labels=models.tokens()).loss for model in (eager, compiled)]
    losses[1].backward()
    losses[0].backward()
    for one, other in zip(eager.parameters(), ours.parameters()):
        assert models.far(other.grad, one.grad) < CLOSE * max(1.0, float(one.grad.abs().max()))


def test_compiled_packed_sequences_may_be_told(calls):
    eager, ours = models.pair("mistral")
    ids, begins = models.tokens(1, 16), torch.tensor([0, 7, 16], dtype=torch.int32)
    positions = torch.cat([torch.arange(7), torch.arange(9)])[None]
    told = {"cu_seq_lens_q": begins, "cu_seq_lens_k": begins, "max_length_q": 9, "max_length_k": 9}
    with torch.no_grad():
        expected = eager(ids, position_ids=positions, use_cache=False).logits
        compiled = torch.compile(ours, fullgraph=True, backend="aot_eager")
        found = compiled(ids, position_ids=positions, use_cache=False, **told).logits
    assert models.far(found, expected) < CLOSE * float(expected.abs().max())
    assert all(call["bias"] is None and call["cu_seqlens_q"] is not None for _, call in calls)


@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_compiled_generation(name, calls):
    """Masks are made outside of what is compiled, and say inside what they are made of."""
    eager, ours = models.pair(name)
    given = {"input_ids": models.tokens(), "attention_mask": models.padded(), "cache_implementation": "static",
             **GENERATION}  # fmt: skip
    expected = eager.generate(**given)
    ours.forward = torch.compile(ours.forward, fullgraph=True, backend="aot_eager")
    assert torch.equal(ours.generate(**given), expected)
    assert sum(function == "attn_decode" for function, _ in calls) == 8 * len(ours.model.layers)
