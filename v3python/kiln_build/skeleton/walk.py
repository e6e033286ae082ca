"""Follows the parameters of a kernel through its body and the functions of its file that it calls: what is loaded and
stored by which address, what is compared with what, what decides a branch."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from kiln_build.skeleton.facts import Access, Block, Facts
from kiln_build.skeleton.values import NUMBER, ZERO, Bound, Value, flat, merged, parts, total

_LOADS = {"load": "load", "store": "store"}
_ATOMICS = "atomic_"
_BUFFER = {"buffer_load": ("ptr", "offsets"), "buffer_store": ("stored_value", "ptr", "offsets")}
# Functions whose result is their first operand, in another shape or type.
_THROUGH = frozenset(
    ("to", "cast", "multiple_of", "max_contiguous", "max_constancy", "broadcast_to", "expand_dims", "reshape", "view",
     "trans", "permute", "convert_layout", "assume", "broadcast", "set_auto_layout", "item")
)  # fmt: skip
_SIZES = frozenset(["cdiv", "minimum", "min", "where", "maximum", "max", "arange", "zeros", "full"])
_RANDOM = frozenset(["rand", "randn", "randint", "randint4x", "rand4x", "randn4x", "philox"])
_MOST_DEPTH = 12
_MOST_STEPS = 20_000  # of expressions: what calls helpers in helpers grows fast


def walk(kernel: ast.FunctionDef, constants: Sequence[str], helpers: Mapping[str, ast.FunctionDef]) -> Facts:
    """What the kernel does with its parameters.

    Args:
        constants: those that are tl.constexpr.
        helpers: the functions that it may call, by the name that its file has for them.
    """
    arguments = [argument.arg for argument in (*kernel.args.posonlyargs, *kernel.args.args)]
    names: dict[str, Bound] = {
        name: Value.of("constant" if name in constants else "parameter", name) for name in arguments
    }
    walker = _Walker(Facts(), helpers)
    walker.body(kernel.body, names, ())
    return walker.facts


@dataclass
class _Walker:
    facts: Facts
    helpers: Mapping[str, ast.FunctionDef]
    flags: tuple[str, ...] = ()
    steps: int = 0
    returned: Bound | None = None

    def body(self, statements: Sequence[ast.stmt], names: dict[str, Bound], calls: tuple[str, ...]) -> None:
        for statement in statements:
            self.statement(statement, names, calls)

    def statement(self, node: ast.stmt, names: dict[str, Bound], calls: tuple[str, ...]) -> None:
        if isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            value = self.value(node.value, names, calls) if node.value else ZERO
            for target in targets:
                self.assign(target, value, names)
        elif isinstance(node, ast.AugAssign):
            read = ast.copy_location(ast.BinOp(node.target, node.op, node.value), node)
            self.assign(node.target, self.value(read, names, calls), names)
        elif isinstance(node, ast.For):
            self.loop(node, names, calls)
        elif isinstance(node, ast.While):
            self.value(node.test, names, calls)
            self.branch(node.body, names, calls, ())
            self.branch(node.body, names, calls, ())
        elif isinstance(node, ast.If):
            self.value(node.test, names, calls)
            positive, negative = self.tests(node.test, names)
            self.branch(node.body, names, calls, positive)
            self.branch(node.orelse, names, calls, negative)
        elif isinstance(node, ast.Return):
            value = self.value(node.value, names, calls) if node.value else ZERO
            self.returned = value if self.returned is None else merged(self.returned, value)
        elif isinstance(node, ast.With):
            self.body(node.body, names, calls)
        elif isinstance(node, (ast.Expr, ast.Assert)):
            self.value(node.value if isinstance(node, ast.Expr) else node.test, names, calls)

    def branch(
        self, body: Sequence[ast.stmt], names: dict[str, Bound], calls: tuple[str, ...], flags: Sequence[str]
    ) -> None:
        """What may happen or not: afterwards a name is what it was before, or what it became."""
        before, kept = dict(names), self.flags
        self.flags = (*kept, *flags)
        self.body(body, names, calls)
        self.flags = kept
        for name, value in before.items():
            names[name] = value if names[name] == value else merged(value, names[name])

    def loop(self, node: ast.For, names: dict[str, Bound], calls: tuple[str, ...]) -> None:
        place = self.place(node, calls)
        given = [flat(self.value(a, names, calls)) for a in node.iter.args] if isinstance(node.iter, ast.Call) else []
        if given:
            self.facts.loops[place] = (given[0] if len(given) > 1 else ZERO, given[1 if len(given) > 1 else 0])
            for value in given:
                self.facts.integers.update(value.named("parameter"))
            self.facts.tiling.update(name for value in given[2:] for name in value.named("constant"))
            for word in node.iter.keywords if isinstance(node.iter, ast.Call) else ():
                self.value(word.value, names, calls)
        self.assign(node.target, Value.of("loop", place), names)
        for _ in range(2):  # what the first round adds to an address, the second loads by
            self.branch(node.body, names, calls, ())

    def assign(self, target: ast.expr, value: Bound, names: dict[str, Bound]) -> None:
        if isinstance(target, ast.Name):
            names[target.id] = value
        elif isinstance(target, (ast.Tuple, ast.List)):
            for one, part in zip(target.elts, parts(value, len(target.elts))):
                self.assign(one, part, names)

    def tests(self, node: ast.expr, names: Mapping[str, Bound]) -> tuple[list[str], list[str]]:
        """The constants that are true where a test holds, and those that are where it does not."""
        if isinstance(node, ast.Name):
            found = flat(names.get(node.id, ZERO)).bare("constant")
            self.facts.tested.update(dict.fromkeys(found))
            return found, []
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            positive, negative = self.tests(node.operand, names)
            return negative, positive
        if isinstance(node, ast.BoolOp):
            both = [self.tests(value, names) for value in node.values]
            if isinstance(node.op, ast.And):
                return [name for positive, _ in both for name in positive], []
            return [], [name for _, negative in both for name in negative]
        if isinstance(node, ast.Compare) and len(node.ops) == 1 and isinstance(node.ops[0], (ast.Eq, ast.Is)):
            literal = node.comparators[0]
            if isinstance(literal, ast.Constant) and isinstance(literal.value, bool):
                positive, negative = self.tests(node.left, names)
                return (positive, negative) if literal.value else (negative, positive)
        return [], []

    def value(self, node: ast.expr, names: dict[str, Bound], calls: tuple[str, ...]) -> Bound:
        self.steps += 1
        if self.steps > _MOST_STEPS:
            return ZERO
        if isinstance(node, ast.Name):
            return names.get(node.id, NUMBER)
        if isinstance(node, ast.Constant):
            return Value.of("data", "number") if isinstance(node.value, float) else NUMBER if node.value else ZERO
        if isinstance(node, (ast.Tuple, ast.List)):
            return [self.value(element, names, calls) for element in node.elts]
        if isinstance(node, ast.BinOp):
            return self.binary(node, names, calls)
        if isinstance(node, ast.Call):
            return self.call(node, names, calls)
        if isinstance(node, ast.Compare):
            return self.compare(node, names, calls)
        if isinstance(node, ast.BoolOp):
            self.tests(node, names)
            return total(flat(self.value(value, names, calls)) for value in node.values)
        if isinstance(node, ast.UnaryOp):
            return self.value(node.operand, names, calls)
        if isinstance(node, ast.IfExp):
            self.value(node.test, names, calls)
            self.tests(node.test, names)
            return merged(self.value(node.body, names, calls), self.value(node.orelse, names, calls))
        if isinstance(node, ast.Subscript):
            found = self.value(node.value, names, calls)
            place = node.slice.value if isinstance(node.slice, ast.Constant) else None
            if not isinstance(found, Value) and isinstance(place, int) and -len(found) <= place < len(found):
                return found[place]
            return flat(found)
        if isinstance(node, ast.Attribute) and node.attr == "T":
            return self.value(node.value, names, calls)
        return NUMBER

    def binary(self, node: ast.BinOp, names: dict[str, Bound], calls: tuple[str, ...]) -> Value:
        left, right = (flat(self.value(side, names, calls)) for side in (node.left, node.right))
        for one, other in ((left, right), (right, left)):
            if isinstance(node.op, (ast.Div, ast.Pow)) or any(atom.kind == "data" for atom in other.atoms):
                self.facts.floats.update(one.bare("parameter"))
        if isinstance(node.op, (ast.Add, ast.Sub)):
            return left.plus(right)
        if isinstance(node.op, ast.Mult):
            for one, other in ((left, right), (right, left)):
                if other.varies:
                    self.facts.tiling.update(one.named("constant"))
            return left.times(right)
        if isinstance(node.op, (ast.FloorDiv, ast.Mod, ast.BitAnd, ast.RShift, ast.LShift)):
            self.facts.integers.update((*left.bare("parameter"), *right.bare("parameter")))
            self.facts.tiling.update(right.named("constant"))
            if isinstance(node.op, (ast.FloorDiv, ast.RShift)) and isinstance(node.right, ast.Constant):
                self.facts.divided.update(left.bare("parameter"))
            return self.step(node, left, right, calls)
        return Value.of("data", self.place(node, calls))

    def step(self, node: ast.expr, left: Value, right: Value, calls: tuple[str, ...]) -> Value:
        """What // or % gives: an index of its own. Of what varies not, it is a number."""
        if not left.varies:
            return left
        place = self.place(node, calls)
        self.facts.steps[place] = (left, right)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
            self.facts.compared.append((Value.of("step", place), right))
        return Value.of("step", place)

    def compare(self, node: ast.Compare, names: dict[str, Bound], calls: tuple[str, ...]) -> Value:
        sides = [node.left, *node.comparators]
        values = [flat(self.value(side, names, calls)) for side in sides]
        for operator, (one, left), (other, right) in zip(node.ops, zip(sides, values), zip(sides[1:], values[1:])):
            is_equality = isinstance(operator, (ast.Eq, ast.NotEq))  # which one asks of whole numbers
            for this, that, literal in ((left, right, other), (right, left, one)):
                if isinstance(literal, ast.Constant):
                    for name in this.bare("constant"):
                        self.literal(name, literal.value)
                if any(atom.kind == "data" for atom in that.atoms) and not is_equality:
                    self.facts.floats.update(this.bare("parameter"))
                else:
                    self.facts.integers.update(this.bare("parameter"))
                self.facts.compared.append((this, that))
        return NUMBER

    def literal(self, name: str, value: object) -> None:
        if isinstance(value, bool):
            self.facts.tested[name] = None
        elif isinstance(value, str):
            self.facts.words.setdefault(name, []).append(value)
        elif isinstance(value, int):
            self.facts.numbers.setdefault(name, []).append(value)

    def call(self, node: ast.Call, names: dict[str, Bound], calls: tuple[str, ...]) -> Bound:
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        owner = self.owner(node.func, names)
        given = [self.value(argument, names, calls) for argument in node.args if not isinstance(argument, ast.Starred)]
        words = {word.arg: self.value(word.value, names, calls) for word in node.keywords if word.arg}
        values = [*given, *words.values()]
        if isinstance(node.func, ast.Name) and called in self.helpers:
            return self.inline(self.helpers[called], given, words, (*calls, self.place(node, calls)))
        if owner is not None and called in (*_LOADS, "gather", "scatter", "atomic_add"):
            return self.described(owner, called, given, node, calls)
        if called.startswith("async_") and given and (found := flat(given[0]).bare("parameter")):
            self.described(found[0], "store" if "shared_to_global" in called or "store" in called else "load",
                           given[1:], node, calls)  # fmt: skip
            return NUMBER
        if called in _LOADS or called.startswith(_ATOMICS) or called in _BUFFER:
            return self.access(called, given, words, node, calls)
        if called in ("make_block_ptr", "make_tensor_descriptor") and (given or words):
            return self.block(given, words)
        if called == "advance":
            return flat(given[0]) if given else ZERO
        if called in ("program_id", "num_programs"):
            axis = node.args[0] if node.args else node.keywords[0].value if node.keywords else None
            number = str(axis.value if isinstance(axis, ast.Constant) else 0)
            if called == "num_programs":
                self.facts.programs.add(number)
                return NUMBER
            return Value.of("program", number)
        if called == "arange":
            place, ends = self.place(node, calls), [flat(value) for value in values]
            self.facts.ranges[place] = ends[1] if len(ends) > 1 else ZERO
            return Value.of("range", place)
        if called == "dot":
            self.facts.dotted = True
        if called in _RANDOM:
            self.facts.integers.update(flat(given[0]).bare("parameter") if given else ())
            return Value.of("data", self.place(node, calls))
        if called in _THROUGH:
            of_module = not isinstance(node.func, ast.Attribute) or _is_module(node.func.value, names)
            return (given[0] if given else NUMBER) if of_module else self.receiver(node.func, names, calls)
        if called == "cdiv":
            self.facts.tiling.update(name for value in given[1:] for name in flat(value).named("constant"))
            return flat(given[0]) if given else ZERO
        if called in _SIZES:
            numbers = [flat(value) for value in (given[1:] if called == "where" else given)]
            return total(numbers) if called != "zeros" else Value.of("data", self.place(node, calls))
        for value in values:
            self.facts.floats.update(flat(value).bare("parameter"))
        return Value.of("data", self.place(node, calls))

    def owner(self, function: ast.expr, names: Mapping[str, Bound]) -> str | None:
        """The parameter that a method is called of."""
        if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name):
            found = flat(names.get(function.value.id, ZERO)).bare("parameter")
            return found[0] if found else None
        return None

    def receiver(self, function: ast.expr, names: dict[str, Bound], calls: tuple[str, ...]) -> Bound:
        return self.value(function.value, names, calls) if isinstance(function, ast.Attribute) else NUMBER

    def described(
        self, owner: str, called: str, given: Sequence[Bound], node: ast.Call, calls: tuple[str, ...]
    ) -> Value:
        """A method of a descriptor, or of a block pointer that the kernel made."""
        if any(block.pointer == owner for block in self.facts.blocks):
            kind = "load" if called == "load" else "store"
            self.facts.accesses.append(Access(kind, owner, ZERO, frozenset(self.flags)))
            return Value.of("data", self.place(node, calls))
        place = given[0] if given else ZERO
        found = tuple(map(flat, place)) if not isinstance(place, Value) else (place,)
        self.facts.descriptors.setdefault(owner, found)
        if called != "load":
            self.facts.described.add(owner)
        return Value.of("data", self.place(node, calls))

    def access(
        self, called: str, given: Sequence[Bound], words: Mapping[str, Bound], node: ast.Call, calls: tuple[str, ...]
    ) -> Value:
        address = flat(given[0]) if given else flat(words.get("pointer", ZERO))
        if called.startswith("buffer_"):
            told = {**dict(zip(_BUFFER[called], given)), **words}
            address = flat(told.get("ptr", ZERO)).plus(flat(told.get("offsets", ZERO)))
        kind = _LOADS.get(called.removeprefix("buffer_"), called)
        for pointer in _pointers(address):
            self.facts.accesses.append(Access(kind, pointer, address, frozenset(self.flags)))
            return Value.of("data", f"{pointer}@{self.place(node, calls)}")
        return Value.of("data", self.place(node, calls))

    def block(self, given: Sequence[Bound], words: Mapping[str, Bound]) -> Value:
        order = ("base", "shape", "strides", "offsets")
        told = {**dict(zip(order, given)), **words}
        base = flat(told.get("base", ZERO))
        for pointer in _pointers(base):
            shape, strides, offsets = (_listed(told.get(key, [])) for key in order[1:])
            self.facts.blocks.append(Block(pointer, shape, strides, offsets))
            return Value.of("parameter", pointer)
        return ZERO

    def inline(
        self, helper: ast.FunctionDef, given: Sequence[Bound], words: Mapping[str, Bound], calls: tuple[str, ...]
    ) -> Bound:
        if len(calls) > _MOST_DEPTH:
            return NUMBER
        arguments = [argument.arg for argument in (*helper.args.posonlyargs, *helper.args.args)]
        names: dict[str, Bound] = {**dict(zip(arguments, given)), **words}
        kept, self.returned = self.returned, None
        self.body(helper.body, names, calls)
        result, self.returned = self.returned, kept
        return NUMBER if result is None else result

    def place(self, node: ast.AST, calls: tuple[str, ...]) -> str:
        return "/".join((*calls, f"{getattr(node, 'lineno', 0)}:{getattr(node, 'col_offset', 0)}"))


def _is_module(node: ast.expr, names: Mapping[str, Bound]) -> bool:
    """Whether a function is called of a module, tl or tl.math, and not of a value."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return isinstance(node, ast.Name) and node.id not in names


def _pointers(address: Value) -> Iterator[str]:
    """The parameter that an address begins with: one by the name of a pointer, else the first that stands alone."""
    bare = address.bare("parameter")
    named = [name for name in bare if "ptr" in name.lower() or "pointer" in name.lower()]
    yield from (named or bare)[:1]


def _listed(bound: Bound) -> tuple[Value, ...]:
    return (bound,) if isinstance(bound, Value) else tuple(map(flat, bound))
