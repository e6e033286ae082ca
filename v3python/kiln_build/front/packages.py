"""The virtual environment in the workspace, from the locked packages; made once, reused until the lock changes.

Two steps: a few small packages, with which a build's input is checked within seconds, and then all others. Both
install from input/cache/ alone; only the first may fill it through the package client, since `kiln fetch` is not there
yet. Standard library only.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from kiln_recipe import digests
from kiln_recipe.console.appear import appear, appear_folder
from kiln_recipe.errors import EnvironmentProblem, ToolchainError

if TYPE_CHECKING:
    from kiln_recipe.console.progress import Progress

FRONT_LOCK = "front.lock"
EVERYTHING = "everything"  # the group of all packages of a build, as `Verb.needs` says it
_STAMP = "kiln-stamp.json"
_SECONDS_BETWEEN_LOOKS = 0.5


def environment_python(workspace: Path) -> Path:
    """The interpreter of the workspace's virtual environment."""
    return workspace / "venv" / "bin" / "python"


def environment_site(workspace: Path) -> Path:
    """Its site-packages."""
    return workspace / "venv" / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"


def prepare_front(workspace: Path, folder: Path, ca_bundle: Path | None, say: Callable[[str], None]) -> Path:
    """Makes the virtual environment with the packages of input/front.lock; returns its Python.

    Args:
        folder: the input folder.

    Raises:
        ToolchainError: a package cannot be had, or is not what the lock says.
        EnvironmentProblem: no virtual environment can be made.
    """
    python = environment_python(workspace)
    text = _front_lock(folder)
    for line in re.sub(r"(?m)^#.*|\\\n", "", text).splitlines():
        if line.strip() and not re.fullmatch(r"[\w.-]+==\S+( +--hash=sha256:[0-9a-f]{64})+ *", line):
            raise ToolchainError(
                f"{folder / FRONT_LOCK} is damaged: {line[:60].strip()!r} is not a package with its digests; take the "
                "file from the source again"
            )
    if has_front(workspace, folder):
        return python
    say(f"packages: setting up {workspace / 'venv'} for Python {sys.version.split()[0]}")
    shutil.rmtree(workspace / "venv", ignore_errors=True)
    command = [sys.executable, "-I", "-m", "venv", str(workspace / "venv")]
    made = _run(command, pip_environment(workspace), has_helpers=True)
    if made.returncode != 0:
        reason = (made.stderr or made.stdout).strip().splitlines()[-1:]
        raise EnvironmentProblem(
            f"no virtual environment can be made in {workspace} with {sys.executable}: {' '.join(reason)}; "
            "it needs venv (Debian: python3-venv)"
        )
    if _install_front(workspace, folder).returncode != 0:
        say(f"packages: fetching those of {folder / FRONT_LOCK}")
        _download_front(python, folder, ca_bundle)
        done = _install_front(workspace, folder)
        if done.returncode != 0:
            raise ToolchainError(f"the packages of {folder / FRONT_LOCK} cannot be installed: {_refusal(done, folder)}")
    write_stamp(workspace, {"base": _base(), "front": digests.of_text(text)})
    return python


def has_front(workspace: Path, folder: Path) -> bool:
    """Whether the virtual environment is there, for this Python, with the packages of input/front.lock as it is now.

    Raises:
        ToolchainError: front.lock cannot be read.
    """
    stamp = read_stamp(workspace)
    is_current = stamp.get("base") == _base() and stamp.get("front") == digests.of_text(_front_lock(folder))
    return is_current and environment_python(workspace).exists()


def prepare_rest(workspace: Path, folder: Path, requirements: str, progress: Progress | None = None) -> None:
    """Installs all other packages of the environment, if they are not there.

    Args:
        requirements: as `Lock.requirements` writes them; their files are in the cache.
        progress: told of the bytes as they are written.

    Raises:
        ToolchainError: a file is missing or is not what the lock says.
    """
    stamp = read_stamp(workspace)
    if stamp.get("rest") == digests.of_text(requirements):
        return
    kept = {key: digest for key, digest in stamp.items() if key in ("base", "front")}
    write_stamp(workspace, kept)
    install_locked(workspace, folder / "cache", requirements, progress=progress)
    write_stamp(workspace, {**kept, "rest": digests.of_text(requirements)})


def prepare_more(workspace: Path, folder: Path, use: str, requirements: str, progress: Progress | None = None) -> None:
    """Installs the packages of a use that only some builds have beside the others, if they are not there.

    Raises:
        ToolchainError: as `prepare_rest`.
    """
    stamp = read_stamp(workspace)
    if stamp.get(use) != digests.of_text(requirements):
        install_locked(workspace, folder / "cache", requirements, progress=progress)
        write_stamp(workspace, {**stamp, use: digests.of_text(requirements)})


def prepare_toolchain(
    workspace: Path,
    folder: Path,
    name: str,
    requirements: str,
    texts: Mapping[str, str] = {},
    progress: Progress | None = None,
) -> Path:
    """Installs packages into a folder of their own, `<workspace>/toolchains/<name>-<digest>`; returns it.

    Args:
        texts: small files to put beside the packages, by name.
        progress: as `prepare_rest`.

    Raises:
        ToolchainError: as `prepare_rest`.
    """
    digest = digests.of_text(requirements + "".join(f"{file}\n{text}" for file, text in sorted(texts.items())))
    target = workspace / "toolchains" / f"{name}-{digest[:16]}"
    if target.is_dir():
        return target
    with appear_folder(target) as fresh:
        install_locked(workspace, folder / "cache", requirements, target=fresh, progress=progress)
        for file, text in texts.items():
            (fresh / file).write_text(text)
    return target


def install_locked(
    workspace: Path,
    cache: Path,
    requirements: str,
    *,
    target: Path | None = None,
    progress: Progress | None = None,
) -> None:
    """`pip install` into the workspace's environment, or `target`, without a network; each file must have its hash."""
    if not requirements.strip():
        return
    environment = pip_environment(workspace)
    with tempfile.NamedTemporaryFile("w", dir=environment["TMPDIR"], suffix=".txt") as file:
        file.write(requirements)
        file.flush()
        command = [*_install_command(environment_python(workspace), cache), "-r", file.name]
        if target is not None:
            command += ["--target", str(target)]
        with _watched(progress, _unpacked_size(cache, requirements) if progress else 0) as watch:
            done = _run(command, environment, watch)
    if done.returncode != 0:
        if "No space left" in done.stderr:
            raise EnvironmentProblem(f"{workspace} is full: its packages need 2 GiB; give a workspace with more room")
        raise ToolchainError(f"the locked packages cannot be installed from {cache}: {_refusal(done, cache.parent)}")


def pip_environment(workspace: Path, **more: str) -> dict[str, str]:
    """The environment of installs that must not depend on the client's configuration or touch the home."""
    scratch = workspace / "tmp"
    scratch.mkdir(parents=True, exist_ok=True)
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PIP_", "PYTHON"))}
    return {
        **kept,
        "HOME": str(scratch),  # pip runs other programs (rustc), which may keep something there
        "TMPDIR": str(scratch),
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_NO_INPUT": "1",
        "PIP_ROOT_USER_ACTION": "ignore",
        **more,
    }


def _install_command(python: Path, cache: Path) -> list[str]:
    # Compiled on first import into the workspace instead (PYTHONPYCACHEPREFIX): that is half of the time saved.
    flags = "--no-index --require-hashes --no-deps --no-compile --no-cache-dir --only-binary :all: --quiet --no-color"
    cache_flag = ["--find-links", str(cache)] if cache.is_dir() else []
    return [str(python), "-I", "-m", "pip", "install", *flags.split(), *cache_flag]


def _install_front(workspace: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    command = _install_command(environment_python(workspace), folder / "cache")
    return _run([*command, "-r", str(folder / FRONT_LOCK)], pip_environment(workspace))


def _download_front(python: Path, folder: Path, ca_bundle: Path | None) -> None:
    cache = folder / "cache"
    try:
        cache.mkdir(exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=".front.", dir=cache))
    except OSError as error:
        raise EnvironmentProblem(f"{cache} cannot be written ({error.strerror}); `kiln fetch` must fill it beforehand")
    flags = (
        "--require-hashes --no-deps --no-cache-dir --only-binary :all: --quiet --no-color --disable-pip-version-check"
    )
    certificates = ["--cert", str(ca_bundle)] if ca_bundle else []
    try:
        done = _run(
            [
                str(python),
                "-m",
                "pip",
                "download",
                *flags.split(),
                *certificates,
                "-d",
                str(temporary),
                "-r",
                str(folder / FRONT_LOCK),
            ],
            # pip asks rustc who it is, and rustup would answer by making a folder in the home.
            {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")} | {"RUSTUP_HOME": str(temporary / "r")},
        )
        if done.returncode != 0:
            raise ToolchainError(f"the packages of {folder / FRONT_LOCK} cannot be fetched: {_refusal(done, folder)}")
        for file in temporary.glob("*.whl"):
            os.replace(file, cache / file.name)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


@contextlib.contextmanager
def _watched(progress: Progress | None, total: int) -> Iterator[Callable[[int], None] | None]:
    """Gives what is to be told how many bytes have been written by now; shows them as a phase."""
    if progress is None or total == 0:
        yield None
        return
    shown = 0

    def watch(written: int) -> None:
        nonlocal shown
        written = max(shown, min(written, total))
        progress.advance(written - shown)
        shown = written

    progress.start(total, title="install", unit="B")
    try:
        yield watch
        watch(total)
    finally:
        progress.close()


def _run(
    command: list[str],
    environment: Mapping[str, str],
    watch: Callable[[int], None] | None = None,
    *,
    has_helpers: bool = False,
) -> subprocess.CompletedProcess[str]:
    """Runs pip, or venv, which `has_helpers`: an interruption must end those too, or they go on writing."""
    with subprocess.Popen(
        command,
        text=True,
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=has_helpers,
    ) as process:
        try:
            while True:
                try:
                    output, errors = process.communicate(timeout=_SECONDS_BETWEEN_LOOKS if watch else None)
                    break
                except subprocess.TimeoutExpired:
                    if watch is not None:
                        watch(_written(process.pid))
        except BaseException:
            if has_helpers:
                with contextlib.suppress(ProcessLookupError):  # they have just ended
                    os.killpg(process.pid, signal.SIGKILL)
            process.kill()
            raise
    return subprocess.CompletedProcess(command, process.returncode, output, errors)


def _written(process: int) -> int:
    """Bytes that a process has written by now, where the kernel tells."""
    with contextlib.suppress(OSError, ValueError):
        found = re.search(r"^wchar: ([0-9]+)$", Path(f"/proc/{process}/io").read_text(), re.MULTILINE)
        return int(found[1]) if found else 0
    return 0


def _unpacked_size(cache: Path, requirements: str) -> int:
    """Bytes of the files in the wheels that requirements name, about: for the progress alone."""
    wanted = {_plain(line.split()[0]) for line in requirements.splitlines() if line.strip()}
    sizes: dict[str, int] = {}
    for wheel in cache.glob("*.whl"):
        name = _plain("==".join(wheel.name.split("-")[:2]))
        if name in wanted:
            with contextlib.suppress(OSError, zipfile.BadZipFile), zipfile.ZipFile(wheel) as file:
                # Of several Pythons' wheels, any is near enough.
                sizes[name] = sum(member.file_size for member in file.infolist())
    return sum(sizes.values())


def _plain(requirement: str) -> str:
    return re.sub(r"[-_.]+", "-", requirement).casefold()


def _refusal(done: subprocess.CompletedProcess[str], folder: Path) -> str:
    """What the package client refused, and what to do about it."""
    if "DO NOT MATCH THE HASHES" in done.stderr:
        return f"a file is not what the lock says; `kiln fetch --verify --input {folder}` names it"
    if "No matching distribution" in done.stderr:
        python = ".".join(map(str, sys.version_info[:2]))
        return (
            f"{_reason(done)}; where there is no network, bring the cache with `kiln fetch --unbundle FILE`, which "
            f"`kiln fetch --python {python} --bundle FILE` makes where there is one"
        )
    return _reason(done)


def _reason(done: subprocess.CompletedProcess[str]) -> str:
    errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR:")] or done.stderr.splitlines()
    return " ".join(line.removeprefix("ERROR:").strip() for line in errors[:2]) or f"pip ended with {done.returncode}"


def _front_lock(folder: Path) -> str:
    try:
        return (folder / FRONT_LOCK).read_text()
    except OSError as error:
        raise ToolchainError(f"{folder / FRONT_LOCK} cannot be read ({error.strerror}); give input/ of the source tree")


def _base() -> str:
    """The Python that the environment is made from."""
    return f"{os.path.realpath(sys.executable)} {sys.version}"


def read_stamp(workspace: Path) -> dict[str, str]:
    """What the environment was made of: digests, by what they are of."""
    try:
        stamp = json.loads((workspace / "venv" / _STAMP).read_text())
    except (OSError, ValueError):
        return {}
    return stamp if isinstance(stamp, dict) else {}


def add_to_stamp(workspace: Path, group: str, lock: str) -> None:
    """Says that a group of packages has been installed as the lock with this digest has them. What is said of another
    lock's may no longer be true."""
    stamp = read_stamp(workspace)
    kept = {name: digest for name, digest in stamp.items() if name in ("base", "front") or digest == lock}
    write_stamp(workspace, {**kept, group: lock})


def write_stamp(workspace: Path, stamp: Mapping[str, str]) -> None:
    """Says what the environment is made of."""
    with appear(workspace / "venv" / _STAMP) as fresh:
        fresh.write_text(json.dumps(stamp))
