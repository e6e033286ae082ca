"""The virtual environment in the workspace, from the locked packages; made once, reused until the lock changes.

Two steps: a few small packages, with which a build's input is checked within seconds, and then all others. Both
install from input/cache/ alone; only the first may fill it through the package client, since `kiln fetch` is not there
yet. Standard library only.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from kiln.errors import EnvironmentProblem, ToolchainError

FRONT_LOCK = "front.lock"
_STAMP = "kiln-stamp.json"


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
    try:
        text = (folder / FRONT_LOCK).read_text()
    except OSError as error:
        raise ToolchainError(f"{folder / FRONT_LOCK} cannot be read ({error.strerror}); give input/ of the source tree")
    stamp = _read_stamp(workspace)
    if stamp.get("base") == _base() and stamp.get("front") == _digest(text) and python.exists():
        return python
    say(f"packages: setting up {workspace / 'venv'} for Python {sys.version.split()[0]}")
    shutil.rmtree(workspace / "venv", ignore_errors=True)
    made = subprocess.run(
        [sys.executable, "-I", "-m", "venv", str(workspace / "venv")],
        capture_output=True,
        text=True,
        check=False,
        env=pip_environment(workspace),
    )
    if made.returncode != 0:
        reason = (made.stderr or made.stdout).strip().splitlines()[-1:]
        raise EnvironmentProblem(
            f"no virtual environment can be made in {workspace} with {sys.executable}: {' '.join(reason)}; "
            "it needs venv (Debian: python3-venv)"
        )
    if _install_front(workspace, folder).returncode != 0:
        _download_front(python, folder, ca_bundle)
        done = _install_front(workspace, folder)
        if done.returncode != 0:
            raise ToolchainError(f"the packages of {folder / FRONT_LOCK} cannot be installed: {_reason(done)}")
    _write_stamp(workspace, {"base": _base(), "front": _digest(text)})
    return python


def prepare_rest(workspace: Path, folder: Path, requirements: str) -> bool:
    """Installs all other packages of the environment; returns whether there was anything to do.

    Args:
        requirements: as `Lock.requirements` writes them; their files are in the cache.

    Raises:
        ToolchainError: a file is missing or is not what the lock says.
    """
    stamp = _read_stamp(workspace)
    if stamp.get("rest") == _digest(requirements):
        return False
    _write_stamp(workspace, {key: stamp[key] for key in ("base", "front") if key in stamp})
    install_locked(workspace, folder / "cache", requirements)
    _write_stamp(workspace, {**stamp, "rest": _digest(requirements)})
    return True


def prepare_toolchain(workspace: Path, folder: Path, name: str, requirements: str, links: Sequence[Path] = ()) -> Path:
    """Installs packages into a folder of their own, `<workspace>/toolchains/<name>`; returns it.

    Args:
        links: folders with wheels, besides the cache.

    Raises:
        ToolchainError: as `prepare_rest`.
    """
    target = workspace / "toolchains" / f"{name}-{_digest(requirements)[:16]}"
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix=f".{name}.", dir=target.parent))
    try:
        install_locked(workspace, folder / "cache", requirements, target=fresh, links=links)
        os.chmod(fresh, 0o755)
        os.replace(fresh, target)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return target


def install_locked(
    workspace: Path,
    cache: Path,
    requirements: str,
    *,
    target: Path | None = None,
    links: Sequence[Path] = (),
) -> None:
    """`pip install` into the workspace's environment, or `target`, without a network; each file must have its hash."""
    if not requirements.strip():
        return
    environment = pip_environment(workspace)
    with tempfile.NamedTemporaryFile("w", dir=environment["TMPDIR"], suffix=".txt") as file:
        file.write(requirements)
        file.flush()
        command = [*_install_command(environment_python(workspace), cache), "-r", file.name]
        for folder in links:
            command += ["--find-links", str(folder)]
        if target is not None:
            command += ["--target", str(target)]
        done = _pip(command, environment)
    if done.returncode != 0:
        if "No space left" in done.stderr:
            raise EnvironmentProblem(f"{workspace} is full: its packages need 2 GiB; give a workspace with more room")
        raise ToolchainError(f"the locked packages cannot be installed from {cache}: {_reason(done)}")


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
    return _pip([*command, "-r", str(folder / FRONT_LOCK)], pip_environment(workspace))


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
        done = _pip(
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
            raise ToolchainError(f"the packages of {folder / FRONT_LOCK} cannot be fetched: {_reason(done)}")
        for file in temporary.glob("*.whl"):
            os.replace(file, cache / file.name)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _pip(command: list[str], environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, env=dict(environment)
    )


def _reason(done: subprocess.CompletedProcess[str]) -> str:
    errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR:")] or done.stderr.splitlines()
    return " ".join(line.removeprefix("ERROR:").strip() for line in errors[:2]) or f"pip ended with {done.returncode}"


def _base() -> str:
    """The Python that the environment is made from."""
    return f"{os.path.realpath(sys.executable)} {sys.version}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _read_stamp(workspace: Path) -> dict[str, str]:
    try:
        stamp = json.loads((workspace / "venv" / _STAMP).read_text())
    except (OSError, ValueError):
        return {}
    return stamp if isinstance(stamp, dict) else {}


def _write_stamp(workspace: Path, stamp: Mapping[str, str]) -> None:
    path = workspace / "venv" / _STAMP
    fresh = path.with_name(f".{_STAMP}.{os.getpid()}")
    fresh.write_text(json.dumps(stamp))
    os.replace(fresh, path)
