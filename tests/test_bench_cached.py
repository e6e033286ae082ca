"""benchmarks/attention/cached.py and its pages, without a GPU: a release that computes attention on a CPU stands in."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import itertools
import json
import subprocess
import sys
import types

import pytest

from bench_results import KEY, OTHER, PACK, results
from kiln_bench import shapes, timing
from kiln_bench.attention.row import DeviceFailed
from kiln_bench.release import called
from kiln_bench.release.library import Launch, Refused
from kiln_bench.shapes import Decoding
from small_release import ROOT

torch = pytest.importorskip("torch")
PROGRAMS = ROOT / "benchmarks/attention"
DTYPES = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.int32: "int32"}


@pytest.fixture(scope="module")
def cached():
    before = [*sys.path]
    sys.path.insert(0, str(PROGRAMS))
    description = importlib.util.spec_from_file_location("cached", PROGRAMS / "cached.py")
    module = importlib.util.module_from_spec(description)
    sys.modules["cached"] = module
    description.loader.exec_module(module)
    yield module
    sys.path[:] = before
    for name in ("cached", "cached_page", "page", "session", "measured"):
        sys.modules.pop(name, None)


def told(value):
    if not isinstance(value, torch.Tensor):
        return value
    return called.Tensor(value.data_ptr(), DTYPES[value.dtype], tuple(value.shape), value.stride())


class Release:
    """Libraries whose calls are right. What shall be wrong, or refused, `spoil` does."""

    def __init__(self, spoil=lambda entry, given: None):
        self.asked, self._spoil = [], spoil

    def prepare(self, entry, force_keys=(), **values):
        given = {name: value for name, value in values.items() if value is not None}
        self.asked.append((entry, given))
        self._spoil(entry, given)
        decodes = entry == "attn_decode" and (given["q"].shape[2] == 1 or given.get("sm_scale", 0) < 0)
        kernel = "attn_fwd" if entry == "attn_fwd" else "attn_decode" if decodes else "attn_prefill"
        variant = {"key": (OTHER if decodes else KEY) + "0" * 52, "target": "sm_90", "operation": f"flash.{entry}",
                   "kernel": kernel, "functional": "", "configuration": "B=2", "specialization": "x"}  # fmt: skip

        def launch():
            k, v = (given.get(f"{which}_cache", given.get(which)) for which in "kv")
            if (pages := given.get("block_table")) is not None:
                k, v = (x.transpose(1, 2)[pages.long()].flatten(1, 2).transpose(1, 2) for x in (k, v))
            q = given["q"].float()
            k, v = (x.float().repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
            scores = q @ k.mT * (given.get("sm_scale") or q.shape[-1] ** -0.5)
            if given.get("causal"):
                rows, keys = scores.shape[2:]
                scores.masked_fill_(torch.arange(keys)[None] > torch.arange(rows)[:, None] + keys - rows, -torch.inf)
            given["out"].copy_(torch.softmax(scores, -1) @ v)

        return Launch(launch, [variant], called.spelled(entry, {n: told(x) for n, x in given.items()}))


@pytest.fixture
def made(cached, monkeypatch):
    """A function that makes a row, with a release."""
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda: types.SimpleNamespace(L2_cache_size=1 << 18))
    turns = []

    def measured(works, rounds, turn_ms, while_busy, cycle=1):
        turns.append(turn_ms)
        return timing.Times({name: [1.0 + n / 8] * rounds for n, name in enumerate(works)})

    def row(release, group, shape):
        makes = cached.Run(release, lambda: None, 5, "cpu", measured)
        entry = cached.Entry(group, "decoding" if group == "splits" else group, shape)
        return cached.session.attempt(makes, entry, None, lambda sides: 1.0)[0]

    row.turns = turns
    return row


def small(cached) -> dict:
    return {
        "prefill": cached.Cached(32, 4, 2, 2, 96, 128), "few": cached.Cached(32, 4, 2, 3, 64, 128, causal=False),
        "latent": cached.Cached(576, 4, 1, 2, 1, 128, causal=False, head_dim_v=512),
        "splits": Decoding(32, 4, 2, 2, 64),
    }  # fmt: skip


SIDES = {
    "prefill": {"kiln", "pages-64", "pages-16", "forward", "decode"}, "few": {"kiln", "prefill", "decode"},
    "latent": {"kiln", "pages-64", "pages-1"},
    "splits": {"kiln", "splits-4", "splits-8", "splits-16", "splits-32", "invariant"},
}  # fmt: skip


@pytest.mark.parametrize("part", SIDES)
def test_all_sides_of_a_row_are_right_and_timed(cached, made, part):
    release = Release()
    row = made(release, part, small(cached)[part])
    assert row["refused"] == row["wrong"] == {} and row["milliseconds"].keys() == SIDES[part]
    assert all(len(times) == 5 for times in row["milliseconds"].values()) and made.turns == [cached.LEAST_TURN_MS[part]]
    assert row["group"] == part and row["calls"].keys() == row["images"].keys() == SIDES[part]
    if part == "latent":
        for _, given in release.asked:
            key, value = given["k_cache"], given["v_cache"]
            assert key.data_ptr() == value.data_ptr() and key.stride() == value.stride() and value.shape[-1] == 512
        addresses = {given["k_cache"].data_ptr() for _, given in release.asked}
        assert len(addresses) == len(release.asked) > 3, "each cache is another, on each size of pages"
    if part == "splits":
        counts = [given.get("splits", 0) for _, given in release.asked]
        assert {*counts} == {0, *cached.SPLITS} and sum(bool(g.get("batch_invariant")) for _, g in release.asked) > 0


def test_wrong_and_refused_sides_are_named(cached, made):
    def spoil(entry, given):
        if entry == "attn_fwd":
            raise Refused(6, "no image serves it")
        if "block_table" in given and given["k_cache"].shape[2] == 16:
            given["block_table"] = given["block_table"].flip(1)

    row = made(Release(spoil), "prefill", small(cached)["prefill"])
    assert row["refused"] == {"forward": "no image serves it"} and row["wrong"].keys() == {"pages-16"}
    assert row["milliseconds"].keys() == SIDES["prefill"] - {"forward", "pages-16"}


def test_a_row_that_fails_leaves_out_itself_alone(cached, monkeypatch):
    class Makes:
        def problem(self, entry, before):
            raise torch.OutOfMemoryError("tried to allocate 9 GiB")

    entry = cached.entries(["prefill"])[0]
    row, problem = cached.session.attempt(Makes(), entry, "before", lambda sides: 1.0)
    assert row["skipped"] == "tried to allocate 9 GiB" and row["group"] == "prefill" and problem is None
    monkeypatch.setattr(Makes, "problem", lambda *_: (_ for _ in ()).throw(DeviceFailed("the GPU failed")))
    with pytest.raises(DeviceFailed):
        cached.session.attempt(Makes(), entry, None, lambda sides: 1.0)


def test_each_part_has_rows_of_its_own(cached):
    every = cached.entries([*cached.PARTS])
    assert {entry.group for entry in every} == set(cached.PARTS) and len(set(every)) == len(every)
    for entry in every:
        back = shapes.as_row(entry.shape)
        assert type(entry.shape)(**json.loads(json.dumps(back))) == entry.shape
        pages = cached.PAGES_OF[entry.group]
        assert all(entry.shape.keys % page == 0 for page in pages) and entry.shape.heads % entry.shape.heads_kv == 0


@pytest.fixture
def run(cached, made, monkeypatch, tmp_path):
    """A function that runs all parts of small shapes on a release, and gives what it said and the results it kept."""
    session = cached.session
    properties = types.SimpleNamespace(name="a GPU", L2_cache_size=1 << 16, multi_processor_count=132)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda: properties)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(session.measure, "check_device", lambda name: None)
    monkeypatch.setattr(session.state, "of_torch", lambda: {"clocks.sm": "1980 MHz", "driver_version": "580"})
    monkeypatch.setattr(session.capture, "own_stream", contextlib.nullcontext)
    place = types.SimpleNamespace(name="a release", libraries=None, headers=None, pack=lambda target: PACK)
    monkeypatch.setattr(session.places, "found", lambda word: contextlib.nullcontext(place))
    monkeypatch.setattr(session.headers, "read", lambda folder: None)

    def all_parts(release, budget="5m", refusal=None):
        release.version = "0.1.0b+full"
        release.devices = lambda: [{"target": "sm_90", "name": "a GPU", "refusal": refusal}]
        monkeypatch.setattr(session, "Libraries", lambda *_: contextlib.nullcontext(release))
        parser = argparse.ArgumentParser("cached.py")
        session.add_arguments(parser, cached.PARTS, "5m")
        kept = tmp_path / "results.json"
        words = parser.parse_args(["release", str(kept), "--budget", budget])
        session.check(parser, words, cached.PARTS)
        todo = [cached.Entry(part, part, shape) for part, shape in small(cached).items()]

        def measured(works, rounds, turn_ms, while_busy, cycle=1):
            while_busy()
            return timing.Times({name: [1.0] * rounds for name in works})

        def makes_of(libraries, look):
            return cached.Run(libraries, look, words.rounds, "cpu", measured)

        code = session.ended(parser, lambda: session.run(words, cached.MADE_BY, (), todo, 0, makes_of))
        return code, json.loads(kept.read_text()) if kept.exists() else None

    return all_parts


def test_a_whole_run(run, capsys):
    code, found = run(Release())
    assert code == 0 and [row["group"] for row in found["rows"]] == [*SIDES]
    about = found["about"]
    assert (about["gpu"], about["multiprocessors"], about["rounds"]) == ("a GPU", 132, 5) and "driver" in about
    assert about["releases"] == [{"side": "kiln", "release": "a release", "version": "0.1.0b+full", "target": "sm_90",
                                  "pack": PACK}]  # fmt: skip
    assert found["clocks"] == ["1980 MHz"] and found["sides"]["kiln"] == "Kiln"
    assert capsys.readouterr().out.count(" s: ") == 4


def test_runs_that_are_not_whole(run, capsys):
    def spoil(entry, given):
        if "block_table" in given and given["k_cache"].shape[2] == 1:
            given["block_table"] = given["block_table"].flip(0)

    code, found = run(Release(spoil))
    assert code == 1 and [[*row["wrong"]] for row in found["rows"]] == [[], [], ["pages-1"], []]
    code, found = run(Release(), budget="0.000001s")
    assert code == 1 and {row["skipped"] for row in found["rows"]} == {"the budget is used up"}
    capsys.readouterr()
    assert run(Release(), refusal="its driver is old")[0] == 10
    assert capsys.readouterr().err == "cached.py: a release cannot run on this GPU, a GPU: its driver is old\n"


def test_words_that_cannot_be():
    for words, sentence in (
        (["--parts", "shapes"], "--parts: unknown shapes; the parts are prefill, few, latent, splits"),
        (["--rounds", "4"], "--rounds: 4 are too few for quartiles; 5 or more are right"),
        (["--budget", "5 parsecs"], "--budget 5 parsecs is invalid; expected a time such as 60s, 5m or 1h"),
    ):
        command = [sys.executable, PROGRAMS / "cached.py", "release", "results.json", *words]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 2 and sentence in done.stderr, done.stderr


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu(tmp_path):
    command = [sys.executable, PROGRAMS / "cached.py", "release", tmp_path / "results.json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 7 and done.stderr.startswith("cached.py: PyTorch "), done.stderr


# ---- the pages -------------------------------------------------------------------------------------------------------


def page_of(folder, found):
    kept = folder / "results.json"
    kept.write_text(json.dumps(found))
    command = [sys.executable, PROGRAMS / "cached_page.py", kept, folder]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture
def found(cached, made):
    about = results()["about"] | {"multiprocessors": 132}
    rows = [made(Release(), part, shape) for part, shape in small(cached).items()]
    return results() | {"made_by": cached.MADE_BY, "rows": rows, "about": about}


def test_the_pages(cached, found, tmp_path):
    done = page_of(tmp_path, found)
    assert (done.returncode, done.stdout, done.stderr) == (0, "all was measured, and right\n", "")
    shape, text = small(cached)["prefill"], (tmp_path / "prefill.md").read_text()
    rate = [f"{shape.operations / (1 + n / 8) / 1e9:.0f}" for n in (0, 3, 1, 2, 4)]
    assert shape.operations == 4 * 32 * 2 * 4 * sum(range(33, 129))
    kiln, forward, *rest = rate
    assert f"| {shape} | {forward} | {kiln} | {' | '.join(rest)} | 1.38 | 1.50 | 1 2 3 |" in text
    assert "contiguous; with pages of 64 0.89 (0.89 to 0.89) of that" in " ".join(text.split())
    assert "| prefill | 1 3 |" in text and "medians of 3 rounds" in text and "sha256 2a2a" in " ".join(text.split())
    assert f"1. `{KEY}` sm_90 flash.attn_decode/attn_prefill" in text
    text = (tmp_path / "latent.md").read_text()
    assert "| 1000.0 | 1125.0 | 1250.0 |" in text
    assert "1000.0 | 1125.0 | 1250.0 | 1375.0 | 1500.0 | 1625.0 | 0.62" in text
    assert f"`{OTHER}`" in text and KEY not in text


def test_calls_are_kept_and_read_back(found, tmp_path):
    page_of(tmp_path, found)
    kept = json.loads((tmp_path / "calls/prefill.json").read_text())
    assert (kept["target"], kept["profile"], kept["multiprocessors"]) == ("sm_90", "core", 132)
    assert set(kept["calls"]) == {call for row in found["rows"][:2] for call in row["calls"].values()}
    entries = [called.parsed(call) for call in kept["calls"]]
    assert {entry for entry, _ in entries} == {"attn_fwd", "attn_decode"}
    assert [called.spelled(*one) for one in entries] == [*kept["calls"]]
    assert {tuple(keys) for keys in kept["calls"].values()} == {(KEY,), (OTHER,)}


def test_what_is_missing_is_said(found, tmp_path):
    chunk = found["rows"][0]
    chunk |= {"milliseconds": {}, "images": {}, "calls": {}, "skipped": "the budget is used up"}
    found["rows"][2]["wrong"]["pages-1"] = "its result differs"
    done = page_of(tmp_path, found)
    assert done.returncode == 1 and done.stdout.count("missed: ") == 2
    text = (tmp_path / "prefill.md").read_text()
    assert "| - | - | - | - | - |" in text and "- not measured: " in text and "prefill has no figure of" in text
    assert ", pages-1: its result differs" in " ".join((tmp_path / "latent.md").read_text().split())
    assert page_of(tmp_path, found | {"rows": []}).stdout == "missed: the results have no row\n"
    other = page_of(tmp_path, found | {"made_by": "kiln bench"})
    assert other.returncode != 0 and "has no results of benchmarks/attention/cached.py" in other.stderr


def test_a_call_that_decode_serves_is_marked(found, tmp_path):
    found["rows"][0]["images"]["kiln"] = found["rows"][0]["images"]["decode"]
    page_of(tmp_path, found)
    assert (tmp_path / "prefill.md").read_text().count(" (decode) |") == 1


# ---- calls, spelled --------------------------------------------------------------------------------------------------


def test_places_of_tensors():
    """Equal addresses stay equal, and what counts of their alignment stays."""
    base = 1 << 33
    tensors = [called.Tensor(base + n, "bf16", (2, 3), (3, 1)) for n in (0, 16, 0, 512)]
    text = called.spelled("attn_fwd", dict(zip("qkvo", tensors)) | {"causal": 1, "sm_scale": -1e-05})
    assert text == ("attn_fwd q=bf16[2,3]/3,1@0 k=bf16[2,3]/3,1@1+16 v=bf16[2,3]/3,1@0 o=bf16[2,3]/3,1@2 causal=1 "
                    "sm_scale=-1e-05")  # fmt: skip
    entry, values = called.parsed(text)
    assert entry == "attn_fwd" and (values["causal"], values["sm_scale"]) == (1, -1e-05)
    addresses = [values[name].address for name in "qkvo"]
    assert [address % 256 for address in addresses] == [0, 16, 0, 0] and addresses[0] == addresses[2]
    assert all(abs(a - b) > 1 << 39 for a, b in itertools.combinations({*addresses}, 2))
    assert called.spelled(entry, values) == text
    empty = called.spelled("x", {"seed": called.Tensor(base, "int64", (), ())})
    assert called.parsed(empty)[1]["seed"].sizes == ()
    with pytest.raises(ValueError, match="could not convert|invalid literal"):
        called.parsed("attn_fwd q=bf16[2")
