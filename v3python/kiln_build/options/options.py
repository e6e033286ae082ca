"""Arguments and environment become frozen values: `FrontDoor`, `BuildVariables`, `Options`.

Every KILN_* variable that Kiln's Python obeys is read, checked and spelled here, by the rows of `variables.py`; nothing
below reads one. Only the standard library is imported at the top: build.sh's first step runs before any package is
installed.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from kiln_build.options import variables
from kiln_build.options.variables import BUILD, DOOR, INTERNAL, NAMED, VARIABLES, BuildVariables
from kiln_build.options.words import (
    absolute,
    check_cache,
    check_file,
    check_input,
    check_log,
    check_output,
    check_recipe,
    check_secret,
    check_store,
    check_version,
    check_workspace,
)
from kiln_recipe.console.spelling import say
from kiln_recipe.errors import EnvironmentProblem, UsageError

if TYPE_CHECKING:
    from kiln_recipe.targets import Target


_ALIKE = 0.85  # names of variables that share more than their beginning


@dataclass(frozen=True)
class Options:
    """All that a build was asked for. Paths are absolute, those of `build` included.

    Attributes:
        source: root of the source tree: tritonsrc/, csrc/, include/, tuning/.
        input: the folder of the toolchain's lock and the download cache.
        workspace: all temporary and kept files: venv/ store/ zig/ triton/ logs/ build/.
        output: where the tarball goes.
        version: "0.1.0b".
        targets: in the order of targets.yaml.
        build: what the environment says.
        commit: of the source, 40 digits, or "unknown".
        dirty: whether the tree differs from that commit.
        patches: digest of the applied input/patch-<version>/, "" if there is none.
        site: the site-packages that holds the default Triton.
        target_sites: (target, site-packages) for targets that have a Triton of their own.
        shown_output: what `output` is called outside of the container that we are in.
    """

    source: Path
    input: Path
    workspace: Path
    output: Path
    version: str
    targets: tuple[Target, ...]
    build: BuildVariables
    commit: str
    dirty: bool
    patches: str
    site: Path
    target_sites: tuple[tuple[str, Path], ...]
    shown_output: Path | None = None

    def outside(self, path: Path) -> Path:
        """What a file of the output folder is called outside of the container, for users."""
        return self.shown_output / path.name if self.shown_output else path

    @property
    def store(self) -> str:
        """The image store: a folder, or an address."""
        return self.build.store or str(self.workspace / "store")

    @property
    def cache(self) -> Path:
        """The folder of the locked downloads."""
        return self.input / "cache"

    def site_of(self, target: str) -> Path:
        """The site-packages of the Triton that compiles for `target`."""
        return dict(self.target_sites).get(target, self.site)


@dataclass(frozen=True)
class FrontDoor:
    """What build.sh was asked for. Paths are absolute, those of `build` included.

    Attributes:
        workspace: None: a fresh folder on a memory file system.
        targets: as they were written.
        build: what the build itself obeys.
        source: "tag" or "tree".
        engine: one of variables.ENGINES.
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
    def place(self) -> Path:
        """The workspace, once it is held: the one in memory is made before anything is put into it."""
        if self.workspace is None:
            raise ValueError("no workspace has been made yet")
        return self.workspace

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
    build = read_build_variables(environment)
    if ":" in str(cwd) and any(not os.path.isabs(word) for word in build.recipes):
        raise UsageError(f"KILN_RECIPES is read in {cwd}, and ':' stands between recipes; start from another folder")
    more = variables.read((*DOOR, *INTERNAL), environment)
    if more["python"] and "/" in more["python"]:
        more["python"] = str(absolute(more["python"], cwd))
    more["ca_bundle"] = read_ca_bundle(environment, cwd)
    workspace = check_workspace(workspace_word, cwd)
    folder = check_input(input_word, cwd)
    door = FrontDoor(
        input=folder,
        workspace=workspace,
        output=check_output(output_word, cwd, workspace, folder),
        version=check_version(version),
        targets=targets,
        build=make_absolute(build, cwd),
        **more,
    )
    if door.engine == "none" and door.only_in_a_container:
        names = " and ".join(door.only_in_a_container)
        need = "needs" if len(door.only_in_a_container) == 1 else "need"
        raise UsageError(f"KILN_ENGINE=none builds without a container, but {names} {need} one; unset either")
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


def read_workspace(environment: Mapping[str, str], cwd: Path, usual: Path) -> Path:
    """The workspace of `./kiln` itself: that of KILN_WORKSPACE, or the usual one.

    Raises:
        UsageError: it is the word that means memory.
        EnvironmentProblem: it is not a folder.
    """
    word = environment.get("KILN_WORKSPACE")
    if not word:
        return usual
    path = check_workspace(word, cwd)
    if path is None:
        raise UsageError("KILN_WORKSPACE=tmpfs is for build.sh alone; give a folder, or a name that does not exist yet")
    return path


def read_build_variables(environment: Mapping[str, str], called: Mapping[str, str] | None = None) -> BuildVariables:
    """The variables that `kiln build` and `kiln plan` obey.

    Args:
        called: as `variables.read` takes it.

    Raises:
        UsageError: a value that cannot be; names the variable, the value, and what would be right.
    """
    build = BuildVariables(**variables.read(BUILD, environment, called))
    if NAMED in build.families and not build.recipes:
        raise UsageError(f"KILN_FAMILIES names {NAMED}, which is not set; name recipes there, or give families' names")
    if build.shard and (build.from_store or build.no_image):
        other = "KILN_FROM_STORE (--from-store)" if build.from_store else "KILN_NOIMAGE"
        raise UsageError(f"KILN_SHARD (--shard) compiles a part of the images, and {other} compiles none; give either")
    if build.shards and not build.from_store:
        raise UsageError(
            "KILN_SHARDS (--shards) is for KILN_FROM_STORE=1 (--from-store); a shard is given as KILN_SHARD=3/100 "
            "(--shard 3/100)"
        )
    if build.cache_token and build.cache_login:
        raise UsageError("KILN_CACHE_TOKEN and KILN_CACHE_LOGIN are both set; give the one that the cache asks for")
    if build.cache_password and not build.cache_key:
        raise UsageError("KILN_CACHE_PASSWORD is that of a key; give the key by KILN_CACHE_KEY, or leave it out")
    if build.durations and not (build.shard or build.shards):
        raise UsageError(
            "KILN_DURATIONS (--durations) divides a plan among shards; give KILN_SHARD (--shard) or KILN_SHARDS "
            "(--shards) too, or leave it out"
        )
    return build


def narrow(
    environment: Mapping[str, str], recipes: Sequence[str], families: Sequence[str], cwd: Path
) -> dict[str, str]:
    """`environment` with what --recipe and --family ask for, in place of KILN_RECIPES and KILN_FAMILIES.

    Raises:
        UsageError: a path has a ':', which stands between the paths of KILN_RECIPES; or a family's name cannot be one.
        EnvironmentProblem: a recipe is not there.
    """
    asked = dict(environment)
    paths = [str(check_recipe(word, cwd, "--recipe")) for word in recipes]
    for word in families:
        variables.read_families("--family", word)
    if wrong := next((path for path in paths if ":" in path), None):
        raise UsageError(f"--recipe {wrong} has a ':' in its path, which stands between recipes; rename the folder")
    if paths:
        asked["KILN_RECIPES"] = ":".join(paths)
    if paths or families:
        asked["KILN_FAMILIES"] = ",".join([*families, *([NAMED] if paths else [])])
    return asked


def spell(door: FrontDoor) -> dict[str, str]:
    """The variables that tell another process the same. What is unset stays unset: others of VARIABLES must go."""
    return variables.spell(BUILD, door.build) | variables.spell((*DOOR, *INTERNAL), door)


def environment_of(door: FrontDoor, environment: Mapping[str, str]) -> dict[str, str]:
    """`environment` with Kiln's variables as `door` has them."""
    ours = {*VARIABLES, *(one.name for one in INTERNAL)}
    kept = {name: value for name, value in environment.items() if name not in ours}
    return {**kept, **spell(door)}


def make_options(
    words: Sequence[str],
    build: BuildVariables,
    source: Path,
    cwd: Path,
    *,
    commit: str = "unknown",
    dirty: bool = False,
    patches: str = "",
    site: Path,
    target_sites: tuple[tuple[str, Path], ...] = (),
    shown_output: Path | None = None,
    called: Mapping[str, str] | None = None,
) -> Options:
    """The options of a build in `workspace`, which must be a folder here: only build.sh knows what tmpfs is.

    Args:
        words: input, workspace, output, version, targets, as build.sh takes them.
        cwd: what relative paths are relative to.
        called: as `variables.read` takes it.

    Raises:
        UsageError: a word cannot be.
        EnvironmentProblem: input, or a recipe, is missing; output cannot be written.
    """
    from kiln_recipe import targets

    input_word, workspace_word, output_word, version, targets_word = words
    workspace = check_workspace(workspace_word, cwd)
    if workspace is None:
        raise UsageError("the word tmpfs is for build.sh; `kiln build` takes a folder as its workspace")
    folder = check_input(input_word, cwd)
    return Options(
        source=source,
        input=folder,
        workspace=workspace,
        output=check_output(output_word, cwd, workspace, folder),
        version=check_version(version),
        targets=targets.parse(targets_word),
        build=make_absolute(build, cwd, called),
        commit=commit,
        dirty=dirty,
        patches=patches,
        site=site,
        target_sites=target_sites,
        shown_output=shown_output,
    )


def check_variables(environment: Iterable[str]) -> list[str]:
    """A warning for each KILN_* variable that nothing reads.

    Raises:
        UsageError: one is spelled nearly as one that is read: it would be ignored, and was meant.
    """
    warnings = []
    for name in sorted(environment):
        if name.startswith("KILN_") and name not in VARIABLES:
            if near := difflib.get_close_matches(name, VARIABLES, 1, _ALIKE):
                raise UsageError(f"{name} is set, but nothing reads it; did you mean {near[0]}? If not, unset it")
            warnings.append(f"{name} is set, but nothing reads it; `bash build.sh --help` lists what is read")
    return warnings


def check_environment() -> None:
    """Judges all variables of this process's environment, for a command that reads any of them: a text that can never
    be right is refused even by one that makes no use of it. Warnings go to standard error.

    Raises:
        UsageError: as `check_variables` does; or for a text that cannot be.
    """
    for warning in check_variables(os.environ):
        say(f"warning: {warning}")
    variables.read((*BUILD, *DOOR), os.environ)


def make_absolute(build: BuildVariables, cwd: Path, called: Mapping[str, str] | None = None) -> BuildVariables:
    """With absolute paths, each of which can be what it is for.

    Args:
        called: as `variables.read` takes it.

    Raises:
        EnvironmentProblem: the store or the file of progress cannot be written, a recipe or another file is not
            there, or a descriptor is not open.
        UsageError: the cache's address cannot be.
    """

    def named(name: str) -> str:
        return (called or {}).get(name, name)

    def file(name: str, word: str | None, right: str) -> str | None:
        return str(check_file(word, cwd, named(name), right)) if word else None

    def secret(name: str, word: str | None) -> str | None:
        return check_secret(word, cwd, named(name)) if word else None

    pem, public = "a file in PEM format", "a .pub file that `minisign -G` made"
    return replace(
        build,
        store=check_store(build.store, cwd, named("KILN_STORE")) if build.store else None,
        recipes=tuple(str(check_recipe(word, cwd, named("KILN_RECIPES"))) for word in build.recipes),
        log_json=check_log(build.log_json, cwd, named("KILN_LOG_JSON")) if build.log_json else None,
        scheduler_tls=str(absolute(build.scheduler_tls, cwd)) if build.scheduler_tls else None,
        durations=file("KILN_DURATIONS", build.durations, "a copy of the file durations of a store, or leave it out"),
        cache=check_cache(build.cache, named("KILN_CACHE")) if build.cache else None,
        cache_token=secret("KILN_CACHE_TOKEN", build.cache_token),
        cache_login=secret("KILN_CACHE_LOGIN", build.cache_login),
        cache_certificate=file("KILN_CACHE_CERTIFICATE", build.cache_certificate, pem),
        cache_authorities=file("KILN_CACHE_CA", build.cache_authorities, pem),
        cache_key=secret("KILN_CACHE_KEY", build.cache_key),
        cache_password=secret("KILN_CACHE_PASSWORD", build.cache_password),
        cache_trust=tuple(str(check_file(word, cwd, named("KILN_CACHE_TRUST"), public)) for word in build.cache_trust),
    )
