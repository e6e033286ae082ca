"""What there is: the version, targets with packs, variants, devices, drivers."""

from __future__ import annotations

import ctypes
import dataclasses
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kiln import _core, _release
from kiln.errors import KilnError, NoDeviceError, of_status, with_package
from kiln.runtime import Runtime, core_of

_VENDORS = {_core.NVIDIA: "NVIDIA", _core.AMD: "AMD"}


@dataclass(frozen=True)
class Target:
    """A GPU architecture whose pack was found.

    Attributes:
        name: "sm_90", "gfx942".
        variants: how many its pack lists, also those that the build left out and has no image of, which are most.
        images: how many were compiled for them, one for each key, which several variants may share; of those that
            came out alike the pack holds one, and `kiln inspect` counts that.
        compiled: how many of `variants` have an image, as `kiln list` counts.
    """

    name: str
    variants: int
    images: int
    compiled: int


@dataclass(frozen=True)
class Device:
    """A GPU that a driver tells of.

    Attributes:
        vendor: "NVIDIA" or "AMD".
        ordinal: as the driver counts.
        name: the driver's.
        id: NVIDIA: the UUID; AMD: the PCI id.
        target: "sm_90", "gfx942"; "" where the driver fails to tell.
        multiprocessors, warp_size: 0 where the driver fails to tell.
        refusal: why no kernel can run on it, in a sentence; None: they can.
    """

    vendor: str
    ordinal: int
    name: str
    id: str
    target: str
    multiprocessors: int
    warp_size: int
    refusal: str | None


@dataclass(frozen=True)
class Driver:
    """A vendor's driver on this machine.

    Attributes:
        vendor: "NVIDIA" or "AMD".
        version: NVIDIA: the CUDA that it is for, "12.8"; AMD: ROCm's, "6.2"; None: it is not there.
        problem: why it cannot be used; None: it can.
    """

    vendor: str
    version: str | None
    problem: str | None


@dataclass(frozen=True)
class Variant:
    """A compiled kernel, or one that the build left out (`unavailable`), as `variants()` and `explain()` show it.

    Attributes:
        key: 64 hexadecimal digits, which force_keys takes.
        target: "sm_90".
        operation: "flash.attn_fwd".
        kernel: "attn_fwd"; where it has several implementations, which: "matmul.hopper".
        functional: "dtype=bf16 head_dim=64 ...": what the kernel computes.
        configuration: "BLOCK_M=128 ...": what changes its speed alone.
        specialization: "aligned": what its arguments must fulfil.
        unavailable: why there is no image; None: there is one.
        has_ptx: whether PTX goes along, for `force_target`.
        registers, spill_bytes: of a thread.
        shared_bytes, threads: of a block.
        passed_over: of `explain()`: why other implementations of the kernel do not run, a line for each.
    """

    key: str
    target: str
    operation: str
    kernel: str
    functional: str
    configuration: str
    specialization: str
    unavailable: str | None
    has_ptx: bool
    registers: int
    shared_bytes: int
    spill_bytes: int
    threads: int
    passed_over: str = ""

    def __str__(self) -> str:
        return (
            f"{self.kernel} ({self.functional}; {self.configuration}; {self.specialization}) for {self.target}: "
            f"{self.unavailable or self.key[:12]}"
        )


@dataclass(frozen=True)
class Info:
    """What `info()` found; `str()` is a text for people.

    Attributes:
        version: of this package, "0.1.0b".
        library_version: of the process's libkiln.so.0: the package's own, or the one that was loaded before it.
        location: the package's folder.
        families: ("flash",).
        profile: "core" or "full", of the build.
        selection: what of the profile it was made for, "dtype=bf16;head_dim=64,128"; "": all.
        dtypes, head_dims: of attention, those that some image of the packs is compiled for.
        targets: those whose packs were found and can be used.
        devices: of all drivers.
        drivers: of both vendors.
        pack_problem: why packs that were found cannot be used, in a sentence; None: they can.
        problem: that, and why a driver could not be looked at; None: nothing is wrong.
    """

    version: str
    library_version: str
    location: str
    families: tuple[str, ...]
    profile: str
    selection: str
    dtypes: tuple[str, ...]
    head_dims: tuple[int, ...]
    targets: tuple[Target, ...]
    devices: tuple[Device, ...]
    drivers: tuple[Driver, ...]
    pack_problem: str | None
    problem: str | None

    def as_dict(self) -> dict[str, Any]:
        """Lists, dicts, texts and numbers alone: for JSON."""
        return dataclasses.asdict(self)

    def __str__(self) -> str:
        targets = ", ".join(f"{t.name} ({t.images} images)" for t in self.targets)
        without = "none" if self.pack_problem else "none; install packages kiln-images-<target>"
        lines = [
            f"Kiln {self.version} in {self.location}",
            f"families: {', '.join(self.families)}",
            f"profile:  {self.profile}{f', only {self.selection}' if self.selection else ''}",
            f"targets:  {targets or without}",
        ]
        if self.dtypes:
            heads = f"; head dimensions to {max(self.head_dims)}" if self.head_dims else ""
            lines.insert(3, f"serves:   attention in {', '.join(self.dtypes)}{heads}")
        if self.library_version != self.version:
            lines.append(f"library:  libkiln.so.0 of Kiln {self.library_version}, which this process had loaded before")
        for driver in self.drivers:
            said = f"{'CUDA' if driver.vendor == 'NVIDIA' else 'ROCm'} {driver.version}" if driver.version else ""
            lines.append(f"{f'{driver.vendor}:':9} {'; '.join(filter(None, (said, driver.problem)))}")
        for device in self.devices:
            lines.append(f"device:   {device.vendor} {device.ordinal}, {device.name or '?'}, {device.target or '?'}")
            lines.append(f"          {device.refusal or 'Kiln runs on it'}")
        if self.problem:
            lines.append(f"problem:  {self.problem}")
        return "\n".join(lines)


def info(runtime: Runtime | None = None) -> Info:
    """What there is: version, targets, devices, drivers. Raises nothing for what is missing, and says it instead.

        print(kiln.info())

    Opens the drivers that are there, as a first call would.

    Args:
        runtime: None: the process's own.
    """
    core = core_of(runtime)
    targets, _, failure = core.targets()
    listed = [row for name, *_ in targets for row in _listed(core, name)]
    dtypes, head_dims = _served(listed)
    compiled = Counter(row["target"] for row in listed)
    rows, status, sentence = core.devices()
    names = [name.partition(".")[0] for name in core.operations()]
    is_failed = status not in (0, NoDeviceError.status)
    return Info(
        version=_core.version(),
        library_version=_core.library_version(),
        location=str(Path(__file__).parent),
        families=tuple(dict.fromkeys(names)),
        profile=_release.PROFILE,
        selection=_release.SELECTION,
        dtypes=dtypes,
        head_dims=head_dims,
        targets=tuple(Target(*row, compiled=compiled[row[0]]) for row in targets),
        devices=tuple(_device(row) for row in rows),
        drivers=tuple(_driver(vendor) for vendor in _VENDORS),
        pack_problem=failure or None,
        problem="; ".join(filter(None, (failure, sentence if is_failed else ""))) or None,
    )


def _listed(core: _core.Runtime, target: str) -> list[dict[str, Any]]:
    """A target's variants that have an image; none where its pack cannot be used."""
    try:
        return [row for row in core.variants(None, target) if not row["unavailable"]]
    except KilnError:
        return []


def _served(listed: Iterable[dict[str, Any]]) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Dtypes and head dimensions of attention's images; latent keys, which only decoding takes, not counted."""
    rows = [row for row in listed if row["operation"].startswith("flash.attn_")]
    functionals = {row["functional"] for row in rows if not row["kernel"].endswith(".latent")}
    words = [word.partition("=") for functional in functionals for word in functional.split()]
    found = {name: sorted({value for own, _, value in words if own == name}) for name in ("dtype", "head_dim")}
    return tuple(found["dtype"]), tuple(sorted(map(int, found["head_dim"])))


def devices(runtime: Runtime | None = None) -> list[Device]:
    """The GPUs of both vendors; none where there is no driver.

    Args:
        runtime: None: the process's own.

    Raises:
        DriverError: a driver is there, and could not be opened; `info()` shows the other vendor's devices even so.
    """
    rows, status, sentence = core_of(runtime).devices()
    if status not in (0, NoDeviceError.status):
        raise of_status(status, sentence)
    return [_device(row) for row in rows]


def variants(
    operation: str | None = None, target: str | None = None, *, runtime: Runtime | None = None
) -> list[Variant]:
    """What the packs that are found list: compiled kernels, and those that the build left out, with the reason in
    `unavailable`. Needs no device and no driver.

        for variant in kiln.variants("flash.attn_fwd", "sm_90"):
            if variant.unavailable is None:
                print(variant)

    Args:
        operation: "flash.attn_fwd"; None: all.
        target: "sm_90"; None: every target whose pack is there.
        runtime: None: the process's own.

    Raises:
        ArgumentError: the operation or the target is no text.
        NotFoundError: there is no such operation or target.
        PackError: the target's pack is missing; one of those that are asked for cannot be used.
    """
    return [Variant(**row) for row in core_of(runtime).variants(operation, target)]


def _device(row: dict[str, Any]) -> Device:
    refusal = row["refusal"] and with_package(row["refusal"])
    return Device(**{**row, "vendor": _VENDORS[row["vendor"]], "refusal": refusal})


def _driver(vendor: int) -> Driver:
    """Asks the library that the runtime has opened, or would open."""
    number = ctypes.c_int()
    library, problem = _library(vendor)
    if library is not None:
        ask = getattr(library, "cuDriverGetVersion" if vendor == _core.NVIDIA else "hipRuntimeGetVersion", None)
        if ask is None or ask(ctypes.byref(number)):
            problem = "its library does not tell a version"
    if problem:
        return Driver(_VENDORS[vendor], None, problem)
    if vendor == _core.NVIDIA:
        version = f"{number.value // 1000}.{number.value % 1000 // 10}"
    else:
        version = f"{number.value // 10_000_000}.{number.value // 100_000 % 100}"
    return Driver(_VENDORS[vendor], version, None)


def _library(vendor: int) -> tuple[ctypes.CDLL | None, str]:
    """A vendor's library: for AMD the one that this process has, whatever it was bundled as."""
    names = ["libcuda.so.1"]
    if vendor == _core.AMD:
        names = [f"libamdhip64.so.{major}" for major in (7, 6, 5)]
        maps = Path("/proc/self/maps").read_text(errors="replace").splitlines()
        paths = (line.split(maxsplit=5)[5] for line in maps if "libamdhip64" in line)
        names = [*dict.fromkeys(paths), *names]
    for name in names:
        try:
            return ctypes.CDLL(name), ""
        except OSError:
            continue
    return None, f"there is no {'driver (libcuda.so.1)' if vendor == _core.NVIDIA else 'HIP runtime (libamdhip64.so)'}"
