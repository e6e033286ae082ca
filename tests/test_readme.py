"""The README and the pages: their tables, programs, links, and what a release contains."""

from __future__ import annotations

import importlib
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kiln_build.native import adapters
from kiln_build.native.family_header import family_header
from kiln_build.release import package
from kiln_recipe.console.usage import Parser
from kiln_recipe.read import recipe
from small_release import ROOT, VERSION, small_release

PAGES = [
    "README.md",
    "Technical.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    *sorted(f"docs/{p.name}" for p in (ROOT / "docs").glob("*.md")),
]

sys.path.insert(0, str(ROOT / "docs"))
import tables  # noqa: E402


def test_tables_are_those_of_the_code():
    texts = [page.read_text() for page in tables.PAGES]
    for text in texts:
        assert tables.fill(text) == text, "run: PYTHONPATH=v3python .kiln/venv/bin/python docs/tables.py"
    found = re.findall(r"<!-- table: (\w+) -->\n(.*?)<!-- end -->", "".join(texts), re.DOTALL)
    assert sorted(name for name, _ in found) == sorted(tables.TABLES)
    assert all(len(table.splitlines()) > 3 for _, table in found)


def test_the_map_lists_every_page():
    listed = re.findall(r"^\| \[docs/([\w-]+\.md)\]", (ROOT / "Technical.md").read_text(), re.M)
    assert sorted(listed) == sorted(path.name for path in (ROOT / "docs").glob("*.md"))


def anchors(page: Path) -> set[str]:
    """What links may name of a page: its headings, in small letters with hyphens."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    for link, anchor in re.findall(r"\]\(([^)#]*)#?([^)]*)\)", (ROOT / page).read_text()):
        if link.startswith("https://"):
            continue
        path = (ROOT / page).parent / link if link else ROOT / page
        assert path.exists(), link
        assert not anchor or anchor in anchors(path), (link, anchor)


def parser(verb: str) -> Parser:
    made = Parser(f"kiln {verb}", "", "kiln")
    importlib.import_module(f"kiln_build.cli.{verb.replace('-', '_')}").add_arguments(made)
    return made


@pytest.mark.parametrize("page", PAGES)
def test_commands_are_as_they_are_read(page):
    """In blocks a command is whole; in sentences it may name an option alone."""
    parts = re.split(r"^```.*\n", (ROOT / page).read_text(), flags=re.M)
    for words in re.findall(r"^(?:\./)?kiln (.*)$", "\n".join(parts[1::2]), re.M):
        verb, *rest = shlex.split(words, comments=True)
        parser(verb).read(rest)
    for verb, rest in re.findall(r"`(?:\./)?kiln ([a-z-]+)([^`\n]*)`", "\n".join(parts[::2])):
        if options := set(re.findall(r"(?<!\S)--[a-z-]+", rest)):
            assert options <= {*parser(verb)._option_string_actions}, (verb, rest)


def test_the_readme_names_the_commands_that_scripts_rely_on():
    readme = (ROOT / "README.md").read_text()
    assert 'bash build.sh input tmpfs output 0.1.0b "MI300X;MI200;Navi31;sm_80;sm_90"' in readme
    assert "\nbash test.sh " in readme


@pytest.mark.parametrize("compiler", [["gcc", "-std=c99", "-pedantic"], ["g++", "-x", "c++", "-std=c++17"], ["clang"]])
@pytest.mark.parametrize("page", ["README.md", "docs/recipes.md"])
def test_the_programs_compile_with_the_headers_alone(tmp_path, compiler, page):
    """Attention, and an operation of the family norm, whose header is generated."""
    if shutil.which(compiler[0]) is None:
        pytest.skip(f"{compiler[0]} is not installed")
    (program,) = re.findall(r"```c\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    (tmp_path / "kiln").mkdir()
    norm = family_header(recipe.load(ROOT / "examples/family/recipe.yaml"), VERSION)
    (tmp_path / "kiln/norm.h").write_text(norm)
    for header in ("kiln.h", "family.h", "flash.h"):
        (tmp_path / "kiln" / header).write_bytes((ROOT / "include/kiln" / header).read_bytes())
    stamped = package.version_header((ROOT / "include/kiln/version.h.in").read_text(), VERSION)
    (tmp_path / "kiln/version.h").write_text(stamped)
    (tmp_path / "program.c").write_text(program)
    flags = ["-Wall", "-Wextra", "-Werror", "-Wno-missing-field-initializers", "-I.", "-fsyntax-only"]
    subprocess.run([*compiler, *flags, "program.c"], cwd=tmp_path, check=True)


def test_what_is_in_a_release_is_what_the_reference_lists(tmp_path):
    """The toy family's release has none of the libraries that offer the flash family by another's interface."""
    header = tmp_path / "triton/backends/amd/include/hip/hip_runtime_api.h"
    header.parent.mkdir(parents=True)
    header.touch()
    found = adapters.find(ROOT, tmp_path, "")
    adapted = {name for adapter in found for name in (adapter.library, *adapter.links)} | {"aotriton"}
    reference = (ROOT / "docs/reference.md").read_text()
    section = reference.partition("## What is in a release")[2].partition("```\n")[2].partition("```")[0]
    for line in section.splitlines():
        path = Path(line.split()[0].rstrip(",").removeprefix("kiln/").replace("_flash", "_toy"))
        assert path.name in adapted or list(small_release().stage.glob(str(path))), path


def tracked(*endings: str) -> list[Path]:
    """The files of the tree, the cache and what builds leave behind set aside."""
    passed = {"cache", "build", "output"}
    paths = (path for ending in endings for path in ROOT.rglob(f"*{ending}"))
    return [
        path
        for path in paths
        if not any(part.startswith(".") or part in passed for part in path.relative_to(ROOT).parts[:-1])
    ]


# In the container; where a consumer may install; what every Linux has; a folder of mktemp.
PLACES = ("/kiln/", "/opt/kiln", "/proc", "/sys", "/tmp/tmp.")


def test_pages_name_no_place_of_one_machine():
    pages = tracked(".md")
    assert len(pages) > 8
    for page in pages:
        for path in re.findall(r"(?<![\w.>/)}$:*-])/[A-Za-z][\w.-]*(?:/[\w.-]+)*", page.read_text()):
            assert path.startswith(PLACES), (page, path)
