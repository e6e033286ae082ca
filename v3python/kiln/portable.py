"""kiln-inspect.pyz: `kiln inspect` and `kiln list` as one file that goes along in each release.

Whoever has only the tarball can look into it and check it: the file runs with Python, zstandard and pyelftools alone.
It is stored, not compressed, in the order of the names and without times: its bytes depend on the sources alone.
"""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

NAME = "kiln-inspect.pyz"

_MODULES = ("__init__", "cli/__init__", "cli/inspect", "cli/list", "elf", "errors", "image", "inspect", "messagepack",
            "options", "pack", "picture", "tables", "verify")  # fmt: skip

# Without words it looks at the release that it lies in, <release>/share/kiln/kiln-inspect.pyz.
_MAIN = """\
import sys
from pathlib import Path

from kiln.cli import main

words = sys.argv[1:] or [str(Path(sys.argv[0]).resolve().parents[2])]
sys.exit(main(words if words[0] in ("inspect", "list") else ["inspect", *words]))
"""


def inspector() -> bytes:
    """The file's bytes."""
    package = Path(__file__).parent
    contents = {"__main__.py": _MAIN.encode()}
    contents |= {f"kiln/{name}.py": (package / f"{name}.py").read_bytes() for name in _MODULES}
    buffer = io.BytesIO(b"#!/usr/bin/env python3\n")
    buffer.seek(0, io.SEEK_END)
    with zipfile.ZipFile(buffer, "a", zipfile.ZIP_STORED) as archive:
        for name, data in sorted(contents.items()):
            member = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            member.create_system, member.external_attr = 3, 0o644 << 16
            archive.writestr(member, data)
    return buffer.getvalue()
