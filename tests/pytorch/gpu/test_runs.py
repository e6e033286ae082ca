"""torch.compile, CUDA graphs, streams, threads and devices."""

from __future__ import annotations

import threading

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import kiln.torch as kt


def random(*sizes: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.randn(*sizes, device="cuda").to(dtype)


class Block(nn.Module):
    """A transformer's block, as models have them."""

    def __init__(self, width: int = 256, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor, dropout: float = 0.0) -> torch.Tensor:
        batch, rows, width = x.shape
        q, k, v = self.qkv(self.norms[0](x)).view(batch, rows, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=dropout)
        x = x + self.out(y.transpose(1, 2).reshape(batch, rows, width))
        return x + self.narrow(F.gelu(self.wide(self.norms[1](x))))


def run(module: nn.Module, x: torch.Tensor, **more: object) -> list[torch.Tensor]:
    """Value and gradients, of parameters and of x."""
    module.zero_grad()
    x = x.detach().requires_grad_()
    out = module(x, **more)
    out.float().square().sum().backward()
    # Copies: the next run of a CUDA graph writes where this one's results lie.
    return [tensor.detach().clone() for tensor in (out, x.grad, *(p.grad for p in module.parameters()))]


def close(ours: list[torch.Tensor], theirs: list[torch.Tensor], tolerance: float = 2e-2) -> None:
    for a, b in zip(ours, theirs, strict=True):
        scale = b.abs().max().item() or 1.0
        torch.testing.assert_close(a, b, atol=tolerance * scale, rtol=tolerance)


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_compiled_block(mode: str) -> None:
    """No graph break, forward and backward; the operators are in the graph; the same result."""
    block, x = Block().cuda().bfloat16(), random(2, 200, 256)
    expected = run(block, x)
    seen: list[str] = []

    def look(graph: torch.fx.GraphModule, _):
        seen.extend(str(node.target) for node in graph.graph.nodes)
        return graph

    with kt.use():
        eager = run(block, x)
        from torch._dynamo.backends.common import aot_autograd

        run(torch.compile(block, fullgraph=True, backend=aot_autograd(fw_compiler=look, bw_compiler=look)), x)
        torch._dynamo.reset()
        compiled = torch.compile(block, fullgraph=True, mode=mode)
        results = [run(compiled, x) for _ in range(3)]
    close(eager, expected)
    for result in results:
        close(result, expected)
    assert "kiln.attn_fwd.default" in seen and "kiln.attn_bwd.default" in seen
    assert not torch._dynamo.utils.counters["graph_break"] and kt.fallthroughs() == {}
    close(run(block, x), expected, 1e-6)  # routed no more


def test_compiled_with_sizes_that_change() -> None:
    block = Block().cuda().bfloat16()
    compiled = torch.compile(block, fullgraph=True, dynamic=True)
    with kt.use():
        for rows in (64, 65, 128, 200):
            x = random(2, rows, 256)
            close(run(compiled, x), run(block, x))
    assert kt.fallthroughs() == {}


def test_compiled_dropout_draws_anew() -> None:
    block, x = Block().cuda().bfloat16(), random(2, 64, 256)
    with kt.use():
        compiled = torch.compile(block, fullgraph=True)
        torch.manual_seed(1)
        first, second = compiled(x, 0.5), compiled(x, 0.5)
        torch.manual_seed(1)
        again = compiled(x, 0.5)
    assert torch.equal(first, again) and not torch.equal(first, second)


def test_compiled_fall_through_is_counted() -> None:
    q = random(1, 2, 8, 64, dtype=torch.float64)
    with kt.use():
        compiled = torch.compile(lambda q: F.scaled_dot_product_attention(q, q, q), fullgraph=True, backend="aot_eager")
        out = compiled(q)
    assert torch.equal(out, F.scaled_dot_product_attention(q, q, q))
    assert list(kt.fallthroughs().values()) == [1] and "fp64" in kt.last_fallthrough()


def test_compiled_strict_function_and_autocast() -> None:
    q = random(1, 4, 32, 64)

    @torch.compile(fullgraph=True)
    def strict(q):
        with torch.autocast("cuda", torch.float16):
            return kt.scaled_dot_product_attention(q.float(), q.float(), q.float())

    assert strict(q).dtype == torch.float16
    torch.testing.assert_close(strict(q).float(), F.scaled_dot_product_attention(q, q, q).float(), atol=2e-2, rtol=2e-2)


def test_compiled_decoding() -> None:
    caches = [random(2, 2, 64, 64) for _ in "kv"]
    copies = [x.clone() for x in caches]
    used = torch.tensor([5, 9], device="cuda", dtype=torch.int32)
    q, k, v = random(2, 4, 1, 64), random(2, 2, 1, 64), random(2, 2, 1, 64)

    def step(q, k, v, k_cache, v_cache):
        return kt.decode(q, k_cache, v_cache, k_new=k, v_new=v, seqused_k=used, causal=True) * 2

    with torch.no_grad():
        expected = step(q, k, v, *caches)
        out = torch.compile(step, fullgraph=True)(q, k, v, *copies)
    torch.testing.assert_close(out, expected)
    assert all(torch.equal(a, b) for a, b in zip(caches, copies))


def test_graph_replays_draw_new_masks() -> None:
    q, k, v = (random(2, 4, 128, 64).requires_grad_() for _ in "qkv")

    def step():
        with kt.use():
            out = F.scaled_dot_product_attention(q, k, v, dropout_p=0.5)
        return out, *torch.autograd.grad(out.float().sum(), (q, k, v))

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # loads what a capture may not
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    replays = []
    for _ in range(4):
        graph.replay()
        replays.append([x.clone() for x in captured])
    for i, one in enumerate(replays):
        assert all(x.isfinite().all() and x.any() for x in one)
        for other in replays[:i]:
            assert not torch.equal(one[0], other[0]) and not torch.equal(one[3], other[3])
    # The gradient of v is that of the same mask as the value's: they agree about which weights are there.
    torch.manual_seed(7)
    graph.replay()
    first = [x.clone() for x in captured]
    torch.manual_seed(7)
    graph.replay()
    assert all(torch.equal(a, b) for a, b in zip(first, captured))


def test_graph_without_dropout_computes_with_new_inputs() -> None:
    q, k, v = (random(2, 4, 128, 64) for _ in "qkv")
    kt.attention(q, k, v)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = kt.attention(q, k, v, causal=True)
    for _ in range(3):
        for x in (q, k, v):
            x.normal_()
        graph.replay()
        assert torch.equal(out, kt.attention(q, k, v, causal=True))


def test_the_current_stream_is_taken() -> None:
    """While the default stream is busy for a long time, a call on another is done before it."""
    q, k, v = (random(2, 4, 128, 64) for _ in "qkv")
    expected = kt.attention(q, k, v)
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    busy, done = torch.cuda.Event(), torch.cuda.Event()
    with torch.cuda.stream(side):
        kt.attention(q, k, v)
    torch.cuda.synchronize()
    torch.cuda._sleep(2_000_000_000)
    busy.record()
    with torch.cuda.stream(side):
        out = kt.attention(q, k, v)
        done.record()
    done.synchronize()
    assert not busy.query(), "the call has waited for the default stream"
    torch.cuda.synchronize()
    assert torch.equal(out, expected)


def test_threads_that_know_nothing_of_cuda_yet() -> None:
    q, k, v = (random(2, 4, 128, 64).requires_grad_() for _ in "qkv")
    dout = random(2, 4, 128, 64)
    with torch.no_grad():
        expected = kt.attention(q, k, v)
    kept = torch.empty_like(q)  # what the threads' results may lie in, so that no allocation calls the driver
    del kept
    results, errors = [], []

    def work():
        try:
            out = kt.attention(q, k, v)
            results.append((out.detach(), *torch.autograd.grad(out, (q, k, v), dout)))
        except Exception as error:  # noqa: BLE001  # shown below
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors
    assert all(torch.equal(result[0], expected) for result in results)
    assert all(torch.equal(a, b) for result in results[1:] for a, b in zip(results[0], result))


def test_a_checkpoint_recomputes_by_the_same_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the thread that PyTorch runs the backward of this one's tensors on."""
    from torch.utils.checkpoint import checkpoint

    from kiln.torch import native

    q, k, v = (random(1, 4, 64, 64).requires_grad_() for _ in "qkv")
    threads, forward = [], native.forward_op
    monkeypatch.setattr(native, "forward_op", lambda *args: threads.append(threading.get_ident()) or forward(*args))
    with kt.use():
        out = checkpoint(lambda *x: F.scaled_dot_product_attention(*x).square(), q, k, v, use_reentrant=False)
        out.sum().backward()
    assert len(threads) == 2 and threads[0] != threads[1] and kt.fallthroughs() == {}


def test_another_thread_is_not_routed() -> None:
    q = random(1, 2, 8, 64)
    seen = []
    with kt.use():
        thread = threading.Thread(target=lambda: seen.append((kt.is_routed(), F.scaled_dot_product_attention(q, q, q))))
        thread.start()
        thread.join()
        assert kt.is_routed()
    assert seen[0][0] is False


def test_once_for_all() -> None:
    q = random(1, 2, 8, 64, dtype=torch.float64)
    handle = kt.use()
    try:
        thread = threading.Thread(target=lambda: F.scaled_dot_product_attention(q, q, q))
        thread.start()
        thread.join()
        assert sum(kt.fallthroughs().values()) == 1
    finally:
        handle.undo()
    assert F.scaled_dot_product_attention is torch._C._nn.scaled_dot_product_attention


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_a_device_that_is_not_current() -> None:
    inputs = [random(2, 4, 128, 64) for _ in "qkv"]
    expected = kt.attention(*inputs)
    there = [x.to("cuda:1").requires_grad_() for x in inputs]
    for stream in (torch.cuda.default_stream(1), torch.cuda.Stream(1)):
        with torch.cuda.stream(stream):
            torch.cuda.set_device(0)
            out = kt.attention(*there)
            out.sum().backward()
        torch.cuda.synchronize(1)
        assert out.device.index == 1 and torch.equal(out.to("cuda:0"), expected)
    assert torch.cuda.current_device() == 0
    for device in (0, 1):  # past the dispatcher, where it is the current one
        with torch.no_grad(), torch.cuda.device(device):
            out = kt.attention(*there)
        assert out.device.index == 1 and torch.equal(out.to("cuda:0"), expected)
    with pytest.raises(RuntimeError, match="one device"):
        kt.attention(inputs[0], there[1], there[2])
