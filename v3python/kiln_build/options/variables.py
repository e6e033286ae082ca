"""Every environment variable that Kiln reads: its name, the field that it becomes, how it is read and spelled, and its
meaning for --help, docs/reference.md and the warning about others.

Standard library only. Which folders and files they name is looked at by `options.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kiln_recipe.errors import UsageError
from kiln_recipe.selection import CONFIGURATIONS, PROFILES, parse_selection, spell_selection

CONTAINER_ENGINES = ("docker", "podman", "buildah")
ENGINES = ("auto", *CONTAINER_ENGINES, "none")
_YES = ("1", "yes", "true", "on")
_NO = ("0", "no", "false", "off")
NAMED = "KILN_RECIPES"  # in KILN_FAMILIES: the families of the recipes that KILN_RECIPES names

if TYPE_CHECKING:
    from kiln_recipe.selection import Selection

    # Python 3.8 has no such expressions.
    Reader = Callable[[str, str], Any]  # a variable's name and its text, "" if it is unset, become the field's value


@dataclass(frozen=True)
class Variable:
    """One variable.

    Attributes:
        field: of the dataclass that its group becomes.
        read: may raise UsageError, which names the variable, its text, and what would be right.
        spell: the text that `read` takes for a value; never asked for what an unset variable gives.
    """

    name: str
    field: str
    read: Reader
    meaning: str
    spell: Callable[[Any], str] = str


def one_of(*allowed: str) -> Reader:
    """One of some words, the first of which is the default."""

    def read(name: str, text: str) -> str:
        value = text or allowed[0]
        if value not in allowed:
            raise UsageError(f"{name}={value} is unknown; expected one of {', '.join(allowed)}")
        return value

    return read


def number(kind: type[int | float], what: str, most: int, default: float | None = None) -> Reader:
    """A number above 0 and not above `most`."""

    def read(name: str, text: str) -> float | None:
        if not text.strip():
            return default
        try:
            value = kind(text) if text.isascii() else 0
        except ValueError:
            value = 0
        if not 0 < value <= most:
            raise UsageError(f"{name}={text.strip()} is invalid; expected {what} to {most}")
        return value

    return read


def _flag(name: str, text: str) -> bool:
    if text.lower() in ("", *_NO):
        return False
    if text.lower() in _YES:
        return True
    raise UsageError(f"{name}={text} is neither yes nor no; expected one of {', '.join((*_YES, *_NO))}")


def _text(_name: str, text: str) -> str | None:
    return text or None


def _path(_name: str, text: str) -> Path | None:
    return Path(text) if text else None


def _address(name: str, text: str) -> str | None:
    if text and not re.fullmatch(r"[A-Za-z][A-Za-z0-9+.-]*:[!-~]{1,1000}", text):
        raise UsageError(f"{name}={text} is not an address; expected for example https://ci.example.org/kiln/release")
    return text or None


def scheduler_address(name: str, text: str) -> str | None:
    """The address of a Dask scheduler, or None for "".

    Raises:
        UsageError: it is none.
    """
    found = re.fullmatch(r"(tcp|tls)://([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):([0-9]{1,5})", text)
    if text and not (found and 0 < int(found[3]) < 65536):
        raise UsageError(f"{name}={text} is not a scheduler's address; expected for example tcp://host:8786")
    return text or None


def _recipes(name: str, text: str) -> tuple[str, ...]:
    if text and not text.strip(":"):
        raise UsageError(f"{name}={text} names no recipe; give paths of recipe.yaml files, with ':' between")
    return tuple(word for word in text.split(":") if word)


def read_families(name: str, text: str) -> tuple[str, ...]:
    """The names of families in a text; none of an empty one.

    Raises:
        UsageError: a word is no such name.
    """
    words = re.split(r"[;,\s]+", text.strip(";, \t\n"))
    for word in words if text.strip() else ():
        if not re.fullmatch("[a-z][a-z0-9_]*", word) and word != NAMED:
            raise UsageError(
                f"{name}={text} is invalid: {word!r} is not the name of a family; expected for example norm,silu"
                + (f", or {NAMED} for the families of the recipes that {NAMED} names" if name[0] == "K" else "")
            )
    return tuple(sorted({*words} - {""}))


def _paths(name: str, text: str) -> tuple[str, ...]:
    if text and not text.strip(":"):
        raise UsageError(f"{name}={text} names no file; give paths, with ':' between")
    return tuple(word for word in text.split(":") if word)


def _one(_value: object) -> str:
    return "1"


MOST_SHARDS = 100_000


@dataclass(frozen=True)
class Shard:
    """The `index`-th, from 1, of `count` parts of a plan."""

    index: int
    count: int

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"


def read_shard(name: str, text: str) -> Shard | None:
    """The shard that a text like "3/100" names; None of an empty one."""
    if not text.strip():
        return None
    found = re.fullmatch(r"([0-9]{1,6})/([0-9]{1,6})", text.strip())
    shard = Shard(int(found[1]), int(found[2])) if found else Shard(0, 0)
    if not 1 <= shard.index <= shard.count <= MOST_SHARDS:
        raise UsageError(
            f"{name}={text.strip()} is no shard; expected its number, from 1, and how many there are: for example 3/100"
        )
    return shard


_SECONDS = number(float, "a number of seconds above 0 and up", 1_000_000, 300.0)


@dataclass(frozen=True)
class BuildVariables:
    """What the environment says of a build. Paths are as they were written, until `make_absolute`.

    Attributes:
        profile: "core" or "full".
        configurations: "chosen" or "all".
        selection: (name, values) to restrict families, operations and functionals to; empty: all.
        jobs: compiles at once; None: as many as cores and memory allow.
        job_timeout: seconds.
        no_image: library, tables and headers only.
        clean: begin with an empty workspace.
        ptx: pack PTX beside each NVIDIA image.
        replace: take the place of another build's release of the same name.
        costs: say where the time of processors went, and write it beside the tarball.
        store: the image store, a folder or an address, which may be shared; None: the workspace's.
        recipes: recipe files over and above the tree's own.
        families: names of those to build, or NAMED; empty: all.
        log_json: as progress.make_progress takes it.
        triton: "wheel" or "source".
        builder: the address that the provenance names as the builder; None: nobody in particular.
        scheduler: the address of the Dask scheduler whose workers compile; None: this machine does.
        scheduler_tls: the folder of its certificates.
        shard: which part of the plan to compile, and no more than that; None: build a release.
        from_store: compile nothing.
        shards: how many have filled the store, so that what is missing can be told by shard; None: that is not known.
        durations: a file of records, by which the plan is divided; None: it is divided by estimates.
        cache: the address of a cache behind the store, or None.
        cache_mode: "read-write" or "read-only".
        cache_token, cache_login: where a bearer token, or "user:password", is kept: a file, or "env:NAME".
        cache_certificate: a PEM file with a client's certificate and its key.
        cache_authorities: a PEM file of certificates to believe in place of the system's.
        cache_key, cache_password: where the key that signs entries, and its password, are kept.
        cache_trust: files of public keys, by one of which, or by `cache_key`, entries must be signed; with neither, any
            entry will do.
    """

    profile: str
    configurations: str
    selection: Selection
    jobs: int | None
    job_timeout: float
    no_image: bool
    clean: bool
    ptx: bool
    replace: bool
    costs: bool
    store: str | None
    recipes: tuple[str, ...]
    families: tuple[str, ...]
    log_json: str | None
    triton: str
    builder: str | None
    scheduler: str | None
    scheduler_tls: str | None
    shard: Shard | None
    from_store: bool
    shards: int | None
    durations: str | None
    cache: str | None
    cache_mode: str
    cache_token: str | None
    cache_login: str | None
    cache_certificate: str | None
    cache_authorities: str | None
    cache_key: str | None
    cache_password: str | None
    cache_trust: tuple[str, ...]


_WHERE = "a file, or env:NAME for another variable that has it"  # where a secret is kept

# fmt: off
# What `kiln build` and `kiln plan` obey: the fields of BuildVariables.
BUILD = (
    Variable("KILN_PROFILE", "profile", one_of(*PROFILES),
             "core (default) or full: which dtypes, head dimensions ... are compiled, and how many configurations"),
    Variable("KILN_CONFIGURATIONS", "configurations", one_of(*CONFIGURATIONS),
             "chosen (default) or all: also compile configurations that no call takes, for kiln tune to choose from"),
    Variable("KILN_SELECT", "selection", lambda name, text: parse_selection(text, name),
             "compile only these: 'family=flash;operation=attn_fwd;dtype=bf16'", spell_selection),
    Variable("KILN_JOBS", "jobs", number(int, "a whole number from 1", 10_000),
             "number of parallel compiles; default: what cores and memory allow"),
    Variable("KILN_TIMEOUT", "job_timeout", _SECONDS, "limit of one compile in seconds; default 300"),
    Variable("KILN_NOIMAGE", "no_image", _flag, "1: library, tables and headers only", _one),
    Variable("KILN_CLEAN", "clean", _flag, "1: start with an empty workspace", _one),
    Variable("KILN_PTX", "ptx", _flag, "1: add PTX to each NVIDIA image", _one),
    Variable("KILN_REPLACE", "replace", _flag, "1: replace another build's release of the same name in <output>", _one),
    Variable("KILN_COSTS", "costs", _flag, "1: say where processors' time went, by stage and kernel", _one),
    Variable("KILN_STORE", "store", _text, "the folder for compiled images; default <workspace>/store"),
    Variable("KILN_RECIPES", "recipes", _recipes, "more recipe files, separated by ':'", ":".join),
    Variable("KILN_FAMILIES", "families", read_families,
             "build only these families: 'norm,silu'; KILN_RECIPES: those of the recipes named there", ",".join),
    Variable("KILN_LOG_JSON", "log_json", _text, "a file, or an open descriptor's number, for progress as JSON lines"),
    Variable("KILN_TRITON", "triton", one_of("wheel", "source"),
             "wheel (default) or source: build Triton from the archive in <input>"),
    Variable("KILN_SCHEDULER", "scheduler", scheduler_address,
             "have the workers of a Dask cluster compile: its scheduler's address, 'tcp://host:8786' or 'tls://...'"),
    Variable("KILN_SCHEDULER_TLS", "scheduler_tls", _text,
             "the folder with ca.pem, cert.pem and key.pem for a tls:// scheduler; default: as Dask is configured"),
    Variable("KILN_SHARD", "shard", read_shard,
             "3/100: compile the third of a hundred parts of the plan into the store, and make no release"),
    Variable("KILN_FROM_STORE", "from_store", _flag, "1: compile nothing; every image must be in the store", _one),
    Variable("KILN_SHARDS", "shards", number(int, "a whole number from 1", MOST_SHARDS),
             "with KILN_FROM_STORE: how many shards there were, to name the one that lacks an image"),
    Variable("KILN_DURATIONS", "durations", _text,
             "a copy of a store's file durations, the same for all shards: divides the plan by what variants took"),
    Variable("KILN_CACHE", "cache", _text, "a cache behind the store, which a team shares: http://host:8080/kiln"),
    Variable("KILN_CACHE_MODE", "cache_mode", one_of("read-write", "read-only"),
             "read-write (default) or read-only: whether compiled images go to the cache"),
    Variable("KILN_CACHE_TOKEN", "cache_token", _text, f"the cache's bearer token: {_WHERE}"),
    Variable("KILN_CACHE_LOGIN", "cache_login", _text, f"user:password for the cache: {_WHERE}"),
    Variable("KILN_CACHE_CERTIFICATE", "cache_certificate", _text,
             "a PEM file with a client certificate and its key, for the cache"),
    Variable("KILN_CACHE_CA", "cache_authorities", _text,
             "a PEM file of certificates to believe of the cache, in place of the system's"),
    Variable("KILN_CACHE_KEY", "cache_key", _text, f"minisign's secret key, which signs what goes to it: {_WHERE}"),
    Variable("KILN_CACHE_PASSWORD", "cache_password", _text, f"the password of that key: {_WHERE}"),
    Variable("KILN_CACHE_TRUST", "cache_trust", _paths,
             "minisign's public keys, with ':' between: what came from the cache must be signed by one", ":".join),
    Variable("KILN_BUILDER", "builder", _address, "who builds, for the provenance: an address, as SLSA's builder.id"),
)

# What build.sh alone obeys: options.FrontDoor.
DOOR = (
    Variable("KILN_SOURCE", "source", one_of("tag", "tree"),
             "tag (default: a git tag named <version> is built if there is one) or tree: the working tree"),
    Variable("KILN_ENGINE", "engine", one_of(*ENGINES),
             "auto (default), docker, podman, buildah or none: where to build"),
    Variable("KILN_BASE_IMAGE", "base_image", _text, "the container's base, instead of the pinned manylinux_2_28"),
    Variable("KILN_SHELL", "shell", _flag, "1: a shell in the devel container instead of a build", _one),
    Variable("KILN_CA_BUNDLE", "ca_bundle", _path, "a file of certificates for sites that inspect TLS"),
    Variable("KILN_PYTHON", "python", _text, "the Python (3.10 or later) to build with; default: the first that fits"),
    Variable("AMDGPU_INSTALLER", "amdgpu_installer", _text,
             "address of an amdgpu-install package: adds that ROCm to the container"),
    Variable("LOCAL_USER", "local_user", _flag, "1: the container runs as the calling user", _one),
)

# Not for users: fields of FrontDoor that one build.sh tells another.
INTERNAL = (
    Variable("_KILN_HELD_WORKSPACE", "held", _path, ""),
    Variable("_KILN_SHOWN_OUTPUT", "shown_output", _path, ""),
)

VARIABLES: Mapping[str, str] = {
    **{variable.name: variable.meaning for variable in (*BUILD, *DOOR)},
    "KILN_WORKSPACE": "the folder for ./kiln's own packages: a new one, or a build's workspace; default .kiln",
    # Read by the runtime and by the tests, named here so that they are no unknown variables.
    "KILN_PACK_PATH": "where libkiln.so looks for packs",
    "KILN_TEST_VENV": "where test.sh keeps its packages",
    "KILN_TEST_LINT": "0: test.sh without linters",
    "KILN_TEST_TORCH": "1: test.sh installs PyTorch and Transformers too",
    "KILN_TEST_PROCESSES": "number of processes that test.sh uses; default: one per core, or 1 if arguments are given",
    "KILN_TEST_TRITON": "all: test kiln.jit with every version of Triton in tests/triton.lock",
    "KILN_TEST_MINUTES": "minutes after which test.sh starts no more slow tests; it lists those that it left out",
    "KILN_TEST_SLOW": "1: test.sh runs those tests too that are too slow for every change, as --slow says",
    "KILN_TEST_UNTIL": "the same as a time, in seconds since 1970; set by test.sh",
    "KILN_TEST_ARCHITECTURES": "all: test every architecture of Transformers, not only some",
    "KILN_TEST_RELEASE": "folder where the tests keep the small release for the next run",
    "KILN_TEST_BUILT": "folder with the runtime's libraries for tests/runtime, built with sanitizers for example",
    "KILN_TEST_AOTRITON": "folder with AOTriton's own headers, 0.13b/include for example; for test.sh --slow",
    "KILN_TEST_CALLS": "number of random calls of each entry in tests/recorder",
    "KILN_TEST_FUZZ": "number of cases of tests/test_fuzz_readers.py",
    "KILN_TEST_REQUIRED": "names: a test that is skipped because one is missing counts as failed; 1: all but a GPU",
}
# fmt: on


def read(
    variables: Sequence[Variable], environment: Mapping[str, str], called: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """The values by field.

    Args:
        called: by the name of a variable the option by which the user gave it, "--cache".

    Raises:
        UsageError: a text that cannot be.
    """
    names = called or {}
    return {one.field: one.read(names.get(one.name, one.name), environment.get(one.name, "")) for one in variables}


def spell(variables: Sequence[Variable], values: object) -> dict[str, str]:
    """The environment that `read` gives the fields of `values` for; what is unset stays so."""
    found = ((one, getattr(values, one.field)) for one in variables)
    return {one.name: one.spell(value) for one, value in found if value}
