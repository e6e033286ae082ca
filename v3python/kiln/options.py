"""Arguments and environment become one frozen `Options`; nothing below this module reads the environment.

Only the standard library is imported at the top: build.sh's first step, before any package is installed, uses the
checks of this module to refuse bad input at once.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from kiln.errors import EnvironmentProblem, UsageError

if TYPE_CHECKING:
    from kiln.targets import Target

T = TypeVar("T")
Selection = tuple[tuple[str, tuple[str, ...]], ...]

# Every variable that Kiln reads, with its meaning: for --help, for the warning about others, for Technical.md.
VARIABLES: Mapping[str, str] = {
    "KILN_PROFILE": "core (default) or full: how many configurations",
    "KILN_SELECT": "only these functionals: 'dtype=bf16;head_dim=64,128'",
    "KILN_JOBS": "how many compile at once; default: what cores and memory allow",
    "KILN_TIMEOUT": "seconds that one compile may take; default 300",
    "KILN_NOIMAGE": "1: library, tables and headers only",
    "KILN_CLEAN": "1: begin with an empty workspace",
    "KILN_PTX": "1: PTX beside each NVIDIA image",
    "KILN_STORE": "the folder of compiled images; default <workspace>/store",
    "KILN_RECIPES": "more recipe files, separated by ':'",
    "KILN_LOG_JSON": "a file, or an open descriptor's number, for progress as JSON lines",
    "KILN_TRITON": "wheel (default) or source: build Triton from the archive in <input>",
    "KILN_SOURCE": "tag (default: a git tag named <version> is built if there is one) or tree: the working tree",
    "KILN_ENGINE": "auto (default), docker, podman, buildah or none: where to build",
    "KILN_BASE_IMAGE": "the container's base, instead of the pinned manylinux_2_28",
    "KILN_SHELL": "1: a shell in the devel container instead of a build",
    "KILN_CA_BUNDLE": "a file of certificates for sites that inspect TLS",
    "KILN_PYTHON": "the Python (3.10 or later) to build with; default: the first that fits",
    "AMDGPU_INSTALLER": "address of an amdgpu-install package: adds that ROCm to the container",
    "LOCAL_USER": "1: the container runs as the calling user",
    # Read by the runtime and by the tests, named here so that they are no unknown variables.
    "KILN_PACK_PATH": "where libkiln.so looks for packs",
    "KILN_TEST_VENV": "where test.sh keeps its packages",
    "KILN_TEST_LINT": "0: test.sh without linters",
    "KILN_TEST_TORCH": "1: test.sh installs PyTorch too",
}

# Not for users: the caller's name of the output folder, which a container sees under another.
SHOWN_OUTPUT = "_KILN_SHOWN_OUTPUT"

ENGINES = ("auto", "docker", "podman", "buildah", "none")
PROFILES = ("core", "full")
_VERSION = re.compile(r"[0-9]+\.[0-9]+(\.[0-9]+)?([a-z]+[0-9]*)?")
_WORKSPACES = "a folder, or the word tmpfs"


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
class FrontDoor:
    """What build.sh itself decides by, before and around the build. Paths are absolute.

    Attributes:
        workspace: None: a fresh folder on a memory file system.
        targets: as they were written.
        source: "tag" or "tree".
        engine: one of ENGINES.
        base_image, ca_bundle, amdgpu_installer: None: not asked for.
        shell: open a shell in the devel container instead of building.
        local_user: run the container as the calling user.
    """

    input: Path
    workspace: Path | None
    output: Path
    version: str
    targets: str
    source: str
    engine: str
    base_image: str | None
    ca_bundle: Path | None
    amdgpu_installer: str | None
    shell: bool
    local_user: bool
    clean: bool
    triton: str


def read_front_door(words: Sequence[str], environment: Mapping[str, str], cwd: Path) -> FrontDoor:
    """The five words of build.sh and its variables, checked as far as that goes without any package.

    Raises:
        UsageError: a word or a variable that cannot be.
        EnvironmentProblem: the input or the certificates are not there; the output cannot be written.
    """
    input_word, workspace_word, output_word, version, targets = words
    if not targets.strip():
        raise UsageError("the fifth argument names no target; give for example 'MI300X;sm_90', or all")
    read_build_variables(environment)
    ca_bundle = environment.get("KILN_CA_BUNDLE") or None
    if ca_bundle and not (cwd / ca_bundle).is_file():
        raise EnvironmentProblem(f"KILN_CA_BUNDLE={ca_bundle} is not a file; give a PEM file of certificates")
    return FrontDoor(
        input=check_input(input_word, cwd),
        workspace=None if check_workspace(workspace_word) == "tmpfs" else absolute(workspace_word, cwd),
        output=check_output(output_word, cwd),
        version=check_version(version),
        targets=targets,
        source=_one_of(environment, "KILN_SOURCE", ("tag", "tree")),
        engine=_one_of(environment, "KILN_ENGINE", ENGINES),
        base_image=environment.get("KILN_BASE_IMAGE") or None,
        ca_bundle=absolute(ca_bundle, cwd) if ca_bundle else None,
        amdgpu_installer=environment.get("AMDGPU_INSTALLER") or None,
        shell=_flag(environment, "KILN_SHELL"),
        local_user=_flag(environment, "LOCAL_USER"),
        clean=_flag(environment, "KILN_CLEAN"),
        triton=_one_of(environment, "KILN_TRITON", ("wheel", "source")),
    )


@dataclass(frozen=True)
class BuildVariables:
    """What the environment says of a build; `Options` explains the fields."""

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


def read_build_variables(environment: Mapping[str, str]) -> BuildVariables:
    """The variables that `kiln build` and `kiln plan` obey.

    Raises:
        UsageError: a value that cannot be; names the variable, the value, and what would be right.
    """
    return BuildVariables(
        profile=_one_of(environment, "KILN_PROFILE", PROFILES),
        selection=parse_selection(environment.get("KILN_SELECT", "")),
        jobs=_number(environment, "KILN_JOBS", int, "a whole number from 1 on"),
        job_timeout=_number(environment, "KILN_TIMEOUT", float, "seconds, more than 0") or 300.0,
        no_image=_flag(environment, "KILN_NOIMAGE"),
        clean=_flag(environment, "KILN_CLEAN"),
        ptx=_flag(environment, "KILN_PTX"),
        store=environment.get("KILN_STORE") or None,
        recipes=tuple(word for word in environment.get("KILN_RECIPES", "").split(":") if word),
        log_json=environment.get("KILN_LOG_JSON") or None,
        triton=_one_of(environment, "KILN_TRITON", ("wheel", "source")),
    )


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
    if check_workspace(workspace_word) == "tmpfs":
        raise UsageError("the word tmpfs is for build.sh; `kiln build` takes a folder as its workspace")
    workspace, the_input = absolute(workspace_word, cwd), check_input(input_word, cwd)
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
        store=absolute(variables.store, cwd) if variables.store else workspace / "store",
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


# ---- words -----------------------------------------------------------------------------------------------------------


def absolute(word: str | Path, cwd: Path) -> Path:
    """`word` as an absolute path without '..'; symbolic links stay as they are named."""
    return Path(os.path.normpath(cwd / word))


def check_version(version: str) -> str:
    """Returns `version`.

    Raises:
        UsageError: it is not X.Y or X.Y.Z with an optional suffix of small letters and digits.
    """
    if not _VERSION.fullmatch(version):
        raise UsageError(
            f"version {version!r} is not X.Y or X.Y.Z with an optional suffix; right are 0.1.0b, 1.2, 1.2.0rc1"
        )
    return version


def check_workspace(word: str) -> str:
    """Returns `word`.

    Raises:
        UsageError: it is empty, or names a file.
    """
    if not word:
        raise UsageError(f"the workspace is empty; give {_WORKSPACES}")
    return word


def check_input(word: str, cwd: Path) -> Path:
    """The absolute input folder.

    Raises:
        UsageError: the word is empty.
        EnvironmentProblem: no such folder, or no lock in it.
    """
    if not word:
        raise UsageError("the input is empty; give the folder input/ of the source tree, or a copy of it")
    path = absolute(word, cwd)
    if not path.is_dir():
        raise EnvironmentProblem(f"input {path} is not a folder; give input/ of the source tree, or a copy of it")
    if not (path / "toolchain.lock.yaml").is_file():
        raise EnvironmentProblem(
            f"input {path} has no toolchain.lock.yaml; give input/ of the source tree, or a copy of it"
        )
    return path


def check_output(word: str, cwd: Path) -> Path:
    """The absolute output folder, made if it is not there.

    Raises:
        UsageError: the word is empty.
        EnvironmentProblem: it cannot be made or written to.
    """
    if not word:
        raise UsageError("the output is empty; give the folder that the tarball shall be put into")
    path = absolute(word, cwd)
    probe = path / f".kiln-{os.getpid()}"
    try:
        path.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise EnvironmentProblem(
            f"output {path} cannot be written ({error.strerror}); give a folder that you may write to"
        )
    return path


def check_recipe(word: str, cwd: Path) -> Path:
    """The absolute path of an extra recipe.

    Raises:
        EnvironmentProblem: there is no such file.
    """
    path = absolute(word, cwd)
    if not path.is_file():
        raise EnvironmentProblem(f"KILN_RECIPES names {word}, which is not a file; give paths of recipe.yaml files")
    return path


def parse_selection(text: str, source: str = "KILN_SELECT") -> Selection:
    """'dtype=bf16;head_dim=64,128' as (("dtype", ("bf16",)), ("head_dim", ("64", "128"))).

    Which choices and values exist is the plan's to know. `source`: what the errors call it.

    Raises:
        UsageError: it is not of that form, or names a choice twice.
    """
    selection: dict[str, tuple[str, ...]] = {}
    for part in filter(None, (part.strip() for part in text.split(";"))):
        name, equals, values = (word.strip() for word in part.partition("="))
        split = tuple(value.strip() for value in values.split(","))
        if not (name and equals and all(split)):
            raise UsageError(f"{source}: {part!r} is not choice=value,value; right is 'dtype=bf16;head_dim=64,128'")
        if name in selection:
            raise UsageError(f"{source} names {name!r} twice; give all its values at once: {name}=first,second")
        selection[name] = tuple(dict.fromkeys(split))
    return tuple(selection.items())


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
    if value.lower() in ("", "0", "no", "false", "off"):
        return False
    if value.lower() in ("1", "yes", "true", "on"):
        return True
    raise UsageError(f"{name}={value} is neither yes nor no; right are 1 and 0")


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
