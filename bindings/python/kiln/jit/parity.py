"""Whether what runs here is what was compiled ahead: the same variants of the same sources, by the same toolchain."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from kiln.errors import NotFoundError
from kiln.jit.compiled import this_toolchain
from kiln_recipe.call.dispatch import Chosen
from kiln_recipe.compile import lock
from kiln_recipe.compile.toolchain import Toolchain, find_toolchain

_NAMES = ("kernel", "functional", "configuration", "specialization", "target")
# The order in which a toolchain's identity has its files; those of a Triton built from source follow, sorted.
_FILES = ("ptxas", "ptxas-blackwell", "libdevice", "ockl", "ocml", "compiler")


@dataclass(frozen=True)
class Comparison:
    """One kernel of a call, here and ahead.

    Attributes:
        kernel: its name.
        differences: what is not equal, each a clause: "configuration: BLOCK_M=64 ... here, BLOCK_M=128 ... ahead".
        here, ahead: the keys: of what this process compiles, and of the release's image.
    """

    kernel: str
    differences: tuple[str, ...]
    here: str
    ahead: str

    @property
    def equal(self) -> bool:
        """Whether both are the same image: equal keys mean equal bytes."""
        return not self.differences and self.here == self.ahead


def compare(
    chosen: Iterable[Chosen], ahead: Iterable[Mapping[str, object]], manifest: str | Path | None = None
) -> tuple[Comparison, ...]:
    """What a call runs here (Operation.explain) against what the runtime says that it runs (its `explain`).

    The key of an image is a digest of its source, constants, types, multiples, options and toolchain. Keys that differ
    say not why; with `manifest` it is known whether they differ under the release's own toolchain too.

    Args:
        ahead: mappings with "key", "kernel", "functional", "configuration", "specialization", "target", and
            "implementation" where the kernel has several.
        manifest: the release's share/kiln/manifest.json.

    Raises:
        NotFoundError: the manifest is not there, or names no Triton.
    """
    here = installed_toolchain()
    release = None if manifest is None else release_toolchain(manifest)
    ours, theirs = list(chosen), [{**row, "kernel": _full_name(row)} for row in ahead]
    rows = []
    for place in range(max(len(ours), len(theirs))):
        one = ours[place] if place < len(ours) else None
        other = theirs[place] if place < len(theirs) else None
        rows.append(_compared(one, other, here, release))
    return tuple(rows)


def _full_name(row: Mapping[str, object]) -> str:
    """ "matmul.hopper": a kernel's name with its implementation's, whether or not the row has both in one."""
    kernel, implementation = str(row["kernel"]), row.get("implementation")
    return f"{kernel}.{implementation}" if implementation and "." not in kernel else kernel


def installed_toolchain() -> Toolchain:
    """The Triton of this process, all of its files read."""
    package = Path(__file__).absolute().parents[1]
    carried = package / lock.LOCK_NAME
    tree = Path(__file__).resolve().parents[4] / "input" / lock.LOCK_NAME
    wheels = lock.read_lock(carried if carried.is_file() else tree).members_of("triton")
    return find_toolchain(Path(this_toolchain().site), wheels)


def release_toolchain(manifest: str | Path) -> Toolchain:
    """The toolchain that a release's manifest states, without a place.

    Raises:
        NotFoundError: there is no such file, or it names no Triton, or several.
    """
    try:
        tools = json.loads(Path(manifest).read_bytes())["tools"]
    except (OSError, ValueError, KeyError, TypeError):
        raise NotFoundError(f"{manifest} is not the manifest of a release; give its share/kiln/manifest.json") from None
    versions = {tool["version"] for tool in tools if tool["name"] == "triton"}
    if len(versions) != 1:
        raise NotFoundError(f"{manifest} names {len(versions)} versions of Triton; parity needs a release made by one")
    names = {tool["name"].removeprefix("triton's "): tool["sha256"] for tool in tools if "triton's " in tool["name"]}
    ordered = [name for name in _FILES if name in names] + sorted(set(names) - set(_FILES))
    return Toolchain("", versions.pop(), tuple((name, names[name]) for name in ordered))


def _compared(
    one: Chosen | None, other: Mapping[str, object] | None, here: Toolchain, release: Toolchain | None
) -> Comparison:
    if one is None:
        assert other is not None  # one of the two is there
        return Comparison(str(other["kernel"]), ("runs ahead alone",), "", str(other["key"]))
    key = one.variant.spec.key(here.identity)
    if other is None:
        return Comparison(one.variant.kernel, ("runs here alone",), key, "")
    differences = [
        f"{name}: {getattr(one.variant, name)} here, {other[name]} ahead"
        for name in _NAMES
        if getattr(one.variant, name) != other[name]
    ]
    if not differences and key != other["key"]:
        differences.append(_why(one, str(other["key"]), here, release))
    return Comparison(one.variant.kernel, tuple(differences), key, str(other["key"]))


def _why(one: Chosen, ahead: str, here: Toolchain, release: Toolchain | None) -> str:
    """Why the keys of variants of equal names differ."""
    if release is None:
        return "keys: of sources, settings or toolchains; the release's manifest would tell which"
    if one.variant.spec.key(release.identity) != ahead:
        return "sources or settings: the release was made from others"
    if here.triton_version != release.triton_version:
        return f"toolchain: Triton {here.triton_version} here, {release.triton_version} ahead; all else is equal"
    return f"toolchain: other files of Triton {here.triton_version}; all else is equal"
