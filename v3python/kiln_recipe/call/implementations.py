"""Whether an implementation of a kernel fits a call; where it does not, why, in the runtime's words (csrc/core:
kernel.cc, descriptor.cc, unsupported.cc)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kiln_recipe.dtypes import DTYPE_BYTES, DTYPES
from kiln_recipe.model import Kernel, Parameter

if TYPE_CHECKING:
    from kiln_recipe.call.evaluate import Device
    from kiln_recipe.targets import Target

ADDRESS_MULTIPLE = 16  # bytes, of a tensor that is described, and of its strides
LARGEST_SIZE = 2**31 - 1
STRIDE_LIMIT = 2**40  # bytes

_BYTES = {DTYPES[name]: size for name, size in DTYPE_BYTES.items()}


@dataclass(frozen=True)
class PassedOver:
    """An implementation that a call does not run; str() is a clause that says why.

    Attributes:
        lack: what it lacks, or what the call has that it does not take; "" where nothing is known.
        of_images: it is images that are lacking: another target's or functional's would do.
        instead: the call does not run the kernel at all, for no implementation fits (`match: first_that_fits`).
    """

    kernel: Kernel
    lack: str
    of_images: bool = False
    instead: bool = False

    def __str__(self) -> str:
        lack = self.lack or "it has no image for this call"
        name = self.kernel.name if self.instead else self.kernel.implementation
        return f"{name}: {lack}" if name else lack


@dataclass(frozen=True)
class Described:
    """A tensor that a kernel gets as a tensor descriptor. `dtype`: a kiln_dtype; sizes and strides count elements."""

    argument: str
    address: int
    dtype: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]


def lack_of_target(kernel: Kernel, target: Target) -> PassedOver:
    return PassedOver(kernel, f"it is not for {target.name}", of_images=True)


def lack_of_driver(kernel: Kernel, target: Target, device: Device) -> PassedOver | None:
    """Why the device's driver cannot load the kernel's images, or make what they take."""
    if kernel.descriptors and not device.describes:
        entry = "and this driver has no entry point cuTensorMapEncodeTiled"
        return PassedOver(
            kernel, f"it takes tensor descriptors, {'which AMD has none of' if device.vendor == 'AMD' else entry}"
        )
    needed = target.assembly(kernel.ptx).driver
    if device.driver is not None and device.driver < needed:
        return PassedOver(
            kernel,
            f"it needs a driver for CUDA {_version(needed)} or later; this one is for CUDA {_version(device.driver)}",
        )
    return None


def describe(parameter: Parameter, values: Mapping[str, int]) -> Described:
    """The tensor of a parameter that is a descriptor."""
    descriptor = parameter.descriptor
    assert descriptor is not None
    return Described(
        descriptor.argument,
        parameter.value.evaluate(values),
        DTYPES[descriptor.dtype] if descriptor.dtype is not None else values[str(parameter.dtype_choice)],
        tuple(size.evaluate(values) for size in descriptor.sizes),
        tuple(stride.evaluate(values) for stride in descriptor.strides),
    )


def lack_of_description(kernel: Kernel, tensor: Described) -> PassedOver | None:
    """Why no descriptor can describe the tensor."""
    argument, inner, element = tensor.argument, len(tensor.sizes) - 1, _BYTES.get(tensor.dtype, 1)

    def lacks(clause: str) -> PassedOver:
        return PassedOver(kernel, clause)

    if tensor.address % ADDRESS_MULTIPLE:
        return lacks(
            f"{argument} is at {tensor.address % 2**64:#x}; its descriptor needs a multiple of {ADDRESS_MULTIPLE}"
        )
    for axis, size in enumerate(tensor.sizes):
        if not 1 <= size <= LARGEST_SIZE:
            return lacks(f"size {axis} of {argument} is {size}; its descriptor takes 1 to {LARGEST_SIZE}")
    if tensor.strides[inner] != 1:
        return lacks(f"the last stride of {argument} is {tensor.strides[inner]}; its descriptor needs 1")
    # The copy engine writes 16 bytes at a time: of a row that ends within them it overwrites what is behind its end.
    if tensor.sizes[inner] * element % ADDRESS_MULTIPLE:
        size = tensor.sizes[inner]
        return lacks(f"the last size of {argument} is {size} elements; its descriptor needs a multiple of 16 bytes")
    for axis, stride in enumerate(tensor.strides[:inner]):
        if not 0 <= stride < STRIDE_LIMIT // element or stride * element % ADDRESS_MULTIPLE:
            return lacks(
                f"stride {axis} of {argument} is {stride} elements; its descriptor needs a multiple of 16 bytes "
                "below 2^40"
            )
    return None


def _version(number: int) -> str:
    """ "12.8" of 12080, as cuDriverGetVersion() gives it."""
    return f"{number // 1000}.{number % 1000 // 10}"
