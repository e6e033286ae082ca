"""kiln-inspect.pyz: `kiln inspect`, `list` and `verify` as one file that goes along in each release.

It is enough to look into a tarball and check it: the file runs with Python alone, since pyelftools and the table of
targets are in it. What packs hold it decodes where Python has zstandard, or is 3.14. It is stored, not compressed, in
the order of the names and without times: its bytes depend on the sources, and on the locked pyelftools, alone.
"""

from __future__ import annotations

import ast
import importlib.util
import io
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path

from kiln_build.pages import document
from kiln_recipe import targets

_PACKAGES = Path(__file__).resolve().parents[2]
_ROOTS = (
    "kiln_build.cli",
    "kiln_build.cli.inspect",
    "kiln_build.cli.list",
    "kiln_build.cli.verify",
    "kiln_recipe.images.elf",
)

# Without words it looks at the release that it lies in, <release>/share/kiln/kiln-inspect.pyz. Any Python can read this
# much of it, the second one too; 7 is EnvironmentProblem's.
_MAIN = """\
import sys

if sys.version_info < (3, 9):
    sys.stderr.write("kiln: kiln-inspect.pyz needs Python 3.9 or later; this is %d.%d\\n" % tuple(sys.version_info[:2]))
    sys.exit(7)

from pathlib import Path

from kiln_build.cli import main

words = sys.argv[1:] or [str(Path(sys.argv[0]).resolve().parents[2])]
sys.exit(main(words if words[0] in ("inspect", "list", "verify", "--version") else ["inspect"] + words))
"""


def inspector(version: str) -> bytes:
    """The file's bytes; `version` is the release's, and what `--version` prints."""
    contents = {"__main__.py": _MAIN.encode()} | _modules() | _package("elftools")
    files = [f"kiln_recipe/{targets.TABLE}", *(f"kiln_build/pages/{name}" for name in document.FILES)]
    contents |= {name: (_PACKAGES / name).read_bytes() for name in files}
    source = contents["kiln_build/__init__.py"].decode()
    contents["kiln_build/__init__.py"] = re.sub("(?m)^__version__ = .*", f'__version__ = "{version}"', source).encode()
    buffer = io.BytesIO(b"#!/usr/bin/env python3\n")
    buffer.seek(0, io.SEEK_END)
    with zipfile.ZipFile(buffer, "a", zipfile.ZIP_STORED) as archive:
        for name, data in sorted(contents.items()):
            member = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            member.create_system, member.external_attr = 3, 0o644 << 16
            archive.writestr(member, data)
    return buffer.getvalue()


def _modules() -> dict[str, bytes]:
    """The modules that go along, and the packages that they lie in, by their path in the file."""
    contents: dict[str, bytes] = {}
    wanted = [*_ROOTS]
    while wanted:
        name = wanted.pop()
        path = _path_of(name)
        if path is None or (inside := path.relative_to(_PACKAGES).as_posix()) in contents:
            continue
        contents[inside] = path.read_bytes()
        wanted += [name.rpartition(".")[0], *_imports_of(contents[inside])]
    return contents


def _path_of(name: str) -> Path | None:
    """The file of a module or package of ours; None where the name is of something else, of a function say."""
    path = _PACKAGES.joinpath(*name.split("."))
    files = (path / "__init__.py", path.with_suffix(".py"))
    return next((file for file in files if name.startswith("kiln_") and file.is_file()), None)


def _package(name: str) -> dict[str, bytes]:
    """The modules of an installed package of pure Python, and its licences."""
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    root = Path(spec.origin).parent
    files = [*root.rglob("*.py"), *root.rglob("LICENSE*")]
    return {path.relative_to(root.parent).as_posix(): path.read_bytes() for path in files}


def _imports_of(source: bytes) -> Iterator[str]:
    """What a module imports, anywhere in it: "kiln_recipe.errors", and "kiln_recipe.errors.escaped" too, which may or
    may not be a module."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
