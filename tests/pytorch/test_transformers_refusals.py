"""What register_transformers() and the attention that it registers refuse, and where they fall back."""

from __future__ import annotations

import subprocess
import sys
import types

import pytest
import torch

import kiln.torch as kt
from kiln.errors import ArgumentError, DriverError, KilnError, UnsupportedError
from kiln.torch import operators


@pytest.fixture
def models():
    pytest.importorskip("transformers", minversion="5.4", reason="needs transformers 5.4 or later")
    import transformers_models

    kt.reset_fallthroughs()
    yield transformers_models
    operators.set_engine(None)


def test_importing_imports_no_other_package():
    code = "import sys, kiln.torch, kiln.torch.flash_attn; print({'transformers', 'flash_attn'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


@pytest.mark.parametrize("name", ["", "flash_kiln", "a/b", "paged|kiln", "sdpa", "kiln_or_sdpa", "eager"])
def test_names(name):
    with pytest.raises(ArgumentError, match="^name is "):
        kt.register_transformers(name)


def test_fallbacks():
    with pytest.raises(ArgumentError) as found:
        kt.register_transformers(fallback="eager")
    assert str(found.value) == "fallback is 'eager'; expected None or \"sdpa\""


def test_without_transformers(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(
        UnsupportedError, match="^register_transformers needs Hugging Face Transformers, 5.4 or later: "
    ):
        kt.register_transformers()


def test_with_another_transformers(monkeypatch):
    old = types.ModuleType("transformers")
    old.__version__ = "4.40.0"
    monkeypatch.setitem(sys.modules, "transformers", old)
    with pytest.raises(UnsupportedError, match="5.4 or later: ") as found:
        kt.register_transformers()
    assert "\n" not in str(found.value)


def test_a_call_that_nothing_serves_raises(models):
    kt.register_transformers()
    _, ours = models.pair("llama")
    with pytest.raises(KilnError) as found:
        ours(models.tokens())
    assert "\n" not in str(found.value) and not kt.fallthroughs()


@pytest.mark.parametrize("side", [None, "left", "right"])
@pytest.mark.parametrize("name", ["llama", "mistral", "qwen2_moe", "t5", "bert"])
def test_the_fallback_is_counted_and_right(models, name, side):
    kt.register_transformers("kiln_else", fallback="sdpa")
    eager, ours = models.pair(name, attention="kiln_else")
    given = {"input_ids": models.tokens()}
    if side:
        given["attention_mask"] = models.padded(side=side)
    if name == "t5":
        given["decoder_input_ids"] = models.tokens(length=7)
    with torch.no_grad():
        values = [model(**given)[0] for model in (eager, ours)]
    assert models.far(values[1], values[0], None if name == "t5" else given.get("attention_mask")) < 1e-4
    layers = {"llama": 3, "mistral": 3, "qwen2_moe": 3, "t5": 6, "bert": 2}[name]
    (reason,) = kt.fallthroughs()
    assert kt.fallthroughs()[reason] == layers and "cpu" in reason.lower()


@pytest.mark.parametrize("name", ["llama", "mistral"])
def test_the_fallback_generates_and_packs(models, name):
    kt.register_transformers("kiln_else", fallback="sdpa")
    eager, ours = models.pair(name, attention="kiln_else")
    given = {"max_new_tokens": 9, "do_sample": False, "disable_compile": True}
    assert torch.equal(ours.generate(models.tokens(), **given), eager.generate(models.tokens(), **given))
    from transformers import DynamicCache

    found = [model.generate(models.tokens(), past_key_values=DynamicCache(), **given) for model in (eager, ours)]
    assert torch.equal(found[1], found[0])
    ids, begins = models.tokens(1, 16), torch.tensor([0, 7, 16], dtype=torch.int32)
    told = {"cu_seq_lens_q": begins, "cu_seq_lens_k": begins, "max_length_q": 9, "max_length_k": 9}
    positions = torch.cat([torch.arange(7), torch.arange(9)])[None]
    with torch.no_grad():
        expected = eager(ids, position_ids=positions, use_cache=False).logits
        assert models.far(ours(ids, position_ids=positions, **told).logits, expected) < 1e-4


@pytest.mark.parametrize("name, lacks", [("gemma2", "soft cap"), ("gpt_oss", "sinks")])
def test_what_the_fallback_lacks_raises(models, name, lacks):
    kt.register_transformers("kiln_else", fallback="sdpa")
    _, ours = models.pair(name, attention="kiln_else")
    with pytest.raises(UnsupportedError, match=f"; and the fallback, PyTorch's attention, has no {lacks}$"):
        ours(models.tokens())
    assert not kt.fallthroughs()


def test_a_drivers_error_is_no_reason_to_fall_back(models, definition, monkeypatch):
    def broken(*args, **more):
        raise DriverError("cuLaunchKernel failed: CUDA_ERROR_LAUNCH_FAILED (719)")

    monkeypatch.setattr(definition, "attn_fwd", broken)
    kt.register_transformers("kiln_else", fallback="sdpa")
    _, ours = models.pair("llama", attention="kiln_else")
    with pytest.raises(DriverError), torch.no_grad():
        ours(models.tokens())


@pytest.mark.parametrize("fallback", [None, "sdpa"])
def test_weights_are_not_given(models, definition, fallback):
    kt.register_transformers("kiln", fallback=fallback)
    _, ours = models.pair("llama")
    with pytest.raises(UnsupportedError, match="^output_attentions is set"):
        ours(models.tokens(), output_attentions=True)
    from kiln.torch import transformers_attention

    attend = transformers_attention.attend_or_sdpa if fallback else transformers_attention.attend
    q = torch.zeros(1, 4, 3, 16)
    with pytest.raises(UnsupportedError, match="^output_attentions is set"):
        attend(ours.model.layers[0].self_attn, q, q, q, None, output_attentions=True)


def test_masks_of_numbers_are_refused(models, definition):
    kt.register_transformers()
    from kiln.torch.transformers_attention import attend

    q = torch.zeros(1, 4, 3, 16)
    with pytest.raises(ArgumentError, match=r"^attention_mask is of torch.int64; expected torch.bool, "):
        attend(torch.nn.Module(), q, q, q, torch.ones(1, 1, 3, 3, dtype=torch.int64))


def test_packed_sequences_have_no_position_bias(models, definition):
    from kiln.torch.transformers_attention import attend

    q, begins = torch.zeros(1, 4, 3, 16), torch.tensor([0, 3])
    with pytest.raises(UnsupportedError, match="^packed sequences have a position bias"):
        attend(torch.nn.Module(), q, q, q, None, position_bias=torch.zeros(1, 4, 3, 3), cu_seq_lens_q=begins,
               cu_seq_lens_k=begins, max_length_q=3, max_length_k=3)  # fmt: skip
