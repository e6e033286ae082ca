"""Arguments and environment become frozen values: `FrontDoor`, `BuildVariables`, `Options`.

Every KILN_* variable that Kiln's Python obeys is read, checked and spelled here; nothing below reads one. Only the
standard library is imported at the top: build.sh's first step runs before any package is installed.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from kiln.errors import EnvironmentProblem, UsageError
from kiln.variables import VARIABLES
from kiln.words import (
    Selection,
    absolute,
    check_input,
    check_output,
    check_recipe,
    check_store,
    check_version,
    check_workspace,
    parse_selection,
    spell_selection,
)

if TYPE_CHECKING:
    from kiln.targets import Target

T = TypeVar("T")

# Not for users: the workspace that the build.sh above this one holds, and the caller's name of the output folder, which
# a container sees under another.
_HELD = "_KILN_HELD_WORKSPACE"
_SHOWN_OUTPUT = "_KILN_SHOWN_OUTPUT"

CONTAINER_ENGINES = ("docker", "podman", "buildah")
ENGINES = ("auto", *CONTAINER_ENGINES, "none")
PROFILES = ("core", "full")
_YES = ("1", "yes", "true", "on")
_NO = ("0", "no", "false", "off")


@dataclass(frozen=True)
class Options:
    """All that a build was asked for. Paths are absolute.

    Attributes:
        source: root of the source tree: tritonsrc/, csrc/, include/, tuning/.
        input: the folder of the toolchain's lock and the download cache.
        workspace: all temporary and kept files: venv/ store/ zig/ triton/ logs/ build/.
        output: where the tarball goes.
        version: "0.1.0b".
        targets: in the order of targets.yaml.
        profile: "core" or "full".
        selection: (choice, values) to restrict functionals to; empty: all.
        jobs: compiles at once; None: as many as cores and memory allow.
        job_timeout: seconds.
        no_image: library, tables and headers only.
        clean: forget the workspace's results first.
        ptx: pack PTX beside each NVIDIA image.
        store: the folder of the image store; may be shared.
        recipes: recipe files over and above the tree's own.
        log_json: as progress.make_progress takes it.
        commit: of the source, 40 digits, or "unknown".
        dirty: whether the tree differs from that commit.
        patches: digest of the applied input/patch-<version>/, "" if there is none.
        triton: "wheel" or "source".
        site: the site-packages that holds the default Triton.
        target_sites: (target, site-packages) for targets that have a Triton of their own.
        cache: the folder of the locked downloads.
    """

    source: Path
    input: Path
    workspace: Path
    output: Path
    version: str
    targets: tuple[Target, ...]
    profile: str
    selection: Selection
    jobs: int | None
    job_timeout: float
    no_image: bool
    clean: bool
    ptx: bool
    store: Path
    recipes: tuple[Path, ...]
    log_json: str | None
    commit: str
    dirty: bool
    patches: str
    triton: str
    site: Path
    target_sites: tuple[tuple[str, Path], ...]
    cache: Path

    def site_of(self, target: str) -> Path:
        """The site-packages of the Triton that compiles for `target`."""
        return dict(self.target_sites).get(target, self.site)


@dataclass(frozen=True)
class BuildVariables:
    """What the environment says of a build; `Options` explains the fields. Paths are as they were written."""

    profile: str
    selection: Selection
    jobs: int | None
    job_timeout: float
    no_image: bool
    clean: bool
    ptx: bool
    store: str | None
    recipes: tuple[str, ...]
    log_json: str | None
    triton: str


@dataclass(frozen=True)
class FrontDoor:
    """What build.sh was asked for. Paths are absolute, those of `build` included.

    Attributes:
        workspace: None: a fresh folder on a memory file system.
        targets: as they were written.
        build: what the build itself obeys.
        source: "tag" or "tree".
        engine: one of ENGINES.
        base_image, ca_bundle, amdgpu_installer, python: None: not asked for.
        shell: open a shell in the devel container instead of building.
        local_user: run the container as the calling user.
        held: a workspace that is held already, by the build.sh that started this one.
        shown_output: what the output folder is called outside of the container that we are in.
    """

    input: Path
    workspace: Path | None
    output: Path
    version: str
    targets: str
    build: BuildVariables
    source: str
    engine: str
    base_image: str | None
    ca_bundle: Path | None
    amdgpu_installer: str | None
    shell: bool
    local_user: bool
    python: str | None
    held: Path | None
    shown_output: Path | None

    @property
    def only_in_a_container(self) -> tuple[str, ...]:
        """The variables that were set, and mean nothing where there is no container."""
        asked = {
            "KILN_SHELL": self.shell,
            "KILN_BASE_IMAGE": self.base_image,
            "AMDGPU_INSTALLER": self.amdgpu_installer,
            "LOCAL_USER": self.local_user,
        }
        return tuple(name for name, value in asked.items() if value)


def read_front_door(words: Sequence[str], environment: Mapping[str, str], cwd: Path) -> FrontDoor:
    """The five words of build.sh and its variables, checked as far as that goes without any package.

    Raises:
        UsageError: a word or a variable that cannot be.
        EnvironmentProblem: the input, a recipe or the certificates are not there; the output or the store cannot be
            written; the workspace is no folder.
    """
    input_word, workspace_word, output_word, version, targets = words
    if not targets.strip():
        raise UsageError("the fifth argument names no target; give for example 'MI300X;sm_90', or all")
    build = _made_absolute(read_build_variables(environment), cwd)
    python = environment.get("KILN_PYTHON") or None
    held = environment.get(_HELD)
    shown_output = environment.get(_SHOWN_OUTPUT)
    door = FrontDoor(
        input=check_input(input_word, cwd),
        workspace=check_workspace(workspace_word, cwd),
        version=check_version(version),
        targets=targets,
        build=build,
        source=_one_of(environment, "KILN_SOURCE", ("tag", "tree")),
        engine=_one_of(environment, "KILN_ENGINE", ENGINES),
        base_image=environment.get("KILN_BASE_IMAGE") or None,
        ca_bundle=read_ca_bundle(environment, cwd),
        amdgpu_installer=environment.get("AMDGPU_INSTALLER") or None,
        shell=_flag(environment, "KILN_SHELL"),
        local_user=_flag(environment, "LOCAL_USER"),
        python=str(absolute(python, cwd)) if python and "/" in python else python,
        held=Path(held) if held else None,
        shown_output=Path(shown_output) if shown_output else None,
        output=check_output(output_word, cwd),  # the last: it makes the folder
    )
    if door.engine == "none" and door.only_in_a_container:
        names = " and ".join(door.only_in_a_container)
        raise UsageError(
            f"KILN_ENGINE=none builds without a container, which alone obeys {names}; leave one or the other out"
        )
    return door


def read_ca_bundle(environment: Mapping[str, str], cwd: Path) -> Path | None:
    """The file of certificates that KILN_CA_BUNDLE names.

    Raises:
        EnvironmentProblem: there is no such file.
    """
    word = environment.get("KILN_CA_BUNDLE")
    if not word:
        return None
    path = absolute(word, cwd)
    if not path.is_file():
        raise EnvironmentProblem(f"KILN_CA_BUNDLE={word} is not a file; give a PEM file of certificates")
    return path


def read_build_variables(environment: Mapping[str, str]) -> BuildVariables:
    """The variables that `kiln build` and `kiln plan` obey.

    Raises:
        UsageError: a value that cannot be; names the variable, the value, and what would be right.
    """
    recipes = environment.get("KILN_RECIPES", "")
    if recipes and not recipes.strip(":"):
        raise UsageError(f"KILN_RECIPES={recipes} names no recipe; give paths of recipe.yaml files, with ':' between")
    return BuildVariables(
        profile=_one_of(environment, "KILN_PROFILE", PROFILES),
        selection=parse_selection(environment.get("KILN_SELECT", "")),
        jobs=_number(environment, "KILN_JOBS", int, "a whole number from 1 on"),
        job_timeout=_number(environment, "KILN_TIMEOUT", float, "seconds, more than 0") or 300.0,
        no_image=_flag(environment, "KILN_NOIMAGE"),
        clean=_flag(environment, "KILN_CLEAN"),
        ptx=_flag(environment, "KILN_PTX"),
        store=environment.get("KILN_STORE") or None,
        recipes=tuple(word for word in recipes.split(":") if word),
        log_json=environment.get("KILN_LOG_JSON") or None,
        triton=_one_of(environment, "KILN_TRITON", ("wheel", "source")),
    )


def spell(door: FrontDoor) -> dict[str, str]:
    """The variables that tell another process the same. What is unset stays unset: others of VARIABLES must go."""
    build = door.build
    values = {
        "KILN_PROFILE": build.profile,
        "KILN_SELECT": spell_selection(build.selection),
        "KILN_JOBS": build.jobs,
        "KILN_TIMEOUT": build.job_timeout,
        "KILN_NOIMAGE": build.no_image,
        "KILN_CLEAN": build.clean,
        "KILN_PTX": build.ptx,
        "KILN_STORE": build.store,
        "KILN_RECIPES": ":".join(build.recipes),
        "KILN_LOG_JSON": build.log_json,
        "KILN_TRITON": build.triton,
        "KILN_SOURCE": door.source,
        "KILN_ENGINE": door.engine,
        "KILN_BASE_IMAGE": door.base_image,
        "KILN_SHELL": door.shell,
        "KILN_CA_BUNDLE": door.ca_bundle,
        "KILN_PYTHON": door.python,
        "AMDGPU_INSTALLER": door.amdgpu_installer,
        "LOCAL_USER": door.local_user,
        _HELD: door.held,
        _SHOWN_OUTPUT: door.shown_output,
    }
    return {name: "1" if value is True else str(value) for name, value in values.items() if value}


def environment_of(door: FrontDoor, environment: Mapping[str, str]) -> dict[str, str]:
    """`environment` with Kiln's variables as `door` has them."""
    kept = {name: value for name, value in environment.items() if name not in (*VARIABLES, _HELD, _SHOWN_OUTPUT)}
    return {**kept, **spell(door)}


def make_options(
    words: Sequence[str],
    variables: BuildVariables,
    source: Path,
    cwd: Path,
    *,
    commit: str = "unknown",
    dirty: bool = False,
    patches: str = "",
    site: Path,
    target_sites: tuple[tuple[str, Path], ...] = (),
) -> Options:
    """The options of a build in `workspace`, which must be a folder here: only build.sh knows what tmpfs is.

    Args:
        words: input, workspace, output, version, targets, as build.sh takes them.
        cwd: what relative paths are relative to.

    Raises:
        UsageError: a word cannot be.
        EnvironmentProblem: input, or a recipe, is missing; output cannot be written.
    """
    from kiln import targets

    input_word, workspace_word, output_word, version, targets_word = words
    workspace, the_input = check_workspace(workspace_word, cwd), check_input(input_word, cwd)
    if workspace is None:
        raise UsageError("the word tmpfs is for build.sh; `kiln build` takes a folder as its workspace")
    return Options(
        source=source,
        input=the_input,
        workspace=workspace,
        output=check_output(output_word, cwd),
        version=check_version(version),
        targets=targets.parse(targets_word),
        profile=variables.profile,
        selection=variables.selection,
        jobs=variables.jobs,
        job_timeout=variables.job_timeout,
        no_image=variables.no_image,
        clean=variables.clean,
        ptx=variables.ptx,
        store=check_store(variables.store, cwd) if variables.store else workspace / "store",
        recipes=tuple(check_recipe(word, cwd) for word in variables.recipes),
        log_json=variables.log_json,
        commit=commit,
        dirty=dirty,
        patches=patches,
        triton=variables.triton,
        site=site,
        target_sites=target_sites,
        cache=the_input / "cache",
    )


def unknown_variables(environment: Iterable[str]) -> list[str]:
    """A warning for each KILN_* variable that nothing reads, with the nearest that something does."""
    warnings = []
    for name in sorted(environment):
        if name.startswith("KILN_") and name not in VARIABLES:
            nearest = difflib.get_close_matches(name, VARIABLES, 1, 0)[0]
            warnings.append(f"{name} is set, but nothing reads it; did you mean {nearest}?")
    return warnings


def _one_of(environment: Mapping[str, str], name: str, allowed: Sequence[str]) -> str:
    """The value of a variable of which the first allowed value is the default."""
    value = environment.get(name) or allowed[0]
    if value not in allowed:
        raise UsageError(f"{name}={value} is unknown; right are {', '.join(allowed)}")
    return value


def _flag(environment: Mapping[str, str], name: str) -> bool:
    value = environment.get(name, "")
    if value.lower() in ("", *_NO):
        return False
    if value.lower() in _YES:
        return True
    raise UsageError(f"{name}={value} is neither yes nor no; right are {', '.join(_YES)} and {', '.join(_NO)}")


def _made_absolute(build: BuildVariables, cwd: Path) -> BuildVariables:
    """With absolute paths, each of which can be what it is for."""
    log = build.log_json
    if ":" in str(cwd) and any(not os.path.isabs(word) for word in build.recipes):
        raise UsageError(f"KILN_RECIPES is read in {cwd}, and ':' stands between recipes; start from another folder")
    if log and log.isdecimal():
        try:
            os.fstat(int(log))
        except (OSError, OverflowError):
            raise EnvironmentProblem(
                f"KILN_LOG_JSON={log} is no open descriptor; give a file, or open it: {log}>progress.jsonl"
            )
    return replace(
        build,
        store=str(check_store(build.store, cwd)) if build.store else None,
        recipes=tuple(str(check_recipe(word, cwd)) for word in build.recipes),
        log_json=str(absolute(log, cwd)) if log and not log.isdecimal() else log,
    )


def _number(environment: Mapping[str, str], name: str, kind: Callable[[str], T], right: str) -> T | None:
    text = environment.get(name, "").strip()
    if not text:
        return None
    try:
        value = kind(text)
    except ValueError:
        value = 0
    if not 0 < value < 1e9:
        raise UsageError(f"{name}={text} cannot be; right is {right}")
    return value
