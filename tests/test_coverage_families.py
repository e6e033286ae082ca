"""Families of models, of whose configurations each says something in a way of its own: what `kiln coverage` reads.

The values are those of the published configurations, as far as they tell what attention is.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from kiln_build import cli
from kiln_build.coverage.attention import Model
from kiln_build.coverage.configuration import config, fields
from kiln_recipe.errors import UsageError

LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096, "num_attention_heads": 32}
HYBRID = {"hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8, "torch_dtype": "bfloat16"}
MLA = {"qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "kv_lora_rank": 512}
CAUSAL_128 = "32 heads, 8 KV heads, head_dim 128, bf16, causal"


def read(folder: Path, document: dict[str, Any]) -> Model:
    path = folder / "model.json"
    path.write_text(json.dumps(document))
    return config.read(path)


def told(folder: Path, document: dict[str, Any]) -> dict[str, str]:
    """By the name of a kind, with the number of layers, what it is."""
    return {f"{kind.name} x{kind.layers}": str(kind) for kind in read(folder, document).kinds}


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        # What a published config.json leaves to its class.
        (
            {"model_type": "gemma3", "torch_dtype": "bfloat16", "architectures": ["Gemma3ForConditionalGeneration"],
             "text_config": {"hidden_size": 2560, "model_type": "gemma3_text", "num_hidden_layers": 34,
                             "sliding_window": 1024}},
            {"text sliding attention x29": "8 heads, 4 KV heads, head_dim 256, bf16, causal, window 1024",
             "text full attention x5": "8 heads, 4 KV heads, head_dim 256, bf16, causal"},
        ),
        (
            {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 1024, "dtype": "bfloat16",
             "num_attention_heads": 16, "num_key_value_heads": 8, "num_hidden_layers": 28},
            {"full attention x28": "16 heads, 8 KV heads, head_dim 128, bf16, causal"},
        ),
        (
            {"model_type": "siglip", "torch_dtype": "float32", "text_config": {"model_type": "siglip_text_model"},
             "vision_config": {"model_type": "siglip_vision_model"}},
            {"text full attention x12": "12 heads, head_dim 64, fp32, bidirectional",
             "vision full attention x12": "12 heads, head_dim 64, fp32, bidirectional"},
        ),
        (
            {"model_type": "qwen2_vl", "hidden_size": 3584, "num_attention_heads": 28, "num_key_value_heads": 4,
             "num_hidden_layers": 28, "use_sliding_window": False, "sliding_window": 32768, "torch_dtype": "bfloat16",
             "architectures": ["Qwen2VLForConditionalGeneration"],
             "vision_config": {"depth": 32, "embed_dim": 1280, "hidden_size": 3584, "num_heads": 16, "patch_size": 14}},
            {"full attention x28": "28 heads, 4 KV heads, head_dim 128, bf16, causal",
             "vision full attention x32": "16 heads, head_dim 80, bf16, bidirectional"},
        ),
        ({**LLAMA, "torch_dtype": "auto", "num_hidden_layers": 32},
         {"full attention x32": "32 heads, head_dim 128, bf16, causal"}),
        # Layers that are not all alike.
        ({**HYBRID, "model_type": "jamba", "attn_layer_period": 8, "attn_layer_offset": 4, "num_hidden_layers": 32},
         {"full attention x4": CAUSAL_128}),
        ({**HYBRID, "model_type": "bamba", "attn_layer_indices": [9, 18, 27], "num_hidden_layers": 32},
         {"full attention x3": CAUSAL_128}),
        ({**HYBRID, "model_type": "nemotron_h", "hybrid_override_pattern": "M-M*-ME", "num_hidden_layers": 7},
         {"full attention x1": CAUSAL_128}),
        ({**HYBRID, "model_type": "lfm2", "full_attn_idxs": [2, 5], "num_hidden_layers": 16},
         {"full attention x2": CAUSAL_128}),
        ({**HYBRID, "model_type": "minimax_text_01", "attn_type_list": [0, 0, 1], "num_hidden_layers": 3},
         {"full attention x1": CAUSAL_128}),
        ({**HYBRID, "model_type": "qwen3_next", "head_dim": 256, "full_attention_interval": 4, "num_hidden_layers": 48},
         {"full attention x12": "32 heads, 8 KV heads, head_dim 256, bf16, causal"}),
        (
            {**HYBRID, **MLA, "model_type": "kimi_linear", "num_hidden_layers": 8,
             "linear_attn_config": {"full_attn_layers": [4, 8], "num_heads": 32, "head_dim": 128}},
            {"full attention x2": "32 heads, head_dim 192/128, bf16, causal",
             "absorbed latent attention x2": "32 heads, 1 KV head, head_dim 576/512, bf16, causal"},
        ),
        (
            {**HYBRID, "model_type": "recurrent_gemma", "attention_window_size": 2048, "head_dim": 256,
             "block_types": ["recurrent", "recurrent", "attention"], "num_hidden_layers": 26},
            {"sliding attention x8": "32 heads, 8 KV heads, head_dim 256, bf16, causal, window 2048"},
        ),
        (
            {"model_type": "gpt_neo", "attention_types": [[["global", "local"], 12]], "num_heads": 16, "dtype": "fp16",
             "hidden_size": 2048, "num_layers": 24, "window_size": 256},
            {"full attention x12": "16 heads, head_dim 128, fp16, causal",
             "sliding attention x12": "16 heads, head_dim 128, fp16, causal, window 256"},
        ),
        (
            {**HYBRID, "model_type": "qwen2", "use_sliding_window": True, "sliding_window": 4096,
             "max_window_layers": 20, "num_hidden_layers": 28},
            {"full attention x20": CAUSAL_128, "sliding attention x8": f"{CAUSAL_128}, window 4096"},
        ),
        ({**HYBRID, "model_type": "qwen2", "sliding_window": 4096, "num_hidden_layers": 28},
         {"full attention x28": CAUSAL_128}),
        (
            {**HYBRID, "model_type": "exaone4", "sliding_window": 4096, "sliding_window_pattern": "LLLG",
             "num_hidden_layers": 64},
            {"sliding attention x48": f"{CAUSAL_128}, window 4096", "full attention x16": CAUSAL_128},
        ),
        (
            {"model_type": "modernbert", "hidden_size": 768, "num_attention_heads": 12, "num_hidden_layers": 22,
             "local_attention": 128, "global_attn_every_n_layers": 3, "torch_dtype": "float32"},
            {"full attention x8": "12 heads, head_dim 64, fp32, bidirectional",
             "sliding attention x14": "12 heads, head_dim 64, fp32, bidirectional, window 65"},
        ),
        ({**HYBRID, "model_type": "llama4_text", "head_dim": 128, "num_hidden_layers": 48, "no_rope_layers": []},
         {"chunked attention x36": CAUSAL_128, "full attention x12": CAUSAL_128}),
        (
            {**HYBRID, "model_type": "mimo_v2_flash", "head_dim": 192, "v_head_dim": 128, "num_key_value_heads": 4,
             "swa_num_key_value_heads": 8, "sliding_window": 128, "hybrid_layer_pattern": [0, 1, 1],
             "swa_head_dim": 192, "num_hidden_layers": 3, "add_swa_attention_sink_bias": True,
             "add_full_attention_sink_bias": False},
            {"full attention x1": "32 heads, 4 KV heads, head_dim 192/128, bf16, causal",
             "sliding attention x2": "32 heads, 8 KV heads, head_dim 192/128, bf16, causal, window 128, sinks"},
        ),
        (
            {"model_type": "openelm", "num_query_heads": [12, 12, 16], "num_kv_heads": [3, 3, 4], "head_dim": 64,
             "num_transformer_layers": 3, "torch_dtype": "bfloat16", "model_dim": 1280},
            {"full attention of 12 heads, 3 KV heads x2": "12 heads, 3 KV heads, head_dim 64, bf16, causal",
             "full attention of 16 heads, 4 KV heads x1": "16 heads, 4 KV heads, head_dim 64, bf16, causal"},
        ),
        ({**HYBRID, "model_type": "laguna", "num_attention_heads_per_layer": [32, 32], "num_hidden_layers": 2,
          "head_dim": 128},
         {"full attention x2": CAUSAL_128}),
        (
            {**HYBRID, "model_type": "gemma4_text", "head_dim": 256, "sliding_window": 512, "num_hidden_layers": 3,
             "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
             "per_layer_config": {"2": {"head_dim": 512, "num_key_value_heads": 4}}},
            {"sliding attention x2": "32 heads, 8 KV heads, head_dim 256, bf16, causal, window 512",
             "full attention x1": "32 heads, 4 KV heads, head_dim 512, bf16, causal"},
        ),
        (
            {**HYBRID, "model_type": "gemma4_text", "head_dim": 256, "sliding_window": 512, "num_hidden_layers": 6,
             "global_head_dim": 512, "num_global_key_value_heads": 4, "attention_k_eq_v": True},
            {"sliding attention x5": "32 heads, 8 KV heads, head_dim 256, bf16, causal, window 512",
             "full attention x1": "32 heads, 4 KV heads, head_dim 512, bf16, causal"},
        ),
        # KV heads, and head dimensions.
        (
            {"model_type": "chatglm", "hidden_size": 4096, "kv_channels": 128, "multi_query_attention": True,
             "multi_query_group_num": 2, "num_attention_heads": 32, "num_layers": 28, "torch_dtype": "float16"},
            {"full attention x28": "32 heads, 2 KV heads, head_dim 128, fp16, causal"},
        ),
        (
            {"model_type": "minicpm3", "hidden_size": 2560, "num_attention_heads": 40, "num_hidden_layers": 62,
             "kv_lora_rank": 256, "qk_nope_head_dim": 64, "qk_rope_head_dim": 32, "torch_dtype": "bfloat16"},
            {"full attention x62": "40 heads, head_dim 96/64, bf16, causal",
             "absorbed latent attention x62": "40 heads, 1 KV head, head_dim 288/256, bf16, causal"},
        ),
        (
            {"model_type": "bloom", "n_embed": 14336, "num_attention_heads": 112, "n_layer": 70, "dtype": "bfloat16"},
            {"full attention x70": "112 heads, head_dim 128, bf16, causal, alibi"},
        ),
        # Terms of the scores, and who sees whom.
        ({**HYBRID, "model_type": "grok-1", "max_attn_value": 30.0, "num_hidden_layers": 64},
         {"full attention x64": f"{CAUSAL_128}, softcap 30"}),
        ({**HYBRID, "model_type": "mpt", "attn_config": {"alibi": False}, "num_hidden_layers": 2},
         {"full attention x2": CAUSAL_128}),
        ({"model_type": "baichuan", "hidden_size": 5120, "num_attention_heads": 40, "num_hidden_layers": 40,
          "torch_dtype": "bfloat16"},
         {"full attention x40": "40 heads, head_dim 128, bf16, causal, alibi"}),
        ({**HYBRID, "model_type": "qwen2", "is_causal": False, "num_hidden_layers": 28},
         {"full attention x28": "32 heads, 8 KV heads, head_dim 128, bf16, bidirectional"}),
        (
            {"model_type": "deberta-v2", "hidden_size": 768, "num_attention_heads": 12, "num_hidden_layers": 12,
             "relative_attention": True, "attention_probs_dropout_prob": 0.0, "dtype": "float16"},
            {"full attention x12": "12 heads, head_dim 64, fp16, bidirectional, bias"},
        ),
        (
            {"model_type": "longformer", "hidden_size": 768, "num_attention_heads": 12, "num_hidden_layers": 12,
             "attention_window": [512] * 12, "attention_probs_dropout_prob": 0, "dtype": "float16"},
            {"sliding attention x12": "12 heads, head_dim 64, fp16, bidirectional, window 257"},
        ),
        (
            {"model_type": "t5", "architectures": ["T5EncoderModel"], "d_model": 4096, "d_kv": 64, "num_heads": 64,
             "num_layers": 24, "is_encoder_decoder": True, "dropout_rate": 0.1, "torch_dtype": "bfloat16"},
            {"encoder self-attention x24": "64 heads, head_dim 64, bf16, bidirectional, bias, dropout 0.1"},
        ),
        (
            {"model_type": "sam", "torch_dtype": "float32",
             "vision_config": {"hidden_size": 768, "num_attention_heads": 12, "num_hidden_layers": 12,
                               "use_rel_pos": True, "image_size": 1024, "patch_size": 16},
             "mask_decoder_config": {"hidden_size": 256, "num_attention_heads": 8, "num_hidden_layers": 2,
                                     "attention_downsample_rate": 2, "model_type": ""}},
            {"vision full attention x12": "12 heads, head_dim 64, fp32, bidirectional, bias",
             "mask decoder full attention x2": "8 heads, head_dim 32, fp32, bidirectional",
             "mask decoder cross-attention x2": "8 heads, head_dim 16, fp32, cross"},
        ),
        (
            {"model_type": "swin", "embed_dim": 96, "depths": [2, 6], "num_heads": [3, 6], "window_size": 7,
             "attention_probs_dropout_prob": 0.0, "dtype": "float16"},
            {"window attention of stage 0 x2": "3 heads, head_dim 32, fp16, bidirectional, bias",
             "window attention of stage 1 x6": "6 heads, head_dim 32, fp16, bidirectional, bias"},
        ),
        # Diffusion.
        (
            {"_class_name": "HunyuanVideoTransformer3DModel", "attention_head_dim": 128, "num_attention_heads": 24,
             "num_layers": 20, "num_single_layers": 40},
            {"joint attention x60": "24 heads, head_dim 128, bf16, bidirectional"},
        ),
        (
            {"_class_name": "SanaTransformer2DModel", "attention_head_dim": 32, "num_attention_heads": 70,
             "num_layers": 20, "cross_attention_dim": 2240, "num_cross_attention_heads": 20,
             "cross_attention_head_dim": 112},
            {"cross-attention x20": "20 heads, head_dim 112, bf16, cross"},
        ),
        (
            {"_class_name": "Lumina2Transformer2DModel", "hidden_size": 2304, "num_attention_heads": 24,
             "num_kv_heads": 8, "num_layers": 26},
            {"joint attention x26": "24 heads, 8 KV heads, head_dim 96, bf16, bidirectional"},
        ),
        (
            {"_class_name": "AutoencoderKL", "block_out_channels": [128, 256, 512, 512]},
            {"middle attention x2": "1 head, head_dim 512, bf16, bidirectional"},
        ),
        (
            {"_class_name": "UNet2DModel", "block_out_channels": [128, 256], "attention_head_dim": 64,
             "down_block_types": ["DownBlock2D", "AttnDownBlock2D"]},
            {"self-attention at 256 channels x0": "4 heads, head_dim 64, bf16, bidirectional"},
        ),
    ],
    ids=lambda value: value.get("model_type") or value.get("_class_name") if "model_type" in value else None,
)  # fmt: skip
def test_a_family_is_read_as_its_models_compute(
    document: dict[str, Any], expected: dict[str, str], tmp_path: Path
) -> None:
    assert told(tmp_path, document) == expected


def test_what_the_class_fills_in_is_said(tmp_path: Path) -> None:
    (kind,) = read(tmp_path, {**LLAMA, "model_type": "qwen3", "torch_dtype": "bfloat16"}).kinds
    (clause,) = kind.assumed
    assert "head_dim 128" in clause and clause.endswith("as Transformers does for qwen3")


@pytest.mark.parametrize(
    ("document", "expected", "clause"),
    [
        ({"model_type": "idefics", "architectures": ["IdeficsForVisionText2Text"]}, "causal", ""),
        ({"model_type": "evital", "architectures": ["EvitalForCausalLM"]}, "causal", ""),
        ({"model_type": "vitals", "architectures": ["VitalsForCausalLM"]}, "causal", ""),
        ({"model_type": "evital", "architectures": ["EvitalModel"]}, "causal", "causal"),
        ({"model_type": "fuyu", "architectures": ["FuyuForCausalLM"], "patch_size": 30}, "causal", ""),
        ({"model_type": "new_vit", "architectures": ["NewViTModel"]}, "bidirectional",
         "bidirectional as its name has 'vit'"),
        ({"model_type": "new", "architectures": ["NewViTModel"]}, "bidirectional",
         "bidirectional as its name has 'vit'"),
        ({"model_type": "mobilevitv9"}, "bidirectional", "bidirectional as its name has 'vit'"),
        ({"model_type": "bert", "architectures": ["BertForCausalLM"]}, "bidirectional", ""),
        ({"model_type": "roberta"}, "bidirectional", ""),
        ({"model_type": "new", "is_causal": True}, "causal", ""),
    ],
)  # fmt: skip
def test_what_a_name_alone_tells_is_assumed(
    document: dict[str, Any], expected: str, clause: str, tmp_path: Path
) -> None:
    (kind,) = read(tmp_path, {**HYBRID, "num_hidden_layers": 2, **document}).kinds
    assert ("causal" if kind.causal else "bidirectional") == expected
    assert [one for one in kind.assumed if "causal" in one or "bidirectional" in one] == ([clause] if clause else [])


def test_text_inside_a_model_is_as_its_classes_say(tmp_path: Path) -> None:
    inside = {"model_type": "new", "text_config": {**HYBRID, "model_type": "newer", "num_hidden_layers": 2}}
    (kind,) = read(tmp_path, {**inside, "architectures": ["NewForConditionalGeneration"]}).kinds
    assert kind.causal and kind.assumed == ()
    (kind,) = read(tmp_path, {**inside, "architectures": ["NewModel"]}).kinds
    assert kind.causal and kind.assumed == ("causal",)


@pytest.mark.parametrize(
    ("document", "clause"),
    [
        ({"num_key_value_heads": [3, 4, 8], "num_hidden_layers": 4},
         "a KV head for each head, since num_key_value_heads is not understood"),
        ({"block_configs": {"0": 8}}, "a KV head for each head, since block_configs is not understood"),
        ({"sliding_window": [128, 1024]}, "the largest sliding_window"),
    ],
)  # fmt: skip
def test_what_differs_by_layer_is_assumed(document: dict[str, Any], clause: str, tmp_path: Path) -> None:
    kinds = read(tmp_path, {**LLAMA, "torch_dtype": "bfloat16", **document}).kinds
    assert all(clause in kind.assumed for kind in kinds)


@pytest.mark.parametrize(
    ("document", "note"),
    [
        ({"model_type": "qwen2_5_vl", "vision_config": {"model_type": "qwen2_5_vl"}},
         "vision most layers attend inside windows"),
        ({"model_type": "gemma3n", "audio_config": {"model_type": "gemma3n_audio"}},
         "audio each row attends to the chunk"),
        ({**HYBRID, "model_type": "new", "layer_types": ["attention", "dense", "hyena"]},
         "hyena (1 layer) is unknown"),
        ({**HYBRID, "model_type": "new", "layer_types": ["mamba", "hybrid"]},
         "hybrid (1 layer) is not attention alone"),
        ({"model_type": "longformer"}, "tokens with global attention"),
        ({"model_type": "led"}, "tokens with global attention"),
        ({"model_type": "longt5"}, "rows of the encoder attend to some blocks"),
        ({"model_type": "reformer"}, "rows attend inside chunks"),
        ({"model_type": "sam", "vision_config": {"model_type": "sam_vision_model"}}, "vision most layers attend"),
        ({**HYBRID, "model_type": "new", "layer_types": ["sliding_attention", "full_attention"], "sliding_window": 8,
          "num_attention_heads": [16, 32], "num_hidden_layers": 2}, "heads differ by layer too"),
    ],
    ids=lambda value: value.get("model_type") if isinstance(value, dict) else None,
)  # fmt: skip
def test_what_is_left_out_is_noted(document: dict[str, Any], note: str, tmp_path: Path) -> None:
    assert any(one.startswith(note) for one in read(tmp_path, document).notes)


def test_a_decoder_by_itself_has_no_encoder(tmp_path: Path) -> None:
    document = {"model_type": "whisper", "architectures": ["WhisperForCausalLM"], "is_encoder_decoder": True,
                "torch_dtype": "float16"}  # fmt: skip
    assert [kind.name for kind in read(tmp_path, document).kinds] == ["decoder self-attention"]


def test_null_is_said_and_not_filled_in(tmp_path: Path) -> None:
    document = {**HYBRID, "model_type": "mistral", "architectures": ["MistralForCausalLM"], "num_hidden_layers": 2}
    assert list(told(tmp_path, document)) == ["sliding attention x2"]
    assert list(told(tmp_path, {**document, "sliding_window": None})) == ["full attention x2"]
    assert list(told(tmp_path, {**document, "sliding_window": -1})) == ["full attention x2"]


def test_a_part_that_tells_nothing_is_said(tmp_path: Path) -> None:
    model = read(tmp_path, {**LLAMA, "vision_config": {"model_type": "some_convolutions", "hidden_size": 2048}})
    assert "vision does not tell heads and their dimension, and is not covered" in model.notes


@pytest.mark.parametrize(
    ("document", "sentence"),
    [
        ({"model_type": "mamba2", "num_heads": 128, "head_dim": 64}, "mamba2 has no softmax attention"),
        ({**HYBRID, "model_type": "x", "layer_types": ["mystery_attention"] * 2},
         "mystery_attention (2 layers) is unknown to Kiln, and not covered"),
        ({**HYBRID, "model_type": "nystromformer"}, "nystromformer has no softmax attention"),
        ({**HYBRID, "model_type": "x", "layer_types": ["linear_attention"]},
         "linear_attention (1 layer) is not softmax"),
        ({**LLAMA, "hidden_size": 4100}, "4100 channels are no multiple of 32 heads"),
        ({**LLAMA, "num_hidden_layers": 10**9}, "1000000000 layers; there must be 1 to 1048576"),
        ({"_class_name": "FluxPipeline", "transformer": ["diffusers", "x"]}, "is a pipeline's list of parts"),
    ],
)  # fmt: skip
def test_a_model_without_attention_says_why(document: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as raised:
        read(tmp_path, document)
    assert sentence in str(raised.value)


def test_kinds_have_names_that_stand_once(tmp_path: Path) -> None:
    document = {"a_config": LLAMA, "a": {**LLAMA, "num_attention_heads": 16}}
    names = [kind.name for kind in read(tmp_path, document).kinds]
    assert len(names) == len(set(names)) == 2


def test_a_pipe_without_a_writer_ends_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(tmp_path / "config.json")
    assert cli.main(["coverage", "core", "--model", str(tmp_path / "config.json"), "--target", "sm_90"]) == 6
    assert "is not valid JSON" in capsys.readouterr().err


def test_too_many_tokens_say_how_many_would_do(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["coverage", "core", "--model", "head_dim=64 keys=999999999", "--target", "sm_90"]
    assert cli.main(words) == 0
    assert "what would serve it: fewer tokens, such as 4096 rows and 4096 keys" in capsys.readouterr().out
    assert cli.main(["coverage", "core", "--model", "head_dim=192 keys=8192", "--target", "sm_90"]) == 0
    assert "fewer tokens" not in capsys.readouterr().out, "what lacks an image lacks it of fewer tokens too"


def test_families_are_read_for_what_is_used() -> None:
    known = fields.families()
    assert {"llama", "gemma3_text", "mistral"} <= set(known)
    assert {name for own in known.values() for name in own} <= fields.NAMES | {fields.PARTS, fields.CYCLE}
