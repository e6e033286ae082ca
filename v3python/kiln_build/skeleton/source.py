"""A file with kernels: which functions are kernels, and which are helpers that these call."""

from __future__ import annotations

import ast
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kiln_recipe.errors import EnvironmentProblem, RecipeError, UsageError
from kiln_recipe.read import fingerprint
from kiln_recipe.suggest import nearest

_LARGEST = 4 << 20  # bytes: no kernel's source is so large


@dataclass(frozen=True)
class Source:
    """A parsed file.

    Attributes:
        functions: those with the decorator jit, by name, in their order.
        helpers: what a kernel of the file may call, by the name that the file has for it.
        kernels: the functions that no other calls.
        inside: by the name of a function that stands in a function or a class, which one.
    """

    path: Path
    functions: Mapping[str, ast.FunctionDef]
    helpers: Mapping[str, ast.FunctionDef]
    kernels: tuple[str, ...]
    inside: Mapping[str, str]


def read(path: Path) -> Source:
    """
    Raises:
        EnvironmentProblem: it cannot be read.
        RecipeError: it is not Python, or has no kernel.
    """
    tree = _parse(path)
    functions = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and _is_jit(node)}
    if not functions:
        raise RecipeError(
            f"{path}:1: has no function that is decorated with @triton.jit or @gluon.jit; give the kernels' own file"
        )
    helpers = dict(functions)
    for node in (node for node in tree.body if isinstance(node, ast.ImportFrom)):
        beside = path.parent / f"{node.module}.py"
        if node.level == 0 and node.module and "." not in node.module and beside.is_file():
            found = {inner.name: inner for inner in ast.walk(_parse(beside)) if isinstance(inner, ast.FunctionDef)}
            helpers |= {a.asname or a.name: found[a.name] for a in node.names if a.name in found}
    called = {
        inner.func.id
        for function in functions.values()
        for inner in ast.walk(function)
        if isinstance(inner, ast.Call) and isinstance(inner.func, ast.Name) and inner.func.id != function.name
    }
    kernels = tuple(name for name in functions if name not in called)
    inside = {
        inner.name: outer.name
        for outer in ast.walk(tree)
        if isinstance(outer, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
        for inner in ast.walk(outer)
        if isinstance(inner, ast.FunctionDef) and inner is not outer
    }
    return Source(path, functions, helpers, kernels or tuple(functions), inside)


def chosen(source: Source, names: tuple[str, ...]) -> tuple[str, ...]:
    """The kernels that are meant.

    Raises:
        UsageError: none is named where the file has several, or one that is none is.
    """
    for place, name in enumerate(names):
        if name not in source.functions:
            raise UsageError(f"{source.path} has no kernel {name!r}; {nearest(name, source.functions, 'kernels')}")
        if name in names[:place]:
            raise UsageError(f"the kernel {name} is named twice; name it once")
    if not names and len(source.kernels) > 1:
        listed = ", ".join(source.kernels)
        raise UsageError(
            f"{source.path} has {len(source.kernels)} kernels: {listed}; name those that the recipe is for behind the "
            "file, one or several"
        )
    return names or source.kernels


def check(source: Source, name: str) -> tuple[str, ...]:
    """The constexpr parameters of a kernel, which is such that a recipe can have it.

    Raises:
        RecipeError: it is not.
    """
    if name in source.inside:
        raise RecipeError(
            f"{source.path}:{source.functions[name].lineno}: {name} stands inside {source.inside[name]}; a build takes "
            "kernels from the top of a file: move it there"
        )
    signature = fingerprint.signature(source.path, name)
    fingerprint.sources(source.path, name)
    if not signature:
        raise RecipeError(
            f"{source.path}:{source.functions[name].lineno}: {name} has no parameters, and an operation needs a tensor "
            "or a scalar that calls give"
        )
    return tuple(parameter.name for parameter in signature if parameter.constexpr)


def _parse(path: Path) -> ast.Module:
    right = "give the Python file of a kernel"
    try:
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode):
            kind = "folder" if stat.S_ISDIR(mode) else "pipe" if stat.S_ISFIFO(mode) else "device"
            raise EnvironmentProblem(f"{path} is a {kind}; {right}")
        with path.open("rb") as file:
            text = file.read(_LARGEST + 1)
    except OSError as error:
        raise EnvironmentProblem(f"{path} cannot be read ({error.strerror}); {right}") from error
    if len(text) > _LARGEST:
        raise RecipeError(f"{path}:1: is larger than {_LARGEST >> 20} MiB, as no kernel's source is; {right}")
    try:
        return ast.parse(text)
    except SyntaxError as error:
        raise RecipeError(f"{path}:{error.lineno or 1}: is not valid Python: {error.msg}") from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise RecipeError(f"{path}:1: is not valid Python: {error}") from None


def _is_jit(node: ast.FunctionDef) -> bool:
    called = (d.func if isinstance(d, ast.Call) else d for d in node.decorator_list)
    return any(ast.unparse(name).rpartition(".")[2] == "jit" for name in called)
