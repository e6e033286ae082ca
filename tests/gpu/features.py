"""The feature table, row by row: the calls that stand for each feature."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

from calls import SHARED, Call
from decode_calls import DecodeCall
from storage import ALIGNED, UNALIGNED

DTYPES = ("bf16", "fp16", "fp32")
SIZES = (16, 32, 48, 64, 80, 96, 128, 160, 192, 224, 256, 512)
BETWEEN = (8, 40, 72, 104, 120, 136, 200, 248, 264)
ODD = (1, 7, 33, 63, 65, 100, 129, 255)
UNEQUAL = ((65, 300), (300, 65), (1, 129), (1023, 64), (127, 2047))
VARLEN = {
    "batch": 5, "rows": 1023, "keys": 1023, "heads": 4, "heads_kv": 2, "lengths_q": (1023, 1, 0, 65, 200),
    "lengths_k": (64, 1023, 7, 0, 200),
}  # fmt: skip


def every(**choices: tuple) -> list[Call]:
    """Calls of all combinations."""
    return [Call(**dict(zip(choices, values))) for values in product(*choices.values())]


def unequal(calls: list[Call]) -> list[Call]:
    return [replace(call, rows=rows, keys=keys) for call in calls for rows, keys in UNEQUAL]


def deep(calls: list[Call]) -> list[Call]:
    """Each causal as well."""
    return calls + [replace(call, causal=True) for call in calls]


def sizes(widths: tuple[int, ...], **more: tuple) -> list[Call]:
    return every(dtype=DTYPES, width=widths, causal=(False, True), rows=(130,), keys=(190,), **more)


ROWS: dict[str, list[Call | DecodeCall]] = {
    **{f"head dim {width}": sizes((width,)) for width in SIZES},
    "head dims between, multiples of 8": sizes(BETWEEN),
    "head dims between, odd": sizes(ODD),
    "head dims of qk and vo differ": [
        replace(call, width=width, width_v=width_v)
        for call in every(dtype=DTYPES, rows=(130,), keys=(190,), causal=(True,))
        for width, width_v in ((64, 128), (128, 64), (192, 128), (96, 33), (16, 256), (72, 80))
    ],
    "lengths 1 to 4097": every(
        dtype=DTYPES, rows=(1, 2, 63, 64, 65, 1023, 2047, 4097), keys=(1, 64, 1023, 4097), heads=(1,), heads_kv=(1,)
    ),
    "no mask": unequal(every(dtype=DTYPES, width=(64, 128))),
    "causal, top-left": unequal(every(dtype=DTYPES, width=(64, 128), causal=(True,))),
    "causal, bottom-right": unequal(every(dtype=DTYPES, width=(64, 128), causal=(True,), bottom_right=(True,))),
    "sliding window": unequal(
        every(dtype=DTYPES, left=(-1, 0, 70), right=(-1, 5, 130), bottom_right=(False, True))
    ),
    "rows that see nothing": every(
        dtype=DTYPES, rows=(300,), keys=(65,), causal=(True,), bottom_right=(True,), left=(-1, 20), sinks=(False,)
    ) + every(dtype=DTYPES, keys=(0,), rows=(70,)),
    "bias matrix, and its gradient": deep(
        every(dtype=DTYPES, bias=("none", "rows", "hides"), batch=(2,), rows=(130,), keys=(257,), width=(64, 128))
    ),
    "bias, broadcast over batch and heads": deep(
        every(dtype=DTYPES, bias=("batch", "heads", "both"), batch=(3,), heads=(4,), rows=(130,), keys=(257,))
    ),
    "ALiBi per head": deep(every(dtype=DTYPES, alibi=("heads",), heads=(8,), heads_kv=(4,), rows=(130,), keys=(300,))),
    "ALiBi per batch and head": deep(
        every(dtype=DTYPES, alibi=("batch",), batch=(3,), heads=(4,), rows=(250,), keys=(300,))
    ),
    "soft cap": deep(every(dtype=DTYPES, softcap=(1.0, 30.0), rows=(130, 1023), keys=(257,), width=(64, 128))),
    "sinks, and their gradient": deep(
        every(dtype=DTYPES, sinks=(True,), heads=(8,), heads_kv=(4,), rows=(130, 1023), keys=(257,))
    ),
    "dropout": deep(
        every(dtype=DTYPES, dropout=(0.1, 0.5), rows=(130, 1023), keys=(257,), in_memory=(False, True), heads=(4,))
    ),
    "GQA and MQA": deep(
        every(dtype=DTYPES, heads=(8,), heads_kv=(1, 2, 4), batch=(2,), rows=(130,), keys=(300,), width=(64, 128))
    ),
    "varlen, compact": deep([
        Call(**VARLEN, dtype=dtype, varlen_q="compact", varlen_k=mode, bottom_right=last)
        for dtype, mode, last in product(DTYPES, ("compact", "padded"), (False, True))
    ]),
    "varlen, padded": deep([
        Call(**VARLEN, dtype=dtype, varlen_q="padded", varlen_k=mode, sinks=sinks)
        for dtype, mode, sinks in product(DTYPES, ("padded", "both"), (False, True))
    ]),
    "varlen, strided (begins and lengths)": deep([
        Call(**VARLEN, dtype=dtype, varlen_q="both", varlen_k="both", layout=layout)
        for dtype, layout in product(DTYPES, ("contiguous", "packed"))
    ]),
    "varlen, padded, lengths as sums": deep([
        Call(**VARLEN | ({} if q else {"lengths_q": ()}), dtype=dtype, varlen_q=q, varlen_k=k, bottom_right=last,
             longest=longest)
        for dtype, (q, k), last, longest in product(
            DTYPES, (("sums", "sums"), ("sums", "padded"), ("", "sums")), (False, True), (False, True)
        )
    ]),
    "varlen, log-sum-exp by sequence": deep([
        Call(**VARLEN, dtype=dtype, varlen_q="compact", varlen_k=mode, lse_by_sequence=True, sinks=sinks)
        for dtype, mode, sinks in product(DTYPES, ("compact", "padded"), (False, True))
    ]),
    "seed and offset written without dropout": every(dtype=DTYPES, in_memory=(True,), bias=("", "none")),
    "sequences of no rows": [
        Call(batch=3, rows=65, keys=65, dtype=dtype, varlen_q="compact", varlen_k="compact", lengths_q=q, lengths_k=k)
        for dtype, (q, k) in product(
            DTYPES, (((0, 0, 65), (0, 65, 0)), ((65, 0, 0), (65, 0, 65)), ((0, 65, 0), (0, 0, 0)))
        )
    ] + [
        Call(batch=3, rows=130, keys=130, width=128, dtype=dtype, varlen_k=mode, lengths_k=(0, 0, 0))
        for dtype, mode in product(DTYPES, ("padded", "compact"))
    ],
    "strides, aligned": deep(
        every(dtype=DTYPES, layout=ALIGNED, layout_out=("rows", "reversed"), batch=(2,), rows=(130,), keys=(190,))
    ),
    "strides, unaligned": deep(
        every(dtype=DTYPES, layout=UNALIGNED, layout_out=UNALIGNED, batch=(2,), rows=(130,), keys=(190,))
    ),
    "scales": every(dtype=DTYPES, sm_scale=(-0.3, 0.01, 1.0), rows=(300,), keys=(300,)),
    "inputs with large means": deep(every(dtype=DTYPES, inputs=("means",), rows=(1023,), keys=(300, 2047))),
    "inputs that share an offset": deep(
        every(dtype=DTYPES, inputs=tuple(SHARED), rows=(1023,), keys=(300, 2047, 8192), width=(64, 128))
    ) + every(
        dtype=DTYPES, inputs=tuple(SHARED), rows=(130,), keys=(2047,), width=(32, 96, 192, 256), heads=(4,), batch=(2,)
    ),
    "inputs that share an offset, with all else": [
        Call(dtype=dtype, inputs=inputs, rows=300, keys=700, heads=16, heads_kv=4, **more)
        for dtype, inputs, more in product(
            DTYPES, SHARED,
            ({"sinks": True}, {"softcap": 30.0}, {"dropout": 0.3}, {"bias": "none"}, {"alibi": "heads"},
             {"left": 100, "right": 50}, {"sinks": True, "softcap": 30.0, "dropout": 0.1}),
        )
    ] + [
        Call(**VARLEN, dtype=dtype, inputs=inputs, varlen_q="compact", varlen_k="compact")
        for dtype, inputs in product(DTYPES, SHARED)
    ],
    "inputs with outliers": deep(
        every(dtype=DTYPES, inputs=("outliers",), rows=(1023,), keys=(300, 2047), backward=(False, True))
    ),
    "inputs with a hot row": deep(every(dtype=DTYPES, inputs=("hot row",), rows=(1023,), keys=(300, 2047))),
    # In most calls a row's largest score hardly grows behind its first block; here it does, by more and by less than
    # what makes attn_fwd_hopper.py multiply a wide head's output.
    "inputs of wide heads, whose scores grow": deep(
        every(dtype=DTYPES, inputs=("outliers", "hot row"), rows=(1023,), keys=(2047,), width=(192, 256))
    ) + every(dtype=DTYPES, sm_scale=(0.3, 1.0), rows=(1023,), keys=(2047,), width=(192, 256)),
    "backward, deterministic": deep(
        every(dtype=DTYPES, deterministic=(True,), rows=(1023,), keys=(1023,), width=(64, 128, 256), left=(-1, 200))
    ),
    "decode, split": [
        DecodeCall(dtype=dtype, rows=rows, keys=keys, splits=splits, heads=8, heads_kv=heads_kv)
        for dtype, rows, keys, splits, heads_kv in product(
            DTYPES, (1, 2, 3, 7, 16), (64, 2047, 4097), (0, 1, 2, 7, 32), (1, 8)
        )
    ],
    "decode, head dims": [
        DecodeCall(dtype=dtype, width=width, keys=700) for dtype in DTYPES for width in (*SIZES, 40, 127)
    ],
    "decode, inputs that share an offset": [
        DecodeCall(dtype=dtype, inputs=inputs, rows=rows, keys=2047, splits=splits, fp8=fp8)
        for dtype, inputs, rows, splits, fp8 in product(DTYPES, SHARED, (1, 16), (0, 7), (False, True))
        if not fp8 or dtype != "fp32"
    ],
    "decode, paged": [
        DecodeCall(dtype=dtype, batch=3, rows=rows, keys=1000, used=(1000, 0, 333), page_size=size, causal=True)
        for dtype, rows, size in product(DTYPES, (1, 16), (16, 32, 48, 64, 128, 256))
    ],
    "decode, other batches of the cache, left padding": [
        DecodeCall(dtype=dtype, batch=3, rows=2, keys=500, used=(500, 3, 333), cache_batch=batch, leftpad=pad,
                   causal=causal)
        for dtype, batch, pad, causal in product(DTYPES, (False, True), (False, True), (False, True))
    ],
    "decode, append": [
        DecodeCall(dtype=dtype, batch=3, rows=rows, keys=500, used=(480, 0, 333), new_rows=new, page_size=size,
                   causal=True)
        for dtype, rows, new, size in product(DTYPES, (1, 5), (1, 5, 17), (0, 16, 256))
    ],
    "decode, rotary": [
        DecodeCall(dtype=dtype, batch=3, rows=rows, keys=500, used=(480, 0, 333), new_rows=rows, rotary=kind,
                   rotary_dim=dim, causal=causal, page_size=size)
        for dtype, rows, kind, dim, causal, size in product(
            DTYPES, (1, 4), ("half", "interleaved"), (16, 64), (False, True), (0, 64)
        )
    ],
    "decode, fp8 cache": [
        DecodeCall(dtype=dtype, batch=3, rows=rows, keys=700, used=(680, 0, 333), fp8=True, new_rows=new,
                   page_size=size, width=width, rotary="half" if new else "", causal=True)
        for dtype, rows, new, size, width in product(("bf16", "fp16"), (1, 5), (0, 1), (0, 64), (64, 128))
    ],
    "decode, latent keys": [
        DecodeCall(dtype=dtype, batch=3, heads=heads, heads_kv=1, rows=rows, keys=900, used=(890, 0, 333), width=576,
                   width_v=512, latent=True, new_rows=rows if append else 0, page_size=size, splits=splits, causal=True,
                   layout=layout)
        for dtype, heads, rows, append, (size, layout), splits in product(
            ("bf16", "fp16"), (1, 16, 40, 128), (1, 2), (False, True),
            ((0, "contiguous"), (0, "rows"), (1, "contiguous"), (64, "contiguous")), (0, 1, 7)
        )
    ] + [
        DecodeCall(dtype="bf16", batch=2, heads=16, heads_kv=1, rows=3, keys=700, used=(700, 65), width=576,
                   width_v=512, latent=True, cache_batch=True, leftpad=True, sinks=True, left=left, right=0,
                   layout="odd rows")
        for left in (-1, 130)
    ],
    "decode, windows, soft cap, sinks, ALiBi": [
        DecodeCall(dtype=dtype, rows=rows, keys=900, heads=8, left=left, right=right, **extra)
        for dtype, rows, (left, right), extra in product(
            DTYPES, (1, 7), ((-1, -1), (100, 0), (5, 3)),
            ({}, {"softcap": 15.0}, {"sinks": True}, {"alibi": "batch"},
             {"softcap": 15.0, "sinks": True, "alibi": "heads"}),
        )
    ],
    "chunked prefill, paged": [
        DecodeCall(dtype=dtype, batch=4, rows=400, lengths_q=(400, 1, 0, 65), keys=1000, used=(900, 1, 50, 65),
                   page_size=size, causal=True, left=left, width=width)
        for dtype, size, left, width in product(DTYPES, (16, 64, 256), (-1, 200), (64, 128))
    ],
}  # fmt: skip
