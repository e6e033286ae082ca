"""A part of a release as a release of its own, without compiling: some of its targets, some of its combinations.

Packs of whole targets stay as they are; of others the images that are left are packed anew. A family's library holds
the digest of each pack's index, 32 bytes that are found and replaced; nothing else of a library changes. So the tables
still know all combinations, and a call for one that was left out is refused as any that the build was not made for.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kiln_build.artifacts import left_out, manifest, manifest_model, pack, pack_writer, reader, split, verify
from kiln_build.artifacts.pack import KernelSlots, Pack, Slot
from kiln_build.artifacts.reader import IMAGES, Release
from kiln_build.base import machine
from kiln_build.release.release import make_release, unpack
from kiln_recipe import shape, targets
from kiln_recipe.console.appear import passing_folder
from kiln_recipe.console.progress import Progress
from kiln_recipe.errors import ArtifactError, UsageError
from kiln_recipe.images import elf
from kiln_recipe.selection import parse_selection, spell_selection, unknown

if TYPE_CHECKING:
    from kiln_recipe.selection import Selection

_PART = "part of a release of which"


def select(release: Release, wanted: Sequence[str], selection: Selection, output: Path, progress: Progress) -> Path:
    """Makes the tarball of a part, and its .sha256, in `output`; returns its path.

    Args:
        release: a tarball; each of its files is held against its manifest.
        wanted: names of targets; empty: all.
        selection: a variant must have one of the values of each name; one without such a name stays.

    Raises:
        UsageError: it has no such target, name or value, or nothing is left.
        ArtifactError: it is damaged.
        InTheWay: another release of that name is in `output`.
    """
    document = release.manifest
    there = [row["name"] for row in document["targets"]]
    for name in wanted:
        if name not in there:
            raise UsageError(f"{release.path} has nothing for {name}; it has {', '.join(there)}")
    _check(release, selection)
    with passing_folder(".kiln-select-", output) as folder:
        stage = folder / "kiln"
        names = unpack(release, stage)
        kept = [row for row in document["targets"] if not wanted or row["name"] in wanted]
        for row in document["targets"]:
            if row not in kept and row.get("pack"):
                for path in names[f"{IMAGES}/{row['pack']}"]:
                    (stage / path).unlink()
        packs: dict[str, Pack] = {}
        digests: dict[str, str] = {}
        for row in kept if selection else ():
            if row.get("pack"):
                path = stage / IMAGES / row["pack"]
                old = pack.read_pack(path)
                progress.message(f"packing the images of {row['name']}")
                _repack(path, old, selection)
                packs[row["name"]] = pack.read_pack(path)
                digests[old.index_digest] = packs[row["name"]].index_digest
                for other in names[f"{IMAGES}/{row['pack']}"]:
                    if stage / other != path:
                        (stage / other).unlink()
                        os.link(path, stage / other)
        _name_packs_in_libraries(stage, digests)
        made = _stated(document, kept, packs, selection)
        made["files"] = shape.plain(manifest.files_of(stage))
        (stage / manifest.PATH).write_bytes(manifest_model.encode_document(made))
        tarball = make_release(stage, output, document["kiln"], replace=None)
    checked = verify.verify(reader.open_artifact(tarball))
    verify.refuse_problems(checked, str(tarball))
    return tarball


def targets_of(tarball: Path) -> dict[str, int]:
    """How many images a release has, by target."""
    manifest_of = manifest_model.read(reader.file_of(tarball, manifest.PATH), str(tarball))
    return {row["name"]: row["images"] for row in manifest_of["targets"]}


def _check(release: Release, selection: Selection) -> None:
    """
    Raises:
        UsageError: no variant has such a name or value.
    """
    every = [reader.settings_of(row) for row in reader.variants_of(release)]
    if missed := unknown(every, selection):
        name, value, there = missed
        said = f"--select: no variant of {release.path} has"
        if value is None:
            raise UsageError(f"{said} a {name}; variants have {', '.join(there)}")
        raise UsageError(f"{said} {name}={value}; it has {', '.join(sorted(there))}")


def _repack(path: Path, old: Pack, selection: Selection) -> None:
    """Writes a pack anew with the images that the selection leaves."""
    kernels = [_selected(kernel, selection) for kernel in old.kernels]
    if not any(slot.image for kernel in kernels for slot in kernel.slots):
        raise UsageError(f"--select leaves no image for {old.target}; leave that target out: --target")
    images = {image.digest: image for image in old.images}
    with path.open("rb") as file:
        data = file.read()

    def read(digest: str) -> bytes:
        image = images[digest]
        group = old.groups[image.group]
        if image.group not in decoded:
            decoded.clear()  # images of a group are asked for together, mostly
            stored = data[group.offset : group.offset + group.stored]
            decoded[image.group] = pack.decode_group(stored, group, path.name)
        code = decoded[image.group][image.offset : image.offset + image.bytes]
        return code[:-1] if image.info.kind == "ptx" else code  # the writer ends a text itself

    decoded: dict[int, bytes] = {}
    target = targets.by_name(old.target)
    pack_writer.write_pack(
        path, old.target, split.INSTRUCTIONS[target.instructions], old.release, kernels,
        lambda digest: images[digest].info, read, elf.code_ranges, machine.usable_cpus(),
    )  # fmt: skip


def _selected(kernel: KernelSlots, selection: Selection) -> KernelSlots:
    name = f"{kernel.family}.{kernel.operation}/{kernel.kernel}"
    slots = list(kernel.slots)
    for number, (functional, configuration, specialization) in enumerate(_names(kernel)):
        row = {
            "kernel": name,
            "functional": functional,
            "configuration": configuration,
            "specialization": specialization,
        }
        setting = reader.settings_of(row)
        wrong = [f"{one}={setting[one]}" for one, values in selection if setting.get(one, values[0]) not in values]
        if wrong and not left_out.is_left_out(slots[number]):
            slots[number] = Slot(left_out.NO_KEY, reason=f"{wrong[0]} is not in this part of the release")
    return replace(kernel, slots=tuple(slots))


def _names(kernel: KernelSlots) -> Iterator[tuple[str, str, str]]:
    for functional in kernel.functionals:
        for configuration in kernel.configurations:
            for specialization in kernel.specializations:
                yield functional, configuration, specialization


def _name_packs_in_libraries(stage: Path, digests: dict[str, str]) -> None:
    """Puts the digests of new indexes into the libraries in the place of the old ones."""
    changed = {bytes.fromhex(old): bytes.fromhex(new) for old, new in digests.items() if old != new}
    found: set[bytes] = set()
    done: set[int] = set()
    for path in sorted(stage.rglob("*.so*")) if changed else ():
        if path.is_symlink() or not path.is_file() or path.stat().st_ino in done:
            continue
        done.add(path.stat().st_ino)  # another name of a file has the same content
        data = path.read_bytes()
        if held := [old for old in changed if old in data]:
            for old in held:
                data = data.replace(old, changed[old])
            with path.open("r+b") as file:  # in place: its other names stay its
                file.write(data)
            found.update(held)
    if len(found) != len(changed):
        raise ArtifactError(
            "no library of the release holds the digest of one of its packs; `kiln inspect --verify` it"
        )


def _stated(
    document: dict[str, Any], kept: list[dict[str, Any]], packs: dict[str, Pack], selection: Selection
) -> dict[str, Any]:
    """The manifest of the part, but for its files."""
    made = dict(document)
    there = {row["name"] for row in kept}
    tables = {
        name: [row for row in document[name] if row["target"] in there] for name in ("images", "variants", "left_out")
    }
    for name, the_pack in packs.items():
        rows = list(reader.pack_rows(the_pack))
        places = {(row["kernel"], row["functional"], row["configuration"], row["specialization"]) for row in rows}
        images = {row["image"] for row in rows}
        tables["variants"] = [
            row
            for row in tables["variants"]
            if row["target"] != name
            or (row["kernel"], row["functional"], row["configuration"], row["specialization"]) in places
        ]
        tables["images"] = [row for row in tables["images"] if row["target"] != name or row["sha256"] in images]
    if packs:
        rules = {name: left_out.rules_of(the_pack) for name, the_pack in packs.items()}
        tables["left_out"] = [
            rule
            for name in dict.fromkeys(row["name"] for row in kept)
            for rule in rules.get(name, [one for one in tables["left_out"] if one["target"] == name])
        ]
    made |= tables
    made["targets"] = [_target(row, packs.get(row["name"])) for row in kept]
    kernels = {row["kernel"] for row in made["variants"]}
    made["waivers"] = [
        {**row, "missing": _missing(made["variants"], row)} for row in document["waivers"] if row["kernel"] in kernels
    ]
    if selection:
        both = dict(parse_selection(document["selection"])) | dict(selection)
        made["selection"] = spell_selection(tuple(sorted(both.items())))
    made["format"] = manifest_model.format_of(made["images"], made.get("families") or ())
    return made


def _missing(variants: list[dict[str, Any]], waiver: dict[str, Any]) -> int:
    mine = (row for row in variants if row["kernel"] == waiver["kernel"] and "image" not in row)
    return min(waiver["missing"], sum(1 for _ in mine))


def _target(row: dict[str, Any], the_pack: Pack | None) -> dict[str, Any]:
    if the_pack is None or the_pack.index_digest == row.get("index"):
        return row
    rows = list(reader.pack_rows(the_pack))
    every = sum(len(kernel.slots) for kernel in the_pack.kernels)
    verified = row["verified"] if row["verified"].startswith(_PART) else f"{_PART}: {row['verified']}"
    return row | {
        "index": the_pack.index_digest,
        "functionals": len({(one["kernel"], one["functional"]) for one in rows}),
        "variants": len(rows),
        "images": len({one["image"] for one in rows if one["image"]}),
        "unavailable": sum(one["image"] is None for one in rows),
        "left_out": every - len(rows),
        "verified": verified,
    }
