"""Every architecture that the installed Transformers can build from a tiny configuration: eager beside Kiln.

    python tests/pytorch/every_architecture.py [--device cuda] [--shard 0/8] [--json FILE] [NAME ...]

In float32, for which a GPU needs a release of the full profile. On the path have to be kiln and this folder.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import inspect
import json
import os
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # read when it is imported: some configurations ask the hub for another

import torch
from model_calls import candidates, distance, masks, outputs, pieces
from tiny_configs import WAYS, tiny
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from transformers.models.auto import configuration_auto, modeling_auto

MOST_PARAMETERS = 30_000_000
SECONDS = 60
BLURRED = 1e-5
MOVED = 1e-6
# Parts that are given masks of booleans, which eager adds to the scores as if they were numbers. PyTorch's own
# attention takes them for what they are.
BOOLEAN_MASKS = ("text_backbone",)
CLOSE = 1e-3  # of an output's largest value, in float32


@dataclass
class Finding:
    """What became of one architecture.

    Attributes:
        name, model: the model type and its class.
        verdict: "served": all attention ran in Kiln's kernels; "served in part": some of it did, the rest in the
            model's own code; "own code": none did; "no attention"; "refused": with a sentence when it was built;
            "refused late": when it was called; "not built", "not fed": nothing is known, for the reason in `why`;
            "WRONG": other numbers than eager's, or an error that is not a sentence of Kiln's.
        errors: by case, the largest difference in parts of the largest value.
        is_fed: inputs were found that eager takes, so that a result is due.
        kernels, own, eager: calls of Kiln's engine, softmaxes of scores beside them, and those of eager.
        warned: whether building it said that it computes attention in its own code.
    """

    name: str
    model: str
    verdict: str = ""
    why: str = ""
    errors: dict[str, float] = field(default_factory=dict)
    is_fed: bool = False
    kernels: int = 0
    own: int = 0
    eager: int = 0
    seconds: float = 0.0
    warned: bool = False


class TooLong(BaseException):
    """The time of one architecture is over; nothing that it does is to catch this."""


def architectures() -> list[tuple[str, str]]:
    """(model type, name of a model's class), of all model types, and of all their classes that stand for others."""
    found: dict[tuple[str, str], None] = {}
    names = [n for n in vars(modeling_auto) if n.startswith("MODEL_") and n.endswith("MAPPING_NAMES")]
    first = ["MODEL_MAPPING_NAMES", "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES", "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES"]
    seen = set()
    for mapping in first + [n for n in names if n not in first]:
        for model_type, classes in getattr(modeling_auto, mapping, {}).items():
            if mapping not in first and model_type in seen:
                continue
            for name in (classes,) if isinstance(classes, str) else classes:
                found[model_type, name] = None
        # types that only other mappings have: one class each
        seen |= {t for t, _ in found}
    return [(t, n) for t, n in found if t in configuration_auto.CONFIG_MAPPING_NAMES]


def model_class(name: str) -> type:
    import transformers

    return getattr(transformers, name)


class Count(TorchDispatchMode):
    """Softmaxes of scores, and PyTorch's own attention."""

    def __init__(self) -> None:
        super().__init__()
        self.own = 0
        self.quiet = False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func._schema.name
        if not self.quiet and (
            (name in ("aten::_softmax", "aten::softmax.int") and args[0].dim() >= 3)
            or "scaled_dot_product" in name
            or "_flash_attention_forward" in name
        ):
            self.own += 1
        return func(*args, **(kwargs or {}))


class Watched:
    """An engine, and how often it was called."""

    def __init__(self, engine: Any) -> None:
        self.engine, self.name, self.devices = engine, engine.name, engine.devices
        self.calls = 0
        self.count: Count | None = None

    def __getattr__(self, name: str) -> Any:
        inner = getattr(self.engine, name)
        if name not in ("attn_fwd", "attn_decode", "attn_bwd"):
            return inner

        def call(*args, **more):
            self.calls += name != "attn_bwd"
            if self.count is not None:
                self.count.quiet = True
            try:
                return inner(*args, **more)
            finally:
                if self.count is not None:
                    self.count.quiet = False

        return call


def spread(model: nn.Module) -> None:
    """Weights by which rows see some keys much more than others."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for _, p in sorted(model.named_parameters()):
            if p.dim() >= 2 and p.numel() and p.is_floating_point():
                p.copy_(torch.randn(p.shape, generator=generator) * max(1, p[0].numel()) ** -0.5 * 1.2)


def build(kind: type, config: Any, attention: str, device: str, dtype: torch.dtype) -> nn.Module:
    torch.manual_seed(0)
    model = kind._from_config(copy.deepcopy(config), attn_implementation=attention)
    return model.to(device, dtype).eval()


def examine(model_type: str, name: str, engine: Watched, device: str, dtype: torch.dtype, close: float) -> Finding:
    """One architecture."""
    finding = Finding(model_type, name)
    started = time.perf_counter()
    try:
        _examine(finding, engine, device, dtype, close)
    except TooLong:
        finding.verdict = "WRONG" if finding.is_fed else "not fed"
        finding.why = f"more than {SECONDS} s of the processor"
    except Exception as error:  # noqa: BLE001  (of any architecture)
        finding.verdict, finding.why = "WRONG", "the harness: " + _sentence(error) + traceback.format_exc()[-400:]
    finding.seconds = time.perf_counter() - started
    return finding


def _sentence(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


def _ways(finding: Finding) -> Iterator[tuple[type, str]]:
    """The model type's configuration in all ways; then that which the class itself names, which may be a part of it."""
    listed = configuration_auto.CONFIG_MAPPING[finding.name]
    yield from ((listed, way) for way in WAYS)
    try:
        own = model_class(finding.model).config_class
    except Exception:  # noqa: BLE001  (told of with the first way)
        return
    if own not in (None, listed):
        yield from ((own, way) for way in WAYS)


def fed(finding: Finding, device: str, dtype: torch.dtype) -> tuple[Any, nn.Module, dict[str, Tensor], Count] | None:
    """A configuration, an eager model of it, inputs that it takes, and what that counted; None, with the reason."""
    for config_class, way in _ways(finding):
        try:
            kind = model_class(finding.model)
            config = tiny(config_class, way)
            with torch.device("meta"):
                skeleton = kind._from_config(copy.deepcopy(config), attn_implementation="eager")
            size = sum(p.numel() for p in skeleton.parameters())
            if size > MOST_PARAMETERS:
                raise ValueError(f"{size:,} parameters")
            eager = build(kind, config, "eager", "cpu", dtype)
        except Exception as error:  # noqa: BLE001  (of any architecture)
            finding.verdict, finding.why = finding.verdict or "not built", finding.why or _sentence(error)
            continue
        for part in (getattr(eager, name, None) for name in BOOLEAN_MASKS):
            if part is not None:
                part.set_attn_implementation("sdpa")
        spread(eager)
        problems = []
        for candidate in candidates(eager):
            try:
                # On the processor first: a GPU is lost to its process with the first index that is out of range.
                for place in dict.fromkeys(("cpu", device)):
                    count = Count()
                    _taken(eager.to(place), _to(candidate, place, dtype), count)
            except Exception as error:  # noqa: BLE001  (of any architecture)
                eager.to("cpu")
                problems.append(_sentence(error))
                continue
            finding.why = ""
            return config, eager, _to(candidate, device, dtype), count
        finding.verdict, finding.why = "not fed", problems[0] if problems else model_inputs(eager)
    return None


def _to(inputs: dict[str, Tensor], device: str, dtype: torch.dtype) -> dict[str, Tensor]:
    return {n: x.to(device, dtype if x.is_floating_point() else x.dtype) for n, x in inputs.items()}


def _taken(eager: nn.Module, inputs: dict[str, Tensor], count: Count) -> None:
    """Raises what the model raises, or ValueError for an output that is nothing to compare with."""
    torch.manual_seed(0)
    with torch.no_grad(), count:
        expected = eager(**inputs)
    if not dict(outputs(expected)):
        raise ValueError("the output has no tensors")
    if any(x.isnan().any() for _, x in outputs(expected)):
        raise ValueError("eager's own output is not a number")


@contextlib.contextmanager
def _refusals(finding: Finding, verdict: str, what: str) -> Iterator[None]:
    """A sentence of Kiln's gives the verdict; any other error is WRONG."""
    from kiln.errors import KilnError

    try:
        yield
    except KilnError as error:
        finding.verdict, finding.why = verdict, _sentence(error)
    except Exception as error:  # noqa: BLE001  (of any architecture)
        finding.verdict, finding.why = "WRONG", f"{what}: {_sentence(error)}"


def _examine(finding: Finding, engine: Watched, device: str, dtype: torch.dtype, close: float) -> None:
    from kiln.torch import transformers_building

    found = fed(finding, device, dtype)
    if found is None:
        return
    config, eager, given, count = found
    finding.verdict, finding.why, finding.is_fed = "", "", True
    with _refusals(finding, "refused", "built"):
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            transformers_building._warned.clear()  # else once for each class
            ours = build(type(eager), config, "kiln", device, dtype)
        finding.warned = any("attention in its own code" in str(w.message) for w in said)
    if finding.verdict:
        return
    ours.load_state_dict(eager.state_dict())
    finding.eager = count.own
    count = Count()
    engine.calls, engine.count = 0, count
    try:
        with _refusals(finding, "refused late", "ran"), torch.no_grad(), count:
            torch.manual_seed(0)
            ours(**given)
    finally:
        engine.count = None
    if finding.verdict:
        return
    finding.kernels, finding.own = engine.calls, count.own

    takes = inspect.signature(eager.forward).parameters
    cases = {"plain": given}
    # MusicGen's rows of ids are code books, several for a row of the mask.
    are_rows = "input_ids" in given and not eager.config.model_type.startswith("musicgen")
    if "attention_mask" in takes and are_rows:
        for side in ("right", "left"):
            cases[side] = {**given, "attention_mask": masks(side, given["input_ids"].shape[1]).to(device)}
    blurred: frozenset[str] = frozenset()
    for case, inputs in cases.items():
        blurred = _of_padding(eager, inputs)
        _compare(
            finding, case, eager, ours, lambda m, i=inputs, b=blurred: _without(m(**i), b), inputs.get("attention_mask")
        )
    _gradients(finding, eager, ours, cases.get("right", given))
    if "use_cache" in takes or "past_key_values" in takes:
        for side in ("plain", "left"):
            if side in cases and not eager.config.is_encoder_decoder:
                _compare(finding, f"pieces {side}", eager, ours, lambda m, i=cases[side]: pieces(m, i), None)
    if eager.can_generate() and "input_ids" in given:
        for cache in ("dynamic", "static"):
            more = {
                "max_new_tokens": 4,
                "min_new_tokens": 4,
                "do_sample": False,
                "cache_implementation": cache,
                "disable_compile": True,
                "output_logits": True,
                "return_dict_in_generate": True,
            }
            inputs = {k: v for k, v in cases.get("left", given).items() if not k.startswith("decoder_")}
            if device != "cpu" and not _can_on_the_processor(eager, inputs, more):
                continue
            _compare(
                finding,
                f"generate {cache}",
                eager,
                ours,
                lambda m, i=inputs, more=more: m.generate(**i, **more).logits,
                None,
            )
    wrong = {case: error for case, error in finding.errors.items() if not error <= close}
    if wrong:
        finding.verdict, finding.why = (
            "WRONG",
            ", ".join(f"{case} {error:.3g}" for case, error in wrong.items()) + "; " + finding.why,
        )
    elif finding.kernels and not finding.own:
        finding.verdict = "served"
    elif finding.kernels:
        finding.verdict = "served in part"
    elif finding.eager:
        finding.verdict = "own code"
    else:
        finding.verdict = "no attention"


def _without(out: Any, names: frozenset[str]) -> dict[str, Tensor]:
    return {name: x for name, x in outputs(out) if name not in names}


def _of_padding(eager: nn.Module, inputs: dict[str, Tensor]) -> frozenset[str]:
    """The outputs in which rows of padding take part, such as a pool of all rows: what those hold is nowhere said."""
    mask = inputs.get("attention_mask")
    if mask is None:
        return frozenset()
    ids = inputs["input_ids"]
    seen = mask.bool().reshape(*mask.shape, *[1] * (ids.dim() - 2))  # a position may have several tokens
    other = {**inputs, "input_ids": torch.where(seen, ids, 1 + ids)}
    found = []
    for given in (inputs, other):
        torch.manual_seed(0)
        try:
            with torch.no_grad():
                found.append(dict(outputs(eager(**given))))
        except Exception:  # noqa: BLE001  (what eager cannot do is not asked of Kiln)
            return frozenset()
    return frozenset(n for n, x in found[0].items() if distance({n: found[1].get(n)}, {n: x}, mask) > BLURRED)


def model_inputs(model: nn.Module) -> str:
    return f"{model.main_input_name} of " + ", ".join(inspect.signature(model.forward).parameters)


def _can_on_the_processor(eager: nn.Module, inputs: dict[str, Tensor], more: dict[str, Any]) -> bool:
    """Whether eager generates at all: an index out of range, such as of a static cache that is too short, is an error
    on the processor, and on a GPU the end of the process's device."""
    there = {k: v.to("cpu") if isinstance(v, Tensor) else v for k, v in inputs.items()}
    try:
        torch.manual_seed(0)
        with torch.no_grad():
            copy.deepcopy(eager).to("cpu").generate(**there, **more)  # a copy: some keep their caches
    except Exception:  # noqa: BLE001  (of any architecture)
        return False
    return True


def _compare(finding: Finding, case: str, eager: nn.Module, ours: nn.Module, call, mask: Tensor | None) -> None:
    """What eager cannot do is not asked of Kiln."""
    try:
        torch.manual_seed(0)
        with torch.no_grad():
            expected = call(eager)
    except Exception:  # noqa: BLE001  (of any architecture)
        return
    try:
        torch.manual_seed(0)
        with torch.no_grad():
            found = call(ours)
        finding.errors[case] = distance(found, expected, mask)
    except Exception as error:  # noqa: BLE001  (of any architecture)
        finding.errors[case] = float("inf")
        finding.why += f"{case}: {_sentence(error)}; "


def _gradients(finding: Finding, eager: nn.Module, ours: nn.Module, inputs: dict[str, Tensor]) -> None:
    skipped = _of_padding(eager, inputs)
    try:
        expected = _gradients_of(eager, inputs, skipped)
    except Exception:  # noqa: BLE001  (what eager cannot do is not asked of Kiln)
        return
    try:
        got = _gradients_of(ours, inputs, skipped)
    except Exception as error:  # noqa: BLE001  (of any architecture)
        finding.errors["gradients"] = float("inf")
        finding.why += f"gradients: {_sentence(error)}; "
        return
    if expected.keys() != got.keys():
        finding.errors["gradients"] = float("inf")
        finding.why += f"gradients of {sorted(expected.keys() ^ got.keys())[:2]}; "
        return
    error = _worst(got, expected)
    if error > CLOSE:  # some heads magnify rounding: how much, eager shows with inputs that differ by as little
        own = 0.0  # the most of several: where it chooses among nearly equal scores, one may change nothing
        for by in (1, -1, 2, -2):
            moved = {n: x * (1 + by * MOVED) if x.is_floating_point() else x for n, x in inputs.items()}
            own = max(own, _worst(_gradients_of(eager, moved, skipped), expected))
        if error <= 4 * own:
            finding.why += f"gradients {error:.2g}, eager's own {own:.2g} where inputs differ by {MOVED}; "
            return
    finding.errors["gradients"] = error


def _gradients_of(model: nn.Module, inputs: dict[str, Tensor], skipped: frozenset[str]) -> dict[str, Tensor]:
    """Of all parameters, of a sum of all outputs but the skipped ones."""
    model.zero_grad()
    torch.manual_seed(0)
    try:
        mask = inputs.get("attention_mask")
        loss = 0.0
        for x in _without(model(**inputs), skipped).values():
            if x.requires_grad:
                x = x[mask.bool()] if mask is not None and x.shape[:2] == mask.shape else x
                wave = torch.arange(x.numel(), device=x.device).cos().reshape(x.shape)
                loss = loss + (x.float() * wave).mean()
        loss.backward()
        return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    finally:
        model.zero_grad()


def _worst(got: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    """The largest difference, in parts of each gradient's largest value."""
    scale = max((float(g.abs().max()) for g in expected.values() if g.numel()), default=1.0)
    return max(
        (
            float((got[n] - g).abs().max()) / max(float(g.abs().max()), 1e-3 * scale, 1e-30)
            for n, g in expected.items()
            if g.numel()
        ),
        default=0.0,
    )


@contextlib.contextmanager
def limited(seconds: int) -> Iterator[None]:
    def stop(*_: Any) -> None:
        raise TooLong

    # Of the processor, so that what else the machine does is of no account.
    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def examine_all(
    chosen: list[tuple[str, str]], device: str, dtype: torch.dtype, close: float, told=print
) -> list[Finding]:
    import kiln.torch as kt
    from kiln.torch import operators

    kt.register_transformers()
    # Else both models' convolutions round what differs by 1e-7 to what differs by 1e-3.
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    if device == "cpu":
        from engines import Definition

        engine = Watched(Definition())
    else:
        engine = Watched(operators.engine())
    operators.set_engine(engine)
    findings = []
    try:
        for model_type, name in chosen:
            with limited(SECONDS), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                finding = examine(model_type, name, engine, device, dtype, close)
            findings.append(finding)
            told(finding)
            if device != "cpu":
                torch.cuda.synchronize()  # a GPU that is lost ends this: nothing is told of what was not tried
    finally:
        operators.set_engine(None)
    return findings


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--close", type=float, default=CLOSE)
    parser.add_argument("--json")
    parser.add_argument("--shard", default="0/1")
    options = parser.parse_args()
    import transformers

    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    chosen = [a for a in architectures() if not options.names or a[0] in options.names or a[1] in options.names]
    at, of = map(int, options.shard.split("/"))
    if not 0 <= at < of:
        parser.error(f"--shard {options.shard}: right is 0/N to N-1/N")
    chosen = chosen[at::of]

    def told(f: Finding) -> None:
        far = max(f.errors.values(), default=0.0)
        counts = f"kernels {f.kernels} own {f.own}/{f.eager}{' warned' * f.warned}"
        print(f"{f.verdict:15} {f.name} {f.model} {counts} {far:.2g} {f.seconds:.1f}s {f.why}", flush=True)

    findings = examine_all(chosen, options.device, getattr(torch, options.dtype), options.close, told)
    counts: dict[str, int] = {}
    for f in findings:
        counts[f.verdict] = counts.get(f.verdict, 0) + 1
    print(f"Transformers {transformers.__version__}:", counts, f"{sum(x.seconds for x in findings):.0f} s")
    if options.json:
        with open(options.json, "w") as out:
            json.dump([asdict(f) for f in findings], out, indent=0)
    sys.exit(counts.get("WRONG", 0) > 0)


if __name__ == "__main__":
    main()
