"""Groups of packs compressed while images still come: the same bytes, whatever came, in whatever order, and however it
ended."""

from __future__ import annotations

import hashlib
import random
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import small_recipe
from kiln_build.artifacts import pack_writer
from kiln_build.farm.farm import Failure
from kiln_build.release import assemble
from kiln_build.release.assemble import Ahead, Harvest, PackPlan
from kiln_build.store.store import StoredImage
from kiln_recipe import targets
from kiln_recipe.errors import ArtifactError, Interrupted
from kiln_recipe.images.image import ImageInfo
from kiln_recipe.plan import plan
from kiln_recipe.plan.model import Plan
from kiln_recipe.read import recipe

INFO = ImageInfo("cubin", "attn", 128, 65536, 200, 0, 0, 24, 0, 1, 0, 1, 7, "8.0")
PATIENCE = 60.0  # seconds for threads that a busy machine lets wait


@pytest.fixture(scope="module")
def whole_plan(tmp_path_factory) -> Plan:
    small = recipe.load(small_recipe.write(tmp_path_factory.mktemp("recipe")))
    return plan.make_plan([small], targets.parse("sm_80;sm_90"), "core", ())


@pytest.fixture(autouse=True)
def small(monkeypatch) -> None:
    """Many groups of few images, which are no code objects."""
    monkeypatch.setattr(pack_writer, "GROUP_BYTES", 6000)
    monkeypatch.setattr(assemble.elf, "code_ranges", lambda code: [(16, len(code) // 32 * 16)])


@pytest.fixture
def compressions(monkeypatch) -> list[bytes]:
    made: list[bytes] = []
    compress = pack_writer.compress
    monkeypatch.setattr(pack_writer, "compress", lambda frame: made.append(frame) or compress(frame))
    return made


class Images:
    """What became of each variant of a plan: some have equal images, some have none, as they may."""

    def __init__(self, whole: Plan, seed: int) -> None:
        choose = random.Random(seed)
        self.content: dict[str, bytes] = {}
        self.damaged: set[str] = set()
        self.outcomes: dict[str, StoredImage | Failure] = {}
        made: dict[int, list[StoredImage]] = {}  # by parameters
        variants = []
        for variant in whole.variants:
            waiver = choose.choice((None, None, "too large"))
            variants.append(replace(variant, waiver=waiver))
            if waiver and choose.random() < 0.5:
                self.outcomes[variant.name] = Failure(variant.name, "compile", "no", None)
            elif variant.parameter_count in made and choose.random() < 0.2:
                self.outcomes[variant.name] = choose.choice(made[variant.parameter_count])
            else:
                text = self._put(b".version 8.0 %d" % choose.randrange(10) * choose.randrange(1, 80))
                code = self._put(choose.randbytes(16 * choose.randrange(20, 90)))
                info = replace(INFO, parameters=variant.parameter_count)
                self.outcomes[variant.name] = StoredImage(code, info, choose.choice((None, text, text)), "0" * 64, 1.0)
                made.setdefault(variant.parameter_count, []).append(self.outcomes[variant.name])
        self.plan = replace(whole, variants=tuple(variants))

    def _put(self, data: bytes) -> str:
        digest = hashlib.sha256(data).hexdigest()
        self.content[digest] = data
        return digest

    def read(self, digest: str) -> bytes:
        """As a store has it."""
        if digest in self.damaged:
            raise ArtifactError(f"the object {digest} is damaged")
        return self.content[digest]

    def planned(self, folder: Path, with_ptx: bool = True) -> list[PackPlan]:
        keys = {name: hashlib.sha256(name.encode()).hexdigest() for name in self.outcomes}
        harvest: Harvest = assemble.judge_all(self.plan.variants, self.outcomes, keys)
        return [assemble.plan_pack(t, self.plan, harvest, "0.1.0b", with_ptx, folder) for t in self.plan.targets]

    def packs(self, folder: Path, with_ptx: bool = True) -> dict[str, bytes]:
        """By target the bytes of its pack."""
        written = assemble.write_packs(self.planned(folder, with_ptx), self, 1, lambda _: None)
        return {name: path.read_bytes() for name, path in written.items()}

    def ahead(self, folder: Path, with_ptx: bool = True, workers: int = 1) -> Ahead:
        return Ahead(self.plan, with_ptx, self, assemble.kept_groups(folder), workers)


def groups_in(folder: Path) -> set[str]:
    return {path.name for path in (folder / "groups").glob("*") if len(path.name) == 64}


def until(holds, what: str) -> None:
    ends = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < ends, what
        time.sleep(0.01)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 999), st.booleans(), st.integers(1, 3), st.floats(0, 1), st.booleans())
def test_whatever_has_come_in_whatever_order_packs_are_the_same(
    whole_plan, tmp_path_factory, seed, with_ptx, workers, share, is_patient
):
    images, folder = Images(whole_plan, seed), tmp_path_factory.mktemp("packs")
    fresh = images.packs(folder / "fresh", with_ptx)
    names = list(images.outcomes)
    random.Random(seed).shuffle(names)
    with images.ahead(folder / "ahead", with_ptx, workers) as ahead:
        for name in names[: round(share * len(names))]:
            ahead.add([name], images.outcomes[name])
        if is_patient:
            time.sleep(0.05)
    assert groups_in(folder / "ahead") <= groups_in(folder / "fresh"), "no group that no pack has"
    assert images.packs(folder / "ahead", with_ptx) == fresh


def all_ahead(images: Images, folder: Path, groups: set[str], workers: int = 2) -> None:
    """Compresses all groups before they are asked for."""
    with images.ahead(folder, workers=workers) as ahead:
        for name, outcome in images.outcomes.items():
            ahead.add([name], outcome)
        until(lambda: groups_in(folder) == groups, "not all groups were compressed")


def test_what_is_all_there_is_all_compressed_and_not_again(whole_plan, tmp_path, compressions):
    images = Images(whole_plan, 1)
    fresh = images.packs(tmp_path / "fresh")
    groups = groups_in(tmp_path / "fresh")
    assert len(groups) > 8
    all_ahead(images, tmp_path / "ahead", groups)
    compressions.clear()
    assert images.packs(tmp_path / "ahead") == fresh and compressions == []


def test_variants_are_wanted_in_the_order_of_the_packs(whole_plan, tmp_path):
    """In that order each group can be compressed before the images of the next but one come."""
    images = Images(whole_plan, 2)
    images.packs(tmp_path / "fresh")
    ahead = images.ahead(tmp_path / "ahead")
    ordered = ahead.in_order(list(reversed(images.plan.variants)))
    assert set(ordered) == set(images.plan.variants)
    half = len(ordered) // 2
    with ahead:
        for variant in ordered[:half]:
            ahead.add([variant.name], images.outcomes[variant.name])
        least = len(groups_in(tmp_path / "fresh")) // 2 - 4  # the last of each kind, which the next image may enter
        until(lambda: len(groups_in(tmp_path / "ahead")) >= least, "fewer than half of the groups")


def test_an_early_group_that_was_damaged_is_made_again(whole_plan, tmp_path, compressions):
    images = Images(whole_plan, 3)
    fresh = images.packs(tmp_path / "fresh")
    all_ahead(images, tmp_path / "ahead", groups_in(tmp_path / "fresh"))
    for number, path in enumerate(sorted((tmp_path / "ahead/groups").iterdir())[:4]):
        data = bytearray(path.read_bytes())
        data[number * 9] ^= 1
        path.write_bytes((data, data[:-1], data[:10], b"")[number])
    compressions.clear()
    assert images.packs(tmp_path / "ahead") == fresh and len(compressions) == 4


def test_behind_a_compile_that_failed_nothing_is_compressed(whole_plan, tmp_path):
    images = Images(whole_plan, 4)
    images.packs(tmp_path / "fresh")
    ahead = images.ahead(tmp_path / "ahead")
    ordered = ahead.in_order(images.plan.variants)
    broken = next(v for v in ordered if not isinstance(images.outcomes[v.name], Failure) and v.target == "sm_90")
    with ahead:
        for variant in ordered:
            failure = Failure(variant.name, "crash", "its worker died", None)
            ahead.add([variant.name], failure if variant is broken else images.outcomes[variant.name])
        of_the_other = groups_of(images, tmp_path / "other", "sm_80")
        until(lambda: groups_in(tmp_path / "ahead") >= of_the_other, "the other pack is not compressed")
    assert groups_in(tmp_path / "ahead") == of_the_other < groups_in(tmp_path / "fresh")


def groups_of(images: Images, folder: Path, target: str) -> set[str]:
    one = [planned for planned in images.planned(folder) if planned.target.name == target]
    assemble.write_packs(one, images, 1, lambda _: None)
    return groups_in(folder)


def test_a_damaged_image_ends_only_what_is_behind_it(whole_plan, tmp_path):
    images = Images(whole_plan, 5)
    fresh = images.packs(tmp_path / "fresh")
    ordered = images.ahead(tmp_path / "ahead").in_order(images.plan.variants)
    found = [images.outcomes[v.name] for v in ordered if v.target == "sm_90"]
    found = [one for one in found if isinstance(one, StoredImage)]
    of_the_other = groups_of(images, tmp_path / "other", "sm_80")
    images.damaged = {found[len(found) // 2].digest}
    with images.ahead(tmp_path / "ahead") as ahead:
        for variant in ordered:
            ahead.add([variant.name], images.outcomes[variant.name])
        until(lambda: groups_in(tmp_path / "ahead") >= of_the_other, "the other pack is not compressed")
    images.damaged = set()
    assert groups_in(tmp_path / "ahead") < groups_in(tmp_path / "fresh")
    assert images.packs(tmp_path / "ahead") == fresh


def test_who_is_interrupted_waits_only_for_groups_that_have_begun(whole_plan, tmp_path, monkeypatch):
    images = Images(whole_plan, 6)
    ahead = images.ahead(tmp_path / "ahead", workers=2)
    compress, made = pack_writer.compress, []

    def slow(frame: bytes) -> bytes:
        made.append(frame)
        until(lambda: ahead._is_over, "nobody leaves")
        return compress(frame)

    monkeypatch.setattr(pack_writer, "compress", slow)
    with pytest.raises(Interrupted), ahead:
        for name, outcome in images.outcomes.items():
            ahead.add([name], outcome)
        until(lambda: made, "nothing begins")
        raise Interrupted("interrupted by SIGINT")
    assert 1 <= len(made) <= 2 and len(groups_in(tmp_path / "ahead")) == len(made)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("kiln-pack")]


def test_a_mistake_in_a_thread_is_heard(whole_plan, tmp_path):
    images = Images(whole_plan, 7)
    with pytest.raises(KeyError, match="nobody"), images.ahead(tmp_path) as ahead:
        ahead.add(["nobody"], next(iter(images.outcomes.values())))
