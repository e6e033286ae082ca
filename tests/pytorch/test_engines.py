"""What stands beneath torch.ops.kiln: engines, statuses and second tries of the native one, and explain()."""

from __future__ import annotations

import ctypes
import json
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from test_operators import qkv
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import kiln
import kiln.torch as kt
from kiln import _core
from kiln.errors import (
    ArgumentError,
    KilnError,
    NoDeviceError,
    OutOfMemoryError,
    QueueError,
    RangeError,
    UnsupportedError,
)
from kiln.torch import explanation, functions, native, operators

# ---- engines --------------------------------------------------------------------------------------------------------


def test_engines_are_switched_and_given_back(definition) -> None:
    assert operators.engine() is definition
    before = operators.set_engine(None)
    assert before is definition and operators.engine() is native
    assert operators.set_engine(before) is None


class Statuses:
    """kiln_native's operators, answering with statuses as they were told to."""

    def __init__(self, *statuses: int) -> None:
        self.statuses, self.seen = list(statuses), []

    def __call__(self, *args: object) -> tuple:
        self.seen.append(args)
        status = self.statuses.pop(0)
        return (None, None, status) if status else ("out", "lse", 0)


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch):
    def give(*statuses: int) -> Statuses:
        op = Statuses(*statuses)
        monkeypatch.setattr(native, "forward_op", op)
        monkeypatch.setattr(native, "shortcut", SimpleNamespace(attend=lambda *args: None))
        monkeypatch.setattr(_core, "last_error", lambda: "a sentence")
        return op

    return give


def test_tensors_are_made_to_fit(answers) -> None:
    """A last dimension with a stride is copied, and nothing else; heads and rows keep their order in memory."""
    op = answers(native.REFIT, 0)
    q = torch.zeros(2, 3, 4, 8)
    strided = torch.zeros(2, 4, 3, 8, 2)[..., 0].transpose(1, 2)
    bias = torch.zeros(1, 1, 4, 4, 2)[..., 0]
    assert native.attn_fwd(strided, q, q, bias) == ("out", "lse")
    again = op.seen[1]
    assert again[1] is q and again[2] is q and again[0].stride() == (96, 8, 24, 1) and again[3][0].is_contiguous()
    answers(native.REFIT, native.REFIT)
    with pytest.raises(ArgumentError, match="must be contiguous"):
        native.attn_fwd(strided, q, q)


def test_strides_out_of_range_are_copied_once(answers) -> None:
    q = torch.zeros(2, 3, 4, 8)
    op = answers(14, 0)
    assert native.attn_fwd(q.transpose(1, 2), q, q) == ("out", "lse")
    assert op.seen[1][0].shape == (2, 4, 3, 8) and op.seen[1][0].stride() == q.transpose(1, 2).stride()
    assert op.seen[1][0] is not op.seen[0][0] and op.seen[1][1] is q
    answers(14)
    with pytest.raises(RangeError, match="a sentence"):
        native.attn_fwd(q, q, q)
    answers(14, 14)
    with pytest.raises(RangeError, match="a sentence"):
        native.attn_fwd(q.transpose(1, 2), q, q)


def test_of_a_range_extras_are_copied_too(answers) -> None:
    q, bias = torch.zeros(2, 3, 4, 8), torch.zeros(1, 1, 4, 8)[..., :4]
    op = answers(14, 0)
    assert native.attn_fwd(q, q, q, bias) == ("out", "lse")
    assert op.seen[1][0] is q and op.seen[1][3][0].is_contiguous() and not op.seen[0][3][0].is_contiguous()
    op = answers(14, 0)
    with pytest.raises(RangeError, match="a sentence"):  # nothing to copy, so nothing is tried again
        native.attn_fwd(q, q, q, bias.contiguous())
    assert len(op.seen) == 1


def test_messages_go_to_pythons_logger() -> None:
    """Those of the runtime that the library opens; in a process of its own, where none is open."""
    code = """
import logging, torch
import kiln.torch
from torch._subclasses.fake_tensor import FakeTensorMode
seen = []
class Handler(logging.Handler):
    def emit(self, record):
        seen.append((record.levelname, record.getMessage()))
logging.getLogger("kiln").addHandler(Handler())
logging.getLogger("kiln").setLevel(LEVEL)
with FakeTensorMode():
    q = torch.empty(1, 1, 8, 64, dtype=torch.bfloat16, device="cuda")
    kiln.torch.explain(q, q, q)
print(seen)
"""
    run = lambda level: subprocess.run(  # noqa: E731
        [sys.executable, "-c", code.replace("LEVEL", level)], capture_output=True, text=True, check=True
    )
    done = run("logging.INFO")
    assert "('INFO', 'registered the family flash of release" in done.stdout and not done.stderr, done
    assert run("logging.ERROR").stdout == "[]\n"


def test_a_thread_without_a_context_gets_one(answers, monkeypatch: pytest.MonkeyPatch) -> None:
    q, asked = torch.zeros(2, 3, 4, 8), []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: asked.append(device))
    answers(13, 0)
    assert native.attn_fwd(q, q, q) == ("out", "lse") and asked == [q.device]
    answers(13, 13)
    with pytest.raises(QueueError, match="a sentence"):
        native.attn_fwd(q, q, q)


@pytest.mark.parametrize("status", range(1, 18))
def test_every_status_is_an_exception(answers, status: int) -> None:
    if status in (13, 14):
        return
    q = torch.zeros(2, 3, 4, 8)
    answers(status)
    with pytest.raises(KilnError) as caught:
        native.attn_fwd(q, q, q)
    assert str(caught.value) == "a sentence" and caught.value.status == status
    if status == 11:
        assert isinstance(caught.value, OutOfMemoryError) and isinstance(caught.value, torch.OutOfMemoryError)


def test_what_the_shortcut_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The scale and the flags of an engine's plain calls; those of functions are read in C."""
    q, out, asked = torch.zeros(2, 3, 4, 8), torch.ones(2, 3, 4, 8), []
    monkeypatch.setattr(native, "shortcut", SimpleNamespace(attend=lambda *args: asked.append(args[3:]) or out))
    calls = [
        (lambda: native.attn_fwd(q, q, q)[0], (0.0, 0)),
        (lambda: native.attn_fwd(q, q, q, scale=0.5, causal=True)[0], (0.5, native.CAUSAL)),
        (
            lambda: native.attn_fwd(q, q, q, causal=True, bottom_right=True)[0],
            (0.0, native.CAUSAL + native.BOTTOM_RIGHT),
        ),
        (lambda: native.attn_fwd(q, q, q, rows_first=True)[0], (0.0, native.ROWS_FIRST)),
    ]
    for call, expected in calls:
        assert call() is out and asked.pop() == expected and not asked


def test_what_each_argument_is_to_a_plain_call() -> None:
    flag = 1 << 16
    expected = {"query": 0, "key": 1, "value": 2, "attn_mask": -2, "dropout_p": -2, "is_causal": flag + native.CAUSAL,
                "scale": -1, "enable_gqa": flag + native.EQUAL_HEADS}  # fmt: skip
    assert native.plain_fields(kt.scaled_dot_product_attention, ("query", "key", "value")) == expected
    fields = native.plain_fields(kt.decode, ("q", "k_cache", "v_cache"))
    assert fields["window"] == -3 and fields["rows_first"] == flag + native.ROWS_FIRST
    assert fields["splits"] == fields["sinks"] == fields["k_new"] == -2


def test_what_the_shortcut_does_not_take_the_operator_does(answers, monkeypatch: pytest.MonkeyPatch) -> None:
    q, out, seen = torch.zeros(2, 3, 4, 8), torch.ones(2, 3, 4, 8), []
    attend = torch.ops.kiln.attn_fwd
    answers(2, 2)
    for refused in (lambda: attend(q, q, q, sinks=torch.zeros(3)), lambda: attend(q, q, q)):
        with pytest.raises(UnsupportedError, match="a sentence"):
            refused()
    with torch.autocast("cpu", torch.bfloat16):  # which the operator is told by the dispatcher: it casts
        monkeypatch.setattr(native, "forward_op", lambda *args: seen.append(args) or (out, None, 0))
        assert attend(q, q, q)[0] is out
    assert [tensor.dtype for tensor in seen[0][:3]] == [torch.bfloat16] * 3
    with FakeTensorMode() as mode:
        fake = mode.from_tensor(q)
        assert attend(fake, fake, fake)[0].shape == q.shape


def test_a_call_that_is_recorded_by_the_shortest_way(answers, monkeypatch: pytest.MonkeyPatch) -> None:
    q = torch.zeros(2, 3, 4, 8, requires_grad=True)
    monkeypatch.setattr(Tensor, "is_cuda", property(lambda self: True))
    answers(2)
    with pytest.raises(UnsupportedError, match="a sentence"):
        kt.attention(q, q, q)
    op = answers(native.REFIT, 0)
    monkeypatch.setattr(op, "statuses", [native.REFIT, 2])
    with pytest.raises(UnsupportedError, match="a sentence"):  # the other way is tried, and has its own answer
        kt.attention(q, q, q)
    out, lse = torch.ones(2, 3, 4, 8), torch.zeros(2, 3, 4)
    seen = []
    monkeypatch.setattr(native, "forward_op", lambda *args: seen.append(args) or (out.clone(), lse, 0))
    monkeypatch.setattr(native, "_backward_op", lambda *args: seen.append(args) or (args[1] * 2,) * 3 + (None, None, 0))
    result = kt.scaled_dot_product_attention(q, q, q, is_causal=True, scale=0.5)
    result.sum().backward()
    assert seen[0][5] == native.ALIKE + native.EQUAL_HEADS + native.CAUSAL + native.RETURN_LSE + native.FOR_BACKWARD
    assert seen[0][6] == 0.5 and seen[1][8] & native.CAUSAL and seen[1][9] == 0.5
    assert q.grad is not None


# ---- explain --------------------------------------------------------------------------------------------------------


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch):
    """The runtime on the fake driver, of whose device the fake tensors are."""
    lib = Path(kiln.__file__).parent / "lib"
    fake = ctypes.CDLL(str(lib / "libfake.so"))
    fake.fake_context.restype = ctypes.c_void_p
    fake.fake_set_current.argtypes = [ctypes.c_int32, ctypes.c_void_p]
    fake.fake_reset()
    fake.fake_set_current(1, fake.fake_context(0, 0))
    images, resolve = lib / "kiln.images", ctypes.cast(fake.fake_resolve, ctypes.c_void_p).value
    trusted = (images / "trusted.txt").read_text()
    runtime = _core.Runtime(pack_path=str(images), trusted_packs=trusted, resolve=resolve)
    monkeypatch.setattr(native, "runtime", lambda: runtime.handle)
    yield runtime
    fake.fake_reset()


def test_explain(driver) -> None:
    with FakeTensorMode():
        q, k, v = qkv("cuda", torch.bfloat16)
        found = kt.explain(q, k, v, causal=True, backward=True, alibi_slopes=torch.ones(4, device="cuda"))
        assert found and [kernel.kernel for kernel in found.kernels] == ["attn_fwd", "attn_bwd"]
        assert found.kernels[0].target == "sm_90" and len(found.kernels[0].key) == 64 and found.refusal is None
        said = str(found)
        assert said.startswith(
            "attention of q [2, 4, 6, 16], k [2, 2, 9, 16], v [2, 2, 9, 16], bfloat16, heads first, causal"
        )
        assert "attn_fwd on sm_90" in said and "because of dtype=bf16" in said and found.kernels[0].key in said
        assert json.loads(json.dumps(found.to_dict()))["kernels"][1]["operation"] == "flash.attn_bwd"
        for call, kind, words in (
            ({"q": q.double(), "k": k.double(), "v": v.double()}, KilnError, "fp64"),
            ({"v": v.half()}, ArgumentError, "v"),
            ({"q": torch.empty(6, 16, device="cuda", dtype=torch.bfloat16)}, ArgumentError, "4 dimensions"),
            ({"dropout": 2.0}, ArgumentError, "0.9999"),
        ):
            refused = kt.explain(**{"q": q, "k": k, "v": v, **call})
            assert not refused and isinstance(refused.error, kind) and re.search(words, refused.refusal), str(refused)
            assert refused.kernels == () and type(refused.error).__name__ in str(refused)
    real = [torch.randn(2, 4, 6, 16) for _ in "qkv"]
    assert "q is on the CPU" in kt.explain(*real).refusal


def test_explain_takes_what_the_call_takes(driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dtypes that attention() casts are no reason to refuse."""
    with FakeTensorMode():
        q, k, v = qkv("cuda", torch.bfloat16)
        plain = kt.explain(q, k, v, sinks=torch.ones(4, device="cuda"), alibi_slopes=torch.ones(4, device="cuda"))
        cast = [torch.ones(4, device="cuda", dtype=torch.bfloat16) for _ in range(2)]
        found = kt.explain(q, k, v, sinks=cast[0], alibi_slopes=cast[1])
        assert found and found.kernels == plain.kernels, str(found)
        sizes = {"q": (12, 4, 16), "k": (18, 2, 16), "v": (18, 2, 16)}
        call = {name: torch.empty(each, device="cuda", dtype=torch.bfloat16) for name, each in sizes.items()}
        begins = [torch.zeros(3, device="cuda", dtype=torch.int64) for _ in "qk"]
        used = torch.zeros(2, device="cuda", dtype=torch.int64)
        call |= {"cu_seqlens_q": begins[0], "cu_seqlens_k": begins[1], "seqused_k": used, "rows_first": True}
        call |= {"max_seqlen_q": 8, "max_seqlen_k": 9}
        assert kt.explain(**call), str(kt.explain(**call))
        # A bias is of the longest sequence, and not of all rows.
        bias = torch.zeros(1, 1, 1, 9, device="cuda", dtype=torch.float32)
        seen, spread = [], functions.spread_bias
        monkeypatch.setattr(functions, "spread_bias", lambda bias, *rest: seen.append(rest) or spread(bias, *rest))
        found = kt.explain(**call, bias=bias)
        assert found and seen == [(torch.bfloat16, 8, 9)], str(found)


@pytest.mark.parametrize("name", ["k", "v", "bias", "alibi_slopes", "sinks", "cu_seqlens_k", "seqused_q", "rng"])
def test_explain_looks_at_every_tensors_device(driver, name: str) -> None:
    with FakeTensorMode():
        call = dict(zip("qkv", qkv("cuda", torch.bfloat16)), dropout=0.5)
        here = {
            "bias": torch.zeros(1, 1, 6, 9), "alibi_slopes": torch.ones(4), "sinks": torch.ones(4),
            "cu_seqlens_k": torch.zeros(3, dtype=torch.int32), "seqused_q": torch.zeros(2, dtype=torch.int32),
            "rng": torch.zeros(2, dtype=torch.int64),
        }  # fmt: skip
        tensor = call[name] if name in call else here[name]
        refused = kt.explain(**{**call, name: tensor.to("cpu")})
        assert isinstance(refused.error, ArgumentError)
        assert refused.refusal == f"{name} is on the CPU; all tensors must be on one CUDA or ROCm device"
        refused = kt.explain(**{**call, name: tensor.to("cuda:1")})
        assert refused.refusal == f"{name} is on cuda:1 and q on cuda:0; all tensors must be on one device"


def test_explain_asks_for_all_gradients(driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of bias, summed over what it is spread over, and of sinks: each has a kernel of its own."""
    asked = {}

    class Recorder:
        def explain(self, operation: str, queue: tuple, fields: dict) -> list:
            asked[operation] = fields
            return driver.explain(operation, queue, fields)

    monkeypatch.setattr(_core.Runtime, "borrow", lambda handle: Recorder())
    with FakeTensorMode():
        q, k, v = qkv("cuda", torch.bfloat16)
        for sizes in ((1, 1, 6, 9), (2, 4, 6, 9), (2, 1, 6, 9), (1, 1, 1, 9)):
            found = kt.explain(q, k, v, bias=torch.zeros(sizes, device="cuda"), backward=True)
            assert found and all(isinstance(kernel, kiln.Variant) for kernel in found.kernels), str(found)
            _, dtype, spread, strides = asked["attn_bwd"]["dbias"]
            assert (dtype, spread) == ("bf16", (2, 4, 6, 9)) and "dsinks" not in asked["attn_bwd"]
            heads = 4 if sizes[1] == 4 else 1
            assert strides == (heads * 54 if sizes[0] == 2 else 0, 54 if heads == 4 else 0, 9, 1)
        assert kt.explain(q, k, v, sinks=torch.zeros(4, device="cuda", dtype=torch.float16), backward=True)
        assert asked["attn_bwd"]["dsinks"][1:] == ("fp32", (4,), (1,)) and "dbias" not in asked["attn_bwd"]
        asked.clear()
        assert kt.explain(q, k, v, bias=torch.zeros(1, 1, 6, 9, device="cuda")) and "attn_bwd" not in asked
        mask = torch.zeros(1, 1, 6, 9, device="cuda", dtype=torch.bfloat16)
        for wanted in (q, mask):  # while something is traced, of what wants one
            wanted.requires_grad_()
            explanation.check(q, k, v, mask, 0.0, 0.0, False, False)
            assert ("dbias" in asked.pop("attn_bwd")) == mask.requires_grad


def test_what_is_traced_asks_first(driver, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    plan = explanation._plan
    monkeypatch.setattr(explanation, "_plan", lambda *args: asked.append(args) or plan(*args))
    with FakeTensorMode():
        q, k, v = qkv("cuda", torch.bfloat16)
        graph = make_fx(lambda *x: kt.scaled_dot_product_attention(*x, enable_gqa=True), tracing_mode="real")(q, k, v)
        assert torch.ops.kiln.attn_fwd.default in [node.target for node in graph.graph.nodes]
        assert asked
        with kt.use():
            graph = make_fx(lambda *x: torch.nn.functional.scaled_dot_product_attention(*x, enable_gqa=True))(q, k, v)
            assert torch.ops.kiln.attn_fwd.default in [node.target for node in graph.graph.nodes]
            assert kt.fallthroughs() == {}
            wide = [x.double() for x in (q, k, v)]
            graph = make_fx(lambda *x: torch.nn.functional.scaled_dot_product_attention(*x, enable_gqa=True))(*wide)
            assert torch.ops.kiln.attn_fwd.default not in [node.target for node in graph.graph.nodes]
        assert list(kt.fallthroughs().values()) == [1] and "fp64" in kt.last_fallthrough()
    kt.reset_fallthroughs()


def test_without_a_driver_the_reason_says_so() -> None:
    with FakeTensorMode():
        q, k, v = qkv("cuda", torch.bfloat16)
        found = kt.explain(q, k, v)
        assert isinstance(found.error, NoDeviceError) and "driver" in found.refusal
        with pytest.raises(NoDeviceError):
            kt.scaled_dot_product_attention(q, k, v, enable_gqa=True)


def test_sizes_that_are_symbols_are_asked_for_their_examples() -> None:
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    with FakeTensorMode(shape_env=ShapeEnv()) as mode:
        q = mode.from_tensor(torch.empty(2, 4, 6, 16), static_shapes=False)
        before = len(mode.shape_env.guards)
        view = explanation._view(q, explanation._Addresses())
        assert view[0] == explanation._PAGE and view[2:] == ((2, 4, 6, 16), (384, 96, 16, 1))
        assert len(mode.shape_env.guards) == before
