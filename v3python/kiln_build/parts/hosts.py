"""One release of those that several hosts have built of the same commit, each for some targets.

A family's library has the tables of all targets, and the digests of their packs, so the libraries of a release for all
are in none of the given. They are made by a build of the commit, as every release's; its images are those of the given
releases, which it finds in a store, so that nothing is compiled that any of them has. What comes out is byte for byte
what one host would have built, and its packs are held against those that were given.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kiln_build.artifacts import reader
from kiln_build.artifacts.manifest_model import IMAGES
from kiln_build.artifacts.reader import Release
from kiln_build.parts import regroup
from kiln_build.parts.join import check_equal
from kiln_build.rebuild import again, asked, tree
from kiln_build.release.release import put, unpack
from kiln_build.store.local import LocalStore
from kiln_build.trust import statement
from kiln_recipe import targets
from kiln_recipe.console.appear import appear
from kiln_recipe.console.progress import Progress, make_progress
from kiln_recipe.console.spelling import say
from kiln_recipe.console.tables import plural
from kiln_recipe.errors import ArtifactError, BuildFailed, UsageError, unwritable
from kiln_recipe.images.image import Image

_RUNTIME = "lib/libkiln.so.0"


def check(given: Sequence[Release]) -> dict[str, Release]:
    """By target the release that has it, in the order of the table of targets.

    Raises:
        UsageError: they are not of one commit, version and settings; or two have a target, and other images; or
            all have the same targets, so that each is the whole already.
    """
    check_equal(given)
    runtimes = [(_digest_of(release, _RUNTIME), release) for release in given]
    tools: dict[str, tuple[Any, Release]] = {}
    found: dict[str, tuple[str, Release]] = {}
    for digest, release in runtimes:
        if digest != runtimes[0][0]:
            raise UsageError(
                f"{given[0].path} and {release.path} have different runtimes: the digest of {_RUNTIME} is "
                f"{runtimes[0][0][:12]} in the first and {digest[:12]} in the second"
            )
        for tool in release.manifest["tools"]:
            facts = tool["version"], tool.get("sha256")
            first = tools.setdefault(tool["name"], (facts, release))
            if first[0] != facts:
                raise UsageError(
                    f"{first[1].path} and {release.path} were made by different tools: {tool['name']} is {first[0][0]} "
                    f"({str(first[0][1])[:12]}) in the first and {facts[0]} ({str(facts[1])[:12]}) in the second"
                )
        for row in release.manifest["targets"]:
            if "index" not in row:
                raise UsageError(f"{release.path} has no images for {row['name']}; build them")
            other = found.setdefault(row["name"], (row["index"], release))
            if other[0] != row["index"]:
                raise UsageError(
                    f"{other[1].path} and {release.path} both have images for {row['name']}, and they differ; give one"
                )
    if len(given) == 1:
        raise UsageError(f"{given[0].path} is alone; give the releases of other targets too")
    if all({row["name"] for row in release.manifest["targets"]} == {*found} for release in given):
        raise UsageError(
            f"{given[0].path} and {given[-1].path} are for the same targets, {', '.join(found)}; give the releases of "
            "other targets too"
        )
    return {target.name: found[target.name][1] for target in targets.load() if target.name in found}


def _digest_of(release: Release, path: str) -> str:
    return next((row["sha256"] for row in release.manifest["files"] if row["path"] == path and "sha256" in row), "")


def seed(release: Release, store: LocalStore, folder: Path) -> int:
    """Puts a release's images into a store, under their keys; gives the number of the variants that they are of.

    Args:
        folder: for what is unpacked; it goes again.

    Raises:
        ArtifactError: the release is damaged.
    """
    unpack(release, folder)
    rows = {(row["target"], row["sha256"]): row for row in release.manifest["images"]}
    count = 0
    for target in release.manifest["targets"]:
        name = f"{IMAGES}/{target['pack']}"
        packs = regroup.Old({name: folder / name})
        infos = {image.digest: image.info for image in packs.indexes[name].images}
        for kernel in packs.indexes[name].kernels:
            for slot in kernel.slots:
                if slot.image is None:
                    continue
                row = rows.get((target["name"], slot.image))
                if row is None:
                    raise ArtifactError(
                        f"{release.path}: its manifest has no image {slot.image[:12]}, and its pack has"
                    )
                info = replace(
                    infos[slot.image],
                    abi=row.get("abi", target["abi"]),
                    ptx_version=row.get("ptx_version", target.get("ptx_version", "")),
                )
                text = packs.image(slot.ptx)[:-1].decode() if slot.ptx else None
                # Which IR it was of is not known, and matters to nothing but another build of other keys.
                store.put(slot.key, Image(packs.image(slot.image), info, text), slot.key, 0.0)
                count += 1
    shutil.rmtree(folder)
    return count


@dataclass(frozen=True)
class Sources:
    """Where the commit is, and downloads are, as `kiln rebuild` takes --source and --input."""

    tree: str | None
    input: Path


def merge(
    given: Sequence[Release], output: Path, place: Path, workspace: Path, sources: Sources, variables: Mapping[str, str]
) -> Path:
    """Builds the release of all targets from the images of the given; returns its tarball in `output`.

    Args:
        place: an empty folder. workspace: of the build.
        variables: the environment.

    Raises:
        UsageError: as `check`; or the source is not there.
        BuildFailed: the build failed, or its packs are not those that were given.
        InTheWay: another release of that name is in `output`.
    """
    by_target = check(given)
    wanted = replace(asked.read(given[0]), targets=";".join(by_target))
    environment = asked.environment_of(wanted, variables, str(place / "store"))
    environment["_KILN_SHOWN_OUTPUT"] = str(output.absolute())  # where what it makes is in the end
    with make_progress() as progress:
        laid = tree.lay_out_source(wanted, sources.tree, place / "source", say)
        folder = tree.lay_out_input(wanted, laid, sources.input, place / "input", progress)
        _seed_all({id(release): release for release in by_target.values()}.values(), place, progress)
    (place / "output").mkdir()
    made = again.build(wanted, laid, folder, workspace, place / "output", environment)
    opened = reader.open_tarball(made)
    _check_made(opened, by_target, wanted.commit)
    return _put(opened, output)


def _check_made(made: Release, by_target: Mapping[str, Release], commit: str) -> None:
    """
    Raises:
        BuildFailed: the packs that were built are not those that were given.
    """
    ours = {row["name"]: row.get("index") for row in made.manifest["targets"]}
    for name, given in by_target.items():
        theirs = next(row["index"] for row in given.manifest["targets"] if row["name"] == name)
        if ours.pop(name, None) != theirs:
            raise BuildFailed(
                f"the build of {commit[:12]} has made other images for {name} than are in {given.path}; "
                "`kiln rebuild --verify` that one"
            )
    if ours:
        raise BuildFailed(f"the build of {commit[:12]} has made images for {', '.join(ours)} too, which nobody gave")


def _seed_all(releases: Iterable[Release], place: Path, progress: Progress) -> None:
    for release in releases:
        count = seed(release, LocalStore(place / "store"), place / "unpacked")
        progress.message(f"images for {plural(count, 'variant')} from {release.path}")


def _put(made: Release, output: Path) -> Path:
    """Gives the output the tarball that was built, and what its builder says of it."""
    path, came = output / made.path.name, statement.provenance_of(made.path)
    with made.path.open("rb") as file:
        put(path, iter(lambda: file.read(1 << 20), b""), statement.beside(path, made.manifest["kiln"]))
    try:
        if came.is_file() and not statement.provenance_of(path).exists():
            with appear(statement.provenance_of(path)) as fresh:
                shutil.copyfile(came, fresh)
    except OSError as error:
        raise unwritable(statement.provenance_of(path), error) from error
    return path
