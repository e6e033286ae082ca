"""How the tests here build: by the front door once, then again with the packages of that build."""

from __future__ import annotations

import _ctypes
import ctypes
import hashlib
import os
import shutil
import signal
import subprocess
import tarfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import shared
from kiln_build.front import workspace

ROOT = Path(__file__).resolve().parents[1]
VERSION = "0.1.0b"
TARGETS = "sm_90;gfx942"
# Of each attention kernel one functional, and a family from outside the tree: a minute, not hours.
SELECTION = {
    "KILN_SELECT": "dtype=bf16;head_dim=64;padded=false;extras=none",
    "KILN_RECIPES": str(ROOT / "examples" / "family" / "recipe.yaml"),
}
NAME = "0.1.0b+s021e46ee.with.norm"
TARBALL = f"kiln-{NAME}-manylinux_2_28_x86_64-shared.tar.gz"
# Almost all that one dtype and head dimension have, and a kernel with several implementations: as many images again.
# Those for a bias or dropout alone take the parameters of those for any extras; only --slow compiles them.
WIDE_EXTRAS = "none,bias,dropout,any" if os.environ.get("KILN_TEST_SLOW") == "1" else "none,any"
WIDE_RECIPES = (ROOT / "examples" / "family" / "recipe.yaml", ROOT / "examples" / "matmul" / "recipe.yaml")
WIDE_SELECTION = SELECTION | {
    "KILN_SELECT": f"dtype=bf16;head_dim=64;extras={WIDE_EXTRAS}",
    "KILN_RECIPES": ":".join(map(str, WIDE_RECIPES)),
}
# Few images, for what is built again from nothing.
ONE_OPERATION = {"KILN_SELECT": f"family=flash;operation=attn_fwd;{SELECTION['KILN_SELECT']}"}


@dataclass(frozen=True)
class Built:
    """A finished build.

    Attributes:
        prefix: the unpacked folder `kiln`.
        log: all that it printed.
    """

    workspace: Path
    output: Path
    prefix: Path
    log: str

    @property
    def tarball(self) -> Path:
        (tarball,) = self.output.glob("*.tar.gz")
        return tarball

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.tarball.read_bytes()).hexdigest()

    @property
    def python(self) -> Path:
        """The interpreter of the workspace, with the locked packages."""
        return self.workspace / "venv" / "bin" / "python"

    def copy_workspace(self, to: Path) -> Path:
        """A workspace with all that the build left but for the packages: its own to build in and to damage."""
        with workspace.own_workspace(self.workspace, print, clean=False, installs=False):
            shutil.copytree(self.workspace, to, symlinks=True, ignore=_packages)
        return to


def environment(**variables: str) -> dict[str, str]:
    """The caller's environment without any KILN_ variable, and `variables`."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("KILN_")}
    return kept | {"KILN_SOURCE": "tree", "KILN_ENGINE": "none"} | variables


def unpack(tarball: Path, folder: Path) -> Path:
    with tarfile.open(tarball) as tar:
        if hasattr(tarfile, "data_filter"):
            tar.extractall(folder, filter="data")
        else:
            tar.extractall(folder)
    return folder / "kiln"


def release() -> Built:
    """The small release of this run, made if it is not there yet."""
    return _built(shared.once("a build", _front_door, _kept()))


def wide_release() -> Built:
    """The release with WIDE_SELECTION's images; what the small one has already is not compiled again."""
    return _built(shared.once("a wide build", lambda base: _build_again(base, WIDE_SELECTION), _kept()))


def one_operation() -> Built:
    """The release with ONE_OPERATION's images, all of which the small one has."""
    return _built(shared.once("a build of one operation", lambda base: _build_again(base, ONE_OPERATION), _kept()))


def _kept() -> Path | None:
    return Path(os.environ["KILN_TEST_RELEASE"]) if "KILN_TEST_RELEASE" in os.environ else None


def _built(base: Path) -> Built:
    return Built(base / "work space", base / "out put", base / "unpacked" / "kiln", (base / "log").read_text())


def _front_door(base: Path) -> None:
    """Builds by the front door in `base`, with a space in each path."""
    output = base / "out put"
    folders = map(str, (ROOT / "input", base / "work space", output))
    words = ["bash", str(ROOT / "build.sh"), *folders, VERSION, TARGETS]
    done = subprocess.run(words, env=environment(**SELECTION), capture_output=True, text=True, cwd=base)
    assert done.returncode == 0, done.stdout + done.stderr
    (base / "log").write_text(done.stdout + done.stderr)
    unpack(output / TARBALL, base / "unpacked")


def _build_again(base: Path, selection: dict[str, str]) -> None:
    """Builds another selection in `base`, in a copy of the small release's workspace."""
    small = release()
    done = Builder(small, base, small.copy_workspace(base / "work space")).run(output=base / "out put", **selection)
    (base / "log").write_text(done.stdout + done.stderr)
    (tarball,) = (base / "out put").glob("*.tar.gz")
    unpack(tarball, base / "unpacked")


def _packages(folder: str, names: list[str]) -> set[str]:
    return {"venv", "pycache"} & set(names) if Path(folder).name == "work space" else set()


class Builder:
    """Builds again with the packages of `release`, from any tree, into any workspace and store.

    Args:
        base: where its output goes.
        workspace: where it builds, if it is told no other.
    """

    def __init__(self, release: Built, base: Path, workspace: Path) -> None:
        self.release, self.base, self.workspace = release, base, workspace

    def words(self, workspace: Path, output: Path, tree: Path = ROOT, targets: str = TARGETS) -> list[str]:
        return [str(self.release.python), "-m", "kiln_build", "build", str(ROOT / "input"), str(workspace), str(output),
                VERSION, targets]  # fmt: skip

    def environment(self, tree: Path = ROOT, **variables: str) -> dict[str, str]:
        """With KILN_REPLACE, since most that builds again does so to the same folder."""
        return environment(PYTHONPATH=str(tree / "v3python"), **(SELECTION | {"KILN_REPLACE": "1"} | variables))

    def run(
        self, workspace: Path | None = None, output: Path | None = None, tree: Path = ROOT, targets: str = TARGETS,
        check: bool = True, more: Sequence[str] = (), **variables: str,
    ) -> subprocess.CompletedProcess:  # fmt: skip
        words = self.words(workspace or self.workspace, output or self.base / "out", tree, targets)
        done = subprocess.run([*words, *more], env=self.environment(tree, **variables), capture_output=True, text=True)
        if check:
            assert done.returncode == 0, done.stdout + done.stderr
        return done

    def start(
        self, workspace: Path, output: Path, targets: str = TARGETS, **variables: str
    ) -> subprocess.Popen:  # fmt: skip
        return subprocess.Popen(
            self.words(workspace, output, targets=targets), env=self.environment(**variables), stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip

    def sha256(self, output: Path | None = None) -> str:
        return hashlib.sha256(((output or self.base / "out") / TARBALL).read_bytes()).hexdigest()


def kill(process: subprocess.Popen) -> None:
    process.send_signal(signal.SIGKILL)
    process.wait()


@contextmanager
def loaded(prefix: Path, *families: str) -> Iterator[tuple[ctypes.CDLL, ...]]:
    """A release's libkiln and family libraries within this process, and out of it again: the loader gives all that ask
    for libkiln.so.0 the first that was loaded, so a library left behind would take the place of every later test's."""
    libraries: list[ctypes.CDLL] = []
    try:
        for name in ("libkiln.so.0", *(f"libkiln_{family}.so" for family in families)):
            libraries.append(ctypes.CDLL(str(prefix / "lib" / name)))
        yield tuple(libraries)
    finally:
        for library in reversed(libraries):
            _ctypes.dlclose(library._handle)
    assert "libkiln" not in Path("/proc/self/maps").read_text(), "a library is mapped still"
