"""What a call would run, and why; asked without running anything, of real tensors and of fake ones."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from kiln import _arguments, _core
from kiln.errors import ArgumentError, KilnError
from kiln.information import Variant
from kiln.torch import arguments, functions, native, operators
from kiln_recipe import dtypes

if TYPE_CHECKING:
    from kiln.torch.ahead import Ahead

_DTYPES = {getattr(torch, row.torch): row.name for row in dtypes.TABLE}
_FORWARD_ONLY = {*_arguments.VALUES["attn_fwd"]} - {*_arguments.VALUES["attn_bwd"]}  # no gradient depends on them
_UNKNOWN = 4096  # stands for a size that is not known while something is traced
_PAGE = 1 << 21


@dataclass(frozen=True)
class Explanation:
    """What a call would run; `str()` says it for people, `to_dict()` for programs.

    Attributes:
        call: its shapes in words, which are what the look-up chose by.
        kernels: in the order of their launches; those of the backward, if asked for, come last.
        refusal: None, or why there are none: the sentence names the nearest that exists.
        error: the exception that the call would raise, or None.
        engine: what runs the operators: "native" for what was compiled ahead.
    """

    call: str
    kernels: tuple[Variant, ...]
    refusal: str | None
    error: KilnError | None
    engine: str

    def __bool__(self) -> bool:
        """Whether the call would run."""
        return self.refusal is None

    def __str__(self) -> str:
        if self.refusal is not None:
            return f"{self.call}\n  refused ({type(self.error).__name__}): {self.refusal}"
        if not self.kernels:
            return f"{self.call}\n  launches nothing"
        return "\n".join([self.call, *map(_described, self.kernels)])

    def to_dict(self) -> dict[str, object]:
        """Plain data, fit for JSON."""
        error = None if self.error is None else type(self.error).__name__
        kernels = [asdict(kernel) for kernel in self.kernels]
        return {"call": self.call, "kernels": kernels, "refusal": self.refusal, "error": error, "engine": self.engine}


def _described(kernel: Variant) -> str:
    spilled = f", {kernel.spill_bytes} bytes spilled" if kernel.spill_bytes else ""
    passed_over = "".join(f"\n      passed over: {line}" for line in kernel.passed_over.splitlines())
    return (
        f"  {kernel.kernel} on {kernel.target}: {kernel.configuration}\n"
        f"      because of {kernel.functional}, {kernel.specialization}\n"
        f"      {kernel.threads} threads, {kernel.registers} registers, {kernel.shared_bytes} bytes of shared memory"
        f"{spilled}\n"
        f"      image {kernel.key}{passed_over}"
    )


@arguments.named
@arguments.as_of(functions.attention)
def explain(
    q: Tensor, k: Tensor, v: Tensor, *, backward: bool = False, target: str | None = None, **others: Any
) -> Explanation:
    """Which images `attention` with these arguments would run, and why; none of them is launched.

    What `attention` casts or copies for its kernels is cast here too, so that the answer is that of the same tensors.

    Args:
        backward: those of its gradients too: of q, k and v, and of bias and sinks where they are given.
        target: "sm_90", "MI300X": on such a GPU, which need not be here. The tensors may be on any one device, "meta"
            and "cpu" too. Needs a pack of it, and PyYAML and msgspec.
        others: as in `attention`; without rng nothing is drawn.

    Returns:
        An Explanation, also of a call that would be refused.

    Raises:
        UsageError, NotFoundError: there is no such target, or no pack of it.
        ArgumentError: an argument is not of its kind; or another engine than what was compiled ahead runs the calls
            now. kiln.jit tells what it would run by `kiln.jit.Recipe(...).operation("attn_fwd").explain(...)`.
    """
    ahead = None
    if target is None:
        _check_engine()
    else:
        from kiln.torch.ahead import Ahead  # which needs more packages

        ahead = Ahead(target)
    call, engine = _words(q, k, v, **others), operators.engine().name if target is None else native.name
    try:
        normalized = functions.normalized(q, k, v, **others)
        given = dict(zip(operators.FORWARD_NAMES, normalized, strict=True))
        gradients = ("q", "k", "v", "bias", "sinks") if backward else ()
        kernels = _plan(given, given["return_lse"] or backward, gradients, ahead)
    except KilnError as error:
        return Explanation(call, (), str(error), error.with_traceback(None), engine)
    return Explanation(call, kernels, None, None, engine)


def check(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, scale: float, dropout: float, causal: bool, bottom_right: bool
) -> None:
    """Raises what a call of these tensors, [batch, heads, rows, d] and perhaps fake, would raise; launches nothing.

    Of another engine than what was compiled ahead nothing is known before it runs.
    """
    if operators.engine() is not native:
        return
    given: dict[str, Any] = {
        "q": q, "k": k, "v": v, "bias": bias, "scale": scale, "dropout": dropout, "causal": causal,
        "bottom_right": bottom_right,
    }  # fmt: skip
    wanted: tuple[str, ...] = ()
    if torch.is_grad_enabled():
        wanted = tuple(
            name for name in ("q", "k", "v", "bias") if given[name] is not None and given[name].requires_grad
        )
    _plan(given, bool(wanted), wanted)


def _check_engine() -> None:
    if operators.engine() is not native:
        raise ArgumentError(
            f"explain covers kernels compiled ahead only, and the engine {operators.engine().name} is active; for "
            'kiln.jit use kiln.jit.Recipe(...).operation("attn_fwd").explain(...)'
        )


def _check_devices(tensors: Mapping[str, Tensor], is_here: bool) -> None:
    """Refuses tensors that are not dense and all on q's device, in the call's words.

    Args:
        is_here: it is the device of the call, so that it must be a GPU.
    """
    q = tensors["q"].device
    for name, tensor in tensors.items():
        device = tensor.device
        if tensor.layout != torch.strided:
            raise ArgumentError(f"{name} must be a dense tensor, neither sparse nor nested")
        if is_here and device.type != "cuda":
            where = "the CPU" if device.type == "cpu" else device
            raise ArgumentError(f"{name} is on {where}; all tensors must be on one CUDA or ROCm device")
        if device != q:
            raise ArgumentError(f"{name} is on {device} and q on {q}; all tensors must be on one device")


def _plan(
    given: Mapping[str, Any], with_lse: bool, gradients: Collection[str], ahead: Ahead | None = None
) -> tuple[Variant, ...]:
    """The kernels of a forward call, and of its backward.

    Args:
        given: arguments of attn_fwd by name; what is missing has its default.
        gradients: of which arguments gradients are wanted; those of q, k and v come together. Empty: no backward.
        ahead: of the target that is asked about; None: the device that the tensors are on.
    """
    names = (*_arguments.ARRAYS["attn_fwd"], "rng")
    tensors = {name: given[name] for name in names if given.get(name) is not None}
    _check_devices(tensors, ahead is None)
    tensors.pop("rng", None)  # what dropout draws decides nothing
    for name in ("q", "k", "v"):
        tensors[name] = _logical(tensors[name], given.get("rows_first", False))
    made = _Addresses()
    views = {name: _view(tensor, made) for name, tensor in tensors.items()}
    q, v = views["q"], views["v"]
    sequences = views["cu_seqlens_q"][2][0] - 1 if "cu_seqlens_q" in views else q[2][0]
    scores = (sequences, q[2][1], q[2][2])
    summed = {}  # gradients that are sums over what was spread
    if "bias" in views:
        if "bias" in gradients:
            summed["dbias"] = _spread(_packed(views["bias"], views["bias"][1], made), scores)
        views["bias"] = _spread(views["bias"], scores)
    if "sinks" in views and "sinks" in gradients:
        summed["dsinks"] = _packed(views["sinks"], "fp32", made)
    if "alibi_slopes" in views and len(views["alibi_slopes"][2]) == 1:
        address, dtype, sizes, strides = views["alibi_slopes"]
        views["alibi_slopes"] = (address, dtype, (sequences, *sizes), (0, *strides))
    out = _dense(q, v[2][3], made)
    lse = (made.next(), "fp32", q[2][:3], (q[2][1] * q[2][2], q[2][2], 1))
    seed = {name: (made.next(), "int64", (), ()) for name in ("seed", "offset")}
    scalars = {name: given[name] for name in _arguments.VALUES["attn_fwd"] if name in given and name != "scale"}
    fields = {
        **views, **scalars, "sm_scale": given["scale"], **(seed if scalars.get("dropout") else {}), "out": out,
    }  # fmt: skip
    calls: dict[str, dict[str, Any]] = {"attn_fwd": {**fields, "lse": lse if with_lse else None}}
    if gradients:
        own = {f"d{name}": _dense(views[name], views[name][2][3], made) for name in "qkv"}
        fields = {name: value for name, value in fields.items() if name not in _FORWARD_ONLY}
        calls["attn_bwd"] = {**fields, "lse": lse, "dout": out, **own, **summed}
    if ahead is not None:
        return tuple(variant for name, call in calls.items() for variant in ahead.explain(name, call))
    runtime = _core.Runtime.borrow(native.runtime())
    with _queue(given["q"].device) as queue:
        rows = [row for name, call in calls.items() for row in runtime.explain(name, queue, call)]
    return tuple(Variant(**row) for row in rows)


@contextmanager
def _queue(device: torch.device) -> Iterator[tuple[int, int, int]]:
    """PyTorch's current stream of a device, as kiln._core takes it; the device is current meanwhile."""
    vendor = _core.AMD if torch.version.hip else _core.NVIDIA
    if not torch.cuda.is_available():
        yield vendor, -1, 0  # the runtime says what is missing
        return
    with torch.cuda.device(device):
        stream = torch.cuda.current_stream().cuda_stream
        if not stream:  # the default stream is that of the current context, which a thread may have to be given
            torch.cuda.mem_get_info()
        yield vendor, torch.cuda.current_device(), stream


_View = tuple[int, str, tuple[int, ...], tuple[int, ...]]


class _Addresses:
    """Addresses for tensors that have none: apart, and aligned as PyTorch's allocator would."""

    def __init__(self) -> None:
        self._last = 0

    def next(self) -> int:
        self._last += _PAGE
        return self._last


def _view(tensor: Tensor, made: _Addresses) -> _View:
    """A tensor as kiln._core takes it; one without memory gets an address of its own."""
    dtype = _DTYPES.get(tensor.dtype)
    if dtype is None:
        raise ArgumentError(f"a tensor is of {tensor.dtype}, which no kernel takes")
    real = type(tensor) in functions.PLAIN_TYPES and tensor.device.type == "cuda" and functions.is_real()
    address = tensor.data_ptr() if real else made.next()
    strides = [_known(stride) for stride in tensor.stride()]
    if tensor.dim() == 4 and strides[-1] != 1:  # what the call would copy
        strides = [_known(stride) for stride in torch.empty(tensor.shape, device="meta").stride()]
    return address, dtype, tuple(_known(size) for size in tensor.shape), tuple(strides)


def _known(size: int | torch.SymInt) -> int:
    """A size as a number: of a symbol the one that it has in the example, without a guard on it."""
    if isinstance(size, int):
        return size
    hint = size.node.hint
    return _UNKNOWN if hint is None else int(hint)


def _logical(tensor: Tensor, rows_first: bool) -> Tensor:
    """[batch, heads, rows, d]."""
    if tensor.dim() == 3:
        tensor = tensor.unsqueeze(0)
    if tensor.dim() != 4:
        raise ArgumentError(f"q, k and v must have 4 dimensions, or 3 with cu_seqlens; one has {tensor.dim()}")
    return tensor.transpose(1, 2) if rows_first else tensor


def _dense(like: _View, width: int, made: _Addresses) -> _View:
    batch, heads, rows, _ = like[2]
    return (made.next(), like[1], (batch, heads, rows, width), (heads * rows * width, rows * width, width, 1))


def _packed(like: _View, dtype: str, made: _Addresses) -> _View:
    """A contiguous tensor of the same sizes."""
    sizes, strides = like[2], [1] * len(like[2])
    for i in reversed(range(len(sizes) - 1)):
        strides[i] = strides[i + 1] * max(sizes[i + 1], 1)
    return made.next(), dtype, sizes, tuple(strides)


def _spread(bias: _View, sizes: tuple[int, ...]) -> _View:
    """Sizes of 1 become what they stand for, by strides of 0."""
    address, dtype, own, strides = bias
    spread = [same if size == 1 else size for size, same in zip(own, sizes)] + [own[3]]
    return address, dtype, tuple(spread), tuple(0 if a == 1 and b != 1 else s for a, b, s in zip(own, spread, strides))


def _words(
    q, k, v, rows_first=False, causal=False, window=(-1, -1), bias=None, dropout=0.0, softcap=0.0, **_others
) -> str:
    shapes = ", ".join(f"{name} {[*map(_known, tensor.shape)]}" for name, tensor in (("q", q), ("k", k), ("v", v)))
    more = [
        "causal" if causal else "",
        f"window {window}" if tuple(window) != (-1, -1) else "",
        "bias" if bias is not None else "",
        f"dropout {dropout}" if dropout else "",
        f"softcap {softcap}" if softcap else "",
    ]
    layout = "rows first" if rows_first else "heads first"
    return ", ".join([f"attention of {shapes}", str(q.dtype).removeprefix("torch."), layout, *filter(None, more)])
