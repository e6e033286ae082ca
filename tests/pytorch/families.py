"""Writes families.json of kiln_build.coverage.configuration: what Transformers' classes fill in where a configuration
says nothing. `PYTHONPATH=v3python python tests/pytorch/families.py`, with the Transformers of
tests/transformers.lock. Only numbers and names of fields that `kiln coverage` reads are taken.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from kiln_build.coverage.configuration import fields

_PLAIN = ("full_attention", "attention")
_LONGEST = 12  # of a cycle of layers; what repeats less often is no rule
_LAYERS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")


def families() -> dict[str, dict[str, Any]]:
    """By model type."""
    found = {}
    for name in sorted(CONFIG_MAPPING.keys()):
        kind = CONFIG_MAPPING[name]
        own = {one.name: _default(one) for one in dataclasses.fields(kind)}
        kept = {word: value for word, value in own.items() if word in fields.NAMES and _is_kept(word, value)}
        if cycle := _cycle(kind):
            kept[fields.CYCLE] = cycle
        inner = {part: getattr(one, "model_type", "") for part, one in sorted(kind.sub_configs.items())}
        parts = {part: word for part, word in inner.items() if word}
        if parts:
            kept[fields.PARTS] = parts
        if kept:
            found[name] = kept
    return found


def text() -> str:
    """A line for each family, so that changes can be read."""
    lines = [f"  {json.dumps(name)}: {json.dumps(own)}" for name, own in families().items()]
    head = f' "transformers": {json.dumps(transformers.__version__)},\n "families": {{\n'
    return "{\n" + head + ",\n".join(lines) + "\n }\n}\n"


def _default(one: dataclasses.Field[Any]) -> Any:
    return None if one.default is dataclasses.MISSING else one.default


def _is_kept(word: str, value: object) -> bool:
    """0, false and null say what the lack of the field says."""
    return isinstance(value, (int, float, str)) and (bool(value) or word == "use_sliding_window")


def _cycle(kind: type) -> list[str] | None:
    """Its kinds of layers, where they repeat whatever the number of layers; None where all are what one expects."""
    lengths = [None, 2 * _LONGEST, 3 * _LONGEST]
    every = [_layer_types(kind, length) for length in lengths]
    first = every[0]
    has_window = any(one.name == "sliding_window" and one.default for one in dataclasses.fields(kind))
    if first is None or (set(first) <= set(_PLAIN) and not has_window):
        return None
    for period in range(1, min(_LONGEST, len(first)) + 1):
        cycle = list(first[:period])
        if all(one is not None and list(one) == [cycle[i % period] for i in range(len(one))] for one in every):
            return cycle
    return None


def _layer_types(kind: type, length: int | None) -> Sequence[str] | None:
    names = [one.name for one in dataclasses.fields(kind) if one.name in _LAYERS]
    given: Mapping[str, int] = {names[0]: length} if names and length else {}
    try:
        types = getattr(kind(**given), "layer_types", None)
    except Exception:  # noqa: BLE001  (of any class: one that takes no other number of layers has no rule)
        return None
    return types if isinstance(types, list) and types and all(isinstance(one, str) for one in types) else None


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    sys.exit(fields.FAMILIES.write_text(text()) == 0)
