"""kiln.torch.attention and decode, feature by feature, against the definition (reference_engine.py)."""

from __future__ import annotations

from contextlib import contextmanager

import pytest
import torch
from engines import Definition

import kiln.torch as kt
from kiln.errors import ArgumentError, KilnError, UnsupportedError
from kiln.torch import native, operators

DTYPE = torch.bfloat16
LENGTHS_Q, LENGTHS_K = (37, 0, 100, 1), (64, 5, 100, 0)


@contextmanager
def definition():
    before = operators.set_engine(Definition())
    try:
        yield
    finally:
        operators.set_engine(before)


def random(*sizes: int, dtype: torch.dtype = DTYPE) -> torch.Tensor:
    return torch.randn(*sizes, device="cuda").to(dtype)


def begins(lengths: tuple[int, ...]) -> torch.Tensor:
    return torch.tensor([0, *lengths], device="cuda", dtype=torch.int32).cumsum(0, dtype=torch.int32)


def int32(*numbers: int) -> torch.Tensor:
    return torch.tensor(numbers, device="cuda", dtype=torch.int32)


def close(ours: torch.Tensor | None, theirs: torch.Tensor | None, name: str) -> None:
    """Within a few roundings of the output's own dtype."""
    assert (ours is None) == (theirs is None), name
    if ours is None or not ours.numel():
        return
    assert ours.shape == theirs.shape and ours.dtype == theirs.dtype and ours.stride() == theirs.stride(), name
    scale = theirs.double().abs().nan_to_num(0, 0, 0).max().item() or 1.0
    rounding = {torch.bfloat16: 2**-7, torch.float16: 2**-10}.get(ours.dtype, 2**-7)
    torch.testing.assert_close(
        ours.double(), theirs.double(), atol=4 * rounding * scale, rtol=4 * rounding, msg=lambda m: f"{name}: {m}"
    )


def both(make, cancelling: str = "", **call) -> None:
    """out, log-sum-exp and all gradients of one call by both engines.

    Args:
        cancelling: the input whose gradient is 0, but for rounding.
    """
    results = []
    inputs = make()
    for engine in (None, definition):
        leaves = {
            n: x.detach().clone().requires_grad_(x.is_floating_point() and n != "alibi_slopes")
            for n, x in inputs.items()
        }
        with engine() if engine else definition_off():
            out, lse = kt.attention(**leaves, **call, return_lse=True)
            dout = torch.linspace(-1, 1, out.numel(), device="cuda").reshape(out.shape).to(out.dtype)
            out.backward(dout)
        gradients = {n: x.grad for n, x in leaves.items() if x.requires_grad}
        results.append(
            {"out": out.detach(), **gradients}
            | ({} if "cu_seqlens_q" in leaves or "seqused_q" in leaves else {"lse": lse})
        )
    for name in results[0]:
        if name == cancelling:
            assert results[0][name].abs().max() < 0.05 and results[1][name].abs().max() < 0.05
        else:
            close(results[0][name], results[1][name], name)


@contextmanager
def definition_off():
    assert operators.engine() is native
    yield


def qkv(batch=2, heads=4, shared=2, rows=70, keys=90, width=64, width_v=64, rows_first=False):
    def one(count, length, d):
        return random(batch, length, count, d) if rows_first else random(batch, count, length, d)

    return {"q": one(heads, rows, width), "k": one(shared, keys, width), "v": one(shared, keys, width_v)}


FEATURES = {
    "plain": {},
    "causal": {"causal": True},
    "causal, bottom right": {"causal": True, "bottom_right": True},
    "window": {"window": (20, 5)},
    "window, bottom right": {"window": (16, 0), "bottom_right": True},
    "softcap": {"softcap": 5.0},
    "scale": {"scale": 0.3},
    "scale below 0": {"scale": -0.2},
    "scale 0": {"scale": 0.0},
}


@pytest.mark.parametrize("rows_first", [False, True])
@pytest.mark.parametrize("feature", FEATURES)
def test_features(feature: str, rows_first: bool) -> None:
    both(lambda: qkv(rows_first=rows_first), **FEATURES[feature], rows_first=rows_first)


@pytest.mark.parametrize(
    "shape",
    [(70, 90), (1, 4, 70, 90), (2, 1, 70, 90), (2, 4, 70, 90), (2, 4, 1, 90), (2, 4, 70, 1), (1, 1, 1, 90)],
    ids=str,
)
def test_bias(shape: tuple[int, ...]) -> None:
    cancelling = "bias" if shape[-1] == 1 else ""  # what is added to all scores of a row changes no weight
    both(lambda: qkv() | {"bias": random(*shape)}, cancelling)
    both(lambda: qkv() | {"bias": random(*shape, dtype=torch.float32)}, cancelling, causal=True)


@pytest.mark.parametrize("extra", ["sinks", "alibi_slopes"])
def test_sinks_and_slopes(extra: str) -> None:
    for sizes in ((4,), (2, 4)) if extra == "alibi_slopes" else ((4,),):
        both(lambda: qkv() | {extra: random(*sizes, dtype=torch.float32).abs() / 8}, causal=True)  # noqa: B023
    both(lambda: qkv() | {extra: random(4).abs() / 8})


@pytest.mark.parametrize("rank", [3, 4])
@pytest.mark.parametrize("rows_first", [False, True])
@pytest.mark.parametrize("known", [False, True])
def test_packed_sequences(rank: int, rows_first: bool, known: bool) -> None:
    """Rows behind the last sequence are there too: zeros, in gradients as well."""

    def make():
        q, k, v = (
            random(1, heads, sum(lengths) + 9, 64)
            for heads, lengths in ((4, LENGTHS_Q), (2, LENGTHS_K), (2, LENGTHS_K))
        )
        if rows_first:
            q, k, v = (x.transpose(1, 2).contiguous() for x in (q, k, v))
        if rank == 3:
            q, k, v = q[0], k[0], v[0]
        return {"q": q, "k": k, "v": v, "cu_seqlens_q": begins(LENGTHS_Q), "cu_seqlens_k": begins(LENGTHS_K)}

    longest = {"max_seqlen_q": max(LENGTHS_Q), "max_seqlen_k": max(LENGTHS_K)} if known else {}
    both(make, rows_first=rows_first, causal=True, bottom_right=True, **longest)


def test_sequences_in_batches() -> None:
    both(lambda: qkv(4) | {"seqused_q": int32(70, 0, 33, 1), "seqused_k": int32(90, 9, 0, 44)}, causal=True)
    both(lambda: qkv(4) | {"seqused_k": int32(90, 9, 1, 44)})
    garbage = qkv(2)
    garbage["q"][:, :, 40:] = torch.nan
    for name in ("k", "v"):
        garbage[name][:, :, 50:] = torch.nan
    leaves = {name: x.requires_grad_() for name, x in garbage.items()}
    out = kt.attention(**leaves, seqused_q=int32(40, 40), seqused_k=int32(50, 50))
    out.sum().backward()
    assert out.isfinite().all() and all(x.grad.isfinite().all() for x in leaves.values())
    assert not out[:, :, 40:].any() and not leaves["q"].grad[:, :, 40:].any() and not leaves["k"].grad[:, :, 50:].any()


def test_dropout_is_what_dropout_mask_says() -> None:
    inputs = qkv(shared=4)
    q, k, v = (inputs[name].requires_grad_() for name in "qkv")
    rng = kt.draw_rng("cuda")
    out = kt.attention(q, k, v, dropout=0.25, rng=rng)
    keep = kt.dropout_mask(rng, 2, 4, 70, 90, 0.25)
    signs = kt.dropout_mask(rng, 2, 4, 70, 90, 0.25, torch.bfloat16)
    assert torch.equal(signs > 0, keep > 0) and set(signs.unique().tolist()) == {-1.0, 1.0}
    assert abs(keep.float().mean().item() - 0.75) < 0.02
    a, b, c = (x.detach().double().requires_grad_() for x in (q, k, v))
    reference = ((a @ b.mT / 8).softmax(-1) * keep / 0.75) @ c
    torch.testing.assert_close(out.double(), reference, atol=3e-2, rtol=3e-2)
    out.backward(out.detach())
    reference.backward(out.detach().double())
    for ours, theirs in ((q, a), (k, b), (v, c)):
        torch.testing.assert_close(ours.grad.double(), theirs.grad, atol=5e-2, rtol=5e-2)


def test_seeds_are_honoured() -> None:
    inputs = qkv()

    def draw():
        return kt.attention(**inputs, dropout=0.5)

    torch.manual_seed(3)
    first, second = draw(), draw()
    torch.manual_seed(3)
    assert torch.equal(draw(), first) and torch.equal(draw(), second) and not torch.equal(first, second)
    state = torch.cuda.get_rng_state()
    third = draw()
    torch.cuda.set_rng_state(state)
    assert torch.equal(draw(), third)


def test_checkpoints_draw_the_same_again() -> None:
    from torch.utils.checkpoint import checkpoint

    values = qkv().values()

    def run(q, k, v):
        with kt.use():
            return torch.nn.functional.scaled_dot_product_attention(
                q * 1, k, v, dropout_p=0.5, enable_gqa=True
            ).square()

    gradients = []
    for wrapped in (
        run,
        lambda *x: checkpoint(run, *x, use_reentrant=False),
        lambda *x: checkpoint(run, *x, use_reentrant=True),
    ):
        torch.manual_seed(5)
        leaves = [x.detach().requires_grad_() for x in values]
        wrapped(*leaves).sum().backward()  # no torch.autograd.grad: the older kind of checkpoint refuses it
        gradients.append([x.grad for x in leaves])
    for others in gradients[1:]:
        assert all(torch.equal(a, b) for a, b in zip(gradients[0], others))


def test_deterministic_mode() -> None:
    inputs = {name: x.requires_grad_() for name, x in qkv(2, 8, 2, 700, 700).items()}
    torch.use_deterministic_algorithms(True)
    try:
        runs = []
        for _ in range(3):
            out = kt.attention(**inputs, causal=True)
            runs.append([out, *torch.autograd.grad(out.square().sum(), list(inputs.values()))])
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(torch.equal(a, b) for run in runs[1:] for a, b in zip(runs[0], run))


def test_autocast() -> None:
    inputs = {name: x.float().requires_grad_() for name, x in qkv().items()}
    for dtype in (torch.bfloat16, torch.float16):
        with torch.autocast("cuda", dtype):
            out = kt.attention(**inputs, bias=torch.zeros(70, 90, device="cuda"))
            with kt.use():
                other = torch.nn.functional.scaled_dot_product_attention(*inputs.values(), enable_gqa=True)
        assert out.dtype == other.dtype == dtype
        out.sum().backward()
        assert all(x.grad.dtype == torch.float32 and x.grad.isfinite().all() for x in inputs.values())
    assert kt.fallthroughs() == {}


def test_decode() -> None:
    for rows_first in (False, True):
        for packed in (False, True):

            def made(rows_first=rows_first, packed=packed):
                caches = [random(3, 2, 200, 64) for _ in "kv"]
                q = random(1, 4, 6, 64) if packed else random(3, 4, 2, 64)
                new = [] if packed else [random(3, 2, 2, 64) for _ in "kv"]
                tensors = [q, *caches, *new]
                return [x.transpose(1, 2).contiguous() if rows_first else x for x in tensors]

            given, results = made(), []
            for engine in (definition_off, definition):
                q, k, v, *new = (x.clone() for x in given)
                more = {"k_new": new[0], "v_new": new[1]} if new else {"cu_seqlens_q": int32(0, 1, 4, 6)}
                with engine():
                    out, lse = kt.decode(q, k, v, seqused_k=int32(150, 7, 33), causal=True, rows_first=rows_first,
                                         return_lse=True, **more)  # fmt: skip
                results.append((out, lse, k, v))
            for name, a, b in zip(("out", "lse", "k_cache", "v_cache"), *results):
                close(a, b, f"{name}, {rows_first=}, {packed=}")
    with pytest.raises(UnsupportedError, match="no gradients"):
        kt.decode(random(1, 4, 1, 64).requires_grad_(), random(1, 4, 9, 64), random(1, 4, 9, 64))
    # One that is saved for a gradient must not be written unseen.
    cache = random(1, 4, 9, 64)
    used = (cache * random(1, 4, 9, 64).requires_grad_()).sum()
    kt.decode(
        random(1, 4, 1, 64),
        cache,
        cache.clone(),
        k_new=random(1, 4, 1, 64),
        v_new=random(1, 4, 1, 64),
        seqused_k=int32(3),
    )
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        used.backward()


def test_refusals() -> None:
    q = random(1, 4, 8, 64)
    for call, kind, words in (
        ({"v": random(1, 4, 9, 64)}, ArgumentError, "same sequence length"),
        ({"k": random(1, 3, 8, 64), "v": random(1, 3, 8, 64)}, ArgumentError, "multiple"),
        ({"k": q.cpu(), "v": q.cpu()}, ArgumentError, "k is on the CPU"),
        ({"bias": torch.ones(8, 8, dtype=torch.bool, device="cuda")}, ArgumentError, "floating"),
        ({"dropout": 1.0}, ArgumentError, "0.9999"),
        ({"softcap": -1.0}, ArgumentError, "softcap"),
        ({"rng": torch.zeros(3, device="cuda"), "dropout": 0.5}, ArgumentError, "two int64"),
        ({"q": q.double(), "k": q.double(), "v": q.double()}, KilnError, "fp64"),
        ({"q": random(1, 4, 8, 600), "k": random(1, 4, 8, 600)}, KilnError, "600|512"),
    ):
        with pytest.raises(kind, match=words):
            kt.attention(**{"q": q, "k": q, "v": q, **call})
    assert kt.attention(q, q, q).isfinite().all()


def test_double_backward_and_transforms() -> None:
    q = random(1, 4, 8, 64).requires_grad_()
    (gradient,) = torch.autograd.grad(kt.attention(q, q, q).sum(), q, create_graph=True)
    with pytest.raises(UnsupportedError, match="once"):
        gradient.sum().backward()
    with pytest.raises(UnsupportedError, match="vmap"):
        torch.vmap(lambda x: kt.attention(x, x, x))(random(3, 1, 4, 8, 64))


@pytest.mark.parametrize("rows_first", [False, True])
def test_all_ways_give_the_same_bits(rows_first: bool) -> None:
    """Past the dispatcher and through it, recorded in short and in full, compiled: values and gradients."""
    op = torch.ops.kiln.attn_fwd
    call = {"causal": True, "rows_first": rows_first}
    ways = {
        "attention": lambda *x: kt.attention(*x, **call),
        "with the log-sum-exp": lambda *x: kt.attention(*x, **call, return_lse=True)[0],
        "packet": lambda *x: op(*x, **call)[0],
        "overload": lambda *x: op.default(*x, **call)[0],
        "compiled": torch.compile(lambda *x: kt.attention(*x, **call), fullgraph=True, backend="aot_eager"),
    }
    values = list(qkv(heads=4, shared=4, rows_first=rows_first).values())
    results = {}
    for name, way in ways.items():
        leaves = [x.detach().requires_grad_() for x in values]
        out = way(*leaves)
        out.backward(values[0])
        with torch.no_grad():
            again = way(*values)
        assert torch.equal(out, again) and out.stride() == again.stride(), name
        results[name] = [out.detach(), *(x.grad for x in leaves)]
    for name, found in results.items():
        for a, b in zip(found, results["attention"], strict=True):
            assert torch.equal(a, b) and a.stride() == b.stride(), name


def test_operators_hold_what_they_promise() -> None:
    q, k, v = (x.requires_grad_() for x in qkv().values())
    bias = random(1, 4, 70, 90).requires_grad_()
    sinks = random(4, dtype=torch.float32).requires_grad_()
    op = torch.ops.kiln.attn_fwd.default
    torch.library.opcheck(op, (q, k, v), {"return_lse": True, "causal": True})
    torch.library.opcheck(op, (q, k, v, bias, None, sinks), {})
    with torch.no_grad():
        out, lse = op(q, k, v, return_lse=True)
        detached = [x.detach() for x in (out, q, k, v, out, lse)]
    torch.library.opcheck(torch.ops.kiln.attn_bwd.default, tuple(detached), {})
    caches = [random(3, 2, 200, 64) for _ in "kv"]
    torch.library.opcheck(torch.ops.kiln.attn_decode.default, (random(3, 4, 2, 64), *caches, random(3, 4, 2, 64)),
                          {"return_lse": True, "seqused_k": int32(9, 8, 7)})  # fmt: skip
    torch.library.opcheck(torch.ops.kiln.dropout_mask.default, (kt.draw_rng("cuda"), 1, 2, 3, 4, 0.5), {})


def test_explain() -> None:
    q, k, v = qkv().values()
    found = kt.explain(q, k, v, causal=True, backward=True)
    assert found and found.kernels[0].kernel == "attn_fwd" and len(found.kernels) >= 3, found
    assert found.kernels[0].target.startswith(("sm_", "gfx")) and len(found.kernels[0].key) == 64
    assert found.to_dict()["kernels"][0]["functional"].startswith("dtype=bf16")
    assert "because of dtype=bf16" in str(found)
    more = {"bias": torch.zeros(q.shape[2], k.shape[2], device="cuda"), "sinks": torch.zeros(q.shape[1], device="cuda")}
    names = {kernel.kernel for kernel in kt.explain(q, k, v, backward=True, **more).kernels}
    assert {"attn_bwd_dbias", "attn_bwd_dsinks"} <= names
    refused = kt.explain(q.double(), k.double(), v.double())
    assert not refused and "fp64" in refused.refusal and type(refused.error).__name__ in str(refused)
    generic = kt.explain(*(x[..., :63] for x in (q, k, v)))
    assert generic.kernels[0].specialization == "generic"


def test_memory_that_runs_out() -> None:
    free, _ = torch.cuda.mem_get_info()
    q = torch.zeros(1, 1, 1, 64, device="cuda", dtype=DTYPE).expand(1, 64, free // 64 // 64, 64)
    with pytest.raises(torch.OutOfMemoryError) as caught:
        kt.attention(q, q[:, :, :8], q[:, :, :8])
    assert isinstance(caught.value, KilnError)
    torch.cuda.empty_cache()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("heads_kv, layout", [(4, "plain"), (2, "plain"), (4, "transposed"), (4, "strided")])
def test_plain_calls_go_past_the_dispatcher(monkeypatch, dtype, heads_kv, layout):
    """Where tensors allow it; what the dispatcher's way gives is the same to the bit."""
    q, k, v = (random(2, heads, 100, 64, dtype=dtype) for heads in (4, heads_kv, heads_kv))
    if layout == "transposed":
        q, k, v = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v))
    elif layout == "strided":
        q, k, v = (x.repeat(1, 1, 1, 2)[..., :64] for x in (q, k, v))
    attend = torch.ops.kiln.attn_fwd
    expected, _ = attend.default(q, k, v)

    def forbidden(*args: object) -> None:
        raise AssertionError("went by the dispatcher")

    monkeypatch.setattr(native, "forward_op", forbidden)
    by_operator, lse = attend(q, k, v)
    by_function, by_pytorch = kt.attention(q, k, v), kt.scaled_dot_product_attention(q, k, v, enable_gqa=heads_kv < 4)
    assert lse is None
    for out in (by_operator, by_function, by_pytorch):
        assert torch.equal(out, expected) and out.stride() == expected.stride()


@pytest.mark.parametrize("is_contiguous", [False, True])
def test_rows_that_come_first_lie_outside_of_heads(is_contiguous):
    """However those of q lie in memory, and by all ways."""
    q, k, v = (random(2, 4, 100, 64).transpose(1, 2) for _ in "qkv")
    if is_contiguous:
        q, k, v = (x.contiguous() for x in (q, k, v))
    by_dispatcher, _ = torch.ops.kiln.attn_fwd.default(q, k, v, rows_first=True)
    recorded = kt.attention(q.clone().requires_grad_(), k, v, rows_first=True)
    for out in (by_dispatcher, recorded, kt.attention(q, k, v, rows_first=True)):
        assert out.is_contiguous() and torch.equal(out, by_dispatcher)
