"""What a plan is made of: plain data between the recipes, the farm, the packs and the tables."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from kiln_recipe import targets as target_table
from kiln_recipe.images import image
from kiln_recipe.model import OPTION_DEFAULTS, Configuration, Kernel, Recipe, Rule, Value
from kiln_recipe.targets import Target


@dataclass(frozen=True)
class CompileSpec:
    """What the compiler needs to make one image, and nothing else: plain data, equal specs mean equal bytes.

    Attributes:
        source: absolute path of the kernel's module; where it lies is no part of the key.
        function: name of the Triton function in it.
        fingerprint: digest of the function's source and of all that it calls (fingerprint.py).
        signature: (parameter, Triton type) in the function's order; constants have the type "constexpr", descriptors
            one such as "tensordesc<bf16[64,128]>", to which the compiler adds a layout.
        constants: (parameter, value) of the constexpr parameters.
        divisible: (parameter, 16 or 8): what it is a multiple of.
        target: name in targets.yaml.
        options: (name, value) compile options: num_warps, num_stages, waves_per_eu ...
        language: of the source, "triton" or "gluon".
        ptx: PTX version, 86 for 8.6, in place of the target's; 0: the target's.
    """

    source: str
    function: str
    fingerprint: str
    signature: tuple[tuple[str, str], ...]
    constants: tuple[tuple[str, int | float | bool | str], ...]
    divisible: tuple[tuple[str, int], ...]
    target: str
    options: tuple[tuple[str, int | float | bool | str], ...]
    language: str = "triton"
    ptx: int = 0

    def key(self, toolchain_identity: str) -> str:
        """Content address of the image: 64 hexadecimal digits. Paths, hosts and comments are no part of it."""
        return digest(
            {
                "toolchain": toolchain_identity,
                "format": image.FORMAT,
                "function": self.function,
                "fingerprint": self.fingerprint,
                "signature": self.signature,
                "constants": self.constants,
                "divisible": self.divisible,
                "target": self.target,
                "pinned": target_table.by_name(self.target).pinned,
                "options": self.options,
                **self.marks,
            }
        )

    @property
    def marks(self) -> dict[str, str | int]:
        """What sets an image apart of which the language or the PTX version is not the usual one: else nothing, and its
        key is what it was before there were others."""
        marks: dict[str, str | int] = {} if self.language == "triton" else {"language": self.language}
        return {**marks, "ptx": self.ptx} if self.ptx else marks

    @property
    def ptx_version(self) -> int:
        """Of the PTX that the image is assembled from, 86 for 8.6; 0 where there is none."""
        return self.ptx or target_table.by_name(self.target).ptx_version

    @property
    def constants_by_place(self) -> dict[tuple[int, ...], int | float | bool | str]:
        """The constants as Triton's ASTSource takes them: by the place of their parameter."""
        places = self._places
        return {(places[name],): value for name, value in self.constants}

    @property
    def attributes(self) -> dict[tuple[int, ...], list[list]]:
        """What parameters are multiples of, as Triton's ASTSource takes it."""
        places = self._places
        return {(places[name],): [["tt.divisibility", factor]] for name, factor in self.divisible}

    @property
    def compile_options(self) -> dict[str, int | float | bool | str]:
        """The options, with defaults and what the table of targets pins, as Triton's backend takes them."""
        options: dict[str, int | float | bool | str] = {**OPTION_DEFAULTS, **dict(self.options)}
        if self.ptx_version:
            options["ptx_version"] = self.ptx_version
        return options

    @property
    def _places(self) -> dict[str, int]:
        return {name: place for place, (name, _) in enumerate(self.signature)}


@dataclass(frozen=True)
class Variant:
    """One compile job: a kernel with every choice made, for one target. `slot` is its place in the target's pack.

    Attributes:
        parameter_count: parameters that the dispatch passes to the image; Triton's hidden ones are not counted.
    """

    family: str
    operation: str
    kernel: str
    functional: str  # "dtype=bf16 head_dim=64 padded=false extras=none"
    configuration: str  # "BLOCK_M=128 BLOCK_N=64 num_warps=4 num_stages=3"
    specialization: str  # "aligned"
    target: str
    slot: int
    spec: CompileSpec
    spill_allowance: int  # bytes a thread
    waiver: str | None  # the reason why it may be missing, or None
    parameter_count: int = 0

    @cached_property
    def name(self) -> str:
        """'flash.attn_fwd/attn_fwd[dtype=bf16 head_dim=64 padded=false extras=none][BLOCK_M=128 ...][aligned]@sm_90'"""
        return (
            f"{self.family}.{self.operation}/{self.kernel}[{self.functional}][{self.configuration}]"
            f"[{self.specialization}]@{self.target}"
        )


@dataclass(frozen=True)
class Functional:
    """One setting of a kernel's choices: the values as the recipe spells them, and as `v` holds them."""

    name: str
    values: Mapping[str, Value]
    numbers: Mapping[str, int]


@dataclass(frozen=True)
class KernelPlan:
    """One kernel on one target: its whole slot space, of which the plan's variants fill a part.

    Attributes:
        rules: tuned for this target; the kernel's own heuristic stands behind them.
        absent: for each slot that no variant fills the reason.
        layout: digest of what the dispatch tables and the pack must agree on: 64 hexadecimal digits.
    """

    family: str
    operation: str
    kernel: Kernel
    target: Target
    functionals: tuple[Functional, ...]
    configurations: tuple[Configuration, ...]
    rules: tuple[Rule, ...]
    absent: Mapping[int, str]
    layout: str

    @property
    def slots(self) -> int:
        return len(self.functionals) * len(self.configurations) * len(self.kernel.specializations)

    def slot(self, functional: int, configuration: int, specialization: int) -> int:
        """The number of a variant's place."""
        return (functional * len(self.configurations) + configuration) * len(
            self.kernel.specializations
        ) + specialization

    @cached_property
    def configuration_rows(self) -> tuple[tuple[int, ...], ...]:
        """For each configuration its values in the order of the kernel's columns; text and what it lacks are 0."""
        return configuration_rows(self.kernel, self.configurations)


@dataclass(frozen=True)
class Plan:
    """Everything that a build makes.

    Attributes:
        kernels: for each target, in its order, every kernel.
        variants: what is compiled.
        served: of a (family, operation), by choice, for each of its values the place of the value that calls of it get:
            its own; or, where it is left out of the build, that of one whose kernels serve in its place.
        warnings: sentences for the user: what a selection leaves without any variant.
    """

    recipes: tuple[Recipe, ...]
    targets: tuple[Target, ...]
    profile: str
    kernels: tuple[KernelPlan, ...]
    variants: tuple[Variant, ...]
    served: Mapping[tuple[str, str], Mapping[str, tuple[int, ...]]]
    warnings: tuple[str, ...] = ()

    def variants_of(self, kernel: KernelPlan) -> Sequence[Variant]:
        """The variants of a kernel on its target."""
        return self._by_kernel.get((kernel.family, kernel.operation, kernel.kernel.name, kernel.target.name), ())

    @cached_property
    def _by_kernel(self) -> Mapping[tuple[str, ...], list[Variant]]:
        groups: dict[tuple[str, ...], list[Variant]] = {}
        for v in self.variants:
            groups.setdefault((v.family, v.operation, v.kernel, v.target), []).append(v)
        return groups


def configuration_rows(kernel: Kernel, configurations: Sequence[Configuration]) -> tuple[tuple[int, ...], ...]:
    """Values of configurations as the tables hold them: integers, in the order of the kernel's columns."""
    rows = []
    for configuration in configurations:
        values = (configuration.mapping.get(name, 0) for name in kernel.columns)
        rows.append(tuple(0 if isinstance(value, str) else int(value) for value in values))
    return tuple(rows)


def digest(document: object) -> str:
    """SHA-256 of plain data, 64 hexadecimal digits."""
    return hashlib.sha256(json.dumps(document, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
