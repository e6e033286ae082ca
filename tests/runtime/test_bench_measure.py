"""A whole run of `kiln bench`, with PyTorch's sides on the CPU and a release on the fake driver, whose kernels compute
nothing: its results are never written, so they must count as wrong."""

from __future__ import annotations

import contextlib
import functools
import types

import flash_tables
import packs
import pytest

from kiln_bench import measure, report, shapes, state, timing
from kiln_bench.release import headers, library, places
from kiln_recipe.console.progress import Progress
from kiln_recipe.errors import EnvironmentProblem, NotServed

torch = pytest.importorskip("torch")
TRAINING = {"head_dim": 64, "heads": 4, "length": 40, "batch": 1, "causal": [False, True]}
DECODING = {"head_dim": 64, "heads": 4, "keys": 64, "batch": 2}
SHAPES = shapes.parse({"training": [TRAINING], "decoding": [DECODING]}, "x", "x")


class Clock:
    """Work takes no time but what is enqueued: a millisecond."""

    now = 0.0

    def mark(self):
        Clock.now += 1.0
        return Clock.now

    def is_past(self, mark):
        return False

    def milliseconds(self, begin, end):
        return end - begin

    def wait(self):
        pass


@pytest.fixture
def there(built, fake, tmp_path, monkeypatch) -> places.Place:
    """A release on the fake driver, which PyTorch takes for its own."""
    data = flash_tables.make(tmp_path / "tables").pack()
    (tmp_path / packs.FILES["sm_90"]).write_bytes(data)
    monkeypatch.setenv("KILN_PACK_PATH", str(tmp_path))
    options = {"resolve": fake.resolve, "trusted": packs.digest_of(data)}
    monkeypatch.setattr(measure, "Libraries", functools.partial(library.Libraries, **options))
    monkeypatch.setattr(timing, "DeviceClock", Clock)
    monkeypatch.setattr(state, "of_torch", lambda: {"clocks.sm": "1980 MHz", "driver_version": "580"})
    properties = types.SimpleNamespace(name="a GPU", L2_cache_size=1 << 14, uuid="0", multi_processor_count=132)
    stand_ins = {
        "is_available": lambda: True, "current_device": lambda: 0, "get_device_properties": lambda: properties,
        "mem_get_info": lambda: (1 << 30, 1 << 30), "empty_cache": lambda: None, "synchronize": lambda: None,
    }  # fmt: skip
    for name, stand_in in stand_ins.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)
    return places.Place("r.tar.gz", built / "lib", headers.own(), None, "no package")


def run(place, seconds=None, parts=shapes.PARTS, sides=("flash", "cudnn", "math", "flashinfer"), given=SHAPES):
    kept = []
    wanted = measure.Wanted(given, parts, sides, 3, seconds)
    found = measure.run(wanted, [place], Progress(), lambda results: kept.append(len(results["rows"])), "cpu")
    assert kept == [*range(1, len(found["rows"]) + 1)]
    return found


def test_a_whole_run(there):
    found = run(there)
    host, *rows = found["rows"]
    assert host["skipped"] == "no package" and [row["part"] for row in rows] == [
        "forward", "backward", "forward", "backward", "decoding",
    ]  # fmt: skip
    for row in rows:
        assert row["wrong"]["kiln"] == "its result differs from fp32's by nan, so it was not timed"
        assert row["images"]["kiln"] and row["refused"].keys() == {"cudnn"}
        assert row["milliseconds"].keys() == {"flash", "math"} and len(row["milliseconds"]["math"]) == 3
    assert found["about"]["gpu"] == "a GPU" and found["about"]["driver"] == "580" and found["clocks"]
    assert found["absent"] == {"flashinfer": "is not installed"}
    assert len(report.wrong(found)) == 5 and not report.has_figures(found)
    assert "Forward, TFLOP/s" in report.text(found)


def test_all_that_a_shape_can_say_is_taken(there, fake):
    """By the entries of the release: nothing is refused."""
    every = {"head_dim": 64, "heads": 4, "heads_kv": 2, "lengths": [20, 9], "causal": True, "window": 8, "softcap": 3,
             "sinks": True, "deterministic": True, "dtype": "fp16", "rows_first": True}  # fmt: skip
    cache = {**DECODING, "heads_kv": 2, "page": 16, "cache_dtype": "fp8e4m3", "rows_first": True}
    found = run(there, sides=(), given=shapes.parse({"training": [every], "decoding": [cache]}, "x", "x"))
    assert [row["part"] for row in found["rows"]] == ["host", "forward", "backward", "decoding"]
    for row in found["rows"][1:]:
        assert row["refused"] == {} and row["wrong"].keys() == {"kiln"} and row["images"]["kiln"], row


def test_what_no_time_is_left_for(there):
    found = run(there, seconds=1e-9, parts=["forward", "decoding"])
    assert [row["skipped"] for row in found["rows"]] == ["the budget is used up"] * 3


def test_what_no_memory_is_left_for(there, monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (1000, 1 << 30))
    found = run(there, parts=["forward"])
    assert all("more than is free" in row["skipped"] for row in found["rows"])


def test_a_release_without_images_for_the_gpu(there, monkeypatch):
    monkeypatch.delenv("KILN_PACK_PATH")
    with pytest.raises(NotServed, match="r.tar.gz cannot run on this GPU, Fake NVIDIA 0: .*pack"):
        run(there)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 99)
    with pytest.raises(EnvironmentProblem, match="finds .* GPUs, and PyTorch uses number 99"):
        run(there)


def test_images_of_an_earlier_gpu(tmp_path):
    (tmp_path / "kiln.images").mkdir()
    for name in ("nvidia-sm_80", "amd-gfx940"):
        (tmp_path / f"kiln.images/{name}.pack").write_bytes(b"")
    place = places.Place("x", tmp_path, tmp_path, None)
    assert measure._earlier_pack(place, "sm_86")["file"] == "nvidia-sm_80.pack"
    assert measure._earlier_pack(place, "sm_90") is None and measure._earlier_pack(place, "gfx942") is None


def test_the_tuner_on_a_release_with_one_image_for_each_call(there, tmp_path, monkeypatch, capsys):
    """From the words to the calls; there is nothing to choose, and nothing is written."""
    from kiln_bench.tune import command, session

    monkeypatch.setattr(session, "Libraries", measure.Libraries)
    monkeypatch.setattr(session.capture, "own_stream", contextlib.nullcontext)
    monkeypatch.setattr(places, "found", lambda word: contextlib.nullcontext(there))
    monkeypatch.setattr(session, "roof", lambda timed: {"tflops": 1.0, "gbytes": 1.0})
    monkeypatch.setattr(session, "go_on", functools.partial(session.go_on, device="cpu"))
    monkeypatch.setattr(shapes, "read", lambda word: SHAPES)
    (tmp_path / "out").mkdir()
    words = ["tune", "r.tar.gz", "--output", str(tmp_path / "out/sm_90.yaml"), "--target"]
    assert command.main([*words, "sm_90"]) == NotServed.exit_code
    said = capsys.readouterr()
    assert "no call could be run by more than one image" in said.err and "tune 5/5: 5 measured" in said.err
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["sm_90.json"]
    assert command.main([*words, "sm_80"]) == NotServed.exit_code
    assert "this GPU, Fake NVIDIA 0, is of sm_90; --target sm_80 wants one of sm_80" in capsys.readouterr().err
