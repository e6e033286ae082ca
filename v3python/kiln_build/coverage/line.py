"""A kind of attention in a line: 'head_dim=192/128 gqa=8 window=4096 sinks fp8-cache'."""

from __future__ import annotations

import re
from typing import Any

from kiln_build.coverage.attention import DTYPES, LARGEST, LONGEST, REALS, ROWS, Attention, Model, check
from kiln_recipe.dtypes import SYNONYMS
from kiln_recipe.errors import UsageError
from kiln_recipe.suggest import nearest

EXAMPLE = "head_dim=192/128 gqa=8 window=4096 sinks fp8-cache"
# What each can be at most.
_COUNTS = {"heads": LARGEST, "heads_kv": LARGEST, "gqa": LARGEST, "window": LONGEST, "rows": LONGEST, "keys": LONGEST}
_FLAGS = ("sinks", "bias", "alibi", "cross", "causal", "bidirectional", "fp8-cache")
_HEADS = 32


def read(line: str) -> Model:
    """The model of a line.

    Raises:
        UsageError: a word is unknown, or its value cannot be.
    """
    found: dict[str, Any] = {}
    for word in re.findall(r"[^\s,]+", line):
        name, equals, value = word.partition("=")
        known = (*_FLAGS, "head_dim", "dtype", *_COUNTS, *REALS)
        if name == "kv_heads":
            raise UsageError(f"--model {line!r} has {word!r}; it is called heads_kv; for example: {EXAMPLE!r}")
        if name not in known or bool(equals) == (name in _FLAGS):
            raise UsageError(f"--model {line!r} has {word!r}, {_wrong(name, known)}; for example: {EXAMPLE!r}")
        if name in found:
            raise UsageError(f"--model {line!r} says {name} twice; say it once")
        found[name] = True if name in _FLAGS else _value(line, name, value)
    if "head_dim" not in found:
        raise UsageError(f"--model {line!r} lacks head_dim; for example: {EXAMPLE!r}")
    for one, other in (("causal", "bidirectional"), ("causal", "cross"), ("gqa", "heads_kv")):
        if one in found and other in found:
            raise UsageError(f"--model {line!r} says {one} and {other}; say one of them")
    return Model(line, (_kind(line, found),))


def _kind(line: str, found: dict[str, Any]) -> Attention:
    assumed = []
    if "heads" in found:
        heads = found["heads"]
    else:
        heads = max(_HEADS, found.get("gqa", 1), found.get("heads_kv", 1))
        heads += -heads % (found.get("gqa") or found.get("heads_kv") or 1)
        assumed.append(f"{heads} heads")
    if "gqa" in found and heads % found["gqa"]:
        raise UsageError(f"--model {line!r} has heads={heads}, which is not a multiple of gqa={found['gqa']}")
    heads_kv = found.get("heads_kv") or heads // found.get("gqa", 1)
    if "dtype" not in found:
        assumed.append("bf16")
    dtype = found.get("dtype", "bf16")
    head_dim, head_dim_v = found["head_dim"]
    causal = not ("bidirectional" in found or "cross" in found)
    if causal and "causal" not in found:
        assumed.append("causal")
    kind = Attention(
        "attention",
        heads,
        heads_kv,
        head_dim,
        head_dim_v,
        dtype,
        "fp8e4m3" if "fp8-cache" in found else dtype,
        causal,
        window=found.get("window", 0),
        softcap=found.get("softcap", 0.0),
        dropout=found.get("dropout", 0.0),
        sinks="sinks" in found,
        bias="bias" in found,
        alibi="alibi" in found,
        cross="cross" in found,
        rows=found.get("rows", ROWS),
        keys=found.get("keys", ROWS),
        assumed=tuple(assumed),
    )
    return check(kind, f"--model {line!r}")


def _value(line: str, name: str, value: str) -> Any:
    if name == "dtype":
        dtype = SYNONYMS.get(value, value)
        if dtype not in DTYPES:
            raise UsageError(f"--model {line!r} has dtype={value}; {nearest(value, DTYPES, 'dtypes')}")
        return dtype
    if name == "head_dim":
        widths = value.split("/")
        if len(widths) > 2 or not all(_is_count(width, LARGEST) for width in widths):
            raise UsageError(
                f"--model {line!r} has {name}={value}; it must be a whole number from 1 to {LARGEST}, such as 128, or "
                "two of them, such as 192/128 of q and k, and of v"
            )
        return int(widths[0]), int(widths[-1])
    if name in REALS:
        if not re.fullmatch(r"[0-9]+(\.[0-9]+)?(e[+-]?[0-9]+)?", value) or float(value) > REALS[name]:
            raise UsageError(f"--model {line!r} has {name}={value}; it must be a number from 0 to {REALS[name]}")
        return float(value)
    if not _is_count(value, _COUNTS[name]):
        raise UsageError(f"--model {line!r} has {name}={value}; it must be a whole number from 1 to {_COUNTS[name]}")
    return int(value)


def _is_count(text: str, most: int) -> bool:
    return re.fullmatch("[0-9]{1,20}", text) is not None and 1 <= int(text) <= most


def _wrong(name: str, known: tuple[str, ...]) -> str:
    if name in known:
        return f"and {name} is {'a word without' if name in _FLAGS else 'to have'} a value"
    return f"which is unknown; {nearest(name, known, 'words')}"
