"""The kinds of attention of a diffusers model: a transformer, a UNet with transformers in it, or an autoencoder."""

from __future__ import annotations

from typing import Any

from kiln_build.coverage.attention import FORWARD_ONLY, ROWS, Attention
from kiln_build.coverage.configuration.fields import Fields
from kiln_recipe.errors import UsageError

_TEXT = 77  # tokens of CLIP's text
_JOINT_TEXT = 512  # tokens of T5's text, joined to those of the image
_LAYERS = ("num_layers", "num_single_layers", "num_mmdit_layers", "num_single_dit_layers")
# Beginnings of classes whose image and text attend as one sequence, without a field that says it.
_JOINT = ("HunyuanVideo", "CogVideoX", "CogView", "Mochi", "EasyAnimate", "Lumina2", "OmniGen")
_LINEAR = ("Sana",)  # whose attention inside the image is linear
_UNET_HEADS = 8  # where a UNet does not say


def kinds(fields: Fields) -> tuple[list[Attention], list[str]]:
    """Kinds of attention, and notes; none where the fields do not tell."""
    name = str(fields.document.get("_class_name"))
    if name.endswith("Pipeline"):
        raise UsageError(
            f"{fields.where} is a pipeline's list of parts ({name}); give the config.json of its transformer or unet"
        )
    if isinstance(fields.document.get("block_out_channels"), list):
        return _autoencoder(fields) if name.startswith("Autoencoder") else _unet(fields, name)
    heads, width = fields.whole("heads"), fields.whole("head_dim")
    hidden = fields.whole("hidden")
    if width is None and heads and hidden and hidden % heads == 0:
        width = hidden // heads
    if heads is None or width is None:
        return [], []
    dtype = fields.dtype()
    layers = sum(fields.whole(one) or 0 for one in _LAYERS)
    of_image = (*fields.assumed, f"{ROWS} tokens of an image")
    of_text = (*of_image, f"{_JOINT_TEXT} of text")
    heads_kv = fields.whole("heads_kv") or heads
    if fields.whole("joint_attention_dim") or name.startswith(_JOINT):
        length = ROWS + _JOINT_TEXT
        found = [_kind("joint attention", heads, heads_kv, width, dtype, length, length, layers, of_text)]
        if dual := fields.numbers("dual_attention_layers"):
            found.append(_kind("image self-attention", heads, heads_kv, width, dtype, ROWS, ROWS, len(dual), of_text))
        return found, []
    found, notes = [], []
    if name.startswith(_LINEAR):
        notes.append(f"self-attention ({layers} layers) is not softmax attention, and not covered")
    else:
        found.append(_kind("self-attention", heads, heads_kv, width, dtype, ROWS, ROWS, layers, of_image))
    if any(fields.whole(one) for one in ("cross_attention_dim", "caption_channels", "text_dim")):
        cross = fields.whole("num_cross_attention_heads") or heads
        heads_kv = fields.whole("num_key_value_attention_heads") or cross
        wide = fields.whole("cross_attention_head_dim") or width
        found.append(_kind("cross-attention", cross, heads_kv, wide, dtype, ROWS, _JOINT_TEXT, layers, of_text))
    return found, notes


def _unet(fields: Fields, name: str) -> tuple[list[Attention], list[str]]:
    """A UNet's `attention_head_dim` is the number of heads, unless `num_attention_heads` is there; that of UNet2DModel,
    which has no text, is what it says."""
    channels, blocks = fields.document["block_out_channels"], fields.document.get("down_block_types")
    heads: Any = fields.document.get("num_attention_heads") or fields.document.get("attention_head_dim")
    if heads is None:
        fields.assume(f"{_UNET_HEADS} {'as head_dim' if name == 'UNet2DModel' else 'heads'}, as diffusers does")
        heads = _UNET_HEADS
    counts = heads if isinstance(heads, list) else [heads] * len(channels)
    if len(counts) != len(channels) or not all(type(one) is int and one > 0 for one in [*counts, *channels]):
        raise UsageError(
            f"{fields.where} has the heads {heads!r} for block_out_channels {channels!r}; give one for all, or one for "
            "each"
        )
    dtype = fields.dtype()
    assumed = (*fields.assumed, "an image of 128 x 128 latents")
    found: dict[str, Attention] = {}  # levels of equal channels are of one kind
    for level, (count, channel) in enumerate(zip(counts, channels)):
        if name == "UNet2DModel":
            count = max(channel // count, 1)
        attends = not isinstance(blocks, list) or level >= len(blocks) or "Attn" in str(blocks[level])
        is_middle = level == len(channels) - 1 and fields.document.get("mid_block_type", "") is not None
        if not (attends or is_middle) or channel % count:
            continue
        tokens = max(128 >> level, 1) ** 2
        width = channel // count
        place = f"at {channel} channels"
        own = [_kind(f"self-attention {place}", count, count, width, dtype, tokens, tokens, 0, assumed)]
        if fields.document.get("cross_attention_dim"):
            clip = (*assumed, f"{_TEXT} tokens of text")
            own.append(_kind(f"cross-attention {place}", count, count, width, dtype, tokens, _TEXT, 0, clip))
        for kind in own:
            found.setdefault(kind.name, kind)
    return list(found.values()), []


def _autoencoder(fields: Fields) -> tuple[list[Attention], list[str]]:
    """Its middle blocks attend with one head, as wide as there are channels."""
    channels = fields.numbers("block_out_channels")
    if not channels or fields.document.get("mid_block_add_attention") is False:
        return [], [f"{fields.document['_class_name']} has no attention"]
    level = len(channels) - 1
    tokens = max(1024 >> level, 1) ** 2
    dtype = fields.dtype()
    assumed = (*fields.assumed, "an image of 1024 x 1024")
    return [_kind("middle attention", 1, 1, channels[-1], dtype, tokens, tokens, 2, assumed)], []


def _kind(
    name: str, heads: int, heads_kv: int, width: int, dtype: str, rows: int, keys: int, layers: int,
    assumed: tuple[str, ...],
) -> Attention:  # fmt: skip
    return Attention(
        name, heads, heads_kv, width, width, dtype, dtype, causal=False, cross=rows != keys, rows=rows, keys=keys,
        layers=layers, uses=FORWARD_ONLY, assumed=assumed,
    )  # fmt: skip
