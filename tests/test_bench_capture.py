"""Captures of CUDA graphs that fail leave nothing behind, on a stand-in for torch.cuda which behaves as PyTorch does: a
capture that ended with an error has left its default generator counting for the graph."""

from __future__ import annotations

from contextlib import contextmanager

import pytest

from kiln_bench import capture

torch = pytest.importorskip("torch")
NOT_PERMITTED = "operation not permitted when stream is capturing"


class Generator:
    """`state` is shared by those that were made of one another, as PyTorch's are."""

    def __init__(self, offset: int = 0) -> None:
        self.state = {"offset": offset, "capturing": False}

    def clone_state(self) -> Generator:
        return Generator(self.state["offset"])

    def graphsafe_set_state(self, other: Generator) -> None:
        self.state = other.state

    def draw(self, is_captured: bool) -> None:
        if self.state["capturing"] and not is_captured:
            raise RuntimeError("Offset increment outside graph capture encountered unexpectedly.")
        self.state["offset"] += 4


class Stream:
    """The default one has number 0."""

    def __init__(self, number: int, waits: list[tuple[int, int]]) -> None:
        self.number, self._waits = number, waits

    def wait_stream(self, other: Stream) -> None:
        self._waits.append((self.number, other.number))


class Cuda:
    def __init__(self) -> None:
        self.waits: list[tuple[int, int]] = []
        self.default = self.current = Stream(0, self.waits)
        self.streams = self.begun = 0
        self.default_generators = (Generator(8),)
        self.capturing: Cuda.Graph | None = None
        cuda = self

        class Graph:
            calls = 0
            is_valid = True

            def capture_begin(self) -> None:
                assert cuda.current is not cuda.default, "PyTorch refuses to capture the default stream"
                self.stream, cuda.capturing = cuda.current, self
                cuda.begun += 1
                cuda.default_generators[0].state["capturing"] = True

            def capture_end(self) -> None:
                assert cuda.current is self.stream
                cuda.capturing = None
                if not self.is_valid:
                    raise RuntimeError("operation failed due to a previous error during capture")
                cuda.default_generators[0].state["capturing"] = False

            def replay(self) -> int:
                return self.calls

        self.CUDAGraph = Graph

    def new_stream(self) -> Stream:
        self.streams += 1
        return Stream(self.streams, self.waits)

    def launch(self, stream: Stream | None = None) -> None:
        """A kernel: on another stream than the one of a capture it ends the capture."""
        if self.capturing and stream not in (None, self.current):
            self.capturing.is_valid = False
            raise RuntimeError(NOT_PERMITTED)
        if self.capturing:
            self.capturing.calls += 1

    @contextmanager
    def stream(self, stream: Stream):
        before, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = before


@pytest.fixture
def cuda(monkeypatch) -> Cuda:
    found = Cuda()
    stand_ins = {
        "current_stream": lambda: found.current, "default_stream": lambda: found.default, "stream": found.stream,
        "current_device": lambda: 0, "synchronize": lambda: None, "empty_cache": lambda: None,
        "default_generators": found.default_generators, "CUDAGraph": found.CUDAGraph, "Stream": found.new_stream,
    }  # fmt: skip
    for name, stand_in in stand_ins.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)
    monkeypatch.setattr(capture, "_FAILED", [])
    return found


def check_nothing_is_left(cuda: Cuda) -> None:
    assert cuda.current is cuda.default and cuda.capturing is None
    assert cuda.default_generators[0].state == {"offset": 8, "capturing": False}
    assert capture.captured(cuda.launch, 5)() == 5, "a later capture"
    cuda.default_generators[0].draw(is_captured=False)


def test_calls_are_captured_after_a_warm_up(cuda):
    calls = []

    def work() -> None:
        calls.append(cuda.capturing is not None)
        cuda.launch()

    assert capture.captured(work, 20)() == 20
    assert calls == [False] * 3 + [True] * 20 and not capture._FAILED
    check_nothing_is_left(cuda)


def test_what_a_call_raises_is_the_reason(cuda):
    """And not that the capture, which it made invalid, cannot be ended."""

    def work() -> None:
        cuda.launch(cuda.default)

    with pytest.raises(capture.NotCaptured, match=f"^{NOT_PERMITTED}$"):
        capture.captured(work, 20)
    assert cuda.begun == len(capture._FAILED) == 1
    check_nothing_is_left(cuda)


def test_a_capture_that_became_invalid_without_a_word(cuda):
    def work() -> None:
        if cuda.capturing:
            cuda.capturing.is_valid = False

    with pytest.raises(capture.NotCaptured, match="^operation failed due to a previous error during capture$"):
        capture.captured(work, 1)
    check_nothing_is_left(cuda)


def test_a_call_that_fails_before_the_capture(cuda):
    def work() -> None:
        raise ValueError("two\nlines")

    with pytest.raises(capture.NotCaptured, match="^two lines$"):
        capture.captured(work, 1)
    assert cuda.begun == 0
    check_nothing_is_left(cuda)


def test_an_interrupted_capture_is_ended(cuda):
    def work() -> None:
        if cuda.capturing:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        capture.captured(work, 1)
    check_nothing_is_left(cuda)


def test_a_generator_that_cannot_be_restored_is_left_alone(cuda, monkeypatch):
    monkeypatch.setattr(torch.cuda, "default_generators", (object(),))
    with pytest.raises(capture.NotCaptured, match="cannot restore its generator if a capture fails; 2.4 can"):
        capture.captured(cuda.launch, 1)
    assert cuda.begun == 0


def gradient(cuda: Cuda):
    """Launches where its forward ran, as PyTorch does."""
    stream = cuda.current
    return lambda: cuda.launch(stream)


def test_gradients_are_captured_on_a_stream_of_ones_own(cuda):
    with pytest.raises(capture.NotCaptured, match=NOT_PERMITTED):
        capture.captured(gradient(cuda), 2)
    with capture.own_stream():
        own = cuda.current.number
        assert own != 0 and capture.captured(gradient(cuda), 2)() == 2
    assert cuda.waits == [(own, 0), (0, own)]
    check_nothing_is_left(cuda)


def test_tensors_of_the_host_need_no_stream(cuda):
    with capture.own_stream("cpu"):
        assert cuda.streams == 0
