"""A job is a value that travels: what it names by digest is found wherever its worker is, or refused in a sentence."""

from __future__ import annotations

import hashlib
import importlib.util
import math
import os
import shutil
from dataclasses import dataclass, fields, replace
from pathlib import Path

import msgspec
import pytest

import toolchains
from executor_contract import collect
from kiln_build.farm import job
from kiln_build.farm.executor import Returned, Task
from kiln_build.farm.job import Host, Job
from kiln_build.farm.local import LocalExecutor
from kiln_build.store.local import LocalStore
from kiln_build.store.store import StoredImage
from kiln_recipe import targets
from kiln_recipe.compile.compile import compile_variant, prepare_worker
from kiln_recipe.errors import ArtifactError, EnvironmentProblem
from kiln_recipe.plan import plan
from kiln_recipe.read import fingerprint, recipe
from worker_tasks import StandInSpec, StandInToolchain, compile_stand_in, expected_image

ROOT = Path(__file__).resolve().parents[1]
has_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")


@dataclass(frozen=True)
class SomeToolchain:
    identity: str = "t" * 64
    heap: str = "heap.so"


def variants(folder: Path):
    """Of one small kernel, for a GPU of each vendor."""
    family = recipe.load(folder / "recipe.yaml")
    planned = plan.make_plan([family], targets.parse("sm_90;gfx942"), "core", ())
    return [variant for variant in planned.variants if variant.kernel == "total"]


@pytest.fixture
def family(tmp_path) -> Path:
    return Path(shutil.copytree(ROOT / "examples/family", tmp_path / "planned here" / "family"))


def test_a_job_is_plain_data_without_a_path(family):
    for variant in variants(family):
        one = Job.of(variant.spec, "t" * 64)
        data = one.encode()
        assert b"/" not in data and Job.decode(data) == one
        assert one.key == variant.spec.key("t" * 64) == Job.decode(data).spec.key("t" * 64)
        kinds = [type(value) for _, value in variant.spec.constants]
        assert [type(value) for _, value in Job.decode(data).spec.constants] == kinds
    with pytest.raises(msgspec.DecodeError):
        Job.decode(b"{}")
    assert {field.name for field in fields(Job)} == {"key", "spec", "toolchain"}


def test_a_host_finds_what_a_job_names_or_says_what_is_missing(family):
    spec = next(variant.spec for variant in variants(family) if variant.spec.target == "sm_90")
    one, host = Job.of(spec, "t" * 64), Host({spec.fingerprint: spec.source}, SomeToolchain(), "store")
    assert host.spec_of(one) == spec
    for other, words in (
        (replace(host, sources={}), "the source of total for .* is not on this machine"),
        (replace(host, toolchain=SomeToolchain("u" * 64)), "by the toolchain tttttttttttt, and this machine has uuuu"),
        (replace(host, toolchain=SomeToolchain(heap="")), "total for sm_90 would not have equal bytes"),
    ):
        with pytest.raises(EnvironmentProblem, match=words):
            other.spec_of(one)
    with pytest.raises(EnvironmentProblem, match="would make another image of total"):
        host.spec_of(replace(one, key="0" * 64))


def run(folder: Path, data: list[bytes], host: Host) -> list:
    """The last events of jobs, run by a worker on `host`."""
    folder.mkdir()
    with LocalExecutor(1, job.prepare, (host, prepare_worker, compile_variant)) as executor:
        for number, one in enumerate(data):
            executor.submit(Task(number, job.run, (Job.decode(one),), folder / f"{number}.log"))
        ended = collect(executor, len(data), 300)
    return [ended[number] for number in range(len(data))]


@has_triton
def test_a_job_runs_where_sources_and_toolchain_are_elsewhere(family, tmp_path):
    here = toolchains.own(tmp_path)
    site = Path(here.site)
    planned = variants(family)
    data = [Job.of(variant.spec, here.identity).encode() for variant in planned]
    sources = {variant.spec.fingerprint: variant.spec.source for variant in planned}
    first = run(tmp_path / "first", data, Host(sources, here, str(tmp_path / "one store")))

    moved = tmp_path / "another machine"
    family.rename(moved)
    for name in ("triton", "triton.libs", *(path.name for path in site.glob("triton-*.dist-info"))):
        if (site / name).exists():
            shutil.copytree(site / name, moved / "site" / name, copy_function=link_or_copy)
    there = toolchains.own(tmp_path, moved / "site")
    found = {fingerprint.fingerprint(moved / "rms_norm.py", "total"): str(moved / "rms_norm.py")}
    second = run(tmp_path / "second", data, Host(found, there, str(tmp_path / "another store")))

    for variant, one, two in zip(planned, first, second):
        assert isinstance(one, Returned) and isinstance(two, Returned), (one, two)
        assert one.value.how == two.value.how == job.COMPILED
        stores = [LocalStore(tmp_path / name) for name in ("one store", "another store")]
        key = variant.spec.key(here.identity)
        images = [store.load(store.get(key)) for store in stores]
        assert images[0] == images[1] and images[0].code, "equal bytes, facts and PTX"
        of_vendor = ["ptx", "cubin"] if variant.target == "sm_90" else ["amdgcn", "hsaco"]
        for result in (one.value, two.value):
            assert list(result.stages) == ["front end", "ttir", "ttgir", "llir", *of_vendor, "image"]
            assert all(seconds >= 0 for seconds in result.stages.values())
            assert 0.5 * result.cpu < sum(result.stages.values()) <= 1.01 * result.cpu, "they are where the time went"


@has_triton
def test_a_source_that_changes_during_a_build_ends_it(family, tmp_path):
    here = toolchains.own(tmp_path)
    variant = variants(family)[0]
    host = Host({variant.spec.fingerprint: variant.spec.source}, here, str(tmp_path / "store"))
    path = Path(variant.spec.source)
    path.write_text(path.read_text().replace("tl.sum(", "2 * tl.sum("))
    (event,) = run(tmp_path / "logs", [Job.of(variant.spec, here.identity).encode()], host)
    assert isinstance(event.error, EnvironmentProblem) and "total has changed since the build began" in str(event.error)
    assert LocalStore(tmp_path / "store").get(variant.spec.key(here.identity)) is None


def link_or_copy(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def sent(one: Job, image, **changed) -> bytes:
    """A result as it travels, with some fields changed."""
    stored = StoredImage(hashlib.sha256(image.code).hexdigest(), image.info, None, "a" * 64, 1.5)
    fields = {"key": one.key, "image": stored, "how": "compiled", "seconds": 1.5, "cpu": 1.25, "stages": {},
              "warnings": (), "code": image.code, "ptx": None}  # fmt: skip
    return msgspec.msgpack.encode(fields | changed)


@pytest.mark.parametrize("wrong", [math.nan, -1.0, math.inf])
@pytest.mark.parametrize("name", ["seconds", "cpu", "stages"])
def test_times_that_cannot_be_are_not_believed(family, name, wrong):
    one = Job.of(variants(family)[0].spec, "t" * 64)
    value = {"ttir": wrong} if name == "stages" else wrong
    with pytest.raises(ArtifactError, match="cannot be"):
        job.receive(one, lambda *_: (), sent(one, expected_image("v"), **{name: value}))


def test_a_result_that_travels_is_checked(family):
    one = Job.of(variants(family)[0].spec, "t" * 64)
    image = replace(expected_image("a"), ptx=None)
    good = job.receive(one, lambda info, code: (), sent(one, image))
    assert (good.sent, good.how, good.seconds, good.cpu) == (image, "compiled", 1.5, 1.25)
    flipped = bytes([image.code[0] ^ 1]) + image.code[1:]
    for words, data in (
        ("is truncated or damaged", sent(one, image)[:-5]),
        ("is truncated or damaged", sent(one, image, ptx=b"\xff")),
        ("came where that of", sent(one, image, key="0" * 64)),
        ("does not have the digest", sent(one, image, code=flipped)),
        ("does not have the digest", sent(one, image, ptx=b"more")),
        ("what is stated of the image .* cannot be", sent(one, image, how="dreamt")),
        ("it is too small; it is green", sent(one, image)),
    ):
        wrong = ("is too small", "is green") if "green" in words else ()
        with pytest.raises(ArtifactError, match=words):
            job.receive(one, lambda info, code, wrong=wrong: wrong, data)


class AnyHost:
    toolchain = StandInToolchain()

    def spec_of(self, one):
        return one.spec


@pytest.fixture
def worker(tmp_path, monkeypatch):
    """This process, made a worker with a store of its own; gives the store and a job."""
    store, spec = LocalStore(tmp_path / "store", job._warn), StandInSpec("v")
    monkeypatch.setattr(job, "_worker", job._Worker(AnyHost(), store, compile_stand_in))
    monkeypatch.chdir(tmp_path)
    return store, Job(spec.key("1"), spec, "1")


def test_what_is_damaged_in_the_store_of_a_machine_is_compiled_again(worker):
    """Sizes are looked at when an image is looked up, and bytes when it is sent."""
    store, one = worker
    assert job.receive(one, lambda *_: (), job.run_and_send(one)).how == "compiled"
    (path,) = (store.root / "objects").glob(f"*/{job.run(one).image.digest}.zst")
    damaged = bytearray(path.read_bytes())
    damaged[-5] ^= 1
    path.write_bytes(damaged)
    found = job.receive(one, lambda *_: (), job.run_and_send(one))
    assert found.how == "compiled" and found.sent == expected_image("v")
    assert any("corrupt" in warning for warning in found.warnings), found.warnings


def test_a_process_that_stands_still_with_a_claim_is_not_waited_for_for_ever(worker, monkeypatch):
    store, one = worker
    monkeypatch.setattr("kiln_build.store.local._CLAIM_PATIENCE", 0.1)
    with LocalStore(store.root).claim(hashlib.sha256(b"1 v").hexdigest()) as is_held:
        assert is_held
        result = job.run(one)
    assert result.how == "compiled" and "stands still; it is compiled once more" in result.warnings[0]
