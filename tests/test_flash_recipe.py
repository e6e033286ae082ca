"""The shipped recipe of attention: the flags of a call are the bits that kernels read; what a target cannot hold is
refused for that reason."""

from __future__ import annotations

import ast
import itertools
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kiln_recipe import targets
from kiln_recipe.call.dispatch import Chosen, Tables
from kiln_recipe.call.evaluate import Device, Refusal, Tensor
from kiln_recipe.dtypes import DTYPES
from kiln_recipe.model import Operation, Recipe
from kiln_recipe.plan import plan
from kiln_recipe.read import recipe
from kiln_recipe.selection import parse_selection

ROOT = Path(__file__).resolve().parents[1]
FLASH = ROOT / "tritonsrc" / "flash"
# The values of a call that set each flag alone.
ASKED = {
    "CU_Q": {"cu_seqlens_q.data": 1}, "CU_K": {"cu_seqlens_k.data": 1}, "USED_Q": {"seqused_q.data": 1},
    "USED_K": {"seqused_k.data": 1}, "BOTTOM_RIGHT": {"bottom_right": 1}, "SINKS": {"sinks.data": 1},
    "LSE": {"lse.data": 1}, "BIAS": {"bias.data": 1}, "ALIBI": {"alibi_slopes.data": 1}, "SOFTCAP": {"is_capped": 1},
    "DROPOUT": {"threshold": 1}, "SEED": {"seed.data": 1}, "OFFSET": {"offset.data": 1},
    "SEED_OUT": {"seed_out.data": 1}, "PAGED": {"block_table.data": 1}, "CACHE_BATCH": {"cache_batch.data": 1},
    "LEFTPAD": {"leftpad.data": 1}, "SCALES": {"k_scale.data": 1}, "INTERLEAVED": {"rotary_interleaved": 1},
    "ONE_ANGLE": {"window_left": -1, "window_right": -1},
    "SUMS_Q": {"cu_seqlens_q.data": 1, "is_padded": 1}, "SUMS_K": {"cu_seqlens_k.data": 1, "is_padded": 1},
    "LSE_BY_SEQUENCE": {"cu_seqlens_q.data": 1, "lse.data": 1, "lse.size[0]": 15, "lse.size[2]": 3},
    "Q_SCALE": {"q_descale.data": 1}, "K_SCALE": {"k_descale.data": 1}, "V_SCALE": {"v_descale.data": 1},
}  # fmt: skip
# What a flag's call cannot do without.
BESIDES = {
    ("attn_fwd", "LSE_BY_SEQUENCE"): ("CU_Q", "LSE"), ("attn_fwd_fp8", "LSE_BY_SEQUENCE"): ("CU_Q", "LSE"),
    ("attn_bwd", "LSE_BY_SEQUENCE"): ("CU_Q",),
}  # fmt: skip
# What is no flag there: backward always has a log-sum-exp, a mask is written for dropout alone, and nothing is rotated.
UNREAD = {
    ("attn_bwd", "LSE"), ("dropout_mask", "DROPOUT"), ("attn_fwd", "ONE_ANGLE"), ("attn_bwd", "ONE_ANGLE"),
    ("attn_fwd_fp8", "ONE_ANGLE"), ("attn_decode", "LSE_BY_SEQUENCE"),
}  # fmt: skip


@cache
def flash() -> Recipe:
    return recipe.load(FLASH / "recipe.yaml")


def constants() -> dict[str, int]:
    """The numbers of flags.py, which is not imported: it needs Triton."""
    tree = ast.parse((FLASH / "flags.py").read_text())
    return {node.targets[0].id: node.value.args[0].value for node in tree.body if isinstance(node, ast.Assign)}


def environment_of(operation: Operation, asked: dict[str, int]) -> dict[str, int]:
    """What expressions read in a call of tensors of 16 that are not there, a window, and what is asked."""
    environment = {"multiprocessors": 1, "device.multiprocessors": 1}
    for argument in operation.arguments:
        environment |= {name: 16 if ".size" in name or ".stride" in name else 0 for name in argument.values}
    environment |= {name: 0 for name in environment if name.endswith(".dtype")}
    environment |= {name: 1 for name in environment if name.startswith("window_")} | asked
    for definition in operation.definitions:
        environment[definition.name] = definition.value.evaluate(environment)
    return environment


def flags_of(operation: Operation, asked: dict[str, int]) -> dict[str, int]:
    """By kernel, its argument `flags` in such a call."""
    environment = environment_of(operation, asked)
    return {
        kernel.name: parameter.value.evaluate(environment)
        for kernel in operation.kernels
        for parameter in kernel.parameters
        if parameter.name == "flags"
    }


WITH_FLAGS = [o for o in flash().operations if any(p.name == "flags" for k in o.kernels for p in k.parameters)]


@pytest.mark.parametrize("operation", WITH_FLAGS, ids=lambda o: o.name)
def test_each_flag_has_the_number_that_kernels_know(operation):
    numbers, values = constants(), {name for argument in operation.arguments for name in argument.values}
    assert set(numbers) == set(ASKED), "ASKED, above, has for each flag what sets it"
    assert set(flags_of(operation, {}).values()) == {0}
    for name, asked in ASKED.items():
        if set(asked) <= values and (operation.name, name) not in UNREAD:
            found = {number for number in flags_of(operation, asked).values() if number}
            besides = sum(numbers[other] for other in BESIDES.get((operation.name, name), ()))
            assert found == {numbers[name] + besides}, f"{name} in {operation.name}"


def test_each_flag_is_set_by_a_kernel():
    every = set()
    for operation in flash().operations:
        values = {name for argument in operation.arguments for name in argument.values}
        for asked in ASKED.values():
            if set(asked) <= values:
                every |= set(flags_of(operation, asked).values())
    assert {number & flag for number in every for flag in constants().values()} - {0} == set(constants().values())


def test_what_a_target_cannot_hold_is_the_reason_of_all_configurations():
    """Not that a configuration is for other functionals: the first reason is what a refused call is told."""
    made = plan.make_plan([flash()], (targets.by_name("sm_80"),), "full", (), ROOT / "tuning")
    (kernel,) = (kernel for kernel in made.kernels if kernel.kernel.name == "attn_decode.general")
    number = [f.name for f in kernel.functionals].index("dtype=bf16 cache_dtype=fp8e4m3 head_dim=64 extras=none")
    slots = range(kernel.slot(number, 0, 0), kernel.slot(number + 1, 0, 0))
    reasons = {kernel.absent[slot] for slot in slots if slot in kernel.absent}
    reasons |= {variant.waiver for variant in made.variants_of(kernel) if variant.slot in slots}
    assert reasons == {"Ampere has no conversions to and from fp8e4m3"}


@cache
def tables_of(select: str, target: str = "sm_90") -> Tables:
    """Of the core profile."""
    return Tables(flash(), targets.by_name(target), "core", parse_selection(select), ROOT / "tuning")


@cache
def operation(name: str) -> Operation:
    return next(o for o in flash().operations if o.name == name)


def tensor(*sizes: int, dtype: str = "bf16") -> Tensor:
    strides = [1]
    for size in reversed(sizes[1:]):
        strides.insert(0, strides[0] * size)
    return Tensor(1 << 20, DTYPES[dtype], sizes, tuple(strides))


def dispatched(tables: Tables, name: str, some: dict[str, object]) -> list[Chosen]:
    """The kernels of a call of the operation with these arguments; what is not given is 0, or of reals 1."""
    nothing = {"tensor": None, "int": 0, "float": 1.0}
    values = [some.get(argument.name, nothing[argument.kind]) for argument in operation(name).arguments]
    call = tables.begin(operation(name), f"flash.{name}", values, Device("NVIDIA", 132))
    return [*tables.dispatch(call, dict.fromkeys(("partial", "partial_softmax", "rotated"), 1 << 30))]


def forward(tables: Tables, width: int, width_v: int, wanted: frozenset[str]) -> Chosen:
    """The kernel of a call of attn_fwd with these extras."""
    some = {"q": tensor(1, 2, 9, width), "k": tensor(1, 2, 9, width), "v": tensor(1, 2, 9, width_v)}
    some |= {"out": tensor(1, 2, 9, width_v), "window_left": -1, "window_right": -1, "sm_scale": 0.1}
    some |= {"softcap": 30.0, "is_capped": "softcap" in wanted, "threshold": 99 * ("dropout" in wanted)}
    some |= {"bias": tensor(1, 2, 9, 9)} if "bias" in wanted else {}
    (chosen,) = dispatched(tables, "attn_fwd", some)
    return chosen


EXTRAS = [frozenset(some) for n in range(4) for some in itertools.combinations(("bias", "softcap", "dropout"), n)]


def check_serves(chosen: Chosen, width: int, width_v: int, wanted: frozenset[str]) -> None:
    """The image can do what the call wants: its columns are enough, or masked, and it knows the extras."""
    constants = dict(chosen.variant.spec.constants)
    if "HEAD_DIM" in constants:  # by descriptors, which read zeros beyond a tensor's columns, and write none
        assert constants["HEAD_DIM"] >= max(width, width_v)
    else:
        columns = sum(constants[name] for name in ("P0", "P1", "P2"))
        assert columns >= max(width, width_v)
        assert constants["PADDED"] or (width, width_v) == (columns, columns)
    assert constants["EXTRAS"] == "any" or wanted <= {constants["EXTRAS"]}


@pytest.mark.parametrize("wanted", EXTRAS, ids=lambda some: "+".join(sorted(some)) or "none")
def test_the_core_profile_serves_every_head_up_to_128_and_all_extras(wanted):
    tables = tables_of("")
    for width, width_v in [*((n, n) for n in range(1, 129)), (40, 64), (128, 64), (64, 1)]:
        chosen = forward(tables, width, width_v, wanted)
        check_serves(chosen, width, width_v, wanted)
        functional = chosen.variant.functional.split()
        assert f"head_dim={64 if max(width, width_v) <= 64 else 128}" in functional
        assert ("extras=any" if wanted else "extras=none") in functional
    with pytest.raises(Refusal, match="head_dim=160 is in the full profile only; the nearest .* head_dim=128"):
        forward(tables, 129, 129, wanted)


WIDTHS = ("16", "64", "80", "128", "256")
KINDS = ("none", "bias", "softcap", "dropout", "any")


@settings(max_examples=40, deadline=None)
@given(
    st.sets(st.sampled_from(WIDTHS), min_size=1), st.sets(st.sampled_from(KINDS), min_size=1),
    st.sets(st.sampled_from(("false", "true")), min_size=1),
    st.lists(st.tuples(st.integers(1, 260), st.integers(1, 260) | st.none(), st.sampled_from(EXTRAS)), min_size=5),
)  # fmt: skip
def test_whatever_a_build_leaves_out_a_call_gets_what_can_serve_it_or_a_refusal(widths, kinds, padded, calls):
    select = f"head_dim={','.join(sorted(widths))};extras={','.join(sorted(kinds))};padded={','.join(sorted(padded))}"
    tables = tables_of(f"dtype=bf16;{select}")
    largest = max(map(int, widths))
    for width, width_v, wanted in [*((int(w), None, wanted) for w in widths for wanted in EXTRAS), *calls]:
        width_v = width_v or width
        try:
            check_serves(forward(tables, width, width_v, wanted), width, width_v, wanted)
        except Refusal as refusal:
            assert refusal.status == "UNSUPPORTED"
            assert max(width, width_v) > largest or not {"any"} <= kinds or "true" not in padded


@pytest.mark.parametrize(
    ("tiles", "keys", "width", "dtype", "splits"),
    [
        (64, 32768, 128, "bf16", 4),  # two blocks for each multiprocessor: all but 8
        (240, 32768, 128, "bf16", 1),
        (140, 32768, 128, "bf16", 5),  # once would leave half without a block: three rounds
        (140, 8192, 128, "bf16", 4),  # of parts of 2048 keys
        (140, 2048, 128, "bf16", 1),
        (500, 32768, 128, "bf16", 3),
        (960, 32768, 128, "bf16", 1),
        (8, 1024, 128, "bf16", 8),  # no part is below 128 keys
        (8, 100, 128, "bf16", 1),
        (1, 10**6, 128, "bf16", 128),
        (128, 32768, 64, "bf16", 4),
        (128, 32768, 128, "fp8e4m3", 8),
        (64, 32768, 256, "bf16", 6),
    ],
)
def test_keys_are_split_so_that_blocks_come_out_even(tiles, keys, width, dtype, splits):
    decode = operation("attn_decode")
    asked = {
        "multiprocessors": 132, "q.size[0]": tiles, "q.size[1]": 1, "q.size[2]": 1, "k_cache.size[1]": 1,
        "k_cache.size[2]": keys, "q.size[3]": width, "v_cache.size[3]": width, "max_seqlen_k": 0, "window_left": -1,
        "window_right": -1, "wanted_splits": 0, "k_cache.dtype": DTYPES[dtype],
    }  # fmt: skip
    assert environment_of(decode, asked)["splits"] == splits
    assert environment_of(decode, asked | {"wanted_splits": 7})["splits"] == 7


LENGTH = st.sampled_from([1, 16, 64, 65, 200, 1024, 1025, 5000, 100_000])


@pytest.mark.parametrize("target", ["sm_90", "sm_80", "gfx942", "gfx1100"])
@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from([1, 2, 7, 300]), LENGTH, LENGTH), min_size=2, max_size=4),
    st.sampled_from([16, 64, 80, 128]), st.sampled_from([1, 8]), st.booleans(), st.sampled_from(EXTRAS), st.booleans(),
)  # fmt: skip
def test_a_batch_invariant_forward_runs_the_same_image_in_any_batch(
    target, calls, width, group, ragged, wanted, causal
):
    images = set()
    for batch, rows, keys in calls:
        q, k = ((1, batch * rows), (1, batch * keys)) if ragged else ((batch, rows), (batch, keys))
        shapes = {"q": (q[0], 8, q[1], width), "k": (k[0], 8 // group, k[1], width)}
        some = {"q": shapes["q"], "out": shapes["q"], "k": shapes["k"], "v": shapes["k"]}
        some |= {"bias": (batch, 8, q[1], k[1])} if "bias" in wanted else {}
        some = {name: tensor(*sizes) for name, sizes in some.items()}
        if ragged:
            some |= dict.fromkeys(("cu_seqlens_q", "cu_seqlens_k"), tensor(batch + 1, dtype="int32"))
            some |= {"max_seqlen_q": rows, "max_seqlen_k": keys}
        some |= {"softcap": 30.0, "is_capped": "softcap" in wanted, "threshold": 99 * ("dropout" in wanted)}
        some |= {"window_left": -1, "window_right": -1 if not causal else 0, "sm_scale": 0.1, "batch_invariant": 1}
        (chosen,) = dispatched(tables_of("", target), "attn_fwd", some)
        images.add(chosen.variant)
    assert len(images) == 1


@pytest.mark.parametrize("target", ["sm_90", "sm_80", "gfx942", "gfx1100"])
@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from([1, 2, 7, 300]), LENGTH, st.integers(0, 100_000)), min_size=2, max_size=4),
    st.sampled_from([1, 4, 300]), st.sampled_from([64, 80, 128]), st.sampled_from([1, 8]), st.booleans(),
)  # fmt: skip
def test_batch_invariant_decoding_depends_on_rows_and_heads_alone(target, calls, rows, width, group, ragged):
    images, splits = set(), set()
    for batch, keys, longest in calls:
        q, k = (1, 8, batch * rows, width) if ragged else (batch, 8, rows, width), (batch, 8 // group, keys, width)
        some = {"q": tensor(*q), "out": tensor(*q), "k_cache": tensor(*k), "v_cache": tensor(*k)}
        if ragged:
            some |= {"cu_seqlens_q": tensor(batch + 1, dtype="int32"), "max_seqlen_q": rows}
        some |= {"max_seqlen_k": longest, "window_left": -1, "window_right": -1, "sm_scale": 0.1, "batch_invariant": 1}
        chosen = dispatched(tables_of("", target), "attn_decode", some)
        images.add(tuple(kernel.variant for kernel in chosen))
        splits.add(16 if len(chosen) == 2 else 1)
    assert len(images) == 1
    assert splits == {16 if rows * group <= 64 else 1}


HOPPER, PAGES, GENERAL, REDUCE = (
    "attn_prefill.hopper", "attn_prefill.small_pages", "attn_decode.general", "attn_decode_reduce.early",
)  # fmt: skip
LONG = {"keys": 32768}


@pytest.mark.parametrize(
    ("asked", "kernels"),
    [
        ({"rows": 512}, [HOPPER]),
        ({"rows": 512, "page_size": 64}, [HOPPER]),
        ({"rows": 512, "page_size": 128}, [HOPPER]),
        ({"rows": 512, "page_size": 16}, [PAGES]),
        ({"rows": 512, "page_size": 48}, [PAGES]),
        ({"rows": 512, "page_size": 24}, [GENERAL]),
        ({"rows": 512, "width": 124}, [GENERAL]),  # rows that a descriptor cannot describe
        ({"rows": 512, "is_capped": 1}, [GENERAL]),
        ({"rows": 512, "is_negative": 1}, [GENERAL]),
        ({"rows": 512, "k_new": tensor(1, 8, 5, 128), "rotated": 64}, ["append_kv", "rotate_q", GENERAL]),
        ({"rows": 512, "k_new": tensor(1, 8, 5, 128)}, ["append_kv", HOPPER]),
        # Half of the multiprocessors, and less.
        (LONG | {"rows": 256}, [HOPPER]),
        (LONG | {"rows": 192}, [GENERAL, REDUCE]),
        (LONG | {"rows": 192, "width": 256}, [HOPPER]),
        (LONG | {"rows": 192, "wanted_splits": 1}, [HOPPER]),
        (LONG | {"rows": 192, "batch_invariant": 1}, [HOPPER]),
        (LONG | {"rows": 512, "wanted_splits": 2}, [GENERAL, REDUCE]),
        # A turn of which most multiprocessors have no part.
        (LONG | {"rows": 512 + 128}, [HOPPER]),
        (LONG | {"rows": 512 + 32}, [HOPPER]),
        (LONG | {"rows": 64, "batch": 5}, [GENERAL, REDUCE]),
        (LONG | {"rows": 64, "batch": 8}, [HOPPER]),
        (LONG | {"rows": 63, "batch": 8}, [GENERAL]),
        # Sequences of a row among the others take a tile each.
        ({"rows": 2048, "sequences": 2}, [HOPPER]),
        ({"rows": 2048, "sequences": 100}, [GENERAL]),
    ],
    ids=str,
)  # fmt: skip
def test_many_rows_are_taken_by_prefill(asked, kernels):
    """Of 32 heads and 8 of keys, on 132 multiprocessors."""
    asked = {"batch": 1, "keys": 8192, "width": 128, "page_size": 0, "sequences": 0, "rotated": 0} | asked
    rows, width = asked.pop("rows"), asked.pop("width")
    batch, keys, size = asked.pop("batch"), asked.pop("keys"), asked.pop("page_size")
    sequences, rotated = asked.pop("sequences"), asked.pop("rotated")
    cache = tensor(batch * keys // size, 8, size, width) if size else tensor(sequences or batch, 8, keys, width)
    some = {"q": tensor(batch, 32, rows, width), "out": tensor(batch, 32, rows, width), "sm_scale": 0.1, "softcap": 1.0}
    some |= {"k_cache": cache, "v_cache": cache, "window_left": -1, "seqused_k": tensor(batch, dtype="int32")}
    if size:
        some["block_table"] = tensor(batch, keys // size, dtype="int32")
    if sequences:
        some |= {"cu_seqlens_q": tensor(sequences + 1, dtype="int32"), "seqused_k": tensor(sequences, dtype="int32")}
    if rotated:
        some |= {"rotary_cos": tensor(keys, rotated // 2), "rotary_sin": tensor(keys, rotated // 2)}
    some |= {"v_new": asked["k_new"]} if "k_new" in asked else {}
    some |= asked
    chosen = dispatched(tables_of("dtype=bf16;head_dim=128,256"), "attn_decode", some)
    assert [one.variant.kernel for one in chosen] == kernels


def test_decoding_refuses_a_log_sum_exp_by_sequences():
    """Forward takes one; what decoding writes lies as q does."""
    some = {"q": tensor(1, 8, 6, 64), "out": tensor(1, 8, 6, 64), "cu_seqlens_q": tensor(4, dtype="int32")}
    some |= {"k_cache": tensor(3, 8, 99, 64), "v_cache": tensor(3, 8, 99, 64), "max_seqlen_q": 2, "sm_scale": 0.1}
    some |= {"window_left": -1, "window_right": -1}
    dispatched(tables_of(""), "attn_decode", some | {"lse": tensor(1, 8, 6, dtype="fp32")})
    with pytest.raises(Refusal, match="lse must have the shape \\[batch, heads, rows\\] of q"):
        dispatched(tables_of(""), "attn_decode", some | {"lse": tensor(3, 8, 2, dtype="fp32")})
