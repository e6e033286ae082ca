"""What a build is called. Builds of one version that differ in what they hold have different names:

    0.1.0b                       the core profile, all of it
    0.1.0b+full                  the full profile
    0.1.0b+all                   with KILN_CONFIGURATIONS=all
    0.1.0b+full.s4f1c0a9e        of it what KILN_SELECT names, by a digest of the selection
    0.1.0b+noimage, 0.1.0b+ptx   with KILN_NOIMAGE=1, with KILN_PTX=1
    0.1.0b+with.norm             with the families of KILN_RECIPES
    0.1.0b+with.a_b.h7d1f4f0c    with a digest of their names, where one has an underscore
    0.1.0b+only.norm             with KILN_FAMILIES, unless all of Kiln's own are among them

The name is the version in the tarball's name, the manifest, the libraries and packs and, as PEP 440 spells it, the
wheels: there, what stands behind the + is a local version label. Targets and sources are not in it: see
`replacement.py`. Standard library only.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from kiln_build.options.options import BuildVariables
from kiln_recipe.selection import CONFIGURATIONS, PROFILES, spell_selection

_DIGITS = 8  # of a digest


def name_of(version: str, build: BuildVariables, families: Iterable[str] = (), only: bool = False) -> str:
    """The whole version of a build.

    Args:
        version: what the user gave, "0.1.0b".
        families: those that it has besides Kiln's own; or, with `only`, all that it has.
    """
    words = []
    if build.profile != PROFILES[0]:
        words.append(build.profile)
    if build.configurations != CONFIGURATIONS[0]:
        words.append(build.configurations)
    if build.selection:
        words.append("s" + hashlib.sha256(spell_selection(build.selection).encode()).hexdigest()[:_DIGITS])
    if build.no_image:
        words.append("noimage")
    if build.ptx and not build.no_image:
        words.append("ptx")
    if families := sorted(set(families)):
        words += ["only" if only else "with", *families]  # last, so that no family's name is taken for another word
        if any("_" in family for family in families):  # which a wheel's version has a dot for, as between families
            words.append("h" + hashlib.sha256(",".join(families).encode()).hexdigest()[:_DIGITS])
    return f"{version}+{'.'.join(words)}" if words else version


def public(name: str) -> str:
    """The version that a name is of: "0.1.0b" of "0.1.0b+full"."""
    return name.partition("+")[0]
