"""`kiln verify-device` with a worker that answers what the test wants: what is shown, kept and gone on from."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from kiln_bench.release import places
from kiln_bench.verify import command, memory, session

pytest.importorskip("numpy", reason="needs NumPy")
FAKE = Path(__file__).with_name("verify_fake_worker.py")


class Bench:
    """A folder with a release in name, and the command run there."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self._monkeypatch, self._capsys = folder, monkeypatch, capsys
        self.log, self.file = folder / "log", folder / "kiln-verify-gfx942.json"
        lib = folder / "kiln/lib"
        (lib / "kiln.images").mkdir(parents=True)
        for name in ("libkiln.so.0", "libkiln_flash.so", "kiln.images/amd-gfx942.pack"):
            (lib / name).write_bytes(name.encode())
        monkeypatch.chdir(folder)
        monkeypatch.setattr(session, "WORKER", (sys.executable, str(FAKE), str(self.log)))
        monkeypatch.setattr(memory, "load", lambda vendor: object() if vendor == "amd" else None)
        self.behaves("right", "right", "right", "right")

    def behaves(self, *how: str) -> None:
        self._monkeypatch.setenv("KILN_FAKE_CONFIGURATIONS", json.dumps(how))

    def __call__(self, *words: object) -> int:
        self.log.unlink(missing_ok=True)
        code = command.main(["verify-device", *map(str, words)])
        captured = self._capsys.readouterr()
        self.out, self.err = captured.out, captured.err
        return code

    @property
    def ran(self) -> list[str]:
        return self.log.read_text().split() if self.log.exists() else []

    @property
    def document(self) -> dict:
        return json.loads(self.file.read_text())


@pytest.fixture
def bench(tmp_path, monkeypatch, capsys):
    return Bench(tmp_path, monkeypatch, capsys)


def test_what_is_right_is_shown_and_kept(bench):
    assert bench("kiln") == 0, bench.err
    assert "MI300X (gfx942)" in bench.out and "4 of 4 images were run" in bench.out
    rows = {line.split()[0]: line.split()[1:] for line in bench.out.splitlines() if line.startswith("attn_fwd")}
    assert rows == {"attn_fwd.0": ["2", "0", "0", "0.50"], "attn_fwd.1": ["2", "0", "0", "0.50"]}
    about = bench.document["about"]
    assert about["device_id"] == "0000:c1:00.0" and len(about["pack_sha256"]) == 64 and "2 times" in about["rule"]
    assert bench.document["counts"] == {"right": 4, "wrong": 0, "unreached": 0}
    assert {"key", "call", "shares", "registers", "seconds"} <= set(bench.document["rows"][0])
    shown = bench.out
    assert bench("--from", bench.file.name) == 0 and bench.out == shown and not bench.ran
    assert bench("--from", bench.file, "--json") == 0 and json.loads(bench.out) == bench.document


def test_a_wrong_result_ends_it_with_11_when_all_were_run(bench):
    bench.behaves("right", "wrong", "unreached", "right")
    assert bench("kiln") == 11
    assert "wrong: 000000000000 attn_fwd.1[dtype=bf16 head_dim=64]" in bench.out and "out: errors of 1" in bench.out
    assert "unreached: attn_fwd.0: none of 12 calls can run it" in bench.out
    assert "3 of 4 images were run" in bench.out
    assert "1 of 4 images gave wrong results" in bench.err
    assert bench("--from", bench.file) == 11


def test_what_breaks_the_device_or_hangs_costs_itself_alone(bench, monkeypatch):
    monkeypatch.setattr(session.Process.__init__, "__defaults__", (3.0,))
    bench.behaves("dies", "right", "hangs", "right", "fails", "right")
    assert bench("kiln") == 11
    assert bench.ran.count("start") == 4 and bench.ran.count("right") == 3
    wrong = sorted(row["wrong"][0] for row in bench.document["rows"] if row["wrong"])
    assert [text.split("process that made the call ")[-1] for text in wrong] == [
        "hipModuleLaunchKernel: the HIP runtime returned hipErrorLaunchFailure (719)", "ended with -6",
        "gave no answer in 3 s",
    ]  # fmt: skip


def test_a_device_that_is_gone_ends_the_run_and_keeps_what_was_found(bench):
    bench.behaves("right", *["dies"] * 12)
    assert bench("kiln") == 7
    assert "5 images one after another cost the process that ran them" in bench.err
    assert len(bench.document["rows"]) == 5, "the fifth is not counted: it may be right"


def test_a_run_goes_on_where_another_ended(bench):
    assert bench("kiln", "--sample", 2) == 0
    assert bench.ran == ["start", "right", "right"]
    assert {row["kernel"] for row in bench.document["rows"]} == {"attn_fwd.0", "attn_fwd.1"}, "some of everything"
    assert bench("kiln") == 0 and bench.ran == ["start", "right", "right"]
    assert bench("kiln") == 0 and bench.ran == ["start"]
    (bench.folder / "kiln/lib/kiln.images/amd-gfx942.pack").write_bytes(b"another")
    assert bench("kiln") == 0 and len(bench.ran) == 5
    assert "has results of another pack_sha256; it is replaced" in bench.err


def test_a_budget_leaves_the_rest_for_the_next_time(bench):
    assert bench("kiln", "--budget", "0.0001s") == 0
    assert "1 of 4 images were run; 3 more for which no time was left: the same command goes on" in bench.out


def test_a_selection(bench):
    assert bench("kiln", "--select", "kernel=attn_fwd.1;head_dim=64") == 0
    assert {row["kernel"] for row in bench.document["rows"]} == {"attn_fwd.1"}
    assert bench("kiln", "--select", "kernel=attn_fwd.7") == 2
    assert "none of the release's images has kernel=attn_fwd.7; kernel is one of attn_" in bench.err


def test_a_word_that_means_nothing_is_said_before_the_driver_is_asked_for(bench, monkeypatch):
    monkeypatch.setattr(memory, "load", lambda vendor: None)
    for word, why in (("dtpe=bf16", "has a dtpe; they have operation, "), ("dtype=bf61", "has dtype=bf61; dtype is "),
                      ("operation=attn_fdw", "has operation=attn_fdw; operation is one of ")):  # fmt: skip
        assert bench("kiln", "--select", word) == 2
        assert f"--select: none of the release's images {why}" in bench.err and bench.err.count("\n") == 1
    assert bench("kiln", "--select", "dtype=bf16") == 7 and "there is no driver of amd" in bench.err


def test_a_damaged_pack_of_another_gpu_is_no_matter(bench):
    bench.behaves("right", "lists nothing")
    assert bench("kiln", "--select", "dtype=bf16") == 0 and len(bench.document["rows"]) == 2
    assert bench("kiln", "--select", "dtype=bf61") == 2
    assert "none of the release's images for this GPU has dtype=bf61; dtype is one of bf16" in bench.err


def test_nothing_that_can_run(bench, monkeypatch):
    assert bench("kiln", "--vendor", "nvidia") == 10
    assert "kiln has no images for nvidia" in bench.err
    bench.behaves("unreached")
    assert bench("kiln") == 10 and "no image was run" in bench.err
    bench.behaves("refuses")
    assert bench("kiln") == 7 and "there is no device 0 of amd's" in bench.err
    bench.behaves("damaged")
    for words in ([], ["--select", "dtype=bf16"]):
        assert bench("kiln", *words) == 6 and "kiln/include lacks the headers" in bench.err
    monkeypatch.setattr(memory, "load", lambda vendor: None)
    assert bench("kiln") == 7 and "there is no driver of amd" in bench.err
    assert bench("nowhere") == 7 and places.RIGHT in bench.err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--from", "x.json", "--sample", "3"], "--from shows what was found before; leave --sample out"),
        (["--budget", "soon"], "--budget soon is invalid"),
        (["--output", "x.txt"], "--output x.txt is invalid; expected a file that ends in .json"),
        (["--device", "-1"], "--device"),
        (["--sample", "0"], "--sample 0 is invalid"),
        (["--select", "x"], "--select"),
    ],
)
def test_mistakes_in_the_words(bench, words, sentence):
    assert bench(*words) == 2 and sentence in bench.err and bench.err.count("\n") == 1


def test_a_file_of_something_else_is_not_written_over(bench):
    other = bench.folder / "other.json"
    other.write_text("{}\n")
    assert bench("kiln", "--output", other) == 2 and other.read_text() == "{}\n"
    assert bench("--from", other) == 6 and "has no results of `kiln verify-device`" in bench.err


def test_a_damaged_file_is_named(bench):
    assert bench("kiln") == 0, bench.err
    found = bench.document
    for damaged in (found | {"rows": [None]}, found | {"rows": [{"kernel": 1}]}, found | {"about": {}}):
        bench.file.write_text(json.dumps(damaged))
        assert bench("--from", bench.file) == 6 and bench.out == ""
        assert bench.err.startswith(f"kiln: {bench.file} is damaged (")
        assert "give what `kiln verify-device`" in bench.err


def test_a_share_that_is_not_finite_is_kept_as_null_and_refused_otherwise(bench):
    bench.behaves("infinite")
    assert bench("kiln") == 11 and " inf" in bench.out
    assert "Infinity" not in bench.file.read_text() and json.loads(bench.file.read_text())["rows"]
    shown = bench.out
    assert bench("--from", bench.file.name) == 11 and bench.out == shown
    bench.file.write_text(bench.file.read_text().replace("null", "NaN", 1))
    assert bench("--from", bench.file, "--json") == 6 and bench.out == "" and ".shares." in bench.err
