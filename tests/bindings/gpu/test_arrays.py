"""Attention on arrays of PyTorch, CuPy and JAX, against float64."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import kiln
from conftest import need

SHAPES = [((2, 4, 200, 64), (2, 2, 300, 64)), ((1, 3, 65, 128), (1, 3, 65, 128))]
TOLERANCE = {"float16": 3e-3, "bfloat16": 2e-2}


def draw(shape: tuple[int, ...], seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, causal: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Value and log-sum-exp, by the definition."""
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    k, v = (np.repeat(x, q.shape[1] // x.shape[1], 1) for x in (k, v))
    scores = q @ k.swapaxes(2, 3) / np.sqrt(q.shape[3])
    if causal:
        i, j = np.indices(scores.shape[2:])
        scores = np.where(j <= i, scores, -np.inf)
    lse = np.log(np.exp(scores - scores.max(3, keepdims=True)).sum(3)) + scores.max(3)
    return np.exp(scores - lse[..., None]) @ v, lse


class Torch:
    def __init__(self) -> None:
        self.torch = need("torch")

    def array(self, values: np.ndarray, dtype: str):
        return self.torch.from_numpy(values).to("cuda").to(getattr(self.torch, dtype))

    def numpy(self, array) -> np.ndarray:
        return array.float().cpu().numpy()


class Cupy:
    def __init__(self) -> None:
        self.cupy = need("cupy")

    def array(self, values: np.ndarray, dtype: str):
        if dtype == "bfloat16":
            pytest.skip("CuPy has no bfloat16")
        return self.cupy.asarray(values).astype(dtype)

    def numpy(self, array) -> np.ndarray:
        return self.cupy.asnumpy(array.astype("float32"))


class Jax:
    def __init__(self) -> None:
        self.jax = need("jax")

    def array(self, values: np.ndarray, dtype: str):
        return self.jax.numpy.asarray(values).astype(dtype)

    def numpy(self, array) -> np.ndarray:
        return np.asarray(array.astype("float32"))


@pytest.fixture(params=[Torch, Cupy, Jax], ids=["torch", "cupy", "jax"])
def library(request):
    return request.param()


def inputs(library, dtype: str, shapes) -> tuple[list, list[np.ndarray]]:
    """Arrays, and the values that they have."""
    arrays = [library.array(draw(shape, i), dtype) for i, shape in enumerate((shapes[0], shapes[1], shapes[1]))]
    return arrays, [library.numpy(array) for array in arrays]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shapes", SHAPES)
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_forward(library, dtype, shapes, causal):
    arrays, values = inputs(library, dtype, shapes)
    out, lse = kiln.attn_fwd(*arrays, causal=causal, return_lse=True)
    assert type(out) is type(arrays[0]) and out.dtype == arrays[0].dtype and tuple(out.shape) == shapes[0]
    wanted, wanted_lse = attention(*values, causal=causal)
    np.testing.assert_allclose(library.numpy(out), wanted, atol=TOLERANCE[dtype], rtol=0)
    np.testing.assert_allclose(library.numpy(lse), wanted_lse, atol=1e-3, rtol=1e-4)


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_backward(library, dtype):
    torch = need("torch")
    arrays, values = inputs(library, dtype, SHAPES[0])
    values = [torch.from_numpy(value).double().requires_grad_() for value in values]
    q, k, v = values[0], *(x.repeat_interleave(2, 1) for x in values[1:])
    dout = draw(SHAPES[0][0], 9)
    torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).backward(torch.from_numpy(dout).double())
    out, lse = kiln.attn_fwd(*arrays, causal=True, return_lse=True)
    grads = kiln.attn_bwd(library.array(dout, dtype), *arrays, out, lse, causal=True)
    for got, value in zip(grads, values):
        wanted = value.grad.numpy()
        np.testing.assert_allclose(library.numpy(got), wanted, atol=2 * TOLERANCE[dtype] * abs(wanted).max(), rtol=0)


def test_decode(library):
    (q, k, v), values = inputs(library, "float16", ((3, 4, 1, 64), (3, 2, 500, 64)))
    out = kiln.attn_decode(q, k, v)
    np.testing.assert_allclose(library.numpy(out), attention(*values)[0], atol=3e-3, rtol=0)


def test_what_a_library_computes_next_sees_the_result(library):
    """No one waits: the order of the streams does it all."""
    arrays, values = inputs(library, "float16", SHAPES[0])
    for _ in range(20):
        q = arrays[0] * 2 + 0
        out = kiln.attn_fwd(q, *arrays[1:])
        total = (out * 2).astype("float32").sum() if not hasattr(out, "float") else (out * 2).float().sum()
    wanted = attention(values[0] * 2, *values[1:])[0].sum() * 2
    assert abs(float(total) - wanted) < 2e-2 * np.sqrt(values[0].size)


def test_results_in_given_arrays():
    for library in (Torch(), Cupy()):
        arrays, values = inputs(library, "float16", SHAPES[1])
        out, lse = arrays[0] * 0, library.array(draw(SHAPES[1][0][:3], 3), "float32")
        assert kiln.attn_fwd(*arrays, out=out, lse=lse) is out
        wanted, wanted_lse = attention(*values)
        np.testing.assert_allclose(library.numpy(out), wanted, atol=3e-3, rtol=0)
        np.testing.assert_allclose(library.numpy(lse), wanted_lse, atol=1e-3, rtol=1e-4)


def test_jax_arrays_are_not_written():
    library = Jax()
    arrays, _ = inputs(library, "float16", SHAPES[1])
    with pytest.raises(
        kiln.ArgumentError, match="out is written by this call, but its library says that it is read-only"
    ):
        kiln.attn_fwd(*arrays, out=arrays[0])


def test_arrays_of_two_libraries():
    torch, cupy = Torch(), Cupy()
    (q, _, _), values = inputs(cupy, "float16", SHAPES[1])
    k, v = (torch.array(value, "float16") for value in values[1:])
    out = kiln.attn_fwd(q, k, v)
    assert type(out) is type(q)
    np.testing.assert_allclose(cupy.numpy(out), attention(*values)[0], atol=3e-3, rtol=0)


def test_memory_of_the_host_is_refused():
    torch = need("torch")
    for array in (torch.zeros(1, 1, 8, 64), np.zeros((1, 1, 8, 64), np.float16), torch.zeros(2).pin_memory()):
        with pytest.raises(kiln.ArgumentError, match="Kiln's kernels take arrays in the memory of a GPU"):
            kiln.attn_fwd(array, array, array)


def test_streams():
    """On a stream of one's own, behind work that takes long."""
    for library, stream, on in (torch_stream(), cupy_stream()):
        arrays, values = inputs(library, "float16", SHAPES[0])
        with on:
            q = delayed(library, arrays[0])
            out = kiln.attn_fwd(q, *arrays[1:])
        stream.synchronize()
        np.testing.assert_allclose(library.numpy(out), attention(*values)[0], atol=3e-3, rtol=0)
        q = delayed(library, arrays[0])
        out = kiln.attn_fwd(q, *arrays[1:], stream=stream)
        stream.synchronize()
        np.testing.assert_allclose(library.numpy(out), attention(*values)[0], atol=3e-3, rtol=0)


def torch_stream():
    library = Torch()
    stream = library.torch.cuda.Stream()
    return library, stream, library.torch.cuda.stream(stream)


def cupy_stream():
    library = Cupy()
    stream = library.cupy.cuda.Stream(non_blocking=True)
    return library, stream, stream


def delayed(library, array):
    """A copy of an array, which is there after some milliseconds."""
    if isinstance(library, Torch):
        library.torch.cuda._sleep(20_000_000)
        return array.clone()
    big = library.cupy.ones((3000, 3000), "float32")
    for _ in range(20):
        big = big @ big * 0
    return array + big[0, 0].astype("float16") * 0


def test_a_thread_that_never_spoke_to_the_driver():
    library = Torch()
    arrays, values = inputs(library, "float16", SHAPES[1])
    library.torch.cuda.synchronize()
    got = []
    thread = threading.Thread(target=lambda: got.append(kiln.attn_fwd(*arrays)))
    thread.start()
    thread.join()
    np.testing.assert_allclose(library.numpy(got[0]), attention(*values)[0], atol=3e-3, rtol=0)


def test_a_cuda_graph():
    torch = need("torch")
    library = Torch()
    arrays, _ = inputs(library, "bfloat16", SHAPES[0])
    kiln.prepare(kiln.attn_fwd, *arrays, causal=True, return_lse=True)
    kiln.prepare(kiln.attn_bwd, arrays[0], *arrays, arrays[0], lse_of(arrays[0]), causal=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out, lse = kiln.attn_fwd(*arrays, causal=True, return_lse=True)
        grads = kiln.attn_bwd(arrays[0], *arrays, out, lse, causal=True)
    for seed in (1, 2):
        for i, array in enumerate(arrays):
            array.copy_(library.array(draw(tuple(array.shape), 10 * seed + i), "bfloat16"))
        graph.replay()
        expected, expected_lse = kiln.attn_fwd(*arrays, causal=True, return_lse=True)
        again = kiln.attn_bwd(arrays[0], *arrays, expected, expected_lse, causal=True)
        assert torch.equal(out, expected) and torch.equal(lse, expected_lse)
        assert all(torch.equal(a, b) for a, b in zip(grads[:3], again[:3]))


def lse_of(q):
    return q.new_zeros(q.shape[:3], dtype=need("torch").float32)


def test_dropout():
    torch = need("torch")
    q, k, v = (torch.randn(2, 4, 256, 64, device="cuda", dtype=torch.float16) for _ in range(3))
    mask = kiln.dropout_mask(torch.empty(2, 4, 256, 256, device="cuda", dtype=torch.uint8), 0.25, seed=7, offset=3)
    kept = float(mask.float().mean())
    assert abs(kept - 0.75) < 0.01
    used = [torch.zeros((), dtype=torch.int64, device="cuda") for _ in range(2)]
    out = kiln.attn_fwd(q, k, v, dropout=0.25, seed=7, offset=3, seed_out=used[0], offset_out=used[1])
    weights = torch.softmax(q.double() @ k.double().transpose(2, 3) / 8, 3) * mask / 0.75
    torch.testing.assert_close(out.double(), weights @ v.double(), atol=6e-3, rtol=0)
    assert [int(number) for number in used] == [7, 3]
    seed, offset = (torch.tensor(number, device="cuda") for number in (7, 3))
    assert torch.equal(out, kiln.attn_fwd(q, k, v, dropout=0.25, seed=seed, offset=offset))


def test_explain_names_what_runs():
    torch = need("torch")
    q = torch.randn(1, 2, 128, 64, device="cuda", dtype=torch.bfloat16)
    (variant,) = kiln.explain(kiln.attn_fwd, q, q, q, causal=True)
    assert variant.kernel == "attn_fwd" and "dtype=bf16" in variant.functional and variant.threads >= 32
    out = kiln.attn_fwd(q, q, q, causal=True)
    assert torch.equal(out, kiln.attn_fwd(q, q, q, causal=True, force_keys=[variant.key]))
    with pytest.raises(kiln.UnsupportedError) as failure:
        kiln.attn_fwd(q.double(), q.double(), q.double())
    assert "\n" not in str(failure.value)


def test_info():
    info = kiln.info()
    usable = [device for device in info.devices if device.refusal is None]
    assert usable and info.problem is None and all(device.target for device in usable)
    assert any(driver.version for driver in info.drivers)
