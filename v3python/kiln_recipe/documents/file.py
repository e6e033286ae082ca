"""What a recipe's YAML may say: the shape alone, from which the JSON schema is made. `read` gives it meaning."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from kiln_recipe.documents.document import MEANS

Text = str | int | bool  # an expression: YAML reads some as numbers or truth values
Value = bool | int | str
MAX_KERNELS = 32  # KILN_MAX_KERNELS
MAX_RANK = 8  # KILN_MAX_RANK


class Shape(msgspec.Struct, frozen=True, forbid_unknown_fields=True):  # checkers want `frozen` of each class below, too
    pass


class ArgumentShape(Shape, frozen=True):
    """An argument of the operation: either a tensor or a scalar."""

    tensor: Annotated[str | None, Meta(description="A dtype, or the choice that decides it.")] = None
    rank: Annotated[
        Annotated[int, Meta(ge=0, le=MAX_RANK)] | None, Meta(description="Of a tensor whose axes have no names.")
    ] = None
    axes: Annotated[
        str | Annotated[tuple[str, ...], Meta(max_length=MAX_RANK)] | None,
        Meta(
            description="Of a tensor, in place of rank: the names of its axes, a letter for each (bhmd) or a list of "
            "words. A kernel's parameter stride_xm is the stride of x along the axis m."
        ),
    ] = None
    alias: Annotated[
        str | tuple[str, ...],
        Meta(description="What else kernels call the tensor: with s, s_ptr is its address and stride_sm a stride."),
    ] = ()
    scalar: Annotated[str | None, Meta(description="bool, int32, int64, fp32 or fp64.")] = None
    optional: Annotated[bool, Meta(description="A tensor that a call may leave out: all its values are 0 then.")] = (
        False
    )
    summary: str = ""


class ChoiceShape(Shape, frozen=True):
    """What a call asks for that changes the kernel itself: an image for each value."""

    of: Annotated[
        Text,
        Meta(description="What the call asks for: an expression over arguments, definitions and the choices above it."),
    ]
    values: Annotated[
        tuple[Value, ...],
        Meta(min_length=1, description="Integers, truth values, dtypes, or words, whose `of` is 0 for the first."),
    ]
    match: Annotated[
        Literal["exact", "next_larger", "first_that_fits"],
        Meta(
            description="next_larger: the smallest value that is not below what is asked for and that a build has. "
            "first_that_fits: what is asked for, or the first value behind it with which each kernel of the call has "
            "an implementation that fits; kernels read it in `when`."
        ),
    ] = "exact"
    core: Annotated[tuple[Value, ...] | None, Meta(description="The values of the core profile; all if not said.")] = (
        None
    )
    general: Annotated[
        Value | None,
        Meta(
            description="The value whose kernels serve calls of every other: it stands in for what a build leaves out."
        ),
    ] = None


Names = str | Annotated[tuple[str, ...], Meta(min_length=1)]


class RequirementShape(Shape, frozen=True):
    """What must hold of a call's arguments: one predicate. An optional tensor that is not there fulfils it."""

    that: Annotated[Text | None, Meta(description="An expression; 0 refuses the call. Needs `otherwise`.")] = None
    contiguous: Annotated[
        Names | None, Meta(description="Tensors that are contiguous; with axes: whose stride along these is 1.")
    ] = None
    not_broadcast: Annotated[
        Names | None, Meta(description="Tensors, which are written, with no stride of 0; with axes: along these.")
    ] = None
    same_shape: Annotated[Names | None, Meta(description="Tensors of one shape; with axes: of one size in each.")] = (
        None
    )
    shape: Annotated[Names | None, Meta(description="Tensors with the sizes that `is` gives.")] = None
    elements: Annotated[
        Names | None, Meta(description="Tensors of rank 1 with `count` elements, one for each of what `each` names.")
    ] = None
    belong_together: Annotated[Names | None, Meta(description="Optional tensors: a call has all of them or none.")] = (
        None
    )
    one_launch: Annotated[
        Annotated[tuple[Text, ...], Meta(min_length=1)] | None,
        Meta(description="Factors, 0 or more, whose product is below 2^31: the blocks of a launch."),
    ] = None
    axes: Annotated[
        str | tuple[str | int, ...] | None, Meta(description="Names of axes: letters (bh) or a list; numbers without.")
    ] = None
    sizes: Annotated[
        tuple[Text, ...] | None,
        Meta(description="An expression for each dimension; '>= expression' where it may be larger."),
    ] = msgspec.field(default=None, name="is")
    count: Annotated[Text | None, Meta(description="An expression.")] = None
    each: Annotated[str | None, Meta(description="What has an element: head, sequence.")] = None
    when: Annotated[Text | None, Meta(description="Asked only of calls for which this is not 0.")] = None
    otherwise: Annotated[
        str | None, Meta(description="The sentence for the caller; a predicate other than `that` has one of its own.")
    ] = None


class ParameterShape(Shape, frozen=True):
    """A parameter of the kernel that is no constexpr, and whose type or value does not follow from its name."""

    type: Annotated[
        str | None,
        Meta(
            description="'*fp32', '*' and a choice of dtypes, or i1, i8 to i64, u8 to u64, fp32, fp64. If not said: a "
            "pointer for a tensor or workspace, a scalar argument's own, i64 for strides, else i32."
        ),
    ] = None
    value: Annotated[
        bool | int | float | str | None,
        Meta(
            description="An expression, a number, or the name of a tensor or workspace, whose address it is then. If "
            "not said, it follows from the parameter's name."
        ),
    ] = None
    descriptor: Annotated[
        str | None,
        Meta(description="In place of type and value: the tensor argument that the parameter is a descriptor of."),
    ] = None
    box: Annotated[
        tuple[Text, ...],
        Meta(
            description="Of a descriptor: the sides of the tile that one copy moves, a side for each dimension of the "
            "tensor, powers of two up to 256: expressions over choices, constants and configuration values."
        ),
    ] = ()


class SpecializationShape(Shape, frozen=True):
    """An image of its own for calls whose parameters are like this. The first that holds is taken."""

    divisible_by_16: Annotated[tuple[str, ...], Meta(description="Parameters; * stands for any letters.")] = ()
    divisible_by_8: Annotated[tuple[str, ...], Meta(description="Parameters; * stands for any letters.")] = ()
    equal_to_1: Annotated[tuple[str, ...], Meta(description="Parameters, which the image does not take then.")] = ()
    overrides: Annotated[
        dict[str, Value],
        Meta(description="constexpr parameters and compile options of its images, whatever the configuration says."),
    ] = {}


class WorkspaceShape(Shape, frozen=True):
    """Device memory that the caller gives, as elements of one dtype."""

    dtype: Annotated[str, Meta(description="A dtype, or the choice that decides it.")]
    elements: Annotated[
        Text | None, Meta(description="How many: an expression. 0: none is needed. Or else `shape`.")
    ] = None
    shape: Annotated[
        Annotated[tuple[Text, ...], Meta(min_length=1, max_length=5)] | None,
        Meta(description="Its sizes, of a workspace that a tensor descriptor describes."),
    ] = None


class BinShape(Shape, frozen=True):
    """An axis of the look-up: the number of edges that are not above the value."""

    of: Text
    edges: Annotated[tuple[int, ...], Meta(min_length=1, description="Ascending.")]


class ZeroShape(Shape, frozen=True):
    """Device memory that is set to zero before the kernel."""

    address: Text
    bytes: Text


Axis = Value | tuple[Value, ...]


class ConfigurationsShape(Shape, frozen=True):
    """Configurations; where an entry gives lists, each combination is one."""

    targets: Annotated[
        str | tuple[str, ...],
        Meta(description="Names of targets or groups, or default. The narrowest name that means a target decides."),
    ] = "default"
    core: Annotated[tuple[dict[str, Axis], ...], Meta(description="In every profile.")] = ()
    full: Annotated[tuple[dict[str, Axis], ...], Meta(description="In the full profile besides.")] = ()
    where: Annotated[
        Text | None, Meta(description="Over choices and the configuration's values; 0 leaves the configuration out.")
    ] = None


class RuleShape(Shape, frozen=True):
    """Where `when` matches: the first configuration that has the values of `use`."""

    when: Annotated[
        dict[str, Any],
        Meta(description="Choices (a value or a list), bins ({at_least: edge, below: edge}), targets. Empty: always."),
    ] = {}
    use: dict[str, Value] = {}


class SpillShape(Shape, frozen=True):
    """Spills that are allowed."""

    bytes: Annotated[int, Meta(ge=0, description="A thread.")]
    reason: str
    when: Annotated[
        dict[str, Any], Meta(description="Choices, configuration values, specialization, targets. Empty: always.")
    ] = {}


class RowShape(Shape, frozen=True):
    """Configurations for the functionals that `where` means; where an entry gives lists, each combination is one."""

    where: Annotated[
        Text | None, Meta(description="Over choices and the configuration's values; 0 leaves the configuration out.")
    ] = None
    core: Annotated[tuple[dict[str, Axis], ...], Meta(description="In every profile.")] = ()
    full: Annotated[tuple[dict[str, Axis], ...], Meta(description="In the full profile besides.")] = ()


class TableShape(Shape, frozen=True):
    """The configurations of some targets, in the order in which they are numbered."""

    targets: Annotated[
        str | tuple[str, ...],
        Meta(description="Names of targets or groups, or default. The narrowest name that means a target decides."),
    ]
    rows: Annotated[tuple[RowShape, ...], Meta(min_length=1)]


class SpaceShape(Shape, frozen=True):
    """What may be compiled of a kernel, of which tuned rules take one: tuning/<family>/space/<kernel>.yaml."""

    tables: Annotated[tuple[TableShape, ...], Meta(min_length=1)]
    define: Annotated[
        dict[str, Text], Meta(description="Names for conditions that `where` may read; a later may read an earlier.")
    ] = {}
    spills: Annotated[tuple[SpillShape, ...], Meta(description="The largest that matches counts.")] = ()
    summary: str = ""


class UnavailableShape(Shape, frozen=True):
    """Variants that may be missing: left out, with this reason, if they fail or are unfit."""

    reason: str
    when: Annotated[
        dict[str, Any], Meta(description="Choices, configuration values, specialization, targets. Empty: always.")
    ] = {}


class ImplementationShape(Shape, frozen=True):
    """A function and how it is compiled, chosen and launched."""

    source: Annotated[str, Meta(description="The file, relative to the recipe.")] = ""
    grid: Annotated[
        tuple[Text, ...],
        Meta(min_length=1, max_length=3, description="Blocks in each dimension; may read the parameters."),
    ] = ()
    parameters: Annotated[
        dict[str, ParameterShape | bool | int | float | str],
        Meta(
            description="Those of the function's parameters, constexpr ones apart, that do not follow from their "
            "names: x_ptr is the tensor or workspace x, stride_xm the stride of x along its axis m, stride_x that of "
            "its first axis, and a parameter with the name of a scalar argument, a definition or a choice is that. An "
            "expression, or {type, value}."
        ),
    ] = {}
    configurations: Annotated[
        tuple[ConfigurationsShape, ...],
        Meta(
            min_length=1,
            description="If not said, they stand in tuning/<family>/space/<kernel>.yaml, beside the recipe or above.",
        ),
    ] = ()
    language: Annotated[Literal["triton", "gluon"], Meta(description="What the source is written in.")] = "triton"
    targets: Annotated[
        str | tuple[str, ...], Meta(description="Names of the targets or groups that it is for, or default: all.")
    ] = "default"
    serves: Annotated[
        Text | None,
        Meta(description="Which calls it can run: an expression, read as `when` is; every call if not said."),
    ] = None
    reason: Annotated[
        str, Meta(description="Why it leaves the other calls to implementations behind it: a clause for who asks.")
    ] = ""
    ptx: Annotated[
        str, Meta(description="The PTX version that its images are assembled from, '8.6'; the target's if not said.")
    ] = ""
    overlaps: Annotated[
        bool,
        Meta(description="It may begin before the call's kernel before it has ended; it waits for that by gdc_wait()."),
    ] = False
    function: Annotated[str | None, Meta(description="Its name in the file; the kernel's own if not said.")] = None
    constants: Annotated[
        dict[str, bool | int | float | str],
        Meta(description="constexpr parameters: numbers, or expressions over choices and configuration values."),
    ] = {}
    specializations: Annotated[
        dict[str, SpecializationShape], Meta(description="In the order in which they are tried; the last always holds.")
    ] = {}
    zero: Annotated[tuple[str | ZeroShape, ...], Meta(description="Names of workspaces or tensors, or ranges.")] = ()
    lookup: Annotated[dict[str, BinShape], Meta(description="What the choice of a configuration depends on.")] = {}
    heuristic: Annotated[tuple[RuleShape, ...], Meta(description="Where nothing is tuned.")] = ()
    spills: tuple[SpillShape, ...] = ()
    unavailable: tuple[UnavailableShape, ...] = ()
    summary: str = ""


class KernelShape(ImplementationShape, frozen=True):
    """A kernel: its only implementation, or several, for which the rest says what all share."""

    when: Annotated[Text | None, Meta(description="0 leaves the kernel out of the call.")] = None
    choices: Annotated[tuple[str, ...], Meta(description="Those that the kernel depends on.")] = ()
    implementations: Annotated[
        dict[str, ImplementationShape],
        Meta(description="By name, in the order in which they are tried; the first that fits a call runs."),
    ] = {}


class OperationShape(Shape, frozen=True):
    """What a call runs: one kernel, or several one after another."""

    arguments: Annotated[dict[str, ArgumentShape], Meta(min_length=1, description="In the order of a call.")]
    kernels: Annotated[
        dict[str, KernelShape], Meta(min_length=1, max_length=MAX_KERNELS, description="In the order of launch.")
    ]
    choices: dict[str, ChoiceShape] = {}
    define: Annotated[dict[str, Text], Meta(description="Names for expressions; a later may read an earlier.")] = {}
    require: tuple[RequirementShape, ...] = ()
    skip_when: Annotated[Text | None, Meta(description="Not 0: nothing to do, and the call succeeds.")] = None
    workspace: Annotated[
        dict[str, WorkspaceShape | Text],
        Meta(description="Device memory that the caller gives, by name: {dtype, elements}, or an expression: bytes."),
    ] = {}
    summary: str = ""


class NativeShape(Shape, frozen=True):
    """Hand-written C++ of the family's library: typed entries. What they include stands beside them, in *.h."""

    sources: tuple[str, ...] = ()
    headers: tuple[str, ...] = ()


class RecipeShape(Shape, frozen=True):
    """A family of kernels."""

    family: Annotated[
        str,
        Meta(
            pattern="^[a-z][a-z0-9_]*$",
            description="The library is libkiln_<family>.so.",
            extra={MEANS: "small letters, digits and _, and begin with a letter"},
        ),
    ]
    operations: Annotated[dict[str, OperationShape], Meta(min_length=1)]
    summary: str = ""
    axes: Annotated[
        dict[str, str],
        Meta(description="What sizes along an axis are called in sentences for callers: {b: batch size}."),
    ] = {}
    native: NativeShape = NativeShape()
    shared: Annotated[
        dict[str, dict[str, Any] | tuple[Any, ...]],
        Meta(description="Mappings and lists that others include: {include: name} stands for all entries of one."),
    ] = {}


class TuningRunShape(Shape, frozen=True):
    """Where rules come from; no rule depends on it."""

    by: Annotated[str, Meta(description="The command.")]
    date: Annotated[str, Meta(description="2026-11-25, in quotes.")]
    device: str
    driver: str = ""
    clock: Annotated[str, Meta(description="Of the multiprocessors: 1700 to 1980 MHz.")] = ""
    release: str = ""
    pack: Annotated[str, Meta(description="Its sha256.")] = ""
    calls: Annotated[int, Meta(description="How many were measured.", ge=0)] = 0
    spread: Annotated[str, Meta(description="How far the quartiles of a candidate's times are apart.")] = ""
    images: Annotated[
        tuple[str, ...], Meta(description="Those measured: twelve digits of each key. None: they were not kept.")
    ] = ()
    outdated: Annotated[bool, Meta(description="The tree makes other images by now, or the keys were not kept.")] = (
        False
    )
    note: str = ""


class EarlierRulesShape(Shape, frozen=True):
    """Rules of an earlier run that later ones left."""

    kernels: dict[str, tuple[RuleShape, ...]]
    run: TuningRunShape | None = None


class TuningShape(Shape, frozen=True):
    """Tuned rules for one family on one target: tuning/<family>/<target>.yaml."""

    kernels: Annotated[
        dict[str, tuple[RuleShape, ...]], Meta(description="Rules by kernel; the first that fits decides.")
    ]
    summary: str = ""
    run: Annotated[TuningRunShape | None, Meta(description="What the rules of `kernels` come from.")] = None
    earlier: Annotated[
        tuple[EarlierRulesShape, ...],
        Meta(description="Of earlier runs, the latest first; they stand behind `kernels`."),
    ] = ()
