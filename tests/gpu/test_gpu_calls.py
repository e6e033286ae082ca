"""What a call takes when nothing is forced, and calls that a kernel's images differ on."""

from __future__ import annotations

import ctypes

import ffi
import pytest
from test_images import FUNCTIONALS, images, own_target


@pytest.mark.parametrize("functional", FUNCTIONALS)
def test_the_chosen_image_is_right(flash, functional):
    from attention import Case, Functional, expected

    cases = (Case(1, 1), Case(64, 64, batch=2), Case(500, 500), Case(1500, 5000, heads=8, heads_kv=2),
             Case(1024, 1024, batch=8, heads=16, heads_kv=16), Case(33, 33, layout="offset"))  # fmt: skip
    wrong = []
    for case in cases:
        result = flash.run(expected(Functional.parse(functional), case))
        wrong += [f"{case}: {fault}" for fault in result.faults]
    assert not wrong, "\n".join(wrong)


def arguments(want, out, lse=None) -> list:
    from attention import DTYPES, describe

    code = DTYPES[want.functional.dtype][1]
    views = [describe(t, code) for t in (want.q, want.k, want.v, out)]
    scale = want.case.scale(want.functional.head_dim)
    return [*views, None if lse is None else describe(lse, ffi.FP32), scale, want.functional.causal]


def chosen(flash, want) -> dict:
    import torch

    call = flash.kiln.call(arguments(want, torch.empty_like(want.q)), operation="flash.attn_fwd", device=0)
    (variant,) = flash.kiln.explain(call)
    return variant


def test_the_specialization_follows_the_arguments(flash):
    from attention import Case, Functional, expected

    functional = Functional("bf16", 64, True)
    for layout, name in (
        ("contiguous", b"aligned"),
        ("rows", b"aligned"),
        ("padded", b"aligned"),
        ("offset", b"generic"),
        ("odd rows", b"generic"),
        ("odd heads", b"generic"),
    ):
        variant = chosen(flash, expected(functional, Case(130, 130, layout=layout)))
        assert variant["specialization"] == name, layout
        assert variant["target"].decode() == own_target(flash)


def test_an_aligned_image_refuses_what_is_not_aligned(flash):
    from attention import Case, Functional, expected

    aligned = [v for v in images(flash, FUNCTIONALS[0], own_target(flash)) if v["specialization"] == "aligned"]
    want = expected(Functional.parse(FUNCTIONALS[0]), Case(100, 260, layout="offset"))
    with pytest.raises(ffi.Failure) as raised:
        flash.run(want, (aligned[0]["key"],))
    assert raised.value.status == ffi.UNSUPPORTED


def test_an_image_of_another_functional_is_refused(flash):
    from attention import Case, Functional, expected

    other = images(flash, FUNCTIONALS[1], own_target(flash))[0]
    with pytest.raises(ffi.Failure) as raised:
        flash.run(expected(Functional.parse(FUNCTIONALS[0]), Case(100, 100)), (other["key"],))
    assert raised.value.status == ffi.UNSUPPORTED


def test_the_generic_entry_does_what_the_typed_one_does(flash):
    import torch
    from attention import Case, Functional, expected

    want = expected(Functional("fp16", 128, True), Case(300, 300, heads=4, heads_kv=2))
    outs = [torch.full_like(want.q, torch.nan) for _ in range(2)]
    lses = [torch.full(want.q.shape[:3], torch.nan, device="cuda") for _ in range(2)]
    flash.attention(want.q, want.k, want.v, outs[0], lses[0], causal=True)
    stream = torch.cuda.current_stream().cuda_stream or None
    flash.kiln.launch(
        flash.kiln.call(arguments(want, outs[1], lses[1]), operation="flash.attn_fwd", device=0, stream=stream)
    )
    torch.cuda.synchronize()
    assert torch.equal(outs[0], outs[1]) and torch.equal(lses[0], lses[1])
    assert not outs[0].isnan().any()


def test_repeated_calls_give_the_same_bits(flash):
    import torch
    from attention import Case, Functional, expected

    want = expected(Functional("bf16", 128, False), Case(1023, 1023, heads=8, heads_kv=8))
    first, again = torch.empty_like(want.q), torch.empty_like(want.q)
    flash.attention(want.q, want.k, want.v, first)
    for _ in range(20):
        flash.attention(want.q, want.k, want.v, again.fill_(torch.nan))
        assert torch.equal(first, again)


def test_tensors_of_more_than_two_to_the_31_elements(flash, record):
    """k, v and out span 2^33 elements and more, by their rows; q by its batch. One 35 GB piece of memory holds all."""
    import torch
    from attention import attention64

    elements = 17_500_000_000
    if torch.cuda.mem_get_info()[0] < elements * 2 + (8 << 30):
        pytest.skip(f"needs {elements * 2 >> 30} GiB of free device memory")
    head_dim, rows = 128, 1000
    memory = torch.empty(elements, dtype=torch.bfloat16, device="cuda")
    row = 8_000_512  # elements from one row to the next: 1000 of them are 8e9, almost 2^33
    shape = (2, 1, rows, head_dim)
    k = memory.as_strided(shape, (8_500_000_768, 0, row, 1), 0)
    v = memory.as_strided(shape, (8_500_000_768, 0, row, 1), 4096)
    out = memory.as_strided(shape, (8_500_000_768, 0, row, 1), 8192)
    q = memory.as_strided(shape, (8_500_000_768, 0, head_dim, 1), 16384)
    assert q.data_ptr() % 16 == 0 and out.storage_offset() + 8_500_000_768 + row * (rows - 1) < elements
    generator = torch.Generator("cuda").manual_seed(31)
    for view in (q, k, v):
        view.copy_(torch.randn(shape, generator=generator, device="cuda"))
    out.fill_(torch.nan)
    flash.attention(q, k, v, out, causal=True)
    torch.cuda.synchronize()
    reference, _ = attention64(q, k, v, head_dim**-0.5, True)
    error = (out.double() - reference).abs().max().item()
    record("large", bytes=elements * 2, error=error)
    assert error < 0.02


def test_every_status_leaves_the_memory_alone(flash):
    """A refused call writes nothing."""
    import torch
    from attention import Case, Functional, expected

    want = expected(Functional("bf16", 64, False), Case(64, 64))
    out = torch.full_like(want.q, 7.0)
    call = flash.kiln.call(arguments(want, out[:, :, :63]), operation="flash.attn_fwd", device=0)
    with pytest.raises(ffi.Failure) as raised:
        flash.kiln.launch(call)
    assert raised.value.status == ffi.ARGUMENT and "out" in raised.value.sentence
    torch.cuda.synchronize()
    assert (out == 7).all()
    assert ctypes.c_char_p(flash.library.c.kiln_error()).value
