"""Published models: what `kiln coverage` reads of each is what is known of it."""

from __future__ import annotations

import json
import sys

import pytest

from builds import ROOT
from kiln_build.coverage.attention import Attention
from kiln_build.coverage.configuration import config

sys.path.insert(0, str(ROOT / "docs"))
import models

PATHS = sorted(models.CONFIGURATIONS.glob("*.json"))


def kinds(name: str) -> dict[str, Attention]:
    return {kind.name: kind for kind in config.read(models.CONFIGURATIONS / f"{name}.json").kinds}


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_each_configuration_names_its_source(path) -> None:
    assert json.loads(path.read_text())["_source"].startswith("huggingface.co/")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("llama-3-8b", {"full attention": "32 heads, 8 KV heads, head_dim 128, bf16, causal"}),
        (
            "gemma-2-9b",
            {
                "sliding attention": "16 heads, 8 KV heads, head_dim 256, bf16, causal, window 4096, softcap 50",
                "full attention": "16 heads, 8 KV heads, head_dim 256, bf16, causal, softcap 50",
            },
        ),
        (
            "deepseek-v3",
            {
                "full attention": "128 heads, head_dim 192/128, bf16, causal",
                "absorbed latent attention": "128 heads, 1 KV head, head_dim 576/512, bf16, causal",
            },
        ),
        (
            "gpt-oss-20b",
            {
                "sliding attention": "64 heads, 8 KV heads, head_dim 64, bf16, causal, window 128, sinks",
                "full attention": "64 heads, 8 KV heads, head_dim 64, bf16, causal, sinks",
            },
        ),
        ("falcon-7b", {"full attention": "71 heads, 1 KV head, head_dim 64, bf16, causal"}),
        ("mpt-7b", {"full attention": "32 heads, head_dim 128, bf16, causal, alibi"}),
        ("qwen-2.5-7b", {"full attention": "28 heads, 4 KV heads, head_dim 128, bf16, causal"}),
        ("bert-base", {"full attention": "12 heads, head_dim 64, fp32, bidirectional, dropout 0.1"}),
        (
            "whisper-large-v3",
            {
                "encoder self-attention": "20 heads, head_dim 64, fp16, bidirectional",
                "decoder self-attention": "20 heads, head_dim 64, fp16, causal",
                "cross-attention": "20 heads, head_dim 64, fp16, cross",
            },
        ),
        ("flux.1-dev", {"joint attention": "24 heads, head_dim 128, bf16, bidirectional"}),
    ],
)
def test_a_model_has_its_kinds_of_attention(name: str, words: dict[str, str]) -> None:
    assert {key: str(kind) for key, kind in kinds(name).items()} == words


def test_layers_are_counted() -> None:
    assert {name: kind.layers for name, kind in kinds("gemma-3-27b").items()} == {
        "text sliding attention": 52, "text full attention": 10, "vision full attention": 27
    }  # fmt: skip
    assert {name: kind.layers for name, kind in kinds("gpt-oss-120b").items()} == {
        "sliding attention": 18, "full attention": 18
    }  # fmt: skip


def test_heads_of_a_unet_are_counted_by_level() -> None:
    found = kinds("sdxl-base")
    assert [kind.heads for name, kind in found.items() if name.startswith("self")] == [10, 20]
    assert {kind.head_dim for kind in found.values()} == {64}
