"""The kinds of attention of a Transformers model, of one configuration without those inside it."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence

from kiln_build.coverage.attention import FORWARD_ONLY, ROWS, USES, Attention, counted
from kiln_build.coverage.configuration import terms
from kiln_build.coverage.configuration.fields import Fields
from kiln_build.coverage.configuration.patterns import layer_types

# Configurations in a configuration that are no model of their own.
INLINE = frozenset({
    "attn_config", "quantization_config", "generation_config", "rope_config", "ffn_config", "linear_attn_config",
    "compression_config", "ssm_cfg",
})  # fmt: skip

Read = tuple[list[Attention], list[str]]

_WITHOUT_SOFTMAX = ("linear", "mamba", "recurrent", "conv", "rwkv")
# Beginnings of model types; the last four approximate softmax, or do without it.
_WITHOUT_ATTENTION = ("mamba", "falcon_mamba", "rwkv", "xlstm", "fnet", "mra", "nystromformer", "yoso")
_SPARSE = ("indexed", "sparse", "compressed")
_SEE_ALL = ("full_attention", "attention", "full", "hybrid", "window_attention")


def kinds(fields: Fields) -> Read:
    """Kinds of attention, and notes of what has none; none of both where the fields do not tell."""
    if fields.model_type.startswith(_WITHOUT_ATTENTION):
        return [], [f"{fields.model_type} has no softmax attention"]
    found, notes = _kinds(fields)
    return found, [*notes, *(terms.left_out(fields) if found else ())]


def _kinds(fields: Fields) -> Read:
    if fields.flag("is_encoder_decoder") or fields.model_type in ("t5", "whisper", "bart", "mt5"):
        return _encoder_decoder(fields)
    if (heads := fields.numbers("num_heads")) and "swin" in fields.family:
        return _stages(fields, heads)
    return _single(fields)


def _single(fields: Fields) -> Read:
    shape = _shape(fields)
    if shape is None:
        heads, hidden = fields.whole("heads"), fields.whole("hidden")
        return [], [f"{hidden} channels are no multiple of {heads} heads"] if heads and hidden else []
    causal = terms.is_causal(fields)
    length = _length(fields, causal)
    whole = dataclasses.replace(
        shape,
        causal=causal,
        rows=length,
        keys=length,
        uses=USES if causal else FORWARD_ONLY,
    )
    crossing = _cross(fields, whole)
    if fields.numbers("cross_attention_layers"):  # Mllama's are instead of its others
        whole = dataclasses.replace(whole, layers=max(whole.layers - sum(one.layers for one in crossing), 0))
    found, notes = _by_layer(fields, whole)
    if found and fields.whole("qk_nope_head_dim") and (rank := fields.whole("kv_lora_rank")):
        rope = fields.whole_or_zero("qk_rope_head_dim")
        found.append(
            dataclasses.replace(
                found[0], name="absorbed latent attention", heads_kv=1, head_dim=rank + rope, head_dim_v=rank,
                uses=("decode",), expanded=found[0],
            )
        )  # fmt: skip
        notes.append("decode is shown with expanded keys and values, and absorbed: over the latent cache itself")
    return [*found, *crossing], notes


def _shape(fields: Fields) -> Attention | None:
    """Heads, widths and terms of the scores; None where they are not told."""
    heads = fields.whole("heads") or next(iter(_by_head_lists(fields)), (None, None))[0]
    if heads is None:
        return None
    widths = _widths(fields, heads)
    if widths is None:
        return None
    heads_kv = heads if fields.whole("qk_nope_head_dim") else _heads_kv(fields, heads)
    dtype = fields.dtype()
    return Attention(
        "attention", heads, heads_kv, *widths, dtype, dtype,
        softcap=fields.real("softcap"),
        dropout=fields.real("dropout"),
        sinks=terms.has_sinks(fields),
        bias=terms.has_bias(fields),
        alibi=terms.has_alibi(fields),
        layers=fields.whole("layers") or 0,
        assumed=fields.assumed,
    )  # fmt: skip


def _widths(fields: Fields, heads: int) -> tuple[int, int] | None:
    """Of q and k, and of v."""
    hidden = fields.whole("hidden")
    if fields.family == "qwen2_vl_vision":  # its hidden_size is the text's
        hidden = fields.whole("embed_dim") or hidden
    shared = hidden // heads if hidden is not None and hidden % heads == 0 else None
    if nope := fields.whole("qk_nope_head_dim"):
        wide = fields.whole("v_head_dim") or shared  # each head has keys of its own once they are expanded
        return (nope + fields.whole_or_zero("qk_rope_head_dim"), wide) if wide else None
    width = fields.whole("head_dim") or shared
    if width is None:
        return None
    return width, fields.whole("v_head_dim") or width


def _heads_kv(fields: Fields, heads: int) -> int:
    is_old_falcon = fields.model_type == "falcon" and not fields.flag("new_decoder_architecture")
    known = fields.whole("heads_kv") or fields.inside("attn_config").whole("heads_kv")
    if known is None or is_old_falcon:
        if fields.flag("multi_query"):
            return 1
        by_layer = next((kv or heads for _, kv in _by_head_lists(fields)), None)
        unread = fields.differing("heads_kv") or ("block_configs" if "block_configs" in fields.document else "")
        if by_layer is None and unread:
            fields.assume(f"a KV head for each head, since {unread} is not understood")
        return by_layer or heads
    return known


def _by_head_lists(fields: Fields) -> dict[tuple[int, int | None], int]:
    """Heads and KV heads, where they are told layer by layer, with the number of layers that have them."""
    if blocks := fields.document.get("block_configs"):  # DeciLM's
        return _by_blocks(fields, blocks)
    layers = fields.whole("layers")
    lists = [
        next((found for name in names if (found := fields.numbers(name)) and layers in (None, len(found))), None)
        for names in (
            ("num_query_heads", "num_attention_heads_per_layer", "num_attention_heads"),
            ("num_kv_heads", "num_key_value_heads_per_layer", "num_key_value_heads"),
        )
    ]
    heads, heads_kv = lists
    length = len(heads or heads_kv or ())
    if heads is None and (one := fields.whole("heads")):
        heads = [one] * length
    if not heads or (heads_kv and len(heads) != len(heads_kv)):
        return {}
    every: Sequence[int | None] = heads_kv or [fields.whole("heads_kv")] * len(heads)
    return {
        (own, kv): count
        for (own, kv), count in Counter(zip(heads, every)).items()
        if own > 0 and (kv is None or kv > 0)
    }


def _by_blocks(fields: Fields, blocks: object) -> dict[tuple[int, int | None], int]:
    heads, counts = fields.whole("heads"), Counter[int]()
    for block in blocks if isinstance(blocks, list) else []:
        attention = block.get("attention") if isinstance(block, dict) else None
        shared = attention.get("n_heads_in_group") if isinstance(attention, dict) else None
        if isinstance(shared, int) and shared > 0:
            counts[shared] += 1
    return {(heads, heads // shared): count for shared, count in counts.items()} if heads else {}


def _length(fields: Fields, causal: bool) -> int:
    """Of a sequence in the example calls."""
    if not causal and (patch := fields.whole("patch_size")) and (image := fields.whole("image_size")):
        return (image // patch) ** 2 + 1
    return min(fields.whole("positions") or ROWS, ROWS)


def _by_layer(fields: Fields, whole: Attention) -> Read:
    """A kind for each kind of layer."""
    window = _window(fields)
    counts = layer_types(fields, whole.layers, window)
    if not window and any("sliding" in one for one in counts):
        fields.assume("no window, which sliding layers lack")
    whole = dataclasses.replace(whole, assumed=fields.assumed)
    found, notes = [], []
    for layer, count in counts.items():
        kind = dataclasses.replace(whole, name=layer.replace("_", " "), layers=count)
        which = f"{layer} ({counted(count, 'layer')})" if count else layer
        if any(word in layer for word in _WITHOUT_SOFTMAX):
            notes.append(f"{which} is not softmax attention, and not covered")
        elif "sliding" in layer:
            found += terms.apart(fields, layer, terms.of_sliding(fields, dataclasses.replace(kind, window=window)))
        elif layer.startswith("chunked"):
            length = min(fields.whole("attention_chunk_size") or ROWS, ROWS)
            found.append(dataclasses.replace(kind, rows=length, keys=length))
            notes.append(f"{which} is shown as a call for each chunk")
        elif layer in _SEE_ALL or any(word in layer for word in _SPARSE):
            found += terms.apart(fields, layer, terms.of_full(fields, kind))
            if layer not in _SEE_ALL:
                notes.append(f"{which} chooses keys, and is shown with all; the choice is not covered")
            elif layer == "window_attention":
                notes.append(f"{which} is shown with all rows; the calls of windows are not covered")
        else:
            notes.append(f"{which} is unknown to Kiln, and not covered")
        if layer.startswith("hybrid"):
            notes.append(f"{which} is not attention alone; the rest of it is not covered")
    if len(found) > 1 and len(_by_head_lists(fields)) > 1:
        notes.append("heads differ by layer too, and are shown as those of the first layer")
    return _by_heads(fields, found), notes


def _by_heads(fields: Fields, found: list[Attention]) -> list[Attention]:
    """A kind for each number of heads, where layers differ in nothing else."""
    pairs = _by_head_lists(fields)
    if len(found) != 1 or all(pair == (found[0].heads, found[0].heads_kv) for pair in pairs):
        return found
    (kind,) = found
    return [
        dataclasses.replace(
            kind, name=f"{kind.name} of {counted(heads, 'head')}, {counted(heads_kv or heads, 'KV head')}",
            heads=heads,
            heads_kv=heads_kv or heads,
            layers=count,
        )
        for (heads, heads_kv), count in pairs.items()
    ]  # fmt: skip


def _window(fields: Fields) -> int:
    """Keys that a row of a sliding layer sees; 0: it sees all."""
    if fields.get("use_sliding_window")[1] is False:
        return 0
    if window := fields.whole_or_zero("window"):
        return window
    if width := fields.whole("local_attention"):  # ModernBERT's, of both sides together
        return width // 2 + 1
    if fields.family.startswith(("longformer", "led")) and (width := fields.whole("attention_window")):
        return width // 2 + 1
    return fields.whole_or_zero("window_size") if fields.family == "gpt_neo" else 0


def _cross(fields: Fields, whole: Attention) -> list[Attention]:
    """Attention to what another part of the model makes."""
    rate = fields.whole("attention_downsample_rate") or 1  # SAM's
    places, every = fields.numbers("cross_attention_layers"), fields.whole("cross_attention_frequency")
    if places:
        layers = len(places)
    elif every:
        layers = whole.layers // every
    elif rate > 1 or fields.flag("add_cross_attention") or fields.model_type in ("musicgen_decoder", "trocr"):
        layers = whole.layers
    else:
        return []
    return [
        dataclasses.replace(
            whole, name="cross-attention", head_dim=whole.head_dim // rate, head_dim_v=whole.head_dim_v // rate,
            causal=False, cross=True, bias=False, alibi=False, window=0, keys=ROWS, layers=layers,
            assumed=(*whole.assumed, f"{ROWS} keys of the other part"),
        )
    ]  # fmt: skip


def _stages(fields: Fields, heads: Sequence[int]) -> Read:
    """Swin's, whose stages are of twice the width each, and attend inside windows."""
    narrow, depths, window = fields.whole("embed_dim"), fields.numbers("depths"), fields.whole("window_size")
    if not narrow or not window or not depths or len(depths) != len(heads) or any(one < 1 for one in heads):
        return [], []
    dtype = fields.dtype()
    tokens = window**2
    return [
        Attention(
            f"window attention of stage {stage}", count, count, (narrow << stage) // count, (narrow << stage) // count,
            dtype, dtype, causal=False, bias=True, dropout=fields.real("dropout"), rows=tokens, keys=tokens,
            layers=depth, uses=FORWARD_ONLY, assumed=fields.assumed,
        )
        for stage, (count, depth) in enumerate(zip(heads, depths))
    ], ["each window is shown as a sequence"]  # fmt: skip


def _encoder_decoder(fields: Fields) -> Read:
    shape = _shape(fields)
    if shape is None:
        return [], []
    rows = min(fields.whole("max_target_positions", "positions") or ROWS, ROWS)
    keys = min(fields.whole("max_source_positions", "positions") or ROWS, ROWS)
    decoder_heads = (
        fields.whole("decoder_attention_heads", "num_decoder_heads", "decoder_num_attention_heads") or shape.heads
    )
    scale = shape.heads * shape.head_dim
    width = scale // decoder_heads if decoder_heads != shape.heads else shape.head_dim
    decoder = dataclasses.replace(
        shape, name="decoder self-attention", heads=decoder_heads,
        heads_kv=fields.whole("decoder_num_key_value_heads") or decoder_heads, head_dim=width, head_dim_v=width,
        rows=rows, keys=rows, layers=fields.whole("decoder_layers", "num_decoder_layers") or shape.layers,
    )  # fmt: skip
    encoder = dataclasses.replace(
        shape, name="encoder self-attention", causal=False, window=_window(fields), rows=keys, keys=keys,
        uses=FORWARD_ONLY,
    )  # fmt: skip
    if "EncoderModel" in fields.architectures or "encoder" in fields.part:
        return [encoder], []
    if "CausalLM" in fields.architectures and not fields.flag("add_cross_attention"):  # the decoder by itself
        return [decoder], []
    cross = dataclasses.replace(decoder, name="cross-attention", causal=False, cross=True, bias=False, keys=keys)
    return [encoder, decoder, cross], []
