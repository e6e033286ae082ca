"""Reads the configurations of a kernel: which values they may set, and for which targets they are."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from kiln_recipe import targets
from kiln_recipe.documents.document import Document, Keys
from kiln_recipe.documents.file import ConfigurationsShape, KernelShape, SpecializationShape
from kiln_recipe.model import OPTION_ORDER, OPTIONS, Configuration, ConfigurationSet, Value, narrowest, spelled
from kiln_recipe.read.implementations import Implementation
from kiln_recipe.read.rules import read_targets
from kiln_recipe.read.scope import Scope, constant, read_expression
from kiln_recipe.read.space import Space
from kiln_recipe.suggest import nearest
from kiln_recipe.targets import Target

# Of compile options: beyond these no kernel fits into shared memory, and no cluster has so many blocks.
_LARGEST = {"num_stages": 128, "num_ctas": 16}
MAX_CONFIGURATIONS = 254  # the look-up's byte, less KILN_NO_CONFIGURATION


def read_configurations(
    implementation: Implementation,
    space: Space,
    tunable: Sequence[str],
    switches: Sequence[str],
    scope: Scope,
) -> tuple[ConfigurationSet, ...]:
    """The sets of a kernel's configurations, in their order; of `tunable`, `switches` need not be said. Of those that
    implementations share each has the ones that serve its own targets."""
    document, shape = space.document, implementation.shape
    named = [
        ConfigurationSet(read_targets(document, entry.targets_keys, entry.shape.targets), (), (), None)
        for entry in space.entries
    ]
    serving = [(target, narrowest(named, target)) for target in targets.load()]
    sets = []
    for i, (entry, here) in enumerate((entry.shape, entry.keys) for entry in space.entries):
        served = [target for target, found in serving if any(one is named[i] for one in found)]
        if not served:
            document.fail(here, "serves no target: narrower names of other entries take all of them")
        compiled = [target for target in served if target in implementation.served]
        if not compiled and space.is_own:
            document.fail(here, "serves none of the implementation's targets")
        if not compiled:
            continue
        core, full = (_expand(document, here, profile, entry, tunable, shape, compiled) for profile in ("core", "full"))
        if not core:
            document.fail(here, "has no core configurations; every profile needs one")
        full = tuple(configuration for configuration in full if configuration not in core)
        if len(core) + len(full) > MAX_CONFIGURATIONS:
            document.fail(here, f"gives {len(core) + len(full)} configurations; a target can have {MAX_CONFIGURATIONS}")
        where = None
        if entry.where is not None:
            inner = with_configurations(scope, [*tunable, *OPTION_ORDER], (*core, *full), switches)
            configured = [name for name in inner.names if name not in scope.names]
            only = space.scope(inner.only_choices(shape.choices, configured, "which only a call knows"))
            where = read_expression(document, (*here, "where"), entry.where, only)
            if constant(where) == 0:
                document.fail(
                    (*here, "where"), f"where is always 0 ({spelled(entry.where)}), which leaves every combination out"
                )
        sets.append(ConfigurationSet(named[i].targets, core, full, where))
    if not sets:
        document.fail(space.keys, "has no entry that serves one of the implementation's targets")
    return tuple(sets)


def _expand(
    document: Document,
    keys: Keys,
    profile: str,
    entry: ConfigurationsShape,
    tunable: Sequence[str],
    shape: KernelShape,
    served: Sequence[Target],
) -> tuple[Configuration, ...]:
    """Every combination of the lists in the entries of one profile."""
    configurations: list[Configuration] = []
    known = [*tunable, *_shared_options(served)]
    for position, axes in enumerate(getattr(entry, profile)):
        here = (*keys, profile, position)
        for name, value in axes.items():
            values = value if isinstance(value, tuple) else (value,)
            if not values:
                document.fail((*here, name), f"{name} has no value")
            _check_axis(document, (*here, name), name, values, tunable, shape, served, known)
        for name in tunable:
            if name not in axes and name not in shape.constants:
                document.fail(here, f"{name} has no value: give it in each configuration, or under `constants`")
        ordered = [name for name in known if name in axes]
        lists = [axes[name] if isinstance(axes[name], tuple) else (axes[name],) for name in ordered]
        configurations += (Configuration(tuple(zip(ordered, values))) for values in itertools.product(*lists))
    return distinct(configurations)


def read_overrides(
    implementation: Implementation,
    keys: Keys,
    entry: SpecializationShape,
    tunable: Sequence[str],
    sets: Sequence[ConfigurationSet],
) -> tuple[tuple[str, Value], ...]:
    """What a specialization sets in place of the configurations' values, for every target: no option of one backend."""
    document, shape = implementation.document, implementation.shape
    served = [target for target in implementation.served if narrowest(sets, target)]
    known = [*tunable, *shape.constants, *_shared_options(served)]
    for name, value in entry.overrides.items():
        if name not in shape.constants:
            _check_axis(document, (*keys, name), name, (value,), tunable, shape, served, known)
    return tuple(entry.overrides.items())


def _shared_options(served: Iterable[Target]) -> list[str]:
    """The compile options that the backend of each of these targets has."""
    backends = {target.backend for target in served}
    return [name for name in OPTION_ORDER if all(name in OPTIONS[backend] for backend in backends)]


def _check_axis(
    document: Document,
    keys: Keys,
    name: str,
    values: Sequence[Value],
    tunable: Sequence[str],
    shape: KernelShape,
    served: Sequence[Target],
    known: Sequence[str],
) -> None:
    backends = sorted({target.backend for target in served})
    for value in values:
        if isinstance(value, str) and not re.fullmatch(r"[^\s\[\]@]+", value):
            document.fail(keys, f"{name} is {value!r}; the names of variants cannot hold spaces, brackets or @")
    if name in tunable:
        return
    if name in shape.constants:
        document.fail(keys, f"{name} is given by `constants` already")
    for backend in backends:
        if name in OPTION_ORDER and name not in OPTIONS[backend]:
            document.fail(
                keys, f"{name} is not an option of Triton's {backend} backend, which this entry compiles for too"
            )
    if name not in known:
        document.fail(
            keys,
            f"{name!r} is neither a constexpr parameter of the kernel nor a compile option; "
            f"{nearest(name, known, 'known ones')}",
        )
    for value in values:
        kind = OPTIONS[backends[0]][name]
        if type(value) is not kind:
            document.fail(keys, f"{name} is {value!r}; it must be {'true or false' if kind is bool else kind.__name__}")
        if isinstance(value, str):
            continue  # whose kind is all that is asked of it
        if name == "num_warps" and (value < 1 or value & (value - 1)):
            document.fail(keys, f"num_warps is {value}; it must be a power of two")
        if kind is int and value < (1 if name in ("num_ctas", "maxnreg", "kpack") else 0):
            document.fail(keys, f"{name} is {value}, which is too small")
        # What one of several targets cannot have, a build of that target tells: it may never be built.
        roomy = max(served, key=lambda target: target.threads_per_block // target.warp_size)
        if name == "num_warps" and value * roomy.warp_size > roomy.threads_per_block:
            most = roomy.threads_per_block // roomy.warp_size
            threads = f"{roomy.threads_per_block} threads, {most} warps"
            document.fail(keys, f"num_warps is {value}; a block has {threads} at most on {roomy.name}")
        if kind is int and value > (limit := _LARGEST.get(name, 2**31 - 1)):
            document.fail(keys, f"{name} is {value}; it can be {limit} at most")


def switched(space: Space, shape: KernelShape) -> tuple[str, ...]:
    """The constants that are false or 0 unless a configuration says otherwise."""
    named = {name for entry in space.entries for axes in (*entry.shape.core, *entry.shape.full) for name in axes}
    return tuple(name for name, value in shape.constants.items() if (value is False or value == 0) and name in named)


def with_configurations(
    scope: Scope, columns: Sequence[str], configurations: Sequence[Configuration], switches: Sequence[str]
) -> Scope:
    """The operation's names, and those values that every configuration has; it has all `switches`."""
    usable, missing = [], {}
    for name in columns:
        having = [c for c in configurations if name in c.mapping]
        if name in switches:
            usable.append(name)
        elif having and len(having) < len(configurations):
            missing[name] = "which not every configuration has"
        elif any(isinstance(c.mapping[name], str) for c in having):
            missing[name] = "which is text"
        elif having:
            usable.append(name)
    inner = scope.with_names(usable, "value of configurations")
    return replace(inner, missing=missing)


def distinct(items: Iterable[Configuration]) -> tuple[Configuration, ...]:
    """Each once, in order."""
    return tuple(dict.fromkeys(items))
