"""What each entry makes a driver do: the image that is loaded, the kernel, grid, block, shared memory, stream and each
byte of each argument are those of the recipe, evaluated in Python, and of the image's own metadata."""

from __future__ import annotations

import _ctypes
import ctypes
import os
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import entries
import ffi
import pytest
from drawn_calls import drawn_fields, matmul_call, norm_call, seq_lengths_call
from oracle import Expected, Oracle, Run, digest_of, observed, operation
from running import WORKSPACE, Runner, opened
from whole_calls import whole_call

from kiln_recipe.call.evaluate import Given, Refusal
from kiln_recipe.plan.model import KernelPlan

CALLS = int(os.environ.get("KILN_TEST_CALLS", "200"))  # of each entry on each target


@pytest.fixture
def runner(libraries, fake, judge):
    with opened(libraries, fake, judge) as runner:
        yield runner


@pytest.fixture
def register(runner, wide_release) -> Iterator[Callable[[str], None]]:
    """Registers another family of the release; after the test, failed or not, its library is mapped no more."""
    libraries: list[ctypes.CDLL] = []

    def register(family: str) -> None:
        libraries.append(ctypes.CDLL(str(wide_release.prefix / "lib" / f"libkiln_{family}.so")))
        runner.kiln.register(libraries[-1], family)

    yield register
    runner.kiln.close()
    for library in libraries:
        _ctypes.dlclose(library._handle)


def expected(runner: Runner, name: str, fields: dict[str, object], **more: object) -> Expected | Refusal:
    """What a call of an entry must do."""
    return runner.expected(f"flash.{name}", entries.arguments(operation(f"flash.{name}"), fields), **more)


@pytest.mark.parametrize("name", entries.STRUCTURES)
def test_random_calls(runner, name):
    ran = 0
    for number in range(CALLS):
        rng = random.Random(f"{name} {runner.judge.target} {number}")
        fields = drawn_fields(name, rng)
        try:
            ran += runner.check(name, fields, rng)
        except AssertionError as error:
            raise AssertionError(f"call {number}: {fields}") from error
    if name in entries.HOPPER_ALONE and runner.vendor == ffi.AMD:
        assert ran < CALLS / 10, "only those that have nothing to do"
    else:
        assert ran > CALLS / 2, "most calls are to run"


def test_random_calls_of_an_operation_without_an_entry(runner):
    """By kiln_launch alone: optional tensors of every combination, and no choice."""
    ran = 0
    for number in range(CALLS):
        rng = random.Random(f"seq_lengths {runner.judge.target} {number}")
        given = seq_lengths_call(rng)
        try:
            ran += runner.check_generic("flash.seq_lengths", given, rng)
        except AssertionError as error:
            raise AssertionError(f"call {number}: {given}") from error
    assert ran > CALLS / 2, "most calls are to run"


def test_random_calls_of_a_strangers_family(runner, register):
    """The second family of the release, which has no entries of its own: a workspace, memory that is set to zero,
    parameters that images do not take."""
    register("norm")
    ran = 0
    for number in range(CALLS):
        rng = random.Random(f"norm {runner.judge.target} {number}")
        given = norm_call(rng)
        try:
            ran += runner.check_generic("norm.rms_norm", given, rng)
        except AssertionError as error:
            raise AssertionError(f"call {number}: {given}") from error
    assert ran > CALLS / 2, "most calls are to run"


LACKS = (
    "it is not for",
    "it serves calls with",
    "is at",
    "the last stride of",
    "the last size of",
    "needs a multiple of 16 bytes below 2^40",
)


def test_random_calls_of_a_kernel_with_several_implementations(runner, fake, register):
    """Which one runs, what is encoded for its tensor descriptors, and why others were passed over."""
    register("matmul")
    taken: Counter[str] = Counter()
    lacks: set[str] = set()
    for number in range(CALLS):
        rng = random.Random(f"matmul {runner.judge.target} {number}")
        given = matmul_call(rng)
        try:
            runner.check_generic("matmul.matmul", given, rng)
            wanted = runner.expected("matmul.matmul", given)
            said = explained(runner, "matmul.matmul", given)
            if isinstance(wanted, Refusal):
                assert said == []
                continue
            assert said == [*zip(wanted.keys, wanted.passed)]
        except AssertionError as error:
            raise AssertionError(f"call {number}: {given}") from error
        for line in "\n".join(wanted.passed).splitlines():
            lacks |= {kind for kind in LACKS if kind in line}
        taken.update(run.symbol for run in wanted.steps if isinstance(run, Run))
    first, last = {"sm_90": ("matmul_hopper", "matmul"), "gfx942": ("matmul_cdna", "matmul")}[runner.judge.target]
    assert taken.keys() == {first, last} and min(taken.values()) > CALLS / 10, taken
    assert lacks == set(LACKS if runner.judge.target == "sm_90" else LACKS[:2])


def told(variant: ffi.Variant) -> tuple[str, str]:
    """A variant's key, and what is said of those that are passed over for it."""
    return variant.key.decode(), (variant.passed_over or b"").decode()


def explained(runner: Runner, name: str, given: Sequence[Given]) -> list[tuple[str, str]]:
    """Of each variant that a call would run its key, and what kiln_explain says was passed over for it."""
    found: list[tuple[str, str]] = []

    def visit(variant: object, _: object) -> int:
        found.append(told(variant.contents))
        return 0

    call = entries.call_of(runner.kiln, name, operation(name), given, vendor=runner.vendor, device=-1,
                           stream=runner.fake.stream(runner.vendor))  # fmt: skip
    runner.library.c.kiln_explain(ctypes.byref(call), ffi.VariantFn(visit), None)
    return found


def explained_by_entry(runner: Runner, name: str, fields: dict[str, object], wanted: object) -> list[tuple[str, str]]:
    """As explained(), by the entry's own function, which must say of the call what is `wanted`."""
    found: list[tuple[str, str]] = []
    visit = ffi.VariantFn(lambda variant, _: found.append(told(variant.contents)) or 0)
    queue = runner.queue(runner.fake.stream(runner.vendor))
    runner.check_status(runner.entry(name, queue, fields, visit, None, suffix="_explain"), wanted)
    return found


@pytest.mark.parametrize("name", [name for name, suffixes in entries.SUFFIXES.items() if suffixes])
def test_explain_and_prepare_say_and_load_what_a_call_runs(runner, fake, name):
    for number in range(CALLS // 10):
        fields = drawn_fields(name, random.Random(f"explain {name} {runner.judge.target} {number}"))
        wanted, queue = expected(runner, name, fields), runner.queue(fake.stream(runner.vendor))
        found = explained_by_entry(runner, name, fields, wanted)
        runner.check_status(runner.entry(name, queue, fields, suffix="_prepare"), wanted)
        assert found == ([] if isinstance(wanted, Refusal) else [*zip(wanted.keys, wanted.passed)])
        assert fake.record().steps == []
        loaded = {digest_of(image.code) for image in fake.record().images.values()}
        assert loaded >= {runner.judge.by_key[key].image for key, _ in found}


@pytest.mark.parametrize(
    ("window", "kernel"),
    [
        ({"window_left": -1, "causal": 1}, "hopper_few"),
        ({"window_left": 128, "causal": 1}, "hopper_few"),
        ({"window_left": 127, "causal": 1}, "general"),
        ({"window_left": 63, "window_right": 64}, "general"),
        ({"window_left": 64, "window_right": 64}, "hopper"),
        ({"window_right": 64}, "hopper"),
    ],
)
def test_windows_of_few_keys_of_heads_of_64_are_the_general_kernels(runner, window, kernel):
    """A tile of Hopper's kernel sees a window of 128 keys as two blocks, both through a mask."""
    fields = whole_call("attn_fwd", {}, rows=1100) | window
    ((taken, _),) = explained_by_entry(runner, "attn_fwd", fields, expected(runner, "attn_fwd", fields))
    names = {plan.kernel.name for plan, _, key in slots_of(runner.judge, "attn_fwd") if key == taken}
    if runner.vendor == ffi.NVIDIA:
        assert names == {f"attn_fwd.{kernel}"}
    else:
        assert names and names <= {"attn_fwd.amd", "attn_fwd.general"}


@pytest.mark.parametrize("name", [name for name in entries.STRUCTURES if name != "dropout_mask"])
def test_every_image_when_it_is_forced(runner, fake, name):
    """Each that the look-up may or may not lead to: of every functional, configuration and specialization."""
    ran: set[str] = set()
    queue = runner.queue(fake.stream(runner.vendor))
    room = {"workspace": WORKSPACE, "workspace_bytes": 1 << 40}
    for kernel, number, key in slots_of(runner.judge, name):
        functional, configuration, specialization = runner.judge.place(kernel, number)
        is_aligned = specialization != "generic"
        if kernel.kernel.kernel == "attn_prefill":  # of queries as they are, and keys in one part
            fields = whole_call(name, functional) | {"splits": 1}
            del fields["rotary_cos"], fields["rotary_sin"]
        elif operation(f"flash.{name}").may_be_replaced(kernel.kernel) and "extras" not in functional:
            # Of an algorithm that may not know extras, and describes tensors, but neither out nor dq.
            fields = whole_call(name, {**functional, "extras": "none"})
            for tensor in () if is_aligned or kernel.kernel.descriptors else ("out", "dq"):
                if tensor in fields:
                    fields[tensor] = replace(fields[tensor], data=fields[tensor].data + 2)
        elif kernel.kernel.name == "attn_fwd.hopper_few":
            fields = whole_call(name, functional, rows=600, keys=600) | {"causal": 1}
        elif kernel.kernel.descriptors:  # of heads of 64, attn_fwd.hopper takes many rows only
            fields = whole_call(name, functional, rows=1100)
        elif kernel.kernel.name == "attn_decode.short":  # of few rows, aligned ones alone
            fields = whole_call(name, functional, rows=8)
        else:
            fields = whole_call(name, functional, is_aligned)
        wanted = expected(runner, name, fields, forced={kernel.kernel.name: configuration})
        if key not in wanted.keys:  # of the other algorithm, which few keys take
            fields = whole_call(name, functional, is_aligned, keys=250)
            wanted = expected(runner, name, fields, forced={kernel.kernel.name: configuration})
        assert key in wanted.keys
        fields |= {"force_keys": (ctypes.c_char_p * 1)(key.encode()), "force_count": 1, **room}
        before = len(fake.record().steps)
        runner.check_status(runner.entry(name, queue, fields), wanted)
        assert observed(fake.record(), before, queue.stream, 0) == wanted.steps
        ran |= set(wanted.keys)
    assert ran >= {key for _, _, key in slots_of(runner.judge, name)}


def slots_of(judge: Oracle, name: str) -> list[tuple[KernelPlan, int, str]]:
    """Of an entry's operation: (kernel, number, key) of each slot with an image."""
    return [
        (judge.plan(place), number, slot.key)
        for place, kernel in judge.slots.items()
        if place[:2] == ("flash", name)
        for number, slot in enumerate(kernel.slots)
        if slot.image
    ]
