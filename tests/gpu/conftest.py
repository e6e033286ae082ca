"""The GPU suite: an unpacked release on real hardware, through its C interface.

    python3 -m pytest tests/gpu --kiln-prefix <where the tarball was unpacked>/kiln

Needs a GPU and PyTorch; skipped where either is missing, but for test_harness.py, which needs PyTorch alone. With
--kiln-results FOLDER tests leave lines in FOLDER/<process>.jsonl, which report.py makes a table of. run_all.sh runs
everything there is for a GPU. The calls are made by processes of their own (pool.py), as many as KILN_PROCESSES.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "runtime"))  # ffi

WITHOUT_A_GPU = ("test_harness.py", "test_racecheck.py")
FOLDER = Path(__file__).parent
MOST_PROCESSES = 14


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--kiln-prefix", help="an unpacked release, .../kiln; default: KILN_PREFIX")
    parser.addoption("--kiln-results", help="a folder for results; default: KILN_RESULTS")
    parser.addoption("--kiln-required", help="1: fail where the suite cannot run; default: KILN_REQUIRED")


def option(config: pytest.Config, name: str) -> str | None:
    """Of the command line, which knows it only if this folder was named there, or of the environment."""
    return config.getoption(f"--kiln-{name}", None) or os.environ.get(f"KILN_{name.upper()}")


def why_not(config: pytest.Config) -> str | None:
    """Why the suite cannot run here, or None."""
    prefix = option(config, "prefix")
    if not prefix:
        return "needs an unpacked release: --kiln-prefix or KILN_PREFIX"
    if not (Path(prefix) / "lib/libkiln_flash.so").is_file():
        return f"{prefix} is not an unpacked release: it has no lib/libkiln_flash.so"
    try:
        import torch
    except ImportError:
        return "needs PyTorch"
    return None if torch.cuda.is_available() else "needs a GPU that PyTorch can use"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    ours = [item for item in items if FOLDER in item.path.parents and item.path.name not in WITHOUT_A_GPU]
    if not ours:
        return
    reason = why_not(config)
    if reason and option(config, "required"):
        raise pytest.UsageError(f"the GPU suite cannot run: {reason}")
    for item in ours:
        item.add_marker(pytest.mark.gpu)
        if reason:
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def prefix(request: pytest.FixtureRequest) -> Path:
    return Path(option(request.config, "prefix")).resolve()


@pytest.fixture(scope="session")
def flash(prefix: Path):
    from release import Flash

    with Flash(prefix) as opened:
        yield opened


@pytest.fixture(scope="session")
def pool(prefix: Path):
    from pool import Pool

    pool = Pool(prefix, int(os.environ.get("KILN_PROCESSES", 0)) or min(MOST_PROCESSES, os.cpu_count() or 1))
    yield pool
    pool.close()


def why_no_ptx(prefix: Path) -> str | None:
    """Why a release has no PTX of sm_80, by its own words, or None: then it must have it."""
    manifest = json.loads((prefix / "share/kiln/manifest.json").read_bytes())
    if not manifest["ptx"]:
        return "the release was made without PTX; build it with KILN_PTX=1"
    if all(target["name"] != "sm_80" for target in manifest["targets"]):
        return "the release was made without sm_80"
    return None


@pytest.fixture(scope="session", params=[None, "sm_80"], ids=["native", "by PTX of sm_80"])
def target(request: pytest.FixtureRequest, prefix: Path) -> str | None:
    """What is forced: nothing, or another target, which runs by way of its PTX."""
    if request.param and (reason := why_no_ptx(prefix)):
        pytest.skip(reason)
    return request.param


@pytest.fixture(scope="session")
def record(request: pytest.FixtureRequest):
    """record(kind, **facts) leaves a line for the report."""
    folder = option(request.config, "results")

    def write(kind: str, **facts: object) -> None:
        if folder:
            Path(folder).mkdir(parents=True, exist_ok=True)
            with (Path(folder) / f"{os.getpid()}.jsonl").open("a") as file:
                file.write(json.dumps({"kind": kind, **facts}) + "\n")

    return write
