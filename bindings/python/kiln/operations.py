"""From the arguments of kiln.attention's functions to a call that is ready: what each array is, what is made, which of
the C interface's parameters are set. The arguments, by their names, are the functions' own."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from kiln import _arguments, layout
from kiln.arrays import shown
from kiln.calls import Call
from kiln.errors import ArgumentError

_Q = "[batch, heads, rows, head_dim]"
_K = "[batch, heads_kv, keys, head_dim]"
_SEEDS = _arguments.PARTS["rng"]


class Gradients(NamedTuple):
    """What `attn_bwd` returns.

    Attributes:
        dq, dk, dv: shaped as q, k and v.
        dbias: shaped as bias; None: not wanted.
        dsinks: [heads]; None: not wanted.
    """

    dq: Any
    dk: Any
    dv: Any
    dbias: Any = None
    dsinks: Any = None


class Ready(NamedTuple):
    """A call, the parameters that are not arrays, and what launches it and gives its results."""

    launch: Callable[[], Any]
    call: Call
    values: dict[str, Any]


def forward(is_dry: bool, **given: Any) -> Ready:
    """attn_fwd; `is_dry`: it is never launched."""
    seeds = _seeds(given)
    written = ("out", "lse", "seed_out", "offset_out")
    call = _call("attn_fwd", is_dry, given, ("q", "k", "v"), written, seeds)
    batch, heads, rows, _ = call.shape("q", 4, _Q)
    call.make("out", (batch, heads, rows, call.shape("v", 4, _K)[3]))
    if given["return_lse"]:
        call.make("lse", (batch, heads, rows), "float32")
    values = _values("attn_fwd", given) | _window(given) | _numbers(seeds)

    def launch() -> Any:
        results = call.launch(values, given["workspace"])
        return (results["out"], results["lse"]) if given["return_lse"] else results["out"]

    return Ready(launch, call, values)


def backward(is_dry: bool, **given: Any) -> Ready:
    """attn_bwd."""
    seeds = _seeds(given)
    wanted = {name: given[name] for name in ("dbias", "dsinks")}
    made = tuple(name for name, value in wanted.items() if value is True)
    given |= {name: None for name, value in wanted.items() if isinstance(value, bool)}
    results = ("dq", "dk", "dv", "dbias", "dsinks")
    call = _call("attn_bwd", is_dry, given, ("q", "k", "v", "out", "dout", "lse"), results, seeds)
    heads = call.shape("q", 4, _Q)[1]
    for name in ("q", "k", "v"):
        call.make(f"d{name}", call.shape(name, 4, _Q if name == "q" else _K))
    if "dbias" in made:
        if given["bias"] is None:
            raise ArgumentError("dbias is requested without a bias; give bias=")
        call.make("dbias", call.shape("bias", 4, "[batch, heads, rows, keys]"))
    if "dsinks" in made:
        call.make("dsinks", (heads,), "float32")
    values = _values("attn_bwd", given) | _window(given) | _numbers(seeds)

    def launch() -> Gradients:
        found = call.launch(values, given["workspace"])
        return Gradients(*(found.get(name) for name in results))

    return Ready(launch, call, values)


def decode(is_dry: bool, **given: Any) -> Ready:
    """attn_decode."""
    written = ("out", "lse", *(("k_cache", "v_cache") if given["k_new"] is not None else ()))
    call = _call("attn_decode", is_dry, given, ("q", "k_cache", "v_cache"), written, {})
    batch, heads, rows, _ = call.shape("q", 4, _Q)
    call.make("out", (batch, heads, rows, call.shape("v_cache", 4, _K)[3]))
    if given["return_lse"]:
        call.make("lse", (batch, heads, rows), "float32")
    values = _values("attn_decode", given) | _window(given)

    def launch() -> Any:
        results = call.launch(values, given["workspace"])
        return (results["out"], results["lse"]) if given["return_lse"] else results["out"]

    return Ready(launch, call, values)


def simple(operation: str, is_dry: bool, **given: Any) -> Ready:
    """Any other operation: the table of arguments tells its results."""
    seeds = _seeds(given)
    every, results = _arguments.ARRAYS[operation], _arguments.RESULTS[operation]
    written = tuple(result.field for result in results)
    read = tuple(name for name, kind in _arguments.KINDS[operation].items() if kind == "tensor" and name in every)
    call = _call(operation, is_dry, given, read or written, written, seeds)
    for result in results:
        if result.field not in call.tensors:
            dtype = layout.dtype_of(result, operation, given)
            call.make(result.field, layout.sizes_of(result, {**given, **call.tensors}), dtype)
    values = _values(operation, given) | _numbers(seeds) | (_window(given) if "window" in given else {})

    def launch() -> Any:
        found = call.launch(values, given.get("workspace"))
        return layout.returned({name: found[name] for name in written})

    return Ready(launch, call, values)


_MAKERS: dict[str, Callable[..., Ready]] = {"attn_fwd": forward, "attn_bwd": backward, "attn_decode": decode}


def dry(operation: str, **given: Any) -> Ready:
    """A call of any operation that is never launched."""
    return _MAKERS.get(operation, partial(simple, operation))(True, **given)


def _call(
    operation: str, is_dry: bool, given: dict[str, Any], needed: tuple[str, ...], written: tuple[str, ...],
    seeds: dict[str, Any],
) -> Call:  # fmt: skip
    """`needed`: the arrays that every call has, the leading one first."""
    others = (name for name in _arguments.ARRAYS[operation] if name not in needed and name not in _SEEDS)
    arrays = {name: given[name] for name in (*needed, *others)}
    arrays |= {name: array for name, array in seeds.items() if not _is_number(array)}
    lead = needed[0]
    return Call(operation, (lead, given[lead]), arrays, needed, written, given["stream"], given["runtime"], is_dry)


def _values(operation: str, given: dict[str, Any]) -> dict[str, Any]:
    """The parameters that are not arrays and have the functions' names for them. A workspace is the call's concern."""
    return {name: given[name] for name in _arguments.VALUES[operation] if name in given and name != "workspace"}


def _window(given: dict[str, Any]) -> dict[str, Any]:
    window = given["window"]
    try:
        left, right = window
    except (TypeError, ValueError):
        raise ArgumentError(
            f"window must be (left, right), each below 0 for no limit; {shown(window)} is not"
        ) from None
    return {"window_left": left, "window_right": right}


def _seeds(given: dict[str, Any]) -> dict[str, Any]:
    """What dropout is drawn from: integers, and arrays."""
    return {name: given[name] for name in _SEEDS if name in given}


def _numbers(seeds: dict[str, Any]) -> dict[str, int]:
    return {f"{name}_value": value for name, value in seeds.items() if _is_number(value)}


def _is_number(value: Any) -> bool:
    return hasattr(value, "__index__") and not hasattr(value, "__dlpack__")
