"""PyTorch's tensors as a recipe sees them: address, dtype, sizes, strides; and memory that is taken for a call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from kiln.jit.errors import ArgumentError
from kiln_recipe import dtypes
from kiln_recipe.call.evaluate import ALIGNMENT, Tensor

# kiln_dtype by PyTorch's dtype.
_CODES: Mapping[torch.dtype, int] = {getattr(torch, row.torch): row.number for row in dtypes.TABLE}


def describe(operation: str, name: str, tensor: torch.Tensor) -> Tensor:
    """An argument as the recipe's expressions read it.

    Raises:
        ArgumentError: it has no memory, or a dtype that Kiln does not know.
    """
    if tensor.dtype not in _CODES:
        raise ArgumentError(f"{operation}: {name} is {tensor.dtype}, which is not a dtype of Kiln's")
    if tensor.layout is not torch.strided or tensor.device.type == "meta":
        raise ArgumentError(f"{operation}: {name} has no strides or no memory; it must be a plain tensor")
    return Tensor(tensor.data_ptr(), _CODES[tensor.dtype], tuple(tensor.shape), tuple(tensor.stride()))


def one_device(operation: str, tensors: Mapping[str, torch.Tensor]) -> torch.device:
    """The device of a call's tensors, by name.

    Raises:
        ArgumentError: there is none, or they are on several.
    """
    if not tensors:
        raise ArgumentError(f"{operation}: no tensor is given, so there is no device to run on")
    first, device = next((name, tensor.device) for name, tensor in tensors.items())
    for name, tensor in tensors.items():
        if tensor.device != device:
            raise ArgumentError(
                f"{operation}: {name} is on {tensor.device} and {first} on {device}; they must be on one device"
            )
    return device


@dataclass(frozen=True)
class Memory:
    """What a call may touch: the storages of its tensors and workspaces, by name.

    Attributes:
        absent: the tensors that it leaves out, whose addresses are 0.
    """

    storages: Mapping[str, torch.UntypedStorage]
    absent: Sequence[str] = ()

    @staticmethod
    def of(tensors: Mapping[str, torch.Tensor], absent: Sequence[str] = ()) -> Memory:
        return Memory({name: tensor.untyped_storage() for name, tensor in tensors.items()}, absent)

    @property
    def regions(self) -> list[tuple[str, int, int]]:
        """Of each that has memory its name, and the addresses where it begins and ends."""
        storages = self.storages.items()
        return [(name, s.data_ptr(), s.data_ptr() + s.nbytes()) for name, s in storages if s.nbytes()]

    def zero(self, address: int, size: int) -> bool:
        """Sets bytes to zero, in the order of the device's current stream; False if none of them holds these."""
        for name, begin, end in self.regions:
            if begin <= address and address + size <= end:
                storage = self.storages[name]
                view = torch.empty(0, dtype=torch.uint8, device=storage.device)
                view.set_(storage, address - begin, (size,), (1,)).zero_()
                return True
        return False


def allocate(sizes: Mapping[str, int], device: torch.device, poisoned: bool) -> dict[str, tuple[int, torch.Tensor]]:
    """By workspace its aligned address, and the tensor that holds it.

    Args:
        poisoned: filled with bytes that are NaN in every floating type.
    """
    made = {}
    for name, size in sizes.items():
        block = torch.empty(size + ALIGNMENT, dtype=torch.uint8, device=device)
        if poisoned:
            block.fill_(0xFF)
        made[name] = (-(-block.data_ptr() // ALIGNMENT) * ALIGNMENT, block)
    return made
