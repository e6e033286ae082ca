"""`and`, `or` and `not` of blocks in Triton's interpreter: element by element, as the compiler takes them.

To Python they ask for the truth of a whole block, which the interpreter says is always true: `a and b` would be b.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from kiln.jit.packages import need

_BOTH, _EITHER, _NEGATED = "__kiln_both", "__kiln_either", "__kiln_negated"


def rewrite(function: Any) -> Callable:
    """An interpreted function as the interpreter's own rewriting makes it, with these operators by element."""
    function.fn.__globals__.update({_BOTH: _both, _EITHER: _either, _NEGATED: _negated})
    own = function.rewriter.ast_transformer
    function.rewriter.ast_transformer = SimpleNamespace(visit=lambda tree: own.visit(_ByElement().visit(tree)))
    return function.rewriter.rewrite_ast()


class _ByElement(ast.NodeTransformer):
    """Calls of the functions below in place of the operators."""

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.expr:
        self.generic_visit(node)
        name = _BOTH if isinstance(node.op, ast.And) else _EITHER
        nothing = ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[])
        return _call(name, [ast.copy_location(ast.Lambda(nothing, value), value) for value in node.values], node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.expr:
        self.generic_visit(node)
        return _call(_NEGATED, [node.operand], node) if isinstance(node.op, ast.Not) else node


def _call(name: str, operands: list[ast.expr], at: ast.expr) -> ast.expr:
    called = ast.Call(ast.Name(name, ast.Load()), operands, [])
    return ast.fix_missing_locations(ast.copy_location(called, at))


def _both(*operands: Callable[[], Any]) -> Any:
    """`and`: what follows a number that is false is not evaluated."""
    value = operands[0]()
    for operand in operands[1:]:
        if _is_block(value):
            value = value.logical_and(operand())
        elif value:
            value = operand()
    return value


def _either(*operands: Callable[[], Any]) -> Any:
    value = operands[0]()
    for operand in operands[1:]:
        if _is_block(value):
            value = value.logical_or(operand())
        elif not value:
            value = operand()
    return value


def _negated(value: Any) -> Any:
    return value.__not__() if _is_block(value) else not value


def _is_block(value: Any) -> bool:
    return isinstance(value, need("triton.language").tensor) and value.type.is_block()
