"""The first and the last lines of a build: what it will do; what came out, and what to do with it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from kiln_build.artifacts.pack import Pack
from kiln_build.base import command
from kiln_build.options.options import Options
from kiln_build.options.variables import Shard
from kiln_build.origin.costs import lines
from kiln_recipe.console.progress import Progress
from kiln_recipe.console.spelling import spell_seconds, spell_size
from kiln_recipe.console.tables import plural
from kiln_recipe.errors import MissingImages
from kiln_recipe.model import FAMILY
from kiln_recipe.plan.model import Plan
from kiln_recipe.selection import spell_selection

_NAMED = 20  # images, or shards, in the sentence about missing ones


def begin(options: Options, plan: Plan, tarball: Path, progress: Progress) -> None:
    """Says what the build will do; for programs under "build"."""
    facts: dict[str, Any] = {
        "version": options.version,
        "families": [recipe.family for recipe in plan.recipes],
        "targets": [target.name for target in plan.targets],
        "profile": plan.profile,
        "selection": spell_selection(options.build.selection),
        "variants": 0 if options.build.no_image else len(plan.variants),
        "tarball": str(options.outside(tarball)),
    }
    what = plural(facts["variants"], "variant") if facts["variants"] else "no image"
    of = f"profile {plan.profile}" + (f", {facts['selection']}" if facts["selection"] else "")
    progress.message(
        f"building {tarball.name}: {', '.join(facts['families'])} for {', '.join(facts['targets'])}, {what} ({of})",
        build=facts,
    )


def end(
    options: Options, plan: Plan, packs: Mapping[str, Pack], tarball: Path, seconds: float, progress: Progress
) -> None:
    """Says what came out, for programs under "release", and what comes next."""
    place = options.outside(tarball)
    facts: dict[str, Any] = {
        "tarball": str(place),
        "bytes": tarball.stat().st_size,
        "images": {target: len(pack.images) for target, pack in packs.items()},
        "seconds": round(seconds, 1),
    }
    images = ", ".join(f"{plural(number, 'image')} for {target}" for target, number in facts["images"].items())
    progress.message(
        f"made {place}, {spell_size(facts['bytes'])}, with {images or 'no image'}, in {spell_seconds(seconds)}; "
        "its SHA-256, its provenance and its timeline are beside it",
        release=facts,
    )
    has_attention = bool(packs) and any(variant.family == FAMILY for variant in plan.variants)
    for line in _next([recipe.family for recipe in plan.recipes], has_attention, place):
        progress.message(line)


def begin_shard(options: Options, plan: Plan, shard: Shard, variants: int, progress: Progress) -> None:
    """Says what a shard will do; for programs under "shard"."""
    facts = {"index": shard.index, "count": shard.count, "variants": variants, "of": len(plan.variants)}
    by = "recorded durations" if options.build.durations else "estimates"
    progress.message(
        f"shard {shard}: {plural(variants, 'variant')} of {len(plan.variants)} for "
        f"{', '.join(target.name for target in plan.targets)} (profile {plan.profile}), divided by {by}",
        shard=facts,
    )


def end_shard(shard: Shard, images: int, store: str, seconds: float, progress: Progress) -> None:
    """Says that a shard is in the store; for programs under "filled"."""
    facts = {"index": shard.index, "count": shard.count, "images": images, "store": store, "seconds": round(seconds, 1)}
    progress.message(
        f"shard {shard} is whole: the images of {plural(images, 'variant')} are in the store {store}, after "
        f"{spell_seconds(seconds)}; `kiln build --from-store` makes the release once every shard is",
        filled=facts,
    )


def refuse_missing(
    missing: Mapping[str, str], shards: Mapping[str, int], count: int, images: int, store: str, progress: Progress
) -> NoReturn:
    """Says which images a store lacks; for programs under "missing".

    Args:
        missing: keys, by the name of a variant.
        shards: for each name the shard that makes it, of `count`; empty where that is not known.
        images: how many were looked for.

    Raises:
        MissingImages: always.
    """
    facts = [{"variant": name, "key": key, "shard": shards.get(name)} for name, key in missing.items()]
    progress.message(f"{plural(len(missing), 'image')} of {images} are not in the store {store}", missing=facts)
    lines = [
        f"  {name} (key {key[:12]}{f', of shard {shards[name]}/{count}' if shards else ''})"
        for name, key in list(missing.items())[:_NAMED]
    ]
    if len(missing) > _NAMED:
        lines.append(f"  and {len(missing) - _NAMED} more, which KILN_LOG_JSON has")
    if shards:
        numbers = sorted(set(shards.values()))
        lacking = ", ".join(f"{number}/{count}" for number in numbers[:_NAMED])
        what = f"run `kiln build --shard` for {lacking}{' and others' if len(numbers) > _NAMED else ''}"
    else:
        what = "build without --from-store, or say with --shards how many shards there were, to see whose they are"
    raise MissingImages("\n".join([f"the store {store} lacks {len(missing)} of {images} images; {what}:", *lines]))


def costs(document: Mapping[str, Any], progress: Progress) -> None:
    """Says what a build took of processors.

    Args:
        document: as `Costs.document` has it.
    """
    for line in lines(document):
        progress.message(line)


def _next(families: Sequence[str], has_attention: bool, tarball: Path) -> list[str]:
    kiln = command()
    name = shlex.quote(str(tarball))
    lines = [f"check it: {kiln} inspect {name} --verify"]
    if has_attention:  # which the wheels are for
        lines.append(f"for Python: {kiln} wheel {name} <folder>")
    libraries = " ".join(f"-lkiln_{family}" for family in families)
    headers = ", ".join(f"include/kiln/{family}.h" for family in families)
    lines.append(f"for C: unpack it; {headers}, and link {libraries} -lkiln in lib/")
    return lines
