"""kiln.torch.use(): what is routed, what falls through and how that is told, in threads and beneath torch.compile."""

from __future__ import annotations

import threading

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import kiln.torch as kt
from kiln.errors import DriverError, UnsupportedError
from kiln.torch import operators, routing


def qkv() -> list[torch.Tensor]:
    return [torch.randn(2, 3, 10, 8).requires_grad_() for _ in "qkv"]


def test_nests_and_is_undone(definition) -> None:
    q, k, v = qkv()
    F.scaled_dot_product_attention(q, k, v)
    assert definition.calls == []
    with kt.use():
        assert F.scaled_dot_product_attention is routing.scaled_dot_product_attention and kt.is_routed()
        with kt.use():
            F.scaled_dot_product_attention(q, k, v)
        F.scaled_dot_product_attention(q, k, v)
        assert kt.is_routed()
    assert F.scaled_dot_product_attention is routing.theirs and definition.calls == ["attn_fwd"] * 2
    with pytest.raises(ZeroDivisionError), kt.use():
        1 / 0  # noqa: B018
    assert not kt.is_routed()


def test_what_others_have_put_there_stays(definition, monkeypatch: pytest.MonkeyPatch) -> None:
    """What somebody else's patch was before the first route comes back; one made meanwhile is left alone."""
    q, k, v = qkv()

    def earlier(*args, **more):
        return routing.theirs(*args, **more)

    monkeypatch.setattr(F, "scaled_dot_product_attention", earlier)
    with kt.use():
        assert F.scaled_dot_product_attention is routing.scaled_dot_product_attention
        F.scaled_dot_product_attention(q, k, v)
    assert F.scaled_dot_product_attention is earlier and definition.calls == ["attn_fwd"]
    with kt.use():
        inner = F.scaled_dot_product_attention
        later = lambda *args, **more: inner(*args, **more)  # noqa: E731
        F.scaled_dot_product_attention = later
        with kt.use():
            F.scaled_dot_product_attention(q, k, v)
    assert F.scaled_dot_product_attention is later and definition.calls == ["attn_fwd"] * 2
    torch.testing.assert_close(later(q, k, v), routing.theirs(q, k, v))
    assert definition.calls == ["attn_fwd"] * 2


def test_once_for_all(definition) -> None:
    q, k, v = qkv()
    first, second = kt.use(), kt.use()
    thread = threading.Thread(target=lambda: F.scaled_dot_product_attention(q, k, v))
    thread.start()
    thread.join()
    first.undo()
    first.undo()
    F.scaled_dot_product_attention(q, k, v)
    assert kt.is_routed() and definition.calls == ["attn_fwd"] * 2
    second.undo()
    assert not kt.is_routed() and F.scaled_dot_product_attention is routing.theirs


def test_a_statement_is_of_its_thread(definition) -> None:
    seen = []
    with kt.use():
        thread = threading.Thread(target=lambda: seen.append(kt.is_routed()))
        thread.start()
        thread.join()
    assert seen == [False]


def test_many_threads_at_once(definition) -> None:
    """Statements overlap in every order; each thread sees its own, and in the end all is as it was."""
    q, k, v = (x.detach() for x in qkv())
    wrong = []

    def work(number: int) -> None:
        for i in range(30):
            if (i + number) % 2:
                with kt.use():
                    wrong.extend([] if kt.is_routed() else ["not routed"])
                    F.scaled_dot_product_attention(q, k, v)
            else:
                wrong.extend(["routed"] if kt.is_routed() else [])
                F.scaled_dot_product_attention(q, k, v)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and len(definition.calls) == 90 and kt.fallthroughs() == {}
    assert F.scaled_dot_product_attention is routing.theirs and torch.backends.mha.get_fastpath_enabled()


def test_left_in_another_thread(definition) -> None:
    route = kt.use()
    route.__enter__()
    caught = []

    def leave() -> None:
        try:
            route.__exit__(None, None, None)
        except RuntimeError as error:
            caught.append(str(error))

    thread = threading.Thread(target=leave)
    thread.start()
    thread.join()
    assert "another thread" in caught[0] and kt.is_routed()
    route.__exit__(None, None, None)
    assert not kt.is_routed()


def test_backward_recomputes_by_the_same_way(definition) -> None:
    q, k, v = qkv()

    def run(q, k, v):
        return F.scaled_dot_product_attention(q * 1, k, v)

    with kt.use():
        out = checkpoint(run, q, k, v, use_reentrant=False)
        out.sum().backward()
    assert definition.calls == ["attn_fwd", "attn_fwd", "attn_bwd"] and kt.fallthroughs() == {}


def test_reasons_are_counted(definition) -> None:
    q, k, v = (x.detach() for x in qkv())
    definition.attn_fwd = refuse = lambda *args, **more: (_ for _ in ()).throw(UnsupportedError("no such kernel"))
    with kt.use():
        for _ in range(3):
            assert torch.equal(F.scaled_dot_product_attention(q, k, v), routing.theirs(q, k, v))
        assert kt.fallthroughs() == {"no such kernel": 3} and kt.last_fallthrough() == "no such kernel"
        F.scaled_dot_product_attention(q, k, v, dropout_p=1.0)
        assert len(kt.fallthroughs()) == 2
        kt.reset_fallthroughs()
        assert kt.fallthroughs() == {} and kt.last_fallthrough() is None
        seen = []
        assert kt.on_fallthrough(seen.append) is None
        F.scaled_dot_product_attention(q, k, v)
        assert kt.on_fallthrough(None) == seen.append and seen == ["no such kernel"]

        def never(reason: str) -> None:
            raise AssertionError(reason)

        kt.on_fallthrough(never)
        with pytest.raises(AssertionError, match="no such kernel"):
            F.scaled_dot_product_attention(q, k, v)
        kt.on_fallthrough(None)
    assert refuse is definition.attn_fwd


def test_reasons_do_not_grow_for_ever(definition) -> None:
    for i in range(1100):
        routing._fallthroughs.add(f"reason {i}")
    assert len(kt.fallthroughs()) == 1001 and kt.fallthroughs()[routing._OTHERS] == 100
    assert kt.last_fallthrough() == "reason 1099"


def test_failures_that_are_no_refusals_are_the_callers(definition) -> None:
    q, k, v = (x.detach() for x in qkv())
    definition.attn_fwd = lambda *args, **more: (_ for _ in ()).throw(DriverError("an illegal address"))
    with kt.use(), pytest.raises(DriverError, match="an illegal address"):
        F.scaled_dot_product_attention(q, k, v)
    assert kt.fallthroughs() == {}


def test_mistakes_are_answered_by_pytorch(definition) -> None:
    q, k, v = (x.detach() for x in qkv())
    for call in ({"dropout_p": "much"}, {"attn_mask": [1]}, {"scale": "big"}, {"is_causal": 7.5}):
        (name,) = call
        with pytest.raises(TypeError, match=f"scaled_dot_product_attention.*argument '{name}'"), kt.use():
            F.scaled_dot_product_attention(q, k, v, **call)
    with pytest.raises(RuntimeError, match="must match|expand"), kt.use():
        F.scaled_dot_product_attention(q, k[:, :2], v)


def test_on_the_cpu_pytorch_runs() -> None:
    assert operators.engine().name == "native"
    q, k, v = qkv()
    kt.reset_fallthroughs()
    with kt.use():
        out = F.scaled_dot_product_attention(q, k, v)
    assert torch.equal(out, routing.theirs(q, k, v))
    assert kt.fallthroughs() == {"query is on the device cpu, and kernels run on cuda": 1}


def test_torch_function_modes_see_the_call(definition) -> None:
    q, k, v = (x.detach() for x in qkv())
    seen = []

    class Mode(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            seen.append(function)
            return function(*args, **(kwargs or {}))

    with kt.use():
        with Mode():
            F.scaled_dot_product_attention(q, k, v)
        with torch.device("cpu"):  # a mode too
            F.scaled_dot_product_attention(q, k, v)
    assert routing.scaled_dot_product_attention in seen and definition.calls == ["attn_fwd"] * 2


def test_subclasses_go_their_own_way(definition) -> None:
    class Mine(torch.Tensor):
        pass

    q, k, v = (x.detach().as_subclass(Mine) for x in qkv())
    with kt.use():
        out = F.scaled_dot_product_attention(q, k, v)
    assert type(out) is Mine
    torch.testing.assert_close(
        out.as_subclass(torch.Tensor), routing.theirs(*(x.as_subclass(torch.Tensor) for x in (q, k, v)))
    )


def test_tensors_with_an_attention_of_their_own(definition) -> None:
    ragged = torch.nested.nested_tensor([torch.randn(n, 2, 8) for n in (3, 5)], layout=torch.jagged).transpose(1, 2)
    expected = F.scaled_dot_product_attention(ragged, ragged, ragged)
    with kt.use():
        out = F.scaled_dot_product_attention(ragged, ragged, ragged)
    torch.testing.assert_close(out.values(), expected.values())
    assert kt.fallthroughs() == {"NestedTensor has an attention of its own": 1} and definition.calls == []
    with pytest.raises(UnsupportedError, match="query is nested or sparse"):
        kt.scaled_dot_product_attention(ragged, ragged, ragged)


def test_tensors_that_dispatch_themselves(definition) -> None:
    from torch.testing._internal.two_tensor import TwoTensor

    q, k, v = (TwoTensor(x.detach(), x.detach()) for x in qkv())
    with kt.use():
        out = F.scaled_dot_product_attention(q, k, v)
    assert type(out) is TwoTensor
    assert kt.fallthroughs() == {"query is a TwoTensor, a subclass that no kernel takes": 1}


@pytest.mark.parametrize("is_training", [False, True])
def test_modules(definition, is_training: bool) -> None:
    layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True).train(is_training)
    attention = nn.MultiheadAttention(32, 4, batch_first=True).train(is_training)
    x = torch.randn(2, 10, 32)
    padding = torch.zeros(2, 10, dtype=torch.bool)
    padding[1, 7:] = True
    with torch.set_grad_enabled(is_training):
        expected = layer(x), attention(x, x, x, need_weights=False, key_padding_mask=padding)[0]
        with kt.use():
            assert not torch.backends.mha.get_fastpath_enabled()
            out = layer(x), attention(x, x, x, need_weights=False, key_padding_mask=padding)[0]
    torch.testing.assert_close(out, expected)
    assert definition.calls == ["attn_fwd"] * 2 and kt.fallthroughs() == {}
    assert torch.backends.mha.get_fastpath_enabled()


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(32, 96), nn.Linear(32, 32)

    def forward(self, x: torch.Tensor, dropout: float = 0.0) -> torch.Tensor:
        batch, rows, width = x.shape
        q, k, v = self.qkv(x).view(batch, rows, 3, 4, 8).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=dropout)
        return x + self.out(y.transpose(1, 2).reshape(batch, rows, width))


def run(module: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    module.zero_grad()
    out = module(x)
    out.square().sum().backward()
    return [out.detach(), *(p.grad.clone() for p in module.parameters())]


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_compiled(definition, backend: str) -> None:
    block, x = Block(), torch.randn(2, 10, 32)
    expected = run(block, x)
    compiled = torch.compile(block, fullgraph=True, backend=backend)
    torch._dynamo.utils.counters.clear()
    for _ in range(2):  # compiled for each way once, and the right one is taken
        definition.calls.clear()
        with kt.use():
            for ours, theirs in zip(run(compiled, x), expected, strict=True):
                torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)
        assert definition.calls == ["attn_fwd", "attn_bwd"]
        for ours, theirs in zip(run(compiled, x), expected, strict=True):
            torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)
        assert definition.calls == ["attn_fwd", "attn_bwd"]
    assert not torch._dynamo.utils.counters["graph_break"] and kt.fallthroughs() == {}
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 2


def test_compiled_for_other_sizes(definition) -> None:
    block = Block()
    compiled = torch.compile(block, fullgraph=True, backend="aot_eager", dynamic=True)
    with kt.use():
        for rows in (3, 4, 9, 17):
            x = torch.randn(2, rows, 32)
            torch.testing.assert_close(run(compiled, x), run(block, x), atol=1e-5, rtol=1e-5)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] <= 4


def test_compiled_in_threads_of_which_one_is_routed(definition) -> None:
    block, x = Block(), torch.randn(2, 10, 32)
    compiled = torch.compile(block, fullgraph=True, backend="eager")
    with kt.use():
        compiled(x)
        assert definition.calls == ["attn_fwd"]
        thread = threading.Thread(target=lambda: compiled(x))
        thread.start()
        thread.join()
        assert definition.calls == ["attn_fwd"]
        compiled(x)
        assert definition.calls == ["attn_fwd"] * 2


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_a_fall_through_while_compiling_is_counted_once(backend: str) -> None:
    assert operators.engine().name == "native"
    kt.reset_fallthroughs()
    block, x = Block(), torch.randn(2, 10, 32)
    with kt.use():
        compiled = torch.compile(block, fullgraph=True, backend=backend)
        out = run(compiled, x)
        run(compiled, x)
    torch.testing.assert_close(out, run(block, x), atol=1e-5, rtol=1e-5)
    assert kt.fallthroughs() == {"query is on the device cpu, and kernels run on cuda": 1}
    torch._dynamo.reset()


def test_compiled_dropout(definition) -> None:
    block, x = Block(), torch.randn(2, 10, 32)
    compiled = torch.compile(block, fullgraph=True, backend="aot_eager")
    with kt.use():
        torch.manual_seed(2)
        first, second = compiled(x, 0.5), compiled(x, 0.5)
        torch.manual_seed(2)
        assert torch.equal(compiled(x, 0.5), first) and not torch.equal(first, second)
        torch.manual_seed(2)
        torch.testing.assert_close(block(x, 0.5), first)


def test_the_strict_function_is_compiled_too(definition) -> None:
    q, k, v = qkv()
    compiled = torch.compile(
        lambda *x: kt.scaled_dot_product_attention(*x, scale=0.3), fullgraph=True, backend="aot_eager"
    )
    torch.testing.assert_close(compiled(q, k, v), routing.theirs(q, k, v, scale=0.3))
    compiled(q, k, v).sum().backward()
    assert definition.calls[-2:] == ["attn_fwd", "attn_bwd"]
