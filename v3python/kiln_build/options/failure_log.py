"""The last line of a failed build's JSON log: the sentence that the user sees, and the exit code.

Standard library only.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from kiln_build.options.words import check_log
from kiln_recipe import errors
from kiln_recipe.console.progress import open_log
from kiln_recipe.errors import KilnError


def log_failure(log_json: str | None, text: str, code: int) -> None:
    """Adds the line. A log that cannot be written is none of this failure's concern: what uses it says so.

    Args:
        log_json: KILN_LOG_JSON, as the user wrote it; "" or None: there is no log.
    """
    if not log_json:
        return
    with contextlib.suppress(KilnError, OSError), open_log(check_log(log_json, Path.cwd())) as log:
        log.error(text, code)


@contextlib.contextmanager
def failures_logged(log_json: str | None) -> Iterator[None]:
    """Logs what escapes, and lets it pass."""
    try:
        yield
    except BaseException as error:
        problem = errors.of_system(error) if isinstance(error, OSError) else error
        if isinstance(problem, KilnError):
            log_failure(log_json, str(problem), problem.exit_code)
        elif isinstance(error, KeyboardInterrupt):
            log_failure(log_json, "interrupted", 130)
        else:
            log_failure(log_json, f"{type(error).__name__}: {error}", KilnError.exit_code)
        raise
