"""The container path for real: the Dockerfile built by buildah on a stand-in base, and the same build in it.

Needs root, buildah and debootstrap (`.ci/run` installs the two where it can), and is skipped elsewhere.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import pytest

from faulty_server import Faults, FaultyIndex
from kiln_build.base import machine
from kiln_build.front import source, workspace
from kiln_build.front.engine import Engine, _container, image, probe_engine, run_command
from kiln_recipe.compile import lock

ROOT = Path(__file__).resolve().parents[2]
BASE = "localhost/kiln-standin:bookworm"
# Enough of a build to be one, of small images.
VERSION, TARGETS, SELECTION = "0.0.1test", "sm_90", "dtype=bf16;head_dim=16;extras=none"

pytestmark = [pytest.mark.container, pytest.mark.slow(150)]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder for everything; engines keep their images in it too."""
    missing = [tool for tool in ("buildah", "debootstrap", "unshare") if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"needs {', '.join(missing)}")
    if os.getuid() != 0:
        pytest.skip("needs root")
    # Images of images and three virtual environments: in memory, if there is room, it is a matter of seconds.
    mounts = Path("/proc/self/mounts").read_text()
    memory = workspace.memory_folders(mounts, None, machine.usable_memory(), 8 * workspace.GIB)
    fit = [found.path for found in memory if not found.refusal]
    folder = Path(tempfile.mkdtemp(prefix="kiln-container-", dir=fit[0])) if fit else tmp_path_factory.mktemp("c")
    (folder / "storage.conf").write_text(
        f'[storage]\ndriver = "vfs"\ngraphroot = "{folder}/graph"\nrunroot = "{folder}/run"\n'
    )
    before = dict(os.environ)
    os.environ |= {"CONTAINERS_STORAGE_CONF": str(folder / "storage.conf")}
    os.environ.pop("STORAGE_DRIVER", None)
    yield folder
    os.environ.clear()
    os.environ |= before
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def engine(place) -> Engine:
    """buildah, with the stand-in base at hand."""
    kept = Path(os.environ.get("KILN_TEST_VENV") or ROOT / ".venv").absolute() / "container-base"
    kept.mkdir(parents=True, exist_ok=True)
    made = subprocess.run(
        ["bash", str(Path(__file__).with_name("base.sh")), str(kept), BASE], capture_output=True, text=True, check=False
    )
    if made.returncode != 0 and not (kept / "base.tar").exists():
        pytest.skip(f"no stand-in base could be made here: {(made.stdout + made.stderr).strip().splitlines()[-1:]}")
    assert made.returncode == 0, made.stderr
    found = probe_engine("buildah", BASE, False)
    assert isinstance(found, Engine), found
    return found


def copy_of_the_tree(target: Path) -> Path:
    """A tree of its own, whose origin does not move while others commit."""
    return source.copy_tree(ROOT, target, source.Origin("c" * 40, False))


def build(tree: Path, place: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("KILN_", "PYTHON"))}
    environment |= {"KILN_SELECT": SELECTION, "KILN_PYTHON": sys.executable, **variables}
    words = [str(ROOT / "input"), str(place / "workspace"), str(place / "output"), VERSION, TARGETS]
    done = subprocess.run(
        ["bash", str(tree / "build.sh"), *words], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def digest(place: Path) -> str:
    (tarball,) = (place / "output").glob("*.tar.gz")
    return hashlib.sha256(tarball.read_bytes()).hexdigest()


@pytest.fixture(scope="module")
def carried(place) -> Path:
    """An input folder as an air-gapped site has it: fetched from a server that cuts each transfer three times, answers
    503 and once sends wrong bytes; bundled; and unbundled elsewhere.
    """
    the_lock = lock.read_lock(ROOT / "input" / lock.LOCK_NAME)
    files = {
        file.name: (the_lock.package_of(file.name).name.lower(), (ROOT / "input" / "cache" / file.name).read_bytes())
        for file in the_lock.wanted([lock.running_python()])
    }
    small = min(files, key=lambda name: len(files[name][1]))
    faults = Faults(
        cuts=Counter(dict.fromkeys(files, 3)),
        unavailable=Counter({small: 2, "triton": 1}),
        wrong_bytes=Counter({small: 4}),
    )
    there, here = place / "there", place / "here"
    for folder in (there, here):
        folder.mkdir()
        for path in (ROOT / "input").glob("*.lock*"):
            shutil.copy(path, folder)
    with FaultyIndex(files, faults) as index:
        kept = {k: v for k, v in os.environ.items() if not k.startswith("PIP_")}
        environment = {
            **kept,
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_INDEX_URL": index.url,
            "PYTHONPATH": str(ROOT / "v3python"),
        }

        def fetch(folder: Path, *words: str) -> None:
            line = [sys.executable, "-m", "kiln_build", "fetch", "--input", str(folder), *words]
            subprocess.run(line, env=environment, check=True, stdout=subprocess.DEVNULL)

        fetch(there, "--bundle", str(place / "carried.tar"))
        assert all(not left for left in (+faults.cuts, +faults.unavailable, +faults.wrong_bytes))
    fetch(here, "--unbundle", str(place / "carried.tar"))
    fetch(here, "--verify")
    (place / "carried.tar").unlink()
    shutil.rmtree(there)
    return here


def test_the_container_gives_the_hosts_bytes_and_neither_needs_a_network(place, engine, carried):
    host, inside = place / "on the host", place / "in a container"
    command = ["unshare", "--net", "bash"]
    tree = copy_of_the_tree(host / "tree")
    other = shutil.copytree(tree, inside / "another tree", symlinks=True)
    words = [str(carried), str(host / "workspace"), str(host / "output"), VERSION, TARGETS]
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("KILN_", "PYTHON"))}
    environment |= {"KILN_SELECT": SELECTION, "KILN_PYTHON": sys.executable, "KILN_ENGINE": "none", "KILN_JOBS": "1"}
    subprocess.run([*command, str(tree / "build.sh"), *words], env=environment, check=True, timeout=600)

    done = build(other, inside, KILN_ENGINE="buildah", KILN_BASE_IMAGE=BASE, KILN_JOBS="2")
    assert f"engine: buildah, base {BASE}" in done.stderr
    assert done.stdout.split("\n")[-2] == str(next((inside / "output").glob("*.tar.gz")))
    assert digest(inside) == digest(host)
    assert not (inside / "workspace" / "store").exists()  # all of it lies in workspace/container
    assert "localhost/kiln-devel" not in _images()


def _images() -> str:
    return subprocess.run(["buildah", "images"], capture_output=True, text=True, check=True).stdout


def test_the_release_stage_holds_a_release_its_example_and_no_compiler(place, engine):
    inside = place / "in a container"
    context = inside / "another tree"
    (context / "output").mkdir()
    (tarball,) = (inside / "output").glob("*.tar.gz")
    shutil.copy(tarball, context / "output")
    (context / "input" / "cache").mkdir()
    shutil.copy(next((ROOT / "input" / "cache").glob("ziglang-*.whl")), context / "input" / "cache")
    arguments = {"KILN_TARBALL": f"output/{tarball.name}", "KILN_RELEASE_BASE": BASE}
    with image(engine, context, "release", arguments) as name, _container(engine, name) as container:

        def run(script: str) -> subprocess.CompletedProcess[str]:
            line = run_command(engine, container, ["sh", "-c", script], (), {}, None)
            return subprocess.run(line, capture_output=True, text=True, check=False)

        example = run("/opt/kiln/bin/kiln-example")
        assert example.returncode in (0, 77), example.stderr  # 77: no GPU
        assert example.returncode == 0 or "GPU" in example.stdout + example.stderr
        assert "kiln.images" in run("ls /opt/kiln/lib").stdout
        assert run("ls -d /kiln/source").returncode != 0
        # `command -v` of several words knows only the first: each is asked for, and one that is there shows that
        # asking works.
        asked = "for tool in sh cc c99 gcc g++ c++ clang clang++ tcc zig ld as; do command -v $tool; done"
        found = [Path(line).name for line in run(asked).stdout.split()]
        assert found == ["sh"]
        compilers = r"find / -xdev -type f \( -name zig -o -name 'cc1*' -o -name '*-gcc-*' -o -name 'clang*' \)"
        assert run(compilers).stdout == ""


def test_inside_there_is_no_network_and_the_source(place, engine):
    context = copy_of_the_tree(place / "context")
    with image(engine, context, "devel", {}) as name, _container(engine, name) as container:
        script = "cat /proc/net/dev; ls /kiln/source"
        done = subprocess.run(
            run_command(engine, container, ["bash", "-c", script], (), {}, None),
            capture_output=True,
            text=True,
            check=True,
        )
    interfaces = {line.split(":")[0].strip() for line in done.stdout.splitlines() if ":" in line}
    assert interfaces == {"lo"}
    assert "build.sh" in done.stdout and ".git" not in done.stdout.split()


def test_a_shell_in_the_devel_image(place, engine):
    words = [str(ROOT / "input"), str(place / "w"), str(place / "o"), VERSION, TARGETS]
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("KILN_", "PYTHON"))}
    environment |= {"KILN_SHELL": "1", "KILN_ENGINE": "buildah", "KILN_BASE_IMAGE": BASE, "KILN_PYTHON": sys.executable}
    done = subprocess.run(
        ["bash", str(ROOT / "build.sh"), *words],
        input="pwd; ls /kiln; exit 5\n",
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert done.returncode == 5, done.stderr
    assert done.stdout.split() == ["/kiln/source", "input", "output", "source", "workspace"]
