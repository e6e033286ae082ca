"""The farm end to end, with a stand-in for the compiler and real faults."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import worker_tasks as tasks
from kiln_build.farm import farm
from kiln_build.farm.options import FarmOptions
from kiln_build.store import upkeep as store_upkeep
from kiln_build.store.local import LocalStore
from kiln_build.store.store import StoredImage
from kiln_recipe.console.progress import Progress
from kiln_recipe.errors import EnvironmentProblem, ToolchainError
from worker_tasks import StandInSpec, StandInToolchain, StandInVariant, expected_image


class Recorder(Progress):
    def __init__(self) -> None:
        self.events = []
        self.seconds = {}

    def start(self, total, estimate=None, *, title="", unit="job"):
        self.events.append(("start", total))

    def done(self, name, seconds=0.0, outcome="done", *, detail="", remaining=None):
        self.events.append((outcome, name, detail))
        self.seconds[name] = seconds

    def message(self, text, **_):
        self.events.append(("message", text))

    def close(self):
        self.events.append(("close",))


def variant(text: str, action: str = "compile", **more) -> StandInVariant:
    return StandInVariant(f"k[{text}]@t", StandInSpec(text, action, **more))


@pytest.fixture
def build(tmp_path):
    """Runs a farm in tmp_path; its store and progress are attributes."""

    def build(*variants: StandInVariant, toolchain=None, prepare=tasks.prepare, **options) -> farm.FarmResult:
        build.progress = Recorder()
        return farm.run(
            variants,
            toolchain or StandInToolchain(),
            build.store,
            FarmOptions(**{"logs": tmp_path / "logs", "jobs": 2} | options),
            build.progress,
            compile_variant=tasks.compile_stand_in,
            prepare_worker=prepare,
        )

    build.store = LocalStore(tmp_path / "store")
    return build


def compiled_texts(folder: Path) -> list[str]:
    path = folder / "compiled"
    return path.read_text().splitlines() if path.exists() else []


# ---- ordinary work ----


def test_compiles_what_is_missing_and_only_that(build):
    first = build(*[variant(f"v{n}") for n in range(5)])
    assert (first.compiled, first.reused, first.shared, first.failures) == (5, 0, 0, [])
    for n in range(5):
        assert build.store.load(first.outcomes[f"k[v{n}]@t"]) == expected_image(f"v{n}")
    assert set(build.store.durations()) == {f"k[v{n}]@t" for n in range(5)}

    second = build(*[variant(f"v{n}") for n in range(7)])
    assert (second.compiled, second.reused) == (2, 5)
    assert build.progress.events[0] == ("message", "5 of 7 images are in the store")
    assert build.progress.events[1][1].startswith("2 images to compile, 2 workers")  # how long: by what these took
    assert build.progress.events[2] == ("start", 2)
    assert build.progress.events[-1] == ("close",)
    assert sorted((one.name, one.outcome) for one in second.attempts) == [(f"k[v{n}]@t", "compiled") for n in (5, 6)]
    assert all(one.worker in (1, 2) and one.began <= one.ended for one in second.attempts)

    third = build(*[variant(f"v{n}") for n in range(7)])
    assert (third.compiled, third.reused, third.compile_seconds) == (0, 7, 0.0)
    assert third.outcomes == second.outcomes and build.progress.events == [("start", 0), ("close",)]


def test_who_asks_hears_what_became_of_each_variant_while_others_compile(build, tmp_path):
    variants = [variant("a"), StandInVariant("k[b]@t", StandInSpec("b")),
                StandInVariant("k[same]@t", StandInSpec("b")), variant("bad", "reject")]  # fmt: skip

    def told(*variants) -> tuple[list, farm.FarmResult]:
        heard: list = []
        result = farm.run(
            variants, StandInToolchain(), build.store, FarmOptions(tmp_path / "logs", jobs=1), Recorder(),
            arrived=lambda names, outcome: heard.append((tuple(names), outcome)),
            compile_variant=tasks.compile_stand_in, prepare_worker=tasks.prepare,
        )  # fmt: skip
        return heard, result

    assert told(variants[0])[0][0][0] == ("k[a]@t",)
    heard, result = told(*variants)
    assert heard[0] == (("k[a]@t",), result.outcomes["k[a]@t"]), "what is there comes first"
    by_names = dict(heard)
    assert set(by_names) == {("k[a]@t",), ("k[b]@t", "k[same]@t"), ("k[bad]@t",)} and len(heard) == 3
    assert by_names["k[b]@t", "k[same]@t"] == result.outcomes["k[same]@t"]
    assert by_names["k[bad]@t",] == result.outcomes["k[bad]@t"]
    assert told(variants[0])[0] == [], "nobody waits where nothing is compiled"


def test_an_edited_kernel_is_compiled_before_what_takes_longer(build):
    def of(kernel: str, version: str, *texts: str, seconds: float = 0.0) -> list[StandInVariant]:
        digest = f"{kernel} {version}"
        return [
            StandInVariant(
                f"{kernel}[{t}]@t", StandInSpec(f"{kernel}{version}{t}", seconds=seconds, fingerprint=digest)
            )
            for t in texts
        ]

    build(*of("long", "1", "a", seconds=0.2), *of("short", "1", "a", "b"))
    # One kernel has other variants, the other another source: by what they took, the first would go first.
    result = build(*of("long", "1", "a", "b", "c", seconds=0.2), *of("short", "2", "a", "b"), jobs=1)
    assert (result.compiled, result.reused) == (4, 1)
    done = [event[1] for event in build.progress.events if event[0] == "compiled"]
    assert set(done[:2]) == {"short[a]@t", "short[b]@t"} and done[2:] == ["long[b]@t", "long[c]@t"]


def test_nothing_to_do_starts_no_worker(build):
    build(variant("a"))
    assert build(variant("a"), prepare=tasks.die_at_once).compiled == 0
    assert ("start", 0) in build.progress.events and build.progress.events[-1] == ("close",)
    assert build().outcomes == {}


def test_another_toolchain_compiles_anew(build):
    build(variant("a"))
    result = build(variant("a"), toolchain=StandInToolchain("2"))
    assert (result.compiled, result.shared, result.reused) == (1, 0, 0)


def test_the_keys_are_those_that_images_lie_under(build):
    result = build(variant("a"), variant("b"))
    assert result.keys.keys() == result.outcomes.keys() and len(set(result.keys.values())) == 2
    assert all(build.store.get(key) == result.outcomes[name] for name, key in result.keys.items())


def test_what_only_a_worker_sees_damaged_is_named(build):
    """Entries of IRs are looked up by workers alone; their logs go when they succeed."""
    result = build(variant("a"))
    stored = result.outcomes["k[a]@t"]
    (build.store.root / "index" / result.keys["k[a]@t"][:2] / result.keys["k[a]@t"]).unlink()
    entry = build.store.root / "ir" / stored.ir[:2] / stored.ir
    entry.write_bytes(entry.read_bytes()[:-3])
    again = build(variant("a"))
    assert again.compiled == 1 and again.outcomes["k[a]@t"].digest == stored.digest
    _, *messages = [event[1] for event in build.progress.events if event[0] == "message"]
    assert messages == [
        f"warning: entry {stored.ir} of the store {build.store.root} is corrupt: removed; it will be compiled again"
    ]


def test_equal_keys_and_equal_irs_are_compiled_once(build, tmp_path):
    folder = str(tmp_path)
    same = [StandInVariant(f"k[{n}]@t", StandInSpec("same", folder=folder, seconds=0.2)) for n in range(3)]
    like = [StandInVariant(f"l[{n}]@t", StandInSpec(f"same {n}", folder=folder, seconds=0.2)) for n in range(3)]
    result = build(*same, *like, variant("other", folder=folder))
    assert (result.compiled, result.shared) == (2, 5)
    assert len(compiled_texts(tmp_path)) == 2
    assert {result.outcomes[v.name].digest for v in (*same, *like)} == {result.outcomes["l[1]@t"].digest}
    again = build(*same, *like)
    assert again.reused == 6


def test_a_wait_for_an_equal_ir_is_neither_a_timeout_nor_work(build, tmp_path):
    result = build(variant("x 1", seconds=0.8), variant("x 2", seconds=0.8), timeout=1.2)
    assert result.failures == [] and (result.compiled, result.shared) == (1, 1)
    assert 0.8 <= result.compile_seconds < 1.1


def test_memory_bounds_the_number_of_workers(build):
    variants = [variant(f"v{n}") for n in range(6)]
    assert build(*variants, jobs=8, memory=3 << 30, job_memory=1 << 30).jobs == 3
    assert build(variant("w"), jobs=8).jobs == 1, "no more than there is to do"


def test_workers_that_cannot_start_are_one_sentence(build):
    with pytest.raises(ToolchainError, match="no Triton is installed"):
        build(variant("a"), prepare=tasks.prepare_badly_for)


# ---- failures ----


def test_failures_are_all_reported_and_cost_nobody_else(build):
    result = build(
        variant("good 1"), variant("bad", "reject"), variant("good2"), variant("odd", "defect"), variant("good3")
    )
    assert result.compiled == 3 and len(result.failures) == 2
    bad = result.outcomes["k[bad]@t"]
    assert (bad.kind, bad.message) == ("compile", "bad: no such register")
    assert "many words of the tools" in Path(bad.log).read_text() and "stage: llir" in Path(bad.log).read_text()
    assert "Traceback" not in Path(bad.log).read_text(), "the mistake is the user's: Kiln's own calls explain nothing"
    assert result.outcomes["k[odd]@t"].message == "KeyError: 'a defect'"
    assert "Traceback" in Path(result.outcomes["k[odd]@t"].log).read_text()
    assert ("failed", "k[bad]@t", f"bad: no such register (log: {bad.log})") in build.progress.events
    assert len(os.listdir(Path(bad.log).parent)) == 2, "successes leave no logs"


def test_what_may_fail_is_not_reported_as_a_failure(build):
    allowed = StandInVariant("k[bad]@t", StandInSpec("bad", "reject"), waiver="the target has no such register")
    killed = StandInVariant("k[odd]@t", StandInSpec("odd", "abort"), waiver="the target has no such register")
    result = build(allowed, killed, attempts=1)
    assert {failure.variant for failure in result.failures} == {"k[bad]@t", "k[odd]@t"}
    outcomes = {event[1]: event[0] for event in build.progress.events if event[0] in ("waived", "failed")}
    assert outcomes == {"k[bad]@t": "waived", "k[odd]@t": "failed"}, "a waiver is about the variant, not the machine"


def test_a_failure_is_tried_again_by_the_next_build_and_its_log_goes(build, tmp_path):
    log = build(variant("a", "abort once", folder=str(tmp_path)), attempts=1).failures[0].log
    result = build(variant("a", "abort once", folder=str(tmp_path)), attempts=1)
    assert result.compiled == 1 and not Path(log).exists()


def test_an_abort_is_tried_three_times_and_tells_what_was_said(build, tmp_path):
    result = build(variant("bad", "abort", folder=str(tmp_path)), variant("good"))
    (failure,) = result.failures
    assert failure.kind == "crash" and failure.variant == "k[bad]@t"
    assert failure.message == ("its worker was killed by SIGABRT (Assertion `isReg()' failed.), 3 times in a row")
    assert Path(failure.log).read_text().count("LLVM ERROR") == 3
    assert compiled_texts(tmp_path) == ["bad"] * 3
    assert any("trying again (2 of 3)" in event[1] for event in build.progress.events if event[0] == "message")
    assert isinstance(result.outcomes["k[good]@t"], StoredImage)
    assert [one.outcome for one in result.attempts if one.name == "k[bad]@t"] == ["died"] * 3


@pytest.mark.parametrize("action", ["abort once", "be killed once", "assembler dies once"])
def test_one_abnormal_death_costs_one_attempt(build, tmp_path, action):
    result = build(variant("a", action, folder=str(tmp_path)), variant("b"))
    assert result.failures == [] and compiled_texts(tmp_path) == ["a", "a"]


def test_a_hang_ends_by_timeout_with_its_child_and_is_not_tried_again(build, tmp_path):
    result = build(variant("a", "hang", folder=str(tmp_path)), variant("b"), timeout=0.7)
    assert [(f.kind, f.message) for f in result.failures] == [("timeout", "took longer than 0.7 s")]
    assert 0.7 <= build.progress.seconds["k[a]@t"] < 5, "a user is told how long it took"
    assert compiled_texts(tmp_path) == ["a"]
    child = int((tmp_path / "child").read_text())
    assert not Path(f"/proc/{child}").exists() or "Z" in Path(f"/proc/{child}/stat").read_text()


@pytest.mark.parametrize("action", ["allocate", "allocate in Python"])
def test_too_little_memory_is_tried_again_with_more(build, tmp_path, action):
    greedy = variant("a", action, folder=str(tmp_path))
    result = build(greedy, memory=8 << 30, job_memory=300 << 20)
    assert result.failures == [] and compiled_texts(tmp_path) == ["a", "a"]


def test_too_much_memory_is_a_crash_that_says_so(build, tmp_path):
    result = build(variant("a", "allocate", folder=str(tmp_path)), variant("b"), memory=400 << 20, job_memory=200 << 20)
    (failure,) = result.failures
    assert failure.kind == "crash" and "out of memory" in failure.message


def test_a_full_disk_ends_the_build(build):
    with pytest.raises(EnvironmentProblem, match="No space left"):
        build(variant("a", "disk full"), *[variant(f"v{n}", seconds=0.2) for n in range(50)])
    assert build.progress.events[-1] == ("close",)


def test_a_store_that_is_read_only_serves_what_it_has_and_refuses_the_rest_at_once(build, monkeypatch):
    build(variant("a"))
    monkeypatch.setattr(build.store, "refusal", lambda: "Read-only file system")
    assert build(variant("a")).reused == 1
    with pytest.raises(EnvironmentProblem, match="^1 of 2 images are not in the store .*, and it cannot be written"):
        build(variant("a"), variant("b"), prepare=tasks.die_at_once)


def test_logs_that_cannot_be_made(build, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(EnvironmentProblem, match="folder for logs"):
        build(variant("a"), logs=tmp_path / "file" / "logs")


def test_a_truncated_image_in_the_store_is_compiled_anew(build, tmp_path):
    result = build(variant("a"), variant("b"))
    digest = result.outcomes["k[a]@t"].digest
    path = tmp_path / "store" / "objects" / digest[:2] / f"{digest}.zst"
    path.write_bytes(path.read_bytes()[:10])
    result = build(variant("a"), variant("b"))
    assert (result.compiled, result.reused) == (1, 1)
    assert build.store.load(result.outcomes["k[a]@t"]) == expected_image("a")


def test_names_that_differ_only_in_odd_characters_have_logs_of_their_own(build):
    spec = [StandInSpec(f"{n}", "reject") for n in range(2)]
    result = build(StandInVariant("a b/[c]" + "x" * 300, spec[0]), StandInVariant("a_b/[c]" + "x" * 300, spec[1]))
    assert len({failure.log for failure in result.failures}) == 2


def test_runs_in_a_thread_too(build):
    results = []
    thread = threading.Thread(target=lambda: results.append(build(variant("a"))))
    thread.start()
    thread.join()
    assert results[0].compiled == 1


# ---- builds that are killed, and two at once ----

_BUILD = """
import signal, sys
from pathlib import Path
import worker_tasks as tasks
from kiln_recipe.console import progress
from kiln_build.farm import farm
from kiln_build.store import local
from kiln_recipe.errors import KilnError
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where the tests run in the background
signal.signal(signal.SIGHUP, signal.SIG_DFL)
folder, count, seconds, json_log = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), sys.argv[4]
end = int(sys.argv[5])  # how many of them do
specs = [tasks.StandInSpec(f"v{n}", seconds=seconds if n < end else 1e6, folder=str(folder)) for n in range(count)]
variants = [tasks.StandInVariant(f"k[{n}]@t", spec) for n, spec in enumerate(specs)]
try:
    result = farm.run(
        variants, tasks.StandInToolchain(), local.LocalStore(folder / "store"),
        farm.FarmOptions(folder / "logs", jobs=2),
        progress.make_progress(log_json=folder / json_log),
        compile_variant=tasks.compile_stand_in, prepare_worker=tasks.prepare,
    )
except KilnError as error:
    print(error, file=sys.stderr)
    sys.exit(error.exit_code)
print(result.compiled, result.reused, result.shared, len(result.failures))
"""


def start_build(
    folder: Path, count: int, seconds: float, json_log: str = "log.jsonl", end: int | None = None
) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-c", _BUILD, folder, *map(str, (count, seconds, json_log, count if end is None else end))],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def done_so_far(folder: Path) -> list[str]:
    path = folder / "log.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return [event["name"] for event in map(json.loads, lines) if event["event"] == "done"]


def wait_until_done(folder: Path, count: int) -> None:
    limit = time.monotonic() + 60
    while len(done_so_far(folder)) < count:
        assert time.monotonic() < limit
        time.sleep(0.01)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_build_waits_for_no_compile_and_keeps_what_was_done(tmp_path, number):
    process = start_build(tmp_path, 200, 0.05, end=8)
    wait_until_done(tmp_path, 8)
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert f"interrupted by {number.name}" in errors and "are kept" in errors and "Traceback" not in errors
    store = LocalStore(tmp_path / "store")
    done = done_so_far(tmp_path)
    assert all(store.get(tasks.StandInSpec(f"v{name[2:-3]}").key("1")) for name in done) and len(done) == 8
    assert store_upkeep.verify(store.files).removed_objects == ()


def test_a_build_killed_half_way_goes_on_from_there(tmp_path):
    process = start_build(tmp_path, 40, 0.03)
    wait_until_done(tmp_path, 12)
    process.kill()
    process.communicate()
    done = set(done_so_far(tmp_path))
    at_kill = compiled_texts(tmp_path)
    output, errors = start_build(tmp_path, 40, 0.0, "second.jsonl").communicate(timeout=30)
    compiled, reused, shared, failed = map(int, output.split())
    assert failed == 0 and compiled + reused + shared == 40 and reused >= len(done) >= 12, errors
    recompiled = compiled_texts(tmp_path)[len(at_kill) :]
    assert len(recompiled) == compiled and not {f"k[{text[1:]}]@t" for text in recompiled} & done
    assert len(recompiled) <= 40 - len(at_kill) + 2, "only what was under way is done again"


def test_two_builds_at_once_on_one_store_compile_each_image_once(tmp_path):
    builds = [start_build(tmp_path, 30, 0.03, f"{n}.jsonl") for n in range(2)]
    outputs = [process.communicate(timeout=60) for process in builds]
    assert [process.returncode for process in builds] == [0, 0], outputs
    figures = [list(map(int, output.split())) for output, _ in outputs]
    assert all(compiled + reused + shared == 30 and failed == 0 for compiled, reused, shared, failed in figures)
    assert sorted(compiled_texts(tmp_path)) == sorted(f"v{n}" for n in range(30))
