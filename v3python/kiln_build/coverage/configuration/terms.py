"""What is added to the scores of a Transformers model, who sees whom, and what differs from one kind of layer to the
next: what its fields say, or its family's name where no field does."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping

from kiln_build.coverage.attention import Attention
from kiln_build.coverage.configuration.fields import Fields

# What attends to both sides: words of model_type, of the classes' names, or of where it is in the whole model; and
# beginnings of model_type.
_ENCODERS = (
    "encoder", "bert", "vit", "clip", "siglip", "dinov", "deit", "beit", "swin", "electra", "esm", "wav2vec", "hubert",
    "wavlm", "vision", "audio", "qformer", "maskedlm",
)  # fmt: skip
_ENCODER_TYPES = (
    "ernie", "jina_embeddings", "embedding_gemma", "unispeech", "data2vec", "xmod", "patchtst", "lasr", "tipsv2",
    "bridgetower", "openai_privacy_filter", "gte", "dpr", "sew", "longformer", "big_bird", "bigbird", "funnel", "luke",
    "mpnet", "mra", "nystromformer", "yoso", "canine", "layoutlm", "layoutxlm", "lilt", "lxmert", "markuplm",
    "splinter", "bros", "tapas", "xlm", "flaubert", "xlnet", "rembert", "roformer", "esmc", "eurobert", "neomme",
)  # fmt: skip
# Causal, whatever else their names say: the text models of CLIP and its like, encoders of speech as it comes in.
_DECODER_TYPES = (
    "decoder", "clip_text", "clipseg_text", "metaclip_2_text", "owlvit_text", "owlv2_text", "ernie4", "higgs_audio",
    "mimi", "pocket_tts", "voxtral_realtime",
)  # fmt: skip
_DECODERS = ("CausalLM", "LMHead", "ConditionalGeneration")
# Beginnings of model types whose attention has alibi_slopes, sinks, or a bias, without a field that says it.
_ALIBI = ("bloom", "mpt")
_BIAS = ("inkling", "wavlm", "xlnet", "funnel", "gemma3n_audio", "gemma4_audio", "phi4_multimodal_audio", "levit")
_SINKS = (
    "gpt_oss", "flint", "granite_swa", "granitemoe_swa", "hy_v4", "deepseek_v4", "mimo_v2_flash",
    "openai_privacy_filter",
)  # fmt: skip
_BIAS_FLAGS = (
    "relative_attention", "use_rel_pos", "has_relative_attention_bias", "use_relative_position_bias",
    "use_shared_relative_position_bias", "use_relative_position_embeddings",
)  # fmt: skip


def is_causal(fields: Fields) -> bool:
    if fields.flag("is_decoder"):
        return True
    # "vision" there means images alone
    if fields.document.get("use_bidirectional_attention") in (True, "all") or fields.document.get("is_causal") is False:
        return False
    known = f"{fields.part} {fields.family} {fields.architectures}".lower()
    if fields.part.endswith("mask decoder "):  # of images
        return False
    if any(word in known for word in _DECODER_TYPES):
        return True
    if any(word in known for word in _ENCODERS) or fields.family.startswith(_ENCODER_TYPES):
        return False
    if fields.whole("patch_size"):
        return False
    if not any(word in fields.architectures for word in _DECODERS) and not fields.part:
        fields.assume("causal")
    return True


def has_alibi(fields: Fields) -> bool:
    for said in (fields.document.get("alibi"), fields.inside("attn_config").document.get("alibi")):
        if said is not None:
            return bool(said)
    if fields.model_type == "baichuan":  # no field tells rope from alibi: those of 4,096 have rope
        return fields.whole("hidden") != 4096
    return fields.model_type.startswith(_ALIBI) or fields.text("position_embedding_type") == "alibi"


def has_bias(fields: Fields) -> bool:
    """Of positions that differ, or learned; in most it depends on the layer alone, in DeBERTa on queries and keys."""
    return (
        fields.whole("relative_attention_num_buckets") is not None
        or fields.family.startswith(_BIAS)
        or fields.text("position_embeddings_type").startswith("relative")
        or fields.text("position_embedding_type").startswith("relative")
        or any(fields.flag(name) for name in _BIAS_FLAGS)
    )


def has_sinks(fields: Fields) -> bool:
    return fields.family.startswith(_SINKS) or fields.flag("attention_sinks")


def of_sliding(fields: Fields, kind: Attention) -> Attention:
    """A kind whose layers slide, with what these have of their own."""
    width = fields.whole("swa_head_dim") or kind.width_qk
    narrow = fields.whole("swa_v_head_dim") or (kind.width_v if width == kind.width_qk else width)
    return dataclasses.replace(
        kind,
        heads=fields.whole("swa_num_attention_heads", "num_sliding_attention_heads") or kind.heads,
        heads_kv=fields.whole("swa_num_key_value_heads") or kind.heads_kv,
        width_qk=width,
        width_v=narrow,
        sinks=_said(fields, "add_swa_attention_sink_bias", kind.sinks),
    )


def of_full(fields: Fields, kind: Attention) -> Attention:
    """A kind whose layers see all keys, with what these have of their own."""
    width = fields.whole("global_head_dim")
    of_keys = fields.whole("num_global_key_value_heads") if fields.flag("attention_k_eq_v") else None
    return dataclasses.replace(
        kind,
        heads_kv=of_keys or kind.heads_kv,
        width_qk=width or kind.width_qk,
        width_v=width or kind.width_v,
        sinks=_said(fields, "add_full_attention_sink_bias", kind.sinks),
    )


def apart(fields: Fields, layer: str, kind: Attention) -> list[Attention]:
    """The kinds of the layers of one name: several where per_layer_config tells them apart."""
    by_layer, types = fields.document.get("per_layer_config"), fields.words("layer_types")
    if not isinstance(by_layer, Mapping) or layer not in types:
        return [kind]
    counts = Counter(
        _of_layer(fields, by_layer.get(str(place)), kind) for place, one in enumerate(types) if one == layer
    )
    return [dataclasses.replace(one, layers=count) for one, count in counts.items()]


def _of_layer(fields: Fields, own: object, kind: Attention) -> Attention:
    if not isinstance(own, Mapping):
        return kind
    inner = Fields(own, f"{fields.where}: per_layer_config")
    width = inner.whole("head_dim")
    heads = inner.whole("heads") or kind.heads
    return dataclasses.replace(
        kind,
        heads=heads,
        heads_kv=inner.whole("heads_kv") or kind.heads_kv,
        width_qk=width or kind.width_qk,
        width_v=inner.whole("v_head_dim") or width or kind.width_v,
        window=inner.whole("window") or kind.window,
    )


def _said(fields: Fields, name: str, usual: bool) -> bool:
    said = fields.document.get(name)
    return usual if said is None else bool(said)
