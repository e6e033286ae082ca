"""Memory of a GPU, by the vendor's driver alone: CUDA's, or the HIP runtime."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Sequence
from typing import Any

from kiln_recipe.errors import EnvironmentProblem

# As the runtime looks for them (csrc/core): it then uses the copy that is loaded here.
_LIBRARIES = {
    "nvidia": ("libcuda.so.1",),
    "amd": (
        "libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5", "libamdhip64.so", "/opt/rocm/lib/libamdhip64.so",
    ),
}  # fmt: skip


class DeviceFailed(EnvironmentProblem):
    """The driver refuses what it should do."""


def load(vendor: str) -> ctypes.CDLL | None:
    """The vendor's driver library; None if the host has none."""
    for name in _LIBRARIES[vendor]:
        with contextlib.suppress(OSError):
            return ctypes.CDLL(name)
    return None


class Memory:
    """Allocations on one device, and copies to and from them. Addresses are the device's.

    Args:
        vendor: "nvidia" or "amd".
        ordinal: as the driver counts.

    Raises:
        DeviceFailed: the driver is missing, or refuses the device.
    """

    def __init__(self, vendor: str, ordinal: int) -> None:
        library = load(vendor)
        if library is None:
            raise DeviceFailed(f"there is no driver of {vendor}'s: {_LIBRARIES[vendor][0]} cannot be loaded")
        self._library = library
        self._is_cuda = vendor == "nvidia"
        if self._is_cuda:
            handle, context = ctypes.c_int(), ctypes.c_void_p()
            self._call("cuInit", 0)
            self._call("cuDeviceGet", ctypes.byref(handle), ordinal)
            self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), handle)
            self._call("cuCtxSetCurrent", context)
        else:
            self._call("hipInit", 0)
            self._call("hipSetDevice", ordinal)

    def allocate(self, count: int) -> int:
        """The address of so many bytes, at a multiple of 256."""
        address = ctypes.c_uint64()
        self._call("cuMemAlloc_v2" if self._is_cuda else "hipMalloc", ctypes.byref(address), ctypes.c_size_t(count))
        return address.value

    def free(self, address: int) -> None:
        self._call("cuMemFree_v2" if self._is_cuda else "hipFree", ctypes.c_uint64(address))

    def write(self, address: int, host: Any, count: int) -> None:
        """Copies from the host, whose address is `host`."""
        if self._is_cuda:
            self._call("cuMemcpyHtoD_v2", *_pointers(address, host), ctypes.c_size_t(count))
        else:
            self._call("hipMemcpy", *_pointers(address, host), ctypes.c_size_t(count), 1)

    def read(self, host: Any, address: int, count: int) -> None:
        """Copies to the host, when all that was enqueued before is done."""
        if self._is_cuda:
            self._call("cuMemcpyDtoH_v2", *_pointers(host, address), ctypes.c_size_t(count))
        else:
            self._call("hipMemcpy", *_pointers(host, address), ctypes.c_size_t(count), 2)

    def _call(self, name: str, *arguments: Any) -> None:
        try:
            code = getattr(self._library, name)(*arguments)
        except AttributeError:
            raise DeviceFailed(f"the driver has no entry point {name}") from None
        if code:
            raise DeviceFailed(f"{name}: the driver returned {code}")


def _pointers(*addresses: int) -> Sequence[ctypes.c_void_p]:
    return [ctypes.c_void_p(address) for address in addresses]
