"""Which layers of a model are of which kind: told one by one, by a rule, or by the family's custom."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import chain, islice, repeat

from kiln_build.coverage.attention import LARGEST
from kiln_build.coverage.configuration.fields import Fields
from kiln_recipe.errors import UsageError

FULL, SLIDING, LINEAR = "full_attention", "sliding_attention", "linear_attention"
# Letters and words for layers, in patterns: Mamba, attention, and layers that are no mixer of tokens at all.
_LETTERS = {"M": "mamba", "*": FULL, "-": "mlp", "E": "moe", "L": SLIDING, "G": FULL}
_WORDS = {"global": FULL, "global_attention": FULL, "local": SLIDING, "local_attention": SLIDING}
_NO_MIXER = ("mlp", "moe", "dense", "ffn")
_UNKNOWN = 60  # layers, where it is not told how many there are


def layer_types(fields: Fields, layers: int, window: int) -> dict[str, int]:
    """How many layers there are of each kind."""
    if layers > LARGEST:
        raise UsageError(f"{fields.where} has {layers} layers; there must be 1 to {LARGEST}")
    length = layers or _UNKNOWN
    types = _told(fields, length, window) or _by_rule(fields, length, window)
    if types is None and fields.cycle:
        types = _repeated(fields.cycle, length)
        if not window and any("sliding" in one for one in types) and "sliding_window" in fields.document:
            types = [FULL if "sliding" in one else one for one in types]
    if types is None:
        return {SLIDING if window else FULL: layers}
    counts = Counter(_WORDS.get(one, one) for one in types)
    is_known = layers or fields.words("layer_types")
    return {name: count if is_known else 0 for name, count in counts.items() if name not in _NO_MIXER}


def _told(fields: Fields, layers: int, window: int) -> list[str] | None:
    """One by one."""
    for name in ("layer_types", "layers_block_type", "attention_layers"):
        if words := fields.words(name):
            return words
    if words := fields.words("block_types"):  # RecurrentGemma's, which repeat; its attention has a window
        return [SLIDING if one == "attention" and window else one for one in _repeated(words, layers)]
    if letters := _letters(fields.document.get("hybrid_override_pattern")):
        return letters
    if (kinds := fields.numbers("attn_type_list")) is not None:  # MiniMax's
        return [FULL if one else LINEAR for one in kinds]
    if (kinds := fields.numbers("hybrid_layer_pattern")) is not None:  # MiMo's
        return [SLIDING if one else FULL for one in kinds]
    if (kinds := fields.numbers("no_rope_layers")) and fields.whole("attention_chunk_size"):  # Llama 4's
        return ["chunked_attention" if one else FULL for one in kinds]
    for name in ("full_attn_idxs", "attn_layer_indices"):
        if (places := fields.numbers(name)) is not None:
            return _at(places, "conv" if name == "full_attn_idxs" else "mamba", layers)
    if (places := fields.inside("linear_attn_config").numbers("full_attn_layers")) is not None:  # Kimi's, from 1
        return _at([place - 1 for place in places], LINEAR, layers)
    return _of_types(fields.document.get("attention_types"))


def _repeated(words: Sequence[str], layers: int) -> list[str]:
    return list(islice(chain.from_iterable(repeat(words)), layers))


def _letters(pattern: object) -> list[str] | None:
    """ "M-M*" or "LLLG", of which each letter is a layer."""
    if isinstance(pattern, str) and pattern and set(pattern) <= set(_LETTERS):
        return [_LETTERS[letter] for letter in pattern]
    return None


def _at(places: Sequence[int], others: str, layers: int) -> list[str]:
    return [FULL if place in places else others for place in range(layers)]


def _of_types(types: object) -> list[str] | None:
    """GPT-Neo's [[["global", "local"], 12]]: kinds, and how often they repeat."""
    if not isinstance(types, list):
        return None
    found: list[str] = []
    for one in types:
        if not (isinstance(one, list) and len(one) == 2 and isinstance(one[0], list) and isinstance(one[1], int)):
            return None
        found += [str(kind) for kind in one[0]] * min(one[1], 1 << 10)
    return found


def _by_rule(fields: Fields, layers: int, window: int) -> list[str] | None:
    """Every so many layers, or from one on."""
    numbers = range(layers)
    if period := fields.whole("attn_layer_period"):  # Jamba's
        offset = fields.get("attn_layer_offset")[1] or 0
        return [FULL if number % period == offset else "mamba" for number in numbers]
    if period := fields.whole("full_attention_interval"):  # Qwen3-Next's
        return [FULL if (number + 1) % period == 0 else LINEAR for number in numbers]
    if (period := fields.whole("no_rope_layer_interval")) and fields.whole("attention_chunk_size"):
        return ["chunked_attention" if (number + 1) % period else FULL for number in numbers]
    if fields.whole("blocksparse_block_size"):  # Phi-3-small's
        period = fields.whole("dense_attention_every_n_layers") or layers + 1
        return [FULL if (number + 1) % period == 0 else "sparse_attention" for number in numbers]
    if fields.text("attention_type") == "block_sparse":  # BigBird's
        return ["sparse_attention"] * layers
    if fields.document.get("index_topk") and not fields.cycle:  # DeepSeek V3.2's
        return ["indexed_attention"] * layers
    return _of_window(fields, layers, window)


def _of_window(fields: Fields, layers: int, window: int) -> list[str] | None:
    if not window:
        return None
    numbers = range(layers)
    if letters := _letters(fields.text("sliding_window_pattern")):  # Exaone's "LLLG", which repeats
        return _repeated(letters, layers)
    if fields.family.startswith("modernbert"):  # the first layer of each period, and not the last
        every = fields.whole("global_attn_every_n_layers") or 3
        return [SLIDING if number % every else FULL for number in numbers]
    for name in ("sliding_window_pattern", "_sliding_window_pattern", "global_attn_every_n_layers"):
        if period := fields.whole(name):
            return [SLIDING if (number + 1) % period else FULL for number in numbers]
    first = fields.get("max_window_layers")[1]
    if isinstance(first, int) and not isinstance(first, bool):  # Qwen2's: the layers from this one on
        return [FULL if number < first else SLIDING for number in numbers]
    return None
