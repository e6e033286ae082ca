"""kiln-inspect.pyz: `kiln inspect` and `kiln list` as one file that goes along in each release.

It is enough to look into a tarball and check it: the file runs with Python alone, since pyelftools and the table of
targets are in it. What packs hold it decodes where Python has zstandard, or is 3.14. It is stored, not compressed, in
the order of the names and without times: its bytes depend on the sources, and on the locked pyelftools, alone.
"""

from __future__ import annotations

import ast
import importlib.util
import io
import json
import re
import zipfile
from pathlib import Path

from kiln import targets

NAME = "kiln-inspect.pyz"

_ROOTS = ("__init__", "cli/__init__", "cli/inspect", "cli/list", "elf")  # they, and all that they import

# Without words it looks at the release that it lies in, <release>/share/kiln/kiln-inspect.pyz. Any Python can read this
# much of it, the second one too; 7 is EnvironmentProblem's.
_MAIN = """\
import sys

if sys.version_info < (3, 9):
    sys.stderr.write("kiln: kiln-inspect.pyz needs Python 3.9 or later; this is %d.%d\\n" % tuple(sys.version_info[:2]))
    sys.exit(7)

from pathlib import Path

from kiln.cli import main

words = sys.argv[1:] or [str(Path(sys.argv[0]).resolve().parents[2])]
sys.exit(main(words if words[0] in ("inspect", "list", "--version") else ["inspect"] + words))
"""


def inspector(version: str) -> bytes:
    """The file's bytes; `version` is the release's, and what `--version` prints."""
    contents = {"__main__.py": _MAIN.encode()} | _modules(Path(__file__).parent) | _package("elftools")
    contents[f"kiln/{targets.JSON_TABLE}"] = json.dumps(targets.rows(), sort_keys=True, indent=1).encode()
    source = contents["kiln/__init__.py"].decode()
    contents["kiln/__init__.py"] = re.sub("(?m)^__version__ = .*", f'__version__ = "{version}"', source).encode()
    buffer = io.BytesIO(b"#!/usr/bin/env python3\n")
    buffer.seek(0, io.SEEK_END)
    with zipfile.ZipFile(buffer, "a", zipfile.ZIP_STORED) as archive:
        for name, data in sorted(contents.items()):
            member = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            member.create_system, member.external_attr = 3, 0o644 << 16
            archive.writestr(member, data)
    return buffer.getvalue()


def _modules(package: Path) -> dict[str, bytes]:
    """The modules that go along, by their path in the file."""
    contents: dict[str, bytes] = {}
    wanted = [*_ROOTS]
    while wanted:
        name = wanted.pop()
        if f"kiln/{name}.py" in contents:
            continue
        source = (package / f"{name}.py").read_bytes()
        contents[f"kiln/{name}.py"] = source
        wanted += imports_of(source)
    return contents


def _package(name: str) -> dict[str, bytes]:
    """The modules of an installed package of pure Python, and its licences."""
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    root = Path(spec.origin).parent
    files = [*root.rglob("*.py"), *root.rglob("LICENSE*")]
    return {path.relative_to(root.parent).as_posix(): path.read_bytes() for path in files}


def imports_of(source: bytes) -> list[str]:
    """What a module takes of the package kiln, "cli/build": modules, and after `from kiln import` whatever it names."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module == "kiln":
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module and node.module.startswith("kiln."):
            found.append(node.module.removeprefix("kiln.").replace(".", "/"))
    return found
