"""Hugging Face Transformers' models with Kiln's attention on a GPU against their own, "eager".

A model's error is its distance from the same model in float64, in root mean square; that of "eager" in the model's own
dtype is what it is measured by.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

pytest.importorskip("transformers", minversion="5.4", reason="needs transformers 5.4 or later")

import transformers_models as models
from transformers import AutoConfig, AutoModelForCausalLM

import kiln.torch as kt
from kiln.errors import UnsupportedError

TIMES, PLUS = 2.0, 2e-6
WINDOW = 48
BASE = {
    "vocab_size": 512, "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 1024, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": None, "initializer_range": 0.08, "attention_dropout": 0.0,
}  # fmt: skip
LIKE: dict[str, dict[str, Any]] = {
    "llama": {**BASE, "head_dim": 64},
    "gemma2": {**BASE, "head_dim": 128, "query_pre_attn_scalar": 128, "sliding_window": WINDOW,
               "attn_logit_softcapping": 2.0, "final_logit_softcapping": 30.0, "tie_word_embeddings": False},
    "mistral": {**BASE, "head_dim": 128, "sliding_window": WINDOW},
    "gpt_oss": {**BASE, "head_dim": 64, "num_local_experts": 4, "num_experts_per_tok": 4,
                "sliding_window": WINDOW},
}  # fmt: skip
DTYPES = [torch.float32, torch.bfloat16]


@pytest.fixture(autouse=True)
def registered():
    kt.register_transformers()
    models.register_exact()
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    yield
    torch.backends.cuda.matmul.allow_tf32 = before


def made(name: str, attention: str, dtype: torch.dtype, **options: Any) -> nn.Module:
    """A model on the GPU; the weights are those of bfloat16, whatever its dtype is."""
    torch.manual_seed(0)
    config = AutoConfig.for_model(name, **{**LIKE[name], **options})
    more = {"attn_implementation": attention, "experts_implementation": "eager"}
    model = AutoModelForCausalLM.from_config(copy.deepcopy(config), **more)
    return model.to(torch.bfloat16).to("cuda", dtype).eval()


def trio(name: str, dtype: torch.dtype, **options: Any) -> tuple[nn.Module, nn.Module, nn.Module]:
    """(exact, own, ours): the model in float64, with eager and with Kiln's attention in `dtype`."""
    return (made(name, "exact", torch.float64, **options), made(name, "eager", dtype, **options),
            made(name, "kiln", dtype, **options))  # fmt: skip


def served(call):
    """A call's value; a release of the core profile has no float32, and that is said."""
    try:
        return call()
    except UnsupportedError as error:
        if "fp32" not in str(error):
            raise
    pytest.skip("this release has no images of fp32")


def judge(what: str, ours: torch.Tensor, own: torch.Tensor, exact: torch.Tensor) -> None:
    """Fails if ours is further from exact than TIMES what its own dtype's eager is."""
    scale = float(exact.double().square().mean().sqrt())
    error, limit = (float((x.double() - exact.double()).square().mean().sqrt()) for x in (ours, own))
    print(f"{what}: error {error:.3g}, eager's own {limit:.3g}, of {scale:.3g}")
    assert torch.isfinite(ours).all(), what
    assert error <= TIMES * limit + PLUS * max(scale, 1.0), f"{what}: {error:.3g}, and eager's own is {limit:.3g}"


def ids(batch: int, length: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(3, BASE["vocab_size"], (batch, length), generator=torch.Generator().manual_seed(seed)).cuda()


def mask(length: int, side: str | None) -> torch.Tensor | None:
    """Of three sequences with 0, 37 and 100 tokens of padding."""
    if side is None:
        return None
    result = torch.ones(3, length, dtype=torch.long)
    for row, pads in enumerate((0, 37, 100)):
        result[row, : pads if side == "left" else 0] = 0
        result[row, length - (pads if side == "right" else 0) :] = 0
    return result.cuda()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("side", [None, "left", "right"])
@pytest.mark.parametrize("name", LIKE)
def test_logits(name, side, dtype):
    given = {"input_ids": ids(3, 300), "attention_mask": mask(300, side)}
    rows = slice(None) if side is None else given["attention_mask"].bool()
    with torch.no_grad():
        ours, own, exact = (served(lambda m=m: m(**given).logits)[rows] for m in trio(name, dtype)[::-1])
    judge(f"{name} {side} {dtype}", ours, own, exact)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("side", [None, "left"])
@pytest.mark.parametrize("name", LIKE)
def test_gradients(name, side, dtype):
    given = {"input_ids": ids(3, 150), "attention_mask": mask(150, side)}
    labels = ids(3, 150, seed=1)
    if side:  # nor is a token predicted by padding
        real = given["attention_mask"].bool()
        labels = labels.masked_fill(~(real & real.roll(1, 1)), -100)
    gradients = []
    for model in trio(name, dtype)[::-1]:
        served(lambda m=model: m(**given, labels=labels).loss).backward()
        attention = {n: p.grad for n, p in model.named_parameters() if "self_attn" in n}
        gradients.append(torch.cat([g.double().flatten() for g in attention.values()]))
    judge(f"{name} {side} {dtype} gradients", *(g / gradients[2].square().mean().sqrt() for g in gradients))


@pytest.mark.parametrize("is_compiled", [False, True], ids=["called", "compiled"])
@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_generation_with_a_static_cache(name, is_compiled):
    """128 tokens in float32, the same token by token: behind padding, past windows."""
    given = {"input_ids": ids(3, 140), "attention_mask": mask(140, "left"), "max_new_tokens": 128, "do_sample": False,
             "cache_implementation": "static", "return_dict_in_generate": True, "output_logits": True}  # fmt: skip
    eager, ours = (made(name, attention, torch.float32, num_hidden_layers=2) for attention in ("eager", "kiln"))
    expected = eager.generate(**given, disable_compile=True)
    found = served(lambda: ours.generate(**given, disable_compile=not is_compiled))
    same = found.sequences == expected.sequences
    if not bool(same.all()):
        row, place = (int(x) for x in (~same).nonzero()[0])
        step = place - 140
        best = expected.logits[step][row].topk(2).values
        raise AssertionError(
            f"sequence {row} differs from its token {step} on; eager's best two logits there are {best.tolist()}"
        )
    assert len({*found.sequences[0, 140:].tolist()}) > 8  # the model says more than one thing


@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_generation_with_other_caches(name):
    eager, ours = (made(name, attention, torch.float32, num_hidden_layers=2) for attention in ("eager", "kiln"))
    for more in ({}, {"num_beams": 3}, {"attention_mask": None}):
        given = {"input_ids": ids(3, 140), "attention_mask": mask(140, "left"), "max_new_tokens": 24,
                 "do_sample": False, **more}  # fmt: skip
        assert torch.equal(served(lambda g=given: ours.generate(**g)), eager.generate(**given)), more


@pytest.mark.parametrize("name", ["llama", "mistral", "gemma2"])
def test_packed_sequences(name):
    lengths = (70, 1, 129)
    begins = torch.tensor([0, 70, 71, 200], dtype=torch.int32, device="cuda")
    told = {"cu_seq_lens_q": begins, "cu_seq_lens_k": begins, "max_length_q": 129, "max_length_k": 129}
    positions = torch.cat([torch.arange(n) for n in lengths])[None].cuda()
    given = {"input_ids": ids(1, 200), "position_ids": positions, "use_cache": False}
    exact, own, ours = trio(name, torch.bfloat16)
    with torch.no_grad():
        values = [model(**given).logits for model in (own, exact)]
        for more in ({}, told):
            judge(f"{name} packed", ours(**given, **more).logits, *values)


@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_compiled(name):
    """Forward and backward in one graph each, with and without padding."""
    given = [{"input_ids": ids(3, 150), "attention_mask": mask(150, side)} for side in (None, "left")]
    values = []
    for model in trio(name, torch.bfloat16, num_hidden_layers=2)[::-1]:
        model.requires_grad_()
        call = torch.compile(model, fullgraph=True) if not values else model
        logits = [call(**given[0]).logits, call(**given[1]).logits[given[1]["attention_mask"].bool()]]
        for out in logits:
            out.float().square().mean().backward()
        gradient = torch.cat([p.grad.double().flatten() for n, p in model.named_parameters() if "self_attn" in n])
        values.append([*(out.detach() for out in logits), gradient])
    for what, *three in zip(("logits", "logits of padded", "gradients"), *values):
        size = three[2].double().square().mean().sqrt()
        judge(f"{name} compiled, {what}", *(x.double() / size for x in three))


@pytest.mark.parametrize("name", ["llama", *models.WINDOWED, *models.OTHERS])
def test_every_small_model(name):
    """The models that the CPU's tests have, with masks and position biases of all kinds."""
    eager, ours = models.pair(name, "cuda", torch.float32, experts_implementation="eager")
    given = {"input_ids": models.tokens(device="cuda"), "attention_mask": models.padded(device="cuda")}
    rows = given["attention_mask"].bool()
    if name in ("t5", "bart"):
        given["decoder_input_ids"] = models.tokens(length=7, device="cuda", seed=1)
        rows = slice(None)
    with torch.no_grad():
        found = served(lambda: ours(**given)[0])[rows]
        own = eager(**given)[0][rows]
        eager.set_attn_implementation("exact")
        judge(name, found, own, eager.double()(**given)[0][rows])


def test_dropout():
    model = made("llama", "kiln", torch.bfloat16, attention_dropout=0.3).train()
    losses = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        loss = model(ids(2, 100), labels=ids(2, 100)).loss
        loss.backward()
        losses.append(float(loss))
    assert losses[0] == losses[1] != losses[2]
    assert all(torch.isfinite(p.grad).all() for p in model.parameters())


def test_what_kiln_has_no_kernel_for():
    """Heads of 520 columns: refused in a sentence, or PyTorch's, and counted."""
    wide = {"head_dim": 520, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1}
    given = {"input_ids": ids(2, 20)}
    with torch.no_grad():
        with pytest.raises(UnsupportedError):
            made("llama", "kiln", torch.bfloat16, **wide)(**given)
        kt.register_transformers("kiln_else", fallback="sdpa")
        found, expected = (made("llama", a, torch.bfloat16, **wide)(**given).logits for a in ("kiln_else", "sdpa"))
    assert torch.equal(found, expected) and sum(kt.fallthroughs().values()) == 2
