"""Builds of one version that hold something else have another name; what means the same has one."""

from __future__ import annotations

import itertools

import pytest
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from kiln_build.options import naming
from kiln_build.options.options import read_build_variables
from kiln_build.release import wheel


def name(families: tuple[str, ...] = (), only: bool = False, **variables: str) -> str:
    build = read_build_variables({f"KILN_{k}": v for k, v in variables.items()})
    return naming.name_of("0.1.0b", build, families, only)


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, "0.1.0b"),
        ({"PROFILE": "core", "JOBS": "3", "TIMEOUT": "9", "CLEAN": "1", "REPLACE": "1", "STORE": "s"}, "0.1.0b"),
        ({"PROFILE": "full"}, "0.1.0b+full"),
        ({"SELECT": "dtype=bf16"}, "0.1.0b+s1b3184e0"),
        ({"PROFILE": "full", "SELECT": "dtype=bf16"}, "0.1.0b+full.s1b3184e0"),
        ({"NOIMAGE": "1", "PTX": "1"}, "0.1.0b+noimage"),
        ({"PTX": "1", "families": ("norm", "full")}, "0.1.0b+ptx.with.full.norm"),
        ({"PTX": "1", "families": ("norm", "with"), "only": True}, "0.1.0b+ptx.only.norm.with"),
        ({"families": ("a_b",), "only": True}, "0.1.0b+only.a_b.h648fa9b3"),
    ],
)
def test_names(variables, expected):
    assert name(**variables) == expected
    assert naming.public(expected) == "0.1.0b"


def test_what_means_the_same_has_one_name():
    same = ("dtype=bf16;head_dim=64,128", " head_dim = 128,64; dtype=bf16;", "head_dim=64,128,64;dtype=bf16")
    assert len({name(SELECT=text) for text in same}) == 1
    assert name(SELECT="head_dim=64") != name(SELECT="head_dim=128")


def test_packages_of_different_builds_never_satisfy_each_other():
    builds = [
        name(*families, **more)
        for families in ((), (("norm",),), (("norm",), True), (("norm", "only"),), (("norm", "with"), True))
        for more in ({}, {"PROFILE": "full"}, {"SELECT": "dtype=bf16"}, {"NOIMAGE": "1"}, {"PTX": "1"})
    ]
    assert len(set(builds)) == len(builds)
    for one, other in itertools.product(builds, builds):
        asked = wheel.exactly("kiln-runtime", one, "sm-90").removeprefix("kiln-runtime[sm-90]")
        assert SpecifierSet(asked).contains(wheel.python_version(other)) == (one == other), (one, other)
        assert (Version(wheel.python_version(one)).public, Version(one).public) == ("0.1.0b0",) * 2


def test_families_of_other_names_never_make_one_version():
    """A wheel's version has a dot both for an underscore and between families."""
    every = [("a_b",), ("a", "b"), ("a_b", "c"), ("a", "b_c"), ("a", "b", "c")]
    versions = {Version(wheel.python_version(name(families))) for families in every}
    assert len(versions) == len(every)
