"""native.shortcut: which calls go past the dispatcher. What they launch is for tests/bindings and a GPU to see."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from kiln.torch import native, operators


@pytest.fixture
def asked() -> list[str]:
    return []


@pytest.fixture
def shortcut(asked: list[str]) -> object:
    """One like native.shortcut, whose last question has `asked` know of each call that all others let pass; only then
    does it see that the tensors are on the CPU."""
    return native.make_shortcut((*native.WATCHERS, lambda: asked.append("the last")))


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


class FunctionMode(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function != Tensor.requires_grad.__get__:
            raise AssertionError("nothing is to be called")
        return function(*args, **(kwargs or {}))


class Subclass(Tensor):
    pass


@pytest.mark.parametrize("mode", [cast, Mode, FakeTensorMode, FunctionMode, forward_ad.dual_level])
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


def test_the_shortcut_takes_nothing_that_is_traced(shortcut, asked: list[str]) -> None:
    q = torch.zeros(2, 3, 4, 8)
    torch.jit.trace(lambda x: [shortcut.attend(q, q, q), x + 1][1], q, check_trace=False)
    assert not asked
    make_fx(lambda x: [shortcut.attend(q, q, q), x + 1][1], pre_dispatch=True)(q)
    assert not asked


def test_the_shortcut_is_open_while_its_engine_runs(definition) -> None:
    assert not native.shortcut.is_open
    before = operators.set_engine(None)
    assert native.shortcut.is_open
    operators.set_engine(before)
    assert not native.shortcut.is_open
