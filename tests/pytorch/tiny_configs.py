"""Tiny configurations of Transformers' architectures, whatever they are: sizes are known by their names.

A configuration is its default's dictionary with the sizes in it made small, those of its parts too, in one of several
ways: some architectures have sizes that have to fit each other. What no way gets right stands in OWN.
"""

from __future__ import annotations

import re
from typing import Any

HIDDEN, HEADS, HEADS_KV, HEAD_DIM, FFN, LAYERS, VOCABULARY, WINDOW = 64, 4, 2, 16, 64, 2, 120, 5
SPECIAL = 100  # special tokens have numbers from here on
IMAGE, PATCH = 32, 8

SIZE, HEAD, COUNT, FILLED = WAYS = ("small", "in proportion", "short", "filled")
"""All sizes at once; widths and heads divided by one number, with the sizes of heads as they are; depth alone; all
sizes at once, and what the default leaves open."""
# (what a name matches, the value, the way from which on it stays as it is; COUNT: always small): the first that matches
# counts. Only integers above the value are changed.
RULES: list[tuple[str, int, str]] = [
    (r"(.*_)?codebook_size(_.*)?", 64, COUNT),  # a power of 2
    (r"num_kv_shared_layers", 0, COUNT),
    (r"n_groups|mamba_n_groups|mamba_ngroups|ssm_n_groups", 2, SIZE),
    (r"rotary_dim|rotary_ndims", 8, HEAD),
    (r"(.*_)?(vocab_size|vocabulary_size|num_tokens|num_embeddings)(_.*)?", VOCABULARY, COUNT),
    (r"(num_key_value_heads|num_kv_heads|n_head_kv|num_query_groups|multi_query_group_num|.*_key_value_heads)",
     HEADS_KV, SIZE),
    (r"mamba_n_heads|mamba_num_heads|n_mamba_heads|linear_num_value_heads|linear_num_key_heads", HEADS, SIZE),
    (r"(.*_)?(attention_heads|num_heads|n_heads?|heads|n_attn_heads)(_.*)?", HEADS, SIZE),
    (r"(.*_)?(num_hidden_layers|num_layers|n_layers?|encoder_layers|decoder_layers|layers|depth|num_blocks|n_block)",
     LAYERS, COUNT),
    (r"mamba_d_ssm", 2 * HIDDEN, SIZE),
    (r"mamba_d_head|mamba_headdim|mamba_head_dim", 2 * HIDDEN // HEADS, SIZE),  # heads of twice the width, together
    (r"(.*_)?lora_rank|.*low_rank.*|qk_rope_head_dim|qk_nope_head_dim", HEAD_DIM, HEAD),
    (r"qk_head_dim", 2 * HEAD_DIM, HEAD),
    (r"v_head_dim|head_dim|d_kv|d_head|kv_channels|attention_head_dim|head_size|.*_head_dim|dim_head", HEAD_DIM, HEAD),
    (r"(.*_)?(intermediate_size|intermediate_dim|ffn_dim|ffn_hidden_size|d_ff|d_inner|n_inner|inner_dim|ff_dim|dim_ff|"
     r"dim_feedforward|mlp_dim|feedforward_dim|ffn_size|ffn_embed_dim|intermediate_channels)(_.*)?", FFN, SIZE),
    (r"image_embedding_size", IMAGE // PATCH, COUNT),
    (r"base_channels", 32, SIZE),  # in groups of 32
    (r"num_self_attends_per_block", 1, COUNT),
    (r"(.*_)?(hidden_size|d_model|d_latents|projection_size|n_embd|embed_dim|embedding_size|embedding_dim|hidden_dim|"
     r"model_dim|dim|projection_dim|output_dim|width|embed_size|proj_dim|d_embed|emb_dim|hidden_channels|embeds_dim|"
     r"lru_width|hidden)|output_channels|decoder_in_channels|embed_dim_per_stage|backbone_channel_list|vit_dim|"
     r"upsample_groups",
     HIDDEN, SIZE),
    (r"attention_window", 4, COUNT),
    (r"sliding_window|local_attention|window_size|sliding_window_size|attention_chunk_size", WINDOW, COUNT),
    (r".*experts_per_tok(en)?|moe_k|moe_topk|(?!index).*top_k.*|num_selected_experts|(?!index).*_topk", 2, COUNT),
    (r".*num_(local_|routed_)?experts|n_routed_experts|n_experts|moe_num_experts", 4, COUNT),
    (r"n_group|topk_group|num_expert_groups?|first_k_dense_replace", 1, COUNT),
    (r"num_windows", 4, COUNT),
    (r".*hash_byte_group_vocab", 512, COUNT),
    (r"image_size|img_size|input_size|crop_size", IMAGE, COUNT),
    (r"patch_size|vision_patch_size", PATCH, COUNT),
    (r"max_position_embeddings|max_target_positions|n_positions|max_seq_len|seq_length|n_ctx|max_sequence_length|"
     r"max_source_positions|max_text_len|max_2d_position_embeddings", 512, COUNT),
    (r"num_mel_bins|n_mels|num_mels|feature_size|input_feat_per_channel", 16, SIZE),
    (r"state_size|ssm_state_size|mamba_d_state", 8, HEAD),
    (r"num_queries|num_query_tokens|num_object_queries|max_num_bins|num_latents", 8, COUNT),
    (r"num_codebooks|n_codes_.*|num_quantizers", 2, COUNT),
]  # fmt: skip
COMPILED = [(re.compile(rf"(?:{pattern})\Z"), value, kind) for pattern, value, kind in RULES]
ALL_HEADS = ("num_attention_heads", "num_heads", "n_head", "n_heads", "encoder_attention_heads")
DEPTHS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers", "encoder_layers")
# Counts of a list beside them; what follows from others.
KEPT = {"num_feat_extract_layers"}
DERIVED = {
    "out_features",
    "out_indices",  # set below
    "stage_names",
    "transformers_version",
    "architectures",
    "dtype",
    "torch_dtype",
}
TOKEN = re.compile(r"(?!.*per_tok).*_(token|tok)(_id|_index|_idx)?s?\Z|.*_token_.*id\Z|.*_(id|index)\Z")
INDICES = re.compile(
    r".*(global_attn_indexes|attention_layers|_layer_ids|_layers_idx|layer_indices|full_attention_idxs|block_indexes|"
    r"block_indices|fullatt.*|deepstack.*|_idxs)\Z"
)
PER_LAYER = re.compile(
    r"(.*layer_types|layers_block_type|block_types?|attention_types|attention_layers|no_rope_layers|layers_types|"
    r"hybrid_override_pattern|.*_per_layer|activation_sparsity_pattern|attn_layers)\Z"
)


def tiny(config_class: type, way: str = "small") -> Any:
    """A configuration of the class, tiny."""
    model_type = config_class.model_type
    default = config_class().to_dict()
    given = _merged(_shrunk(default, SIZE if way == FILLED else way), OWN.get(model_type, {}))
    if way == FILLED:
        given = _filled(given)
    for name in ("model_type", "_attn_implementation"):
        given.pop(name, None)
    return config_class(**given)


def _shrunk(given: dict[str, Any], way: str) -> dict[str, Any]:
    result = {name: _value(name, value, given, way) for name, value in given.items() if name not in DERIVED}
    depth = next((given[n] for n in DEPTHS if isinstance(given.get(n), int)), 0)
    layers = [
        n for n, x in given.items()
        if isinstance(x, list) and x and n not in DERIVED
        and (PER_LAYER.match(n) or (len(x) == depth > 4)) and not (INDICES.match(n) and isinstance(x[0], int))
    ]  # fmt: skip
    count = LAYERS
    for name in layers:  # one layer of each kind
        if all(isinstance(x, str) for x in given[name]):
            count = max(count, min(4, len(dict.fromkeys(given[name]))))
    for name in layers:
        value = given[name]
        if all(isinstance(x, str) for x in value):
            value = [*dict.fromkeys(value)]
        result[name] = [_value(name, x, given, way) for x in (value * count)[:count]]
    for name in DEPTHS:
        if layers and isinstance(result.get(name), int):
            result[name] = count
    if given.get("out_indices"):
        result |= _outputs(given, result)
    return result


def _outputs(given: dict[str, Any], small: dict[str, Any]) -> dict[str, Any]:
    """As many of a backbone's layers or stages as before: what stands on it has a width for each."""
    wanted, depth = given["out_indices"], given.get("num_hidden_layers")
    if "depths" in given or not depth or len(given.get("stage_names") or ()) != depth + 1:
        return {"out_indices": wanted}
    count = max(small["num_hidden_layers"], len(wanted))
    return {"num_hidden_layers": count, "out_indices": [*range(count + 1 - len(wanted), count + 1)]}


def _filled(given: dict[str, Any]) -> dict[str, Any]:
    """With numbers where a default has none, of the sizes that have rules: models are seldom made from defaults."""
    result = dict(given)
    for name, value in given.items():
        rule = _rule(name)
        if isinstance(value, dict) and name.endswith("_config"):
            result[name] = _filled(value)
        elif value is None and name in OPEN:
            result[name] = OPEN[name]
        elif value is None and rule is not None and not TOKEN.match(name):
            result[name] = rule[0]
    return result


def _value(name: str, value: Any, within: dict[str, Any], way: str) -> Any:
    if isinstance(value, dict):
        if name == "per_layer_config":
            return {n: x for n, x in value.items() if int(n) < LAYERS}
        if not all(isinstance(x, str) for x in value) or name in ("label2id", "task_specific_params"):
            return value
        return _rope(value, way) if name in ("rope_parameters", "rope_scaling") else _shrunk(value, way)
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int):
        return _number(name, value, within, way)
    if isinstance(value, (list, tuple)) and value and all(type(x) is int for x in value):
        return type(value)(_numbers(name, value, within, way))
    return value


def _rule(name: str) -> tuple[int, str] | None:
    return next(((small, kind) for pattern, small, kind in COMPILED if pattern.match(name)), None)


def _is_count(name: str) -> bool:
    rule = _rule(name)
    return rule is not None and rule[1] == COUNT and name not in ("depths", "num_layers", "layers")


def _number(name: str, value: int, within: dict[str, Any], way: str) -> int:
    if name in KEPT:
        return value
    if TOKEN.match(name):
        return value if value < 4 else SPECIAL + value % (VOCABULARY - SPECIAL)
    rule = _rule(name)
    if rule is None:
        return value
    small, kind = rule
    if kind == COUNT:
        return min(value, small)
    if way == SIZE:
        is_all = name == "num_key_value_heads" and value == within.get("num_attention_heads")
        return min(value, HEADS if is_all else small)
    if way == HEAD and kind == SIZE:
        heads = next((within[n] for n in ALL_HEADS if isinstance(within.get(n), int)), 2)
        factor = max(1, heads // 2)
        return max(1, value // factor)
    return value


def _numbers(name: str, value: list[int] | tuple[int, ...], within: dict[str, Any], way: str) -> list[int]:
    if INDICES.match(name):
        return [x for x in value if x < LAYERS]
    if name == "attention_window":
        return [4] * LAYERS
    if name.startswith("conv_"):
        return [*value]
    if way != SIZE:
        return [_number(name, x, within, way) for x in value] if _is_count(name) else [*value]
    if TOKEN.match(name):
        return [_number(name, x, within, way) for x in value]
    if name in ("depths", "num_layers", "layers"):
        return [min(x, 1) for x in value]
    if _rule(name) == (HEADS, SIZE):  # 3 and 6 of them, say: the widths are to be multiples
        return [min(HEADS, 1 << (x.bit_length() - 1)) for x in value]
    if name in ("hidden_sizes", "embed_dims", "encoder_embed_dims", "neck_hidden_sizes", "encoder_hidden_sizes"):
        return [min(x, HIDDEN) for x in value]
    return [_number(name, x, within, way) for x in value]


def _rope(value: dict[str, Any], way: str) -> dict[str, Any]:
    result = {}
    for name, x in value.items():
        if isinstance(x, dict):
            x = _rope(x, way)
        elif name == "mrope_section" and way == SIZE and isinstance(x, (list, tuple)):
            x = (
                [HEAD_DIM // 2 - 2 * (HEAD_DIM // 2 // len(x)), *[HEAD_DIM // 2 // len(x)] * (len(x) - 1)]
                if len(x) == 3
                else list(x)
            )
        elif name == "original_max_position_embeddings" and isinstance(x, int):
            x = min(x, 128)
        elif name in ("short_factor", "long_factor") and way == SIZE and isinstance(x, list):
            x = x[: HEAD_DIM // 2]
        result[name] = x
    return result


def _merged(given: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    result = dict(given)
    for name, value in own.items():
        both = isinstance(value, dict) and isinstance(result.get(name), dict)
        result[name] = _merged(result[name], value) if both else value
    return result


# What the way that leaves nothing open has for names without a size.
OPEN: dict[str, Any] = {"pad_token_id": 1, "n_shared_experts": 1}


def _text(own: dict[str, Any]) -> dict[str, Any]:
    return {"text_config": own}


def _backbone(own: dict[str, Any]) -> dict[str, Any]:
    return {"backbone_config": own}


_MROPE = {"rope_parameters": {"mrope_section": [2, 3, 3]}}
_MROPE_HALF = {"rope_parameters": {"mrope_section": [2, 1, 1]}}  # half of a head is turned
_MROPE_TWO = {"rope_parameters": {"mrope_section": [4, 4]}}
_MROPE_BY_LAYER = {
    "rope_parameters": {
        name: {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]}
        for name in ("full_attention", "sliding_attention")
    }
}
_TEXTS = ("glm4v_text", "glm_ocr_text", "glm_image_text", "qwen2_vl_text", "qwen2_5_vl_text")
_WHOLE = ("glm4v", "glm_ocr", "glm_image", "glm46v", "glmga", "qwen2_vl", "qwen2_5_vl")
_INDEXER = {
    "indexer_n_heads": HEADS,
    "indexer_kv_heads": 1,
    "indexer_head_dim": HEAD_DIM,
    "indexer_budget": 4,
    "indexer_compress_ratio": 2,
}
_SWIN = {"image_size": 128, "patch_size": 4, "window_size": 4}  # whose last stage, of four, is one window
_ZAMBA = {"attention_hidden_size": 2 * HIDDEN}
_SERIES = {"prediction_length": 4, "context_length": 8, "feature_size": 9}  # of 7 lags, a mean and a scale
_IMAGE_TOKEN = {"image_token_index": SPECIAL}
OWN: dict[str, dict[str, Any]] = {
    **dict.fromkeys(_TEXTS, _MROPE),
    **dict.fromkeys(_WHOLE, _text(_MROPE)),
    "glm4v_moe_text": _MROPE_HALF,
    "glm4v_moe": _text(_MROPE_HALF),
    "hunyuan_vl_text": _MROPE_TWO,
    "hunyuan_vl": _text(_MROPE_TWO),
    "cohere_compass_text": _MROPE_BY_LAYER,
    "cohere_compass": _text(_MROPE_BY_LAYER),
    "qwen4_exp_text": _INDEXER,
    "qwen4_exp": _text(_INDEXER),
    # Of several kinds of layers the default, or its beginning, has one alone.
    "bamba": {"attn_layer_indices": [1]},
    "gemma3n_text": {
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "num_hidden_layers": 4,
        "num_kv_shared_layers": 2,
        "intermediate_size": [FFN] * 4,
        "activation_sparsity_pattern": [0.5, 0.0, 0.0, 0.0],
    },
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "granitemoehybrid": {"layer_types": ["linear_attention", "full_attention"]},
    "hrm_text": {"num_layers_per_stack": 1, "num_hidden_layers": 8},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "zamba": {**_ZAMBA, "layers_block_type": ["linear_attention", "hybrid", "hybrid"], "num_hidden_layers": 3},
    # Sizes that follow from others.
    "falcon_h1": {"mamba_d_head": 2 * HIDDEN // HEADS},
    "mamba2": {"head_dim": 2 * HIDDEN // HEADS},
    "xlnet": {"d_head": HEAD_DIM},
    "pp_formulanet": {"vision_config": {"output_channels": 256}},
    "zamba2": {**_ZAMBA, "attention_head_dim": 2 * HIDDEN // HEADS, "hybrid_layer_ids": [1]},
    **dict.fromkeys(("informer", "autoformer", "time_series_transformer"), _SERIES),
    # Images that windows fill.
    **dict.fromkeys(("swin", "donut-swin"), _SWIN),
    **dict.fromkeys(("grounding-dino", "mm-grounding-dino", "oneformer"), _backbone(_SWIN)),
    "clap": {"audio_config": {**_SWIN, "spec_size": 128, "num_mel_bins": 64, "hidden_size": 8 * HIDDEN}},
    "exaone4_5_vision": {"window_size": 2 * PATCH},
    "qwen2_5_vl_vision": {"window_size": 2 * PATCH},
    "mask2former": {"feature_size": HIDDEN, "mask_feature_size": HIDDEN, **_backbone(_SWIN)},
    "swin2sr": {"window_size": 4},
    "tvp": {"max_img_size": IMAGE, "visual_prompt_size": 4},
    # What no default has, and the models read.
    "chameleon": {"vocabulary_map": {"<image>": SPECIAL}},
    "dbrx": {"attn_config": {"rope_theta": 10000.0, "clip_qkv": 8.0}},
    "emu3": {"vocabulary_map": {"<image>": SPECIAL, "<|extra_200|>": SPECIAL + 1}},
    "esm": {"pad_token_id": 1, "mask_token_id": 3},
    "moonshine_streaming": {"num_key_value_heads": HEADS},
    "qwen3_omni_moe": {"talker_config": {"spatial_merge_size": 2, **_text({"shared_expert_intermediate_size": FFN})}},
    "t5gemma2_encoder": _text({"dropout_rate": 0.0}),
    "vits": {"speaking_rate": 1e6},  # else weights by chance make speech of hours
    "xmod": {"default_language": "en_XX"},
    **dict.fromkeys(("blip-2", "instructblip", "instructblipvideo"), _IMAGE_TOKEN),
}
