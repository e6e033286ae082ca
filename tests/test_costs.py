"""What a build took of processors: each second is a stage's and a step's, and the tables tell the file's figures."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kiln_build.origin import costs
from kiln_build.origin.costs import Costs
from kiln_build.trust import statement
from kiln_recipe.compile.stages import Stages
from kiln_recipe.errors import EnvironmentProblem

BURN = "import time\nwhile time.process_time() < {}: pass"


def burn(seconds: float) -> None:
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


def test_seconds_go_to_the_stage_that_ends_and_children_count():
    took = Stages()
    burn(0.05)
    took.end("a")
    time.sleep(0.3)  # is nobody's work
    took.end("b")
    subprocess.run([sys.executable, "-I", "-S", "-c", BURN.format(0.2)], check=True)
    took.end("c")
    burn(0.05)
    took.end("a")
    assert list(took.seconds) == ["a", "b", "c"]
    assert took.seconds["a"] >= 0.1 and took.seconds["b"] < 0.2 <= took.seconds["c"]


def test_steps_tell_both_clocks(tmp_path):
    took = Costs()
    took.step("plan")
    burn(0.1)
    took.step("wait")
    time.sleep(0.3)
    took.step("last")
    document = took.document("0.1.0b", "0" * 64)
    (plan, wait, last) = document["steps"]
    assert [plan[0], wait[0], last[0]] == ["plan", "wait", "last"]
    assert plan[2] >= 0.1 and plan[1] >= 0.1
    assert wait[1] >= 0.3 > wait[2]
    assert document["compiles"] == []
    assert "step" in next(costs.lines(document))


compiles = st.lists(
    st.tuples(
        st.sampled_from(["flash.attn_fwd/attn_fwd", "flash.attn_bwd/dq"]),
        st.sampled_from(["sm_90", "gfx942"]),
        st.dictionaries(st.sampled_from(["front end", "llir", "cubin"]), st.floats(0.01, 1000), min_size=1),
        st.booleans(),
    ),
    max_size=20,
)


@given(compiles)
def test_every_second_is_in_the_document(made):
    took = Costs()
    for one in made:
        took.add(*one)
    document = took.document("0.1.0b", "0" * 64)
    rows = document["compiles"]
    assert sum(row["images"] + row["shared"] for row in rows) == len(made)
    assert len({(row["kernel"], row["target"]) for row in rows}) == len(rows)
    for stage in ("front end", "llir", "cubin"):
        stated = sum(row["stages"].get(stage, 0) for row in rows)
        assert stated == pytest.approx(sum(stages.get(stage, 0) for _, _, stages, _ in made), abs=0.01)
    assert json.loads(json.dumps(document)) == document
    printed = "\n".join(costs.lines(document))
    for row in rows:
        assert any(line.split()[:2] == [row["kernel"], row["target"]] for line in printed.splitlines())


def test_a_row_is_of_one_image():
    took = Costs()
    took.add("flash.attn_fwd/attn_fwd", "sm_90", {"front end": 1.0, "llir": 3.0}, False)
    took.add("flash.attn_fwd/attn_fwd", "sm_90", {"front end": 1.0, "llir": 3.0}, False)
    took.add("flash.attn_fwd/attn_fwd", "sm_90", {"front end": 1.0}, True)
    took.step("compile")
    lines = list(costs.lines(took.document("0.1.0b", "0" * 64)))
    assert lines[0].split()[-4:] == ["images", "front", "end", "llir", "all"][-4:]
    assert lines[1].split() == ["flash.attn_fwd/attn_fwd", "sm_90", "2", "1.500", "3.000", "4.500"]
    assert lines[2].split() == ["all", "kernels", "sm_90", "2", "1.500", "3.000", "4.500"]


def test_the_file_lies_beside_its_tarball_and_a_second_build_writes_its_own(tmp_path):
    tarball = tmp_path / "kiln-0.1.0b-manylinux_2_28_x86_64-shared.tar.gz"
    tarball.write_bytes(b"a release")
    for step in ("plan", "pack"):
        took = Costs()
        took.step(step)
        path = took.write("0.1.0b", tarball)
        assert path == statement.costs_of(tarball) and path.parent == tmp_path
        document = json.loads(path.read_text())
        assert document["sha256"] == hashlib.sha256(b"a release").hexdigest()
        assert document["steps"][0][0] == step and document["costs"] == costs.FORMAT


def test_a_file_that_cannot_be_written_is_named(tmp_path):
    tarball = tmp_path / "kiln-0.1.0b-manylinux_2_28_x86_64-shared.tar.gz"
    tarball.write_bytes(b"a release")
    statement.costs_of(tarball).mkdir()
    with pytest.raises(EnvironmentProblem, match=r"cannot write .*\.costs\.json"):
        Costs().write("0.1.0b", tarball)
