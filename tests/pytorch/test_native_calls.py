"""What libkiln_torch.so makes of calls, tensor by tensor, and what becomes of failures."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stand_in import DECODE, FORWARD, Remote, Tensor, dense

from kiln_recipe.dtypes import DTYPES

CAUSAL, BOTTOM_RIGHT, ROWS_FIRST, RETURN_LSE, FOR_BACKWARD, ALIKE = 1, 2, 4, 8, 16, 32
NEED_DBIAS, NEED_DSINKS, DETERMINISTIC, INTERLEAVED, EQUAL_HEADS = 64, 128, 256, 512, 1024
ARGUMENT, UNSUPPORTED, DRIVER, FORKED, OUT_OF_MEMORY, QUEUE, REFIT = 1, 2, 4, 10, 11, 13, -1
REST = (0, 0.0, 0.0, 0.0, 0, 0, -1, -1)  # flags, scale, softcap, dropout, max_seqlen_q, max_seqlen_k, window


@pytest.fixture(scope="module")
def process(stand_ins: Path) -> Iterator[Remote]:
    remote = Remote(stand_ins)
    yield remote
    remote.close()


@pytest.fixture(autouse=True)
def fresh(process: Remote):
    process.answer, process.workspace_bytes = lambda entered: 0, 0
    process.torch.fake_set_device(0)
    yield
    process.fail("nothing", 0)


def extras(names: tuple[str, ...], **given: Tensor) -> list[Tensor | None]:
    assert not set(given) - set(names)
    return [given.get(name) for name in names]


def logical(tensor: Tensor, rows_first: bool = False) -> tuple:
    """A tensor as Kiln must see it: [batch, heads, rows, d]."""
    sizes, strides = list(tensor.sizes), list(tensor.strides)
    if len(sizes) == 3:
        sizes, strides = [1, *sizes], [0, *strides]
    if rows_first:
        sizes[1:3], strides[1:3] = sizes[2:0:-1], strides[2:0:-1]
    if sizes[3] == 1:
        strides[3] = 1
    return tensor.data, DTYPES[tensor.dtype], tuple(sizes), tuple(strides)


def view(tensor: Tensor) -> tuple:
    return tensor.data, DTYPES[tensor.dtype], tensor.sizes, tensor.strides


def check_like(made: Tensor, seen: tuple, model: Tensor, width: int, rows_first: bool) -> None:
    """A fresh tensor: dense, in the order of its model, and what Kiln was given is the same memory."""
    _, _, sizes, strides = logical(model, rows_first)
    batch, heads, rows, _ = sizes
    assert made.sizes == (*model.sizes[:-1], width) and made.dtype == model.dtype
    outside = rows_first or strides[2] > strides[1]
    one = max(width, 1)
    if outside:
        expected = (max(rows, 1) * max(heads, 1) * one, one, max(heads, 1) * one, 1)
    else:
        expected = (max(heads, 1) * max(rows, 1) * one, max(rows, 1) * one, one, 1)
    assert seen == (made.data, DTYPES[model.dtype], (batch, heads, rows, width), expected)
    back = [expected[i] for i in ((0, 2, 1, 3) if rows_first else (0, 1, 2, 3))]
    assert list(made.strides) == back[4 - len(model.sizes) :]


@st.composite
def rows_of(draw: st.DrawFn, batch: int, heads: int, rows: int, width: int, rows_first: bool, packed: bool) -> Tensor:
    """A tensor of four dimensions, or of three, some of its strides padded, its memory in one order or the other."""
    sizes = {"b": 1 if packed else batch, "h": heads, "r": rows}
    order = draw(st.sampled_from(["bhr", "brh", "rbh"]))
    stride, strides = width + draw(st.sampled_from([0, 8])), {}
    for name in reversed(order):
        strides[name] = stride
        stride *= max(sizes[name], 1)
    if draw(st.booleans()) and rows:
        strides["h"] = 0  # expanded heads
    names = "brh" if rows_first else "bhr"
    if packed and draw(st.booleans()):
        names = names[1:]
    data = 0x1000000 * draw(st.integers(1, 9))
    return Tensor((*(sizes[n] for n in names), width), (*(strides[n] for n in names), 1), "bf16", data)


@st.composite
def calls(draw: st.DrawFn) -> dict:
    batch, heads_kv, group = draw(st.integers(0, 3)), draw(st.integers(1, 3)), draw(st.integers(1, 3))
    rows, keys, width, width_v = (draw(st.integers(0, 5)), draw(st.integers(0, 5)), draw(st.integers(1, 9)),
                                  draw(st.integers(1, 9)))  # fmt: skip
    rows_first, packed_q, packed_k = draw(st.booleans()), draw(st.booleans()), draw(st.booleans())
    heads = heads_kv * group
    call = {
        "q": draw(rows_of(batch, heads, rows, width, rows_first, packed_q)),
        "k": draw(rows_of(batch, heads_kv, keys, width, rows_first, packed_k)),
        "v": draw(rows_of(batch, heads_kv, keys, width_v, rows_first, packed_k)),
    }
    more: dict[str, Tensor] = {}
    if packed_q:
        more["cu_seqlens_q"] = dense(batch + 1, dtype="int32", data=0x100)
    if packed_k:
        more["cu_seqlens_k"] = dense(batch + 1, dtype="int32", data=0x200)
    for name in ("seqused_q", "seqused_k"):
        if draw(st.booleans()):
            more[name] = dense(batch, dtype="int32", data=0x300)
    if draw(st.booleans()):
        sizes = [draw(st.sampled_from([1, n])) for n in (batch, heads, rows)]
        more["bias"] = dense(*sizes, keys, data=0x400)
    if draw(st.booleans()):
        more["alibi_slopes"] = draw(st.sampled_from([dense(heads, dtype="fp32", data=0x500),
                                                     dense(batch, heads, dtype="fp32", data=0x500)]))  # fmt: skip
    if draw(st.booleans()):
        more["sinks"] = dense(heads, dtype="fp32", data=0x600)
    if draw(st.booleans()):
        more["rng"] = dense(2, dtype="int64", data=0x700)
    reals = (draw(st.floats(*ends, width=32)) for ends in ((-2, 2), (0, 50), (0, 1)))
    numbers = (*reals, *(draw(st.integers(*ends)) for ends in ((0, 9), (0, 9), (-1, 9), (-1, 9))))
    flags = draw(st.integers(0, 3)) + (ROWS_FIRST if rows_first else 0)
    return {**call, "extras": more, "batch": batch, "heads": heads, "flags": flags, "numbers": numbers}


def check_shared(fields: dict, call: dict, rows_first: bool) -> None:
    more, batch = call["extras"], call["batch"]
    for name in ("q", "k", "v"):
        assert fields[name] == logical(call[name], rows_first)
    for name in ("sinks", "cu_seqlens_q", "cu_seqlens_k", "seqused_q", "seqused_k"):
        assert fields[name] == (view(more[name]) if name in more else None)
    slopes = more.get("alibi_slopes")
    if slopes is not None and len(slopes.sizes) == 1:
        assert fields["alibi_slopes"] == (slopes.data, 1, (batch, call["heads"]), (0, 1))
    else:
        assert fields["alibi_slopes"] == (None if slopes is None else view(slopes))
    if bias := more.get("bias"):
        wanted = (batch, call["heads"], logical(call["q"], rows_first)[2][2])
        strides = [0 if size == 1 != full else stride for size, full, stride in zip(bias.sizes, wanted, bias.strides)]
        sizes = tuple(full if size == 1 else size for size, full in zip(bias.sizes, wanted))
        assert fields["bias"] == (bias.data, 3, (*sizes, bias.sizes[3]), (*strides, 1))
    else:
        assert fields["bias"] is None
    if rng := more.get("rng"):
        assert fields["seed"][:2] == (rng.data, 13) and fields["offset"][:2] == (rng.data + 8, 13)
        assert fields["seed"][2] == fields["offset"][2] == ()
    else:
        assert fields["seed"] is fields["offset"] is None
    names = ("sm_scale", "softcap", "dropout", "max_seqlen_q", "max_seqlen_k", "window_left", "window_right")
    assert tuple(fields[name] for name in names) == call["numbers"]
    assert fields["causal"] == bool(call["flags"] & CAUSAL)
    assert fields["bottom_right"] == bool(call["flags"] & BOTTOM_RIGHT)
    assert fields["seed_value"] == fields["offset_value"] == fields["padded"] == fields["force_count"] == 0


@settings(max_examples=300, deadline=None)
@given(call=calls(), wants_lse=st.booleans(), for_backward=st.booleans())
def test_forward(process: Remote, call: dict, wants_lse: bool, for_backward: bool) -> None:
    flags = call["flags"] + RETURN_LSE * wants_lse + FOR_BACKWARD * for_backward
    rows_first = bool(flags & ROWS_FIRST)
    rest = (flags, *call["numbers"])
    out, lse, status = process.call("attn_fwd", [call["q"], call["k"], call["v"]], extras(FORWARD, **call["extras"]),
                                    rest, 2)  # fmt: skip
    assert status == 0, process.error
    *before, entered = process.entered
    assert entered.entry == "kiln_attn_fwd" and len(before) <= for_backward
    assert (entered.vendor, entered.device, entered.stream) == (1, 0, 0x5000)
    check_shared(entered.fields, call, rows_first)
    check_like(out, entered.fields["out"], call["q"], call["v"].sizes[-1], rows_first)
    loose = bool({"cu_seqlens_q", "seqused_q"} & set(call["extras"]))
    assert out.zeroed == loose
    if wants_lse:
        _, _, (batch, heads, rows, _), _ = logical(call["q"], rows_first)
        assert lse.sizes == (batch, heads, rows)[4 - len(call["q"].sizes) :] and lse.dtype == "fp32"
        strides = (max(heads, 1) * max(rows, 1), max(rows, 1), 1)
        assert entered.fields["lse"] == (lse.data, 1, (batch, heads, rows), strides)
        assert lse.strides == strides[4 - len(call["q"].sizes) :]
    else:
        assert lse is None and entered.fields["lse"] is None
    if before:  # once of each functional
        assert before[0].entry == "kiln_attn_bwd_workspace"
        planned = before[0].fields
        check_shared(planned, call, rows_first)
        for name in ("q", "k", "v"):
            assert planned[f"d{name}"][2] == planned[name][2] and 0 not in planned[f"d{name}"][3]
        assert planned["lse"][1:3] == (1, planned["q"][2][:3]) and planned["dout"][2] == planned["out"][2]


@settings(max_examples=300, deadline=None)
@given(call=calls(), needs=st.integers(0, 3), bytes=st.integers(0, 1000), deterministic=st.booleans())
def test_backward(process: Remote, call: dict, needs: int, bytes: int, deterministic: bool) -> None:
    more = call["extras"]
    if "bias" in more:
        bias = more["bias"]
        rows = logical(call["q"], bool(call["flags"] & ROWS_FIRST))[2][2]
        more["bias"] = dense(bias.sizes[0], bias.sizes[1], rows, bias.sizes[3], data=0x400)
    flags = call["flags"] + NEED_DBIAS * (needs & 1) + NEED_DSINKS * (needs >> 1) + DETERMINISTIC * deterministic
    rows_first = bool(flags & ROWS_FIRST)
    q, k, v = call["q"], call["k"], call["v"]
    out = dense(*q.sizes[:-1], v.sizes[-1], data=0xA000000)
    dout = dense(*q.sizes[:-1], v.sizes[-1], data=0xB000000)
    sizes = logical(q, rows_first)[2][:3]
    lse = dense(*sizes[4 - len(q.sizes) :], dtype="fp32", data=0xC000000)
    process.workspace_bytes = bytes
    *made, status = process.call("attn_bwd", [dout, q, k, v, out, lse], extras(FORWARD, **more),
                                 (flags, *call["numbers"]), 5)  # fmt: skip
    assert status == 0, process.error
    assert [entered.entry for entered in process.entered] == ["kiln_attn_bwd_workspace", "kiln_attn_bwd"]
    fields = process.entered[1].fields
    check_shared(fields, call, rows_first)
    assert fields["out"] == logical(out, rows_first) and fields["dout"] == logical(dout, rows_first)
    assert fields["lse"][:3] == (lse.data, 1, sizes)
    assert fields["deterministic"] == deterministic
    assert fields["workspace_bytes"] == bytes and bool(fields["workspace"]) == bool(bytes)
    assert (fields["workspace"] or 0) % 256 == 0
    dq, dk, dv, dbias, dsinks = made
    for name, model, gradient in (("dq", q, dq), ("dk", k, dk), ("dv", v, dv)):
        check_like(gradient, fields[name], model, model.sizes[-1], rows_first)
    loose_q = bool({"cu_seqlens_q", "seqused_q"} & set(more))
    loose_k = bool({"cu_seqlens_k", "seqused_k"} & set(more))
    assert (dq.zeroed, dk.zeroed, dv.zeroed) == (loose_q, loose_k, loose_k)
    assert (dbias is not None) == bool(needs & 1 and "bias" in more)
    if dbias is not None:
        assert dbias.sizes == more["bias"].sizes and dbias.dtype == "bf16"
        address, _, sizes, strides = fields["dbias"]
        assert address == dbias.data and sizes == fields["bias"][2]
        for size, own, stride in zip(sizes[:2], dbias.sizes, strides):
            assert stride == 0 or size == own
        assert dbias.zeroed or not (loose_q or loose_k)
    assert (dsinks is not None) == bool(needs & 2 and "sinks" in more)
    if dsinks is not None:
        assert fields["dsinks"] == (dsinks.data, 1, (call["heads"],), (1,))


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_decode(process: Remote, data: st.DataObject) -> None:
    draw = data.draw
    rows_first, packed = draw(st.booleans()), draw(st.booleans())
    q = draw(rows_of(2, 4, 3, 8, rows_first, packed))
    caches = [draw(rows_of(2, 2, 7, width, rows_first, False)) for width in (8, 6)]
    out = dense(*q.sizes[:-1], 6, data=0xA000000)
    more = {"seqused_k": dense(2, dtype="int32", data=0x100), "alibi_slopes": dense(4, dtype="fp32", data=0x200)}
    if packed:
        more["cu_seqlens_q"] = dense(3, dtype="int32", data=0x300)
    elif draw(st.booleans()):
        more["k_new"] = draw(rows_of(2, 2, 3, 8, rows_first, False))
        more["v_new"] = draw(rows_of(2, 2, 3, 6, rows_first, False))
        more["rotary_cos"] = more["rotary_sin"] = dense(9, 2, data=0x400)
    for name in ("block_table", "cache_batch", "leftpad", "k_scale", "v_scale", "sinks"):
        if draw(st.booleans()):
            more[name] = dense(2, 3, dtype="int32", data=0x500) if name == "block_table" else dense(2, data=0x600)
    wants_lse, interleaved, causal = draw(st.booleans()), draw(st.booleans()), draw(st.booleans())
    flags = RETURN_LSE * wants_lse + INTERLEAVED * interleaved + CAUSAL * causal + ROWS_FIRST * rows_first
    numbers = (0.5, 3.0, 11, 12, 13, 14, 15)
    process.workspace_bytes = draw(st.sampled_from([0, 4096]))
    lse, status = process.call("attn_decode", [q, *caches, out], extras(DECODE, **more), (flags, *numbers), 1)
    assert status == 0, process.error
    fields = process.entered[1].fields
    for name, tensor in (("q", q), ("k_cache", caches[0]), ("v_cache", caches[1]), ("out", out)):
        assert fields[name] == logical(tensor, rows_first)
    for name in DECODE:
        if name not in more:
            assert fields[name] is None
        elif name in ("k_new", "v_new"):
            assert fields[name] == logical(more[name], rows_first)
        elif name == "alibi_slopes":
            assert fields[name] == (0x200, 1, (2, 4), (0, 1))
        else:
            assert fields[name] == view(more[name])
    names = ("sm_scale", "softcap", "max_seqlen_q", "max_seqlen_k", "window_left", "window_right", "splits")
    assert tuple(fields[name] for name in names) == numbers
    assert (fields["causal"], fields["rotary_interleaved"]) == (causal, interleaved)
    assert bool(fields["workspace"]) == bool(process.workspace_bytes)
    assert (lse is not None) == wants_lse == (fields["lse"] is not None)


def test_dropout_mask(process: Remote) -> None:
    mask, rng = dense(1, 2, 3, 4, dtype="uint8", data=0x900), dense(2, dtype="int64", data=0x100)
    (status,) = process.call("dropout_mask", [rng, mask], None, (0.25,), 0)
    assert status == 0
    fields = process.entered[0].fields
    assert fields["mask"] == view(mask) and fields["dropout"] == 0.25
    assert (fields["seed"][0], fields["offset"][0]) == (0x100, 0x108)


Q = dense(2, 4, 8, 64)


def forward(process: Remote, *tensors: Tensor, more: dict | None = None, flags: int = 0) -> int:
    *_, status = process.call("attn_fwd", tensors or [Q, Q, Q], extras(FORWARD, **(more or {})), (flags, *REST[1:]), 2)
    return status


REFUSED = [
    ([Q, dense(2, 4, 8, 64, device=1), Q], {}, "k is on cuda:1 and q on cuda:0; all tensors must be on one device"),
    ([dense(2, 4, 8, 64, device_type=40), Q, Q], {}, "q is on the CPU; all tensors must be on one CUDA or ROCm device"),
    ([Q, Q, dense(2, 4, 8, 64, device_type=3)], {}, "v is on another kind of device; all tensors must be on one CUDA "
     "or ROCm device"),
    ([dense(4, 64), Q, Q], {}, "q must have 4 dimensions, or 3 for sequences one after another, and has 2"),
    ([dense(2, 4, 8, 64, dtype="complex"), Q, Q], {}, "q has a dtype that no kernel takes"),
    ([dense(2, 4, 8, 64, layout=71), Q, Q], {}, "q must be a dense tensor, neither sparse nor nested"),
    ([Q, Q, Q], {"rng": dense(3, dtype="int64")}, "rng must be a contiguous tensor of two int64: seed and offset"),
    ([Q, Q, Q], {"rng": dense(2, dtype="int32")}, "rng must be a contiguous tensor of two int64: seed and offset"),
    ([Q, Q, Q], {"bias": dense(8, 8)}, "bias must have the shape [batch, heads, rows, keys], of which batch, heads and "
     "rows may be 1"),
    ([Q, Q, Q], {"sinks": dense(4, dtype="fp32", device=3)}, "sinks is on cuda:3 and q on cuda:0; all tensors must be "
     "on one device"),
]  # fmt: skip


@pytest.mark.parametrize(("tensors", "more", "sentence"), REFUSED)
def test_refusals(process: Remote, tensors: list[Tensor], more: dict, sentence: str) -> None:
    assert forward(process, *tensors, more=more) == ARGUMENT
    assert process.error == sentence
    assert not process.entered


@pytest.mark.parametrize(("count", "which", "status"), [(1, 0, 1), (1, 3, 1), (0, 1 << 40, 0), (20, 255, 1)])
def test_a_list_that_is_not_what_which_says(process: Remote, count: int, which: int, status: int) -> None:
    *_, found = process.call("attn_fwd", [Q, Q, Q], [dense(2, dtype="int32")] * count, REST, 2, which=which)
    assert found == status
    if status:
        named = bin(which & 255).count("1")
        assert process.error == f"the list of optional tensors has {count} entries, and `which` names {named}"


@pytest.mark.parametrize("flags", [0, ALIKE, ALIKE + EQUAL_HEADS])
def test_what_the_caller_is_to_make_fit(process: Remote, flags: int) -> None:
    strided = Tensor((2, 4, 8, 64), (4096, 1024, 128, 2), "bf16", 0x1000)
    assert forward(process, strided, Q, Q, flags=flags) == REFIT
    assert forward(process, Q, Q, Q, more={"bias": Tensor((1, 1, 8, 8), (128, 128, 16, 2), "bf16", 0x1000)}) == REFIT
    one = Tensor((2, 4, 8, 1), (64, 16, 2, 2), "bf16", 0x1000)  # of one column any stride is right
    assert forward(process, one, one, one, flags=flags) == 0
    few = dense(2, 2, 8, 64)
    assert forward(process, Q, few, few, flags=flags) == (REFIT if flags & EQUAL_HEADS else 0)
    packed = dense(4, 8, 64)
    assert forward(process, Q, packed, packed, flags=flags) == (REFIT if flags & ALIKE else 0)
    assert not process.entered or process.entered[-1].entry == "kiln_attn_fwd"


def test_a_cache_that_cannot_be_copied_is_refused(process: Remote) -> None:
    strided = Tensor((2, 4, 8, 64), (4096, 1024, 128, 2), "bf16", 0x1000)
    for place, name in ((1, "k_cache"), (2, "v_cache"), (3, "out")):
        tensors = [Q, Q, Q, Q]
        tensors[place] = strided
        _, status = process.call("attn_decode", tensors, extras(DECODE), (0, 0.0, 0.0, 0, 0, -1, -1, 0), 1)
        assert status == ARGUMENT
        assert process.error == f"the last dimension of {name} must be contiguous (stride 1)"


def test_another_device_is_made_current(process: Remote) -> None:
    there = dense(2, 4, 8, 64, device=3)
    assert forward(process, there, there, there) == 0
    assert process.torch.fake_guarded() == 3 and process.entered[0].stream == 0x5003
    assert process.entered[0].device == 3
    process.torch.fake_set_device(3)
    assert forward(process, there, there, there) == 0
    assert process.torch.fake_guards_made() == 0


def test_a_status_of_kilns_comes_back(process: Remote) -> None:
    other = dense(2, 4, 8, 72)
    for entry, flags in (("kiln_attn_fwd", 0), ("kiln_attn_bwd_workspace", FOR_BACKWARD)):
        process.answer = lambda entered, entry=entry: UNSUPPORTED if entered.entry == entry else 0
        out, lse, status = process.call("attn_fwd", [other] * 3, extras(FORWARD), (RETURN_LSE + flags, *REST[1:]), 2)
        assert (out, lse, status) == (None, None, UNSUPPORTED)


def test_whether_there_is_a_backward_is_asked_once(process: Remote) -> None:
    """Of each dtype, width, device and kind of call; and again where it was refused."""
    asked = []
    process.answer = lambda entered: asked.append(entered.entry) or 0
    bias = {"bias": dense(1, 1, 8, 8)}
    kinds = [(dense(2, 4, 8, width, dtype=dtype), more) for width in (88, 104) for dtype in ("bf16", "fp16") for more in
             ({}, bias)]  # fmt: skip
    for _ in range(3):
        for q, more in kinds:
            assert forward(process, q, q, q, more=more, flags=FOR_BACKWARD) == 0
    assert 8 <= asked.count("kiln_attn_bwd_workspace") <= 12  # a few may have one place
    asked.clear()
    wide = dense(1, 1, 2, 5000)
    for _ in range(2):
        assert forward(process, wide, wide, wide, flags=FOR_BACKWARD) == 0
    assert asked.count("kiln_attn_bwd_workspace") == 2
    process.answer = lambda entered: asked.append(entered.entry) or (UNSUPPORTED if "bwd" in entered.entry else 0)
    asked.clear()
    refused = dense(2, 4, 8, 120)
    for _ in range(2):
        assert forward(process, refused, refused, refused, flags=FOR_BACKWARD) == UNSUPPORTED
    assert asked == ["kiln_attn_bwd_workspace"] * 2


def test_after_a_fork_another_runtime_is_opened(process: Remote) -> None:
    assert forward(process) == 0
    before, opened = process.entered[-1].kiln, process.kiln.kiln_fake_opened()
    process.answer = lambda entered: FORKED if entered.kiln == before else 0
    assert forward(process, flags=FOR_BACKWARD) == 0
    assert process.kiln.kiln_fake_opened() == opened + 1 and process.entered[-1].kiln != before
    assert forward(process) == 0
    assert process.kiln.kiln_fake_opened() == opened + 1


def test_after_a_fork_two_threads_share_what_the_first_opens(process: Remote) -> None:
    """Another thread has found out, and opened one, while this one's first call was on its way."""
    assert forward(process) == 0
    before, opened, closed = process.entered[-1].kiln, process.kiln.kiln_fake_opened(), process.kiln.kiln_fake_closed()
    inner = []

    def answer(entered) -> int:
        if entered.kiln != before:
            return 0
        if not inner:
            inner.append(None)
            inner.append(forward(process))
        return FORKED

    process.answer = answer
    assert forward(process) == 0 and inner == [None, 0]
    assert process.kiln.kiln_fake_opened() == opened + 1 and process.kiln.kiln_fake_closed() == closed


FUNCTIONS = {
    "aoti_torch_empty_strided": (OUT_OF_MEMORY, "PyTorch gives no memory on cuda:0 for a tensor of this call"),
    "aoti_torch_zero_": (DRIVER, "PyTorch cannot set a tensor of this call to zero"),
    "aoti_torch_get_current_device_index": None,  # the device is made current then
    "aoti_torch_get_current_cuda_stream": (QUEUE, "PyTorch does not tell the current stream of device 0"),
    "aoti_torch_get_layout": (ARGUMENT, None),
    "aoti_torch_get_dtype": (ARGUMENT, None),
    "aoti_torch_get_dim": (ARGUMENT, None),
    "aoti_torch_get_sizes": (ARGUMENT, None),
    "aoti_torch_get_strides": (ARGUMENT, None),
    "aoti_torch_get_device_type": (ARGUMENT, None),
    "aoti_torch_get_device_index": (ARGUMENT, None),
    "torch_get_const_data_ptr": (ARGUMENT, None),
}


@pytest.mark.parametrize("function", FUNCTIONS)
def test_every_function_of_libtorch_may_fail(process: Remote, function: str) -> None:
    """At each of its calls: a status, a sentence, nothing leaks; and afterwards all is well."""
    process.workspace_bytes = 100
    more = {"seqused_q": dense(2, dtype="int32"), "seqused_k": dense(2, dtype="int32"), "bias": dense(1, 1, 8, 8),
            "sinks": dense(4, dtype="fp32")}  # fmt: skip
    lse = dense(2, 4, 8, dtype="fp32")
    failures = 0
    for nth in range(1, 40):
        process.fail(function, nth)
        *made, status = process.call("attn_bwd", [Q, Q, Q, Q, Q, lse], extras(FORWARD, **more),
                                     (NEED_DBIAS + NEED_DSINKS, *REST[1:]), 5)  # fmt: skip
        if status:
            failures += 1
            expected, sentence = FUNCTIONS[function]
            assert status == expected and made == [None] * 5
            assert process.error == sentence if sentence else process.error
    process.fail("nothing", 0)
    assert forward(process) == 0
    if FUNCTIONS[function]:
        assert failures >= 1 and failures < 39
    if function == "aoti_torch_empty_strided":
        assert failures == 6  # dq, dk, dv, dbias, dsinks, the workspace


def test_a_device_that_cannot_be_made_current(process: Remote) -> None:
    process.torch.fake_set_device(5)
    process.fail("aoti_torch_create_device_guard", 1)
    assert forward(process) == DRIVER
    assert process.error == "PyTorch cannot make device 0 current"


def test_numbers_beyond_fp32_are_infinite(process: Remote) -> None:
    """Kiln refuses them in its words."""
    process.call("attn_fwd", [Q, Q, Q], extras(FORWARD), (0, 1e300, math.nan, 0.0, 0, 0, -1, -1), 2)
    assert process.entered[0].fields["sm_scale"] == math.inf and math.isnan(process.entered[0].fields["softcap"])


def test_what_fp32_would_make_zero_keeps_its_sign(process: Remote) -> None:
    """A 0 stands for the usual scale, for no softcap, for no dropout."""
    tiny = 2.0**-126
    for value, expected in ((1e-50, tiny), (-1e-50, -tiny), (0.0, 0.0), (-0.0, 0.0), (2.0**-140, 2.0**-140)):
        process.call("attn_fwd", [Q, Q, Q], extras(FORWARD), (0, value, value, value, 0, 0, -1, -1), 2)
        fields = process.entered[0].fields
        assert (fields["sm_scale"], fields["softcap"], fields["dropout"]) == (expected,) * 3, value
