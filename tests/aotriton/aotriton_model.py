"""What a call of AOTriton's means in libkiln's words, written down a second time: fields for ffi's structures.

Tensors are (data, dtype, sizes, strides), as in aotriton_interface.py."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache

import entries
import fake_release
from aotriton_interface import BOTTOM_RIGHT, FP32, INT64, PADDED, TOP_LEFT, WINDOWED, contiguous

from kiln_recipe.call import evaluate
from kiln_recipe.call.evaluate import ALIGNMENT, Device, Tensor
from kiln_recipe.model import Operation

LEAST_SCALE = 1.401298464324817e-45  # the least number of fp32: a scale of 0 is not libkiln's 0, its default


class NoWindow(Exception):
    """No kernel takes it."""


def window(left: int, right: int, rows: int, keys: int, is_exact: bool) -> dict:
    """Fields for the keys from i - left to i + right of every row i.

    Args:
        rows, keys: of the longest sequence; `is_exact`: of each.
    """
    diagonal = keys - rows
    low = -math.inf if left in (TOP_LEFT, BOTTOM_RIGHT) or left >= rows - 1 else -left
    high = {TOP_LEFT: 0, BOTTOM_RIGHT: diagonal}.get(right, math.inf if right >= keys - 1 else right)
    if right == BOTTOM_RIGHT and low == -math.inf:
        return {"window_left": -1, "window_right": 0, "bottom_right": 1}
    for bottom_right, shift in enumerate((0, diagonal)):
        if right == BOTTOM_RIGHT and not bottom_right:
            continue
        if low <= shift <= high and (is_exact or not bottom_right):
            return {
                "window_left": -1 if low == -math.inf else shift - low,
                "window_right": -1 if high == math.inf else high - shift,
                "bottom_right": bottom_right,
            }
    raise NoWindow


def forward(**given) -> list[tuple[str, dict]]:
    """The calls of libkiln that a forward is: the attention, and what dropout keeps if that is asked for."""
    fields = _shared(given)
    if given.get("seed_out"):
        fields |= {"seed_out": _number(given["seed_out"]), "offset_out": _number(given["offset_out"])}
    calls = [("attn_fwd", fields)]
    if encoded := _full(given.get("encoded")):
        calls.append(("dropout_mask", {"mask": encoded} | {k: fields[k] for k in _DROPOUT if k in fields}))
    return calls


def backward(**given) -> dict:
    rows, keys = _most(given)
    fields = _shared(given) | {"deterministic": 1}
    fields |= {name: _narrow(_full(given[name]), rows) for name in ("dout", "dq")}
    fields |= {name: _narrow(_full(given[name]), keys) for name in ("dk", "dv")}
    if db := _full(given.get("db")):
        fields["dbias"] = db
    return fields


def is_short(**given: object) -> bool:
    """Whether the log-sum-exp is PyTorch's of compact sequences: [heads, longest], which holds those of one alone."""
    lse, sequences = given.get("lse"), given.get("cu_q")
    if not lse or not sequences or given.get("varlen_type") == PADDED or sequences[2][0] < 3:
        return False
    _, heads, rows, _ = given["q"][2]
    return lse[1] == FP32 and tuple(lse[2]) == (heads, given.get("max_q")) and lse[2][1] < rows


def again(fields: dict, memory: int) -> tuple[dict, dict, int]:
    """A backward's forward, made once more.

    Returns:
        its fields, the backward's, and how many bytes it works in, at `memory`.
    """
    _, heads, rows, _ = fields["q"][2]
    width, dtype = fields["v"][2][3], fields["q"][1]
    lse = [memory, FP32, [1, heads, rows], [heads * rows, rows, 1]]
    offset = -(-heads * rows * 4 // 256) * 256
    sizes = [1, heads, rows, width]
    out = [memory + offset, dtype, sizes, list(contiguous(sizes))]
    kept = ("q", "k", "v", "bias", "sm_scale", "cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k",
            "window_left", "window_right", "bottom_right")  # fmt: skip
    first = {name: fields[name] for name in kept if name in fields} | {"out": out, "lse": lse}
    return first, fields | {"lse": lse}, offset + math.prod(sizes) * (4 if dtype == FP32 else 2)


def fields_of(described: Mapping[str, object]) -> dict[str, object]:
    """The same fields in the words of entries.py."""
    return {
        name: Tensor(value[0], value[1], tuple(value[2]), tuple(value[3])) if isinstance(value, list) else value
        for name, value in described.items()
    }


def workspace_bytes(fields: Mapping[str, object]) -> int:
    """What libkiln's backward needs of workspace, by the recipe and by what the release has of it."""
    given = entries.arguments(_operation(), fields_of(fields))
    _, the_plan = fake_release.planned()
    call = evaluate.begin(
        _operation(), "flash.attn_bwd", given, Device("AMD", 304), the_plan.served["flash", "attn_bwd"]
    )  # fmt: skip
    return sum(-(-size // ALIGNMENT) * ALIGNMENT for size in evaluate.workspaces(call).values())


@cache
def _operation() -> Operation:
    flash, _ = fake_release.planned()
    return next(operation for operation in flash.operations if operation.name == "attn_bwd")


_DROPOUT = ("seed", "offset", "offset_value", "dropout")


def _shared(given: dict) -> dict:
    rows, keys = _most(given)
    q, k, v, out = (_full(given[name]) for name in ("q", "k", "v", "out"))
    fields = {
        "q": _narrow(q, rows), "k": _narrow(k, keys), "v": _narrow(v, keys), "out": _narrow(out, rows),
        "sm_scale": given.get("scale", 0.0) or LEAST_SCALE, "dropout": given.get("p", 0.0),
        "offset_value": given.get("offset2", 0),
    }  # fmt: skip
    has_lengths, is_padded = bool(given.get("cu_q")), given.get("varlen_type") == PADDED
    if has_lengths:
        fields |= {
            "cu_seqlens_q": _full(given["cu_q"]), "cu_seqlens_k": _full(given["cu_k"]), "padded": int(is_padded),
            "max_seqlen_q": given.get("max_q", 0), "max_seqlen_k": given.get("max_k", 0),
        }  # fmt: skip
    if bias := _full(given.get("b")):
        fields["bias"] = bias
    if given.get("p", 0.0) > 0:
        fields |= {k: _number(given[n]) for k, n in (("seed", "seed"), ("offset", "offset1")) if given.get(n)}
    batch = given["cu_q"][2][0] - 1 if has_lengths and not is_padded else q[2][0]
    if (lse := _full(given.get("lse"))) and not is_short(**given):
        fields["lse"] = _split(lse, batch, q[2][1], has_lengths and not is_padded, fields["q"][2][2])
    return fields | _mask(given, fields["q"][2][2], fields["k"][2][2], has_lengths)


def _mask(given: dict, rows: int, keys: int, has_lengths: bool) -> dict:
    if "is_causal" in given:
        causal, left, right = given["is_causal"], TOP_LEFT, TOP_LEFT
    else:
        causal, left, right = given.get("causal_type") == WINDOWED, given.get("left", 0), given.get("right", 0)
    if not causal:
        return {"window_left": -1, "window_right": -1}
    if has_lengths:
        rows, keys = given.get("max_q", 0) or rows, given.get("max_k", 0) or keys
    return window(left, right, rows, keys, not has_lengths)


def _most(given: dict) -> tuple[int, int]:
    """How many rows and keys of padded sequences count, or 0."""
    return (given.get("max_q", 0), given.get("max_k", 0)) if given.get("varlen_type") == PADDED else (0, 0)


def _narrow(tensor: list, most: int) -> list:
    if 0 < most < tensor[2][2]:
        tensor[2][2] = most
    return tensor


def _split(lse: list, batch: int, heads: int, is_packed: bool, rows: int) -> list:
    data, _, (lines, length), (line, step) = lse
    sequences = batch if lines == batch * heads else 1
    return [data, FP32, [sequences, heads, length if is_packed else rows], [heads * line, line, step]]


def _full(given: tuple | None) -> list | None:
    """With strides; None if it is not given."""
    if given is None or not given[0] or 0 in given[2]:
        return None
    data, dtype, sizes, *strides = given
    return [data, dtype, list(sizes), list(strides[0] if strides and strides[0] else contiguous(sizes))]


def _number(given: tuple | None) -> list | None:
    return [given[0], INT64, [], []] if given else None
