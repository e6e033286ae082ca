"""The provenance of a release, written beside its tarball: an in-toto statement (v1) whose subject is the tarball's
digest and whose predicate is SLSA's provenance (v1). It alone names builder, host and time, which is why it is not in
the tarball. `kiln sign` signs it; trust/provenance.py reads it.

    externalParameters    what was asked for
    internalParameters    the host, its system, the Python that ran, where images were kept
    resolvedDependencies  "source" by its commit, the lock, recipes that the build was given and their kernels, and
                          every locked file that this build installed or compiled, by its digest
    runDetails            the builder (KILN_BUILDER), when, and the digests of the manifest and the bill in the tarball

The builder says all this of itself: without a signature it is worth nothing, with one as much as the key's owner.
"""

from __future__ import annotations

import datetime
import json
import platform
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kiln_build.artifacts import manifest_model
from kiln_build.options.options import Options
from kiln_build.origin import bill
from kiln_build.trust import statement
from kiln_build.trust.provenance import PREDICATE, STATEMENT
from kiln_recipe import digests
from kiln_recipe.compile.lock import LOCK_NAME, Lock, LockedAddress, running_python
from kiln_recipe.console.appear import write_whole
from kiln_recipe.model import Recipe
from kiln_recipe.selection import spell_selection

BUILD_TYPE = "urn:kiln:build:1"
LOCAL_BUILDER = "urn:kiln:builder:local"  # nobody in particular; KILN_BUILDER names one


@dataclass(frozen=True)
class Run:
    """A build that has made a tarball.

    Attributes:
        options: with the release's own version, label included.
        added: recipes that are not the tree's own.
        families: names of all.
        stage: the folder that the tarball was made of.
        began: when, in seconds since 1970.
        ended: likewise.
    """

    options: Options
    lock: Lock
    families: Sequence[str]
    added: Sequence[Recipe]
    stage: Path
    began: float
    ended: float


def write(run: Run, tarball: Path) -> Path:
    """Writes the provenance of a tarball. One that is there stays: it is how these bytes came about first, and may be
    signed; builds remove it with the tarball that it is of.

    Raises:
        EnvironmentProblem: it cannot be written.
    """
    path = statement.provenance_of(tarball)
    if path.exists():
        return path
    text = json.dumps(document(run, tarball), indent=1, ensure_ascii=False) + "\n"
    write_whole(path, text)
    return path


def document(run: Run, tarball: Path) -> dict[str, Any]:
    """The statement, as plain data."""
    inside = [path for path in (manifest_model.PATH, bill.PATH) if (run.stage / path).is_file()]
    return {
        "_type": STATEMENT,
        "subject": [_file(tarball.name, digests.of_file(tarball))],
        "predicateType": PREDICATE,
        "predicate": {
            "buildDefinition": {
                "buildType": BUILD_TYPE,
                "externalParameters": _asked(run),
                "internalParameters": _host(run.options),
                "resolvedDependencies": [*_sources(run), *_locked(run.lock, _uses(run.options, run.lock))],
            },
            "runDetails": {
                "builder": {"id": run.options.build.builder or LOCAL_BUILDER},
                "metadata": {
                    "invocationId": f"urn:uuid:{uuid.uuid4()}",
                    "startedOn": _spell_time(run.began),
                    "finishedOn": _spell_time(run.ended),
                },
                "byproducts": [_file(path, digests.of_file(run.stage / path)) for path in inside],
            },
        },
    }


def _asked(run: Run) -> dict[str, Any]:
    asked = run.options.build
    parameters = {
        "version": run.options.version,
        "targets": [target.name for target in run.options.targets],
        "families": [*run.families],
        "profile": asked.profile,
        "configurations": asked.configurations,
        "selection": spell_selection(asked.selection),
        "ptx": asked.ptx,
        "images": not asked.no_image,
        "triton": asked.triton,
        "patches": run.options.patches,
        "changed": run.options.dirty,
    }
    return {name: value for name, value in parameters.items() if value != ""}


def _host(options: Options) -> dict[str, Any]:
    try:
        distribution = platform.freedesktop_os_release().get("PRETTY_NAME", "")
    except OSError:
        distribution = ""
    facts = {
        "host": platform.node(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "distribution": distribution,
        "python": platform.python_version(),
        "store": "shared" if options.build.store else "of the workspace",
    }
    return {name: value for name, value in facts.items() if value}


def _sources(run: Run) -> list[dict[str, Any]]:
    options, rows = run.options, []
    if options.commit != "unknown":
        rows.append({"name": "source", "digest": {"gitCommit": options.commit}})
    rows.append(_file(f"input/{LOCK_NAME}", digests.of_file(options.input / LOCK_NAME)))
    for recipe in run.added:
        kernels = {kernel.source for operation in recipe.operations for kernel in operation.kernels}
        rows += [
            _file(f"{recipe.family}/{path.name}", digests.of_file(path)) for path in (recipe.path, *sorted(kernels))
        ]
    return rows


def _uses(options: Options, lock: Lock) -> Sequence[str]:
    names = {target.name for target in options.targets} & {name for name, _ in options.target_sites}
    return (
        "front",
        "build",
        *(["override"] if names and lock.overrides else []),
        *(["triton-source"] if options.build.triton == "source" else []),
        *(["scheduler"] if options.build.scheduler else []),
    )


def _locked(lock: Lock, uses: Iterable[str]) -> list[dict[str, Any]]:
    rows = []
    for one in lock.wanted((running_python(),), uses):
        address, package = "", lock.package_of(one.name)
        if isinstance(one, LockedAddress):
            address = one.url
        elif package is not None:
            name = package.name.lower().replace("_", "-")
            address = f"pkg:pypi/{name}@{package.version}?file_name={one.name.replace('+', '%2B')}"
        rows.append({**_file(one.name, one.sha256), "uri": address})
    return rows


def _file(name: str, sha256: str) -> dict[str, Any]:
    return {"name": name, "digest": {"sha256": sha256}}


def _spell_time(seconds: float) -> str:
    return datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
