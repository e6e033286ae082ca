"""What models of any kind are called with, and how far apart two outputs are."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import torch
from tiny_configs import SPECIAL
from torch import Tensor, nn

LENGTH, BATCH, PADS = 13, 2, 4


def ids(config: Any, length: int = LENGTH, seed: int = 0) -> Tensor:
    return torch.randint(5, SPECIAL - 10, (BATCH, length), generator=torch.Generator().manual_seed(seed))


def parts(config: Any) -> Iterator[Any]:
    yield config
    for name in getattr(config, "sub_configs", {}):
        part = getattr(config, name, None)
        if part is not None:
            yield from parts(part)


def looked_up(config: Any, *names: str, default: Any = None) -> Any:
    for part in parts(config):
        for name in names:
            value = getattr(part, name, None)
            if isinstance(value, (list, tuple)) and value and isinstance(value[0], int):
                value = value[0]
            if isinstance(value, int) and not isinstance(value, bool):
                return value
    return default


def candidates(model: nn.Module) -> Iterator[dict[str, Tensor]]:
    """Inputs, without masks, that the model may take."""
    config = model.config
    wanted = inspect.signature(model.forward).parameters
    main = model.main_input_name
    g = torch.Generator().manual_seed(2)
    size = looked_up(config, "image_size", "img_size", default=32)
    channels = looked_up(config, "num_channels", "in_channels", "in_chans", default=3)
    mels = looked_up(config, "num_mel_bins", "feature_size", "input_feat_per_channel", "n_mels", default=16)
    text = {"input_ids": ids(config)} if "input_ids" in wanted else {}
    if "decoder_input_ids" in wanted and (config.is_encoder_decoder or main != "input_ids"):
        text["decoder_input_ids"] = ids(config, 7, 1)
    if "bbox" in wanted and text:
        text["bbox"] = torch.tensor([1, 2, 5, 7]).expand(*text["input_ids"].shape, 4)
    image = {"pixel_values": torch.randn(BATCH, channels, size, size, generator=g)}
    if "input_ids" in text and main == "input_ids":
        yield text
    with_text = dict(text)
    if "pixel_values" in wanted:
        yield {**with_text, **image}
        if with_text:
            yield image
        frames = looked_up(config, "num_frames", default=2)
        yield {**with_text, "pixel_values": torch.randn(BATCH, frames, channels, size, size, generator=g)}
    if "input_features" in wanted:
        for shape in ((BATCH, mels, 2 * looked_up(config, "max_source_positions", default=32)), (BATCH, 64, mels)):
            yield {**with_text, "input_features": torch.randn(shape, generator=g)}
            yield {
                **{k: v for k, v in with_text.items() if k != "input_ids"},
                "input_features": torch.randn(shape, generator=g),
            }
    if "input_values" in wanted:
        for shape in ((BATCH, 4000), (BATCH, 1, 4000), (BATCH, 64, mels)):
            yield {
                **{k: v for k, v in text.items() if k != "input_ids"},
                "input_values": torch.randn(shape, generator=g),
            }
    grid = next((n for n in ("grid_thw", "image_grid_thw") if n in wanted), None)
    for name in ("hidden_states", "pixel_values"):
        if grid and name in wanted:
            merge = looked_up(config, "spatial_merge_size", default=2)
            side = 2 * merge
            patch = looked_up(config, "patch_size", default=8)
            frames = looked_up(config, "temporal_patch_size", default=1)
            for width in (channels * frames * patch * patch, channels * patch * patch):
                patches = torch.randn(BATCH * side * side, width, generator=g)
                yield {name: patches, grid: torch.tensor([[1, side, side]] * BATCH)}
    if text:
        yield text


def outputs(
    found: Any, skip: tuple[str, ...] = ("past_key_values", "cache_params", "attentions")
) -> Iterator[tuple[str, Tensor]]:
    """All tensors of floating point in a model's output, by name."""
    if isinstance(found, Tensor):
        if found.is_floating_point():
            yield "", found
    elif isinstance(found, dict) or hasattr(found, "items"):
        for name, value in found.items():
            if not any(s in name for s in skip):
                for more, tensor in outputs(value):
                    yield f"{name}{more and '.'}{more}", tensor
    elif isinstance(found, (list, tuple)):
        for i, value in enumerate(found):
            for more, tensor in outputs(value):
                yield f"{i}{more and '.'}{more}", tensor


def distance(found: Any, expected: Any, mask: Tensor | None) -> float:
    """The largest difference, in parts of the largest value; of the positions that a mask has."""
    ours, theirs = dict(outputs(found)), dict(outputs(expected))
    if ours.keys() != theirs.keys():
        return float("inf")
    far = 0.0
    for name, one in theirs.items():
        other = ours[name]
        if one.shape != other.shape:
            return float("inf")
        if mask is not None and one.shape[:2] == mask.shape:
            one, other = one[mask.bool()], other[mask.bool()]
        if not one.numel():
            continue
        one, other = one.double(), other.double()
        same = (one == other) | (one.isnan() & other.isnan())
        gap = (one - other).masked_fill(same, 0.0).abs().max()
        scale = one.nan_to_num(0, 0, 0).abs().max().clamp(min=1e-6)
        far = max(far, float((gap / scale).nan_to_num(float("inf"))))
    return far


def masks(side: str) -> Tensor:
    mask = torch.ones(BATCH, LENGTH, dtype=torch.long)
    mask[0, slice(0, PADS) if side == "left" else slice(LENGTH - PADS, LENGTH)] = 0
    return mask


def pieces(model: nn.Module, inputs: dict[str, Tensor]) -> list[Tensor]:
    """A prompt in pieces over a cache."""
    rest = {n: x for n, x in inputs.items() if n not in ("input_ids", "attention_mask")}
    cache, found = None, []
    mask = inputs.get("attention_mask")
    for begin, end in ((0, 7), (7, 12), (12, 13)):
        more = {} if mask is None else {"attention_mask": mask[:, :end]}
        out = model(
            input_ids=inputs["input_ids"][:, begin:end],
            past_key_values=cache,
            use_cache=True,
            **more,
            **(rest if begin == 0 else {}),
        )
        cache = out.past_key_values
        value = out[0]
        found.append(value if mask is None else value[mask[:, begin:end].bool()])
    return found
