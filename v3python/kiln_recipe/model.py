"""What a recipe means: frozen data in which every expression is parsed and every name is known to exist."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from kiln_recipe.expressions import Expression
from kiln_recipe.targets import Target

FAMILY = "flash"  # the attention family, which wheels, other projects' interfaces and `kiln coverage` are of

Value = bool | int | str
Scalar = bool | int | float | str

# Compile options that a configuration may set, by Triton's backend; all else must be a constexpr parameter.
OPTIONS: Mapping[str, Mapping[str, type]] = {
    "cuda": {"num_warps": int, "num_stages": int, "num_ctas": int, "maxnreg": int, "enable_fp_fusion": bool,
             "enable_reflect_ftz": bool},
    "hip": {"num_warps": int, "num_stages": int, "waves_per_eu": int, "matrix_instr_nonkdim": int, "kpack": int,
            "enable_fp_fusion": bool, "allow_flush_denorm": bool, "schedule_hint": str, "llvm_fn_attrs": str},
}  # fmt: skip
# Passed to every compile that neither a configuration nor a specialization gives another value, so that no default of
# Triton's, and no variable that changes one, decides. The toolchain's identity covers them; a key lists what was set.
OPTION_DEFAULTS: Mapping[str, Value] = {"enable_fp_fusion": True}
OPTION_ORDER = tuple(dict.fromkeys(name for options in OPTIONS.values() for name in options))

MULTIPROCESSORS = ("device.multiprocessors", "multiprocessors")


def spelled(value: Scalar) -> str:
    """A value as names of functionals and configurations spell it: "bf16", "64", "false"."""
    return str(value).lower() if isinstance(value, bool) else str(value)


@dataclass(frozen=True)
class Argument:
    """An argument of an operation.

    Attributes:
        kind: "tensor", "int" or "float".
        rank: of a tensor; else 0.
        dtype: of a tensor, or None where a choice decides.
        dtype_choice: the choice that decides a tensor's dtype, or None.
        bits: of an integer: 1 (boolean), 32 or 64; of a float: 32 or 64; else 0.
        axes: what a tensor's axes are called; empty where it has a rank alone.
    """

    name: str
    kind: str
    rank: int
    dtype: str | None
    dtype_choice: str | None
    optional: bool
    bits: int
    axes: tuple[str, ...] = ()

    @property
    def values(self) -> tuple[str, ...]:
        """The names that it gives to expressions, in the order in which they lie in `v` (family.h)."""
        if self.kind != "tensor":
            return (self.name,)
        axes = range(self.rank)
        sizes, strides = ([f"{self.name}.{what}[{axis}]" for axis in axes] for what in ("size", "stride"))
        return (f"{self.name}.data", f"{self.name}.dtype", *sizes, *strides)


@dataclass(frozen=True)
class Choice:
    """What a call asks for that changes the kernel itself.

    Attributes:
        kind: "int", "bool", "dtype" or "word".
        match: "exact", "next_larger" or "first_that_fits".
        values: as the recipe spells them: 64, True, "bf16".
        numbers: the same as `v` holds them; a dtype's is its kiln_dtype, a word's its place in the list.
        core: which of the values the core profile has.
        general: the place of the value whose kernels serve calls of every other; None if there is none.
    """

    name: str
    of: Expression
    kind: str
    match: str
    values: tuple[Value, ...]
    numbers: tuple[int, ...]
    core: tuple[bool, ...]
    general: int | None = None

    @property
    def spellings(self) -> tuple[str, ...]:
        return tuple(spelled(value) for value in self.values)


@dataclass(frozen=True)
class Requirement:
    that: Expression
    otherwise: str


@dataclass(frozen=True)
class Definition:
    name: str
    value: Expression


@dataclass(frozen=True)
class Workspace:
    """Device memory from the caller.

    Attributes:
        dtype: of its elements; None where the choice `dtype_choice` decides, or where only bytes are given.
        sizes: of its dimensions, outermost first; () where it has none.
    """

    name: str
    bytes: Expression
    dtype: str | None = None
    dtype_choice: str | None = None
    sizes: tuple[Expression, ...] = ()


DESCRIPTOR = "descriptor"  # the type of a parameter that is a tensor descriptor


@dataclass(frozen=True)
class Descriptor:
    """What a parameter that is a tensor descriptor tells of its tensor.

    Attributes:
        argument: the name of the tensor or workspace.
        dtype: the tensor's, or None where the choice `Parameter.dtype_choice` decides.
        sizes, strides: the tensor's, outermost first.
        box: sides of the tile that one copy moves, outermost first: over choices, constants and configuration values.
    """

    argument: str
    dtype: str | None
    sizes: tuple[Expression, ...]
    strides: tuple[Expression, ...]
    box: tuple[Expression, ...]

    @property
    def rank(self) -> int:
        return len(self.box)


@dataclass(frozen=True)
class Parameter:
    """A parameter of a kernel that is no constexpr.

    Attributes:
        type: Triton's: "*bf16", "i32", "fp32"; "*" and the name of a choice where `dtype_choice` is set; or DESCRIPTOR.
        value: gives it; for fp32 and fp64 the bits of a double; for a descriptor the tensor's address.
        descriptor: of a parameter of type DESCRIPTOR.
    """

    name: str
    type: str
    dtype_choice: str | None
    value: Expression
    descriptor: Descriptor | None = None

    @property
    def count(self) -> int:
        """The parameters that an image takes for it: of a descriptor the map, and a size and a stride of each axis."""
        return 1 if self.descriptor is None else 1 + 2 * self.descriptor.rank


@dataclass(frozen=True)
class Specialization:
    """Holds where each parameter in `divisible` is a multiple and each in `equal_to_one` is 1.

    Attributes:
        divisible: (parameter, 16 or 8): what it is a multiple of.
        overrides: what its images have in place of the configuration's values or of the kernel's constants. Nothing
            that is computed on the host depends on these.
    """

    name: str
    divisible: tuple[tuple[str, int], ...]
    equal_to_one: tuple[str, ...]
    overrides: tuple[tuple[str, Value], ...] = ()


@dataclass(frozen=True)
class Bin:
    name: str
    of: Expression
    edges: tuple[int, ...]


@dataclass(frozen=True)
class Zero:
    address: Expression
    bytes: Expression


@dataclass(frozen=True)
class Configuration:
    """One setting of what changes only speed.

    Attributes:
        values: (name, value), constexpr parameters in the function's order, then compile options.
    """

    values: tuple[tuple[str, Value], ...]

    @cached_property
    def name(self) -> str:
        """ "BLOCK_M=128 BLOCK_N=64 num_warps=4 num_stages=3"."""
        return " ".join(f"{name}={spelled(value)}" for name, value in self.values)

    @cached_property
    def mapping(self) -> Mapping[str, Value]:
        return dict(self.values)

    def overridden(self, values: Iterable[tuple[str, Value]]) -> Configuration:
        """The same with these values in place of its own, or besides them."""
        return Configuration(tuple({**self.mapping, **dict(values)}.items()))


@dataclass(frozen=True)
class ConfigurationSet:
    """Configurations of some targets; `where` is None or what each must fulfil for a functional."""

    targets: tuple[str, ...]
    core: tuple[Configuration, ...]
    full: tuple[Configuration, ...]
    where: Expression | None


def narrowest(sets: Sequence[ConfigurationSet], target: Target) -> tuple[ConfigurationSet, ...]:
    """The sets that count for a target: see Kernel.sets_for."""
    levels = [max(map(target.specificity, entry.targets)) for entry in sets]
    best = max(levels, default=-1)
    return tuple(entry for entry, level in zip(sets, levels) if level == best >= 0)


@dataclass(frozen=True)
class When:
    """A condition on a variant or a call; empty parts hold always.

    Attributes:
        targets: names of targets or groups, one of which must mean the target.
        choices: (choice, values that fulfil it).
        configuration: (name, values that fulfil it).
        specializations: those that fulfil it.
        bins: (bin, first, last): numbers of the bins that fulfil it.
    """

    targets: tuple[str, ...] = ()
    choices: tuple[tuple[str, tuple[Value, ...]], ...] = ()
    configuration: tuple[tuple[str, tuple[Value, ...]], ...] = ()
    specializations: tuple[str, ...] = ()
    bins: tuple[tuple[str, int, int], ...] = ()


@dataclass(frozen=True)
class Rule:
    """Where `when` holds: the first available configuration that has the values of `use`. `place`: "file:line"."""

    when: When
    use: tuple[tuple[str, Value], ...]
    place: str


@dataclass(frozen=True)
class Spill:
    when: When
    bytes: int
    reason: str


@dataclass(frozen=True)
class Unavailable:
    when: When
    reason: str


@dataclass(frozen=True)
class Kernel:
    """An implementation of a kernel, most often its only one: a function and how it is compiled, chosen and launched.

    Attributes:
        name: full: "matmul.hopper"; of an only implementation without a name "matmul".
        implementation: "hopper", or "".
        language: of the source: "triton" or "gluon".
        targets: names of the targets and groups that it is for.
        serves: which calls it can run; None: all.
        reason: why it leaves out the others; "" where the recipe does not say.
        overlaps: it may begin before the call's kernel before it has ended, for whose end it waits by itself.
        ptx: PTX version that its images are assembled from, 86 for 8.6; 0: the target's.
        source: absolute path of its module.
        function: its name there.
        order: all parameters of the function, in order.
        choices: names of the operation's choices that it depends on, the most significant first.
        constants: (constexpr parameter, a number or an expression over choices and configuration values).
        columns: names of the values of configurations, as they lie in `v`; a configuration may lack some.
        place: "file:line" of the recipe.
    """

    name: str
    summary: str
    source: Path
    function: str
    when: Expression | None
    order: tuple[str, ...]
    choices: tuple[str, ...]
    parameters: tuple[Parameter, ...]
    constants: tuple[tuple[str, Expression | Scalar], ...]
    specializations: tuple[Specialization, ...]
    zeros: tuple[Zero, ...]
    grid: tuple[Expression, Expression, Expression]
    bins: tuple[Bin, ...]
    configurations: tuple[ConfigurationSet, ...]
    columns: tuple[str, ...]
    heuristic: tuple[Rule, ...]
    spills: tuple[Spill, ...]
    unavailable: tuple[Unavailable, ...]
    place: str
    implementation: str = ""
    language: str = "triton"
    targets: tuple[str, ...] = ("default",)
    serves: Expression | None = None
    reason: str = ""
    ptx: int = 0
    overlaps: bool = False

    @property
    def kernel(self) -> str:
        """The name that it shares with the kernel's other implementations: "matmul"."""
        return self.name.removesuffix(f".{self.implementation}") if self.implementation else self.name

    @property
    def serves_text(self) -> str:
        """What `serves` says in one line, and the reason: "depth >= 64: shorter rows are slower here"."""
        assert self.serves is not None
        text = " ".join(self.serves.text.split())
        return f"{text}: {self.reason}" if self.reason else text

    @property
    def descriptors(self) -> tuple[Parameter, ...]:
        """The parameters that are tensor descriptors."""
        return tuple(parameter for parameter in self.parameters if parameter.descriptor is not None)

    def is_for(self, target: Target) -> bool:
        return any(map(target.is_called, self.targets))

    def sets_for(self, target: Target) -> tuple[ConfigurationSet, ...]:
        """Those whose narrowest name for the target is the narrowest that any has: they alone count for it."""
        return narrowest(self.configurations, target)

    @property
    def bin_total(self) -> int:
        """Bins of the look-up of one functional."""
        total = 1
        for axis in self.bins:
            total *= len(axis.edges) + 1
        return total


@dataclass(frozen=True)
class Operation:
    """What a call runs. Tuples keep the recipe's order.

    Attributes:
        kernels: all implementations of the first kernel, those of the second, and so on.
    """

    name: str
    summary: str
    arguments: tuple[Argument, ...]
    choices: tuple[Choice, ...]
    definitions: tuple[Definition, ...]
    requirements: tuple[Requirement, ...]
    skip_when: Expression | None
    workspaces: tuple[Workspace, ...]
    kernels: tuple[Kernel, ...]

    def choice(self, name: str) -> Choice:
        return next(choice for choice in self.choices if choice.name == name)

    @property
    def steps(self) -> tuple[tuple[Kernel, ...], ...]:
        """The implementations of each kernel, in the order of launch: a call runs the first that fits it."""
        return tuple(tuple(group) for _, group in itertools.groupby(self.kernels, lambda kernel: kernel.kernel))

    def may_be_replaced(self, kernel: Kernel) -> bool:
        """Whether a call for which no implementation of the kernel fits may run other kernels instead: its `when` reads
        a choice that matches first_that_fits."""
        tried = {choice.name for choice in self.choices if choice.match == "first_that_fits"}
        return kernel.when is not None and not tried.isdisjoint(kernel.when.names)


@dataclass(frozen=True)
class Native:
    """Hand-written C++ of the family's library: absolute paths."""

    sources: tuple[Path, ...]
    headers: tuple[Path, ...]


@dataclass(frozen=True)
class Recipe:
    path: Path
    family: str
    summary: str
    native: Native
    operations: tuple[Operation, ...]
