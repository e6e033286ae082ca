"""Container engines: which is taken and why, and what it is told; with stand-ins for engines that are not here.

tests/container/ runs a real one.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from kiln_build.cli.doctor import Finding, _engines
from kiln_build.front import engine
from kiln_build.front.engine import Engine, choose, default_base, image, probe_engine, run_command
from kiln_build.front.interruption import Interruption
from kiln_build.options.options import read_front_door
from kiln_recipe.errors import BuildFailed, EnvironmentProblem, UsageError

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def place(tmp_path):
    (tmp_path / "input").mkdir()
    (tmp_path / "input" / "toolchain.lock.yaml").touch()
    return tmp_path


def door(place, **environment):
    return read_front_door(["input", "w", "o", "1.0", "sm_90"], environment, place)


def never(name, base, patient):
    return "not installed"


def only(wanted):
    return lambda name, base, patient: Engine(name, base) if name == wanted else f"{name} is broken"


def test_auto_takes_the_first_that_works_and_says_so(place):
    said: list[str] = []
    assert choose(door(place), said.append, only("podman")).name == "podman"
    assert said == [f"engine: podman, base {default_base(ROOT / engine.DOCKERFILE)}"]


def test_auto_without_any_is_the_host_and_says_why_in_one_line(place):
    said: list[str] = []
    assert choose(door(place), said.append, never) is None
    (line,) = said
    assert (
        line
        == "engine: none; building on this host (docker: not installed; podman: not installed; buildah: not installed)"
    )


def test_none_asks_nobody(place):
    assert choose(door(place, KILN_ENGINE="none"), None, None) is None


def test_an_engine_asked_for_must_work(place):
    with pytest.raises(EnvironmentProblem, match="KILN_ENGINE=docker does not work here: docker is broken"):
        choose(door(place, KILN_ENGINE="docker"), print, only("podman"))


def test_another_base_is_taken_and_waited_for(place):
    asked = []

    def probe(name, base, patient):
        asked.append((name, base, patient))
        return Engine(name, base)

    choose(door(place, KILN_BASE_IMAGE="site/base:1"), lambda text: None, probe)
    choose(door(place), lambda text: None, probe)
    assert asked[0] == ("docker", "site/base:1", True) and asked[1][2] is False


def test_a_shell_needs_a_container(place):
    with pytest.raises(EnvironmentProblem, match="KILN_SHELL=1 needs a container engine, but none works here"):
        choose(door(place, KILN_SHELL="1"), print, never)


def test_what_only_a_container_obeys_is_named_where_there_is_none(place):
    said: list[str] = []
    assert choose(door(place, KILN_BASE_IMAGE="b", LOCAL_USER="1"), said.append, never) is None
    assert said[1:] == ["warning: without a container, nothing obeys KILN_BASE_IMAGE and LOCAL_USER"]


def test_the_default_base_is_pinned():
    base = default_base(ROOT / engine.DOCKERFILE)
    name, _, tag = base.rpartition(":")
    assert name == "quay.io/pypa/manylinux_2_28_x86_64" and tag[:4].isdecimal()


# ---- stand-ins on the PATH -------------------------------------------------------------------------------------------


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    """Makes a program that notes its words in a file and does as it is told."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")

    def make(name: str, script: str) -> Path:
        log = tmp_path / f"{name}.log"
        (folder / name).write_text(f'#!/bin/sh\necho "$@" >> "{log}"\n{script}\n')
        (folder / name).chmod(0o755)
        return log

    return make


def test_a_client_without_a_daemon_does_not_work(stand_in):
    stand_in("docker", "echo Client: 28; echo Cannot connect to the daemon. >&2; exit 1")
    assert probe_engine("docker", "base", False) == "Cannot connect to the daemon."
    assert probe_engine("kiln-no-such", "base", False) == "not installed"


def test_an_engine_that_answers_and_cannot_run_does_not_work(stand_in):
    stand_in("podman", '[ "$1" != run ] || { echo "crun: no cgroups" >&2; exit 126; }')
    assert probe_engine("podman", "base", False) == "crun: no cgroups"


def test_a_base_that_is_neither_here_nor_in_reach(stand_in, monkeypatch):
    log = stand_in("podman", '[ "$1" != image ] || exit 1')
    monkeypatch.setattr(engine, "_reachable", lambda base: False)
    reason = "the base image is not here and its registry cannot be reached"
    assert probe_engine("podman", "r.example/base", False) == reason
    assert "pull" not in log.read_text()
    assert probe_engine("podman", "r.example/base", True) == Engine("podman", "r.example/base")
    assert "pull r.example/base" in log.read_text()


def doctor(**variables: str) -> list[Finding]:
    with pytest.MonkeyPatch.context() as patch:
        for name in ("KILN_ENGINE", "KILN_BASE_IMAGE"):
            patch.delenv(name, raising=False)
        for name, value in variables.items():
            patch.setenv(name, value)
        return list(_engines())


def test_the_doctor_finds_what_a_build_would_and_asks_no_registry(stand_in, monkeypatch):
    monkeypatch.setattr(engine, "_reachable", lambda base: pytest.fail("a registry was asked"))
    logs = [stand_in(name, f'echo "{name} is broken" >&2; exit 1') for name in ("docker", "podman", "buildah")]
    reasons = "docker: docker is broken; podman: podman is broken; buildah: buildah is broken"
    (found,) = doctor()
    assert found == Finding("good", "engines", f"none works: this host builds, which needs none ({reasons})")
    (found,) = doctor(KILN_ENGINE="docker")
    assert found.state == "bad" and found.detail.startswith("KILN_ENGINE=docker does not work here (docker: docker is")
    stand_in("podman", '[ "$1" != image ]')
    (found,) = doctor(KILN_BASE_IMAGE="r.example/base:1")
    asking = "podman answers, and has no base image: a build asks the registry of r.example/base:1"
    assert found == Finding("note", "engines", f"{asking}, unless KILN_ENGINE=none")
    stand_in("podman", "")
    assert doctor() == [Finding("good", "engines", "podman answers, and has the base image")]
    assert doctor(KILN_ENGINE="none") == [Finding("good", "engines", "none, as KILN_ENGINE says: this host builds")]
    assert not any(word in log.read_text() for log in logs for word in ("pull", "run", "from"))


def test_a_base_that_cannot_be_pulled(stand_in):
    stand_in("docker", 'case "$1" in image|pull) echo "no such manifest" >&2; exit 1;; esac')
    reason = "the base image b is not available (no such manifest); name another with KILN_BASE_IMAGE"
    assert probe_engine("docker", "b", True) == reason


def test_a_wrong_base_is_one_sentence(stand_in, place):
    stand_in("docker", 'case "$1" in image|pull) echo "no such manifest" >&2; exit 1;; esac')
    said: list[str] = []
    with pytest.raises(EnvironmentProblem) as caught:
        choose(door(place, KILN_ENGINE="docker", KILN_BASE_IMAGE="r.example/wrong:1"), said.append)
    assert str(caught.value) == (
        "KILN_ENGINE=docker does not work here: the base image r.example/wrong:1 is not available (no such manifest); "
        "name another with KILN_BASE_IMAGE"
    )
    assert said == ["engine: docker fetches the base r.example/wrong:1"]


def test_buildah_falls_back_to_chroot(stand_in):
    stand_in("unshare", "exit 1")
    log = stand_in("buildah", 'case "$1 $2" in "run --isolation") exit 0;; "run "*) exit 1;; esac')
    said: list[str] = []
    assert probe_engine("buildah", "b", False, said.append) == Engine("buildah", "b", ("--isolation", "chroot"), ())
    assert log.read_text().count("rm kiln-probe") == 2
    assert said == [
        "warning: the container will have a network: buildah works here only in a chroot, and `unshare --net` ended "
        "with 1"
    ]
    stand_in("unshare", "exit 0")
    said.clear()
    assert probe_engine("buildah", "b", False, said.append).offline == ("unshare", "--net") and said == []


def test_an_engine_that_hangs(stand_in, monkeypatch):
    stand_in("docker", "sleep 20")
    monkeypatch.setattr(engine, "_PROBE_SECONDS", 0.2)
    assert engine._try(["docker", "info"], 0.2) == "`docker info` did not answer within 0 s"


def test_a_registry_without_a_name_or_an_answer():
    assert not engine._reachable("localhost/base")
    assert not engine._reachable("127.0.0.1:9/base:1", 1.0)


def test_an_image_is_made_without_a_network_unless_rocm_is_added(stand_in, tmp_path):
    log = stand_in("docker", "")
    for installer in ("", "https://x/y.rpm"):
        with image(Engine("docker", "b"), tmp_path, "devel", {"AMDGPU_INSTALLER": installer}):
            pass
    first, _, second, _ = log.read_text().splitlines()
    assert re.match("build --network none --target devel -t [^ ]+ --build-arg KILN_BASE_IMAGE=b", first)
    assert "--network" not in second and "AMDGPU_INSTALLER=https://x/y.rpm" in second


def test_images_of_builds_at_the_same_time_have_names_of_their_own_and_do_not_stay(stand_in, tmp_path):
    log = stand_in("podman", "")
    engine_here = Engine("podman", "b")
    with image(engine_here, tmp_path, "devel", {}) as first, image(engine_here, tmp_path, "devel", {}) as second:
        assert first != second and first.startswith("localhost/kiln-devel:")
        assert "rmi" not in log.read_text()
    assert log.read_text().splitlines()[-2:] == [f"rmi {second}", f"rmi {first}"]


def test_an_image_that_does_not_build_shows_the_output(stand_in, tmp_path, capsys):
    stand_in("podman", "echo step 3 failed; exit 2")
    with pytest.raises(BuildFailed, match=r"podman could not build the stage devel .* on b, .*KILN_BASE_IMAGE"):
        with image(Engine("podman", "b"), tmp_path, "devel", {}):
            raise AssertionError("there is no image")
    assert "step 3 failed" in capsys.readouterr().err


def test_command_lines():
    mounts = [(Path("/a b:c"), "/in", False), (Path("/o"), "/out", True)]
    line = run_command(Engine("docker", "b"), "image", ["bash", "x"], mounts, {"K": "v w"}, (5, 6))
    assert line[:4] == ["docker", "run", "--network", "none"]
    assert line[line.index("--mount") : line.index("--env")] == [
        "--mount",
        "type=bind,src=/a b:c,dst=/in,ro",
        "--mount",
        "type=bind,src=/o,dst=/out",
    ]
    assert line[-5:] == ["--env", "K=v w", "image", "bash", "x"] and line[line.index("--user") + 1] == "5:6"
    line = run_command(
        Engine("buildah", "b", ("--isolation", "chroot"), ("unshare", "-n")), "c", ["x"], mounts, {}, None
    )
    assert line[:5] == ["unshare", "-n", "buildah", "run", "--isolation"]
    assert "--network" not in line and line[-3:] == ["c", "--", "x"] and "type=bind,src=/o,dst=/out,rw" in line


def test_a_path_that_cannot_be_mounted():
    with pytest.raises(EnvironmentProblem, match="/a,b cannot be mounted"):
        run_command(Engine("docker", "b"), "i", ["x"], [(Path("/a,b"), "/in", False)], {}, None)


def test_what_the_container_is_told(place):
    log = place / "l" / "progress.jsonl"
    log.parent.mkdir()
    for recipe in ("one/recipe.yaml", "two/norm.yaml"):
        (place / "r" / recipe).parent.mkdir(parents=True)
        (place / "r" / recipe).touch()
    environment = {
        "KILN_PROFILE": "full",
        "KILN_JOBS": "3",
        "KILN_STORE": str(place / "shared store"),
        "KILN_RECIPES": "r/one/recipe.yaml:r/two/norm.yaml",
        "KILN_FAMILIES": "norm",
        "KILN_CLEAN": "0",
        "KILN_LOG_JSON": str(log),
        "KILN_BASE_IMAGE": "b",
        "KILN_PYTHON": "/here/python3",
        "LOCAL_USER": "1",
        "SECRET": "s",
    }
    mounts, variables = engine._mounts(door(place, **environment), place / "w")
    assert variables == {
        "_KILN_SHOWN_OUTPUT": str(place / "o"),
        "KILN_TIMEOUT": "300.0",
        "KILN_TRITON": "wheel",
        "KILN_ENGINE": "none",
        "KILN_SOURCE": "tree",
        "KILN_PROFILE": "full",
        "KILN_CONFIGURATIONS": "chosen",
        "KILN_JOBS": "3",
        "KILN_STORE": "/kiln/store",
        "KILN_RECIPES": "/kiln/recipes/0/recipe.yaml:/kiln/recipes/1/norm.yaml",
        "KILN_FAMILIES": "norm",
        "KILN_LOG_JSON": "/kiln/log/progress.jsonl",
        "KILN_CACHE_MODE": "read-write",
    }
    assert (place / "input", "/kiln/input", False) in mounts and (place / "o", "/kiln/output", True) in mounts
    assert (place / "r" / "two", "/kiln/recipes/1", False) in mounts and (place / "shared store").is_dir()
    mounts, variables = engine._mounts(door(place, KILN_STORE="s3://images"), place / "w")
    assert variables["KILN_STORE"] == "s3://images" and len(mounts) == 3, "an address needs no mount"
    with pytest.raises(UsageError, match="KILN_LOG_JSON=2: a container does not get"):
        engine._mounts(door(place, KILN_LOG_JSON="2"), place / "w")


def test_a_cache_is_out_of_reach_in_a_container(place):
    said: list[str] = []
    asked = {"KILN_CACHE": "http://cache.example.org/kiln"}
    assert engine.choose(door(place, **asked), said.append, lambda *_: pytest.fail("an engine is tried")) is None
    assert "KILN_CACHE is out of reach in a container, which has no network" in said[0]
    with pytest.raises(
        UsageError, match="build with KILN_ENGINE=none, or fill the store with `kiln store pull` before"
    ):
        engine.choose(door(place, KILN_ENGINE="podman", **asked), said.append)


def test_outputs_are_given_back_only_where_root_inside_is_root_here(stand_in, monkeypatch):
    docker = Engine("docker", "b")
    monkeypatch.setattr(os, "getuid", lambda: 1000)
    stand_in("docker", "echo '[name=seccomp]'")
    assert engine._writes_as_root(docker) and not engine._writes_as_root(Engine("podman", "b"))
    stand_in("docker", "echo '[name=seccomp name=rootless]'")
    assert not engine._writes_as_root(docker)
    monkeypatch.setattr(os, "getuid", lambda: 0)
    assert not engine._writes_as_root(docker)


def test_a_whole_build_by_a_stand_in(stand_in, place, monkeypatch):
    """Everything but what runs inside: image, Python, cache, mounts, exit code."""
    log = stand_in(
        "podman",
        f"""case "$*" in
  *--python*) echo {sys.version_info[0]}.{sys.version_info[1]};;
  *inside.sh*) exit 4;;
esac""",
    )
    fetched = []
    monkeypatch.setattr(
        engine.cache, "fill", lambda lock, python, cache, ca, triton, **_: fetched.append((python, cache, triton))
    )
    (place / "input" / "toolchain.lock.yaml").write_bytes((ROOT / "input" / "toolchain.lock.yaml").read_bytes())
    (place / "ca.pem").write_text("certificate")
    made = door(place, KILN_CA_BUNDLE="ca.pem", LOCAL_USER="1")
    (place / "w").mkdir()
    assert engine.build(Engine("podman", "b"), made, ROOT, print) == 4
    assert fetched == [(f"{sys.version_info[0]}.{sys.version_info[1]}", place / "input" / "cache", "wheel")]
    context = place / "w" / "source" / "context"
    assert (context / "dockerfile" / "ca-bundle.pem").read_text() == "certificate"
    assert (context / "build.sh").is_file() and not (context / "input" / "cache").exists()
    lines = log.read_text().splitlines()
    name = re.match("build --network none --target devel -t (localhost/kiln-devel:[0-9a-f]{16}) ", lines[0])[1]
    assert f"--user {os.getuid()}:{os.getgid()}" in lines[-2] and f" {name} bash " in lines[-2]
    assert lines[-2].endswith("inside.sh /kiln/input /kiln/workspace /kiln/output 1.0 sm_90")
    assert lines[-1] == f"rmi {name}"


def test_an_interruption_reaches_the_container_as_it_came(tmp_path):
    script = "trap 'exit 143' TERM; touch ready; while :; do sleep 0.05; done"
    threading.Thread(target=_interrupt_when, args=(tmp_path / "ready", signal.SIGTERM), daemon=True).start()
    with Interruption():
        assert engine._run(["sh", "-c", f"cd '{tmp_path}'; {script}"]) == 143


def _interrupt_when(ready: Path, number: int) -> None:
    while not ready.exists():
        time.sleep(0.01)
    os.kill(os.getpid(), number)
