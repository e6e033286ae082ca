"""kiln.jit.enable(), disable() and use(): what runs kiln.torch's operators, on and off in one process.
tests/pytorch runs kiln.torch itself on the engine."""

from __future__ import annotations

from pathlib import Path

import pytest

FAMILY = Path(__file__).resolve().parents[2] / "examples" / "family" / "recipe.yaml"


def operators():
    """In place of kiln.torch.operators, which needs the libraries: what kiln.jit uses of it."""
    import sys
    import types

    package, module = types.ModuleType("kiln.torch"), types.ModuleType("kiln.torch.operators")
    package.__path__ = []
    state: list[object] = [None]

    def set_engine(new: object) -> object:
        before, state[0] = state[0], new
        return before

    module.set_engine, module.engine = set_engine, lambda: state[0]
    sys.modules |= {"kiln.torch": package, "kiln.torch.operators": module}
    return module


def on_and_off() -> None:
    import torch

    import kiln.jit

    known = operators()
    q = torch.randn(1, 2, 20, 16)
    expected = torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True)
    for _ in range(2):
        assert not kiln.jit.is_enabled() and known.engine() is None
        engine = kiln.jit.enable(interpret=True, target="sm_80")
        assert kiln.jit.is_enabled() and known.engine() is engine
        assert (engine.name, engine.devices) == ("interpreter", frozenset({"cpu"}))
        out, lse = known.engine().attn_fwd(q, q, q, causal=True)
        torch.testing.assert_close(out, expected)
        assert lse is None
        with kiln.jit.use(interpret=True) as inner:
            assert known.engine() is inner
            with kiln.jit.use(inner.recipe) as innermost:
                assert known.engine() is innermost and innermost.recipe is inner.recipe
            assert known.engine() is inner
        assert known.engine() is engine
        kiln.jit.disable()
    assert known.engine() is None


def test_on_and_off_twice(child):
    child(on_and_off)


def overlapping() -> None:
    import kiln.jit

    known = operators()
    outer = kiln.jit.enable()
    first, second = kiln.jit.use(), kiln.jit.use()
    one, other = first.__enter__(), second.__enter__()
    assert known.engine() is other
    first.__exit__(None, None, None)
    assert known.engine() is other, "what was entered last and not left"
    second.__exit__(None, None, None)
    assert known.engine() is outer and one is not other
    with kiln.jit.use() as one, kiln.jit.use() as other:
        assert known.engine() is other
    assert known.engine() is outer
    kiln.jit.disable()
    assert known.engine() is None


def test_statements_of_several_threads_may_overlap(child):
    child(overlapping)


def what_fails() -> list[str]:
    import kiln.jit

    known = operators()
    engine = kiln.jit.enable(interpret=True)
    told = []
    for arguments, settings in (
        ((FAMILY,), {}),
        ((FAMILY.parent / "no.yaml",), {}),
        ((engine.recipe,), {"target": "sm_80"}),
        ((), {"target": "sm_1"}),
    ):
        try:
            kiln.jit.enable(*arguments, **settings)
        except (kiln.jit.errors.KilnError, TypeError) as error:
            told.append(f"{type(error).__name__}: {error}")
        assert known.engine() is engine, "what ran before goes on"
    try:
        with kiln.jit.use(interpret=True):
            raise KeyError("mine")
    except KeyError:
        assert known.engine() is engine
    return told


def test_what_cannot_be_switched_on_leaves_what_was(child):
    family, file, settings, target = child(what_fails)
    assert family.startswith("NotFoundError: ") and "has no operation 'attn_fwd'" in family
    assert file.startswith("EnvironmentProblem: ") and "no.yaml" in file
    assert settings == "TypeError: a Recipe is given, which has its settings already: give target where it is made"
    assert target.startswith("UsageError: unknown target 'sm_1'")


def wrong_calls() -> list[str]:
    import against
    import torch

    engine, told = against.engine(), []
    q, bias = torch.randn(2, 4, 20, 16), torch.randn(1, 1, 1, 20)
    out, lse = engine.attn_fwd(q, q, q, bias, return_lse=True)
    rng = torch.tensor([1, 2])
    for call in (
        lambda: engine.attn_fwd(q, q[:, :3], q[:, :3]),
        lambda: engine.attn_fwd(q, q.half(), q.half()),
        lambda: engine.attn_fwd(q[0, 0], q, q),
        lambda: engine.attn_fwd(q, q, q, dropout=1.0, rng=rng),
        lambda: engine.attn_fwd(q, q, q, dropout=0.5, rng=rng.int()),
        lambda: engine.attn_fwd(q, q, q, softcap=-1.0),
        lambda: engine.attn_fwd(q, q, q, scale=float("inf")),
        lambda: engine.attn_fwd(q, q, q, bias[0]),
        lambda: engine.attn_bwd(out, q, q, q, out, lse, bias, need_dbias=True),
        lambda: engine.attn_fwd(torch.ones(1, 1, 4, 600), torch.ones(1, 1, 4, 600), torch.ones(1, 1, 4, 600)),
        lambda: engine.attn_decode(q, q, q, q.transpose(2, 3).contiguous().transpose(2, 3)),
    ):
        try:
            call()
        except against.KilnError as error:
            told.append(f"{type(error).__name__}: {error}")
    return told


SENTENCES = [
    "ArgumentError: flash.attn_fwd: the number of heads of q (dimension 1) must be a multiple of that of k and v",
    "ArgumentError: flash.attn_fwd: k is fp16; it must be fp32, as this call's dtype",
    "ArgumentError: flash.attn_fwd: q has rank 2; it must be 4",
    "ArgumentError: flash: dropout must be at least 0 and at most 0.9999",
    "ArgumentError: rng must be a contiguous tensor of two int64: seed and offset",
    "ArgumentError: flash: softcap must be at least 0, for none, and at most 1e30",
    "ArgumentError: flash: sm_scale must be a finite number; 0 is 1 / sqrt(head_dim)",
    "ArgumentError: bias must have the shape [batch, heads, rows, keys], of which batch, heads and rows may be 1",
    "ArgumentError: the gradient of a bias that all rows share is not available: expand it over rows first",
    "UnsupportedError: flash.attn_fwd has no image for dtype=fp32 head_dim=600 padded=true extras=none on sm_90; "
    "the nearest that exists is dtype=fp32 head_dim=512 padded=true extras=none",
    "ArgumentError: flash.attn_decode: the last dimension of out must be contiguous (stride 1)",
]


def test_the_typed_layer_refuses_in_the_librarys_words(child):
    assert child(wrong_calls) == SENTENCES


def explained() -> list[str]:
    import against
    import torch

    engine, q = against.engine(), torch.full((2, 4, 20, 64), torch.nan, dtype=torch.bfloat16)
    found = engine.explain("attn_fwd", q, q, q, causal=True, for_backward=True)
    lse = torch.zeros(2, 4, 20)
    found += engine.explain("attn_bwd", q, q, q, q, q, lse, sinks=torch.zeros(4), need_dsinks=True)
    found += engine.explain("dropout_mask", torch.tensor([1, 2]), 1, 2, 3, 4, 0.5)
    try:
        engine.explain("attn_fwd", q, q[:1], q)
    except against.KilnError as error:
        return [*map(str, found), str(error)]
    return []


def test_what_the_typed_layer_would_run(child):
    forward, sums, means, dq, dk_dv, dsinks, mask, refusal = child(explained)
    assert forward == (
        "flash.attn_fwd/attn_fwd.general[dtype=bf16 head_dim=64 padded=false extras=none]"
        "[BLOCK_M=64 BLOCK_N=64 num_warps=4 num_stages=3 maxnreg=128][aligned]@sm_90 on a grid of 8 x 1 x 1\n"
        "  passed over: hopper_narrow: its source is in Gluon, but the interpreter only runs Triton\n"
        "  passed over: hopper_few: its source is in Gluon, but the interpreter only runs Triton\n"
        "  passed over: hopper: its source is in Gluon, but the interpreter only runs Triton\n"
        "  passed over: amd: it is not for sm_90"
    )
    kernels = {"sums": sums, "means": means, "dq": dq, "dk_dv": dk_dv, "dsinks": dsinks}
    for kernel, text in kernels.items():
        assert text.startswith(f"flash.attn_bwd/attn_bwd_{kernel}[")
    assert mask.startswith("flash.dropout_mask/dropout_mask") and "[mask_dtype=uint8]" in mask
    assert refusal == "flash.attn_fwd: k and v must have the same batch size (dimension 0)"


def fitted() -> None:
    import against
    import torch

    q = torch.randn(2, 4, 16, 20).transpose(2, 3)
    expected = torch.nn.functional.scaled_dot_product_attention(q, q, q)
    for tensor in (q, q.transpose(1, 2).contiguous().transpose(1, 2)):
        out, _ = against.engine().attn_fwd(tensor, tensor, tensor)
        torch.testing.assert_close(out, expected)
    assert out.stride() == tensor.stride(), "rows lie in memory as those of q"
    with_bias = torch.randn(1, 4, 20, 20).transpose(2, 3)
    out, _ = against.engine().attn_fwd(q, q, q, with_bias)
    expected = torch.nn.functional.scaled_dot_product_attention(q, q, q, with_bias)
    torch.testing.assert_close(out, expected)


def test_what_a_kernel_cannot_take_as_it_lies_is_copied(child):
    child(fitted)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_empty_tensors(child, dtype):
    child(empty, dtype)


def empty(dtype: str) -> None:
    import against
    import torch

    for batch, heads, rows, keys in ((0, 2, 3, 4), (2, 0, 3, 4), (2, 2, 0, 4), (2, 2, 3, 0)):
        q, k = (torch.ones(batch, heads, n, 16, dtype=getattr(torch, dtype)) for n in (rows, keys))
        out, lse = against.engine().attn_fwd(q, k, k, return_lse=True)
        assert out.shape == q.shape and (out == 0).all() and (lse == -torch.inf).all()
        dq, dk, dv, _, _ = against.engine().attn_bwd(out, q, k, k, out, lse)
        assert all((grad == 0).all() for grad in (dq, dk, dv)) and dk.shape == k.shape


def in_threads() -> list[float]:
    """Interpreted and compiled in several threads at once."""
    import os
    import tempfile
    from concurrent.futures import ThreadPoolExecutor

    os.environ["TRITON_CACHE_DIR"] = tempfile.mkdtemp()
    import torch
    import triton

    import kiln.jit
    from kiln.jit.compiled import compile_spec
    from kiln.jit.functions import Functions
    from kiln_recipe.targets import by_name

    torch.set_num_threads(1)
    made = kiln.jit.Recipe(FAMILY, interpret=True)

    def run(number: int) -> float:
        recipe = made if number % 2 else kiln.jit.Recipe(FAMILY, interpret=True)
        norm = recipe.operation("rms_norm")
        x = torch.randn(4, 64 + number)
        w, out = torch.ones(x.shape[1]), torch.empty_like(x)
        norm(x, w, out, None, 0.0)
        (one,) = norm.explain(x, w, out, None, 0.0)
        compile_spec(one.variant.spec, by_name("sm_90"), Functions().get(one.variant.spec, False))
        return (out - x / x.square().mean(1, keepdim=True).sqrt()).abs().max().item()

    with ThreadPoolExecutor(4) as threads:
        far = list(threads.map(run, range(12)))
    assert not triton.knobs.runtime.interpret
    return far


def test_threads_wait_for_each_other(child):
    assert max(child(in_threads)) < 1e-5
