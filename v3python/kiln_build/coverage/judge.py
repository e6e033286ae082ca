"""Whether a call is served, by which kernels, and if not, why and what would serve it.

The dispatch decides that (kiln_recipe.call.dispatch), and each remedy is one that it was asked about.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from kiln_build.coverage.attention import ROWS, Attention, Model, counted
from kiln_build.coverage.calls import Example, examples
from kiln_build.coverage.source import Source
from kiln_recipe.call.dispatch import Tables
from kiln_recipe.call.evaluate import Refusal
from kiln_recipe.targets import Target


@dataclass(frozen=True)
class Image:
    """A kernel of a served call; `key` is None where it is known only once it is built."""

    operation: str
    kernel: str
    implementation: str
    functional: str
    configuration: str
    specialization: str
    key: str | None


@dataclass(frozen=True)
class Verdict:
    """The answer for one use of one kind of attention on one target.

    Attributes:
        images: in the order of their launches; none where it is not served.
        refusal: why not; None: it is served.
        remedies: what would serve it, in clauses.
        notes: what to know of the answer.
    """

    model: str
    kind: Attention
    use: str
    target: str
    images: tuple[Image, ...]
    refusal: str | None = None
    remedies: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def is_served(self) -> bool:
        return self.refusal is None


def judge(source: Source, models: Sequence[Model], wanted: Sequence[Target]) -> list[Verdict]:
    """A verdict for each model, kind, use and target, in this order."""
    known, verdicts = [target.name for target in source.targets], []
    for model in models:
        for kind in model.kinds:
            for use in kind.uses:
                row = [_judge(source, model, kind, use, target) for target in wanted]
                serving = [one.target for one in row if one.is_served]
                verdicts += [_with_targets(one, serving, known) for one in row]
    return verdicts


def _judge(source: Source, model: Model, kind: Attention, use: str, target: Target) -> Verdict:
    calls = examples(source.recipe, kind, use)
    notes = tuple(f"by {call.operation.name}: {call.note}" for call in calls if call.note)
    if target not in source.targets:
        why = f"{source.name} has no images for {target.name}"
        return Verdict(model.name, kind, use, target.name, (), why, _absent(source, kind, use, target), notes)
    if absent := source.absent.get(target.name):
        why = f"in {source.name} the pack of {target.name} {absent}"
        return Verdict(model.name, kind, use, target.name, (), why, _of_whole(source, kind, use, target), notes)
    try:
        images = _images(source, calls, source.tables(target))
    except Refusal as refusal:
        remedies = tuple(_remedies(source, kind, use, target))
        return Verdict(model.name, kind, use, target.name, (), str(refusal), remedies, notes)
    return Verdict(model.name, kind, use, target.name, images, notes=notes)


def _images(source: Source, calls: Sequence[Example], tables: Tables) -> tuple[Image, ...]:
    return tuple(
        Image(
            call.name,
            chosen.variant.kernel,
            chosen.launch.kernel.implementation,
            chosen.variant.functional,
            chosen.variant.configuration,
            chosen.variant.specialization,
            source.key(chosen.variant),
        )
        for call in calls
        for chosen in tables.explain(call.operation, call.name, call.given)
    )


def _serves(source: Source, tables: Tables, kind: Attention, use: str) -> bool:
    try:
        for call in examples(source.recipe, kind, use):
            tables.explain(call.operation, call.name, call.given)
    except Refusal:
        return False
    return True


def _of_whole(source: Source, kind: Attention, use: str, target: Target) -> tuple[str, ...]:
    """What would serve a call on a target whose pack is not there."""
    if _serves(source, source.tables(target), kind, use):
        return (f"the release's own pack of {target.name}",)
    return _absent(source, kind, use, target)


def _absent(source: Source, kind: Attention, use: str, target: Target) -> tuple[str, ...]:
    """What would serve a call on a target that the release is not for."""
    for profile in dict.fromkeys((source.profile, "full")):
        if _serves(source, source.built(target, profile), kind, use):
            return (f"a release of the profile {profile} for {target.name}",)
    return tuple(_remedies(source, kind, use, target))


def _remedies(source: Source, kind: Attention, use: str, target: Target) -> list[str]:
    """What would serve a call on the target; nothing is named that was not tried."""
    own = source.profile if source.images is None else ""  # what a build of the profile makes is what there is
    others = {name: source.built(target, name) for name in dict.fromkeys((source.profile, "full")) if name != own}
    is_there = target in source.targets and target.name not in source.absent
    places = {"": source.tables(target)} if is_there else {}
    places |= {f" with the profile {name}": tables for name, tables in others.items()}
    serves = partial(_serves, source, use=use)
    found = []
    if whole := next((name for name, tables in others.items() if serves(tables, kind)), ""):
        found.append(f"the profile {whole}" if own else f"a release of the profile {whole}")
    # Fewer tokens only where they alone help: a call of many that lacks an image lacks it with few too.
    changes = {**_of_other_dtypes(kind, use), **({} if found else _of_fewer_tokens(kind)), **_of_expansion(kind)}
    for change, other in changes.items():
        found += next(([change + where] for where, tables in places.items() if serves(tables, other)), [])
    widest = _widest(source, kind, use)
    if max(kind.head_dim, kind.head_dim_v) > widest:
        found.append(f"a recipe whose images go beyond head_dim {widest}, which is the widest of this one")
    return found


def _of_other_dtypes(kind: Attention, use: str) -> Mapping[str, Attention]:
    """The same attention, by what is changed."""
    found = {}
    if use == "decode" and kind.cache_dtype not in ("", kind.dtype):
        found[f"a cache in {kind.dtype}"] = dataclasses.replace(kind, cache_dtype=kind.dtype)
    for dtype in ("bf16", "fp16"):
        if kind.dtype == "fp32":
            cache = dtype if kind.cache_dtype in ("", "fp32") else kind.cache_dtype
            found[f"{dtype} in place of {kind.dtype}"] = dataclasses.replace(kind, dtype=dtype, cache_dtype=cache)
    return found


def _of_fewer_tokens(kind: Attention) -> Mapping[str, Attention]:
    if max(kind.rows, kind.keys) <= ROWS:
        return {}
    rows, keys = min(kind.rows, ROWS), min(kind.keys, ROWS)
    return {f"fewer tokens, such as {rows} rows and {keys} keys": dataclasses.replace(kind, rows=rows, keys=keys)}


def _of_expansion(kind: Attention) -> Mapping[str, Attention]:
    if kind.expanded is None:
        return {}
    keys = counted(kind.expanded.heads_kv, "KV head")
    width = f"{kind.expanded.head_dim}/{kind.expanded.head_dim_v}"
    return {f"{kind.expanded.name} over keys and values expanded to {keys} of head_dim {width}": kind.expanded}


def _widest(source: Source, kind: Attention, use: str) -> int:
    operations = (example.operation for example in examples(source.recipe, kind, use))
    return min(max(operation.choice("head_dim").numbers) for operation in operations)


def _with_targets(verdict: Verdict, serving: Sequence[str], known: Sequence[str]) -> Verdict:
    """A refusal's remedies, with the targets that serve the same."""
    if verdict.is_served or not serving:
        return verdict
    return dataclasses.replace(
        verdict, remedies=(*verdict.remedies, f"another target: {in_words(serving, known, between=', ')}")
    )


def in_words(names: Sequence[str], known: Sequence[str], every: str = "all", between: str = " ") -> str:
    """Targets, of those that are known: "all", "sm_80 sm_90", or "all but sm_80 sm_86".

    Args:
        every: "all".
        between: what stands between names.
    """
    others = [name for name in known if name not in names]
    if len(known) > 1 and not others:
        return every
    if set(names) <= set(known) and 0 < len(others) < len(names):
        return f"{every} but {between.join(others)}"
    return between.join(names)
