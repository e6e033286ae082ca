"""`kiln recipes`: the families that can be built, checked; a new recipe from a kernel; and the JSON schema."""

from __future__ import annotations

import argparse
import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from kiln_build.base import ROOT, command
from kiln_recipe import targets
from kiln_recipe.console.spelling import print_text, say
from kiln_recipe.console.usage import path
from kiln_recipe.errors import UsageError

if TYPE_CHECKING:
    from kiln_recipe.model import Argument, Kernel, Operation, Parameter, Recipe

EXAMPLE = """
kiln recipes                            the families of this tree: their operations, choices and kernels
kiln recipes my/recipe.yaml             check one, anywhere
kiln recipes --new my/kernel.py         write my/recipe.yaml from the signature of a kernel, to be checked
kiln recipes --schema > recipe.json     for editors that complete YAML
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "recipe",
        nargs="*",
        type=path("the recipe", "the path of a recipe.yaml"),
        help="files to check; default: tritonsrc/*/recipe.yaml; with --new the names of kernels",
    )
    parser.add_argument(
        "--new",
        type=path("--new", "the Python file of a kernel"),
        metavar="KERNEL.PY",
        help="write a recipe's skeleton from the signature of a kernel, which is not imported; what it guesses is "
        "marked TODO",
    )
    parser.add_argument(
        "--output",
        type=path("--output", "the file to write, or -"),
        metavar="FILE",
        help="where --new writes, or - for standard output; default: recipe.yaml beside the kernel; a file that is "
        "there stays",
    )
    parser.add_argument("--json", action="store_true", help="as JSON: a list, with family, path and operations of each")
    parser.add_argument("--schema", action="store_true", help="print the JSON schema of a recipe, and nothing else")


def check(arguments: argparse.Namespace) -> None:
    if arguments.new is not None and (arguments.schema or arguments.json):
        raise UsageError(f"--new writes a recipe; leave --{'schema' if arguments.schema else 'json'} out")
    if arguments.output is not None and arguments.new is None:
        raise UsageError("--output is for --new alone; for example: `kiln recipes --new my/kernel.py --output -`")
    if arguments.schema and arguments.recipe:
        raise UsageError("--schema is the same for all recipes; leave the files out")


def run(arguments: argparse.Namespace) -> int:
    from kiln_recipe.read import recipe  # here, so that --help needs no package

    if arguments.new is not None:
        return _write_new(arguments)
    if arguments.schema:
        print(json.dumps(recipe.schema(), indent=2))
        return 0
    recipes = [recipe.load(path) for path in arguments.recipe or recipe.find(ROOT)]
    for one in recipes:
        _warn(one)
    if arguments.json:
        print(json.dumps([_recipe(one) for one in recipes], indent=2))
        return 0
    for one in recipes:
        print_text(f"{one.family}  {one.summary}".rstrip())
        print_text(f"  {_shown(one.path)}")
        for operation in one.operations:
            _print_operation(one, operation)
    return 0


def _write_new(arguments: argparse.Namespace) -> int:
    """Writes a skeleton, and reads it as any recipe: what it does not hold in is said with its line."""
    from kiln_build.skeleton import write
    from kiln_recipe.read import recipe

    names = tuple(map(str, arguments.recipe))
    if arguments.output == Path("-"):
        print(write.skeleton(arguments.new, names, arguments.new.parent), end="")
        return 0
    output = arguments.output or arguments.new.parent / "recipe.yaml"
    checks = write.write(arguments.new, names, output)
    recipe.load(output)
    print_text(f"wrote {_shown(output)}; {checks} places to check are marked TODO")
    kiln = command()
    print_text(f"next: {kiln} plan sm_90 --recipe {shlex.quote(_shown(output))}")
    print_text(f"then: {kiln} build input workspace output 0.1.0b sm_90 --recipe {shlex.quote(_shown(output))}")
    return 0


def _warn(one: Recipe) -> None:
    """Says what can be right, but seldom is."""
    from kiln_recipe.read import recipe

    if any(own.parent.name == one.family and not own.samefile(one.path) for own in recipe.find(ROOT)):
        say(f"warning: {_shown(one.path)}: Kiln has a family {one.family}; a build needs another name here")
    for operation in one.operations:
        for name in _never_asked_for(operation):
            say(
                f"warning: {_shown(one.path)}: no choice or `when` of {operation.name} asks given({name}), so its "
                f"kernels cannot know that a call leaves {name} out: have a choice "
                f"has_{name}: {{of: given({name}), values: [false, true]}}, and its constant in the kernel"
            )


def _never_asked_for(operation: Operation) -> list[str]:
    """The optional tensors of which nothing that kernels depend on asks whether a call has them, nor of one that
    must be there with them."""
    kernels = operation.kernels
    deciding = [choice.of for choice in operation.choices] + [one.value for one in operation.definitions]
    deciding += [e for kernel in kernels for e in (kernel.when, kernel.serves) if e is not None]
    deciding += [p.value for kernel in kernels for p in kernel.parameters if not p.type.startswith("*")]
    asked = {name for expression in deciding for name in expression.names}
    optional = {f"{argument.name}.data": argument.name for argument in operation.arguments if argument.optional}
    groups = [optional.keys() & requirement.that.names for requirement in operation.requirements]
    asked |= {name for group in groups if group & asked for name in group}
    return [argument for address, argument in optional.items() if address not in asked]


_MATCHES = {
    "exact": "",
    "next_larger": ", the smallest that is large enough",
    "first_that_fits": ", the first whose kernels all fit",
}


def _print_operation(one: Recipe, operation: Operation) -> None:
    print_text(f"  {one.family}.{operation.name}  {operation.summary}".rstrip())
    print(f"    arguments  {', '.join(f'{a.name}: {_type(a)}' for a in operation.arguments)}")
    for choice in operation.choices:
        serves = _MATCHES[choice.match]
        if choice.general is not None:
            serves = f"; {choice.spellings[choice.general]} also serves what a build leaves out"
        print(f"    choice     {choice.name} = {', '.join(choice.spellings)}{serves}")
    for kernel in operation.kernels:
        core = sum(len(entry.core) for entry in kernel.configurations)
        full = sum(len(entry.full) for entry in kernel.configurations)
        specializations = ", ".join(entry.name for entry in kernel.specializations)
        print(
            f"    kernel     {kernel.name}: {_restrictions(kernel)}"
            f"depends on {', '.join(kernel.choices) or 'no choice'}; "
            f"{core} core and {full} more configurations over all targets{_unserved(kernel)}; {specializations}"
        )


def _unserved(kernel: Kernel) -> str:
    """ ", none for gfx1100": the targets that a build of the kernel would refuse."""
    names = [target.name for target in targets.load() if kernel.is_for(target) and not kernel.sets_for(target)]
    return f", none for {', '.join(names)}" if names else ""


def _restrictions(kernel: Kernel) -> str:
    """ "for hopper, in Gluon, where depth >= 64; ": what sets an implementation apart."""
    parts = [f"for {', '.join(kernel.targets)}"] if kernel.targets != ("default",) else []
    parts += [f"in {kernel.language.capitalize()}"] if kernel.language != "triton" else []
    parts += [f"where {' '.join(kernel.serves.text.split())}"] if kernel.serves is not None else []
    return f"{', '.join(parts)}; " if parts else ""


def _recipe(one: Recipe) -> dict:
    return {
        "family": one.family,
        "summary": one.summary,
        "path": str(one.path),
        "operations": [
            {
                "name": f"{one.family}.{operation.name}",
                "summary": operation.summary,
                "arguments": [
                    {"name": a.name, "type": _type(a), "rank": a.rank, "optional": a.optional}
                    for a in operation.arguments
                ],
                "choices": [
                    {
                        "name": c.name,
                        "of": c.of.text,
                        "match": c.match,
                        "values": list(c.values),
                        "core": [value for value, is_core in zip(c.values, c.core) if is_core],
                        "general": None if c.general is None else c.values[c.general],
                    }
                    for c in operation.choices
                ],
                "kernels": [_kernel(kernel) for kernel in operation.kernels],
            }
            for operation in one.operations
        ],
    }


def _kernel(kernel: Kernel) -> dict:
    from kiln_recipe.read import fingerprint

    return {
        "name": kernel.name,
        "summary": kernel.summary,
        "source": str(kernel.source),
        "function": kernel.function,
        "fingerprint": fingerprint.fingerprint(kernel.source, kernel.function),
        "language": kernel.language,
        "targets": list(kernel.targets),
        "serves": None if kernel.serves is None else kernel.serves.text,
        "reason": kernel.reason or None,
        "ptx": f"{kernel.ptx // 10}.{kernel.ptx % 10}" if kernel.ptx else None,
        "choices": list(kernel.choices),
        "parameters": [_parameter(parameter) for parameter in kernel.parameters],
        "specializations": [s.name for s in kernel.specializations],
        "bins": [{"name": b.name, "of": b.of.text, "edges": list(b.edges)} for b in kernel.bins],
        "configurations": [
            {
                "targets": list(entry.targets),
                "core": [dict(c.values) for c in entry.core],
                "full": [dict(c.values) for c in entry.full],
            }
            for entry in kernel.configurations
        ],
    }


def _parameter(parameter: Parameter) -> dict:
    row: dict = {"name": parameter.name, "type": parameter.type, "value": parameter.value.text}
    if parameter.descriptor is not None:
        row["descriptor"] = parameter.descriptor.argument
        row["box"] = [side.text for side in parameter.descriptor.box]
    return row


def _type(argument: Argument) -> str:
    if argument.kind == "tensor":
        optional = ", optional" if argument.optional else ""
        return f"{argument.dtype or argument.dtype_choice}[rank {argument.rank}{optional}]"
    return "bool" if argument.bits == 1 else f"{'fp' if argument.kind == 'float' else 'int'}{argument.bits}"


def _shown(path: Path) -> str:
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)
