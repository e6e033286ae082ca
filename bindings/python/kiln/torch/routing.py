"""kiln.torch.use(): torch.nn.functional.scaled_dot_product_attention by Kiln's kernels, where there are such.

Where there are none, PyTorch's own runs, and the reason is counted. Nothing else of PyTorch is changed but its switch
for the fast path of nn.MultiheadAttention, which would go past that function.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.compiler import is_compiling
from torch.jit._builtins import _get_builtin_table
from torch.overrides import handle_torch_function, has_torch_function_variadic

from kiln.arrays import shown
from kiln.errors import ArgumentError, NoDeviceError, PackNotFoundError, ResourcesError, UnsupportedError
from kiln.torch import operators, sdpa
from kiln.torch.autograd import is_real

if TYPE_CHECKING:
    from typing_extensions import Self

theirs = torch.nn.functional.scaled_dot_product_attention
"""PyTorch's own function, which runs what falls through."""

# What says that Kiln has no kernel for a call. Anything else, a driver's error say, is the caller's to see.
REFUSALS = (UnsupportedError, ArgumentError, NoDeviceError, PackNotFoundError, ResourcesError)
_MOST_REASONS = 1000  # sentences have sizes in them
_OTHERS = "other reasons, beyond the first 1000"
_STASHED = "kiln.torch.use"


class _Here(threading.local):
    """How many `with` statements this thread is in. An attribute of the instance: torch.compile guards that alone."""

    def __init__(self) -> None:
        self.depth = 0
        self.passes_on = False  # while PyTorch's own function runs a call that was counted already


class _Everywhere:
    """How often use() was called once for all, and how many routes of either kind there are."""

    depth = 0
    routes = 0
    fastpath = True  # what torch.backends.mha had when the first of them began
    replaced = theirs  # what torch.nn.functional had then


_here, _everywhere, _lock = _Here(), _Everywhere(), threading.RLock()


class Fallthroughs:
    """Reasons, counted."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.counts: dict[str, int] = {}
        self.last: str | None = None
        self.callback: Callable[[str], object] | None = None

    def add(self, reason: str) -> None:
        with self.lock:
            known = reason in self.counts or len(self.counts) < _MOST_REASONS
            key = reason if known else _OTHERS
            self.counts[key] = self.counts.get(key, 0) + 1
            self.last = reason
            callback = self.callback
        if callback is not None:
            callback(reason)


_fallthroughs = Fallthroughs()


def count(reason: str) -> None:
    """Counts a call that fell through in another module of this package."""
    _fallthroughs.add(reason)


def fallthroughs() -> dict[str, int]:
    """Why calls went to PyTorch's own function, and how often each.

    A call that torch.compile traces is counted once, when its graph is made.
    """
    with _fallthroughs.lock:
        return dict(_fallthroughs.counts)


def last_fallthrough() -> str | None:
    """The latest reason, or None if there was none."""
    return _fallthroughs.last


def reset_fallthroughs() -> None:
    """Forgets all reasons."""
    with _fallthroughs.lock:
        _fallthroughs.counts.clear()
        _fallthroughs.last = None


def on_fallthrough(callback: Callable[[str], object] | None) -> Callable[[str], object] | None:
    """Has `callback` called with each reason, from the thread whose call fell through; None: nothing is called.

    What it raises goes to the caller of scaled_dot_product_attention: raising is a way to allow no fall-through.

    Returns:
        What was called before.

    Raises:
        ArgumentError: it cannot be called.
    """
    if not (callback is None or callable(callback)):
        raise ArgumentError(f"callback must be a function of one reason, or None, and is {shown(callback)}")
    with _fallthroughs.lock:
        before, _fallthroughs.callback = _fallthroughs.callback, callback
    return before


class use:
    """Routes torch.nn.functional.scaled_dot_product_attention, and all that calls it there, to Kiln.

    with kiln.torch.use():      # this thread, and the threads that run its backward
        model(x)

    kiln.torch.use()            # once for all: every thread, from now on

    Where Kiln has no kernel PyTorch's function runs; see `fallthroughs`. Statements nest, and may overlap in several
    threads. Inside torch.compile the choice is made when a call is traced, without a graph break; entering and leaving
    compiles again (around the compiled function: not within it). nn.MultiheadAttention and nn.TransformerEncoderLayer
    are routed where they call that function; their fast path for inference, which does not, is off meanwhile in the
    whole process. What torch.jit.script compiles calls PyTorch's operator.
    A module that has imported the function by name before goes on calling PyTorch's.

    `use()` cannot know that a `with` follows, so it routes every thread until the statement is entered, which is at
    once: a call that another thread makes just between goes to Kiln too. `with route:` of a `route = kiln.torch.use()`
    made earlier is the same, with all that lies between.

    The last route that ends puts back what torch.nn.functional had when the first began. What somebody else has put
    there meanwhile stays.
    """

    def __init__(self) -> None:
        self._entered: list[int] = []  # identities of threads
        self._is_everywhere = True
        _change(_everywhere, 1)

    def undo(self) -> None:
        """Takes back what `kiln.torch.use()` once for all did. Nothing the second time, or of a `with` statement."""
        with _lock:
            was, self._is_everywhere = self._is_everywhere, False
            if was:
                _change(_everywhere, -1)

    def __enter__(self) -> Self:
        with _lock:
            _change(_here, 1)
            self.undo()
            self._entered.append(threading.get_ident())
        return self

    def __exit__(self, *exception: object) -> None:
        if not self._entered or self._entered[-1] != threading.get_ident():
            raise RuntimeError("a `with kiln.torch.use()` was left in another thread than it was entered in")
        self._entered.pop()
        _change(_here, -1)


def _change(scope: _Here | _Everywhere, by: int) -> None:
    """Counts a route: the first puts our function into torch.nn.functional, the last puts back what was there."""
    with _lock:
        scope.depth += by
        _everywhere.routes += by
        if scope is _here:
            # Threads that run the backward of this one get such objects from it; checkpoints call the function there.
            torch._C._stash_obj_in_tls(_STASHED, _here.depth > 0)
        if by > 0 and _everywhere.routes == 1:
            _everywhere.fastpath = torch.backends.mha.get_fastpath_enabled()
            torch.backends.mha.set_fastpath_enabled(False)
            _everywhere.replaced = torch.nn.functional.scaled_dot_product_attention
            torch.nn.functional.scaled_dot_product_attention = scaled_dot_product_attention
            # torch.jit.script, which compiles what a module calls, knows the function by its identity.
            _get_builtin_table()[id(scaled_dot_product_attention)] = "aten::scaled_dot_product_attention"
        elif _everywhere.routes == 0:
            if torch.nn.functional.scaled_dot_product_attention is scaled_dot_product_attention:
                torch.nn.functional.scaled_dot_product_attention = _everywhere.replaced
            _get_builtin_table().pop(id(scaled_dot_product_attention), None)
            torch.backends.mha.set_fastpath_enabled(_everywhere.fastpath)


def is_routed() -> bool:
    """Whether a call of torch.nn.functional.scaled_dot_product_attention in this thread goes to Kiln first."""
    if _here.depth or _everywhere.depth:
        return True
    if is_compiling():
        return False
    return torch._C._is_key_in_tls(_STASHED) and torch._C._get_obj_in_tls(_STASHED)


def scaled_dot_product_attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
    is_causal: bool = False, *, scale: float | None = None, enable_gqa: bool = False,
) -> Tensor:  # fmt: skip
    """What stands for PyTorch's function while use() is in force: Kiln's, or where it has no kernel PyTorch's own."""
    if not is_compiling() and (_here.depth or _everywhere.depth) and not _here.passes_on:
        out = sdpa.plain(
            query, key, value, attn_mask=attn_mask, dropout_p=dropout_p, is_causal=is_causal, scale=scale,
            enable_gqa=enable_gqa,
        )  # fmt: skip
        if out is not None:
            return out
    if has_torch_function_variadic(query, key, value, attn_mask) and (
        is_compiling() or not sdpa.is_causal_bias(attn_mask)  # whose own way leads past this function
    ):
        own = () if is_compiling() else [type(x) for x in (query, key, value, attn_mask) if sdpa.has_own_way(x)]
        if own:  # it knows PyTorch's function and not this one
            if is_routed() and not _here.passes_on:
                count(f"{own[0].__name__} has an attention of its own")
            return theirs(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
        return handle_torch_function(
            scaled_dot_product_attention, (query, key, value, attn_mask), query, key, value, attn_mask, dropout_p,
            is_causal, scale=scale, enable_gqa=enable_gqa,
        )  # fmt: skip
    if not is_routed():
        return _pass_on(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
    if is_compiling():
        return torch.ops.kiln.scaled_dot_product_attention.default(
            query,
            key,
            value,
            attn_mask,
            dropout_p,
            is_causal,
            scale=scale,
            enable_gqa=enable_gqa,
            route=operators.state,
        )
    return either(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)


def either(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None, dropout_p: float, is_causal: bool,
    scale: float | None, enable_gqa: bool,
) -> Tensor:  # fmt: skip
    """Kiln's function, or PyTorch's with the reason counted."""
    if _here.passes_on:
        return theirs(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
    reason = _glance(query)
    if reason is None:
        try:
            out = sdpa.shortest(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
            if out is None:
                out = sdpa.attend(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
            return out
        except REFUSALS as error:
            reason = str(error)
    if _is_final():
        count(reason)
    return _pass_on(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)


def _pass_on(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None, dropout_p: float, is_causal: bool,
    scale: float | None, enable_gqa: bool,
) -> Tensor:  # fmt: skip
    """PyTorch's own function.

    A CausalBias compares what is called with what torch.nn.functional has, which is ours while a route is active.
    PyTorch's function would read it as an ordinary mask, whose memory was never initialised.
    """
    if not sdpa.is_causal_bias(attn_mask):
        return theirs(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
    before, _here.passes_on = _here.passes_on, True
    try:
        kind: Any = type(attn_mask)
        return kind.__torch_function__(
            torch.nn.functional.scaled_dot_product_attention,
            (kind,),
            (query, key, value, attn_mask, dropout_p, is_causal),
            {"scale": scale, "enable_gqa": enable_gqa},
        )
    finally:
        _here.passes_on = before


def _glance(query: Tensor) -> str | None:
    """The most frequent reason, found at no cost."""
    if isinstance(query, Tensor) and query.device.type not in operators.engine().devices:
        return (
            f"query is on the device {query.device.type}, and kernels run on {' and '.join(operators.engine().devices)}"
        )
    return None


def _is_final() -> bool:
    """Whether this call is made, or traced into a graph. While one is compiled, shapes are worked out before that."""
    if is_real() or torch.jit.is_tracing():
        return True
    from torch.fx.experimental.proxy_tensor import get_proxy_mode

    return get_proxy_mode() is not None


# Beneath torch.compile the function is an operator, which is taken apart while the graph of operators is made: there
# is no graph break, and what decides runs as plain Python, on fake tensors. `route` is operators.state, or "" where
# nothing may fall through: graphs that PyTorch keeps on disk would else carry a decision, and its count, elsewhere.
operators.library.define(
    "scaled_dot_product_attention(Tensor query, Tensor key, Tensor value, Tensor? attn_mask=None, float dropout_p=0., "
    "bool is_causal=False, *, float? scale=None, bool enable_gqa=False, str route='') -> Tensor",
    tags=(torch.Tag.pt2_compliant_tag, torch.Tag.nondeterministic_seeded),
)


def _composite(
    query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, *, scale=None, enable_gqa=False, route=""
):
    function = either if route else sdpa.attend
    return function(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)


operators.library.impl("scaled_dot_product_attention", _composite, "CompositeImplicitAutograd")
