"""Writes a family's dispatch tables: constexpr plain data in C++, after include/kiln/family.h.

All that is decided here is how rows are spelled. Which variants exist is the plan's decision, what a table means is
family.h's, and the text around the rows is templates/family.cc.jinja's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import jinja2

from kiln_recipe.call.layout import Layout, layout
from kiln_recipe.dtypes import DTYPES
from kiln_recipe.expressions import CPP_PROLOGUE, Expression
from kiln_recipe.model import Argument, Kernel, Operation, Parameter, Recipe
from kiln_recipe.plan.model import KernelPlan
from kiln_recipe.targets import PTX_DRIVERS, Target

_ARGUMENT_KINDS = {"tensor": "KILN_ARG_TENSOR", "int": "KILN_ARG_INT", "float": "KILN_ARG_FLOAT"}
_MATCHES = {
    "exact": "KILN_MATCH_EXACT",
    "next_larger": "KILN_MATCH_NEXT_LARGER",
    "first_that_fits": "KILN_MATCH_FIRST_THAT_FITS",
}
_VENDORS = {"nvidia": "KILN_VENDOR_NVIDIA", "amd": "KILN_VENDOR_AMD"}

_environment = jinja2.Environment(
    loader=jinja2.PackageLoader("kiln_build.native"),
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)


def render(template: str, **values: object) -> str:
    """The text of a template of templates/; each name that it uses must be there."""
    return _environment.get_template(template).render(**values)


@dataclass(frozen=True)
class KernelTables:
    """What the tables say of a kernel on one target: its plan there, and the look-up, a configuration a bin."""

    plan: KernelPlan
    lookup: bytes


def family_source(
    recipe: Recipe,
    kernels: Sequence[KernelTables],
    targets: Sequence[Target],
    served: Mapping[tuple[str, str], Mapping[str, Sequence[int]]],
    index_digests: Mapping[str, str],
    version: str,
) -> str:
    """The C++ source of a family's tables.

    Args:
        kernels: for each kernel of the recipe and each target that has it.
        targets: all targets of the release.
        served: the plan's (Plan.served).
        index_digests: digest of the pack's index by target; empty for a library without images.
    """
    expressions = _Expressions()
    return render(
        "family.cc.jinja",
        family=recipe.family,
        family_string=c_string(recipe.family),
        version=version,
        version_string=c_string(version),
        prologue=CPP_PROLOGUE,
        operations=[
            _operation(operation, kernels, served[recipe.family, operation.name], expressions)
            for operation in recipe.operations
        ],
        expressions=expressions.rows,
        packs=[
            {
                "id": _identifier("pack", target.name),
                "file": c_string(target.pack_file),
                "target": c_string(target.name),
                "vendor": _VENDORS[target.vendor],
                "digest": index_digests.get(target.name),
                "runs_on": [*map(c_string, target.runs_on), "nullptr"],
            }
            for target in targets
        ],
    )


def c_string(text: str) -> str:
    """A C string literal; what is not printable ASCII is written in octal, which no following digit can extend."""
    parts = []
    for byte in text.encode():
        char = chr(byte)
        parts.append(char if 32 <= byte < 127 and char not in '"\\?' else f"\\{byte:03o}")
    return '"' + "".join(parts) + '"'


class _Expressions:
    """The expressions of a family as C++ functions, each text once."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}

    def add(self, expression: Expression | None, index_of: Mapping[str, int]) -> str:
        """The name of the function that evaluates `expression`; nullptr for None."""
        if expression is None:
            return "nullptr"
        code = expression.to_cpp(index_of)
        return self._names.setdefault(code, f"e{len(self._names)}")

    @property
    def rows(self) -> list[dict[str, str]]:
        return [{"name": name, "code": code} for code, name in self._names.items()]


def _operation(
    operation: Operation,
    kernels: Sequence[KernelTables],
    served: Mapping[str, Sequence[int]],
    expressions: _Expressions,
) -> dict:
    places = layout(operation)
    identifier = _identifier(operation.name)
    choice_numbers = {choice.name: number for number, choice in enumerate(operation.choices)}
    choices = [
        {
            "values_name": f"{identifier}_{_identifier(choice.name)}_values",
            "spellings_name": f"{identifier}_{_identifier(choice.name)}_spellings",
            "integers": [f"INT64_C({number})" for number in choice.numbers],
            "spellings": [c_string(spelling) for spelling in choice.spellings],
            "served_name": f"{identifier}_{_identifier(choice.name)}_served",
            "served": served[choice.name],
        }
        for choice in operation.choices
    ]
    rows = _operation_rows(operation, choices, choice_numbers, places, expressions)
    kernel_tables = [
        _kernel(
            identifier,
            number,
            kernel,
            choice_numbers,
            places,
            [k for k in kernels if k.plan.kernel is kernel],
            expressions,
        )
        for number, step in enumerate(operation.steps)
        for kernel in step
    ]
    tables = [f"{identifier}_{name}" if getattr(operation, of) else "nullptr" for name, of in (
        ("arguments", "arguments"), ("choices", "choices"), ("definitions", "definitions"), ("define", "definitions"),
        ("requirements", "requirements"), ("check", "requirements"), ("workspaces", "workspaces"),
    )]  # fmt: skip
    return {
        "name": operation.name,
        "id": identifier,
        "choices": choices,
        "definitions": [c_string(definition.name) for definition in operation.definitions],
        "definition_codes": [(places.definitions[d.name], d.value.to_cpp(places.call)) for d in operation.definitions],
        "requirements": [c_string(requirement.otherwise) for requirement in operation.requirements],
        "requirement_codes": [requirement.that.to_cpp(places.call) for requirement in operation.requirements],
        "kernels": kernel_tables,
        **rows,
        "row": (
            c_string(operation.name),
            expressions.add(operation.skip_when, places.operation),
            *tables,
            f"{identifier}_kernels",
            len(operation.arguments),
            len(operation.choices),
            len(operation.definitions),
            len(operation.requirements),
            len(operation.workspaces),
            len(operation.kernels),
            places.multiprocessors,
            places.count,
        ),
    }


def _operation_rows(
    operation: Operation, choices: Sequence[Mapping], choice_numbers: Mapping[str, int], places: Layout,
    expressions: _Expressions,
) -> dict[str, list[tuple]]:  # fmt: skip
    """The rows of an operation's tables. `choices`: the names of the tables of each choice's values."""
    return {
        "argument_rows": [
            (
                c_string(argument.name),
                _ARGUMENT_KINDS[argument.kind],
                argument.rank,
                _argument_dtype(argument, choice_numbers),
                int(argument.optional),
                places.arguments[argument.name],
                argument.bits if argument.kind == "int" else 0,
            )
            for argument in operation.arguments
        ],
        "choice_rows": [
            (
                c_string(choice.name),
                expressions.add(choice.of, places.asked[choice.name]),
                _MATCHES[choice.match],
                len(choice.values),
                names["values_name"],
                names["spellings_name"],
                names["served_name"],
                places.choices[choice.name],
                0,
            )
            for choice, names in zip(operation.choices, choices)
        ],
        "workspace_rows": [
            (c_string(w.name), expressions.add(w.bytes, places.operation), places.workspaces[w.name], 0)
            for w in operation.workspaces
        ],
    }


def _kernel(
    operation: str, number: int, kernel: Kernel, choice_numbers: Mapping[str, int], places: Layout,
    tables: Sequence[KernelTables], expressions: _Expressions,
) -> dict:  # fmt: skip
    index = places.kernels[kernel.name]
    implementation = ("implementation", kernel.implementation) if kernel.implementation else ()
    identifier = _identifier(operation, kernel.kernel, *implementation)
    positions = {parameter.name: number for number, parameter in enumerate(kernel.parameters)}

    def mask(names: Sequence[str]) -> str:
        return f"UINT64_C({sum(1 << positions[name] for name in names):#x})"

    bins = [
        {"edges_name": f"{identifier}_{_identifier(axis.name)}_edges", "edges": [f"INT64_C({e})" for e in axis.edges]}
        for axis in kernel.bins
    ]
    rows = {
        "parameter_rows": [
            (
                c_string(p.name),
                _parameter_type(p.type),
                kernel.descriptors.index(p) if p.descriptor else 0,
            )
            for p in kernel.parameters
        ],
        "descriptor_rows": [_descriptor(p, choice_numbers, index, expressions) for p in kernel.descriptors],
        "specialization_rows": [
            (
                c_string(s.name),
                *(mask([name for name, factor in s.divisible if factor == of]) for of in (16, 8)),
                mask(s.equal_to_one),
            )
            for s in kernel.specializations
        ],
        "bin_rows": [
            (c_string(axis.name), expressions.add(axis.of, places.operation), names["edges_name"], len(axis.edges), 0)
            for axis, names in zip(kernel.bins, bins)
        ],
        "zero_rows": [(expressions.add(z.address, index), expressions.add(z.bytes, index)) for z in kernel.zeros],
    }

    def table(name: str, filled: object) -> str:
        return f"{identifier}_{name}" if filled else "nullptr"

    return {
        "id": identifier,
        "choices": [choice_numbers[name] for name in kernel.choices],
        "bins": bins,
        "parameter_codes": [parameter.value.to_cpp(index) for parameter in kernel.parameters],
        **rows,
        "targets": [_kernel_target(identifier, entry) for entry in tables],
        "row": (
            c_string(kernel.kernel),
            c_string(kernel.implementation) if kernel.implementation else "nullptr",
            expressions.add(kernel.when, places.operation),
            expressions.add(kernel.serves, places.operation),
            c_string(kernel.serves_text) if kernel.serves else "nullptr",
            table("choices", kernel.choices),
            table("parameters", kernel.parameters),
            table("evaluate", kernel.parameters),
            table("specializations", kernel.specializations),
            table("bins", kernel.bins),
            table("zeros", kernel.zeros),
            table("descriptors", kernel.descriptors),
            table("targets", tables),
            "{" + ", ".join(expressions.add(axis, index) for axis in kernel.grid) + "}",
            number,
            len(kernel.choices),
            len(kernel.parameters),
            len(kernel.specializations),
            len(kernel.bins),
            len(kernel.zeros),
            len(kernel.descriptors),
            len(tables),
            places.configuration,
            len(kernel.columns),
            int(kernel.overlaps),
            0,
        ),
    }


def _descriptor(
    parameter: Parameter, choice_numbers: Mapping[str, int], index: Mapping[str, int], expressions: _Expressions
) -> tuple:
    descriptor = parameter.descriptor
    assert descriptor is not None

    def axes(values: Sequence[Expression]) -> str:
        return "{" + ", ".join(expressions.add(value, index) for value in values) + "}"

    return (
        c_string(descriptor.argument),
        descriptor.rank,
        -1 - choice_numbers[parameter.dtype_choice] if parameter.dtype_choice else DTYPES[str(descriptor.dtype)],
        axes(descriptor.sizes),
        axes(descriptor.strides),
    )


def _kernel_target(kernel_identifier: str, entry: KernelTables) -> dict:
    plan = entry.plan
    return {
        "id": _identifier(kernel_identifier, plan.target.name),
        "string": c_string(plan.target.name),
        "numbers": [f"INT64_C({value})" for row in plan.configuration_rows for value in row],
        "names": [c_string(configuration.name) for configuration in plan.configurations],
        "lookup": list(entry.lookup),
        "layout": plan.layout,
        "driver": plan.target.assembly(plan.kernel.ptx).driver,
        "ptx_driver": PTX_DRIVERS[plan.kernel.ptx or plan.target.ptx_version] if plan.target.ptx_version else 0,
    }


def _argument_dtype(argument: Argument, choice_numbers: Mapping[str, int]) -> int:
    if argument.dtype_choice:
        return -1 - choice_numbers[argument.dtype_choice]
    return DTYPES[argument.dtype] if argument.dtype else 0


def _parameter_type(triton_type: str) -> str:
    return "KILN_PARAMETER_" + ("POINTER" if triton_type.startswith("*") else triton_type.upper())


def _identifier(*words: str) -> str:
    return re.sub(r"[^A-Za-z0-9_]", "_", "_".join(words))
