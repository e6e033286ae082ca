"""Simulated builds: what must hold of any, and the verb."""

from __future__ import annotations

import itertools
import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import small_recipe
import worker_tasks as tasks
from kiln_build import cli
from kiln_build.farm import farm
from kiln_build.farm.options import JOB_MEMORY, FarmOptions
from kiln_build.foresight import matrix
from kiln_build.foresight.costs import Costs
from kiln_build.foresight.simulate import Cluster, Forecast, Work, cached, simulate
from kiln_build.origin.timeline import Timeline
from kiln_build.store.local import LocalStore
from kiln_recipe import targets
from kiln_recipe.console.progress import Progress
from kiln_recipe.errors import RecipeError
from kiln_recipe.plan import plan
from kiln_recipe.read import recipe
from worker_tasks import StandInSpec, StandInToolchain, StandInVariant

FREE = Costs(0, 0, 0, 0, 0, 0, 0, 0)
seconds = st.lists(st.floats(0.01, 200).map(lambda number: round(number, 2)), min_size=1, max_size=60)


def works(times: list[float]) -> list[Work]:
    return [Work(f"k[{number % 3}][{number}]@t", one) for number, one in enumerate(times)]


# ---- what holds of every build ----


@settings(max_examples=150, deadline=None)
@given(seconds, st.integers(1, 20))
def test_no_build_is_shorter_than_its_work_or_longer_than_a_list_schedule_may_be(times, workers):
    found = simulate(works(times), Cluster(workers), FREE)
    least = max(max(times), sum(times) / workers)
    # Graham, 1969: longest first, it takes at most 4/3 of the least possible.
    assert least - 1e-6 <= found.makespan <= least + max(times)
    assert found.compiled == len(times) and found.failed == found.lost == 0
    assert found.busy == pytest.approx(sum(times)) and 0 <= found.idle < 1


@settings(max_examples=100, deadline=None)
@given(seconds, st.lists(st.integers(1, 40), min_size=2, max_size=5))
def test_more_workers_take_no_longer(times, counts):
    makespans = [simulate(works(times), Cluster(workers), FREE).makespan for workers in sorted(counts)]
    assert all(after <= before + 1e-6 for before, after in itertools.pairwise(makespans))


@settings(max_examples=100, deadline=None)
@given(seconds, st.integers(1, 8), st.floats(0, 60), st.integers(0, 99))
def test_every_image_is_done_once_whatever_is_lost_and_equal_seeds_give_equal_builds(times, workers, spot, seed):
    told: list[int] = []
    cluster = Cluster(workers, spot, attempts=1000, seed=seed)
    found = simulate(works(times), cluster, Costs(), advance=told.append)
    assert found.compiled == len(times) == sum(told) and found.failed == 0
    assert found == simulate(works(times), cluster, Costs())
    assert found.busy >= sum(times) - 1e-6 and found.compile >= max(times)


@settings(max_examples=60, deadline=None)
@given(seconds, st.floats(0, 1), st.floats(0, 1), st.integers(0, 9))
def test_a_cache_that_has_more_has_what_one_with_less_has(times, one, other, seed):
    few, many = (cached(works(times), share, seed) for share in sorted((one, other)))
    assert all(there or not before for before, there in zip(few, many))
    found = simulate(works(times), Cluster(3), FREE, hits=many)
    assert found.fetched == sum(many) and found.compiled == len(times) - sum(many)


# ---- the farm's rules hold ----


def test_what_exceeds_the_timeout_fails_and_is_not_tried_again():
    found = simulate(works([500.0, 1.0]), Cluster(1), FREE)
    assert (found.compiled, found.failed, found.makespan) == (1, 1, 301.0)


def test_what_needs_more_memory_is_tried_again_with_twice_as_much():
    big = Work("k[big]@t", 10.0, 3 * JOB_MEMORY)
    found = simulate([big], Cluster(4, memory=JOB_MEMORY), FREE)
    assert found.compiled == 1 and found.busy == pytest.approx(10 / 3 + 20 / 3 + 10)
    hopeless = Work("k[big]@t", 10.0, 9 * JOB_MEMORY)
    assert simulate([hopeless], Cluster(4, memory=JOB_MEMORY), FREE).failed == 1


def test_a_worker_that_is_lost_takes_its_work_along():
    alone = simulate(works([10.0, 10.0]), Cluster(2), FREE)
    found = simulate(works([10.0, 10.0]), Cluster(2, dies={1: 4.0}), FREE)
    assert (alone.makespan, found.makespan, found.lost, found.busy) == (10.0, 14.0, 1, 24.0)
    assert simulate(works([1e4]), Cluster(1, spot=100.0, timeout=math.inf), FREE).failed == 1, "after ten losses"


def test_costs_are_counted():
    costs = Costs(
        start=1, look_up=0.5, fetch=0.25, start_up=2, transfer=0.1, handling=0, pack=0.5, link=4, packers=2,
        job_bytes=10, image_bytes=1000,
    )  # fmt: skip
    found = simulate(works([3.0, 3.0, 9.0]), Cluster(1), costs, hits=[False, False, True])
    assert found.before == 1 + 3 * 0.5 + 0.25 and found.after == 4 + 3 * 0.5 / 2
    assert found.compile == pytest.approx(2 + 2 * 3.1) and found.moved == 2 * 10 + 3 * 1000
    assert found.core_hours == pytest.approx((found.compile + found.before + 4 + 1.5) / 3600)
    nothing = simulate(works([3.0]), Cluster(5), costs, hits=[True])
    assert (nothing.workers, nothing.compile, nothing.idle) == (0, 0.0, 0.0)


def test_who_builds_can_keep_workers_waiting():
    many = works([1.0] * 400)
    free, busy = (simulate(many, Cluster(100), Costs(handling=handling)) for handling in (0.0, 0.02))
    assert busy.compile >= 800 * 0.02 and busy.idle > free.idle + 0.5


def test_what_a_scheduler_does_not_know_makes_a_build_longer_and_no_image_less():
    times = [1.0] * 20 + [19.0]
    known, unknown = (simulate(works(times), Cluster(2), FREE, known=known) for known in (None, {}))
    assert known.makespan == 20.0 < unknown.makespan <= 39.0 and unknown.compiled == 21


# ---- the farm itself ----


@pytest.mark.parametrize("dies", [None, 1.19])
def test_the_farm_does_what_was_foreseen(tmp_path, dies):
    """Compiles that sleep, so that it holds on a busy machine too; in one case a worker is killed at the end of its
    second."""
    times = [0.7, 0.6, 0.5, 0.5, 0.4, 0.4, 0.3, 0.3, 0.2, 0.2, 0.1]
    actions = {3: "be killed once"} if dies else {}
    variants = [
        StandInVariant(f"k[{n}][x]@t", StandInSpec(f"v{n}", actions.get(n, "compile"), took, str(tmp_path)))
        for n, took in enumerate(times)
    ]
    store = LocalStore(tmp_path / "store")
    for variant in variants:
        store.record_duration(variant.name, variant.spec.seconds)
    done = farm.run(
        variants, StandInToolchain(), store, FarmOptions(tmp_path / "logs", jobs=2), Progress(),
        compile_variant=tasks.compile_stand_in, prepare_worker=tasks.prepare,
    )  # fmt: skip
    assert (done.compiled, done.failures) == (11, []) and len(done.attempts) == 11 + bool(dies)
    began = min(attempt.began for attempt in done.attempts)
    took = max(attempt.ended for attempt in done.attempts) - began
    works = [Work(variant.name, variant.spec.seconds) for variant in variants]
    losses = {1: dies} if dies else {}
    foreseen = simulate(works, Cluster(2, dies=losses), FREE)
    assert foreseen.lost == bool(dies) and took >= foreseen.compile - 0.05
    # On a busy machine all of it takes longer: by what each took there, it is foreseen again.
    took_there = {one.name: one.ended - one.began for one in done.attempts if one.outcome == "compiled"}
    works = [Work(name, took_there[name]) for name in (variant.name for variant in variants)]
    known = {variant.name: variant.spec.seconds for variant in variants}
    again = simulate(works, Cluster(2, dies=losses), FREE, known=known)
    assert took <= again.compile + 60, "workers that start take some of it; somebody waits for nothing"
    first: dict[str, float] = {}
    for one in done.attempts:
        first[one.name] = min(one.began, first.get(one.name, one.began))
    begun = [first[variant.name] for variant in variants]
    assert begun == sorted(begun), "the longest go first, as in what was foreseen"


# ---- a matrix ----


def write(folder, text: str):
    path = folder / "matrix.yaml"
    path.write_text(text)
    return path


def test_a_matrix_gives_what_it_describes(tmp_path):
    text = "name: m\ntargets: 3\nkernels:\n  - {name: a, images: 3000, seconds: 2.0, spread: 0.5}\n"
    path = write(tmp_path, text + "  - {name: b, images: 4, seconds: 7, memory: 2048}\n")
    found = matrix.read(path).works()
    assert found == matrix.read(path).works() and len({work.name for work in found}) == 3004
    assert sum(work.seconds for work in found[:3000]) / 3000 == pytest.approx(2.0, rel=0.05)
    assert [(work.seconds, work.memory) for work in found[3000:]] == [(7.0, 2 << 30)] * 4
    assert {work.name.rpartition("@")[2] for work in found} == {"target1", "target2", "target3"}


def test_the_matrix_of_aotriton_has_its_size():
    found = matrix.read(matrix.AOTRITON)
    assert sum(kernel.images for kernel in found.kernels) == 271_294 and found.targets == 14
    mean = sum(kernel.images * kernel.seconds for kernel in found.kernels) / 271_294
    assert mean == pytest.approx(1.06, abs=0.005)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("name: m\ntargets: 3\nkernels: []\n", "matrix.yaml:3: there is no kernel"),
        ("name: ''\ntargets: 1\nkernels: [{name: a, images: 1, seconds: 1}]\n", "matrix.yaml:1: name: '' is invalid"),
        (
            'name: m\ntargets: 1\nkernels:\n  - {name: "a\\nb", images: 1, seconds: 1}\n',
            "matrix.yaml:4: name: 'a\\nb' is invalid; expected a line of text",
        ),
        ("name: m\ntargets: 0\nkernels: []\n", "matrix.yaml:2: "),
        ("name: m\ntargets: 1\nkernels:\n  - {name: a, images: 1}\n", "lacks the field"),
        (
            "name: m\ntargets: 1\nkernels:\n  - {name: a, images: 1, seconds: 0}\n",
            "yaml:4: seconds: 0 is invalid",
        ),
        ("name: m\ntargets: 1\nkernels:\n  - {name: a, images: 1, seconds: 1, colour: red}\n", "colour"),
        (
            "name: m\ntargets: 1\nkernels:\n  - {name: a, images: 1, seconds: 1}\n  - {name: a, images: 1, seconds: 1}",
            "matrix.yaml:5: 'a' is a second kernel",
        ),
        (
            "name: m\ntargets: 1\nkernels:\n  - {name: a, images: 2000000, seconds: 1}\n"
            "  - {name: b, images: 1, seconds: 1}",
            "more than 2000000 images",
        ),
    ],
)
def test_mistakes_in_a_matrix(tmp_path, capsys, text, part):
    path = write(tmp_path, text)
    assert cli.main(["simulate", "--matrix", str(path)]) == RecipeError.exit_code
    captured = capsys.readouterr()
    assert part in captured.err and captured.out == "" and "Traceback" not in captured.err


# ---- the verb ----


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    return small_recipe.write(tmp_path_factory.mktemp("small"))


def run(capsys, *words, code: int = 0) -> str:
    assert cli.main(["simulate", *map(str, words)]) == code
    captured = capsys.readouterr()
    assert code == 0 or captured.out == ""
    return captured.out if code == 0 else captured.err


def test_the_verb_foresees_a_release(capsys, small, tmp_path, monkeypatch):
    monkeypatch.delenv("KILN_STORE", raising=False)
    variants = plan.make_plan([recipe.load(small)], targets.parse("sm_90")).variants
    keys = {variant.spec.key(""): variant.name for variant in reversed(variants)}
    store = LocalStore(tmp_path / "store")
    for name in list(keys.values())[:-1]:
        store.record_duration(name, 20.0, 10.0)
    words = ["sm_90", "--recipe", small, "--store", store.root, "--workers", "2,4", "--cache-hit", "0,1"]
    words += ["--configurations", "all", "--price", "0.5", "--json", "--cost", "start_up=0"]
    words += ["--cost", "transfer=0", "--cost", "handling=0"]
    document = json.loads(run(capsys, *words))
    assert document["images"] == len(keys) == 97
    assert document["core_hours"] == pytest.approx(970 / 3600, rel=1e-3)
    assert document["expected_from"] == {"recorded": len(keys) - 1, "kin": 1, "usual": 0}
    two, four, *hits = document["forecasts"]
    asked = [(one["workers_asked"], one["cache_hit"]) for one in document["forecasts"]]
    assert asked == [(2, 0), (4, 0), (2, 1), (4, 1)]
    assert two["seconds_compiling"] == math.ceil(len(keys) / 2) * 10 and four["seconds"] < two["seconds"]
    assert two["cost"] == pytest.approx(0.5 * two["core_hours"], rel=1e-3)
    assert all((one["compiled"], one["fetched"]) == (0, len(keys)) for one in hits)
    lines = run(capsys, *(word for word in words if word != "--json")).splitlines()
    assert lines[0].startswith(f"profile core for sm_90: {len(keys)} images, ") and lines[2].split()[0] == "WORKERS"
    assert len(lines) == 7 and lines[2].split()[-1] == "COST" and "LOST" not in lines[2]


def test_durations_come_from_a_file_of_either_kind(capsys, small, tmp_path):
    (name,) = [v.name for v in plan.make_plan([recipe.load(small)], targets.parse("sm_90")).variants][:1]
    lines, none = tmp_path / "durations", tmp_path / "none"
    lines.write_text(json.dumps([name, 9.0, 5.0]) + "\n")
    made = Timeline(began=0.0)
    made.add_jobs([(1, 2.0, 7.0, "compiled", name), (1, 7.0, 8.0, "died", name)], 1)
    (tmp_path / "x.tar.gz").write_bytes(b"")
    timeline = made.write("0.1.0b", tmp_path / "x.tar.gz")
    none.write_text('{"timeline": 2}')
    words = ["sm_90", "--recipe", small, "--workers", 1, "--json", "--durations"]
    documents = [json.loads(run(capsys, *words, path)) for path in (lines, timeline)]
    assert documents[0]["longest"] == documents[1]["longest"] == 5.0
    assert documents[0] == documents[1]
    with lines.open("ab") as file:
        file.write(b"\xff\n[]\n")
    assert json.loads(run(capsys, *words, lines)) == documents[0]
    assert "says of no variant what it took; give a copy of a" in run(capsys, *words, none, code=2)
    assert "cannot be read (No such file or directory)" in run(capsys, *words, tmp_path / "nowhere", code=7)


def test_the_verb_draws(capsys, tmp_path):
    path = write(tmp_path, "name: <m>\ntargets: 1\nkernels:\n  - {name: a, images: 30, seconds: 60, spread: 0.5}\n")
    plot, page = tmp_path / "plot.svg", tmp_path / "page.html"
    words = ["--matrix", path, "--workers", "1,4,16", "--cache-hit", "0,0.5", "--spot", "20", "--plot", plot]
    out = run(capsys, *words, "--html", page)
    assert out.splitlines()[0].startswith("<m>: 30 images") and "LOST" in out
    first = plot.read_bytes()
    assert first.startswith(b"<!-- kiln simulate -->\n<svg xmlns=") and b"50 % in the cache" in first
    assert "&lt;m&gt;: 30 images" in page.read_text() and "<m>" not in page.read_text()
    run(capsys, *words)
    assert plot.read_bytes() == first, "equal seeds give equal pictures"
    plot.write_text("mine")
    assert "plot.svg" in run(capsys, *words, code=2) and plot.read_text() == "mine"


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["--workers", "0"], "--workers 0 is invalid; expected a whole number from 1 to 100000"),
        (["--workers", "8,,9"], "--workers 8,,9 has a comma too many"),
        (["--workers", "8;9"], "--workers 8;9 is invalid"),
        (["--workers", "-3"], "--workers"),
        (["--cache-hit", "0,1.5"], "--cache-hit 1.5 is invalid; expected a number from 0 to 1"),
        (["--cache-hit", "-0.5"], "--cache-hit"),
        (["--cache-hit", "nan"], "--cache-hit nan is invalid"),
        (["--spot", "-1"], "--spot"),
        (["--price", "cheap"], "--price cheap is invalid"),
        (["--seed", "x"], "--seed x is invalid"),
        (["--cost", "lunch=1"], "--cost lunch=1 names no cost; give one of start, "),
        (["--cost", "transfer=-1"], "--cost transfer=-1 is invalid; expected a number of seconds behind transfer="),
        (["--cost", "packers=1.5"], "expected a whole number from 1 on behind packers="),
        (["--cost", "transfer=nan"], "--cost transfer=nan is invalid"),
        (["--plot", "x.png"], "--plot x.png is not the name of an SVG file"),
        (["--matrix", "aotriton", "sm_90"], "leave targets out"),
        (["--matrix", "aotriton", "--tuning", "tuning"], "leave --tuning out"),
        (["--matrix", "aotriton", "--select", "dtype=bf16"], "leave --select out"),
        (["no_such_gpu"], "no_such_gpu"),
    ],
)
def test_mistakes_are_one_sentence(capsys, words, part):
    said = run(capsys, *words, code=2)
    assert part in said and len(said.strip().splitlines()) == 1


def test_a_matrix_that_is_not_there(capsys):
    said = run(capsys, "--matrix", "nowhere.yaml", code=7)
    assert "--matrix nowhere.yaml does not exist; give a file" in said
    assert "--matrix . is a folder; give a file" in run(capsys, "--matrix", ".", code=7)


def test_a_page_and_a_plot_of_one_name(capsys, tmp_path):
    path = write(tmp_path, "name: m\ntargets: 1\nkernels: [{name: a, images: 1, seconds: 1}]\n")
    one, other = tmp_path / "x.svg", tmp_path / "link.svg"
    other.symlink_to(one)
    for page in (one, other):
        said = run(capsys, "--matrix", path, "--plot", one, "--html", page, code=2)
        assert f"--plot and --html are both {one}; give each a name of its own" in said and not one.exists()


def test_as_many_images_as_aotriton_has_are_simulated_in_moments():
    """A tenth of them, on a tenth of the largest cluster."""
    found: Forecast = simulate(matrix.read(matrix.AOTRITON).works()[:27_000], Cluster(410), Costs())
    assert found.compiled == 27_000


def test_images_that_a_build_would_give_up_are_told(capsys, tmp_path, monkeypatch):
    path = write(tmp_path, "name: m\ntargets: 1\nkernels:\n  - {name: a, images: 3, seconds: 9}\n")
    monkeypatch.setenv("KILN_TIMEOUT", "5")
    assert cli.main(["simulate", "--matrix", str(path), "--workers", "2"]) == 0
    assert "warning: 3 images would fail: a compile may take 5 s; KILN_TIMEOUT=<seconds>" in capsys.readouterr().err
