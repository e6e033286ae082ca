"""The host's time of a call: batches by turns, ways that are wrong or refused, packages that cannot be measured."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from kiln_bench import host, host_time
from kiln_bench.host_time import Way
from kiln_bench.release.places import Place


def place(site: str | None) -> Place:
    return Place("a release", Path("lib"), Path("include"), site, "a tarball has no Python package")


def test_ways_are_timed_in_turns():
    clock, called = [0.0], []

    def way(name, seconds):
        def call():
            called.append(name)
            clock[0] += seconds

        return call

    calls = {"fast": way("fast", 2e-6), "slow": way("slow", 1e-5)}
    times = host_time.measure(calls, lambda: called.append("wait"), 3, 4, lambda: clock[0])
    assert times == {"fast": pytest.approx([2.0] * 3), "slow": pytest.approx([10.0] * 3)}
    turns = [name for name, _ in itertools.groupby(called[2 * host_time.WARM :])]
    assert turns == ["wait", "fast", "wait", "slow"] * 3 + ["wait"]


def test_what_is_wrong_or_refuses_is_not_timed():
    torch = pytest.importorskip("torch")
    right = torch.ones(3)

    def refuses():
        raise ValueError("no\nimage")

    found = {
        "one": Way(lambda: right, right), "several": Way(lambda: (right, right), (right, right)),
        "lists": Way(lambda: [right, right, 0], right), "nothing": Way(lambda: None, None),
        "half": Way(lambda: (right, right * 2), (right, right)), "nan": Way(lambda: right * torch.nan, right),
        "refuses": Way(refuses, right),
    }  # fmt: skip
    calls, refused, wrong = host_time.check(found)
    assert calls.keys() == {"one", "several", "lists", "nothing"} and refused == {"refuses": "ValueError: no image"}
    assert wrong["half"] == "its result differs from fp32's by 1, so it was not timed" and "nan" in wrong["nan"]


def test_what_is_right_is_attention():
    torch = pytest.importorskip("torch")
    q, k, v = (torch.randn(1, 2, 8, 16) for _ in range(3))
    function = torch.nn.functional.scaled_dot_product_attention
    for causal in (False, True):
        assert torch.allclose(host_time._exact(q, k, v, causal), function(q, k, v, is_causal=causal), atol=1e-5)


@pytest.mark.parametrize(("code", "sentence"), [
    ("raise ImportError('it is of another Python')", "(ImportError: it is of another Python)"),
    ("import os; os._exit(7)", "(exit code 7)"),
])  # fmt: skip
def test_a_package_that_cannot_be_measured(tmp_path, code, sentence):
    for name in ("torch", "kiln"):
        (tmp_path / f"{name}.py").write_text(code)
    row = host.row(place(str(tmp_path)), "kiln")
    assert row["skipped"] == f"its Python package cannot be measured {sentence}" and row["microseconds"] == {}


def test_a_release_without_a_package():
    assert host.row(place(None), "kiln")["skipped"] == "a tarball has no Python package"


def test_the_script_runs_with_the_package_of_the_release(tmp_path):
    """Which stands in for the measurement here; a short budget makes fewer batches."""
    said = "{'microseconds': {'x': [1.0] * int(sys.argv[1])}, 'refused': {}, 'wrong': {}, 'images': ['an image']}"
    (tmp_path / "torch.py").write_text(
        "import json, os, sys\n"
        "assert not any(os.path.basename(folder) == 'kiln_bench' for folder in sys.path)\n"
        f"print(json.dumps({said}), flush=True)\n"
        "os._exit(0)\n"
    )
    row = host.row(place(str(tmp_path)), "kiln-2", 30.0)
    assert row["microseconds"] == {"x": [1.0] * 10} and row["images"] == {"kiln-2": ["an image"]}
    assert len(host.row(place(str(tmp_path)), "kiln")["microseconds"]["x"]) == host_time.BATCHES
