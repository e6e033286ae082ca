"""`kiln report`: what it tells of a release, and what it refuses."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from kiln_build import cli
from kiln_build.artifacts import pack
from kiln_build.difference.side import Side, open_side
from kiln_build.difference.tables import Choice, Family, Table
from kiln_build.origin import timeline_file
from kiln_build.origin.timeline import Timeline
from kiln_build.origin.timeline_file import Step, read
from kiln_build.pages.document import begin
from kiln_build.report import coverage, gather, images, page, timeline, verification
from kiln_build.report.coverage import NONE, OWN, WIDER, Answer
from kiln_build.trust import statement
from kiln_recipe import digests
from kiln_recipe.errors import ArtifactError
from small_release import small_release

RULE = "head_dim=96 is in the full profile only"


def row(kernel: str, functional: str, image: str | None = "a", target: str = "sm_90", **more: object) -> dict:
    return {
        "target": target, "kernel": kernel, "functional": functional, "configuration": "BLOCK=64",
        "specialization": "aligned", "key": "1" * 64, "image": image, "unavailable": None, "bytes": 1000,
        "registers": 128, "spills": 0, "shared": 1024, "threads": 128, **more,
    }  # fmt: skip


def release(*rows: dict, rules: tuple[dict, ...] = (), families: Mapping[str, Family] | None = None) -> Side:
    targets = list(dict.fromkeys(one["target"] for one in rows))
    return Side(Path("x.tar.gz"), "folder", "0.1.0b", {}, targets, {}, [*rows], [*rules], families=dict(families or {}))


def family() -> dict[str, Family]:
    dtype = Choice("dtype", ("fp16", "fp32"), (0, 1))
    size = Choice("head_dim", ("64", "80", "96"), (0, 1, 2))
    wider = Choice("head_dim", ("64", "80", "96"), (0, 2, 2))
    choices, bins = (dtype, size), ()
    kernels = [
        Table(f"attn/attn.{name}", "sm_90", "", choices, bins, ("BLOCK=64",), bytes(6)) for name in ("fast", "general")
    ]
    return {"flash": Family("flash", "0.1.0b", {"attn": (dtype, wider)}, tuple(kernels))}


def test_combinations_are_served_by_an_own_image_a_wider_one_or_none():
    rows = [
        row("flash.attn/attn.fast", "dtype=fp16 head_dim=64"),
        row("flash.attn/attn.general", "dtype=fp16 head_dim=64"),
        row("flash.attn/attn.general", "dtype=fp16 head_dim=96"),
        row("flash.attn/attn.general", "dtype=fp32 head_dim=64", None, unavailable="ptxas crashes"),
    ]
    rules = [{"target": "sm_90", "kernel": "flash.attn/attn.general", "reason": RULE, "variants": 2,
              "where": {"dtype": ["fp32"], "head_dim": ["80", "96"]}}]  # fmt: skip
    (kernel,) = coverage.of(release(*rows, rules=tuple(rules), families=family()))
    assert kernel.name == "flash.attn/attn" and kernel.choices == ("dtype", "head_dim")
    assert kernel.counts == {"sm_90": {OWN: 2, WIDER: 1, NONE: 3}}
    found = {line.values: line.answers for line in kernel.lines}
    assert found == {
        (("fp16",), ("64",)): (Answer(OWN, "fast, general"),),
        (("fp16",), ("80",)): (Answer(WIDER, "head_dim=96"),),
        (("fp16",), ("96",)): (Answer(OWN, "general"),),
        (("fp32",), ("64",)): (Answer(NONE, "ptxas crashes"),),
        (("fp32",), ("80", "96")): (Answer(NONE, RULE),),
    }
    text = "".join(page.page(gather.gather(release(*rows, rules=tuple(rules), families=family()))))
    assert "2 own, 1 wider, 3 no" in text and RULE in text


def test_lines_are_about_each_combination_once():
    """Every combination of the small release's kernel, against what its rows say."""
    side = open_side(small_release().tarball)
    for kernel in coverage.of(side):
        seen = {}
        for line in kernel.lines:
            for dtype in line.values[0]:
                assert dtype not in seen
                seen[dtype] = dict(zip(side.targets, line.answers))
        for target in side.targets:
            there = {one["functional"] for one in side.rows if one["image"] and one["target"] == target}
            for dtype, answers in seen.items():
                assert (answers[target].sort == OWN) == (f"dtype={dtype}" in there)


def test_targets_that_are_served_alike_share_a_column():
    names = ("sm_80", "gfx942", "sm_90")
    rows = [row("f.a/a", f"n={n}", target=target) for target in names for n in (1, 2)][:-1]
    text = "".join(page.page(gather.gather(release(*rows))))
    assert text.count('<th scope="col">sm_80 gfx942</th><th scope="col">sm_90</th>') == 2


def test_without_tables_the_images_say_which_choices_there_are():
    rows = [row("norm.rms/rms", "dtype=fp16"), row("norm.rms/rms", "dtype=bf16", target="sm_80")]
    (kernel,) = coverage.of(release(*rows))
    assert [[answer.sort for answer in line.answers] for line in kernel.lines] == [[OWN, NONE], [NONE, OWN]]


@dataclass(frozen=True)
class Ran:
    device: str
    driver: str
    by: str
    keys: tuple[str, ...]

    def has(self, key: str, image: str) -> bool:
        return key in self.keys


def test_what_ran_is_told_and_what_did_not():
    side = release(*(row("f.a/a", f"n={n}", key=str(n)) for n in range(4)), row("f.b/b", "", key="b"))
    records = [Ran("NVIDIA H200", "580.1", "image", ("0", "1")), Ran("NVIDIA H200", "580.1", "image", ("1",)),
               Ran("sm_90", "LLVM 22", "emulator", ("1", "2"))]  # fmt: skip
    first, second = verification.of(side, records)
    assert first.places == {"NVIDIA H200, driver 580.1": 2} and first.emulated == {"sm_90, by LLVM 22": 2}
    assert (first.variants, first.not_run, first.neither) == (4, 2, 1)
    assert (second.places, second.not_run, second.neither) == ({}, 1, 1)
    text = "".join(page.page(gather.gather(side, records)))
    assert text.count('<td class="word bad">compiled, not run</td>') == 1
    assert "not stated by folder" in text
    assert "No records of runs were given" in "".join(page.page(gather.gather(side)))


def test_registers_and_spills_are_of_distinct_images():
    rows = [row("f.a/a", "n=0", "x", registers=255, spills=16), row("f.a/a", "n=1", "x", registers=255, spills=16),
            row("f.a/a", "n=2", "y")]  # fmt: skip
    (line,) = images.lines(release(*rows))
    assert (line.images, line.registers, line.spills, line.spilling, line.bytes) == (2, (128, 255), (0, 16), 1, 2000)
    assert line.blocks == (2, 4)  # 255 registers of 65,536 hold two blocks of 128 threads, 128 hold four
    assert [one["functional"] for one in images.spilling(release(*rows))] == ["n=0"]


# ---- timelines -------------------------------------------------------------------------------------------------------


def written(folder: Path, tarball: Path) -> Path:
    made = Timeline(began=100.0)
    made.step("plan")
    jobs = [(1, 101.0, 103.5, "compiled", "f.a/a[n=0]@sm_90"), (2, 101.0, 102.0, "failed", "f.a/a[n=1]@sm_90")]
    made.add_jobs(jobs, 2)
    made.began = 100.0
    copied = Path(shutil.copy(tarball, folder))
    return made.write("0.1.0b", copied)


def test_a_timeline_is_read_as_it_was_written(tmp_path):
    path = written(tmp_path, small_release().tarball)
    assert path == statement.timeline_of(tmp_path / small_release().tarball.name)
    found = read(path)
    assert found.sha256 == digests.of_file(small_release().tarball) and found.workers == 2
    assert [(job.worker, job.began, job.seconds, job.outcome) for job in found.jobs] == [
        (1, 1.0, 2.5, "compiled"), (2, 1.0, 1.0, "failed")
    ]  # fmt: skip
    assert timeline.by_kernel(found.jobs) == [("sm_90", "f.a/a", 2, 3.5, 2.5)]
    drawn = timeline.picture(found)
    assert "worker 1" in drawn and "worker 2" in drawn and drawn.count('class="spills"') == 1
    before = path.read_bytes()
    assert Timeline().write("0.1.0b", tmp_path / small_release().tarball.name) == path
    assert path.read_bytes() == before, "it is of the build that made these bytes first"


GOOD = {"timeline": 1, "release": "r", "sha256": "0", "seconds": 3, "workers": 1, "steps": [], "jobs": []}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"timeline": 2}, "does not say that it is a timeline of format 1"),
        ({"seconds": "long"}, "a time in it is not a number"),
        ({"seconds": float("nan")}, "seconds is NaN, which is not a finite number"),
        ({"release": 5}, "a name in it is not a text"),
        ({"jobs": [[-1, 0, 1, "compiled", "x"]]}, "-1 is not a worker's number"),
        ({"jobs": [[100_001, 0, 1, "compiled", "x"]]}, "100001 is not a worker's number"),
        ({"jobs": [[1, 2, 1, "compiled", "x"]]}, "ends before it begins"),
        ({"jobs": [[1, 2]]}, "not enough values"),
        ({"jobs": 5}, "has no len"),
        ({"steps": [["a" * 20_000, 0, 1]]}, "a name in it is not a text"),
        ({"steps": [["a", 0, 1]] * 1001}, "more steps or jobs than any build"),
    ],
)
def test_what_is_no_timeline_is_refused(tmp_path, change, said):
    path = tmp_path / "x.timeline.json"
    path.write_text(json.dumps(GOOD | change))
    with pytest.raises(ArtifactError, match=f"is not the timeline of a build .*{said}"):
        read(path)
    for broken in ("", "[]", "{", "[" * 100_000, json.dumps({"timeline": 1})):
        path.write_text(broken)
        with pytest.raises(ArtifactError, match="is not the timeline of a build"):
            read(path)


def test_a_timeline_of_a_large_cluster_is_drawn(tmp_path):
    workers, jobs = 4096, 300_000
    rows = [[n % workers + 1, n // workers, n // workers + 1, "compiled", f"f.a/a[n={n}]@sm_90"] for n in range(jobs)]
    path = tmp_path / "x.timeline.json"
    path.write_text(json.dumps(GOOD | {"jobs": rows, "workers": workers, "seconds": 75}))
    found = read(path)
    assert (len(found.jobs), found.workers) == (jobs, workers)
    drawn = timeline.picture(found)
    assert drawn.count('class="bar"') == workers and f"worker {workers}<" in drawn
    assert timeline.by_kernel(found.jobs) == [("sm_90", "f.a/a", jobs, jobs, 1)]


def test_times_of_the_axis_differ():
    drawn = timeline.picture(timeline_file.Timeline("r", "0", 215.0, 0, (Step("plan", 0.0, 215.0),), ()))
    assert re.findall('text-anchor="middle">([^<]*)<', drawn)[-3:] == ["2:30 min", "3 min", "3:30 min"]


def test_pictures_of_any_length_have_a_readable_axis():
    for seconds in (0.001, 0.4, 7, 100, 5000, 90_000, 1e8):
        steps = (Step("plan", 0.0, seconds),)
        drawn = timeline.picture(timeline_file.Timeline("r", "0", seconds, 0, steps, ()))
        assert 1 <= drawn.count('class="axis"') <= 12


# ---- the command -----------------------------------------------------------------------------------------------------


def report(*words: object) -> int:
    return cli.main(["report", *map(str, words)])


def test_of_a_tarball_with_its_timeline_and_a_release_before(tmp_path, capsys):
    path = written(tmp_path, small_release().tarball)
    tarball, output = tmp_path / small_release().tarball.name, tmp_path / "page.html"
    assert report(tarball, output, "--against", small_release().stage, "--json") == 0
    said = json.loads(capsys.readouterr().out)
    assert said["release"] == "0.1.0b" and said["timeline"]["workers"] == 2
    assert said["changes"]["verdict"] == "the same" and said["verification"]["by_kernel"]
    assert {one["target"] for one in said["sizes"]} == {"gfx942", "sm_90"}
    assert all(one["pack"] == small_release().packs[one["target"]].stat().st_size for one in said["sizes"])
    text = output.read_text()
    assert text.startswith(begin("kiln report"))
    assert "The longest compiles" in text and "Changes since kiln 0.1.0b" in text
    assert report(tarball, output, "--against", small_release().stage) == 0
    assert output.read_text() == text and capsys.readouterr().out == f"wrote {output}\n"
    path.write_text(path.read_text().replace(digests.of_file(tarball), "0" * 64))
    assert report(tarball, output) == 6
    assert "is of a tarball with the digest 000000000000" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["folder", "pack"])
def test_of_other_forms_of_a_release(tmp_path, capsys, kind):
    path = small_release().stage if kind == "folder" else small_release().packs["sm_90"]
    assert report(path, tmp_path / "page.html") == 0
    text = (tmp_path / "page.html").read_text()
    assert "No timeline of the build is here" in text and "scale" in text


@pytest.mark.parametrize(
    ("at", "said"), [(8, "is of format 99, which this Kiln does not read"), (12, "is truncated or damaged")]
)
def test_a_pack_that_cannot_be_read_is_no_pack_that_is_not_there(tmp_path, capsys, at, said):
    folder = tmp_path / "kiln"
    shutil.copytree(small_release().stage, folder, symlinks=True)
    path = folder / "lib/kiln.images/nvidia-sm_90.pack"
    data = bytearray(path.read_bytes())
    data[at] = 99
    path.write_bytes(data)
    output = tmp_path / "page.html"
    for words in ((folder, output), (small_release().tarball, output, "--against", folder)):
        assert report(*words) == 6 and not output.exists()
        sentence = f"kiln: {folder} is damaged: sm_90: its pack lib/kiln.images/nvidia-sm_90.pack {said}; unpack or"
        out, err = capsys.readouterr()
        assert out == "" and err.startswith(sentence) and err.count("\n") == 1
    assert cli.main(["diff", str(folder), str(small_release().tarball)]) == 6
    path.unlink()
    assert report(folder, output) == 0
    path.mkdir()
    assert report(folder, tmp_path / "other.html") == 6
    assert "nvidia-sm_90.pack cannot be read (Is a directory); unpack" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("{tmp}/none", "x.html"), 7, "cannot be read"),
        (("{tarball}", "{tarball}"), 2, "exists and is not a page of `kiln report`"),
        (("{tarball}", "{stage}/page.html", "--against", "{stage}"), 2, "lies inside of"),
        (("{tarball}", "{tmp}/p.html", "--verified", "{tmp}/none"), 7, "is not a folder; give one with records"),
        (("{tarball}", "{tmp}/p.html", "--timeline", "{tmp}/none"), 7, "cannot be read"),
        (("{tarball}",), 2, "output"),
    ],
)
def test_mistakes_are_sentences(tmp_path, capsys, words, code, said):
    places = {"tmp": tmp_path, "tarball": small_release().tarball, "stage": small_release().stage}
    assert report(*(word.format(**places) for word in words)) == code
    err = capsys.readouterr().err
    assert said in err and len(err.splitlines()) == 1
    assert not (tmp_path / "p.html").exists()


def test_a_pack_is_whole_in_the_page_as_in_the_release():
    index = pack.read_pack(small_release().packs["sm_90"])
    (size,) = images.sizes(open_side(small_release().packs["sm_90"]))
    assert size.images == len({slot.image for kernel in index.kernels for slot in kernel.slots} - {None})
    assert size.pack == index.file_bytes
