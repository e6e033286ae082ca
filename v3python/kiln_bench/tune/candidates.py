"""Which images could run a call, and in which bin of a look-up the call lies."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kiln_bench.shapes import Decoding, Training
from kiln_recipe.errors import RecipeError

if TYPE_CHECKING:
    from kiln_recipe.model import Kernel, Recipe

_UNLIMITED = 1 << 30  # of a window's side: recipe.yaml
Variant = Mapping[str, Any]  # by the names of kiln_variant's fields
Name = tuple[str, str]  # a kernel, "attn_fwd.general", and a configuration


class Images:
    """A target's images, by what a call must have in common with them.

    Args:
        variants: in the pack's order, in which a call takes the first specialization that its tensors allow.
    """

    def __init__(self, variants: Sequence[Variant]) -> None:
        self._alike: dict[tuple[str, ...], list[Variant]] = defaultdict(list)
        for variant in variants:
            if variant["unavailable"] is None:
                self._alike[_common(variant)].append(variant)

    def beside(self, ran: Variant) -> dict[Name, tuple[str, ...]]:
        """The keys of all that could run in the place of a variant, that one included: other configurations, of its
        specialization, and other implementations of the same kernel, which have specializations of their own: of each
        the first that takes the call."""
        found: dict[Name, tuple[str, ...]] = {}
        for one in self._alike.get(_common(ran), ()):
            if one["kernel"] != ran["kernel"] or one["specialization"] == ran["specialization"]:
                name = one["kernel"], one["configuration"]
                found[name] = (*found.get(name, ()), one["key"])
        return found


def _common(variant: Variant) -> tuple[str, ...]:
    return (variant["operation"], variant["kernel"].partition(".")[0], variant["functional"])


def kernels(recipe: Recipe) -> dict[str, Kernel]:
    """By name, "attn_fwd.general"."""
    return {kernel.name: kernel for operation in recipe.operations for kernel in operation.kernels}


def bin_of(kernel: Kernel, shape: Training | Decoding, multiprocessors: int) -> dict[str, int]:
    """For each axis of a kernel's look-up the lower edge of the call's bin, 0 of the first.

    Raises:
        RecipeError: an axis asks for something that a shape does not tell.
    """
    values = _values(shape) | {"multiprocessors": multiprocessors, "batch_invariant": 0}
    found = {}
    for axis in kernel.bins:
        try:
            value = axis.of.evaluate(values)
        except KeyError as error:
            raise RecipeError(
                f"the look-up of {kernel.name} has the axis {axis.name}, which asks for {error}: the tuner knows "
                f"{', '.join(values)} of a call"
            ) from error
        found[axis.name] = max((edge for edge in axis.edges if edge <= value), default=0)
    return found


def _values(shape: Training | Decoding) -> dict[str, int]:
    """What the family's expressions call them."""
    if isinstance(shape, Decoding):
        packed = shape.heads // shape.heads_kv
        return {
            "batch": shape.batch, "heads": shape.heads, "heads_kv": shape.heads_kv, "seqlen_q": 1,
            "seqlen_k": shape.keys, "visible": shape.keys, "packed": packed, "page_size": shape.page,
            "wanted_splits": 0, "tiles": -(-packed // (16 if packed <= 16 else 64)) * shape.heads_kv * shape.batch,
        }  # fmt: skip
    return {
        "batch": len(shape.lengths) or shape.batch, "heads": shape.heads, "heads_kv": shape.heads_kv,
        "seqlen_q": shape.length, "seqlen_k": shape.length,
        "left": shape.window - 1 if shape.window else _UNLIMITED,
        "right": 0 if shape.causal or shape.window else _UNLIMITED,
    }  # fmt: skip
