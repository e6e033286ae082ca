"""The words of a command line, one by one."""

from __future__ import annotations

import pytest

from kiln_build.options import words
from kiln_recipe.console import files
from kiln_recipe.errors import EnvironmentProblem, UsageError
from kiln_recipe.selection import parse_selection


@pytest.mark.parametrize(
    ("version", "said"),
    [
        ("01.2", "and 01 has a leading 0"),
        ("1.02", "and 02 has a leading 0"),
        ("1.2.00", "and 00 has a leading 0"),
        ("99999999999.1.1", "and 99999999999 has more than five digits"),
        ("1.2-b", "and '-b' is not such a suffix"),
    ],
)
def test_versions_that_cannot_be(version, said):
    with pytest.raises(UsageError, match=f"{said}; for example 0.1.0b, 1.2, 1.2.0rc1 or 1.2.0dev20261125"):
        words.check_version(version)


@pytest.mark.parametrize("version", ["0.0", "99999.0.1", "1.2rc01", "10.20.30post4"])
def test_versions_that_can_be(version):
    assert words.check_version(version) == version


@pytest.mark.parametrize("text", [";", " ; ", ";;;"])
def test_a_selection_of_separators_alone_is_not_everything(text):
    with pytest.raises(
        UsageError, match="KILN_SELECT='.*' names no choice; expected for example 'dtype=bf16;head_dim=64,128'"
    ):
        parse_selection(text)
    assert parse_selection("") == parse_selection(" ") == ()


def test_a_new_file_stands_where_links_lead(tmp_path):
    (tmp_path / "link").symlink_to("there")
    assert files.check_new_file("link", tmp_path, "--html", b"<!doctype", "page") == tmp_path / "there"
    (tmp_path / "there").touch()
    assert files.check_new_file(tmp_path / "link", tmp_path, "--html", b"<!doctype", "page") == tmp_path / "there"
    (tmp_path / "astray").symlink_to("no/where")
    for word, said in ((".", "is a folder"), ("no/where", "there is no folder"), ("astray", "there is no folder")):
        with pytest.raises(EnvironmentProblem, match=f"--html {word}:? {said}"):
            files.check_new_file(word, tmp_path, "--html", b"<!doctype", "page")
    with pytest.raises(EnvironmentProblem, match="cannot write /proc/x: .*; give a name in a folder that can"):
        files.check_new_file("/proc/x", tmp_path, "--html", b"<!doctype", "page")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["astray", "link", "there"]
