"""A model's configuration as it is published: the config.json of a Transformers model or of a diffusers transformer.

Names of fields are read as families of models spell them; what a configuration does not say is assumed, and reported.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from kiln_build.coverage.attention import Attention, Model, check
from kiln_build.coverage.configuration import diffusion, layers
from kiln_build.coverage.configuration.fields import Fields
from kiln_build.coverage.line import EXAMPLE
from kiln_recipe.errors import ArtifactError, EnvironmentProblem, UsageError

_LARGEST = 4 << 20  # bytes; a model's own has a few thousand
_DEEPEST = 4  # configurations in configurations
_RIGHT = f"give a config.json of Transformers or diffusers, or a line such as {EXAMPLE!r}"


def read(path: Path) -> Model:
    """The model of a configuration.

    Raises:
        EnvironmentProblem: it cannot be read.
        ArtifactError: it is no configuration.
        UsageError: it does not tell heads and head dimensions.
    """
    document = _document(path)
    name = path.parent.name if path.name == "config.json" and path.parent.name else path.stem
    found = _Found()
    _read(document, "", found, str(path), None)
    if not found.kinds and found.notes:
        raise UsageError(f"{path} has no attention that could be served: {'; '.join(found.notes)}")
    if not found.kinds:
        raise UsageError(
            f"{path} does not tell what its attention is: it has no number of heads with a head dimension or a hidden "
            f"size; {_RIGHT}"
        )
    merged = dict.fromkeys(check(kind, str(path)) for kind in found.kinds)
    return Model(name, tuple(_named_apart(merged)), tuple(dict.fromkeys(found.notes)))


def _named_apart(kinds: Iterable[Attention]) -> Iterator[Attention]:
    """With names that stand once, since answers go by them."""
    counts = Counter[str]()
    for kind in kinds:
        counts[kind.name] += 1
        yield kind if counts[kind.name] == 1 else replace(kind, name=f"{kind.name} ({counts[kind.name]})")


@dataclass
class _Found:
    kinds: list[Attention] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def _read(
    document: Mapping[str, Any], prefix: str, found: _Found, where: str, outer: Fields | None, name: str = "",
    depth: int = 0,
) -> None:  # fmt: skip
    """Adds the kinds of attention of a configuration, and of those inside it.

    Args:
        prefix: what its kinds are called, "text " of text_config.
        outer: the configuration that it is in, by this name.
    """
    fields = Fields(document, where, prefix) if outer is None else outer.part_of(name, document, prefix)
    before = len(found.kinds) + len(found.notes)
    kinds, notes = (diffusion if "_class_name" in document else layers).kinds(fields)
    found.kinds += [replace(kind, name=f"{prefix}{kind.name}") for kind in kinds]
    found.notes += [f"{prefix}{note}" for note in notes]
    if depth == _DEEPEST:
        return
    for word, inner in document.items():
        if not isinstance(inner, Mapping) or word in layers.INLINE:
            continue
        if word.endswith("_config") or "model_type" in inner:
            inside = f"{prefix}{word.removesuffix('_config').replace('_', ' ')} "
            _read(inner, inside, found, where, fields, word, depth + 1)
    if prefix and len(found.kinds) + len(found.notes) == before and "model_type" in document:
        found.notes.append(f"{prefix}does not tell heads and their dimension, and is not covered")


def _opened(path: str, flags: int) -> int:
    """Without waiting for somebody to write into a named pipe."""
    number = os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
    os.set_blocking(number, True)
    return number


def _document(path: Path) -> Mapping[str, Any]:
    try:
        with open(path, "rb", opener=_opened) as file:
            data = file.read(_LARGEST + 1)
    except OSError as error:
        raise EnvironmentProblem(f"--model {path} cannot be read ({error.strerror}); {_RIGHT}") from error
    if len(data) > _LARGEST:
        raise ArtifactError(f"--model {path} has more than {_LARGEST >> 20} MiB, which is no configuration; {_RIGHT}")
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ArtifactError(f"--model {path} is not valid JSON ({error}); {_RIGHT}") from error
    if not isinstance(document, dict):
        raise ArtifactError(f"--model {path} is not a JSON object; {_RIGHT}")
    return document
