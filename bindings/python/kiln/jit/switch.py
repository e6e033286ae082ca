"""kiln.torch's functions on kiln.jit, and back: one assignment each way, nothing to clean."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from kiln.jit.flash import Engine
from kiln.jit.packages import need
from kiln.jit.recipes import Recipe

_lock = threading.Lock()
# Of the `use`s that are open now, in the order in which they began; and what ran before the first.
_open: list[Engine] = []
_before: object = None


def enable(recipe: Recipe | str | Path | None = None, **settings: object) -> Engine:
    """From now on kiln.torch's functions run through Triton, in the whole process, until `disable()`.

    Args:
        recipe: of the attention family; a path, or None for Kiln's own, is read now, and so are its kernels at their
            first use.
        settings: of Recipe, where a path or nothing is given: target, profile, select, tuning, interpret,
            multiprocessors.

    Raises:
        RecipeError: the recipe does not hold. What ran before goes on running.
        MissingPackageError: Triton is not installed.
    """
    engine = _engine(recipe, settings)
    with _lock:
        _operators().set_engine(engine)
    return engine


def disable() -> None:
    """From now on kiln.torch's functions run what was compiled ahead again, whatever ran them before."""
    with _lock:
        _operators().set_engine(None)


def is_enabled() -> bool:
    """Whether kiln.torch's functions run through Triton now."""
    return isinstance(_operators().engine(), Engine)


@contextmanager
def use(recipe: Recipe | str | Path | None = None, **settings: object) -> Iterator[Engine]:
    """As `enable`, within a `with` statement; afterwards runs what ran before. In the whole process: where several
    threads are within such statements, the engine of the last that was entered and not left.

    with kiln.jit.use(interpret=True):
        kiln.torch.attention(q, k, v)
    """
    global _before
    engine = _engine(recipe, settings)
    with _lock:
        before = _operators().set_engine(engine)
        if not _open:
            _before = before
        _open.append(engine)
    try:
        yield engine
    finally:
        with _lock:
            _open.remove(engine)
            _operators().set_engine(_open[-1] if _open else _before)


def _engine(recipe: Recipe | str | Path | None, settings: dict[str, Any]) -> Engine:
    need("triton")
    if not isinstance(recipe, Recipe):
        return Engine(Recipe(recipe, **settings))
    if settings:
        raise TypeError(
            f"a Recipe is given, which has its settings already: give {', '.join(settings)} where it is made"
        )
    return Engine(recipe)


def _operators() -> ModuleType:
    return need("kiln.torch.operators")
