"""Makes the tests' virtual environment from the locks and prints its Python; `python -I -B environment.py FOLDER`.

The toolchain's packages are installed as a build does it; those of requirements.lock, and of torch.lock and
transformers.lock if KILN_TEST_TORCH is 1, through the package client. A second run with the same locks does nothing.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "v3python"))

from kiln_build.front import packages, workspace  # noqa: E402
from kiln_build.options import options  # noqa: E402
from kiln_recipe.errors import KilnError  # noqa: E402

_INSTALL_TOOLCHAIN = """
import os
import sys
from pathlib import Path
from kiln_recipe.console import progress
from kiln_build.options import options
from kiln_recipe.compile import lock
from kiln_build.front import cache, packages
place, folder = Path(sys.argv[1]), Path(sys.argv[2])
the_lock = lock.read_lock(folder / lock.LOCK_NAME)
python = lock.running_python()
cache.fill(the_lock, python, folder / "cache", options.read_ca_bundle(os.environ, Path.cwd()), scheduler=True)
requirements = the_lock.requirements(python, ("front", "build", "scheduler"))
packages.prepare_rest(place, folder, requirements, progress.make_progress())
"""


def main() -> int:
    place, folder = Path(sys.argv[1]).absolute(), ROOT / "input"
    try:
        for warning in options.check_variables(os.environ):
            _say(f"warning: {warning}")
        with workspace.own_workspace(place, _say, clean=False):
            python = packages.prepare_front(place, folder, None, _say)
            environment = {**os.environ, "PYTHONPATH": str(ROOT / "v3python"), "PYTHONDONTWRITEBYTECODE": "1"}
            done = subprocess.run(
                [str(python), "-c", _INSTALL_TOOLCHAIN, str(place), str(folder)], env=environment, check=False
            )
            if done.returncode != 0:
                return done.returncode
            _install_tests(python)
    except KilnError as error:
        _say(str(error))
        return error.exit_code
    print(python)
    return 0


def _install_tests(python: Path) -> None:
    locks = [ROOT / "tests" / "requirements.lock"]
    if os.environ.get("KILN_TEST_TORCH") == "1":
        locks += [ROOT / "tests" / "torch.lock", ROOT / "tests" / "transformers.lock"]
    stamp = python.parents[1] / "tests-stamp"
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in locks)).hexdigest()
    if stamp.is_file() and stamp.read_text() == digest:
        return
    _say("installing the tests' packages")
    flags = "--require-hashes --no-deps --only-binary :all: --no-cache-dir --quiet --disable-pip-version-check"
    pip = [str(python), "-m", "pip", "install", *flags.split()]
    for path in locks:
        if path.name != "torch.lock":
            subprocess.run([*pip, "-r", str(path)], check=True)
            continue
        # The CPU build by its full name: pip would rather take a file whose hash its index page states, and that is the
        # registry's CUDA build, which does not import without gigabytes of CUDA packages.
        cpu = stamp.with_name("torch-cpu.lock")
        cpu.write_text(re.sub(r"^torch==([0-9.]+) ", r"torch==\1+cpu ", path.read_text(), flags=re.MULTILINE))
        if subprocess.run([*pip, "-r", str(cpu)], check=False).returncode:
            _say("the package client knows no CPU build of PyTorch: tests that need it are skipped")
    stamp.write_text(digest)


def _say(text: str) -> None:
    print(f"test.sh: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
