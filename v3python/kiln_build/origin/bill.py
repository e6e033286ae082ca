"""The bill of materials of a release, share/kiln/kiln.cdx.json: what is linked into it, and what made its bytes, with
licences and digests; in CycloneDX 1.6 (ECMA-424), which scanners read.

    metadata.component      the release; properties kiln:commit, kiln:dirty, kiln:patches, kiln:lock (SHA-256)
    components, required    its parts (notices/notices.yaml); kiln:in: in which files, kiln:licence-text: which text
    components, excluded    packages of the toolchain's lock, each with the files of every Python; what compiled is in
                            them: notices/tools.yaml
    dependencies            the release's parts

It speaks of what the commit and the lock fix, and of nothing else: no time, no host, no random number, and all locked
files whichever Python ran. So equal inputs give equal bytes; who built a release, where and when, the provenance says.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import yaml

from kiln_build.artifacts.manifest_model import Source
from kiln_build.origin import licences, notices
from kiln_build.origin.notices import Notice
from kiln_recipe import plain_json
from kiln_recipe.compile.lock import Lock, Package
from kiln_recipe.compile.toolchain import Toolchain
from kiln_recipe.errors import ArtifactError

PATH = "share/kiln/kiln.cdx.json"
_USED = ("front", "build", "override", "source")  # of the lock's packages; Triton from source is known by its digests
_NAMESPACE = uuid.uuid5(uuid.NAMESPACE_URL, "urn:kiln:bill")

Document = dict[str, Any]


class Tool(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An entry of tools.yaml: a program within a package, "triton==3.8.0"; `files`: of the toolchain, that it is."""

    name: str
    package: str
    licence: str
    what: str
    version: str = ""
    purl: str = ""
    files: tuple[str, ...] = ()


@dataclass(frozen=True)
class Facts:
    """What the bill of a release is made from.

    Attributes:
        tree: the source tree.
        version: the release's, "0.1.0b+full".
        lock_digest: of the lock's file.
        toolchains: all that compile for a target.
        added: names of the families that are not the tree's own.
    """

    tree: Path
    version: str
    source: Source
    lock: Lock
    lock_digest: str
    toolchains: Sequence[Toolchain]
    added: Sequence[str] = ()


def of_release(facts: Facts) -> bytes:
    """The bill of a release."""
    parts = [
        *parts_of(notices.read(facts.tree, "notices.yaml"), facts.lock, facts.toolchains),
        *(
            _component("library", f"family:{name}", name, what=_ADDED, properties={"kiln:in": "lib/kiln.images/*.pack"})
            for name in facts.added
        ),
    ]
    root = _component(
        "library", "kiln", "kiln", facts.version, licence="MIT",
        what="GPU kernels, compiled ahead of time, and the runtime that launches them",
        properties={
            "kiln:commit": facts.source.commit,
            "kiln:dirty": "true" if facts.source.dirty else "",
            "kiln:patches": facts.source.patches,
            "kiln:lock": facts.lock_digest,
        },
    )  # fmt: skip
    return encode(_document(root, parts, _tools(facts)))


_ADDED = "A family of kernels that was added to Kiln's own; its maker knows its licence."


def parts_of(listed: Iterable[Notice], lock: Lock, toolchains: Iterable[Toolchain]) -> list[Document]:
    """The components of what a list of notices names.

    Args:
        listed: of notices.yaml or extension.yaml.
    """
    versions = {package.name: package.version for package in lock.packages}
    files = {name: digest for chain in toolchains for name, digest in chain.files}
    return [
        _component(
            "library", f"part:{one.name}", one.name,
            # A library without a version of its own has its package's, but not where it is a file of somebody else's.
            version := one.version or ("" if one.files else versions[one.package]),
            licence=one.licence, what=" ".join(one.what.split()), purl=one.purl.format(version=version),
            files=[_file(name, files[name]) for name in one.files if name in files],
            properties={
                "kiln:in": one.where,
                "kiln:licence-text": f"share/kiln/licences/{one.file}",
                "kiln:package": f"{one.package}=={versions[one.package]}",
            },
        )
        for one in listed
    ]  # fmt: skip


def of_package(name: str, version: str, release: bytes, files: Iterable[str], more: Sequence[Document]) -> bytes:
    """The bill of a Python package that was made from a release.

    Args:
        name, version: the package's.
        release: the release's bill.
        files: what of the release is in the package, by path in the release, "lib/libkiln.so.0".
        more: components that the package has besides.

    Raises:
        ArtifactError: the release's bill is not one.
    """
    try:
        document = plain_json.read(release)
        paths = [*files]
        parts = [one for one in document["components"] if one["scope"] == "required" and _is_in(one, paths)]
        tools = [one for one in document["components"] if one["scope"] == "excluded"]
        root = {**document["metadata"]["component"], "name": name, "version": version, "type": "library"}
    except (ValueError, KeyError, TypeError) as error:
        raise ArtifactError(f"the release's {PATH} is not a bill of materials as a build writes it") from error
    root |= {"bom-ref": name, "purl": f"pkg:pypi/{name}@{version.replace('+', '%2B')}"}
    return encode(_document(root, [*parts, *more], tools))


def licences_of(bill: bytes) -> list[str]:
    """The licences of what a bill's package or release consists of, its own first, as notices spell them."""
    document = json.loads(bill)
    contained = [one for one in document["components"] if one["scope"] == "required"]
    stated = [one["licenses"][0] for one in (document["metadata"]["component"], *contained) if "licenses" in one]
    return [one["expression"] if "expression" in one else next(iter(one["license"].values())) for one in stated]


def texts_of(bill: bytes) -> set[str]:
    """The licences' texts that a bill names, by path below share/kiln/."""
    listed = [one for component in json.loads(bill)["components"] for one in component.get("properties", ())]
    paths = (one["value"] for one in listed if one["name"] == "kiln:licence-text")
    return {path.removeprefix("share/kiln/") for path in paths}


def encode(document: Document) -> bytes:
    """The file's bytes."""
    return (json.dumps(document, indent=1, ensure_ascii=False) + "\n").encode()


def _is_in(component: Document, paths: Sequence[str]) -> bool:
    """Whether one of the files has the part; of what is stated nowhere any may."""
    places = [one["value"] for one in component.get("properties", ()) if one["name"] == "kiln:in"]
    return not places or any(notices.is_in(place, paths) for place in places)


def _document(root: Document, parts: Sequence[Document], tools: Sequence[Document]) -> Document:
    document = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "lifecycles": [{"phase": "build"}],
            "authors": [{"name": "The Kiln authors"}],
            "component": root,
        },
        "components": [*parts, *tools],
        "dependencies": [
            {"ref": root["bom-ref"], "dependsOn": [part["bom-ref"] for part in parts]},
            *({"ref": part["bom-ref"]} for part in parts),
        ],
    }
    # A number that tells documents apart has to be there, and the same for the same document.
    digest = hashlib.sha256(encode(document)).hexdigest()
    number = {"serialNumber": f"urn:uuid:{uuid.uuid5(_NAMESPACE, digest)}"}
    head = ("$schema", "bomFormat", "specVersion")
    return {**{name: document[name] for name in head}, **number, **document}


def _tools(facts: Facts) -> list[Document]:
    """The packages that a build installs, or compiles C out of, and what is known to be in them."""
    listed = yaml.safe_load((facts.tree / "notices/tools.yaml").read_bytes())
    inside: dict[str, list[Tool]] = {}
    for tool in msgspec.convert(listed, tuple[Tool, ...]):
        inside.setdefault(tool.package, []).append(tool)
    chains = {f"triton=={chain.triton_version}": dict(chain.files) for chain in facts.toolchains}
    rows = [
        _package(one, inside.get(one.requirement, ()), chains.pop(one.requirement, {}))
        for one in facts.lock.packages
        if one.use in _USED and (one.use != "override" or one.requirement in chains)
    ]
    # One that was built from source: its files, and what it was built from.
    rows += [
        _component("application", requirement, *requirement.split("=="), licence="MIT", scope="excluded",
                   what=_COMPILER, files=[_file(name, digest) for name, digest in files.items()])
        for requirement, files in chains.items()
    ]  # fmt: skip
    rows += [
        _component("file", one.name, one.name, licence=one.licence, scope="excluded", sha256=one.sha256)
        for one in facts.lock.files
    ]
    return rows


_COMPILER = "Compiles kernels; built from source"


def _package(one: Package, inside: Iterable[Tool], files: Mapping[str, str]) -> Document:
    name = one.name.lower().replace("_", "-")
    tools = [
        _component(
            "application", f"{one.requirement}#{tool.name}", tool.name, tool.version, licence=tool.licence,
            what=tool.what, purl=tool.purl, scope="excluded",
            files=[_file(file, files[file]) for file in tool.files if file in files],
        )
        for tool in inside
    ]  # fmt: skip
    return _component(
        "library", one.requirement, one.name, one.version, licence=one.licence, scope="excluded",
        purl=f"pkg:pypi/{name}@{one.version}", properties={"kiln:use": one.use},
        files=[*tools, *(_file(file.name, file.sha256) for file in one.files)],
    )  # fmt: skip


def _file(name: str, sha256: str) -> Document:
    return {"type": "file", "name": name, "hashes": _hashes(sha256)}


def _hashes(sha256: str) -> list[Document]:
    return [{"alg": "SHA-256", "content": sha256}]


def _component(
    kind: str, ref: str, name: str, version: str = "", *, licence: str = "", what: str = "", purl: str = "",
    scope: str = "required", sha256: str = "", properties: Mapping[str, str] = {}, files: Sequence[Document] = (),
) -> Document:  # fmt: skip
    if licences.is_expression(licence):
        stated: Document = {"expression": licence}
    else:
        stated = {"license": {"id" if licences.is_known(licence) else "name": licence}}
    fields: Document = {
        "type": kind,
        "bom-ref": ref,
        "name": name,
        "version": version,
        "description": what,
        "scope": scope,
        "hashes": _hashes(sha256) if sha256 else [],
        "licenses": [stated] if licence else [],
        "purl": purl,
        "properties": [{"name": name, "value": value} for name, value in properties.items() if value],
        "components": [*files],
    }
    return {field: value for field, value in fields.items() if value}
