"""Ctrl-C, SIGTERM and SIGHUP: passed on as they came, said by their name, and nothing outlives them."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import small_release as small
from kiln_build.cli import main
from kiln_build.front import door
from kiln_build.front.interruption import Interruption, guarded
from kiln_build.options.options import read_front_door
from kiln_recipe.errors import BuildFailed, MissingImages, NativeBuildError, ToolchainError

SOURCE = Path(__file__).resolve().parents[1] / "v3python"


@pytest.fixture
def asked(tmp_path):
    """A front door with a descriptor for progress, and what is written to that."""
    (tmp_path / "input").mkdir()
    (tmp_path / "input" / "toolchain.lock.yaml").touch()
    read, write = os.pipe()
    words = ["input", "w", "o", "1.0", "sm_90"]
    yield read_front_door(words, {"KILN_LOG_JSON": str(write), "KILN_SHELL": "0"}, tmp_path), read
    os.close(read)
    os.close(write)


def when(ready: Path, number: int) -> None:
    def wait() -> None:
        while not ready.exists():
            time.sleep(0.01)
        os.kill(os.getpid(), number)

    threading.Thread(target=wait, daemon=True).start()


def test_a_build_gets_the_callers_descriptor_and_a_group_of_its_own(asked, tmp_path):
    front, read = asked
    script = (
        f"import os; os.write({front.build.log_json}, str(os.getpgrp() == os.getpid()).encode()); raise SystemExit(4)"
    )
    with Interruption() as interruption:
        assert door.run([sys.executable, "-c", script], os.environ, tmp_path, front, interruption) == 4
    assert os.read(read, 100) == b"True"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_build_is_told_the_very_signal_and_says_so_itself(asked, tmp_path, number):
    script = f"trap 'echo said; exit {128 + number}' {number.name[3:]}; touch ready; while :; do sleep 0.05; done"
    with Interruption() as interruption:
        when(tmp_path / "ready", number)
        code = door.run(["bash", "-c", script], os.environ, tmp_path, asked[0], interruption)
    assert code == interruption.exit_code == 128 + number
    assert str(interruption) == f"interrupted by {number.name}"


def test_of_a_build_that_says_nothing_the_door_does(asked, tmp_path):
    with Interruption() as interruption, pytest.raises(KeyboardInterrupt):
        when(tmp_path / "ready", signal.SIGTERM)
        door.run(["bash", "-c", "touch ready; exec sleep 60"], os.environ, tmp_path, asked[0], interruption)
    assert interruption.exit_code == 143


def test_a_second_one_kills(asked, tmp_path):
    script = "trap 'touch again' TERM; touch ready; while :; do sleep 0.05; done"
    with Interruption() as interruption, pytest.raises(KeyboardInterrupt):
        when(tmp_path / "ready", signal.SIGTERM)
        when(tmp_path / "again", signal.SIGTERM)
        door.run(["bash", "-c", script], os.environ, tmp_path, asked[0], interruption)


def test_an_interruption_before_the_build_is_ready_is_held_back(asked, tmp_path):
    """Python would die of it with a traceback while it starts."""
    script = (
        "import pathlib, sys, time; pathlib.Path('ready').touch(); time.sleep(0.5)\n"
        "from kiln_build.front.interruption import Interruption\n"
        "interruption = Interruption()\n"
        "try:\n"
        "    with interruption: time.sleep(60)\n"
        "except KeyboardInterrupt: sys.exit(interruption.exit_code)"
    )
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    with Interruption() as interruption:
        when(tmp_path / "ready", signal.SIGINT)
        assert door.run([sys.executable, "-c", script], environment, tmp_path, asked[0], interruption) == 130


def test_compilers_on_threads_end_with_the_build(tmp_path):
    """As while libraries are linked: a pool would wait for those that run, and begin those that wait."""
    script = """
import os, subprocess, sys, time
from concurrent.futures import ThreadPoolExecutor
from kiln_build.front import main
from kiln_build.front.interruption import Interruption
os.setpgrp()
interruption = Interruption()
try:
    with interruption:
        interruption.first = main.make_helpers_stop()
        print("ready", flush=True)
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda number: subprocess.run(["sleep", "1000"], check=True), range(20)))
except KeyboardInterrupt:
    time.sleep(0.5)  # helpers are told every 0.1 s, and this process with them: it must end as it says
    sys.exit(interruption.exit_code)
"""
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
    )
    assert process.stdout.readline() == "ready\n"
    time.sleep(0.3)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 143


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (ToolchainError("no lock"), 5, "kiln: no lock\n"),
        (ToolchainError("no lock in a\nb"), 5, "kiln: no lock in a\\nb\n"),
        *((kind("some failed:\n  one"), kind.exit_code, "kiln: some failed:\n  one\n")
          for kind in (BuildFailed, MissingImages, NativeBuildError)),
        (
            PermissionError(13, "Permission denied", "/w/container/x"),
            7,
            "kiln: /w/container/x cannot be used (Permission denied); name another path, or make this one accessible\n",
        ),
        (
            OSError(28, "No space left on device", "/tree/a", None, "/w/source/a"),
            7,
            "kiln: /w/source/a cannot be written (No space left on device); make room on its disk\n",
        ),
        (
            OSError(28, "No space left on device"),
            7,
            "kiln: the workspace or the output cannot be written (No space left on device); make room on its disk\n",
        ),
        (KeyboardInterrupt(), 130, "kiln: interrupted by SIGINT\n"),
    ],
)  # fmt: skip
def test_errors_of_either_half_are_one_sentence(capsys, error, code, said):
    def half(_interruption):
        raise error

    assert guarded(half) == code
    assert capsys.readouterr().err == said


def test_a_defect_stays_a_traceback():
    def half(_interruption):
        raise OSError("nobody knows what")

    with pytest.raises(OSError, match="nobody knows"):
        guarded(half)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("place", ["kiln_build.parts.cut.write_tarball", "shutil.rmtree"])
def test_a_command_leaves_nothing_half_made(place, number, tmp_path, capsys, monkeypatch):
    """Whether it is interrupted in its work, or while it puts its own things away."""
    module, _, name = place.rpartition(".")
    real = getattr(importlib.import_module(module), name)

    def interrupted(*arguments, **options):
        monkeypatch.setattr(place, real)
        os.kill(os.getpid(), number)
        time.sleep(60)

    monkeypatch.setattr(place, interrupted)
    before = [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    assert main(["split", str(small.small_release().tarball), str(tmp_path)]) == 128 + number
    assert capsys.readouterr().err.endswith(f"kiln: interrupted by {number.name}; what was done is kept\n")
    assert not [path.name for path in tmp_path.iterdir() if path.name.startswith(".")]
    assert [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)] == before


@pytest.mark.parametrize("code", [0, 143])
def test_the_exit_code_is_ours_wherever_it_was_interrupted(code, tmp_path):
    """Dataclasses are made by exec(); of an interruption in there `python -m` remembers that it was one."""
    (tmp_path / "program.py").write_text(
        "from kiln_build.front.signals import leave\ntry:\n    exec('raise KeyboardInterrupt')\n"
        f"except KeyboardInterrupt:\n    leave({code})\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(SOURCE), str(tmp_path)))}
    assert subprocess.run([sys.executable, "-m", "program"], env=environment).returncode == code


@pytest.mark.parametrize(
    ("result", "code", "said"),
    [
        ("full", 7, "kiln: p is whole, but standard output cannot be written (No space left on device)"),
        ("closed", 141, ""),
    ],
)
def test_a_result_that_nobody_takes(result, code, said):
    """The release is there; who reads its name is gone, or has no room for it."""
    script = (
        "import sys; from kiln_recipe.console.spelling import print_made; "
        "from kiln_build.front.interruption import guarded; "
        "sys.exit(guarded(lambda _: print_made('p', 'p is whole') or 0))"
    )
    if result == "full":
        takes = os.open("/dev/full", os.O_WRONLY)
    else:
        read, takes = os.pipe()
        os.close(read)
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    done = subprocess.run([sys.executable, "-c", script], stdout=takes, stderr=subprocess.PIPE, env=environment)
    os.close(takes)
    assert done.returncode == code
    assert "Traceback" not in done.stderr.decode() and "Exception" not in done.stderr.decode()
    assert said in done.stderr.decode()
