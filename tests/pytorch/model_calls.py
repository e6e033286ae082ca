"""What models of any kind are called with, and how far apart two outputs are."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import torch
from tiny_configs import HIDDEN, SPECIAL
from torch import Tensor, nn

LENGTH, BATCH, PADS = 13, 2, 4
SIDE = 4  # of an image, in patches
Make = Callable[[Any, torch.Generator], Tensor]


def ids(config: Any, length: int = LENGTH, seed: int = 0) -> Tensor:
    most = min(SPECIAL - 10, looked_up(config, "vocab_size", default=SPECIAL) - 4)  # and one for each that is padding
    return torch.randint(5, most, (BATCH, length), generator=torch.Generator().manual_seed(seed))


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


def sequence(config: Any) -> int:
    """The length of a series of numbers."""
    return looked_up(config, "context_length", default=32) + max(getattr(config, "lags_sequence", None) or [0])


def series(config: Any, generator: torch.Generator, length: int) -> Tensor:
    channels = getattr(config, "num_input_channels", None)
    return torch.randn(BATCH, length, *([channels] if channels else []), generator=generator).abs() + 1


def patches_of(config: Any, generator: torch.Generator) -> Tensor:
    width = looked_up(config, "patch_embed_hidden_size", default=HIDDEN)
    places = torch.stack([1 + torch.arange(SIDE**2) // SIDE, 1 + torch.arange(SIDE**2) % SIDE], -1)
    return torch.cat(
        [places.expand(BATCH, -1, -1).float(), torch.randn(BATCH, SIDE**2, width, generator=generator)], -1
    )


def width_of(config: Any) -> int:
    return looked_up(config, "hidden_size", "d_model", "n_embd", default=HIDDEN)


def normal(*shape: Any) -> Make:
    """Numbers of a shape, of which what is not a number is asked of the configuration."""
    return lambda c, g: torch.randn(BATCH, *(x if isinstance(x, int) else x(c) for x in shape), generator=g)


def size_of(*names: str, default: int) -> Callable[[Any], int]:
    return lambda config: looked_up(config, *names, default=default)


IMAGE_SIZE = size_of("image_size", "img_size", default=32)
CHANNELS = size_of("num_channels", "in_channels", "in_chans", default=3)
MELS = size_of("num_mel_bins", "feature_size", "input_feat_per_channel", "n_mels", default=16)
FRAMES = size_of("num_frames", "frames_per_clip", "video_length", default=2)
TIMES = size_of("num_time_features", default=0)
# What arguments of these names are given, where a model has to have them or takes no less.
NAMED: dict[str, Make] = {
    "input_ids": lambda c, g: ids(c),
    "decoder_input_ids": lambda c, g: ids(c, 7, 1),
    "qformer_input_ids": lambda c, g: ids(c, 5, 3),
    "task_inputs": lambda c, g: ids(c, looked_up(c, "task_seq_len", default=LENGTH), 3),
    "pixel_values": normal(CHANNELS, IMAGE_SIZE, IMAGE_SIZE),
    "prompt_pixel_values": normal(CHANNELS, IMAGE_SIZE, IMAGE_SIZE),
    "prompt_masks": normal(CHANNELS, IMAGE_SIZE, IMAGE_SIZE),
    "pixel_values_videos": normal(FRAMES, CHANNELS, IMAGE_SIZE, IMAGE_SIZE),
    "flattened_patches": patches_of,
    "visual_feats": normal(6, size_of("visual_feat_dim", default=64)),
    "visual_pos": normal(6, size_of("visual_pos_dim", default=4)),
    "encoder_hidden_states": normal(6, size_of("encoder_hidden_size", default=HIDDEN)),
    "query_embeds": normal(8, width_of),
    "inputs_embeds": normal(LENGTH, width_of),
    "noise_embeds": normal(LENGTH, width_of),
    "inputs": normal(LENGTH, width_of),
    "latents": normal(width_of, LENGTH),
    "states": normal(LENGTH, size_of("state_dim", default=17)),
    "actions": normal(LENGTH, size_of("act_dim", default=4)),
    "rewards": normal(LENGTH, 1),
    "returns_to_go": normal(LENGTH, 1),
    "timesteps": lambda c, g: torch.arange(LENGTH).expand(BATCH, -1).clone(),
    "audio_mel": normal(64, size_of("input_feat_size", default=128)),
    "audio_mel_mask": lambda c, g: torch.zeros(BATCH, 64, dtype=torch.bool),
    "past_values": lambda c, g: series(c, g, sequence(c)),
    "past_observed_mask": lambda c, g: torch.ones_like(series(c, g, sequence(c))),
    "past_values_padding": lambda c, g: torch.zeros(BATCH, sequence(c), dtype=torch.long),
    "past_time_features": lambda c, g: torch.randn(BATCH, sequence(c), TIMES(c), generator=g),
    "future_values": lambda c, g: series(c, g, looked_up(c, "prediction_length", default=4)),
    "future_time_features": lambda c, g: torch.randn(
        BATCH, looked_up(c, "prediction_length", default=4), TIMES(c), generator=g
    ),
    "freq": lambda c, g: torch.zeros(BATCH, 1, dtype=torch.long),
}


def candidates(model: nn.Module) -> Iterator[dict[str, Tensor]]:
    """Inputs, without masks, that the model may take."""
    wanted = inspect.signature(model.forward).parameters
    text = _text(model)
    if "input_ids" in text and model.main_input_name == "input_ids":
        yield text
    if "pixel_values" in wanted:
        yield from _images(model, text)
    yield from _sounds(model, text)
    yield from _patches(model, text)
    if text:
        yield text
    yield from _codes(model, text)
    yield from _named(model)


def _text(model: nn.Module) -> dict[str, Tensor]:
    wanted = inspect.signature(model.forward).parameters
    text = {"input_ids": ids(model.config)} if "input_ids" in wanted else {}
    if "decoder_input_ids" in wanted and (model.config.is_encoder_decoder or model.main_input_name != "input_ids"):
        text["decoder_input_ids"] = ids(model.config, 7, 1)
    if "bbox" in wanted and text:
        text["bbox"] = torch.tensor([1, 2, 5, 7]).expand(*text["input_ids"].shape, 4)
    return text


def _images(model: nn.Module, text: dict[str, Tensor]) -> Iterator[dict[str, Tensor]]:
    config, g = model.config, torch.Generator().manual_seed(2)
    image = {"pixel_values": NAMED["pixel_values"](config, g)}
    yield {**text, **image}
    if text:
        yield image
    for frames in dict.fromkeys((looked_up(config, "num_frames", default=2), 1)):
        yield {**text, "pixel_values": normal(frames, CHANNELS, IMAGE_SIZE, IMAGE_SIZE)(config, g)}
    wanted = inspect.signature(model.forward).parameters
    if "image_attention_mask" in wanted:
        mask = torch.ones(BATCH, LENGTH, 1, dtype=torch.long)
        yield {**text, "pixel_values": image["pixel_values"][:, None], "image_attention_mask": mask}
    count = looked_up(config, "num_query_tokens", "image_seq_length", "latent_query_num")
    if "input_ids" in text and count is not None:
        token = looked_up(config, "image_token_index", "image_token_id", default=SPECIAL)
        yield {**image, **_with_image_tokens(wanted, text, token, count)}


def _with_image_tokens(wanted: Any, text: dict[str, Tensor], token: int, count: int) -> dict[str, Tensor]:
    """A text that has a place for each row of an image, and the text of what asks the image, if it is asked one."""
    before = torch.full((BATCH, count), token)
    text = {**text, "input_ids": torch.cat([before, text["input_ids"]], 1)}
    if "qformer_input_ids" in wanted:
        text["qformer_input_ids"] = text["input_ids"][:, -5:]
    if "image_embeds_position_mask" in wanted:
        text["image_embeds_position_mask"] = (text["input_ids"] == token).long()
    return text


def _sounds(model: nn.Module, text: dict[str, Tensor]) -> Iterator[dict[str, Tensor]]:
    config, g = model.config, torch.Generator().manual_seed(2)
    wanted = inspect.signature(model.forward).parameters
    rest = {k: v for k, v in text.items() if k != "input_ids"}
    mels = MELS(config)
    if "input_features" in wanted:
        long = 2 * looked_up(config, "max_source_positions", default=32)
        other = looked_up(config, "feature_projection_input_dim", default=128)
        for shape in ((mels, long), (64, mels), (64, other), (1, 256, mels)):
            features = torch.randn(BATCH, *shape, generator=g)
            yield {**text, "input_features": features}
            yield {**rest, "input_features": features}
            if "input_features_mask" in wanted:
                for length in (max(shape), 64):
                    mask = torch.ones(BATCH, length, dtype=torch.long)
                    yield {**rest, "input_features": features, "input_features_mask": mask}
    if "input_values" in wanted:
        for shape in ((4000,), (1, 4000), (64, mels), (looked_up(config, "max_length", default=64), mels)):
            yield {**rest, "input_values": torch.randn(BATCH, *shape, generator=g)}
    if "decoder_input_values" in wanted:  # of a model that has its embeddings beside it
        yield {n: normal(x, width_of)(config, g) for n, x in (("input_values", LENGTH), ("decoder_input_values", 7))}


def _patches(model: nn.Module, text: dict[str, Tensor]) -> Iterator[dict[str, Tensor]]:
    """Images of which a model takes the patches, all in one row, and the sizes in patches beside them."""
    config, g = model.config, torch.Generator().manual_seed(2)
    wanted = inspect.signature(model.forward).parameters
    channels, patch = CHANNELS(config), looked_up(config, "patch_size", default=8)
    grid = next((n for n in ("grid_thw", "image_grid_thw") if n in wanted), None)
    side = 2 * looked_up(config, "spatial_merge_size", default=2)
    for name in ("hidden_states", "pixel_values"):
        if grid and name in wanted:
            sizes = {grid: torch.tensor([[1, side, side]] * BATCH)}
            if "merge_sizes" in wanted:
                sizes["merge_sizes"] = torch.tensor([2] * BATCH)
            for frames in dict.fromkeys((looked_up(config, "temporal_patch_size", default=1), 1, 2)):
                row = torch.randn(BATCH * side * side, channels * frames * patch * patch, generator=g)
                yield {name: row, **sizes}
                yield {**text, name: row, **sizes}
            yield {name: torch.randn(BATCH * side * side, channels, patch, patch, generator=g), **sizes}
    if "pixel_values" not in wanted:
        return
    flat = {"pixel_values": torch.randn(BATCH, SIDE**2, channels * patch * patch, generator=g)}
    if "spatial_shapes" in wanted:
        mask = torch.ones(BATCH, SIDE**2, dtype=torch.long)
        yield {**text, **flat, "spatial_shapes": torch.tensor([[SIDE, SIDE]] * BATCH), "pixel_attention_mask": mask}
    if "pixel_position_ids" in wanted:
        places = torch.stack([torch.arange(SIDE**2) % SIDE, torch.arange(SIDE**2) // SIDE], -1)
        yield {**text, **flat, "pixel_position_ids": places.expand(BATCH, -1, -1).clone()}
    if "target_sizes" in wanted:
        strip = torch.randn(1, channels, patch, BATCH * SIDE**2 * patch, generator=g)
        yield {"pixel_values": strip, "target_sizes": torch.tensor([[SIDE, SIDE]] * BATCH)}


def _codes(model: nn.Module, text: dict[str, Tensor]) -> Iterator[dict[str, Tensor]]:
    """A token for each code book, with or without one of text before them."""
    books = looked_up(model.config, "num_codebooks")
    if books and "input_ids" in text:
        for count in (books, books + 1):
            yield {**text, "input_ids": (text["input_ids"] % 50)[..., None].repeat(1, 1, count)}


def _named(model: nn.Module) -> Iterator[dict[str, Tensor]]:
    """What the arguments' names say: those that have to be there; then all."""
    parameters = inspect.signature(model.forward).parameters
    needed = [n for n, p in parameters.items() if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD]
    known = [n for n in parameters if n in NAMED]
    for names in (needed, [*needed, model.main_input_name], [n for n in known if n != "inputs_embeds"], known):
        names = [n for n in dict.fromkeys(names) if n in parameters]
        if names and all(n in NAMED for n in names):
            g = torch.Generator().manual_seed(2)
            yield {n: NAMED[n](model.config, g) for n in names}


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


def masks(side: str, length: int = LENGTH) -> Tensor:
    mask = torch.ones(BATCH, length, dtype=torch.long)
    mask[0, slice(0, PADS) if side == "left" else slice(length - PADS, length)] = 0
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
