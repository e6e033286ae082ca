"""What a call of Python's hands the kernel: each argument, on the recipe's own list of them."""

from __future__ import annotations

import ctypes

import fakes
import pytest
from fakes import Array, Exchanged, Older, StandardArray, fp32

import kiln

SHAPE = (2, 4, 100, 64)
FORWARD = ("bias", "alibi_slopes", "sinks", "cu_seqlens_q", "cu_seqlens_k", "seqused_q", "seqused_k", "seed_out",
           "offset_out")  # fmt: skip
DECODE = ("k_new", "v_new", "seqused_k", "cu_seqlens_q", "block_table", "cache_batch", "leftpad", "rotary_cos",
          "rotary_sin", "k_scale", "v_scale", "sinks", "alibi_slopes")  # fmt: skip
BACKWARD = ("bias", "alibi_slopes", "sinks", "cu_seqlens_q", "cu_seqlens_k", "seqused_q", "seqused_k")
UNLIMITED = (1 << 64) - 1  # -1 in 64 bits
ROWS_FIRST, EQUAL_HEADS = 4, 1024  # of Shortcut's flags


def optional(operation: str, names: tuple[str, ...]) -> dict[str, Array]:
    """Arrays of the recipe's rank and dtype."""
    sizes = {4: (2, 4, 100, 100), 3: (2, 4, 100), 2: (2, 4), 1: (4,), 0: ()}
    every = fakes.arguments(operation)
    ranks = {n: argument.get("rank", len(argument.get("axes", ""))) for n, argument in every.items()}
    return {n: Array(sizes[ranks[n]], dtype=dtype_of(every[n]["tensor"])) for n in names}


def dtype_of(tensor: str) -> str:
    return tensor if tensor in fakes.TYPES else "bf16"


def expect(got: dict[str, int], arrays: dict[str, Array]) -> None:
    assert {name: got[name] for name in arrays} == {name: array.address for name, array in arrays.items()}


def test_forward(runtime, fake, launched):
    given = {"q": Array(SHAPE), "k": Array(SHAPE), "v": Array((2, 4, 100, 32)), "out": Array((2, 4, 100, 32))}
    given |= {"lse": Array(SHAPE[:3], "fp32"), **optional("attn_fwd", FORWARD)}
    q, k, v = (given[name] for name in "qkv")
    stream = fake.stream()
    result = kiln.attn_fwd(
        q, k, v, scale=0.25, softcap=30.0, window=(3, 5), bottom_right=True, padded=True, dropout=0.5, seed=1 << 62,
        offset=-1, max_seqlen_q=70, max_seqlen_k=1 << 40, stream=stream, runtime=runtime,
        **{name: array for name, array in given.items() if name not in "qkv"},
    )  # fmt: skip
    assert result is given["out"]
    got, launch = launched("attn_fwd")
    expect(got, given)
    assert (launch.vendor, launch.device, launch.stream) == (fakes.NVIDIA, 0, stream)
    scalars = {
        "sm_scale": fp32(0.25), "is_negative": 0, "is_capped": 1, "softcap": fp32(30.0), "window_left": 3,
        "window_right": 5, "bottom_right": 1, "is_padded": 1, "threshold": 1 << 31, "keep_scale": fp32(2.0),
        "seed_value": 1 << 62, "offset_value": UNLIMITED, "max_seqlen_q": 70, "max_seqlen_k": 1 << 40, "seed": 0,
        "offset": 0,
    }  # fmt: skip
    assert {name: got[name] for name in scalars} == scalars


def test_forward_with_defaults_is_the_c_interfaces(runtime, launched):
    q = Array(SHAPE)
    kiln.attn_fwd(q, q, q, out=q, stream=0, runtime=runtime)
    got, launch = launched("attn_fwd")
    scalars = {"sm_scale": fp32(0.125), "is_capped": 0, "softcap": fp32(1.0), "window_left": UNLIMITED,
               "window_right": UNLIMITED, "bottom_right": 0, "is_padded": 0, "threshold": 0, "keep_scale": fp32(1.0),
               "seed_value": 0, "offset_value": 0, "max_seqlen_q": 0, "max_seqlen_k": 0}  # fmt: skip
    assert {name: got[name] for name in scalars} == scalars and launch.stream is None
    absent = [name for name, argument in fakes.arguments("attn_fwd").items() if argument.get("optional")]
    assert absent and all(got[name] == 0 for name in absent)


def test_causal(runtime, launched):
    q = Array(SHAPE)
    kiln.attn_fwd(q, q, q, out=q, stream=0, runtime=runtime, causal=True, window=(7, 9))
    got, _ = launched("attn_fwd")
    assert (got["window_left"], got["window_right"]) == (7, 0)


UNWATCHED = ctypes.CFUNCTYPE(ctypes.c_int32)(lambda: 0)
WATCHED = ctypes.CFUNCTYPE(ctypes.c_int32)(lambda: 1)


@pytest.fixture
def shortcut(runtime):
    """Makes ways past a framework's dispatcher for the tests' arrays."""

    def alike(q: Exchanged) -> Exchanged:
        return Exchanged(q.shape, q.dtype, q.strides)

    def strided(q: Exchanged, sizes: tuple[int, ...], strides: tuple[int, ...]) -> Exchanged:
        return Exchanged(sizes, q.dtype, strides)

    def make(
        alike=alike, runtime=lambda: runtime.handle, kind=Exchanged, strided=strided, watch=lambda: 0,
        unpack=lambda q: (q, None), records=lambda: False, casts=lambda: False, wrote=lambda arrays: None,
        is_watched=UNWATCHED,
    ):  # fmt: skip
        address = ctypes.cast(is_watched, ctypes.c_void_p).value
        return kiln._core.Shortcut(
            kind, alike, strided, records, unpack, casts, address, (watch,), wrote, runtime
        )  # fmt: skip

    return make


def test_arrays_that_c_may_look_at(runtime, fake, launched, shortcut):
    q, way = Exchanged(SHAPE), shortcut()
    for scale, meant in ((0.25, 0.25), (0.0, 0.125), (-(2.0**-149), -(2.0**-149))):
        out = way.attend(q, q, q, scale, 1)
        got, _ = launched("attn_fwd")
        expect(got, {"q": q, "k": q, "v": q, "out": out})
        assert (got["sm_scale"], got["window_right"]) == (fp32(meant), 0)
    before = len(fake.launches())
    assert [way.attend(q, q, q, scale) for scale in (1e-50, -1e-50)] == [None, None]
    assert way.attend(q, q, q, 1e300) is None and "sm_scale must be a finite" in kiln._core.last_error()
    way.is_open = False
    assert way.attend(q, q, q) is None and len(fake.launches()) == before


def test_arrays_that_c_leaves_alone(runtime, fake, shortcut):
    q = Exchanged(SHAPE)
    refusals = [
        (shortcut(), (Exchanged(SHAPE, "int64"),) * 3),
        (shortcut(), (q, q, Exchanged(SHAPE[1:]))),
        (shortcut(), (q, Array(SHAPE), q)),
        (shortcut(lambda q: Array(q.shape)), (q, q, q)),
        (shortcut(lambda q: Exchanged(q.shape, device=(fakes.CUDA, 1))), (q, q, q)),
        (shortcut(watch=lambda: 1), (q, q, q)),
        (shortcut(is_watched=WATCHED), (q, q, q)),
        (shortcut(casts=lambda: 1), (q, q, q)),
        (shortcut(unpack=lambda q: (Exchanged(SHAPE), None)), (q, q, q)),
        (shortcut(kind=Array), (Array(SHAPE),) * 3),  # which offers no table
        (shortcut(), (Exchanged(SHAPE, strides=(1, 2, 3, 4)), q, q)),
        (shortcut(), (q, Exchanged(SHAPE, device=(fakes.CUDA, 1)), q)),
        (shortcut(), (Exchanged(SHAPE, device=(1, 0)),) * 3),  # the CPU's
        (shortcut(), (q, Exchanged((2, 2, 100, 64)), Exchanged((2, 2, 100, 64)), 0.0, EQUAL_HEADS)),
    ]
    assert [way.attend(*given) for way, given in refusals] == [None] * len(refusals) and not fake.launches()


ROWS = (2, 100, 4, 64)  # SHAPE with rows first
LAYOUTS = {  # sizes and strides of q, flags; strides of a result with 32 columns
    "heads outside": (SHAPE, None, 0, (12800, 3200, 32, 1)),
    "rows outside": (SHAPE, (25600, 64, 256, 1), 0, (12800, 32, 128, 1)),
    "batches inside": (SHAPE, (64, 12800, 128, 1), 0, (12800, 3200, 32, 1)),
    "heads repeated": (SHAPE, (6400, 0, 64, 1), 0, (12800, 32, 128, 1)),
    "one row": ((2, 4, 1, 64), None, 0, (128, 32, 32, 1)),
    "no rows": ((2, 4, 0, 64), None, 0, (128, 32, 32, 1)),
    "no batches": ((0, 4, 100, 64), None, 0, (12800, 3200, 32, 1)),
    "rows first": (ROWS, None, ROWS_FIRST, (12800, 128, 32, 1)),
    "rows first, heads outside": (ROWS, (25600, 64, 6400, 1), ROWS_FIRST, (12800, 128, 32, 1)),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_result_lies_as_it_is_promised(launched, shortcut, layout: str):
    """What is promised is what the operators' fake kernels say: torch.compile counts on it."""
    shape, strides, flags, wanted = LAYOUTS[layout]
    q, v = Exchanged(shape, "fp16", strides), Exchanged((*shape[:3], 32), "fp16")
    out = shortcut().attend(q, q, v, 0.0, flags)
    assert (out.shape, out.dtype, out.strides) == ((*shape[:3], 32), "fp16", wanted)
    if 0 not in shape:
        expect(launched("attn_fwd")[0], {"q": q, "v": v, "out": out})


def test_a_decode_with_a_workspace_is_taken_too(scratch_runtime, launched, shortcut):
    """As where keys are split; of q's dtype, by elements of which the memory is asked for."""
    q, made = Exchanged(SHAPE, "fp16"), []

    def strided(q: Exchanged, sizes: tuple[int, ...], strides: tuple[int, ...]) -> Exchanged:
        made.append(Exchanged(sizes, q.dtype, strides))
        return made[-1]

    out = shortcut(runtime=lambda: scratch_runtime.handle, strided=strided).decode(q, q, q)
    got, launch = launched("attn_decode")
    expect(got, {"q": q, "out": out})
    (workspace,) = made
    needed = 16 * launch.grid[0] * launch.grid[1] * launch.grid[2]
    scratch = launch.parameters()[-2]
    assert workspace.dtype == "fp16" and len(workspace.shape) == 1 and 2 * workspace.shape[0] >= needed
    assert workspace.address <= scratch <= workspace.address + 2 * workspace.shape[0] - needed
    none = shortcut(runtime=lambda: scratch_runtime.handle, strided=exhausted)
    assert none.decode(q, q, q) is None, "no memory is left to whoever asked"


def test_what_a_decode_needs_is_asked_once(scratch_runtime, launched, shortcut, fake):
    """The next call is given as much; one that needs more asks again, and one that needs less has too much."""
    made, entered = [], []

    def strided(q: Exchanged, sizes: tuple[int, ...], strides: tuple[int, ...]) -> Exchanged:
        made.append(Exchanged(sizes, q.dtype, strides))
        return made[-1]

    decode = shortcut(runtime=lambda: scratch_runtime.handle, strided=strided).decode
    small, large = Exchanged(SHAPE, "fp16"), Exchanged((40, *SHAPE[1:]), "fp16")
    for q in (small, small, large, small, large):
        before, launches = fake.count("cuCtxGetDevice"), len(fake.launches())
        out = decode(q, q, q)
        entered.append(fake.count("cuCtxGetDevice") - before)
        assert len(fake.launches()) == launches + 1
        got, launch = launched("attn_decode")
        expect(got, {"q": q, "out": out})
        begin, scratch = made[-1].address, launch.parameters()[-2]
        needed = 16 * launch.grid[0] * launch.grid[1] * launch.grid[2]
        assert begin <= scratch <= begin + 2 * made[-1].shape[0] - needed
    # Of calls that ask, one attempt, a question, and the launch.
    assert entered == [3, 1, 3, 1, 1]
    sizes = [workspace.shape[0] for workspace in made]
    assert sizes[0] == sizes[1] == sizes[2] < sizes[3] == sizes[4] == sizes[5] and len(sizes) == 6


def exhausted(*_given: object) -> Array:
    raise MemoryError


def test_memory_that_runs_out_is_left_to_whoever_asked(fake, shortcut):
    q, v = Exchanged(SHAPE), Exchanged((*SHAPE[:3], 32))
    assert shortcut(exhausted).attend(q, q, q) is None and shortcut(strided=exhausted).attend(q, q, v) is None
    assert shortcut(exhausted).decode(q, q, q) is None and not fake.launches()


def test_a_question_that_cannot_be_answered_is_an_error(shortcut):
    q, unanswered = Exchanged(SHAPE), lambda *given: 1 / 0
    for name in ("watch", "unpack", "records", "casts"):
        way = shortcut(**{name: unanswered})
        with pytest.raises(ZeroDivisionError):
            way.attend(q, q, q)
    with pytest.raises(TypeError):
        shortcut(unpack=lambda q: None).attend(q, q, q)


def test_a_step_of_decoding(runtime, fake, launched, shortcut):
    """The optional arrays that an engine gives at each step, rows first or not; all others are not for here."""
    sizes = {"q": (2, 4, 1, 64), "k_cache": (9, 4, 16, 64), "v_cache": (9, 4, 16, 32), "k_new": (2, 4, 1, 64),
             "v_new": (2, 4, 1, 32), "out": (2, 4, 1, 32)}  # fmt: skip
    for rows_first in (False, True):
        order = (0, 2, 1, 3) if rows_first else (0, 1, 2, 3)
        given = {name: Exchanged(tuple(shape[i] for i in order)) for name, shape in sizes.items()}
        given |= {"seqused_k": Exchanged((2,), "int32"), "block_table": Exchanged((2, 3), "int32", (4, 1))}
        flags = 1 + ROWS_FIRST * rows_first
        changed = []
        assert shortcut(wrote=changed.append).decode(**given, scale=0.25, flags=flags) is given["out"]
        assert changed == [(given["k_cache"], given["v_cache"], given["out"])]
        got, _ = launched("attn_decode")
        expect(got, given)
        assert (got["sm_scale"], got["window_right"]) == (fp32(0.25), 0)
    plain = {name: given[name] for name in ("q", "k_cache", "v_cache", "seqused_k", "block_table")}
    out = shortcut(wrote=exhausted, unpack=exhausted, casts=exhausted).decode(**plain, flags=ROWS_FIRST)
    got, _ = launched("attn_decode")
    expect(got, {**plain, "out": out})
    assert out.shape == (2, 1, 4, 32) and got["k_new"] == got["v_new"] == 0
    before = len(fake.launches())
    others = [{"seqused_k": Exchanged((2,), "int64")}, {"seqused_k": Exchanged((2, 1), "int32")},
              {"block_table": Exchanged((2,), "int32")}, {"q": Exchanged((4, 64))}, {"seqused_k": Array((2,), "int32")},
              {"k_cache": None}, {"out": Exchanged((2, 1, 4, 32), device=(fakes.CUDA, 1))}, {"scale": 1e-50},
              {"scale": 1e300}]  # fmt: skip
    assert [shortcut().decode(**{**plain, "flags": ROWS_FIRST, **other}) for other in others] == [None] * len(others)
    wanting = shortcut(records=lambda: True)
    for name, array in given.items():
        array.requires_grad = name == "v_new"
    assert wanting.decode(**given, flags=ROWS_FIRST) is None and len(fake.launches()) == before


def test_what_c_leaves_alone_goes_to_another_function(launched, shortcut):
    q, q2, seen = Exchanged(SHAPE), Exchanged(SHAPE), []
    function = shortcut().attend_or(lambda *given, **named: seen.append((given, named)) or "another")
    out, nothing = function(q, q2, q)
    got, _ = launched("attn_fwd")
    expect(got, {"q": q, "k": q2, "v": q, "out": out})
    assert nothing is None and not seen
    calls = [((q, q, Array(SHAPE)), {}), ((q, q), {}), ((q, q, q, None), {}), ((q, q, q), {"causal": True}), ((), {})]
    assert [function(*given, **named) for given, named in calls] == ["another"] * len(calls) and seen == calls
    with pytest.raises(ZeroDivisionError):
        shortcut().attend_or(lambda: 1 / 0)()
    with pytest.raises(KeyboardInterrupt):
        shortcut(interrupted).attend_or(print)(q, q, q)
    for wrong in (lambda: shortcut().attend_or(None), lambda: kiln._core.Shortcut.attend_or(object(), print)):
        with pytest.raises(TypeError):
            wrong()


# q, k, v; what is behind them has names.
FIELDS = {"q": 0, "k": 1, "v": 2, "scale": -1, "window": -3, "causal": (1 << 16) + 1, "alike": (1 << 16) + EQUAL_HEADS,
          "bias": -2, "dropout": -2}  # fmt: skip


def test_a_plain_call_is_read_as_python_reads_it(fake, launched, shortcut):
    q, few = Exchanged(SHAPE), Exchanged((2, 2, 100, 64))
    function = shortcut().attention(FIELDS)
    calls = [({}, 0.125, UNLIMITED), ({"scale": 0.5, "causal": True}, 0.5, 0), ({"scale": None}, 0.125, UNLIMITED),
             ({"bias": None, "dropout": 0.0, "window": (-1, -1), "causal": False}, 0.125, UNLIMITED),
             ({"dropout": 0, "bias": False}, 0.125, UNLIMITED)]  # fmt: skip
    for named, scale, right in calls:
        out = function(q, q, v=q, **named)
        got, _ = launched("attn_fwd")
        expect(got, {"q": q, "k": q, "v": q, "out": out})
        assert (got["sm_scale"], got["window_right"]) == (fp32(scale), right)
    assert function(q, few, few) is not None and function(q, few, few, alike=True) is None
    inverted = shortcut().attention(FIELDS, EQUAL_HEADS)
    assert inverted(q, few, few, alike=True) is not None and inverted(q, few, few) is None
    before = len(fake.launches())
    others = [{"scale": 0.0}, {"scale": 1e-50}, {"scale": 1}, {"scale": "1"}, {"causal": 1}, {"causal": None},
              {"bias": q}, {"dropout": 0.5}, {"window": (-1, 0)}, {"window": [-1, -1]}, {"window": (-1,)},
              {"window": (-1, -1, -1)}, {"window": None}, {"unknown": None}, {"q": q}]  # fmt: skip
    assert [function(q, q, q, **other) for other in others] == [None] * len(others)
    assert function(q, q) is None and function() is None and function(q, q, q, q) is None
    assert len(fake.launches()) == before
    names = ("q", "k_cache", "v_cache", "k_new", "v_new", "out", "seqused_k", "block_table")
    decode = shortcut().decoding({**{name: place for place, name in enumerate(names)}, "scale": -1})
    used = Exchanged((2,), "int32")
    out = decode(q, q, q, seqused_k=used, k_new=None, scale=0.5)
    got, _ = launched("attn_decode")
    expect(got, {"q": q, "seqused_k": used, "out": out})
    closed = shortcut()
    function, closed.is_open = closed.attention(FIELDS), False
    assert function(q, q, q) is None
    with pytest.raises(KeyboardInterrupt):
        shortcut(interrupted).attention(FIELDS)(q, q, q)


def interrupted(_q: Exchanged) -> Array:
    raise KeyboardInterrupt


def test_a_runtime_is_asked_for_once_it_is_needed(runtime, fake, shortcut):
    q, asked = Exchanged(SHAPE), []
    way = shortcut(runtime=lambda: asked.append(1) or runtime.handle)
    assert way.attend(q, q, Array(SHAPE)) is None and not asked
    assert way.attend(q, q, q) is not None and way.attend(q, q, q) is not None and len(asked) == 1
    assert way.attend(q, q, q, 1e300) is None and way.attend(q, q, q) is not None and len(asked) == 1
    way = shortcut(runtime=lambda: None)
    with pytest.raises(RuntimeError):
        way.attend(q, q, q)
    with pytest.raises(RuntimeError):
        way.attend_or(print)(q, q, q)


def test_seeds_in_memory(runtime, launched):
    q, seed, offset = Array(SHAPE), Array((), "int64"), Array((), "int64")
    kiln.attn_fwd(q, q, q, out=q, dropout=0.5, seed=seed, offset=offset, stream=0, runtime=runtime)
    got, _ = launched("attn_fwd")
    expect(got, {"seed": seed, "offset": offset})
    assert got["seed_value"] == got["offset_value"] == 0


def test_backward(runtime, launched):
    shapes = {"q": SHAPE, "k": SHAPE, "v": (2, 4, 100, 32), "out": (2, 4, 100, 32), "dout": (2, 4, 100, 32)}
    given = {name: Array(shape) for name, shape in shapes.items()} | {"lse": Array(SHAPE[:3], "fp32")}
    given |= {f"d{name}": Array(shapes[name]) for name in "qkv"} | {"dsinks": Array((4,), "fp32")}
    given |= {"dbias": Array((2, 4, 100, 100)), **optional("attn_bwd", BACKWARD)}
    needed = ("dout", "q", "k", "v", "out", "lse")
    result = kiln.attn_bwd(
        *(given[name] for name in needed), deterministic=True, causal=True, scale=0.5, stream=0, runtime=runtime,
        **{name: array for name, array in given.items() if name not in needed},
    )  # fmt: skip
    assert [*result] == [given[name] for name in ("dq", "dk", "dv", "dbias", "dsinks")]
    got, _ = launched("attn_bwd")
    expect(got, given)
    assert got["window_right"] == 0 and got["sm_scale"] == fp32(0.5)


def test_decode(runtime, launched):
    given = {"q": Array((2, 4, 1, 64)), "k_cache": Array(SHAPE), "v_cache": Array(SHAPE)}
    given |= {"out": Array((2, 4, 1, 64)), "lse": Array((2, 4, 1), "fp32"), **optional("attn_decode", DECODE)}
    needed = ("q", "k_cache", "v_cache")
    out, lse = kiln.attn_decode(
        *(given[name] for name in needed), splits=12, rotary_interleaved=True, window=(3, -1), return_lse=True,
        stream=0, runtime=runtime, **{name: array for name, array in given.items() if name not in needed},
    )  # fmt: skip
    assert out is given["out"] and lse is given["lse"]
    got, _ = launched("attn_decode")
    expect(got, given)
    assert (got["wanted_splits"], got["rotary_interleaved"], got["window_left"]) == (12, 1, 3)


def test_forward_of_fp8(runtime, launched):
    names = ("q_descale", "k_descale", "v_descale", "sinks", "cu_seqlens_q", "cu_seqlens_k", "seqused_q", "seqused_k")
    given = {name: Array(SHAPE, "fp8e4m3") for name in "qkv"} | {"out": Array(SHAPE), "lse": Array(SHAPE[:3], "fp32")}
    given |= optional("attn_fwd_fp8", names)
    q, k, v = (given[name] for name in "qkv")
    out, lse = kiln.attn_fwd_fp8(
        q, k, v, scale=0.25, window=(3, 5), bottom_right=True, padded=True, max_seqlen_q=70, max_seqlen_k=80, stream=0,
        runtime=runtime, **{name: array for name, array in given.items() if name not in "qkv"},
    )  # fmt: skip
    assert out is given["out"] and lse is given["lse"]
    got, _ = launched("attn_fwd_fp8")
    expect(got, given)
    scalars = {
        "sm_scale": fp32(0.25), "is_negative": 0, "window_left": 3, "window_right": 5, "bottom_right": 1,
        "is_padded": 1, "max_seqlen_q": 70, "max_seqlen_k": 80,
    }  # fmt: skip
    assert {name: got[name] for name in scalars} == scalars
    q = StandardArray(SHAPE, "fp8e4m3")
    out, lse = kiln.attn_fwd_fp8(q, q, q, dtype="float16", causal=True, stream=0, runtime=runtime)
    assert (out.shape, out.dtype, lse.shape, lse.dtype) == (SHAPE, "fp16", SHAPE[:3], "fp32")
    assert launched("attn_fwd_fp8")[0]["window_right"] == 0
    with pytest.raises(kiln.ArgumentError, match="has no dtype 'bfloat16'; give another, or the results"):
        kiln.attn_fwd_fp8(q, q, q, stream=0, runtime=runtime)


def test_dropout_mask(runtime, launched):
    mask, seed = Array(SHAPE, "uint8"), Array((), "int64")
    assert kiln.dropout_mask(mask, 0.5, seed=seed, offset=3, stream=0, runtime=runtime) is mask
    got, _ = launched("dropout_mask")
    expect(got, {"mask": mask, "seed": seed})
    assert (got["threshold"], got["seed_value"], got["offset_value"]) == (1 << 31, 0, 3)


def test_results_are_made_by_the_arrays_own_library(runtime, launched):
    q, v, sinks = StandardArray((2, 4, 100, 64)), StandardArray((2, 4, 100, 32)), Array((4,), "fp32")
    out, lse = kiln.attn_fwd(q, q, v, return_lse=True, stream=0, runtime=runtime)
    assert (out.shape, out.dtype, lse.shape, lse.dtype) == ((2, 4, 100, 32), "bf16", (2, 4, 100), "fp32")
    expect(launched("attn_fwd")[0], {"out": out, "lse": lse})
    bias = StandardArray((1, 1, 100, 100))
    made = kiln.attn_bwd(out, q, q, v, out, lse, bias=bias, sinks=sinks, dbias=True, dsinks=True, stream=0,
                         runtime=runtime)  # fmt: skip
    assert [grad.shape for grad in made] == [q.shape, q.shape, v.shape, bias.shape, (4,)]
    assert [grad.dtype for grad in made] == ["bf16"] * 4 + ["fp32"]
    expect(launched("attn_bwd")[0], dict(zip(made._fields, made)))
    assert kiln.attn_bwd(out, q, q, v, out, lse, stream=0, runtime=runtime)[3:] == (None, None)
    out = kiln.attn_decode(q, q, v, stream=0, runtime=runtime)
    assert out.shape == (2, 4, 100, 32)


def test_a_workspace_is_made(scratch_runtime, launched):
    q = StandardArray((1, 2, 8, 64))
    fakes.Namespace.made.clear()
    kiln.attn_fwd(q, q, q, stream=0, runtime=scratch_runtime)
    _out, workspace = fakes.Namespace.made
    _, launch = launched("attn_fwd")
    needed = 16 * launch.grid[0] * launch.grid[1] * launch.grid[2]
    assert workspace.dtype == "uint8" and workspace.shape[0] >= needed
    scratch = launch.parameters()[-2]
    assert workspace.address <= scratch <= workspace.address + workspace.shape[0] - needed and scratch % 256 == 0


def test_a_workspace_that_an_unknown_library_made_is_let_go_after_its_work(scratch_runtime, fake, monkeypatch):
    """Such a library may give the memory to work on another stream at once."""
    let_go = {}  # by address: what the driver was asked last, and of which stream

    class Noting(dict):
        def __delitem__(self, key: int) -> None:
            last = fake.record().events[-1]
            let_go[self[key][0].tensor.data] = (last["call"], last.get("stream"))
            super().__delitem__(key)

    monkeypatch.setattr(fakes, "alive", Noting())
    fakes.Namespace.made.clear()
    q, out, stream = StandardArray((1, 2, 8, 64)), Array((1, 2, 8, 64)), fake.stream()
    kiln.attn_fwd(q, q, q, out=out, stream=stream, runtime=scratch_runtime)
    (workspace,) = fakes.Namespace.made
    assert let_go[workspace.address] == ("cuStreamSynchronize", stream) and fake.count("cuStreamSynchronize") == 1
    assert fake.launches()[-1].stream == stream
    given = Array((1024,), "uint8")
    kiln.attn_fwd(q, q, q, out=out, workspace=given, stream=stream, runtime=scratch_runtime)
    assert let_go[given.address][0] != "cuStreamSynchronize", "a workspace that is given is the caller's to keep"
    assert fake.count("cuStreamSynchronize") == 1 and not fakes.alive


def test_a_workspace_is_given(scratch_runtime, launched):
    q, workspace = Array((1, 2, 8, 64)), Array((1024,), "uint8")
    kiln.attn_fwd(q, q, q, out=q, workspace=workspace, stream=0, runtime=scratch_runtime)
    _, launch = launched("attn_fwd")
    assert launch.parameters()[-2] == workspace.address
    with pytest.raises(kiln.ArgumentError, match="needs a workspace of .* bytes, aligned to 256; give workspace="):
        kiln.attn_fwd(q, q, q, out=q, stream=0, runtime=scratch_runtime)
    with pytest.raises(kiln.WorkspaceError, match="workspace"):
        kiln.attn_fwd(q, q, q, out=q, workspace=Array((3,), "uint8"), stream=0, runtime=scratch_runtime)
    with pytest.raises(kiln.ArgumentError, match="it must be contiguous, of uint8"):
        kiln.attn_fwd(q, q, q, out=q, workspace=Array((64,), "fp32"), stream=0, runtime=scratch_runtime)


def test_any_strides(runtime):
    strides = (1 << 20, 64, 256, 1)
    q = Array(SHAPE, strides=strides)
    kiln.attn_fwd(q, q, q, out=q, stream=0, runtime=runtime)
    assert kiln._core.Tensor(q.__dlpack__()).strides == strides


def test_libraries_of_both_versions_of_dlpack(runtime, launched):
    for array in (Array(SHAPE), Older(SHAPE), Array(SHAPE, version=(1, 7))):
        kiln.attn_fwd(array, array, array, out=array, stream=0, runtime=runtime)
        assert launched("attn_fwd")[0]["q"] == array.address
    with pytest.raises(kiln.ArgumentError, match="q: an array was given by DLPack 2; Kiln knows DLPack 0 and 1"):
        array = Array(SHAPE, version=(2, 0))
        kiln.attn_fwd(array, array, array, out=array, stream=0, runtime=runtime)


def test_nothing_is_held_after_a_call(runtime):
    q = Array(SHAPE)
    before = len(fakes.alive)
    kiln.attn_fwd(q, q, q, out=q, stream=0, runtime=runtime)
    with pytest.raises(kiln.ArgumentError):
        kiln.attn_fwd(q, q, q, out=q, softcap=-1.0, stream=0, runtime=runtime)
    with pytest.raises(kiln.ArgumentError):
        kiln.attn_fwd(q, q, 3, out=q, stream=0, runtime=runtime)
    assert len(fakes.alive) == before


def test_explain_and_prepare_launch_nothing(runtime, fake):
    q = StandardArray(SHAPE)
    fakes.Namespace.made.clear()
    (variant,) = kiln.explain(kiln.attn_fwd, q, q, q, causal=True, return_lse=True, stream=0, runtime=runtime)
    assert isinstance(variant, kiln.Variant) and variant.functional == "dtype=bf16" and variant.unavailable is None
    assert str(variant).startswith("attn_fwd (dtype=bf16; num_warps=4; generic) for sm_90: ")
    assert kiln.explain(kiln.attn_bwd, q, q, q, q, q, Array(SHAPE[:3], "fp32"), stream=0, runtime=runtime)
    assert fake.count("cuLibraryLoadData") == 0
    kiln.prepare(kiln.attn_decode, q, q, q, stream=0, runtime=runtime)
    assert fake.count("cuLibraryLoadData") == 1 and not fake.launches() and not fakes.Namespace.made
    key = variant.key
    kiln.attn_fwd(q, q, q, force_keys=[key], force_target="sm_90", stream=0, runtime=runtime)
    with pytest.raises(kiln.ArgumentError, match="not a key of 64 hexadecimal digits"):
        kiln.attn_fwd(q, q, q, force_keys=(key[:-1],), stream=0, runtime=runtime)
    with pytest.raises(kiln.UnsupportedError, match="dropout_mask cannot be explained"):
        kiln.explain(kiln.dropout_mask, q, 0.5)
    with pytest.raises(kiln.ArgumentError, match="function must be kiln.attn_fwd"):
        kiln.prepare(print)
    with pytest.raises(TypeError, match="missing a required argument: 'v'"):
        kiln.explain(kiln.attn_fwd, q, q)
