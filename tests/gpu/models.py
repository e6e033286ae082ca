"""Runs on a GPU what `kiln coverage` calls served, by kiln.torch, and compares it with PyTorch in fp32. Two commands;
the first needs no GPU, the second neither packages of the build nor network:

    ./kiln coverage RELEASE --target sm_90 --model tests/models/llama-3-8b.json --model ... --json > coverage.json
    PYTHONPATH=<where the wheels are unpacked> python3 tests/gpu/models.py coverage.json > models.md

Prints a table in Markdown for docs/measurements; fails if a result is wrong, or a call that is served is refused.
"""

from __future__ import annotations

import json
import math
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import kiln.torch as kt

BATCH = 2  # sequences, as in kiln_build.coverage.calls
_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32, "fp8e4m3": torch.float8_e4m3fn}
# Of the largest number of a result: a few roundings of its dtype; fp32 is multiplied as TF32.
_NEAR = {"bf16": 2**-5, "fp16": 2**-8, "fp32": 2**-8}
_FP8 = 448.0


@dataclass(frozen=True)
class Result:
    """What a call came to. `far` is the largest difference from PyTorch's numbers, in parts of their largest."""

    model: str
    attention: str
    use: str
    far: float
    near: float
    images: str
    problem: str = ""

    @property
    def is_right(self) -> bool:
        return not self.problem and self.far <= self.near


class Case:
    """The tensors of one kind of attention (`kind`: kiln_build.coverage.attention.Attention, as JSON) on a device."""

    def __init__(self, kind: Mapping[str, Any], device: str) -> None:
        self.kind, self.device, self.dtype = kind, device, _DTYPES[kind["dtype"]]
        self._draw = torch.Generator(device).manual_seed(kind["head_dim"] + kind["heads"])
        self.keys = kind["keys"]
        self.scale = kind["head_dim"] ** -0.5
        self.sinks = self.normal(kind["heads"], dtype=torch.float32) if kind["sinks"] else None
        self.slopes = None
        if kind["alibi"]:
            self.slopes = 2.0 ** -(8 * torch.arange(1, kind["heads"] + 1, device=device) / kind["heads"])

    def normal(self, *sizes: int, dtype: torch.dtype | None = None) -> Tensor:
        return torch.randn(*sizes, generator=self._draw, device=self.device).to(dtype or self.dtype)

    def inputs(self, rows: int) -> dict[str, Tensor]:
        kind = self.kind
        made = {
            "q": self.normal(BATCH, kind["heads"], rows, kind["head_dim"]),
            "k": self.normal(BATCH, kind["heads_kv"], self.keys, kind["head_dim"]),
            "v": self.normal(BATCH, kind["heads_kv"], self.keys, kind["head_dim_v"]),
        }
        if self.is_latent:
            made["v"] = made["k"][..., : kind["head_dim_v"]]
        if kind["bias"]:
            made["bias"] = self.normal(1, kind["heads"], rows, self.keys)
        if self.sinks is not None:
            made["sinks"] = self.sinks
        return made

    @property
    def is_latent(self) -> bool:
        """Attention.is_latent, of a kind of `kiln coverage --json`."""
        return self.kind["heads_kv"] == 1 and self.kind["head_dim"] > self.kind["head_dim_v"]

    @property
    def window(self) -> tuple[int, int]:
        before = self.kind["window"] - 1 if self.kind["window"] else -1
        return before, 0 if self.kind["causal"] else before

    def named(self) -> dict[str, Any]:
        """The arguments of kiln.torch that are no inputs."""
        named = {"scale": self.scale, "softcap": self.kind["softcap"], "window": self.window}
        return named | ({"alibi_slopes": self.slopes} if self.slopes is not None else {})

    def attend(self, inputs: Mapping[str, Tensor], kept: Tensor | None = None, dropout: float = 0.0) -> Tensor:
        """The definition, in fp32; a head at a time, since the scores of all would not fit."""
        q, k, v = (inputs[name].float() for name in "qkv")
        heads, rows, keys = q.shape[1], q.shape[2], k.shape[2]
        shared = heads // k.shape[1]
        # Where row i is among the keys, counted from the last of both where the mask is causal.
        at = torch.arange(rows, device=q.device)[:, None] + (keys - rows if self.kind["causal"] else 0)
        away = at - torch.arange(keys, device=q.device)[None]
        left, right = self.window
        hidden = ((away > left) if left >= 0 else away.new_zeros((), dtype=torch.bool)) | (
            (-away > right) if right >= 0 else away.new_zeros((), dtype=torch.bool)
        )
        straight = (
            torch.arange(rows, device=q.device)[:, None] + keys - rows - torch.arange(keys, device=q.device)
        ).abs()
        out = []
        for batch in range(q.shape[0]):
            for head in range(heads):
                scores = q[batch, head] @ k[batch, head // shared].T * self.scale
                if cap := self.kind["softcap"]:
                    scores = cap * torch.tanh(scores / cap)
                if "bias" in inputs:
                    scores = scores + inputs["bias"][0, head].float()
                if self.slopes is not None:
                    scores = scores - self.slopes[head] * straight
                scores = scores.masked_fill(hidden, -math.inf)
                if "sinks" in inputs:
                    sink = inputs["sinks"][head].float().expand(rows, 1)
                    weights = torch.softmax(torch.cat([scores, sink], 1), 1)[:, :keys]
                else:
                    weights = torch.softmax(scores, 1)
                if kept is not None:
                    weights = weights * kept[batch, head] / (1 - dropout)
                out.append(weights @ v[batch, head // shared])
        return torch.stack(out).view(*q.shape[:2], rows, v.shape[3])


def prefill(case: Case, rows: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Pairs of Kiln's numbers and PyTorch's; decode of a model with a bias is the same with one row."""
    inputs = case.inputs(rows)
    yield kt.attention(**inputs, **case.named(), bottom_right=case.kind["causal"]), case.attend(inputs)


def training(case: Case) -> Iterator[tuple[Tensor, Tensor]]:
    inputs, rate = case.inputs(case.kind["rows"]), case.kind["dropout"]
    ours, theirs = ({n: x.detach().clone().requires_grad_() for n, x in inputs.items()} for _ in range(2))
    kept, named = None, case.named()
    if rate:
        named |= {"dropout": rate, "rng": kt.draw_rng(case.device)}
        sizes = (BATCH, case.kind["heads"], case.kind["rows"], case.keys)
        kept = kt.dropout_mask(named["rng"], *sizes, rate).float()
    out, definition = kt.attention(**ours, **named, bottom_right=case.kind["causal"]), case.attend(theirs, kept, rate)
    gradient = case.normal(*out.shape)
    out.backward(gradient)
    definition.backward(gradient.float())
    yield out.detach(), definition.detach()
    for name in inputs:
        yield ours[name].grad, theirs[name].grad


def decode(case: Case) -> Iterator[tuple[Tensor, Tensor]]:
    """One new row; where the keys are the sequence's own, it is appended to a cache that has room for it alone."""
    inputs, kind = case.inputs(1), case.kind
    named, cached = case.named(), _DTYPES[kind["cache_dtype"] or kind["dtype"]]
    scales: dict[str, Tensor] = {}
    caches = {}
    for name in "kv":
        tensor = inputs[name]
        if cached == torch.float8_e4m3fn:
            scales[f"{name}_scale"] = tensor.float().abs().amax((0, 2, 3)) / _FP8
            tensor = tensor.float() / scales[f"{name}_scale"][None, :, None, None]
        caches[f"{name}_cache"] = tensor.to(cached)
    if case.is_latent:
        caches["v_cache"] = caches["k_cache"][..., : kind["head_dim_v"]]
    more: dict[str, Any] = {"seqused_k": torch.full((BATCH,), case.keys, dtype=torch.int32, device=case.device)}
    if not kind["cross"]:
        more["seqused_k"] -= 1
        more |= {f"{name}_new": (inputs[name][:, :, -1:] / 2).contiguous() for name in "kv"}
    if case.sinks is not None:
        named["sinks"] = case.sinks
    out = kt.decode(inputs["q"], **caches, **more, **scales, **named)
    for name in "kv":  # with what was appended, and as it was rounded
        read = caches[f"{name}_cache"].float()
        if scales:
            read = read * scales[f"{name}_scale"][None, :, None, None]
        if not kind["cross"]:
            near = 2**-3 if scales else 0.0
            torch.testing.assert_close(read[:, :, -1:], more[f"{name}_new"].float(), rtol=near, atol=near / 10)
        inputs[name] = read
    yield out, case.attend(inputs)


def run(document: Mapping[str, Any], device: str = "cuda") -> Iterator[Result]:
    """Each use that is served on the document's first target, once for all models that have the same attention."""
    kinds = {(model["name"], kind["name"]): kind for model in document["models"] for kind in model["kinds"]}
    target = document["verdicts"][0]["target"]
    for verdict in document["verdicts"]:
        if not verdict["served"] or verdict["target"] != target:
            continue
        kind, use = kinds[verdict["model"], verdict["attention"]], verdict["use"]
        images = ", ".join(dict.fromkeys(image["kernel"] for image in verdict["images"]))
        far, problem = 0.0, ""
        try:
            for ours, theirs in _pairs(Case(kind, device), use):
                far = max(far, _far(ours, theirs))
        except Exception as error:  # noqa: BLE001 - what is served must not fail, however it does
            traceback.print_exc()
            problem = f"{type(error).__name__}: {error}".splitlines()[0]
        yield Result(verdict["model"], verdict["attention"], use, far, _NEAR[kind["dtype"]], images, problem)
        if device == "cuda":
            torch.cuda.empty_cache()


def _pairs(case: Case, use: str) -> Iterator[tuple[Tensor, Tensor]]:
    if use == "training":
        return training(case)
    if use == "decode" and not case.kind["bias"]:
        return decode(case)
    return prefill(case, case.kind["rows"] if use == "prefill" else 1)


def _far(ours: Tensor, theirs: Tensor) -> float:
    """The largest difference, in parts of the largest number; infinite where one is no number."""
    difference = (ours.double() - theirs.double()).abs().max().item()
    return difference / (theirs.double().abs().max().item() or 1.0) if math.isfinite(difference) else math.inf


def table(results: Sequence[Result]) -> Iterator[str]:
    yield "| model | attention | use | difference | allowed | kernels |"
    yield "|---|---|---|---|---|---|"
    for one in results:
        said = one.problem or (f"{one.far:.1e}" if one.is_right else f"**{one.far:.1e}**")
        yield f"| {one.model} | {one.attention} | {one.use} | {said} | {one.near:.1e} | {one.images} |"


def main(words: Sequence[str]) -> int:
    if len(words) != 1:
        print(__doc__, file=sys.stderr)
        return 2
    with open(words[0], encoding="utf-8") as file:
        document = json.load(file)
    results = []
    for result in run(document):
        results.append(result)
        print(".", end="", file=sys.stderr, flush=True)
    print(f"\n{torch.cuda.get_device_name()}, PyTorch {torch.__version__}, {document['source']}\n")
    print("\n".join(table(results)))
    wrong = [one for one in results if not one.is_right]
    print(f"\n{len(results)} uses that are served were run; {len(results) - len(wrong)} are right.")
    return 1 if wrong or not results else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
