"""The order of a build: what a failure leaves, and what each step is told. Whole builds are in end_to_end/."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import pytest

from cache_server import CacheServer, Faults
from kiln_build.artifacts import manifest
from kiln_build.cache import layered
from kiln_build.farm import farm
from kiln_build.farm.course import Attempt
from kiln_build.farm.job import COMPILED, Job
from kiln_build.native import native
from kiln_build.options import naming
from kiln_build.options.options import make_options, read_build_variables
from kiln_build.origin.timeline import Timeline
from kiln_build.release import assemble, build, families, harvest, release, replacement
from kiln_build.store.stores import open_store
from kiln_build.trust import statement
from kiln_recipe import targets
from kiln_recipe.compile import lock
from kiln_recipe.console.progress import make_progress
from kiln_recipe.errors import BuildFailed, EnvironmentProblem, KilnError, MissingImages, UsageError
from kiln_recipe.images.image import Image
from small_release import small_release
from store_contract import INFO

ROOT = Path(__file__).resolve().parents[1]
VERSION = "0.1.0b"


def options(place: Path, **variables: str):
    words = [str(ROOT / "input"), "work", "out", VERSION, "sm_90"]
    site = Path(pytest.importorskip("triton").__file__).parents[1]
    return make_options(words, read_build_variables(variables), ROOT, place, site=site)


def tarball_of(asked) -> Path:
    return asked.output / release.tarball_name(naming.name_of(VERSION, asked.build))


def earlier_release(asked, commit: str = "unknown", packs=None) -> dict[str, bytes]:
    """A release of the same name, of this source and toolchain."""
    chains = build.find_toolchains(asked, lock.read_lock(asked.input / lock.LOCK_NAME))
    place = asked.output.parent / "earlier"
    inputs = dataclasses.replace(
        small_release().inputs, source=manifest.Source(commit=commit, dirty=False),
        targets=asked.targets, toolchains=chains, packs=packs or {},
    )  # fmt: skip
    shutil.copytree(small_release().stage, place, symlinks=True)
    (place / manifest.PATH).write_bytes(manifest.encode(manifest.make_manifest(inputs, place, release.PLATFORM)))
    asked.output.mkdir()
    release.make_release(place, asked.output, naming.name_of(VERSION, asked.build))
    return contents(asked.output)


def contents(output: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in output.iterdir()}


def fail(*_arguments, **_more):
    raise BuildFailed("2 of 2 variants failed")


@pytest.mark.parametrize(
    ("variables", "error", "said"),
    [({"KILN_SELECT": "dtpye=bf16"}, UsageError, "dtpye"), ({}, BuildFailed, "variants failed")],
)
def test_a_failed_build_leaves_the_earlier_tarball_and_says_so(tmp_path, monkeypatch, capsys, variables, error, said):
    monkeypatch.setattr(farm, "run", fail)
    asked = options(tmp_path, **variables)
    before = earlier_release(asked)
    with pytest.raises(error, match=said):
        build.build(asked)
    assert contents(asked.output) == before
    assert f"{tarball_of(asked)} is from an earlier build and was not changed" in capsys.readouterr().err


def test_where_there_was_none_nothing_is_said_of_it(tmp_path, capsys):
    asked = options(tmp_path, KILN_SELECT="dtpye=bf16")
    with pytest.raises(KilnError):
        build.build(asked)
    assert contents(asked.output) == {} and "earlier" not in capsys.readouterr().err


def test_a_build_says_what_a_selection_leaves_without_images(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(farm, "run", fail)
    monkeypatch.setattr(native, "build_libraries", fail)
    for more, times in (({}, 1), ({"KILN_NOIMAGE": "1"}, 0)):
        with pytest.raises(BuildFailed):
            build.build(options(tmp_path, KILN_SELECT="head_dim=96", **more))
        said = capsys.readouterr().err
        assert said.count("warning: with head_dim=96 there is no image of flash.attn_decode/attn_decode on") == times


@pytest.mark.parametrize("suffix", ["", ".sha256"])
@pytest.mark.parametrize("variables", [{}, {"KILN_REPLACE": "1"}])
def test_a_folder_of_a_result_s_name_is_refused_before_anything_is_compiled(tmp_path, monkeypatch, suffix, variables):
    monkeypatch.setattr(farm, "run", fail)
    asked = options(tmp_path, **variables)
    path = tarball_of(asked).with_name(tarball_of(asked).name + suffix)
    path.mkdir(parents=True)
    with pytest.raises(replacement.InTheWay, match=f"{suffix or '.gz'} is a folder, which builds do not replace"):
        build.build(asked)


def test_all_that_is_temporary_lies_in_the_workspace(tmp_path, monkeypatch):
    seen = []

    def look(_variants, _toolchain, _store, options, _progress, **_more):
        seen.append(options)
        fail()

    monkeypatch.setattr(farm, "run", look)
    with pytest.raises(BuildFailed):
        build.build(options(tmp_path, KILN_JOBS="3", KILN_TIMEOUT="7"))
    assert (seen[0].logs, seen[0].temporary) == (tmp_path / "work/logs", tmp_path / "work/tmp")
    assert (seen[0].jobs, seen[0].timeout) == (3, 7.0)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"commit": "2" * 40}, f"it is from commit {'1' * 12}, this tree is at {'2' * 12}"),
        ({"dirty": True}, "its source was not changed, this tree's is"),
        ({"patches": "3" * 64}, "its source had other patches"),
        ({"targets": ("sm_90", "gfx942")}, "it is for sm_90, this build is for gfx942, sm_90"),
    ],
)
def test_another_builds_release_is_refused_before_anything_is_compiled(tmp_path, monkeypatch, capsys, change, said):
    asked = dataclasses.replace(options(tmp_path), commit="1" * 40)
    before = earlier_release(asked, commit="1" * 40)
    monkeypatch.setattr(farm, "run", fail)
    if "targets" in change:
        change = {"targets": targets.parse(" ".join(change["targets"]))}
    with pytest.raises(replacement.InTheWay) as caught:
        build.build(dataclasses.replace(asked, **change))
    name = release.tarball_name(VERSION)
    assert str(caught.value) == (
        f"the output has a {name} of another build: {said}. KILN_REPLACE=1 (`kiln build --replace`) replaces it; "
        "another version or output folder keeps both"
    )
    assert contents(asked.output) == before and "earlier" not in capsys.readouterr().err
    with pytest.raises(BuildFailed):  # the compiler's turn
        build.build(dataclasses.replace(asked, **change, build=read_build_variables({"KILN_REPLACE": "1"})))
    with pytest.raises(BuildFailed):
        build.build(asked)


def test_a_release_of_kernels_that_were_changed_is_refused_before_anything_is_compiled(tmp_path, monkeypatch):
    asked = options(tmp_path)
    before = earlier_release(asked, packs={"sm_90": small_release().inputs.packs["sm_90"]})
    monkeypatch.setattr(farm, "run", fail)
    with pytest.raises(replacement.InTheWay, match="its images of [a-z./]+ are of another source or recipe"):
        build.build(asked)
    assert contents(asked.output) == before
    with pytest.raises(BuildFailed):
        build.build(dataclasses.replace(asked, build=read_build_variables({"KILN_REPLACE": "1"})))


def test_what_is_no_release_is_refused_too(tmp_path, monkeypatch):
    monkeypatch.setattr(farm, "run", fail)
    asked = options(tmp_path)
    asked.output.mkdir()
    tarball_of(asked).write_bytes(b"something")
    for _ in range(2):  # without and with a .sha256
        with pytest.raises(replacement.InTheWay, match="that cannot be read .*; KILN_REPLACE=1"):
            build.build(asked)
        statement.checksum_of(tarball_of(asked)).write_text("...")
    assert tarball_of(asked).read_bytes() == b"something"


# ---- shards ----


def of_amd(place: Path, **variables: str):
    """A build of a few images for a target whose compiles need nothing that is linked before."""
    asked = options(place, KILN_SELECT="family=flash;operation=attn_decode;dtype=bf16;head_dim=64", **variables)
    return dataclasses.replace(asked, targets=targets.parse("gfx942"))


def test_shards_are_the_whole_plan_and_no_image_twice(tmp_path, monkeypatch):
    runs: list[set[str]] = []

    def look(variants, *_rest, **_more):
        runs.append({variant.name for variant in variants})
        fail()

    monkeypatch.setattr(farm, "run", look)
    with pytest.raises(BuildFailed):
        build.build(of_amd(tmp_path))
    for number in (1, 2, 3):
        with pytest.raises(BuildFailed):
            build.build(of_amd(tmp_path, KILN_SHARD=f"{number}/3"))
    whole, *shards = runs
    assert all(shards) and set.union(*shards) == whole and sum(map(len, shards)) == len(whole)
    assert not (tmp_path / "out" / "log").exists()


def filled(variants, toolchains, store, _options, _progress, timeline) -> assemble.Harvest:
    """A stand-in of harvest.gather that compiles nothing, and has an image of each all the same."""
    made, keys = {}, {}
    for one in variants:
        key = keys[one.name] = Job.of(one.spec, toolchains[one.target].identity).key
        made[one.name] = store.get(key) or store.put(key, Image(key.encode(), INFO), key, 1.0)
        store.share(key)
        timeline.costs.add(f"flash.{one.kernel}", one.target, {"front end": 0.5}, False)
    return assemble.Harvest(made, {}, keys)


def test_a_shard_says_what_it_took_of_processors(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(build, "gather", filled)
    assert build.build(of_amd(tmp_path, KILN_SHARD="1/3", KILN_COSTS="1")) is None
    said = capsys.readouterr().err
    assert "seconds of processors an image" in said and "front end" in said and "compile " in said


@pytest.mark.parametrize("variables", [{}, {"KILN_STORE": "there"}, {"KILN_CACHE_MODE": "read-only"}])
def test_a_shard_that_a_cache_alone_can_keep_is_there_or_fails(tmp_path, monkeypatch, capsys, variables):
    monkeypatch.setattr(build, "gather", filled)
    monkeypatch.setattr(layered, "_FLUSH", 0.0)  # what goes in the background comes too late
    with CacheServer() as server:
        asked = of_amd(tmp_path, KILN_SHARD="1/3", KILN_CACHE=server.url, **variables)
        must_go = not variables
        for status, there in ((500, False), (0, True)):
            server.faults = Faults(status=status) if status else Faults()
            if must_go and not there:
                with pytest.raises(
                    EnvironmentProblem, match=r"lacks (\d+) of the \1 images of this shard \(.*\), which"
                ):
                    build.build(asked)
                assert "shard 1/3 is whole" not in capsys.readouterr().err
            else:
                assert build.build(asked) is None
                assert "shard 1/3 is whole" in capsys.readouterr().err
        images = len(list(open_store(asked.store).keys()))
        assert images > 1 and (len(server.of("ac")) == images or not must_go)


def test_records_divide_the_plan_and_those_of_the_store_itself_do_not(tmp_path, monkeypatch):
    runs: list[list[str]] = []

    def look(variants, *_rest, **_more):
        runs.append([variant.name for variant in variants])
        fail()

    monkeypatch.setattr(farm, "run", look)
    with pytest.raises(BuildFailed):
        build.build(of_amd(tmp_path))
    long = runs[0][-1]
    store = open_store(tmp_path / "work/store")
    for name in runs[0]:
        store.record_duration(name, took := 1000.0 if name == long else 0.5, took)
    live, copy = tmp_path / "work/store/durations", tmp_path / "copy"
    shutil.copy(live, copy)
    with pytest.raises(BuildFailed):
        build.build(of_amd(tmp_path, KILN_SHARD="1/2", KILN_DURATIONS=str(copy)))
    assert runs[1] == [long]
    with pytest.raises(UsageError, match="changes while shards run"):
        build.build(of_amd(tmp_path, KILN_SHARD="1/2", KILN_DURATIONS=str(live)))


def test_from_a_store_nothing_is_compiled_and_what_is_missing_is_named(tmp_path, monkeypatch, capsys):
    keys: dict[str, str] = {}

    def fill(variants, chain, store, *_rest):
        for variant in variants:
            key = keys[variant.name] = Job.of(variant.spec, chain.identity).key
            store.put(key, Image(key.encode(), INFO), key, 1.0)
        fail()

    monkeypatch.setattr(farm, "run", fill)
    with pytest.raises(BuildFailed):
        build.build(of_amd(tmp_path, KILN_SHARD="2/3"))
    there = dict(keys)
    monkeypatch.setattr(farm, "run", fail)
    for more, of in (({}, ""), ({"KILN_SHARDS": "3"}, ", of shard ")):
        log = tmp_path / f"log{len(more)}.jsonl"
        with pytest.raises(MissingImages) as caught:
            build.build(of_amd(tmp_path, KILN_FROM_STORE="1", KILN_LOG_JSON=str(log), **more))
        first, *lines = str(caught.value).splitlines()
        assert caught.value.has_lines
        assert first.startswith(f"the store {tmp_path / 'work/store'} lacks {len(lines)} of {len(there) + len(lines)} ")
        assert all(f"{of}" in line and line.split(" (key ")[0].strip() not in there for line in lines)
        said = [json.loads(line) for line in log.read_text().splitlines()]
        missing = next(line["missing"] for line in said if "missing" in line)
        assert {one["shard"] for one in missing} == ({1, 3} if more else {None}) and len(missing) == len(lines)
    assert "run `kiln build --shard` for 1/3, 3/3" in first and not list((tmp_path / "out").glob("*.gz"))


def test_from_a_store_that_is_not_there_nothing_is_made(tmp_path):
    with pytest.raises(EnvironmentProblem, match="elsewhere"):
        build.build(of_amd(tmp_path, KILN_FROM_STORE="1", KILN_STORE=str(tmp_path / "elsewhere")))
    assert not (tmp_path / "elsewhere").exists()


def test_durations_without_a_record_are_refused_also_where_no_image_is_missing(tmp_path):
    (tmp_path / "durations").write_text("nothing of the kind")
    with pytest.raises(UsageError, match="says of no variant what it took"):
        build.build(of_amd(tmp_path, KILN_FROM_STORE="1", KILN_SHARDS="2", KILN_DURATIONS=str(tmp_path / "durations")))


class Stubborn:
    """A farm that gives what the store has, and compiles what it has not."""

    def __init__(self, store, info) -> None:
        self.store, self.info = store, info
        self.runs = 0

    def run(self, variants, chain, store, options, progress, **more) -> farm.FarmResult:
        self.runs += 1
        attempts, outcomes = [], {}
        keys = {variant.name: variant.spec.key(chain.identity) for variant in variants}
        for name, key in keys.items():
            if store.get(key) is None:
                store.put(key, Image(b"compiled", self.info, "ptx"), key, 1.0)
                attempts.append(Attempt(1, 0.0, 1.0, COMPILED, name))
            outcomes[name] = store.get(key)
        return farm.FarmResult(outcomes, keys, len(attempts), 0, 0, 1, 1.0, 1.0, attempts)


@pytest.mark.parametrize("is_right", [True, False])
def test_an_image_that_was_not_compiled_here_and_cannot_be_is_compiled_again(tmp_path, monkeypatch, capsys, is_right):
    """What a cache, or a store, says of an image need not be so: it costs a compile, and no build."""
    asked = options(tmp_path, KILN_SELECT="family=flash;operation=attn_fwd;dtype=bf16;head_dim=64;extras=none")
    chains = build.find_toolchains(asked, lock.read_lock(asked.input / lock.LOCK_NAME))
    variants = build.make_plan(asked, families.choose(asked.source, asked.build)).variants[:1]
    chain = chains["sm_90"]
    abi = targets.by_name("sm_90").assembly(80).abi
    good = dataclasses.replace(INFO, parameters=variants[0].parameter_count, abi=abi, ptx_version="8.0", registers=128)
    bad = dataclasses.replace(good, shared=10**9)
    store = open_store(str(asked.workspace / "store"), print)
    for variant in variants:
        store.put(variant.spec.key(chain.identity), Image(b"stored", bad, "ptx"), "0" * 64, 1.0)
    stubborn = Stubborn(store, good if is_right else bad)
    monkeypatch.setattr(farm, "run", stubborn.run)

    def gathered():
        return harvest.gather(variants, chains, store, asked, make_progress(), Timeline())

    if is_right:
        found = gathered()
        assert {store.read(image.digest) for image in found.images.values()} == {b"compiled"}
    else:
        with pytest.raises(BuildFailed, match="needs 1000000000 bytes of shared memory"):
            gathered()
    assert stubborn.runs == 2, "what was compiled here is judged as it is"
    assert "was not compiled here, and its image needs 1000000000 bytes" in capsys.readouterr().err
