"""The order of a build: what a failure leaves, and what each step is told. Whole builds are in end_to_end/."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from kiln import build, farm, native, release
from kiln.errors import BuildFailed, KilnError, UsageError
from kiln.options import make_options, read_build_variables

ROOT = Path(__file__).resolve().parents[1]
VERSION = "0.1.0b"


def options(place: Path, **variables: str):
    words = [str(ROOT / "input"), "work", "out", VERSION, "sm_90"]
    site = Path(pytest.importorskip("triton").__file__).parents[1]
    return make_options(words, read_build_variables(variables), ROOT, place, site=site)


def earlier_release(output: Path) -> dict[str, bytes]:
    output.mkdir()
    tarball = output / release.tarball_name(VERSION)
    tarball.write_bytes(b"an earlier build's")
    line = f"{hashlib.sha256(tarball.read_bytes()).hexdigest()}  {tarball.name}\n"
    tarball.with_name(f"{tarball.name}.sha256").write_text(line)
    return contents(output)


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
    before = earlier_release(asked.output)
    with pytest.raises(error, match=said):
        build.build(asked)
    assert contents(asked.output) == before
    tarball = asked.output / release.tarball_name(VERSION)
    assert f"{tarball} is an earlier build's, and stays as it was" in capsys.readouterr().err


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


def test_all_that_is_temporary_lies_in_the_workspace(tmp_path, monkeypatch):
    seen = []

    def look(_variants, _toolchain, _store, options, _progress):
        seen.append(options)
        fail()

    monkeypatch.setattr(farm, "run", look)
    with pytest.raises(BuildFailed):
        build.build(options(tmp_path, KILN_JOBS="3", KILN_TIMEOUT="7"))
    assert (seen[0].logs, seen[0].temporary) == (tmp_path / "work/logs", tmp_path / "work/tmp")
    assert (seen[0].jobs, seen[0].timeout) == (3, 7.0)
