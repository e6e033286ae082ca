"""What a build and the agents of its workers tell each other.

An order goes out pickled, as all that Dask runs: a worker trusts whoever may give it work. What comes back is plain
data: no pickle of a worker's is ever read here, neither of images nor of errors.
"""

from __future__ import annotations

import builtins
import contextlib
import importlib
import io
import pickle
from collections.abc import Callable
from typing import Any

import msgspec

from kiln_recipe.errors import ArtifactError

# Where classes of exceptions that may come back are looked up; any other comes back as a RuntimeError.
_KNOWN_MODULES = ("kiln_recipe.errors", "kiln_build.farm.job")

RETURNED, RAISED, DIED, BROKEN, MOVED = "returned", "raised", "died", "broken", "moved"
BEGAN, WAITS = "began", "waits"


class Session(msgspec.Struct, frozen=True):
    """What the tasks of one executor have in common.

    Attributes:
        name: 32 hexadecimal digits, of no other executor.
        start: the initializer and its arguments, pickled; `bundle.There` stands for the `Host` among them.
        bundle: digest of the bundle of sources that the host is made of; "" where there is no host.
        bytes_per_worker: as `StartExecutor` has it.
    """

    name: str
    start: bytes
    bundle: str
    bytes_per_worker: int


class Order(msgspec.Struct, frozen=True):
    """A task for a worker.

    Attributes:
        number: of the task, within the session.
        work: the function and its arguments, pickled.
        data_limit: as `Task` has it.
        is_received: whether the function returns bytes, which the build reads as it sees fit.
    """

    session: Session
    number: int
    work: bytes
    data_limit: int | None
    is_received: bool


class Fault(msgspec.Struct, frozen=True):
    """An exception: its class, its arguments and attributes as plain data, and its words."""

    module: str
    name: str
    arguments: bytes
    state: bytes
    text: str


class Reply(msgspec.Struct, frozen=True):
    """What became of a task.

    Attributes:
        kind: RETURNED, RAISED, DIED; BROKEN: no worker could be made ready; MOVED: another machine had begun with it,
            so nothing was done here.
        value: what it returned: bytes if the order says so, else plain data.
        fault: what it raised, or what kept workers from being made ready.
        reason, signal: of `Died`.
        log: what it printed, where that is kept; of much, the end.
        worker: the address of the Dask worker.
        seconds: from when it began.
    """

    kind: str
    value: bytes = b""
    fault: Fault | None = None
    reason: str = ""
    signal: int = 0
    log: bytes = b""
    worker: str = ""
    seconds: float = 0.0


def encode(message: Order | Reply) -> bytes:
    """As MessagePack."""
    return msgspec.msgpack.encode(message)


def decode_order(data: bytes) -> Order:
    """What `encode` wrote."""
    return msgspec.msgpack.decode(data, type=Order)


def decode_reply(data: object) -> Reply:
    """What `encode` wrote.

    Raises:
        ArtifactError: it is no reply.
    """
    try:
        if isinstance(data, bytes):
            return msgspec.msgpack.decode(data, type=Reply)
    except msgspec.DecodeError as error:
        raise ArtifactError(f"what came back is not a reply ({error})") from error
    raise ArtifactError(f"what came back is {type(data).__name__}, and not a reply")


# ---- plain data ----


class _Plain(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"{module}.{name} is not plain data")


def dumps(value: object) -> bytes:
    """None, numbers, texts, bytes, and tuples, lists, sets and dictionaries of these.

    Raises:
        TypeError: it is something else.
    """
    try:
        data = pickle.dumps(value, protocol=4)
        _Plain(io.BytesIO(data)).load()
    except Exception as error:
        raise TypeError(f"the task's result cannot be sent: {error}") from error
    return data


def loads(data: bytes) -> Any:
    """What `dumps` wrote. Names no class and calls nothing, whatever `data` is.

    Raises:
        ArtifactError: it is not plain data.
    """
    try:
        return _Plain(io.BytesIO(data)).load()
    except Exception as error:
        raise ArtifactError(f"what came back is not plain data ({error})") from error


# ---- exceptions ----


def fault_of(error: BaseException) -> Fault:
    """What `exception_of` makes an equal exception of."""
    arguments = state = b""
    with contextlib.suppress(TypeError):
        arguments, state = dumps(error.args), dumps(dict(error.__dict__))
    return Fault(type(error).__module__, type(error).__name__, arguments, state, str(error))


def exception_of(fault: Fault) -> Exception:
    """An exception of the same class, if that is Python's or Kiln's own; else a RuntimeError that says the same."""
    found: Callable[..., Any] | None = None
    if fault.module == builtins.__name__:
        found = getattr(builtins, fault.name, None)
    elif fault.module in _KNOWN_MODULES:
        found = getattr(importlib.import_module(fault.module), fault.name, None)
    if isinstance(found, type) and issubclass(found, Exception) and fault.arguments:
        with contextlib.suppress(Exception):  # another version's class may take other arguments
            error = found(*loads(fault.arguments))
            error.__dict__.update(loads(fault.state))
            return error
    text = fault.text if fault.name == "RuntimeError" else f"{fault.name}: {fault.text}"
    return RuntimeError(text)
