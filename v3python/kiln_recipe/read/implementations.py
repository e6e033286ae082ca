"""Reads which implementations a kernel has: each as if it were a kernel by itself, with what all of them share; and
which of them may begin before the kernel before them has ended (`overlaps`)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec

from kiln_recipe import targets
from kiln_recipe.documents.document import Document, Keys
from kiln_recipe.documents.file import ImplementationShape, KernelShape, ParameterShape
from kiln_recipe.expressions import All, Expression, Node
from kiln_recipe.model import Kernel
from kiln_recipe.read import fingerprint
from kiln_recipe.read.descriptors import without_descriptors
from kiln_recipe.read.rules import read_targets
from kiln_recipe.read.scope import check_name
from kiln_recipe.targets import Target

_REQUIRED = ("source", "grid")
_WAIT = "gdc_wait"


@dataclass(frozen=True)
class Implementation:
    """What there is to read of one.

    Attributes:
        name: "hopper"; "" of a kernel that has no `implementations`.
        document, keys: where its fields stand; those that it shares lead to the kernel's own lines.
        shape: the kernel's, with this implementation's fields in place of its own.
        own: names of the fields that the implementation does not share.
        targets, served: names of the targets that it is for; those targets.
        ptx: 86 for 8.6; 0: the target's.
    """

    name: str
    document: Document
    keys: Keys
    shape: KernelShape
    own: frozenset[str]
    targets: tuple[str, ...]
    served: tuple[Target, ...]
    ptx: int


def read_implementations(document: Document, keys: Keys, shape: KernelShape) -> list[Implementation]:
    """Those of a kernel, in the order in which calls try them.

    Raises:
        RecipeError: something in one does not hold, before its function is looked at.
    """
    if not shape.implementations:
        if (*keys, "implementations") in document.lines:
            document.fail(
                (*keys, "implementations"), "has no entry; leave it out where a kernel has one implementation"
            )
        return [_read(document, keys, "", shape, frozenset(ImplementationShape.__struct_fields__))]
    found = []
    for name, own in shape.implementations.items():
        here = (*keys, "implementations", name)
        check_name(document, here, name, "an implementation")
        given = frozenset(field for field in ImplementationShape.__struct_fields__ if (*here, field) in document.lines)
        merged = msgspec.structs.replace(shape, implementations={}, **{field: getattr(own, field) for field in given})
        # Of what is shared a mistake lies where it is written.
        shared = {
            (*here, *line_keys[len(keys) :]): line
            for line_keys, line in document.lines.items()
            if line_keys[: len(keys)] == keys and len(line_keys) > len(keys) and line_keys[len(keys)] not in given
        }
        seen_from_here = replace(document, lines={**shared, **document.lines})
        found.append(_read(seen_from_here, here, name, merged, given))
    return found


def refuse_unreachable(document: Document, keys: Keys, kernels: Sequence[Kernel]) -> None:
    """Refuses an implementation that no call can get, since on each of its targets an earlier one takes every call."""
    taken: dict[str, str] = {}  # by target the implementation that takes every call
    for kernel in kernels:
        own = [target for target in targets.load() if kernel.is_for(target)]
        if own and all(target.name in taken for target in own):
            document.fail(
                (*keys, "implementations", kernel.implementation),
                f"{kernel.name} is never reached: on each of its targets {taken[own[0].name]}, which stands before it, "
                "serves every call",
            )
        conditions = (kernel.serves, kernel.descriptors, kernel.ptx, kernel.unavailable)
        if not any(conditions) and not any(entry.where for entry in kernel.configurations):
            taken |= {target.name: kernel.name for target in own if target.name not in taken}


def refuse_unused_choices(document: Document, keys: Keys, choices: Sequence[str], kernels: Sequence[Kernel]) -> None:
    """Refuses a choice of a kernel that changes no image of any implementation. Of one that does not depend on it, the
    images for its values are equal, and are compiled and stored once.

    Args:
        choices: as the kernel lists them.
        kernels: its implementations.
    """
    for position, choice in enumerate(choices):
        if not any(_depends(kernel, choice) for kernel in kernels):
            whose = " of any implementation" if len(kernels) > 1 else ""
            document.fail(
                (*keys, "choices", position),
                f"the kernel {kernels[0].kernel} lists the choice {choice}, and no constant and no parameter's type"
                f"{whose} depends on it: its images would all be equal; take it out of `choices`, or pass it on under "
                "`constants`",
            )


def _depends(kernel: Kernel, choice: str) -> bool:
    read = (value.names for _, value in kernel.constants if isinstance(value, Expression))
    return any(parameter.dtype_choice == choice for parameter in kernel.parameters) or any(choice in n for n in read)


def _read(document: Document, keys: Keys, name: str, shape: KernelShape, own: frozenset[str]) -> Implementation:
    for field in _REQUIRED:
        if (*keys, field) not in document.lines:
            document.fail(keys, f"{'.'.join(map(str, keys))} lacks the field {field!r}")
    names = read_targets(document, (*keys, "targets"), shape.targets)
    served = tuple(target for target in targets.load() if any(map(target.is_called, names)))
    return Implementation(
        name, document, keys, shape, own, names, served, _ptx(document, (*keys, "ptx"), shape, served)
    )


def _ptx(document: Document, keys: Keys, shape: KernelShape, served: Sequence[Target]) -> int:
    if keys not in document.lines:
        return 0
    if not re.fullmatch(r"[0-9]{1,2}\.[0-9]", shape.ptx):
        document.fail(keys, f"ptx is {shape.ptx!r}; it must be a version such as '8.6'")
    version = targets.ptx_number(shape.ptx)
    for target in served:
        described = [n for n, p in shape.parameters.items() if isinstance(p, ParameterShape) and p.descriptor]
        if not target.tensor_descriptors and described:  # which ptx is there for
            document.fail((*keys[:-1], "parameters", described[0]), without_descriptors(described[0], target))
        if not target.ptx_version:
            document.fail(
                keys,
                f"an image for {target.name}, which the implementation is for too, is made without PTX; leave ptx out, "
                "or say `targets`",
            )
        if version < target.ptx_version:
            lowest = f"{target.ptx_version // 10}.{target.ptx_version % 10}"
            document.fail(keys, f"ptx is {shape.ptx}; images for {target.name} need {lowest} at least")
    if version not in targets.PTX_DRIVERS:
        known = ", ".join(f"{one // 10}.{one % 10}" for one in targets.PTX_DRIVERS)
        document.fail(keys, f"ptx is {shape.ptx}; the assemblers take {known}")
    return version


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
    if not fingerprint.uses(kernel.source, kernel.function, _WAIT):
        document.fail(
            keys,
            f"{kernel.function} of {kernel.source.name} never waits for the kernel before it; call {_WAIT}() of "
            "triton.language.extra.cuda before anything that this writes is read or written, or leave overlaps out",
        )


def _conditions(when: Expression | None) -> frozenset[Node]:
    """All must hold for the kernel to run."""
    if when is None:
        return frozenset()
    return frozenset(when.root.operands if isinstance(when.root, All) else (when.root,))
