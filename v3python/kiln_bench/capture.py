"""CUDA graphs of calls, captured so that a failure costs the graph alone.

A capture that fails leaves three things behind in PyTorch: its default generator still counts for the graph, so that
whatever draws random numbers later fails with "Offset increment outside graph capture"; `torch.cuda.graph` leaves the
stream of the capture current; and the allocator keeps a pointer to the graph.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

Work = Callable[[], object]
_WARM_UP = 3  # calls before a capture: what a library does once, as loading modules, cannot be captured
_FAILED: list[torch.cuda.CUDAGraph] = []  # kept, since PyTorch's allocator may look at them in later captures


class NotCaptured(RuntimeError):
    """Calls cannot be captured; `str()` is why, in one line."""


@contextmanager
def own_stream(device: str = "cuda") -> Iterator[None]:
    """Makes another stream than the default one PyTorch's current stream, for whatever shall be captured later.

    The default stream cannot be captured, and PyTorch launches a gradient's kernels on the stream on which its forward
    ran: after a forward on the default stream, the capture of its backward would fail.

    Args:
        device: where the tensors are; nothing is done for "cpu".
    """
    if device != "cuda":
        yield
        return
    import torch

    before, stream = torch.cuda.current_stream(), torch.cuda.Stream()
    stream.wait_stream(before)
    with torch.cuda.stream(stream):
        yield
    before.wait_stream(stream)


def captured(work: Work, count: int) -> Work:
    """What replays a CUDA graph of `count` calls. They are captured on the current stream, see own_stream; on another
    one if that is the default stream.

    Raises:
        NotCaptured: they cannot be captured. The current stream and PyTorch's default generator are as before.
    """
    import torch

    stream = torch.cuda.current_stream()
    if stream == torch.cuda.default_stream():
        stream = torch.cuda.Stream()
    generator = torch.cuda.default_generators[torch.cuda.current_device()]
    if not hasattr(generator, "graphsafe_set_state"):
        raise NotCaptured(f"PyTorch {torch.__version__} cannot restore its generator if a capture fails; 2.4 can")
    before, graph = generator.clone_state(), torch.cuda.CUDAGraph()
    # Memory that is freed during a capture, by a cycle of objects, may end it.
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    try:
        with torch.cuda.stream(stream):
            for _ in range(_WARM_UP):
                work()
            torch.cuda.synchronize()
            _capture(graph, work, count)
    except Exception as error:
        generator.graphsafe_set_state(before)
        _FAILED.append(graph)
        raise NotCaptured(" ".join(str(error).split()) or type(error).__name__) from error
    return graph.replay


def _capture(graph: torch.cuda.CUDAGraph, work: Work, count: int) -> None:
    """Captures calls on the current stream; the capture has ended however they end."""
    graph.capture_begin()
    try:
        for _ in range(count):
            work()
    except BaseException:
        with suppress(RuntimeError):  # that the capture is invalid, which the call's own error explains better
            graph.capture_end()
        raise
    graph.capture_end()
