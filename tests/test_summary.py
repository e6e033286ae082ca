"""The last lines of a build."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from kiln_build.release import summary


def said(tmp_path: Path, families: tuple[str, ...], compiled: tuple[str, ...]) -> list[str]:
    """Of a build of these families, with images of some of them."""
    tarball = tmp_path / "a b.tar.gz"
    tarball.write_bytes(bytes(2048))
    plan = SimpleNamespace(
        recipes=[SimpleNamespace(family=family) for family in families],
        variants=[SimpleNamespace(family=family) for family in compiled],
    )
    packs = {"sm_90": SimpleNamespace(images=[b""] * 3)} if compiled else {}
    lines: list[str] = []
    progress = SimpleNamespace(message=lambda line, **_facts: lines.append(line))
    summary.end(SimpleNamespace(outside=lambda path: path), plan, packs, tarball, 3.0, progress)
    return lines


@pytest.mark.parametrize(
    ("families", "compiled", "has_wheels"),
    [
        (("flash", "norm"), ("flash", "norm"), True),
        (("flash", "norm"), ("norm",), False),  # KILN_SELECT=family=norm
        (("norm",), ("norm",), False),
        (("flash",), (), False),
    ],
)
def test_wheels_are_named_where_they_have_something(tmp_path, families, compiled, has_wheels):
    made, *following = said(tmp_path, families, compiled)
    assert f"made {tmp_path}/a b.tar.gz, 2.0 KiB, with {'3 images for sm_90' if compiled else 'no image'}, in " in made
    assert any(line.startswith("for Python: ") for line in following) == has_wheels
    assert all(f"'{tmp_path}/a b.tar.gz'" in line for line in following if " inspect " in line or " wheel " in line)
    libraries = " ".join(f"-lkiln_{family}" for family in families)
    headers = ", ".join(f"include/kiln/{family}.h" for family in families)
    assert following[-1] == f"for C: unpack it; {headers}, and link {libraries} -lkiln in lib/"
