"""Attention for PyTorch 2.10 and later by Kiln's kernels, for CUDA and ROCm alike.

    import kiln.torch, torch

    q = k = v = torch.randn(1, 8, 1024, 128, dtype=torch.bfloat16, device="cuda")
    out = kiln.torch.attention(q, k, v, causal=True)                     # Kiln's own function, with all that it can do
    out = kiln.torch.scaled_dot_product_attention(q, k, v)               # PyTorch's function, by Kiln's kernels
    with kiln.torch.use():                                               # models that call PyTorch's, unchanged
        loss = model(x).sum()
    print(kiln.torch.explain(q, k, v, causal=True))                      # which image would run, and why

`decode` is attention over a cache, `attention_fp8` attention of fp8. `kiln.torch.flash_attn` has the functions of the
flash-attention package, and `register_transformers()` makes "kiln" an attn_implementation of Hugging Face Transformers.

The operators beneath are those of torch.ops.kiln, such as attn_fwd: attention is differentiable, and all are known to
torch.compile, autocast and CUDA graphs. What Kiln has no kernel for is refused in one sentence; nothing falls back in
silence. Importing needs no GPU.

All modules of the package but `kiln.torch.flash_attn` are internal.
"""

try:
    import torch as _torch  # noqa: F401
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise ModuleNotFoundError(
        "kiln.torch needs PyTorch 2.10 or later, which is not installed; pip install torch, or 'kiln-runtime[torch]'",
        name="torch",
    ) from None

from kiln.torch import functions
from kiln.torch.explanation import Explanation, explain
from kiln.torch.fp8 import attention_fp8
from kiln.torch.functions import *  # noqa: F403
from kiln.torch.routing import (
    fallthroughs,
    is_routed,
    last_fallthrough,
    on_fallthrough,
    reset_fallthroughs,
    use,
)
from kiln.torch.sdpa import scaled_dot_product_attention
from kiln.torch.transformers import register_transformers

__all__ = [
    "Explanation",
    "attention_fp8",
    "explain",
    "fallthroughs",
    "is_routed",
    "last_fallthrough",
    "on_fallthrough",
    "register_transformers",
    "reset_fallthroughs",
    "scaled_dot_product_attention",
    "use",
    *functions.__all__,
]
