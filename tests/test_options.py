"""Words and variables become Options, or one sentence that names what is wrong."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kiln_build import cli
from kiln_build.base.folder import SharedFolder
from kiln_build.options import variables, words
from kiln_build.options.options import (
    check_variables,
    environment_of,
    make_options,
    read_build_variables,
    read_front_door,
    spell,
)
from kiln_build.store.stores import open_store
from kiln_recipe.errors import EnvironmentProblem, KilnError, UsageError
from kiln_recipe.selection import parse_selection


@pytest.fixture
def place(tmp_path):
    (tmp_path / "input").mkdir()
    (tmp_path / "input" / "toolchain.lock.yaml").touch()
    return tmp_path


def door(place, *, environment=None, **words):
    given_words = {
        "input": "input",
        "workspace": "work",
        "output": "out",
        "version": "0.1.0b",
        "targets": "sm_90",
        **words,
    }
    return read_front_door(list(given_words.values()), environment or {}, place)


def test_words_become_absolute_whatever_they_hold(place):
    made = door(place, workspace="a b/../w", output=str(place / "o o"))
    assert (made.input, made.workspace, made.output) == (place / "input", place / "w", place / "o o")
    assert list(place.iterdir()) == [place / "input"]  # nothing is made yet
    assert door(place, workspace="tmpfs").workspace is None
    assert door(place, workspace="./tmpfs").workspace == place / "tmpfs"


@pytest.mark.parametrize("version", ["0.1", "1.2.3", "0.1.0b", "1.2rc1", "10.20.30post4"])
def test_versions(place, version):
    assert door(place, version=version).version == version


@pytest.mark.parametrize(
    "version", ["", "1", "v1.2", "1.2/3", "../1.2", "1.2.3.4", "1.2-b", "1.2.3b1c", "1.2 ", "1.2\n", "1.2B", "１.2"]
)
def test_versions_that_cannot_be(place, version):
    with pytest.raises(UsageError, match=rf"version {re.escape(repr(version))} is not X.Y"):
        door(place, version=version)


@pytest.mark.parametrize(
    ("version", "suffix"), [("1.2-b", "-b"), ("1.2.3.4", ".4"), ("1.2.3b1c", "b1c"), ("1.2B", "B"), ("1.2\n", r"\n")]
)
def test_a_bad_suffix_is_named(place, version, suffix):
    said = (
        rf"suffix of small letters and then digits, and '{re.escape(suffix)}' is not such a suffix; for example 0.1.0b"
    )
    with pytest.raises(UsageError, match=said):
        door(place, version=version)


@given(st.text())
def test_a_version_is_a_plain_file_name_or_refused(version):
    try:
        words.check_version(version)
    except UsageError:
        return
    assert os.path.basename(version) == version and version.isascii() and not version.startswith((".", "-"))


@pytest.mark.parametrize(
    ("words", "error", "said"),
    [
        ({"input": "nowhere"}, EnvironmentProblem, "input {place}/nowhere is not a folder"),
        ({"input": "."}, EnvironmentProblem, "input {place} has no toolchain.lock.yaml"),
        ({"input": ""}, UsageError, "the input is empty"),
        ({"workspace": ""}, UsageError, "the workspace is empty; give a folder, or the word tmpfs"),
        ({"output": ""}, UsageError, "the output is empty"),
        ({"output": "work"}, UsageError, "output {place}/work is the workspace, which only holds temporary files"),
        ({"output": "same/way", "workspace": "way"}, UsageError, "output {place}/same/way is the workspace"),
        ({"output": "a" * 300}, EnvironmentProblem, "cannot be written (File name too long); give a folder"),
        ({"output": "work/build"}, UsageError, "output {place}/work/build is in {place}/work/build, which only holds"),
        (
            {"output": "work/tmp/a/b"},
            UsageError,
            "output {place}/work/tmp/a/b is in {place}/work/tmp, which only holds",
        ),
        ({"output": "same/way/venv", "workspace": "way"}, UsageError, "same/way/venv is in {place}/way/venv, which"),
        ({"output": "input"}, UsageError, "output {place}/input is in the input, which only holds what builds read"),
        ({"output": "input/cache"}, UsageError, "output {place}/input/cache is in the input"),
        ({"output": "letter"}, EnvironmentProblem, "output {place}/letter is a file; give a folder"),
        (
            {"workspace": "input/toolchain.lock.yaml"},
            EnvironmentProblem,
            "is a file; give a folder, a name that does not exist yet",
        ),
        ({"workspace": "broken"}, EnvironmentProblem, "workspace {place}/broken is a dangling link"),
        ({"output": "/proc/nowhere"}, EnvironmentProblem, "output /proc/nowhere cannot be written"),
        ({"targets": "  "}, UsageError, "names no target"),
    ],
)
def test_bad_words(place, words, error, said):
    (place / "broken").symlink_to("nowhere")
    (place / "same").symlink_to(".")
    (place / "letter").touch()
    with pytest.raises(error) as caught:
        door(place, **words)
    assert said.replace("{place}", str(place)) in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("KILN_PROFILE", "fast", "KILN_PROFILE=fast is unknown; expected one of core, full"),
        ("KILN_CONFIGURATIONS", "some", "KILN_CONFIGURATIONS=some is unknown; expected one of chosen, all"),
        ("KILN_ENGINE", "lxc", "expected one of auto, docker, podman, buildah, none"),
        ("KILN_SOURCE", "head", "expected one of tag, tree"),
        ("KILN_TRITON", "git", "expected one of wheel, source"),
        ("KILN_SCHEDULER", "node1:8786", "is not a scheduler's address; expected for example tcp://host:8786"),
        ("KILN_SCHEDULER", "tcp://node1", "is not a scheduler's address; expected for example tcp://host:8786"),
        ("KILN_SCHEDULER", "tcp://node1:99999", "is not a scheduler's address; expected for example tcp://host:8786"),
        ("KILN_CACHE", "http://[x", "KILN_CACHE is not the address of a cache; expected for example http://host:8080"),
        ("KILN_CACHE", "http://h:99999", "KILN_CACHE is not the address of a cache; expected for example http://h"),
        ("KILN_BUILDER", "me", "is not an address; expected for example https://"),
        ("KILN_JOBS", "many", "KILN_JOBS=many is invalid; expected a whole number from 1 to 10000"),
        ("KILN_JOBS", "0", "KILN_JOBS=0"),
        ("KILN_JOBS", "٣", "KILN_JOBS=٣"),
        ("KILN_JOBS", "-2", "KILN_JOBS=-2"),
        ("KILN_TIMEOUT", "nan", "KILN_TIMEOUT=nan"),
        ("KILN_NOIMAGE", "maybe", "KILN_NOIMAGE=maybe is neither yes nor no"),
        ("KILN_PTX", "2", "KILN_PTX=2 is neither yes nor no; expected one of 1, yes, true, on, 0, no, false, off"),
        ("KILN_FAMILIES", "a,Norm", "KILN_FAMILIES=a,Norm is invalid: 'Norm' is not the name of a family; expected"),
        ("KILN_FAMILIES", "KILN_RECIPES", "KILN_FAMILIES names KILN_RECIPES, which is not set; name recipes there, or"),
        ("KILN_RECIPES", "::", "KILN_RECIPES=:: names no recipe; give paths of recipe.yaml files"),
        ("KILN_SELECT", "dtype", "KILN_SELECT: 'dtype' is not choice=value,value"),
        ("KILN_SELECT", "dtype=", "'dtype='"),
        ("KILN_SELECT", "a=1;a=2", "names 'a' twice"),
        ("KILN_SELECT", "a=1;;", "'a=1;;' has an empty choice; expected for example"),
        ("KILN_SELECT", "a=1; ;b=2", "has an empty choice"),
        ("KILN_SELECT", "a=1,,2", "'a=1,,2'"),
    ],
)
def test_bad_variables(place, name, value, said):
    with pytest.raises(UsageError) as caught:
        door(place, environment={name: value})
    assert said in str(caught.value)


def test_a_store_that_is_there_may_be_read_only(tmp_path, monkeypatch):
    def refuse(**_):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr("tempfile.mkdtemp", refuse)
    with pytest.raises(EnvironmentProblem, match="^KILN_STORE=s cannot be written .Read-only file system.; give"):
        words.check_store("s", tmp_path)
    assert SharedFolder(tmp_path / "s").refusal() == "Read-only file system"
    (tmp_path / "s").mkdir()
    (tmp_path / "s/format").touch()
    assert words.check_store("s", tmp_path) == str(tmp_path / "s")


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("KILN_STORE", "input/toolchain.lock.yaml", "KILN_STORE=input/toolchain.lock.yaml is a file; give a folder"),
        (
            "KILN_STORE",
            "/proc/store",
            "KILN_STORE=/proc/store cannot be written (No such file or directory); give a folder",
        ),
        ("KILN_STORE", "input/toolchain.lock.yaml/s", "cannot be written (Not a directory)"),
        ("KILN_RECIPES", "input", "names input, which is a folder; it contains no recipe.yaml; give paths"),
        ("KILN_RECIPES", "norm", "names norm, which is a folder; give the file in it: norm/recipe.yaml"),
        ("KILN_RECIPES", "gone.yaml", "KILN_RECIPES names gone.yaml, which is not a file"),
        (
            "KILN_LOG_JSON",
            "999",
            "KILN_LOG_JSON=999 is not an open descriptor; give a file, or open it: 999>progress.jsonl",
        ),
        (
            "KILN_LOG_JSON",
            "note",
            "KILN_LOG_JSON=note exists and is not a log of JSON lines, so it stays; name another",
        ),
    ],
)
def test_variables_that_name_what_cannot_be_used(place, name, value, said):
    (place / "norm").mkdir()
    (place / "norm" / "recipe.yaml").touch()
    (place / "note").write_text("mine")
    with pytest.raises(EnvironmentProblem) as caught:
        door(place, environment={name: value})
    assert said in str(caught.value)


def test_what_is_for_containers_alone_is_refused_without_one(place):
    for name in ("KILN_SHELL", "LOCAL_USER", "KILN_BASE_IMAGE", "AMDGPU_INSTALLER"):
        with pytest.raises(UsageError, match=f"KILN_ENGINE=none builds without a container, but {name} needs one;"):
            door(place, environment={"KILN_ENGINE": "none", name: "1"})
    assert door(place, environment={"KILN_ENGINE": "none", "LOCAL_USER": "0", "KILN_SHELL": "no"}).engine == "none"
    said = "but KILN_BASE_IMAGE and LOCAL_USER need one;"
    with pytest.raises(UsageError, match=said):
        door(place, environment={"KILN_ENGINE": "none", "KILN_BASE_IMAGE": "b", "LOCAL_USER": "1"})


FULL = {
    "KILN_PROFILE": "full",
    "KILN_CONFIGURATIONS": "all",
    "KILN_SELECT": "dtype=bf16;head_dim=64,128",
    "KILN_JOBS": "3",
    "KILN_TIMEOUT": "12.5",
    "KILN_NOIMAGE": "yes",
    "KILN_CLEAN": "TRUE",
    "KILN_PTX": "on",
    "KILN_STORE": "s",
    "KILN_RECIPES": "norm.yaml:a b/recipe.yaml",
    "KILN_FAMILIES": "KILN_RECIPES, silu",
    "KILN_LOG_JSON": "log.jsonl",
    "KILN_TRITON": "source",
    "KILN_BUILDER": "https://ci.example.org/kiln",
    "KILN_SCHEDULER": "tls://node1:8786",
    "KILN_SCHEDULER_TLS": "certificates",
    "KILN_FROM_STORE": "1",
    "KILN_SHARDS": "100",
    "KILN_DURATIONS": "durations",
    "KILN_CACHE": "https://cache.example.org/kiln",
    "KILN_CACHE_MODE": "read-only",
    "KILN_CACHE_TOKEN": "token",
    "KILN_CACHE_CERTIFICATE": "ca.pem",
    "KILN_CACHE_CA": "ca.pem",
    "KILN_CACHE_KEY": "env:KEY",
    "KILN_CACHE_PASSWORD": "env:PASSWORD",
    "KILN_CACHE_TRUST": "a.pub:b.pub",
    "KILN_SOURCE": "tree",
    "KILN_ENGINE": "podman",
    "KILN_BASE_IMAGE": "site/base:1",
    "KILN_REPLACE": "1",
    "KILN_COSTS": "1",
    "KILN_SHELL": "1",
    "KILN_CA_BUNDLE": "ca.pem",
    "KILN_PYTHON": "bin/python3",
    "AMDGPU_INSTALLER": "https://x/y.rpm",
    "LOCAL_USER": "1",
}


def test_another_process_is_told_the_same_from_any_folder(place):
    others = ("KILN_TEST", "KILN_PACK", "KILN_WORKSPACE")  # of the tests, the runtime, and ./kiln itself
    apart = {"KILN_SHARD": "3/100", "KILN_CACHE_LOGIN": "env:LOGIN"}  # not together with some of the others
    assert {*FULL, *apart} == {name for name in variables.VARIABLES if not name.startswith(others)}
    (place / "a b").mkdir()
    for name in ("norm.yaml", "a b/recipe.yaml", "ca.pem", "durations", "token", "a.pub", "b.pub"):
        (place / name).touch()
    assert door(place, environment=spell(door(place, environment=apart))).build.shard == variables.Shard(3, 100)
    made = door(place, environment=FULL)
    (place / "elsewhere").mkdir()
    words = [made.input, made.workspace, made.output, made.version, made.targets]
    again = read_front_door([str(word) for word in words], spell(made), place / "elsewhere")
    assert again == made and (again.build.store, again.python) == (str(place / "s"), str(place / "bin/python3"))
    plain = door(place)
    assert door(place, environment=spell(plain)) == plain


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({"KILN_SHARD": "3"}, "KILN_SHARD=3 is no shard; expected its number, from 1, and how many there are"),
        ({"KILN_SHARD": "1/2", "KILN_FROM_STORE": "1"}, "KILN_FROM_STORE (--from-store) compiles none; give either"),
        ({"KILN_SHARD": "1/2", "KILN_NOIMAGE": "1"}, "KILN_NOIMAGE compiles none; give either"),
        ({"KILN_SHARDS": "2"}, "KILN_SHARDS (--shards) is for KILN_FROM_STORE=1 (--from-store); a shard is given as"),
        ({"KILN_DURATIONS": "d"}, "KILN_DURATIONS (--durations) divides a plan among shards; give KILN_SHARD"),
        ({"KILN_DURATIONS": "d", "KILN_SHARD": "1/2"}, "KILN_DURATIONS=d is not a file; give a copy of the file"),
    ],
)
def test_shards_that_cannot_be(place, environment, said):
    with pytest.raises(KilnError, match=re.escape(said)):
        door(place, environment=environment)


def test_the_environment_of_another_process(place):
    before = {"PATH": "/bin", "KILN_CLEAN": "1", "KILN_JOBS": "2", "KILN_FOO": "x"}
    made = door(place, environment={"KILN_JOBS": "3"})
    after = environment_of(made, before)
    assert after["PATH"] == "/bin" and after["KILN_JOBS"] == "3" and "KILN_CLEAN" not in after
    assert "KILN_SHELL" not in after  # unset, not empty


def test_a_certificate_that_is_not_there(place):
    with pytest.raises(EnvironmentProblem, match="KILN_CA_BUNDLE=ca.pem is not a file"):
        door(place, environment={"KILN_CA_BUNDLE": "ca.pem"})
    (place / "ca.pem").touch()
    assert door(place, environment={"KILN_CA_BUNDLE": "ca.pem"}).ca_bundle == place / "ca.pem"


def test_selection():
    assert parse_selection(" dtype = bf16 ; head_dim=64, 128,64;") == (
        ("dtype", ("bf16",)),
        ("head_dim", ("64", "128")),
    )
    assert parse_selection("") == ()


@given(st.text())
def test_every_selection_is_read_or_refused(text):
    try:
        made = parse_selection(text)
    except UsageError:
        return
    assert parse_selection(";".join(f"{name}={','.join(values)}" for name, values in made)) == made


@given(st.dictionaries(st.sampled_from(sorted(variables.VARIABLES)), st.text(max_size=8)))
def test_every_environment_is_read_or_refused(environment):
    try:
        made = read_build_variables(environment)
    except KilnError as error:
        assert str(error)
        return
    assert made.job_timeout > 0 and (made.jobs is None or made.jobs > 0)


def test_defaults():
    made = read_build_variables({})
    assert (made.profile, made.jobs, made.no_image, made.ptx, made.store, made.triton) == (
        "core",
        None,
        False,
        False,
        None,
        "wheel",
    )


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("KILN_JOB", "KILN_JOBS"),
        ("KILN_SELECTION", "KILN_SELECT"),
        ("KILN_NO_IMAGE", "KILN_NOIMAGE"),
        ("KILN_TEST_PROCESS", "KILN_TEST_PROCESSES"),
        ("KILN_PROFILES", "KILN_PROFILE"),
    ],
)
def test_a_misspelled_variable_is_refused(name, meant):
    with pytest.raises(UsageError) as caught:
        check_variables({name: "", "KILN_JOBS": "1", "OTHER": ""})
    assert str(caught.value) == f"{name} is set, but nothing reads it; did you mean {meant}? If not, unset it"


def test_a_variable_of_others_is_warned_of():
    own = {*variables.VARIABLES, "OTHER", "_KILN_HELD_WORKSPACE"}
    assert check_variables([*own, "KILN_HOME", "KILN_VERSION"]) == [
        f"{name} is set, but nothing reads it; `bash build.sh --help` lists what is read"
        for name in ("KILN_HOME", "KILN_VERSION")
    ]


@pytest.mark.parametrize("words", [("plan", "sm_90"), ("store", "info"), ("fetch", "--verify")])
def test_commands_refuse_misspelled_variables(words, monkeypatch, capsys):
    monkeypatch.setenv("KILN_JOB", "3")
    assert cli.main(words) == 2
    said = "kiln: KILN_JOB is set, but nothing reads it; did you mean KILN_JOBS? If not, unset it\n"
    assert capsys.readouterr().err == said


def test_options_of_a_build(place):
    recipe = place / "norm" / "recipe.yaml"
    recipe.parent.mkdir()
    recipe.touch()
    variables = read_build_variables({"KILN_RECIPES": "norm/recipe.yaml:", "KILN_JOBS": "3", "KILN_STORE": "s"})
    words = ["input", "work", "out", "1.0", "MI300X;sm_90"]
    sites = (("sm_90", place / "other"),)
    made = make_options(words, variables, Path("/tree"), place, site=place / "site", target_sites=sites)
    assert made.build.recipes == (str(recipe),) and made.build.jobs == 3 and made.store == str(place / "s")
    assert [target.name for target in made.targets] == ["gfx942", "sm_90"]
    assert (made.site_of("sm_90"), made.site_of("gfx942")) == (place / "other", place / "site")
    assert made.cache == place / "input" / "cache"
    plain = make_options(words, read_build_variables({}), Path("/tree"), place, site=place)
    assert plain.store == str(place / "work" / "store") and plain.commit == "unknown"


def test_a_store_may_be_an_address(place):
    variables = read_build_variables({"KILN_STORE": "s3://bucket/images"})
    words = ["input", "work", "out", "1.0", "sm_90"]
    assert make_options(words, variables, Path("/tree"), place, site=place).store == "s3://bucket/images"
    with pytest.raises(UsageError, match="the store s3://bucket/images is of an unknown kind, 's3'; give a folder"):
        open_store("s3://bucket/images")
    assert not (place / "s3:").exists()


def test_options_refuse_a_missing_recipe_and_tmpfs(place):
    with pytest.raises(EnvironmentProblem, match="KILN_RECIPES names gone.yaml"):
        words = ["input", "work", "out", "1.0", "sm_90"]
        make_options(words, read_build_variables({"KILN_RECIPES": "gone.yaml"}), place, place, site=place)
    with pytest.raises(UsageError, match="tmpfs is for build.sh"):
        make_options(["input", "tmpfs", "out", "1.0", "sm_90"], read_build_variables({}), place, place, site=place)
