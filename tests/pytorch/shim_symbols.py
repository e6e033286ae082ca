"""What libkiln_torch.so takes of libtorch, as libtorch.symbols lists it."""

from __future__ import annotations

from pathlib import Path

SOURCES = Path(__file__).resolve().parents[2] / "bindings/torch"


def listed() -> set[str]:
    lines = (SOURCES / "libtorch.symbols").read_text().splitlines()
    return {line for line in lines if line and not line.startswith("#")}
