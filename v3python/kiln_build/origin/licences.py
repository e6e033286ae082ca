"""Names of licences, as notices and the lock spell them: SPDX's where there is one, else words."""

from __future__ import annotations

import re
from collections.abc import Iterable

_CONTAINS = re.compile(" (?:AND|OR|WITH) ")


def is_expression(name: str) -> bool:
    """Whether it is an expression of several of SPDX's names: "MIT OR CC0-1.0"."""
    return _CONTAINS.search(name) is not None


def is_known(name: str) -> bool:
    """Whether it is SPDX's: a name, or an expression. Its names have no spaces."""
    return all(" " not in part for part in _CONTAINS.split(name))


def together(names: Iterable[str]) -> str:
    """The expression of what is under all of these licences. What has no name of SPDX's becomes a reference to its text
    (PEP 639), "LicenseRef-NVIDIA-CUDA-Toolkit-EULA"."""
    return " AND ".join(dict.fromkeys(map(_term, names)))


def _term(name: str) -> str:
    if not is_known(name):
        return "LicenseRef-" + re.sub(r"[^A-Za-z0-9.]+", "-", name)
    return f"({name})" if " OR " in name else name
