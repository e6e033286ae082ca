"""Small models of Transformers with random weights, in pairs: one with "eager" attention, one with Kiln's."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn
from transformers import (
    AttentionInterface,
    AttentionMaskInterface,
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
)
from transformers.masking_utils import eager_mask

WINDOW = 5
VOCABULARY = 97
LAYERS = ("sliding_attention", "full_attention", "sliding_attention")
# Wide weights: rows see some keys much more than others, so that a wrong mask is a wrong answer.
DECODER = {
    "vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 256,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": None, "initializer_range": 0.4,
}  # fmt: skip
LAYERED = {"layer_types": [*LAYERS]}
MIXED = {"use_sliding_window": True, "max_window_layers": 1}
CAPPED = {"attn_logit_softcapping": 3.0, "query_pre_attn_scalar": 16}
PER_LAYER = {"vocab_size_per_layer_input": VOCABULARY, "hidden_size_per_layer_input": 8, "num_kv_shared_layers": 0}
GEMMA3N = {
    **LAYERED,
    **PER_LAYER,
    "intermediate_size": [48] * 3,
    "activation_sparsity_pattern": [0.0] * 3,
    "laurel_rank": 4,
}

# Decoders with windows.
WINDOWED: dict[str, dict[str, Any]] = {
    "cohere2": LAYERED, "exaone4": LAYERED, "gemma2": CAPPED, "gemma3_text": {**LAYERED, "query_pre_attn_scalar": 16},
    "gemma3n_text": GEMMA3N, "gemma4_text": {"layer_types": [*LAYERS[:1], *LAYERS[:2]], **PER_LAYER},
    "gpt_oss": {"num_local_experts": 4}, "ministral": LAYERED, "mistral": {}, "mixtral": {"num_local_experts": 4},
    "olmo3": LAYERED, "phi3": {}, "qwen2": MIXED, "qwen3": MIXED,
    "qwen3_moe": {**MIXED, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16},
    "smollm3": {"use_sliding_window": True, **LAYERED, "no_rope_layers": [1, 0, 1]}, "starcoder2": {},
    "vaultgemma": CAPPED,
}  # fmt: skip

ENCODER = {"vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
           "num_attention_heads": 4, "max_position_embeddings": 128, "pad_token_id": 0,
           "initializer_range": 0.4}  # fmt: skip
T5 = {"vocab_size": VOCABULARY, "d_model": 32, "d_kv": 16, "d_ff": 48, "num_layers": 2, "num_heads": 4,
      "relative_attention_num_buckets": 8, "initializer_factor": 1.0, "decoder_start_token_id": 0, "pad_token_id": 0,
      "eos_token_id": None}  # fmt: skip
BART = {"vocab_size": VOCABULARY, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
        "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "max_position_embeddings": 128,
        "init_std": 0.4, "decoder_start_token_id": 2, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": None,
        "forced_eos_token_id": None}  # fmt: skip
GPT2 = {"vocab_size": VOCABULARY, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128, "bos_token_id": 1,
        "eos_token_id": None, "initializer_range": 0.4, "scale_attn_by_inverse_layer_idx": True}  # fmt: skip
QWEN2_MOE = {**DECODER, **MIXED, "sliding_window": WINDOW, "num_experts": 4, "num_experts_per_tok": 2,
             "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16}  # fmt: skip
# Encoders, encoders with decoders, a decoder without GQA, one whose modules are not told their windows.
OTHERS: dict[str, tuple[type, dict[str, Any]]] = {
    "bert": (AutoModel, ENCODER),
    "modernbert": (AutoModel, {**ENCODER, "global_attn_every_n_layers": 2, "local_attention": 8}),
    "t5": (AutoModelForSeq2SeqLM, T5),
    "bart": (AutoModelForSeq2SeqLM, BART),
    "gpt2": (AutoModelForCausalLM, GPT2),
    "qwen2_moe": (AutoModelForCausalLM, QWEN2_MOE),
}


def pair(
    name: str,
    device: str = "cpu",
    dtype: torch.dtype = torch.float32,
    attention: str = "kiln",
    experts_implementation: str | None = None,
    **options: Any,
) -> tuple[nn.Module, nn.Module]:
    """A model with eager attention, and the same with Kiln's; both evaluate.

    Args:
        options: of the configuration.
    """
    windowed = {"sliding_window": WINDOW, **WINDOWED[name]} if name in WINDOWED else {}
    kind, base = OTHERS.get(name, (AutoModelForCausalLM, {**DECODER, **windowed}))
    config = AutoConfig.for_model(name, **{**base, **options})
    torch.manual_seed(0)
    more = {} if experts_implementation is None else {"experts_implementation": experts_implementation}
    eager, ours = (
        kind.from_config(copy.deepcopy(config), attn_implementation=implementation, **more).to(device, dtype).eval()
        for implementation in ("eager", attention)
    )
    ours.load_state_dict(eager.state_dict())
    return eager, ours


def register_exact() -> None:
    """Registers "exact": what "eager" computes, wholly in the tensors' dtype. "eager" itself has its softmax in
    float32, where the masks of float64 overflow."""
    AttentionInterface.register("exact", _exact)
    AttentionMaskInterface.register("exact", eager_mask)


def _exact(
    module: nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None,
    scaling: float | None = None, softcap: float | None = None, s_aux: torch.Tensor | None = None,
    position_bias: torch.Tensor | None = None, **_: Any,
) -> tuple[torch.Tensor, None]:  # fmt: skip
    group = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(group, 1), value.repeat_interleave(group, 1)
    scores = query @ key.mT * (query.shape[3] ** -0.5 if scaling is None else scaling)
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    for addend in (position_bias, mask):
        scores = scores if addend is None else scores + addend
    if s_aux is not None:
        scores = torch.cat([scores, s_aux[None, :, None, None].expand(*scores.shape[:3], 1)], 3)
    weights = scores.softmax(3)[..., : key.shape[2]]
    return (weights @ value).transpose(1, 2).contiguous(), None


def tokens(batch: int = 2, length: int = 13, device: str = "cpu", seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, VOCABULARY, (batch, length), generator=generator).to(device)


def padded(length: int = 13, side: str = "left", pads: int = 4, device: str = "cpu") -> torch.Tensor:
    """An attention mask of two sequences, the first of which is padded: "left", "right", or in the midst: "hole"."""
    mask = torch.ones(2, length, dtype=torch.long)
    begin = {"left": 0, "right": length - pads, "hole": pads}[side]
    mask[0, begin : begin + pads] = 0
    return mask.to(device)


def far(found: torch.Tensor, expected: torch.Tensor, mask: torch.Tensor | None = None) -> float:
    """The largest difference, of the positions that a mask has."""
    if mask is not None:
        found, expected = found[mask.bool()], expected[mask.bool()]
    return float((found.double() - expected.double()).abs().max())
