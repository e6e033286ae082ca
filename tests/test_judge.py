"""The judge: each limit has an image just within it and one just beyond, on each vendor."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kiln_recipe import targets
from kiln_recipe.images import judge
from kiln_recipe.images.image import ImageInfo
from small_release import images, info_of

HOPPER = targets.by_name("sm_90")
CDNA3 = targets.by_name("gfx942")
GOOD = {
    "sm_90": ImageInfo("cubin", "attn", 256, 163840, 128, 0, 0, 26, 0, 1, 0, 1, 7, "8.0"),
    "gfx942": ImageInfo("hsaco", "attn", 256, 65536, 256, 0, 0, 26, 0, 1, 0, 1, 5, ""),
}


def reasons(info: ImageInfo, target, parameters: int = 24, allowance: int = 0) -> tuple[str, ...]:
    return judge.verdict(info, target, parameters, allowance)


@pytest.mark.parametrize("target", [HOPPER, CDNA3], ids=lambda t: t.name)
def test_a_good_image_passes(target):
    assert reasons(GOOD[target.name], target) == ()


@pytest.mark.parametrize("target", [HOPPER, CDNA3], ids=lambda t: t.name)
def test_shared_memory(target):
    info = GOOD[target.name]
    assert reasons(replace(info, shared=target.shared_memory), target) == ()
    (reason,) = reasons(replace(info, shared=target.shared_memory + 1), target)
    assert str(target.shared_memory + 1) in reason and target.name in reason


def test_the_lds_of_a_128_by_128_block_at_d128_is_refused():
    (reason,) = reasons(replace(GOOD["gfx942"], shared=98304), CDNA3)
    assert reason == "needs 98304 bytes of shared memory; a block on gfx942 has 65536"


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"threads": 2048, "registers": 8}, "threads"),
        ({"threads": 0}, "no multiple"),
        ({"threads": 130}, "no multiple"),
        ({"registers": 256, "threads": 128}, "at most 255"),
        ({"registers": 255, "threads": 512}, "a multiprocessor of sm_90 has 65536"),
        ({"spills": 4}, "spills 4 bytes"),
        ({"profile_scratch": 8}, "profiling"),
        ({"parameters": 23}, "takes 23 parameters"),
        ({"parameters": 27}, "takes 27 parameters"),
        ({"abi": 8}, "is of ABI 8"),
        ({"kind": "hsaco"}, "is a hsaco"),
    ],
)
def test_each_limit(change, word):
    (reason,) = reasons(replace(GOOD["sm_90"], **change), HOPPER)
    assert word in reason


def test_spills_that_the_recipe_allows():
    assert reasons(replace(GOOD["sm_90"], spills=64), HOPPER, allowance=64) == ()
    assert reasons(replace(GOOD["sm_90"], spills=65), HOPPER, allowance=64) != ()


@pytest.mark.parametrize("hidden", [0, 1, 2])
def test_hidden_parameters_are_tritons_own(hidden):
    assert reasons(GOOD["sm_90"], HOPPER, parameters=26 - hidden) == ()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"scratch": 1 << 70}, "scratch 1180591620717411303424"),
        ({"shared": 1 << 31}, "shared 2147483648"),
        ({"clusters": -7}, "clusters -7"),
        ({"clusters": 0}, "clusters 0"),
        ({"profile_scratch": -1}, "profile_scratch -1"),
        ({"ptx_version": "eight"}, "of PTX 'eight'"),
        ({"ptx_version": "8.88"}, "of PTX '8.88'"),
    ],
)
def test_what_nothing_can_have_contradicts_every_image(change, said):
    code = next(path for path in images().iterdir() if path.name.startswith("sm_90") and path.suffix != ".ptx")
    info = info_of(code.read_bytes())
    assert judge.contradictions(info, code.read_bytes(), HOPPER) == ()
    found = judge.contradictions(replace(info, **change), code.read_bytes(), HOPPER)
    assert any(said in reason and "which cannot be" in reason for reason in found)
