"""Files of results that a command kept, read again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kiln_recipe import plain_json
from kiln_recipe.errors import ArtifactError, EnvironmentProblem, KilnError, cut


def read(path: Path, made_by: str, number: int, right: str, other: str) -> dict[str, Any]:
    """What a file holds.

    Args:
        made_by: what the file says it is of.
        number: of the format that is known.
        right: what to give, for sentences: "what `kiln bench --json` wrote".
        other: what a file of something else is said to be.

    Raises:
        EnvironmentProblem: the file cannot be read.
        ArtifactError: it is of something else, or of another format.
    """
    try:
        found = plain_json.read(path.read_text("utf-8"))
    except OSError as error:
        raise EnvironmentProblem(f"{path} cannot be read ({error.strerror}); give {right}") from error
    except ValueError as error:
        raise ArtifactError(f"{path} is not JSON ({error}); give {right}") from error
    if not isinstance(found, dict) or found.get("made_by") != made_by:
        raise ArtifactError(f"{path} {other}; give {right}")
    if found.get("format") != number:
        raise ArtifactError(
            f"{path} has format {found.get('format')}, which this Kiln does not read; it reads {number}"
        )
    return found


@contextmanager
def understood(path: Path | str, right: str) -> Iterator[None]:
    """Around what does nothing but show what a file holds: where it cannot, the file is damaged.

    Raises:
        ArtifactError: something that the file must hold is missing, or something else.
    """
    try:
        yield
    except KilnError:
        raise
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise ArtifactError(f"{path} is damaged ({type(error).__name__}: {cut(str(error))}); give {right}") from error
