"""Results as `kiln bench --json` keeps them, of a run that was never made: for tests of what is shown of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from kiln_bench import shapes
from kiln_bench.shapes import Decoding, Training

KEY, OTHER = "0123456789ab", "ba9876543210"
FORWARD, DECODE = (
    f"{KEY} sm_90 flash.attn_fwd/attn_fwd[a=1][B=2][aligned]",
    f"{OTHER} sm_90 flash.attn_decode/x[][B=2][c]",
)
PLAIN = Training(64, 64, 32, 32, 8, 2048, rows_first=True)
CAUSAL = Training(64, 64, 32, 32, 8, 2048, causal=True, rows_first=True)
VARLEN = Training(128, 128, 32, 8, 1, 4096, (4096, 128), causal=True, rows_first=True)
CACHE = Decoding(128, 64, 8, 8, 32768, 16)
OFF = "its result differs from fp32's by 0.5"
PACK = {"file": "nvidia-sm_90.pack", "sha256": "2a" * 32}


def row(part: str, shape: Any, milliseconds: dict[str, list[float]], **more: Any) -> dict[str, Any]:
    image = {"decoding": [DECODE, FORWARD]}.get(part, [FORWARD])
    rest = {"refused": {}, "wrong": {}, "errors": {}, "images": {"kiln": image}, "host_ahead": True, "graphs": False}
    return {"part": part, "shape": shapes.as_row(shape), "milliseconds": milliseconds, **rest, "seconds": 0.5, **more}


def results() -> dict[str, Any]:
    """Kiln beside PyTorch's FlashAttention-2 and cuDNN's."""
    fast, flash, cudnn = [1.0, 1.01, 0.99], [1.5, 1.5, 1.5], [0.9, 0.9, 0.9]
    host = {"kiln.torch.attention": [8.0, 8.2], "F.scaled_dot_product_attention": [16.0, 16.0],
            "kiln.torch.attention, recorded": [30.0], "F.scaled_dot_product_attention, recorded": [24.0]}  # fmt: skip
    rows = [
        {"part": "host", "side": "kiln", "microseconds": host, "refused": {}, "wrong": {}, "images": {}},
        row("forward", PLAIN, {"kiln": fast, "flash": flash, "cudnn": cudnn}),
        row("backward", PLAIN, {"kiln": fast, "flash": flash}, wrong={"cudnn": OFF}),
        row("forward", CAUSAL, {"kiln": fast, "flash": flash, "cudnn": cudnn}, host_ahead=False,
            not_captured={"cudnn": "operation not permitted when stream is capturing"}),
        row("forward", VARLEN, {"kiln": fast}, refused={"flash": "no varlen", "cudnn": "no varlen"}),
        row("decoding", CACHE, {"kiln": [0.3], "copy": [0.25]}, copied_bytes=1 << 30, caches=1, graphs=True),
        row("backward", CAUSAL, {}, skipped="the budget is used up"),
    ]  # fmt: skip
    release = {"side": "kiln", "release": "kiln-0.1.0b.tar.gz", "version": "0.1.0b", "target": "sm_90", "pack": PACK}
    about = {
        "date": "2026-11-25", "gpu": "NVIDIA H200", "target": "sm_90", "driver": "580.1", "clock_limit": "1980 MHz",
        "power_limit": "700.00 W", "torch": "2.11.0", "cudnn": "91900", "packages": {}, "releases": [release],
        "shapes": "core", "rounds": 3, "seconds": None,
    }  # fmt: skip
    return {
        "made_by": "kiln bench", "format": 1, "about": about,
        "sides": {"kiln": "Kiln", "flash": "PyTorch, flash", "cudnn": "PyTorch, cuDNN"},
        "absent": {"flashinfer": "is not installed"}, "clocks": ["1980 MHz", "1725 MHz"], "rows": rows,
    }  # fmt: skip


def written(folder: Path, found: dict[str, Any] | None = None) -> Path:
    path = folder / "results.json"
    path.write_text(json.dumps(found or results(), indent=1))
    return path
