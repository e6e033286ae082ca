"""The command line itself: verbs are found, loaded alone, and fail in one sentence."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from kiln import cli
from kiln.errors import ToolchainError

SOURCE = Path(__file__).resolve().parents[1] / "v3python"


def kiln(*words: str, code: str | None = None) -> subprocess.CompletedProcess[str]:
    run = ["-c", code] if code else ["-m", "kiln"]
    return subprocess.run(
        [sys.executable, *run, *words], capture_output=True, text=True, cwd=SOURCE, check=False, timeout=60
    )


def test_without_words_usage_goes_to_stderr():
    done = kiln()
    assert done.returncode == 2 and done.stdout == "" and done.stderr.startswith("usage: kiln <command>")


@pytest.mark.parametrize("word", ["--help", "help", "-h"])
def test_help_lists_every_verb_with_its_summary(word):
    done = kiln(word)
    assert done.returncode == 0
    for verb in cli.VERBS:
        assert f"\n  {verb:8} {cli.summary(verb)}\n" in done.stdout
        assert len(cli.summary(verb)) > 10


def test_an_unknown_verb():
    done = kiln("targts")
    assert (done.returncode, done.stderr) == (
        2,
        f"kiln: unknown command 'targts'; did you mean targets? The commands are {', '.join(cli.VERBS)}\n",
    )


@pytest.mark.parametrize("verb", cli.VERBS)
def test_every_verb_shows_an_example(verb):
    done = kiln(verb, "--help")
    assert done.returncode == 0, done.stderr
    assert f"kiln {verb}" in done.stdout.partition("example")[2]


def test_only_the_verb_asked_for_is_loaded():
    # `inspect` runs where only zstandard and pyelftools are installed.
    code = (
        "import sys\n"
        "for name in ('yaml', 'msgspec', 'requests', 'tqdm', 'jinja2', 'pebble', 'triton', 'packaging'):\n"
        "    sys.modules[name] = None\n"
        "from kiln.cli import main\n"
        "sys.exit(main(['inspect', '/nowhere.pack']))\n"
    )
    done = kiln(code=code)
    assert "nowhere.pack" in done.stderr and "Traceback" not in done.stderr
    assert done.returncode not in (0, 1)


def fake_verb(monkeypatch, run):
    module = type(sys)("kiln.cli.clean")
    module.add_arguments, module.run = lambda parser: None, run
    monkeypatch.setitem(sys.modules, "kiln.cli.clean", module)


def test_errors_become_a_sentence_and_a_code(monkeypatch, capsys):
    def fail(arguments):
        raise ToolchainError("it is so")

    fake_verb(monkeypatch, fail)
    assert cli.main(["clean"]) == 5
    assert capsys.readouterr().err == "kiln: it is so\n"


def test_an_interruption_is_130(monkeypatch, capsys):
    def stop(arguments):
        raise KeyboardInterrupt

    fake_verb(monkeypatch, stop)
    assert cli.main(["clean"]) == 130
    assert "Traceback" not in capsys.readouterr().err


def test_a_reader_that_goes_away_is_no_error():
    done = subprocess.run(
        f"{sys.executable} -m kiln targets --json | head -c 1",
        shell=True,
        capture_output=True,
        text=True,
        cwd=SOURCE,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("[", "")


def test_clean_removes_what_builds_made_and_nothing_else(tmp_path, capsys):
    assert cli.main(["clean", str(tmp_path)]) == 7
    assert "is no workspace of a build" in capsys.readouterr().err
    (tmp_path / ".kiln-workspace").touch()
    for name in ("store", "venv", "mine"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").touch()
    assert cli.main(["clean", str(tmp_path), "--keep", "venv"]) == 0
    assert capsys.readouterr().out == f"{tmp_path}: removed store\n"
    assert {path.name for path in tmp_path.iterdir()} == {".kiln-workspace", "venv", "mine"}


def test_doctor_finds_this_host_good_and_a_bad_variable_bad(tmp_path, capsys, monkeypatch):
    assert cli.main(["doctor"]) == 0
    said = capsys.readouterr().out
    assert "good  python" in said and "good  system" in said
    monkeypatch.setenv("KILN_JOBS", "none")
    assert cli.main(["doctor", "--input", str(tmp_path)]) == 7
    said = capsys.readouterr().out
    assert "bad   variable     KILN_JOBS=none cannot be" in said
    assert f"bad   cache        {tmp_path}/toolchain.lock.yaml cannot be read" in said
