"""In Pythons that Kiln does not run in: help where they can read it, and else a sentence; never a traceback."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from kiln_build.cli import VERBS
from old_pythons import find

ROOT = Path(__file__).resolve().parents[1]
WORDS = {"plan": (), "doctor": (), "fetch": ("--verify",), "wheel": ("/n", "o"), "inspect": ("/nowhere",)}


def kiln(python: str, *words: str) -> tuple[int, str, str]:
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT / "v3python"), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run([python, "-m", "kiln_build", *words], env=environment, capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("version", ["2.7", "3.6", "3.7"])
def test_that_cannot_read_it(version):
    python = find(version)
    for words in (("--help",), ("plan", "--help"), ("doctor",), ("fetch", "--verify")):
        assert kiln(python, *words) == (7, "", f"kiln: needs Python 3.10 or later; this is {version}\n")


@pytest.mark.parametrize("version", ["3.8", "3.9"])
def test_that_can_read_it(version):
    python = find(version)
    code, out, err = kiln(python, "--help")
    assert (code, err) == (0, "") and all(f"\n  {verb} " in out for verb in VERBS)
    for verb in VERBS:
        code, out, err = kiln(python, verb, "--help")
        if version == "3.8" and code == 7:  # it cannot read all of Kiln
            assert err.startswith(f"kiln: `kiln {verb}` needs Python 3.") and err.count("\n") == 1, verb
        else:
            assert (code, err) == (0, "") and f"usage: kiln {verb}" in out, verb
    for verb, words in WORDS.items():
        code, out, err = kiln(python, verb, *words)
        if (verb, version) == ("inspect", "3.9"):
            assert (code, "/nowhere cannot be read" in err) == (7, True), err
        else:
            lowest = "3.9" if verb == "inspect" else "3.10"
            said = f"kiln: `kiln {verb}` needs Python {lowest} or later; this is {version}\n"
            assert (code, out, err) == (7, "", said), verb
