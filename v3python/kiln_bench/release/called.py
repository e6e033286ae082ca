"""How a call of an entry is spelled in results: all that its look-up depends on, so that it can be made again without a
GPU.

    call    = entry {" " name "=" (tensor | number)}        those of its parameters that were given
    tensor  = dtype "[" sizes "]/" strides "@" place        sizes and strides count elements, between commas
    place   = number ["+" bytes]                            tensors that begin at one address have one number; bytes: of
                                                            the address, what is above a multiple of 256

    attn_decode q=bf16[2,32,1,128]/4096,128,4096,1@0 k_cache=bf16[...]/...@1 seqused_k=int32[2]/1@2 causal=1
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

ALIGNMENT = 256
_TENSOR = re.compile(r"(\w+)\[([\d,]*)\]/([-\d,]*)@(\d+)(?:\+(\d+))?")
_APART = 1 << 40  # bytes, of the addresses that stand for places


@dataclass(frozen=True)
class Tensor:
    """`dtype`: Kiln's name. `strides` count elements."""

    address: int
    dtype: str
    sizes: tuple[int, ...]
    strides: tuple[int, ...]


def spelled(entry: str, values: Mapping[str, Tensor | float]) -> str:
    """A call of an entry, "attn_fwd", by its parameters."""
    places: dict[int, int] = {}
    words = [entry]
    for name, value in values.items():
        if isinstance(value, Tensor):
            place = places.setdefault(value.address, len(places))
            above = f"+{value.address % ALIGNMENT}" if value.address % ALIGNMENT else ""
            sizes, strides = (",".join(map(str, numbers)) for numbers in (value.sizes, value.strides))
            words.append(f"{name}={value.dtype}[{sizes}]/{strides}@{place}{above}")
        else:
            words.append(f"{name}={value!r}")
    return " ".join(words)


def parsed(text: str) -> tuple[str, dict[str, Tensor | float]]:
    """The entry and the parameters of a call; addresses are others, as far apart as no tensor is large.

    Raises:
        ValueError: it is not spelled so.
    """
    entry, *words = text.split(" ")
    values: dict[str, Tensor | float] = {}
    for word in words:
        name, _, value = word.partition("=")
        match = _TENSOR.fullmatch(value)
        if match is None:
            values[name] = float(value) if re.search(r"[.en]", value) else int(value)
            continue
        sizes, strides = (tuple(int(n) for n in numbers.split(",") if n) for numbers in match.group(2, 3))
        address = _APART * (1 + int(match[4])) + int(match[5] or 0)
        values[name] = Tensor(address, match[1], sizes, strides)
    return entry, values
