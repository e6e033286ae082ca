"""Arguments of the wrong kind are named in one sentence; what fails with the right ones fails as it did."""

from __future__ import annotations

import gc
import inspect
import re
import subprocess
import sys
import weakref

import pytest
import torch

import kiln.torch as kt
from kiln.errors import ArgumentError
from kiln.torch import flash_attn, operators

T = torch.zeros(1, 2, 4, 16)
LINE = torch.zeros(4, 2, 16)
PACKED = {"cu_seqlens_q": torch.tensor([0, 4]), "cu_seqlens_k": torch.tensor([0, 4])}
LENGTHS = {**PACKED, "max_seqlen_q": 4, "max_seqlen_k": 4}
BROKEN = torch.tensor([0.0, 3.7])

ATTENTION = [
    ({"q": None}, "q must be a tensor, and is None"),
    ({"q": [[1.0]]}, "q must be a tensor, and is a list"),
    ({"k": T.numpy()}, "k must be a tensor, and is a numpy.ndarray"),
    ({"v": "v"}, "v must be a tensor, and is a str"),
    ({"scale": "x"}, "scale must be a number or None, and is 'x'"),
    ({"q": T[0, 0, 0], "bias": T}, "q is on the CPU; all tensors must be on one CUDA or ROCm device"),
    ({"k": T[0, 0, 0], "bias": T}, "q is on the CPU; all tensors must be on one CUDA or ROCm device"),
    ({"causal": 2}, "causal must be True or False, and is 2"),
    ({"rows_first": -1}, "rows_first must be True or False, and is -1"),
    ({"return_lse": 2}, "return_lse must be True or False, and is 2"),
    ({"window": (2**70, 2)}, f"window must be two integers, (left, right), and is ({2**70}, 2)"),
    ({"max_seqlen_q": 2**70}, f"max_seqlen_q must be an integer, and is {2**70}"),
    ({"q": torch.nested.nested_tensor([T[0], T[0]])}, "q must be a dense tensor, neither sparse nor nested"),
    ({"softcap": None}, "softcap must be a number, and is None"),
    ({"window": 5}, "window must be two integers, (left, right), and is 5"),
    ({"window": (1, 2, 3)}, "window must be two integers, (left, right), and is (1, 2, 3)"),
    ({"window": ("a", 1)}, "window must be two integers, (left, right), and is ('a', 1)"),
    ({"causal": "no"}, "causal must be True or False, and is 'no'"),
    ({"rows_first": None}, "rows_first must be True or False, and is None"),
    ({"dropout": "x"}, "dropout must be a number, and is 'x'"),
    ({"dropout": 0.5, "rng": 3}, "rng must be a tensor or None, and is an int"),
    ({"bias": [1]}, "bias must be a tensor or None, and is a list"),
    ({"sinks": 1.0}, "sinks must be a tensor or None, and is a float"),
    ({"max_seqlen_q": "4"}, "max_seqlen_q must be an integer, and is '4'"),
    ({"cu_seqlens_q": 3}, "cu_seqlens_q must be a tensor or None, and is an int"),
    ({"cu_seqlens_k": BROKEN}, "cu_seqlens_k must be of an integer dtype, int32 at best, and is of torch.float32"),
    ({"seqused_q": BROKEN > 0}, "seqused_q must be of an integer dtype, int32 at best, and is of torch.bool"),
]
DECODE = [
    ({"q": None}, "q must be a tensor, and is None"),
    ({"v_cache": 1}, "v_cache must be a tensor, and is an int"),
    ({"seqused_k": 3}, "seqused_k must be a tensor or None, and is an int"),
    ({"leftpad": BROKEN}, "leftpad must be of an integer dtype, int32 at best, and is of torch.float32"),
    ({"block_table": BROKEN}, "block_table must be of an integer dtype, int32 at best, and is of torch.float32"),
    ({"splits": "all"}, "splits must be an integer, and is 'all'"),
    ({"out": 1}, "out must be a tensor or None, and is an int"),
    ({"window": None}, "window must be two integers, (left, right), and is None"),
]
FLASH = [
    ("func", {"q": None}, "q must be a tensor, and is None"),
    ("func", {"softmax_scale": "x"}, "softmax_scale must be a number or None, and is 'x'"),
    ("func", {"window_size": 3}, "window_size must be two integers, (left, right), and is 3"),
    ("func", {"alibi_slopes": [0.5]}, "alibi_slopes must be a tensor or None, and is a list"),
    ("func", {"softcap": "x"}, "softcap must be a number, and is 'x'"),
    ("func", {"dropout_p": "x", "return_attn_probs": True}, "dropout_p must be a number, and is 'x'"),
    ("kvpacked_func", {"kv": None}, "kv must be a tensor, and is None"),
    ("qkvpacked_func", {"qkv": 1}, "qkv must be a tensor, and is an int"),
    ("qkvpacked_func", {"causal": "no"}, "causal must be True or False, and is 'no'"),
    ("varlen_func", {"cu_seqlens_q": 3}, "cu_seqlens_q must be a tensor, and is an int"),
    ("varlen_func", {"max_seqlen_k": "x"}, "max_seqlen_k must be an integer or a tensor of one, and is 'x'"),
    ("varlen_func", {"block_table": 1}, "block_table must be a tensor or None, and is an int"),
    ("varlen_qkvpacked_func", {"cu_seqlens": BROKEN},
     "cu_seqlens must be of an integer dtype, int32 at best, and is of torch.float32"),
    ("varlen_kvpacked_func", {"cu_seqlens_k": [0, 4]}, "cu_seqlens_k must be a tensor, and is a list"),
    ("with_kvcache", {"cache_seqlens": "a"}, "cache_seqlens must be an integer, a tensor or None, and is 'a'"),
    ("with_kvcache", {"cache_seqlens": BROKEN},
     "cache_seqlens must be of an integer dtype, int32 at best, and is of torch.float32"),
    ("with_kvcache", {"cache_batch_idx": BROKEN},
     "cache_batch_idx must be of an integer dtype, int32 at best, and is of torch.float32"),
    ("with_kvcache", {"k": 1, "v": T}, "k must be a tensor or None, and is an int"),
    ("with_kvcache", {"num_splits": None}, "num_splits must be an integer, and is None"),
]  # fmt: skip
GOOD = {
    "func": {"q": T, "k": T, "v": T},
    "kvpacked_func": {"q": T, "kv": torch.zeros(1, 4, 2, 2, 16)},
    "qkvpacked_func": {"qkv": torch.zeros(1, 4, 3, 2, 16)},
    "varlen_func": {"q": LINE, "k": LINE, "v": LINE, **LENGTHS},
    "varlen_kvpacked_func": {"q": LINE, "kv": torch.zeros(4, 2, 2, 16), **LENGTHS},
    "varlen_qkvpacked_func": {"qkv": torch.zeros(4, 3, 2, 16), "cu_seqlens": PACKED["cu_seqlens_q"], "max_seqlen": 4},
    "with_kvcache": {"q": T, "k_cache": T, "v_cache": T},
}


def refusal(function, call: dict) -> str:
    with pytest.raises(ArgumentError) as caught:
        function(**call)
    assert type(caught.value) is ArgumentError
    return str(caught.value)


@pytest.mark.parametrize("wants_gradient", [False, True])
@pytest.mark.parametrize(("wrong", "sentence"), ATTENTION, ids=str)
def test_attention(wrong: dict, sentence: str, wants_gradient: bool) -> None:
    q = T.clone().requires_grad_(wants_gradient)
    assert refusal(kt.attention, {"q": q, "k": T, "v": T, **wrong}) == sentence


@pytest.mark.parametrize(("wrong", "sentence"), ATTENTION, ids=str)
def test_explain(wrong: dict, sentence: str) -> None:
    """What it cannot put into words it raises; what it can may be refused for its device first."""
    try:
        found = kt.explain(**{"q": T, "k": T, "v": T, **wrong})
    except ArgumentError as error:
        assert str(error) == sentence
    else:
        assert found.refusal == sentence or "is on the CPU" in found.refusal


@pytest.mark.parametrize("wrong", [{"q": None}, {"v": 3}, {"window": 5}, {"scale": "x"}, {"bias": [1]}], ids=str)
def test_explain_raises(wrong: dict) -> None:
    assert "must be" in refusal(kt.explain, {"q": T, "k": T, "v": T, **wrong})


@pytest.mark.parametrize(("wrong", "sentence"), DECODE, ids=str)
def test_decode(wrong: dict, sentence: str) -> None:
    assert refusal(kt.decode, {"q": T, "k_cache": T, "v_cache": T, **wrong}) == sentence


@pytest.mark.parametrize(("name", "wrong", "sentence"), FLASH, ids=str)
def test_flash_attn(name: str, wrong: dict, sentence: str) -> None:
    """By the names of the function that was called, not of what it calls."""
    assert refusal(getattr(flash_attn, f"flash_attn_{name}"), {**GOOD[name], **wrong}) == sentence


@pytest.mark.parametrize("name", GOOD)
def test_flash_attn_of_the_right_kinds(name: str) -> None:
    assert "is on the CPU" in refusal(getattr(flash_attn, f"flash_attn_{name}"), GOOD[name])


def test_dropout_mask() -> None:
    call = {"rng": torch.zeros(2, dtype=torch.int64), "batch": 1, "heads": 1, "rows": 2, "keys": 2, "dropout": 0.5}
    assert refusal(kt.dropout_mask, {**call, "rng": 3}) == "rng must be a tensor, and is an int"
    assert refusal(kt.dropout_mask, {**call, "keys": "x"}) == "keys must be an integer, and is 'x'"
    assert refusal(kt.dropout_mask, {**call, "dtype": "x"}) == "dtype must be a torch.dtype, and is 'x'"


def test_integers_of_any_width_do(definition) -> None:
    for dtype in (torch.int16, torch.int64):
        begins = {name: tensor.to(dtype) for name, tensor in PACKED.items()}
        out = kt.attention(LINE, LINE, LINE, **begins, rows_first=True)
        assert torch.equal(out, kt.attention(LINE, LINE, LINE, **PACKED, rows_first=True))


@pytest.mark.parametrize("function", [kt.attention, flash_attn.flash_attn_func])
def test_what_fails_otherwise_fails_as_it_did(function, definition, monkeypatch: pytest.MonkeyPatch) -> None:
    for failure in (TypeError("no"), RuntimeError("no"), ValueError("no"), torch.OutOfMemoryError("no")):

        def fail(*_args: object, failure: Exception = failure, **_more: object) -> None:
            raise failure

        monkeypatch.setattr(definition, "attn_fwd", fail)
        with pytest.raises(type(failure)) as caught:
            function(T, T, T)
        assert caught.value is failure


def test_a_failed_call_keeps_no_tensor() -> None:
    q = torch.zeros(1, 2, 4, 16)
    gone = weakref.ref(q)
    gc.disable()
    try:
        for call in ({"scale": "x"}, {}):
            try:
                kt.attention(q, q, q, **call)
            except ArgumentError:
                pass
        del q
        assert gone() is None
    finally:
        gc.enable()


def test_beneath_compile(definition) -> None:
    compiled = torch.compile(lambda q, **call: kt.attention(q, T, T, **call), backend="eager", fullgraph=True)
    assert torch.equal(compiled(T, causal=True), kt.attention(T, T, T, causal=True))
    whole = torch.compile(kt.attention, backend="eager", fullgraph=True)
    assert torch.equal(whole(T, T, T, window=(2, 2)), kt.attention(T, T, T, window=(2, 2)))
    flash = torch.compile(flash_attn.flash_attn_func, backend="eager", fullgraph=True)
    assert torch.equal(flash(T, T, T, causal=True), flash_attn.flash_attn_func(T, T, T, causal=True))


def test_another_engine_is_not_explained_and_nothing_is_refused(definition) -> None:
    said = refusal(kt.explain, {"q": T, "k": T, "v": T})
    assert operators.engine().name in said and 'kiln.jit.Recipe(...).operation("attn_fwd").explain(...)' in said


def test_callbacks_and_names_are_looked_at_at_once() -> None:
    sentence = "callback must be a function of one reason, or None, and is 3"
    assert refusal(kt.on_fallthrough, {"callback": 3}) == sentence
    assert kt.on_fallthrough(None) is None
    assert refusal(kt.register_transformers, {"name": 3}).startswith("name is 3; expected one like")
    assert refusal(kt.register_transformers, {"fallback": []}).startswith("fallback is []; expected None")


def test_pytorchs_function_is_refused_by_its_own_names() -> None:
    call = {"query": T, "key": T, "value": T, "enable_gqa": True}
    sentence = "query is on the CPU; all tensors must be on one CUDA or ROCm device"
    for more in ({}, {"attn_mask": torch.zeros(4, 4)}, {"is_causal": True, "dropout_p": 0.5}):
        assert refusal(kt.scaled_dot_product_attention, {**call, **more}) == sentence


def test_without_pytorch_one_sentence_says_so() -> None:
    code = "import sys; sys.modules['torch'] = None\nimport kiln.torch"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1 and "During handling" not in done.stderr
    assert done.stderr.splitlines()[-1] == (
        "ModuleNotFoundError: kiln.torch needs PyTorch 2.10 or later, which is not installed; pip install torch, or "
        "'kiln-runtime[torch]'"
    )


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"q": None}, "q must be a tensor, and is None"),
        ({"v": None}, "v must be a tensor, and is None"),
        ({"bias": [1]}, "Optional[Tensor]' for argument 'bias' but instead found type 'list'"),
        ({"causal": "yes"}, "'bool' for argument 'causal' but instead found type 'str'"),
        ({"scale": None}, "'float' for argument 'scale' but instead found type 'NoneType'"),
        ({"causal": 2}, "q is on the CPU"),  # which PyTorch's schema takes for True
    ],
    ids=str,
)
def test_the_operator(wrong: dict, sentence: str) -> None:
    """By PyTorch's words for its schemas, or ours."""
    given = {"q": T, "k": T, "v": T, **wrong}
    tensors = [given.pop(name) for name in "qkv"]
    with pytest.raises((ArgumentError, RuntimeError)) as caught:
        torch.ops.kiln.attn_fwd(*tensors, **given)
    assert sentence in str(caught.value)


@pytest.mark.parametrize("size", ["batch", "heads", "rows", "keys"])
def test_sizes_below_zero(size: str) -> None:
    sizes = {"batch": 1, "heads": 2, "rows": 3, "keys": 4, size: -1}
    with pytest.raises(ArgumentError, match=f"{size} must not be below 0, and is -1"):
        kt.dropout_mask(torch.zeros(2, dtype=torch.int64), **sizes, dropout=0.5)


@pytest.mark.parametrize("name", ["attention", "decode"])
def test_help_begins_with_a_sentence_and_an_example_and_names_every_argument(name):
    function = getattr(kt, name)
    first, empty, example, *rest = inspect.getdoc(function).splitlines()
    assert first.startswith("Attention") and first.endswith(".") and not empty
    assert example.startswith("    ") and any(f"kiln.torch.{name}(q" in line for line in (example, *rest[:2]))
    told = " ".join(re.findall(r"^ *((?:\w+, )*\w+): ", "\n".join(rest), re.MULTILINE))
    assert set(inspect.signature(function).parameters) <= set(re.findall(r"\w+", told))


def test_help_of_the_package_begins_with_what_one_would_type():
    first, empty, *lines = inspect.getdoc(kt).splitlines()
    assert first.endswith(".") and not empty and lines[0].strip().startswith("import kiln.torch")
    assert any("kiln.torch.attention(q, k, v" in line for line in lines[:5])
