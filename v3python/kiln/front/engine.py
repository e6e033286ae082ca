"""Container engines: which one really works, and a build inside of one.

The container runs the same build.sh, with the engine `none`. It has no network: packages come from input/cache, which
this side fills first for the container's Python. Its workspace is `<workspace>/container`, for the virtual environment
of one Python is of no use to another.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kiln import lock
from kiln.errors import BuildFailed, EnvironmentProblem, Interrupted, UsageError
from kiln.front import source
from kiln.options import SHOWN_OUTPUT, FrontDoor

ENGINES = ("docker", "podman", "buildah")
DOCKERFILE = "dockerfile/manylinux_2_28.Dockerfile"
DEVEL_IMAGE = "localhost/kiln-devel:latest"

# What a build inside is told of the caller's variables; those that are paths are mounted, below.
_PASSED_ON = ("PROFILE", "SELECT", "JOBS", "TIMEOUT", "NOIMAGE", "CLEAN", "PTX", "TRITON")
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
        """The beginning of a command line of a verb that runs something: `build` or `run`."""
        if network:
            return [self.name, verb, *self.isolation]
        if self.isolation:  # buildah's chroot isolation refuses --network, and inherits ours
            return [*self.offline, self.name, verb, *self.isolation]
        return [self.name, verb, "--network", "none"]


def choose(door: FrontDoor, say: Say, probe: Callable[[str, str, bool], Engine | str] | None = None) -> Engine | None:
    """The engine to build in, or None: on the host. Says in one line what `auto` took, and why.

    Args:
        probe: gives an engine that works, or the reason why it does not; for tests.

    Raises:
        EnvironmentProblem: an engine was asked for by name, and does not work.
        UsageError: a shell was asked for, and there is no container to have it in.
    """
    probe = probe or probe_engine
    if door.engine == "none":
        if door.shell:
            raise UsageError("KILN_SHELL=1 opens a shell in a container, and KILN_ENGINE=none has none")
        return None
    base = door.base_image or default_base(Path(__file__).resolve().parents[3] / DOCKERFILE)
    if door.engine != "auto":
        found = probe(door.engine, base, True)
        if isinstance(found, str):
            raise EnvironmentProblem(f"KILN_ENGINE={door.engine} does not work here: {found}")
        say(f"engine: {door.engine}, base {base}")
        return found
    reasons = []
    for name in ENGINES:
        found = probe(name, base, door.base_image is not None)
        if not isinstance(found, str):
            say(f"engine: {name}, base {base}")
            return found
        reasons.append(f"{name}: {found}")
    if door.shell:
        raise EnvironmentProblem(f"KILN_SHELL=1 needs a container engine, and none works here ({'; '.join(reasons)})")
    say(f"engine: none, this host builds ({'; '.join(reasons)})")
    return None


def default_base(dockerfile: Path) -> str:
    """The base image that the Dockerfile pins."""
    return re.search(r"^ARG KILN_BASE_IMAGE=(\S+)$", dockerfile.read_text(), re.MULTILINE)[1]


def probe_engine(name: str, base: str, patient: bool) -> Engine | str:
    """Tries an engine by running something in the base image.

    Args:
        patient: the engine or its base was asked for: try to fetch the base even if its registry seems out of reach.

    Returns:
        The engine, or the reason why it does not work.
    """
    if shutil.which(name) is None:
        return "not installed"
    reason = _try([name, "info"])
    if reason:
        return reason
    present = [name, "inspect", "--type", "image", base] if name == "buildah" else [name, "image", "inspect", base]
    if _try(present):
        if not patient and not _reachable(base):
            return "the base image is not here, and its registry is out of reach"
        reason = _try([name, "pull", base], _PULL_SECONDS)
        if reason:
            return f"the base image {base} cannot be had: {reason}"
    if name != "buildah":
        reason = _try([name, "run", "--rm", "--network", "none", base, "true"])
        return reason or Engine(name, base)
    offline = () if _try(["unshare", "--net", "true"]) else ("unshare", "--net")
    for isolation in ((), ("--isolation", "chroot")):
        container = f"kiln-probe-{os.getpid()}"
        reason = _try([name, "from", *isolation, "--pull-never", "--name", container, base])
        if not reason:
            reason = _try([name, "run", *isolation, container, "--", "true"])
            _try([name, "rm", container])
        if not reason:
            return Engine(name, base, isolation, offline)
    return reason


def build(engine: Engine, door: FrontDoor, root: Path, say: Say) -> int:
    """Makes the devel image and builds in it, or opens a shell in it; returns the exit code inside.

    Raises:
        BuildFailed: the image cannot be made.
        EnvironmentProblem: a path that no engine can mount.
    """
    from kiln.front.main import USES, fetch_all

    workspace = door.workspace
    context = source.copy_tree(root, workspace / "source" / "context", source.describe(root))
    if door.ca_bundle:
        shutil.copyfile(door.ca_bundle, context / "dockerfile" / "ca-bundle.pem")
    make_image(engine, context, DEVEL_IMAGE, "devel", {"AMDGPU_INSTALLER": door.amdgpu_installer or ""})
    with _container(engine, DEVEL_IMAGE) as container:
        python = _inside_python(engine, container)
        uses = (*USES, "triton-source") if door.triton == "source" else USES
        the_lock = lock.read_lock(door.input / lock.LOCK_NAME)
        fetch_all(the_lock, lock.check_python(the_lock, python), door.input / "cache", door.ca_bundle, uses)
        inside = workspace / "container"
        inside.mkdir(exist_ok=True)
        mounts, variables = _mounts(door, inside, os.environ)
        variables[SHOWN_OUTPUT] = str(door.output)
        variables["KILN_OWNER"] = (
            "" if door.local_user or not _writes_as_root(engine) else f"{os.getuid()}:{os.getgid()}"
        )
        words = [f"{_INSIDE}/input", f"{_INSIDE}/workspace", f"{_INSIDE}/output", door.version, door.targets]
        command = ["bash", f"{_INSIDE}/source/dockerfile/inside.sh", *words]
        if door.shell:
            say(f"engine: a shell in {DEVEL_IMAGE}; the build is: bash build.sh {' '.join(words[:4])} '{door.targets}'")
            command = ["bash"]
        user = (os.getuid(), os.getgid()) if door.local_user else None
        return _run(engine, run_command(engine, container, command, mounts, variables, user, interactive=door.shell))


def make_image(engine: Engine, context: Path, name: str, stage: str, arguments: Mapping[str, str]) -> None:
    """Builds one stage of the Dockerfile. Only an installer of ROCm may use the network.

    Raises:
        BuildFailed: it cannot be built; what the engine printed stands above.
    """
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
        raise BuildFailed(f"{engine.name} could not build the stage {stage} of {DOCKERFILE}; its output stands above")


def run_command(
    engine: Engine,
    container: str,
    command: Sequence[str],
    mounts: Sequence[tuple[Path, str, bool]],
    variables: Mapping[str, str],
    user: tuple[int, int] | None,
    *,
    interactive: bool = False,
) -> list[str]:
    """The engine's command line that runs `command`.

    Args:
        container: docker and podman: an image; buildah: a working container.
        mounts: (here, inside, writable).
        variables: environment inside.
        user: user and group, or None: root inside.

    Raises:
        EnvironmentProblem: a path with a comma, which no engine's syntax for mounts can say.
    """
    line = engine.command("run")
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


def _mounts(
    door: FrontDoor, workspace: Path, environment: Mapping[str, str]
) -> tuple[list[tuple[Path, str, bool]], dict[str, str]]:
    """What the container sees of this host, and the variables that tell it where."""
    mounts = [
        (door.input, f"{_INSIDE}/input", False),
        (workspace, f"{_INSIDE}/workspace", True),
        (door.output, f"{_INSIDE}/output", True),
    ]
    variables = {"KILN_ENGINE": "none", "KILN_SOURCE": "tree"}
    for name in _PASSED_ON:
        if environment.get(f"KILN_{name}"):
            variables[f"KILN_{name}"] = environment[f"KILN_{name}"]
    if environment.get("KILN_STORE"):
        store = Path(environment["KILN_STORE"])
        store.mkdir(parents=True, exist_ok=True)
        mounts.append((store, f"{_INSIDE}/store", True))
        variables["KILN_STORE"] = f"{_INSIDE}/store"
    recipes = []
    for number, word in enumerate(filter(None, environment.get("KILN_RECIPES", "").split(":"))):
        mounts.append((Path(word).parent, f"{_INSIDE}/recipes/{number}", False))
        recipes.append(f"{_INSIDE}/recipes/{number}/{Path(word).name}")
    if recipes:
        variables["KILN_RECIPES"] = ":".join(recipes)
    log = environment.get("KILN_LOG_JSON", "")
    if log.isdecimal():
        raise UsageError(f"KILN_LOG_JSON={log}: a container has not the caller's descriptors; give a file")
    if log:
        mounts.append((Path(log).parent, f"{_INSIDE}/log", True))
        variables["KILN_LOG_JSON"] = f"{_INSIDE}/log/{Path(log).name}"
    return mounts, variables


def _inside_python(engine: Engine, container: str) -> str:
    """The version of Python that build.sh finds in the container."""
    command = run_command(engine, container, ["bash", f"{_INSIDE}/source/build.sh", "--python"], (), {}, None)
    # Standard input is the user's, for the shell.
    done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    lines = done.stdout.split()
    if done.returncode != 0 or not lines:
        raise EnvironmentProblem(f"the base image {engine.base} has no Python for a build: {done.stderr.strip()}")
    return lines[-1]


@contextlib.contextmanager
def _container(engine: Engine, image: str):
    """What `run_command` runs in; buildah's working container is removed in the end."""
    if engine.name != "buildah":
        yield image
        return
    name = f"kiln-{os.getpid()}"
    reason = _try([engine.name, "from", *engine.isolation, "--pull-never", "--name", name, image])
    if reason:
        raise BuildFailed(f"buildah cannot make a container of {image}: {reason}")
    try:
        yield name
    finally:
        _try([engine.name, "rm", name])


def _run(engine: Engine, command: Sequence[str]) -> int:
    """Runs a container to its end; an interruption goes to what runs inside."""
    process = subprocess.Popen(command)
    try:
        return process.wait()
    except KeyboardInterrupt:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(8)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        raise Interrupted("interrupted; what was done is kept")


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
        return f"`{' '.join(command[:2])}` gave no answer in {seconds:.0f} s"
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
