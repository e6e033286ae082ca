"""KILN_TEST_REQUIRED: what is skipped fails, and says why."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = {
    "test_runs.py": "def test_good(): pass\n",
    "test_one.py": "import pytest\ndef test_tool(): pytest.skip('needs a tool')\n",
    "test_file.py": "import pytest\npytest.importorskip('no_such_module', reason='needs a module')\n",
    "test_mark.py": "import pytest\n@pytest.mark.skipif(True, reason='needs a mark')\ndef test_mark(): pass\n",
    "test_gpu.py": "import pytest\npytestmark = [pytest.mark.gpu, pytest.mark.skip(reason='needs a GPU')]\n"
    "def test_gpu(): pass\n",
    "test_a.py": "import pytest\n@pytest.mark.slow\ndef test_long(): pass\n",
    "test_known.py": "import pytest\n@pytest.mark.xfail\ndef test_known(): assert False\n",
}


def run(folder: Path, *names: str, required: str, words: tuple[str, ...] = (), until: str = "") -> tuple[int, str]:
    folder.mkdir()
    shutil.copy(Path(__file__).with_name("conftest.py"), folder)
    (folder / "pytest.ini").write_text("[pytest]\nmarkers =\n  gpu\n  slow\n")
    for name in names:
        (folder / name).write_text(TESTS[name])
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *words]
    here = Path(__file__).resolve().parent
    path = os.pathsep.join(map(str, (here, here.parent / "v3python")))  # of what conftest.py imports
    environment = {**os.environ, "KILN_TEST_REQUIRED": required, "KILN_TEST_UNTIL": until, "PYTHONPATH": path}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    return done.returncode, done.stdout


@pytest.mark.parametrize("words", [(), ("-n", "2", "--dist", "loadfile")], ids=["one process", "two processes"])
def test_what_is_skipped_fails_with_its_reason(tmp_path, words):
    code, said = run(tmp_path / "all", *TESTS, required="1", words=words)
    listed = said.partition("1 required: this fails")[2]
    assert code == 1
    assert "test_one.py::test_tool: needs a tool\n" in listed
    assert "test_mark.py::test_mark: needs a mark\n" in listed
    assert "test_file.py: needs a module\n" in listed
    assert "a GPU" not in listed and "test_known" not in listed
    assert "2 passed" in said


@pytest.mark.parametrize("name", ["test_one.py", "test_file.py", "test_mark.py"])
def test_one_is_enough(tmp_path, name):
    assert run(tmp_path / "one", "test_runs.py", name, required="1")[0] == 1


def test_only_what_is_named_is_required(tmp_path):
    assert run(tmp_path / "other", *TESTS, required="cmake modul")[0] == 0
    code, said = run(tmp_path / "module", *TESTS, required="cmake module")
    listed = said.partition("cmake module required: this fails")[2]
    assert code == 1 and "test_file.py: needs a module\n" in listed and "a tool" not in listed


def test_without_it_and_for_a_gpu_skips_are_skips(tmp_path):
    assert run(tmp_path / "all", *TESTS, required="")[0] == 0
    assert run(tmp_path / "gpu", "test_runs.py", "test_gpu.py", "test_known.py", required="1")[0] == 0


def test_slow_tests_come_last_and_not_too_late(tmp_path):
    code, said = run(tmp_path / "early", "test_a.py", "test_runs.py", required="1", until="9e9", words=("-vv",))
    assert code == 0 and "2 passed" in said and said.index("test_good") < said.index("test_long")
    code, said = run(tmp_path / "late", "test_a.py", "test_runs.py", required="1", until="1")
    assert code == 0 and "1 slow test(s) were not begun" in said and "test_a.py: 1" in said
    assert "1 passed, 1 skipped" in said
