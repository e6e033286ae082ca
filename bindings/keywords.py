"""Writes keywords.py of kiln and kiln.torch: the keyword arguments of functions whose result depends on another one,
for the overloads that name that one alone.

    python bindings/keywords.py
"""

from __future__ import annotations

import ast
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent / "python/kiln"
# By the module that has the functions: where their keywords go, what that imports, and the class of each function.
MODULES = {
    "attention.py": (
        "keywords.py",
        "from collections.abc import Sequence\nfrom typing import Any, TypedDict\n\n"
        "from kiln.arrays import Array\nfrom kiln.runtime import Runtime\n",
        {"attn_fwd": "Forward", "attn_decode": "Decode"},
    ),
    "torch/functions.py": (
        "torch/keywords.py",
        "from typing import TypedDict\n\nfrom torch import Tensor\n",
        {"attention": "Attention", "decode": "Decode"},
    ),
}
DECIDES = "return_lse"  # what the overloads name
HEAD = '''"""For type checkers; no program that runs imports this. Written by bindings/keywords.py from {module}."""

from __future__ import annotations

'''


def text_of(module: str) -> str:
    """The file of keywords that belongs to a module."""
    _, imports, functions = MODULES[module]
    text = HEAD.format(module=module) + imports
    body = ast.parse((PACKAGE / module).read_text()).body
    for name, typed in functions.items():
        *_, node = (one for one in body if isinstance(one, ast.FunctionDef) and one.name == name)  # after its overloads
        arguments = [one for one in node.args.kwonlyargs if one.arg != DECIDES and one.annotation]
        fields = "".join(f"    {one.arg}: {ast.unparse(one.annotation)}\n" for one in arguments if one.annotation)
        text += f"\n\nclass {typed}(TypedDict, total=False):\n{fields}"
    return text


if __name__ == "__main__":
    for module, (keywords, *_) in MODULES.items():
        (PACKAGE / keywords).write_text(text_of(module))
