"""The README says what is: its tables, its program, its links."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from kiln import package
from small_release import ROOT, VERSION, small_release

README = (ROOT / "README.md").read_text()

sys.path.insert(0, str(ROOT / "docs"))
import tables  # noqa: E402


def test_tables_are_those_of_the_code():
    assert tables.filled(README) == README, "run: PYTHONPATH=v3python python3 docs/tables.py"
    assert README.count("<!-- table: ") == len(tables.tables())
    assert all(len(table.splitlines()) > 3 for table in tables.tables().values())


@pytest.mark.parametrize("page", ["README.md", "docs/packaging.md", "CHANGELOG.md", "Technical.md"])
def test_links_lead_somewhere(page):
    text = (ROOT / page).read_text()
    for link in re.findall(r"\]\(([^)#]+)\)", text):
        assert link.startswith("https://") or ((ROOT / page).parent / link).exists(), link


@pytest.mark.parametrize("compiler", [["gcc", "-std=c99", "-pedantic"], ["g++", "-x", "c++", "-std=c++17"], ["clang"]])
def test_the_program_compiles_with_the_headers_alone(tmp_path, compiler):
    program = re.search(r"```c\n(.*?)```", README, re.DOTALL)[1]
    for header in ("kiln.h", "family.h", "flash.h"):
        (tmp_path / "kiln").mkdir(exist_ok=True)
        (tmp_path / "kiln" / header).write_bytes((ROOT / "include/kiln" / header).read_bytes())
    stamped = package.version_header((ROOT / "include/kiln/version.h.in").read_text(), VERSION)
    (tmp_path / "kiln/version.h").write_text(stamped)
    (tmp_path / "program.c").write_text(program)
    flags = ["-Wall", "-Wextra", "-Werror", "-Wno-missing-field-initializers", "-I.", "-fsyntax-only"]
    subprocess.run([*compiler, *flags, "program.c"], cwd=tmp_path, check=True)


def test_what_is_in_a_release_is_what_the_readme_lists():
    section = README.partition("## What is in a release")[2].partition("```\n")[2].partition("```")[0]
    for line in section.splitlines():
        path = Path(line.split()[0].rstrip(",").removeprefix("kiln/").replace("_flash", "_toy"))
        assert list(small_release().stage.glob(str(path))), path


def test_kiln_is_described_by_itself_alone():
    """No page names the machine or the way in which it was written."""
    for page in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]:
        assert not re.search(r"/work/|/tmp/p/|/root/", page.read_text()), page
