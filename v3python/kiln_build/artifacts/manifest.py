"""What a release states about itself: how its manifest (manifest_model.py) is made from a build's results.

A manifest holds no time, host, user or path: equal inputs give equal bytes.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from kiln_build.artifacts import left_out
from kiln_build.artifacts.manifest_model import (
    PATH,
    DescriptorRow,
    File,
    ImageRow,
    LeftOut,
    Manifest,
    Source,
    TargetRow,
    Tool,
    VariantRow,
    Waiver,
    encode,
    format_of,
    read,
    schema,
)
from kiln_build.artifacts.pack import KernelSlots, Pack
from kiln_recipe.compile.toolchain import Toolchain
from kiln_recipe.errors import ArtifactError
from kiln_recipe.plan.model import Variant
from kiln_recipe.shape import plain
from kiln_recipe.targets import Target, ptx_number

# What one needs who makes a manifest, here for them too.
__all__ = ["PATH", "Inputs", "Manifest", "Source", "Tool", "Verification", "Waiver", "encode",
           "files_of", "load_verifications", "make_manifest", "read", "schema", "summarize_waivers"]  # fmt: skip

NO_IMAGES = "no images in this release"


class Verification(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a run of the GPU tests, or of those on the emulator, found right; written by them, kept in
    docs/measurements/verified/.

    Attributes:
        device: "NVIDIA H200", or the architecture that was emulated. driver: "580.95.05", or what decoded the images.
        by: "image"; "ptx" if the driver compiled the variants' PTX for the device; "emulator" if there was no device.
        keys: of the variants that gave right results.
        images: digests of the images that were executed; a variant whose image is another does not count. Empty where
            no digests were recorded: then a key alone stands for its image.
    """

    device: str
    driver: str
    by: str
    keys: frozenset[str]
    images: frozenset[str] = frozenset()

    def has(self, key: str, image: str) -> bool:
        return key in self.keys and (not self.images or image in self.images)


@dataclass(frozen=True)
class Inputs:
    """All that a manifest is made from, besides the staged files.

    Attributes:
        version: "0.1.0b".
        profile, selection, ptx: what was asked for; the selection as "dtype=bf16;head_dim=64,128".
        families: all that the release has, where some of Kiln's own are left out.
        tools: what made bytes of the release, Triton and its assemblers left out (`toolchains` has them).
        targets: in the order of the targets table.
        toolchains: by target.
        packs: by target; a target without one was built without images.
        waivers: see `summarize_waivers`.
        verifications: see `load_verifications`.
        ptx_versions: by digest of an image the version of the PTX that it was assembled from, "8.6".
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
    families: tuple[str, ...] = ()
    waivers: tuple[Waiver, ...] = ()
    verifications: tuple[Verification, ...] = ()
    ptx_versions: Mapping[str, str] = field(default_factory=dict)


def make_manifest(inputs: Inputs, stage: Path, platform: str) -> Manifest:
    """The manifest of the release that lies in the folder `stage`. `platform`: "manylinux_2_28_x86_64"."""
    images: list[ImageRow] = []
    variants: list[VariantRow] = []
    rules: list[LeftOut] = []
    for target in inputs.targets:
        if target.name in inputs.packs:
            images += _image_rows(inputs.packs[target.name], target, inputs.ptx_versions)
            variants += _variant_rows(inputs.packs[target.name])
            rules += msgspec.convert(left_out.rules_of(inputs.packs[target.name]), list[LeftOut])
    return Manifest(
        format=format_of(map(plain, images), inputs.families),
        kiln=inputs.version,
        platform=platform,
        profile=inputs.profile,
        selection=inputs.selection,
        families=inputs.families or None,
        ptx=inputs.ptx,
        source=inputs.source,
        tools=(*_triton_tools(inputs.toolchains.values()), *inputs.tools),
        targets=tuple(_target_row(target, inputs) for target in inputs.targets),
        waivers=inputs.waivers,
        files=files_of(stage),
        images=tuple(images),
        variants=tuple(variants),
        left_out=tuple(rules),
    )


def files_of(stage: Path) -> tuple[File, ...]:
    """Every file and symbolic link below `stage` but the manifest, sorted."""
    rows = []
    digests: dict[tuple[int, int], tuple[int, str]] = {}  # a file with several hard links is read once
    for path in sorted(p for p in stage.rglob("*") if p.is_symlink() or not p.is_dir()):
        name = path.relative_to(stage).as_posix()
        if path.is_symlink():
            rows.append(File(path=name, link=os.readlink(path)))
        elif name != PATH:
            status = path.stat()
            inode = status.st_dev, status.st_ino
            if status.st_nlink == 1 or inode not in digests:
                data = path.read_bytes()
                digests[inode] = len(data), hashlib.sha256(data).hexdigest()
            size, digest = digests[inode]
            rows.append(File(path=name, bytes=size, sha256=digest))
    return tuple(sorted(rows, key=lambda row: row.path))


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
            raise ArtifactError(f"{path} is not the result of a GPU run (device, driver, by, keys): {error}") from error
    return tuple(results)


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
    rows = _variant_rows(pack) if pack else []
    every = sum(len(kernel.slots) for kernel in pack.kernels) if pack else 0
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
        ptx_version=_ptx_version(target),
        lowest_driver=target.lowest_driver,
        runs_on=target.runs_on,
        functionals=len({(row.kernel, row.functional) for row in rows}),
        variants=len(rows),
        images=len({row.image for row in rows if row.image}),
        unavailable=sum(row.image is None for row in rows),
        left_out=every - len(rows),
        verified=_verified([(row.key, row.image) for row in rows if row.image], inputs.verifications)
        if pack
        else NO_IMAGES,
    )


def _ptx_version(target: Target) -> str:
    return f"{target.ptx_version // 10}.{target.ptx_version % 10}" if target.ptx_version else ""


def _verified(variants: Sequence[tuple[str, str]], verifications: Iterable[Verification]) -> str:
    """What was run of the variants with these keys and images; several may share one. Keys change with the source and
    the toolchain, so a result of other images never counts."""
    run, executed = [], []
    for device, driver, by in sorted({(v.device, v.driver, v.by) for v in verifications}):
        same = [v for v in verifications if (v.device, v.driver, v.by) == (device, driver, by)]
        count = sum(any(v.has(key, image) for v in same) for key, image in variants)
        if count:
            untested = f", {len(variants) - count} untested" if count < len(variants) else ""
            found_right = f"{count} of {len(variants)} variants tested, all correct{untested}"
            if by == "emulator":
                executed.append(f"executed on an emulator of {device}, by {driver}: {found_right}")
            else:
                run.append(f"{'PTX run on' if by == 'ptx' else 'run on'} {device}, driver {driver}: {found_right}")
    return "; ".join([*(run or ["compiled, not run"]), *executed])


def _image_rows(pack: Pack, target: Target, ptx_versions: Mapping[str, str]) -> list[ImageRow]:
    usual = _ptx_version(target)
    by_digest = {image.digest: image for image in pack.images}
    rows: dict[str, ImageRow] = {}
    for kernel in pack.kernels:
        for slot in kernel.slots:
            if slot.image is None or slot.image in rows:
                continue
            image = by_digest[slot.image]
            version = ptx_versions.get(image.digest, usual)
            abi = target.assembly(ptx_number(version)).abi
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
                ptx_version="" if version == usual else version,
                abi=0 if abi == target.abi else abi,
                descriptors=tuple(DescriptorRow(d.element_type, d.swizzle, d.box) for d in image.info.descriptors)
                or None,
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
        if not left_out.is_left_out(slot)
    ]


def _names(kernel: KernelSlots) -> Iterable[tuple[str, str, str]]:
    """Functional, configuration and specialization of each slot, in the slots' order."""
    for functional in kernel.functionals:
        for configuration in kernel.configurations:
            for specialization in kernel.specializations:
                yield functional, configuration, specialization
