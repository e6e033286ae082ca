"""Calls of attention forward on a GPU: tensors in memory as callers have them, and what the answers must be."""

from __future__ import annotations

import ctypes
import math
import zlib
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import ffi
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

DTYPES = {"fp16": (torch.float16, ffi.FP16), "bf16": (torch.bfloat16, ffi.BF16)}
GUARD = 4096  # elements before and after each tensor
SENTINEL = 1234.0


@dataclass(frozen=True)
class Functional:
    """ "dtype=bf16 head_dim=64 causal=false", taken apart."""

    dtype: str
    head_dim: int
    causal: bool

    @classmethod
    def parse(cls, text: str) -> Functional:
        values = dict(word.split("=") for word in text.split())
        return cls(values["dtype"], int(values["head_dim"]), values["causal"] == "true")


@dataclass(frozen=True)
class Case:
    """A call's shape.

    Attributes:
        layout: see LAYOUTS.
        sm_scale: 0 for 1 / sqrt(head_dim).
        spread: the standard deviation of q and k; large ones make the softmax nearly one-hot.
    """

    seqlen_q: int
    seqlen_k: int
    batch: int = 1
    heads: int = 2
    heads_kv: int = 2
    layout: str = "contiguous"
    sm_scale: float = 0.0
    want_lse: bool = True
    spread: float = 1.0

    @property
    def aligned(self) -> bool:
        return self.layout not in ("offset", "odd rows", "odd heads")

    def scale(self, head_dim: int) -> float:
        return self.sm_scale or 1 / math.sqrt(head_dim)

    def __str__(self) -> str:
        text = f"{self.batch}x{self.heads}/{self.heads_kv}x{self.seqlen_q}x{self.seqlen_k} {self.layout}"
        text += f" scale {self.sm_scale}" if self.sm_scale else ""
        text += f" spread {self.spread}" if self.spread != 1 else ""
        return text if self.want_lse else text + " no lse"


LENGTHS = (1, 63, 64, 65, 127, 129, 1023, 2047)
CASES = (
    *(Case(n, n) for n in LENGTHS),
    Case(1, 2047, batch=3, heads=4, heads_kv=2),
    Case(2047, 1),
    Case(65, 1023),
    Case(1023, 63),
    Case(129, 2047, heads=8, heads_kv=1),
    Case(300, 17, batch=2, heads=6, heads_kv=3, layout="rows"),
    Case(257, 257, batch=2, heads=4, heads_kv=2, layout="packed"),
    Case(190, 333, batch=2, layout="padded"),
    Case(200, 200, batch=2, heads=4, heads_kv=2, layout="broadcast"),
    Case(77, 0),
    Case(150, 150, sm_scale=-0.3),
    Case(150, 150, sm_scale=1.0, want_lse=False),
    Case(400, 400, spread=6.0),
    Case(100, 260, layout="offset"),
    Case(260, 100, batch=2, layout="odd rows"),
    Case(1, 65, batch=2, layout="odd heads"),
)


def _storage(shape: tuple[int, ...], layout: str, dtype: torch.dtype) -> torch.Tensor:
    """A view [batch, heads, rows, head_dim] into fresh memory that is all NaN; GUARD elements around it at least."""
    b, h, s, d = shape
    if layout in ("contiguous", "offset"):
        strides = (h * s * d, s * d, d)
    elif layout == "rows":
        strides = (s * h * d, d, h * d)
    elif layout == "packed":  # one of several that lie side by side in each row
        strides = (s * 3 * h * d, d, 3 * h * d)
    elif layout == "padded":
        strides = (h * s * (d + 16), s * (d + 16), d + 16)
    elif layout == "odd rows":
        strides = (h * s * (d + 1), s * (d + 1), d + 1)
    elif layout == "odd heads":
        strides = (h * (s * d + 8), s * d + 8, d)
    elif layout == "broadcast":
        strides = (s * d, 0, d)
    else:
        raise ValueError(layout)
    start = GUARD + (layout == "offset")
    span = sum((n - 1) * stride for n, stride in zip((b, h, s), strides) if n) + d
    memory = torch.full((start + max(span, 0) + GUARD,), math.nan, dtype=dtype, device="cuda")
    return memory.as_strided(shape, (*strides, 1), start)


def _outside(view: torch.Tensor) -> torch.Tensor:
    """Of the memory under a view what is not the view's."""
    memory = torch.empty(0, dtype=view.dtype, device=view.device).set_(view.untyped_storage())
    inside = torch.zeros(memory.shape, dtype=torch.bool, device=view.device)
    inside.as_strided(view.shape, view.stride(), view.storage_offset()).fill_(True)
    return memory[~inside]


def describe(tensor: torch.Tensor, code: int) -> ffi.Tensor:
    """The kiln_tensor of a view; keep the view alive."""
    return ffi.tensor(tensor.data_ptr(), code, tuple(tensor.shape), tuple(tensor.stride()))


@dataclass(frozen=True)
class Expected:
    """A case with its inputs on the device, and what its answers may be.

    Attributes:
        out, lse: in float64.
        out_error: largest absolute error of PyTorch's math attention in the same precision.
        lse_error: largest absolute error of log-sum-exp in float32.
    """

    case: Case
    functional: Functional
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    out: torch.Tensor
    lse: torch.Tensor
    out_error: float
    lse_error: float


def attention64(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, causal: bool):
    """The definition, in float64, of tensors [batch, heads, rows, head_dim]: out and log-sum-exp."""
    group = q.shape[1] // k.shape[1]
    k, v = (t.double().repeat_interleave(group, 1) for t in (k, v))
    if k.shape[2] == 0:
        return torch.zeros(q.shape, dtype=torch.float64, device=q.device), torch.full(
            q.shape[:3], -math.inf, dtype=torch.float64, device=q.device
        )
    scores = scale * (q.double() @ k.mT)
    if causal:
        hidden = torch.ones(scores.shape[2:], dtype=torch.bool, device=q.device).triu(1)
        scores.masked_fill_(hidden, -math.inf)
    lse = scores.logsumexp(3)
    return (scores - lse[..., None]).exp() @ v, lse


def _math_error(q, k, v, scale: float, causal: bool, reference: torch.Tensor) -> float:
    if k.shape[2] == 0:
        return 0.0
    group = q.shape[1] // k.shape[1]
    k, v = (t.repeat_interleave(group, 1) for t in (k, v))
    before = torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed()
    torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(True)  # else it computes in float32
    try:
        with sdpa_kernel(SDPBackend.MATH):
            out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=scale)
    finally:
        torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(before)
    return (out.double() - reference).abs().max().item()


def _lse_error(q, k, scale: float, causal: bool, reference: torch.Tensor) -> float:
    if k.shape[2] == 0:
        return 0.0
    scores = scale * (q.float() @ k.float().repeat_interleave(q.shape[1] // k.shape[1], 1).mT)
    if causal:
        scores.masked_fill_(torch.ones(scores.shape[2:], dtype=torch.bool, device=q.device).triu(1), -math.inf)
    return (scores.logsumexp(3).double() - reference).abs().max().item()


@lru_cache(maxsize=len(CASES))
def expected(functional: Functional, case: Case, seed: int = 0) -> Expected:
    """A case's inputs, other ones for each seed, and its answers."""
    dtype, _ = DTYPES[functional.dtype]
    generator = torch.Generator("cuda").manual_seed(zlib.crc32(repr((functional, case, seed)).encode()))
    tensors = []
    for heads, rows, spread in (
        (case.heads, case.seqlen_q, case.spread),
        (case.heads_kv, case.seqlen_k, case.spread),
        (case.heads_kv, case.seqlen_k, 1.0),
    ):
        shape = (case.batch, heads, rows, functional.head_dim)
        layout = "contiguous" if case.layout == "broadcast" and not tensors else case.layout
        view = _storage(shape, layout, dtype)
        values = torch.randn(shape, generator=generator, device="cuda") * spread
        last = 1 if layout == "broadcast" else heads
        view[:, :last].copy_(values[:, :last])
        tensors.append(view)
    q, k, v = tensors
    scale = case.scale(functional.head_dim)
    out, lse = attention64(q, k, v, scale, functional.causal)
    return Expected(
        case, functional, q, k, v, out, lse,
        _math_error(q, k, v, scale, functional.causal, out),
        _lse_error(q, k, scale, functional.causal, lse),
    )  # fmt: skip


@dataclass(frozen=True)
class Result:
    """The errors of an answer and what they may be; `faults`: what is wrong, in words."""

    out_error: float
    out_limit: float
    lse_error: float
    lse_limit: float
    faults: tuple[str, ...] = field(default=())


class Flash:
    """libkiln_flash.so of an unpacked release, with a kiln_t."""

    def __init__(self, prefix: Path, **options: object) -> None:
        self.library = ffi.Library(prefix / "lib")
        self.flash = ctypes.CDLL(str(prefix / "lib/libkiln_flash.so"))
        self.kiln = ffi.Kiln(self.library, None, **options)
        self.kiln.register(self.flash, "flash")

    def __enter__(self):
        return self

    def __exit__(self, *_: object) -> None:
        self.kiln.close()

    def attention(
        self, q, k, v, out, lse=None, *, sm_scale: float = 0.0, causal: bool = False, stream: int | None = None,
        keys: tuple[str, ...] = (), target: str | None = None, device: int = -1,
    ) -> None:  # fmt: skip
        """kiln_attn_fwd.

        Raises:
            ffi.Failure: its status is not KILN_OK.
        """
        code = {torch.float16: ffi.FP16, torch.bfloat16: ffi.BF16}[q.dtype]
        views = [describe(t, code) for t in (q, k, v, out)]
        stream = torch.cuda.current_stream().cuda_stream if stream is None else stream
        queue = ffi.Queue(ctypes.sizeof(ffi.Queue), ffi.NVIDIA, device, stream or None)
        names = (ctypes.c_char_p * max(len(keys), 1))(*[key.encode() for key in keys])
        params = ffi.AttnFwd(
            size=ctypes.sizeof(ffi.AttnFwd), sm_scale=sm_scale, causal=int(causal), force_keys=names,
            force_count=len(keys), force_target=target and target.encode(),
        )  # fmt: skip
        params.q, params.k, params.v, params.out = (ctypes.pointer(view) for view in views)
        if lse is not None:
            params.lse = ctypes.pointer(describe(lse, ffi.FP32))
        self.library.check(self.flash.kiln_attn_fwd(self.kiln.handle, ctypes.byref(queue), ctypes.byref(params)))

    def run(self, want: Expected, keys: tuple[str, ...] = (), target: str | None = None, **more: object) -> Result:
        """Runs a case into poisoned memory and judges what it wrote, and where."""
        case, functional = want.case, want.functional
        dtype, _ = DTYPES[functional.dtype]
        layout = "contiguous" if case.layout == "broadcast" else case.layout
        out = _storage(tuple(want.q.shape), layout, dtype)
        around = torch.empty(0, dtype=dtype, device="cuda").set_(out.untyped_storage()).fill_(SENTINEL)
        out.fill_(math.nan)
        lse = None
        if case.want_lse:
            rows = case.batch * case.heads * case.seqlen_q
            lse_memory = torch.full((rows + GUARD,), SENTINEL, dtype=torch.float32, device="cuda")
            lse = lse_memory[:rows].view(case.batch, case.heads, case.seqlen_q).fill_(math.nan)
        self.attention(
            want.q, want.k, want.v, out, lse, sm_scale=case.sm_scale, causal=functional.causal, keys=keys,
            target=target, **more,
        )  # fmt: skip
        torch.cuda.synchronize()

        faults = []
        out_error = _largest((out.double() - want.out).abs())
        out_limit = 2 * want.out_error + 1e-5
        if not out_error <= out_limit:
            faults.append(f"out is off by {out_error:.3g}, more than {out_limit:.3g}")
        if not (_outside(out) == SENTINEL).all():
            faults.append("wrote outside out")
        del around
        lse_error, lse_limit = 0.0, 2 * want.lse_error + 1e-5
        if lse is not None:
            # -inf is right where the reference has it too
            lse_error = _largest(torch.where(lse.double() == want.lse, 0.0, (lse.double() - want.lse).abs()))
            if not lse_error <= lse_limit:
                faults.append(f"lse is off by {lse_error:.3g}, more than {lse_limit:.3g}")
            if not (lse_memory[lse.numel() :] == SENTINEL).all():
                faults.append("wrote outside lse")
        return Result(out_error, out_limit, lse_error, lse_limit, tuple(faults))


def _largest(errors: torch.Tensor) -> float:
    """NaN if any is."""
    return errors.max().item() if errors.numel() else 0.0
