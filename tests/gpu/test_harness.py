"""The suite's own checks, on the CPU: they let FlashAttention's rounding pass, and find what is wrong.

A stand-in (standin.py) takes the release's place. Needs PyTorch, and no GPU.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import sampling  # noqa: E402
from calls import Call  # noqa: E402
from check import check  # noqa: E402
from decode_calls import DecodeCall, bits  # noqa: E402
from decode_check import check_decode  # noqa: E402
from standin import Standin  # noqa: E402

CALLS = (
    Call(rows=70, keys=130, causal=True, bottom_right=True, layout="reversed", layout_out="odd rows"),
    Call(dtype="fp16", rows=70, keys=50, batch=2, heads=4, bias="both", alibi="heads", layout="broadcast"),
    Call(dtype="fp32", rows=70, keys=50, heads=4, sinks=True, softcap=5.0, dropout=0.3, left=20, right=3, width_v=40),
    Call(batch=3, rows=70, keys=65, heads=4, heads_kv=1, lengths_q=(70, 0, 13), lengths_k=(5, 65, 0),
         varlen_q="compact", varlen_k="both", bias="heads", sinks=True),
    Call(dtype="fp16", rows=200, keys=0),
    Call(dtype="fp32", batch=3, rows=70, keys=65, heads=4, lengths_q=(70, 0, 13), lengths_k=(5, 65, 0),
         varlen_q="compact", varlen_k="compact", lse_by_sequence=True, sinks=True),
    Call(batch=3, rows=70, keys=65, heads=4, lengths_q=(70, 0, 13), lengths_k=(5, 65, 0), varlen_q="sums",
         varlen_k="sums"),
)  # fmt: skip
SHARING = (
    Call(rows=40, keys=600, inputs="uniform"),
    Call(dtype="fp16", rows=40, keys=600, inputs="keys + 5", causal=True, bottom_right=True, heads=4),
    Call(rows=40, keys=600, inputs="keys + 50"),
)
DECODES = (
    DecodeCall(used=(190, 0), keys=200, rows=5, new_rows=5, rotary="interleaved", page_size=16, causal=True),
    DecodeCall(used=(190, 0), keys=200, rows=5, new_rows=2, rotary="half", fp8=True, sinks=True, left=50),
    DecodeCall(keys=200, rows=5, inputs="keys + 50"),
    DecodeCall(dtype="fp16", cache_batch=True, leftpad=True, keys=100, alibi="batch", lengths_q=(9, 0), rows=9),
)


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def small(call: Call) -> bool:
    return call.scores * max(call.width, 64) < 5e6


@pytest.mark.parametrize("call", CALLS + SHARING, ids=str)
def test_honest_rounding_passes(call):
    assert not check(call, Standin(), "cpu").wrong()


@pytest.mark.parametrize("call", SHARING, ids=str)
def test_an_offset_that_is_left_in_dq_is_found(call):
    """FlashAttention-2's own dq is not good enough where keys share an offset."""
    wrong = check(call, Standin(balances=False), "cpu").wrong()
    assert [fault.split(" ")[0] for fault in wrong] == ["dq:"] and "of its scale" in wrong[0], wrong


@pytest.mark.parametrize("call", DECODES, ids=str)
def test_honest_decoding_passes(call):
    assert not check_decode(call, Standin(), "cpu").wrong()


def test_random_calls_pass():
    calls = [sampling.random_call(3, number) for number in range(120)]
    wrong = [
        (str(call), verdict.wrong())
        for call in filter(small, calls)
        if (verdict := check(call, Standin(), "cpu")).wrong()
    ]
    assert not wrong


def test_random_decoding_passes():
    calls = [sampling.random_decode(3, number, True) for number in range(40)]
    calls = [call for call in calls if call.batch * call.heads * call.rows * call.keys * call.width < 5e6]
    wrong = [
        (str(call), verdict.wrong()) for call in calls if (verdict := check_decode(call, Standin(), "cpu")).wrong()
    ]
    assert not wrong


def test_random_calls_are_the_same_every_time():
    assert sampling.random_call(3, 7) == sampling.random_call(3, 7)
    assert len({sampling.random_call(3, number) for number in range(50)}) == 50


MISTAKES = {
    "one row is another's": lambda t: torch.cat([t[:, :, 1:2], t[:, :, 1:]], 2),
    "two heads are swapped": lambda t: t.flip(1),
    "one in a hundred too large": lambda t: t * 1.01,
    "one element is NaN": lambda t: t.index_fill(2, torch.tensor([3]), torch.nan),
    "all is 0": torch.zeros_like,
}


@pytest.mark.parametrize("dtype", ["fp16", "fp32"])
@pytest.mark.parametrize("output", ["out", "lse", "dq", "dk", "dv", "dbias"])
@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_found(mistake, output, dtype):
    call = Call(dtype=dtype, rows=70, keys=90, heads=4, heads_kv=2, bias="none", inputs="normal")
    spoil = Standin(lambda name, values: MISTAKES[mistake](values) if name == output else values)
    wrong = check(call, spoil, "cpu").wrong()
    # 1 % of lse and of what feeds the gradients shows there as well.
    assert any(fault.startswith(f"{output}:") for fault in wrong), wrong


@pytest.mark.parametrize("output", ["out", "lse", "dv"])
@pytest.mark.parametrize(
    ("dtype", "inputs"), [("bf16", "uniform"), ("fp16", "uniform"), ("fp32", "uniform"), ("fp32", "keys + 50")]
)
def test_one_in_a_hundred_is_found_where_rows_are_alike(dtype, inputs, output):
    """Whatever is allowed there besides: judge.score_share and weight_share, and dv's of weights that are alike."""
    call = Call(dtype=dtype, rows=200, keys=64, inputs=inputs)
    spoil = Standin(lambda name, values: values * 1.01 if name == output else values)
    assert any(fault.startswith(f"{output}:") for fault in check(call, spoil, "cpu").wrong())


@pytest.mark.parametrize("inputs", ["normal", "outliers", "keys + 50"])
def test_fp32_by_tf32_is_found(inputs):
    """Scores in the hundreds may lose what sums in fp32 do, and no more: TF32 has 11 bits."""
    from check import Expected, Outputs

    expected = Expected(Call(dtype="fp32", rows=70, keys=90, inputs=inputs), "cpu", Standin())
    inputs, outputs = expected.inputs, Outputs(expected.inputs)
    assert expected.exact and expected.low  # of what was given
    for storage in (inputs.q, inputs.k, inputs.v, inputs.dout):
        fraction, exponent = torch.frexp(storage.values)
        storage.put(torch.ldexp((fraction * 2**11).round(), exponent - 11))
    Standin().forward(inputs, outputs)
    Standin().backward(inputs, outputs)
    faults = [fault.split(":")[0] for fault in expected.judge(outputs).wrong()]
    assert {"out", "lse", "dk", "dv"} <= {*faults}, faults


@pytest.mark.parametrize(
    ("asked", "given"),
    [
        ({"causal": True}, {"causal": True, "bottom_right": True}),
        ({"left": 20, "right": 0}, {"left": 21, "right": 0}),
        ({"softcap": 5.0}, {}),
        ({"alibi": "heads"}, {}),
        ({"sm_scale": 0.125}, {"sm_scale": 0.126}),
        ({"dropout": 0.3}, {"dropout": 0.3, "offset": 1}),
        ({"varlen_k": "padded", "lengths_k": (89,)}, {"varlen_k": "padded", "lengths_k": (90,)}),
    ],
    ids=lambda fields: ", ".join(f"{name}={value}" for name, value in fields.items()),
)
def test_another_call_than_was_asked_for_is_found(asked, given):
    """What the stand-in makes of other parameters is judged as the answer to those that were asked."""
    from dataclasses import replace

    from check import Expected, Outputs

    call = Call(dtype="fp32", rows=70, keys=90, heads=4, **asked)
    expected = Expected(call, "cpu", Standin())
    outputs = Outputs(expected.inputs)
    other = Call(dtype="fp32", rows=70, keys=90, heads=4, **given)
    inputs, asked_for = expected.inputs, expected.inputs.call
    inputs.k.put(0.0, ~inputs.keys)  # NaN beyond the sequence would give it away
    inputs.v.put(0.0, ~inputs.keys)
    inputs.slopes = inputs.slopes if other.alibi else None
    expected._keep  # noqa: B018  of the call that was asked for
    inputs.call = replace(other, number=call.number)
    Standin().forward(inputs, outputs)
    Standin().backward(inputs, outputs)
    inputs.call = asked_for
    if asked.get("alibi"):
        expected = Expected(call, "cpu", Standin())
    wrong = expected.judge(outputs).wrong()
    for output in ("out", "dq", "dk"):
        assert any(fault.startswith(output) for fault in wrong), wrong


def test_what_is_written_elsewhere_is_found():
    class Careless(Standin):
        def forward(self, inputs, outputs, keys=(), target=None):
            super().forward(inputs, outputs, keys, target)
            outputs["out"].memory[0] = 0.0

        def backward(self, inputs, outputs, keys=(), target=None):
            super().backward(inputs, outputs, keys, target)
            outputs["dk"].put(0.0, ~inputs.keys)

    call = Call(batch=2, varlen_k="padded", varlen_q="padded", lengths_q=(65, 3), lengths_k=(65, 60))
    wrong = check(call, Careless(), "cpu").wrong()
    assert [fault.split(":")[0] for fault in wrong] == ["out", "dk"]


def test_a_cache_that_is_written_elsewhere_is_found():
    class Careless(Standin):
        def decode(self, run, keys=(), target=None):
            super().decode(run, keys, target)
            bits(run.inputs.v_cache)[0, 0, 40, 0] ^= 1

    wrong = check_decode(DecodeCall(used=(30, 20), keys=50, new_rows=1), Careless(), "cpu").wrong()
    assert wrong == ["v_cache: something was written beside what was appended"]


def test_forced_images():
    """Images that no call reaches are said; those that one reaches are run in a few."""
    import ffi
    from candidates import MOST_CASES, run_images

    class Choosy(Standin):
        def forward(self, inputs, outputs, keys=(), target=None):
            if keys == ("never",) or (keys == ("generic",) and inputs.call.is_aligned):
                raise ffi.Failure(ffi.UNSUPPORTED, "the variant is specialised (aligned) for arguments that this")
            super().forward(inputs, outputs, keys, target)

    variants = [{"kernel": "attn_fwd", "specialization": key, "key": key} for key in ("aligned", "generic", "never")]
    rows = run_images(Choosy(), "cpu", [], "attn_fwd", "dtype=bf16 head_dim=16 extras=none", variants, None)["rows"]
    assert [row["cases"] for row in rows] == [MOST_CASES, MOST_CASES, 0]
    assert [len(row["wrong"]) for row in rows] == [0, 0, 1]


def test_an_image_whose_equal_calls_differ_is_found():
    """If it is there to give equal bits: of one that adds in any order nothing is made again."""
    from candidates import run_images

    class Wavering(Standin):
        def __init__(self):
            super().__init__()
            self.calls = 0

        def forward(self, inputs, outputs, keys=(), target=None):
            super().forward(inputs, outputs, keys, target)
            self.calls += 1
            values = outputs["out"].memory.view(torch.int16)
            values[values != values[0]] ^= self.calls % 2  # the last bit of what was written

    variants = [{"kernel": "attn_fwd", "specialization": "generic", "key": "generic"}]

    def run(kiln, functional="dtype=bf16 head_dim=16 extras=none"):
        (row,) = run_images(kiln, "cpu", [], "attn_fwd", functional, variants, None, most=1, small=True, runs=2)["rows"]
        return row

    assert run(Standin())["runs"] == 2 and not run(Standin())["wrong"]
    assert any("out differs from run to run" in fault for fault in run(Wavering())["wrong"])
    assert "runs" not in run(Wavering(), "dtype=bf16 head_dim=16 extras=none ordered=false")


def test_a_task_says_what_went_wrong():
    from worker import Tasks

    class Broken(Standin):
        def forward(self, inputs, outputs, keys=(), target=None):
            raise RuntimeError("no such thing")

    tasks = Tasks(Broken(), "cpu")
    assert "no such thing" in tasks.one(Call(), None)["fault"]
    answer = tasks.random(1, 0, 3, "attention", None)
    assert answer["ran"] == 3 and len(answer["rows"]) == 3


def test_a_process_of_the_pool_finds_what_it_imports(tmp_path):
    """Where nobody sets PYTHONPATH."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, str(Path(__file__).with_name("worker.py"))]  # without its release: the imports end first
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert "ModuleNotFoundError" not in done.stderr and "sys.argv" in done.stderr, done.stderr
