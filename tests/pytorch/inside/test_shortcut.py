"""native.shortcut: which calls go past the dispatcher. What they launch is for tests/bindings and a GPU to see."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.utils._python_dispatch import TorchDispatchMode

from kiln.torch import native, operators


@pytest.fixture
def asked() -> list[str]:
    return []


@pytest.fixture
def shortcut(asked: list[str]) -> object:
    """One like native.shortcut, which has `asked` know of each call that it would take; only then does it see that the
    tensors are on the CPU."""
    return native.make_shortcut(lambda: asked.append("a runtime") or 0)


def test_the_shortcut_takes_plain_calls(shortcut, asked: list[str]) -> None:
    q, wanting = torch.zeros(2, 3, 4, 8), torch.zeros(2, 3, 4, 8, requires_grad=True)
    assert shortcut.attend(q, q, q) is None and len(asked) == 1
    assert shortcut.attend(q, q, q, 0.25, native.CAUSAL) is None and len(asked) == 2
    with torch.no_grad():
        assert shortcut.attend(wanting, q, q) is None and len(asked) == 3
    with torch.inference_mode():
        assert shortcut.attend(wanting, q, q) is None and len(asked) == 4


@contextmanager
def cast() -> Iterator[None]:
    torch.set_autocast_enabled("cuda", True)
    try:
        yield
    finally:
        torch.set_autocast_enabled("cuda", False)


class Mode(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        raise AssertionError("nothing is to be called")


class Subclass(Tensor):
    pass


@pytest.mark.parametrize("mode", [cast, Mode, FakeTensorMode, forward_ad.dual_level])
def test_the_shortcut_takes_nothing_that_is_cast_or_seen_by_others(shortcut, asked: list[str], mode) -> None:
    q = torch.zeros(2, 3, 4, 8)
    with mode():
        assert shortcut.attend(q, q, q) is None
    assert not asked
    assert shortcut.attend(q, q, q) is None and asked


def test_the_shortcut_takes_nothing_that_is_transformed(shortcut, asked: list[str]) -> None:
    q = torch.zeros(2, 3, 4, 8)
    torch.vmap(lambda x: [shortcut.attend(q, q, q), x][1])(q)
    torch.func.grad(lambda x: [shortcut.attend(q, q, q), x.sum()][1])(q)
    assert not asked


@pytest.mark.parametrize("at", range(3))
def test_the_shortcut_takes_plain_tensors_alone(shortcut, asked: list[str], at: int) -> None:
    q = torch.zeros(2, 3, 4, 8)
    for other in (q.as_subclass(Subclass), torch.nn.Parameter(q), torch.zeros(2, 3, 4, 8, requires_grad=True), None, 1):
        given = [q, q, q]
        given[at] = other
        assert shortcut.attend(*given) is None and not asked


def test_the_shortcut_leaves_failures_to_whoever_asked() -> None:
    def exhausted(tensor: Tensor) -> Tensor:
        raise torch.OutOfMemoryError("no memory")

    def interrupted(tensor: Tensor) -> Tensor:
        raise KeyboardInterrupt

    q, asked = torch.zeros(2, 3, 4, 8), []
    runtime = lambda: asked.append("a runtime") or 0  # noqa: E731
    assert native.make_shortcut(runtime, exhausted).attend(q, q, q) is None and asked
    assert native.make_shortcut(runtime, lambda x: x.numpy()).attend(q, q, q) is None
    with pytest.raises(KeyboardInterrupt):
        native.make_shortcut(runtime, interrupted).attend(q, q, q)


def test_the_shortcut_is_open_while_its_engine_runs(definition) -> None:
    assert not native.shortcut.is_open
    before = operators.set_engine(None)
    assert native.shortcut.is_open
    operators.set_engine(before)
    assert not native.shortcut.is_open
