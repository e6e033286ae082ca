"""How a release was built, read out of its manifest: what build.sh was given."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from kiln_build.artifacts.reader import Release
from kiln_build.options import naming
from kiln_build.options.variables import NAMED
from kiln_recipe.errors import UsageError
from kiln_recipe.selection import CONFIGURATIONS

_ALL = CONFIGURATIONS[1]


@dataclass(frozen=True)
class Asked:
    """What build.sh was given.

    Attributes:
        commit: 40 digits, or "unknown"; is_dirty: the tree differed from it.
        patches: digest of the patches of its input, or "".
        version: "0.1.0b"; name: the whole, "0.1.0b+full".
        targets: as build.sh takes them.
        variables: those that change what is built, but for the paths of recipes.
        added: families that recipes from outside of the tree brought.
    """

    commit: str
    is_dirty: bool
    patches: str
    version: str
    name: str
    targets: str
    variables: Mapping[str, str]
    added: tuple[str, ...] = ()


def read(release: Release) -> Asked:
    """
    Raises:
        UsageError: the manifest has a name that no build gives.
    """
    manifest = release.manifest
    words = _words(manifest["kiln"])
    variables = {"KILN_PROFILE": manifest["profile"]}
    if manifest["selection"]:
        variables["KILN_SELECT"] = manifest["selection"]
    if manifest["ptx"]:
        variables["KILN_PTX"] = "1"
    if _ALL in words["build"]:
        variables["KILN_CONFIGURATIONS"] = _ALL
    if "noimage" in words["build"]:
        variables["KILN_NOIMAGE"] = "1"
    families = tuple(manifest.get("families") or ())
    added = words["with"]
    if words["only"]:
        variables["KILN_FAMILIES"] = ",".join(families or words["only"])
    return Asked(
        manifest["source"]["commit"],
        manifest["source"]["dirty"],
        manifest["source"].get("patches", ""),
        naming.public(manifest["kiln"]),
        manifest["kiln"],
        ";".join(row["name"] for row in manifest["targets"]),
        variables,
        added,
    )


def _words(name: str) -> dict[str, tuple[str, ...]]:
    """What stands behind the + of a build's name, sorted: "build", "with" and "only" (options/naming.py)."""
    found: dict[str, list[str]] = {"build": [], "with": [], "only": []}
    part = "build"
    for word in filter(None, name.partition("+")[2].split(".")):
        if not re.fullmatch("[a-z0-9_]+", word):
            raise UsageError(f"the release is called {name}, and no build gives such a name; its build is not known")
        if word in ("with", "only"):
            part = word
        elif not (part != "build" and re.fullmatch("h[0-9a-f]{8}", word)):
            found[part].append(word)
    return {part: tuple(words) for part, words in found.items()}


def environment_of(asked: Asked, environment: Mapping[str, str], store: str | None) -> dict[str, str]:
    """The variables with which build.sh makes the release again: those of the release, and of the caller's those that
    say where and how fast, and not what.

    Raises:
        UsageError: it has families of recipes that the caller does not name.
    """
    kept = {name: value for name, value in environment.items() if not name.startswith("KILN_")}
    kept |= {name: environment[name] for name in _OF_THE_HOST if name in environment}
    recipes = environment.get("KILN_RECIPES", "")
    if (asked.added or asked.variables.get("KILN_FAMILIES")) and recipes:
        kept["KILN_RECIPES"] = recipes
    if asked.added and not recipes:
        raise UsageError(
            f"the release has families from outside of its source ({', '.join(asked.added)}); name their recipes, as "
            f"they were then: {NAMED}=norm/recipe.yaml"
        )
    kept |= {**asked.variables, "KILN_SOURCE": "tree"}
    return kept | ({"KILN_STORE": store} if store else {})


_OF_THE_HOST = (
    "KILN_ENGINE", "KILN_BASE_IMAGE", "KILN_CA_BUNDLE", "KILN_JOBS", "KILN_TIMEOUT", "KILN_PYTHON", "KILN_TRITON",
    "KILN_LOG_JSON",
)  # fmt: skip
