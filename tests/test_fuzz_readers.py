"""Whatever is changed in what others made, the readers end with a sentence: seeded cases, in a process with limits.

KILN_TEST_FUZZ=20000 takes so many cases instead of a few hundred.
"""

from __future__ import annotations

import os

import pytest

import fuzz_readers
from limits import MOST_MEMORY, kiln

CASES = int(os.environ.get("KILN_TEST_FUZZ", "1200"))
BATCH = 600  # of one process; its memory is what the worst of them takes


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("fuzz")
    fuzz_readers.corpus(place)
    return place


def test_what_cases_are_made_of_is_whole(folder):
    """Else every case would end at once, and none would find anything."""
    for path in (folder / "stage", folder / "release.tar.gz", *(folder / "stage/lib/kiln.images").glob("*.pack")):
        done = kiln("inspect", path, "--verify")
        assert (done.code, done.err) == (0, "")
    (folder / "new").mkdir()
    assert kiln("fetch", "--input", folder / "new", "--unbundle", folder / "bundle.tar").code == 0
    (folder / "work/recipe.yaml").write_text((folder / "recipe.yaml").read_text())
    assert kiln("recipes", folder / "work/recipe.yaml").code == 0


def test_every_case_ends_with_a_sentence(folder):
    for first in range(0, CASES, BATCH):
        done = kiln(folder, first, min(BATCH, CASES - first), program=("-m", "fuzz_readers"))
        print(f"cases from {first}: {done.out.splitlines()[-1:]}, {done.seconds:.0f} s, {done.memory >> 20} MiB")
        assert done.code == 0, done.out + done.err
        assert done.memory < MOST_MEMORY
