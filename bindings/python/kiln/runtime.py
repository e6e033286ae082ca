"""The runtime that calls go to: one for the process, opened at its first use, or one of the caller's own."""

from __future__ import annotations

import logging
import os
import threading
from typing import Any

from kiln import _core
from kiln.arrays import shown_type
from kiln.errors import ArgumentError

_LEVELS = (logging.ERROR, logging.WARNING, logging.INFO, logging.DEBUG)  # by kiln_log_fn's
_MOST = len(_LEVELS) - 1
_logger = logging.getLogger("kiln")
_logger.addHandler(logging.NullHandler())  # a library prints nothing unless its log was asked for


class Runtime:
    """An opened runtime: its devices, packs and loaded images. Most programs need none of their own: every function
    takes the process's, which looks for packs beside the package and in KILN_PACK_PATH.

        with kiln.Runtime(pack_path="/opt/kiln/packs") as runtime:
            kiln.attn_fwd(q, k, v, runtime=runtime)

    It belongs to the process that opened it; in a forked child it raises ForkedError. It is closed by `close()` or at a
    `with` block's end, and by nothing else: work that was launched must be done by then. What it has to say goes to the
    logger "kiln" of `logging`, by the level that this has at the time.

    Args:
        pack_path: folders of packs, separated by ':', searched before KILN_PACK_PATH and the package's own.
        trusted_packs: digests of packs to accept besides those that the library names, separated by ','.
        trusted_keys: public keys of minisign's, the second line of a key's file each, separated by ',': packs that one
            of them signed are accepted too (`kiln sign <pack>` puts the signature beside it).
        resolve: the address of a C function that gives a driver's entry points (kiln_resolve_fn); 0: the process's
            drivers.

    Raises:
        ArgumentError: an argument is malformed.
    """

    def __init__(
        self,
        pack_path: str | os.PathLike[str] | None = None,
        trusted_packs: str | None = None,
        *,
        trusted_keys: str | None = None,
        resolve: int = 0,
    ) -> None:
        folders = os.fspath(pack_path) if isinstance(pack_path, os.PathLike) else pack_path
        # All is taken, since the logger's level may change later: a runtime speaks when it loads, never at each launch.
        self._core = _core.Runtime(
            folders, trusted_packs, _log, log_level=_MOST, resolve=resolve, trusted_keys=trusted_keys
        )

    @property
    def core(self) -> _core.Runtime:
        """The extension's object."""
        return self._core

    @property
    def handle(self) -> int:
        """The address of the C interface's kiln_t, for other libraries of this process; valid until `close()`."""
        return self._core.handle

    def close(self) -> None:
        """Unloads all images. Work that was launched must be done."""
        self._core.close()

    def __enter__(self) -> Runtime:  # noqa: PYI034 - Self is of Python 3.11
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return "<kiln.Runtime, closed>" if self._core.is_closed else f"<kiln.Runtime at {self.handle:#x}>"


def _log(level: int, message: str) -> None:
    _logger.log(_LEVELS[min(max(level, 0), _MOST)], "%s", message)


_lock = threading.Lock()
_default: Runtime | None = None


def default_runtime() -> Runtime:
    """The process's own runtime."""
    global _default
    if _default is None:
        with _lock:
            if _default is None:
                _default = Runtime()
    return _default


def _forget() -> None:
    """In a forked child: the parent's runtime is of no use there, and its lock may be held by a thread that is gone."""
    global _default, _lock
    _default, _lock = None, threading.Lock()


os.register_at_fork(after_in_child=_forget)


def core_of(runtime: Any) -> _core.Runtime:
    """The extension's object of a Runtime, or of the process's own for None.

    Raises:
        ArgumentError: it is neither.
    """
    if runtime is None:
        return default_runtime().core
    if isinstance(runtime, Runtime):
        return runtime.core
    raise ArgumentError(f"runtime must be a kiln.Runtime; {shown_type(runtime)} is not")
