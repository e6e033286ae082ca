"""A plan is divided among shards: alike on every machine, and evenly."""

from __future__ import annotations

import os
import random
import subprocess
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kiln_build.farm import division
from kiln_build.options.variables import MOST_SHARDS, Shard, read_shard
from kiln_build.origin import records
from kiln_build.store.local import LocalStore
from kiln_build.store.store import Took
from kiln_recipe.errors import EnvironmentProblem, UsageError


@given(st.dictionaries(st.text("0123456789abcdef", min_size=1, max_size=8), st.floats(0, 1e4)), st.integers(1, 40))
def test_every_image_has_one_shard_and_none_has_too_much(seconds, count):
    made = division.divide(seconds, count)
    assert made.keys() == seconds.keys() and set(made.values()) <= set(range(1, count + 1))
    loads = Counter()
    for key, number in made.items():
        loads[number] += seconds[key]
    longest = max(seconds.values(), default=0.0)
    assert max(loads.values(), default=0.0) <= sum(seconds.values()) / count + longest + 1e-6


@given(st.dictionaries(st.text(max_size=4), st.integers(1, 5).map(float), max_size=30), st.integers(1, 9), st.randoms())
def test_the_order_of_what_is_divided_does_not_count(seconds, count, chance):
    items = list(seconds.items())
    chance.shuffle(items)
    assert division.divide(dict(items), count) == division.divide(seconds, count)


def test_images_that_take_equally_long_are_dealt_out_in_turn():
    seconds = {f"{kernel}{number:02}": took for kernel, took in (("a", 5.0), ("b", 1.0)) for number in range(40)}
    made = division.divide(seconds, 8)
    for kernel in "ab":
        assert set(Counter(n for key, n in made.items() if key[0] == kernel).values()) == {5}


def test_a_hundred_shards_of_uneven_images_are_even():
    chance = random.Random(1)
    seconds = {f"{number:05}": chance.lognormvariate(0, 1) for number in range(20_000)}
    loads = Counter()
    for key, number in division.divide(seconds, 100).items():
        loads[number] += seconds[key]
    assert max(loads.values()) < 1.002 * min(loads.values())


@pytest.mark.parametrize("text", ["0/3", "4/3", "3", "3/", "/3", "1/0", "-1/3", "1/100001", "a/b", "1/3/5", "١/٣"])
def test_what_is_no_shard(text):
    with pytest.raises(UsageError, match=f"^KILN_SHARD={text} is no shard; expected its number, from 1, .*3/100$"):
        read_shard("KILN_SHARD", text)


def test_shards():
    assert read_shard("KILN_SHARD", " 3/100 ") == Shard(3, 100) and read_shard("KILN_SHARD", "") is None
    assert str(Shard(3, 100)) == "3/100" and read_shard("n", f"1/{MOST_SHARDS}") is not None


@pytest.mark.parametrize(
    ("task", "said"),
    [
        ({"SLURM_ARRAY_TASK_ID": "7", "SLURM_ARRAY_TASK_COUNT": "1"}, "--shard 7/8"),  # of eight, run again alone
        ({}, "--from-store --shards 8"),
    ],
)
def test_the_jobs_of_an_array_divide_by_the_number_that_they_are_given(tmp_path, task, said):
    (tmp_path / "kiln").write_text('#!/bin/sh\necho "$@"\n')
    (tmp_path / "kiln").chmod(0o755)
    script = Path(__file__).resolve().parents[1] / "examples" / "slurm" / "shards.sbatch"
    words = ["bash", script, "all", "0.1.0b"]
    environment = {"PATH": os.environ["PATH"], **task}
    done = subprocess.run([*words, "8"], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.endswith(f" output 0.1.0b all {said}\n")
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode and "how many shards there are" in done.stderr and not done.stdout


def test_durations_are_read_from_a_copy_of_a_stores(tmp_path):
    store = LocalStore(tmp_path / "store")
    for name, took in (("a", 1.5), ("b", 2.0), ("a", 3.0)):
        store.record_duration(name, took, 2.5)
    live, copy = tmp_path / "store/durations", tmp_path / "copy"
    copy.write_bytes(live.read_bytes() + b'["torn", 1')
    assert records.read(copy) == {"a": Took(3.0, 2.5), "b": Took(2.0, 2.5)}
    division.refuse_live(copy, store.location)
    division.refuse_live(copy, "https://cache.example.org")
    with pytest.raises(UsageError, match="changes while shards run"):
        division.refuse_live(live, store.location)


def test_durations_that_cannot_be(tmp_path):
    with pytest.raises(EnvironmentProblem, match="No such file"):
        records.read(tmp_path / "none")
    (tmp_path / "text").write_text("a b c\n")
    with pytest.raises(UsageError, match="says of no variant what it took"):
        records.read(tmp_path / "text")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(EnvironmentProblem, match="nobody writes to this pipe"):
        records.read(tmp_path / "pipe")
    with pytest.raises(UsageError, match="has more than 64 MiB"):
        records.read(Path("/dev/zero"))
    (tmp_path / "empty").touch()
    assert records.read(tmp_path / "empty") == {}
