"""The inside of a worker process: takes tasks from the executor, one at a time, and runs them.

Knows nothing of kernels. What a task prints, be it from Python, C++ or a child process, goes to the task's log.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import io
import os
import pickle
import resource
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from kiln_recipe.errors import CompileError, EnvironmentProblem

_PR_SET_PDEATHSIG = 1
_IOLBF = 1

# What a worker says to the executor: one of these and its values.
READY, BROKEN, DONE, RAISED, WAITS, RESUMES = "ready", "broken", "done", "raised", "waits", "resumes"


@dataclass(frozen=True)
class Order:
    """A task as it goes to a worker. `data_limit` is its RLIMIT_DATA in bytes, None for no limit."""

    function: Callable[..., Any]
    arguments: tuple
    log: str
    is_retry: bool
    data_limit: int | None


_connection: Connection | None = None


@contextlib.contextmanager
def waiting() -> Iterator[None]:
    """For tasks: around a wait for somebody else's work. The task's clock stands still meanwhile."""
    if _connection is not None:
        _connection.send((WAITS,))
    try:
        yield
    finally:
        if _connection is not None:
            _connection.send((RESUMES,))


def main(descriptor: int, parent: int) -> None:
    """Runs a worker until the executor closes the connection."""
    global _connection
    c_library = ctypes.CDLL(None, use_errno=True)
    c_library.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it died before we had asked to follow it
        os._exit(1)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    os.set_inheritable(descriptor, False)
    _be_dispensable()
    _speak_line_by_line(c_library)
    connection = Connection(descriptor)
    sys.path[:] = connection.recv()
    try:
        initializer, arguments = connection.recv()
        if initializer is not None:
            initializer(*arguments)
    except BaseException as error:  # noqa: BLE001  (whatever it is, the build must hear of it)
        traceback.print_exc()
        connection.send((BROKEN, _portable(error)))
        return
    _connection = connection
    connection.send((READY,))
    while True:
        try:
            order = connection.recv()
        except EOFError:
            return
        except Exception as error:  # noqa: BLE001  (its function cannot be imported here)
            connection.send((RAISED, _portable(error), _resident()))
            continue
        answer = _run(order)
        c_library.fflush(None)
        if answer[0] == DONE and not order.is_retry:
            with contextlib.suppress(OSError):
                os.unlink(order.log)
        try:
            connection.send((*answer, _resident()))
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            connection.send((RAISED, TypeError(f"the task's result cannot be sent: {error}"), _resident()))


def _run(order: Order) -> tuple:
    """The answer to an order, without the worker's size."""
    try:
        mode = os.O_APPEND | (0 if order.is_retry else os.O_TRUNC)
        log = os.open(order.log, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | mode, 0o666)
    except OSError as error:
        return (RAISED, EnvironmentProblem(f"cannot write the log {order.log}: {error.strerror}"))
    for standard in (1, 2):
        os.dup2(log, standard)
    os.close(log)
    try:
        with _data_limit(order.data_limit):
            answer = (DONE, order.function(*order.arguments))
    except BaseException as error:  # noqa: BLE001  (a kernel's module may call sys.exit())
        if not isinstance(error, CompileError) or error.log:  # without: job.py has written all that there is to know
            traceback.print_exc()
        answer = (RAISED, _portable(error))
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    return answer


@contextlib.contextmanager
def _data_limit(limit: int | None) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if limit is not None and (hard == resource.RLIM_INFINITY or limit < hard):
        resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def _portable(error: BaseException) -> Exception:
    """The exception, or where it cannot cross processes, or would end the executor, one that says the same."""
    try:
        if isinstance(error, Exception) and isinstance(pickle.loads(pickle.dumps(error)), Exception):
            return error
    except Exception:  # noqa: BLE001  (pickling runs the exception's own code)
        pass
    return RuntimeError("".join(traceback.format_exception_only(type(error), error)).strip())


def _be_dispensable() -> None:
    """When memory runs out the kernel takes a worker, not the build; and no gigabytes of core files."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "r+") as file:
        if int(file.read()) < 500:
            file.seek(0)
            file.write("500")


def _speak_line_by_line(c_library: ctypes.CDLL) -> None:
    """What was printed before a crash is in the log; so is the Python stack."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # what a process begins with
            stream.reconfigure(line_buffering=True, errors="backslashreplace")
    with contextlib.suppress(ValueError, AttributeError):
        c_library.setvbuf(ctypes.c_void_p.in_dll(c_library, "stdout"), None, _IOLBF, 0)
    faulthandler.enable()


def _resident() -> int:
    """Bytes of memory that this process has now."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()
