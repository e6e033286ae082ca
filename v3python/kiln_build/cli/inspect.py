"""`kiln inspect`: what is in a tarball, an unpacked release, a pack or an image; whether it is whole.

Runs on machines with no more than Python, pyelftools and zstandard.
"""

from __future__ import annotations

import argparse
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType
from typing import Any

from kiln_build.artifacts import manifest_model, presence, verify
from kiln_build.artifacts import reader as inspect
from kiln_build.artifacts.reader import ImageFile, PackFile, Release
from kiln_build.options.words import check_there
from kiln_recipe.console.spelling import print_text
from kiln_recipe.console.tables import plural, print_json, quantity, span, table
from kiln_recipe.console.usage import filled
from kiln_recipe.errors import UsageError

EXAMPLE = """\
kiln inspect output/kiln-0.1.0b-manylinux_2_28_x86_64-shared.tar.gz --verify
kiln inspect kiln/lib/kiln.images/nvidia-sm_90.pack
kiln inspect output/kiln-0.1.0b-manylinux_2_28_x86_64-shared.tar.gz --html release.html"""

_COMMAND = "kiln inspect"
_LEFT_OUT = "combinations that the profile, the selection or the recipe leaves out"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "artifact",
        nargs="?",
        type=filled("the artifact", "a tarball, an unpacked release, a pack or an image"),
        help="a release's tarball, an unpacked release, a pack, or an image",
    )
    parser.add_argument(
        "--verify",
        action="store_true",
        help="check every digest and every image; exit code 6 if wrong; without zstandard not the images in packs",
    )
    parser.add_argument(
        "--json", action="store_true", help="as JSON: file, artifact, and under its name all that is in it"
    )
    parser.add_argument(
        "--html",
        type=filled("--html", "the file to write"),
        metavar="FILE",
        help="write a page of what is in it, as `kiln report` does",
    )
    parser.add_argument("--schema", action="store_true", help="print the JSON schema of a release's manifest")


def check(arguments: argparse.Namespace) -> None:
    if arguments.schema and arguments.artifact:
        raise UsageError("--schema is the same for all releases; leave the artifact out")
    if not arguments.schema and not arguments.artifact:
        raise UsageError("nothing to inspect; give a tarball, an unpacked release, a pack or an image")
    if arguments.artifact:
        check_there(arguments.artifact, inspect.WHAT)


def run(arguments: argparse.Namespace) -> int:
    if arguments.schema:
        print(json.dumps(manifest_model.schema(), indent=2))
        return 0
    artifact = inspect.open_artifact(Path(arguments.artifact), takes_part=True)
    report = verify.verify(artifact) if arguments.verify else None
    if report and (note := verify.note_of_program()):
        report.notes.append(note)
    absent = presence.absent_packs(artifact) if isinstance(artifact, Release) and artifact.is_folder else {}
    written = _page_file(artifact, arguments.html) if arguments.html else None
    is_damaged = report is not None and bool(report.problems)  # then what it states of itself counts for nothing
    if written and not is_damaged:
        _write_page(artifact, written)
    if arguments.json:
        document = _document(artifact)
        if isinstance(artifact, Release) and artifact.is_folder:
            document["absent_packs"] = absent
        if report:
            document["verified"] = asdict(report)
        print_json(document)
    elif not is_damaged:
        print_text(describe(artifact, absent))
        if report:
            print(f"\n{'whole' if report.complete else 'whole as far as it was read'}: {verify.counts(report)} checked")
            for note in report.notes:
                print_text(f"note: {note}", has_lines=False)
    if report:
        verify.refuse_problems(report, arguments.artifact)
    return 0


def describe(artifact: Release | PackFile | ImageFile, absent: Mapping[str, str] = MappingProxyType({})) -> str:
    """What an artifact is and holds, as text; `absent`: of a release, by target why its pack does not serve it."""
    if isinstance(artifact, Release):
        return _describe_release(artifact, absent)
    if isinstance(artifact, PackFile):
        return _describe_pack(artifact)
    facts = inspect.facts_of(artifact)
    parameters = facts.pop("parameters", None) or facts.pop("arguments", ())
    lines = [f"{name.replace('_', ' '):24} {value}" for name, value in facts.items()]
    lines.append("")
    right = ("OFFSET", "SIZE")
    lines.append(table(("OFFSET", "SIZE", "KIND"), [(p["offset"], p["size"], p["kind"]) for p in parameters], right))
    return "\n".join(lines)


def _describe_release(release: Release, absent: Mapping[str, str]) -> str:
    manifest = release.manifest
    source, files, part = manifest["source"], manifest["files"], manifest.get("part")
    rows = inspect.variants_of(release)
    size = sum({row.get("sha256"): row.get("bytes", 0) for row in files}.values())  # hard links have no more content
    asked = manifest["profile"] + (f", {manifest['selection']}" if manifest["selection"] else "")
    lines = [
        f"kiln {manifest['kiln']} for {manifest['platform']}, profile {asked}{', with PTX' if manifest['ptx'] else ''}",
        *([f"part        {part}, of the release with the manifest {manifest['of']}"] if part else []),
        f"source      {source['commit']}{', dirty' if source['dirty'] else ''}"
        + (f", patches {source['patches'][:12]}" if source.get("patches") else ""),
        f"contents    {quantity(size)} in {plural(len(files), 'file')}"
        + ("" if release.is_folder else f"; the tarball: {quantity(release.path.stat().st_size)}"),
        f"tools       {inspect.tools_of(release)}",
        f"families    {', '.join(manifest.get('families') or inspect.families_of(rows)) or 'none'}",
        *(["", _targets_table(manifest, rows, absent)] if manifest["targets"] else []),
        *presence.sentences_of(release, absent),
        "",
        *(f"{target['name']:11} {target['verified']}" for target in manifest["targets"]),
    ]
    if any(target["left_out"] for target in manifest["targets"]):
        lines += ["", f"left out: {_LEFT_OUT}; `kiln list --missing` shows by which rules"]
    if manifest["waivers"]:
        lines += ["", "waivers"]
        for waiver in manifest["waivers"]:
            use = f"{waiver['missing']} of {plural(waiver['covers'], 'variant')} missing"
            lines.append(f"  {waiver['kernel']}: {waiver['reason']} ({use})")
    return "\n".join(lines)


def _targets_table(manifest: dict[str, Any], rows: list[dict[str, Any]], absent: Mapping[str, str]) -> str:
    sizes = {row["path"]: row.get("bytes", 0) for row in manifest["files"]}
    header = ("TARGET", "PACK", "IMAGES", "RAW", "VARIANTS", "UNAVAILABLE", "LEFT OUT", "REGISTERS", "SHARED",
              "SPILLS", "ABI", "PTX", "DRIVER")  # fmt: skip
    lines = []
    for target in manifest["targets"]:
        images = _images(row for row in rows if row["target"] == target["name"])
        versions = {image.get("ptx_version") or target.get("ptx_version") for image in images}
        versions |= {target.get("ptx_version")}
        stored = sizes.get(f"{inspect.IMAGES}/{target.get('pack')}")
        spilling = [image["spills"] for image in images if image["spills"]]
        lines.append(
            (
                target["name"],
                "see below" if target["name"] in absent else "-" if stored is None else quantity(stored),
                target["images"],
                quantity(sum(image["bytes"] for image in images)),
                target["variants"],
                target["unavailable"],
                target["left_out"],
                span(image["registers"] for image in images),
                span(image["shared"] for image in images),
                f"{plural(len(spilling), 'image')}, to {max(spilling)} B" if spilling else "none",
                target["abi"],
                ", ".join(sorted(filter(None, versions), key=_numbers)) or "-",
                target["lowest_driver"],
            )
        )
    return table(header, lines, header[1:7])


def _numbers(version: str) -> list[int]:
    """ "8.10" comes after "8.9"."""
    return [int(number) for number in re.findall("[0-9]+", version)]


def _describe_pack(artifact: PackFile) -> str:
    pack = artifact.pack
    decoded = sum(group.decoded for group in pack.groups)
    rows = list(inspect.pack_rows(pack))
    lines = [
        f"pack of {pack.target} for kiln {pack.release}, {quantity(pack.file_bytes)}",
        f"index       {pack.index_digest}",
        f"contents    {plural(len(_images(rows)), 'image')} in {plural(len(pack.groups), 'group')}, "
        f"{quantity(decoded)} decoded, {pack.file_bytes / decoded if decoded else 1:.2f} of that stored",
    ]
    for kernel in pack.kernels:
        lines.append(
            f"kernel      {kernel.family}.{kernel.operation}/{kernel.kernel}: "
            f"{plural(len(kernel.functionals), 'functional')} x {plural(len(kernel.configurations), 'configuration')} "
            f"x {plural(len(kernel.specializations), 'specialization')}"
        )
    per_group = Counter(image.group for image in pack.images)
    groups = [
        (number, group.offset, group.stored, group.decoded, f"{group.stored / max(1, group.decoded):.2f}",
         per_group[number], group.digest[:12])
        for number, group in enumerate(pack.groups)
    ]  # fmt: skip
    header = ("GROUP", "OFFSET", "STORED", "DECODED", "RATIO", "IMAGES", "SHA-256")
    return "\n".join([*lines, "", table(header, groups, header[:6])])


def _images(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each image of the rows once."""
    return list({row["image"]: row for row in rows if row["image"] is not None}.values())


def _document(artifact: Release | PackFile | ImageFile) -> dict[str, Any]:
    document: dict[str, Any] = {"file": artifact.path.name}
    if isinstance(artifact, Release):
        return document | {"artifact": "release", "manifest": artifact.manifest}
    if isinstance(artifact, PackFile):
        return document | {"artifact": "pack", "pack": asdict(artifact.pack)}
    return document | {"artifact": "image", "image": inspect.facts_of(artifact)}


def _page_file(artifact: Release | PackFile | ImageFile, word: str) -> Path:
    """Where the page is to be written; nothing of what it shows is replaced, or gets another file among its own."""
    from kiln_build.pages.document import check_place

    return check_place(word, _COMMAND, [artifact.path])


def _write_page(artifact: Release | PackFile | ImageFile, path: Path) -> None:
    if isinstance(artifact, ImageFile):
        raise UsageError("--html shows a release or a pack; not an image")
    from kiln_build.difference.side import open_side
    from kiln_build.pages import document
    from kiln_build.report import gather, page

    document.write(path, page.page(gather.gather(open_side(artifact.path)), _COMMAND))
