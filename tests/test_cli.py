"""The command line itself: verbs are found, loaded alone, and fail in one sentence."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from kiln_build import __version__, cli
from kiln_build.store.local import LocalStore
from kiln_recipe.console.guard import guarded
from kiln_recipe.console.usage import Parser
from kiln_recipe.errors import BuildFailed, EnvironmentProblem, MissingImages, NativeBuildError, ToolchainError
from test_cli_store import INFO, Image

SOURCE = Path(__file__).resolve().parents[1] / "v3python"


def kiln(*words: str, code: str | None = None) -> subprocess.CompletedProcess[str]:
    run = ["-c", code] if code else ["-m", "kiln_build"]
    return subprocess.run(
        [sys.executable, *run, *words], capture_output=True, text=True, cwd=SOURCE, check=False, timeout=60
    )


def test_without_words_usage_goes_to_stderr():
    done = kiln()
    assert done.returncode == 2 and done.stdout == "" and "usage: kiln <command>" in done.stderr


@pytest.mark.parametrize("word", ["--help", "help", "-h"])
def test_help_lists_every_verb_with_its_summary(word):
    done = kiln(word)
    assert done.returncode == 0
    width = max(map(len, cli.VERBS))
    for verb in cli.VERBS:
        assert f"\n  {verb:{width}} {cli.summary(verb)}\n" in done.stdout
        assert len(cli.summary(verb)) > 10


def test_an_unknown_verb():
    done = kiln("targts")
    assert (done.returncode, done.stderr) == (
        2,
        f"kiln: unknown command 'targts'; did you mean 'targets'? the commands are {', '.join(cli.VERBS)}\n",
    )


@pytest.mark.parametrize("word", ["--version", "-V", "version"])
def test_version(word):
    done = kiln(word)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"kiln {__version__}\n", "")


def test_the_version_is_the_one_that_the_changelog_begins_with():
    assert re.search(r"^## (\S+)", (SOURCE.parent / "CHANGELOG.md").read_text(), re.MULTILINE)[1] == __version__


@pytest.mark.parametrize("verb", cli.VERBS)
def test_every_mistake_in_the_words_is_one_sentence(verb, capsys):
    for words in (["--bogus"], ["--jso"], ["a", "b", "c", "d", "e", "f", "g", "--nonsense=1"]):
        assert cli.main([verb, *words]) == 2
        said = capsys.readouterr()
        assert said.out == "" and said.err.startswith("kiln: ") and said.err.count("\n") == 1
        assert f"`kiln {verb}` " in said.err or "unknown" in said.err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["list"], "`kiln list` lacks artifact; for example: `kiln list output/"),
        (["build", "input"], "`kiln build` lacks workspace, output, version, targets; for example"),
        (
            ["inspect", "--html"],
            "`kiln inspect`: --html expected one argument; for example: `kiln inspect output",
        ),
        (["inspect", "a", "b"], "`kiln inspect` does not take 'b'; for example: `kiln inspect "),
        (
            ["inspect", "a", "--verfy"],
            "`kiln inspect` has no option '--verfy'; did you mean '--verify'? the options are",
        ),
        (["fetch", "--verify", "--relock"], "`kiln fetch`: --relock not allowed with argument --verify; for example"),
        (["fetch", "--parallel", "many"], "--parallel many is invalid; expected a whole number from 1 to 1000"),
        (["plan", "--jobs", "0"], "--jobs 0 is invalid; expected a whole number from 1 to 10000"),
        (["plan", "--profile", "ful"], "unknown profile 'ful'; did you mean 'full'? the profiles are core, full"),
        (["plan", "--select", "x"], "--select: 'x' is not choice=value,value; expected for example"),
        (["plan", "--job=3"], "`kiln plan` has no option '--job=3'; did you mean '--jobs'? the options are"),
        (["plan", "--bogus"], "`kiln plan` has no option '--bogus'; the options are"),  # alike in dashes alone
        (["plan", "nope"], "unknown target 'nope'; the targets are"),
        (["worker"], "`kiln worker` lacks scheduler; for example"),  # its options may be left out
        (["plan", "--jobs", ""], "--jobs is empty; give a whole number from 1 to 10000"),
        (["simulate", "--price", " "], "--price is empty; give a number from 0 to"),
        (["simulate", "--workers", ""], "--workers is empty; give a whole number from 1 to"),
        (["simulate", "--workers", "8,,64"], "--workers 8,,64 has a comma too many; give values with one comma"),
        (["bench", "--only", "forward,"], "--only forward, has a comma too many; give values with one comma"),
        (["clean", ".", "--keep", "ven"], "unknown part 'ven'; did you mean 'venv'? the parts are venv, "),
    ],
)
def test_mistakes_name_what_is_wrong_and_what_is_right(words, sentence, capsys):
    assert cli.main(words) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"kiln: {sentence}") and said.count("\n") == 1


BUILD = ["build", str(SOURCE.parent / "input"), "w", "o", "0.1", "sm_90"]


@pytest.mark.parametrize(
    ("option", "word", "code", "sentence"),
    [
        ("--cache", "x", 2, "--cache=x is not the address of a cache; expected"),
        ("--cache", "http://[x", 2, "--cache is not the address of a cache; expected"),
        ("--cache", "http://a:b@h/k", 2, "--cache=http://...@h has a login in its address"),
        ("--cache", "ftp://h/k", 2, "--cache=ftp://h/k is of an unknown kind; give an address with http, https, s3"),
        ("--scheduler", "host", 2, "--scheduler=host is not a scheduler's address; expected"),
        ("--shard", "5/3", 2, "--shard=5/3 is no shard; expected"),
        (
            "--family",
            "A",
            2,
            "--family=A is invalid: 'A' is not the name of a family; expected for example norm,silu\n",
        ),
        ("--log-json", "-1", 2, "--log-json=-1 is not a descriptor; give the number of an open one, or a file's name"),
        ("--log-json", "/", 7, "--log-json=/ is a folder; give a file, or an open descriptor's number"),
        ("--log-json", "999", 7, "--log-json=999 is not an open descriptor; give a file, or open it: 999>"),
    ],
)
def test_a_sentence_names_the_option_if_that_was_given(option, word, code, sentence, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert cli.main([*BUILD, option, word]) == code
    assert capsys.readouterr().err.startswith(f"kiln: {sentence}") and list(tmp_path.iterdir()) == []


def test_and_the_variable_if_that_was_set(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KILN_CACHE", "x")
    assert cli.main(BUILD) == 2
    assert capsys.readouterr().err.startswith("kiln: KILN_CACHE=x is not the address of a cache")


def test_durations_that_are_not_there_are_named_by_their_option(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert cli.main([*BUILD, "--shard", "1/3", "--durations", "no"]) == 7
    assert capsys.readouterr().err.startswith("kiln: --durations=no is not a file; give a copy")


def test_a_log_goes_to_no_descriptor_that_is_only_read(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    with open(os.devnull) as file:
        number = file.fileno()
        assert cli.main([*BUILD, "--log-json", str(number)]) == 7
    assert f"--log-json={number} is a descriptor that cannot be written; give a file" in capsys.readouterr().err


def test_a_verb_that_lacks_a_package_says_so_before_its_work(capsys, monkeypatch, tmp_path):
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "deflate" else real(name))
    release = tmp_path / "release.tar.gz"
    release.touch()
    assert cli.main(["split", str(release), str(tmp_path / "parts")]) == 7
    assert "split needs the package deflate, which this Python lacks; ./kiln" in capsys.readouterr().err
    assert not (tmp_path / "parts").exists()


def empty_words() -> Iterator[list[str]]:
    """Each verb with each of its options, and each of its positional arguments, empty."""
    for verb in cli.VERBS:
        parser = Parser(verb, "", "x")
        importlib.import_module(f"kiln_build.cli.{verb.replace('-', '_')}").add_arguments(parser)
        taking = [action for action in parser._actions if action.nargs != 0]
        positionals = [action for action in taking if not action.option_strings]
        required = ["x"] * sum(action.required for action in positionals)
        yield from ([verb, *required, f"{action.option_strings[0]}="] for action in taking if action.option_strings)
        for number in range(len(positionals)):
            yield [verb, *required[:number], "", *required[number + 1 :]]


@pytest.mark.parametrize("words", [*empty_words()], ids=" ".join)
def test_an_empty_word_is_refused_by_its_name(words, capsys):
    assert cli.main(words) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    if words[-1].startswith("--") and "is empty" in said:
        assert words[-1].rstrip("=") in said
    assert re.search(
        "is empty; give |empty target|unknown (part|profile|configuration|action|format) ''|is invalid; expected", said
    )


@pytest.mark.parametrize(
    "words",
    [
        ["inspect", "/nowhere"],
        ["list", "/nowhere"],
        ["recipes", "/nowhere"],
        ["plan", "--recipe", "/nowhere"],
        ["plan", "--tuning", "/nowhere"],
        ["plan", "--store", "/nowhere"],
        ["store", "--store", "/nowhere"],
        ["clean", "/nowhere"],
        ["doctor", "--input", "/nowhere", "--json"],
        ["fetch", "--input", "/nowhere"],
        ["fetch", "--unbundle", "/nowhere"],
        ["fetch", "--input", "/nowhere", "--relock"],
        ["build", "/nowhere", "w", "o", "0.1", "sm_90"],
    ],
)
def test_what_is_not_there_is_7_whichever_command_is_told_of_it(words, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main(words) == 7
    said = capsys.readouterr()
    assert "/nowhere" in said.err + said.out and "Traceback" not in said.err and list(tmp_path.iterdir()) == []


def test_a_folder_without_tuned_rules_is_7(tmp_path, capsys):
    assert cli.main(["plan", "sm_90", "--tuning", str(tmp_path)]) == 7
    assert f"--tuning {tmp_path} has no rules, FAMILY/TARGET.yaml; give a folder with some" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["packers=0"], "--cost packers=0 is invalid; expected a whole number from 1 on behind packers="),
        (["pack=1", "pack=2"], "--cost pack is given twice; give it once"),
    ],
)
def test_costs_that_cannot_be_meant(words, why, capsys):
    assert cli.main(["simulate", "sm_90", *(option for word in words for option in ("--cost", word))]) == 2
    assert why in capsys.readouterr().err


@pytest.mark.parametrize("words", [["clean"], ["store", "--store"], ["plan", "--store"], ["inspect"], ["recipes"]])
def test_names_that_no_file_can_have(words, capsys):
    assert cli.main([*words, "a" * 300]) == 7
    assert "(File name too long)" in capsys.readouterr().err


def without(*packages: str) -> str:
    """The program `kiln` in a Python that has not these packages."""
    return (
        f"import sys\nfor name in {packages}:\n    sys.modules[name] = None\n"
        "from kiln_build.cli import main\nsys.exit(main(sys.argv[1:]))\n"
    )


OF_A_BUILD = ("yaml", "msgspec", "requests", "tqdm", "jinja2", "triton", "packaging")


@pytest.mark.parametrize("verb", cli.VERBS)
def test_every_verb_shows_an_example_in_any_python(verb):
    done = kiln(verb, "--help", code=without(*OF_A_BUILD, "elftools", "zstandard", "deflate"))
    assert done.returncode == 0, done.stderr
    assert f"kiln {verb}" in done.stdout.partition("example")[2]
    assert (" --json " in done.stdout) == (verb not in ("build", "worker"))  # these two have progress alone


def test_only_the_verb_asked_for_is_loaded():
    # `inspect` runs where only zstandard and pyelftools are installed.
    done = kiln("inspect", "/nowhere.pack", code=without(*OF_A_BUILD))
    assert "nowhere.pack" in done.stderr and "Traceback" not in done.stderr
    assert done.returncode not in (0, 1)


def fake_verb(monkeypatch, run):
    module = type(sys)("kiln_build.cli.clean")
    module.add_arguments, module.run = lambda parser: None, run
    monkeypatch.setitem(sys.modules, "kiln_build.cli.clean", module)


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


@pytest.mark.parametrize(
    ("module", "start"),
    [
        ("kiln_recipe.errors", "import runpy; runpy.run_module('kiln_build', run_name='__main__')"),
        ("kiln_cli.verbs", "from kiln_cli import main; sys.exit(main())"),
    ],
)
def test_an_interruption_while_modules_are_imported(module, start):
    stop = (
        "import sys\nclass Stop:\n    def find_spec(self, name, *_):\n"
        f"        if name == {module!r}: raise KeyboardInterrupt\nsys.meta_path.insert(0, Stop())\n"
    )
    done = kiln("targets", code=stop + start)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "kiln: interrupted\n")


def test_a_reader_that_goes_away_is_no_error():
    done = subprocess.run(
        f"{shlex.quote(sys.executable)} -m kiln_build targets --json | head -c 1",
        shell=True,
        capture_output=True,
        text=True,
        cwd=SOURCE,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("[", "")


@pytest.mark.parametrize(
    "words", ["--help", "plan --help", "--version", "targets --json", "recipes", "inspect --schema"]
)
def test_output_that_nobody_takes(words):
    for shell, code in (("| true; exit ${PIPESTATUS[0]}", (0, 141)), (">/dev/full", (0, 7)), (">&-", (7,))):
        done = subprocess.run(
            ["bash", "-c", f"{shlex.quote(sys.executable)} -m kiln_build {words} {shell}"],
            capture_output=True, text=True, cwd=SOURCE, check=False,
        )  # fmt: skip
        assert done.returncode in code and "Traceback" not in done.stderr and "ignored" not in done.stderr
        if done.returncode == 7:
            full = "the output cannot be written (No space left on device); make room on its disk"
            closed = "standard output is closed; leave it open, or send it to a file or /dev/null"
            assert done.stderr == f"kiln: {closed if shell == '>&-' else full}\n"


@pytest.mark.parametrize(
    "words", [["targets"], ["recipes"], ["plan", "sm_90"], ["doctor"], ["store", "--store"], ["clean"]]
)
def test_json_is_json(words, tmp_path, capsys):
    if words[0] in ("store", "clean"):
        LocalStore(tmp_path / "store").put("1" * 64, Image(b"code", INFO), "2" * 64, 1.0)
        (tmp_path / ".kiln-workspace").touch()
        words = [*words, str(tmp_path)]
    assert cli.main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)


def test_clean_removes_what_builds_made_and_nothing_else(tmp_path, capsys):
    assert cli.main(["clean", str(tmp_path)]) == 7
    assert "is not a build workspace" in capsys.readouterr().err
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
    monkeypatch.setenv("KILN_ENGINE", "lxc")
    assert cli.main(["doctor"]) == 7
    assert "bad   variable     KILN_ENGINE=lxc is unknown" in capsys.readouterr().out
    monkeypatch.delenv("KILN_ENGINE")
    monkeypatch.setenv("KILN_JOBS", "none")
    assert cli.main(["doctor", "--input", str(tmp_path)]) == 7
    said = capsys.readouterr().out
    assert "bad   variable     KILN_JOBS=none is invalid" in said
    assert f"bad   cache        {tmp_path}/toolchain.lock.yaml cannot be read" in said


@pytest.fixture
def build_words(tmp_path):
    return ["build", str(Path(__file__).parents[1] / "input"), str(tmp_path / "w"), str(tmp_path / "o"), "1.0", "sm_90"]


def test_build_takes_nobodys_home_for_a_workspace(build_words, tmp_path, capsys, monkeypatch):
    from kiln_build.release import build

    monkeypatch.setattr(build, "build", lambda _: pytest.fail("it must not begin"))
    monkeypatch.setenv("KILN_CLEAN", "1")
    for name in ("build", "store", "letters"):
        (tmp_path / "w" / name).mkdir(parents=True)
    assert cli.main(build_words) == 7
    assert "holds 'build', which no build makes; give an empty or new folder" in capsys.readouterr().err
    assert {path.name for path in (tmp_path / "w").iterdir()} == {"build", "store", "letters"}


def test_build_holds_its_workspace_and_cleans_all_of_it(build_words, tmp_path, capsys, monkeypatch):
    from kiln_build.front import workspace
    from kiln_build.release import build
    from kiln_recipe.errors import EnvironmentProblem

    def held(options):
        with pytest.raises(EnvironmentProblem, match="is in use by another Kiln process"):
            with workspace.locked(options.workspace, print, wait=False):
                pass
        return "a tarball"

    monkeypatch.setattr(build, "build", held)
    assert cli.main(build_words) == 0
    for name in ("build", "store", "logs", "mine"):
        (tmp_path / "w" / name).mkdir()
    monkeypatch.setenv("KILN_CLEAN", "1")
    assert cli.main(build_words) == 0
    assert capsys.readouterr().out == "a tarball\n" * 2
    assert {path.name for path in (tmp_path / "w").iterdir()} == {".kiln-workspace", "mine"}
    assert cli.main([*build_words[:-1], "sm_91"]) == 2  # what is refused cleans nothing


def test_what_clean_cannot_remove_is_one_sentence(tmp_path, capsys, monkeypatch):
    from kiln_build.front import workspace

    def busy(path):
        raise OSError(16, "Device or resource busy", f"{path}/held")

    monkeypatch.setattr(workspace.shutil, "rmtree", busy)
    (tmp_path / ".kiln-workspace").touch()
    (tmp_path / "store").mkdir()
    assert cli.main(["clean", str(tmp_path)]) == 7
    said = f"kiln: {tmp_path}/store cannot be removed (Device or resource busy); remove it, or"
    assert capsys.readouterr().err.startswith(said)


@pytest.mark.parametrize("verb", [[], *([verb] for verb in cli.VERBS)], ids=lambda verb: verb[0] if verb else "all")
def test_help_begins_with_a_sentence_and_an_example(capsys, verb):
    assert cli.main([*verb, "--help"]) == 0
    first, empty, title, example, *rest = capsys.readouterr().out.splitlines()
    assert first[0].isupper() and first.endswith(".") and not empty and title in ("example:", "examples:")
    assert example.startswith(f"  kiln {' '.join(verb)}".rstrip()) and any(line.startswith("usage: ") for line in rest)


@pytest.mark.parametrize("verb", ["inspect", "list", "model", "verify", "report", "diff", "wheel", "coverage"])
@pytest.mark.parametrize("locale", ["C", "C.UTF-8"])
def test_a_name_of_a_file_stays_in_its_line(verb, locale, tmp_path):
    name = os.fsencode(tmp_path) + b"/a\nkiln: whole\x1b[2J\xff.pack"
    Path(os.fsdecode(name)).write_bytes(b"KILNPACK")
    more = {
        "report": ["x.html"], "verify": ["--key", name], "diff": [name], "wheel": ["out"],
        "coverage": ["--model", name],
    }.get(verb, [])  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", "kiln_build", verb, name, *more], capture_output=True, cwd=tmp_path, check=False,
        env={**os.environ, "LC_ALL": locale, "PYTHONPATH": str(SOURCE)}, timeout=60,
    )  # fmt: skip
    assert done.returncode not in (0, 1) and done.stderr.count(b"\n") == 1 and b"\x1b" not in done.stderr
    assert b"a\\nkiln: whole\\x1b[2J" in done.stderr and not done.stdout


@pytest.mark.parametrize("verb", cli.VERBS)
def test_no_refusal_of_an_empty_word_says_a_word_twice(verb):
    parser = Parser("kiln", "", "kiln")
    importlib.import_module(f"kiln_build.cli.{verb.replace('-', '_')}").add_arguments(parser)
    for action in parser._actions:
        for word in ("", " ", "\t") if action.type else ():
            try:
                action.type(word)
            except Exception as error:  # noqa: BLE001  (argparse's, a UsageError, or that of a number)
                assert not re.search(r"\b(\w+) \1\b", str(error)), (action.dest, str(error))


@pytest.mark.parametrize(
    "error", [BuildFailed, MissingImages, NativeBuildError, partial(EnvironmentProblem, has_lines=True)]
)
def test_a_list_below_a_sentence_keeps_its_lines(error, capsys):
    def fail(words: list[str]) -> int:
        raise error("2 are not there:\n  one\x1b[2J\n  two")

    assert guarded(fail, ["build"]) == error("").exit_code
    assert capsys.readouterr().err == "kiln: 2 are not there:\n  one\\x1b[2J\n  two\n"
