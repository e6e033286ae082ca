"""What is added to the scores of a Transformers model, who sees whom, and what differs from one kind of layer to the
next: what its fields say, or its family's name where no field does."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Mapping

from kiln_build.coverage.attention import Attention
from kiln_build.coverage.configuration.fields import Fields, families

# What attends to both sides: words of model_type, of where it is in the whole model, or of its classes' names; and
# beginnings of model_type.
_ENCODERS = (
    "encoder", "bert", "berta", "vit", "clip", "siglip", "dinov", "deit", "beit", "swin", "electra", "esm", "wav2vec",
    "hubert", "wavlm", "vision", "audio", "qformer", "hiera", "maskedlm",
)  # fmt: skip
_ENCODER_TYPES = (
    "ernie", "jina_embeddings", "embedding_gemma", "unispeech", "data2vec", "xmod", "patchtst", "lasr", "tipsv2",
    "bridgetower", "openai_privacy_filter", "gte", "dpr", "sew", "longformer", "big_bird", "bigbird", "funnel", "luke",
    "mpnet", "mra", "nystromformer", "yoso", "canine", "layoutlm", "layoutxlm", "lilt", "lxmert", "markuplm",
    "splinter", "bros", "tapas", "xlm", "flaubert", "xlnet", "rembert", "roformer", "esmc", "eurobert", "neomme",
    "nemotron3_5_transcribe_word_timestamp",
)  # fmt: skip
# Causal, whatever else their names say: the text models of CLIP and its like, encoders of speech as it comes in.
_DECODER_TYPES = (
    "decoder", "clip_text", "clipseg_text", "metaclip_2_text", "owlvit_text", "owlv2_text", "ernie4", "higgs_audio",
    "mimi", "pocket_tts", "voxtral_realtime",
)  # fmt: skip
_DECODERS = ("CausalLM", "LMHead", "ConditionalGeneration", "Text2Text", "ImageTextToText")
# Beginnings of model types whose attention has alibi_slopes, sinks, or a bias, without a field that says it.
_ALIBI = ("bloom", "mpt")
_BIAS = ("inkling", "wavlm", "xlnet", "funnel", "gemma3n_audio", "gemma4_audio", "phi4_multimodal_audio", "levit")
_SINKS = (
    "gpt_oss", "flint", "granite_swa", "granitemoe_swa", "hy_v4", "deepseek_v4", "mimo_v2_flash",
    "openai_privacy_filter",
)  # fmt: skip
# What the kinds that a family is shown as do not have, by beginnings of model types.
_LEFT_OUT = (
    (
        ("qwen2_5_vl_vision", "qwen2_5_omni_vision", "sam_vision", "sam_hq_vision", "sam3_vit", "vitdet"),
        "most layers attend inside windows of the image; they are shown with the whole image, and the calls of "
        "windows, whose sequences are shorter, are not covered",
    ),
    (
        ("gemma3n_audio", "gemma4_audio"),
        "each row attends to the chunk that it is in and to some rows around it; it is shown with all rows, and the "
        "calls of chunks are not covered",
    ),
    (
        ("reformer",),
        "rows attend inside chunks, of neighbours or of equal hashes; they are shown with all rows, and the calls of "
        "chunks are not covered",
    ),
    (
        ("sam2_hiera",),
        "stages after the first have more heads, and attend inside windows; they are not covered",
    ),
    (
        ("longformer", "led"),
        "tokens with global attention, which see all rows and are seen by all, are not covered",
    ),
    (
        ("longt5", "bigbird_pegasus"),
        "rows of the encoder attend to some blocks of keys; they are shown with all, and the choice is not covered",
    ),
)
_BIAS_FLAGS = (
    "relative_attention", "use_rel_pos", "has_relative_attention_bias", "use_relative_position_bias",
    "use_shared_relative_position_bias", "use_relative_position_embeddings",
)  # fmt: skip


def is_causal(fields: Fields) -> bool:
    """Whether rows see no later keys.

    Of a family that Transformers has, its name tells, which tests hold against its models. Words in other names are a
    guess, and assumed.
    """
    if fields.flag("is_decoder"):
        return True
    said = fields.document.get("is_causal")
    # "vision" there means images alone
    if fields.document.get("use_bidirectional_attention") in (True, "all") or said is False:
        return False
    if said is True:
        return True
    if fields.part.endswith("mask decoder "):  # of images
        return False
    is_known = fields.family in families()
    if is_known and "decoder" not in fields.part and (told := _told_by(fields.family)):
        return told[0]
    if "CausalLM" in fields.architectures:
        return True
    if told := _told_by(fields.part if is_known else f"{fields.part}{fields.family}"):
        return _guessed(fields, *told)
    if fields.whole("patch_size"):
        return False
    if any(word in fields.classes for word in _DECODERS):
        return True
    if told := _told_by(fields.architectures):
        return _guessed(fields, *told)
    fields.assume("causal")
    return True


def _guessed(fields: Fields, causal: bool, word: str) -> bool:
    fields.assume(f"{'causal' if causal else 'bidirectional'} as its name has {word!r}")
    return causal


def _told_by(names: str) -> tuple[bool, str] | None:
    """Whether names are of what is causal, and by which word."""
    for words, causal in ((_DECODER_TYPES, True), (_ENCODERS, False)):
        if word := next((one for one in words if _has_word(names, one)), ""):
            return causal, word
    word = next((one for one in _ENCODER_TYPES if names.rpartition(" ")[2].startswith(one)), "")
    return (False, word) if word else None


def _has_word(names: str, word: str) -> bool:
    """Whether a word begins or ends with this one, and a version: "mobilevitv2" and "ViTModel", but not "evital", have
    "vit"."""
    begins = rf"(?:^|(?<=[ _-])|(?=[A-Z]))(?i:{word})"
    ends = rf"(?i:{word})(?:v?\d+)?(?=$|[ _-]|[A-Z])"
    return re.search(f"{begins}|{ends}", names) is not None


def left_out(fields: Fields) -> list[str]:
    """What of a family's attention is not in the kinds that it is shown as, in sentences."""
    return [sentence for types, sentence in _LEFT_OUT if fields.family.startswith(types)]


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
    width = fields.whole("swa_head_dim") or kind.head_dim
    narrow = fields.whole("swa_v_head_dim") or (kind.head_dim_v if width == kind.head_dim else width)
    return dataclasses.replace(
        kind,
        heads=fields.whole("swa_num_attention_heads", "num_sliding_attention_heads") or kind.heads,
        heads_kv=fields.whole("swa_num_key_value_heads") or kind.heads_kv,
        head_dim=width,
        head_dim_v=narrow,
        sinks=_said(fields, "add_swa_attention_sink_bias", kind.sinks),
    )


def of_full(fields: Fields, kind: Attention) -> Attention:
    """A kind whose layers see all keys, with what these have of their own."""
    width = fields.whole("global_head_dim")
    heads_kv = fields.whole("num_global_key_value_heads") if fields.flag("attention_k_eq_v") else None
    return dataclasses.replace(
        kind,
        heads_kv=heads_kv or kind.heads_kv,
        head_dim=width or kind.head_dim,
        head_dim_v=width or kind.head_dim_v,
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
        head_dim=width or kind.head_dim,
        head_dim_v=inner.whole("v_head_dim") or width or kind.head_dim_v,
        window=inner.whole("window") or kind.window,
    )


def _said(fields: Fields, name: str, usual: bool) -> bool:
    said = fields.document.get(name)
    return usual if said is None else bool(said)
