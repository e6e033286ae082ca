"""Which kernels may begin before the one before them has ended (`overlaps`)."""

from __future__ import annotations

from collections.abc import Sequence

from kiln_recipe.expressions import All, Expression, Node
from kiln_recipe.model import Kernel
from kiln_recipe.read import fingerprint
from kiln_recipe.read.implementations import Implementation

WAIT = "gdc_wait"


def refuse_overlap(implementation: Implementation, kernel: Kernel, before: Sequence[Kernel]) -> None:
    """Refuses an implementation that overlaps and must not.

    Args:
        kernel: the implementation, read.
        before: kernels of the operation that run before it.

    Raises:
        RecipeError: it is for a target whose kernels cannot wait for others; or no kernel of the same call is certain
            to run before it, so that it would overlap with another library's; or nothing in its source waits.
    """
    if not implementation.shape.overlaps:
        return
    document, keys = implementation.document, (*implementation.keys, "overlaps")
    # Kernels wait for others since sm_90, as it has tensor descriptors since then.
    others = [target.name for target in implementation.served if not target.tensor_descriptors]
    if others:
        document.fail(
            keys,
            f"a kernel for {others[0]}, which the implementation is for too, cannot overlap with another; NVIDIA's can "
            "from sm_90 on: say `targets`",
        )
    conditions = _conditions(kernel.when)
    if not any(_conditions(earlier.when) <= conditions for earlier in before):
        found = f"kernels before it have a `when` that {kernel.name} lacks" if before else "it is the operation's first"
        document.fail(
            keys,
            f"{kernel.name} may overlap only with a kernel of the same call, and {found}; leave overlaps out, or put a "
            "kernel before it whose `when` has no other conditions",
        )
    if not fingerprint.uses(kernel.source, kernel.function, WAIT):
        document.fail(
            keys,
            f"{kernel.function} of {kernel.source.name} never waits for the kernel before it; call {WAIT}() of "
            "triton.language.extra.cuda before anything that this writes is read or written, or leave overlaps out",
        )


def _conditions(when: Expression | None) -> frozenset[Node]:
    """All must hold for the kernel to run."""
    if when is None:
        return frozenset()
    return frozenset(when.root.operands if isinstance(when.root, All) else (when.root,))
