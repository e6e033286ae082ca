"""Where in a kernel's source a mistake lies that Triton, or Python, found: one sentence that begins with file:line."""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from triton.compiler.errors import CompilationError


@dataclass(frozen=True)
class Mistake:
    """What is wrong with a kernel's source.

    Attributes:
        sentence: begins with file:line; the same for every variant and target that it keeps from being compiled.
        excerpts: the source above each call that led there, the outermost first.
    """

    sentence: str
    excerpts: tuple[str, ...]


def find(error: BaseException, source: Path) -> Mistake | None:
    """What Triton's front end, or Python, found wrong in the kernel's own files; None where it was neither.

    Args:
        source: the kernel's file.
    """
    from triton.compiler.errors import CompilationError

    if not isinstance(error, CompilationError):
        place = place_of(error, source.parent)
        return Mistake(f"{place}: {type(error).__name__}: {_one_line(error)}", ()) if place else None
    # A callee's error is the cause of its caller's. Where Triton's own library was called wrongly, the mistake lies in
    # the last of the user's calls; what it was, the innermost error says.
    innermost, own, excerpts = error, "", []
    while isinstance(error, CompilationError):
        innermost = error
        file, line = _place(error)
        if file:
            above = error.src.split("\n")[: error.node.lineno][-error.source_line_count_max_in_message :]
            excerpts.append("\n".join([f"{file}:{line}:", *above, " " * error.node.col_offset + "^"]))
            if not _is_triton_s(file):
                own = f"{file}:{line}"
        error = error.__cause__
    return Mistake(f"{own}: {_words(innermost)}", tuple(excerpts)) if own else None


def place_of(error: BaseException, folder: Path) -> str:
    """ "file:line" where a file of the folder raised while it was executed; "" if none did."""
    if isinstance(error, SyntaxError) and error.filename and Path(error.filename).parent == folder:
        return f"{error.filename}:{error.lineno}"
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        if Path(frame.f_code.co_filename).parent == folder:
            return f"{frame.f_code.co_filename}:{line}"
    return ""


def _place(error: CompilationError) -> tuple[str, int]:
    """File and line of Triton's CompilationError, which counts lines from the function's `def` and names no function:
    that is whose source the code generator was visiting when it raised this."""
    for frame, _ in reversed(list(traceback.walk_tb(error.__traceback__))):
        function = getattr(frame.f_locals.get("self"), "jit_fn", None)
        if function is not None and function.src == error.src and hasattr(error.node, "lineno"):
            above = next(i for i, line in enumerate(function.raw_src) if line.lstrip().startswith("def "))
            return function.fn.__code__.co_filename, function.starting_line_number + above + error.node.lineno - 1
    return "", 0


def _is_triton_s(file: str) -> bool:
    import triton

    return Path(file).is_relative_to(Path(triton.__file__).parent)


def _words(error: CompilationError) -> str:
    """What Triton's CompilationError says, without the excerpt, and without the quotes of an error that it wraps."""
    wrapped = error.__cause__ or error.__context__
    if wrapped is not None and error.error_message in (None, repr(wrapped)) and " " in str(wrapped):
        return _one_line(wrapped)
    return _one_line(error.error_message or type(error).__name__)


def _one_line(text: object) -> str:
    return " ".join(str(text).split())
