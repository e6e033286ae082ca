"""kiln.torch.register_transformers: see inside/test_transformers_*.py.

KILN_TEST_TORCH=1 installs Hugging Face Transformers besides PyTorch; without it only what is refused is tested.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import insides
import pytest

FILES = sorted(path.name for path in insides.INSIDE.glob("test_transformers_*.py"))
REFUSALS = "test_transformers_refusals.py"


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_inside(site: Path, name: str) -> None:
    pytest.importorskip("torch", reason="needs torch")
    if name != REFUSALS and importlib.util.find_spec("transformers") is None:
        pytest.skip("needs transformers")
    insides.run(site, name)
