"""Judges an image: what is stated of it against the image itself, and against its target's limits; for compilers build
without a word what no device can run."""

from __future__ import annotations

import dataclasses
import re

from kiln_recipe.errors import ArtifactError
from kiln_recipe.images import elf
from kiln_recipe.images.image import ImageInfo
from kiln_recipe.targets import Target, ptx_number

# Triton appends pointers to its global and profile scratch to a kernel's parameters, or leaves them out.
MAX_HIDDEN_PARAMETERS = 2
_MOST = 1 << 31  # of any number that is stated


def contradictions(info: ImageInfo, code: bytes, target: Target | None = None) -> tuple[str, ...]:
    """Where an image contradicts what is stated of it; empty if it is what it should be.

    Dynamic shared memory and scratch, and on NVIDIA spills, are known to the compiler alone.

    Args:
        target: what it should be for; None: not known.
    """
    try:
        facts, static, maps = elf.stated_facts(code)
    except ArtifactError as error:
        return (f"cannot be read: {error}",)
    reasons = _impossible(info)
    if info.shared < static:
        reasons.append(f"needs {static} bytes of shared memory, where {info.shared} are stated")
    made_for = facts.pop("target")
    if target is not None and made_for != target.name:
        reasons.append(f"is for {made_for} instead of {target.name}")
    if maps != len(info.descriptors):
        reasons.append(f"takes {maps} tensor descriptors, where {len(info.descriptors)} are stated")
    for name, value in facts.items():
        if getattr(info, name) != value:
            reasons.append(f"says {name} {value}, where {getattr(info, name)} is stated")
    return tuple(reasons)


def _impossible(info: ImageInfo) -> list[str]:
    """What is stated and cannot be, whatever the image: statements may come from strangers."""
    numbers = {name: value for name, value in dataclasses.asdict(info).items() if isinstance(value, int)}
    least = {"threads": 1, "clusters": 1}
    wrong = [name for name, value in numbers.items() if not least.get(name, 0) <= value < _MOST]
    reasons = [f"is stated to have {name} {numbers[name]}, which cannot be" for name in wrong]
    if info.ptx_version and not re.fullmatch(r"[1-9][0-9]?\.[0-9]", info.ptx_version):
        reasons.append(f"is stated to be of PTX {info.ptx_version[:20]!r}, which cannot be")
    return reasons


def verdict(info: ImageInfo, target: Target, parameters: int, spill_allowance: int) -> tuple[str, ...]:
    """Why an image may not be released; empty if it may.

    Args:
        info: facts of the image.
        target: what it was compiled for.
        parameters: how many parameters the dispatch tables pass, hidden ones not counted.
        spill_allowance: bytes a thread that the recipe lets registers spill.
    """
    reasons = []
    if info.shared > target.shared_memory:
        reasons.append(
            f"needs {info.shared} bytes of shared memory; a block on {target.name} has {target.shared_memory}"
        )
    if info.threads > target.threads_per_block:
        reasons.append(f"needs {info.threads} threads; a block on {target.name} has at most {target.threads_per_block}")
    if info.threads == 0 or info.threads % target.warp_size:
        reasons.append(f"has {info.threads} threads, no multiple of the {target.warp_size} of a warp")
    if info.registers > target.registers_per_thread:
        reasons.append(
            f"needs {info.registers} registers; a thread on {target.name} has at most {target.registers_per_thread}"
        )
    if info.registers * info.threads > target.registers_per_multiprocessor:
        reasons.append(
            f"needs {info.registers} registers in {info.threads} threads; a multiprocessor of {target.name} has "
            f"{target.registers_per_multiprocessor}"
        )
    if info.spills > spill_allowance:
        reasons.append(f"spills {info.spills} bytes a thread; the recipe allows {spill_allowance}")
    if info.profile_scratch:
        reasons.append("was compiled with profiling, which needs a buffer that no caller provides")
    hidden = info.parameters - parameters
    if not 0 <= hidden <= MAX_HIDDEN_PARAMETERS:
        reasons.append(f"takes {info.parameters} parameters; the dispatch table passes {parameters}")
    abi = target.assembly(ptx_number(info.ptx_version)).abi
    if info.abi != abi:
        reasons.append(f"is of ABI {info.abi}; such images for {target.name} are of ABI {abi} (targets.yaml)")
    if info.kind != target.image_kind:
        reasons.append(f"is a {info.kind}; {target.name} takes a {target.image_kind}")
    return tuple(reasons)
