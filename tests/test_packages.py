"""The virtual environment in a workspace: made once, from checked files alone, with wheels made here."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from kiln_build.front import packages
from kiln_recipe.console.progress import Progress
from kiln_recipe.errors import ToolchainError


def make_wheel(folder: Path, name: str, version: str, value: int) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{version}-py3-none-any.whl"
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr(f"{name}.py", f"VALUE = {value}\n")
        file.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        file.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        file.writestr(f"{info}/RECORD", "")
    return path


def requirement(wheel: Path) -> str:
    name, version, *_ = wheel.name.split("-")
    return f"{name}=={version} --hash=sha256:{hashlib.sha256(wheel.read_bytes()).hexdigest()}\n"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """(workspace, input folder, what was said) after a first set-up of both steps."""
    place = tmp_path_factory.mktemp("a workspace")
    folder = place / "the input"
    (folder / packages.FRONT_LOCK).parent.mkdir()
    (folder / packages.FRONT_LOCK).write_text(requirement(make_wheel(folder / "cache", "frontone", "1.0", 1)))
    said: list[str] = []
    python = packages.prepare_front(place, folder, None, said.append)
    assert python == packages.environment_python(place)
    return place, folder, said


def value(place: Path, module: str) -> str:
    command = [str(packages.environment_python(place)), "-I", "-c", f"import {module}; print({module}.VALUE)"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def test_the_first_step_is_done_once(made):
    place, folder, said = made
    assert value(place, "frontone") == "1" and len(said) == 1
    packages.prepare_front(place, folder, None, said.append)
    assert len(said) == 1
    assert packages.environment_site(place).is_dir()


def test_the_second_step_is_done_once_and_again_for_another_lock(made):
    place, folder, _ = made
    first = requirement(make_wheel(folder / "cache", "restone", "1.0", 1))
    second = requirement(make_wheel(folder / "cache", "restone", "2.0", 2))
    shown = _Shown()
    packages.prepare_rest(place, folder, first, shown)
    assert value(place, "restone") == "1" and shown.total > 0 and shown.count == shown.total
    packages.prepare_rest(place, folder, first, shown)
    assert shown.phases == 1
    packages.prepare_rest(place, folder, second)
    assert value(place, "restone") == "2"


class _Shown(Progress):
    """Counts what it is told of."""

    phases = total = count = 0

    def start(self, total, estimate=None, *, title="", unit="job"):
        assert (title, unit) == ("install", "B")
        self.phases, self.total, self.count = self.phases + 1, total, 0

    def advance(self, amount):
        assert amount >= 0
        self.count += amount


def test_what_an_install_has_written_is_shown_on_the_way(tmp_path, monkeypatch):
    monkeypatch.setattr(packages, "_SECONDS_BETWEEN_LOOKS", 0.05)
    script = f"import time; open({str(tmp_path / 'x')!r}, 'wb').write(bytes(10**6)); time.sleep(60)"
    heard: list[int] = []

    def watch(written: int) -> None:
        heard.append(written)
        if written >= 10**6:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):  # ends the process too
        packages._run([sys.executable, "-c", script], os.environ, watch)
    assert heard == sorted(heard) and heard[-1] >= 10**6


def test_a_wrong_file_in_the_cache_is_never_installed(made):
    place, folder, _ = made
    wheel = make_wheel(folder / "cache", "evilone", "1.0", 1)
    asked = requirement(wheel)
    make_wheel(folder / "cache", "evilone", "1.0", 666)
    with pytest.raises(ToolchainError, match="is not what the lock says; `kiln fetch --verify"):
        packages.prepare_rest(place, folder, asked)
    assert value(place, "evilone") == ""
    with pytest.raises(ToolchainError, match="gone==1.0"):
        packages.prepare_rest(place, folder, "gone==1.0 --hash=sha256:" + "0" * 64 + "\n")


def test_a_toolchain_of_its_own(made):
    place, folder, _ = made
    asked = requirement(make_wheel(folder / "cache", "triton", "3.9.0", 39))
    target = packages.prepare_toolchain(place, folder, "triton-3.9.0", asked)
    assert target.parent == place / "toolchains" and (target / "triton.py").read_text() == "VALUE = 39\n"
    assert packages.prepare_toolchain(place, folder, "triton-3.9.0", asked) == target
    assert value(place, "triton") == ""  # not in the environment
    with pytest.raises(ToolchainError):
        packages.prepare_toolchain(place, folder, "x", "gone==1.0 --hash=sha256:" + "0" * 64 + "\n")
    assert [path.name for path in target.parent.iterdir()] == [target.name]


def test_the_callers_configuration_and_home_are_left_alone(made, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PIP_TARGET", str(tmp_path / "elsewhere"))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    place, folder, _ = made
    packages.prepare_rest(place, folder, requirement(make_wheel(folder / "cache", "homeone", "1.0", 5)))
    assert value(place, "homeone") == "5"
    assert list(tmp_path.rglob("*")) == []


def test_an_unfinished_environment_is_made_anew(made):
    place, folder, _ = made
    (place / "venv" / "kiln-stamp.json").unlink()
    (packages.environment_site(place) / "frontone.py").unlink()
    said: list[str] = []
    packages.prepare_front(place, folder, None, said.append)
    assert said and value(place, "frontone") == "1"


def test_a_package_that_nobody_has(tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    (tmp_path / packages.FRONT_LOCK).write_text("gone==1.0 --hash=sha256:" + "0" * 64 + "\n")
    with pytest.raises(ToolchainError, match=r"front.lock cannot be fetched: .*gone==1.0"):
        packages.prepare_front(tmp_path / "w", tmp_path, None, lambda text: None)
    with pytest.raises(ToolchainError, match=r"bring the cache with `kiln fetch --unbundle FILE`.*--python 3\.\d+ "):
        packages.prepare_front(tmp_path / "w", tmp_path, None, lambda text: None)
    (tmp_path / packages.FRONT_LOCK).write_text("gone==1.0\n")
    with pytest.raises(ToolchainError, match=r"front.lock is damaged: 'gone==1.0' is not a package with its digests"):
        packages.prepare_front(tmp_path / "w", tmp_path, None, lambda text: None)


def test_the_first_step_fetches_what_the_cache_lacks(tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    wheel = make_wheel(tmp_path / "mirror", "frontone", "1.0", 7)
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "mirror"))
    (tmp_path / packages.FRONT_LOCK).write_text(requirement(wheel))
    packages.prepare_front(tmp_path / "w", tmp_path, None, lambda text: None)
    assert value(tmp_path / "w", "frontone") == "7"
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [wheel.name]


def test_only_the_standard_library_is_needed_before_the_environment(tmp_path):
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "import kiln_build.front.door, kiln_build.options.options\n"
        "foreign = {name.partition('.')[0] for name in sys.modules} - sys.stdlib_module_names\n"
        "foreign -= {'kiln_build', 'kiln_recipe', '__main__'}\n"
        "assert not {n for n in foreign if not n.startswith(('_', 'sitecustomize'))}, foreign\n"
    )
    root = Path(__file__).resolve().parents[1] / "v3python"
    subprocess.run([sys.executable, "-I", "-S", "-c", code, str(root)], check=True)
