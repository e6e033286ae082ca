"""The kinds of attention of a Transformers model, of one configuration without those inside it."""

from __future__ import annotations

import dataclasses
from collections import Counter

from kiln_build.coverage.attention import ROWS, Attention
from kiln_build.coverage.fields import Fields

# Configurations in a configuration that are no model of their own.
INLINE = frozenset({"attn_config", "quantization_config", "generation_config", "rope_config", "ffn_config"})

Read = tuple[list[Attention], list[str]]

# What attends to both sides: words of model_type, of the classes' names, or of where it is in the whole model; and
# beginnings of model_type.
_ENCODERS = (
    "encoder", "bert", "vit", "clip", "siglip", "dinov", "deit", "beit", "swin", "electra", "esm", "wav2vec", "hubert",
    "wavlm", "vision", "audio", "qformer",
)  # fmt: skip
_ENCODER_TYPES = (
    "ernie", "jina_embeddings", "embedding_gemma", "unispeech", "data2vec", "xmod", "patchtst", "lasr", "tipsv2",
    "bridgetower", "openai_privacy_filter", "gte", "dpr", "sew",
)  # fmt: skip
# Causal, whatever else their names say: the text models of CLIP and its like, encoders of speech as it comes in.
_DECODER_TYPES = (
    "decoder", "clip_text", "clipseg_text", "metaclip_2_text", "owlvit_text", "owlv2_text", "ernie4", "higgs_audio",
    "mimi", "pocket_tts", "voxtral_realtime",
)  # fmt: skip
_DECODERS = ("CausalLM", "LMHead", "ConditionalGeneration")
_WITHOUT_SOFTMAX = ("linear", "mamba", "recurrent", "conv", "rwkv")
_SPARSE = ("indexed", "sparse", "compressed")
_GEMMA_3_PERIOD = 6  # every so many layers one sees all keys, where a configuration of the family does not say
_FORWARD_ONLY = ("prefill", "training")
# Beginnings of model types whose attention has alibi_slopes, sinks, or a bias, without a field that says it.
_ALIBI, _BIAS = ("bloom", "mpt"), ("inkling",)
_SINKS = (
    "gpt_oss", "flint", "granite_swa", "granitemoe_swa", "hy_v4", "deepseek_v4", "mimo_v2_flash",
    "openai_privacy_filter",
)  # fmt: skip


def kinds(fields: Fields) -> Read:
    """Kinds of attention, and notes of what has none; none of both where the fields do not tell."""
    if fields.flag("is_encoder_decoder") or fields.model_type in ("t5", "whisper", "bart", "mt5"):
        return _encoder_decoder(fields)
    return _single(fields)


def _single(fields: Fields) -> Read:
    shape = _shape(fields)
    if shape is None:
        return [], []
    causal = _is_causal(fields)
    length = _length(fields, causal)
    whole = dataclasses.replace(
        shape,
        causal=causal,
        rows=length,
        keys=length,
        uses=("prefill", "decode", "training") if causal else _FORWARD_ONLY,
    )
    found, notes = _by_layer(fields, whole)
    if fields.whole("v_head_dim") and (rank := fields.whole("kv_lora_rank")):
        rope = fields.whole_or_zero("qk_rope_head_dim")
        found.append(
            dataclasses.replace(
                found[0], name="absorbed latent attention", heads_kv=1, width_qk=rank + rope, width_v=rank,
                uses=("decode",),
            )
        )  # fmt: skip
        notes.append("decode is shown with expanded keys and values, and absorbed: over the latent cache itself")
    return found, notes


def _shape(fields: Fields) -> Attention | None:
    """Heads, widths and terms of the scores; None where they are not told."""
    heads, hidden = fields.whole("heads"), fields.whole("hidden")
    if heads is None:
        return None
    nope, wide = fields.whole("qk_nope_head_dim"), fields.whole("v_head_dim")
    rope = fields.whole_or_zero("qk_rope_head_dim")
    width_v = None
    heads_kv = fields.whole("heads_kv") or fields.inside("attn_config").whole("heads_kv")
    width: int | None
    if nope and wide:
        width, width_v, heads_kv = nope + rope, wide, heads  # each head has keys of its own once they are expanded
    else:
        width = fields.whole("head_dim")
    if width is None and hidden is not None and hidden % heads == 0:
        width = hidden // heads
    if width is None:
        return None
    if heads_kv is None or (fields.model_type == "falcon" and not fields.flag("new_decoder_architecture")):
        heads_kv = 1 if fields.flag("multi_query") else heads
    dtype = fields.dtype()
    embedded = fields.text("position_embedding_type")
    return Attention(
        "attention", heads, heads_kv, width, width_v or width, dtype, dtype,
        softcap=fields.real("attn_logit_softcapping"),
        dropout=fields.real("attention_dropout", "attention_probs_dropout_prob", "attn_pdrop", "dropout_rate"),
        sinks=fields.model_type.startswith(_SINKS) or fields.flag("attention_sinks"),
        bias=fields.whole("relative_attention_num_buckets") is not None or fields.model_type.startswith(_BIAS)
        or fields.text("position_embeddings_type").startswith("relative"),
        alibi=fields.model_type.startswith(_ALIBI) or fields.flag("alibi") or embedded == "alibi"
        or fields.inside("attn_config").flag("alibi"),
        layers=fields.whole("layers") or 0,
        assumed=tuple(fields.assumed),
    )  # fmt: skip


def _is_causal(fields: Fields) -> bool:
    if fields.flag("is_decoder"):
        return True
    if fields.document.get("use_bidirectional_attention") in (True, "all"):  # and not "vision": of images alone
        return False
    known = f"{fields.part} {fields.model_type} {fields.architectures}".lower()
    if any(word in known for word in _DECODER_TYPES):
        return True
    if any(word in known for word in _ENCODERS) or fields.model_type.startswith(_ENCODER_TYPES):
        return False
    if fields.whole("patch_size"):
        return False
    if any(word in fields.architectures for word in _DECODERS):
        return True
    if not fields.architectures and not fields.model_type:
        fields.assumed.append("causal")
    return True


def _length(fields: Fields, causal: bool) -> int:
    """Of a sequence in the example calls."""
    image, patch = fields.whole("image_size"), fields.whole("patch_size")
    if not causal and image and patch:
        return (image // patch) ** 2 + 1
    return min(fields.whole("positions") or ROWS, ROWS)


def _by_layer(fields: Fields, whole: Attention) -> Read:
    """A kind for each kind of layer."""
    whole = dataclasses.replace(whole, assumed=tuple(dict.fromkeys(fields.assumed)))
    counts, window = _layer_types(fields, whole.layers)
    found, notes = [], []
    for layer, count in counts.items():
        kind = dataclasses.replace(whole, name=layer.replace("_", " "), layers=count)
        if any(word in layer for word in _WITHOUT_SOFTMAX):
            notes.append(f"{layer} ({count} layers) is not softmax attention, and not covered")
        elif "sliding" in layer:
            of_keys = fields.whole("swa_num_key_value_heads") or kind.heads_kv
            found.append(dataclasses.replace(kind, window=window, heads_kv=of_keys))
        elif layer.startswith("chunked"):
            size = fields.whole("attention_chunk_size")
            length = min(size or ROWS, ROWS)
            found.append(dataclasses.replace(kind, rows=length, keys=length))
            notes.append(f"{layer} ({count} layers) is shown as a call for each chunk")
        else:
            found.append(kind)
            if any(word in layer for word in _SPARSE):
                notes.append(f"{layer} ({count} layers) chooses keys, and is shown with all; the choice is not covered")
    return found, notes


def _layer_types(fields: Fields, layers: int) -> tuple[dict[str, int], int]:
    """How many layers there are of each kind, and the window of those that slide."""
    window = fields.whole_or_zero("sliding_window", "sliding_window_size", "attention_window_size")
    if not window and (width := fields.whole("local_attention")):  # ModernBERT's, of both sides together
        window = width // 2 + 1
    if fields.document.get("use_sliding_window") is False:
        window = 0
    types = fields.document.get("layer_types")
    if isinstance(types, list) and types and all(isinstance(one, str) for one in types):
        counts = Counter(types)
        if not window and any("sliding" in one for one in counts):
            fields.assumed.append("no window, which sliding layers lack")
        return dict(counts), window
    if not window:
        return {"full_attention": layers}, 0
    period = _period(fields)
    if not period:
        return {"sliding_attention": layers}, window
    full = layers // period
    return {"sliding_attention": layers - full, "full_attention": full}, window


def _period(fields: Fields) -> int:
    """Every so many layers one sees all keys; 0: none does."""
    if pattern := fields.whole("sliding_window_pattern", "_sliding_window_pattern"):
        return pattern
    return 2 if fields.model_type in ("gemma2", "gpt_oss") else _GEMMA_3_PERIOD if "gemma3" in fields.model_type else 0


def _encoder_decoder(fields: Fields) -> Read:
    shape = _shape(fields)
    if shape is None:
        return [], []
    rows = min(fields.whole("max_target_positions", "positions") or ROWS, ROWS)
    keys = min(fields.whole("max_source_positions", "positions") or ROWS, ROWS)
    decoder_heads = fields.whole("decoder_attention_heads", "num_decoder_heads") or shape.heads
    scale = shape.heads * shape.width_qk
    width = scale // decoder_heads if fields.whole("decoder_attention_heads") else shape.width_qk
    decoder = dataclasses.replace(
        shape, name="decoder self-attention", heads=decoder_heads, heads_kv=decoder_heads, width_qk=width,
        width_v=width, rows=rows, keys=rows,
        layers=fields.whole("decoder_layers", "num_decoder_layers") or shape.layers,
    )  # fmt: skip
    encoder = dataclasses.replace(
        shape, name="encoder self-attention", causal=False, rows=keys, keys=keys, uses=_FORWARD_ONLY
    )
    cross = dataclasses.replace(decoder, name="cross-attention", causal=False, cross=True, bias=False, keys=keys)
    return [encoder, decoder, cross], []
