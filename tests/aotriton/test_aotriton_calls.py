"""Each entry against libkiln's own: what is launched must be the same, byte for byte, on either vendor's driver."""

from __future__ import annotations

import aotriton_model as model
import ffi
import pytest
from aotriton_calls import (
    DENSE,
    EMPTY,
    PACKED,
    SEED,
    SEED_OUT,
    STEP,
    at,
    extents,
    filled,
    gradients,
    launches,
    tensors,
)
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


def backward(worker: Worker, entry: str, **call: object) -> Record:
    """A backward, which must be what the model says of it; its workspace is taken on the stream, and given back."""
    stream = worker.stream()
    assert worker.call(entry, stream, **call)[0] == SUCCESS
    record = worker.events()
    fields = model.backward(**call)
    taken = [e for e in record.events if e["call"] in ("hipMallocAsync", "cuMemAllocAsync")]
    back = [e for e in record.events if e["call"] in ("hipFreeAsync", "cuMemFreeAsync")]
    needed = model.workspace_bytes(fields)
    assert [(e["bytes"], e["stream"]) for e in taken] == [(needed, stream)]
    assert [(e["address"], e["stream"]) for e in back] == [(taken[0]["address"], stream)]
    launched = [n for n, e in enumerate(record.events) if "Launch" in e["call"]]
    assert record.events.index(taken[0]) < launched[0] and launched[-1] < record.events.index(back[0])
    fields |= {"workspace": taken[0]["address"], "workspace_bytes": needed}
    assert launches(record) == direct(worker, stream, [("attn_bwd", fields)])
    assert not [leak for leak in record.leaks() if "module" not in leak]
    return record


SHORT = PACKED | {"lse": at(5, FP32, (4, 100)), "scale": 0.125}
SHORT_CALLS = {
    "plain": {},
    "causal": {"is_causal": True},
    "dropout": {"p": 0.25} | SEED,
    "a buffer for delta": {"delta": at(30, FP32, (4, 100))},
    "two sequences": {"cu_q": at(50, INT32, (3,)), "cu_k": at(51, INT32, (3,))},
    "values as wide as keys": {"v": at(3, BF16, (1, 2, 300, 64)), "out": at(4, BF16, (1, 4, 250, 64))},
}


@pytest.mark.parametrize("name", SHORT_CALLS)
def test_log_sum_exps_that_pytorch_has_no_room_for(worker, name):
    """It gives [heads, longest] of compact sequences: the forward leaves NaN there, the backward makes them again."""
    more, stream = SHORT_CALLS[name], worker.stream()
    call = SHORT | {key: value for key, value in more.items() if key != "delta"}
    assert worker.call("v2.attn_fwd_compact_varlen", stream, **call)[0] == SUCCESS
    record = worker.events()
    assert filled(record) == extents([call["lse"]]) and {fill.stream for fill in record.fills} == {stream}
    assert launches(record) == direct(worker, stream, model.forward(**call))
    call |= gradients(call)
    assert (
        worker.call("v2.attn_bwd_compact_varlen", stream, **call, **{k: more[k] for k in more if k == "delta"})[0] == 0
    )
    record = worker.events()
    delta, again = [e for e in record.events if e["call"] in ("hipMallocAsync", "cuMemAllocAsync")]
    first, second, needed = model.again(model.backward(**call), again["address"])
    assert (again["bytes"], again["stream"], delta["stream"]) == (needed, stream, stream)
    second |= {"workspace": delta["address"], "workspace_bytes": delta["bytes"]}
    assert not {"dropout", "seed", "offset"} & set(first)
    assert launches(record) == direct(worker, stream, [("attn_fwd", first), ("attn_bwd", second)])
    assert not [leak for leak in record.leaks() if "module" not in leak] and not record.fills


def test_v3_has_no_room_for_them_either(worker):
    stream, call = worker.stream(), SHORT | gradients(SHORT) | {"varlen_type": COMPACT} | LAST
    assert worker.call("v3.attn_fwd", stream, **{k: call[k] for k in (*SHORT, "varlen_type", *LAST)})[0] == SUCCESS
    worker.events()
    assert worker.call("v3.attn_bwd", stream, **call)[0] == SUCCESS
    record = worker.events()
    delta, again = [e for e in record.events if e["call"] in ("hipMallocAsync", "cuMemAllocAsync")]
    first, second, _ = model.again(model.backward(**call), again["address"])
    assert (first["bottom_right"], first["window_left"], first["window_right"]) == (1, -1, 0)
    second |= {"workspace": delta["address"], "workspace_bytes": delta["bytes"]}
    assert launches(record) == direct(worker, stream, [("attn_fwd", first), ("attn_bwd", second)])


@pytest.mark.parametrize("failing", ["allocation", "launch", "release"])
def test_a_failure_while_they_are_worked_out(start, worker, failing):
    """Nothing stays taken, and the gradients are NaN."""
    worker, amd = start(worker.vendor), worker.vendor == ffi.AMD
    stream, call = worker.stream(), SHORT | gradients(SHORT)
    symbol = {"allocation": ("hipMallocAsync", "cuMemAllocAsync"), "release": ("hipFreeAsync", "cuMemFreeAsync"),
              "launch": ("hipModuleLaunchKernel", "cuLaunchKernel")}[failing][not amd]  # fmt: skip
    assert worker.call("v2.attn_bwd_compact_varlen", stream, **call)[0] == SUCCESS
    worker.events()
    worker.fake("fake_fail", symbol, 2 if failing == "allocation" else 1, 2, 0)
    error, sentence = worker.call("v2.attn_bwd_compact_varlen", stream, **call)
    record = worker.events()
    assert error and symbol in sentence and "NaN" not in sentence
    assert len([leak for leak in record.leaks() if "module" not in leak]) == (failing == "release")
    assert len(record.launches) == {"allocation": 0, "launch": 0, "release": 5}[failing]
    assert filled(record) == extents([call[name] for name in ("dq", "dk", "dv")])
    assert worker.call("v2.attn_bwd_compact_varlen", stream, **call)[0] == SUCCESS


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
    backward(worker, entry, **call)


def test_every_backward_entry_is_called():
    assert {entry for entry, _ in BACKWARD_CALLS.values()} == set(BACKWARDS)


@pytest.mark.parametrize("entry", ["v2.attn_bwd", "v2.attn_bwd_compact_varlen"])
@pytest.mark.parametrize("columns", [0, 100, 1 << 20], ids=["nothing", "as lse", "more than the workspace"])
def test_a_buffer_for_delta_is_left_alone(worker, entry, columns):
    call = PACKED if entry.endswith("varlen") else DENSE
    delta = at(30, FP32, (call["lse"][2][0], columns))
    record = backward(worker, entry, **call, **gradients(call), delta=delta, scale=0.125)
    assert not [argument for launch in record.launches for argument in launch.parameters() if argument == delta[0]]
    assert not record.fills


def test_the_mask_of_a_call(release, worker):
    """As the kernel gets it: unlimited is 2^30 - 1."""
    none = (1 << 30) - 1
    plain = forward(worker, "v2.attn_fwd", **DENSE, scale=0.125)
    causal = forward(worker, "v2.attn_fwd", **DENSE, scale=0.125, is_causal=True)
    last = forward(worker, *FORWARD_CALLS["v3, bottom right"][:1], **FORWARD_CALLS["v3, bottom right"][1])
    kernel = "attn_fwd.amd" if worker.vendor == ffi.AMD else "attn_fwd.general"
    seen = [named(release, worker, record, kernel) for record in (plain, causal, last)]
    assert [(a["window_left"], a["window_right"], a["flags"] >> 4 & 1) for a in seen] == [
        (none, none, 0), (none, 0, 0), (none, 0, 1),
    ]  # fmt: skip


def test_the_seed_of_a_call(release, worker):
    """Read only where dropout needs it: without, PyTorch leaves whatever there is, memory of the host too."""
    record = forward(worker, "v2.attn_fwd", **DENSE, scale=0.1, p=0.25, **SEED)
    with_dropout = named(release, worker, record, "attn_fwd.general")
    assert (with_dropout["seed_ptr"], with_dropout["offset_ptr"]) == (STEP * 40, STEP * 41)
    assert (with_dropout["offset"], with_dropout["threshold"]) == (5, 1 << 30)
    record = forward(worker, "v2.attn_fwd", **DENSE, scale=0.1, **SEED, **SEED_OUT)
    without = named(release, worker, record, "attn_fwd.general")
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
    backward(worker, "v3.attn_bwd", **call, **gradients(call))


def test_a_view_without_a_dtype(worker):
    error, sentence = worker.call("v2.attn_fwd", worker.stream(), **DENSE | {"k": (STEP, UNKNOWN, DENSE["k"][2])})
    assert error and "k " in sentence
    assert not worker.events().steps
