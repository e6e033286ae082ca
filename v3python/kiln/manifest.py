"""What a release states about itself: share/kiln/manifest.json, its schema, and how it is made from a build's results.

A manifest holds no time, host, user or path: equal inputs give equal bytes. It is read by Python's json alone
(inspect.py); msgspec is needed only to make one, and to check one strictly.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec

from kiln.errors import ArtifactError
from kiln.pack import KernelSlots, Pack
from kiln.plan_model import Variant
from kiln.targets import Target
from kiln.toolchain import Toolchain

FORMAT = 1
PATH = "share/kiln/manifest.json"
NO_IMAGES = "no images in this release"

Digest = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$", description="SHA-256")]
Count = Annotated[int, msgspec.Meta(ge=0)]
Bytes = Annotated[int, msgspec.Meta(ge=0, description="bytes")]


class _Row(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    pass


class Source(_Row, kw_only=True):
    """The source tree. `commit`: 40 digits or "unknown"; `dirty`: whether the tree differed from it; `patches`: digest
    of the applied input/patch-<version>/, or ""."""

    commit: str
    dirty: bool
    patches: str = ""


class Tool(_Row, kw_only=True):
    """Something that made bytes of the release. `sha256`: of the file that did, or of the package that it is from,
    where the same file serves every Python."""

    name: str
    version: str
    sha256: Digest | None = None


class Waiver(_Row, kw_only=True):
    """A reason that a recipe gives for variants that may be missing: so many it covers, so many are missing.
    `missing` 0: it is not needed (any more)."""

    kernel: str
    reason: str
    covers: Count
    missing: Count


class File(_Row, kw_only=True):
    """A file of the release, or (with `link`) a symbolic link to one beside it. The manifest itself is not listed."""

    path: str
    bytes: Bytes = 0
    sha256: Digest | None = None
    link: str | None = None


class TargetRow(_Row, kw_only=True):
    """One GPU architecture of the release.

    Attributes:
        pack: file name below lib/kiln.images/, or null: built without images.
        index: digest of the pack's index, which the family's library holds too.
        triton, toolchain: version of the Triton that compiled for it; digest that stands for all of its toolchain.
        assembler, assembler_sha256: NVIDIA: which assembler made the cubins; "" for AMD: Triton's own LLVM.
        abi: ELF ABI version of the cubins, or version of the AMD code objects.
        ptx_version: of the PTX that the cubins were assembled from; "" for AMD.
        lowest_driver: the lowest that loads the images.
        runs_on: architectures that execute the images natively.
        functionals, variants, images, unavailable: counts; variants of equal code share an image.
        verified: "compiled, not run", or what ran how many of the variants, or "no images in this release".
    """

    name: str
    vendor: str
    pack: str | None = None
    index: Digest | None = None
    triton: str
    toolchain: Digest
    kind: str
    abi: Count
    assembler: str = ""
    assembler_sha256: Digest | None = None
    ptx_version: str = ""
    lowest_driver: str
    runs_on: tuple[str, ...]
    functionals: Count
    variants: Count
    images: Count
    unavailable: Count
    verified: str


class ImageRow(_Row, kw_only=True):
    """One image of a target's pack. Registers, spills and stack are per thread, shared memory per block. `ptx_sha256`
    and `ptx_bytes`: of the PTX in the pack, if there is one."""

    target: str
    sha256: Digest
    kind: str
    symbol: str
    bytes: Bytes
    threads: Count
    registers: Count
    shared: Bytes
    spills: Bytes
    stack: Bytes
    parameters: Count
    ptx_sha256: Digest | None = None
    ptx_bytes: Bytes | None = None


class VariantRow(_Row, kw_only=True):
    """One variant: its key and its image, or why there is none. `kernel` is "<family>.<operation>/<kernel>"."""

    target: str
    kernel: str
    functional: str
    configuration: str
    specialization: str
    key: Digest
    image: Digest | None = None
    unavailable: str | None = None


class Manifest(_Row, kw_only=True):
    """A release: `profile`, `selection` and `ptx` are what its build was asked for."""

    format: int
    kiln: str
    platform: str
    profile: str
    selection: str
    ptx: bool
    source: Source
    tools: tuple[Tool, ...]
    targets: tuple[TargetRow, ...]
    waivers: tuple[Waiver, ...]
    files: tuple[File, ...]
    images: tuple[ImageRow, ...]
    variants: tuple[VariantRow, ...]


class Verification(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a run of the GPU tests found right; written by them, kept in docs/measurements/verified/.

    Attributes:
        device: "NVIDIA H200". driver: "580.95.05".
        by: "image", or "ptx" if the driver compiled the variants' PTX for the device.
        keys: of the variants that gave right results.
    """

    device: str
    driver: str
    by: str
    keys: frozenset[str]


@dataclass(frozen=True)
class Inputs:
    """All that a manifest is made from, besides the staged files.

    Attributes:
        version: "0.1.0b".
        profile, selection, ptx: what was asked for; the selection as "dtype=bf16;head_dim=64,128".
        tools: what made bytes of the release, Triton and its assemblers left out (`toolchains` has them).
        targets: in the order of the targets table.
        toolchains: by target.
        packs: by target; a target without one was built without images.
        waivers: see `summarize_waivers`.
        verifications: see `load_verifications`.
    """

    version: str
    profile: str
    selection: str
    ptx: bool
    source: Source
    tools: tuple[Tool, ...]
    targets: tuple[Target, ...]
    toolchains: Mapping[str, Toolchain]
    packs: Mapping[str, Pack]
    waivers: tuple[Waiver, ...] = ()
    verifications: tuple[Verification, ...] = ()


def make_manifest(inputs: Inputs, stage: Path, platform: str) -> Manifest:
    """The manifest of the release that lies in the folder `stage`. `platform`: "manylinux_2_28_x86_64"."""
    images: list[ImageRow] = []
    variants: list[VariantRow] = []
    for target in inputs.targets:
        if target.name in inputs.packs:
            images += _image_rows(inputs.packs[target.name])
            variants += _variant_rows(inputs.packs[target.name])
    return Manifest(
        format=FORMAT,
        kiln=inputs.version,
        platform=platform,
        profile=inputs.profile,
        selection=inputs.selection,
        ptx=inputs.ptx,
        source=inputs.source,
        tools=(*_triton_tools(inputs.toolchains.values()), *inputs.tools),
        targets=tuple(_target_row(target, inputs) for target in inputs.targets),
        waivers=inputs.waivers,
        files=files_of(stage),
        images=tuple(images),
        variants=tuple(variants),
    )


def files_of(stage: Path) -> tuple[File, ...]:
    """Every file and symbolic link below `stage` but the manifest, sorted."""
    rows = []
    for path in sorted(p for p in stage.rglob("*") if p.is_symlink() or not p.is_dir()):
        name = path.relative_to(stage).as_posix()
        if path.is_symlink():
            rows.append(File(path=name, link=os.readlink(path)))
        elif name != PATH:
            data = path.read_bytes()
            rows.append(File(path=name, bytes=len(data), sha256=hashlib.sha256(data).hexdigest()))
    return tuple(sorted(rows, key=lambda row: row.path))


def encode(manifest: Manifest) -> bytes:
    """The manifest as canonical JSON: keys sorted, a row of a table on a line of its own, so that a diff of two
    releases reads well."""
    lines = []
    for name, value in sorted(msgspec.to_builtins(manifest).items()):
        if isinstance(value, (list, tuple)) and value:
            rows = ",\n".join("  " + _compact(row) for row in value)
            lines.append(f' "{name}": [\n{rows}\n ]')
        else:
            lines.append(f' "{name}": {_compact(value)}')
    return ("{\n" + ",\n".join(lines) + "\n}\n").encode()


def decode(data: bytes) -> Manifest:
    """Reads a manifest strictly.

    Raises:
        ArtifactError: it is no manifest of this format, or has fields that are unknown, missing or of a wrong type.
    """
    try:
        return msgspec.json.decode(data, type=Manifest)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ArtifactError(f"the manifest is no manifest of format {FORMAT}: {error}") from error


def schema() -> dict[str, Any]:
    """The JSON schema of a manifest."""
    document = msgspec.json.schema(Manifest)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "Kiln release manifest", **document}


def summarize_waivers(variants: Iterable[Variant], missing: Collection[str]) -> tuple[Waiver, ...]:
    """Waivers of a plan, with how many variants each covers and how many of those have no image.

    Args:
        missing: names of the variants that have no image.
    """
    counts: dict[tuple[str, str], list[int]] = {}
    for variant in variants:
        if variant.waiver is not None:
            kernel = f"{variant.family}.{variant.operation}/{variant.kernel}"
            count = counts.setdefault((kernel, variant.waiver), [0, 0])
            count[0] += 1
            count[1] += variant.name in missing
    return tuple(
        Waiver(kernel=kernel, reason=reason, covers=covers, missing=gone)
        for (kernel, reason), (covers, gone) in sorted(counts.items())
    )


def load_verifications(folder: Path) -> tuple[Verification, ...]:
    """The results of GPU runs that are kept in `folder`, a JSON file each; () if it is not there.

    Raises:
        ArtifactError: one of them is malformed.
    """
    results = []
    for path in sorted(folder.glob("*.json")):
        try:
            results.append(msgspec.json.decode(path.read_bytes(), type=Verification))
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ArtifactError(f"{path} is no result of a GPU run (device, driver, by, keys): {error}") from error
    return tuple(results)


def _compact(value: object) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(", ", ": "))


def _triton_tools(toolchains: Iterable[Toolchain]) -> list[Tool]:
    tools: dict[tuple[str, str, str | None], Tool] = {}
    for toolchain in toolchains:
        rows = [("triton", None), *((f"triton's {name}", digest) for name, digest in toolchain.files)]
        for name, digest in rows:
            tool = Tool(name=name, version=toolchain.triton_version, sha256=digest)
            tools[name, tool.version, digest] = tool
    return [tools[key] for key in sorted(tools, key=lambda key: (key[1], key[0] != "triton", key[0], key[2] or ""))]


def _target_row(target: Target, inputs: Inputs) -> TargetRow:
    toolchain = inputs.toolchains[target.name]
    pack = inputs.packs.get(target.name)
    slots = [slot for kernel in pack.kernels for slot in kernel.slots] if pack else []
    return TargetRow(
        name=target.name,
        vendor=target.vendor,
        pack=target.pack_file if pack else None,
        index=pack.index_digest if pack else None,
        triton=toolchain.triton_version,
        toolchain=toolchain.identity,
        kind=target.image_kind,
        abi=target.abi,
        assembler=target.assembler,
        assembler_sha256=dict(toolchain.files).get(target.assembler),
        ptx_version=f"{target.ptx_version // 10}.{target.ptx_version % 10}" if target.ptx_version else "",
        lowest_driver=target.lowest_driver,
        runs_on=target.runs_on,
        functionals=sum(len(kernel.functionals) for kernel in pack.kernels) if pack else 0,
        variants=len(slots),
        images=len({slot.image for slot in slots if slot.image}),
        unavailable=sum(slot.image is None for slot in slots),
        verified=_verified({slot.key for slot in slots if slot.image}, inputs.verifications) if pack else NO_IMAGES,
    )


def _verified(keys: set[str], verifications: Iterable[Verification]) -> str:
    """What was run of the variants with these keys. Keys change with the source and the toolchain, so a result of
    other images never counts."""
    sentences = []
    for device, driver, by in sorted({(v.device, v.driver, v.by) for v in verifications}):
        same = [v.keys for v in verifications if (v.device, v.driver, v.by) == (device, driver, by)]
        count = len(keys & frozenset().union(*same))
        if count:
            how = "PTX run on" if by == "ptx" else "run on"
            sentences.append(f"{how} {device}, driver {driver}: {count} of {len(keys)} variants right")
    return "; ".join(sentences) or "compiled, not run"


def _image_rows(pack: Pack) -> list[ImageRow]:
    by_digest = {image.digest: image for image in pack.images}
    rows: dict[str, ImageRow] = {}
    for kernel in pack.kernels:
        for slot in kernel.slots:
            if slot.image is None or slot.image in rows:
                continue
            image = by_digest[slot.image]
            rows[slot.image] = ImageRow(
                target=pack.target,
                sha256=image.digest,
                kind=image.info.kind,
                symbol=image.info.symbol,
                bytes=image.bytes,
                threads=image.info.threads,
                registers=image.info.registers,
                shared=image.info.shared,
                spills=image.info.spills,
                stack=image.info.stack,
                parameters=image.info.parameters,
                ptx_sha256=slot.ptx,
                ptx_bytes=by_digest[slot.ptx].bytes if slot.ptx else None,
            )
    return list(rows.values())


def _variant_rows(pack: Pack) -> list[VariantRow]:
    return [
        VariantRow(
            target=pack.target,
            kernel=f"{kernel.family}.{kernel.operation}/{kernel.kernel}",
            functional=functional,
            configuration=configuration,
            specialization=specialization,
            key=slot.key,
            image=slot.image,
            unavailable=slot.reason,
        )
        for kernel in pack.kernels
        for slot, (functional, configuration, specialization) in zip(kernel.slots, _names(kernel))
    ]


def _names(kernel: KernelSlots) -> Iterable[tuple[str, str, str]]:
    """Functional, configuration and specialization of each slot, in the slots' order."""
    for functional in kernel.functionals:
        for configuration in kernel.configurations:
            for specialization in kernel.specializations:
                yield functional, configuration, specialization
