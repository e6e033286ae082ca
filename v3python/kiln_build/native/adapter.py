"""What a library is that offers a family by the interface of somebody else, and where a release has it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Prefix:
    """A folder of a release that is an installed prefix, complete by itself: others' builds copy it, without what its
    links would lead to. So it has the library, its headers, packs and licences, as further names of the same files.

    Attributes:
        folder: its path in the release.
        images: the folder of packs in its lib/, which has the licences too.
        texts: other files by path; where the adapter is the release's own, the release has them too.
    """

    folder: str
    images: str
    texts: Mapping[str, str]


@dataclass(frozen=True)
class Adapter:
    """A library over a family's, which offers it by the interface of somebody else.

    Attributes:
        name: of its target in the CMake package.
        library: its file, which is its SONAME.
        over: the family.
        folders: have its sources (*.cc) and what they share (*.h). The sources of the last may include what the others
            have, and alone see `headers`; it has exports.map, a linker's version script.
        links: what stands beside it, by name: where it leads.
        headers: its public headers, by their path below include/: a file, or its text.
        private: headers that lie elsewhere and are no part of the release, by name.
        system: folders of headers that are another's, and no part of the release.
        foreign: the SONAME of a library that it needs and that no build has, with the names that it takes from there.
        is_whole: it has the core's and the family's code in itself, and needs neither library.
        prefix: where it is by itself; None: nowhere.
        is_main: it is in the release's own lib/ and include/ too.
        identity: what stands for `system` in keys.
    """

    name: str
    library: str
    over: str
    folders: tuple[Path, ...]
    links: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, Path | str] = field(default_factory=dict)
    private: Mapping[str, Path] = field(default_factory=dict)
    system: tuple[Path, ...] = ()
    foreign: tuple[str, tuple[str, ...]] | None = None
    is_whole: bool = False
    prefix: Prefix | None = None
    is_main: bool = True
    identity: str = ""
