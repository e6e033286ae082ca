"""Each entry against libkiln's own: what is launched must be the same, byte for byte, on either vendor's driver."""

from __future__ import annotations

import aotriton_model as model
import ffi
import pytest
from aotriton_calls import DENSE, EMPTY, PACKED, SEED, SEED_OUT, STEP, at, gradients, launches, tensors
from aotriton_interface import (
    BACKWARDS,
    BF16,
    BOTTOM_RIGHT,
    COMPACT,
    FORWARDS,
    FP16,
    FP32,
    INT32,
    INT64,
    NONE,
    NOT_SUPPORTED,
    PADDED,
    SUCCESS,
    TOP_LEFT,
    UNKNOWN,
    WINDOWED,
)
from aotriton_worker import Worker
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from recorded import Record

ROUND = 256
MASK = at(44, BF16, (2, 4, 100, 120))
BIAS = at(9, BF16, (2, 4, 100, 120))
DBIAS = (STEP * 10, BF16, (2, 4, 100, 120), (51200, 12800, 128, 1))
FIRST = {"causal_type": WINDOWED, "left": TOP_LEFT, "right": TOP_LEFT}
LAST = {"causal_type": WINDOWED, "left": BOTTOM_RIGHT, "right": BOTTOM_RIGHT}
LENGTHS = {
    "varlen_type": PADDED, "cu_q": at(50, INT32, (3,)), "cu_k": at(51, INT32, (3,)), "max_q": 80, "max_k": 90,
    "lse": at(5, FP32, (8, 80)),
}  # fmt: skip


def direct(worker: Worker, stream: int, calls: list[tuple[str, dict]]) -> list[tuple]:
    for entry, fields in calls:
        status, sentence = worker.ask("direct", entry, worker.vendor, stream, **fields)
        assert status == ffi.OK, sentence
    return launches(worker.events())


def forward(worker: Worker, entry: str, **call: object) -> Record:
    """A forward, which must be what the model says of it."""
    stream = worker.stream(call.pop("device", 0))
    assert worker.call(entry, stream, **call)[0] == SUCCESS
    record = worker.events()
    assert launches(record) == direct(worker, stream, model.forward(**call))
    return record


def backward(worker: Worker, entry: str, expect: str, **call: object) -> Record:
    """A backward. `expect`: where its workspace lies, "delta" or "stream"."""
    stream = worker.stream()
    assert worker.call(entry, stream, **call)[0] == SUCCESS
    record = worker.events()
    fields = model.backward(**call)
    taken = [e for e in record.events if e["call"] in ("hipMallocAsync", "cuMemAllocAsync")]
    back = [e for e in record.events if e["call"] in ("hipFreeAsync", "cuMemFreeAsync")]
    needed = -model.delta_bytes(fields) % ROUND + model.delta_bytes(fields)
    if expect == "stream":
        assert [(e["bytes"], e["stream"]) for e in taken] == [(needed, stream)]
        assert [(e["address"], e["stream"]) for e in back] == [(taken[0]["address"], stream)]
        last = [n for n, e in enumerate(record.events) if "Launch" in e["call"]][-1]
        assert record.events.index(taken[0]) < last < record.events.index(back[0])
        workspace = taken[0]["address"]
    else:
        assert not taken and not back
        workspace = call["delta"][0]
    steps = launches(record)
    assert steps == direct(worker, stream, [("attn_bwd", fields | {"workspace": workspace, "workspace_bytes": needed})])
    assert not [leak for leak in record.leaks() if "module" not in leak]
    return record


def named(release, worker: Worker, record: Record, kernel: str) -> dict[str, int]:
    """The arguments of the only launch of a kernel."""
    target = "gfx942" if worker.vendor == ffi.AMD else "sm_90"
    (launch,) = [x for x in record.launches if x.symbol.decode().rpartition("_")[0] == kernel]
    return release.arguments(target, launch.symbol.decode(), launch.parameters())


FORWARD_CALLS = {
    "plain": ("v2.attn_fwd", DENSE | {"scale": 0.125, "b": EMPTY, "encoded": EMPTY}),
    "causal": ("v2.attn_fwd", DENSE | {"scale": 0.125, "is_causal": True, "counter": (STEP * 60, INT32)}),
    "without lse": ("v2.attn_fwd", DENSE | {"scale": 0.1, "lse": (STEP, FP32, (8, 0))}),
    "bias": ("v2.attn_fwd", DENSE | {"scale": 0.1, "b": (STEP * 9, BF16, (2, 4, 100, 120), (0, 0, 120, 1))}),
    "dropout, from device memory": ("v2.attn_fwd", DENSE | {"scale": 0.1, "p": 0.25} | SEED),
    "dropout, under capture": ("v2.attn_fwd", DENSE | {"scale": 0.1, "p": 0.25} | SEED | SEED_OUT),
    "outputs without dropout": ("v2.attn_fwd", DENSE | {"scale": 0.1, "offset2": 7} | SEED_OUT),
    "what dropout keeps": ("v2.attn_fwd", DENSE | {"scale": 0.1, "p": 0.5, "encoded": MASK} | SEED),
    "what no dropout keeps": ("v2.attn_fwd", DENSE | {"scale": 0.1, "encoded": at(44, FP32, (2, 4, 100, 120))} | SEED),
    "a scale of 0": ("v2.attn_fwd", DENSE | {"scale": 0.0}),
    "packed": ("v2.attn_fwd_compact_varlen", PACKED | {"scale": 0.125}),
    "packed, causal": ("v2.attn_fwd_compact_varlen", PACKED | {"scale": 0.125, "is_causal": True}),
    "packed, no length of keys": ("v2.attn_fwd_compact_varlen", PACKED | {"scale": 0.125, "max_k": 0}),
    "packed, lse of all rows": ("v2.attn_fwd_compact_varlen", PACKED | {"scale": 0.1, "lse": at(5, FP32, (4, 250))}),
    "packed, what dropout keeps": (
        "v2.attn_fwd_compact_varlen",
        PACKED | {"scale": 0.1, "p": 0.5, "encoded": at(44, BF16, (3, 4, 100, 120))} | SEED | SEED_OUT,
    ),
    "v3": ("v3.attn_fwd", DENSE | {"scale": 0.125, "causal_type": NONE, "left": 12345, "right": -999}),
    "v3, top left": ("v3.attn_fwd", DENSE | {"scale": 0.1} | FIRST),
    "v3, bottom right": ("v3.attn_fwd", DENSE | {"scale": 0.1} | LAST),
    "v3, window": ("v3.attn_fwd", DENSE | {"scale": 0.1, "causal_type": WINDOWED, "left": 8, "right": 3}),
    "v3, window of PyTorch's defaults": (
        "v3.attn_fwd", DENSE | {"scale": 0.1, "causal_type": WINDOWED, "left": 100, "right": 120},
    ),
    "v3, left of the last key": (
        "v3.attn_fwd", DENSE | {"scale": 0.1, "causal_type": WINDOWED, "left": 8, "right": BOTTOM_RIGHT},
    ),
    "v3, packed by its cu_seqlens": ("v3.attn_fwd", PACKED | {"scale": 0.1, "backend": 0}),
    "v3, packed, bottom right": (
        "v3.attn_fwd",
        PACKED | {"scale": 0.1, "varlen_type": COMPACT} | LAST | {"left": TOP_LEFT},
    ),
    "v3, padded": (
        "v3.attn_fwd", DENSE | {"scale": 0.1} | LENGTHS,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FORWARD_CALLS)
def test_forward(worker, name):
    entry, call = FORWARD_CALLS[name]
    forward(worker, entry, **call)


def test_every_forward_entry_is_called():
    assert {entry for entry, _ in FORWARD_CALLS.values()} == set(FORWARDS)


BACKWARD_CALLS = {
    "plain": ("v2.attn_bwd", DENSE | {"scale": 0.125}),
    "causal": ("v2.attn_bwd", DENSE | {"scale": 0.125, "is_causal": True}),
    "bias": ("v2.attn_bwd", DENSE | {"scale": 0.1, "b": BIAS, "db": DBIAS}),
    "dropout": ("v2.attn_bwd", DENSE | {"scale": 0.1, "p": 0.25} | SEED),
    "packed": ("v2.attn_bwd_compact_varlen", PACKED | {"scale": 0.125, "is_causal": True}),
    "v3": ("v3.attn_bwd", DENSE | {"scale": 0.125, "p": 0.25} | SEED),
    "v3, window": ("v3.attn_bwd", DENSE | {"scale": 0.1, "causal_type": WINDOWED, "left": 8, "right": 3}),
    "v3, packed": ("v3.attn_bwd", PACKED | {"scale": 0.1, "varlen_type": COMPACT} | LAST),
    "v3, padded": (
        "v3.attn_bwd", DENSE | {"scale": 0.1} | LENGTHS,
    ),
    "another name": ("v3.aiter_bwd", DENSE | {"scale": 0.125}),
    "without a buffer": ("v2.attn_bwd_fused", DENSE | {"scale": 0.125, "p": 0.5} | SEED),
}  # fmt: skip


@pytest.mark.parametrize("name", BACKWARD_CALLS)
def test_backward(worker, name):
    entry, call = BACKWARD_CALLS[name]
    call = call | gradients(call)
    if entry in ("v2.attn_bwd", "v2.attn_bwd_compact_varlen"):
        backward(worker, entry, "delta", **call, delta=at(30, FP32, call["lse"][2]))
    backward(worker, entry, "stream", **call)


def test_every_backward_entry_is_called():
    assert {entry for entry, _ in BACKWARD_CALLS.values()} == set(BACKWARDS)


def test_the_buffer_need_not_be_rounded(worker):
    """7 rows of 2 heads are 56 bytes, of which libkiln makes 256."""
    call = tensors({"batch": 1, "heads": 2, "kv": 2, "rows": 7, "keys": 9, "width": 64, "width_v": 64})
    backward(worker, "v2.attn_bwd", "delta", **call, **gradients(call), delta=at(30, FP32, (2, 7)), scale=0.125)


@pytest.mark.parametrize(
    "delta",
    [
        at(30, FP32, (8, 99)),
        at(30, FP32, (7, 100)),
        (STEP * 30 + 4, FP32, (8, 100)),
        (STEP * 30, FP16, (8, 100)),
        (STEP * 30, FP32, (8, 100), (104, 1)),
        (STEP * 30, FP32, (100, 8), (1, 100)),
        (0, FP32, (8, 100)),
        (STEP * 30, FP32, (2**63, 4)),
    ],
    ids=["short", "few", "unaligned", "half", "gaps", "transposed", "nothing", "overflow"],
)
def test_a_buffer_that_will_not_do(worker, delta):
    backward(worker, "v2.attn_bwd", "stream", **DENSE, **gradients(DENSE), delta=delta, scale=0.125)


def test_the_mask_of_a_call(release, worker):
    """As the kernel gets it: unlimited is 2^30 - 1."""
    none = (1 << 30) - 1
    plain = forward(worker, "v2.attn_fwd", **DENSE, scale=0.125)
    causal = forward(worker, "v2.attn_fwd", **DENSE, scale=0.125, is_causal=True)
    last = forward(worker, *FORWARD_CALLS["v3, bottom right"][:1], **FORWARD_CALLS["v3, bottom right"][1])
    seen = [named(release, worker, record, "attn_fwd") for record in (plain, causal, last)]
    assert [(a["window_left"], a["window_right"], a["flags"] >> 4 & 1) for a in seen] == [
        (none, none, 0), (none, 0, 0), (none, 0, 1),
    ]  # fmt: skip


def test_the_seed_of_a_call(release, worker):
    """Read only where dropout needs it: without, PyTorch leaves whatever there is, memory of the host too."""
    record = forward(worker, "v2.attn_fwd", **DENSE, scale=0.1, p=0.25, **SEED)
    with_dropout = named(release, worker, record, "attn_fwd")
    assert (with_dropout["seed_ptr"], with_dropout["offset_ptr"]) == (STEP * 40, STEP * 41)
    assert (with_dropout["offset"], with_dropout["threshold"]) == (5, 1 << 30)
    record = forward(worker, "v2.attn_fwd", **DENSE, scale=0.1, **SEED, **SEED_OUT)
    without = named(release, worker, record, "attn_fwd")
    assert (without["seed_ptr"], without["offset_ptr"], without["threshold"]) == (0, 0, 0)
    assert (without["seed_out_ptr"], without["offset_out_ptr"]) == (STEP * 42, STEP * 43)


def test_what_dropout_keeps(worker):
    stream = worker.stream()
    call = {"r": at(44, FP16, (3, 2, 50, 70)), "p": 0.5} | SEED
    assert worker.call("v2.debug_simulate_encoded_softmax", stream, **call)[0] == SUCCESS
    seen = launches(worker.events())
    fields = {"mask": list(call["r"]), "seed": [STEP * 40, INT64, [], []], "offset": [STEP * 41, INT64, [], []],
              "offset_value": 5, "dropout": 0.5}  # fmt: skip
    assert len(seen) == 1 and seen == direct(worker, stream, [("dropout_mask", fields)])


def test_null_streams_are_those_of_the_current_device(worker):
    if worker.vendor == ffi.NVIDIA:
        worker.fake("fake_set_current", ffi.NVIDIA, worker.fake("fake_context", 0, 0))
    for stream in (None, 1, 2):
        assert worker.call("v2.attn_fwd", stream, **DENSE, scale=0.125)[0] == SUCCESS
        assert worker.events().launches[-1].stream == stream
        assert worker.call("v2.attn_bwd_fused", stream, **DENSE, **gradients(DENSE), scale=0.125)[0] == SUCCESS
        assert worker.ask("value", "getMultiProcessorCount", stream)[0] == (304 if worker.vendor == ffi.AMD else 132)
    worker.fake("fake_set_current", worker.vendor, 0)


def test_another_device_than_the_current_one(worker):
    """The fourth NVIDIA and AMD devices of the fake drivers are of the first one's architecture."""
    stream = worker.stream(4)
    assert worker.call("v2.attn_bwd_fused", stream, **DENSE, **gradients(DENSE), scale=0.125)[0] == SUCCESS
    record = worker.events()
    assert {launch.device for launch in record.launches} == {4}
    assert not [leak for leak in record.leaks() if "module" not in leak]


@st.composite
def calls(draw) -> dict:
    """Shapes, strides, masks, dropout, sequences: what a v3 call can be made of."""
    shape = {
        "batch": draw(st.integers(1, 3)), "heads": 0, "kv": draw(st.integers(1, 3)), "rows": draw(st.integers(1, 300)),
        "keys": draw(st.integers(1, 300)), "width": draw(st.sampled_from([49, 56, 64])),
        "width_v": draw(st.sampled_from([49, 64])),
    }  # fmt: skip
    shape["heads"] = shape["kv"] * draw(st.integers(1, 3))
    kind = draw(st.sampled_from(["dense", "packed", "padded"]))
    packed = shape | {"batch": 1, "rows": shape["rows"] * 2, "keys": shape["keys"] * 2}
    dtype = draw(st.sampled_from([BF16, FP16, FP32]))
    call = tensors(packed if kind == "packed" else shape, dtype, draw(st.booleans()))
    call["scale"] = draw(st.sampled_from([0.0, 0.125, -0.5]))
    batch, heads = shape["batch"], shape["heads"]
    if kind != "dense":
        call |= {"cu_q": at(50, INT32, (batch + 1,)), "cu_k": at(51, INT32, (batch + 1,))}
        call |= {"max_q": draw(st.sampled_from([0, shape["rows"]])), "max_k": draw(st.sampled_from([0, shape["keys"]]))}
        call["varlen_type"] = {"packed": COMPACT, "padded": PADDED}[kind]
        length = call["max_q"] or call["q"][2][2]
        call["lse"] = at(5, FP32, (batch * heads, length + draw(st.integers(0, 3))))
    if draw(st.booleans()):
        side = st.sampled_from([TOP_LEFT, BOTTOM_RIGHT]) | st.integers(-10, 320)
        call |= {"causal_type": WINDOWED, "left": draw(side), "right": draw(side)}
    if draw(st.booleans()):
        call |= {"p": draw(st.sampled_from([0.1, 0.5]))} | SEED
    return call


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(calls(), st.booleans())
def test_any_call(worker, call, has_outputs):
    try:
        model.forward(**call)
    except model.NoWindow:
        error, sentence = worker.call("v3.attn_fwd", worker.stream(), **call)
        assert error == NOT_SUPPORTED and "window_left and window_right" in sentence
        assert not worker.events().steps
        return
    forward(worker, "v3.attn_fwd", **call, **(SEED_OUT if has_outputs else {}))
    backward(worker, "v3.attn_bwd", "stream", **call, **gradients(call))


def test_a_view_without_a_dtype(worker):
    error, sentence = worker.call("v2.attn_fwd", worker.stream(), **DENSE | {"k": (STEP, UNKNOWN, DENSE["k"][2])})
    assert error and "k " in sentence
    assert not worker.events().steps
