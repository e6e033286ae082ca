"""torch.ops.kiln without a GPU: registration, autograd, fake tensors, tracing, refusals."""

from __future__ import annotations

import inspect
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode

import kiln.torch as kt
from kiln import _arguments, layout
from kiln.errors import ArgumentError, UnsupportedError
from kiln.torch import autograd, functions, native

NAMES = tuple(_arguments.SCHEMAS)


def qkv(device: str = "cpu", dtype: torch.dtype = torch.float32) -> list[Tensor]:
    return [torch.randn(2, heads, rows, 16, device=device, dtype=dtype) for heads, rows in ((4, 6), (2, 9), (2, 9))]


# ---- registration ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_the_schema_is_what_python_takes(name: str) -> None:
    """What completes an operator's arguments in Python has its names and defaults."""
    schema = {a.name: a.default_value for a in getattr(torch.ops.kiln, name).default._schema.arguments}
    parameters = inspect.signature(getattr(_arguments, name)).parameters
    defaults = {n: None if p.default is p.empty else p.default for n, p in parameters.items()}
    assert list(defaults.items()) == list(schema.items())


@pytest.mark.parametrize("name", NAMES)
def test_every_key_has_a_kernel(name: str) -> None:
    for key in ("CUDA", "CPU", "AutogradCUDA", "AutogradCPU", "Meta", "FuncTorchBatched"):
        assert torch._C._dispatch_has_computed_kernel_for_dispatch_key(f"kiln::{name}", key), key
    assert torch.Tag.pt2_compliant_tag in getattr(torch.ops.kiln, name).default.tags


def test_an_operation_of_which_the_table_tells_all_has_no_gradients() -> None:
    kernel = autograd._without_gradients("dropout_mask")
    with pytest.raises(UnsupportedError, match="dropout_mask has no gradients, and an argument requires one"):
        kernel(torch.ones(2, requires_grad=True))


def test_results_that_the_table_tells() -> None:
    x = torch.empty(2, 3, dtype=torch.bfloat16)
    results = (
        _arguments.Result("a", "[*x.size]", lambda of: (*of["x"].shape,), "x", None),
        _arguments.Result("b", "[x.size[1], 7]", lambda of: (of["x"].shape[1], 7), None, "float32"),
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(_arguments.RESULTS, "made", results)
        made = layout.results_of(torch, "made", {"x": x})
        assert {name: (*tensor.shape, tensor.dtype) for name, tensor in made.items()} == {
            "a": (2, 3, torch.bfloat16), "b": (3, 7, torch.float32),
        }  # fmt: skip
        with pytest.raises(ArgumentError, match=r"b has the shape \[x.size\[1\], 7\], and an array has fewer"):
            layout.results_of(torch, "made", {"x": x[0]})
    assert isinstance(layout.returned(made), tuple) and layout.returned({"a": x}) is x


def test_importing_again_registers_nothing_again() -> None:
    import importlib

    assert importlib.import_module("kiln.torch") is kt
    torch.ops.load_library(str(native.LIBRARY))
    assert torch.ops.kiln_native.attn_fwd.default._schema.name == "kiln_native::attn_fwd"


def elsewhere(code: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, **environment}
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.strip()


IMPORT = "try: import kiln.torch\nexcept ImportError as error: print(error)\nelse: print('imported')"


def test_another_pytorch_is_refused() -> None:
    code = "import torch; torch.__version__ = '2.9.1+cu128'\n" + IMPORT
    assert elsewhere(code) == "kiln.torch needs PyTorch 2.10 or later; this is 2.9.1+cu128"


def test_a_library_that_is_not_there(tmp_path: Path) -> None:
    code = f"import kiln; kiln.__file__ = {str(tmp_path / '__init__.py')!r}\n" + IMPORT
    assert re.fullmatch(r"kiln\.torch cannot load its library: .*libkiln_torch\.so.*", elsewhere(code))


def test_two_copies_are_one_too_many(tmp_path: Path) -> None:
    import shutil

    for file in native.LIBRARY.parent.glob("lib*.so*"):
        shutil.copyfile(file, tmp_path / file.name)
    code = f"import torch; torch.ops.load_library({str(tmp_path / 'libkiln_torch.so')!r})\n" + IMPORT
    assert elsewhere(code).splitlines()[-1].startswith("PyTorch refused ")
    assert "another copy of it is loaded in this process" in elsewhere(code)


def test_importing_loads_no_driver_and_starts_no_cuda() -> None:
    code = """
import sys, kiln.torch, torch
maps = open("/proc/self/maps").read()
print("libcuda.so" in maps, torch.cuda.is_initialized(), "triton" in sys.modules, "transformers" in sys.modules)
"""
    assert elsewhere(code) == "False False False False"


# ---- autograd -------------------------------------------------------------------------------------------------------


def test_what_operators_promise(definition) -> None:
    q, k, v = (x.requires_grad_() for x in qkv())
    bias, sinks = torch.randn(1, 4, 6, 9, requires_grad=True), torch.randn(4, requires_grad=True)
    op, bwd = torch.ops.kiln.attn_fwd.default, torch.ops.kiln.attn_bwd.default
    torch.library.opcheck(op, (q, k, v), {"return_lse": True, "causal": True})
    torch.library.opcheck(op, (q, k, v, bias, None, sinks), {})
    with torch.no_grad():
        out, lse = op(q, k, v, bias, None, sinks, return_lse=True)
        arguments = [x.detach() for x in (out, q, k, v, out, lse, bias)]
        torch.library.opcheck(bwd, (*arguments, None, sinks.detach()), {"need_dbias": True, "need_dsinks": True})
        packed = [x[0].transpose(0, 1).contiguous() for x in (q, k, v)]
        lengths = torch.tensor([0, 2, 6], dtype=torch.int32), torch.tensor([0, 4, 9], dtype=torch.int32)
        torch.library.opcheck(op, (*packed, None, None, None, *lengths), {"rows_first": True, "return_lse": True})
    caches = [torch.randn(2, 2, 20, 16) for _ in "kv"]
    torch.library.opcheck(torch.ops.kiln.attn_decode.default, (q.detach(), *caches, torch.empty(2, 4, 6, 16)),
                          {"return_lse": True})  # fmt: skip
    torch.library.opcheck(torch.ops.kiln.dropout_mask.default, (torch.tensor([1, 2]), 1, 2, 3, 4, 0.5), {})
    torch.library.opcheck(torch.ops.kiln.scaled_dot_product_attention.default, (q, k.expand(2, 2, 9, 16), v),
                          {"enable_gqa": True})  # fmt: skip


def test_gradients_of_everything_that_has_some(definition) -> None:
    small = [torch.randn(1, heads, rows, 2, dtype=torch.float64) for heads, rows in ((2, 3), (1, 4), (1, 4))]
    small = [x.requires_grad_() for x in (*small, torch.randn(3, 4, dtype=torch.float64))]
    torch.autograd.gradcheck(lambda *x: kt.attention(*x[:3], bias=x[3], causal=True), small, atol=1e-4)
    q, k, v = (x.requires_grad_() for x in qkv())
    bias, sinks = torch.randn(6, 9, requires_grad=True), torch.randn(4, requires_grad=True)
    out, lse = kt.attention(q, k, v, bias=bias, sinks=sinks, return_lse=True)
    assert not lse.requires_grad
    out.sum().backward()
    assert sinks.grad.shape == (4,) and bias.grad.shape == (6, 9)
    assert definition.calls.count("attn_bwd") >= 1


def test_only_what_is_wanted_is_recorded(definition) -> None:
    q, k, v = qkv()
    assert kt.attention(q, k, v).grad_fn is None
    assert kt.attention(q, k, v.requires_grad_()).grad_fn is not None
    with torch.no_grad():
        assert kt.attention(q, k, v).grad_fn is None
    with torch.inference_mode():
        out = torch.ops.kiln.attn_fwd(q, k, v)[0]
    assert out.is_inference()
    (gradient,) = torch.autograd.grad(kt.attention(q, k, v).sum(), v)
    assert gradient.shape == v.shape


def test_tensors_that_were_changed_since_are_noticed(definition) -> None:
    q, k, v = (x.requires_grad_() for x in qkv())
    inner = q * 1
    out = kt.attention(inner, k, v)
    inner.data, _ = inner.data, inner.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_hooks_of_saved_tensors_see_them(definition) -> None:
    q, k, v = (x.requires_grad_() for x in qkv())
    packed = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: packed.append(x.shape) or x.clone(), lambda x: x):
        out = kt.attention(q, k, v)
    out.sum().backward()
    assert q.grad is not None and len(packed) == 5  # q, k, v, out, log-sum-exp


def test_what_cannot_be_differentiated_is_refused(definition) -> None:
    import torch.autograd.forward_ad as forward

    q = torch.randn(1, 2, 3, 8, requires_grad=True)
    plain = q.detach()
    (gradient,) = torch.autograd.grad(kt.attention(q, q, q).sum(), q, create_graph=True)
    with pytest.raises(UnsupportedError, match="can be differentiated once, not twice"):
        gradient.sum().backward()
    with pytest.raises(UnsupportedError, match="torch.vmap"):
        torch.vmap(lambda x: kt.attention(x, x, x))(torch.randn(3, 1, 2, 4, 8))
    for transform in (torch.func.grad, torch.func.jacrev):
        with pytest.raises(UnsupportedError, match="torch.func's transforms"):
            transform(lambda x: kt.attention(x, x, x).sum())(plain)
    with pytest.raises(UnsupportedError, match="torch.func's transforms"):
        torch.func.jvp(lambda x: kt.attention(x, x, x), (plain,), (plain,))
    with forward.dual_level():
        dual = forward.make_dual(plain, plain)
        with pytest.raises(UnsupportedError, match="forward-mode"):
            kt.attention(dual, dual, dual)
        assert kt.attention(plain, plain, plain).shape == plain.shape
    with pytest.raises(UnsupportedError, match="decode\\(\\) has no gradients"):
        kt.decode(q, plain, plain)
    with torch.no_grad():
        assert kt.decode(q, plain, plain).shape == q.shape


def test_a_cache_that_is_written_is_noticed(definition) -> None:
    cache = torch.randn(1, 2, 9, 8)
    used = (cache * torch.ones(1, requires_grad=True)).sum()
    new = torch.randn(1, 2, 1, 8)
    kt.decode(new, cache, cache.clone(), k_new=new, v_new=new, seqused_k=torch.tensor([3]))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        used.backward()


def test_the_operator_takes_what_the_function_takes(definition) -> None:
    """torch.ops.kiln.attn_fwd by position and by keyword, packet and overload, beneath the dispatcher and past it."""
    q, k, v = qkv()
    expected = kt.attention(q, k, v, causal=True, return_lse=True)
    op = torch.ops.kiln.attn_fwd
    for found in (op(q, k, v, causal=True, return_lse=True), op.default(q, k, v, causal=True, return_lse=True),
                  op(q, k, v, *[None] * 8, 0, 0, 0.0, 0.0, 0.0, True, -1, -1, False, False, True)):  # fmt: skip
        torch.testing.assert_close(found, expected)
    assert op(q, k, v)[1] is None
    for wrong in ({"colour": 1}, {"q": q}):
        with pytest.raises((RuntimeError, TypeError), match="colour|'q'"):
            op(q, k, v, **wrong)
    with pytest.raises((RuntimeError, TypeError)):
        op(q, k)
    assert op.overloads() == ["default"]


# ---- tracing --------------------------------------------------------------------------------------------------------


def test_fake_tensors() -> None:
    """Shapes, dtypes, devices and strides; nothing is run, nothing is asked of a driver."""
    with FakeTensorMode():
        q = torch.empty(2, 8, 128, 64, device="cuda", dtype=torch.bfloat16)
        k = torch.empty(2, 100, 2, 64, device="cuda", dtype=torch.bfloat16).transpose(1, 2)
        v = torch.empty(2, 100, 2, 32, device="cuda", dtype=torch.bfloat16).transpose(1, 2)
        out, lse = kt.attention(q, k, v, return_lse=True)
        assert out.shape == (2, 8, 128, 32) and out.is_contiguous() and out.device.type == "cuda"
        assert lse.shape == (2, 8, 128) and lse.dtype == torch.float32
        rows_first = torch.empty(2, 128, 8, 64, device="cuda", dtype=torch.bfloat16)
        first = kt.attention(rows_first.transpose(1, 2), k, v)
        assert first.stride() == (128 * 8 * 32, 32, 8 * 32, 1)
        out, lse = kt.attention(*(x.transpose(1, 2) for x in (q, k, v)), rows_first=True, return_lse=True, dropout=0.5)
        assert out.shape == (2, 128, 8, 32) and out.is_contiguous() and lse.shape == (2, 8, 128)
        packed = [torch.empty(50, heads, 64, device="cuda") for heads in (8, 2, 2)]
        begins = torch.empty(4, device="cuda", dtype=torch.int32)
        out, lse = kt.attention(*packed, cu_seqlens_q=begins, cu_seqlens_k=begins, rows_first=True, return_lse=True)
        assert out.shape == (50, 8, 64) and lse.shape == (8, 50)
        gradients = torch.ops.kiln.attn_bwd(q, q, k, k, q, lse, need_dbias=True)
        assert [x if x is None else x.stride() for x in gradients[:3]] == [q.stride(), k.stride(), k.stride()]
        assert gradients[3] is gradients[4] is None
        assert kt.decode(q, k, v).shape == (2, 8, 128, 32)
        assert kt.dropout_mask(kt.draw_rng("cuda"), 1, 2, 3, 4, 0.5, torch.float16).shape == (1, 2, 3, 4)


@pytest.mark.parametrize("mode", ["real", "symbolic"])
def test_traced(definition, mode: str) -> None:
    q, k, v = qkv()
    graph = make_fx(lambda q, k, v, rng: kt.attention(q, k, v, causal=True, dropout=0.5, rng=rng), tracing_mode=mode)(
        q, k, v, torch.tensor([1, 2])
    )
    targets = [node.target for node in graph.graph.nodes if node.op == "call_function"]
    assert torch.ops.kiln.attn_fwd.default in targets and len(definition.calls) <= 1
    graph = make_fx(lambda q, k, v: torch.autograd.grad(kt.attention(q, k, v).sum(), (q, k, v)), tracing_mode=mode)(
        *(x.requires_grad_() for x in (q, k, v))
    )
    targets = [node.target for node in graph.graph.nodes if node.op == "call_function"]
    assert torch.ops.kiln.attn_fwd.default in targets and torch.ops.kiln.attn_bwd.default in targets


def plain_ways(k: Tensor, v: Tensor) -> dict:
    return {
        "operator": lambda q: torch.ops.kiln.attn_fwd(q, k, v)[0],
        "attention": lambda q: kt.attention(q, k, v),
        "sdpa": lambda q: kt.scaled_dot_product_attention(q, k, v, enable_gqa=True),
        "routed": lambda q: torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True),
    }


class Seen(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.functions = []

    def __torch_function__(self, function, types, args=(), kwargs=None):
        self.functions.append(str(function))
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("way", ["operator", "attention", "sdpa", "routed"])
def test_who_watches_sees_the_operator(definition, way: str) -> None:
    """torch.jit.trace, whose graph would lack what an engine does, and modes of functions."""
    q, k, v = qkv()
    function = plain_ways(k, v)[way]
    with kt.use():
        traced = torch.jit.trace(function, (torch.zeros_like(q),), check_trace=False)
        assert "kiln::attn_fwd" in [node.kind() for node in traced.graph.nodes()]
        assert torch.equal(traced(q), function(q))
        with Seen() as seen:
            function(q)
    (one,) = [name for name in seen.functions if "attn_fwd" in name or "attention" in name]
    assert ("scaled_dot_product_attention" if way == "routed" else "kiln.attn_fwd") in one


def test_compiled_autograd(definition) -> None:
    """The backward of what ran eagerly, traced as a graph of its own."""
    from torch._dynamo import compiled_autograd

    q, k, v = (x.requires_grad_() for x in qkv())
    expected = torch.autograd.grad(kt.attention(q, k, v, causal=True).square().sum(), (q, k, v))
    with compiled_autograd._enable(torch.compile(backend="aot_eager", fullgraph=True)):
        kt.attention(q, k, v, causal=True).square().sum().backward()
    for gradient, x in zip(expected, (q, k, v)):
        torch.testing.assert_close(x.grad, gradient)


def test_exported(definition) -> None:
    class Module(torch.nn.Module):
        def forward(self, q, k, v):
            return kt.attention(q, k, v, causal=True)

    q, k, v = qkv()
    program = torch.export.export(Module(), (q, k, v))
    assert any(node.target is torch.ops.kiln.attn_fwd.default for node in program.graph.nodes)
    torch.testing.assert_close(program.module()(q, k, v), kt.attention(q, k, v, causal=True))


def test_compiled_decoding(definition) -> None:
    caches = [torch.randn(2, 2, 20, 16) for _ in "kv"]
    copies = [x.clone() for x in caches]
    q, k, v = torch.randn(2, 4, 1, 16), torch.randn(2, 2, 1, 16), torch.randn(2, 2, 1, 16)
    used = torch.tensor([5, 9], dtype=torch.int32)

    def step(q, k, v, k_cache, v_cache):
        return kt.decode(q, k_cache, v_cache, k_new=k, v_new=v, seqused_k=used, causal=True) * 2

    with torch.no_grad():
        expected = step(q, k, v, *caches)
        for backend in ("aot_eager", "inductor"):
            again = [x.clone() for x in copies]
            torch.testing.assert_close(torch.compile(step, fullgraph=True, backend=backend)(q, k, v, *again), expected)
            assert all(torch.equal(a, b) for a, b in zip(caches, again))


def test_scale_of_zero_is_not_the_default(definition) -> None:
    q = torch.randn(1, 2, 3, 8)
    out = kt.attention(q, q, q, scale=0.0)
    torch.testing.assert_close(out, q.mean(2, keepdim=True).expand_as(q))
    assert torch.finfo(torch.float32).tiny == functions.TINY


@pytest.mark.parametrize("scale", [1e-50, -1e-50])
def test_a_scale_that_fp32_makes_zero_is_not_the_default(definition, scale: float) -> None:
    """All functions and both ways of calling them, and likewise a softcap and a dropout, of which 0 means none."""
    q = torch.randn(1, 2, 3, 8)
    told, seen = math.copysign(functions.TINY, scale), []
    run = definition.attn_fwd
    definition.attn_fwd = lambda *args, **more: seen.append(args[13:16]) or run(*args, **more)
    mean = q.mean(2, keepdim=True).expand_as(q)
    torch.testing.assert_close(kt.attention(q, q, q, scale=scale, softcap=1e-50), mean)
    torch.testing.assert_close(kt.scaled_dot_product_attention(q, q, q, scale=scale, dropout_p=1e-50), mean)
    assert seen == [(told, functions.TINY, 0.0), (told, 0.0, functions.TINY)]
    assert functions.given_scale(None) == 0.0 and functions.given_scale(0.5) == 0.5
    assert math.isnan(functions.given_scale(math.nan)) and functions.above_zero(0.0) == 0.0
    assert functions.above_zero(-1e-50) == -1e-50  # to be refused
