"""The programs of benchmarks/farm that build whole releases: what they conclude from builds, and what they rely on.
Whether builds pass is their own verdict, on a machine with many processors."""

from __future__ import annotations

import importlib
import io
import json
import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from kiln_recipe.console.progress import make_progress

FOLDER = Path(__file__).resolve().parents[1] / "benchmarks" / "farm"
GOOD = {"sha256": "a", "compiled": 0, "seconds": 10.0}


@pytest.fixture
def program(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module


def test_processors(program):
    assert program("releases").cores_of("0-3,8,10-11") == [0, 1, 2, 3, 8, 10, 11]


def test_images_are_counted_by_their_entries(program, tmp_path):
    for name in ("ab" * 32, "ac" * 32, "ad.tmp"):
        path = tmp_path / "index" / name[:2] / name
        path.parent.mkdir(parents=True)
        path.touch()
    assert sorted(program("releases").images(tmp_path)) == ["ab" * 32, "ac" * 32]


@pytest.mark.parametrize("name", ["scale", "caches", "packing"])
def test_a_folder_that_is_no_store_is_refused_before_anything_runs(program, tmp_path, monkeypatch, capsys, name):
    (tmp_path / "workspace" / "store").mkdir(parents=True)  # a level too high, and an empty one
    for wrong in (tmp_path, tmp_path / "workspace", tmp_path / "none"):
        words = ["--part", "second"] if name == "scale" else []
        monkeypatch.setattr(sys, "argv", [name, *words, "--store", str(wrong), "--out", str(tmp_path / "out")])
        with pytest.raises(SystemExit, match="2"):
            program(name).main()
        assert f"{wrong} is not a store with images" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_store_is_found_in_a_workspace_and_from_any_folder(program, tmp_path, monkeypatch):
    entry = tmp_path / "workspace" / "store" / "index" / "ab" / ("ab" * 32)
    entry.parent.mkdir(parents=True)
    entry.touch()
    (tmp_path / "workspace" / "store" / "format").touch()
    monkeypatch.chdir(tmp_path)
    found = {program("releases").store_of(text) for text in ("workspace", "workspace/store")}
    assert found == {(tmp_path / "workspace" / "store").resolve()}


def test_forecasts_are_tried_side_by_side_on_processors_of_their_own(program):
    """One that fails gives nothing, and the others go on; who asks for more processors than there are gets all."""
    cores = sorted(os.sched_getaffinity(0))
    mine = partial(os.sched_getaffinity, 0)
    jobs = [(1, partial(int, "7")), (1, partial(int, "not a number")), (len(cores) + 1, mine)]
    made = list(program("predict").side_by_side(jobs, cores))
    assert sorted(made, key=str) == sorted([7, None, set(cores)], key=str)
    each = list(program("predict").side_by_side([(1, mine) for _ in cores], cores))
    assert all(len(one) == 1 for one in each)


def test_processors_go_on_until_the_last_build_ends(program, tmp_path):
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("there is one processor")
    cores = sorted(os.sched_getaffinity(0))[:2]
    told = tmp_path / "told"

    def go_on(count):
        with told.open("a") as file:
            file.write(f"{count}\n")
        time.sleep(0.01)

    def last():
        while not told.exists() or told.stat().st_size < 20:
            time.sleep(0.01)
        return "last"

    assert list(program("predict").side_by_side([(1, partial(int, "7")), (1, last)], cores, go_on)) == [7, "last"]
    size = told.stat().st_size
    time.sleep(0.1)
    assert told.stat().st_size == size, "nothing goes on when all have ended"


def test_the_kernel_that_is_edited_has_the_line(program):
    packing = program("packing")
    assert (packing.ROOT / packing.FILE).read_text().count(packing.OLD) == 1 and packing.OLD != packing.NEW


@pytest.mark.parametrize(
    ("case", "made", "word"),
    [
        ("warm", GOOD, ""),
        ("warm", GOOD | {"compiled": 1}, "1 compiled"),
        ("warm", GOOD | {"sha256": "b"}, "other bytes"),
        ("slow", GOOD | {"compiled": 9, "seconds": 40.9}, ""),
        ("slow", GOOD | {"compiled": 9, "seconds": 41.1}, "41.0 s are allowed"),
        ("poisoned", GOOD | {"compiled": 3, "damaged": 3, "again": GOOD}, ""),
        ("poisoned", GOOD | {"compiled": 2, "damaged": 3, "again": GOOD}, "2 compiled, 3 damaged"),
        ("poisoned", GOOD | {"compiled": 3, "damaged": 3, "again": GOOD | {"compiled": 3}}, "not repaired"),
        ("dies", {"problem": "no release"}, "no release"),
    ],
)
def test_what_is_wrong_with_a_build_before_a_cache(program, case, made, word):
    found = program("caches").verdicts({"alone": GOOD, case: made}, "a")
    assert found["alone"] == [] and (word in found[case][0] if word else found[case] == [])


WAY = {"sha256": "a", "compiled": 9, "different": 9, "allowed": 0}
FAULTS = [{"fault": "a worker is killed", "missed": False}, {"fault": "the build is killed", "missed": False}]


@pytest.mark.parametrize(
    ("made", "word"),
    [
        (WAY, ""),
        (WAY | {"faults": FAULTS}, ""),
        (WAY | {"faults": [FAULTS[0], FAULTS[1] | {"missed": True}]}, "the build had ended: the build is killed"),
        (WAY | {"sha256": "b"}, "other bytes"),
        ({"compiled": 9, "different": 9, "allowed": 0}, "other bytes"),
        (WAY | {"compiled": 10}, "1 images compiled twice, 0 may be"),
        (WAY | {"compiled": 11, "allowed": 2}, ""),
        (WAY | {"images": {"all": 12, "different": 9}, "allowed": 2}, "3 images compiled twice, 2 may be"),
        (WAY | {"compiled": 0}, "nothing was counted"),
        ({"problem": "no scheduler"}, "no scheduler"),
    ],
)
def test_what_is_wrong_with_a_way_to_build(program, made, word):
    found = program("cluster").verdicts({"local": WAY, "other": made}, "a")
    assert found["local"] == [] and (word in "".join(found["other"]) if word else found["other"] == [])


def test_without_a_digest_to_compare_with_nothing_is_good(program):
    assert program("cluster").verdicts({"plain": WAY}, None)["plain"]


def test_compiles_are_counted_by_what_a_farm_says_until_it_is_killed(program, tmp_path):
    path = tmp_path / "one.jsonl"
    with make_progress(io.StringIO(), path) as progress:
        for name, outcome in (("a", "compiled"), ("b", "reused"), ("c", "compiled"), ("d", "shared")):
            progress.done(name, 1.0, outcome)
    with path.open("a") as file:
        file.write('{"time":1.0,"event":"done","na')
    assert program("releases").Build("one", tmp_path, None, tmp_path / "one.log").compiled == 2


def test_old_commits_get_what_they_can_compile(program):
    is_plain = program("turns").is_plain
    spec = {"language": "triton", "ptx": 0, "signature": (("q_ptr", "*bf16"),)}
    assert is_plain(SimpleNamespace(**spec))
    assert not is_plain(SimpleNamespace(**spec | {"language": "gluon"}))
    assert not is_plain(SimpleNamespace(**spec | {"ptx": 90}))
    assert not is_plain(SimpleNamespace(**spec | {"signature": (("q", "tensordesc<bf16[64,128]>"),)}))


def test_a_worker_is_killed_with_all_that_it_runs(program, tmp_path):
    releases = program("releases")
    bench = SimpleNamespace(scratch=tmp_path, out=tmp_path)
    cluster = releases.Cluster(bench, "one", [0])
    told = tmp_path / "told"
    child = f"import os, time; open({str(told)!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    parent = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]], start_new_session=True)"
    cluster.workers["ann"] = subprocess.Popen([sys.executable, "-c", parent, child])
    while not (told.exists() and told.read_text()):
        time.sleep(0.01)
    pid = int(told.read_text())
    cluster.kill("ann")
    assert cluster.workers == {}
    while Path(f"/proc/{pid}/stat").exists() and Path(f"/proc/{pid}/stat").read_text().split(") ")[1][0] != "Z":
        time.sleep(0.01)


def test_a_program_that_runs_out_of_time_is_ended_and_the_rest_goes_on(program, tmp_path, monkeypatch):
    scale = program("scale")
    monkeypatch.setattr(scale, "HERE", tmp_path)
    (tmp_path / "waits.py").write_text("import time; print('here', flush=True); time.sleep(600)")
    (tmp_path / "ends.py").write_text("print('done')")
    runner = scale.Runner.__new__(scale.Runner)
    runner.out, runner.cores, runner.python = tmp_path, sorted(os.sched_getaffinity(0)), Path(sys.executable)
    runner.codes = {}
    waits, ends = (scale.Program(name, f"{name}.py", [], shared=False) for name in ("waits", "ends"))
    runner.ends = 0.0
    runner.phase([waits])
    runner.ends = time.monotonic() + 600
    runner.phase([ends])
    assert runner.codes == {"ends": 0, "waits": "out of time"} == json.loads((tmp_path / "scale.json").read_text())


def test_programs_have_processors_of_their_own(program):
    scale = program("scale")
    runner = scale.Runner.__new__(scale.Runner)
    pairs = [scale.Program(f"pair {n}", "", [], cores=2) for n in range(4)]
    programs = [scale.Program("one", "", [], weight=4), *pairs, scale.Program("two", "", [])]
    for count, expected in ((64, [45, 2, 2, 2, 2, 11]), (32, [19, 2, 2, 2, 2, 5])):
        runner.cores = list(range(count))
        parts = runner.parts(programs)
        assert [len(part) for part in parts] == expected
        assert sorted(core for part in parts for core in part) == runner.cores
    runner.cores = [0, 1]  # too few: they share them
    assert all(part and set(part) <= {0, 1} for part in runner.parts(programs))
