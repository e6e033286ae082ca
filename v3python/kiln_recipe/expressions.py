"""The recipe's expressions: parsed once, evaluated in Python, rendered as C++ that gives the same.

    expression = or ["if" or "else" expression]
    or         = and {"or" and}
    and        = not {"and" not}
    not        = "not" not | sum {("==" | "!=" | "<" | "<=" | ">" | ">=") sum}
               ; the inner terms of a chain (a < b < c) hold no comparison
    sum        = product {("+" | "-") product}
    product    = unary {("*" | "//" | "%") unary}
    unary      = "-" unary | atom
    atom       = integer | name | call | "(" expression ")"
    call       = ("min" | "max") "(" expression {"," expression} ")"
               | ("cdiv" | "align") "(" expression "," expression ")"
               | ("sizeof" | "log2" | "next_power_of_2") "(" expression ")" | "given" "(" word ")"
    name       = word | word "." word | word "." word "[" integer "]"

Values are int64_t. `//` and `%` round down, as Python's; cdiv rounds up. Comparisons, `and`, `or` and `not` give 0 or
1; `and`, `or`, chains and `if` look at no operand that they need not. A step that leaves int64_t or divides by zero is
a fault of the whole expression. `true`, `false` and the dtypes (`bf16`) are constants, a dtype's being its kiln_dtype;
sizeof gives a dtype's bytes. Python's own parser reads all this, so precedence is Python's.

align(a, b) is the smallest multiple of b that is not below a. log2 rounds down; of 0 or less it is a fault.
next_power_of_2 is the smallest power of two that is not below its operand: 1 of 1 or less. given(x) is 1 if a call has
the tensor x: x.data != 0.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from kiln_recipe.dtypes import DTYPE_BYTES, DTYPES

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
MAX_LENGTH = 2000
MAX_DEPTH = 100

_BYTES_BY_CODE = {DTYPES[name]: size for name, size in DTYPE_BYTES.items()}
CONSTANTS: Mapping[str, int] = {"true": 1, "false": 0, **DTYPES}
FUNCTIONS = ("min", "max", "cdiv", "align", "log2", "next_power_of_2", "sizeof", "given")


class ExpressionError(ValueError):
    """A text that is no expression; str() is a clause that says why, for a sentence that names the place."""


class Fault(ArithmeticError):
    """A step left int64_t or divided by zero."""


def _checked(value: int) -> int:
    if not INT64_MIN <= value <= INT64_MAX:
        raise Fault("overflow")
    return value


def _floor_div(a: int, b: int) -> int:
    if b == 0:
        raise Fault("division by zero")
    return _checked(a // b)


def _modulo(a: int, b: int) -> int:
    if b == 0:
        raise Fault("division by zero")
    return a % b


def _cdiv(a: int, b: int) -> int:
    if b == 0:
        raise Fault("division by zero")
    return _checked(-(-a // b))


def _align(a: int, b: int) -> int:
    return _checked(_cdiv(a, b) * b)


def _log2(a: int) -> int:
    if a < 1:
        raise Fault("logarithm of 0 or less")
    return a.bit_length() - 1


def _next_power_of_2(a: int) -> int:
    return _checked(1 << max(a - 1, 0).bit_length())


def _sizeof(code: int) -> int:
    if code not in _BYTES_BY_CODE:
        raise Fault("no dtype")
    return _BYTES_BY_CODE[code]


# Each operation once: how Python computes it and what the C++ helper is called.
_OPERATIONS: Mapping[str, tuple[Callable[..., int], str]] = {
    "+": (lambda a, b: _checked(a + b), "kiln_add"),
    "-": (lambda a, b: _checked(a - b), "kiln_subtract"),
    "*": (lambda a, b: _checked(a * b), "kiln_multiply"),
    "//": (_floor_div, "kiln_floor_div"),
    "%": (_modulo, "kiln_modulo"),
    "cdiv": (_cdiv, "kiln_cdiv"),
    "align": (_align, "kiln_align"),
    "log2": (_log2, "kiln_log2"),
    "next_power_of_2": (_next_power_of_2, "kiln_next_power_of_2"),
    "sizeof": (_sizeof, "kiln_sizeof"),
    "negate": (lambda a: _checked(-a), "kiln_negate"),
    "min": (min, "kiln_min"),
    "max": (max, "kiln_max"),
}
_COMPARISONS: Mapping[str, Callable[[int, int], bool]] = {
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}

# What `to_cpp` calls; the generated tables begin with it. Needs <stdint.h>; any C++11 compiler with GCC's
# overflow builtins.
_SIZES = "\n".join(f"    case {code}: return {size};" for code, size in sorted(_BYTES_BY_CODE.items()))
CPP_PROLOGUE = """\
// Arithmetic of the recipe's expressions: a step that overflows or divides by zero sets *fault.
[[maybe_unused]] inline int64_t kiln_add(int64_t a, int64_t b, int32_t* fault) {
    int64_t result;
    if (__builtin_add_overflow(a, b, &result)) return *fault = 1, 0;
    return result;
}
[[maybe_unused]] inline int64_t kiln_subtract(int64_t a, int64_t b, int32_t* fault) {
    int64_t result;
    if (__builtin_sub_overflow(a, b, &result)) return *fault = 1, 0;
    return result;
}
[[maybe_unused]] inline int64_t kiln_multiply(int64_t a, int64_t b, int32_t* fault) {
    int64_t result;
    if (__builtin_mul_overflow(a, b, &result)) return *fault = 1, 0;
    return result;
}
[[maybe_unused]] inline int64_t kiln_negate(int64_t a, int32_t* fault) {
    return kiln_subtract(0, a, fault);
}
[[maybe_unused]] inline int64_t kiln_floor_div(int64_t a, int64_t b, int32_t* fault) {
    if (b == 0 || (a == INT64_MIN && b == -1)) return *fault = 1, 0;
    return a / b - (a % b != 0 && (a < 0) != (b < 0));
}
[[maybe_unused]] inline int64_t kiln_cdiv(int64_t a, int64_t b, int32_t* fault) {
    if (b == 0 || (a == INT64_MIN && b == -1)) return *fault = 1, 0;
    return a / b + (a % b != 0 && (a < 0) == (b < 0));
}
[[maybe_unused]] inline int64_t kiln_modulo(int64_t a, int64_t b, int32_t* fault) {
    if (b == 0) return *fault = 1, 0;
    if (b == -1) return 0;
    int64_t rest = a % b;
    return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}
[[maybe_unused]] inline int64_t kiln_align(int64_t a, int64_t b, int32_t* fault) {
    return kiln_multiply(kiln_cdiv(a, b, fault), b, fault);
}
[[maybe_unused]] inline int64_t kiln_log2(int64_t a, int32_t* fault) {
    if (a < 1) return *fault = 1, 0;
    return 63 - __builtin_clzll(static_cast<unsigned long long>(a));
}
[[maybe_unused]] inline int64_t kiln_next_power_of_2(int64_t a, int32_t* fault) {
    if (a <= 1) return 1;
    int64_t exponent = kiln_log2(a - 1, fault) + 1;
    return exponent > 62 ? (*fault = 1, 0) : int64_t{1} << exponent;
}
[[maybe_unused]] inline int64_t kiln_min(int64_t a, int64_t b, int32_t*) {
    return a < b ? a : b;
}
[[maybe_unused]] inline int64_t kiln_max(int64_t a, int64_t b, int32_t*) {
    return a < b ? b : a;
}
[[maybe_unused]] inline int64_t kiln_sizeof(int64_t dtype, int32_t* fault) {
    switch (dtype) {
SIZES
    default: return *fault = 1, 0;
    }
}
// A faulty expression is 0, whatever its last step made of the fault.
[[maybe_unused]] inline int64_t kiln_result(int64_t value, const int32_t* fault) {
    return *fault ? 0 : value;
}
""".replace("SIZES", _SIZES)


@dataclass(frozen=True)
class Integer:
    """A literal, or a constant's value."""

    value: int

    def evaluate(self, env: Mapping[str, int]) -> int:  # noqa: ARG002  (as every node)
        return self.value

    def to_cpp(self, index_of: Mapping[str, int]) -> str:  # noqa: ARG002
        return "INT64_MIN" if self.value == INT64_MIN else f"INT64_C({self.value})"


@dataclass(frozen=True)
class Name:
    """A value of the call: "seqlen_q", "q.size[2]", "BLOCK_M"."""

    text: str

    def evaluate(self, env: Mapping[str, int]) -> int:
        return int(env[self.text])

    def to_cpp(self, index_of: Mapping[str, int]) -> str:
        return f"v[{index_of[self.text]}]"


@dataclass(frozen=True)
class Call:
    """Arithmetic, or a function of the language."""

    operation: str
    operands: tuple[Node, ...]

    def evaluate(self, env: Mapping[str, int]) -> int:
        return _OPERATIONS[self.operation][0](*(operand.evaluate(env) for operand in self.operands))

    def to_cpp(self, index_of: Mapping[str, int]) -> str:
        helper = _OPERATIONS[self.operation][1]
        rendered = [operand.to_cpp(index_of) for operand in self.operands]
        if self.operation in ("min", "max"):
            result = rendered[0]
            for operand in rendered[1:]:
                result = f"{helper}({result}, {operand}, fault)"
            return result
        return f"{helper}({', '.join(rendered)}, fault)"


@dataclass(frozen=True)
class Compare:
    """`a < b`; a chain is an All of them."""

    operation: str
    left: Node
    right: Node

    def evaluate(self, env: Mapping[str, int]) -> int:
        return int(_COMPARISONS[self.operation](self.left.evaluate(env), self.right.evaluate(env)))

    def to_cpp(self, index_of: Mapping[str, int]) -> str:
        return f"int64_t({self.left.to_cpp(index_of)} {self.operation} {self.right.to_cpp(index_of)})"


@dataclass(frozen=True)
class All:
    """`and`: stops at the first that is 0."""

    operands: tuple[Node, ...]

    def evaluate(self, env: Mapping[str, int]) -> int:
        return int(all(operand.evaluate(env) for operand in self.operands))

    def to_cpp(self, index_of: Mapping[str, int]) -> str:
        return "int64_t(" + " && ".join(f"{operand.to_cpp(index_of)} != 0" for operand in self.operands) + ")"


@dataclass(frozen=True)
class Any:
    """`or`: stops at the first that is not 0."""

    operands: tuple[Node, ...]

    def evaluate(self, env: Mapping[str, int]) -> int:
        return int(any(operand.evaluate(env) for operand in self.operands))

    def to_cpp(self, index_of: Mapping[str, int]) -> str:
        return "int64_t(" + " || ".join(f"{operand.to_cpp(index_of)} != 0" for operand in self.operands) + ")"


@dataclass(frozen=True)
class Not:
    operand: Node

    def evaluate(self, env: Mapping[str, int]) -> int:
        return int(not self.operand.evaluate(env))

    def to_cpp(self, index_of: Mapping[str, int]) -> str:
        return f"int64_t({self.operand.to_cpp(index_of)} == 0)"


@dataclass(frozen=True)
class If:
    """`then if condition else otherwise`: evaluates only the one that it gives."""

    condition: Node
    then: Node
    otherwise: Node

    def evaluate(self, env: Mapping[str, int]) -> int:
        return (self.then if self.condition.evaluate(env) else self.otherwise).evaluate(env)

    def to_cpp(self, index_of: Mapping[str, int]) -> str:
        condition, then, otherwise = (n.to_cpp(index_of) for n in (self.condition, self.then, self.otherwise))
        return f"({condition} != 0 ? {then} : {otherwise})"


Node = Integer | Name | Call | Compare | All | Any | Not | If


@dataclass(frozen=True)
class Expression:
    """A parsed expression. Equal texts are equal; `names` are what it reads."""

    text: str
    root: Node = field(repr=False, compare=False)
    names: frozenset[str] = field(repr=False, compare=False)

    def evaluate(self, env: Mapping[str, int]) -> int:
        """Its value where each name has the value of `env`; truth values count as 0 and 1.

        Raises:
            Fault: a step leaves int64_t or divides by zero.
            KeyError: `env` lacks a name.
        """
        return self.root.evaluate(env)

    def to_cpp(self, index_of: Mapping[str, int]) -> str:
        """A C++ expression of type int64_t over `v` and `fault`, in terms of CPP_PROLOGUE; 0 if it faults.

        Args:
            index_of: for each name its index in `v`.
        """
        return f"kiln_result({self.root.to_cpp(index_of)}, fault)"


def steps(node: Node) -> Iterator[Node]:
    """A node and all below it."""
    yield node
    if isinstance(node, (Call, All, Any)):
        below = node.operands
    elif isinstance(node, Compare):
        below = (node.left, node.right)
    elif isinstance(node, If):
        below = (node.condition, node.then, node.otherwise)
    else:
        below = (node.operand,) if isinstance(node, Not) else ()
    for child in below:
        yield from steps(child)


# What other languages have for words of this one.
_WORDS = {"||": "or", "&&": "and", "!": "not", "?": "a if b else c"}


@lru_cache(maxsize=4096)
def parse(text: str) -> Expression:
    """Parses an expression.

    Raises:
        ExpressionError: the text is none; says what is wrong.
    """
    if len(text) > MAX_LENGTH:
        raise ExpressionError(f"is longer than {MAX_LENGTH} characters")
    if not text.strip():
        raise ExpressionError("is empty")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text.strip().replace("\n", " "), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        reason = error.msg if isinstance(error, SyntaxError) else "too deeply nested"
        words = [f"{word!r} for {sign!r}" for sign, word in _WORDS.items() if sign in text.replace("!=", "")]
        raise ExpressionError(f"cannot be read ({reason}{'; say ' + ', '.join(words) if words else ''})") from None
    names: set[str] = set()
    root = _convert(tree.body, names, 0)
    return Expression(text, root, frozenset(names))


_BINARY = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.FloorDiv: "//", ast.Mod: "%"}
_COMPARE = {ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">="}


def _convert(node: ast.expr, names: set[str], depth: int) -> Node:
    if depth > MAX_DEPTH:
        raise ExpressionError(f"is nested more than {MAX_DEPTH} deep")

    def sub(child: ast.expr) -> Node:
        return _convert(child, names, depth + 1)

    if isinstance(node, ast.Constant):
        return Integer(_literal(node.value))
    if isinstance(node, ast.BinOp):
        if isinstance(node.op, ast.Div):
            raise ExpressionError("divides with '/'; say '//' (rounds down) or cdiv(a, b) (rounds up)")
        if type(node.op) in _BINARY:
            return Call(_BINARY[type(node.op)], (sub(node.left), sub(node.right)))
    if isinstance(node, ast.UnaryOp):
        if isinstance(node.op, ast.Not):
            return Not(sub(node.operand))
        if isinstance(node.op, ast.USub):
            if isinstance(node.operand, ast.Constant) and type(node.operand.value) is int:
                return Integer(_literal(-node.operand.value))  # so that the smallest int64_t can be written
            return Call("negate", (sub(node.operand),))
    if isinstance(node, ast.BoolOp):
        return (All if isinstance(node.op, ast.And) else Any)(tuple(sub(value) for value in node.values))
    if isinstance(node, ast.Compare) and all(type(op) in _COMPARE for op in node.ops):
        # A chain doubles its inner terms; chains within chains would grow without bound.
        if any(isinstance(inner, ast.Compare) for term in node.comparators[:-1] for inner in ast.walk(term)):
            raise ExpressionError("compares a comparison within a chain; join them with `and`")
        terms = [sub(term) for term in (node.left, *node.comparators)]
        pairs = tuple(Compare(_COMPARE[type(op)], terms[i], terms[i + 1]) for i, op in enumerate(node.ops))
        return pairs[0] if len(pairs) == 1 else All(pairs)
    if isinstance(node, ast.IfExp):
        return If(sub(node.test), sub(node.body), sub(node.orelse))
    if isinstance(node, ast.Call):
        return _call(node, sub)
    name = _name(node)
    if name is None:
        raise ExpressionError(
            f"has {ast.unparse(node)!r}, which is not one of: integers, names (x, q.size[0], q.stride[0], q.data, "
            f"q.dtype), + - * // %, comparisons, and, or, not, if else, {', '.join(FUNCTIONS)}"
        )
    if name in CONSTANTS:
        return Integer(CONSTANTS[name])
    names.add(name)
    return Name(name)


def _call(node: ast.Call, sub: Callable[[ast.expr], Node]) -> Node:
    called = node.func.id if isinstance(node.func, ast.Name) else ast.unparse(node.func)
    if called not in FUNCTIONS:
        raise ExpressionError(f"calls {called}; the functions are {', '.join(FUNCTIONS)}")
    if node.keywords or any(isinstance(argument, ast.Starred) for argument in node.args):
        raise ExpressionError(f"gives {called} something else than plain operands")
    few, most = {"min": (2, 64), "max": (2, 64), "cdiv": (2, 2), "align": (2, 2)}.get(called, (1, 1))
    if not few <= len(node.args) <= most:
        count = f"{few} operand{'s' if few > 1 else ''}" if few == most else f"{few} to {most} operands"
        raise ExpressionError(f"gives {called} {len(node.args)} operands; it takes {count}")
    if called == "given":
        if not isinstance(node.args[0], ast.Name):
            raise ExpressionError(f"gives given {ast.unparse(node.args[0])!r}; it takes the name of a tensor alone")
        return Compare("!=", sub(ast.Attribute(node.args[0], "data")), Integer(0))
    return Call(called, tuple(sub(argument) for argument in node.args))


def _literal(value: object) -> int:
    if isinstance(value, bool):
        return int(value)
    if not isinstance(value, int):
        raise ExpressionError(f"has {value!r}; the only literals are integers")
    if not INT64_MIN <= value <= INT64_MAX:
        raise ExpressionError(f"has {value}, which does not fit int64_t")
    return value


_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def _name(node: ast.expr) -> str | None:
    """The name that a node spells, or None if it is no name."""
    index = ""
    if isinstance(node, ast.Subscript):
        if not isinstance(node.slice, ast.Constant) or type(node.slice.value) is not int:
            return None
        index = f"[{node.slice.value}]"
        node = node.value
        if not isinstance(node, ast.Attribute):
            return None

    if isinstance(node, ast.Attribute):
        owner, attribute = node.value, node.attr
        if not isinstance(owner, ast.Name) or not _WORD.fullmatch(owner.id) or not _WORD.fullmatch(attribute):
            return None
        return f"{owner.id}.{attribute}{index}"
    if isinstance(node, ast.Name) and _WORD.fullmatch(node.id):
        return node.id
    return None
