"""Writes what type checkers are told of functions whose result depends on an argument, from the functions' signatures:

    python bindings/overloads.py

`_keywords.pyi` of kiln and kiln.torch has the keyword arguments that the functions' own overloads do not name, and
`torch/flash_attn_calls.py` a protocol for each function of kiln.torch.flash_attn, which take everything by position.
"""

from __future__ import annotations

import ast
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent / "python/kiln"
# By the module that has the functions: where their keywords go, what that imports, and the class of each function.
KEYWORDS = {
    "attention.py": (
        "_keywords.pyi",
        "from collections.abc import Sequence\nfrom typing import Any, TypedDict\n\n"
        "from kiln.arrays import Array\nfrom kiln.runtime import Runtime\n",
        {"attn_fwd": "Forward", "attn_decode": "Decode"},
    ),
    "torch/functions.py": (
        "torch/_keywords.pyi",
        "from typing import TypedDict\n\nfrom torch import Tensor\n",
        {"attention": "Attention", "decode": "Decode"},
    ),
}
CALLS = ("torch/flash_attn.py", "torch/flash_attn_calls.py")
DECIDES = "return_"  # how the argument's name begins that decides what is returned
HEAD = '''"""How the functions of kiln.torch.flash_attn are called: each has its decorator here, at run time
`arguments.named`. Written by bindings/overloads.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, Protocol, cast, overload

from torch import Tensor

from kiln.torch import arguments
'''


def texts() -> dict[str, str]:
    """Each file that is written, by its name in the package."""
    written = {where: keywords(module, imports, classes) for module, (where, imports, classes) in KEYWORDS.items()}
    module, where = CALLS
    return {**written, where: calls(module)}


def functions(module: str) -> dict[str, ast.FunctionDef]:
    """The functions of a module by name; of overloads the last, which is the function itself."""
    body = ast.parse((PACKAGE / module).read_text()).body
    return {node.name: node for node in body if isinstance(node, ast.FunctionDef)}


def keywords(module: str, imports: str, classes: dict[str, str]) -> str:
    text = f"# Written by bindings/overloads.py from {module}.\n{imports}"
    for name, typed in classes.items():
        given = [one for one in functions(module)[name].args.kwonlyargs if not one.arg.startswith(DECIDES)]
        fields = "".join(f"    {ast.unparse(one)}\n" for one in given)
        text += f"\nclass {typed}(TypedDict, total=False):\n{fields}"
    return text


def calls(module: str) -> str:
    found = {name: node for name, node in functions(module).items() if not name.startswith("_")}
    text, decorators = HEAD, "\n\n"
    for name, node in found.items():
        protocol = name.title().replace("_", "")
        text += f"\n\nclass {protocol}(Protocol):\n" + "".join(f"    @overload\n{way}" for way in ways(node))
        decorators += f'{name} = cast("Callable[[Callable[..., Any]], {protocol}]", arguments.named)\n'
    return text + decorators


def ways(node: ast.FunctionDef) -> list[str]:
    """How a function can be called: without the further results, with them, and where only the call itself shows it."""
    results = node.returns
    assert isinstance(results, ast.BinOp)  # Tensor | tuple[Tensor, ...]
    defaults = ["", *(f" = {ast.unparse(value)}" for value in node.args.defaults)]
    start = len(node.args.args) - len(node.args.defaults)
    rows = [ast.unparse(one) + defaults[max(0, number - start + 1)] for number, one in enumerate(node.args.args)]
    (place,) = (number for number, one in enumerate(node.args.args) if one.arg.startswith(DECIDES))
    before, name, behind = rows[:place], node.args.args[place].arg, rows[place + 1 :]
    return [
        way([*before, f"{name}: Literal[False] = False", *behind], results.left),
        way([*before, *behind, "*", f"{name}: Literal[True]"], results.right),
        way(rows, results),
    ]


def way(rows: list[str], returns: ast.expr) -> str:
    lines = "".join(f"        {row},\n" for row in ("self", *rows))
    return f"    def __call__(\n{lines}    ) -> {ast.unparse(returns)}: ...\n"


if __name__ == "__main__":
    for path, text in texts().items():
        (PACKAGE / path).write_text(text)
