"""What a kernel's main loop needs to multiply: products.yaml, read."""

from __future__ import annotations

import functools
import math
import pkgutil
from collections.abc import Mapping
from typing import cast

from kiln_recipe import plain_yaml

TABLE = "products.yaml"  # beside this module


def needed_operations(kernel: str, settings: Mapping[str, str]) -> int | None:
    """Floating-point operations of a block in one iteration of the main loop; None if the table does not say.

    Args:
        kernel: "flash.attn_fwd/attn_fwd.general", as manifests have it; all implementations of a kernel are alike.
        settings: values of its choices and its configuration, by name, as `reader.settings_of` gives them.
    """
    row = _rows().get(kernel.partition(".")[0] + "." + kernel.partition(".")[2].partition(".")[0])
    if row is None or not all(settings.get(side, "").isdecimal() for side in row["sides"]):
        return None
    return row["products"] * 2 * math.prod(int(settings[side]) for side in row["sides"])


@functools.cache
def _rows() -> dict[str, dict]:
    text = cast(bytes, pkgutil.get_data(__package__, TABLE)).decode()
    return {row["kernel"]: row for row in plain_yaml.read(text)["products"]}
