"""The release: lays a build's results out as one folder, and makes that folder one tarball, the same bytes every time.

    kiln-<version>-<platform>-shared.tar.gz
      kiln/lib/libkiln.so.0, libkiln.so -> libkiln.so.0, libkiln_<family>.so, libaotriton_v2.so, libkiln_torch.so
      kiln/lib/kiln.images/<vendor>-<target>.pack
      kiln/lib/cmake/kiln/, kiln/lib/pkgconfig/kiln.pc, kiln_<family>.pc
      kiln/include/kiln/, kiln/include/aotriton/
      kiln/lib/aotriton/<version>/lib/, include/: a prefix for each interface of AOTriton's, complete by itself
      kiln/lib/aotriton.images/, and the same in each prefix: the packs, and kiln/LICENSE, NOTICES.txt, licences/
      kiln/share/kiln/manifest.json, kiln-inspect.pyz, kiln.cdx.json, LICENSE, NOTICES.txt, licences/

A tarball counts with its .sha256 beside it only. Both appear by rename once they are complete, the .sha256 last; until
then what an earlier build left there stays as it was, its signatures too (trust/sign.py).
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kiln_build.artifacts import manifest, manifest_model
from kiln_build.artifacts.manifest_model import IMAGES, INSPECTOR
from kiln_build.artifacts.reader import Release
from kiln_build.base import tarball
from kiln_build.base.folder import alone_in
from kiln_build.native.adapter import Adapter
from kiln_build.origin import bill
from kiln_build.release import package, portable, replacement
from kiln_build.trust import statement
from kiln_recipe.console.appear import appear
from kiln_recipe.errors import ArtifactError, EnvironmentProblem, unwritable

PLATFORM = "manylinux_2_28_x86_64"
NOTICES = "share/kiln"
NOTICES_BESIDE_PACKS = "kiln"  # below a prefix's folder of packs


class _NothingToDo(Exception):
    """What was made is there already."""


@dataclass(frozen=True)
class Contents:
    """What goes into a release, the manifest left out.

    Attributes:
        version: "0.1.0b", or what naming.py makes of it.
        libraries: "libkiln.so.0", each family's "libkiln_<family>.so", and those of `adapters`, by name.
        families: names of the families that have a library.
        packs: by file name, "nvidia-sm_90.pack".
        headers: by path below include/, "kiln/kiln.h": a file, or its text; the adapters' left out.
        templates: the source tree's folder cmake/.
        adapters: what offers a family by another's interface.
        notices: texts by path below share/kiln/: LICENSE, NOTICES.txt, licences/...
        bill: the bill of materials (origin/bill.py).
    """

    version: str
    libraries: Mapping[str, Path]
    families: Sequence[str]
    packs: Mapping[str, Path]
    headers: Mapping[str, Path | str]
    templates: Path
    notices: Mapping[str, str] = field(default_factory=dict)
    bill: bytes = b""
    adapters: Sequence[Adapter] = ()


def tarball_name(version: str) -> str:
    """ "kiln-0.1.0b-manylinux_2_28_x86_64-shared.tar.gz" """
    return f"kiln-{version}-{PLATFORM}-shared.tar.gz"


def part_name(version: str, part: str) -> str:
    """ "kiln-0.1.0b-manylinux_2_28_x86_64-sm_90.tar.gz", of a part of a release (artifacts/parts.py)."""
    return f"kiln-{version}-{PLATFORM}-{part}.tar.gz"


def lay_out(contents: Contents, stage: Path) -> None:
    """Fills the folder `stage`, which is emptied first, with everything but the manifest.

    Raises:
        EnvironmentProblem: it cannot be written.
    """
    try:
        shutil.rmtree(stage, ignore_errors=True)
        main = [adapter for adapter in contents.adapters if adapter.is_main]
        elsewhere = {adapter.library for adapter in contents.adapters if not adapter.is_main}
        for name, path in contents.libraries.items():
            if name not in elsewhere:
                _put(stage / "lib" / name, path)
        for name, path in contents.packs.items():
            _put(stage / IMAGES / name, path)
        _link(stage / "lib", {"libkiln.so": "libkiln.so.0"})
        _put_headers(stage, contents.headers)
        for name, text in package.package_files(
            contents.templates, contents.version, contents.families, {one.name: one.library for one in main}
        ).items():
            _put(stage / name, text)
        for name, text in contents.notices.items():
            _put(stage / NOTICES / name, text)
        if contents.bill:
            _put(stage / bill.PATH, contents.bill)
        _put(stage / INSPECTOR, portable.inspector(contents.version))
        for adapter in main:
            _lay_out_adapter(stage, stage, adapter, contents)
        for adapter in contents.adapters:
            if adapter.prefix:
                folder = stage / adapter.prefix.folder
                library = folder / "lib" / adapter.library
                if adapter.is_main:
                    _name_again(library, stage / "lib" / adapter.library)
                else:
                    _put(library, contents.libraries[adapter.library])
                _lay_out_adapter(stage, folder, adapter, contents)
    except OSError as error:
        raise unwritable(error.filename or stage, error) from error


def name_images_again(stage: Path, folder: Path, packs: Iterable[str], notices: Iterable[str]) -> None:
    """Gives the packs of the staged release another folder, and with them the licences: whoever copies that folder into
    a package of theirs, and nothing else of the release, ships what must go along."""
    for pack in packs:
        _name_again(folder / pack, stage / IMAGES / pack)
    for notice in notices:
        _name_again(folder / NOTICES_BESIDE_PACKS / notice, stage / NOTICES / notice)


def _lay_out_adapter(stage: Path, folder: Path, adapter: Adapter, contents: Contents) -> None:
    """What an adapter has besides its library, in a folder with a lib/ that has it."""
    _link(folder / "lib", adapter.links)
    _put_headers(folder, adapter.headers)
    if adapter.prefix:
        name_images_again(stage, folder / "lib" / adapter.prefix.images, contents.packs, contents.notices)
        for path, text in adapter.prefix.texts.items():
            _put(folder / path, text)


def make_release(stage: Path, output: Path, version: str, replace: bool | None = False) -> Path:
    """Makes the tarball of the folder `stage`, manifest included, and its .sha256; returns the tarball's path. One that
    is there with the same bytes stays as it is.

    Args:
        replace: another build's tarball of that name may go; None: it may not, and no option would change that.

    Raises:
        InTheWay: another build's tarball of that name is there, and stays.
        EnvironmentProblem: `output` cannot be written, or `stage` has no manifest or something that is neither a file,
            a folder nor a link.
    """
    if not (stage / manifest.PATH).is_file():
        raise EnvironmentProblem(f"{stage} has no {manifest.PATH}; every release has one")
    path = output / tarball_name(version)
    return make_tarball(stage, path, statement.beside(path, version), replace)


def make_tarball(
    stage: Path, path: Path, beside: Iterable[Path], replace: bool | None = None, expected: str | None = None
) -> Path:
    """`make_release` for a tarball of any name.

    Args:
        beside: files that are about an older tarball of that name; they go with it.
        expected: the SHA-256 that it has to have.

    Raises:
        ArtifactError: it has another one, and does not appear.
    """
    try:
        return put(path, tarball.pieces(stage), beside, replace, expected)
    except ValueError as error:  # a name that is not plain or too long, a file of more than 8 GiB
        raise EnvironmentProblem(f"a file of {stage} cannot be in a tarball: {error}") from error


def put(
    path: Path,
    pieces: Iterable[bytes],
    beside: Iterable[Path] = (),
    replace: bool | None = None,
    expected: str | None = None,
) -> Path:
    """Writes a file that people get, and its .sha256; arguments and errors are those of `make_tarball`."""
    checksum = statement.checksum_of(path)
    try:
        with (
            contextlib.suppress(_NothingToDo),
            contextlib.ExitStack() as held,
            appear(checksum) as line,
            appear(path) as fresh,
        ):
            digest = hashlib.sha256()
            with fresh.open("wb") as file:
                for piece in pieces:
                    file.write(piece)
                    digest.update(piece)
                file.flush()
                os.fsync(file.fileno())
            if expected not in (None, digest.hexdigest()):
                raise ArtifactError(
                    f"{path.name} would have the SHA-256 {digest.hexdigest()} and not {expected}: if its files are "
                    "right, another version of deflate has compressed it than this Python has"
                )
            stated = f"{digest.hexdigest()}  {path.name}\n"
            held.enter_context(alone_in(path.parent))  # else two that see nothing there would replace one another
            is_there = not replace and replacement.is_equal(path, digest.hexdigest(), replace is not None)
            if is_there and checksum.is_file() and checksum.read_text(errors="replace") == stated:
                raise _NothingToDo
            line.write_text(stated)
            # Never an old digest, or somebody's signature of it, beside a new tarball.
            for old in (checksum, *beside):
                old.unlink(missing_ok=True)
    except OSError as error:
        raise unwritable(path, error) from error
    return path


def unpack(release: Release, stage: Path) -> dict[str, list[str]]:
    """Unpacks a tarball, all but its own manifest, into the folder `stage`, in which other parts of the release may
    lie; each file is held against the manifest.

    Returns:
        By the path of each file all its names.

    Raises:
        ArtifactError: it is damaged, or has a file that is there already.
    """
    stated = {row["path"]: row for row in release.manifest["files"]}
    names: dict[str, list[str]] = {}
    seen: set[str] = set()
    for entry in release.entries():
        path = stage / entry.path
        if entry.kind == "folder":
            path.mkdir(parents=True, exist_ok=True)
            continue
        if entry.path == manifest_model.path_of(release.manifest):
            continue
        if os.path.lexists(path):
            raise ArtifactError(f"{release.path} has {entry.path}, as another part does")
        if entry.kind == "link":
            path.symlink_to(entry.link)
            is_right = stated.get(entry.path, {}).get("link") == entry.link
        elif entry.kind == "hard link":
            os.link(stage / entry.link, path)
            names[entry.link].append(entry.path)
            digests = [stated.get(one, {}).get("sha256") for one in (entry.path, entry.link)]
            is_right = None not in digests and digests[0] == digests[1]
        else:
            digest = hashlib.sha256()
            with path.open("wb") as file:
                for block in entry.blocks():
                    digest.update(block)
                    file.write(block)
            is_right = digest.hexdigest() == stated.get(entry.path, {}).get("sha256")
            names[entry.path] = [entry.path]
        if not is_right:
            raise ArtifactError(f"{release.path}: {entry.path} is not what the manifest states")
        seen.add(entry.path)
    if missing := sorted(stated.keys() - seen):
        raise ArtifactError(f"{release.path} lacks {missing[0]}, which its manifest names")
    return names


def _name_again(path: Path, file: Path) -> None:
    """Gives a staged file one more name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(file, path)
    except OSError as error:
        raise EnvironmentProblem(
            f"{path} cannot be a hard link ({error.strerror}); give a workspace on a file system that has them"
        ) from error


def _link(folder: Path, links: Mapping[str, str]) -> None:
    for name, to in links.items():
        (folder / name).symlink_to(to)


def _put_headers(prefix: Path, headers: Mapping[str, Path | str]) -> None:
    for name, header in headers.items():
        _put(prefix / "include" / name, header)


def _put(path: Path, content: Path | str | bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, Path):
        shutil.copyfile(content, path)
    else:
        path.write_bytes(content.encode() if isinstance(content, str) else content)
