"""A release for the fake driver: the flash family's own recipe with all its dispatch, and images that it can read.

`build` makes lib/ and include/ as they are unpacked, with libaotriton_v2.so, by the compilers of the machine."""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import nativebuild
import packs
from nativebuild import ROOT, run

import shared
from kiln_build.native import adapters, generate
from kiln_build.release.release import name_images_again
from kiln_recipe import targets
from kiln_recipe.model import Recipe
from kiln_recipe.plan import plan
from kiln_recipe.plan.model import KernelPlan, Plan, Variant
from kiln_recipe.read import recipe

VERSION = "1.2.3"
NOTICES = ("LICENSE", "NOTICES.txt", "licences/zstd.txt")
TARGETS = ("gfx942", "sm_90")
# Without Hopper's algorithms: images that stand in have no tensor descriptors.
SELECTION = (
    ("dtype", ("fp16", "bf16", "fp32")), ("head_dim", ("64",)), ("algorithm", ("split", "decode", "described")),
)  # fmt: skip
_SIZES = {"i1": 1, "i32": 4, "u32": 4, "fp32": 4}
_HIDDEN = [8, 8]  # Triton's own parameters


@dataclass(frozen=True)
class Release:
    """`folder`: with lib/ and include/; `variants`: by target and symbol."""

    folder: Path
    variants: dict[tuple[str, str], Variant]

    @property
    def lib(self) -> Path:
        return self.folder / "lib"

    def arguments(self, target: str, symbol: str, values: list[int]) -> dict[str, int]:
        """The parameters of a launch by their names."""
        names = [name for name, kind in self.variants[target, symbol].spec.signature if kind != "constexpr"]
        return dict(zip(names, values))


def hip_headers() -> Path:
    return Path(importlib.util.find_spec("triton").submodule_search_locations[0]) / "backends/amd/include"


@cache
def planned() -> tuple[Recipe, Plan]:
    """The recipe, and what the release has of it."""
    the_recipe = recipe.load(ROOT / "tritonsrc/flash/recipe.yaml")
    return the_recipe, plan.make_plan([the_recipe], [targets.by_name(name) for name in TARGETS], "full", SELECTION)


def build() -> Release:
    """Builds it, if this run has not yet; the fake driver lies in driver/amd, driver/nvidia and
    driver/both, by the names that drivers have; driver/none is empty."""
    the_recipe, the_plan = planned()
    folder = shared.once("aotriton", lambda folder: _fill(folder, the_recipe, the_plan))
    return Release(folder, {(v.target, _symbol(v)): v for v in the_plan.variants})


def _fill(folder: Path, the_recipe: Recipe, the_plan: Plan) -> None:
    nativebuild.build_core(folder)
    nativebuild.build_fake(folder)
    digests = {target.name: _pack(the_plan, target, folder / "lib/kiln.images") for target in the_plan.targets}
    tables = [
        generate.KernelTables(kernel, plan.lookup(kernel, {v.slot for v in the_plan.variants_of(kernel)}))
        for kernel in the_plan.kernels
    ]
    source = generate.family_source(the_recipe, tables, the_plan.targets, the_plan.served, digests, VERSION)
    nativebuild.build_flash(folder, tables=source)
    for name in NOTICES:
        (folder / "share/kiln" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "share/kiln" / name).write_text(f"{name} of Kiln\n")
    build_library(folder)
    amd, nvidia = "libamdhip64.so.6", "libcuda.so.1"
    for kind, names in {"amd": [amd], "nvidia": [nvidia], "both": [amd, nvidia], "none": []}.items():
        (folder / "driver" / kind).mkdir(parents=True)
        for name in names:
            (folder / "driver" / kind / name).symlink_to(folder / "lib/libfake.so")


def build_library(folder: Path) -> None:
    """For each version lib/libaotriton_v2.so.<version>, of the objects of the libraries there, and the prefix
    lib/aotriton/<x.y>, which is complete; lib/libaotriton_v2.so and include/aotriton are the last one's."""
    top = ROOT / "csrc/aotriton"
    lib = folder / "lib"
    command = ["c++", *nativebuild.CXX_FLAGS, "-isystem", hip_headers(), "-I", folder / "include"]
    shared_objects = [
        *nativebuild.core_objects(folder), *nativebuild.objects_of(folder, "flash"),
        *nativebuild.objects(folder / "objects/aotriton", command, sorted(top.glob("*.cc"))),
    ]  # fmt: skip
    flags = [flag for flag in nativebuild.LINK_FLAGS if "version-script" not in flag]
    for version in adapters.aotriton_versions(ROOT):
        prefix = lib / "aotriton" / minor(version)
        include = prefix / "include"
        put_headers(include, version)
        own = nativebuild.objects(
            folder / "objects" / version, [*command[:1], "-I", include, *command[1:]],
            sorted((top / "interface").glob("*.cc")),
        )  # fmt: skip
        name = f"libaotriton_v2.so.{version}"
        run(["c++", *own, *shared_objects, *flags, f"-Wl,--version-script={top / 'interface/exports.map'}",
             f"-Wl,-soname,{name}", "-ldl", "-lpthread", "-o", lib / name])  # fmt: skip
        (prefix / "lib").mkdir()
        os.link(lib / name, prefix / "lib" / name)
        (prefix / "lib/libaotriton_v2.so").symlink_to(name)
        put_images(folder, prefix / "lib/aotriton.images")
    put_headers(folder / "include", version)
    (lib / "libaotriton_v2.so").symlink_to(name)
    put_images(folder, lib / "aotriton.images")


def put_images(folder: Path, images: Path) -> None:
    """The folder of packs and licences that a prefix has, as in a release."""
    name_images_again(folder, images, [pack.name for pack in (folder / "lib/kiln.images").iterdir()], NOTICES)


def put_headers(include: Path, version: str) -> None:
    """An interface's headers, below a folder include/."""
    for name, header in adapters.aotriton_headers(ROOT, version).items():
        (include / name).parent.mkdir(parents=True, exist_ok=True)
        (include / name).write_bytes(header.read_bytes() if isinstance(header, Path) else header.encode())


def minor(version: str) -> str:
    """ "0.13" of "0.13.1" """
    return version.rpartition(".")[0]


def library(lib: Path, of: str) -> Path:
    """The library in lib/ of an interface, "0.13"."""
    (version,) = (version for version in adapters.aotriton_versions(ROOT) if minor(version) == of)
    return lib / f"libaotriton_v2.so.{version}"


def _symbol(variant: Variant) -> str:
    return f"{variant.kernel}_{variant.slot}"


def _pack(the_plan: Plan, target: targets.Target, folder: Path) -> str:
    """Writes a target's pack; its digest."""
    images: list[packs.Image] = []
    kernels = [_kernel(the_plan, kernel, images) for kernel in the_plan.kernels if kernel.target == target]
    data = packs.write(target.name, VERSION, kernels, images)
    folder.mkdir(exist_ok=True)
    (folder / target.pack_file).write_bytes(data)
    return packs.digest_of(data)


def _kernel(the_plan: Plan, kernel: KernelPlan, images: list[packs.Image]) -> packs.Kernel:
    slots = [(packs.NONE, packs.NONE, kernel.absent.get(number), bytes(32)) for number in range(kernel.slots)]
    for variant in the_plan.variants_of(kernel):
        types = [kind for _, kind in variant.spec.signature if kind != "constexpr"]
        sizes = [_SIZES.get(kind, 8) for kind in types] + _HIDDEN
        code = packs.fake_code(_symbol(variant), sizes)
        kind = 2 if kernel.target.vendor == "amd" else 1
        images.append(packs.Image(_symbol(variant), code, kind, len(sizes), len(images) // 50))
        slots[variant.slot] = (len(images) - 1, packs.NONE, None, packs.key_of(variant.name))
    return packs.Kernel(
        kernel.family, kernel.operation, kernel.kernel.name, [c.name for c in kernel.configurations],
        [s.name for s in kernel.kernel.specializations], [f.name for f in kernel.functionals],
        bytes.fromhex(kernel.layout), slots,
    )  # fmt: skip
