"""Where a release runs: how Kiln is told of it, and where PyTorch's tensors for it lie."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager

import ffi


class Device:
    """A GPU that PyTorch has.

    Attributes:
        name: PyTorch's, of the device whose memory tensors lie in.
        vendor: of kiln_queue. options: for kiln_open.
    """

    name = "cuda"
    vendor = ffi.NVIDIA
    options: dict[str, object] = {}

    def stream(self) -> int | None:
        """Where what PyTorch does is ordered; None: the null stream."""
        import torch  # here, so that a device of another kind does without it

        return torch.cuda.current_stream().cuda_stream or None

    @contextmanager
    def lending(self, views: Mapping[str, ffi.Tensor], written: Collection[str]) -> Iterator[None]:
        """While a call is made, by which kernels may read what these reach, and write those named in `written`. A GPU
        does not hold them to it."""
        del views, written
        yield
