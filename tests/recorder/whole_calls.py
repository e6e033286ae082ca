"""One call of each entry that launches every kernel that it may launch, with the functional that is asked for."""

from __future__ import annotations

from collections.abc import Mapping

from kiln_recipe.call.evaluate import Tensor
from kiln_recipe.dtypes import DTYPE_BYTES, DTYPES

EXTRAS: Mapping[str, tuple[str, ...]] = {
    "none": (), "bias": ("bias",), "softcap": ("softcap",), "dropout": ("dropout",),
    "any": ("bias", "softcap", "dropout"),
}  # fmt: skip
BATCH, HEADS, HEADS_KV, ROWS, KEYS = 2, 4, 2, 200, 1000


class _Tensors:
    def __init__(self, is_aligned: bool) -> None:
        self.made: dict[str, object] = {}
        self.is_aligned = is_aligned

    def add(self, name: str, sizes: tuple[int, ...], dtype: str = "bf16") -> None:
        strides, step = (), 1
        for size in reversed(sizes):
            strides, step = (step, *strides), step * size
        shift = 0 if self.is_aligned else DTYPE_BYTES[dtype]
        self.made[name] = Tensor(((len(self.made) + 1) << 32) + shift, DTYPES[dtype], sizes, strides)


def whole_call(
    name: str, functional: Mapping[str, str], is_aligned: bool = True, rows: int = ROWS, keys: int = KEYS
) -> dict[str, object]:
    """The fields of a call.

    Args:
        functional: of some kernel, by choice its value as it is spelled: {"padded": "true", "extras": "any"}.
        is_aligned: tensors begin at multiples of 16 bytes; else at what is one of no more than an element.
        rows, keys: of attention.
    """
    tensors = _Tensors(is_aligned)
    made, add = tensors.made, tensors.add
    if name == "dropout_mask":
        add("mask", (BATCH, HEADS, ROWS, KEYS), functional.get("mask_dtype", "uint8"))
        return made | {"dropout": 0.25}
    if name == "attn_fwd_fp8":
        for tensor, heads, length in (("q", HEADS, rows), ("k", HEADS_KV, KEYS), ("v", HEADS_KV, KEYS)):
            add(tensor, (BATCH, heads, length, 64), "fp8e4m3")
        add("out", (BATCH, HEADS, rows, 64), functional.get("dtype", "bf16"))
        return made
    width = 56 if functional.get("padded") == "true" else 64
    q, k = (BATCH, HEADS, rows, width), (BATCH, HEADS_KV, keys, width)
    cache = "_cache" if name == "attn_decode" else ""
    for tensor, sizes in {"q": q, f"k{cache}": k, f"v{cache}": k, "out": q}.items():
        add(tensor, sizes)
    add("lse", q[:3], "fp32")
    extras = EXTRAS[functional.get("extras", "bias" if name == "attn_bwd" else "none")]
    if name == "attn_decode":
        new, angles = (BATCH, HEADS_KV, 5, width), (KEYS, 16)
        for tensor, sizes in {"k_new": new, "v_new": new, "rotary_cos": angles, "rotary_sin": angles}.items():
            add(tensor, sizes)
        add("seqused_k", (BATCH,), "int32")
        return made | {"splits": 3} | ({"softcap": 20.0} if extras else {})
    if name == "attn_bwd":
        for tensor, sizes in {"dout": q, "dq": q, "dk": k, "dv": k}.items():
            add(tensor, sizes)
        add("sinks", (HEADS,), "fp32")
        add("dsinks", (HEADS,), "fp32")
        if functional.get("ordered") == "true":
            made["deterministic"] = 1
    if "bias" in extras:
        add("bias", (BATCH, HEADS, rows, keys))
        if name == "attn_bwd":
            add("dbias", (BATCH, HEADS, rows, keys))
    return made | {extra: 0.25 for extra in extras if extra != "bias"}
