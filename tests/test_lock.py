"""The toolchain's lock: the committed one holds together; a broken one is refused by name."""

from __future__ import annotations

import dataclasses
import re
import sys
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kiln_build.fetch.relock import FRONT_NAME, best_wheel
from kiln_recipe.compile.lock import (
    LOCK_NAME,
    Lock,
    LockedAddress,
    LockedFile,
    Package,
    _read_written,
    check_python,
    parse_draft,
    parse_lock,
    read_lock,
    write_lock,
)
from kiln_recipe.errors import ToolchainError, UsageError

INPUT = Path(__file__).resolve().parents[1] / "input"


def test_the_committed_lock_serves_every_python():
    lock = read_lock(INPUT / LOCK_NAME)
    assert lock.pythons == ("3.10", "3.11", "3.12", "3.13", "3.14")
    needed = {"triton", "ziglang", "zstandard", "Jinja2", "pyelftools", "deflate", "msgspec", "PyYAML"}
    for python in lock.pythons:
        lines = lock.requirements(python, ("front", "build")).splitlines()
        assert needed <= {line.partition("==")[0] for line in lines}
        assert all(line.count("--hash=sha256:") == 1 for line in lines)
        # One Triton and no more: each is 200 MB.
        assert sum(file.name.startswith("triton-") for file in lock.wanted([python])) == 1
    assert lock.source_of("zstandard").name == "zstandard-0.25.0.tar.gz"
    only_read = lock.source_of("pymonocypher")
    assert only_read in lock.wanted(["3.10"], ()) and "pymonocypher" not in lock.requirements(
        "3.12", ("build", "source")
    )
    assert all(package.licence for package in lock.packages)


def test_no_lock_names_an_index():
    tests = Path(__file__).parent
    for path in (INPUT / LOCK_NAME, INPUT / FRONT_NAME, *tests.glob("*.lock")):
        assert "://" not in path.read_text(), path


def test_no_folder_of_tests_is_taken_for_a_package():
    """Where a package is missing Python takes a folder of its name on its path for one, and nothing is skipped."""
    tests = Path(__file__).parent
    locked = "\n".join(path.read_text() for path in tests.glob("*.lock"))
    packages = {*re.findall(r"^([\w.-]+)==", locked, re.MULTILINE)}
    packages |= {package.name for package in read_lock(INPUT / LOCK_NAME).packages}
    assert {"torch", "triton", "pytest"} <= packages
    assert not {name.lower() for name in packages} & {path.name for path in tests.iterdir() if path.is_dir()}


def without_packages(monkeypatch):
    for name in ("yaml", "msgspec"):
        monkeypatch.setitem(sys.modules, name, None)
    parse_lock.cache_clear()


def test_what_kiln_wrote_is_read_without_a_package(monkeypatch):
    text = (INPUT / LOCK_NAME).read_bytes()
    addresses = (LockedAddress(url="https://x.org/y.tgz", name="y.tgz", size=5, sha256="1" * 64, licence="MIT"),)
    more = write_lock(lock(files=addresses, overrides={"gfx12": "a==1.0"}), "# x\n# y").encode()
    edited = text + b"# a word more\n"
    whole = [parse_draft(one, "lock.yaml") for one in (text, more, edited)]
    assert whole[0] == whole[2]
    without_packages(monkeypatch)
    assert parse_lock(text, "lock.yaml") == whole[0]
    monkeypatch.setattr("kiln_recipe.compile.lock._problems", lambda lock: ())
    assert parse_lock(more, "lock.yaml") == whole[1]
    with pytest.raises(ToolchainError, match="lock.yaml is not as `kiln fetch --relock` writes it"):
        parse_lock(edited, "lock.yaml")


def test_the_front_lock_is_made_from_the_lock():
    assert (INPUT / FRONT_NAME).read_text() == read_lock(INPUT / LOCK_NAME).front_requirements()


def test_write_and_read_again():
    text = (INPUT / LOCK_NAME).read_text()
    header = "".join(line for line in text.splitlines(keepends=True) if line.startswith("#"))
    assert write_lock(read_lock(INPUT / LOCK_NAME), header) == text


def file(name="a-1.0-py3-none-any.whl", **changes) -> LockedFile:
    return LockedFile(**{"name": name, "pythons": ("3.12",), "size": 1, "sha256": "0" * 64, **changes})


def lock(**changes) -> Lock:
    package = Package(name="a", version="1.0", licence="MIT", use="build", files=(file(),))
    return Lock(**{"format": 1, "pythons": ("3.12",), "packages": (package,), **changes})


def test_other_files_and_overrides():
    triton = Package(name="triton", version="3.9.0", licence="MIT", use="override", files=(file("triton.whl"),))
    address = LockedAddress(url="https://x.org/y.tgz", name="y.tgz", size=5, sha256="1" * 64, licence="MIT")
    made = lock(packages=(*lock().packages, triton), overrides={"gfx12": "triton==3.9.0"}, files=(address,))
    read = parse_lock(write_lock(made, "# x").encode(), "x")
    assert read == made
    assert read.override_of(("gfx1201", "gfx12")) == triton and read.override_of(("sm_90",)) is None
    assert read.requirements("3.12", ("override",), only=("triton==3.9.0",)).startswith("triton==3.9.0 --hash")
    assert read.requirements("3.12", ("build",), without=("a",)) == ""
    assert [f.name for f in read.wanted(["3.12"])] == ["a-1.0-py3-none-any.whl", "triton.whl", "y.tgz"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"format": 2}, "format 2"),
        ({"pythons": ("3.11", "3.12")}, "a==1.0 has 0 files for Python 3.11 instead of one"),
        ({"overrides": {"sm_90": "triton==3.9.0"}}, "the override of sm_90 asks for triton==3.9.0"),
    ],
)
def test_contradictions(changes, said):
    with pytest.raises(ToolchainError, match=said):
        parse_lock(write_lock(lock(**changes), "#").encode(), "lock.yaml")


@pytest.mark.parametrize("name", ["../evil.whl", "/etc/passwd", "a/b.whl", ".hidden", "", "a b"])
def test_names_that_are_no_plain_files(name):
    package = dataclasses.replace(lock().packages[0], files=(file(name),))
    text = msgspec.yaml.encode(lock(packages=(package,))) if hasattr(msgspec, "yaml") else b""
    with pytest.raises(ToolchainError, match="not a plain file name"):
        parse_lock(text, "lock.yaml")


def test_a_malformed_digest():
    package = dataclasses.replace(lock().packages[0], files=(file(sha256="0" * 63 + "G"),))
    with pytest.raises(ToolchainError, match="malformed size or sha256"):
        parse_lock(msgspec.yaml.encode(lock(packages=(package,))), "lock.yaml")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"format: [", "lock.yaml:[12] is not YAML"),
        (b"format: 1", "missing required field `pythons`"),
        (b"format: one\npythons: []\npackages: []", r"`int`, got `str` - at `\$.format`"),
        (b"format: 1\npythons: []\npackages: []\nurl: x", "unknown field `url`"),
        (b"", "not a toolchain lock"),
    ],
)
def test_malformed_locks(text, said):
    with pytest.raises(ToolchainError, match=said):
        parse_lock(text, "lock.yaml")


def test_what_yaml_refuses_is_not_read_without_packages_either():
    text = (INPUT / LOCK_NAME).read_bytes()
    assert _read_written(text) is not None
    for old, new in ((b'"3.10"', b'"3.1\\q0"'), (b'"3.10"', b'"3.10\x07"'), (b'version: "', b'version: "\\')):
        with pytest.raises(ToolchainError, match="is not YAML"):
            parse_lock(text.replace(old, new, 1), "lock.yaml")
    assert _read_written(text.replace(b".whl, pythons", b".whl , pythons", 1)) is None  # YAML drops that space


@given(st.data())
def test_a_changed_lock_never_reads_differently_without_packages(data):
    text = (INPUT / LOCK_NAME).read_bytes()
    at = data.draw(st.integers(0, len(text)))
    put = data.draw(st.sampled_from([b"", b"\n", b" ", b"#", b'"', b"'", b": ", b"0", b"- ", b"\\", b"x"]))
    changed = text[:at] + put + text[at + data.draw(st.integers(0, 2)) :]
    plain = _read_written(changed)
    if plain is not None:
        assert plain == parse_draft(changed, "lock.yaml")


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(text):
    try:
        parse_lock(text, "lock.yaml")
    except ToolchainError:
        pass


def test_a_python_that_is_not_locked():
    with pytest.raises(UsageError, match=re.escape("Python 3.9 is not one that the toolchain is locked for: 3.12")):
        check_python(lock(), "3.9")


@pytest.mark.parametrize(
    ("python", "best"),
    [
        ("3.12", "a-1-cp312-cp312-manylinux_2_27_x86_64.manylinux_2_28_x86_64.whl"),
        ("3.11", "a-1-cp310-abi3-manylinux1_x86_64.whl"),
    ],
)
def test_the_best_wheel(python, best):
    names = [
        "a-1-py3-none-any.whl",
        "a-1-cp310-abi3-manylinux1_x86_64.whl",
        "a-1-cp312-cp312-manylinux_2_34_x86_64.whl",
        "a-1-cp312-cp312-manylinux_2_27_x86_64.manylinux_2_28_x86_64.whl",
        "a-1-cp312-cp312-musllinux_1_2_x86_64.whl",
        "a-1-cp312-cp312-win_amd64.whl",
        "a-1-cp312-cp312-manylinux_2_28_aarch64.whl",
    ]
    assert best_wheel(names, python) == best
    assert best_wheel(names[4:], python) is None
