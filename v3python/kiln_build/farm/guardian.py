"""Outlives the build by a moment: ends its workers and removes their temporary files, however the build ended.

A small process of its own, started as `python -I -S guardian.py FOLDER`; nothing but the standard library is there. It
reads lines from standard input, "+7" when the process group 7 belongs to the build and "-7" when it no longer does.
The build never closes its end while it lives, so the end of the input means that it is gone, be it by kill -9: no
handler of its own could run then, and the assemblers that its workers have started would go on.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys


def main(folder: str) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    os.chdir("/")
    groups = set()
    for line in sys.stdin:
        if line.startswith("+"):
            groups.add(int(line))
        else:
            groups.discard(-int(line))
    for group in groups:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)
    remove(folder)


def remove(folder: str) -> None:
    """Removes a folder and all that is in it; what vanishes or cannot be removed is passed over."""
    for where, folders, files in os.walk(folder, topdown=False):
        for name in files:
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(where, name))
        for name in folders:
            with contextlib.suppress(OSError):
                path = os.path.join(where, name)
                os.unlink(path) if os.path.islink(path) else os.rmdir(path)
    with contextlib.suppress(OSError):
        os.rmdir(folder)


if __name__ == "__main__":
    main(sys.argv[1])
