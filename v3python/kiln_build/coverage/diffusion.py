"""The kinds of attention of a diffusers model: a transformer, or a UNet with transformers in it."""

from __future__ import annotations

from typing import Any

from kiln_build.coverage.attention import ROWS, Attention
from kiln_build.coverage.fields import Fields
from kiln_recipe.errors import UsageError

_USES = ("prefill", "training")
_TEXT = 77  # tokens of CLIP's text
_JOINT_TEXT = 512  # tokens of T5's text, joined to those of the image


def kinds(fields: Fields) -> tuple[list[Attention], list[str]]:
    """Kinds of attention, and notes; none where the fields do not tell."""
    if isinstance(fields.document.get("block_out_channels"), list):
        return _unet(fields), []
    heads, width = fields.whole("heads"), fields.whole("head_dim")
    if heads is None or width is None:
        return [], []
    dtype = fields.dtype()
    assumed = (*fields.assumed, f"{ROWS} tokens of an image")
    joint = fields.whole("joint_attention_dim") is not None
    found = []
    if joint:
        length = ROWS + _JOINT_TEXT
        layers = (fields.whole("num_layers") or 0) + (fields.whole("num_single_layers") or 0)
        assumed = (*assumed, f"{_JOINT_TEXT} of text")
        found.append(_kind("joint attention", heads, heads, width, dtype, length, length, layers, assumed))
        if fields.document.get("dual_attention_layers"):
            layers = len(fields.document["dual_attention_layers"])
            found.append(_kind("image self-attention", heads, heads, width, dtype, ROWS, ROWS, layers, assumed))
        return found, []
    layers = fields.whole("num_layers") or 0
    found.append(_kind("self-attention", heads, heads, width, dtype, ROWS, ROWS, layers, assumed))
    if fields.whole("cross_attention_dim") or fields.whole("caption_channels") or fields.whole("text_dim"):
        assumed = (*assumed, f"{_JOINT_TEXT} of text")
        cross = fields.whole("num_cross_attention_heads") or heads
        wide = fields.whole("cross_attention_head_dim") or width
        found.append(_kind("cross-attention", cross, cross, wide, dtype, ROWS, _JOINT_TEXT, layers, assumed))
    return found, []


def _unet(fields: Fields) -> list[Attention]:
    """A UNet's `attention_head_dim` is the number of heads, unless `num_attention_heads` is there."""
    channels, blocks = fields.document["block_out_channels"], fields.document.get("down_block_types")
    heads: Any = fields.document.get("num_attention_heads") or fields.document.get("attention_head_dim")
    counts = heads if isinstance(heads, list) else [heads] * len(channels)
    if len(counts) != len(channels) or not all(isinstance(one, int) and one > 0 for one in [*counts, *channels]):
        raise UsageError(
            f"{fields.where} has the heads {heads!r} for block_out_channels {channels!r}; give one for all, or one for "
            "each"
        )
    dtype = fields.dtype()
    assumed = (*fields.assumed, "an image of 128 x 128 latents")
    found: dict[Attention, None] = {}
    for level, (count, channel) in enumerate(zip(counts, channels)):
        attends = not isinstance(blocks, list) or level >= len(blocks) or "Attn" in str(blocks[level])
        if not attends or channel % count:
            continue
        tokens = (128 >> level) ** 2
        width = channel // count
        name = f"at {channel} channels"
        found[_kind(f"self-attention {name}", count, count, width, dtype, tokens, tokens, 0, assumed)] = None
        if fields.document.get("cross_attention_dim"):
            clip = (*assumed, f"{_TEXT} tokens of text")
            found[_kind(f"cross-attention {name}", count, count, width, dtype, tokens, _TEXT, 0, clip)] = None
    return list(found)


def _kind(
    name: str, heads: int, heads_kv: int, width: int, dtype: str, rows: int, keys: int, layers: int,
    assumed: tuple[str, ...],
) -> Attention:  # fmt: skip
    return Attention(
        name, heads, heads_kv, width, width, dtype, dtype, causal=False, cross=rows != keys, rows=rows, keys=keys,
        layers=layers, uses=_USES, assumed=assumed,
    )  # fmt: skip
