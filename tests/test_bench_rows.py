"""Rows of `kiln bench`: each side's result is looked at before its time counts. On PyTorch's CPU tensors, with sides
that are right, wrong or refuse, and with modules that stand for the packages beside which it measures."""

from __future__ import annotations

import dataclasses
import time
import types
import warnings

import pytest

from kiln_bench import timing
from kiln_bench.attention import peers, problem, reference, row
from kiln_bench.attention.problem import CacheProblem, Prepared, Problem
from kiln_bench.shapes import Decoding, Training

torch = pytest.importorskip("torch")

PLAIN = Training(32, 32, 4, 2, 2, 48)
TRAINING = [
    PLAIN, Training(32, 16, 4, 4, 1, 40, causal=True), Training(32, 32, 4, 2, 1, 40, causal=True, window=7),
    Training(32, 32, 4, 2, 1, 40, (40, 9), causal=True, rows_first=True),
    Training(32, 32, 4, 1, 3, 33, rows_first=True), Training(32, 32, 4, 2, 1, 40, causal=True, softcap=2),
    Training(32, 32, 4, 2, 1, 40, causal=True, window=9, softcap=3, sinks=True, deterministic=True),
]  # fmt: skip
CACHES = [
    Decoding(32, 4, 2, 3, 64), Decoding(32, 4, 4, 2, 64, 16), Decoding(32, 4, 2, 2, 64, 16, rows_first=True),
    Decoding(32, 8, 1, 2, 64, 0, "bf16", "fp8e4m3"),
]  # fmt: skip


def attention(q, k, v, causal=False, window=0, starts=None, softcap=0, sinks=None):
    """What is right, written once more: in fp32, with a mask."""
    rows = torch.arange(q.shape[2])
    seen = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool)
    if causal:
        seen &= rows[None] <= rows[:, None]
    if window:
        seen &= rows[None] > rows[:, None] - window
    if starts is not None:
        number = torch.searchsorted(starts[1:].contiguous(), rows, right=True)
        seen &= number[None] == number[:, None]
    k, v = (x.float().repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    scores = q.float() @ k.mT / q.shape[3] ** 0.5
    scores = softcap * torch.tanh(scores / softcap) if softcap else scores
    powers = torch.exp(scores) * seen
    total = powers.sum(-1, keepdim=True) + (0 if sinks is None else torch.exp(sinks)[:, None, None])
    return (powers / total @ v).to(q.dtype)


class Right:
    """A side that is right, or wrong by what `spoil` does to its results."""

    def __init__(self, name="right", spoil=lambda results: results):
        self.name, self.label, self._spoil = name, name.capitalize(), spoil

    def training(self, problem, part):
        shape = problem.shape

        def forward(q, k, v):
            return attention(q, k, v, shape.causal, shape.window, problem.starts, shape.softcap, problem.sinks)

        made = (peers._gradients if part == "backward" else peers._forward)(problem, forward)
        return Prepared(made.works, lambda: self._spoil(dict(made.results())), ["an image"])

    def decoding(self, problem):
        shape, found = problem.shape, []

        def work(number):
            def run():
                every = [(batch, head) for batch in range(shape.batch) for head in range(shape.heads_kv)]
                heads = [[problem._cached(which, number, *place) for place in every] for which in (0, 1)]
                k, v = (torch.stack(one).view(shape.batch, shape.heads_kv, shape.keys, -1) for one in heads)
                found[:] = [attention(problem.q, k, v)]

            return run

        works = [work(number) for number in range(len(problem.caches))]
        return Prepared(works, lambda: self._spoil({"out": found[0]}))


class Refusing(Right):
    def training(self, problem, part):
        warnings.warn("kernel not used because: sizes [4, 2] do not fit (Triggered internally at x.cpp)", stacklevel=2)
        raise RuntimeError("No available kernel. Aborting execution.")


def rows_of(*sides, slowest=None, now=time.perf_counter, times=timing.Times({})):
    timed = []

    def measured(works, rounds, turn_ms, while_busy, cycle):
        timed.append((set(works), rounds, turn_ms))
        return dataclasses.replace(times, milliseconds={name: [1.0] * rounds for name in works})

    makes = row.Rows(sides, 3, "cpu", measured, slowest_ms=lambda: slowest, now=now)
    makes.timed = timed
    return makes


@pytest.mark.parametrize("shape", TRAINING, ids=str)
@pytest.mark.parametrize("part", ["forward", "backward"])
def test_right_results_are_timed(shape, part):
    makes = rows_of(Right())
    made = makes.training(Problem(shape, "cpu"), part, lambda sides: 5.0 * sides)
    assert made.wrong == {} and made.refused == {} and made.errors["right"] < 0.01
    assert made.milliseconds == {"right": [1.0] * 3} and makes.timed == [({"right"}, 3, 5.0)]
    assert made.images == {"right": ["an image"]} and made.as_dict()["host_ahead"]


def test_windows_and_sequences_count():
    """The reference is not that of plain attention."""
    for shape in (*TRAINING[1:4], *TRAINING[5:]):
        blind = Right()
        blind.training = lambda problem, part: peers._forward(problem, attention)
        made = rows_of(blind).training(Problem(shape, "cpu"), "forward", lambda _: 1.0)
        assert "right" in made.wrong, shape


@pytest.mark.parametrize("shape", CACHES, ids=str)
def test_decoding(shape):
    given = CacheProblem(shape, shape.bytes, "cpu")
    made = rows_of(Right()).decoding(given, lambda _: 1.0)
    assert made.errors["right"] < 0.01 and made.milliseconds["right"]
    assert made.more["caches"] == len(given.caches) == problem.WARM
    shorter = Right(spoil=lambda results: {"out": results["out"] * 0.9})
    assert "right" in rows_of(shorter).decoding(given, lambda _: 1.0).wrong


def nan(results):
    results["out"] = results["out"].clone()
    results["out"].view(-1)[3] = torch.nan
    return results


def elsewhere(results):
    """Wrong in a head that is no sample."""
    results["out"] = results["out"].clone()
    results["out"][1, 0] = 7.0
    return results


def test_what_is_wrong_is_named_and_not_timed():
    sides = (
        Right("a"),
        Right("b", nan),
        Right("c", lambda r: {"out": r["out"] * 2}),
        Right("d", elsewhere),
        Right("e"),
    )
    makes = rows_of(*sides)
    made = makes.training(Problem(PLAIN, "cpu"), "forward", lambda _: 1.0)
    assert made.wrong.keys() == {"b", "c", "d"} and made.milliseconds.keys() == {"a", "e"} == makes.timed[0][0]
    assert made.wrong["b"] == "its result differs from fp32's by nan, so it was not timed"
    assert made.wrong["d"].startswith("its result differs from that of A by ")


def test_the_first_side_may_be_the_wrong_one():
    makes = rows_of(Right("a", elsewhere), Right("b"), Right("c"))
    made = makes.training(Problem(PLAIN, "cpu"), "forward", lambda _: 1.0)
    assert made.wrong.keys() == {"a"} and "from that of B" in made.wrong["a"]


def test_refusals_have_their_reasons():
    makes = rows_of(Refusing("a"), Right("b"))
    made = makes.training(Problem(PLAIN, "cpu"), "forward", lambda _: 1.0)
    assert made.refused == {"a": "kernel not used because: sizes [...] do not fit"}
    assert made.milliseconds.keys() == {"b"}
    alone = rows_of(Refusing("a")).training(Problem(PLAIN, "cpu"), "forward", lambda _: 1.0)
    assert alone.milliseconds == {} and alone.more["host_ahead"]
    assert row.reason(ValueError("a\n  b " + "x" * 400), []).startswith("a b xxx")
    assert row.reason(ValueError(), []) == "ValueError"


def test_a_call_that_is_too_slow_for_the_budget_is_refused():
    clock = [0.0]

    def taking(name, seconds):
        side = Right(name)
        usual = side.training

        def training(problem, part):
            made = usual(problem, part)

            def work():
                clock[0] += seconds
                made.works[0]()

            return Prepared([work], made.results)

        side.training = training
        return side

    def made(*sides, slowest):
        makes = rows_of(*sides, slowest=slowest, now=lambda: clock[0])
        return makes.training(Problem(PLAIN, "cpu"), "forward", lambda _: 1.0), makes.timed

    fast, slow = taking("a", 0.01), taking("b", 0.01 * row._MUCH * 1.1)
    found, timed = made(fast, slow, slowest=0.0)
    assert found.refused == {"b": "one call takes too long for this --budget"} and timed[0][0] == {"a"}
    assert made(fast, slow, slowest=60.0)[0].refused == {}, "there is time for it"
    assert made(fast, taking("b", 0.01 * row._MUCH * 0.9), slowest=0.0)[0].refused == {}, "nothing is much faster"
    assert made(slow, slowest=0.0)[0].refused == {}, "nothing is faster"


def test_why_there_are_no_graphs_is_said():
    times = timing.Times({}, ("a",), not_captured={"a": "sizes [4, 2] do not fit"})
    found = rows_of(Right("a"), times=times).training(Problem(PLAIN, "cpu"), "forward", lambda _: 1.0).as_dict()
    assert found["not_captured"] == {"a": "sizes [...] do not fit"} and not found["host_ahead"]
    assert found["host_bound"] == ["a"]
    assert "not_captured" not in rows_of(Right("a")).training(Problem(PLAIN, "cpu"), "forward", lambda _: 1.0).as_dict()


def test_what_fails_behind_the_first_call_costs_the_row_alone():
    def measured(*_):
        raise torch.OutOfMemoryError("out of memory: tried to allocate 9 GiB")

    makes = rows_of(Right("a"))
    makes._measured = measured
    made = makes.training(Problem(PLAIN, "cpu"), "forward", lambda _: 1.0)
    assert made.milliseconds == {} and made.more["skipped"] == "out of memory: tried to allocate 9 GiB"


def test_a_gpu_that_fails_ends_the_run(monkeypatch):
    """What a kernel did wrong is told by whatever comes next."""

    def wait():
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    makes = rows_of(Refusing("a"))
    monkeypatch.setattr(makes, "_wait", wait)
    with pytest.raises(
        row.DeviceFailed, match="the GPU failed in A, forward, d32, 4:2 heads, 48, batch 2, heads first .*--sides"
    ):
        makes.training(Problem(PLAIN, "cpu"), "forward", lambda _: 1.0)


# ---- the sides beside it ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("part", ["forward", "backward"])
def test_pytorchs_backends(part):
    """On a CPU it has two of them."""
    sides, absent = peers.there(["flash", "cudnn", "math"])
    made = rows_of(*sides).training(Problem(PLAIN, "cpu"), part, lambda _: 1.0)
    assert made.errors.keys() == {"flash", "math"} and made.refused.keys() == {"cudnn"} and not absent
    window = rows_of(*sides).training(Problem(TRAINING[2], "cpu"), part, lambda _: 1.0)
    assert window.refused["math"] == window.refused["cudnn"] == "scaled_dot_product_attention has no window"
    assert "flash" in window.refused  # by varlen_attn, which is not for CPUs
    several = rows_of(*sides).training(Problem(TRAINING[3], "cpu"), part, lambda _: 1.0)
    assert several.refused["math"] == "scaled_dot_product_attention takes sequences of one length"
    pages = rows_of(*sides).decoding(CacheProblem(CACHES[1], 1, "cpu"), lambda _: 1.0)
    assert set(pages.refused.values()) == {"scaled_dot_product_attention takes no pages"}
    plain = rows_of(*sides).decoding(CacheProblem(CACHES[0], 1, "cpu"), lambda _: 1.0)
    assert plain.errors.keys() == {"flash", "math"} and plain.wrong == {}


def heads_first(*tensors):
    return (tensor.transpose(1, 2) for tensor in tensors)


def flash_attn():
    """A module with flash-attn's functions."""

    def func(q, k, v, causal=False, window_size=(-1, -1), softcap=0.0, deterministic=False):
        return attention(*heads_first(q, k, v), causal, window_size[0] + 1, None, softcap).transpose(1, 2)

    def varlen(q, k, v, cu_q, cu_k, max_q, max_k, causal=False, window_size=(-1, -1)):
        given = (tensor.transpose(0, 1)[None] for tensor in (q, k, v))
        return attention(*given, causal, window_size[0] + 1, cu_q)[0].transpose(0, 1)

    def with_kvcache(q, k_cache, v_cache, cache_seqlens=None, block_table=None):
        assert cache_seqlens.dtype == torch.int32
        if block_table is not None:
            k_cache, v_cache = (cache[block_table.long()].flatten(1, 2) for cache in (k_cache, v_cache))
        return func(q, k_cache, v_cache)

    return types.SimpleNamespace(
        flash_attn_func=func, flash_attn_varlen_func=varlen, flash_attn_with_kvcache=with_kvcache
    )


class FlashInferModule:
    """A module with FlashInfer's wrappers."""

    class BatchPrefillWithRaggedKVCacheWrapper:
        def __init__(self, workspace, layout):
            assert layout == "NHD" and workspace.dtype == torch.uint8

        def plan(
            self, qo, kv, heads, heads_kv, head_dim, head_dim_vo, causal, window_left, q_data_type, logits_soft_cap=0
        ):
            assert qo.dtype == torch.int32
            self.planned = causal, window_left + 1, qo, logits_soft_cap

        def run(self, q, k, v):
            assert all(tensor.is_contiguous() for tensor in (q, k, v))
            given = (x.transpose(0, 1)[None] for x in (q, k, v))
            return attention(*given, *self.planned)[0].transpose(0, 1)

    class BatchDecodeWithPagedKVCacheWrapper:
        def __init__(self, workspace, layout, use_tensor_cores):
            self.layout = layout

        def plan(self, indptr, indices, last, heads, heads_kv, head_dim, page, q_data_type, kv_data_type):
            assert indptr.dtype == indices.dtype == last.dtype == torch.int32 and (last == page).all()
            self.table = indices.view(len(indptr) - 1, -1).long()

        def run(self, q, caches):
            caches = [x if self.layout == "HND" else x.transpose(1, 2) for x in caches]
            k, v = (x[self.table].transpose(1, 2).flatten(2, 3) for x in caches)
            return attention(q[:, :, None], k, v)[:, :, 0]


@pytest.mark.parametrize("shape", TRAINING, ids=str)
def test_flash_attn_and_flashinfer(shape):
    sides = peers.Flash("flash-attn", "flash-attn 2", flash_attn()), peers.FlashInfer(FlashInferModule)
    for part in ("forward", "backward"):
        made = rows_of(*sides).training(Problem(shape, "cpu"), part, lambda _: 1.0)
        assert made.wrong == {}
        if shape.sinks:
            assert made.refused["flash-attn"] == "it has no sinks" and len(made.refused) == 2
            continue
        assert made.errors["flash-attn"] < 0.01
        assert made.refused == ({"flashinfer": "FlashInfer has no backward"} if part == "backward" else {})


@pytest.mark.parametrize("shape", CACHES, ids=str)
def test_their_decoding(shape):
    sides = peers.Flash("flash-attn", "flash-attn 2", flash_attn()), peers.FlashInfer(FlashInferModule)
    made = rows_of(*sides).decoding(CacheProblem(shape, shape.bytes // 2, "cpu"), lambda _: 1.0)
    assert made.wrong == {} and made.refused.keys() == ({"flash-attn", "flashinfer"} if "fp8" in str(shape) else set())


def test_what_is_not_installed_is_said(monkeypatch):
    real = peers.importlib.import_module

    def imported(name):
        if name == "flash_attn":
            raise ImportError("libcudart.so.12: cannot open shared object file")
        if name == "flashinfer":
            raise ModuleNotFoundError("No module named 'flashinfer'", name="flashinfer")
        return real(name)

    monkeypatch.setattr(peers.importlib, "import_module", imported)
    sides, absent = peers.there(["flash-attn", "flashinfer", "math"])
    assert [side.name for side in sides] == ["math"]
    assert absent == {
        "flash-attn": "cannot be imported (libcudart.so.12: cannot open shared object file)",
        "flashinfer": "is not installed",
    }


def test_errors_are_of_norms():
    one = torch.ones(4, 4)
    assert reference.error(one, one) == 0 and reference.error(one * 1.5, one) == pytest.approx(0.5)
    assert reference.worst({"a": one, "b": one * torch.nan}, {"a": one, "b": one}) != 0
