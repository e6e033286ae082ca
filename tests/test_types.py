"""What type checkers know of the public Python functions: results that follow from arguments, and wrong calls."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "bindings/python/kiln"
# Of PyTorch what the sample and the annotations name: the real one takes minutes to read.
TORCH = """
from typing import Any
class Tensor:
    def __dlpack__(self, *, stream: Any = None) -> Any: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...
class dtype: ...
class device: ...
class SymInt: ...
def __getattr__(name: str) -> Any: ...
"""
SAMPLE = """
from typing_extensions import assert_type
import kiln
import kiln.jit
import kiln.torch
from kiln.torch import flash_attn
from torch import Tensor

def arrays(q: Tensor, wanted: bool) -> None:
    assert_type(kiln.attn_fwd(q, q, q, causal=True), Tensor)
    assert_type(kiln.attn_fwd(q, q, q, return_lse=True), tuple[Tensor, Tensor])
    assert_type(kiln.attn_fwd(q, q, q, return_lse=wanted), Tensor | tuple[Tensor, Tensor])
    out, lse = kiln.attn_decode(q, q, q, splits=2, return_lse=True)
    assert_type(lse, Tensor)
    assert_type(kiln.dropout_mask(q, 0.1), Tensor)
    assert_type(kiln.attn_fwd_fp8(q, q, q, causal=True), tuple[Tensor, Tensor])
    assert_type(kiln.explain(kiln.attn_fwd, q, q, q), list[kiln.Variant])
    assert_type(kiln.attn_bwd(q, q, q, q, out, lse), kiln.attention.Gradients)
    assert_type(kiln.info(), kiln.Info)
    try:
        kiln.prepare(kiln.attn_fwd, q, q, q)
    except kiln.KilnError as error:
        assert_type(error.status, int)

def tensors(q: Tensor, wanted: bool) -> None:
    assert_type(kiln.torch.attention(q, q, q, window=(64, 0)), Tensor)
    assert_type(kiln.torch.attention(q, q, q, return_lse=True), tuple[Tensor, Tensor])
    assert_type(kiln.torch.decode(q, q, q, out=q), Tensor)
    assert_type(kiln.torch.decode(q, q, q, return_lse=wanted), Tensor | tuple[Tensor, Tensor])
    assert_type(kiln.torch.scaled_dot_product_attention(q, q, q, is_causal=True), Tensor)
    assert_type(kiln.torch.explain(q, q, q, causal=True), kiln.torch.Explanation)
    assert_type(kiln.torch.fallthroughs(), dict[str, int])
    assert_type(flash_attn.flash_attn_func(q, q, q, 0.0, None, True), Tensor)
    out, lse, mask = flash_attn.flash_attn_func(q, q, q, 0.1, return_attn_probs=True)
    packed = flash_attn.flash_attn_varlen_qkvpacked_func(q, q, 8, return_attn_probs=wanted)
    assert_type(packed, Tensor | tuple[Tensor, Tensor, Tensor])
    assert_type(flash_attn.flash_attn_with_kvcache(q, q, q, cache_seqlens=3), Tensor)
    assert_type(flash_attn.flash_attn_with_kvcache(q, q, q, return_softmax_lse=True), tuple[Tensor, Tensor])
    assert_type(kiln.jit.Recipe("recipe.yaml").operation("norm"), kiln.jit.Operation)
"""
WRONG = {
    'kiln.attn_fwd(q, q, q, casual=True)': "Unexpected keyword argument|No overload variant",
    "kiln.attn_fwd(q, q)": "No overload variant",
    "kiln.torch.attention(q, q, q, True)": "No overload variant",
    'kiln.torch.attention(q, q, q, window="all")': "No overload variant",
    "kiln.torch.decode(q, q, q, return_lse=True) + 1": "No overload variant of .__add__",
    "kiln.torch.flash_attn.flash_attn_func(q, q, q, dropout=0.1)": "No overload variant",
    "kiln.torch.draw_rng()": "Missing positional argument",
    'kiln.jit.Recipe("x", interpreted=True)': "Unexpected keyword argument",
}  # fmt: skip


def check(folder: Path, text: str, python: Path | None = None) -> list[str]:
    """What mypy --strict says of a program that uses the package: this tree's, or what is installed for a Python."""
    (folder / "torch").mkdir(exist_ok=True)
    (folder / "torch/__init__.pyi").write_text(TORCH)
    (folder / "sample.py").write_text(text)
    (folder / "mypy.ini").write_text("[mypy]\n")
    where = ("--python-executable", str(python)) if python else ("--python-version=3.10",)
    path = str(folder) if python else f"{folder}:{ROOT / 'bindings/python'}:{ROOT / 'v3python'}"
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", *where, "sample.py"],
        cwd=folder, env=kept | {"MYPYPATH": path}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return [line for line in done.stdout.splitlines() if re.match(r"sample\.py:\d+: error", line)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    pytest.importorskip("mypy")
    return tmp_path_factory.mktemp("types")


def test_results_follow_from_arguments(folder):
    assert check(folder, SAMPLE) == []


def test_wrong_calls_are_flagged(folder):
    check_wrong_calls(folder)


def check_wrong_calls(folder: Path, python: Path | None = None) -> None:
    head = "import kiln.jit\nimport kiln.torch.flash_attn\nfrom torch import Tensor\ndef f(q: Tensor) -> None:\n"
    said = check(folder, head + "".join(f"    {call}\n" for call in WRONG), python)
    for number, (call, error) in enumerate(WRONG.items(), head.count("\n") + 1):
        assert any(re.match(rf"sample\.py:{number}: .*({error})", line) for line in said), (call, said)


def test_what_checkers_are_told_is_written_from_the_functions(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "bindings")
    monkeypatch.delitem(sys.modules, "overloads", raising=False)
    import overloads

    for written, text in overloads.texts().items():
        assert (PACKAGE / written).read_text() == text, "python bindings/overloads.py writes it"
