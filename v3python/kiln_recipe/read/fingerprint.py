"""Digest of a kernel function's source and of all that it calls, without importing it or Triton.

The function's module is parsed. From the function on, every name that is used and bound at module level brings in the
statements that bind it, and what they use; a file beside it that is imported is followed. Each statement is written
down node by node: comments, docstrings, formatting, line numbers and paths are no part of it, nor is the version of the
Python that parses it.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path

from kiln_recipe.errors import RecipeError

# What a kernel may import besides files in its own folder: the toolchain's identity stands for the first, and the
# others are the language's own.
ALLOWED_MODULES = ("triton", "math", "typing", "__future__")

# Fields of ast nodes that say nothing about meaning, or that only some versions of Python have.
_IGNORED_FIELDS = frozenset({"ctx", "type_comment", "type_params", "kind", "type_ignores", "lineno", "col_offset"})


@dataclass(frozen=True)
class FunctionParameter:
    """One parameter of a kernel function.

    Attributes:
        constexpr: it is annotated as tl.constexpr.
        line: where it stands.
    """

    name: str
    constexpr: bool
    line: int


def signature(path: Path, function: str) -> tuple[FunctionParameter, ...]:
    """The parameters of a kernel function, in order.

    Raises:
        RecipeError: the file cannot be read or parsed, has no such Triton function, or its parameters are not plain.
    """
    node = _Module(path).function(function)
    arguments = node.args
    if not function.isascii():
        raise RecipeError(
            f"{path}:{node.lineno}: {function} is not ASCII, as a kernel's name in an image must be; rename it"
        )
    if arguments.vararg or arguments.kwarg or arguments.kwonlyargs:
        raise RecipeError(
            f"{path}:{node.lineno}: {function} has *, ** or keyword-only parameters; a kernel's must be plain"
        )
    return tuple(
        FunctionParameter(argument.arg, _is_constexpr(argument.annotation), argument.lineno)
        for argument in (*arguments.posonlyargs, *arguments.args)
    )


def language(path: Path, function: str) -> str:
    """The language that a kernel function is written in, by its decorator: "triton" or "gluon".

    Raises:
        RecipeError: as `signature`.
    """
    module = _Module(path)
    decorator = module.function(function).decorator_list[-1]
    called = ast.unparse(decorator.func if isinstance(decorator, ast.Call) else decorator)
    first, dot, rest = called.partition(".")
    origins = [
        f"{node.module}.{alias.name}" if isinstance(node, ast.ImportFrom) else alias.name
        for node in (statement.node for statement in module.binders.get(first, ()))
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for alias in node.names
        if first == (alias.asname or alias.name.partition(".")[0])
    ]
    return "gluon" if any("gluon" in f"{origin}{dot}{rest}".split(".") for origin in (*origins, called)) else "triton"


def fingerprint(path: Path, function: str) -> str:
    """Digest of a kernel function and of everything that it calls: 64 hexadecimal digits.

    Raises:
        RecipeError: a file cannot be read or parsed, or imports something that a kernel may not.
    """
    collector = _collect(path, function)
    digest = hashlib.sha256(f"{function}\n".encode())
    for part in sorted(collector.parts):
        digest.update(part.encode("utf-8", "surrogatepass") + b"\n")
    return digest.hexdigest()


def sources(path: Path, function: str) -> tuple[Path, ...]:
    """The files that `fingerprint` reads, the kernel's own first.

    Raises:
        RecipeError: as `fingerprint`.
    """
    return tuple(_collect(path, function).modules)


def uses(path: Path, function: str, name: str) -> bool:
    """Whether a kernel function, or anything that it calls, uses something imported under this name, or an attribute
    of this name: `from triton.language.extra.cuda import gdc_wait`, or `cuda.gdc_wait`.

    Raises:
        RecipeError: as `fingerprint`.
    """
    attribute = f" attr=str:{name!r}"
    return any(
        attribute in part or ("#import:" in part and part.endswith(f":{name}"))
        for part in _collect(path, function).parts
    )


def _collect(path: Path, function: str) -> _Collector:
    module = _Module(path)
    module.function(function)
    collector = _Collector({module.path: module})
    try:
        collector.need(module, function)
    except RecursionError:
        raise RecipeError(f"{path}:1: {function} or what it calls is nested too deep") from None
    return collector


class _Statement:
    """A statement of a module, and what is worked out of it when it is first asked for."""

    def __init__(self, node: ast.stmt) -> None:
        self.node = node

    @cached_property
    def text(self) -> str:
        return dump(self.node)

    @cached_property
    def uses(self) -> tuple[ast.Name | ast.Import | ast.ImportFrom, ...]:
        """The names that it reads or binds, and the imports within it."""
        return tuple(node for node in ast.walk(self.node) if isinstance(node, (ast.Name, ast.Import, ast.ImportFrom)))

    @cached_property
    def functions(self) -> tuple[ast.FunctionDef, ...]:
        """It, and those within it."""
        return tuple(node for node in ast.walk(self.node) if isinstance(node, ast.FunctionDef))


class _Parsed:
    """What a file's text says, wherever the file is: which of its statements bind a name at module level.

    Attributes:
        effects: statements that bind nothing; they may still change what others bound (a call, an assignment to an
            attribute).
        imports: all, also those within functions, the outer ones first.
    """

    def __init__(self, text: bytes) -> None:
        tree = ast.parse(text)
        tree.body = [statement for statement in tree.body if not _is_main_guard(statement)]
        self.imports = [node for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom))]
        self.binders: dict[str, list[_Statement]] = {}
        self.effects: list[_Statement] = []
        for node in tree.body:
            statement = _Statement(node)
            names = list(_bound(node))
            for name in names:
                self.binders.setdefault(name, []).append(statement)
            if not names and not _is_docstring(node):
                self.effects.append(statement)


# The kernels of a recipe share files: each text is parsed once.
_parse = lru_cache(64)(_Parsed)


class _Module:
    """A file, parsed.

    Attributes:
        name: how parts are told apart: "" for the kernel's own file, else the name that it is imported by.
    """

    def __init__(self, path: Path, name: str = "") -> None:
        self.path = path.resolve()
        self.shown = path
        self.name = name
        try:
            text = path.read_bytes()
        except OSError as error:
            raise RecipeError(f"{path}:1: cannot be read: {error.strerror}") from error
        try:
            parsed = _parse(text)
        except SyntaxError as error:
            raise RecipeError(f"{path}:{error.lineno or 1}: is not valid Python: {error.msg}") from None
        except (ValueError, RecursionError, MemoryError) as error:
            raise RecipeError(f"{path}:1: is not valid Python: {error}") from None
        self.binders, self.effects = parsed.binders, parsed.effects
        for node in parsed.imports:
            self.check_import(node)

    def beside(self, node: ast.ImportFrom) -> Path | None:
        """The file of the same folder that is imported from, or None for an allowed module's names."""
        origin = node.module or ""
        if node.level == 0 and origin.partition(".")[0] in ALLOWED_MODULES:
            return None
        return self.path.parent / f"{origin}.py"

    def check_import(self, node: ast.Import | ast.ImportFrom) -> None:
        """Used or not: the worker that loads the file executes it."""
        may = f"a kernel's file may import {', '.join(ALLOWED_MODULES)}, and names from files beside it"
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.partition(".")[0] not in ALLOWED_MODULES:
                    raise RecipeError(f"{self.shown}:{node.lineno}: imports {alias.name}; {may} (from ... import ...)")
            return
        origin = "." * node.level + (node.module or "")
        if any(alias.name == "*" for alias in node.names):
            raise RecipeError(
                f"{self.shown}:{node.lineno}: imports * from {origin}; a kernel's file must name what it imports"
            )
        beside = self.beside(node)
        if beside and (node.level > 0 or not node.module or "." in node.module or not beside.is_file()):
            raise RecipeError(f"{self.shown}:{node.lineno}: imports from {origin}; {may}")

    def function(self, name: str) -> ast.FunctionDef:
        found = [node for statement in self.binders.get(name, ()) for node in statement.functions if node.name == name]
        if not found:
            functions = sorted(
                n for n, s in self.binders.items() if any(isinstance(x.node, ast.FunctionDef) for x in s)
            )
            listed = ", ".join(functions) or "none"
            raise RecipeError(f"{self.shown}:1: has no function {name}; its functions are {listed}")
        if not found[-1].decorator_list:
            raise RecipeError(
                f"{self.shown}:{found[-1].lineno}: {name} is not a Triton function; add @triton.jit or @gluon.jit"
            )
        for decorator in found[-1].decorator_list:
            called = ast.unparse(decorator.func if isinstance(decorator, ast.Call) else decorator)
            if called.rpartition(".")[2] != "jit":
                raise RecipeError(
                    f"{self.shown}:{decorator.lineno}: {name} is decorated with {called}; a kernel takes @triton.jit "
                    "or @gluon.jit alone, and the recipe says what to tune"
                )
            self.check_decorator(name, decorator, called)
        defined = [s.node for s in self.binders[name] if isinstance(s.node, ast.FunctionDef)]
        if len(defined) > 1:
            raise RecipeError(
                f"{self.shown}:{defined[-1].lineno}: {name} is defined in line {defined[0].lineno} already; Python "
                "would take the last alone"
            )
        return found[-1]

    def check_decorator(self, name: str, decorator: ast.expr, called: str) -> None:
        """Refuses a `jit` of the file's own, and one that nothing binds."""
        first = called.partition(".")[0]
        bound = [statement.node for statement in self.binders.get(first, ())]
        if all(isinstance(node, (ast.FunctionDef, ast.ClassDef)) for node in bound):
            what = "the file's own" if bound else "imported from nowhere"
            raise RecipeError(
                f"{self.shown}:{decorator.lineno}: {name} is decorated with {called}, and {first} is {what}; a kernel "
                "takes Triton's @triton.jit or @gluon.jit"
            )


@dataclass
class _Collector:
    modules: dict[Path, _Module]
    parts: set[str] = field(default_factory=set)
    seen: set[tuple[Path, str]] = field(default_factory=set)
    begun: set[Path] = field(default_factory=set)

    def need(self, module: _Module, name: str) -> None:
        """Collects what binds `name` in `module`, and all that this uses. Not recursive: chains may be long."""
        pending = [(module, name)]
        while pending:
            module, name = pending.pop()
            if module.path not in self.begun:
                self.begun.add(module.path)
                for position, statement in enumerate(module.effects):
                    self.parts.add(f"{module.name}#{position:06}:{statement.text}")
                    pending += self.uses(module, statement)
            if (module.path, name) in self.seen:
                continue
            self.seen.add((module.path, name))
            for position, statement in enumerate(module.binders.get(name, ())):
                if isinstance(statement.node, (ast.Import, ast.ImportFrom)):
                    pending += self.follow(module, statement.node, name)
                else:
                    self.parts.add(f"{module.name}.{name}#{position:06}:{statement.text}")
                    pending += self.uses(module, statement)

    def uses(self, module: _Module, statement: _Statement) -> Iterator[tuple[_Module, str]]:
        for node in statement.uses:
            if isinstance(node, ast.Name):
                yield module, node.id
            else:  # within a function, an if or a try
                for alias in node.names:
                    yield from self.follow(module, node, alias.asname or alias.name.partition(".")[0])

    def follow(self, module: _Module, node: ast.Import | ast.ImportFrom, name: str) -> Iterator[tuple[_Module, str]]:
        for alias in node.names:
            if name != (alias.asname or alias.name.partition(".")[0]):
                continue
            origin = "" if isinstance(node, ast.Import) else node.module or ""
            self.parts.add(f"{module.name}.{name}#import:{origin}:{alias.name}")
            beside = None if isinstance(node, ast.Import) else module.beside(node)
            if beside is None:
                continue
            if beside not in self.modules:
                self.modules[beside] = _Module(module.shown.parent / f"{origin}.py", origin)
            if alias.name not in self.modules[beside].binders:
                raise RecipeError(
                    f"{module.shown}:{node.lineno}: imports {alias.name}, which {origin}.py does not have"
                )
            yield self.modules[beside], alias.name


def dump(node: ast.AST) -> str:
    """A node in one canonical text: types and fields that are not empty, docstrings left out."""
    out: list[str] = []
    _dump(node, out)
    return "".join(out)


def _dump(value: object, out: list[str]) -> None:
    if isinstance(value, ast.AST):
        out.append(f"({type(value).__name__}")
        for name in value._fields:
            content = getattr(value, name, None)
            if name == "body" and isinstance(value, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Module)):
                content = [s for i, s in enumerate(value.body) if i or not _is_docstring(s)]
            if name in _IGNORED_FIELDS or content is None or content == []:
                continue
            out.append(f" {name}=")
            _dump(content, out)
        out.append(")")
    elif isinstance(value, (list, tuple)):
        out.append("[")
        for item in value:
            _dump(item, out)
            out.append(",")
        out.append("]")
    else:
        out.append(f"{type(value).__name__}:{value!r}")


def _is_docstring(statement: ast.stmt) -> bool:
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )


def _is_main_guard(statement: ast.stmt) -> bool:
    """`if __name__ == "__main__":`, which no import executes."""
    return isinstance(statement, ast.If) and not statement.orelse and dump(statement.test) == _MAIN_GUARD


def _is_constexpr(annotation: ast.expr | None) -> bool:
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        return annotation.value.rpartition(".")[2] == "constexpr"
    return annotation is not None and ast.unparse(annotation).rpartition(".")[2] == "constexpr"


def _bound(statement: ast.stmt) -> Iterator[str]:
    """The module-level names that a statement binds, also within if, try, for, while and with."""
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        yield statement.name
        return
    if isinstance(statement, (ast.Import, ast.ImportFrom)):
        for alias in statement.names:
            yield alias.asname or alias.name.partition(".")[0]
        return
    for child in _children(statement):
        if isinstance(child, ast.stmt):
            yield from _bound(child)
        else:
            for node in ast.walk(child):
                if isinstance(node, ast.Name) and isinstance(node.ctx, (ast.Store, ast.Del)):
                    yield node.id


def _children(node: ast.AST) -> Iterable[ast.AST]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.ExceptHandler, ast.match_case)):
            if isinstance(child, ast.ExceptHandler) and child.name:
                yield ast.Name(child.name, ast.Store())
            yield from _children(child)
        else:
            yield child


_MAIN_GUARD = dump(ast.parse('__name__ == "__main__"', mode="eval").body)
