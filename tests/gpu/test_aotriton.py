"""libaotriton_v2.so on hardware: its functions, called as PyTorch's ROCm backend calls them, against float64."""

from __future__ import annotations

import os
import threading

import pytest

SEED = int(os.environ.get("KILN_RANDOM_SEED", 20_251_122))
CASES = int(os.environ.get("KILN_RANDOM_AOTRITON", 300))
FEATURES = (
    "head dim 64", "head dim 128", "head dims between, odd", "head dims of qk and vo differ", "no mask",
    "causal, top-left", "causal, bottom-right", "sliding window", "rows that see nothing",
    "bias matrix, and its gradient", "bias, broadcast over batch and heads", "dropout", "GQA and MQA",
    "varlen, compact", "varlen, padded, lengths as sums",
    "varlen, strided (begins and lengths)", "varlen, log-sum-exp by sequence", "strides, aligned",
    "strides, unaligned", "scales",
)  # fmt: skip
MOST = 18  # calls of a feature
STYLES = ("v2", "v2, fused", "v3", "v3, lazy", "v3 of 0.12", "v3, lazy of 0.13", "v3 of 0.14", "v3, lazy of 0.14")
SPARSE = 3  # one of so many calls is made by each interface behind 0.11, which differ in structures alone


@pytest.fixture(scope="module")
def aotriton(prefix):
    """By style."""
    from aotriton_release import Aotriton

    return {style: Aotriton(prefix, style) for style in STYLES}


class Tally:
    """What became of calls."""

    def __init__(self) -> None:
        self.cases, self.pooled, self.ratio, self.output = 0, 0, 0.0, ""
        self.wrong: list[str] = []
        self.refused: list[str] = []

    def make(self, call, release) -> None:
        from aotriton_release import Refused
        from check import check

        try:
            verdict = check(call, release, "cuda")
        except Refused as refused:
            self.refused.append(f"{release.style}: {call}: {refused}")
            return
        except AssertionError as fault:
            self.wrong.append(f"{release.style}: {call}: {fault}")
            return
        self.cases += 1
        self.pooled += verdict.draws > 1
        self.wrong += [f"{release.style}: {call}: {fault}" for fault in verdict.wrong()]
        self.ratio, self.output = max((self.ratio, self.output), verdict.worst)


@pytest.mark.parametrize("name", FEATURES)
def test_feature(aotriton, record, name):
    """By every function that has words for a call."""
    from aotriton_release import expressible, takes, version_of
    from features import ROWS

    tally = Tally()
    for style, release in aotriton.items():
        version = version_of(style)
        calls = list(dict.fromkeys(expressible(call, version) for call in ROWS[name]))
        calls = calls[:: -(-len(calls) // MOST)]
        for call in calls if version == "0.11" or "both" in (call.varlen_q for call in calls) else calls[::SPARSE]:
            if takes(style, call):
                tally.make(call, release)
    record("feature", row=f"AOTriton's functions: {name}", target=None, cases=tally.cases, refused=len(tally.refused),
           wrong=len(tally.wrong), ratio=tally.ratio, output=tally.output, pooled=tally.pooled)  # fmt: skip
    assert not tally.wrong, "\n".join([f"{len(tally.wrong)} wrong of {tally.cases}", *tally.wrong[:20]])
    assert tally.cases and not tally.refused, "\n".join(tally.refused[:20])


def test_random_calls(aotriton, record):
    """The same for all time by their seed and number; each by one style that has words for it."""
    from aotriton_release import expressible, takes, version_of
    from sampling import random_call

    tally = Tally()
    for number in range(CASES):
        drawn = random_call(SEED, number)
        calls = {style: expressible(drawn, version_of(style)) for style in STYLES}
        styles = [style for style, call in calls.items() if takes(style, call)]
        style = styles[number % len(styles)]
        tally.make(calls[style], aotriton[style])
    record("random", of="AOTriton's functions", seed=SEED, cases=tally.cases, wrong=len(tally.wrong),
           refused=len(tally.refused), pooled=tally.pooled, worst_ratio=tally.ratio)  # fmt: skip
    assert not tally.wrong, "\n".join([f"{len(tally.wrong)} wrong of {CASES}, seed {SEED}", *tally.wrong[:20]])
    assert len(tally.refused) <= CASES // 50, "\n".join(tally.refused[:20])


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
def test_encoded_softmax_tells_what_dropout_keeps(aotriton, flash, dtype):
    """A forward's, that of the function that simulates it, and libkiln_flash.so's own mask are one."""
    import torch
    from calls import Call, Inputs
    from check import Outputs

    inputs = Inputs(Call(dtype=dtype, batch=2, heads=3, heads_kv=3, rows=130, keys=257, dropout=0.3), "cuda")
    own = flash.dropout_mask(inputs).bool()
    for style in ("v2", "v3"):
        aotriton[style].forward(inputs, Outputs(inputs))
        assert torch.equal(aotriton[style].encoded, torch.where(own, 1.0, -1.0).to(aotriton[style].encoded.dtype))
        assert torch.equal(aotriton[style].dropout_mask(inputs), own)


def test_the_device_is_told(aotriton):
    import torch
    from aotriton_interface import SUCCESS

    interface, side = aotriton["v2"].interface, torch.cuda.Stream()
    for stream in (None, side.cuda_stream):
        assert interface.ask("v2.check_gpu", stream) == SUCCESS
        count = torch.cuda.get_device_properties(0).multi_processor_count
        assert interface.ask("getMultiProcessorCount", stream) == count
        major, minor = torch.cuda.get_device_capability(0)
        nvidia, architecture = 0x10DE, int(f"{major}{minor}", 16)
        assert interface.ask("getGpuFromStream", stream) == nvidia << 32 | architecture << 16
        assert not interface.ask("isArchExperimentallySupported", stream)


@pytest.mark.parametrize("style", STYLES)
def test_calls_are_enqueued_on_the_stream_that_is_given(aotriton, style):
    import torch
    from calls import Call

    call, tally = Call(dtype="fp16", heads=4, heads_kv=2, rows=300, keys=300, causal=True, dropout=0.2), Tally()
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.cuda._sleep(100_000_000)  # what the inputs are made by comes after
        tally.make(call, aotriton[style])
    assert tally.cases == 1 and not tally.wrong, tally.wrong


def test_threads_that_have_called_no_driver_before(aotriton):
    """As those are that PyTorch runs backward on: with a stream, the device need not be current."""
    import torch
    from aotriton_interface import SUCCESS
    from aotriton_release import given

    q, k, v = (torch.randn(1, 2, 65, 64, device="cuda", dtype=torch.float16) for _ in range(3))
    out, lse = torch.zeros_like(q), torch.zeros(2, 65, device="cuda")
    side, statuses = torch.cuda.Stream(), []
    side.wait_stream(torch.cuda.current_stream())
    fields = {name: given(tensor) for name, tensor in zip(("q", "k", "v", "out", "lse"), (q, k, v, out, lse))}

    def work() -> None:
        statuses.append(aotriton["v2"].interface.call("v2.attn_fwd", side.cuda_stream, scale=0.125, **fields))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    torch.cuda.synchronize()
    assert statuses == [SUCCESS], aotriton["v2"].interface.error()
    assert torch.allclose(out, torch.nn.functional.scaled_dot_product_attention(q, k, v, scale=0.125), atol=1e-2)


@pytest.mark.parametrize("name", ["v2.attn_bwd_compact_varlen", "v3.attn_bwd"])
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_gradients_of_nested_tensors(aotriton, name, is_causal, dropout):
    """As PyTorch's memory-efficient attention asks for them: [heads, longest] for all log-sum-exps. Compared with the
    same calls that have room for them."""
    import torch
    from aotriton_interface import COMPACT, TOP_LEFT, WINDOWED
    from aotriton_release import given

    lengths, heads, width, release = (30, 129, 1, 65), 4, 64, aotriton["v2"]
    ends = torch.tensor((0, *lengths), device="cuda").cumsum(0).to(torch.int32)
    q, k, v, dout = (
        torch.randn(1, sum(lengths), heads, width, device="cuda", dtype=torch.bfloat16).transpose(1, 2)
        for _ in range(4)
    )
    rng = torch.tensor([5, 6], device="cuda")
    mask = {"is_causal": is_causal}
    if name.startswith("v3"):
        mask = {"varlen_type": COMPACT}
        mask |= {"causal_type": WINDOWED, "left": TOP_LEFT, "right": TOP_LEFT} if is_causal else {}

    def both(lse: torch.Tensor) -> dict[str, torch.Tensor]:
        made = {name: torch.full_like(q, 7.0) for name in ("out", "dq", "dk", "dv")}
        call = {"q": given(q), "k": given(k), "v": given(v), "out": given(made["out"]), "lse": given(lse), "p": dropout,
                "cu_q": given(ends), "cu_k": given(ends), "max_q": max(lengths), "max_k": max(lengths),
                "scale": 0.125, "seed": given(rng[0]), "offset1": given(rng[1])} | mask  # fmt: skip
        release.call(name.replace("bwd", "fwd"), **call)
        gradients = {key: given(made[key]) for key in ("dq", "dk", "dv")}
        release.call(name, **call, dout=given(dout), **gradients)
        return made

    memory = torch.full((heads + 2, max(lengths)), 7.0, device="cuda")
    short, room = both(memory[1:-1]), torch.zeros(len(lengths) * heads, max(lengths), device="cuda")
    torch.cuda.synchronize()
    assert bool(memory[1:-1].isnan().all()) and bool((memory[0] == 7).all()) and bool((memory[-1] == 7).all())
    for key, wanted in both(room).items():
        assert torch.allclose(short[key], wanted, rtol=0.01, atol=0.002), key
        assert bool(wanted.isfinite().all()) and not bool((wanted == 7).all())


def test_memory_of_the_driver_is_given_back(aotriton):
    import torch
    from calls import Call, Inputs
    from check import Outputs

    inputs = Inputs(Call(dtype="bf16", batch=8, heads=64, heads_kv=64, rows=4096, keys=64, want_lse=True), "cuda")
    outputs, release = Outputs(inputs), aotriton["v2, fused"]  # which takes 10 MB
    release.forward(inputs, outputs)
    free = []
    for _ in range(2):
        for _ in range(50):
            release.backward(inputs, outputs)
        torch.cuda.synchronize()
        free.append(torch.cuda.mem_get_info()[0])
    assert free[0] - free[1] < 8 << 20, f"{free[0] - free[1]} bytes are gone after 50 calls"


@pytest.mark.parametrize("style", STYLES)
def test_captured_calls_drop_by_what_lies_in_memory_at_each_replay(aotriton, style):
    """Forward and backward in one graph, with memory of the driver's; what a caller gives is left alone."""
    import torch
    from aotriton_release import Scratch, given, version_of
    from calls import Call
    from storage import SENTINEL

    call = Call(dtype="bf16", batch=2, heads=4, heads_kv=4, rows=200, keys=200, dropout=0.5)
    release = aotriton[style]
    q, k, v, dout = (torch.randn(2, 4, 200, 64, device="cuda", dtype=torch.bfloat16) for _ in range(4))
    made = {name: torch.zeros_like(q) for name in ("out", "dq", "dk", "dv")}
    lse, encoded = torch.zeros(8, 200, device="cuda"), torch.zeros(2, 4, 200, 200, device="cuda", dtype=q.dtype)
    rng, used = torch.tensor([5, 6], device="cuda"), torch.zeros(2, dtype=torch.int64, device="cuda")
    scratch = Scratch(call, "cuda", version_of(style))
    shared = {"q": given(q), "k": given(k), "v": given(v), "out": given(made["out"]), "lse": given(lse), "p": 0.5,
              "scale": call.scale, "seed": given(rng[0]), "offset1": given(rng[1]), "offset2": 3}  # fmt: skip
    gradients = {"dout": given(dout)} | {name: given(made[name]) for name in ("dq", "dk", "dv")}
    name = f"{style[:2]}.attn_bwd" + ("_fused" if style == "v2, fused" else "")
    buffer = {"delta": scratch.given} if style == "v2" else {"D": scratch.lazy} if "lazy" in style else {}

    def both() -> None:
        release.call(f"{style[:2]}.attn_fwd", **shared, seed_out=given(used[0]), offset_out=given(used[1]),
                     encoded=given(encoded))  # fmt: skip
        release.call(name, **shared, **gradients, **buffer)

    both()  # images are loaded outside of a capture
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        both()
    masks = []
    for seed in (5, 5, 77):
        rng[0] = seed
        for tensor in (*made.values(), lse, encoded):
            tensor.fill_(SENTINEL)
        graph.replay()
        replayed = {name: tensor.clone() for name, tensor in (made | {"lse": lse, "encoded": encoded}).items()}
        assert used.tolist() == [seed, 9]
        both()
        for name_of, tensor in (made | {"lse": lse, "encoded": encoded}).items():
            assert torch.allclose(replayed[name_of], tensor, atol=1e-2), f"{name_of} of a replay with seed {seed}"
        masks.append(replayed["encoded"])
    assert torch.equal(masks[0], masks[1]) and not torch.equal(masks[0], masks[2])
    assert not scratch.acquired
    scratch.check()


@pytest.mark.parametrize("style", ["v2", "v3 of 0.12", "v3, lazy of 0.13", "v3 of 0.14"])
def test_a_refused_call_fills_its_outputs_and_nothing_else(aotriton, style):
    import torch
    from aotriton_interface import INVALID_VALUE, NOT_SUPPORTED
    from aotriton_release import given

    interface = aotriton[style].interface
    q = torch.randn(1, 2, 65, 64, device="cuda", dtype=torch.float16)
    memory = torch.full((2, 65, 2, 80), 7.0, device="cuda", dtype=torch.float16)  # [batch, rows, heads, width]
    out = memory[:, :, :, 8:72].transpose(1, 2)[1:, :, 1:]
    lse = torch.full((4, 70), 7.0, device="cuda")
    tensors = {"q": given(q), "k": given(q), "v": given(q), "out": given(out), "lse": given(lse[1:3, :60])}

    def check() -> None:
        torch.cuda.synchronize()
        assert bool(out.isnan().all()) and bool(lse[1:3, :60].isnan().all())
        assert int(memory.isnan().sum()) == out.numel() and int(lse.isnan().sum()) == 120
        memory.fill_(7.0), lse.fill_(7.0)

    for stream in (None, torch.cuda.Stream().cuda_stream):
        torch.cuda.synchronize()
        assert interface.call(f"{style[:2]}.attn_fwd", stream, scale=0.125, **tensors) == INVALID_VALUE
        assert "log-sum-exp" in interface.error() and "NaN" not in interface.error()
        check()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        stream = torch.cuda.current_stream().cuda_stream
        assert interface.call("v3.attn_fwd", stream, backend=1, scale=0.125, **tensors) == NOT_SUPPORTED
        assert "NaN" not in interface.error(), interface.error()
    graph.replay()
    check()
