"""Sequences as AOTriton 0.12 to 0.14 can say that they lie: what libkiln is told of them, and what is made first."""

from __future__ import annotations

import ffi
import pytest
from aotriton_calls import DENSE, PACKED, STEP, at, gradients, launches
from aotriton_interface import (
    BF16,
    COMPACT,
    FP32,
    INT32,
    INVALID_SYMBOL,
    INVALID_VALUE,
    NONE,
    NOT_SUPPORTED,
    PADDED,
    STRIDED,
    SUCCESS,
)
from aotriton_model import workspace_bytes
from aotriton_worker import Worker
from recorded import Record

SCALE = 0.125
DENSE_MODE, PACKED_MODE = (0, 0, 0), (1, 1, 1)
MAX, CUMULATIVE, INDIVIDUAL = 0, 1, 2  # VarlenLength
IMPLIED, REUSE, ARRAY = 0, 1, 2  # VarlenPosition
SUMS_Q, SUMS_K = at(50, INT32, (4,)), at(51, INT32, (4,))
STARTS_Q, STARTS_K = at(52, INT32, (4,)), at(53, INT32, (4,))
SHORT_K = at(53, INT32, (3,))  # an element less: where each sequence begins, and not where all end
USED_Q, USED_K = at(54, INT32, (3,)), at(55, INT32, (3,))
LINES = at(5, FP32, (4, 250))  # a line for each head
PLAIN = {name: PACKED[name] for name in ("q", "k", "v", "out")} | {"lse": LINES, "scale": SCALE}
MOST = {"max_q": 100, "max_k": 120}
ROWS = {"cu_q": SUMS_Q, "starts_q": STARTS_Q}
KEYS = {"cu_k": SUMS_K, "starts_k": STARTS_K}
BATCHES = {  # each sequence in a batch of its own
    "q": at(1, BF16, (3, 4, 100, 64)), "k": at(2, BF16, (3, 2, 120, 64)), "v": at(3, BF16, (3, 2, 120, 56)),
    "out": at(4, BF16, (3, 4, 100, 56)), "lse": at(5, FP32, (12, 100)), "scale": SCALE,
}  # fmt: skip
STEPS = {  # the same, one after another in equal steps
    "q": at(1, BF16, (1, 4, 300, 64)), "k": at(2, BF16, (1, 2, 360, 64)), "v": at(3, BF16, (1, 2, 360, 56)),
    "out": at(4, BF16, (1, 4, 300, 56)), "lse": at(5, FP32, (4, 300)), "scale": SCALE,
}  # fmt: skip
SPLIT = {  # as libkiln takes those
    "q": [STEP, BF16, [3, 4, 100, 64], [6400, 19200, 64, 1]],
    "k": [2 * STEP, BF16, [3, 2, 120, 64], [7680, 23040, 64, 1]],
    "v": [3 * STEP, BF16, [3, 2, 120, 56], [6720, 20160, 56, 1]],
    "out": [4 * STEP, BF16, [3, 4, 100, 56], [5600, 16800, 56, 1]],
    "lse": [5 * STEP, FP32, [3, 4, 100], [100, 300, 1]],
}  # fmt: skip
MADE = "made"  # stands for an array that is made: its address is known afterwards


def made(offset: int, size: int) -> tuple:
    return (MADE, offset, size)


# By name: the interface; the call; libkiln's fields besides those of PLAIN; what is made first, of each side.
STRIDED_FIELDS = {
    "cu_seqlens_q": STARTS_Q,
    "seqused_q": made(0, 3),
    "cu_seqlens_k": STARTS_K,
    "seqused_k": made(256, 3),
}
STRIDED_ARRAYS = [{"lengths": 0, "cu": SUMS_Q, "most": 100}, {"lengths": 256, "cu": SUMS_K, "most": 120}]
CASES = {
    "strided in 0.12": ("0.12", PLAIN | ROWS | KEYS | MOST | {"varlen_type": STRIDED}, STRIDED_FIELDS, STRIDED_ARRAYS),
    "strided in 0.13": ("0.13", PLAIN | ROWS | KEYS | MOST | {"varlen_type": STRIDED}, STRIDED_FIELDS, STRIDED_ARRAYS),
    "strided in 0.14": (
        "0.14", PLAIN | ROWS | KEYS | MOST | {"modes": ((1, CUMULATIVE, ARRAY),) * 2 + (0,)}, STRIDED_FIELDS,
        STRIDED_ARRAYS,
    ),
    "packed": (
        "0.14", PLAIN | MOST | {"cu_q": SUMS_Q, "cu_k": SUMS_K, "modes": (PACKED_MODE, PACKED_MODE, 0)},
        {"cu_seqlens_q": SUMS_Q, "cu_seqlens_k": SUMS_K}, [],
    ),
    "seqused_k of a packed cache": (
        "0.14", PLAIN | MOST | {"cu_q": SUMS_Q, "cu_k": USED_K, "starts_k": STARTS_K,
                                "modes": (PACKED_MODE, (1, INDIVIDUAL, ARRAY), 0)},
        {"cu_seqlens_q": SUMS_Q, "cu_seqlens_k": STARTS_K, "seqused_k": USED_K}, [],
    ),
    "no end of positions": (
        "0.14", PLAIN | MOST | {"cu_q": SUMS_Q, "cu_k": USED_K, "starts_k": SHORT_K,
                                "modes": (PACKED_MODE, (1, INDIVIDUAL, ARRAY), 0)},
        {"cu_seqlens_q": SUMS_Q, "cu_seqlens_k": made(0, 4), "seqused_k": USED_K},
        [{"begins": 0, "of": SHORT_K, "total": 300}],
    ),
    "equal lengths at positions": (
        "0.14", PLAIN | MOST | {"cu_q": SUMS_Q, "starts_k": SHORT_K, "modes": (PACKED_MODE, (1, MAX, ARRAY), 0)},
        {"cu_seqlens_q": SUMS_Q, "cu_seqlens_k": made(0, 4), "seqused_k": made(256, 3)},
        [{"begins": 0, "of": SHORT_K, "total": 300, "lengths": 256, "most": 120}],
    ),
    "padded": (
        "0.14", BATCHES | MOST | {"cu_q": SUMS_Q, "cu_k": SUMS_K, "modes": ((0, CUMULATIVE, IMPLIED),) * 2 + (0,)},
        {"cu_seqlens_q": SUMS_Q, "cu_seqlens_k": SUMS_K, "padded": 1}, [],
    ),
    "0.12's padded": (
        "0.12", BATCHES | MOST | {"cu_q": SUMS_Q, "cu_k": SUMS_K, "varlen_type": PADDED},
        {"cu_seqlens_q": SUMS_Q, "cu_seqlens_k": SUMS_K, "padded": 1}, [],
    ),
    "used": (
        "0.14", BATCHES | MOST | {"cu_q": USED_Q, "cu_k": USED_K, "modes": ((0, INDIVIDUAL, IMPLIED),) * 2 + (0,)},
        {"seqused_q": USED_Q, "seqused_k": USED_K, "max_seqlen_q": 0, "max_seqlen_k": 0}, [],
    ),
    "packed queries of a padded cache": (
        "0.14", BATCHES | {n: PLAIN[n] for n in ("q", "out", "lse")} | MOST
        | {"cu_q": SUMS_Q, "cu_k": SUMS_K, "modes": (PACKED_MODE, (0, CUMULATIVE, IMPLIED), 0)},
        {"cu_seqlens_q": SUMS_Q, "seqused_k": made(0, 3), "max_seqlen_k": 0},
        [{"lengths": 0, "cu": SUMS_K, "most": 120}],
    ),
    "packed queries of a dense cache": (
        "0.14", BATCHES | {n: PLAIN[n] for n in ("q", "out", "lse")} | {"max_q": 100, "cu_q": SUMS_Q,
                                                                       "modes": (PACKED_MODE, DENSE_MODE, 0)},
        {"cu_seqlens_q": SUMS_Q, "max_seqlen_k": 0}, [],
    ),
    "equal steps": ("0.14", STEPS | MOST | {"modes": ((1, MAX, IMPLIED),) * 2 + (0,)}, SPLIT, []),
    "lengths in equal steps": (
        "0.14", STEPS | MOST | {"cu_q": USED_Q, "cu_k": SUMS_K,
                                "modes": ((1, INDIVIDUAL, IMPLIED), (1, CUMULATIVE, IMPLIED), 0)},
        SPLIT | {"seqused_q": USED_Q, "cu_seqlens_k": SUMS_K, "padded": 1, "max_seqlen_k": 120}, [],
    ),
    "dense": ("0.14", BATCHES, {}, []),
    "fewer rows than there are": (
        "0.14", BATCHES | {"max_q": 40, "max_k": 50, "modes": (DENSE_MODE, DENSE_MODE, 0)},
        {"q": [STEP, BF16, [3, 4, 40, 64], [25600, 6400, 64, 1]],
         "k": [2 * STEP, BF16, [3, 2, 50, 64], [15360, 7680, 64, 1]],
         "v": [3 * STEP, BF16, [3, 2, 50, 56], [13440, 6720, 56, 1]],
         "out": [4 * STEP, BF16, [3, 4, 40, 56], [22400, 5600, 56, 1]],
         "lse": [5 * STEP, FP32, [3, 4, 40], [400, 100, 1]]},
        [],
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def by_version(release):
    workers = {}

    def get(version: str) -> Worker:
        if version not in workers:
            workers[version] = Worker(release.folder, ffi.AMD, version=version)
        return workers[version]

    yield get
    for worker in workers.values():
        worker.close()


def of_kernel(record: Record, name: bytes) -> list:
    return [launch for launch in record.launches if launch.symbol.startswith(name)]


def split_arrays(release, record: Record) -> list[dict[str, int]]:
    """What each launch of seq_lengths was given."""
    result = []
    for launch in of_kernel(record, b"seq_lengths_"):
        numbers = [int.from_bytes(argument, "little") for argument in launch.arguments]
        result.append(release.arguments("gfx942", launch.symbol.decode(), numbers))
    return result


def check_arrays(release, record: Record, arrays: list[dict], memory: int) -> None:
    """Each array is made of what the call gave, in memory that is taken on the stream."""
    found = split_arrays(release, record)
    assert len(found) == len(arrays)
    for given, wanted in zip(found, arrays):
        assert given["batch"] == 3
        assert bool(given["wants_lengths"]) == ("lengths" in wanted) and bool(given["wants_begins"]) == (
            "begins" in wanted
        )
        if "lengths" in wanted:
            assert given["lengths_ptr"] == memory + wanted["lengths"] and given["most"] == wanted["most"]
            assert bool(given["has_cu"]) == ("cu" in wanted)
        if "cu" in wanted:
            assert given["cu_ptr"] == wanted["cu"][0]
        if "begins" in wanted:
            assert given["begins_out_ptr"] == memory + wanted["begins"] and given["begins_ptr"] == wanted["of"][0]
            assert given["total"] == wanted["total"]


def fields_of(call: dict, more: dict, memory: int) -> dict:
    """libkiln's fields of a forward."""
    full = lambda view: [view[0], view[1], list(view[2]), list(view[3])]  # noqa: E731
    batch = 3 if len(call["lse"][2]) == 2 and call["lse"][2][0] == 12 else 1
    lines, length = call["lse"][2]
    lse = [call["lse"][0], FP32, [batch, lines // batch, length], [lines // batch * length, length, 1]]
    fields = {name: full(call[name]) for name in ("q", "k", "v", "out")} | {"lse": lse, "sm_scale": SCALE}
    fields |= {"window_left": -1, "window_right": -1}
    if {"cu_seqlens_q", "cu_seqlens_k"} & more.keys():
        fields |= {"max_seqlen_q": call.get("max_q", 0) if "cu_seqlens_q" in more else 0}
        fields |= {"max_seqlen_k": call.get("max_k", 0) if "cu_seqlens_k" in more else 0}
    for name, value in more.items():
        if isinstance(value, tuple) and value[0] == MADE:
            value = [memory + value[1], INT32, [value[2]], [1]]
        fields[name] = full(value) if isinstance(value, tuple) else value
    return fields


def taken(record: Record) -> tuple[int, int]:
    """The address and the size of the first memory that was taken; 0 if none was."""
    events = [e for e in record.events if e["call"] == "hipMallocAsync"]
    return (events[0]["address"], events[0]["bytes"]) if events else (0, 0)


@pytest.mark.parametrize("name", CASES)
def test_forward(release, by_version, name):
    version, call, more, arrays = CASES[name]
    worker = by_version(version)
    worker.events()
    stream = worker.stream()
    status, sentence = worker.call("v3.attn_fwd", stream, **call)
    assert status == SUCCESS, sentence
    record = worker.events()
    memory, size = taken(record)
    assert size == 256 * sum(("lengths" in array) + ("begins" in array) for array in arrays)
    check_arrays(release, record, arrays, memory)
    status, sentence = worker.ask("direct", "attn_fwd", worker.vendor, stream, **fields_of(call, more, memory))
    assert status == ffi.OK, sentence
    made_first = len(arrays)
    assert launches(record)[made_first:] == launches(worker.events())
    assert not [leak for leak in record.leaks() if "module" not in leak]


@pytest.mark.parametrize("name", [name for name in CASES if name != "fewer rows than there are"])
def test_backward(release, by_version, name):
    version, call, more, arrays = CASES[name]
    worker = by_version(version)
    worker.events()
    stream = worker.stream()
    call = call | gradients(call)
    status, sentence = worker.call("v3.attn_bwd", stream, **call)
    assert status == SUCCESS, sentence
    record = worker.events()
    memory, _ = taken(record) if arrays else (0, 0)
    check_arrays(release, record, arrays, memory)
    fields = fields_of(call, more, memory)
    for name_, like in {"dout": "out", "dq": "q", "dk": "k", "dv": "v"}.items():
        fields[name_] = [call[name_][0], *fields[like][1:]]
    needed = workspace_bytes(fields)
    workspace = [e for e in record.events if e["call"] == "hipMallocAsync"][-1]
    assert workspace["bytes"] == needed
    fields |= {"workspace": workspace["address"], "workspace_bytes": needed}
    status, sentence = worker.ask("direct", "attn_bwd", worker.vendor, stream, **fields)
    assert status == ffi.OK, sentence
    assert launches(record)[len(arrays) :] == launches(worker.events())
    assert not [leak for leak in record.leaks() if "module" not in leak]


ANY = PLAIN | ROWS | KEYS | MOST
REFUSED = {
    "an unknown varlen_type": ("0.13", ANY | {"varlen_type": 4}, NOT_SUPPORTED, "StridedVarlen"),
    "strided in 0.11": ("0.11", PLAIN | MOST | {"cu_q": SUMS_Q, "cu_k": SUMS_K, "varlen_type": 3}, NOT_SUPPORTED,
                        "None, CompactVarlen or PaddedVarlen"),
    "no strides": ("0.13", PLAIN | MOST | {"cu_q": SUMS_Q, "cu_k": SUMS_K, "varlen_type": STRIDED}, INVALID_VALUE,
                   "positions of queries (seq_strides_q, seqinfo_q1), which are not given"),
    "no lengths": ("0.14", PLAIN | {"modes": (PACKED_MODE, PACKED_MODE, 0)}, INVALID_VALUE, "which are not given"),
    "no positions": ("0.14", ANY | {"starts_k": (0, INT32, (0,)), "modes": (PACKED_MODE, (1, CUMULATIVE, ARRAY), 0)},
                     INVALID_VALUE, "positions of keys"),
    "a length that means nothing": ("0.14", ANY | {"modes": ((1, 3, 1), PACKED_MODE, 0)}, INVALID_VALUE,
                                    "Q has a value"),
    "a position that means nothing": ("0.14", ANY | {"modes": (PACKED_MODE, (1, 1, 3), 0)}, INVALID_VALUE,
                                      "K has a value"),
    "individual lengths as positions": ("0.14", ANY | {"modes": ((1, INDIVIDUAL, REUSE), PACKED_MODE, 0)},
                                        INVALID_VALUE, "must be CUMULATIVE"),
    "positions in batches": ("0.14", ANY | {"modes": ((0, CUMULATIVE, ARRAY), PACKED_MODE, 0)}, NOT_SUPPORTED, "BHSD"),
    "no longest": ("0.14", STEPS | {"modes": ((1, MAX, IMPLIED),) * 2 + (0,)}, INVALID_VALUE, "Max_seqlen_q"),
    "tokens outside": ("0.14", ANY | {"modes": (PACKED_MODE, PACKED_MODE, 1)}, NOT_SUPPORTED, "VarlenLseLayout::HT"),
    "sums of another count": ("0.13", ANY | {"cu_k": at(51, INT32, (5,)), "varlen_type": STRIDED}, INVALID_VALUE,
                              "an element more than there are sequences"),
    "too few positions": ("0.13", ANY | {"starts_k": at(53, INT32, (2,)), "varlen_type": STRIDED}, INVALID_VALUE,
                          "fewer positions of keys"),
    "positions of another dtype": ("0.13", ANY | {"starts_k": at(53, FP32, (4,)), "varlen_type": STRIDED},
                                   INVALID_VALUE, "fp32"),
    "sums of another dtype": ("0.13", ANY | {"cu_k": at(51, FP32, (4,)), "varlen_type": STRIDED}, INVALID_VALUE,
                              "fp32"),
    "steps that do not fit": ("0.14", STEPS | {"max_q": 100, "max_k": 121, "modes": ((1, MAX, IMPLIED),) * 2 + (0,)},
                              INVALID_VALUE, "K has fewer rows"),
    "an output of fewer steps": ("0.14", STEPS | MOST | {"out": at(4, BF16, (1, 4, 299, 56)),
                                                         "modes": ((1, MAX, IMPLIED),) * 2 + (0,)},
                                 INVALID_VALUE, "out"),
    "nobody says how many": ("0.14", ANY | {"modes": ((1, MAX, ARRAY), (1, MAX, ARRAY), 0)}, INVALID_VALUE, "how many"),
    "a caller of 0.11": ("0.13", PLAIN | {"version": 1}, INVALID_SYMBOL, "another version of AOTriton"),
    "a caller of 0.14": ("0.13", PLAIN | {"version": 4}, INVALID_SYMBOL, "another version of AOTriton"),
    "a caller of 0.13": ("0.11", PLAIN | {"version": 3}, INVALID_SYMBOL, "another version of AOTriton"),
    "a caller of 0.14 in 0.12": ("0.12", PLAIN | {"version": 4}, INVALID_SYMBOL, "AOTriton 0.12, whose is 3"),
    "a caller of 0.11 in 0.14": ("0.14", PLAIN | {"version": 1}, INVALID_SYMBOL, "params_version is 1"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused(by_version, name):
    """Nothing is launched, all outputs are filled, no memory stays taken."""
    version, call, wanted, words = REFUSED[name]
    worker = by_version(version)
    worker.events()
    status, sentence = worker.call("v3.attn_fwd", worker.stream(), **call)
    record = worker.events()
    assert status == wanted and words in sentence, sentence
    assert not of_kernel(record, b"attn_") and not [leak for leak in record.leaks() if "module" not in leak]
    if wanted == INVALID_SYMBOL:
        assert not record.fills and "its arguments cannot be read" in sentence
    else:
        assert {fill.address for fill in record.fills} >= {call["out"][0], call["lse"][0]}


@pytest.mark.parametrize("varlen_type", [NONE, COMPACT])
@pytest.mark.parametrize("entry", ["v3.attn_fwd", "v3.attn_bwd"])
def test_positions_make_it_strided(by_version, entry, varlen_type):
    """Whatever varlen_type says, unless it is padded, as in AOTriton."""
    worker, found = by_version("0.13"), []
    call = ANY | (gradients(ANY) if entry.endswith("bwd") else {})
    worker.events()
    for kind in (STRIDED, varlen_type):
        assert worker.call(entry, None, **call, varlen_type=kind)[0] == SUCCESS
        found.append([step[:5] for step in launches(worker.events())])
    assert found[0] == found[1] and len(found[0]) > 1


OLDER = {
    "dense": BATCHES, "padded": BATCHES | MOST | {"cu_q": SUMS_Q, "cu_k": SUMS_K, "varlen_type": PADDED},
    "compact": PLAIN | MOST | {"cu_q": SUMS_Q, "cu_k": SUMS_K, "varlen_type": COMPACT},
    "strided": ANY | {"varlen_type": STRIDED},
}  # fmt: skip


@pytest.mark.parametrize("name", OLDER)
@pytest.mark.parametrize("entry", ["v3.attn_fwd", "v3.attn_bwd"])
def test_older_parameters_in_0_14(release, by_version, entry, name):
    """Those of 0.12 and 0.13, in structures of their size, are taken, as AOTriton 0.14 takes them."""
    call = OLDER[name] | (gradients(OLDER[name]) if entry.endswith("bwd") else {})
    found = []
    for library in ("0.13", "0.14"):
        worker = by_version(library)
        worker.events()
        older = {} if library == "0.13" else {"older": True}
        status, sentence = worker.call(entry, None, **call, **older)
        assert status == SUCCESS, sentence
        found.append([step[:5] for step in launches(worker.events())])
    assert found[0] == found[1] and found[0]


@pytest.mark.parametrize("version", ["0.12", "0.13", "0.14"])
@pytest.mark.parametrize("entry", ["v3.attn_fwd", "v3.attn_bwd"])
def test_deterministic_changes_nothing(by_version, version, entry):
    worker, found = by_version(version), []
    call = DENSE | {"scale": SCALE} | (gradients(DENSE) if entry.endswith("bwd") else {})
    worker.events()
    stream = worker.stream()
    for options in ({}, {"deterministic": True}, {"deterministic": False, "backend": 0}):
        assert worker.call(entry, stream, **call, **options)[0] == SUCCESS
        found.append([step[:7] if isinstance(step, tuple) else step for step in launches(worker.events())])
    assert found[0] == found[1] == found[2] and found[0]


@pytest.mark.parametrize("version", ["0.12", "0.13"])
def test_lengths_of_keys_alone_are_refused_or_not_seen(by_version, version):
    """Without lengths of queries AOTriton has no sequences."""
    worker = by_version(version)
    worker.events()
    status, _ = worker.call("v3.attn_fwd", worker.stream(), **DENSE, scale=SCALE, cu_k=SUMS_K, varlen_type=NONE)
    assert status == SUCCESS and len(of_kernel(worker.events(), b"attn_fwd")) == 1


def test_the_same_call_in_each_interface(by_version):
    """Byte for byte the same launches."""
    found = []
    for version in ("0.11", "0.12", "0.13", "0.14"):
        worker = by_version(version)
        worker.events()
        more = {"modes": (PACKED_MODE, PACKED_MODE, 0)} if version == "0.14" else {"varlen_type": COMPACT}
        assert worker.call("v3.attn_fwd", None, **PACKED, scale=SCALE, **more)[0] == SUCCESS
        found.append([step[:5] + step[7:] for step in launches(worker.events())])
    assert found[0] == found[1] == found[2] == found[3]
