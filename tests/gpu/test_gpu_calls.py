"""Calls that say something of all kernels together: equal bits, large tensors, refusals."""

from __future__ import annotations

import ffi
import pytest


def deterministic_calls() -> list:
    from calls import Call
    from features import VARLEN

    return [
        Call(dtype="bf16", rows=1023, keys=1023, heads=8, heads_kv=2, causal=True, deterministic=True),
        Call(dtype="fp16", rows=600, keys=900, heads=4, heads_kv=4, bias="both", batch=2, deterministic=True),
        Call(dtype="fp32", rows=300, keys=300, heads=4, heads_kv=1, sinks=True, deterministic=True),
        Call(dtype="bf16", rows=700, keys=500, width=128, dropout=0.2, softcap=20.0, deterministic=True),
        Call(dtype="fp16", width=100, layout="odd rows", rows=400, keys=400, alibi="heads", deterministic=True),
        Call(**VARLEN, dtype="bf16", varlen_q="compact", varlen_k="compact", causal=True, deterministic=True),
        # Many programs of Hopper's fused kernel, whose first turns nothing but the kernel before them holds back.
        Call(dtype="bf16", rows=2048, keys=2048, heads=16, heads_kv=16, width=128, deterministic=True),
        Call(dtype="bf16", rows=1023, keys=1500, heads=8, heads_kv=4, width=64, deterministic=True),
        # The same of the fused kernel of wide heads, which has more blocks than one for each multiprocessor.
        Call(dtype="bf16", rows=2048, keys=2048, heads=8, heads_kv=8, width=256, causal=True, deterministic=True),
        Call(dtype="fp16", rows=700, keys=900, heads=4, heads_kv=2, batch=3, width=160, deterministic=True),
    ]


@pytest.mark.parametrize("number", range(10))
def test_deterministic_backward_gives_the_same_bits(flash, record, target, number, monkeypatch):
    import torch
    from calls import Inputs
    from check import Outputs

    call = deterministic_calls()[number]
    inputs, first = Inputs(call, "cuda"), None
    runs = 20
    for run in range(runs):
        # Counts that another call left: below any that is waited for, and above.
        monkeypatch.setattr(flash, "left", (255, 127)[run % 2])
        outputs = Outputs(inputs)
        flash.forward(inputs, outputs, target=target)
        flash.backward(inputs, outputs, target=target)
        bits = {name: memory.view(torch.uint8) for name, memory in outputs.clone().items()}
        first = first or bits
        differ = [name for name in bits if not torch.equal(bits[name], first[name])]
        assert not differ, f"{call}: {differ} differ from run to run"
    record("deterministic", call=str(call), target=target, runs=runs)


def test_tensors_of_more_than_two_to_the_31_elements(flash, record):
    """Every tensor spans 2^33 elements and more, by its rows and by its batches; one 35 GB piece holds all."""
    import torch
    from judge import Verdict
    from reference import attend, honest_precision

    elements, heads, width, rows = 17_500_000_000, 2, 128, 1000
    if torch.cuda.mem_get_info()[0] < elements * 2 + (8 << 30):
        pytest.skip(f"needs {elements * 2 >> 30} GiB of free device memory")
    memory = torch.empty(elements, dtype=torch.bfloat16, device="cuda")
    row, batch = 8_000_512, 8_500_000_768  # 1000 rows are 8e9 elements, almost 2^33
    generator = torch.Generator("cuda").manual_seed(31)
    tensors = {}
    for number, name in enumerate(("q", "k", "v", "dout", "out", "dq", "dk", "dv")):
        view = memory.as_strided((2, heads, rows, width), (batch, 4096, row, 1), number * 16384)
        assert view.data_ptr() % 16 == 0 and view.storage_offset() + batch + row * (rows - 1) + 8192 < elements
        tensors[name] = view
        if number < 4:
            view.copy_(torch.randn(view.shape, generator=generator, device="cuda"))
        else:
            view.fill_(torch.nan)
    tensors["lse"] = torch.full((2, heads, rows), torch.nan, device="cuda")
    forward = {name: tensors[name] for name in ("q", "k", "v", "out", "lse")}
    flash.enqueue("kiln_attn_fwd", ffi.AttnFwd(causal=1), forward)
    flash.enqueue("kiln_attn_bwd", ffi.AttnBwd(causal=1), tensors)
    torch.cuda.synchronize()

    hidden = torch.ones(rows, rows, dtype=torch.bool, device="cuda").triu(1)
    answers = []
    for dtype in (torch.float64, torch.bfloat16):
        leaves = [tensors[name].detach().to(dtype).contiguous().requires_grad_() for name in "qkv"]
        with honest_precision():
            out, _ = attend(*leaves, width**-0.5, hidden=hidden)
            answers.append([out.detach(), *torch.autograd.grad(out, leaves, tensors["dout"].to(dtype))])
    verdict = Verdict()
    for name, exact, low in zip(("out", "dq", "dk", "dv"), *answers):
        verdict.compare(name, tensors[name], exact, low)
    ratio, output = verdict.worst
    record("feature", row="tensors above 2^31 elements", target=None, cases=1, refused=0, wrong=len(verdict.wrong()),
           ratio=ratio, output=output, pooled=0)  # fmt: skip
    assert not verdict.wrong(), verdict.wrong()


def test_repeated_forward_calls_give_the_same_bits(flash):
    import torch
    from calls import Call, Inputs
    from check import Outputs

    inputs = Inputs(Call(dtype="bf16", width=128, rows=1023, keys=1023, heads=8, heads_kv=8, backward=False), "cuda")
    first = None
    for _ in range(20):
        outputs = Outputs(inputs)
        flash.forward(inputs, outputs)
        bits = outputs["out"].memory.view(torch.int16).clone()
        first = bits if first is None else first
        assert torch.equal(first, bits)


def test_a_refused_call_leaves_the_memory_alone(flash):
    import torch
    from calls import Call, Inputs

    inputs = Inputs(Call(), "cuda")
    q, k, v = (storage.values for storage in (inputs.q, inputs.k, inputs.v))
    out = torch.full_like(q, 7.0)
    with pytest.raises(ffi.Failure) as raised:
        flash.attention(q, k, v, out[:, :, :63])
    assert raised.value.status == ffi.ARGUMENT and "out" in raised.value.sentence
    torch.cuda.synchronize()
    assert (out == 7).all()


def test_a_workspace_that_is_too_small_is_refused(flash):
    import ctypes

    import torch
    from calls import Call, Inputs
    from check import Outputs

    inputs = Inputs(Call(), "cuda")
    outputs = Outputs(inputs)
    flash.forward(inputs, outputs)
    params = ffi.AttnBwd()
    names = ("out", "lse", "dq", "dk", "dv")
    tensors = flash._shared(params, inputs) | {name: outputs[name] for name in names} | {"dout": inputs.dout}
    workspace = flash.enqueue("kiln_attn_bwd", params, tensors)
    if workspace is None:
        pytest.skip("backward of this call needs no workspace")
    params.workspace_bytes -= 1
    queue = ffi.Queue(ctypes.sizeof(ffi.Queue), ffi.NVIDIA, 0, torch.cuda.current_stream().cuda_stream or None)
    status = flash.flash.kiln_attn_bwd(flash.kiln.handle, ctypes.byref(queue), ctypes.byref(params))
    assert status == ffi.WORKSPACE
