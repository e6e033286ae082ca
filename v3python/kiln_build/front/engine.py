"""Container engines: which one really works, and a build inside of one.

The container runs the same build.sh, with the engine `none`. It has no network: packages come from input/cache, which
this side fills first for the container's Python. Its workspace is `<workspace>/container`, for the virtual environment
of one Python is of no use to another.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from kiln_build.base import ROOT
from kiln_build.front import cache, source
from kiln_build.options.options import FrontDoor, spell
from kiln_build.options.variables import CONTAINER_ENGINES
from kiln_build.options.words import scheme_of
from kiln_recipe.compile import lock
from kiln_recipe.errors import BuildFailed, EnvironmentProblem, UsageError

DOCKERFILE = "dockerfile/manylinux_2_28.Dockerfile"

_INSIDE = "/kiln"
_PROBE_SECONDS = 30
_PULL_SECONDS = 1800

Say = Callable[[str], None]


@dataclass(frozen=True)
class Engine:
    """A container engine that works here.

    Attributes:
        name: "docker", "podman" or "buildah".
        base: the base image.
        isolation: flags without which it does not run here.
        offline: a command that runs another without a network, where the engine's own flag for that cannot be used.
    """

    name: str
    base: str
    isolation: tuple[str, ...] = ()
    offline: tuple[str, ...] = ()

    def command(self, verb: str, *, network: bool = False) -> list[str]:
        """The beginning of a command line of a verb that runs something: `build` or `run`; `network`: this host's."""
        if network:
            host = ["--network", "host"] if verb == "run" and not self.isolation else []
            return [self.name, verb, *host, *self.isolation]
        if self.isolation:  # buildah's chroot isolation refuses --network, and inherits ours
            return [*self.offline, self.name, verb, *self.isolation]
        return [self.name, verb, "--network", "none"]


def choose(door: FrontDoor, say: Say, probe: Callable[[str, str, bool], Engine | str] | None = None) -> Engine | None:
    """The engine to build in, or None: on the host. Says in one line what `auto` took, and why.

    Args:
        probe: gives an engine that works, or the reason why it does not; for tests.

    Raises:
        EnvironmentProblem: an engine was asked for by name, and does not work; or a shell, and none does.
        UsageError: one was asked for, and a cache, which is not to be had in a container.
    """
    probe = probe or (lambda name, base, patient: probe_engine(name, base, patient, say))
    if door.engine == "none":
        return None
    if door.build.cache:
        why = "KILN_CACHE is out of reach in a container, which has no network"
        if door.engine != "auto" or door.shell:
            raise UsageError(f"{why}; build with KILN_ENGINE=none, or fill the store with `kiln store pull` before")
        say(f"engine: none; building on this host ({why})")
        return None
    base = door.base_image or default_base(ROOT / DOCKERFILE)
    if door.engine != "auto":
        found = probe(door.engine, base, True)
        if isinstance(found, str):
            raise EnvironmentProblem(f"KILN_ENGINE={door.engine} does not work here: {found}")
        say(f"engine: {door.engine}, base {base}")
        return found
    reasons = []
    for name in CONTAINER_ENGINES:
        found = probe(name, base, door.base_image is not None)
        if not isinstance(found, str):
            say(f"engine: {name}, base {base}")
            return found
        reasons.append(f"{name}: {found}")
    if door.shell:
        raise EnvironmentProblem(f"KILN_SHELL=1 needs a container engine, but none works here ({'; '.join(reasons)})")
    say(f"engine: none; building on this host ({'; '.join(reasons)})")
    if door.only_in_a_container:
        say(f"warning: without a container, nothing obeys {' and '.join(door.only_in_a_container)}")
    return None


def default_base(dockerfile: Path) -> str:
    """The base image that the Dockerfile pins."""
    found = re.search(r"^ARG KILN_BASE_IMAGE=(\S+)$", dockerfile.read_text(), re.MULTILINE)
    if found is None:
        raise ValueError(f"{dockerfile} has no line ARG KILN_BASE_IMAGE=...")
    return found[1]


def trouble(name: str) -> str:
    """Why an engine does not answer here, or ""."""
    return _try([name, "info"]) if shutil.which(name) else "not installed"


def has_base(name: str, base: str) -> bool:
    """Whether an engine that answers has the base image; no registry is asked."""
    return not _try([name, *(("inspect", "--type", "image") if name == "buildah" else ("image", "inspect")), base])


def probe_engine(name: str, base: str, patient: bool, say: Say = lambda text: None) -> Engine | str:
    """Tries an engine by running something in the base image.

    Args:
        patient: the engine or its base was asked for: try to fetch the base even if its registry seems out of reach.
        say: told before the base is fetched, which takes long; and if nothing can keep the network from the container.

    Returns:
        The engine, or the reason why it does not work.
    """
    reason = trouble(name)
    if reason:
        return reason
    if not has_base(name, base):
        if not patient and not _reachable(base):
            return "the base image is not here and its registry cannot be reached"
        say(f"engine: {name} fetches the base {base}")
        reason = _try([name, "pull", base], _PULL_SECONDS)
        if reason:
            return f"the base image {base} is not available ({reason}); name another with KILN_BASE_IMAGE"
    if name != "buildah":
        reason = _try([name, "run", "--rm", "--network", "none", base, "true"])
        return reason or Engine(name, base)
    online = _try(["unshare", "--net", "true"])
    offline = () if online else ("unshare", "--net")
    for isolation in ((), ("--isolation", "chroot")):
        container = f"kiln-probe-{_token()}"
        reason = _try([name, "from", *isolation, "--pull-never", "--name", container, base])
        if not reason:
            reason = _try([name, "run", *isolation, container, "--", "true"])
            _try([name, "rm", container])
        if not reason:
            if isolation and online:
                say(f"warning: the container will have a network: {name} works here only in a chroot, and {online}")
            return Engine(name, base, isolation, offline)
    return reason


def build(engine: Engine, door: FrontDoor, root: Path, say: Say) -> int:
    """Makes the devel image and builds in it, or opens a shell in it; returns the exit code inside.

    Raises:
        BuildFailed: the image cannot be made.
        EnvironmentProblem: a path that no engine can mount.
    """
    context = source.copy_tree(root, door.place / "source" / "context", source.describe(root))
    if door.ca_bundle:
        shutil.copyfile(door.ca_bundle, context / "dockerfile" / "ca-bundle.pem")
    say(f"engine: making the image of the stage devel; {engine.name} prints nothing until it fails")
    arguments = {"AMDGPU_INSTALLER": door.amdgpu_installer or ""}
    with image(engine, context, "devel", arguments) as name, _container(engine, name) as container:
        python = _inside_python(engine, container)
        the_lock = lock.read_lock(door.input / lock.LOCK_NAME)
        python = lock.check_python(the_lock, python)
        wants = bool(door.build.scheduler)
        cache.fill(the_lock, python, door.input / "cache", door.ca_bundle, door.build.triton, scheduler=wants)
        inside = door.place / "container"
        inside.mkdir(exist_ok=True)
        mounts, variables = _mounts(door, inside)
        if not door.local_user and _writes_as_root(engine):
            variables["KILN_OWNER"] = f"{os.getuid()}:{os.getgid()}"
        words = [f"{_INSIDE}/input", f"{_INSIDE}/workspace", f"{_INSIDE}/output", door.version, door.targets]
        command = ["bash", f"{_INSIDE}/source/dockerfile/inside.sh", *words]
        if door.shell:
            say(f"engine: a shell; the build is: bash build.sh {' '.join(words[:4])} '{door.targets}'")
            command = ["bash"]
        user = (os.getuid(), os.getgid()) if door.local_user else None
        network = bool(door.build.scheduler)
        line = run_command(engine, container, command, mounts, variables, user, interactive=door.shell, network=network)
        return _run(line)


@contextlib.contextmanager
def image(engine: Engine, context: Path, stage: str, arguments: Mapping[str, str]) -> Iterator[str]:
    """An image of one stage of the Dockerfile, under a name of its own: builds at the same time each have theirs.

    Only an installer of ROCm may use the network.

    Raises:
        BuildFailed: it cannot be built; what the engine printed stands above.
    """
    name = f"localhost/kiln-{stage}:{_token()}"
    try:
        _make_image(engine, context, name, stage, arguments)
        yield name
    finally:
        _try([engine.name, "rmi", name])


def _make_image(engine: Engine, context: Path, name: str, stage: str, arguments: Mapping[str, str]) -> None:
    network = bool(arguments.get("AMDGPU_INSTALLER"))
    command = [*engine.command("build", network=network), "--target", stage, "-t", name]
    for key, value in {"KILN_BASE_IMAGE": engine.base, **arguments}.items():
        command += ["--build-arg", f"{key}={value}"]
    if engine.name != "docker":
        command.append("--pull=never")
    command += ["-f", str(context / DOCKERFILE), str(context)]
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        sys.stderr.write(done.stdout)
        raise BuildFailed(
            f"{engine.name} could not build the stage {stage} of {DOCKERFILE} on {engine.base}, its output is "
            "above. Name another base with KILN_BASE_IMAGE: with glibc 2.28, bash, and CPython 3.10 to 3.14 with venv"
        )


def run_command(
    engine: Engine,
    container: str,
    command: Sequence[str],
    mounts: Sequence[tuple[Path, str, bool]],
    variables: Mapping[str, str],
    user: tuple[int, int] | None,
    *,
    interactive: bool = False,
    network: bool = False,
) -> list[str]:
    """The engine's command line that runs `command`.

    Args:
        container: docker and podman: an image; buildah: a working container.
        mounts: (here, inside, writable).
        variables: environment inside.
        user: user and group, or None: root inside.
        network: whether it reaches what this host does; else it has no network.

    Raises:
        EnvironmentProblem: a path with a comma, which no engine's syntax for mounts can say.
    """
    line = engine.command("run", network=network)
    if engine.name != "buildah":
        line += ["--rm", "--init", "--security-opt", "label=disable", *(["-i"] if interactive else [])]
    if interactive and sys.stdin.isatty():
        line.append("-t")
    if user is not None:
        keep = ["--userns", "keep-id"] if engine.name == "podman" and os.getuid() != 0 else []
        line += [*keep, "--user", f"{user[0]}:{user[1]}"]
    for here, inside, writable in mounts:
        if "," in str(here):
            raise EnvironmentProblem(f"{here} cannot be mounted into a container: give a path without a comma")
        access = "" if writable and engine.name != "buildah" else ",rw" if writable else ",ro"
        line += ["--mount", f"type=bind,src={here},dst={inside}{access}"]
    for key, value in variables.items():
        line += ["--env", f"{key}={value}"]
    return [*line, container, *(["--"] if engine.name == "buildah" else []), *command]


def _mounts(door: FrontDoor, workspace: Path) -> tuple[list[tuple[Path, str, bool]], dict[str, str]]:
    """What the container sees of this host, and the variables that tell the build.sh inside of it what to do there."""
    build = door.build
    door.output.mkdir(parents=True, exist_ok=True)
    mounts = [
        (door.input, f"{_INSIDE}/input", False),
        (workspace, f"{_INSIDE}/workspace", True),
        (door.output, f"{_INSIDE}/output", True),
    ]
    store = log = None
    if build.store and scheme_of(build.store):
        store = build.store
    elif build.store:
        Path(build.store).mkdir(parents=True, exist_ok=True)
        store = f"{_INSIDE}/store"
        mounts.append((Path(build.store), store, True))
    recipes = []
    for number, recipe in enumerate(map(Path, build.recipes)):
        mounts.append((recipe.parent, f"{_INSIDE}/recipes/{number}", False))
        recipes.append(f"{_INSIDE}/recipes/{number}/{recipe.name}")
    if build.durations:
        mounts.append((Path(build.durations).parent, f"{_INSIDE}/durations", False))
        build = replace(build, durations=f"{_INSIDE}/durations/{Path(build.durations).name}")
    if build.log_json and build.log_json.isdecimal():
        raise UsageError(
            f"KILN_LOG_JSON={build.log_json}: a container does not get the caller's descriptors; give a file"
        )
    if build.log_json:
        mounts.append((Path(build.log_json).parent, f"{_INSIDE}/log", True))
        log = f"{_INSIDE}/log/{Path(build.log_json).name}"
    tls = None
    if build.scheduler_tls:
        tls = f"{_INSIDE}/certificates"
        mounts.append((Path(build.scheduler_tls), tls, False))
    inside = replace(
        door,
        build=replace(build, store=store, recipes=tuple(recipes), log_json=log, scheduler_tls=tls),
        engine="none",
        source="tree",
        base_image=None,
        ca_bundle=None,
        amdgpu_installer=None,
        shell=False,
        local_user=False,
        python=None,
        held=None,
        shown_output=door.output,
    )
    return mounts, spell(inside)


def _inside_python(engine: Engine, container: str) -> str:
    """The version of Python that build.sh finds in the container."""
    command = run_command(engine, container, ["bash", f"{_INSIDE}/source/build.sh", "--python"], (), {}, None)
    # Standard input is the user's, for the shell.
    done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    lines = done.stdout.split()
    if done.returncode != 0 or not lines:
        reason = " ".join(done.stderr.split())
        raise EnvironmentProblem(
            f"the base image {engine.base} has no Python for a build ({reason}); name another with KILN_BASE_IMAGE"
        )
    return lines[-1]


@contextlib.contextmanager
def _container(engine: Engine, image: str) -> Iterator[str]:
    """What `run_command` runs in; buildah's working container is removed in the end."""
    if engine.name != "buildah":
        yield image
        return
    name = f"kiln-{_token()}"
    reason = _try([engine.name, "from", *engine.isolation, "--pull-never", "--name", name, image])
    if reason:
        raise BuildFailed(f"buildah cannot make a container of {image}: {reason}")
    try:
        yield name
    finally:
        _try([engine.name, "rm", name])


def _run(command: Sequence[str]) -> int:
    """Runs a container to its end; an interruption goes to what runs inside, which says so itself."""
    process = subprocess.Popen(command)
    try:
        return process.wait()
    except KeyboardInterrupt as interruption:
        number = interruption.args[0] if interruption.args else signal.SIGINT
        process.send_signal(number)
        try:
            if process.wait(8) == 128 + number:
                return 128 + number
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        raise


def _token() -> str:
    """A name that nothing else on any host has, as long as the engine keeps it."""
    return secrets.token_hex(8)


def _writes_as_root(engine: Engine) -> bool:
    """Whether root inside is root here, and the caller is not: then what it writes must be given back."""
    if os.getuid() == 0 or engine.name != "docker":  # others than docker run as the caller
        return False
    done = subprocess.run(
        [engine.name, "info", "--format", "{{.SecurityOptions}}"], capture_output=True, text=True, check=False
    )
    return "rootless" not in done.stdout


def _try(command: Sequence[str], seconds: float = _PROBE_SECONDS) -> str:
    """Runs a command; "" if it succeeded, else why not, in one line."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=seconds, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        return f"`{' '.join(command[:2])}` did not answer within {seconds:.0f} s"
    except OSError as error:
        return f"{command[0]} cannot be run ({error.strerror})"
    if done.returncode == 0:
        return ""
    lines = [line.strip() for line in (done.stderr or done.stdout).splitlines() if line.strip()]
    return (lines[-1] if lines else f"`{' '.join(command[:2])}` ended with {done.returncode}")[:200]


def _reachable(image: str, seconds: float = 5.0) -> bool:
    """Whether the registry of an image answers at all; where a proxy is set, only the engine can know."""
    if any(os.environ.get(name) for name in ("https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY")):
        return True
    host, slash, _ = image.partition("/")
    if not slash or not ("." in host or ":" in host):
        host = "registry-1.docker.io"
    if host == "localhost":
        return False
    name, _, port = host.partition(":")
    answered = threading.Event()

    def connect() -> None:  # looking up a name knows no time limit
        with contextlib.suppress(OSError), socket.create_connection((name, int(port or 443)), seconds):
            answered.set()

    thread = threading.Thread(target=connect, daemon=True)
    thread.start()
    thread.join(seconds)
    return answered.is_set()
