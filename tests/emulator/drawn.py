"""Drawn calls of a functional, small enough to be executed in seconds: for paths of an image that no call of
candidates.py takes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import sampling
from calls import Call
from candidates import EXTRAS, SMALL_SINKS, words
from decode_calls import DecodeCall

MOST_ROWS, MOST_KEYS, MOST_HEADS, MOST_BATCH = 150, 310, 8, 3
NO_EXTRAS = {"bias": "", "alibi": "", "softcap": 0.0, "dropout": 0.0, "sinks": False}


def drawn_calls(operation: str, functional: str, kernel: str, seed: int) -> Iterator[Call | DecodeCall]:
    """Without end. The same seed gives the same calls. Whether one is of the functional, only the release can say."""
    known = words(functional)
    if "sink" in kernel or "bias" in kernel:
        known |= {"extras": "any" if "sink" in kernel else "bias"}
    for number in itertools.count():
        if operation == "attn_decode":
            yield _decode(sampling.random_decode(seed, number, has_fp8=True), known, number)
        else:
            yield _attention(sampling.random_call(seed, number), known, number, operation == "attn_bwd")


def _width(known: dict[str, str], drawn: int, number: int) -> int:
    if "head_dim" not in known:
        return drawn if drawn <= 256 else drawn % 256 + 1
    width = int(known["head_dim"])
    return width - (0, 8, 3)[number % 3] if known.get("padded") == "true" or number % 2 else width


def _attention(call: Call, known: dict[str, str], number: int, backward: bool) -> Call:
    extras = {}
    if "extras" in known:
        extras = NO_EXTRAS | EXTRAS[known["extras"]]
        if known["extras"] == "any" and number % 2:  # of them some
            extras = NO_EXTRAS | {name: getattr(call, name) for name in NO_EXTRAS} | {"sinks": True}
    rows, keys = min(call.rows, MOST_ROWS), min(call.keys, MOST_KEYS)
    batch = min(call.batch, MOST_BATCH)
    lengths = {
        "varlen_q": call.varlen_q, "lengths_q": _cut(call.lengths_q, batch, rows),
        "varlen_k": call.varlen_k, "lengths_k": _cut(call.lengths_k, batch, keys),
    }  # fmt: skip
    if number % 3:  # lengths of one side alone
        side = "qk"[number % 3 - 1]
        lengths |= {f"varlen_{side}": "", f"lengths_{side}": ()}
    sinks = extras.get("sinks", call.sinks)
    heads_kv = min(call.heads_kv, 2)
    heads = SMALL_SINKS if sinks else min(call.heads, 2 * heads_kv) // heads_kv * heads_kv
    return replace(
        call, dtype=known.get("dtype", call.dtype), batch=batch, heads=heads, heads_kv=heads_kv, rows=rows, keys=keys,
        width=_width(known, call.width, number), width_v=0, backward=backward,
        deterministic=known["ordered"] == "true" if "ordered" in known else call.deterministic,
        inputs="normal",
        bias="" if not keys else extras.get("bias", call.bias), want_lse=call.want_lse or backward,
        **lengths, **{name: value for name, value in extras.items() if name != "bias"},
    )  # fmt: skip


def _cut(lengths: tuple[int, ...], batch: int, most: int) -> tuple[int, ...]:
    """Lengths of the first sequences, none above `most`; the longest has that many."""
    cut = [min(length, most) for length in lengths[:batch]]
    if cut:
        cut[cut.index(max(cut))] = most
    return tuple(cut)


def _decode(call: DecodeCall, known: dict[str, str], number: int) -> DecodeCall:
    batch, keys = min(call.batch, MOST_BATCH), min(call.keys, MOST_KEYS)
    rows, heads_kv = min(call.rows, MOST_ROWS), min(call.heads_kv, 2)
    new_rows = min(call.new_rows, rows, keys)
    width = _width(known, call.width, number)
    extras = {"softcap": 0.0, "sinks": False, "alibi": ""} if known.get("extras") == "none" else {}
    fp8 = {"fp8": known["cache_dtype"] != known["dtype"]} if "cache_dtype" in known else {}
    return replace(
        call, dtype=known.get("dtype", call.dtype), batch=batch,
        heads=min(call.heads, MOST_HEADS) // heads_kv * heads_kv, heads_kv=heads_kv, rows=rows, keys=keys, width=width,
        width_v=0, new_rows=new_rows, lengths_q=_cut(call.lengths_q, batch, rows),
        used=tuple(min(n, keys - new_rows) for n in call.used[:batch]),
        rotary_dim=min(call.rotary_dim, width // 2 * 2), longest_k=0, inputs="normal", **extras, **fp8,
    )  # fmt: skip
