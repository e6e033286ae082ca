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

WAYS = ("small", "in proportion", "short")
"""All sizes at once; widths and heads divided by one number, with the sizes of heads as they are; depth alone."""

SIZE, HEAD, COUNT = WAYS
# (what a name matches, the value, the way from which on it stays as it is; COUNT: always small): the first that matches
# counts. Only integers above the value are changed.
RULES: list[tuple[str, int, str]] = [
    (r"(.*_)?codebook_size(_.*)?", 64, COUNT),  # a power of 2
    (r"(.*_)?(vocab_size|vocabulary_size|num_tokens|num_embeddings)(_.*)?", VOCABULARY, COUNT),
    (r"(num_key_value_heads|num_kv_heads|n_head_kv|num_query_groups|multi_query_group_num|.*_key_value_heads)",
     HEADS_KV, SIZE),
    (r"mamba_n_heads|mamba_num_heads|linear_num_value_heads|linear_num_key_heads", HEADS, SIZE),
    (r"(.*_)?(attention_heads|num_heads|n_heads?|heads|n_attn_heads)(_.*)?", HEADS, SIZE),
    (r"(.*_)?(num_hidden_layers|num_layers|n_layers?|encoder_layers|decoder_layers|layers|depth|num_blocks|n_block)",
     LAYERS, COUNT),
    (r"(.*_)?lora_rank|.*low_rank.*|qk_rope_head_dim|qk_nope_head_dim", HEAD_DIM, HEAD),
    (r"qk_head_dim", 2 * HEAD_DIM, HEAD),
    (r"v_head_dim|head_dim|d_kv|d_head|kv_channels|attention_head_dim|head_size|.*_head_dim|dim_head", HEAD_DIM, HEAD),
    (r"(.*_)?(intermediate_size|intermediate_dim|ffn_dim|ffn_hidden_size|d_ff|d_inner|n_inner|inner_dim|ff_dim|dim_ff|"
     r"dim_feedforward|mlp_dim|feedforward_dim|ffn_size|ffn_embed_dim|intermediate_channels)(_.*)?", FFN, SIZE),
    (r"(.*_)?(hidden_size|d_model|n_embd|embed_dim|embedding_size|embedding_dim|hidden_dim|model_dim|dim|"
     r"projection_dim|output_dim|width|embed_size|proj_dim|d_embed|emb_dim|hidden_channels|embeds_dim|lru_width|hidden)",
     HIDDEN, SIZE),
    (r"attention_window", 4, COUNT),
    (r"sliding_window|local_attention|window_size|sliding_window_size|attention_chunk_size", WINDOW, COUNT),
    (r".*experts_per_tok(en)?|moe_k|moe_topk|(?!index).*top_k.*|num_selected_experts|(?!index).*_topk", 2, COUNT),
    (r".*num_(local_|routed_)?experts|n_routed_experts|n_experts|moe_num_experts", 4, COUNT),
    (r"n_group|topk_group|num_expert_groups?|first_k_dense_replace", 1, COUNT),
    (r"image_size|img_size|input_size|crop_size", IMAGE, COUNT),
    (r"patch_size|vision_patch_size", PATCH, COUNT),
    (r"max_position_embeddings|max_target_positions|n_positions|max_seq_len|seq_length|n_ctx|max_sequence_length|"
     r"max_source_positions|max_text_len|max_2d_position_embeddings", 512, COUNT),
    (r"num_mel_bins|n_mels|num_mels|feature_size|input_feat_per_channel", 16, SIZE),
    (r"rotary_dim|rotary_ndims", 8, HEAD),
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
    "out_indices",
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


def tiny(config_class: type, model_type: str, way: str = "small") -> Any:
    """A configuration of the class, tiny."""
    given = _merged(_shrunk(config_class().to_dict(), way), OWN.get(model_type, {}))
    for name in ("model_type", "_attn_implementation"):
        given.pop(name, None)
    return config_class(**given)


def _shrunk(given: dict[str, Any], way: str) -> dict[str, Any]:
    result = {name: _value(name, value, given, way) for name, value in given.items() if name not in DERIVED}
    depth = next((given[n] for n in DEPTHS if isinstance(given.get(n), int)), 0)
    layers = [
        n for n, x in given.items()
        if isinstance(x, list) and x and n not in DERIVED
        and (PER_LAYER.match(n) or (len(x) == depth > 4)) and not INDICES.match(n)
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


_MROPE = {"rope_parameters": {"mrope_section": [2, 3, 3]}}
_TEXTS = ("glm4v_text", "glm_ocr_text", "glm_image_text", "glm4v_moe_text", "qwen2_vl_text", "qwen2_5_vl_text")
_WHOLE = ("glm4v", "glm_ocr", "glm_image", "glm4v_moe", "glm46v", "glmga", "qwen2_vl", "qwen2_5_vl")
OWN: dict[str, dict[str, Any]] = {
    **{name: _MROPE for name in _TEXTS},  # noqa: C420  (never changed)
    **{name: {"text_config": _MROPE} for name in _WHOLE},
    "esm": {"pad_token_id": 1, "mask_token_id": 3},
    "xlnet": {"d_head": HEAD_DIM},
    "informer": {"prediction_length": 4},
    "autoformer": {"prediction_length": 4},
    "time_series_transformer": {"prediction_length": 4},
}
