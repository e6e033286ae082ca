"""What Triton is given of a variant: its function, with types, constants and multiples. A build's compiler and kiln.jit
share it; importing it imports no Triton."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from kiln_recipe.plan.model import CompileSpec

if TYPE_CHECKING:
    from triton.compiler import ASTSource


def triton_source(function: object, spec: CompileSpec) -> ASTSource:
    """What Triton compiles: the function with its types, constants and multiples. Of a tensor descriptor of Gluon's the
    type names the layout of its tile in shared memory, which Triton itself chooses for its own language."""
    from triton.compiler import ASTSource

    places = (spec.constants_by_place, spec.attributes)
    if spec.language == "triton":
        return ASTSource(function, dict(spec.signature), *places)
    from triton.experimental.gluon import language
    from triton.experimental.gluon._runtime import GluonASTSource

    def laid_out(kind: str) -> str:
        found = re.fullmatch(r"tensordesc<(\w+)\[([\d,]+)\]>", kind)
        if found is None:
            return kind
        sides = [int(side) for side in found[2].split(",")]
        element = language.dtype(re.sub("^(i|u(?=[0-9]))", lambda word: {"i": "int", "u": "uint"}[word[0]], found[1]))
        return f"{kind[:-1]},{language.NVMMASharedLayout.get_default_for(sides, element)!r}>"

    return GluonASTSource(function, {name: laid_out(kind) for name, kind in spec.signature}, *places)
