"""Small calls, by which every image of a release is reached; and the images, forced in turn."""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
from collections.abc import Sequence
from functools import lru_cache

import ffi
import torch
from calls import SINKS, Call
from check import Expected, check, differing
from decode_calls import DecodeCall
from decode_check import check_decode, decode_differing
from standin import kept
from storage import DTYPES, describe

MOST_CASES = 3  # of each image
EQUAL_RUNS = 4  # of each image in one of them


def words(functional: str) -> dict[str, str]:
    """ "dtype=bf16 head_dim=64", taken apart."""
    return dict(re.findall(r"(\S+?)=(\S*)", functional))


EXTRAS = {
    "none": {}, "bias": {"bias": "none", "alibi": "heads"}, "softcap": {"softcap": 5.0}, "dropout": {"dropout": 0.3},
    "any": {"bias": "heads", "softcap": 20.0, "dropout": 0.2, "sinks": True},
}  # fmt: skip
SHAPES = (
    {"rows": 130, "keys": 190, "causal": True, "bottom_right": True},
    # Near the keys that it sees: far from them, a log-sum-exp with ALiBi is too large for backward in fp32.
    {"rows": 200, "keys": 77, "heads": 4, "heads_kv": 2, "left": 50, "right": 20, "bottom_right": True},
    {"rows": 1, "keys": 300, "heads": 8, "heads_kv": 8},
    {"rows": 70, "keys": 70, "batch": 3, "varlen_q": "compact", "varlen_k": "compact", "lengths_q": (70, 0, 33),
     "lengths_k": (70, 20, 33), "causal": True},
    {"rows": 600, "keys": 600, "heads": 4, "heads_kv": 4, "causal": True, "batch": 2},
    {"rows": 5000, "keys": 70, "heads": 1, "heads_kv": 1},
    {"rows": 70, "keys": 5000, "heads": 1, "heads_kv": 1},
)  # fmt: skip
# The same, of fewer scores and heads, for where a call takes seconds: the emulator of AMD's code objects.
SMALL_SHAPES = (
    {"rows": 70, "keys": 100, "causal": True, "bottom_right": True},
    {"rows": 80, "keys": 45, "heads": 4, "heads_kv": 2, "left": 30, "right": 10, "bottom_right": True},
    *SHAPES[2:4],
)
SMALL_SINKS = 4
LAYOUTS = ({}, {"layout": "odd rows", "layout_out": "odd rows"}, {"layout": "offset", "layout_out": "offset"})
DECODES = (
    {"batch": 3, "keys": 900, "used": (900, 0, 411), "splits": 4},
    {"keys": 900, "used": (890, 411), "splits": 4, "new_rows": 3, "rows": 3, "rotary": "half", "rotary_dim": 16,
     "causal": True},
    {"keys": 300, "used": (290, 11), "rows": 130, "causal": True, "page_size": 64, "splits": 1},
    {"keys": 300, "used": (290, 11), "rows": 16, "new_rows": 1, "heads": 8, "heads_kv": 1, "page_size": 16},
)  # fmt: skip
DECODE_EXTRAS = ({}, {"softcap": 20.0}, {"alibi": "batch"}, {"sinks": True, "softcap": 20.0, "alibi": "heads"})


def calls(operation: str, functional: str, kernel: str, small: bool = False) -> list[Call | DecodeCall]:
    """Calls that may be of a functional, the likely ones first, by those of its words that are known here. Whether one
    is, only the release can say. `small`: of SMALL_SHAPES."""
    known = words(functional)
    dtypes = [known["dtype"]] if "dtype" in known else ["bf16", "fp16", "fp32"]
    width = int(known["head_dim"]) if "head_dim" in known else 64
    aligned, unaligned = {"width": width - 8, "width_v": width}, {"width": width - 3, "width_v": max(width - 8, 5)}
    widths = [{"width": width}, aligned, unaligned]
    if known.get("padded") == "true":
        widths.reverse()
    if kernel == "attn_fwd.hopper_narrow":
        widths = [{"width": width, "width_v": 128}, {"width": width - 8, "width_v": 72}]
    if operation == "attn_decode":
        decodes = DECODES
        if width == 576:  # latent keys; rotation by the call would turn columns of values too
            widths = [{"width": 576, "width_v": 512, "latent": True, "heads_kv": 1}]
            decodes = tuple({**one, "rotary": ""} for one in DECODES)
        fp8s = ({"fp8": True}, {}) if "fp8" in functional or "e4m3" in functional else ({}, {"fp8": True})
        parts = itertools.product(fp8s, DECODE_EXTRAS, widths, ({}, {"layout": "odd rows"}), decodes)
        fields = [{name: value for part in some for name, value in part.items()} for some in parts]
        return [
            DecodeCall(dtype=dtype, **one)
            for one in fields
            for dtype in dtypes
            if not ("fp8" in one and dtype == "fp32")
        ]
    likely = "any" if "sink" in kernel else "bias" if "bias" in kernel else known.get("extras")
    extras = sorted(EXTRAS, key=lambda name: name != likely)
    result = []
    shapes, sinks = (SMALL_SHAPES, SMALL_SINKS) if small else (SHAPES, SINKS)
    for some in itertools.product([EXTRAS[name] for name in extras], widths, LAYOUTS, shapes):
        fields = {name: value for part in some for name, value in part.items()}
        if "sinks" in fields:
            fields["heads"] = fields["heads_kv"] = sinks
        fields["deterministic"] = known.get("ordered") == "true"
        result += [Call(dtype=dtype, backward=operation == "attn_bwd", **fields) for dtype in dtypes]
    return result


@lru_cache(maxsize=24)
def _expected(call: Call, device: str, kiln, target: str | None) -> Expected:
    return Expected(call, device, kiln, target)


def is_of_another(failure: ffi.Failure) -> bool:
    """Whether a forced image was refused since the call is of another functional, not aligned as the image wants, or
    not served by its implementation."""
    said = ("not a variant of this call's functional", "is specialised", "does not take this call")
    return failure.status == ffi.UNSUPPORTED and any(words in failure.sentence for words in said)


def run_images(
    kiln, device: str, reasons: list[str], operation: str, functional: str, variants: list[dict], target: str | None,
    most: int = MOST_CASES, small: bool = False, given: Sequence[Call | DecodeCall] = (), runs: int = 0,
) -> dict:  # fmt: skip
    """Forces each image of a functional in up to `most` calls, and judges these: {"rows": [one an image]}.

    Args:
        variants: of one kernel.
        reasons: why the release has no images of some other variants.
        small: see `calls`.
        given: the calls to try, if not those of `calls`.
        runs: how often the first of an image's calls is made again, which must give equal bits; not of images that are
            there to add in any order. A row's "runs" are those that were made.
    """
    candidates = given or calls(operation, functional, variants[0]["kernel"], small)
    hits: dict[tuple, list[Call | DecodeCall]] = {}  # the calls that take an image of a kernel and specialization
    rows = []
    for variant in variants:
        row = {"wrong": [], "cases": 0, "ratio": 0.0, "output": "", "key": variant["key"]}
        found = hits.setdefault((variant["kernel"], variant["specialization"]), [])
        for call in list(found) or candidates:
            try:
                verdict = _run(kiln, device, call, operation, variant["key"], target)
            except ffi.Failure as failure:
                if is_of_another(failure):
                    continue
                if failure.status == ffi.UNSUPPORTED and any(reason in failure.sentence for reason in reasons):
                    row["refused"] = failure.sentence  # another kernel of the call has no image
                    continue
                row["wrong"].append(f"{call}: {failure.sentence}")
                break
            if call not in found:
                found.append(call)
            row["cases"] += 1
            ratio, output = verdict.worst
            if ratio >= row["ratio"]:
                row |= {"ratio": ratio, "output": output}
            row["wrong"] += [f"{call}: {fault}" for fault in verdict.wrong()]
            if row["cases"] == 1 and runs and words(functional).get("ordered") != "false":
                row["runs"] = runs
                for name in _differing(kiln, device, call, operation, variant["key"], target, runs):
                    row["wrong"].append(f"{call}: {name} differs from run to run")
            if row["cases"] >= most:
                break
        if not row["cases"] and not row["wrong"] and "refused" not in row and not given:
            row["wrong"].append("no call of candidates.py reaches this image")
        rows.append(row)
    return {"rows": rows}


def _run(kiln, device: str, call: Call | DecodeCall, operation: str, key: str, target: str | None):
    if isinstance(call, DecodeCall):
        return check_decode(call, kiln, device, target, (key,))
    expected = _expected(call, device, kiln, target)
    return check(call, kiln, device, target, (key,), operation == "attn_bwd", expected)


def _differing(
    kiln, device: str, call: Call | DecodeCall, operation: str, key: str, target: str | None, runs: int
) -> list[str]:  # fmt: skip
    if isinstance(call, DecodeCall):
        return decode_differing(call, kiln, device, target, (key,), runs)
    # What other kernels of the call do is in a fixed order too.
    ordered = dataclasses.replace(call, deterministic=True)
    return differing(ordered, kiln, device, target, (key,), operation == "attn_bwd", runs)


FACTS = ("kernel", "functional", "configuration", "specialization", "registers", "shared_bytes", "spill_bytes")
MASK_SHAPES = ((2, 3, 65, 130), (1, 1, 300, 7))
BATCHES = (0, 1, 255, 256, 1000)


def one_of_each(variants: list[dict]) -> list[dict]:
    """Slots may share an image; a key counts once in a functional."""
    return list({(v["kernel"], v["functional"], v["key"]): v for v in variants}.values())


def facts(variant: dict, by: str, row: dict) -> dict:
    """What is recorded of a forced image: `row` is of run_images, or like it."""
    share = math.inf if row["wrong"] else row["ratio"] / 2
    return {
        "operation": variant["operation"], "target": variant["target"], "by": by, "key": row["key"],
        "cases": row["cases"], "worst_share_of_limit": share, "output": row["output"],
        **{name: variant[name] for name in FACTS}, **{name: row[name] for name in ("runs",) if name in row},
    }  # fmt: skip


def run_mask_images(flash, variant: dict, target: str | None) -> dict:
    """A row as of run_images, of an image of the dropout mask."""
    wrong = []
    for shape in MASK_SHAPES:
        mask = run_mask_image(flash, variant, target, shape)
        if not torch.equal(mask.cpu(), torch.from_numpy(kept(5, 9, 0.5, shape))):
            wrong.append(f"{shape}: the mask is another than that of Philox")
    return {"wrong": wrong, "ratio": 0.0, "output": "mask", "cases": len(MASK_SHAPES), "key": variant["key"]}


def run_lengths_images(flash, variant: dict, target: str | None) -> dict:
    """A row as of run_images, of an image of the lengths of sequences."""
    faults = [(batch, run_lengths_image(flash, variant, target, batch)) for batch in BATCHES]
    wrong = [f"{batch} sequences: {fault}" for batch, fault in faults if fault]
    return {"wrong": wrong, "ratio": 0.0, "output": "lengths", "cases": len(BATCHES), "key": variant["key"]}


def run_mask_image(flash, variant: dict, target: str | None, shape: tuple[int, int, int, int]) -> torch.Tensor:
    """The mask of seed 5 and offset 9, half of which is dropped, by a forced image: true where a weight is kept."""
    dtype = {"uint8": torch.uint8, **DTYPES}[words(variant["functional"])["mask_dtype"]]
    mask = torch.full(shape, 7, dtype=dtype, device=flash.device.name)
    flash.launch("flash.dropout_mask", [describe(mask), None, None, 1 << 31, 5, 9], (variant["key"],), target)
    assert set(mask.unique().tolist()) == ({0, 1} if dtype == torch.uint8 else {-1, 1})
    return mask > 0


def run_lengths_image(flash, variant: dict, target: str | None, batch: int) -> str:
    """What is wrong with the lengths, at most 20, and begins of so many sequences by a forced image; "" if nothing."""
    draw = torch.Generator().manual_seed(batch)
    cu_seqlens, begins = (
        torch.randint(0, 100, (batch + more,), generator=draw, dtype=torch.int32).to(flash.device.name)
        for more in (1, 3)
    )
    memory = torch.full((2, batch + 2), -7, dtype=torch.int32, device=flash.device.name)
    lengths, begins_out = memory[0, :batch], memory[1, : batch + 1]
    arguments = [*map(describe, (cu_seqlens, begins, lengths, begins_out)), 20, 12345]
    flash.launch("flash.seq_lengths", arguments, (variant["key"],), target)
    expected = [[*cu_seqlens.diff().clamp(0, 20).tolist(), -7, -7], [*begins[:batch].tolist(), 12345, -7]]
    wrong = [name for name, got, right in zip(("lengths", "begins_out"), memory.tolist(), expected) if got != right]
    return f"{' and '.join(wrong)} are wrong" if wrong else ""
