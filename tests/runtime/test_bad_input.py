"""docs/bad-input.md says what is printed: its rows that need no build, run anew."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from nativebuild import ROOT

sys.path.insert(0, str(ROOT / "docs"))
import bad_input


@pytest.mark.slow
def test_the_rows_that_need_no_build(built, tmp_path):
    if os.getuid() != 0:
        pytest.skip("needs root: others may not mount what is full soon, nor are they told the same of /proc")
    table = bad_input.quick(Path(sys.executable).parents[2], tmp_path, built)
    assert [row for row in table.rows if row.problem] == []
    made = table.lines()
    rows = {bad_input.what_of(line) for line in made}
    document = (ROOT / "docs" / "bad-input.md").read_text()
    stands = [line for line in document.splitlines(keepends=True) if bad_input.what_of(line) in rows]
    assert document.startswith(bad_input.HEAD)
    assert stands == made, "run: python3 docs/bad_input.py --quick --workspace DIR"
