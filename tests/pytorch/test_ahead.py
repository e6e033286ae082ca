"""kiln.torch.explain(target=...): what would run on a GPU that is not here, of tensors that are nowhere."""

from __future__ import annotations

import hashlib
import itertools
from pathlib import Path

import pytest
import torch

import kiln
import kiln.torch as kt
from kiln import _release
from kiln.errors import ArgumentError, NotFoundError, UnsupportedError, UsageError
from kiln.information import Variant
from kiln_recipe import targets
from kiln_recipe.plan import plan
from kiln_recipe.read import recipe
from kiln_recipe.selection import parse_selection

ROOT = Path(__file__).resolve().parents[2]
TARGET = "sm_90"


def install(monkeypatch: pytest.MonkeyPatch, profile: str, selection: str = "") -> None:
    """The pack of a build, as `kiln.variants` lists it: a row for each slot, empty ones too."""
    flash = recipe.load(ROOT / "tritonsrc/flash/recipe.yaml", native=False)
    chosen = parse_selection(selection)
    made = plan.make_plan([flash], (targets.by_name(TARGET),), profile, chosen, ROOT / "tuning")
    rows = [
        Variant(
            hashlib.sha256(v.name.encode()).hexdigest(), v.target, f"{v.family}.{v.operation}", v.kernel, v.functional,
            v.configuration, v.specialization, v.waiver, False, 1, 1, 0, 128,
        )
        for v in made.variants
    ]  # fmt: skip
    for kernel in made.kernels:
        slots = itertools.product(kernel.functionals, kernel.configurations, kernel.kernel.specializations)
        rows += [
            Variant(
                "", TARGET, f"{kernel.family}.{kernel.operation}", kernel.kernel.name, functional.name,
                configuration.name, specialization.name, kernel.absent[slot], False, 0, 0, 0, 0,
            )
            for slot, (functional, configuration, specialization) in enumerate(slots)
            if slot in kernel.absent
        ]  # fmt: skip
    monkeypatch.setattr(kiln, "variants", lambda *, target: rows if target == TARGET else [])
    monkeypatch.setattr(_release, "PROFILE", profile)
    monkeypatch.setattr(_release, "SELECTION", selection)


@pytest.fixture(params=["core", "full"])
def packs(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The packs of a whole build of a profile."""
    install(monkeypatch, request.param)
    return request.param


def qkv(device: str, width: int = 64, dtype: torch.dtype = torch.bfloat16) -> list[torch.Tensor]:
    return [
        torch.empty(2, heads, rows, width, device=device, dtype=dtype) for heads, rows in ((8, 70), (2, 90), (2, 90))
    ]


@pytest.mark.parametrize("device", ["meta", "cpu"])
def test_tensors_of_any_device_are_explained(packs: str, device: str) -> None:
    found = kt.explain(*qkv(device), target=TARGET, causal=True, backward=True, sinks=torch.ones(8, device=device))
    assert found and found.engine == "native", str(found)
    names = [kernel.kernel for kernel in found.kernels]
    assert names[0] == "attn_fwd.general" and names[-1] == "attn_bwd_dsinks"
    assert {kernel.operation for kernel in found.kernels} == {"flash.attn_fwd", "flash.attn_bwd"}


def test_what_a_build_has_not_is_refused_or_served_by_what_is_general(packs: str) -> None:
    wide = kt.explain(*qkv("meta", 192), target="H100")
    assert bool(wide) == (packs == "full")
    if packs == "core":
        assert isinstance(wide.error, UnsupportedError)
        assert str(wide.refusal) == (
            "flash.attn_fwd has no image for dtype=bf16 head_dim=192 padded=true extras=none on sm_90: head_dim=192 is "
            "in the full profile only; the nearest that exists is dtype=bf16 head_dim=128 padded=true extras=none"
        )
    (kernel,) = kt.explain(*qkv("meta"), target=TARGET, bias=torch.empty(1, 1, 70, 90, device="meta")).kernels
    assert f"extras={'any' if packs == 'core' else 'bias'}" in kernel.functional


@pytest.mark.parametrize(
    ("selection", "call", "reason"),
    [
        (
            "operation=attn_fwd,attn_decode",
            {"backward": True},
            "operation=attn_decode,attn_fwd alone, nor for anything",
        ),
        (
            "dtype=bf16;head_dim=128",
            {"dtype": torch.float16},
            "dtype=bf16 alone; the nearest that exists is dtype=bf16",
        ),
        ("family=flash;operation=attn_fwd;head_dim=64", {"width": 128}, "head_dim=64 alone; the nearest that exists"),
    ],
)
def test_what_a_selection_left_out_is_refused_with_the_selection(
    monkeypatch: pytest.MonkeyPatch, selection: str, call: dict, reason: str
) -> None:
    install(monkeypatch, "core", selection)
    tensors = qkv("meta", call.get("width", 64), call.get("dtype", torch.bfloat16))
    found = kt.explain(*tensors, target=TARGET, backward="backward" in call)
    assert f"on sm_90: this build was made for {reason}" in str(found.refusal), str(found)
    assert kt.explain(*qkv("meta"), target=TARGET), "images of head_dim=128 serve 64 too"


def test_what_a_release_selected_of_another_family_is_none_of_the_reasons(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, "core", "dtype=bf16;head_dim=64")
    monkeypatch.setattr(_release, "SELECTION", "cols=16;dtype=bf16;family=flash,norm;head_dim=64")
    assert kt.explain(*qkv("meta"), target=TARGET)
    refusal = str(kt.explain(*qkv("meta", 128), target=TARGET).refusal)
    assert "on sm_90: this build was made for head_dim=64 alone; the nearest that exists is" in refusal


def test_mistakes_are_told_as_by_the_runtime(packs: str) -> None:
    for call, words in (({"dropout": 2.0}, "0.9999"), ({"v": qkv("meta", 64, torch.float16)[2]}, "v is fp16")):
        found = kt.explain(**{**dict(zip("qkv", qkv("meta"))), **call}, target=TARGET)
        assert isinstance(found.error, ArgumentError) and words in str(found.refusal), str(found)
    mixed = kt.explain(qkv("meta")[0], *qkv("cpu")[1:], target=TARGET)
    assert "all tensors must be on one device" in str(mixed.refusal)


def test_sparse_tensors_are_refused(packs: str) -> None:
    q, k, v = qkv("cpu")
    found = kt.explain(q, k.to_sparse(), v, target=TARGET)
    assert str(found.refusal) == "k must be a dense tensor, neither sparse nor nested"


def test_a_target_that_cannot_be_is_refused(packs: str) -> None:
    with pytest.raises(UsageError, match="sm_91"):
        kt.explain(*qkv("meta"), target="sm_91")
    with pytest.raises(UsageError, match="give one"):
        kt.explain(*qkv("meta"), target="all")
    with pytest.raises(NotFoundError, match="gfx942 has no images of flash: this build was made for other families"):
        kt.explain(*qkv("meta"), target="MI300X")
    with pytest.raises(ArgumentError, match="target must be a text or None"):
        kt.explain(*qkv("meta"), target=3)
