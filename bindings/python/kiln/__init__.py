"""Kiln: attention kernels for NVIDIA's and AMD's GPUs, compiled ahead of time.

    import kiln, torch

    q = k = v = torch.randn(1, 8, 1024, 128, dtype=torch.bfloat16, device="cuda")
    out = kiln.attn_fwd(q, k, v, causal=True)      # arrays of PyTorch, CuPy, JAX: whatever speaks DLPack
    print(kiln.info())                             # what is installed, and what it can run on

Functions:
    attn_fwd, attn_bwd   attention and its gradients
    attn_fwd_fp8         attention of fp8
    attn_decode          attention over a cache of keys and values
    dropout_mask         what dropout keeps
    explain, prepare     which kernels a call would run; loads them
    info                 version, targets, devices, drivers
    devices, variants    the GPUs; the compiled kernels

Arrays are used where they are, on their library's current stream or on the one that is given; results are written into
arrays that are given, or made by the library of the first. A call that no kernel serves raises an exception of
`kiln.errors` with a sentence that names what is wrong, or the nearest that exists: there is no fall-back that nobody
asked for. Importing needs no GPU and no driver; images for the GPUs that you have come in packages of their own,
`kiln-images-<target>`. Any number of threads may call at once; a process that is forked opens what it needs anew.

Modules:
    kiln.attention       the functions above, and the arguments that they share
    kiln.errors          the exceptions, which are kiln's too: kiln.UnsupportedError
    kiln.torch           PyTorch: autograd, torch.compile, scaled_dot_product_attention, flash-attention's functions,
                         Transformers; the extra `torch`
    kiln.jit             the same kernels through Triton, for their authors; the extra `jit`

All other modules of the package are internal.
"""

from __future__ import annotations

import sys as _sys

if "t" in getattr(_sys, "abiflags", ""):
    raise ImportError("Kiln is not made for free-threaded builds of Python; use one with the global interpreter lock")

from kiln import errors
from kiln.errors import *  # noqa: F403  (not in __all__: help(kiln) would list them before the functions)

try:
    from kiln import _core
except ImportError as _error:
    if not errors.in_source_tree():
        raise errors.of_import(_error) from None
    # Nothing was built: kiln.jit runs recipes all the same, for authors of kernels, and the rest says what it lacks.
    __getattr__ = errors.needs_extension
else:
    from kiln import attention
    from kiln.attention import *  # noqa: F403
    from kiln.information import Device, Driver, Info, Target, Variant, devices, info, variants
    from kiln.runtime import Runtime

    __version__: str = _core.version()

    __all__ = [
        "Device",
        "Driver",
        "Info",
        "Runtime",
        "Target",
        "Variant",
        "attention",
        "devices",
        "errors",
        "info",
        "variants",
        *attention.__all__,
    ]
