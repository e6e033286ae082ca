"""Every image of a release, forced in turn, against float64.

An image is right if its largest error is at most twice that of PyTorch's math attention in the same precision, plus
1e-5. The device's own images run, and those of sm_80 by way of their PTX, if the release has any (KILN_PTX=1).
"""

from __future__ import annotations

import json
import math
from functools import cache
from pathlib import Path

import ffi
import pytest

FUNCTIONALS = [
    f"dtype={dtype} head_dim={head_dim} causal={causal}"
    for dtype in ("fp16", "bf16")
    for head_dim in (64, 128)
    for causal in ("false", "true")
]


@cache
def own_target(flash) -> str:
    return flash.kiln.devices()[0]["target"].decode()


def images(flash, functional: str, target: str) -> list[dict]:
    """The variants of a functional that have an image; none where the release has no such target."""
    try:
        variants = flash.kiln.variants("flash.attn_fwd", target)
    except ffi.Failure as failure:
        if failure.status == ffi.NOT_FOUND:
            return []
        raise
    found = [
        {name: value.decode() if isinstance(value, bytes) else value for name, value in variant.items()}
        for variant in variants
    ]
    return [v for v in found if v["functional"] == functional and v["unavailable"] is None]


def check_images(flash, record, functional: str, variants: list[dict], forced_target: str | None) -> None:
    from attention import CASES, Functional, expected

    wrong = []
    wanted = Functional.parse(functional)
    for variant in variants:
        assert variant["unavailable"] is None, f"{variant['configuration']} is missing: {variant['unavailable']}"
        worst, worst_case, ran, lse_error = -1.0, "", 0, 0.0
        name = f"{functional} [{variant['configuration']}] {variant['specialization']}@{variant['target']}"
        for case in CASES:
            if not case.aligned and variant["specialization"] == "aligned":
                continue
            result = flash.run(expected(wanted, case), (variant["key"],), forced_target)
            wrong += [f"{name}, {case}: {fault}" for fault in result.faults]
            ran += 1
            lse_error = max(lse_error, result.lse_error)
            share = max(result.out_error / result.out_limit, result.lse_error / result.lse_limit)
            if result.faults:
                share = math.inf
            if share > worst:
                worst, worst_case, worst_result = share, str(case), result
        record(
            "image", target=variant["target"], by="PTX" if forced_target else variant["target"],
            functional=functional, configuration=variant["configuration"], specialization=variant["specialization"],
            key=variant["key"], registers=variant["registers"], shared_bytes=variant["shared_bytes"],
            spill_bytes=variant["spill_bytes"], cases=ran, worst_share_of_limit=worst, worst_case=worst_case,
            error=worst_result.out_error, limit=worst_result.out_limit, lse_error=lse_error,
        )  # fmt: skip
    assert not wrong, "\n".join([f"{len(wrong)} wrong answers", *wrong[:40]])


@pytest.mark.parametrize("functional", FUNCTIONALS)
def test_images_of_the_device(flash, record, functional):
    variants = images(flash, functional, own_target(flash))
    assert len(variants) >= 8, "a functional has at least four configurations, aligned and generic"
    check_images(flash, record, functional, variants, None)


def without_ptx(prefix: Path) -> str | None:
    """Why a release has no PTX of sm_80, by its own words, or None: then it must have it."""
    manifest = json.loads((prefix / "share/kiln/manifest.json").read_bytes())
    if not manifest["ptx"]:
        return "the release was made without PTX; build it with KILN_PTX=1"
    if all(target["name"] != "sm_80" for target in manifest["targets"]):
        return "the release was made without sm_80"
    return None


@pytest.mark.parametrize("functional", FUNCTIONALS)
def test_ptx_of_sm_80(flash, prefix, record, functional):
    if reason := without_ptx(prefix):
        pytest.skip(reason)
    variants = images(flash, functional, "sm_80")
    assert len(variants) >= 8, "a functional has at least four configurations, aligned and generic"
    lacking = [variant["configuration"] for variant in variants if not variant["has_ptx"]]
    assert not lacking, f"the manifest promises PTX; these have none: {lacking}"
    check_images(flash, record, functional, variants, "sm_80")
